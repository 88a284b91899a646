"""Feedback on sessions of several projects that use the same session ids."""

from __future__ import annotations

import hashlib
import io
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from collector import former_file
from collector.deciding import HOUR
from collector.making import run
from spanwise.collector.client import HTTPStore
from spanwise.collector.errors import Forbidden
from spanwise.collector.import_export import export_lines, import_file
from spanwise.collector.records import (
    Claim,
    ClaimResult,
    Decision,
    DecisionBatch,
    Feedback,
    Key,
    Rule,
    Target,
    feedback_id,
)
from spanwise.collector.server import Server
from spanwise.collector.statistics import check_judge
from spanwise.collector.stores import Store
from spanwise.collector.stores.backends import TargetFeedback
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.score_sums.sum_tables import register_grouping

WINDOW = {"since_ns": 0, "until_ns": 24 * HOUR}
PROJECTS = {"shop": 1.0, "help": 0.25}  # score of the session in each


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "spanwise.db") as opened:
        yield opened


def decide(store: Store, project: str) -> None:
    """A rule of the project draws the session "s", which has one trace."""
    store.save_rule(Rule(name="polite", project=project, version="1", evaluators=({"key": "good"},), target="session"))
    before = store.changes(limit=1_000).cursor
    store.append([run(start_ns=HOUR, project=project, session_id="s", tags=(f"of {project}",))])
    [head] = store.changes(before).heads
    row = Decision(
        project=project,
        rule="polite",
        version="1",
        target=Target(session_id="s"),
        verdict="waiting",
        probability=0.5,
        change=head.change,
        runs_change=head.runs_change,
    )
    batch = DecisionBatch(project=project, rule="polite", version="1", after=None, upto=head.change, rows=(row,))
    assert store.decide(batch) == [True]


def score(store: Store, project: str, value: float) -> None:
    """A worker scores the session."""
    [taken] = store.claim("polite", "1", "w", 60, project=project, limit=5)
    claim = Claim(project=project, rule="polite", version="1", target=taken.target, number=taken.claim)
    feedback = Feedback(
        target=taken.target, key="good", score=value, rule="polite", evaluator="good", claim=taken.claim
    )
    result = ClaimResult(
        claim=claim,
        verdict="scored",
        states={"good": {"state": "scored"}},
        reported=("good",),
        feedback=(feedback,),
        read_change=taken.runs_change,
        attempts=1,
    )
    assert store.finish(result) == ["finished"]


def score_all(store: Store) -> None:
    for project, value in PROJECTS.items():
        decide(store, project)
        score(store, project, value)


def scores(store: Store, **query: object) -> dict[str | None, float | None]:
    return {row.target.project: row.score for row in store.feedbacks(**query)}  # type: ignore[arg-type]


def test_the_scores_of_two_projects_do_not_overwrite_each_other(store: SQLiteStore) -> None:
    score_all(store)
    assert scores(store) == PROJECTS
    for project, value in PROJECTS.items():
        assert scores(store, project=project) == {project: value}
        assert scores(store, target=Target(session_id="s", project=project)) == {project: value}
        [weighted] = store.weighted("polite", project=project)
        assert (weighted.score, weighted.session_id, weighted.probability) == (value, "s", 0.5)
        [sums] = store.score_sums("polite", project=project, **WINDOW)
        assert (sums.n, sums.weight, sums.total) == (1, 2.0, 2 * value)
    assert scores(store, target=Target(session_id="s")) == PROJECTS
    assert {*store.table_page("feedback").columns["project"]} == {*PROJECTS}


def test_a_repeated_score_overwrites_that_of_its_project(store: SQLiteStore) -> None:
    for value in (0.0, 1.0):
        store.add_feedback([Feedback(target=Target(session_id="s", project="shop"), key="good", score=value, rule="r")])
        store.add_feedback([Feedback(target=Target(session_id="s", project="help"), key="good", score=0.5, rule="r")])
    assert scores(store) == {"shop": 1.0, "help": 0.5}


