"""What the control half in SQLite does when clocks fall, processes end in between, and time goes on."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from collector.conformance_claims import claim, claim_of, finish, only, scores, waiting
from collector.deciding import on, ruled, slice, traced
from collector.making import SECOND, run
from spanwise.collector.errors import Unavailable
from spanwise.collector.records import Booking, ClaimResult, RuleSettings
from spanwise.collector.rule_policy import find_setting
from spanwise.collector.stores import CombinedStore, Store
from spanwise.collector.stores.sqlite import DatabaseFile, SQLiteControl, SQLiteStore, SQLiteTraces

HOUR = 3_600_000_000_000
DAY = 24 * HOUR


class Falling(SQLiteControl):
    """Ends after the feedback of a claim is kept, before the claim is."""

    def finish_leases(self, finishes: Sequence[ClaimResult]) -> list[str]:
        if finishes:
            raise Unavailable("away")
        return []


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[DatabaseFile, DatabaseFile]]:
    opened = DatabaseFile(tmp_path / "traces.db"), DatabaseFile(tmp_path / "control.db")
    yield opened
    for file in opened:
        file.close()


def written(path: Path, *statements: str) -> None:
    """Done to a file that nobody has open."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


def test_a_crash_between_feedback_and_claim_is_healed_by_the_same_finish(
    files: tuple[DatabaseFile, DatabaseFile],
) -> None:
    whole = cast(Store, CombinedStore(SQLiteTraces(files[0]), SQLiteControl(files[1])))
    falling = cast(Store, CombinedStore(SQLiteTraces(files[0]), Falling(files[1])))
    [head] = waiting(whole)
    [taken] = claim(whole)
    with pytest.raises(Unavailable):
        falling.finish(finish(taken, 0.5))
    assert (scores(whole, head.trace_id), only(whole).verdict) == ({"concise": 0.5}, "running")
    for _ in range(2):
        assert whole.finish(finish(taken, 0.5)) == ["finished"]
    assert (scores(whole, head.trace_id), only(whole).verdict) == ({"concise": 0.5}, "scored")


def test_what_a_crash_has_left_is_replaced_by_the_next_claim(files: tuple[DatabaseFile, DatabaseFile]) -> None:
    whole = cast(Store, CombinedStore(SQLiteTraces(files[0]), SQLiteControl(files[1])))
    falling = cast(Store, CombinedStore(SQLiteTraces(files[0]), Falling(files[1])))
    [head] = waiting(whole)
    [first] = claim(whole, seconds=-1)
    with pytest.raises(Unavailable):
        falling.finish(finish(first, 0.0))
    [second] = claim(whole, "next")
    assert whole.finish(finish(second, 1.0), finish(first, 0.0))[0] == "finished"
    assert scores(whole, head.trace_id) == {"concise": 1.0}


def test_an_error_that_a_crash_cut_off_is_written_by_the_next_who_asks(
    files: tuple[DatabaseFile, DatabaseFile],
) -> None:
    whole = cast(Store, CombinedStore(SQLiteTraces(files[0]), SQLiteControl(files[1])))
    falling = cast(Store, CombinedStore(SQLiteTraces(files[0]), Falling(files[1])))
    [head] = waiting(whole)
    for _ in range(3):
        claim(whole, seconds=-1)
    with pytest.raises(Unavailable):
        claim(falling, seconds=-1)
    assert (claim(whole), only(whole).verdict, only(whole).reason) == ([], "failed", "ended the worker 4 times")
    [error] = whole.trace(head.trace_id).feedback
    assert (error.outcome, error.error) == ("error", "ended the worker 4 times")


