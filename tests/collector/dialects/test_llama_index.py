"""LlamaIndex through OpenInference's instrumentor, from its own bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from collector.dialects.sent import runs, stored, tokens, traces
from spanwise.collector.records import Trace, Usage

QUESTION, ANSWER = "When does my parcel arrive?", "Parcels arrive within three days [1]."


@pytest.fixture(scope="module")
def sent() -> Iterator[list[Trace]]:
    """An index, RAG, the same streamed, RAG with a model that fails, an agent."""
    with stored("openinference/llama_index") as store:
        yield traces(store)


def test_an_index_embeds_its_texts(sent):
    (call,) = [run for run in sent[0].runs if run.parent_id is None]
    assert (call.kind, call.model) == ("embedding", "text-embedding-3-small")
    assert [text[:7] for text in call.inputs["texts"]] == ["page: 0", "page: 1"]


def test_a_query_is_asked_and_answers(sent):
    root = sent[1].root
    assert (root.kind, root.inputs, root.outputs) == ("chain", QUESTION, ANSWER)
    assert (root.session_id, root.user_id, root.tags, root.metadata) == (
        "s-1",
        "u-1",
        ("beta", "parcels"),
        {"channel": "chat"},
    )


def test_documents_have_ids_scores_and_metadata_and_are_listed_once(sent):
    outer, inner = runs(sent[1], "retriever")
    assert [(each.content, each.id, each.metadata) for each in outer.documents] == [
        ("Parcels arrive within three days.", "d0", {"page": 0}),
        ("They arrive by bicycle.", "d1", {"page": 1}),
    ]
    assert [round(each.score or 0, 2) for each in outer.documents] == [0.88, 0.70]
    assert outer.outputs is None  # as they only name the documents
    assert inner.outputs[0].startswith("<NodeWithScore(")  # said of nodes, not their texts
    assert (inner.documents, sent[1].documents) == ((), outer.documents)


def test_a_models_call_is_its_messages_and_is_counted_once(sent):
    *_, call = runs(sent[1], "llm")
    assert [message["role"] for message in call.inputs] == ["system", "user"]
    assert QUESTION in call.inputs[1]["content"]
    assert call.outputs == [{"role": "assistant", "content": ANSWER}]
    assert (call.model, call.usage, tokens(sent[1])) == ("gpt-4o-mini", Usage(21, 9), [(21, 9)])


def test_a_streamed_answer_stands_at_the_models_call(sent):
    assert runs(sent[2], "llm")[-1].outputs == [{"role": "assistant", "content": ANSWER}]


def test_what_fails_says_why(sent):
    assert "no such model" in str(sent[3].root.error)
    assert {run.model for run in runs(sent[3], "llm")} == {"broken"}


def test_an_agents_tool(sent):
    (tool,) = [run for run in runs(sent[4], "tool") if run.attributes.get("tool.name")]
    assert tool.attributes["tool.name"] == "track"
    assert "parcel is in Ghent" in str(tool.outputs)
    assert tokens(sent[4]) == [(21, 9), (21, 9)]
