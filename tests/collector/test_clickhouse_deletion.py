"""Deletion and retention on ClickHouse."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from collector.making import SECOND, child, run
from spanwise.collector.filters import Filter
from spanwise.collector.records import Amendment, Feedback, OpenRun, Retention, Run, Target
from spanwise.collector.stores import CombinedStore, Store, side_records
from spanwise.collector.stores.clickhouse import ClickHouseTraces, deletion, senders, span_writer
from spanwise.collector.stores.sqlite import DatabaseFile, SQLiteControl

pytestmark = pytest.mark.process
DAY = 86_400 * SECOND


@pytest.fixture
def traces(empty_clickhouse: str) -> Iterator[ClickHouseTraces]:
    with closing(ClickHouseTraces(empty_clickhouse)) as traces:
        yield traces


@pytest.fixture
def store(traces: ClickHouseTraces, tmp_path: Path) -> Iterator[Store]:
    with closing(SQLiteControl(DatabaseFile(tmp_path / "control.db"))) as control:
        yield cast(Store, CombinedStore(traces, control))


def old(days: float, **fields: Any) -> Run:
    start = time.time_ns() - int(days * DAY)
    return run(start_ns=start, end_ns=start + SECOND, **fields)


def count_rows(traces: ClickHouseTraces, table: str) -> int:
    return int(traces._db.query(f"SELECT count() FROM {table}")[0][0])


def wait_until(look: Callable[[], Any], seconds: float = 30) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def judged(root: Run, judgement: Run, **target: Any) -> Feedback:
    about = Target(**target) if target else Target(trace_id=root.trace_id)
    return Feedback(target=about, key="good", score=1.0, source="model", judge_trace_id=judgement.trace_id)


def test_a_deleted_trace_takes_everything_about_it_along(traces: ClickHouseTraces, store: Store) -> None:
    kept, root, judgement = run(), run(session_id="s"), run(kind="evaluator")
    store.append([kept, child(kept), root, child(root), judgement], [judged(root, judgement)])
    store.append([], [judged(root, judgement, session_id="s")])
    assert store.delete(trace_ids=(root.trace_id,)) == 1
    assert store.count() == {"spans": 2, "traces": 1, "feedbacks": 0}
    assert (count_rows(traces, "spans"), count_rows(traces, "feedback")) == (2, 0)


def test_many_traces_are_deleted_in_several_batches(
    traces: ClickHouseTraces, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "BATCH_TRACES", 4)
    store.append([run(name="out") for _ in range(11)] + [run(name="kept") for _ in range(3)])
    assert store.delete(name="out") == 11
    assert [one.name for one in store.traces()] == ["kept"] * 3
    assert count_rows(traces, "spans") == 3


def test_parts_without_other_traces_are_dropped_without_a_mutation(traces: ClickHouseTraces, store: Store) -> None:
    store.append([old(90, name="out") for _ in range(5)])
    store.append([old(1, name="kept")])
    assert store.delete(name="out") == 5
    mutations = (
        "SELECT count() FROM system.mutations WHERE database = currentDatabase() AND table IN ('spans', 'traces')"
    )
    assert traces._db.query(mutations) == [(0,)]
    assert [one.name for one in store.traces()] == ["kept"]


def test_traces_that_arrive_during_a_deletion_remain(traces: ClickHouseTraces, store: Store) -> None:
    store.append([run(name="out") for _ in range(3)])
    upto = traces.latest_trace_number()
    store.append([run(name="out")])
    lot = traces.find_deletable_traces(Filter(name="out"), upto=upto)
    assert lot is not None
    assert len(lot.traces) == 3
    assert traces.delete_traces([lot]) == 3
    assert traces.find_deletable_traces(Filter(name="out"), upto=upto) is None
    assert store.count()["traces"] == 1


def test_a_deletion_that_was_interrupted_is_completed_by_any_collector(traces: ClickHouseTraces, store: Store) -> None:
    root, kept = run(), run()
    store.append([root, child(root), kept])
    deletion._put_tombstones(traces._db, [root.trace_id], "interrupted")  # killed before the rows were removed
    assert deletion.complete_deletions(traces._db) == 0  # it may still be running
    assert deletion.complete_deletions(traces._db, age_s=0) == 1
    assert deletion.complete_deletions(traces._db, age_s=0) == 0
    assert store.count() == {"spans": 1, "traces": 1, "feedbacks": 0}
    assert count_rows(traces, "spans") == 1


def test_a_deletion_that_was_interrupted_between_two_tables_is_completed(traces: ClickHouseTraces) -> None:
    root = run()
    traces.append([root], [Feedback(target=Target(trace_id=root.trace_id), key="good", score=1.0)])
    deletion._put_tombstones(traces._db, [root.trace_id], "interrupted")
    deletion._delete(traces._db, "traces", "trace_id = {id:String}", {"id": root.trace_id})
    assert deletion.complete_deletions(traces._db, age_s=0) == 1
    assert [count_rows(traces, table) for table in ("spans", "feedback")] == [0, 0]


def test_an_interrupted_deletion_of_many_traces_is_completed_at_once(
    traces: ClickHouseTraces, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces.append(many := [run() for _ in range(5)])
    deletion._put_tombstones(traces._db, [one.trace_id for one in many], "interrupted")
    monkeypatch.setattr(deletion, "BATCH_TRACES", 2)
    assert deletion.complete_deletions(traces._db, age_s=0) == 5
    assert count_rows(traces, "spans") == 0


def test_a_collector_that_starts_completes_deletions_of_the_last_days(
    traces: ClickHouseTraces, empty_clickhouse: str
) -> None:
    traces.append([root := run()])
    yesterday = int(time.time()) - 2 * 86_400
    traces._db.insert("tombstones", {"trace_id": [root.trace_id], "deleted": [yesterday], "batch": ["interrupted"]})
    with closing(ClickHouseTraces(empty_clickhouse)) as other:
        assert wait_until(lambda: other.count()["traces"] == 0)


# Rows that are inserted while another collector deletes their trace


@pytest.fixture
def delete(empty_clickhouse: str, traces: ClickHouseTraces) -> Iterator[Callable[[Run], int]]:
    """Deletes a trace at another collector."""

    def delete(root: Run) -> int:
        lot = other.find_deletable_traces(Filter(trace_ids=(root.trace_id,)))
        return 0 if lot is None else other.delete_traces([lot])

    with closing(ClickHouseTraces(empty_clickhouse)) as other:
        yield delete


def call_before(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, before: Callable[[], object]) -> None:
    function = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        before()
        return function(*arguments, **named)

    monkeypatch.setattr(owner, name, call)


def test_feedback_of_a_trace_that_is_deleted_meanwhile_does_not_remain(
    traces: ClickHouseTraces, delete: Callable[[Run], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    traces.append([root := run()])
    call_before(monkeypatch, traces._feedback, "_insert", lambda: delete(root))
    traces.add_feedback([Feedback(target=Target(trace_id=root.trace_id), key="good", score=1.0)])
    assert traces.count() == {"spans": 0, "traces": 0, "feedbacks": 0}


def test_an_amended_trace_that_is_deleted_meanwhile_does_not_return(
    traces: ClickHouseTraces, delete: Callable[[Run], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    traces.append([root := run()])
    call_before(monkeypatch, traces._spans, "insert", lambda: delete(root))
    assert traces.amend(root.trace_id, root.span_id, {"outputs": "amended"})
    assert [count_rows(traces, table) for table in ("spans", "traces", "amendments")] == [0, 0, 0]


def test_a_run_that_starts_in_a_trace_that_is_deleted_meanwhile_is_not_open(
    traces: ClickHouseTraces, delete: Callable[[Run], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    traces.append([root := run()])
    call_before(monkeypatch, senders, "_insert_open_runs", lambda: delete(root))
    traces.add_running([OpenRun(trace_id=root.trace_id, span_id="1" * 16, name="answer")])
    assert traces.running() == []


def test_a_large_trace_that_is_deleted_before_its_summary_does_not_return(
    traces: ClickHouseTraces, delete: Callable[[Run], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_writer, "LARGE_TRACE_SPANS", 1)
    root = run()
    traces.append([root, child(root)])
    traces.append([child(root)])
    assert count_rows(traces, "pending_summaries") == 1
    insert_by_month = traces._db.insert_by_month
    call_before(monkeypatch, traces._db, "insert_by_month", lambda: delete(root))
    monkeypatch.setattr(span_writer, "LARGE_TRACE_SECONDS", 0)
    traces._spans.write_postponed()
    monkeypatch.setattr(traces._db, "insert_by_month", insert_by_month)
    assert count_rows(traces, "traces") == 0


def test_a_rule_deletes_what_is_too_old(store: Store) -> None:
    store.append([old(10, project="p"), old(10, project="q"), old(1, project="p")])
    assert store.prune(Retention(project="p", max_age_ns=5 * DAY)) == 1
    assert sorted(one.project for one in store.traces()) == ["p", "q"]
    assert store.prune(Retention(max_age_ns=5 * DAY)) == 1


def test_a_rule_deletes_the_oldest_of_what_is_too_large(store: Store) -> None:
    store.append([old(day, name=f"day {day}", inputs=f"{day} " * 20_000) for day in range(1, 9)])
    total = store.vacuum() or 0
    assert total >= 0
    store.prune(Retention(max_bytes=1))
    assert store.count()["traces"] == 0


def test_a_size_that_is_not_exceeded_deletes_nothing(store: Store) -> None:
    store.append([old(1), old(2)])
    assert store.prune(Retention(max_bytes=10**12)) == 0
    assert store.count()["traces"] == 2


def test_feedback_whose_trace_never_came_expires(traces: ClickHouseTraces, store: Store) -> None:
    long_ago = time.time_ns() - 10 * DAY
    store.add_feedback([Feedback(target=Target(trace_id="f" * 32), key="a", score=1.0, created_ns=long_ago)])
    store.add_feedback([Feedback(target=Target(trace_id="e" * 32), key="a", score=1.0)])
    store.prune(Retention(max_age_ns=5 * DAY))
    assert [one.target.trace_id for one in store.feedbacks(target=Target(trace_id="e" * 32))] == ["e" * 32]
    assert store.count()["feedbacks"] == 1


def test_the_engine_deletes_by_itself_what_no_collector_has_pruned(traces: ClickHouseTraces) -> None:
    traces.append([old(100, project="p"), old(100, project="q"), old(1, project="p")])
    traces.apply_retention([Retention(project="p", max_age_ns=30 * DAY)])
    done = "SELECT count() FROM system.mutations WHERE database = currentDatabase() AND NOT is_done"
    assert wait_until(lambda: traces._db.query(done) == [(0,)])
    traces.vacuum()
    assert sorted(one.project for one in traces.traces()) == ["p", "q"]
    assert count_rows(traces, "spans") == 2


def test_a_rule_that_is_removed_no_longer_deletes(traces: ClickHouseTraces) -> None:
    traces.append([old(20, project="p")])
    traces.apply_retention([Retention(max_age_ns=30 * DAY)])
    assert traces._spans.find_keep_days("p") == 32
    traces.append([old(20, project="p")])
    traces.apply_retention([])
    assert traces._spans.find_keep_days("p") == 0
    keep = "SELECT DISTINCT keep_days FROM spans FINAL"
    assert wait_until(lambda: traces._db.query(keep) == [(0,)])


def test_rows_of_a_collector_that_does_not_know_of_a_removed_rule_are_kept(
    traces: ClickHouseTraces, empty_clickhouse: str
) -> None:
    with closing(ClickHouseTraces(empty_clickhouse)) as other:
        traces.apply_retention([Retention(max_age_ns=30 * DAY)])
        knows_the_rule = deletion.read_keep_days(other._db)
        traces.apply_retention([])
        other._spans.keep_days = knows_the_rule
        other.append([old(20)])
        assert knows_the_rule
    traces.apply_retention([])  # an hour later
    assert wait_until(lambda: traces._db.query("SELECT DISTINCT keep_days FROM spans FINAL") == [(0,)])
    assert wait_until(lambda: traces._db.query("SELECT DISTINCT keep_days FROM traces FINAL") == [(0,)])


def test_the_same_rules_again_change_nothing(traces: ClickHouseTraces) -> None:
    traces.append([old(1)])
    rules = [Retention(project="default", max_age_ns=30 * DAY)]
    traces.apply_retention(rules)
    assert wait_until(lambda: traces._db.query("SELECT DISTINCT keep_days FROM spans FINAL") == [(32,)])
    assert wait_until(lambda: traces._db.query("SELECT DISTINCT keep_days FROM traces FINAL") == [(32,)])
    count = "SELECT count() FROM system.mutations WHERE database = currentDatabase()"
    before = traces._db.query(count)
    traces.apply_retention(rules)
    assert traces._db.query(count) == before


def test_vacuum_removes_replaced_rows(traces: ClickHouseTraces) -> None:
    root = run()
    for end in range(3):
        traces.append([run(trace_id=root.trace_id, span_id=root.span_id, end_ns=root.end_ns + end)])
    assert count_rows(traces, "spans") >= 1
    traces.vacuum()
    assert (count_rows(traces, "spans"), count_rows(traces, "traces")) == (1, 1)


def test_the_oldest_waiting_amendments_beyond_the_limits_are_given_up(
    traces: ClickHouseTraces, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, *late = (run() for _ in range(5))
    traces.append([arrived])
    for one in (arrived, *late):
        traces.add_amendments([Amendment(trace_id=one.trace_id, span_id=one.span_id, fields={"outputs": "x" * 100})])
    monkeypatch.setattr(side_records, "MAX_AMENDMENTS", 3)
    deletion.trim_side_tables(traces._db)
    monkeypatch.setattr(side_records, "MAX_AMENDMENT_BYTES", 250)
    traces.append([late[1]])
    deletion.trim_side_tables(traces._db)
    traces.append(late)
    outputs = [traces.trace(one.trace_id).root.outputs for one in (arrived, *late)]
    assert outputs == ["x" * 100, None, "x" * 100, "x" * 100, "x" * 100]
    traces.add_amendments(
        [Amendment(trace_id=(other := run()).trace_id, span_id=other.span_id, fields={"outputs": "x" * 300})]
    )
    deletion.trim_side_tables(traces._db)
    traces.append([other])
    assert traces.trace(other.trace_id).root.outputs is None


def test_the_processes_that_were_seen_least_recently_are_forgotten(
    traces: ClickHouseTraces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_records, "MAX_PROCESSES", 2)
    for name in ("a", "b", "c", "a"):
        traces.append([run(resource={"service.name": "s", "service.instance.id": name})])
    deletion.trim_side_tables(traces._db)
    assert [(one.instance, one.stored) for one in traces.processes()] == [("a", 2), ("c", 1)]
