"""How far a judge agrees with people stands beside its mean on every page."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from collector.making import run
from spanwise.collector.records import Experiment, Feedback, Target
from spanwise.collector.stores.sqlite import SQLiteStore

SAID = "agrees with people 75 % <span>(κ 0.50, 4 labels)</span>"
JUDGE = {"key": "polite", "version": "1", "source": "model", "metrics": [{"key": "polite", "range": [0, 1]}]}


def judged(store: SQLiteStore, name: str, votes: bool) -> None:
    store.save_experiment(Experiment(id=name, name=name, dataset="d", status="finished", evaluators=(JUDGE,)))
    for n in range(4):
        root = run(outputs=str(n), experiment_id=name, example_id=str(n))
        store.append([root])
        target = Target(trace_id=root.trace_id)
        store.add_feedback([Feedback(target=target, key="polite", score=n > 1, source="model", version="1")])
        store.add_feedback([Feedback(target=target, key="exact", score=n > 1)])
        if votes:
            store.feedback(target, "polite", n > 0, author="ann")


PAGES = {
    "experiments": "/experiments",
    "experiment": "/experiments/one",
    "compare": "/compare?ids=one,two",
    "traces": "/traces?traffic=all",
}


@pytest.mark.parametrize("path", PAGES.values(), ids=PAGES)
def test_every_page_says_how_far_a_judge_agrees_with_people(store: SQLiteStore, client: TestClient, path: str) -> None:
    judged(store, "one", votes=True)
    judged(store, "two", votes=False)
    assert SAID in client.get(path).text


@pytest.mark.process
def test_it_is_said_where_people_had_the_last_word_on_every_trace(store: SQLiteStore, client: TestClient) -> None:
    judged(store, "one", votes=True)
    assert SAID in client.get("/traces?traffic=all").text


@pytest.mark.parametrize("path", PAGES.values(), ids=PAGES)
def test_a_judge_without_votes_was_never_checked(store: SQLiteStore, client: TestClient, path: str) -> None:
    judged(store, "one", votes=False)
    judged(store, "two", votes=False)
    assert "never checked" in client.get(path).text


def test_code_and_people_are_not_checked(store: SQLiteStore, client: TestClient) -> None:
    root = run()
    store.append([root])
    store.add_feedback([Feedback(target=Target(trace_id=root.trace_id), key="exact", score=1.0)])
    store.feedback(root.trace_id, "good", True, author="ann")
    assert "never checked" not in client.get("/traces").text
