"""Open runs and processes in a file: bounded, there after a restart, and gone without a trace of their own."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.making import run
from spanwise.collector.errors import Refused
from spanwise.collector.records import OpenRun, ProcessReport
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.write import side_tables


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "a.db") as store:
        yield store


def begun(trace_id: str | None = None, ago: float = 0.0) -> OpenRun:
    start_ns = time.time_ns() - int(ago * 1e9)
    trace_id = trace_id or secrets.token_hex(16)
    return OpenRun(trace_id=trace_id, span_id=secrets.token_hex(8), name="slow", start_ns=start_ns)


def test_the_latest_are_kept_and_whose_went_is_complete_again(store: SQLiteStore) -> None:
    store._behind._file.appender.running.most = 20
    root = run()
    store.append([root])
    store.add_running([begun(root.trace_id, ago=60)])
    latest = [begun(ago=30 - n) for n in range(20)]
    store.add_running(latest)
    assert store.running() == latest[:1:-1]  # a tenth is made room for
    assert store.traces().items[0].running == 0
    assert store.check() == []


def test_what_was_said_a_week_ago_goes_with_the_next(store: SQLiteStore) -> None:
    file, root, news = store._behind._file, run(), begun()
    store.append([root])
    store.add_running([begun(), begun(root.trace_id)])
    file.write(
        lambda db: db.execute("UPDATE open_runs SET seen_ns = seen_ns - ?", (side_tables.MAX_OPEN_RUN_AGE_NS,)).rowcount
    )
    file.appender.running._next_look = 0.0
    store.add_running([news])
    assert store.running() == [news]
    assert store.traces().items[0].running == 0


def test_a_senders_clock_may_be_wrong(store: SQLiteStore) -> None:
    early, late = begun(ago=1e9), begun(ago=-1e9)
    store.add_running([early, late])
    assert store.running() == [late, early]


def test_they_are_there_after_a_restart_and_end_then(tmp_path: Path) -> None:
    late = run()
    with SQLiteStore(tmp_path / "b.db") as before:
        before.add_running(
            [OpenRun(trace_id=late.trace_id, span_id=late.span_id, name="slow", start_ns=time.time_ns())]
        )
    with SQLiteStore(tmp_path / "b.db") as after:
        assert len(after.running()) == 1
        after.append([late])
        assert after.running() == []


def test_what_is_taken_back_leaves_them_as_they_were(store: SQLiteStore) -> None:
    one = begun()
    store.add_running([one])
    with pytest.raises(Refused):
        store.delete_experiment("")
    with pytest.raises(Exception, match="there is no feedback"):
        store.change_feedback({"none": {"score": 1.0}})
    store.append([run(trace_id=one.trace_id, span_id=one.span_id)])
    assert store.running() == []


def test_odd_values_are_kept_as_a_file_can_hold_them(store: SQLiteStore) -> None:
    store.add_running([OpenRun(trace_id="\ud800", span_id="x", name="n" * 5000, start_ns=2**70)])
    store.add_reports([ProcessReport(instance="\ud800", reported_ns=-1, started=2**70, dropped={"r" * 99: -3})])
    [open_run], [process] = store.running(), store.processes()
    assert (open_run.trace_id, len(open_run.name), open_run.start_ns) == ("?", 1000, 2**63 - 1)
    assert process.report is not None
    assert (process.report.started, process.report.dropped) == (2**63 - 1, {"r" * 64: 0})


def test_the_latest_processes_are_kept(store: SQLiteStore) -> None:
    store._behind._file.appender.processes.most = 5
    for n in range(9):
        store.add_reports([ProcessReport(instance=str(n), reported_ns=n)])
    assert [process.instance for process in store.processes()][:5] == list("87654")
    assert len(store.processes()) <= 6
