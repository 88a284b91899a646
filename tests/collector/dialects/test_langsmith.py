"""LangSmith's export over OpenTelemetry, from the bytes that its SDK sent: now, and at 0.4."""

from __future__ import annotations

import base64

import orjson
import pytest

from collector.dialects.vendors import ANSWER, QUESTION, Kept, kept, run
from looped_cases import loop_over
from spanwise.collector.records import Document, Usage


@pytest.fixture(scope="module", params=["langsmith/rag.jsonl.gz", "langsmith/old.jsonl.gz"])
def runs(request, tmp_path_factory) -> Kept:
    return kept(tmp_path_factory.mktemp("langsmith"), request.param)


def test_inputs_and_outputs_are_those_of_the_functions(runs):
    assert (runs.one("answer").inputs, runs.one("answer").outputs) == ({"question": QUESTION}, ANSWER)
    assert (runs.one("track").inputs, runs.one("track").outputs) == ({"number": "parcel"}, "on its way")
    assert (runs.one("fails").inputs, runs.one("fails").outputs) == ({"question": "Where?"}, None)


def test_kinds_are_those_that_it_names_not_those_of_the_operation(runs):
    kinds = {one.name: (one.kind, one.attributes["gen_ai.operation.name"]) for one in runs}
    assert kinds == {
        "answer": ("chain", "chain"),
        "embed": ("embedding", "embeddings"),
        "retrieve": ("retriever", "embeddings"),
        "fill": ("chain", "chat"),
        "ChatOpenAI": ("llm", "chat"),
        "track": ("tool", "execute_tool"),
        "own": ("llm", "chat"),
        "parse": ("chain", "parser"),
        "fails": ("chain", "chain"),
    }


def test_documents_have_ids_and_scores(runs):
    assert runs.one("retrieve").documents == (
        Document("Parcels take three days.", "d1", 0.9, {"id": "d1", "score": 0.9, "page": 1}),
        Document("Parcels are insured.", "d2", 0.4, {"id": "d2", "score": 0.4, "page": 7}),
    )


