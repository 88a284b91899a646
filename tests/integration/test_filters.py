"""One filter in four places: each condition, asked of the API, by the client, on the command line and of the pages."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from typer.testing import CliRunner

from collector.conformance_traces import eventually
from collector.making import SECOND, START, run
from spanwise.cli.app import app
from spanwise.collector.client import HTTPStore
from spanwise.collector.filters import parse
from spanwise.collector.records import Experiment, Feedback, Target, Usage
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

# What a term says, and how the form of the pages says it
CONDITIONS = {
    "project=p": {"project": "p"},
    "environment=prod": {"environment": "prod"},
    "since=2025-06-15T15:06:40Z&until=2025-06-15T15:06:41Z": {
        "since": "2025-06-15T15:06:40Z",
        "until": "2025-06-15T15:06:41Z",
    },
    "name=answer": {"name": "answer"},
    "kind=agent": {"kind": "agent"},
    "status=error": {"status": "error"},
    "latency_ms>=2000": {"latency_ms": ">= 2000"},
    "tokens>10": {"tokens": "> 10"},
    "cost>0.2": {"cost": "> 0.2"},
    "tags=a": {"tag": "a"},
    "metadata.tenant=t1": {"metadata": "tenant=t1"},
    "session=s-1": {"session": "s-1"},
    "user=u-1": {"user": "u-1"},
    "feedback=concise<0.5": {"feedback_key": "concise", "feedback_op": "<", "feedback_value": "0.5"},
    "missing=correct": {"feedback_key": "correct", "feedback_op": "missing"},
    "error=Timeout": {"error": "Timeout"},
    "text=parcel": {"text": "parcel"},
    "experiment=e1": {"experiment": "e1"},
    "dataset=numbers": {"dataset": "numbers"},
    "any_name=answer": {"any_name": "answer"},
    "any_kind=agent": {"any_kind": "agent"},
    "model=m-1": {"model": "m-1"},
}


WANTED, OTHER = "a" * 32, "b" * 32


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    wanted = run(
        "answer",
        trace_id=WANTED,
        kind="agent",
        start_ns=START,
        end_ns=START + 2 * SECOND,
        status="error",
        error="Timeout: no",
        inputs="lost parcel",
        project="p",
        environment="prod",
        usage=Usage(10, 2),
        cost=0.25,
        model="m-1",
        tags=("a",),
        metadata={"tenant": "t1"},
        session_id="s-1",
        user_id="u-1",
        experiment_id="e1",
    )
    file = tmp_path_factory.mktemp("filters") / "spanwise.db"
    with SQLiteStore(file) as store, Server(store) as server:
        store.append([wanted, run("other", trace_id=OTHER, start_ns=START - SECOND)])
        store.save_experiment(Experiment(id="e1", name="n", dataset="numbers"))
        store.add_feedback([Feedback(target=Target(trace_id=OTHER), key="correct", score=1)])
        store.add_feedback([Feedback(target=Target(trace_id=WANTED), key="concise", score=0.25)])
        assert eventually(lambda: len(store.traces(text="parcel")), 1)
        yield server.url


@pytest.mark.process
@pytest.mark.parametrize("terms", CONDITIONS)
def test_api(url: str, terms: str) -> None:
    answer = httpx.get(f"{url}/api/traces?{terms}", timeout=60).json()
    assert [one["trace_id"] for one in answer["items"]] == [WANTED]


@pytest.mark.parametrize("terms", CONDITIONS)
def test_client(url: str, terms: str) -> None:
    with HTTPStore(url) as client:
        assert [one.trace_id for one in client.traces(parse(terms.split("&")))] == [WANTED]


@pytest.mark.parametrize("terms", CONDITIONS)
def test_command_line(url: str, terms: str) -> None:
    where = [word for term in terms.split("&") for word in ("--where", term)]
    result = CliRunner().invoke(app, ["traces", "list", "--store", url, "--json", *where], catch_exceptions=False)
    assert [json.loads(line)["trace_id"] for line in result.stdout.splitlines()] == [WANTED]


@pytest.mark.parametrize("terms", CONDITIONS)
def test_pages(url: str, terms: str) -> None:
    page = httpx.get(f"{url}/traces", params={**CONDITIONS[terms], "traffic": "all"}, timeout=60).text
    assert (WANTED in page, OTHER in page) == (True, False)


UNASKABLE = ["nmae=x", "latency_ms=200", "tokens<0", "text=!?", "since=2026-01-02&until=2026-01-01", "status=broken"]


@pytest.mark.parametrize("terms", UNASKABLE)
def test_what_cannot_be_is_refused_in_all_four_places(url: str, terms: str) -> None:
    where = [word for term in terms.split("&") for word in ("--where", term)]
    shell = CliRunner().invoke(app, ["traces", "list", "--store", url, "--json", *where])
    assert httpx.get(f"{url}/api/traces?{terms}").status_code == 400
    assert httpx.get(f"{url}/traces?{terms}&traffic=all").status_code in (400, 422)
    assert (shell.exit_code != 0, shell.stdout) == (True, "")


def test_the_names_that_there_are_stand_in_the_refusal(url: str) -> None:
    answer = httpx.get(f"{url}/api/traces?zzz=1").json()
    assert answer["message"].startswith("unknown condition 'zzz'; expected one of: project, environment, since, until")


def test_a_filter_as_json_is_read_like_any_other(url: str) -> None:
    def asked(query: str) -> httpx.Response:
        return httpx.get(f"{url}/api/traces?{query}")

    assert asked('filter={"nmae":"x"}').status_code == 400
    assert [one["trace_id"] for one in asked('filter={"latency_ms":">=2000"}&name=answer').json()["items"]] == [WANTED]
    assert asked('filter={"latency_ms":">=2000"}&name=other').json()["items"] == []


def test_what_the_verb_itself_takes_is_no_condition(url: str) -> None:
    answer = httpx.get(f"{url}/api/feedback?source=code&key=concise&user=u-1").json()
    assert [one["key"] for one in answer["items"]] == ["concise"]


@pytest.mark.parametrize("path", ["/", "/traces", "/sessions", "/api/traces"])
def test_since_is_the_same_word_everywhere(url: str, path: str) -> None:
    assert httpx.get(f"{url}{path}?since=1h").status_code == 200
