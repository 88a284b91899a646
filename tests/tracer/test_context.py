"""Context that holds: tasks, threads, processes, forks, HTTP, and applications that another set-up traces."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import uvicorn
from opentelemetry import trace as otel
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from spanwise.tracer import (
    carry,
    configure,
    current_run,
    extract,
    flush,
    inject,
    instrument,
    session,
    span,
    tags,
    trace,
    tracer_provider,
    uninstrument,
)
from spanwise.tracer.testing import Spans, capture_spans
from spanwise.tracer.trace_capture import capture

from .conftest import Sink, until


@trace
def leaf(n: int) -> int:
    return n


@trace
def middle(n: int) -> int:
    return leaf(n) + leaf(n)


@trace
async def aleaf(n: int) -> int:
    await asyncio.sleep(0)
    return n


@trace
async def amiddle(n: int) -> list[int]:
    return list(await asyncio.gather(aleaf(n), aleaf(n + 1)))


def shapes(traced: Spans) -> Counter[tuple[str, ...]]:
    """How often each path of names from the root occurs."""
    by_id = {(s.context.trace_id, s.context.span_id): s for s in traced.spans}

    def path(s: Any) -> tuple[str, ...]:
        return (*(path(by_id[s.context.trace_id, s.parent.span_id]) if s.parent else ()), s.name)

    return Counter(path(s) for s in traced.spans)


@pytest.mark.slow
def test_200_threads_of_200_calls_keep_every_link(traced: Spans) -> None:
    def run() -> None:
        for i in range(200):
            middle(i)

    with capture_spans() as spans:
        threads = [threading.Thread(target=run) for _ in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert shapes(spans) == {("middle",): 40_000, ("middle", "leaf"): 80_000}
        roots = [dict(s.attributes or {}) for s in spans.spans if s.name == "middle"]
        assert {(a["spanwise.spans.started"], a["spanwise.spans.open"]) for a in roots} == {(3, 0)}


@pytest.mark.process
def test_1000_concurrent_tasks_keep_every_link(traced: Spans) -> None:
    async def main() -> None:
        await asyncio.gather(*(amiddle(i) for i in range(1000)))

    asyncio.run(main())
    assert shapes(traced) == {("amiddle",): 1000, ("amiddle", "aleaf"): 2000}


def test_threads_and_pools_get_the_context(sink: Sink) -> None:
    configure(url=sink.url)
    with span("root"):
        thread = threading.Thread(target=leaf, args=(1,))
        thread.start()
        thread.join()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(leaf, range(3)))
    assert flush(60)
    (root,) = (s for s in sink.spans() if s.name == "root")
    assert [s.parent_span_id for s in sink.spans() if s.name == "leaf"] == [root.span_id] * 4


FIRST = """
import sys
from concurrent.futures import ThreadPoolExecutor
from spanwise.tracer import extract, flush, session, trace
leaf = trace(name="leaf")(lambda: 1)
with eval(sys.argv[1]), ThreadPoolExecutor(1) as pool:
    pool.submit(leaf).result()
