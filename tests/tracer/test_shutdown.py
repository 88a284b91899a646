"""The end of delivery: running, draining, closed. Other threads, signal handlers and finalizers trace meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spanwise.tracer import FlushResult, configure, flush, process_runtime, shutdown, span, stats, trace

from .conftest import Sink, somewhere, spooled, until

IN_TIME = 30.0  # seconds: far more than anything here takes, far less than for ever


@trace
def work(n: int = 0) -> int:
    return n


@contextmanager
def tracing(threads: int = 4) -> Iterator[list[int]]:
    """Threads that trace meanwhile; each adds the number of its calls at its end."""
    stop, calls = threading.Event(), list[int]()

    def run() -> None:
        ended = 0
        while not stop.is_set():
            work()
            ended += 1
            time.sleep(0.0005)
        calls.append(ended)

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield calls
    finally:
        stop.set()
        for thread in running:
            thread.join()


def in_time(step: Callable[[], object]) -> None:
    """Run a step in another thread, and fail if it does not return."""
    thread = threading.Thread(target=step, daemon=True)
    thread.start()
    thread.join(IN_TIME)
    assert not thread.is_alive()


def named(name: str) -> int:
    return [thread.name for thread in threading.enumerate()].count(name)


def settled() -> int:
    now = stats()
    return now.delivered + now.spilled + now.queued + sum(now.dropped.values())


@pytest.mark.parametrize("spool", ["on", "off"])
@pytest.mark.parametrize("status", [200, 503])
def test_shutdown_returns_while_threads_trace_and_each_span_is_counted_once(
    sink: Sink, tmp_path: Path, spool: str, status: int
) -> None:
    sink.answer = lambda path, body: (status, {}, b"")
    configure(url=sink.url, spill_dir=str(tmp_path) if spool == "on" else "off")
    with tracing() as calls:
        until(lambda: settled() > 50)
        in_time(shutdown)
        until(lambda: stats().dropped.get("closed"))
        in_time(shutdown)
    assert settled() == sum(calls)
    assert stats().queued == 0
    assert len(sink.spans()) + sum(count for _, _, count in spooled(tmp_path)) == stats().delivered + stats().spilled


def test_configure_returns_while_threads_trace_and_loses_nothing(sink: Sink) -> None:
    configure(url=sink.url)
    with tracing() as calls:
        for n in range(5):
            until(lambda: settled() > 10)
            in_time(lambda: configure(url=sink.url, project=f"p{n}"))  # noqa: B023
    assert flush(60)
    assert len(sink.spans()) == sum(calls)


@pytest.mark.process
def test_what_is_put_while_draining_is_queued_and_starts_no_second_thread(sink: Sink, tmp_path: Path) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def answer(path: str, body: bytes) -> Any:
        asked.set()
        go_on.wait(IN_TIME)
        return 200, {}, b""

    sink.answer = answer
    of_others = named("spanwise-delivery")  # threads that other tests of the process have left
    configure(url=sink.url, spill_dir="off")
    delivery = process_runtime.get_runtime().delivery
    work()
    asked.wait(IN_TIME)
    delivery.drain(IN_TIME)
    for _ in range(600):  # more than a batch
        work()
    assert (named("spanwise-delivery") <= of_others + 1, stats().queued) == (True, 601)
    go_on.set()
    delivery.close()
    assert (len(sink.spans()), named("spanwise-delivery") <= of_others, stats().dropped) == (601, True, {})


def test_after_the_end_a_span_is_dropped_and_counted_and_no_thread_starts(sink: Sink) -> None:
    of_others = named("spanwise-delivery")  # threads that other tests of the process have left
    configure(url=sink.url)
    work()
    shutdown()
    with span("late"):
        work()
    assert (stats().dropped, stats().queued) == ({"closed": 2}, 0)
    assert named("spanwise-delivery") <= of_others
    assert flush(60) == FlushResult()


def test_several_threads_may_shut_down_at_once(sink: Sink) -> None:
    configure(url=sink.url)
    work()
    threads = [threading.Thread(target=shutdown, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(IN_TIME)
    assert ([thread.is_alive() for thread in threads], settled()) == ([False] * 8, 1)


def test_a_flush_while_draining_waits_for_the_end_but_no_longer_than_it_was_told(sink: Sink) -> None:
    go_on = threading.Event()
    sink.answer = lambda path, body: ((go_on.wait(IN_TIME) and 200) or 503, {}, b"")
    configure(url=sink.url, spill_dir="off")
    delivery = process_runtime.get_runtime().delivery
    work()
    delivery.drain(IN_TIME)
    assert flush(0.05).pending == 1
    go_on.set()
    flush(IN_TIME)
    assert (stats().delivered, stats().queued) == (1, 0)


_kept = list[object]()  # accounts of earlier tests, as garbage that is not collected yet keeps them


@pytest.mark.parametrize("same_address", ["first", "again"])
def test_a_span_of_a_set_up_that_was_replaced_goes_to_the_next_one_and_is_accounted_there(
    sink: Sink, same_address: str
) -> None:
    configure(url="http://127.0.0.1:9", spill_dir="off")
    before = process_runtime.get_runtime().delivery.account
    _kept.append(before)
    with span("open across"):
        work()
        configure(url=sink.url)
    assert flush(60)
    after = process_runtime.get_runtime().delivery.account
    assert [s.name for s in sink.spans()] == ["open across"]
    assert (after.started, after.delivered) == (1, 1)
    assert (before.started, before.dropped) == (1, {"collector_away": 1})


def test_where_nothing_is_recorded_any_more_an_open_span_is_dropped(sink: Sink) -> None:
    configure(url=sink.url)
    delivery = process_runtime.get_runtime().delivery
    with span("open across"):
        configure(url=sink.url, capture="none")
    assert (delivery.dropped(), sink.spans()) == ({"closed": 1}, [])


@pytest.mark.parametrize("step", [lambda: flush(IN_TIME), shutdown])
def test_a_signal_handler_that_interrupts_the_queue_may_wait_for_delivery(
    sink: Sink, step: Callable[[], object]
) -> None:
    configure(url=sink.url)
    work()
    began = time.monotonic()
    with process_runtime.get_runtime().delivery.queue._put_lock:  # as the code that it has interrupted
        step()
    assert (time.monotonic() - began < IN_TIME / 2, stats().delivered) == (True, 1)


@pytest.mark.parametrize("step", [lambda: flush(IN_TIME), shutdown])
def test_a_redactor_may_flush_and_shut_down(sink: Sink, step: Callable[[], object]) -> None:
    def redactor(key: str, value: Any) -> Any:
        step()
        return value

    began = time.monotonic()
    configure(url=sink.url, redact=[redactor])
    work()
    flush(IN_TIME)
    assert (time.monotonic() - began < IN_TIME / 2, settled()) == (True, 1)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("state", ["draining", "closed"])
def test_a_child_that_is_forked_at_the_end_of_its_parent_delivers(sink: Sink, state: str) -> None:
    configure(url=sink.url)
    work()
    flush(60)
    delivery = process_runtime.get_runtime().delivery
    if state == "closed":
        delivery.close()
    else:
        delivery._is_draining = True
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0 if flush(IN_TIME) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert len(sink.spans()) == 2


# -- processes --


def run(script: str, sink: Sink, tmp_path: Path, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SPANWISE_URL": sink.url, "SPANWISE_SPILL_DIR": str(tmp_path), **more}
    return subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=IN_TIME)


BUSY = """
import asyncio, os, signal, sys, threading, time
from spanwise.tracer import stats, trace
@trace
def work(n=0): return n
def run():
    while True:
        work()
        time.sleep(0.001)
