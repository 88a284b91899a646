"""What aggregates of a store count: the newest of each place, as `statistics.newest` says."""

import itertools
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.making import run
from spanwise.collector.records import Feedback, Target
from spanwise.collector.statistics import select_latest
from spanwise.collector.stores.sqlite import SQLiteStore


def counts(store):
    [stats] = store.aggregate()[0].feedback
    return (stats.n, stats.mean)


@pytest.fixture
def target(store):
    store.append([root := run()])
    return Target(trace_id=root.trace_id)


def test_two_rules_under_one_key_do_not_hide_each_other(store, target):
    store.add_feedback(
        [Feedback(target=target, key="k", score=score, rule=rule) for score, rule in ((0, "a"), (1, "b"))]
    )
    assert counts(store) == (2, 0.5)


def test_a_rules_later_version_replaces_its_earlier_one(store, target):
    for version, score in ((1, 0.0), (2, 1.0)):
        store.add_feedback(
            [Feedback(target=target, key="k", score=score, rule="a", version=str(version), created_ns=version)]
        )
    assert counts(store) == (1, 1.0)


def test_people_without_a_name_are_not_the_same_person(store, target):
    votes = [Feedback(target=target, key="k", score=score, source="human", id=str(score)) for score in (0, 1)]
    store.add_feedback(votes)
    assert counts(store) == (2, 0.5)


def test_models_without_a_name_replace_each_other(store, target):
    rows = [Feedback(target=target, key="k", score=n, source="model", id=str(n), created_ns=n) for n in (0, 1)]
    store.add_feedback(rows)
    assert counts(store) == (1, 1.0)


def test_labels_are_counted_apart_from_scores(store, target):
    values = [{"score": 1.0}, {"label": "cannot tell"}, {"label": "cannot tell"}, {"score": 0.5, "label": "so so"}]
    store.add_feedback([Feedback(target=target, key="k", rule=str(n), **value) for n, value in enumerate(values)])
    [stats] = store.aggregate()[0].feedback
    assert (stats.n, stats.mean, stats.minimum, stats.maximum) == (2, 0.75, 0.5, 1.0)
    assert (stats.labelled, stats.labels) == (2, {"cannot tell": 2, "so so": 1})


@pytest.mark.parametrize("target", [Target(experiment_id="e"), Target(session_id="s")], ids=["experiment", "session"])
def test_of_experiments_and_sessions_the_same_counts(tmp_path, target):
    said = [{"rule": "a"}, {"rule": "b"}, {"source": "human", "id": "x"}, {"source": "human", "id": "y"}]
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        for version in (1, 2):
            store.add_feedback(
                [
                    Feedback(target=target, key="k", score=1, version=str(version), created_ns=version, **one)
                    for one in said
                ]
            )
    with closing(sqlite3.connect(tmp_path / "spanwise.db")) as db:
        rows = db.execute("SELECT coalesce(rule, id), standing FROM feedback ORDER BY 1, created_ns")
        assert list(rows) == [("a", 1), ("b", 1), ("x", 1), ("y", 1)]


def test_a_vote_where_no_judge_has_spoken_counts(store: SQLiteStore) -> None:
    store.append([run("answer", trace_id="a" * 32)])
    store.feedback("a" * 32, "polite", False, author="ann")
    assert store.aggregate()[0].feedback[0].mean == 0.0


def test_a_run_of_an_experiment_has_no_score_of_its_documents(store: SQLiteStore) -> None:
    store.append([root := run(experiment_id="e", example_id="x")])
    document = Target(trace_id=root.trace_id, span_id=root.span_id, document=0)
    store.add_feedback([Feedback(target=document, key="k", score=1)])
    assert [row.scores for row in store.scores("e")] == [{}]


TARGETS = (
    Target(trace_id="a" * 32),
    Target(trace_id="a" * 32, span_id="b" * 16),
    Target(trace_id="a" * 32, span_id="b" * 16, document=0),
    Target(session_id="s"),
    Target(experiment_id="e"),
)
SAID = st.builds(
    Feedback,
    target=st.sampled_from(TARGETS),
    key=st.sampled_from(["k", "l"]),
    score=st.just(1.0),
    source=st.sampled_from(["code", "model", "human"]),
    author=st.sampled_from([None, "ann"]),
    evaluator=st.sampled_from([None, "e", "f"]),
    rule=st.sampled_from([None, "r", "s"]),
    version=st.sampled_from([None, "1"]),
    created_ns=st.integers(1, 3),
)


@pytest.fixture(scope="module")
def shared_file(tmp_path_factory):
    with SQLiteStore(tmp_path_factory.mktemp("standing") / "spanwise.db") as store:
        yield store


def elsewhere(feedback, place):
    """The same about targets of another example."""
    target = feedback.target
    moved = {name: f"{getattr(target, name)}{place}" for name in WHERE if getattr(target, name) is not None}
    if target.trace_id is not None:
        moved["trace_id"] = f"{int(target.trace_id, 16) ^ place:032x}"
    return replace(feedback, target=replace(target, **moved), id="")


WHERE = ("session_id", "experiment_id")
PLACES = itertools.count()


@pytest.mark.process
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rounds=st.lists(st.lists(SAID, max_size=5), max_size=3))
def test_what_counts_is_the_newest_of_each_place_whatever_was_said(shared_file, rounds):
    place = next(PLACES)
    rounds = [[elsewhere(feedback, place) for feedback in said] for said in rounds]
    for said in rounds:
        shared_file.add_feedback(said)
    by_id = {feedback.id: feedback for said in rounds for feedback in said}
    with closing(sqlite3.connect(shared_file.path)) as db:
        stored = db.execute("SELECT id, standing FROM feedback ORDER BY rowid").fetchall()
    rows = [(id, standing) for id, standing in stored if id in by_id]
    assert {id for id, standing in rows if standing} == {one.id for one in select_latest(by_id[id] for id, _ in rows)}