assert flush(60)
"""


@pytest.mark.process
@pytest.mark.parametrize("around", ["session('s')", "extract({'baggage': 'spanwise.session=s'})"])
def test_a_pool_used_before_the_first_span_gets_the_context(sink: Sink, around: str) -> None:
    environment = {**os.environ, "SPANWISE_URL": sink.url}
    subprocess.run([sys.executable, "-c", FIRST, around], check=True, env=environment)
    (leaf_span,) = sink.spans()
    assert {a.key: a.value.string_value for a in leaf_span.attributes}["session.id"] == "s"


def work_elsewhere(n: int) -> int:
    with session("inner"):
        return middle(n)


@pytest.mark.process
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_process_pools_carry_the_context(sink: Sink, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANWISE_URL", sink.url)
    configure()
    with span("root") as root, tags("t"):
        task = carry(work_elsewhere)
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
            assert list(pool.map(task, range(100))) == [2 * n for n in range(100)]
    assert flush(60)
    spans = {s.span_id: s for s in sink.spans()}
    assert {s.trace_id.hex() for s in spans.values()} == {root.trace_id}
    assert Counter(s.name for s in spans.values()) == {"root": 1, "middle": 100, "leaf": 200}
    parents = Counter(spans[s.parent_span_id].name for s in spans.values() if s.parent_span_id)
    assert parents == {"root": 100, "middle": 200}
    attributes = {a.key: a.value for a in next(s for s in spans.values() if s.name == "leaf").attributes}
    assert [v.string_value for v in attributes["tag.tags"].array_value.values] == ["t"]


def many_elsewhere(n: int) -> None:
    """50 threads × 50 calls and 250 concurrent tasks."""

    async def tasks() -> None:
        await asyncio.gather(*(amiddle(i) for i in range(250)))

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(lambda _: [middle(i) for i in range(50)], range(50)))
    asyncio.run(tasks())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_threads_and_tasks_of_other_processes_keep_every_link(
    sink: Sink, method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPANWISE_URL", sink.url)
    configure()
    with span("root") as root, ProcessPoolExecutor(4, mp_context=multiprocessing.get_context(method)) as pool:
        list(pool.map(carry(many_elsewhere), range(4)))
    assert flush(60)
    spans = {s.span_id: s for s in sink.spans()}
    assert {s.trace_id.hex() for s in spans.values()} == {root.trace_id}
    parents = Counter((s.name, spans[s.parent_span_id].name) for s in spans.values() if s.parent_span_id)
    assert parents == {
        ("middle", "root"): 10_000,
        ("leaf", "middle"): 20_000,
        ("amiddle", "root"): 1000,
        ("aleaf", "amiddle"): 2000,
    }


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_continues_the_trace_and_delivers_for_itself(sink: Sink) -> None:
    configure(url=sink.url)
    leaf(0)
    with span("root") as root:
        pid = os.fork()
        if pid == 0:
            middle(1)
            os._exit(0 if flush(60) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        leaf(2)
    assert flush(60)
    spans = {s.span_id: s for s in sink.spans() if s.trace_id.hex() == root.trace_id}
    assert Counter(s.name for s in spans.values()) == {"root": 1, "middle": 1, "leaf": 3}
    (child,) = (s for s in spans.values() if s.name == "middle")
    counts = {a.key: a.value.int_value for a in child.attributes}
    assert spans[child.parent_span_id].name == "root"
    assert (counts["spanwise.spans.started"], counts.get("spanwise.spans.open", 0)) == (3, 0)


@pytest.mark.process
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_process_that_ends_by_itself_delivers_what_it_has(
    sink: Sink, method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPANWISE_URL", sink.url)
    configure()
    process = multiprocessing.get_context(method).Process(target=middle, args=(1,))
    process.start()
    process.join()
    flush(60)  # what its end had no time to wait for lies on the disk
    assert Counter({s.span_id: s.name for s in sink.spans()}.values()) == {"middle": 1, "leaf": 2}


def test_inject_and_extract_carry_session_and_tags(traced: Spans) -> None:
    with span("caller"), session("s 1"), tags("a;b", "ü"):
        headers = inject()
    assert headers["tracestate"].startswith("spanwise=")
    with extract(headers):
        middle(1)
    attributes = dict(traced.one("middle").attributes or {})
    assert traced.parent("middle") == "caller"
    assert (attributes["session.id"], attributes["tag.tags"]) == ("s 1", ("a;b", "ü"))
    assert dict(next(s for s in traced.spans if s.name == "leaf").attributes or {})["session.id"] == "s 1"


@pytest.mark.parametrize("sampled", [True, False])
def test_inside_an_application_that_is_traced_already(traced: Spans, sampled: bool) -> None:
    theirs = InMemorySpanExporter()
    provider = TracerProvider() if sampled else TracerProvider(sampler=ALWAYS_OFF)
    provider.add_span_processor(SimpleSpanProcessor(theirs))
    tracer = provider.get_tracer("web")
    with tracer.start_as_current_span("GET /") as server, span("ours") as run:
        with tracer.start_as_current_span("SELECT"):
            leaf(1)
        run.set_outputs(1)
    attributes = dict(traced.one("ours").attributes or {})
    assert shapes(traced) == {("ours",): 1, ("ours", "leaf"): 1}
    assert attributes["spanwise.foreign.span_id"] == f"{server.get_span_context().span_id:016x}"
    assert traced.one("ours").links[0].context.span_id == server.get_span_context().span_id
    their_parents = {s.name: s.parent and s.parent.span_id for s in theirs.get_finished_spans()}
    expected = {"GET /": None, "SELECT": server.get_span_context().span_id}
    assert their_parents == (expected if sampled else {})


@pytest.mark.process
def test_another_sets_global_provider_is_left_alone(traced: Spans) -> None:
    code = """
import sys
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import TracerProvider
from spanwise.tracer import span, current_run
from spanwise.tracer.testing import capture_spans
otel.set_tracer_provider(TracerProvider())
with capture_spans() as spans, span("ours"):
    assert otel.get_current_span() is otel.INVALID_SPAN
    with otel.get_tracer("db").start_as_current_span("SELECT") as theirs:
        assert theirs.parent is None
        with span("below"):
            pass
assert spans.parent("below") == "ours", spans.names()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_foreign_application_continues_across_processes_by_tracestate(traced: Spans) -> None:
    tracer = TracerProvider(sampler=ALWAYS_OFF).get_tracer("web")
    with tracer.start_as_current_span("client app") as theirs, span("caller"):
        headers = inject()
    assert f"{theirs.get_span_context().trace_id:032x}" in headers["traceparent"]
    with extract(headers), tracer.start_as_current_span("server app"):
        leaf(1)
    assert traced.parent("leaf") == "caller"


def test_a_foreign_traceparent_is_linked_not_obeyed(traced: Spans) -> None:
    with extract({"Traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-00"}):
        leaf(1)
    attributes = dict(traced.one("leaf").attributes or {})
    assert (attributes["spanwise.foreign.trace_id"], traced.one("leaf").parent) == ("a" * 32, None)