for _ in range(4): threading.Thread(target=run, daemon=True).start()
while stats().delivered < 100: time.sleep(0.01)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("ending", "status"),
    [("os.kill(os.getpid(), signal.SIGTERM); time.sleep(100)", -signal.SIGTERM), ("sys.exit(3)", 3)],
    ids=["sigterm", "exit"],
)
def test_a_process_ends_in_time_while_its_threads_trace(sink: Sink, tmp_path: Path, ending: str, status: int) -> None:
    done = run(BUSY + ending, sink, tmp_path)
    assert done.returncode == status, done
    assert len(somewhere(sink, tmp_path)) >= 100


FROZEN = """
import threading, time
from spanwise.tracer import process_runtime, trace
from spanwise.tracer.otel import live_span
@trace
def work(n=0): return n
class Last:
    def __del__(self): work()  # in the main thread, after all others have stopped
last = Last()
work()
queue, taken = process_runtime.get_runtime().delivery.queue, threading.Event()
def freeze():
    with live_span._lock, queue._put_lock, queue._take_lock:
        taken.set()
        time.sleep(100)
import atexit, spanwise.tracer.export.delivery_lifecycle as delivery
atexit.unregister(delivery._close_at_exit)  # so that the thread stops in between
def end():
    delivery._close_at_exit()
    threading.Thread(target=freeze, daemon=True).start()
    taken.wait()
atexit.register(end)
"""


@pytest.mark.process
def test_a_finalizer_waits_for_no_lock_of_a_thread_that_has_stopped_for_ever(sink: Sink, tmp_path: Path) -> None:
    done = run(FROZEN, sink, tmp_path)
    assert (done.returncode, len(somewhere(sink, tmp_path))) == (0, 1), done


NO_THREAD = """
import _thread, os, signal, time
from spanwise.tracer import configure
configure()
def start(*arguments): raise RuntimeError("can't start new thread")
_thread.start_new_thread = start
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(100)
"""


def test_sigterm_ends_a_process_that_can_start_no_thread(sink: Sink, tmp_path: Path) -> None:
    assert run(NO_THREAD, sink, tmp_path).returncode == -signal.SIGTERM


@pytest.mark.process
def test_exit_handlers_that_trace_are_delivered(sink: Sink, tmp_path: Path) -> None:
    script = "import atexit\nfrom spanwise.tracer import trace\nwork = trace(lambda: 1)\natexit.register(work)\nwork()"
    run(script, sink, tmp_path)
    assert len(somewhere(sink, tmp_path)) == 2


LATE = """
import atexit
def late():
    work()
    print(dict(stats().dropped))
atexit.register(late)  # before the tracer registers its own, so that it runs after that
from spanwise.tracer import stats, trace
work = trace(lambda: 1)
work()
"""


@pytest.mark.process
def test_what_ends_after_the_exit_handler_is_counted(sink: Sink, tmp_path: Path) -> None:
    assert run(LATE, sink, tmp_path).stdout.strip() == "{'closed': 1}"
