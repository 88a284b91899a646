"""Haystack's own tracing, from its own bytes, with content and without; and through OpenInference's instrumentor."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest

from collector.dialects.sent import runs, stored, tokens, traces
from looped_cases import loop_over
from spanwise.collector.dialects import RawSpan, read_run
from spanwise.collector.records import Document, Run, Trace, Usage

QUESTION, ANSWER = "When does my parcel arrive?", "Parcels arrive within three days [1]."
ASKED = {"retriever": {"query": QUESTION}, "prompt": {"question": QUESTION}}


@pytest.fixture(scope="module")
def sent() -> Iterator[list[Trace]]:
    """RAG, the same streamed, an embedder, an agent, RAG with a model that fails."""
    with stored("haystack/content") as store:
        yield traces(store)


@pytest.mark.process
@pytest.mark.parametrize("place", [0, 1])
def test_a_pipeline_is_asked_and_answers(sent, place):
    root = sent[place].root
    assert (root.name, root.kind, root.inputs) == ("haystack.pipeline.run", "chain", ASKED)
    assert root.outputs["llm"]["replies"][0]["content"] == [{"text": ANSWER}]
    assert root.metadata == {"channel": "chat"}
    assert tokens(sent[place]) == [(21, 9)]


def test_spans_carry_the_names_of_components_and_tools(sent):
    assert [run.name for run in sent[0].runs[1:]] == ["retriever", "ranker", "prompt", "llm"]
    [track] = [run for trace in sent for run in runs(trace, "tool") if "haystack.tool.name" in run.attributes]
    assert (track.name, track.attributes["otel.span.name"]) == ("track", "haystack.agent.step.tool")


def test_components_are_known_by_their_class(sent):
    steps = [(run.attributes["haystack.component.type"], run.kind) for run in sent[0].runs[1:]]
    assert steps == [
        ("InMemoryBM25Retriever", "retriever"),
        ("MetaFieldRanker", "reranker"),
        ("ChatPromptBuilder", "chain"),
        ("OpenAIChatGenerator", "llm"),
    ]


def test_documents_have_ids_scores_and_metadata(sent):
    (retriever,), (ranker,) = runs(sent[0], "retriever"), runs(sent[0], "reranker")
    assert [(each.id, each.content) for each in retriever.documents] == [
        ("d1", "They arrive by bicycle."),
        ("d0", "Parcels arrive within three days."),
    ]
    assert [each.metadata for each in retriever.documents] == [{"page": 1}, {"page": 0}]
    assert [round(each.score or 0, 3) for each in retriever.documents] == [0.235, 0.222]
    assert sent[0].documents == ranker.documents
    assert [round(each.score or 0, 3) for each in ranker.documents] == [0.016, 0.016]


def test_a_generator_has_its_messages_model_and_tokens(sent):
    (call,) = runs(sent[0], "llm")
    assert call.inputs["messages"][0]["role"] == "user"
    assert call.outputs["replies"][0]["content"] == [{"text": ANSWER}]
    assert (call.model, call.usage) == ("gpt-4o-mini", Usage(21, 9))


def test_an_embedder_has_its_text_model_and_tokens(sent):
    (call,) = runs(sent[2], "embedding")
    assert (call.inputs, call.model, call.usage) == ({"text": QUESTION}, "text-embedding-3-small", Usage(4, 0))


def test_an_agents_calls_are_counted_and_its_own_sum_is_not(sent):
    agent = sent[3]
    assert (agent.root.kind, agent.root.outputs["messages"][-1]["content"]) == ("agent", [{"text": ANSWER}])
    assert tokens(agent) == [(21, 9), (21, 9)]
    (tool,) = runs(agent, "tool")
    assert (tool.inputs, tool.outputs) == ({"number": "parcel"}, "parcel is in Ghent")
    assert tool.attributes["haystack.tool.name"] == "track"


def test_what_fails_says_why(sent):
    (call,) = runs(sent[4], "llm")
    assert (call.status, sent[4].root.status, call.outputs) == ("error", "error", None)
    assert "no such model" in str(call.error)
    assert call.inputs["messages"]


def test_without_content_kinds_and_times_are_there_and_nothing_is_made_up():
    with stored("haystack/plain") as store:
        first, _, _, agent, _ = traces(store)
    assert [run.kind for run in agent.runs] == ["agent", "chain", "llm", "tool", "chain", "llm"]
    assert [run.kind for run in first.runs] == ["chain", "retriever", "reranker", "chain", "llm"]
    assert {(run.inputs is None, run.outputs, run.documents, run.usage) for run in first.runs[1:]} == {
        (True, None, (), None)
    }


# what no fixture has


def run(name: str = "haystack.component.run", **attributes: object) -> Run:
    named = {f"haystack.{key.replace('__', '.')}": value for key, value in attributes.items()}
    return read_run(RawSpan(trace_id="1" * 32, span_id="2" * 16, name=name, attributes=named), strict)


def strict(dialect: str, error: Exception) -> None:
    raise error


def output(value: object) -> str:
    return orjson.dumps(value).decode()


def test_a_generator_of_texts_says_its_model_and_tokens_beside_them():
    meta = {"model": "m", "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    meta["usage"] |= {"prompt_tokens_details": {"cached_tokens": 1}, "completion_tokens_details": None}
    found = run(
        component__type="OpenAIGenerator", component__output=output({"replies": ["a", "b"], "meta": [meta, meta]})
    )
    assert (found.kind, found.model) == ("llm", "m")
    assert found.usage == Usage(3, 2, {"cache_read.input_tokens": 1})


def test_metadata_with_the_name_of_a_field_stands_in_meta():
    given = {"id": "d", "content": None, "score": None, "meta": {"id": "7", "score": 3}, "page": 1, "blob": None}
    found = run(component__type="MyRetriever", component__output=output({"documents": [given]}))
    assert found.documents == (Document("", "d", None, {"page": 1, "id": "7", "score": 3}),)


NONSENSE = ["{broken", "[1]", "null", '{"documents": 5}', '{"documents": [5]}', '{"replies": 5, "meta": 5}', "[" * 2000]
NONSENSE += [
    '{"replies": [5, {"meta": 5}, {"meta": {"model": 5, "usage": 5}}]}',
    '{"meta": {"usage": {"prompt_tokens": -1}}}',
]


@loop_over("made", NONSENSE)
@loop_over("component", ["MyRetriever", "MyGenerator"])
def test_outputs_that_make_no_sense_are_outputs(component, made):
    found = run(component__type=component, component__output=made)
    assert (found.documents, found.model, found.usage) == ((), None, None)
    assert found.outputs is not None or made == "null"


# the same pipeline through openinference-instrumentation-haystack


def test_through_openinference():
    with stored("openinference/haystack") as store:
        rag, embedded, broken = traces(store)
    assert (rag.root.session_id, rag.root.user_id, rag.root.tags) == ("s-1", "u-1", ("beta", "parcels"))
    assert (rag.root.inputs, tokens(rag)) == ({"data": ASKED}, [(21, 9)])
    (retriever,), (call,) = runs(rag, "retriever"), runs(rag, "llm")
    assert [(each.id, each.metadata) for each in retriever.documents] == [("d1", {"page": 1}), ("d0", {"page": 0})]
    assert [each.id for each in rag.documents] == ["d1", "d0"]
    assert call.inputs[0]["content"].endswith(QUESTION)
    assert call.outputs == [{"role": "assistant", "content": ANSWER}]
    assert runs(embedded, "embedding")[0].model == "text-embedding-3-small"
    assert "no such model" in str(runs(broken, "llm")[0].error)
