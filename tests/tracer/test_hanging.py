"""While a request waits for its answer, what is in memory goes to the disk: a process that is killed then loses little."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spanwise.tracer import configure, flush, internal_errors, shutdown, span, stats, trace
from spanwise.tracer.export.disk_spool import Spool

from .conftest import Sink, spooled, until


@trace
def work(n: int = 0) -> int:
    return n


class Hanging:
    """A collector that takes requests and answers none until it is told to."""

    def __init__(self, sink: Sink) -> None:
        self.asked, self.go_on, self.status = 0, threading.Event(), 200
        sink.answer = self.answer

    def answer(self, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        self.asked += 1
        self.go_on.wait(120)
        return self.status, {}, b""


@pytest.fixture
def hanging(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    """It hangs for longer than any of these tests takes, and a request waits as long."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "100000")
    collector = Hanging(sink)
    yield collector
    collector.go_on.set()


def waiting(folder: Path) -> int:
    return sum(count for _, _, count in spooled(folder))


SCRIPT = """
import time
from spanwise.tracer import trace
@trace
def work(n): return n
work(0)
time.sleep(0.7)  # the first request is under way
for n in range(1, 700): work(n)
time.sleep(60)
"""


@pytest.mark.slow  # a program and more than a second in which a request waits
def test_a_process_that_is_killed_while_a_request_hangs_has_its_spans_on_disk(
    sink: Sink, hanging: Hanging, tmp_path: Path
) -> None:
    env = {
        **os.environ,
        "SPANWISE_URL": sink.url,
        "SPANWISE_SPILL_DIR": str(tmp_path),
        "OTEL_EXPORTER_OTLP_TIMEOUT": "100000",
    }
    program = subprocess.Popen([sys.executable, "-c", SCRIPT], env=env)
    try:
        until(lambda: waiting(tmp_path) == 700)
    finally:
        program.send_signal(signal.SIGKILL)
        program.wait(60)
    hanging.go_on.set()
    configure(url=sink.url, spill_dir=str(tmp_path))
    until(lambda: len({s.span_id for s in sink.spans()}) == 700)
    until(lambda: waiting(tmp_path) == 0)


@pytest.mark.slow
def test_what_hung_is_sent_once_when_the_answer_comes_after_all(sink: Sink, hanging: Hanging, tmp_path: Path) -> None:
    configure(url=sink.url, spill_dir=str(tmp_path))
    with span("s") as run:
        run.feedback("a", 1)
        work()
    until(lambda: hanging.asked)
    work()
    until(lambda: waiting(tmp_path) == 4)
    hanging.go_on.set()
    until(lambda: waiting(tmp_path) == 0)
    assert (len(sink.spans()), len(sink.logs()), flush(60).spilled) == (3, 1, 0)
    assert (len({s.span_id for s in sink.spans()}), stats().delivered, stats().dropped) == (3, 4, {})


@pytest.mark.slow
def test_a_copy_of_what_is_refused_after_all_goes_with_it(sink: Sink, hanging: Hanging, tmp_path: Path) -> None:
    configure(url=sink.url, spill_dir=str(tmp_path))
    work()
    until(lambda: waiting(tmp_path) == 1)
    hanging.status = 400
    hanging.go_on.set()
    until(lambda: stats().dropped)
    assert (stats().dropped, flush(60).spilled, sink.requests) == ({"http_400": 1}, 0, [])


@pytest.mark.slow
def test_the_copy_is_what_remains_when_the_process_ends_before_the_answer(
    sink: Sink, hanging: Hanging, tmp_path: Path
) -> None:
    configure(url=sink.url, spill_dir=str(tmp_path))
    work()
    until(lambda: waiting(tmp_path) == 1)
    shutdown()
    assert (len(spooled(tmp_path)), stats().spilled, stats().queued) == (1, 1, 0)
    hanging.go_on.set()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_and_other_processes_leave_alone_what_is_being_sent(
    sink: Sink, hanging: Hanging, tmp_path: Path
) -> None:
    configure(url=sink.url, spill_dir=str(tmp_path))
    work()
    until(lambda: waiting(tmp_path) == 1)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    others = Spool(next(tmp_path.iterdir()))
    assert others.replay(lambda *body: pytest.fail("it was sent")) == {}
    hanging.go_on.set()
    until(lambda: stats().delivered == 1)


@pytest.mark.slow
def test_where_the_disk_cannot_be_written_the_spans_stay_in_memory(
    sink: Sink, hanging: Hanging, tmp_path: Path
) -> None:
    internal_errors.strict = False
    (tmp_path / "file").write_text("in the place of a directory")
    configure(url=sink.url, spill_dir=str(tmp_path / "file"))
    work()
    until(lambda: hanging.asked)
    work()
    until(lambda: stats().errors.get("spill"))
    hanging.go_on.set()
    until(lambda: stats().delivered == 2)
    assert (len(sink.spans()), stats().dropped) == (2, {})
