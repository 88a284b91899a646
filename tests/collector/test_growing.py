"""A trace that grows is summed up from what is new, and that says what summing up all of it says."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.collector.records import JSON, Run, Usage
from assay.collector.stores.sqlite._append import Appender
from assay.collector.stores.sqlite._clock import Clock
from assay.collector.stores.sqlite._codec import encode
from assay.collector.stores.sqlite._open import open_writable
from assay.collector.stores.sqlite._reader import Reader
from assay.collector.stores.sqlite._resum import Resummer
from assay.collector.stores.sqlite._rollup import RollUp, roll_up
from assay.collector.stores.sqlite._schema import migrate
from assay.collector.stores.sqlite._values import loads
from assay.collector.stores.sqlite._waiting import ANY, Place
from collector.making import START, run

TRACE = "a" * 32


class Traces:
    """What writes, and what sums up behind it, on one connection, as one thread would have it."""

    def __init__(self, db: sqlite3.Connection, small: int = 64, steps: int = 1000, whole: int = 512) -> None:
        self.db, self.appender = db, Appender(Reader(db), Clock(db))
        keeper = self.appender.keeper
        keeper.small, keeper.steps, keeper.whole = small, steps, whole
        self.resummer = Resummer(self.appender, self.read, self.do, threading.Event())

    @contextmanager
    def read(self) -> Iterator[Reader]:
        yield self.appender.reader

    def do(self, action: Callable[[sqlite3.Connection], object]) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        action(self.db)
        self.db.execute("COMMIT")

    def append(self, *runs: Run) -> None:
        self.do(lambda _: self.appender.write([encode(runs)]))

    def amend(self, span_id: str, fields: dict[str, JSON]) -> None:
        self.do(lambda _: self.appender.amend(Place(TRACE, span_id, ANY), fields))

    def forget(self) -> None:
        self.appender.forget()

    def due(self) -> int:
        found: int = self.db.execute("SELECT count(*) FROM states WHERE data IS NULL").fetchone()[0]
        return found

    def settle(self) -> None:
        """Have all summed up that is left to be."""
        for (key,) in self.db.execute("SELECT trace FROM states WHERE data IS NULL").fetchall():
            assert self.resummer.sum_up(key, self.trace_id(key))

    def trace_id(self, key: int) -> str:
        return str(self.db.execute("SELECT trace_id FROM traces WHERE id = ?", (key,)).fetchone()[0])

    def said(self, trace_id: str = TRACE) -> tuple[dict[str, Any], int, dict[str, int]]:
        """What the file says of a trace: its roll-up, its root, and what spans have below them."""
        row = self.db.execute(
            f"SELECT id, root, {','.join(RollUp._fields)} FROM traces WHERE trace_id = ?", (trace_id,)
        )
        key, root, *values = row.fetchone()
        flags = "SELECT span_id, tokens_below + 2 * cost_below FROM spans WHERE trace = ?"
        return plain(RollUp(*values)), root, dict(self.db.execute(flags, (key,)).fetchall())

    def true(self, trace_id: str = TRACE) -> tuple[dict[str, Any], int, dict[str, int]]:
        """The same from all of its spans."""
        [key] = self.db.execute("SELECT id FROM traces WHERE trace_id = ?", (trace_id,)).fetchone()
        stored = self.appender.reader.in_order(trace_id, key)
        rolled, root, (tokens, cost) = roll_up([one.fact for one in stored])
        flags = {one.run.span_id: (one.run.span_id in tokens) + 2 * (one.run.span_id in cost) for one in stored}
        return plain(rolled), stored[root].row, flags


def plain(rolled: RollUp) -> dict[str, Any]:
    """With JSON as what it says; what was told of a run later may stand at the end of a list."""
    columns = {name: loads(value) for name in ("models", "metadata") if (value := getattr(rolled, name))}
    lists = {name: sorted(loads(value)) for name in ("names", "kinds", "tags") if (value := getattr(rolled, name))}
    return {**rolled._asdict(), **columns, **lists}


@pytest.fixture
def traces(tmp_path: Path) -> Iterator[Traces]:
    with closing(open_writable(str(tmp_path / "growing.db"))) as db:
        yield Traces(db)


# strategies: few spans, so that they meet; a parent may be any of them, itself, none, or one that never comes
ids = st.integers(0, 6).map(lambda number: f"{number:016x}")
parents = st.none() | st.integers(0, 8).map(lambda number: f"{number:016x}")
few = st.integers(0, 3)
counted = st.fixed_dictionaries(
    {"assay.local_root": ids},
    optional=dict.fromkeys(("assay.spans.started", "assay.spans.open", "assay.spans.dropped", "assay.calls.sent"), few),
)
texts = st.none() | st.sampled_from("st")


@st.composite
def spans(draw: st.DrawFn) -> Run:
    start = START + draw(few)
    return run(
        draw(st.sampled_from("nm")),
        trace_id=TRACE,
        span_id=draw(ids),
        parent_id=draw(parents),
        start_ns=start,
        end_ns=start + draw(few),
        usage=draw(st.none() | st.builds(Usage, few, few)),
        cost=draw(st.none() | st.sampled_from([0.0, 0.1, 0.2, 0.7])),
        model=draw(st.none() | st.sampled_from("ab")),
        tags=tuple(draw(st.lists(st.sampled_from("xyz"), max_size=2, unique=True))),
        kind=draw(st.sampled_from(["chain", "evaluator"])),
        status=draw(st.sampled_from(["ok", "error"])),
        session_id=draw(texts),
        experiment_id=draw(texts),
        metadata=draw(st.sampled_from([{}, {"k": 1}])),
        attributes=draw(st.just({}) | counted),
        outputs=draw(st.sampled_from([None, "long " * 9])),
    )


told: st.SearchStrategy[dict[str, JSON]] = st.fixed_dictionaries(
    {},
    optional={
        "usage": st.just({"input_tokens": 3, "output_tokens": 1}),
        "cost": st.just(0.3),
        "model": st.sampled_from("ab"),
        "session_id": st.just("u"),
        "tags": st.just(["x", "z"]),
        "outputs": st.just("said later"),
    },
)
steps = st.one_of(
    st.tuples(st.just("append"), st.lists(spans(), min_size=1, max_size=5)),
    st.tuples(st.just("amend"), st.tuples(ids, told)),
    st.tuples(st.sampled_from(["forget", "settle"]), st.just(())),
)
LIMITS = [(64, 1000, 512), (0, 1000, 512), (2, 1, 1), (0, 1000, 0), (3, 0, 512)]


@pytest.mark.parametrize(("small", "most", "whole"), LIMITS)
@given(done=st.lists(steps, min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_what_is_new_adds_up_to_what_all_adds_up_to(
    small: int, most: int, whole: int, done: list[tuple[str, Any]]
) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        migrate(db, "memory")
        traces = Traces(db, small, most, whole)
        for what, of in done:
            getattr(traces, what)(*of)
            if db.execute("SELECT 1 FROM spans").fetchone() and not traces.due():
                assert traces.said() == traces.true()
        if db.execute("SELECT 1 FROM spans").fetchone():
            traces.settle()
            assert traces.said() == traces.true()
