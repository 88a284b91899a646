"""Session, user and tags go only to destinations that take part in tracing, and only their part of a trace is awaited."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
import requests
from opentelemetry import baggage, propagate
from opentelemetry import context as otel_context
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import TracerProvider

from spanwise.tracer import attribute_names as names
from spanwise.tracer import (
    carry,
    configure,
    extract,
    flush,
    inject,
    instrument,
    session,
    span,
    tags,
    tracer_provider,
    uninstrument,
    user,
)
from spanwise.tracer.http_connections import get_destination
from spanwise.tracer.testing import Spans, capture_spans

from .conftest import Sink


class Third:
    """A server that keeps the headers of its requests."""

    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []
        kept = self.headers

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                kept.append({name.lower(): value for name, value in self.headers.items()})
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_port}"
        self.url = f"http://{self.host}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def third() -> Iterator[Third]:
    made = Third()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def instrumented() -> Iterator[None]:
    instrument("httpx", "requests")
    yield
    uninstrument("httpx", "requests")


def get_by_httpx(url: str) -> None:
    httpx.get(url, timeout=60)


def get_by_httpx_async(url: str) -> None:
    async def get() -> None:
        async with httpx.AsyncClient() as client:
            await client.get(url, timeout=60)

    asyncio.run(get())


def get_by_requests(url: str) -> None:
    requests.get(url, timeout=60)


@pytest.mark.parametrize("get", [get_by_httpx, get_by_httpx_async, get_by_requests])
@pytest.mark.parametrize("configured", [False, True])
def test_session_user_and_tags_go_to_configured_hosts_alone(
    third: Third, instrumented: None, get: Any, configured: bool
) -> None:
    hosts = ["*.internal", third.host] if configured else ["*.internal"]
    with capture_spans(propagate_to=hosts) as traced:
        token = otel_context.attach(baggage.set_baggage("theirs", "1"))
        with session("s-1"), user("u-1"), tags("t-1"), span("root"):
            get(third.url)
        otel_context.detach(token)
    [headers] = third.headers
    assert "traceparent" in headers
    sent = dict(pair.split("=") for pair in headers["baggage"].split(","))
    ours = {"spanwise.session": "s-1", "spanwise.user": "u-1", "spanwise.tags": "t-1"}
    assert sent == {"theirs": "1", **(ours if configured else {})}
    assert (traced.one("root").attributes or {}).get(names.CALLS_SENT) == (1 if configured else None)


def test_ids_that_came_with_a_request_are_not_passed_on_to_unknown_hosts(
    traced: Spans, third: Third, instrumented: None
) -> None:
    with session("s-1"), span("caller"):
        headers = inject()
    assert headers["baggage"] == "spanwise.session=s-1"
    with extract(headers), span("work"):
        get_by_httpx(third.url)
    incoming = propagate.extract(headers)  # as an instrumentation of a server does
    token = otel_context.attach(incoming)
    with tracer_provider().get_tracer("asgi").start_as_current_span("GET /", incoming, otel.SpanKind.SERVER):
        get_by_httpx(third.url)
        with span("inner"):
            get_by_httpx(third.url)
    otel_context.detach(token)
    assert ["baggage" in headers for headers in third.headers] == [False] * 3
    assert (traced.one("inner").attributes or {})["session.id"] == "s-1"


def test_another_set_ups_instrumentation_sends_no_ids_to_unknown_hosts(traced: Spans) -> None:
    tracer = TracerProvider().get_tracer("theirs")
    headers: dict[str, str] = {}
    with session("s-1"), span("root"):
        attributes = {"http.url": "https://api.example.com/v1"}
        with tracer.start_as_current_span("POST", kind=otel.SpanKind.CLIENT, attributes=attributes):
            propagate.inject(headers)
        propagate.inject(headers)
    assert "spanwise.session" not in headers.get("baggage", "")


def test_what_is_injected_or_carried_on_purpose_has_all(traced: Spans) -> None:
    with session("s-1"), span("root"):
        assert inject()["baggage"] == "spanwise.session=s-1"
        assert carry(print)._carrier["baggage"] == "spanwise.session=s-1"


def test_entries_of_the_application_beside_ours_change_nothing(traced: Spans) -> None:
    with session("s-1"):
        token = otel_context.attach(baggage.set_baggage("theirs", "1"))
        headers: dict[str, str] = {}
        propagate.inject(headers)
        assert headers["baggage"] == "theirs=1"
        assert baggage.get_baggage("spanwise.session") == "s-1"
        assert inject()["baggage"] == "spanwise.session=s-1,theirs=1"
        otel_context.detach(token)


def test_what_the_collector_names_counts_for_its_project(
    sink: Sink, third: Third, instrumented: None, only_when_asked: None
) -> None:
    named = f"a.internal:80,{third.host},BAD NAME,{'x' * 300}"
    answer = {names.COLLECTOR_HEADER: "1", names.DESTINATIONS_HEADER: named}
    sink.answer = lambda path, body: (200, answer if path == "/v1/logs" else {names.COLLECTOR_HEADER: "1"}, b"")
    for project in ("p", "p", "q"):
        configure(url=sink.url, project=project)
        with session("s-1"), span("root"):
            get_by_httpx(third.url)
        assert flush(60)
        sink.answer = lambda path, body: (200, {names.COLLECTOR_HEADER: "1"}, b"")
    assert ["baggage" in headers for headers in third.headers] == [False, True, False]
    roots = [s for s in sink.spans() if not s.parent_span_id]
    counted = [[a.value.int_value for a in s.attributes if a.key == names.CALLS_SENT] for s in roots]
    assert counted == [[], [1], []]


def test_a_host_that_the_collector_names_no_more_gets_nothing_more(
    sink: Sink, third: Third, instrumented: None, only_when_asked: None
) -> None:
    named = [third.host]

    def answer(path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        extra = {names.DESTINATIONS_HEADER: named[0]} if path == "/v1/logs" else {}
        return 200, {names.COLLECTOR_HEADER: "1", **extra}, b""

    sink.answer = answer
    configure(url=sink.url)
    for host in (third.host, "", ""):
        named[0] = host
        with session("s-1"), span("root"):
            get_by_httpx(third.url)
        assert flush(60)
    assert ["baggage" in headers for headers in third.headers] == [False, True, False]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"url.full": "https://API.internal/x?y=1"}, "api.internal:443"),
        ({"http.url": "http://127.0.0.1:8001/x"}, "127.0.0.1:8001"),
        ({"http.url": "http://[::1]:8001/x"}, "[::1]:8001"),
        ({"url.full": "http://h:99999/"}, None),
        ({"url.full": "/only/a/path"}, None),
        ({"server.address": "db", "server.port": 5432}, "db:5432"),
        ({"net.peer.name": "grpc.internal"}, "grpc.internal"),
        ({"messaging.destination.name": "jobs"}, "messaging/jobs"),
        ({"server.address": "a,b"}, None),
        ({"server.address": 3}, None),
        ({}, None),
    ],
)
def test_where_a_call_goes(attributes: Mapping[str, object], expected: str | None) -> None:
    assert get_destination(attributes) == expected


@pytest.mark.parametrize(
    ("pattern", "url", "matches"),
    [
        ("api.internal", "http://api.internal:8000", True),
        ("API.internal", "https://api.internal", True),
        ("https://api.internal/v1", "https://api.internal", True),
        ("api.internal:8000", "https://api.internal", False),
        ("*.internal", "http://a.b.internal", True),
        ("*.internal", "http://internal.example.com", False),
        ("*.internal:80*", "http://api.internal:8001", True),
        ("[::1]", "http://[::1]", True),
        ("*", "http://anything:1", True),
        ("api", "http://api.example.com", False),
    ],
)
def test_patterns_of_hosts(pattern: str, url: str, matches: bool) -> None:
    tracer, kind = tracer_provider().get_tracer("x"), otel.SpanKind.CLIENT
    headers: dict[str, str] = {}
    call = tracer.start_as_current_span("call", kind=kind, attributes={"url.full": url})
    with capture_spans(propagate_to=[pattern]), session("s"), call:
        propagate.inject(headers)
    assert ("baggage" in headers) == matches


@pytest.mark.parametrize("given", ["api.internal", [""], ["a b"], [3], ["a,b"]])
def test_what_is_no_host_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="propagate_to"):
        configure(propagate_to=given)


def test_the_variable_names_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANWISE_PROPAGATE_TO", "a.internal, *.b.internal")
    with capture_spans() as traced:
        assert traced.settings.propagate_to == ("a.internal", "*.b.internal")


@pytest.mark.parametrize("around", [session, user, tags])
def test_half_an_emoji_breaks_no_call(third: Third, instrumented: None, around: Any) -> None:
    with capture_spans(propagate_to=["*"]), around("chat \ud83d"), span("root"):
        get_by_httpx(third.url)
        assert inject()
    assert "3F" in third.headers[0]["baggage"]


def test_an_id_that_is_too_long_for_a_header_stays_here(traced: Spans) -> None:
    with session("outer"), session("x" * 100_000), span("root"):
        assert "baggage" not in inject()
    assert len((traced.one("root").attributes or {})["session.id"]) == 100_000


def test_an_id_of_none_is_no_session(traced: Spans) -> None:
    with session(None), user(None), span("anonymous"):
        assert "baggage" not in inject()
    with session("a"), session(None), span("inside"):
        pass
    found = [(traced.one(name).attributes or {}).get("session.id") for name in ("anonymous", "inside")]
    assert found == [None, "a"]