def test_ids_of_other_targets_are_those_of_earlier_versions() -> None:
    ids: dict[str, Target] = {}
    for target in (Target(trace_id="1" * 32), Target(session_id="s"), Target(experiment_id="e")):
        parts = (
            target.trace_id,
            None,
            None,
            target.session_id,
            target.experiment_id,
            "k",
            "code",
            None,
            "e",
            None,
            "r",
        )
        ids[hashlib.sha256(repr(parts).encode()).hexdigest()[:32]] = target
    for id, target in ids.items():
        assert feedback_id(Feedback(target=target, key="k", score=1.0, evaluator="e", version="9", rule="r")) == id


@pytest.mark.parametrize("target", [{"trace_id": "1" * 32}, {"experiment_id": "e"}])
def test_only_a_session_has_a_project(target: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="a target with a project needs a session_id"):
        Target(project="shop", **target)  # type: ignore[arg-type]


def test_an_alert_on_sessions_has_groups(store: SQLiteStore) -> None:
    score_all(store)
    assert store.score_groups("polite", by="tag", project="shop", **WINDOW) == {"of shop": 1}
    store.append([run(start_ns=2 * HOUR, project="shop", session_id="s", tags=("late",))])
    store.append([run(start_ns=2 * HOUR, project="help", session_id="s", tags=("other",))])
    assert store.score_groups("polite", by="tag", project="shop", **WINDOW) == {"late": 1, "of shop": 1}
    store.delete(tags=("late",))
    assert store.score_groups("polite", by="tag", project="shop", **WINDOW) == {"of shop": 1}


def test_registered_groups_of_sessions_follow_their_traces(store: SQLiteStore) -> None:
    store._file.write(lambda db: register_grouping(db, "shop", "polite", "tag"))
    test_an_alert_on_sessions_has_groups(store)
    with store._file.read() as reader:
        assert reader.db.execute("SELECT count(*) FROM score_series WHERE field = 'tag'").fetchone() != (0,)


def test_feedback_goes_with_the_last_trace_of_its_project(store: SQLiteStore) -> None:
    score_all(store)
    store.add_feedback([Feedback(target=Target(session_id="s"), key="solved", score=1.0, source="human")])
    store.delete(project="shop", session="s")
    assert scores(store) == {"help": 0.25, None: 1.0}
    store.delete(project="help", session="s")
    assert scores(store) == {}


def test_a_key_of_a_project_sees_and_gives_feedback_on_its_sessions(store: SQLiteStore) -> None:
    score_all(store)
    for project in PROJECTS:
        sha = hashlib.sha256(project.encode()).hexdigest()
        store.save_key(Key(id=project, name=project, sha256=sha, project=project))
    with Server(store, host="0.0.0.0", api_key="master") as server:
        shop, help = (HTTPStore(f"http://127.0.0.1:{server.port}", api_key=project) for project in PROJECTS)
        with closing(shop), closing(help):
            session = Target(session_id="s")
            assert scores(shop) == scores(shop, target=session) == {"shop": 1.0}
            for vote in (0.0, 1.0):
                shop.feedback(session, "liked", vote, author="ann")
            help.add_feedback([Feedback(target=session, key="liked", score=0.5, source="human", author="ann")])
            assert scores(shop, key="liked") == {"shop": 1.0}
            assert scores(help, key="liked") == {"help": 0.5}
            with pytest.raises(Forbidden, match="session 's' belongs to another project"):
                shop.feedbacks(target=replace(session, project="help"))
            with pytest.raises(Forbidden, match="session 's' belongs to another project"):
                shop.add_feedback([Feedback(target=replace(session, project="help"), key="liked", score=0.0)])
    assert scores(store, key="liked") == {"shop": 1.0, "help": 0.5}


