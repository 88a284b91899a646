"""Hourly sums answer as the rows do, whatever was written, changed, and deleted, and in whichever order."""

from __future__ import annotations

import math
import re
import shutil
import sqlite3
import tempfile
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector import former_file
from looped_cases import loop_over
from polling import until
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.filters import Filter
from spanwise.collector.records import Bucket, Feedback, FeedbackStats, Run, Target, Usage
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import DatabaseFile, SQLiteStore, SQLiteTraces
from spanwise.collector.stores.sqlite.database.connections import open_writable
from spanwise.collector.stores.sqlite.database.schema import (
    ROLLUP_TABLES,
    _make_sealed_periods_uniform,
    mark_rollups_stale,
)
from spanwise.collector.stores.sqlite.maintenance import background_jobs, backup_and_recovery
from spanwise.collector.stores.sqlite.maintenance.background_jobs import PeriodSealer, RollupRecounter
from spanwise.collector.stores.sqlite.query.filter_sql import plan_query
from spanwise.collector.stores.sqlite.rollups import hourly_rollups, sealed_rollups
from spanwise.collector.stores.sqlite.rollups.aggregation import _Aggregation, plan_rollup_query
from spanwise.collector.stores.sqlite.rollups.rollup_delta import HOUR_NS, MAX_HOUR_ROWS, ZERO_BIN, find_bin
from spanwise.collector.stores.sqlite.rollups.sealed_rollups import build_day, build_hour, collect_names

NOW = 486_000 * HOUR_NS + 1
GROUPS = (None, "project", "environment", "name", "model")


