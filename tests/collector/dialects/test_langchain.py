"""LangChain and LangGraph through OpenInference's instrumentor, from its own bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from collector.dialects.sent import runs, stored, tokens, traces
from spanwise.collector.records import Document, Trace, Usage

QUESTION, ANSWER = "When does my parcel arrive?", "Parcels arrive within three days [1]."
DOCUMENTS = (
    Document("Parcels arrive within three days.", "d0", 0.9, {"score": 0.9, "page": 0}),
    Document("They arrive by bicycle.", "d1", 0.8, {"score": 0.8, "page": 1}),
)


@pytest.fixture(scope="module")
def sent() -> Iterator[list[Trace]]:
    """RAG, the same streamed, a tool, RAG with a model that fails."""
    with stored("openinference/langchain") as store:
        yield traces(store)


@pytest.mark.parametrize("place", [0, 1])
def test_a_chain_is_asked_and_answers(sent, place):
    root = sent[place].root
    assert (root.name, root.kind, root.inputs, root.outputs) == ("RunnableSequence", "chain", QUESTION, ANSWER)
    assert tokens(sent[place]) == [(21, 9)]


def test_whose_it_is(sent):
    for run in sent[0].runs:
        assert (run.session_id, run.user_id, run.tags) == ("s-1", "u-1", ("beta", "parcels"))
        assert run.metadata["channel"] == "chat"
        assert (run.project, run.resource["service.name"]) == ("parcels", "shop")


def test_documents_have_their_ids_and_the_scores_of_their_metadata(sent):
    (retriever,) = runs(sent[0], "retriever")
    assert (retriever.inputs, retriever.documents) == (QUESTION, DOCUMENTS)
    assert sent[0].documents == DOCUMENTS


@pytest.mark.parametrize("place", [0, 1])
def test_a_models_call_is_its_messages(sent, place):
    (call,) = runs(sent[place], "llm")
    assert [message["role"] for message in call.inputs] == ["system", "user"]
    assert call.inputs[1] == {"role": "user", "content": QUESTION}
    assert call.outputs == [{"role": "assistant", "content": ANSWER}]
    assert (call.model, call.usage) == ("gpt-4o-mini", Usage(21, 9))
    assert call.attributes["input.value"].startswith('{"messages"')  # LangChain's own form is kept


def test_a_tool(sent):
    root = sent[2].root
    assert (root.name, root.kind, root.inputs, root.outputs) == ("track", "tool", "P1", "P1 is in Ghent")


def test_what_fails_says_why(sent):
    (call,) = runs(sent[3], "llm")
    assert "no such model" in str(call.error)
    assert (call.model, sent[3].root.outputs, sent[3].root.status) == ("broken", None, "error")
    assert call.inputs[1]["content"] == QUESTION


def test_langgraphs_thread_is_a_session_and_its_steps_are_in_order():
    with stored("openinference/langgraph") as store:
        (agent,) = traces(store)
    assert {run.session_id for run in agent.runs} == {"t-1"}
    assert [run.name for run in agent.children(agent.root.span_id)] == ["model", "tools", "model"]
    assert agent.root.inputs == {"messages": [{"role": "user", "content": QUESTION}]}
    assert agent.root.outputs["messages"][-1]["data"]["content"] == ANSWER
    assert (agent.root.user_id, agent.root.metadata["user_id"]) == ("u-1", "u-1")
    assert tokens(agent) == [(21, 9), (21, 9)]


def test_langgraphs_tool_is_asked_for_called_and_answered():
    with stored("openinference/langgraph") as store:
        (agent,) = traces(store)
    first, second = runs(agent, "llm")
    function = {"name": "track", "arguments": '{"number": "parcel"}'}
    assert first.outputs == [
        {"role": "assistant", "tool_calls": [{"type": "function", "id": "call_1", "function": function}]}
    ]
    assert second.inputs[-1]["content"] == "parcel is in Ghent"
    assert second.outputs == [{"role": "assistant", "content": ANSWER}]
    assert [(run.name, run.inputs) for run in runs(agent, "tool")] == [("track", "parcel")]
