"""The hook on threads: whom the context goes along with, and that nobody else's hook is disturbed."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry import context as otel_context
from opentelemetry.instrumentation.threading import ThreadingInstrumentor

from assay.tracer import _threads, configure, session, span, trace
from assay.tracer.testing import Spans, capture_spans


@trace
def leaf(*_: Any) -> int:
    return 1


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    _threads.restore()
    assert "assay" not in threading.Thread.start.__module__
    assert _threads._wrapped == {}


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
        _threads.restore()
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
        _threads.restore()
        with span("root"):
            thread = threading.Thread(target=leaf, name="theirs")
            thread.start()
            thread.join()
        assert seen == ["theirs"]
        _threads.carry()
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