def test_a_decision_kept_while_its_trace_was_deleted_goes_with_its_claim(
    files: tuple[DatabaseFile, DatabaseFile],
) -> None:
    traces = SQLiteTraces(files[0])
    whole = cast(Store, CombinedStore(traces, control := SQLiteControl(files[1])))
    [head] = waiting(whole)
    whole.delete(trace_ids=(head.trace_id,))
    control.record_decisions([slice(on(head), after=head.cursor, upto=head.cursor)])  # as of one who had looked before
    [taken] = claim(whole)
    assert whole.finish(finish(taken))[0].startswith("refused: ")
    assert (len(whole.decisions()), whole.count()["feedbacks"]) == (0, 0)


def test_leases_and_claims_run_out_though_the_clock_was_set_back(tmp_path: Path) -> None:
    with SQLiteStore(path := tmp_path / "spanwise.db") as store:
        waiting(store)
        ahead = store.changes().now_ns + DAY
    written(path, f"UPDATE feed SET clock_ns = {ahead}")  # what the store has seen is later than what the system says
    with SQLiteStore(path) as store:
        lease = store.acquire("monitor", "one", 0.0)
        [taken] = claim(store, seconds=0.0)
        assert lease is not None
        assert lease.expires_ns >= ahead
        assert taken.until_ns is not None
        assert taken.until_ns >= ahead
        assert store.acquire("monitor", "two", 60) is not None
        assert [one.deaths for one in claim(store, "two")] == [1]
        assert {one.period_start_ns for one in booked(store)} == {ahead // DAY * DAY}


def booked(store: Store) -> Sequence[object]:
    store.book(Booking(id="a", budget="b", amount=1, limit=2))
    return store.booked()


@pytest.mark.process
def test_of_what_is_over_budget_the_newest_ten_thousand_of_a_day_are_offered_again(tmp_path: Path) -> None:
    with SQLiteStore(path := tmp_path / "spanwise.db") as store:
        heads = waiting(store, 3, verdict="over_budget")
        now = store.changes().now_ns
    rows = f"SELECT rule, 'x' || value, verdict, reason, 0, 1, 1, 0, 0, 0, 0, 0, created_ns + value, 0, {now}"
    into = (
        "rule, target, verdict, reason, incomplete, change, runs_change, read_change, claim, attempts, deaths, reopened"
    )
    written(
        path,
        f"UPDATE decisions SET created_ns = {now - DAY - 1} WHERE target = '{heads[0].trace_id}'",
        f"INSERT INTO decisions ({into}, created_ns, updated_ns, due_ns) {rows} FROM decisions,"
        f" (WITH RECURSIVE n (value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < 9999) SELECT * FROM n)"
        f" WHERE target = '{heads[2].trace_id}'",
    )
    with SQLiteStore(path) as store:
        [newest] = claim(store)
        assert newest.target.trace_id == "x9999"
        final = [
            one
            for one in store.decisions(verdict="over_budget", limit=20_000)
            if one.next_ns is None and "offered" in one.reason
        ]
        assert {one.target.trace_id for one in final} == {heads[0].trace_id, heads[1].trace_id}
        assert store.status()[0].counts["over_budget"] == 10_001


def test_bookings_of_days_ago_go_as_others_are_made(tmp_path: Path) -> None:
    with SQLiteStore(path := tmp_path / "spanwise.db") as store:
        store.book(*(Booking(id=f"{n}", budget="b", amount=1, limit=9, period="minute") for n in range(5)))
    written(path, f"UPDATE bookings SET made_ns = made_ns - {3 * DAY}, start_ns = start_ns - {3 * DAY}")
    written(path, f"UPDATE budgets SET start_ns = start_ns - {3 * DAY}")
    with SQLiteStore(path) as store:
        store.book(*(Booking(id=f"new{n}", budget="b", amount=1, limit=9, period="minute") for n in range(2)))
        assert [one.reserved for one in store.booked()] == [2]
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM bookings").fetchone() == (2,)


def test_what_nobody_has_settled_for_a_minute_stays_booked_as_cost_unknown(tmp_path: Path) -> None:
    with SQLiteStore(path := tmp_path / "spanwise.db") as store:
        store.book(Booking(id="lost", budget="b", amount=2, limit=9), Booking(id="now", budget="b", amount=1, limit=9))
    written(path, f"UPDATE bookings SET made_ns = made_ns - {61 * 10**9} WHERE id = 'lost'")
    with SQLiteStore(path) as store:
        assert [(one.reserved, one.unknown) for one in store.booked("b")] == [(1, 2)]
        assert store.book(Booking(id="more", budget="b", amount=7, limit=9)) == [False]
        store.settle({"lost": 0.5})
        assert [(one.settled, one.reserved, one.unknown) for one in store.booked("b")] == [(0.5, 1, 0)]


def test_decisions_outlive_a_restart_with_claims_and_numbers(tmp_path: Path) -> None:
    with SQLiteStore(path := tmp_path / "spanwise.db") as store:
        waiting(store, 2)
        [taken] = claim(store)
    with SQLiteStore(path) as store:
        assert [one.claim for one in claim(store)] == [taken.claim + 1]
        assert (store.renew([claim_of(taken)], "w", 60), store.finish(finish(taken))) == ([True], ["finished"])


def test_a_thousand_sampled_out_leave_one_row_of_counts(tmp_path: Path) -> None:
    with SQLiteStore(path := tmp_path / "spanwise.db") as store:
        [head] = waiting(store)
        [next] = traced(store)
        left_out = {f"{number:032x}": (number, "sampled_out") for number in range(1, 1001)}
        store.decide(slice(after=head.cursor, upto=next.cursor, outcomes=left_out))
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT sampled_out FROM counts").fetchall() == [(1000,)]
        [(size,)] = db.execute("SELECT length(data) FROM outcomes").fetchall()
        assert size < 1024
        assert db.execute("SELECT count(*) FROM decisions").fetchone() == (1,)


def test_outcomes_of_traces_whose_numbers_are_times_take_few_bytes(tmp_path: Path) -> None:
    now, apart = 1_800_000_000 * SECOND, 10_000_000
    with SQLiteStore(path := tmp_path / "spanwise.db") as store:
        [head] = waiting(store)
        [next] = traced(store)
        for outcome in ("sampled_out", "filtered", "filtered"):  # the later outcome of a trace counts
            left_out = {f"{number:032x}": (now + number * apart, outcome) for number in range(1, 501)}
            store.decide(slice(after=head.cursor, upto=next.cursor, outcomes=left_out))
            head, [next] = next, traced(store)
        assert (store.status()[0].counts["filtered"], store.status()[0].counts["sampled_out"]) == (500, 0)
    with closing(sqlite3.connect(path)) as db:
        rows, size = db.execute("SELECT count(*), sum(length(data)) FROM outcomes").fetchone()
        assert (rows, size) == (500, 500 * 3)


def test_a_full_block_of_outcomes_takes_a_kilobyte(tmp_path: Path) -> None:
    with SQLiteStore(path := tmp_path / "spanwise.db") as store:
        [head] = waiting(store)
        [next] = traced(store)
        for outcome in ("sampled_out", "filtered"):
            left_out = {f"{number:032x}": (number, outcome) for number in range(1, 4096)}
            store.decide(slice(after=head.cursor, upto=next.cursor, outcomes=left_out))
            head, [next] = next, traced(store)
        assert store.status()[0].counts["filtered"] == 4095
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT length(data) FROM outcomes").fetchall() == [(1024,)]


def test_the_setting_for_a_change_is_that_of_the_whole_history(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        for rate in (1.0, 0.5, 0.1):
            store.append([run()])
            ruled(store, settings=RuleSettings(sample_rate=rate))
        [rule], history = store.rules(), store.settings("r")
        for change in (0, *(one.from_change + step for one in history for step in (-1, 0))):
            assert store._control.find_settings(rule, change) == find_setting(history, change)
        assert store._control.find_settings(replace(rule, version="2"), 0) is None
