"""An outage without a spool that works: spans wait in the bounded queue and are retried with backoff."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spanwise.tracer import (
    FlushResult,
    configure,
    flush,
    internal_errors,
    process_runtime,
    shutdown,
    span,
    stats,
    trace,
)
from spanwise.tracer.export import Exporter
from spanwise.tracer.export.span_queue import SpanQueue

from .conftest import Sink, spooled, until


@trace
def work(n: int = 0) -> int:
    return n


@pytest.fixture(params=["off", "a file in the place of the folder"])
def no_spool(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "off":
        return "off"
    internal_errors.strict = False  # that it cannot be written is an error of ours, which is counted
    (tmp_path / "file").write_text("")
    return str(tmp_path / "file")


def refuse(path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
    return 503, {}, b""


def accept(path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, b""


@pytest.mark.process
def test_what_ends_during_an_outage_is_delivered_after_it(sink: Sink, no_spool: str) -> None:
    sink.answer = refuse
    configure(url=sink.url, spill_dir=no_spool)
    for n in range(3_000):
        work(n)
    assert flush(60) == FlushResult(pending=3_000)
    sink.answer = accept
    until(lambda: stats().delivered == 3_000)  # by itself, after the backoff
    assert (len({s.span_id for s in sink.spans()}), stats().dropped, stats().queued) == (3_000, {}, 0)


def test_feedback_waits_in_memory_like_spans(sink: Sink, no_spool: str) -> None:
    sink.answer = refuse
    configure(url=sink.url, spill_dir=no_spool)
    with span("s") as run:
        run.feedback("a", 1)
    assert flush(60) == FlushResult(pending=2)
    sink.answer = accept
    assert flush(60)
    assert (len(sink.spans()), len(sink.logs())) == (1, 1)


@pytest.mark.process
def test_the_backoff_is_kept_while_spans_wait_in_memory(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def answer(path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        nonlocal asked
        asked += 1
        return 429, {"Retry-After": "100"}, b""

    sink.answer = answer
    configure(url=sink.url, spill_dir="off")
    work()
    until(lambda: asked)
    exporter = process_runtime.get_runtime().delivery.exporter
    until(lambda: exporter.queue.in_flight == 0)
    for _ in range(3):
        exporter.export()
    assert (asked, stats().queued) == (1, 1)


def test_beyond_the_bound_of_the_queue_spans_are_dropped_and_counted(sink: Sink) -> None:
    sink.answer = refuse
    configure(url=sink.url, spill_dir="off")
    delivery = process_runtime.get_runtime().delivery
    delivery.queue = delivery.exporter.queue = SpanQueue(max_bytes=100 * 1_700)
    for n in range(300):
        work(n)
        if n % 100 == 0:
            flush(60)
    left = stats().queued
    assert 0 < left <= 110
    sink.answer = accept
    flush(60)
    assert (stats().delivered, stats().dropped) == (left, {"queue_full": 300 - left})


def test_what_is_left_in_memory_at_the_end_is_dropped_and_counted(sink: Sink, no_spool: str) -> None:
    sink.answer = refuse
    configure(url=sink.url, spill_dir=no_spool)
    for n in range(10):
        work(n)
    shutdown()
    assert (stats().dropped, stats().queued) == ({"http_503" if no_spool == "off" else "disk": 10}, 0)


def test_a_restarted_collector_gets_what_was_left_at_the_end(sink: Sink, no_spool: str) -> None:
    sink.answer = refuse
    configure(url=sink.url, spill_dir=no_spool)
    work()
    assert flush(60).pending == 1
    sink.answer = accept
    shutdown()  # does not wait for the backoff
    assert (len(sink.spans()), stats().dropped) == (1, {})


SMALL = """
import resource
from spanwise.tracer import flush, stats, trace
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
echo = trace(lambda text: text)
for _ in range(500): echo("x" * 400)
print(flush(60), dict(stats().dropped))
"""


@pytest.mark.process
def test_a_batch_that_is_larger_than_the_free_space_is_split(sink: Sink, tmp_path: Path) -> None:
    sink.answer = refuse
    env: dict[str, Any] = {**os.environ, "SPANWISE_URL": sink.url, "SPANWISE_SPILL_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", SMALL], env=env, capture_output=True, text=True, check=True)
    kept = sum(count for _, _, count in spooled(tmp_path))
    largest = max(path.stat().st_size for path in tmp_path.glob("*/*.spool"))
    assert 150_000 < largest <= 200_000
    said = f"FlushResult(delivered=0, spilled={kept}, dropped=0, pending={500 - kept})"
    assert (done.stdout.strip(), 100 < kept < 500) == (said + " {}", True)


def test_an_exporter_takes_nothing_from_the_queue_that_it_can_neither_send_nor_spool(sink: Sink) -> None:
    configure(url=sink.url, spill_dir="off")
    exporter: Exporter = process_runtime.get_runtime().delivery.exporter
    exporter._not_before = float("inf")
    work()
    exporter.export()
    assert (stats().queued, exporter.queue.in_flight, sink.requests) == (1, 0, [])
