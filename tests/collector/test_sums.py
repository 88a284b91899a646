"""Hourly sums answer as the rows do, whatever was written, changed, and deleted, and in whichever order."""

from __future__ import annotations

import sqlite3
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.collector.errors import NotFound, Refused
from assay.collector.filters import Filter
from assay.collector.records import Bucket, Feedback, Run, Target, Usage
from assay.collector.stores.sqlite import _cells
from assay.collector.stores.sqlite._aggregate import _Aggregate
from assay.collector.stores.sqlite._counted import HOUR_NS
from assay.collector.stores.sqlite._file import File
from assay.collector.stores.sqlite._recount import Recount
from assay.collector.stores.sqlite._summed import asked
from assay.collector.stores.sqlite._traces import SQLiteTraces

NOW = 486_000 * HOUR_NS + 1
GROUPS = (None, "project", "environment", "name", "model")


class Held:
    """A file without the thread behind its writer: hours are counted anew when a test says so."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open()

    def open(self) -> None:
        self.file = File(self.path)
        self.traces = SQLiteTraces(self.file)
        self.recount = Recount(self.file, threading.Event())

    def again(self) -> None:
        self.file.close()
        self.open()

    def count(self) -> None:
        self.recount._not_before.clear()
        self.recount.round()


@contextmanager
def held() -> Iterator[Held]:
    with tempfile.TemporaryDirectory() as folder:
        made = Held(Path(folder) / "assay.db")
        try:
            yield made
        finally:
            made.file.close()


def both(
    db: sqlite3.Connection, filter: Filter, bucket_ns: int | None, group_by: str | None
) -> tuple[list[Bucket], list[Bucket]]:
    """Through sums, and through rows."""
    question = asked(filter, bucket_ns, group_by)
    return _Aggregate(db, filter, bucket_ns, group_by).buckets(question), _Aggregate(
        db, filter, bucket_ns, group_by
    ).buckets(None)


FILTERS = (
    Filter(),
    Filter(project="p"),
    Filter(name="b", environment="prod"),
    Filter(since_ns=NOW + HOUR_NS // 2),
    Filter(since_ns=NOW - HOUR_NS, until_ns=NOW + HOUR_NS + 5, name="a"),
)


def assert_right(here: Held) -> None:
    with here.file.read() as reader:
        assert _cells.wrong(reader.db) == 0


def assert_same(here: Held) -> None:
    with here.file.read() as reader:
        for filter in FILTERS:
            for group_by in GROUPS:
                for bucket_ns in (None, HOUR_NS, 24 * HOUR_NS):
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
        elif what == "delete" and (gone := here.traces.passing(one)):
            here.traces.remove([gone])
        elif what == "restart" and under_way is None:
            here.again()
        elif what == "count" and under_way is None:
            here.count()
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


def counting(here: Held, hour: int) -> Iterator[None]:
    """Count an hour anew in two steps, between which others write."""
    here.file.write(lambda _: here.file.appender.sums.mark(hour, 1))
    counted = here.recount.begun(hour)
    yield
    here.recount.ended(hour, counted)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, max_size=10))
def test_sums_answer_as_rows_do(steps):
    with held() as here:
        play(here, steps)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, max_size=30))
def test_sums_answer_as_rows_do_after_many_changes(steps):
    with held() as here:
        play(here, steps)
