"""What every page has in common: headers, the static files, and what is said when a store cannot."""

from __future__ import annotations

import re

import pytest
from starlette.requests import Request

from collector.pages.scene import experiment
from spanwise.collector.errors import NotFound, Refused, StoreError, Unavailable
from spanwise.collector.pages import has_scripts, render_not_found, render_refusal
from spanwise.collector.pages.components import rendering
from spanwise.collector.pages.page_router import render_failure


def request(path: str = "/", method: str = "GET") -> Request:
    return Request({"type": "http", "method": method, "path": path, "headers": [], "query_string": b""})


@pytest.mark.parametrize(
    ("error", "status", "title"),
    [
        (NotFound("no trace"), 404, "Not found"),
        (Refused("no trace"), 400, "Invalid request"),
        (Unavailable("no trace"), 503, "Unavailable"),
        (StoreError("no trace"), 500, "Internal error"),
    ],
)
def test_what_a_store_cannot_do_gets_a_page(error, status, title):
    answer = render_failure(request(), error)
    assert answer.status_code == status
    assert f"<h1>{title}</h1>" in answer.body.decode()
    assert "no trace" in answer.body.decode()


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (0.4, "1"), (2.6, "3")])
def test_what_may_work_later_says_when(seconds, header):
    assert render_failure(request(), Unavailable("busy", seconds)).headers["retry-after"] == header
    assert "retry-after" not in render_failure(request(), Refused("never")).headers


@pytest.mark.parametrize(("method", "advised"), [("GET", False), ("POST", True)])
def test_who_submits_a_form_after_signing_out_learns_that_the_text_is_not_lost(method, advised):
    page = render_refusal(request(method=method), 401, "the session has expired").body.decode()
    assert ("the browser still has what you typed" in page) is advised
    assert 'href="/sign-in"' in page


def test_an_address_that_nothing_answers():
    answer = render_not_found(request("/<b>"))
    assert (answer.status_code, "there is no page &#39;/&lt;b&gt;&#39;" in answer.body.decode()) == (404, True)


@pytest.mark.process
def test_pages_are_kept_by_no_cache_and_tell_nobody_where_they_were(client):
    headers = client.get("/").headers
    assert (headers["cache-control"], headers["referrer-policy"]) == ("no-store", "same-origin")
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]


@pytest.mark.parametrize(("ending", "kind"), [("css", "text/css"), ("js", "text/javascript"), ("svg", "image/svg+xml")])
@pytest.mark.usefixtures("scripts")
def test_static_files_are_kept_for_a_year_under_an_address_of_their_content(client, ending, kind):
    (address,) = set(re.findall(rf'/static/spanwise\.{ending}\?[0-9a-f]{{12}}"', client.get("/").text))
    answer = client.get(address.strip('"'))
    assert answer.headers["content-type"].startswith(kind)
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_pages_without_scripts_load_none(client, monkeypatch):
    monkeypatch.setitem(rendering.ASSETS, "spanwise.js", "nowhere")
    rendering.read_asset.cache_clear()
    try:
        assert "<script" not in client.get("/").text
        assert client.get("/static/spanwise.js").status_code == 404
        assert not has_scripts()
    finally:
        rendering.read_asset.cache_clear()


@pytest.mark.parametrize("name", ["licenses.txt", "secrets", "base.html", "spanwise.map"])
def test_nothing_else_is_static(client, name):
    answer = client.get(f"/static/{name}")
    assert (answer.status_code, answer.text) == (404, "not found")


@pytest.mark.parametrize("number", ["x", "-1", "1.5", "1" * 13])
def test_a_number_in_an_address_that_is_none_is_refused(store, client, number):
    experiment(store, "first", (1.0, 0.0))
    answer = client.get(f"/experiments/id-first?offset={number}")
    assert (answer.status_code, f"offset must be a whole number, got &#39;{number}&#39;" in answer.text) == (400, True)


def test_a_number_in_an_address_may_be_left_empty(store, client):
    experiment(store, "first", (1.0, 0.0))
    assert client.get("/experiments/id-first?offset=").text.count('data-key="reference"') == 2
    assert client.get("/experiments/id-first?offset=1").text.count('data-key="reference"') == 1
    assert client.get(f"/datasets/sequences?offset={'0' * 12}").status_code == 200
