"""OpenLLMetry's spans, messages in GenAI's words and over indexed attributes, from the bytes that its SDK sent."""

from __future__ import annotations

import pytest

from collector.dialects.vendors import ANSWER, QUESTION, Kept, kept, run, strict
from looped_cases import loop_over
from spanwise.collector.dialects import RawSpan, read_run
from spanwise.collector.records import Document, Event, Usage


@pytest.fixture(scope="module")
def new(tmp_path_factory) -> Kept:
    return kept(tmp_path_factory.mktemp("traceloop"), "traceloop/rag.jsonl.gz")


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> Kept:
    return kept(tmp_path_factory.mktemp("traceloop"), "traceloop/old.jsonl.gz")


@pytest.fixture(scope="module", params=["new", "old"])
def runs(request) -> Kept:
    return request.getfixturevalue(request.param)


def test_entities(runs):
    assert (runs.one("answer.workflow").inputs, runs.one("answer.workflow").outputs) == (QUESTION, ANSWER)
    assert (runs.one("track.tool").inputs, runs.one("track.tool").outputs) == ({"number": "parcel"}, "on its way")
    assert (runs.one("fails.workflow").inputs, runs.one("fails.workflow").error) == (
        "Where?",
        "ValueError: no such parcel",
    )


def test_kinds(runs):
    assert {one.name: one.kind for one in runs} == {
        "answer.workflow": "chain",
        "openai.embeddings": "embedding",
        "retrieve.task": "chain",
        "parcels.agent": "agent",
        "openai.chat": "llm",
        "track.tool": "tool",
        "fails.workflow": "chain",
    }


def test_documents_that_a_task_returned_have_ids_and_scores(runs):
    assert runs.one("retrieve.task").documents == (
        Document("Parcels take three days.", "d1", 0.9, {"page": 1}),
        Document("Parcels are insured.", "d2", 0.4, {"page": 7}),
    )


def test_association_properties_are_on_every_span_of_the_trace(runs):
    for one in (one for one in runs if one.name != "fails.workflow"):
        assert (one.session_id, one.user_id) == ("conversation-7", "ann")
        assert one.metadata == {"tier": "gold", "attempt": 2}


def test_models_and_tokens(new, old):
    assert [(one.model, one.usage) for one in new.all("openai.chat")][:2] == [("gpt-4o-mini", Usage(21, 9))] * 2
    called, told, failed = old.all("openai.chat")
    assert (called.model, called.usage, told.model) == ("gpt-4o-mini", Usage(21, 9), "gpt-4o-mini")
    assert (failed.model, failed.usage, failed.status) == ("broken", None, "error")
    assert new.one("openai.embeddings").usage.input_tokens == old.one("openai.embeddings").usage.input_tokens == 4


def test_messages_of_genai(new):
    called, told, _ = new.all("openai.chat")
    assert called.inputs[-1] == {"role": "user", "parts": [{"type": "text", "content": QUESTION}]}
    assert told.outputs[0]["parts"] == [{"type": "text", "content": ANSWER}]


def test_messages_of_indexed_attributes(old):
    called, told, _ = old.all("openai.chat")
    call = {"id": "call_1", "name": "track", "arguments": '{"number": "parcel"}'}
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}
    assert called.inputs == [system, user]
    assert called.outputs == [{"role": "assistant", "finish_reason": "tool_calls", "tool_calls": [call]}]
    answered = {"role": "tool", "content": "on its way", "tool_call_id": "call_1"}
    assert told.inputs == [system, user, {"role": "assistant", "tool_calls": [call]}, answered]
    assert told.outputs == [{"role": "assistant", "finish_reason": "stop", "content": ANSWER}]
    assert not [name for name in told.attributes if name.startswith(("gen_ai.prompt", "gen_ai.completion"))]


def test_its_instrumentors_without_its_sdk():
    found = run(gen_ai__prompt__0__content="hi", gen_ai__usage__prompt_tokens=3, llm__request__type="chat")
    assert (found.kind, found.inputs, found.usage) == ("llm", [{"content": "hi"}], Usage(3, 0))


def test_indices_leave_gaps_and_come_in_any_order():
    found = run(
        **{f"gen_ai.prompt.{index}.content": str(index) for index in (9999, 10, 0, 2)},
        **{f"gen_ai.prompt.0.tool_calls.{index}.name": str(index) for index in (7, 3)},
    )
    assert [one["content"] for one in found.inputs] == ["0", "2", "10", "9999"]
    assert found.inputs[0]["tool_calls"] == [{"name": "3"}, {"name": "7"}]