@pytest.mark.parametrize("format", ["otlp", "jsonl"])
def test_an_export_keeps_the_project(store: SQLiteStore, tmp_path: Path, format: str) -> None:
    score_all(store)
    with SQLiteStore(tmp_path / "other.db") as other:
        data = b"".join(line + b"\n" for line, _ in export_lines(store, format))
        assert import_file(other, io.BytesIO(data)).bad == 0
        assert scores(other) == PROJECTS
        assert {row.id for row in other.feedbacks()} == {row.id for row in store.feedbacks()}


def lower(path: Path, *, without_decisions: bool = False) -> None:
    """Bring a file back to the version without projects of sessions, with the ids of that version."""
    with closing(sqlite3.connect(path)) as db:
        former_file.lower_version(db, 31)
        for (id,) in db.execute("SELECT id FROM feedback WHERE session_id IS NOT NULL").fetchall():
            feedback = Feedback(target=Target(session_id="s"), key="good", score=1.0, rule="polite", evaluator="good")
            db.execute("UPDATE feedback SET id = ? WHERE id = ?", (feedback.id, id))
        if without_decisions:
            db.execute("DELETE FROM decisions")
        db.commit()


@pytest.mark.parametrize("without_decisions", [False, True])
def test_feedback_of_an_older_file_gets_the_project_of_its_rule(tmp_path: Path, without_decisions: bool) -> None:
    path = tmp_path / "spanwise.db"
    with SQLiteStore(path) as store:
        decide(store, "shop")
        score(store, "shop", 1.0)
        before = [row.id for row in store.feedbacks()]
    lower(path, without_decisions=without_decisions)
    with SQLiteStore(path) as store:
        assert [row.id for row in store.feedbacks()] == before
        assert scores(store) == {"shop": 1.0}
        assert store.check(deep=True) == []


def test_feedback_of_an_older_file_that_two_projects_may_have_given_counts_for_both(tmp_path: Path) -> None:
    path = tmp_path / "spanwise.db"
    with SQLiteStore(path) as store:
        score_all(store)
        store.delete_feedback([row.id for row in store.feedbacks() if row.target.project == "help"])
    lower(path)
    with SQLiteStore(path) as store:
        assert scores(store) == {None: 1.0}
        for project in PROJECTS:
            assert len(store.weighted("polite", project=project)) == 1
            assert [sums.n for sums in store.score_sums("polite", project=project, **WINDOW)] == [1]
        # a new score replaces the old one, which may have been its own
        new = Feedback(target=Target(session_id="s"), key="good", score=0.5, rule="polite", evaluator="good", claim=99)
        given = TargetFeedback("polite", Target(session_id="s", project="shop"), 99, ("good",), (new,), True)
        assert store._traces.replace_rule_feedback([given]) == [True]
        assert len(store.feedbacks()) == 1


def test_a_label_without_a_project_is_compared_with_the_only_score_of_the_session() -> None:
    session = Target(session_id="s")
    judged = [
        Feedback(target=replace(session, project="shop"), key="good", score=1.0, source="model", version="1"),
    ]
    label = Feedback(target=session, key="good", score=1.0, source="human", author="ann")
    check = check_judge(judged, [label])
    assert (len(check.pairs), check.unjudged) == (1, ())
    other = replace(judged[0], target=replace(session, project="help"), id="")
    assert check_judge([*judged, other], [label]).unjudged == (session,)


def test_a_worker_of_an_earlier_version_gives_feedback_to_the_project_of_its_rule(store: SQLiteStore) -> None:
    decide(store, "shop")
    [taken] = store.claim("polite", "1", "w", 60, project="shop", limit=5)
    assert taken.target == Target(session_id="s", project="shop")
    old = Target(session_id="s")
    claim = Claim(project="shop", rule="polite", version="1", target=old, number=taken.claim)
    feedback = Feedback(target=old, key="good", score=1.0, rule="polite", evaluator="good", claim=taken.claim)
    result = ClaimResult(
        claim=claim,
        verdict="scored",
        states={"good": {"state": "scored"}},
        reported=("good",),
        feedback=(feedback,),
        read_change=taken.runs_change,
        attempts=1,
    )
    assert store.finish(result) == ["finished"]
    assert scores(store) == {"shop": 1.0}
