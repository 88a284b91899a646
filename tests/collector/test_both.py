"""What crosses from one half of a store into the other: nothing of it leans on both being in one file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import pytest

from collector.conformance_traces import (  # noqa: F401  run here over two files
    names,
    test_a_dataset_is_asked_for_like_any_condition,
    test_an_empty_filter_deletes_nothing,
    test_an_experiment_goes_with_its_traces_and_feedback,
    test_deleting_many,
    test_items_of_queues_go_with_their_traces_and_with_the_last_of_a_session,
    test_pruning_by_age,
    test_rules_of_retention_and_space,
)
from collector.deciding import on, ruled, slice, traced
from collector.making import SECOND, child, run
from collector.ruled import KEY, done
from spanwise.collector.errors import Unavailable
from spanwise.collector.filters import Filter
from spanwise.collector.records import Decision, Experiment, Feedback, Retention, Target
from spanwise.collector.stores import CombinedStore, LocalStore, Store
from spanwise.collector.stores.backends import DeletedTraces, TargetFeedback
from spanwise.collector.stores.sqlite import DatabaseFile, SQLiteControl, SQLiteStore, SQLiteTraces


class Stumbling(SQLiteTraces):
    """Is away once what it shall remove has been forgotten elsewhere."""

    def delete_traces(self, gone: Iterable[DeletedTraces]) -> int:
        next(iter(gone))
        raise Unavailable("away")


@pytest.fixture
def halves(tmp_path: Path) -> Iterator[tuple[DatabaseFile, DatabaseFile]]:
    files = DatabaseFile(tmp_path / "traces.db"), DatabaseFile(tmp_path / "control.db")
    yield files
    for file in files:
        file.close()


@pytest.fixture
def store(halves: tuple[DatabaseFile, DatabaseFile]) -> Store:
    return cast(Store, CombinedStore(SQLiteTraces(halves[0]), SQLiteControl(halves[1])))


@pytest.fixture
def stumbling(halves: tuple[DatabaseFile, DatabaseFile]) -> Store:
    return cast(Store, CombinedStore(Stumbling(halves[0]), SQLiteControl(halves[1])))


def test_two_halves_say_where_they_are_and_one_file_once(store: Store, tmp_path: Path) -> None:
    assert store.where == f"{tmp_path / 'traces.db'} and {tmp_path / 'control.db'}"
    with SQLiteStore(tmp_path / "spanwise.db") as one:
        assert one.where == str(tmp_path / "spanwise.db")
        assert isinstance(one, LocalStore)


def test_a_deletion_that_was_cut_off_is_done_by_repeating_it(store: Store, stumbling: Store) -> None:
    store.append([gone := run("gone"), run("stays")])
    ruled(store)
    [head] = [one for one in store.changes().heads if one.trace_id == gone.trace_id]
    store.decide(slice(on(head), upto=head.cursor))
    with pytest.raises(Unavailable):
        stumbling.delete(name="gone")
    assert (names(store.traces()), len(store.decisions())) == (["stays", "gone"], 0)
    assert store.delete(name="gone") == 1
    assert names(store.traces()) == ["stays"]


def test_the_deletion_of_an_experiment_that_was_cut_off_is_done_by_repeating_it(store: Store, stumbling: Store) -> None:
    store.append([run(experiment_id="e")])
    store.save_experiment(Experiment(id="e", name="n", dataset="d"))
    store.feedback(Target(experiment_id="e"), "f1", 0.5)
    with pytest.raises(Unavailable):
        stumbling.delete_experiment("e")
    assert store.experiment("e").name == "n"
    assert store.delete_experiment("e")
    assert store.count() == {"spans": 0, "traces": 0, "feedbacks": 0}


def leave_feedback(store: Store) -> Decision:
    """Let a worker store its feedback, and die before it finishes the lease."""
    [taken] = store.claim("r", "1", "w", 0.001, limit=1)
    feedback = Feedback(target=taken.target, key="k", score=1.0, evaluator="k", rule="r", claim=taken.claim)
    backend = store._traces  # type: ignore[attr-defined]
    assert backend.replace_rule_feedback([TargetFeedback("r", taken.target, taken.claim, ["k"], [feedback])]) == [True]
    return taken


def test_feedback_of_a_dead_worker_is_deleted_if_its_rule_was_changed_before_anybody_could_finish(store: Store) -> None:
    ruled(store)
    [head] = traced(store, 1)
    store.decide(slice(on(head), upto=head.cursor))
    leave_feedback(store)
    store.feedback(head.trace_id, "k", 0.0)
    remove = store.remove_abandoned_feedback  # type: ignore[attr-defined]
    assert remove(expired_s=-60) == 0  # the rule is in force: the next lease overwrites the feedback
    ruled(store, version="2")
    assert remove() == 0  # it expired just now: the worker may be slow
    assert remove(expired_s=-60) == 1
    assert [(each.source, each.rule) for each in store.feedbacks()] == [("human", None)]
    assert remove(expired_s=-60) == 0
    assert [each.verdict for each in store.decisions()] == ["superseded"]


def test_an_earlier_result_of_a_superseded_rule_stays(store: Store) -> None:
    ruled(store)
    [head] = traced(store, 1)
    store.decide(slice(on(head), upto=head.cursor))
    done(store, "r", ("scored", 1.0))
    store.append([child(run(trace_id=head.trace_id))])
    [again] = [each for each in store.changes(head.cursor).heads if each.trace_id == head.trace_id]
    store.decide(slice(on(again), after=head.cursor, upto=again.cursor))
    leave_feedback(store)
    ruled(store, version="2")
    assert store.remove_abandoned_feedback(expired_s=-60) == 0  # type: ignore[attr-defined]
    assert {each.key for each in store.feedbacks()} == {"k", KEY}


def test_pruning_by_the_rules_that_are_kept(store: Store) -> None:
    store.append([run("old", project="p"), run("old", project="q"), run("new", project="p", start_ns=2**62)])
    store.set_retention(Retention(project="p", max_age_ns=SECOND))
    store.run_hourly_jobs()  # type: ignore[attr-defined]
    assert [(one.name, one.project) for one in store.traces()] == [("new", "p"), ("old", "q")]


def test_a_half_alone_does_not_know_datasets(halves: tuple[DatabaseFile, DatabaseFile]) -> None:
    with pytest.raises(Exception, match="cannot be filtered by dataset 'd'"):
        SQLiteTraces(halves[0]).traces(Filter(dataset="d"))
