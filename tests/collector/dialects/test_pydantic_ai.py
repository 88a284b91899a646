"""pydantic-ai, from its own bytes: version 1 (content in events), 2, 3 and 5 of its data format."""

from __future__ import annotations

from functools import cache

import orjson
import pytest

from collector.dialects.sent import runs, stored, tokens, traces
from collector.dialects.vendors import run
from fixtures.dialects.capture import ANSWER
from spanwise.collector.records import Run, Trace

QUESTION = "When do parcels arrive?"
VERSIONS = (1, 2, 3, 5)


@cache
def sent(version: int) -> list[Trace]:
    with stored(f"pydantic_ai/version{version}") as store:
        return traces(store)


def text(message: object) -> tuple[object, object]:
    assert isinstance(message, dict)
    parts = message.get("parts", [message])
    return message["role"], parts[0].get("content")


@pytest.mark.parametrize("version", VERSIONS)
def test_an_agent_was_asked_and_has_answered(version: int) -> None:
    ran, streamed, failed = sent(version)
    assert [trace.root.kind for trace in (ran, streamed, failed)] == ["agent"] * 3
    assert list(map(text, ran.root.inputs)) == [("system", "Answer from the documents."), ("user", QUESTION)]
    assert ran.root.outputs == ANSWER
    assert list(map(text, streamed.root.inputs)) == [("system", "Be brief."), ("user", QUESTION)]
    assert streamed.root.outputs == ANSWER or list(map(text, streamed.root.outputs)) == [("assistant", ANSWER)]
    assert (failed.root.status, failed.root.outputs, list(map(text, failed.root.inputs))) == (
        "error",
        None,
        [("user", "When?")],
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_calls_and_tools_have_inputs_and_outputs(version: int) -> None:
    ran = sent(version)[0]
    called, answered = runs(ran, "llm")
    assert text(answered.outputs[0]) == ("assistant", ANSWER)
    assert [text(one)[0] for one in called.inputs] == ["system", "user"]
    [tool] = runs(ran, "tool")
    assert (tool.inputs, tool.outputs) == ({"query": "parcel"}, ["parcel: three days", "parcel: by ship"])


@pytest.mark.parametrize("version", VERSIONS)
def test_tokens_and_cost_are_counted_once(version: int) -> None:
    ran, streamed, failed = sent(version)
    assert [tokens(one) for one in (ran, streamed, failed)] == [[(21, 9), (21, 9)], [(21, 9)], []]
    assert [run.cost for run in ran.runs if run.cost is not None] == [8.55e-06, 8.55e-06]
    assert {run.model for run in runs(ran, "llm", "agent")} == {"gpt-4o-mini"}


def test_a_conversation_is_a_session() -> None:
    root = sent(5)[0].root
    assert root.session_id
    assert root.agent_name == "parcels"


def test_all_messages_stay() -> None:
    root: Run = sent(5)[0].root
    assert "pydantic_ai.all_messages" in root.attributes
    assert "final_result" not in root.attributes


# what no fixture has


def test_messages_fill_in_what_another_convention_has_left_open() -> None:
    asked = {"event.name": "gen_ai.user.message", "content": QUESTION}
    said = {"event.name": "gen_ai.choice", "message": {"content": ANSWER}}
    events = orjson.dumps([asked, said]).decode()
    found = run("pydantic-ai", **{"gen_ai.operation.name": "chat", "events": events, "output.value": "mine"})
    assert (found.outputs, found.inputs) == ("mine", [{"role": "user", "content": QUESTION}])
    assert found.attributes["events"] == events
