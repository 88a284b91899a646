"""Change feed and feedback on ClickHouse: the failure cases of `docs/scale-out-protocol.md`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from collector.conformance_traces import eventually
from collector.making import child, run
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.records import Feedback, OpenRun, Run, Target
from spanwise.collector.stores.backends import NumberedFeedback, TargetFeedback
from spanwise.collector.stores.clickhouse import ClickHouseTraces
from spanwise.collector.stores.clickhouse.feedback_rows import encode_feedback, make_feedback_columns
from spanwise.collector.stores.queries.feedback_records import MAX_READ_CHARACTERS

pytestmark = pytest.mark.process


@pytest.fixture
def traces(empty_clickhouse: str) -> Iterator[ClickHouseTraces]:
    with closing(ClickHouseTraces(empty_clickhouse)) as traces:
        yield traces


@pytest.fixture
def other(empty_clickhouse: str, traces: ClickHouseTraces) -> Iterator[ClickHouseTraces]:
    """A second collector on the same database."""
    with closing(ClickHouseTraces(empty_clickhouse)) as other:
        yield other


def human(root: Run, key: str = "good", **fields: Any) -> Feedback:
    given: dict[str, Any] = {"score": 1.0, "source": "human", "author": "a"}
    return Feedback(target=Target(trace_id=root.trace_id), key=key, **{**given, **fields})


def by_rule(root: Run, claim: int, key: str = "good", score: float = 1.0, **fields: Any) -> Feedback:
    return Feedback(
        target=Target(trace_id=root.trace_id), key=key, score=score, evaluator="judge", rule="r", claim=claim, **fields
    )


def finish(root: Run, *feedback: Feedback, claim: int, anew: bool = True) -> TargetFeedback:
    return TargetFeedback("r", Target(trace_id=root.trace_id), claim, ("judge",), feedback, anew)


def scores(traces: ClickHouseTraces, root: Run) -> dict[str, Any]:
    return {one.key: one.score for one in traces.trace(root.trace_id).feedback}


# Feed


def test_a_reader_sees_every_change_of_several_collectors(traces: ClickHouseTraces, other: ClickHouseTraces) -> None:
    written: list[str] = []
    ended = threading.Event()

    def write(collector: ClickHouseTraces) -> None:
        for _ in range(15):
            runs = [run() for _ in range(3)]
            collector.append(runs)
            written.extend(one.trace_id for one in runs)

    writers = [threading.Thread(target=write, args=(collector,)) for collector in (traces, other)]
    for writer in writers:
        writer.start()
    threading.Thread(target=lambda: [writer.join() for writer in writers] and ended.set(), daemon=True).start()
    seen: list[str] = []
    cursor, rest = None, 3
    while rest:
        rest -= ended.is_set()
        page = other.changes(cursor, limit=7)
        assert page.cursor == str(max([head.change for head in page.heads], default=cursor or 0))
        cursor = page.cursor
        seen += [head.trace_id for head in page.heads]
        rest += bool(page.heads) and rest < 3
    assert sorted(seen) == sorted(written)  # and none twice, because no trace changed twice


def test_no_change_appears_before_a_position_that_was_passed(traces: ClickHouseTraces, other: ClickHouseTraces) -> None:
    def insert(writer: int) -> None:
        for number in range(40):
            row = {"trace_id": [f"{writer}-{number}"], "version": [1], "day": [1], "floor": [traces._db.floor()]}
            traces._db.insert("traces", row)

    def count(upto: int) -> int:
        return int(other._db.query("SELECT count() FROM traces WHERE change <= {upto:UInt64}", {"upto": upto})[0][0])

    writers = [threading.Thread(target=insert, args=(writer,)) for writer in range(3)]
    for writer in writers:
        writer.start()
    passed = list[tuple[int, int]]()
    while any(writer.is_alive() for writer in writers):
        horizon = other._db.horizon()
        passed.append((horizon, count(horizon)))
    assert len(passed) > 10
    assert [(horizon, count(horizon)) for horizon, _ in passed] == passed


def test_an_idle_reader_reads_nothing_again(traces: ClickHouseTraces) -> None:
    traces.append([run(), run()])
    page = traces.changes()
    assert len(page.heads) == 2
    for _ in range(3):
        again = traces.changes(page.cursor)
        assert (again.heads, again.cursor) == ((), page.cursor)


def test_the_feed_waits_for_an_insert_that_hangs(traces: ClickHouseTraces, other: ClickHouseTraces) -> None:
    """A summary whose insert began earlier, and becomes visible later, than another is not passed by."""
    slow = (
        "INSERT INTO traces (trace_id, version, day, span_count, start_ns) SELECT 'slow', sleepEachRow(3) + 1, toDate(1), 1, 1"
        " FROM numbers(1)"
    )
    began = time.monotonic()
    thread = threading.Thread(target=other._db.command, args=(slow,))
    thread.start()
    running = (
        "SELECT count() FROM system.processes WHERE query_kind = 'Insert' AND current_database = currentDatabase()"
    )
    while traces._db.query(running) == [(0,)] and time.monotonic() < began + 30:
        time.sleep(0.01)
    root = run()
    traces.append([root])
    cursor, seen = None, list[str]()
    first = traces.changes()
    seen += [head.trace_id for head in first.heads]
    cursor = first.cursor
    thread.join()
    page = traces.changes(cursor)
    seen += [head.trace_id for head in page.heads]
    assert sorted(seen) == sorted(["slow", root.trace_id])


def test_positions_do_not_go_back_with_the_clock_of_the_server(traces: ClickHouseTraces) -> None:
    traces.append([run()])
    before = traces.changes()
    ahead = before.heads[0].change + 3600 * 10**9  # as if the server's clock had been set back by an hour
    traces._db._advance(ahead)
    traces.append([later := run()])
    assert eventually(lambda: bool(traces.changes(before.cursor).heads))
    page = traces.changes(before.cursor)
    assert [head.trace_id for head in page.heads] == [later.trace_id]
    assert page.heads[0].change >= ahead
    assert page.now_ns >= page.heads[0].changed_ns


def test_a_collector_that_starts_later_continues_after_all_positions(
    empty_clickhouse: str, traces: ClickHouseTraces
) -> None:
    traces.append([run()])
    traces._db._advance(traces.changes().heads[0].change + 3600 * 10**9)
    traces.append([run()])
    assert eventually(lambda: len(traces.changes().heads) == 2)
    cursor = traces.changes().cursor
    with closing(ClickHouseTraces(empty_clickhouse)) as fresh:
        fresh.append([later := run()])
        assert eventually(lambda: bool(fresh.changes(cursor).heads))
        assert [head.trace_id for head in fresh.changes(cursor).heads] == [later.trace_id]


def test_collectors_agree_on_the_time_after_the_clock_was_set_back(
    traces: ClickHouseTraces, other: ClickHouseTraces
) -> None:
    traces.append([run()])
    ahead = traces.changes().heads[0].change + 3600 * 10**9
    for collector, seconds in ((other, 0), (traces, 100)):  # the other one did not learn of the last rows
        collector._db._advance(ahead + seconds * 10**9)
    traces.append([root := run()])
    assert eventually(lambda: len(traces.changes().heads) == 2)
    cursor = traces.changes().cursor
    other.append([child(root)])
    [summary] = traces.traces(trace_ids=(root.trace_id,))
    assert summary.span_count == 2
    assert eventually(lambda: bool(traces.changes(cursor).heads))
    assert [head.span_count for head in traces.changes(cursor).heads] == [2]


def test_the_feed_does_not_pass_what_others_may_insert_after_the_clock_was_set_back(
    traces: ClickHouseTraces, other: ClickHouseTraces
) -> None:
    traces.append(roots := [run(), run()])
    cursor = traces.changes().cursor
    ahead = traces.changes().heads[0].change + 3600 * 10**9
    traces._db._advance(ahead + 10**9 // 2)  # half a second later than the other one knows
    traces.add_feedback([human(roots[0])])
    cursor = traces.changes(cursor).cursor
    other._db.insert("feedback", make_feedback_columns([encode_feedback(human(roots[1]))], ahead))
    assert eventually(lambda: roots[1].trace_id in [head.trace_id for head in traces.changes(cursor).heads])


def test_feedback_and_its_deletion_and_a_started_run_are_changes(
    traces: ClickHouseTraces, other: ClickHouseTraces
) -> None:
    root = run()
    traces.append([root])
    cursor, runs_change = traces.changes().cursor, traces.get_trace_head(root.trace_id).runs_change
    for change in (
        lambda: other.add_feedback([human(root)]),
        lambda: other.delete_feedback([human(root).id]),
        lambda: other.add_running([OpenRun(trace_id=root.trace_id, span_id="d" * 16, name="late")]),
    ):
        change()
        [head] = traces.changes(cursor).heads
        assert (head.trace_id, head.runs_change) == (root.trace_id, runs_change)
        assert head.change > runs_change
        assert traces.count_changes_after(cursor)[0] == 1
        cursor = traces.changes(cursor).cursor
    assert traces.get_trace_head(root.trace_id).settled is False


def test_feedback_that_is_the_same_or_of_a_rule_is_no_change(traces: ClickHouseTraces) -> None:
    root, feedback = run(), []
    feedback = [human(root)]
    traces.append([root], feedback)
    cursor = traces.changes().cursor
    traces.add_feedback(feedback)
    assert traces.replace_rule_feedback([finish(root, by_rule(root, 1), claim=1)]) == [True]
    assert traces.changes(cursor).heads == ()
    assert traces.count_changes_after(cursor) == (0, None)


def test_feedback_before_its_trace_has_no_head_and_does_not_stop_the_reader(traces: ClickHouseTraces) -> None:
    root = run()
    traces.add_feedback([human(root)])
    page = traces.changes()
    assert page.heads == ()
    traces.append([root])
    [head] = traces.changes(page.cursor).heads
    assert head.trace_id == root.trace_id
    assert scores(traces, root) == {"good": 1.0}


def test_many_changes_with_one_position_are_on_one_page(traces: ClickHouseTraces) -> None:
    same = traces._db.now()
    ids = [f"{n:032x}" for n in range(1, 6)]
    traces._db.insert(
        "traces",
        {"trace_id": ids, "version": [1] * 5, "day": [1] * 5, "span_count": [1] * 5, "change": [same] * 5},
    )
    page = traces.changes(limit=2)
    assert sorted(head.trace_id for head in page.heads) == ids
    assert traces.changes(page.cursor, limit=2).heads == ()


def test_what_no_page_gave_is_no_position(traces: ClickHouseTraces) -> None:
    for cursor in ("x", "-1", "1", str(2**62), "9" * 30):
        with pytest.raises(Refused, match="is no position in this store's feed"):
            traces.changes(cursor)
    with pytest.raises(NotFound):
        traces.get_trace_head("f" * 32)


def test_a_lagging_summary_is_in_no_list_until_it_is_there(traces: ClickHouseTraces, other: ClickHouseTraces) -> None:
    root = run()
    summarize = traces._spans.summarize
    shown: list[Any] = []

    def summarize_late(*arguments: Any, **options: Any) -> None:
        shown.append((len(other.traces()), other.changes().heads))
        summarize(*arguments, **options)

    traces._spans.summarize = summarize_late  # type: ignore[method-assign]
    traces.append([root])
    assert shown == [(0, ())]
    assert len(other.changes().heads) == 1


# Feedback of rules


def test_the_highest_lease_number_stands_whichever_insert_comes_last(
    traces: ClickHouseTraces, other: ClickHouseTraces
) -> None:
    root = run()
    traces.append([root])
    assert traces.replace_rule_feedback([finish(root, by_rule(root, 7, score=0.7), claim=7)]) == [True]
    # a slow monitor that read before the other inserted
    other._feedback._insert([encode_feedback(by_rule(root, 5, score=0.5))])
    assert scores(traces, root) == {"good": 0.7}
    assert other.replace_rule_feedback([finish(root, by_rule(root, 6), claim=6)]) == [False]
    assert scores(traces, root) == {"good": 0.7}


def test_a_deletion_by_a_later_lease_is_not_undone_by_a_slow_insert(
    traces: ClickHouseTraces, other: ClickHouseTraces
) -> None:
    root = run()
    traces.append([root])
    early = [by_rule(root, 1, key) for key in ("good", "brief")]
    assert traces.replace_rule_feedback([finish(root, *early, claim=1)]) == [True]
    assert traces.replace_rule_feedback([finish(root, by_rule(root, 2), claim=2)]) == [True]
    assert scores(traces, root) == {"good": 1.0}
    other._feedback._insert([encode_feedback(one) for one in early])
    assert scores(traces, root) == {"good": 1.0}


def test_what_an_earlier_lease_left_under_another_key_is_swept(
    traces: ClickHouseTraces, other: ClickHouseTraces
) -> None:
    """A monitor was killed between storing the feedback of its lease and deleting that of the lease before."""
    root, since = run(), traces._db.now()
    traces.append([root])
    traces._feedback._insert([encode_feedback(by_rule(root, 1, "brief"))])
    traces._feedback._insert([encode_feedback(by_rule(root, 2, "good"))])
    assert scores(traces, root).keys() == {"brief", "good"}
    assert other._feedback.remove_outdated(since) == 1
    assert other._feedback.remove_outdated(since) == 0
    assert scores(traces, root) == {"good": 1.0}


def test_a_finish_may_be_repeated(traces: ClickHouseTraces, other: ClickHouseTraces) -> None:
    root = run()
    traces.append([root])
    done = finish(root, by_rule(root, 3, created_ns=5), claim=3)
    assert traces.replace_rule_feedback([done, done]) == [True, True]
    before = traces._db.query("SELECT count() FROM feedback")
    assert other.replace_rule_feedback([done]) == [True]
    assert traces._db.query("SELECT count() FROM feedback") == before


def test_feedback_of_a_rule_on_an_unknown_trace_is_refused(traces: ClickHouseTraces) -> None:
    root = run()
    assert traces.replace_rule_feedback([finish(root, by_rule(root, 1), claim=1)]) == [False]
    assert traces.count()["feedbacks"] == 0


def test_changed_and_deleted_feedback_is_so_at_every_collector(
    traces: ClickHouseTraces, other: ClickHouseTraces
) -> None:
    root, given = run(), None
    traces.append([root])
    given = human(root)
    traces.add_feedback([given])
    [changed] = other.change_feedback({given.id: {"score": 0.25}})
    assert (changed.score, scores(traces, root)) == (0.25, {"good": 0.25})
    assert other.delete_feedback([given.id, "unknown"]) == 1
    assert scores(traces, root) == {}
    traces.add_feedback([given])
    assert scores(other, root) == {"good": 1.0}
    with pytest.raises(NotFound, match="there is no feedback 'x'"):
        traces.change_feedback({given.id: {"score": 0.5}, "x": {"score": 0.5}})
    assert scores(traces, root) == {"good": 1.0}


def test_an_id_given_to_another_target_moves_the_feedback(traces: ClickHouseTraces) -> None:
    first, second = run(), run()
    traces.append([first, second])
    traces.add_feedback([human(first, id="mine")])
    traces.add_feedback([human(second, id="mine")])
    assert (scores(traces, first), scores(traces, second)) == ({}, {"good": 1.0})


def test_forwarded_feedback_comes_in_the_order_of_writing(traces: ClickHouseTraces, other: ClickHouseTraces) -> None:
    root = run(project="p", environment="e")
    traces.append([root, child(root)])
    traces.add_feedback([human(root, "old")])
    outlet = traces.open_outlet("to", "http://there")
    assert (outlet.waiting, other.open_outlet("to", "http://there").cursor) == (0, outlet.cursor)
    traces.add_feedback([human(root, "a")])
    other.add_feedback([human(root, "b")])
    sent = traces.feedback_after(outlet.cursor, 10)
    assert [(one.feedback.key, one.project, one.environment) for one in sent] == [("a", "p", "e"), ("b", "p", "e")]
    other.move_outlet("to", sent[0].number, 1, 0, "an error")
    [moved] = traces.outlets()
    assert (moved.waiting, moved.sent, moved.dropped, moved.error) == (1, 1, 0, "an error")
    assert [one.feedback.key for one in other.feedback_after(moved.cursor, 10)] == ["b"]
    assert traces.find_stored_feedback([sent[0].feedback.id, "x"]) == {sent[0].feedback.id}


@pytest.mark.parametrize("size", [1, MAX_READ_CHARACTERS])
def test_forwarded_feedback_with_one_number_is_read_together(traces: ClickHouseTraces, size: int) -> None:
    root = run()
    number = traces._db.now()
    feedback = [human(root, f"key {place}", comment="x" * size) for place in range(3)]
    traces.trace_copy().import_feedback([NumberedFeedback(number, one) for one in feedback])
    assert len(traces.feedback_after(0, 2)) == 3
    assert traces.feedback_after(number, 2) == []


def test_a_copy_has_all_traces_with_one_number(traces: ClickHouseTraces) -> None:
    for _ in range(3):
        traces.append([run()])
    traces._db.command("ALTER TABLE traces UPDATE number = 1 WHERE 1")
    assert len(traces.trace_copy().list_positions(0, 2)) == 3
    assert traces.trace_copy().list_positions(1, 2) == []
