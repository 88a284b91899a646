"""A trace that grows is summed up from what is new, and that says what summing up all of it says."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.growing import TRACE, Traces
from collector.making import START, run
from spanwise.collector.records import JSON, Run, Usage
from spanwise.collector.stores.backends import DeletedTraces
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.database.connections import open_writable
from spanwise.collector.stores.sqlite.database.schema import migrate
from spanwise.collector.stores.sqlite.maintenance.background_jobs import SummaryRebuilder
from spanwise.collector.stores.sqlite.maintenance.deletion import DeletionPace, delete_traces
from spanwise.collector.stores.sqlite.write.span_writer import MAX_RECENT_ROWS
from spanwise.collector.stores.sqlite.write.trace_cache import MAX_REBUILD_SPANS
from spanwise.collector.stores.trace_summary import MAX_LISTED

T = TypeVar("T")


@pytest.fixture
def traces(tmp_path: Path) -> Iterator[Traces]:
    with closing(open_writable(str(tmp_path / "growing.db"))) as db:
        yield Traces(db)


# strategies: few spans, so that they meet; a parent may be any of them, itself, none, or one that never comes
ids = st.integers(0, 6).map(lambda number: f"{number:016x}")
parents = st.none() | st.integers(0, 8).map(lambda number: f"{number:016x}")
few = st.integers(0, 3)
counted = st.fixed_dictionaries(
    {"spanwise.local_root": ids},
    optional=dict.fromkeys(
        ("spanwise.spans.started", "spanwise.spans.open", "spanwise.spans.dropped", "spanwise.calls.sent"), few
    ),
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
        prompt_name=draw(texts),
        prompt_version=draw(texts),
        agent_name=draw(texts),
        finish_reasons=tuple(draw(st.lists(st.sampled_from("xyz"), max_size=2, unique=True))),
        time_to_first_token_ms=draw(st.none() | st.sampled_from([0.0, 0.5, 7.0])),
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
        "prompt_name": st.just("p"),
        "finish_reasons": st.just(["x", "w"]),
        "time_to_first_token_ms": st.just(3.5),
    },
)
steps = st.one_of(
    st.tuples(st.just("append"), st.lists(spans(), min_size=1, max_size=5)),
    st.tuples(st.just("amend"), st.tuples(ids, told)),
    st.tuples(st.sampled_from(["forget", "settle"]), st.just(())),
)
limits = st.sampled_from([(64, 1000, 512), (0, 1000, 512), (2, 1, 1), (0, 1000, 0), (3, 0, 512), (4, 1000, 1)])
doings = st.lists(steps, min_size=1, max_size=8)


def check(limits: tuple[int, int, int], done: list[tuple[str, Any]]) -> None:
    """Raises unless the file says after each step what is true, as far as it is summed up."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        migrate(db, "memory")
        traces = Traces(db, *limits)
        for what, of in [*done, ("settle", ())]:
            getattr(traces, what)(*of)
            if db.execute("SELECT 1 FROM spans").fetchone() and not traces.due():
                assert traces.said() == traces.true()


@pytest.mark.process
@given(limits=limits, done=doings)
@settings(max_examples=60, deadline=None)
def test_what_is_new_adds_up_to_what_all_adds_up_to(limits: tuple[int, int, int], done: list[tuple[str, Any]]) -> None:
    check(limits, done)


@pytest.mark.slow
@given(limits=limits, done=doings)
@settings(max_examples=250, deadline=None)
def test_what_is_new_adds_up_in_many_ways(limits: tuple[int, int, int], done: list[tuple[str, Any]]) -> None:
    check(limits, done)


# attacks: each a trace that would be long to sum up, and what comes to it next costs the writer little


def many(count: int, **fields: Callable[[int], Any]) -> list[Run]:
    """Spans of the trace, numbered, with these fields of their number."""
    given = {"span_id": lambda n: f"{n:016x}", "start_ns": lambda n: START + n, **fields}
    return [run("n", trace_id=TRACE, **{name: of(n) for name, of in given.items()}) for n in range(count)]


