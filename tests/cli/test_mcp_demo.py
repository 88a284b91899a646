"""An agent that has only the tools finds the worst trace of the demo, and its reason."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from cli.mcp_clients import COMMAND, environment, given, here, over_stdio, store_access
from spanwise.cli.demo.application import NO_ANSWER


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `spanwise demo` leaves behind; it takes some seconds, once."""
    folder = tmp_path_factory.mktemp("demo")
    command = [*COMMAND, "demo", "--no-serve", "--no-models", "--port", "0"]
    subprocess.run(command, cwd=folder, env=environment(), check=True, capture_output=True, timeout=240)
    return folder / "spanwise-demo.db"


async def investigate(client: Any) -> dict[str, Any]:
    """From nothing but what the tools say: a key whose mean is low, its lowest trace, what happened there, and why it
    was scored.
    """
    seen = await given(client, "overview", since="1d")
    means = {one["untrusted"]["key"]: one["mean"] for one in seen["feedback"]}
    assert {"answered", "on_topic"} <= set(means)
    lowest = await given(client, "list_feedback", key="on_topic", where=["experiment="], order="lowest", limit=3)
    worst = lowest["feedback"][0]
    trace_id = worst["about"]["trace_id"]
    trace = await given(client, "read_trace", trace_id=trace_id)
    why = await given(client, "why_scored", trace_id=trace_id)
    return {"worst": worst, "lowest": lowest["feedback"], "trace": trace, "why": why}


@pytest.mark.process
def test_an_agent_finds_the_worst_trace_of_the_demo_and_its_reason(demo: Path) -> None:
    found = over_stdio(investigate, "--store", str(demo))
    scores = [one["score"] for one in found["lowest"]]
    assert scores == sorted(scores)
    root, *below = found["trace"]["runs"]
    question, answer = root["untrusted"]["inputs"]["question"], root["untrusted"]["outputs"]
    retrieved = [one for one in below if one["kind"] == "retriever"]
    # Its reason: what the answer says takes up little of what was asked, whatever was retrieved
    asked, said = {*question.lower().split()}, {*answer.lower().split()}
    assert len(asked & said) / len(asked) < 0.5 or answer == NO_ANSWER
    assert retrieved[0]["documents"] == len(retrieved[0]["untrusted"]["documents"]) == 5
    verdicts = {one["untrusted"]["rule"]: one["verdict"] for one in found["why"]["rules"]}
    assert verdicts == {"answers": "scored", "on topic": "scored"}
    assert found["worst"]["untrusted"]["rule"] == "on topic"


@pytest.mark.process
def test_an_agent_sees_why_a_trace_was_not_scored(demo: Path) -> None:
    async def talk(client: Any) -> list[dict[str, Any]]:
        missing = await given(client, "find_traces", where=["untried=on_topic", "experiment="], limit=1)
        why = await given(client, "why_scored", trace_id=missing["traces"][0]["trace_id"])
        return why["rules"]

    rules = {one["untrusted"]["rule"]: one for one in here(store_access.StoreAccess(str(demo)), talk)}
    assert rules["on topic"]["verdict"] == "sampled_out"
    assert rules["on topic"]["untrusted"]["sample"].endswith("is not below 0.5, the rule's rate")


@pytest.mark.process
def test_an_agent_finds_the_worst_runs_of_an_experiment(demo: Path) -> None:
    async def talk(client: Any) -> dict[str, Any]:
        made = await given(client, "list_experiments")
        names = {one["untrusted"]["name"]: one["id"] for one in made["experiments"]}
        return await given(client, "read_experiment", experiment_id=names["bm25-k1"], key="document_recall", limit=3)

    found = here(store_access.StoreAccess(str(demo)), talk)
    assert (found["runs"], found["failed"]) == (40, 0)
    assert found["worst"][0]["untrusted"]["scores"]["document_recall"] == 0.0
    assert {"document_recall", "ir_mrr"} <= {one["untrusted"]["key"] for one in found["scores"]}
