"""The feed on one SQLite file: its numbers and clock, its filters beside those of lists, older files."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.conformance_traces import eventually
from collector.making import SECOND, child, run
from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter, validate_filter
from spanwise.collector.records import Feedback, Target, TraceHead
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.query.change_feed import split_ranges
from spanwise.tracer import attribute_names as names


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "spanwise.db"


@pytest.fixture
def store(file: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(file) as made:
        yield made


def latest(store: SQLiteStore) -> TraceHead:
    return store.changes().heads[-1]


def execute(file: Path, sql: str, *values: Any) -> None:
    with closing(sqlite3.connect(file)) as db, db:
        db.execute(sql, values)


# numbers and time


def test_no_number_is_given_out_again_after_deletion_vacuum_and_restart(store: SQLiteStore, file: Path) -> None:
    store.append([run(), last := run()])
    before = latest(store).change
    store.delete(trace_ids=(last.trace_id,))
    store.vacuum()
    store.close()
    with SQLiteStore(file) as again:
        again.append([run()])
        assert latest(again).change > before
        assert again.check() == []


def test_no_number_is_given_out_again_after_a_copy_is_restored(store: SQLiteStore, file: Path) -> None:
    store.append([run()])
    store.checkpoint()
    shutil.copy(file, file.with_name("copy.db"))
    store.append([run()])
    position = store.changes().cursor
    with SQLiteStore(file.with_name("copy.db")) as restored:
        restored.append([new := run()])
        assert [head.trace_id for head in restored.changes(position).heads] == [new.trace_id]


def test_what_is_rolled_back_leaves_the_feed_as_it_was(store: SQLiteStore) -> None:
    store.append([root := run()])
    before, file = latest(store), store._traces._file
    with pytest.raises(Refused):  # after the first of them was moved
        file.write(lambda _: (file.appender.move([1]), _refuse()))
    assert latest(store) == before
    store.feedback(root.trace_id, "k", 1.0)
    assert latest(store).change > before.change + 1


def _refuse() -> None:
    raise Refused("no")


def test_the_stores_clock_does_not_fall_with_the_systems(store: SQLiteStore, file: Path) -> None:
    store.append([run()])
    store.close()
    ahead = time.time_ns() + 3600 * SECOND  # as if the system's clock had been set back by an hour since
    execute(file, "UPDATE feed SET clock_ns = ?", ahead)
    with SQLiteStore(file) as again:
        before = again.changes().now_ns
        again.append([run()])
        assert ahead <= before <= latest(again).changed_ns <= again.changes().now_ns


def test_a_position_beyond_what_was_given_out_is_refused(store: SQLiteStore) -> None:
    store.append([run()])
    with pytest.raises(Refused, match="no position"):
        store.changes(str(latest(store).change + 1))


def test_how_far_a_position_is_behind(store: SQLiteStore) -> None:
    assert store.count_changes_after(None) == (0, None)
    store.append([a := run(), run(), run()])
    store.append([child(a)])
    first = store.changes(limit=1)
    assert store.count_changes_after(first.cursor) == (2, store.changes(first.cursor).heads[0].changed_ns)
    assert store.count_changes_after(str(store.latest_change())) == (0, None)


# filters


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SQLiteStore]:
    """Traces of which some pass whatever is asked; indexed, and none of those that time alone completes."""
    with SQLiteStore(tmp_path_factory.mktemp("many") / "spanwise.db") as store:
        for number in range(12):
            store.append(_runs(number), _feedback(number))
        assert eventually(lambda: store.health()["text_index_waiting_traces"], 0)
        yield store


METADATA = (0, "0", 0.1, 1e20, 0.1 + 0.2, -0.0, 2**53, None, [0], {"a": 0}, "größe", 1e-7)


def _runs(number: int) -> list[Any]:
    root = run(
        "ab"[number % 2],
        trace_id=f"{number + 1:032x}",
        kind=("chain", "agent", "evaluator")[number % 3],
        status=("ok", "error", "unset", "cancelled")[number % 4],
        error=("E: no", "ÄRGER_1", "100% no")[number % 3] if number % 4 == 1 else None,
        start_ns=number * SECOND,
        end_ns=number * SECOND + number * 100_000_000,
        tags=("x", "y")[: number % 3],
        metadata={"tenant": number % 2, "paid": number % 4 < 2, "ä": METADATA[number]},
        session_id=f"s{number % 2}" if number % 3 else None,
        cost=number / 10 if number % 4 else None,
        resource={"service.version": ("1.0", 2, 3.5)[number % 3]} if number % 4 else {"service.name": "shop"},
        experiment_id="e" if number % 5 == 0 else None,
        inputs=f"refund {number}",
        attributes={names.LOCAL_ROOT: "r", names.SPANS_STARTED: 2 - number % 2, names.SPANS_OPEN: 0},
    )
    labels: dict[str, Any] = {
        "prompt_name": f"p{number % 2}",
        "prompt_version": f"v{number % 3}" if number % 5 else None,
    }
    labels |= {"agent_name": f"a{number % 2}", "finish_reasons": ("stop", "length")[: number % 3]}
    labels |= {"time_to_first_token_ms": number * 50.0 if number % 3 else None}
    attributes = {names.LOCAL_ROOT: "r"}
    below = child(root, kind="llm", model=f"m{number % 2}", attributes=attributes, **(labels if number % 4 > 1 else {}))
    return [root, below, replace(below, span_id="f" * 16, prompt_name="p2")] if number % 4 else [root]


def _feedback(number: int) -> list[Feedback]:
    target = Target(trace_id=f"{number + 1:032x}")
    of = {"target": target, "created_ns": number + 1}
    kinds: list[dict[str, Any]] = [
        {"score": number / 12},
        {"label": "good"},
        {"outcome": "error", "error": "no"},
        {"outcome": "skip", "comment": "no"},
    ]
    older = Feedback(target=target, key="k", score=1.0, source="human", author="ann", created_ns=0)
    return [older, Feedback(key="k", **kinds[number % 4], **of)] if number % 5 else []


OPERATORS = st.sampled_from(["<", "<=", "=", "!=", ">=", ">"])
KEYS = st.lists(st.sampled_from(["k", "other"]), max_size=2).map(tuple)


def _compared(*values: float) -> st.SearchStrategy[Any]:
    return st.tuples(OPERATORS, st.sampled_from(values))


CONDITIONS: dict[str, st.SearchStrategy[Any]] = {
    "project": st.sampled_from(["default", "p"]),
    "environment": st.sampled_from(["default", "prod"]),
    "since_ns": st.integers(0, 12).map(lambda n: n * SECOND),
    "until_ns": st.integers(0, 12).map(lambda n: n * SECOND),
    "name": st.sampled_from(["a", "b", "c"]),
    "kind": st.sampled_from(["chain", "agent", "evaluator"]),
    "any_name": st.sampled_from(["a", "search"]),
    "any_kind": st.sampled_from(["llm", "evaluator", "tool"]),
    "status": st.sampled_from(["ok", "error", "unset", "cancelled"]),
    "error": st.sampled_from(["no", "e:", "", "%", "_", "ärger", "Ärger", "absent"]),
    "model": st.sampled_from(["m0", "m1", "m"]),
    "prompt": st.sampled_from(["p0", "p1", "p2"]),
    "prompt_version": st.sampled_from(["v0", "v1", "v"]),
    "agent": st.sampled_from(["a0", "a1", "a"]),
    "finish_reason": st.sampled_from(["stop", "length", "s"]),
    "version": st.sampled_from(["1.0", "2", "3"]),
    "time_to_first_token_ms": _compared(0, 100, 350),
    "latency_ms": _compared(0, 400, 700.5),
    "tokens": _compared(0, 5),
    "cost": _compared(0, 0.5),
    "tags": st.lists(st.sampled_from(["x", "y", "z"]), max_size=2).map(tuple),
    "metadata": st.dictionaries(
        st.sampled_from(["tenant", "paid", "none", "ä"]),
        st.sampled_from(["0", "1", "true", "0.0", "0.1", "0.3", "1e+20", "1.0e+20", "[0]", "null", "größe", *METADATA]),
        max_size=2,
    ),
    "session": st.sampled_from(["s0", "s1"]),
    "user": st.sampled_from(["u"]),
    "feedback": st.lists(
        st.tuples(st.sampled_from(["k", "other"]), OPERATORS, st.sampled_from([0.0, 0.4, 1.0, "good"])), max_size=2
    ).map(tuple),
    "missing": KEYS,
    "untried": KEYS,
    "failed": KEYS,
    "skipped": KEYS,
    "text": st.sampled_from(["refund", "refund 3", "ref*", "absent", "..."]),
    "experiment": st.sampled_from(["e", "", "f"]),
    "experiments": st.sampled_from([(), ("e",), ("e", "f")]),
    "example": st.sampled_from(["x"]),
    "complete": st.booleans(),
    "excluded": st.lists(
        st.sampled_from(
            [
                *(
                    ("project", "p"),
                    ("environment", "prod"),
                    ("name", "answer"),
                    ("kind", "evaluator"),
                    ("kind", "chain"),
                ),
                *(("any_name", "search"), ("any_kind", "llm"), ("status", "ok"), ("status", "error"), ("model", "m")),
                *(("tags", "x"), ("session", "s0"), ("user", "u")),
            ]
        ),
        max_size=2,
    ).map(tuple),
    "trace_ids": st.sampled_from([(), tuple(f"{n:032x}" for n in range(4))]),
}
FILTERS = (
    st.lists(st.sampled_from(sorted(CONDITIONS)), max_size=4, unique=True)
    .flatmap(lambda chosen: st.fixed_dictionaries({name: CONDITIONS[name] for name in chosen}))
    .map(lambda conditions: Filter(**conditions))
)


def test_the_whole_grammar_is_asked() -> None:
    assert {*CONDITIONS, "dataset", "document_feedback"} == set(Filter.__slots__)


UNCHECKED = [HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much]


def may_be_asked(filter: Filter) -> bool:
    try:
        return validate_filter(filter) is filter
    except Refused:
        return False


@pytest.mark.process
@settings(max_examples=100, deadline=None, suppress_health_check=UNCHECKED)
@given(filter=FILTERS.filter(may_be_asked))
def test_all_conditions_pass_exactly_where_the_list_has_the_trace(many: SQLiteStore, filter: Filter) -> None:
    listed = {summary.trace_id for summary in many.traces(filter)}
    ids = [head.trace_id for head in many.changes().heads]
    assert len(ids) == 12
    for trace_id in ids:
        assert all(one.passes for one in many.explain(trace_id, filter)) == (trace_id in listed)


@pytest.mark.process
@settings(max_examples=100, deadline=None, suppress_health_check=UNCHECKED)
@given(filters=st.lists(FILTERS.filter(lambda one: one.complete is None and may_be_asked(one)), max_size=3))
def test_heads_pass_exactly_where_the_list_has_the_trace(many: SQLiteStore, filters: list[Filter]) -> None:
    listed = [{summary.trace_id for summary in many.traces(filter)} for filter in filters]
    for head in many.changes(filters=filters).heads:
        assert head.passes == tuple(head.trace_id in found for found in listed)


def test_traces_that_came_far_from_each_other_are_looked_up_apart() -> None:
    assert list(split_ranges([1, 2, 9000, 9001, 99000])) == [[1, 2], [9000, 9001], [99000]]
    assert list(split_ranges([])) == []


@pytest.mark.process
def test_words_are_found_in_a_slice_of_any_traces(store: SQLiteStore) -> None:
    store.append(made := [run(inputs=f"refund {number}") for number in range(20)])
    assert eventually(lambda: store.health()["text_index_waiting_traces"], 0)
    position = store.changes().cursor
    for place in (0, 7, 19):
        store.feedback(made[place].trace_id, "k", 1.0)
    heads = store.changes(position, filters=[Filter(text="refund"), Filter(text="refund 7")]).heads
    assert [head.passes for head in heads] == [(True, False), (True, True), (True, False)]