def test_a_models_calls(runs):
    called, told = [one for one in runs.all("ChatOpenAI") if one.status != "error"]
    assert [(one.model, one.usage) for one in (called, told)] == [("gpt-4o-mini", Usage(21, 9))] * 2
    assert called.inputs["messages"] == [{"role": "user", "content": QUESTION}]
    assert called.outputs["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "track"
    assert told.outputs["choices"][0]["message"]["content"] == ANSWER


def test_a_call_that_failed_says_so(runs):
    (failed,) = [one for one in runs.all("ChatOpenAI") if one.status == "error"]
    assert (failed.model, failed.outputs, failed.usage) == ("broken", None, None)
    assert "no such model" in failed.error


def test_finer_counts_of_tokens(runs):
    assert (runs.one("own").model, runs.one("own").usage) == ("own-1", Usage(7, 2, {"cache_read.input_tokens": 3}))


def test_session_user_tags_and_metadata_are_on_every_span_of_the_trace(runs):
    for one in (one for one in runs if one.name != "fails"):
        assert (one.session_id, one.user_id, one.tags) == ("conversation-7", "ann", ("beta", "eu"))
        assert one.metadata == {"tier": "gold", "limits": {"day": 3}}


def test_what_it_says_of_itself_stays_with_the_attributes(runs):
    attributes = runs.one("answer").attributes
    assert attributes["langsmith.trace.session_name"] == "shop"
    assert attributes["langsmith.metadata.ls_method"] == "traceable"


def test_the_tree_is_the_programs(runs):
    names = [one.name for one in runs.below(runs.one("answer"))]
    assert sorted(names) == ["ChatOpenAI"] * 3 + ["embed", "fill", "own", "parse", "retrieve", "track"]


@pytest.fixture(scope="module")
def langchain(tmp_path_factory) -> Kept:
    return kept(tmp_path_factory.mktemp("langchain"), "langsmith/langchain.jsonl.gz")


def test_langchains_messages(langchain):
    called, told = langchain.all("ChatOpenAI")
    assert called.inputs == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    assert called.outputs[0]["tool_calls"][0]["args"] == {"number": "parcel"}
    assert [message["role"] for message in told.inputs] == ["system", "user", "assistant", "tool"]
    assert told.outputs == [{"role": "assistant", "content": ANSWER}]
    assert '"generations"' in told.attributes["gen_ai.completion"]  # what else it said stays


def test_langgraphs_tokens_are_counted_once_and_its_documents_seen(langchain):
    assert [one.usage for one in langchain if one.usage] == [Usage(21, 9)] * 2
    assert [(one.content, one.id, one.score) for one in langchain.one("Parcels").documents] == [
        ("Parcels take three days.", "d1", 0.9),
        ("Parcels are insured.", "d2", 0.4),
    ]
    assert {(one.session_id, one.user_id) for one in langchain} == {("conversation-7", "ann")}


@loop_over(
    "value",
    [
        {"messages": [[]]},
        {"messages": [[{"lc": 1, "kwargs": []}]]},
        {"messages": [[{"lc": 1, "kwargs": {"content": 1}}], []]},
        {"messages": 3},
        {"messages": [[3]]},
        {"generations": [[{"message": {"lc": 1}}]]},
    ],
)
def test_what_are_none_of_langchains_messages(value):
    said = {"langsmith.span.kind": "llm", "gen_ai.prompt": orjson.dumps(value).decode()}
    assert run(**said, **{"gen_ai.completion": said["gen_ai.prompt"]}).inputs == value


def test_tokens_of_a_reply_that_a_chain_returns_are_counted_where_they_were_used():
    found = run(
        langsmith__span__kind="chain", gen_ai__usage__input_tokens=7, gen_ai__completion='{"usage_metadata": 1}'
    )
    assert (found.usage, found.attributes["gen_ai.usage.input_tokens"]) == (None, 7)


def test_kinds_in_capitals_and_a_thread_by_its_other_names():
    found = run(langsmith__span__kind="LLM", langsmith__metadata__thread_id="t", langsmith__span__tags=["a", "b"])
    assert (found.kind, found.session_id, found.tags) == ("llm", "t", ("a", "b"))


def test_the_cost_that_it_names():
    said = '{"input_tokens": 3, "output_tokens": 1, "total_cost": 0.5}'
    found = run(langsmith__span__kind="llm", langsmith__metadata__usage_metadata=said)
    assert (found.usage, found.cost) == (Usage(3, 1), 0.5)


@pytest.mark.parametrize("own", [{"langsmith.span.kind": "llm"}, {"langsmith.metadata.tier": "gold"}])
def test_a_call_by_opentelemetrys_names_with_some_of_langsmiths_is_read_whole(own):
    said = [{"role": "assistant", "parts": [{"type": "text", "content": ANSWER}]}]
    call = {
        "gen_ai.operation.name": "chat",
        "gen_ai.output.messages": orjson.dumps(said).decode(),
        "gen_ai.usage.input_tokens": 7,
    }
    found = run(**call, **own)
    assert (found.kind, found.outputs, found.usage) == ("llm", said, Usage(7, 0))


@pytest.mark.parametrize("tokens", ["", "many", -1])
def test_half_a_usage_costs_nothing_of_the_other_half(tokens):
    found = run(langsmith__span__kind="llm", gen_ai__usage__input_tokens=tokens, gen_ai__usage__output_tokens=2)
    assert (found.usage, found.attributes["gen_ai.usage.input_tokens"]) == (Usage(0, 2), tokens)


@loop_over(
    ("name", "value"),
    [
        ("langsmith.span.kind", ["llm"]),
        ("langsmith.span.kind", "wizard"),
        ("langsmith.span.tags", 7),
        ("langsmith.span.tags", ""),
        ("langsmith.metadata.", "no name"),
        ("langsmith.metadata", "no dot"),
        ("gen_ai.completion", '{"output":null}'),
        ("gen_ai.completion", "null"),
    ],
)
def test_nonsense_stays_where_it_is(name, value):
    assert run(**{"langsmith.trace.name": "s", name: value}).attributes[name] == value


@loop_over("value", ["eyJ", "e30=!", "eine Frage", "[" * 5000, '{"a": ', base64.b64encode(b"\xff").decode()])
def test_a_text_that_is_no_json_is_the_text(value):
    assert run(**{"langsmith.trace.name": "s", "gen_ai.prompt": value}).inputs == value
