"""How every store sorts its lists. Each test takes `store`, which conftest.py gives in every implementation."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from collector.conformance_traces import eventually
from collector.making import SECOND, START, child, run
from looped_cases import loop_over
from spanwise.collector import filters
from spanwise.collector.errors import Refused
from spanwise.collector.operations import ProjectScopedStore
from spanwise.collector.records import Example, Experiment, Feedback, Run, Target, TraceSummary, Usage
from spanwise.collector.stores import Store
from spanwise.collector.stores.sqlite.query import record_lists


def listed(store: Store, sort: str, limit: int = 1000, **conditions: object) -> list[TraceSummary]:
    """All pages of a sorted list."""
    found: list[TraceSummary] = []
    cursor: str | None = None
    while True:
        page = store.traces(sort=sort, limit=limit, cursor=cursor, **conditions)
        found += page.items
        cursor = page.next
        if cursor is None:
            return found


def ids(store: Store, sort: str, limit: int = 1000, **conditions: object) -> list[str]:
    return [trace.trace_id for trace in listed(store, sort, limit, **conditions)]


def make_traces(count: int, seed: int = 1) -> tuple[list[Run], list[Feedback]]:
    """Traces with few distinct values, of which some are missing."""
    pick = random.Random(seed)
    runs: list[Run] = []
    feedback: list[Feedback] = []
    for _ in range(count):
        root = run(
            pick.choice(("answer", "other")),
            start_ns=START + pick.randrange(count // 2) * SECOND,
            project=pick.choice(("one", "two")),
            inputs=pick.choice(("a parcel", "the depot")),
        )
        root = replace(root, end_ns=root.start_ns + pick.randrange(5) * SECOND)
        below = child(
            root,
            kind="llm",
            end_ns=root.start_ns + 2,
            status=pick.choice(("ok", "error")),
            usage=pick.choice((None, Usage(pick.randrange(4), 1))),
            cost=pick.choice((None, 0.25, 0.5)),
            time_to_first_token_ms=pick.choice((None, 10.0, 20.0)),
        )
        runs += [root, below]
        for key, score in (("good", pick.choice((None, 0.0, 0.5, 1.0))), ("yes", pick.choice((True, False)))):
            if pick.random() < 0.8:
                outcome = "score" if score is not None else "skip"
                target = Target(trace_id=root.trace_id)
                feedback.append(Feedback(target=target, key=key, score=score, outcome=outcome))
    return runs, feedback


VALUES = {
    "start": lambda trace: trace.start_ns,
    "latency_ms": lambda trace: trace.duration_ns,
    "time_to_first_token_ms": lambda trace: trace.time_to_first_token_ms,
    "cost": lambda trace: trace.cost,
    "tokens": lambda trace: trace.tokens,
    "errors": lambda trace: -trace.error_count,
    "runs": lambda trace: trace.span_count,
    "feedback.good": lambda trace: trace.feedback.get("good"),
    "feedback.yes": lambda trace: trace.feedback.get("yes"),
    "feedback.unknown": lambda trace: None,
}


def expected(traces: list[TraceSummary], sort: str) -> list[str]:
    value, sign = VALUES[sort.removeprefix("-")], -1 if sort.startswith("-") else 1

    def key(trace: TraceSummary) -> tuple[bool, float, str]:
        found = value(trace)
        return found is None, 0.0 if found is None else sign * found, trace.trace_id

    return [trace.trace_id for trace in sorted(traces, key=key)]


@pytest.mark.process
@pytest.mark.parametrize("lookups", [20_000, 0], ids=["by trace", "by score"])
def test_every_column_sorts_in_both_directions_with_ties_by_trace_id_and_missing_values_last(
    store: Store, lookups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_lists, "MAX_LOOKUPS", lookups)
    store.append(*make_traces(40))
    everything = list(store.each())
    assert len(everything) == 40
    for column in VALUES:
        for sort in (column, f"-{column}"):
            for limit in (1000, 7):
                assert ids(store, sort, limit) == expected(everything, sort), (sort, limit)


@pytest.mark.process
def test_a_sorted_list_has_the_same_traces_as_a_filter_and_a_search(store: Store) -> None:
    store.append(*make_traces(40))
    assert eventually(lambda: store.traces(text="parcel OR depot").unindexed, 0)
    for conditions in ({"name": "answer"}, {"text": "parcel"}, {"feedback": "good>=0.5", "cost": ">0.2"}):
        everything = list(store.each(None, **conditions))
        assert 0 < len(everything) < 40
        for sort in ("-latency_ms", "feedback.good", "start"):
            assert ids(store, sort, 7, **conditions) == expected(everything, sort)


@pytest.mark.process
def test_traces_that_arrive_while_pages_are_read_shift_nothing(store: Store) -> None:
    store.append(*make_traces(40))
    before = {sort: ids(store, sort) for sort in ("-latency_ms", "feedback.good", "-feedback.yes", "start", "errors")}
    for number, (sort, wanted) in enumerate(before.items()):
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = store.traces(sort=sort, limit=7, cursor=cursor, until_ns=START + 100 * SECOND)
            found += [trace.trace_id for trace in page]
            store.append(*make_traces(5, seed=100 * number + len(found)))
            cursor = page.next
            if cursor is None:
                break
        assert [id for id in found if id in wanted] == wanted
        assert len(found) == len(set(found))
        if number == 0:
            assert found == wanted
        store.delete(trace_ids=tuple(set(ids(store, "start")) - set(wanted)))


def test_a_list_that_is_too_long_is_sorted_among_the_newest_and_says_so(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "MAX_SORTED", 3)
    monkeypatch.setattr(record_lists, "MAX_LOOKUPS", 2)
    runs = [run(start_ns=START + n * SECOND, end_ns=START + (n + 10 - n % 3) * SECOND) for n in range(6)]
    store.append(
        runs, [Feedback(target=Target(trace_id=one.trace_id), key="k", score=-n) for n, one in enumerate(runs)]
    )
    newest = [one.trace_id for one in runs[3:]]
    for sort, wanted in (("-latency_ms", newest), ("-feedback.k", newest), ("latency_ms", newest[::-1])):
        first = store.traces(sort=sort, limit=2)
        second = store.traces(sort=sort, limit=2, cursor=first.next)
        assert ([trace.trace_id for trace in (*first, *second)], first.newest, second.newest) == (wanted, 3, 3)
    assert store.traces(sort="-latency_ms", until_ns=START + 2 * SECOND).newest is None
    assert (len(store.traces(sort="start")), store.traces(sort="start").newest) == (6, None)


def test_a_cursor_of_another_filter_or_order_is_refused(store: Store) -> None:
    store.append([run() for _ in range(3)])
    cursor = store.traces(sort="-latency_ms", limit=1).next
    assert cursor is not None
    assert len(store.traces(sort="-latency_ms", limit=1, cursor=cursor, since="2020-01-01")) == 1
    for sort, conditions in (("latency_ms", {}), ("-cost", {}), ("-latency_ms", {"name": "answer"})):
        with pytest.raises(Refused, match="not of this filter and sort order; begin again without a cursor"):
            store.traces(sort=sort, limit=1, cursor=cursor, **conditions)
    with pytest.raises(Refused, match="cursor"):
        store.traces(limit=1, cursor=cursor)
    with pytest.raises(Refused, match="not of this filter and sort order"):
        store.traces(sort="-latency_ms", cursor=store.traces(limit=1).next)


MADE_UP = ["bnVsbA", "W10", "WzEsMiwzLDQsNSw2XQ", "WzEsIngiLDEsbnVsbCwxZTk5OTksMV0", "%%%", "", "W" * 9000]


@loop_over("data", MADE_UP)
def test_a_made_up_cursor_is_refused(store: Store, data: str) -> None:
    store.append([run() for _ in range(2)])
    cursor = store.traces(sort="cost", limit=1).next
    assert cursor is not None
    with pytest.raises(Refused, match="invalid cursor"):
        store.traces(sort="cost", cursor=f"{cursor.partition('.')[0]}.{data}")


HOSTILE = ["name", "--cost", "cost desc", "cost;DROP TABLE traces", "feedback.", "-", "latency_ms,cost", "x" * 5_000]


@loop_over("sort", HOSTILE, ids=lambda sort: sort[:20])
def test_an_unknown_order_is_refused_with_the_known_ones(store: Store, sort: str) -> None:
    for ask in (store.traces, store.sessions, store.datasets, store.experiments):
        with pytest.raises(Refused, match=r"cannot sort by '.*'; expected one of: ") as refused:
            ask(sort=sort)
        assert len(str(refused.value)) < 400


def test_any_key_sorts_whatever_its_name_is(store: Store) -> None:
    store.append(runs := [run() for _ in range(3)])
    keys = ('it\'s "x" <b>', "a.b-c", "é 品", "-k")
    for key in keys:
        scores = (1.0, None, 2.0)
        store.add_feedback(
            [
                Feedback(target=Target(trace_id=one.trace_id), key=key, score=score, label=None if score else "text")
                for one, score in zip(runs, scores, strict=True)
            ]
        )
        first, missing, last = (one.trace_id for one in runs)
        assert ids(store, f"-feedback.{key}") == [last, first, missing]


def test_an_order_of_a_project_covers_only_its_traces(store: Store) -> None:
    store.append(*make_traces(20))
    scoped = ProjectScopedStore(store, "one")
    own = [trace for trace in store.each() if trace.project == "one"]
    page = scoped.traces(sort="-latency_ms", limit=2)
    rest = scoped.traces(sort="-latency_ms", limit=100, cursor=page.next)
    assert [trace.trace_id for trace in (*page, *rest)] == expected(own, "-latency_ms")
    with pytest.raises(Refused, match="not of this filter"):
        store.traces(sort="-latency_ms", cursor=page.next)


def test_sessions_sort_by_their_totals(store: Store) -> None:
    for name, costs in {"a": (0.5, 0.5), "b": (2.0,), "c": (None, None, None), "d": (1.0,)}.items():
        store.append([run(session_id=name, kind="llm", cost=cost) for cost in costs])
    store.append([run()])
    found: list[str] = []
    cursor: str | None = None
    while cursor is not None or not found:
        page = store.sessions(sort="-cost", limit=2, cursor=cursor)
        found, cursor = [*found, *(session.session_id for session in page)], page.next
    assert found == ["b", "a", "d", "c"]
    assert [session.session_id for session in store.sessions(sort="-traces")] == ["c", "a", "b", "d"]
    assert [session.traces for session in store.sessions(sort="traces", name="answer")] == [1, 1, 2, 3]


def test_datasets_and_experiments_sort_by_their_numbers(store: Store) -> None:
    for name, count in {"many": 3, "few": 1, "some": 2}.items():
        store.save_examples(name, [Example(id=str(number), inputs={"n": number}) for number in range(count)])
    assert [one.name for one in store.datasets()] == ["few", "many", "some"]
    assert [one.name for one in store.datasets(sort="-examples")] == ["many", "some", "few"]
    for id, (ended, count) in {"e1": (SECOND, 2), "e2": (None, 3), "e3": (5 * SECOND, 1)}.items():
        end = None if ended is None else START + ended
        store.save_experiment(
            Experiment(id=id, name=id, dataset="many", started_ns=START, ended_ns=end, example_count=count)
        )
    assert [one.id for one in store.experiments(sort="-duration_ms")] == ["e3", "e1", "e2"]
    assert [one.id for one in store.experiments(sort="duration_ms")] == ["e1", "e3", "e2"]
    assert [one.id for one in store.experiments(sort="examples", limit=2)] == ["e3", "e1"]