async def app(scope: Any, receive: Any, send: Any) -> None:
    leaf(1)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def server() -> Iterator[Any]:
    """A function that serves an ASGI application in a thread and returns its address."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def serve(application: Any) -> str:
        uvicorn_server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="error", lifespan="off"))
        thread = threading.Thread(target=uvicorn_server.run)
        running.append((uvicorn_server, thread))
        thread.start()
        until(lambda: uvicorn_server.started)
        return f"http://127.0.0.1:{uvicorn_server.servers[0].sockets[0].getsockname()[1]}"

    yield serve
    for uvicorn_server, thread in running:
        uvicorn_server.should_exit = True
        thread.join()


@pytest.fixture
def local() -> Iterator[Spans]:
    with capture_spans(propagate_to=["127.0.0.1"]) as spans:
        yield spans


def test_http_out_and_in_through_instrumentations(local: Spans, server: Any) -> None:
    traced, url = local, server(OpenTelemetryMiddleware(app, tracer_provider=tracer_provider()))
    instrument("httpx")
    try:
        with span("root"), session("s"):
            httpx.get(url + "/x", timeout=60)
    finally:
        uninstrument("httpx")
    until(lambda: {"leaf", "GET /x"} <= set(traced.names()))
    assert ("root", "GET", "GET /x", "leaf") in shapes(traced)
    assert (traced.one("GET").kind.name, traced.one("GET /x").kind.name) == ("CLIENT", "SERVER")
    assert dict(traced.one("leaf").attributes or {})["session.id"] == "s"


def test_an_instrumentation_that_is_not_installed_names_its_packages() -> None:
    packages = "pip install openinference-instrumentation-groq or opentelemetry-instrumentation-groq"
    with pytest.raises(ValueError, match=packages):
        instrument("GROQ")


def test_an_unknown_instrumentation_suggests_the_closest_name_and_no_package() -> None:
    with pytest.raises(ValueError, match=r"no instrumentation package .* did you mean 'langchain'") as raised:
        instrument("langchian")
    assert "pip install" not in str(raised.value)


@pytest.mark.parametrize("name", ["HTTPX", "Httpx", " httpx "])
def test_names_of_instrumentations_ignore_case(name: str) -> None:
    instrument(name)
    uninstrument(name)


def test_third_party_spans_are_parents_and_children_of_ours(traced: Spans) -> None:
    tracer = tracer_provider().get_tracer("openai", "1")
    with span("ours"), tracer.start_as_current_span("chat", kind=otel.SpanKind.CLIENT) as call:
        call.set_attribute("llm.model_name", "m")
        assert current_run().span_id == f"{call.get_span_context().span_id:016x}"
        leaf(1)
    assert shapes(traced) == {("ours",): 1, ("ours", "chat"): 1, ("ours", "chat", "leaf"): 1}
    assert traced.one("chat").instrumentation_scope.name == "openai"  # type: ignore[union-attr]


def test_joining_an_existing_provider(sink: Sink) -> None:
    theirs = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(theirs))
    configure(url=sink.url, provider=provider, project="p")
    with provider.get_tracer("web").start_as_current_span("GET /"), session("s"), tags("t"):
        middle(1)
    assert flush(60)
    sent = {s.name: s for s in sink.spans()}
    assert {s.name for s in theirs.get_finished_spans()} == set(sent) == {"GET /", "middle", "leaf"}
    assert sent["middle"].parent_span_id == sent["GET /"].span_id
    counts = {a.key: a.value.int_value for a in sent["GET /"].attributes}
    assert (counts["spanwise.spans.started"], counts.get("spanwise.spans.open", 0)) == (4, 0)


def test_head_sampling_takes_whole_traces_and_agrees_across_processes() -> None:
    with capture_spans(sample_rate=0.3) as traced:
        for i in range(500):
            middle(i)
        with span("again") as run:
            sampled = run.span.get_span_context().trace_flags.sampled
            headers = inject()
        with extract(headers):
            middle(1)
    assert shapes(traced)["middle", "leaf"] == 2 * shapes(traced)["middle",]
    assert 90 < shapes(traced)["middle",] < 220
    assert (("again", "middle") in shapes(traced)) == sampled


def test_capture_inside_a_joined_setup_keeps_everything_to_itself(sink: Sink) -> None:
    provider = TracerProvider()
    configure(url=sink.url, provider=provider)
    with provider.get_tracer("web").start_as_current_span("GET /"):
        with capture("example") as captured, provider.get_tracer("db").start_as_current_span("SELECT"):
            middle(1)
        spans, still_open = captured.spans()
    assert flush(60)
    assert Counter(s.name for s in spans) == {"example": 1, "SELECT": 1, "middle": 1, "leaf": 2}
    assert ([s.name for s in sink.spans()], still_open) == (["GET /"], 0)


async def answered_elsewhere() -> str:
    await asyncio.sleep(0)
    with span("inner") as run:
        return run.trace_id


def test_a_carried_coroutine_function_runs_inside(traced: Spans) -> None:
    with span("root") as root, session("s"):
        task = carry(answered_elsewhere)
    assert asyncio.run(task()) == root.trace_id
    assert (traced.one("inner").attributes or {})["session.id"] == "s"