class Looks:
    """Rows of `spans` that are read or written by a connection, as SQLite counts its work: calls of its handler."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db, self.count = db, 0

    def __enter__(self) -> Looks:
        self.db.set_progress_handler(self._one, 100)
        return self

    def _one(self) -> None:
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.db.set_progress_handler(None, 0)


def chain(count: int) -> list[Run]:
    return many(count, parent_id=lambda n: f"{n - 1:016x}" if n else None)


SHAPES = {
    "a chain from its root": lambda: chain(3000),
    "a chain from its leaf": lambda: chain(3000)[::-1],
    "all parents missing": lambda: many(3000, parent_id=lambda n: f"{n + 5000:016x}"),
    "each a local root": lambda: many(3000, attributes=lambda n: {"spanwise.local_root": f"{n:016x}"}),
    "each a name of its own": lambda: [replace(one, name=f"n{n}") for n, one in enumerate(many(3000))],
    "each a model of its own": lambda: many(3000, model=lambda n: f"m{n}", usage=lambda _: Usage(1, 1)),
    "each its own parent": lambda: many(3000, parent_id=lambda n: f"{n:016x}", usage=lambda _: Usage(1, 1)),
    "one circle": lambda: many(3000, parent_id=lambda n: f"{(n + 1) % 3000:016x}", usage=lambda _: Usage(1, 1)),
}


@pytest.mark.process
@pytest.mark.parametrize("shape", SHAPES)
def test_one_more_span_costs_no_more_than_in_a_small_trace(traces: Traces, shape: str) -> None:
    spans = SHAPES[shape]()
    for begin in range(0, len(spans), 500):
        traces.append(*spans[begin : begin + 500])
    one_more = replace(spans[0], span_id="f" * 16, name="one more", parent_id=spans[-1].span_id)
    small = run(trace_id="b" * 32)
    traces.append(small)
    with Looks(traces.db) as little:
        traces.append(replace(small, span_id="e" * 16))
    traces.forget()
    with Looks(traces.db) as much:
        traces.append(one_more)
    assert much.count <= little.count + 200  # thousands of steps; a walk over the spans takes as many hundred thousand
    traces.settle()
    assert traces.said() == traces.true()


@pytest.mark.process
def test_marks_that_go_far_are_made_behind(traces: Traces) -> None:
    spans = chain(3000)
    traces.append(*spans)
    assert not traces.due()
    leaf = replace(spans[-1], span_id="f" * 16, parent_id=spans[-1].span_id, usage=Usage(1, 2), cost=0.5)
    traces.append(leaf)
    assert traces.due()
    assert traces.said()[0]["span_count"] == 3001
    traces.settle()
    assert traces.said() == traces.true()
    assert not traces.due()


def test_a_list_of_names_is_bounded(traces: Traces) -> None:
    traces.append(*(replace(one, name=f"n{n:03}") for n, one in enumerate(many(300))))
    said, _, _ = traces.said()
    assert said["names"] == [f"n{n:03}" for n in range(MAX_LISTED)]


def test_a_replaced_root_of_a_large_trace_is_summed_up_behind(traces: Traces) -> None:
    traces.append(*(spans := chain(100)))
    traces.append(replace(spans[0], name="other", start_ns=START - 5, end_ns=START + 10**12, status="error"))
    said, _, _ = traces.said()
    assert (said["span_count"], said["error_count"], said["name"], said["start_ns"]) == (100, 1, "other", START - 5)
    assert (traces.due(), said["complete"]) == (1, 0)
    traces.settle()
    assert (traces.due(), traces.said()[0]["complete"]) == (0, None)
    assert traces.said() == traces.true()


def test_a_trace_that_grows_too_large_to_be_summed_up_is_not_told_incomplete_for_ever(traces: Traces) -> None:
    adrift(traces)
    assert traces.said()[0]["complete"] == 0
    traces.db.execute(
        "UPDATE traces SET span_count = ?", (MAX_REBUILD_SPANS,)
    )  # those spans themselves would take a minute
    traces.forget()
    traces.append(run(trace_id=TRACE))
    assert (traces.said()[0]["span_count"], traces.said()[0]["complete"]) == (MAX_REBUILD_SPANS + 1, None)
    assert not traces.resummer.round()


def adrift(traces: Traces, count: int = 700) -> tuple[int, list[Run]]:
    """The key of a large trace that is to be summed up anew, and its spans."""
    spans = chain(count)
    traces.append(*spans)
    traces.append(changed := replace(spans[0], name="other", end_ns=START + 10**12))
    [key] = traces.db.execute("SELECT trace FROM states WHERE data IS NULL").fetchone()
    return key, [changed, *spans[1:]]


class Meanwhile(Traces):
    """As `Traces`; does something between two pieces of what is done behind the writer."""

    def __init__(self, db: sqlite3.Connection, then: Callable[[], object]) -> None:
        super().__init__(db)
        self.then = then
        self.resummer = SummaryRebuilder(self.appender, self.read, self.and_then, threading.Event())

    def and_then(self, action: Callable[[sqlite3.Connection], T]) -> T:
        result = self.do(action)
        self.then()
        return result


def meanwhile(tmp_path: Path, then: Callable[[Traces], object]) -> Iterator[Meanwhile]:
    with closing(open_writable(str(tmp_path / "meanwhile.db"))) as db:
        traces = Meanwhile(db, lambda: then(traces))
        yield traces


def test_what_comes_while_a_trace_is_summed_up_is_in_it(tmp_path: Path) -> None:
    late = (replace(one, span_id=f"f{n:015x}", parent_id=one.span_id) for n, one in enumerate(chain(500)))
    for traces in meanwhile(tmp_path, lambda traces: traces.append(replace(next(late), usage=Usage(1, 1)))):
        key, _ = adrift(traces)
        assert traces.resummer.sum_up(key, TRACE)
        traces.settle()
        assert traces.said() == traces.true()


def test_a_span_replaced_while_its_trace_is_summed_up_has_it_tried_again(tmp_path: Path) -> None:
    ends = iter(range(10**13, 10**14))
    for traces in meanwhile(tmp_path, lambda traces: traces.append(replace(chain(1)[0], end_ns=next(ends) + START))):
        key, _ = adrift(traces)
        assert not traces.resummer.sum_up(key, TRACE)
        assert traces.due()
        traces.then = lambda: None
        assert traces.resummer.sum_up(key, TRACE)
        assert traces.said() == traces.true()


def test_a_trace_deleted_while_it_is_summed_up_leaves_nothing(tmp_path: Path) -> None:
    def delete(traces: Traces) -> None:
        traces.do(lambda db: delete_traces(traces.appender, DeletedTraces([TRACE], []), DeletionPace(), db))

    for traces in meanwhile(tmp_path, delete):
        key, _ = adrift(traces)
        assert not traces.resummer.sum_up(key, TRACE)
        for table in ("traces", "spans", "states", "orphans", "local_roots"):
            assert traces.db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


def test_a_rollback_while_a_trace_is_summed_up_has_it_tried_again(tmp_path: Path) -> None:
    for traces in meanwhile(tmp_path, lambda traces: traces.forget()):
        key, _ = adrift(traces)
        assert not traces.resummer.sum_up(key, TRACE)
        traces.then = lambda: None
        traces.settle()
        assert traces.said() == traces.true()


@pytest.mark.process
def test_a_trace_that_grows_too_fast_is_summed_up_when_it_slows_down(tmp_path: Path) -> None:
    numbers = iter(range(10**6))

    def flood(traces: Traces) -> None:
        spans = [replace(one, span_id=f"f{next(numbers):015x}") for one in many(MAX_RECENT_ROWS)]
        traces.append(*spans, replace(spans[0], span_id=f"f{next(numbers):015x}"))

    for traces in meanwhile(tmp_path, flood):
        key, _ = adrift(traces)
        assert not traces.resummer.sum_up(key, TRACE)
        assert traces.said()[0]["span_count"] == traces.true()[0]["span_count"]
        traces.then = lambda: None
        traces.settle()
        assert traces.said() == traces.true()


def test_the_same_span_twice_in_one_batch_is_one(traces: Traces) -> None:
    one = many(1)[0]
    fuller = replace(one, outputs="all of it", usage=Usage(3, 4))
    traces.append(one, fuller, one)
    assert (traces.said()[0]["span_count"], traces.said()[0]["input_tokens"]) == (1, 3)
    assert traces.said() == traces.true()


def test_what_a_batch_brings_twice_is_amended_once(traces: Traces) -> None:
    one = many(1)[0]
    traces.amend(one.span_id, {"session_id": "s"})
    traces.append(one, replace(one, outputs="all of it"))
    assert (traces.said()[0]["session_id"], traces.said()[0]["span_count"]) == ("s", 1)
    assert traces.said() == traces.true()


def test_a_root_that_comes_last_is_the_root(traces: Traces) -> None:
    root, *below = chain(200)
    traces.append(*below)
    traces.append(root)
    assert traces.said()[0]["rooted"]
    assert traces.said() == traces.true()


@pytest.mark.parametrize("count", [3, 300])
def test_spans_of_an_older_file_are_marked_when_another_comes(traces: Traces, count: int) -> None:
    spans = [replace(one, usage=Usage(2, 1), cost=0.1, model="m") for one in chain(count)]
    traces.append(*spans)
    traces.db.execute("DELETE FROM states")
    traces.db.execute("UPDATE spans SET tokens_below = 0, cost_below = 0")
    traces.forget()
    traces.append(replace(spans[-1], span_id="f" * 16, parent_id=spans[-1].span_id))
    traces.settle()
    assert traces.said()[0]["input_tokens"] == 2
    assert traces.said() == traces.true()


def test_a_state_that_does_not_fit_its_trace_is_found_out_anew(traces: Traces) -> None:
    traces.append(*(spans := chain(100)))
    for data in (b"nonsense", b"[1]"):
        traces.db.execute("UPDATE states SET data = ?", (data,))
        traces.forget()
        traces.append(replace(spans[0], span_id=f"f{data.hex()[:15]:0>15}"))
        traces.settle()
        assert traces.said() == traces.true()


def test_what_no_list_has_room_for_is_found_by_its_span(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        store.append(
            [replace(one, name=f"n{n}", model=f"m{n}", kind=f"k{n}") for n, one in enumerate(many(MAX_LISTED + 9))]
        )
        store.append([run("n999", model="m999", kind="k999")])
        for wanted in ({"any_name": "n260"}, {"model": "m260"}, {"any_kind": "k260"}, {"any_name": "n1"}):
            assert [one.trace_id for one in store.traces(**wanted)] == [TRACE]
        for absent in ({"any_name": "n998"}, {"model": "m998"}, {"any_kind": "k998"}):
            assert list(store.traces(**absent)) == []


def test_a_damaged_span_keeps_nothing_else_behind_the_writer_waiting(traces: Traces) -> None:
    adrift(traces)
    traces.db.execute("UPDATE spans SET payload = x'00' WHERE id = 7")
    assert traces.resummer.round()
    assert not traces.resummer.round()
    assert traces.due()


def test_what_waits_for_others_keeps_no_trace_from_the_short_way(traces: Traces) -> None:
    traces.amend("f" * 16, {"session_id": "s"})
    traces.append(run(trace_id="b" * 32), run(trace_id="c" * 32))
    assert [type(one).__name__ for one in traces.appender._cache.values()] == ["NewTrace", "NewTrace"]


@pytest.mark.parametrize("count", [3, 100])
def test_a_damaged_span_keeps_nothing_else_of_a_batch_out(traces: Traces, count: int) -> None:
    spans = chain(count)
    traces.append(*spans)
    traces.db.execute("UPDATE spans SET payload = x'00' WHERE id IN (1, 2)")
    traces.forget()
    late, other = replace(spans[0], span_id="f" * 16, parent_id=spans[1].span_id), run(trace_id="b" * 32)
    traces.append(spans[0], replace(spans[1], outputs="more of it"), late, other)
    assert traces.said()[0]["span_count"] == count + 1
    assert traces.said(other.trace_id) == traces.true(other.trace_id)