@loop_over("rest", ["10000.content", "-1.content", "²0.content", ".content", "1", "1.", "x.role", "999999.role"])
def test_an_index_that_is_none_stays(rest):
    found = run(**{"gen_ai.prompt.0.content": "hi", f"gen_ai.prompt.{rest}": "v"})
    assert (found.inputs, found.attributes[f"gen_ai.prompt.{rest}"]) == ([{"content": "hi"}], "v")


def test_tool_calls_that_are_said_twice_stay_as_they_are():
    found = run(
        **{"gen_ai.prompt.0.role": "a", "gen_ai.prompt.0.tool_calls": "[]", "gen_ai.prompt.0.tool_calls.0.id": "1"}
    )
    assert found.inputs == [{"role": "a", "tool_calls": "[]", "tool_calls.0.id": "1"}]


def test_langchains_callbacks_wrap_what_they_saw():
    inputs, outputs = '{"inputs": {"q": 1}, "tags": ["t"], "kwargs": {}}', '{"outputs": {"a": 2}, "kwargs": {}}'
    found = run(traceloop__entity__input=inputs, traceloop__entity__output=outputs)
    assert (found.inputs, found.outputs) == ({"q": 1}, {"a": 2})
    assert found.attributes["traceloop.entity.input"] == inputs  # tags were not read


def test_langchains_retriever_and_tool():
    asked = '{"query": "Where?", "tags": ["beta"], "kwargs": {"name": "R"}}'
    told = '{"documents": [{"page_content": "Three days.", "metadata": {"score": 0.9}}], "count": 1}'
    said = {"traceloop.entity.input": asked, "traceloop.entity.output": told, "traceloop.span.kind": "task"}
    found = run(**{"gen_ai.operation.name": "vector_db_retrieve", **said})
    assert (found.kind, found.inputs) == ("retriever", "Where?")
    assert found.documents == (Document("Three days.", None, 0.9, {"score": 0.9}),)
    assert run(traceloop__entity__output='{"output": "on its way", "kwargs": {}}').outputs == "on its way"


def test_json_that_was_cut_off_is_a_text():
    assert run(traceloop__entity__input='{"args": ["Wher').inputs == '{"args": ["Wher'


def test_a_workflow_does_not_count_the_tokens_of_its_calls():
    found = run(traceloop__span__kind="workflow", gen_ai__usage__prompt_tokens=7, gen_ai__usage__input_tokens=7)
    assert found.usage is None


@pytest.mark.parametrize(
    "outputs",
    [
        '[{"role": "user", "content": "hi", "id": 1}]',
        '[{"content": "a", "id": "1"}, 2]',
        '[{"content": "a"}]',
        "[]",
        '{"a": 1}',
    ],
)
def test_what_are_no_documents(outputs):
    assert run(traceloop__span__kind="task", traceloop__entity__output=outputs).documents == ()


def test_results_of_a_vector_database():
    def result(id: str, score: float) -> Event:
        said = {"id": id, "score": score, "metadata": '{"page": 1}', "document": f"text {id}"}
        return Event("db.query.result", 1, {f"db.query.result.{name}": value for name, value in said.items()})

    events = (Event("db.query.embeddings", 1), result("d1", 0.9), result("d2", 0.4))
    span = RawSpan(
        trace_id="1" * 32, span_id="2" * 16, name="pinecone.query", attributes={"db.system": "pinecone"}, events=events
    )
    found = read_run(span, strict)
    assert (found.kind, found.events) == ("retriever", events)
    assert found.documents == (Document("text d1", "d1", 0.9, {"page": 1}), Document("text d2", "d2", 0.4, {"page": 1}))


@loop_over(
    ("name", "value"),
    [
        ("traceloop.span.kind", ["tool"]),
        ("traceloop.span.kind", "dream"),
        ("traceloop.association.properties.session_id", ""),
        ("traceloop.association.properties.", "no name"),
        ("traceloop.entity.output", "null"),
        ("llm.request.type", 3),
    ],
)
def test_nonsense_stays_where_it_is(name, value):
    found = run(**{"traceloop.workflow.name": "w", name: value})
    assert found.attributes.get(name, found.metadata.get("session_id")) == value
