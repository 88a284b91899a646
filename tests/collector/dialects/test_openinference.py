"""OpenInference: its instrumentor of OpenAI, from its own bytes, and what of its specification no fixture has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from collector.dialects.sent import stored, traces
from looped_cases import loop_over
from spanwise.collector.dialects import RawSpan, read_run
from spanwise.collector.records import Document, Run, Usage

QUESTION, ANSWER = "When does my parcel arrive?", "Parcels arrive within three days [1]."


@pytest.fixture(scope="module")
def sent() -> Iterator[list[Run]]:
    """A tool asked for, its answer given, a stream, an image, completions, embeddings, responses, a model that fails."""
    with stored("openinference/openai") as store:
        yield [trace.root for trace in traces(store)]


def test_whose_it_is(sent):
    for run in sent:
        assert (run.session_id, run.user_id, run.tags) == ("s-1", "u-1", ("beta", "parcels"))
        assert run.metadata == {"channel": "chat"}


def test_calls_of_tools_are_as_openai_writes_them(sent):
    function = {"name": "track", "arguments": '{"number": "parcel"}'}
    asked = {"role": "assistant", "tool_calls": [{"type": "function", "id": "call_1", "function": function}]}
    assert sent[0].inputs == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    assert sent[0].outputs == [asked]
    assert sent[1].inputs[2:] == [asked, {"role": "tool", "tool_call_id": "call_1", "content": "in Ghent"}]
    assert sent[1].outputs == [{"role": "assistant", "content": ANSWER}]


def test_the_request_and_the_response_are_kept_as_they_were(sent):
    assert '"temperature": 0.5' in sent[0].attributes["input.value"]
    assert sent[0].attributes["output.mime_type"] == "application/json"


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_model_and_tokens(sent, place):
    assert (sent[place].model, sent[place].usage, sent[place].kind) == ("gpt-4o-mini", Usage(21, 9), "llm")


def test_a_stream_is_one_answer(sent):
    assert sent[2].outputs == [{"role": "assistant", "content": ANSWER}]


def test_an_image_is_a_part_of_its_message(sent):
    image = {"type": "image", "image": {"url": "https://example.org/parcel.png"}}
    assert sent[3].inputs == [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]}]


def test_completions_are_texts(sent):
    assert (sent[4].inputs, sent[4].outputs) == (["one", "two"], [" answer 0", " answer 1"])


def test_embeddings(sent):
    assert (sent[5].kind, sent[5].model, sent[5].usage) == ("embedding", "text-embedding-3-small", Usage(8, 0))
    assert sent[5].inputs["input"] == ["Parcels arrive within three days.", "They arrive by bicycle."]


def test_responses(sent):
    assert sent[6].inputs == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    assert sent[6].outputs == [{"role": "assistant", "content": [{"type": "text", "text": ANSWER}]}]


def test_a_model_that_never_answered_is_known_from_its_parameters(sent):
    assert (sent[7].model, sent[7].outputs, sent[7].usage) == ("broken", None, None)
    assert "no such model" in str(sent[7].error)
    assert sent[7].attributes["llm.invocation_parameters"] == '{"model": "broken"}'


def test_what_is_said_in_opentelemetrys_names_as_well_is_read_once(sent):
    with stored("openinference/openai_genai") as store:
        again = [trace.root for trace in traces(store)]
    assert [(run.inputs, run.outputs, run.usage, run.model) for run in again] == [
        (run.inputs, run.outputs, run.usage, run.model) for run in sent
    ]
    assert [run.cost for run in again] == [run.cost for run in sent]
    assert "gen_ai.input.messages" in again[0].attributes


# what no fixture has


def run(kind: str = "LLM", **attributes: object) -> Run:
    named = {name.replace("__", "."): value for name, value in attributes.items()}
    return of({"openinference.span.kind": kind} | named)


def of(attributes: dict[str, object]) -> Run:
    return read_run(RawSpan(trace_id="1" * 32, span_id="2" * 16, name="s", attributes=attributes), strict)


def strict(dialect: str, error: Exception) -> None:
    raise error


def test_messages_of_a_chain_say_only_a_part_of_it():
    found = run("CHAIN", input__value="all", **{"llm.input_messages.0.message.content": "some"})
    assert (found.inputs, found.attributes) == ("all", {"llm.input_messages.0.message.content": "some"})


def test_a_role_alone_says_nothing():
    found = run(output__value="sorry", **{"llm.output_messages.0.message.role": "assistant"})
    assert found.outputs == "sorry"


def test_prompts_as_a_list():
    assert run(llm__prompts=["one", "two"]).inputs == ["one", "two"]
    assert run(**{"llm.prompts.0.prompt.text": "one"}).inputs == "one"
    assert run(llm__prompts=[1], input__value="x").inputs == "x"


def test_contents_beside_a_content_keep_their_name():
    said = {"llm.output_messages.0.message.content": "hi"}
    said |= {"llm.output_messages.0.message.contents.0.message_content.type": "reasoning"}
    said |= {"llm.output_messages.0.message.contents.0.message_content.signature": "s"}
    assert run(**said).outputs == [{"content": "hi", "contents": [{"type": "reasoning", "signature": "s"}]}]


@pytest.mark.parametrize(
    "rest", ["tool_calls.x.tool_call.id", "contents.x.other.type", "tool_calls.0.tool_call", "a.b.c"]
)
def test_a_name_that_is_of_no_message_is_kept_in_it(rest):
    assert run(**{f"llm.input_messages.0.message.{rest}": "x"}).inputs == [{rest: "x"}]


CALL = {"id": "tu_1", "function.name": "weather", "function.arguments": "{}"}
TOOL = {"type": "function", "id": "tu_1", "function": {"name": "weather", "arguments": "{}"}}


def answered(**flat: str) -> Any:
    message = "llm.output_messages.0.message."
    return run(**{f"{message}role": "assistant", **{message + name: value for name, value in flat.items()}}).outputs


def test_a_tool_call_of_anthropics_content_is_a_tool_call_once():
    within = {f"contents.1.tool_call.{name}": value for name, value in CALL.items()}
    text = {"contents.0.message_content.type": "text", "contents.0.message_content.text": "Let me see"}
    said = {**text, "contents.1.message_content.type": "tool_use", **within}
    expected = [{"role": "assistant", "content": [{"type": "text", "text": "Let me see"}], "tool_calls": [TOOL]}]
    assert answered(**said) == expected
    assert answered(**said, **{f"tool_calls.0.tool_call.{name}": value for name, value in CALL.items()}) == expected


def test_tool_calls_of_a_content_follow_the_listed_ones():
    other = {"tool_calls.0.tool_call.id": "tu_0", "contents.0.message_content.type": "tool_use"}
    [message] = answered(**other, **{f"contents.0.tool_call.{name}": value for name, value in CALL.items()})
    assert message == {
        "role": "assistant",
        "tool_calls": [{"type": "function", "id": "tu_0", "function": {}}, TOOL],
    }


def test_what_else_a_part_has_is_in_the_part():
    assert answered(**{"contents.0.other.type": "x"}) == [{"role": "assistant", "content": [{"other": {"type": "x"}}]}]


def test_parts_with_names_that_contradict_each_other_lose_nothing():
    prefix = "llm.input_messages.0.message.contents.0.message_content."
    found = run(**{f"{prefix}image": "x", f"{prefix}image.image.url": "u"})
    assert found.inputs == [{"content": [{"image": "x", "image.image.url": "u"}]}]


@pytest.mark.parametrize("name", ["model", "model_name", "model_id"])
def test_the_model_of_parameters(name):
    assert run(llm__invocation_parameters=f'{{"{name}": "m", "temperature": 1}}').model == "m"


@loop_over("given", ["{broken", "[1]", '{"model": 5}', '{"model": ""}', "null", "[" * 2000, 7])
def test_parameters_without_a_model_name_none(given):
    found = run(llm__invocation_parameters=given)
    assert (found.model, found.attributes) == (None, {"llm.invocation_parameters": given})


def test_a_reranker_is_asked_a_query_about_documents():
    given = {"reranker.query": "q", "reranker.input_documents.0.document.content": "a", "reranker.model_name": "m"}
    given |= {"reranker.output_documents.0.document.content": "a", "reranker.output_documents.0.document.score": 0.5}
    found = run("RERANKER", **given)
    assert (found.inputs, found.model) == ({"query": "q", "documents": [{"content": "a"}]}, "m")
    assert (found.documents, found.attributes) == ((Document("a", None, 0.5),), {})


def test_a_query_beside_inputs_stays_an_attribute():
    found = run("RERANKER", input__value="x", reranker__query="q")
    assert (found.inputs, found.attributes) == ("x", {"reranker.query": "q"})


def test_what_a_document_has_no_field_for_stands_in_its_metadata():
    prefix = "retrieval.documents.0.document."
    given = {"content": "a", "name": "n.pdf", "mime_type": "application/pdf", "url": "https://x.org/n.pdf"}
    found = run("RETRIEVER", **{prefix + name: value for name, value in given.items()})
    metadata = {"name": "n.pdf", "mime_type": "application/pdf"}
    assert found.documents == (Document("a", "https://x.org/n.pdf", None, metadata),)


def test_a_score_and_metadata_that_are_none_are_kept_all_the_same():
    given = {"document.content": "a", "document.score": "high", "document.metadata": "{broken"}
    found = run("RETRIEVER", **{f"retrieval.documents.0.{name}": value for name, value in given.items()})
    assert found.documents == (Document("a", None, None, {"score": "high", "metadata": "{broken"}),)


@pytest.mark.parametrize(
    ("within", "score"), [({"score": 0.5}, 0.5), ({"relevance_score": "0.25"}, 0.25), ({"score": "x"}, None)]
)
def test_a_score_in_metadata_counts_where_there_is_no_other(within, score):
    from orjson import dumps

    named = {
        "retrieval.documents.0.document.content": "a",
        "retrieval.documents.0.document.metadata": dumps(within).decode(),
    }
    assert run("RETRIEVER", **named).documents == (Document("a", None, score, within),)
    named["retrieval.documents.0.document.score"] = 0.75
    assert run("RETRIEVER", **named).documents[0].score == 0.75


def test_files_are_what_a_step_was_given_and_made():
    found = run("CHAIN", **{"input.documents.0.document.url": "u", "output.documents.0.document.content": "text"})
    assert (found.inputs, found.outputs, found.attributes) == ([{"url": "u"}], [{"content": "text"}], {})
    assert found.documents == ()


def test_listed_documents_stay_attributes_beside_documents_of_our_own():
    listed = "retrieval.documents.0.document.content"
    found = run("RETRIEVER", **{"spanwise.documents": '[{"content": "ours"}]', listed: "theirs"})
    assert (found.documents, found.attributes) == ((Document("ours"),), {listed: "theirs"})


def test_files_that_a_retriever_gives_are_its_documents():
    found = run("RETRIEVER", input__value="q", **{"output.documents.0.document.content": "text"})
    assert (found.documents, found.attributes) == ((Document("text"),), {})


def test_files_beside_inputs_stay_attributes():
    found = run("CHAIN", input__value="q", **{"input.documents.0.document.url": "u"})
    assert (found.inputs, found.attributes) == ("q", {"input.documents.0.document.url": "u"})


def test_a_decision_has_a_model_and_tokens_of_its_own_names():
    found = run(
        "DECISION",
        decision__request__model_name="jev-latest",
        decision__model_name="jev-1",
        decision__token_count__input=412,
        decision__token_count__output=2,
    )
    assert (found.kind, found.model, found.usage) == ("chain", "jev-1", Usage(412, 2))
    assert found.attributes == {"decision.request.model_name": "jev-latest"}


def test_a_decision_of_before_says_it_as_a_model_does():
    assert run("DECISION", llm__token_count__prompt=4).usage == Usage(4, 0)


@pytest.mark.parametrize("kind", ["AGENT", "CHAIN"])
def test_tokens_and_costs_that_a_step_sums_up_are_not_counted_again(kind):
    found = run(kind, llm__token_count__prompt=4, llm__cost__total=0.5)
    assert (found.usage, found.cost) == (None, None)
    assert run(kind, llm__token_count__prompt=4, gen_ai__usage__input_tokens=4).usage is None  # said twice
    assert run(kind, gen_ai__usage__input_tokens=4).usage == Usage(4, 0)
    assert found.attributes == {"llm.token_count.prompt": 4, "llm.cost.total": 0.5}


def test_tokens_from_a_cache_by_either_name():
    names = {"llm.token_count.prompt": 9, "llm.token_count.prompt_details.cache_input": 4}
    assert run(**names).usage == Usage(9, 0, {"cache_read.input_tokens": 4})
    found = run(**names, **{"llm.token_count.prompt_details.cache_read": 3})
    assert found.usage == Usage(9, 0, {"cache_read.input_tokens": 3})
    assert found.attributes == {"llm.token_count.prompt_details.cache_input": 4}


def test_details_that_are_no_counts_stay():
    found = run(**{"llm.token_count.prompt": 9, "llm.token_count.prompt_details.audio": "many"})
    assert found.attributes == {"llm.token_count.prompt_details.audio": "many"}


def test_a_cost_is_the_sum_of_its_parts_where_no_total_is_said():
    found = run(llm__cost__prompt=0.25, llm__cost__completion=0.5, **{"llm.cost.prompt_details.input": 0.2})
    assert found.cost == 0.75
    assert set(found.attributes) == {"llm.cost.prompt", "llm.cost.completion", "llm.cost.prompt_details.input"}
    assert run(llm__cost__prompt=0.25).cost is None


def test_texts_that_became_vectors_are_inputs_where_nothing_else_is():
    vectors = {"embedding.embeddings.0.embedding.text": "a", "embedding.embeddings.0.embedding.vector": [0.5]}
    found = run("EMBEDDING", **vectors)
    assert (found.inputs, found.attributes) == ("a", vectors)
    assert run("EMBEDDING", input__value="x", **vectors).inputs == "x"


def tool_run(attributes: dict[str, Any]) -> Run:
    return read_run(RawSpan(trace_id="1" * 32, span_id="2" * 16, name="call", attributes=attributes))


def test_the_parameters_of_a_tool_are_its_inputs_if_it_has_no_others() -> None:
    tool = {"openinference.span.kind": "TOOL", "tool.name": "weather", "tool.parameters": '{"city": "Rome"}'}
    assert tool_run(tool).inputs == {"city": "Rome"}
    assert tool_run(tool).attributes == {"tool.name": "weather"}
    assert tool_run({**tool, "input.value": "Rome"}).inputs == "Rome"


@pytest.mark.parametrize("parameters", ['{"type": "object", "properties": {}}', "text", "[1]", 7, "", None])
def test_a_schema_of_a_tool_is_not_its_inputs(parameters: Any) -> None:
    tool = tool_run({"openinference.span.kind": "TOOL", "tool.parameters": parameters})
    assert (tool.inputs, tool.attributes) == (None, {"tool.parameters": parameters})
