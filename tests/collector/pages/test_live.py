"""Live updates: who hears of which change, what it costs, and who may listen."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from collector.making import run
from polling import until
from spanwise.collector.pages import live_updates
from spanwise.collector.records import Feedback, Key, Target
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_updates, "POLL_S", 0.05)


@pytest.fixture
def server(store: SQLiteStore) -> Iterator[Server]:
    with Server(store) as made:
        yield made


@contextmanager
def watch(server: Server, query: str = "", **options: object) -> Iterator[Iterator[str]]:
    """The lines of a stream that has begun to watch."""
    with httpx.stream("GET", f"{server.url}/live{query}", timeout=20, **options) as answer:
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        lines = answer.iter_lines()
        assert next(lines) == "retry: 3000"
        yield lines


def next_event(lines: Iterator[str]) -> str:
    return next(line for line in lines if line.startswith("data: "))


def test_a_viewer_hears_of_the_traces_that_the_filter_shows(store, server):
    with watch(server, "?name=answer") as lines:
        store.append([run("other"), run("answer"), run("answer")])
        assert next_event(lines) == "data: 2"
        store.append([run("other")])
        store.append([run("answer")])
        assert next_event(lines) == "data: 1"


def test_new_feedback_is_a_change(store, server):
    trace = run("answer")
    store.append([trace])
    with watch(server, "?name=answer") as lines:
        store.add_feedback([Feedback(target=Target(trace_id=trace.trace_id), key="k", score=1.0)])
        assert next_event(lines) == "data: 1"


def test_judges_and_experiments_are_no_news(store, server):
    with watch(server) as lines:
        store.append([run("judge", kind="evaluator"), run("answer", experiment_id="e")])
        store.append([run("answer")])
        assert next_event(lines) == "data: 1"


def test_a_filter_that_the_feed_cannot_evaluate_reports_every_change(store, server):
    with watch(server, "?complete=true") as lines:
        store.append([run("answer")])
        assert next_event(lines) == "data: 1"


def test_a_key_of_one_project_hears_of_that_project(store):
    secret = "a key of the tests"
    digest = hashlib.sha256(secret.encode()).hexdigest()
    store.save_key(Key(id="k", name="reader", sha256=digest, scopes=("read",), project="mine"))
    with Server(store, require_key=True) as server:
        assert httpx.get(f"{server.url}/live").status_code == 401
        with watch(server, headers={"Authorization": f"Bearer {secret}"}) as lines:
            store.append([run("answer", project="theirs")])
            store.append([run("answer", project="mine"), run("answer", project="theirs")])
            assert next_event(lines) == "data: 1"


def test_viewers_that_vanish_are_forgotten(store, server, monkeypatch):
    monkeypatch.setattr(live_updates, "MAX_VIEWERS", 40)
    with ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(watch(server))
    with httpx.Client() as client:
        until(lambda: client.send(client.build_request("GET", f"{server.url}/live"), stream=True).status_code == 200)


def test_too_many_viewers_are_refused(store, server, monkeypatch):
    monkeypatch.setattr(live_updates, "MAX_VIEWERS", 1)
    with watch(server):
        answer = httpx.get(f"{server.url}/live")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "60")


def test_a_server_stops_although_somebody_watches(store):
    with ExitStack() as stack:
        with Server(store) as server:
            lines = stack.enter_context(watch(server))
        assert list(lines) == [""]
