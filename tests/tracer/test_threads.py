"""The hook on threads: whom the context goes along with, and that nobody else's hook is disturbed."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import queue
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry.instrumentation.threading import ThreadingInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from tests.tracer.conftest import Sink, until

from spanwise.tracer import configure, flush, inject, session, span, tags, trace, tracer_provider, user
from spanwise.tracer.otel import trace_context
from spanwise.tracer.propagation import mark_monitor_spans
from spanwise.tracer.testing import Spans, capture_spans


@trace
def leaf(*_: Any) -> int:
    return 1


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    trace_context.restore_thread_methods()
    assert "spanwise" not in threading.Thread.start.__module__
    assert trace_context._originals == {}


class Own(threading.Thread):
    def run(self) -> None:
        leaf()


def with_its_own_run() -> threading.Thread:
    thread = threading.Thread()
    thread.run = leaf  # type: ignore[assignment,method-assign]
    return thread


@pytest.mark.parametrize(
    "make", [lambda: threading.Thread(target=leaf), lambda: threading.Timer(0, leaf), Own, with_its_own_run]
)
def test_a_thread_runs_in_the_context_of_who_started_it(traced: Spans, make: Callable[[], threading.Thread]) -> None:
    thread = make()
    with span("root"):
        thread.start()
    thread.join()
    assert traced.parent("leaf") == "root"
    assert ("run" in thread.__dict__) == (make is with_its_own_run)


def test_each_task_of_a_pool_has_its_own_context_and_its_thread_none(traced: Spans) -> None:
    with ThreadPoolExecutor(1) as pool:
        with span("first"):
            pool.submit(leaf).result()
        with span("second"):
            asyncio.run(_in_executor(pool))
        assert pool.submit(otel_context.get_current).result() == {}
    parents = [s.parent and s.parent.span_id for s in traced.spans if s.name == "leaf"]
    assert parents == [traced.one(name).context.span_id for name in ("first", "second")]


async def _in_executor(pool: ThreadPoolExecutor) -> None:
    await asyncio.get_running_loop().run_in_executor(pool, leaf)


def test_arguments_results_and_errors_pass_as_they_are(traced: Spans) -> None:
    with span("root"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda *a, **k: (a, k), 1, function=2, context=3).result() == (
            (1,),
            {"function": 2, "context": 3},
        )
        assert isinstance(pool.submit(int, "x").exception(), ValueError)
        with pytest.raises(TypeError):
            pool.submit()  # type: ignore[call-arg]
    assert threading.Thread.start.__name__ == "start"


def test_a_thread_that_cannot_start_may_be_run_by_hand(traced: Spans) -> None:
    thread = threading.Thread(target=leaf)
    with span("root"):
        thread.start()
        with pytest.raises(RuntimeError):
            thread.start()
    thread.join()
    assert otel_context.get_current() == {}


@pytest.mark.process
def test_a_thread_that_goes_on_keeps_no_span_alive_that_it_has_left(traced: Spans) -> None:
    left, go_on = threading.Event(), threading.Event()

    def work() -> None:
        otel_context.attach(otel_context.Context())
        left.set()
        go_on.wait(60)

    with span("root") as run:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        held = weakref.ref(run.span)
    assert left.wait(60)
    traced.ended.clear()
    del run
    gc.collect()
    assert held() is None
    go_on.set()
    thread.join()


def test_it_can_be_switched_off(sink: Any) -> None:
    configure(url=sink.url)
    configure(url=sink.url, threads=False)
    with capture_spans(threads=False) as traced, span("root"):
        thread = threading.Thread(target=leaf)
        thread.start()
        thread.join()
    assert traced.parent("leaf") is None


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_opentelemetrys_own_instrumentation_beside_it_does_no_harm(first: str) -> None:
    theirs = ThreadingInstrumentor()
    if first == "theirs":
        theirs.instrument()
    with capture_spans() as traced:
        if first == "ours":
            theirs.instrument()
        with span("root"), session("s"), ThreadPoolExecutor(1) as pool:
            thread = threading.Thread(target=leaf)
            thread.start()
            thread.join()
            pool.submit(leaf).result()
    if first == "theirs":
        trace_context.restore_thread_methods()
    theirs.uninstrument()
    assert [s.parent and s.parent.span_id for s in traced.spans if s.name == "leaf"] == [
        traced.one("root").context.span_id
    ] * 2


def test_a_hook_that_somebody_set_over_ours_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    with capture_spans() as traced:
        leaf()  # the main thread's first call prepares the process
        below = threading.Thread.start

        def start(self: threading.Thread) -> None:
            seen.append(self.name)
            below(self)

        monkeypatch.setattr(threading.Thread, "start", start)
        trace_context.restore_thread_methods()
        with span("root"):
            thread = threading.Thread(target=leaf, name="theirs")
            thread.start()
            thread.join()
        assert seen == ["theirs"]
        trace_context.patch_thread_methods()
        with span("again"):
            thread = threading.Thread(target=lambda: leaf(2))
            thread.start()
            thread.join()
    assert [s.parent is not None for s in traced.spans if s.name == "leaf"] == [False, False, True]
    monkeypatch.undo()


def test_subclasses_of_the_executor_are_as_before(traced: Spans) -> None:
    class Counting(ThreadPoolExecutor):
        count = 0

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            self.count += 1
            return super().submit(fn, *args, **kwargs)

    with span("root"), Counting(2) as pool:
        assert list(pool.map(leaf, range(3))) == [1, 1, 1]
    assert pool.count == 3
    assert sum(s.parent is not None for s in traced.spans) == 3
    assert sys.getrefcount(pool) < 10


class Worker:
    """A thread or task that the first request starts, and that works off the jobs of all requests."""

    def __init__(self) -> None:
        self.jobs: queue.Queue[Any] = queue.Queue()

    def run(self) -> None:
        while (job := self.jobs.get()) is not None:
            work, done = job
            try:
                work()
            finally:
                done.set()

    def do(self, work: Callable[[], object]) -> None:
        done = threading.Event()
        self.jobs.put((work, done))
        assert done.wait(60)


def in_thread(run: Callable[[], None]) -> Callable[[], object]:
    thread = threading.Thread(target=run)
    thread.start()
    return thread.join


def in_executor(run: Callable[[], None]) -> Callable[[], object]:
    pool = ThreadPoolExecutor(1)
    return pool.submit(run).result


def in_thread_pool(run: Callable[[], None]) -> Callable[[], object]:
    pool = ThreadPool(1)
    result = pool.apply_async(run)
    pool.close()
    return lambda: (result.get(), pool.join())


def in_timer(run: Callable[[], None]) -> Callable[[], object]:
    timer = threading.Timer(0, run)
    timer.start()
    return timer.join


def of(traced: Spans, name: str, key: str) -> list[Any]:
    return [(s.attributes or {}).get(key) for s in traced.spans if s.name == name]


@pytest.mark.parametrize("started", [in_thread, in_executor, in_thread_pool, in_timer])
def test_a_worker_that_a_request_starts_works_for_later_requests_on_its_own(traced: Spans, started: Any) -> None:
    worker = Worker()
    for number in range(3):
        with session(f"s{number}"), user(f"u{number}"), tags("t"), span("request"):
            if number == 0:
                end = started(worker.run)
            worker.do(leaf)
    worker.jobs.put(None)
    end()
    first = next(s for s in traced.spans if s.name == "request")
    spans = [s for s in traced.spans if s.name == "leaf"]
    assert [s.parent and s.parent.span_id for s in spans] == [first.context.span_id, None, None]
    assert len({s.context.trace_id for s in spans}) == 3
    assert of(traced, "leaf", "session.id") == ["s0", None, None]
    assert of(traced, "leaf", "user.id") == ["u0", None, None]
    assert of(traced, "leaf", "tag.tags") == [("t",), None, None]
    assert [[link.context.span_id for link in s.links] for s in spans] == [
        [],
        [first.context.span_id],
        [first.context.span_id],
    ]


def test_an_asyncio_task_that_a_request_starts_works_for_later_requests_on_its_own(traced: Spans) -> None:
    async def main() -> None:
        jobs: asyncio.Queue[Any] = asyncio.Queue()

        async def work() -> None:
            while (done := await jobs.get()) is not None:
                leaf()
                done.set_result(None)

        async def request(number: int) -> None:
            nonlocal task
            with session(f"s{number}"), span("request"):
                task = task or asyncio.create_task(work())
                done = asyncio.get_running_loop().create_future()
                await jobs.put(done)
                await done

        task: asyncio.Task[None] | None = None
        for number in range(3):
            await asyncio.create_task(request(number))
        await jobs.put(None)
        assert task is not None
        await task

    asyncio.run(main())
    assert [s.parent is not None for s in traced.spans if s.name == "leaf"] == [True, False, False]
    assert of(traced, "leaf", "session.id") == ["s0", None, None]


def test_what_a_worker_sets_for_its_job_counts_and_what_the_ended_request_had_set_does_not(traced: Spans) -> None:
    worker = Worker()

    def job() -> None:
        with session("mine"):
            leaf()
            assert "spanwise.user" not in inject()["baggage"]

    def nested() -> None:
        with span("job"):
            leaf()
            headers = inject()
            assert "spanwise.user" not in headers.get("baggage", "")

    with session("s"), user("u"), span("request"):
        end = in_thread(worker.run)
    worker.do(job)
    worker.do(nested)
    worker.do(lambda: tracer_provider().get_tracer("lib").start_as_current_span("call").__enter__())
    worker.do(leaf)
    worker.jobs.put(None)
    end()
    assert of(traced, "leaf", "session.id") == ["mine", None, None]
    assert of(traced, "leaf", "user.id") == [None, None, None]


def test_a_thread_inside_an_open_run_of_its_own_goes_on_after_the_request(traced: Spans) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def run() -> None:
        with span("job"):
            entered.set()
            go_on.wait(60)
            leaf()

    with session("s"), span("request"):
        end = in_thread(run)
        assert entered.wait(60)
    go_on.set()
    end()
    assert (traced.parent("job"), traced.parent("leaf")) == ("request", "job")
    assert of(traced, "leaf", "session.id") == ["s"]


def test_a_thread_of_a_step_belongs_to_it_while_the_request_goes_on(traced: Spans) -> None:
    worker = Worker()
    with span("request"):
        with span("step"):
            end = in_thread(worker.run)
        worker.do(leaf)
    worker.jobs.put(None)
    end()
    assert traced.parent("leaf") == "step"


def test_timers_that_start_each_other_leave_the_request_behind(traced: Spans) -> None:
    ended, done = threading.Event(), threading.Event()

    def tick(left: int) -> None:
        assert ended.wait(60)
        leaf()
        if left:
            threading.Timer(0, tick, (left - 1,)).start()
        else:
            done.set()

    with session("s"), span("request"):
        threading.Timer(0, tick, (2,)).start()
    ended.set()
    assert done.wait(60)
    assert len({s.context.trace_id for s in traced.spans}) == 4
    assert of(traced, "leaf", "session.id") == [None] * 3


def test_a_queued_task_belongs_to_the_run_that_submitted_it_although_that_has_ended(traced: Spans) -> None:
    go_on = threading.Event()

    def task() -> None:
        leaf()
        leaf()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(go_on.wait, 60)
        with session("s"), span("request") as run:
            queued = pool.submit(task)
        go_on.set()
        queued.result()
    assert [s.parent and f"{s.parent.span_id:016x}" for s in traced.spans if s.name == "leaf"] == [run.span_id] * 2
    assert of(traced, "leaf", "session.id") == ["s", "s"]


def test_a_thread_that_a_queued_task_starts_belongs_to_no_request(traced: Spans) -> None:
    go_on, worker = threading.Event(), Worker()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(go_on.wait, 60)
        with session("s"), span("request"):
            queued = pool.submit(in_thread, worker.run)
        go_on.set()
        end = queued.result()
    worker.do(leaf)
    worker.jobs.put(None)
    end()
    assert traced.parent("leaf") is None
    assert of(traced, "leaf", "session.id") == [None]


def test_tasks_that_a_leftover_thread_submits_belong_to_no_request(traced: Spans) -> None:
    worker = Worker()
    with ThreadPoolExecutor(1) as pool:
        with session("s"), span("request"):
            end = in_thread(worker.run)
        worker.do(lambda: pool.submit(leaf).result())
        worker.jobs.put(None)
        end()
    assert traced.parent("leaf") is None
    assert of(traced, "leaf", "session.id") == [None]


CALLS: dict[str, Callable[[ThreadPool], object]] = {
    "apply": lambda pool: pool.apply(leaf),
    "apply_async": lambda pool: pool.apply_async(func=leaf).get(),
    "map": lambda pool: pool.map(leaf, [1]),
    "map_async": lambda pool: pool.map_async(leaf, [1]).get(),
    "starmap": lambda pool: pool.starmap(leaf, [(1, 2)]),
    "imap": lambda pool: list(pool.imap(leaf, [1])),
    "imap_unordered": lambda pool: list(pool.imap_unordered(leaf, [1], 2)),
}


@pytest.mark.parametrize("call", CALLS)
def test_tasks_of_a_thread_pool_have_the_context_of_who_submits_them(traced: Spans, call: str) -> None:
    with session("creator"), span("creator"):
        pool = ThreadPool(1)
        pool.apply(int)
    with pool:
        with session("submitter"), span("submitter"):
            CALLS[call](pool)
        assert pool.apply(otel_context.get_current) == {}
        with pytest.raises(TypeError):
            pool.imap()  # type: ignore[call-arg]
    assert traced.parent("leaf") == "submitter"
    assert of(traced, "leaf", "session.id") == ["submitter"]


@pytest.mark.process
def test_a_thread_pool_made_before_the_first_trace_is_followed(sink: Sink) -> None:
    code = """