class Held:
    """A file without the thread behind its writer: hours are counted anew when a test says so."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open()

    def open(self) -> None:
        self.file = DatabaseFile(self.path)
        self.traces = SQLiteTraces(self.file)
        self.recount = RollupRecounter(self.file, threading.Event())
        self.rest = PeriodSealer(self.file, threading.Event())

    def again(self) -> None:
        self.file.close()
        self.open()

    def count(self) -> None:
        self.recount._not_before.clear()
        self.recount.round()

    def make_ready(self) -> None:
        """As if nothing had changed for a while."""
        self.rest.find_due()
        self.rest.find_due()
        while self.rest.round():
            pass

    def ready(self) -> tuple[int, int]:
        """Hours, and days."""
        with self.file.read() as reader:
            hours = reader.db.execute("SELECT count(*) FROM sums_hours WHERE rest = 1").fetchone()
            return hours + reader.db.execute("SELECT count(*) FROM sums_days WHERE rest = 1").fetchone()


@contextmanager
def held() -> Iterator[Held]:
    with tempfile.TemporaryDirectory() as folder:
        made = Held(Path(folder) / "spanwise.db")
        try:
            yield made
        finally:
            made.file.close()


def both(
    db: sqlite3.Connection, filter: Filter, bucket_ns: int | None, group_by: str | None
) -> tuple[list[Bucket], list[Bucket]]:
    """Through sums, and through rows."""
    question = plan_rollup_query(filter, bucket_ns, group_by)
    return _Aggregation(db, filter, bucket_ns, group_by).buckets(question), _Aggregation(
        db, filter, bucket_ns, group_by
    ).buckets(None)


FILTERS = (
    Filter(),
    Filter(project="p"),
    Filter(experiment=""),
    Filter(name="b", environment="prod"),
    Filter(since_ns=NOW + HOUR_NS // 2),
    Filter(since_ns=NOW - HOUR_NS, until_ns=NOW + HOUR_NS + 5, name="a"),
    Filter(since_ns=NOW - 1),
    Filter(until_ns=NOW - 1, project="q"),
    Filter(since_ns=NOW - 1 - 24 * HOUR_NS, until_ns=NOW + 24 * HOUR_NS),
)


def assert_right(here: Held) -> None:
    with here.file.read() as reader:
        assert hourly_rollups.count_wrong_hours(reader.db) == 0
        assert sealed_rollups.count_wrong_periods(reader.db) == 0
        for name in "abc":
            chosen = plan_query(reader.db, Filter(any_name=name), judgements=True)
            sql = f"SELECT t.id FROM {chosen.source} WHERE {chosen.where}"
            found = {row[0] for row in reader.db.execute(sql, chosen.values)}
            rows = reader.db.execute("SELECT DISTINCT trace FROM spans WHERE name = ?", (name,)).fetchall()
            assert found == {row[0] for row in rows}


def assert_same(here: Held) -> None:
    with here.file.read() as reader:
        for filter in FILTERS:
            for group_by in GROUPS:
                for bucket_ns in (None, HOUR_NS, 2 * HOUR_NS, 24 * HOUR_NS):
                    through_sums, through_rows = both(reader.db, filter, bucket_ns, group_by)
                    assert through_sums == through_rows


TRACES, SPANS, KEYS = st.sampled_from("1234"), st.sampled_from("123"), st.sampled_from(["k", "l"])
EIGHTHS = st.integers(-16, 16).map(lambda n: n / 8)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    span = draw(SPANS)
    start = NOW + draw(st.sampled_from([-2, 0, 1])) * HOUR_NS + draw(st.integers(0, 5)) * 10**9
    return Run(
        trace_id=draw(TRACES) * 32,
        span_id=span * 16,
        parent_id=None if span == "1" else "1" * 16,
        name=draw(st.sampled_from("ab")),
        kind=draw(st.sampled_from(["llm", "chain", "evaluator"])),
        project=draw(st.sampled_from("pq")),
        environment=draw(st.sampled_from(["prod", "dev"])),
        start_ns=start,
        end_ns=start + draw(st.integers(0, 3)) * 10**9,
        status=draw(st.sampled_from(["ok", "error"])),
        model=draw(st.sampled_from([None, "m", "n"])),
        usage=draw(st.sampled_from([None, Usage(input_tokens=7), Usage(input_tokens=1, output_tokens=2)])),
        experiment_id=draw(st.sampled_from([None, None, "x"])),
        cost=draw(st.sampled_from([None, 0.25, 0.5])),
    )


@st.composite
def feedbacks(draw: st.DrawFn) -> Feedback:
    outcome = draw(st.sampled_from(["score", "score", "label", "both", "error", "skip"]))
    source = draw(st.sampled_from(["human", "model", "code"]))
    return Feedback(
        id=draw(st.sampled_from("abcdef")) * 8,
        target=Target(trace_id=draw(TRACES) * 32, span_id=draw(st.sampled_from([None, "1" * 16]))),
        key=draw(KEYS),
        score=draw(st.one_of(st.booleans(), EIGHTHS)) if outcome in ("score", "both") else None,
        label=draw(st.sampled_from(["good", ""])) if outcome in ("label", "both") else None,
        outcome="score" if outcome in ("label", "both") else outcome,
        error="it broke" if outcome == "error" else None,
        source=source,
        author=draw(st.sampled_from([None, "ann"])) if source == "human" else None,
        rule=draw(st.sampled_from([None, "r"])) if source == "model" else None,
        created_ns=NOW + draw(st.integers(0, 3)),
    )


STEPS = st.one_of(
    st.tuples(st.just("append"), st.lists(runs(), min_size=1, max_size=4), st.lists(feedbacks(), max_size=2)),
    st.tuples(st.just("say"), st.lists(feedbacks(), min_size=1, max_size=3), st.none()),
    st.tuples(st.just("amend"), TRACES, st.sampled_from([{"cost": 1.5}, {"model": "n"}, {"name": "b"}])),
    st.tuples(st.just("change"), st.sampled_from("abcdef"), EIGHTHS),
    st.tuples(st.just("unsay"), st.sampled_from("abcdef"), st.none()),
    st.tuples(
        st.just("delete"), st.sampled_from([Filter(name="a"), Filter(project="p"), Filter(model="n")]), st.none()
    ),
    st.tuples(st.just("restart"), st.none(), st.none()),
    st.tuples(st.just("count"), st.none(), st.none()),
    st.tuples(st.just("rest"), st.none(), st.none()),
    st.tuples(st.just("begin to rest"), st.sampled_from([-2, 0, 1]), st.none()),
    st.tuples(st.just("begin"), st.sampled_from([-2, 0, 1]), st.none()),
    st.tuples(st.just("end"), st.none(), st.none()),
)


def play(here: Held, steps: Sequence[tuple]) -> None:
    under_way = None  # an hour that is being counted, while the others write
    for what, one, two in steps:
        if what == "append":
            here.traces.append(one, two)
        elif what == "say":
            here.traces.add_feedback(one)
        elif what == "amend":
            with suppress(Refused):
                here.traces.amend(one * 32, "1" * 16, two)
        elif what == "change":
            with suppress(NotFound, Refused):
                here.traces.change_feedback({one * 8: {"score": two}})
        elif what == "unsay":
            here.traces.delete_feedback([one * 8])
        elif what == "delete" and (gone := here.traces.find_deletable_traces(one)):
            here.traces.delete_traces([gone])
        elif what == "restart" and under_way is None:
            here.again()
        elif what == "count" and under_way is None:
            here.count()
        elif what == "rest" and under_way is None:
            here.make_ready()
        elif what == "begin to rest" and under_way is None:
            under_way = resting(here, NOW // HOUR_NS + one)
            next(under_way)
        elif what == "begin" and under_way is None:
            under_way = counting(here, NOW // HOUR_NS + one)
            next(under_way)
        elif what == "end" and under_way is not None:
            under_way = next(under_way, None)
        assert_right(here)
    if under_way is not None:
        next(under_way, None)
    assert_right(here)
    assert_same(here)
    here.count()
    here.make_ready()
    assert_right(here)
    assert_same(here)


def resting(here: Held, hour: int) -> Iterator[None]:
    """Make an hour and its day ready, while others write."""
    here.make_ready()
    with here.file.read() as reader:
        rows, named, day = build_hour(reader.db, hour), collect_names(reader.db, hour), build_day(reader.db, hour // 24)
    yield
    here.file.write(lambda db: here.rest._put_hour(hour, rows, named, db))
    here.file.write(lambda db: here.rest._put_day(hour // 24, day, [], db))


def counting(here: Held, hour: int) -> Iterator[None]:
    """Count an hour anew in two steps, between which others write."""
    here.file.write(lambda _: here.file.appender.sums.mark(hour, 1))
    counted = here.recount.count(hour)
    yield
    here.recount.store(hour, counted)


@pytest.mark.process
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, max_size=10))
def test_sums_answer_as_rows_do(steps):
    with held() as here:
        play(here, steps)


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, max_size=30))
def test_sums_answer_as_rows_do_after_many_changes(steps):
    with held() as here:
        play(here, steps)


def later(index: int, **fields) -> Run:
    """The only run of a trace, some milliseconds after the one before it, and each a little longer."""
    start = NOW + index * 10**6
    given = {"trace_id": f"{index + 1:032x}", "span_id": "1" * 16, "name": "a", "start_ns": start}
    return Run(**{**given, "end_ns": start + (index + 1) * 10**6, **fields})


def said_of(run: Run, key: str = "k", score: float = 0.5, **fields) -> Feedback:
    return Feedback(target=Target(trace_id=run.trace_id), key=key, score=score, **fields)


def state(here: Held) -> int | None:
    with here.file.read() as reader:
        row = reader.db.execute("SELECT max(state) FROM sums_hours").fetchone()
    return row[0]


@pytest.fixture
def here() -> Iterator[Held]:
    with held() as made:
        yield made


@pytest.mark.process
def test_percentiles_of_many_are_within_the_error_that_they_say(here):
    here.traces.append([later(i) for i in range(10_001)])
    with here.file.read() as reader:
        [summed], [exact] = both(reader.db, Filter(), None, None)
    assert (summed.latency_error, exact.latency_error) == (0.01, 0.0)
    assert summed.p95_ms == pytest.approx(exact.p95_ms, rel=0.01)
    assert summed.p50_ms == pytest.approx(exact.p50_ms, rel=0.01)
    assert summed.p99_ms == pytest.approx(exact.p99_ms, rel=0.01)


@pytest.mark.process
@pytest.mark.parametrize("at_rest", [False, True])
def test_percentiles_of_10000_are_one_of_their_latencies(here, at_rest):
    here.traces.append([later(i, start_ns=NOW + i * HOUR_NS // 300) for i in range(10_000)])
    if at_rest:
        here.make_ready()
    with here.file.read() as reader:
        for bucket_ns in (None, HOUR_NS, 24 * HOUR_NS):
            summed, exact = both(reader.db, Filter(), bucket_ns, None)
            assert summed == exact


@pytest.fixture(params=[False, True], ids=["with rows", "at rest"])
def many(here: Held, request: pytest.FixtureRequest) -> Held:
    """A file with more latencies than an answer is computed from exactly."""
    some = [
        later(i, start_ns=NOW + i * HOUR_NS // 300, name="ab"[i % 2], model="mn"[i % 3 == 0]) for i in range(10_001)
    ]
    here.traces.append(some)
    if request.param:
        here.make_ready()
    here.traces.append([later(20_000, start_ns=NOW + 30 * HOUR_NS, model="m")])  # an hour that is not at rest
    return here


@pytest.mark.process
@loop_over("group_by", GROUPS)
def test_percentiles_of_more_are_within_their_error_in_each_bucket(many, group_by):
    for filter in (Filter(), Filter(since_ns=NOW + HOUR_NS // 2), Filter(until_ns=NOW + 31 * HOUR_NS + 7)):
        with many.file.read() as reader:
            for bucket_ns in (None, HOUR_NS, 2 * HOUR_NS, 24 * HOUR_NS):
                summed, exact = both(reader.db, filter, bucket_ns, group_by)
                for one, other in zip(summed, exact, strict=True):
                    assert one.p50_ms == pytest.approx(other.p50_ms, rel=0.0101)
                    assert one.p95_ms == pytest.approx(other.p95_ms, rel=0.0101)
                    assert one.p99_ms == pytest.approx(other.p99_ms, rel=0.0101)
                    assert replace(one, p50_ms=0, p95_ms=0, p99_ms=0, latency_error=0) == replace(
                        other, p50_ms=0, p95_ms=0, p99_ms=0, latency_error=0
                    )
                assert {one.latency_error for one in summed} <= {0.0, 0.01}
                assert 0.01 in {one.latency_error for one in summed} or sum(one.traces for one in summed) <= 10_000


@pytest.mark.process
@pytest.mark.parametrize(
    "rare", [{"environment": "rare"}, {"name": "a", "project": "rare"}], ids=["environment", "project"]
)
def test_percentiles_of_few_among_very_many_come_from_bins(here, rare):
    few = [later(i, project="rare", environment="rare") for i in range(10)]
    here.traces.append([*few, *(later(i) for i in range(10, 10_010))])
    with here.file.read() as reader:
        [summed], [exact] = both(reader.db, Filter(**rare), None, None)
        [early], [also_exact] = both(reader.db, Filter(until_ns=few[-1].start_ns + 1, **rare), None, None)
    assert (summed.traces, summed.latency_error, exact.latency_error) == (10, 0.01, 0.0)
    assert summed.p95_ms == pytest.approx(exact.p95_ms, rel=0.01)
    assert early == also_exact


@pytest.mark.process
def test_hours_and_days_at_rest_answer_without_rows(here):
    here.traces.append([later(i, model="mn"[i % 2], start_ns=NOW + i * HOUR_NS // 4) for i in range(300)])
    here.make_ready()
    assert here.ready() == (75, 4)
    assert_right(here)
    assert_same(here)
    with here.file.read() as reader:
        _, exact = both(reader.db, Filter(), 24 * HOUR_NS, "model")
    here.file.write(lambda db: db.execute("UPDATE traces SET cost = 9.0, status = 'error'"))
    with here.file.read() as reader:
        ready, _ = both(reader.db, Filter(), 24 * HOUR_NS, "model")
    assert ready == exact


@pytest.mark.process
@pytest.mark.parametrize("what", ["late", "said", "deleted", "moved"])
def test_what_comes_to_a_day_at_rest_is_in_its_answer_at_once(here, what):
    runs = [later(i, start_ns=NOW + i * HOUR_NS) for i in range(30)]
    here.traces.append(runs)
    here.make_ready()
    assert here.ready() == (30, 2)
    if what == "late":
        here.traces.append([later(99, start_ns=NOW + HOUR_NS + 5)])
    elif what == "said":
        here.traces.add_feedback([said_of(runs[1])])
    elif what == "deleted":
        here.traces.delete_traces([here.traces.find_deletable_traces(Filter(trace_ids=(runs[1].trace_id,)))])
    else:
        here.traces.append([replace(runs[1], name="b", end_ns=runs[1].end_ns + 1)])
    assert here.ready()[1] == 1
    assert_right(here)
    assert_same(here)
    here.make_ready()
    assert here.ready() == (29 if what == "deleted" else 30, 2)
    assert_right(here)
    assert_same(here)


def test_a_name_that_comes_to_an_hour_at_rest_is_found(here):
    run = later(0)
    here.traces.append([run])
    here.make_ready()
    assert not here.traces.traces(any_name="b").items
    here.traces.append([replace(run, span_id="2" * 16, parent_id=run.span_id, name="b", end_ns=run.start_ns + 1)])
    assert len(here.traces.traces(any_name="b").items) == 1
    here.make_ready()
    assert len(here.traces.traces(any_name="b").items) == 1


def test_a_name_that_comes_to_an_hour_after_a_migration_is_found(here):
    run = later(0)
    here.traces.append([run])
    here.make_ready()
    here.file.write(lambda db: _make_sealed_periods_uniform(db, lambda *_: None))
    here.traces.append([replace(run, span_id="2" * 16, parent_id=run.span_id, name="b", end_ns=run.start_ns + 1)])
    assert len(here.traces.traces(any_name="b").items) == 1


def test_a_check_leaves_the_rollups_of_an_older_file_to_its_migration(here):
    here.traces.append([later(0)])
    early = array("q", [find_bin(10**6), 1]).tobytes()
    here.file.write(lambda db: db.execute("UPDATE sums SET latencies = ?", (early,)))
    assert here.file.check() == ["1 hours whose rollups differ from their traces"]
    here.file.close()
    with closing(sqlite3.connect(here.path)) as db:
        former_file.lower_version(db, 20)
    assert backup_and_recovery.check_file(str(here.path)) == []
    here.open()
    here.count()
    assert here.file.check() == []


@pytest.mark.parametrize("names", [1_100, 300], ids=["of an hour", "of a trace"])
def test_more_names_than_are_noted_are_all_found(here, names):
    children = [later(0, span_id=f"{i + 2:016x}", parent_id="1" * 16, name=f"n{i}") for i in range(names)]
    here.traces.append([later(0), *children])
    here.make_ready()
    assert len(here.traces.traces(any_name=f"n{names - 1}").items) == 1
    assert not here.traces.traces(any_name="absent").items


def test_a_day_of_which_all_is_deleted_leaves_nothing(here):
    here.traces.append([later(i) for i in range(3)], [said_of(later(0))])
    here.make_ready()
    here.traces.delete_traces([here.traces.find_deletable_traces(Filter())])
    here.make_ready()
    with here.file.read() as reader:
        for table in ROLLUP_TABLES:
            assert reader.db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


def test_what_changed_after_the_last_look_is_not_at_rest(here):
    here.traces.append([later(0), later(1, start_ns=NOW + 25 * HOUR_NS)])
    here.rest.find_due()
    here.traces.append([later(2)])
    here.rest.find_due()
    here.rest.round()
    assert here.ready() == (1, 1)


@pytest.mark.process
def test_what_changes_while_it_is_made_ready_is_not_ready(here):
    here.traces.append([later(0), later(1, start_ns=NOW + HOUR_NS)])
    under_way = resting(here, NOW // HOUR_NS)
    next(under_way)
    here.traces.append([later(2, name="b")])
    next(under_way, None)
    assert here.ready() == (1, 0)
    assert_right(here)
    assert_same(here)


@pytest.mark.process
def test_what_is_not_over_is_not_at_rest(here):
    start = time.time_ns()
    here.traces.append([later(0), later(1, start_ns=start, end_ns=start + 5)])
    here.make_ready()
    assert here.ready() == (1, 1)
    assert_same(here)


@pytest.mark.process
def test_an_hour_that_is_counted_anew_is_not_at_rest_meanwhile(here):
    here.traces.append([later(i) for i in range(3)])
    here.make_ready()
    here.file.write(lambda _: here.file.appender.sums.mark(NOW // HOUR_NS, 1))
    assert here.ready() == (0, 0)
    assert_same(here)
    here.count()
    here.make_ready()
    assert here.ready() == (1, 1)
    assert_right(here)


@pytest.mark.process
def test_a_rolled_back_change_leaves_what_is_ready(here):
    here.traces.append([later(0), later(1)])
    here.make_ready()
    with pytest.raises(Refused):
        here.file.write(refused_after_writing(here))
    assert here.ready() == (1, 1)
    here.traces.append([later(2)])
    assert here.ready() == (0, 0)
    assert_right(here)
    assert_same(here)


@pytest.mark.process
def test_a_day_of_very_many_names_stays_with_its_hours(here):
    for hour in range(5):
        start = NOW + hour * HOUR_NS
        here.traces.append([later(i + hour * 1_000, name=f"n{hour} {i}", start_ns=start) for i in range(1_000)])
    here.make_ready()
    assert here.ready() == (5, 0)
    with here.file.read() as reader:
        summed, exact = both(reader.db, Filter(), 24 * HOUR_NS, "name")
    assert summed == exact


def some_hours(here: Held) -> list[Run]:
    """Of three names, two models and two projects, with scores, labels and experiments among them; at rest."""
    starts = [NOW + i * HOUR_NS // 5 for i in range(60)]
    runs = [
        later(i, start_ns=start, end_ns=start + i % 7, name="abc"[i % 3], model="mn"[i % 2], project="pq"[i % 9 == 0])
        for i, start in enumerate(starts)
    ]
    runs += [replace(run, trace_id=run.trace_id[1:] + "f", experiment_id="x") for run in runs[:9]]
    said = [said_of(run, score=i % 5 / 4, label="good" if i % 4 else None) for i, run in enumerate(runs)]
    here.traces.append(runs, [*said, *(said_of(run, "l", label="bad", score=None) for run in runs[::3])])
    here.make_ready()
    return runs


@pytest.mark.parametrize("bucket_ns", [HOUR_NS, 3 * HOUR_NS])
@pytest.mark.parametrize("group_by", GROUPS)
def test_hours_at_rest_answer_without_their_cells(here, group_by, bucket_ns):
    some_hours(here)
    with here.file.read() as reader:
        _, exact = both(reader.db, Filter(), bucket_ns, group_by)
    here.file.write(lambda db: db.execute("UPDATE sums SET n = 9, cost = 9.0, errors = 9"))
    here.file.write(lambda db: db.execute("DELETE FROM sums_said"))
    here.file.write(lambda db: db.execute("UPDATE sums SET latencies = x''"))
    with here.file.read() as reader:
        ready, _ = both(reader.db, Filter(), bucket_ns, group_by)
    assert ready == exact


@pytest.mark.parametrize("damage", ["UPDATE sums_of_hours SET data = x'91'", "UPDATE sums_of_hours SET data = x'90'"])
def test_a_check_finds_hours_that_are_not_what_their_cells_add_up_to(here, damage):
    some_hours(here)
    here.file.write(lambda db: db.execute(damage))
    [said] = here.file.check()
    assert said == "13 sealed hours and days whose totals differ from the rollups of their hours"


@pytest.mark.process
def test_where_an_hour_is_damaged_cells_answer(here):
    some_hours(here)
    here.file.write(lambda db: db.execute("UPDATE sums_of_hours SET data = substr(data, 1, 20) WHERE id % 5 = 0"))
    assert_same(here)


@pytest.mark.process
@pytest.mark.parametrize("bucket_ns", [HOUR_NS, 2 * HOUR_NS])
def test_an_hour_of_very_many_says_that_its_percentiles_are_approximate(here, bucket_ns):
    here.traces.append([later(i, start_ns=NOW + i, name="ab"[i % 5 == 0]) for i in range(10_001)])
    here.make_ready()
    with here.file.read() as reader:
        [whole], [exact] = both(reader.db, Filter(), bucket_ns, None)
        by_name, exact_by_name = both(reader.db, Filter(), bucket_ns, "name")
    assert (whole.latency_error, exact.latency_error) == (0.01, 0.0)
    assert whole.p95_ms == pytest.approx(exact.p95_ms, rel=0.01)
    for one, other in zip(by_name, exact_by_name, strict=True):
        assert one.latency_error == 0.01
        assert (one.p50_ms, one.p95_ms, one.p99_ms) == pytest.approx(
            (other.p50_ms, other.p95_ms, other.p99_ms), rel=0.01
        )
        without = {"p50_ms": 0, "p95_ms": 0, "p99_ms": 0, "latency_error": 0}
        assert replace(one, **without) == replace(other, **without)


def test_an_hour_with_more_than_a_row_can_hold_answers_by_its_cells(here):
    here.traces.append([later(i) for i in range(5)])
    here.file.write(
        lambda db: db.execute("UPDATE traces SET input_tokens = 1 << 62")
    )  # nothing that is sent has as many
    here.file.write(lambda _: here.file.appender.sums.mark(NOW // HOUR_NS, 1))
    here.count()
    here.make_ready()
    assert here.ready() == (0, 0)
    assert_same(here)


@pytest.mark.process
def test_more_buckets_than_an_answer_holds_are_refused_also_of_hours_at_rest(here):
    for hour in range(3):
        start = NOW + hour * HOUR_NS
        here.traces.append([later(i + hour * 3_500, name=f"n{i}", start_ns=start) for i in range(3_500)])
    here.make_ready()
    assert here.ready() == (3, 1)
    with pytest.raises(Refused, match="more than 10,000 buckets"), here.file.read() as reader:
        both(reader.db, Filter(), HOUR_NS, "name")


# The target is part of the key in files, and weighted means are computed when they are read
NOT_IN_FILES = ("target", "low", "high", "shares")


def test_a_part_of_an_hour_has_all_that_a_bucket_has(here):
    """Where records change, what is in files is to be made anew: by another version of the file."""
    of_stats = [field.name for field in fields(FeedbackStats) if field.name not in NOT_IN_FILES]
    theirs = [field.name for field in fields(Bucket)], of_stats
    of_file = (*sealed_rollups.SealedBucket.__struct_fields__[5:], sealed_rollups.FeedbackSums.__struct_fields__[:-2])
    assert ([*of_file[:-1]], list(of_file[-1])) == theirs


@pytest.mark.process
def test_a_file_whose_hours_are_not_added_up_has_them_made_ready_again(here):
    some_hours(here)
    here.file.close()
    with closing(sqlite3.connect(here.path, isolation_level=None)) as db:
        _make_sealed_periods_uniform(db, lambda *_: None)  # as the file was brought up to date
    here.open()
    assert here.ready() == (0, 0)
    assert_same(here)
    here.make_ready()
    assert here.ready() == (12, 1)
    assert_right(here)


@pytest.mark.process
def test_hours_of_an_older_file_whose_bins_have_an_early_form_are_counted_again(here):
    here.traces.append(
        [later(0), later(1, start_ns=NOW + HOUR_NS), later(2, start_ns=NOW + 2 * HOUR_NS, end_ns=NOW + 2 * HOUR_NS)]
    )
    early = [array("q", [find_bin(10**6), 1]).tobytes(), array("q", [ZERO_BIN, 1]).tobytes()]
    with here.file.read() as reader:
        hours = [hour for (hour,) in reader.db.execute("SELECT hour FROM sums_hours ORDER BY hour")]
    for hour, blob in zip(hours[::2], early, strict=True):
        here.file.write(
            lambda db, hour=hour, blob=blob: db.execute("UPDATE sums SET latencies = ? WHERE hour = ?", (blob, hour))
        )
    here.file.close()
    with closing(sqlite3.connect(here.path, isolation_level=None)) as db:
        _make_sealed_periods_uniform(db, lambda *_: None)
        assert db.execute("SELECT hour FROM sums_hours WHERE state = 1").fetchall() == [(hours[0],), (hours[2],)]
    here.open()
    assert_same(here)
    here.count()
    assert_right(here)
    assert_same(here)


@pytest.mark.process
def test_a_store_makes_ready_what_is_at_rest(tmp_path, monkeypatch):
    monkeypatch.setattr(background_jobs, "LOOK_SECONDS", 0.05)
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        store.append([later(i, start_ns=NOW + i * HOUR_NS) for i in range(30)])
        until(lambda: days_of(store) == 2)
        assert store._file.check() == []


def days_of(store: SQLiteStore) -> int:
    with store._file.read() as reader:
        return reader.db.execute("SELECT count(*) FROM sums_days WHERE rest = 1").fetchone()[0]


@pytest.mark.process
def test_a_name_for_each_trace_is_read_from_rows_and_costs_no_more(here):
    for start in range(0, MAX_HOUR_ROWS + 2_000, 1_000):
        here.traces.append([later(i, name=f"n{i}") for i in range(start, start + 1_000)])
    assert state(here) == 2
    here.count()
    with here.file.read() as reader:
        assert reader.db.execute("SELECT count(*) FROM sums").fetchone() == (0,)
        summed, exact = both(reader.db, Filter(), HOUR_NS, "name")
    assert summed == exact
    assert len(exact) == MAX_HOUR_ROWS + 2_000


def test_an_hour_that_was_too_much_is_counted_again_after_a_vacuum(here):
    here.traces.append([later(0), *(later(1, span_id=f"{i + 1:016x}", model=f"m{i}") for i in range(120))])
    here.traces.delete_traces([here.traces.find_deletable_traces(Filter(trace_ids=(later(1).trace_id,)))])
    assert state(here) == 2
    here.traces.vacuum()
    here.count()
    assert state(here) == 0
    assert_right(here)


@pytest.mark.process
def test_a_trace_of_very_many_models_is_read_from_rows(here):
    runs = [later(0, span_id=f"{i + 1:016x}", model=f"m{i}") for i in range(120)]
    here.traces.append(runs)
    assert state(here) == 2
    assert_same(here)


@pytest.mark.process
def test_much_said_of_a_trace_does_not_move_with_each_of_its_spans(here):
    run = later(0)
    here.traces.append([run], [said_of(run, f"k{i}") for i in range(1_001)])
    here.traces.append([replace(run, name="b", end_ns=run.end_ns + 1)])
    assert state(here) == 1
    [named] = here.traces.aggregate(group_by="name")
    assert (named.group, len(named.feedback)) == ("b", 1_001)
    here.count()
    assert state(here) == 0
    assert_right(here)


def test_a_machine_that_dies_while_an_hour_is_counted(here, tmp_path):
    here.traces.append([later(i) for i in range(3)])
    under_way = counting(here, NOW // HOUR_NS)
    next(under_way)
    here.traces.append([later(3)])
    for end in ("", "-wal"):
        shutil.copy(f"{here.path}{end}", f"{tmp_path}/copy.db{end}")
    next(under_way, None)
    with SQLiteStore(tmp_path / "copy.db") as store:
        assert store.aggregate()[0].traces == 4
        until(lambda: counted(store))
        assert store._file.check() == []


@pytest.mark.process
def test_the_best_score_is_taken_away(here):
    runs = [later(i) for i in range(3)]
    scores = [said_of(run, score=i / 2) for i, run in enumerate(runs)]
    here.traces.append(runs, scores)
    here.traces.delete_feedback([scores[2].id])
    assert state(here) == 1
    assert_same(here)
    here.count()
    assert state(here) == 0
    assert_same(here)


def test_one_of_two_best_scores_is_taken_away_without_counting_anew(here):
    runs = [later(i) for i in range(2)]
    scores = [said_of(run, score=True) for run in runs]
    here.traces.append(runs, scores)
    here.traces.delete_feedback([scores[1].id])
    assert state(here) == 0
    assert_same(here)


@pytest.mark.parametrize("apart", [0, 10**6], ids=["at the same moment", "one after the other"])
def test_percentiles_of_a_name_whenever_its_traces_start(here, apart):
    started = [later(i, start_ns=NOW + i * apart, name="ab"[i % 3 == 0]) for i in range(900)]
    here.traces.append([replace(one, end_ns=one.start_ns + (i % 90 + 1) * 10**7) for i, one in enumerate(started)])
    with here.file.read() as reader:
        for filter in (
            Filter(name="a"),
            Filter(name="b"),
            Filter(name="b", project="default"),
            Filter(name="b", since_ns=NOW),
        ):
            for bucket_ns in (None, HOUR_NS):
                summed, exact = both(reader.db, filter, bucket_ns, None)
                assert summed == exact


@pytest.mark.parametrize("score", [1e300, -1e308, 5e-324, 1e18])
def test_scores_of_any_size_come_and_go(here, score):
    runs = [later(i) for i in range(3)]
    large = [said_of(runs[0], score=score), said_of(runs[1], score=score)]
    here.traces.append(runs, [*large, said_of(runs[2], score=0.1)])
    here.traces.delete_feedback([large[0].id, large[1].id])
    here.count()
    [whole] = here.traces.aggregate()
    assert whole.feedback[0].mean == 0.1


def test_more_than_a_float_can_hold_is_read_from_rows(here):
    runs = [later(i) for i in range(2)]
    here.traces.append(runs, [said_of(run, score=1.7e308) for run in runs])
    assert state(here) == 2
    assert here.traces.aggregate()[0].feedback[0].mean == math.inf


@pytest.mark.parametrize("start", [-5 * HOUR_NS - 1, -HOUR_NS, -1, 0, 1, HOUR_NS, 2**62])
@pytest.mark.parametrize("at_rest", [False, True])
def test_hours_of_wrong_clocks(here, start, at_rest):
    here.traces.append([later(0, start_ns=start, end_ns=start + 5), later(1)])
    if at_rest:
        here.make_ready()
    assert_right(here)
    with here.file.read() as reader:
        for filter in (Filter(), Filter(since_ns=start), Filter(until_ns=start + 1), Filter(since_ns=-7, until_ns=9)):
            for bucket_ns in (None, HOUR_NS, 5 * HOUR_NS):
                summed, exact = both(reader.db, filter, bucket_ns, None)
                assert summed == exact


LATEST = 2**63 - 1  # that a column can hold
DAY_NS = 24 * HOUR_NS


@pytest.mark.parametrize("since", [None, LATEST - HOUR_NS, LATEST])
@pytest.mark.parametrize("bucket_ns", [None, HOUR_NS, DAY_NS])
def test_the_last_hour_that_a_column_holds(here, since, bucket_ns):
    here.traces.append([later(0), later(1, start_ns=LATEST - 5, end_ns=LATEST), later(2, start_ns=LATEST)])
    for then in (lambda: here.file.write(lambda _: here.file.appender.sums.mark(LATEST // HOUR_NS, 1)), here.count):
        then()
        with here.file.read() as reader:
            summed, exact = both(reader.db, Filter(since_ns=since), bucket_ns, None)
        assert summed == exact
    assert state(here) == 0
    assert here.file.check() == []


@pytest.mark.process
@pytest.mark.parametrize("names", [["a\0b"], ["a", "a\0b"], ["", "="]])
def test_models_and_names_that_sql_would_cut_or_leave_out(here, names):
    said = [said_of(later(i), score=None, label=name) for i, name in enumerate(names)]
    here.traces.append([later(i, name=name, model=name) for i, name in enumerate(names)], said)
    assert_right(here)
    assert_same(here)
    here.make_ready()
    assert_right(here)
    assert_same(here)


DAMAGE = ["models = '{'", "models = '[1]'", "models = '{\"m\":3}'", "project = NULL", "kind = NULL", "cost = x'01'"]


@pytest.mark.parametrize("damage", [*DAMAGE, "end_ns = NULL", "start_ns = NULL", "status = NULL", "input_tokens = 'a'"])
def test_a_damaged_row_is_counted_as_it_can_be_written_again_and_deleted(here, damage):
    here.traces.append([later(i, model="m") for i in range(3)])
    here.file.write(lambda db: db.execute(f"UPDATE traces SET {damage} WHERE id = 2"))
    here.file.write(lambda _: here.file.appender.sums.mark(NOW // HOUR_NS, 1))
    here.count()
    assert state(here) in (0, 2)
    here.traces.append([later(1, span_id="2" * 16)])
    here.traces.delete_traces([here.traces.find_deletable_traces(Filter(trace_ids=(later(1).trace_id,)))])
    assert here.traces.aggregate()[0].traces == 2


def test_an_empty_store(here):
    assert_same(here)
    here.count()
    assert here.traces.aggregate() == []


def test_what_is_refused_in_a_group_leaves_the_sums(here):
    here.traces.append([later(0)])
    with pytest.raises(Refused):
        here.file.write(refused_after_writing(here))
    here.traces.append([later(1)])
    assert_right(here)
    assert_same(here)


def refused_after_writing(here: Held):
    def write(db: sqlite3.Connection) -> None:
        here.file.appender.sums.subtract_traces([1])
        raise Refused("no")

    return write


def test_a_rollback_while_an_hour_is_counted_has_it_counted_once_more(here):
    here.traces.append([later(0)])
    under_way = counting(here, NOW // HOUR_NS)
    next(under_way)
    with pytest.raises(Refused):
        here.file.write(refused_after_writing(here))
    next(under_way, None)
    assert state(here) == 1
    here.count()
    assert state(here) == 0
    assert_right(here)


def test_rows_are_right_when_more_are_written_than_are_remembered(here):
    for start in (0, 250):
        some = [later(start + i, name=f"n{i}") for i in range(250)]
        here.traces.append(some, [said_of(run) for run in some[::2]])
        here.traces.add_feedback([said_of(run, key=f"k{i}") for i, run in enumerate(some)])
    here.traces.delete_traces([here.traces.find_deletable_traces(Filter(name="n7"))])
    assert_right(here)


def test_a_trace_deleted_twice_counts_once(here):
    here.traces.append([later(i) for i in range(3)])
    gone = here.traces.find_deletable_traces(Filter(trace_ids=(later(0).trace_id,)))
    assert gone is not None
    assert here.traces.delete_traces([gone, gone]) == 1
    assert_right(here)
    assert here.traces.aggregate()[0].traces == 2


def test_a_file_without_sums_answers_at_once_and_is_counted_behind(tmp_path):
    with closing(open_writable(str(tmp_path / "spanwise.db"))) as db:
        names = "trace_id, span_count, project, environment, name, kind, status, start_ns, end_ns"
        rows = [(f"{i:032x}", 1, "p", "e", "a", "llm", "ok", NOW + i * HOUR_NS, NOW + i * HOUR_NS) for i in range(20)]
        db.executemany(f"INSERT INTO traces ({names}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        mark_rollups_stale(db)
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        assert store.aggregate()[0].traces == 20
        until(lambda: counted(store))
        assert store.aggregate()[0].traces == 20


def counted(store: SQLiteStore) -> bool:
    with store._file.read() as reader:
        return reader.db.execute("SELECT count(*) FROM sums_hours WHERE state > 0").fetchone() == (0,)


def test_a_check_finds_sums_that_are_wrong(here):
    here.traces.append([later(0)])
    here.file.write(lambda db: db.execute("UPDATE sums SET n = 2"))
    assert here.file.check() == ["1 hours whose rollups differ from their traces"]


@pytest.mark.process
def test_pages_say_that_percentiles_of_many_are_approximate(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as store, Server(store) as server:
        store.append([later(i) for i in range(10_001)])
        hours = {"since": NOW - 46 * HOUR_NS, "until": NOW + HOUR_NS}
        page = httpx.get(f"{server.url}/charts", params=hours, timeout=60).text
        answer = httpx.get(f"{server.url}/api/aggregate", timeout=60).json()
    assert "≈ " in page
    assert re.search(r"\(±1\.0\W%\)", page)
    assert answer[0]["latency_error"] == 0.01
