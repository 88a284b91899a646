"""Destinations that take part in tracing: found from the spans that continue calls, and named to tracers that report."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import httpx
import pytest

from collector.making import run
from integration.serving import environment
from polling import until
from spanwise.collector.records import Key
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.write import side_tables
from spanwise.tracer import attribute_names as names
from spanwise.tracer import configure, flush, instrument, session, span, uninstrument


def call(url="http://api.internal/x", **fields):
    return run(attributes={"otel.span.kind": "client", "url.full": url}, **fields)


def continued(caller, **fields):
    given = {"trace_id": caller.trace_id, "parent_id": caller.span_id, "project": caller.project, **fields}
    return run(attributes={"otel.span.kind": "server"}, **given)


@pytest.fixture
def store(tmp_path):
    with SQLiteStore(tmp_path / "a.db") as opened:
        yield opened


@pytest.mark.parametrize("order", ["together", "caller first", "callee first"])
def test_a_call_that_a_span_continues_names_its_destination(store, order):
    caller = call()
    pair = [caller, continued(caller)]
    if order == "together":
        store.append(pair)
    else:
        for one in pair if order == "caller first" else pair[::-1]:
            store.append([one])
    assert store.traced_destinations("default") == ("api.internal:80",)
    assert store.traced_destinations("other") == ()


def test_a_local_root_of_our_tracer_continues_a_call(store):
    caller = call()
    own = continued(caller)
    own.attributes.clear()
    own.attributes.update({names.LOCAL_ROOT: own.span_id, names.SPANS_STARTED: 1, names.SPANS_OPEN: 0})
    store.append([caller, own])
    assert store.traced_destinations("default") == ("api.internal:80",)


def test_neither_a_call_alone_nor_a_child_in_the_same_process_does(store):
    caller = call()
    store.append([caller, run(trace_id=caller.trace_id, parent_id=caller.span_id)])
    store.append([call("http://b.internal")])
    assert store.traced_destinations("default") == ()


def test_a_sender_of_another_project_names_nothing(store):
    caller = call(project="victim")
    store.append([caller])
    store.append([continued(caller, project="attacker")])
    assert (store.traced_destinations("victim"), store.traced_destinations("attacker")) == ((), ())


def test_destinations_are_there_after_a_restart_and_a_vacuum(tmp_path):
    caller = call()
    with SQLiteStore(tmp_path / "b.db") as store:
        store.append([caller, continued(caller)])
    with SQLiteStore(tmp_path / "b.db") as store:
        store.delete(project="default")
        store.vacuum()
        assert store.traced_destinations("default") == ("api.internal:80",)


def test_destinations_of_a_project_are_bounded(store, monkeypatch):
    monkeypatch.setattr(side_tables, "MAX_DESTINATIONS", 3)
    monkeypatch.setattr(side_tables, "MAX_PENDING_CALLS", 3)
    for number in range(5):
        caller = call(f"http://h{number}.internal")
        store.append([caller, continued(caller)])
    assert store.traced_destinations("default") == ("h2.internal:80", "h3.internal:80", "h4.internal:80")
    store.append([call() for _ in range(9)])
    assert len(store._file.appender.destinations._calls) == 3


REPORT = """{"resourceLogs": [{"resource": {"attributes": [
  {"key": "service.instance.id", "value": {"stringValue": "i"}},
  {"key": "openinference.project.name", "value": {"stringValue": "PROJECT"}}]},
  "scopeLogs": [{"logRecords": [{"eventName": "EVENT", "timeUnixNano": "1000000000000000000"}]}]}]}"""


def asked(server, project="default", event=names.REPORT_EVENT, **headers):
    body = REPORT.replace("PROJECT", project).replace("EVENT", event)
    kind = {"content-type": "application/json", **headers}
    answer = httpx.post(f"{server.url}/v1/logs", content=body, headers=kind, timeout=60)
    assert answer.status_code == 200
    return answer.headers.get(names.DESTINATIONS_HEADER)


def test_the_answer_to_a_report_names_the_destinations_of_its_project(store):
    one, other = call(project="p"), call("https://b.internal", project="q")
    store.append([one, continued(one), other, continued(other)])
    with Server(store) as server:
        assert [asked(server, "p"), asked(server, "q"), asked(server, "r")] == ["api.internal:80", "b.internal:443", ""]
        assert asked(server, "p", event="anything") is None


def test_a_projects_key_gets_the_destinations_of_its_project_whatever_the_report_claims(store):
    one, other = call(project="p"), call("https://b.internal", project="q")
    store.append([one, continued(one), other, continued(other)])
    sha256 = hashlib.sha256(b"secret").hexdigest()
    store.save_key(Key(id="k", name="k", sha256=sha256, project="q", scopes=("write",), created_ns=0))
    with Server(store) as server:
        assert asked(server, "p", authorization="Bearer secret") == "b.internal:443"


SERVICE = """
from wsgiref.simple_server import make_server, WSGIRequestHandler
from opentelemetry.instrumentation.wsgi import OpenTelemetryMiddleware
from spanwise.tracer import flush, tracer_provider

class Quiet(WSGIRequestHandler):
    def log_message(self, *_): pass

def app(environ, start_response):
    start_response("200 OK", [])
    return [b""]

server = make_server("127.0.0.1", 0, OpenTelemetryMiddleware(app, tracer_provider=tracer_provider()), handler_class=Quiet)
print(server.server_port, flush=True)
for _ in range(2):
    server.handle_request()
    flush(60)
"""


@pytest.mark.slow
def test_a_call_is_awaited_once_its_destination_has_sent_spans(store, monkeypatch):
    monkeypatch.setenv("SPANWISE_SPILL_DIR", "off")
    with Server(store) as server:
        given = environment() | {"SPANWISE_URL": server.url, "SPANWISE_SPILL_DIR": "off"}
        service = subprocess.Popen([sys.executable, "-c", SERVICE], stdout=subprocess.PIPE, env=given, text=True)
        assert service.stdout is not None
        own = f"http://127.0.0.1:{service.stdout.readline().strip()}/"
        configure(url=server.url)
        instrument("httpx")
        try:
            counted = []
            for url in (server.url + "/healthz", own, own):
                with session("s"), span("root") as traced:
                    httpx.get(url, timeout=60)
                assert flush(60)
                counted.append(store.trace(traced.trace_id).calls_sent)
                if url == own and len(counted) == 2:
                    until(lambda: store.traced_destinations("default"))
                    with span("between"):  # a process reports when it has something new
                        pass
                    assert flush(60)
        finally:
            uninstrument("httpx")
            service.communicate(timeout=60)
        assert counted == [0, 0, 1]
        first, _, third = store.traces(name="root").items[::-1]
        assert (first.complete, third.complete) == (True, True)
        assert third.span_count == 3
