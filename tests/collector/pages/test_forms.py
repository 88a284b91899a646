"""The forms that pages send, by their table: bounded, from here only, then acted upon."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import Request
from starlette.routing import Route

from collector.pages.scene import rag
from spanwise.collector.errors import Refused
from spanwise.collector.pages import PAGE_ROUTES, create_router, page_router


def nothing(store, request, fields):
    return "/"


FORM = page_router.Form("/made/up", ("key", "value"), nothing, largest=100)


def request(*chunks: bytes, **headers: str) -> Request:
    waiting = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]

    async def receive():
        return waiting.pop(0) if waiting else {"type": "http.request", "body": b"", "more_body": False}

    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request(
        {"type": "http", "method": "POST", "path": "/made/up", "headers": sent, "query_string": b""}, receive
    )


def fields(*chunks: bytes, **headers: str) -> dict[str, str]:
    return asyncio.run(page_router.read_declared_form(FORM, request(*chunks, **headers)))


def test_the_fields_that_the_form_names_and_no_others():
    assert fields(b"key=a+b&value=%C3%A9", b"&other=x&key2=y") == {"key": "a b", "value": "é"}


def test_an_empty_field_is_there_and_of_two_the_last_counts():
    assert fields(b"key=&value=1&value=2") == {"key": "", "value": "2"}


def test_bytes_that_are_no_text_do_no_harm():
    assert fields(b"key=\xff%ff") == {"key": "\ufffd\ufffd"}


@pytest.mark.parametrize("chunks", [(b"key=" + b"x" * 96,), (b"key=" + b"x" * 46, b"x" * 50)])
def test_the_largest_form_passes(chunks):
    assert len(fields(*chunks)["key"]) == 96


@pytest.mark.parametrize("chunks", [(b"key=" + b"x" * 97,), (b"key=" + b"x" * 46, b"x" * 51)])
def test_a_larger_one_is_refused(chunks):
    with pytest.raises(Refused, match="larger than the limit of 100 bytes"):
        fields(*chunks)


def test_as_many_fields_as_are_allowed_pass_and_one_more_is_refused():
    body = b"&".join([b"a"] * page_router.MAX_FORM_FIELDS)
    assert fields(body) == {}
    with pytest.raises(Refused, match="more fields than the limit of 48"):
        fields(body + b"&a")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec_fetch_site": "same-origin"},
        {"sec_fetch_site": "none"},
        {"host": "localhost:4318", "origin": "http://localhost:4318"},
    ],
)
def test_our_own_pages_and_programs_may_send_forms(headers):
    assert page_router.is_from_own_page(request(**headers))


@pytest.mark.parametrize(
    "headers",
    [
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"host": "localhost:4318", "origin": "http://localhost:8000"},
        {"host": "localhost:4318", "origin": "null"},
        {"host": "a", "origin": "http://a", "sec_fetch_site": "cross-site"},
    ],
)
def test_pages_of_others_may_not(headers):
    with pytest.raises(Refused, match="only from its own pages"):
        fields(b"key=a", **headers)


def test_what_was_done_is_answered_by_sending_the_reader_on(store, client):
    root = rag(store)
    form = {"key": "k", "value": "1", "run": "a b/c"}
    answer = client.post(f"/traces/{root.trace_id}/feedback", data=form, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/traces/{root.trace_id}?run=a+b%2Fc#feedback")
    assert answer.headers["cache-control"] == "no-store"


def test_a_form_with_too_many_fields_gets_a_page(store, client):
    root = rag(store)
    answer = client.post(f"/traces/{root.trace_id}/feedback", data={f"f{n}": "x" for n in range(49)})
    assert (answer.status_code, answer.headers["content-type"]) == (400, "text/html; charset=utf-8")
    assert "Invalid request" in answer.text


def test_reading_needs_one_scope_and_sending_forms_another():
    assert {(scope, methods) for _, scope, methods in PAGE_ROUTES} == {
        ("read", ("GET",)),
        ("open", ("GET",)),  # style and script, which the page needs on which readers sign in
        ("write", ("POST",)),
        ("read", ("POST",)),  # preferences, which are a cookie of the reader
    }
    assert ("/traces/{trace_id}/feedback", "write", ("POST",)) in PAGE_ROUTES


def test_the_table_names_every_address_with_its_methods():
    served = [
        (route.path, tuple(route.methods - {"HEAD"})) for route in create_router().routes if isinstance(route, Route)
    ]
    assert served == [(path, methods) for path, _, methods in PAGE_ROUTES]
