"""Vercel's AI SDK, from its own bytes: versions 4 to 6 with `experimental_telemetry`, 7 with `@ai-sdk/otel`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from collector.dialects.sent import runs, stored, tokens, traces
from looped_cases import loop_over
from spanwise.collector.dialects import Draft, RawSpan, read_run
from spanwise.collector.dialects.vercel import vercel
from spanwise.collector.records import Document, Run, Trace, Usage

QUESTION, ANSWER = "When does my parcel arrive?", "Parcels arrive within three days [1]."


@pytest.fixture(scope="module", params=[4, 5, 6])
def sent(request) -> Iterator[dict[str, Trace]]:
    """By the name that the program has given each call."""
    with stored(f"vercel/ai{request.param}") as store:
        yield {str(trace.root.attributes["ai.telemetry.functionId"]): trace for trace in traces(store)}


def one(trace: Trace, kind: str) -> Run:
    (run,) = runs(trace, kind)
    return run


def test_a_text_is_a_step_around_a_models_call(sent):
    root, call = sent["answer"].root, one(sent["answer"], "llm")
    assert (root.name, root.kind, root.inputs) == (
        "ai.generateText",
        "chain",
        {"system": "Be brief.", "prompt": QUESTION},
    )
    assert (call.name, call.parent_id) == ("ai.generateText.doGenerate", root.span_id)
    assert [message["role"] for message in call.inputs] == ["system", "user"]
    assert call.inputs[1]["content"] == [{"type": "text", "text": QUESTION}]
    assert root.outputs == call.outputs == ANSWER
    assert root.model == call.model == "gpt-4o-mini"


def test_whose_it_is(sent):
    for run in sent["answer"].runs:
        assert (run.session_id, run.user_id, run.tags) == ("s-1", "u-1", ("beta", "parcels"))
        assert run.metadata == {"channel": "chat"}
        assert not [name for name in run.attributes if name.startswith("ai.telemetry.metadata")]


@pytest.mark.parametrize("call", ["answer", "stream", "object", "streamed object"])
def test_tokens_are_counted_once_though_both_levels_say_them(sent, call):
    assert tokens(sent[call]) == [(21, 9)]
    assert any(name.startswith("ai.usage.") for name in sent[call].root.attributes)


def test_an_agents_steps_are_counted_each(sent):
    assert tokens(sent["agent"]) == tokens(sent["streamed agent"]) == [(21, 9), (21, 9)]


@pytest.mark.parametrize("call", ["agent", "streamed agent"])
def test_a_tool_is_asked_for_called_and_answered(sent, call):
    tool = one(sent[call], "tool")
    first, second = runs(sent[call], "llm")
    assert (tool.inputs, tool.outputs) == ({"number": "parcel"}, {"place": "Ghent", "number": "parcel"})
    ((asked,),) = [message["tool_calls"] for message in first.outputs]
    assert (asked["id"], asked["function"]["name"]) == ("call_1", "track")
    assert asked["function"]["arguments"] in ('{"number": "parcel"}', {"number": "parcel"})
    assert second.outputs == sent[call].root.outputs == ANSWER


def test_a_streamed_answer_is_whole_on_both_levels(sent):
    assert [run.outputs for run in sent["stream"].runs] == [ANSWER, ANSWER]
    assert [run.name for run in sent["stream"].runs] == ["ai.streamText", "ai.streamText.doStream"]


@pytest.mark.parametrize("call", ["object", "streamed object"])
def test_an_object_is_what_came_out(sent, call):
    assert [run.outputs for run in sent[call].runs] == [{"days": 3}, {"days": 3}]


def test_an_embedding_is_one_call_and_its_tokens_are_counted_once(sent):
    assert (sent["embed"].root.kind, sent["embed"].root.inputs) == ("chain", QUESTION)
    call = one(sent["embed many"], "embedding")
    assert (call.inputs, call.model, call.usage) == (["one", "two"], "text-embedding-3-small", Usage(8, 0))
    assert [len(vector) for vector in call.outputs] == [8, 8]
    assert tokens(sent["embed"]) == [(4, 0)]


def test_what_fails_says_why(sent):
    assert one(sent["failing tool"], "tool").status == "error"
    assert "no such parcel" in str(one(sent["failing tool"], "tool").error)
    assert [run.error for run in sent["broken"].runs] == ["AI_APICallError: no such model"] * 2
    assert (sent["broken"].root.inputs, sent["broken"].root.outputs) == ({"prompt": QUESTION}, None)


def test_version_7_speaks_opentelemetrys_names():
    with stored("vercel/ai7") as store:
        first, agent = traces(store)[:2]
        assert [run.kind for run in agent.runs] == ["agent", "chain", "llm", "tool", "chain", "llm"]
        assert (first.root.kind, tokens(first)) == ("agent", [(21, 9)])
        call = one(first, "llm")
    assert (call.model, call.outputs[0]["parts"]) == ("gpt-4o-mini", [{"type": "text", "content": ANSWER}])


# what no fixture has


def run(**attributes: object) -> Run:
    named = {name.replace("__", "."): value for name, value in attributes.items()}
    return read_run(RawSpan(trace_id="1" * 32, span_id="2" * 16, name="s", attributes=named), strict)


def strict(dialect: str, error: Exception) -> None:
    raise error


def test_version_3_called_them_results():
    found = run(ai__operationId="ai.streamText.doStream", ai__result__text="hi", ai__model__id="m")
    assert (found.kind, found.outputs, found.model) == ("llm", "hi", "m")


def test_a_reranker_gives_what_it_ranked():
    found = run(
        ai__operationId="ai.rerank.doRerank",
        ai__documents=['"a"', '"b"'],
        ai__ranking=['{"index":1,"relevanceScore":0.9}'],
    )
    assert (found.kind, found.outputs) == ("reranker", [{"index": 1, "relevanceScore": 0.9}])
    assert found.documents == (Document("b", None, 0.9),)


def test_tokens_that_a_provider_did_not_count_are_none():
    assert run(ai__operationId="ai.streamText.doStream", ai__usage__promptTokens="NaN").usage is None


def test_cached_and_reasoned_tokens_stand_in_the_details():
    found = run(
        ai__operationId="ai.generateText.doGenerate",
        ai__usage__inputTokens=9,
        ai__usage__outputTokens=5,
        ai__usage__cachedInputTokens=4,
        ai__usage__reasoningTokens=2,
    )
    assert found.usage == Usage(9, 5, {"cache_read.input_tokens": 4, "reasoning.output_tokens": 2})


@pytest.mark.parametrize(
    "attributes",
    [
        {"ai.prompt": "hi"},
        {"ai.operationId": 5, "ai.prompt": "hi"},
        {"ai.operationId": "image", "ai.prompt": "hi"},
        {"ai.cloud.role": "web"},
    ],
)
def test_others_may_have_names_in_ai(attributes):
    draft = Draft(RawSpan(trace_id="1" * 32, span_id="2" * 16, name="s", attributes=attributes))
    vercel(draft)
    assert (draft.attributes, draft.fields) == (attributes, {})


@loop_over("calls", ["{broken", "[1]", '{"toolName": "x"}', 7, ["x"], "[" * 2000, "null"])
def test_calls_of_tools_that_are_none_stay_where_they_are(calls):
    found = run(ai__operationId="ai.generateText.doGenerate", ai__response__toolCalls=calls, ai__response__text="hi")
    assert (found.outputs, found.attributes["ai.response.toolCalls"]) == ("hi", calls)


def test_metadata_that_makes_no_sense_is_metadata():
    found = run(ai__operationId="ai.toolCall", ai__telemetry__metadata__sessionId=7, ai__telemetry__metadata__tags="a")
    assert (found.session_id, found.tags, found.metadata) == (None, (), {"sessionId": 7, "tags": "a"})


def test_tokens_of_the_call_around_count_under_no_name():
    assert run(ai__operationId="ai.generateText", gen_ai__usage__input_tokens=7).usage is None


def test_tokens_summed_up_under_another_name_are_not_counted():
    assert run(gen_ai__aggregated_usage__input_tokens=7, gen_ai__operation__name="invoke_agent").usage is None
