"""Requests and WSGI, and instrumentations that were switched on before `configure`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
import requests
from opentelemetry.instrumentation.wsgi import OpenTelemetryMiddleware
from opentelemetry.sdk.trace import TracerProvider

from spanwise.tracer import configure, flush, instrument, session, span, trace, tracer_provider, uninstrument
from spanwise.tracer.testing import Spans, capture_spans
from spanwise.tracer.trace_capture import capture

from .conftest import Sink, until


@trace
def leaf(n: int) -> int:
    return n


def app(environ: Any, start_response: Callable[..., Any]) -> Iterable[bytes]:
    leaf(1)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"ok"]


class Quiet(WSGIRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def local() -> Iterator[Spans]:
    with capture_spans(propagate_to=["127.0.0.1"]) as spans:
        yield spans


@pytest.fixture
def url() -> Iterator[str]:
    """The address of a WSGI application that is traced with our provider."""
    server = make_server(
        "127.0.0.1", 0, OpenTelemetryMiddleware(app, tracer_provider=tracer_provider()), handler_class=Quiet
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.process
def test_requests_out_and_wsgi_in(local: Spans, url: str) -> None:
    traced = local
    instrument("requests")
    try:
        with span("root"), session("s"):
            assert requests.get(f"{url}/x", timeout=60).text == "ok"
    finally:
        uninstrument("requests")
    until(lambda: {"GET /x", "GET"} <= set(traced.names()))
    assert [traced.parent(name) for name in ("GET", "GET /x", "leaf")] == ["root", "GET", "GET /x"]
    assert dict(traced.one("leaf").attributes or {})["session.id"] == "s"


def test_delivery_by_requests_is_not_traced_itself(sink: Sink) -> None:
    configure(url=sink.url)
    instrument("requests")
    try:
        leaf(1)
        assert flush(60)
        assert flush(60)
    finally:
        uninstrument("requests")
    assert [s.name for s in sink.spans()] == ["leaf"]


def test_a_tracer_made_before_configure_follows_it(sink: Sink) -> None:
    tracer = tracer_provider().get_tracer("theirs")
    configure(url=sink.url, project="p", redact=["secret"])
    configure(url=sink.url, project="q", redact=["secret"])
    tracer.start_span("call", attributes={"secret": "xyzzy"}).end()
    assert flush(60)
    assert [s.name for s in sink.spans()] == ["call"]
    assert b"xyzzy" not in sink.bytes()


def test_a_tracer_made_before_capture_none_records_nothing(sink: Sink) -> None:
    tracer = tracer_provider().get_tracer("theirs")
    configure(url=sink.url, capture="none")
    with tracer.start_as_current_span("call") as call:
        assert not call.is_recording()
    configure(url=sink.url)
    tracer.start_span("later").end()
    assert flush(60)
    assert [s.name for s in sink.spans()] == ["later"]


def test_capture_none_delivers_nothing_of_a_joined_provider(sink: Sink) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    configure(url=sink.url, capture="none", provider=provider)
    provider.get_tracer("web").start_span("GET /").end()
    leaf(1)
    assert flush(60)
    assert sink.requests == []


def test_a_captured_trace_under_capture_none_is_its_root_alone(sink: Sink) -> None:
    configure(url=sink.url, capture="none")
    with capture("root", inputs={"q": 1}) as captured:
        assert leaf(1) == 1
        captured.run.feedback("k", 1)
    spans, still_open = captured.spans()
    assert ([s.name for s in spans], still_open) == (["root"], 0)
    assert "input.value" not in (spans[0].attributes or {})
    assert flush(60)
    assert sink.requests == []