from multiprocessing.pool import ThreadPool
pool = ThreadPool(1)
from spanwise.tracer import flush, span, trace
leaf = trace(name="leaf")(lambda _: 1)
with span("root"):
    pool.map(leaf, [1])
assert flush(60)
"""
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "SPANWISE_URL": sink.url})
    ids = {s.name: s for s in sink.spans()}
    assert ids["leaf"].parent_span_id == ids["root"].span_id


def of_its_process(_: int) -> str:
    with span("task") as run:
        return run.trace_id


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_workers_of_a_process_pool_that_a_request_forks_belong_to_no_request(sink: Sink) -> None:
    configure(url=sink.url)
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool, session("s"), span("request") as run:
        ids = list(pool.map(of_its_process, range(2)))
    assert len({run.trace_id, *ids}) == 3


def test_what_a_monitor_leaves_running_keeps_its_mark(traced: Spans) -> None:
    worker = Worker()
    with mark_monitor_spans(), session("s"), span("evaluation"):
        end = in_thread(worker.run)
    worker.do(leaf)
    worker.jobs.put(None)
    end()
    assert traced.parent("leaf") is None
    assert (of(traced, "leaf", "spanwise.monitor"), of(traced, "leaf", "session.id")) == ([True], [None])


def test_a_context_that_an_instrumentation_gives_explicitly_is_taken_as_it_is(traced: Spans) -> None:
    with span("request"):
        context = otel_context.get_current()
    tracer_provider().get_tracer("lib").start_span("late", context).end()
    assert traced.parent("late") == "request"


def test_a_worker_in_a_joined_set_up_works_on_its_own_after_the_request(sink: Sink) -> None:
    configure(url=sink.url, provider=TracerProvider())
    worker = Worker()
    with session("s"), span("request") as run:
        end = in_thread(worker.run)
        worker.do(leaf)
    worker.do(leaf)
    worker.jobs.put(None)
    end()
    assert flush(60)
    spans = sorted((s for s in until(sink.spans) if s.name == "leaf"), key=lambda s: s.start_time_unix_nano)
    assert [s.parent_span_id.hex() for s in spans] == [run.span_id, ""]
    assert [link.span_id.hex() for link in spans[1].links] == [run.span_id]
    assert [[a.value.string_value for a in s.attributes if a.key == "session.id"] for s in spans] == [["s"], []]


def test_a_worker_beside_a_foreign_set_up_works_on_its_own_after_the_request(traced: Spans) -> None:
    worker = Worker()
    with TracerProvider().get_tracer("web").start_as_current_span("GET"), session("s"), span("request"):
        end = in_thread(worker.run)
        worker.do(leaf)
    worker.do(leaf)
    worker.jobs.put(None)
    end()
    assert [s.parent is not None for s in traced.spans if s.name == "leaf"] == [True, False]
    assert of(traced, "leaf", "session.id") == ["s", None]
