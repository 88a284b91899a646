from typing import Any

import orjson
import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from looped_cases import loop_over
from spanwise.collector.dialects import Draft, RawSpan, read_run, read_sdk_span
from spanwise.collector.dialects.translation import DIALECTS
from spanwise.collector.records import Document, Event, Run, Usage

JSON_OUTPUT = {"output.mime_type": "application/json"}


def strict(dialect: str, error: Exception) -> None:
    """What in production is counted and logged fails a test."""
    raise error


def raw(attributes: dict | None = None, **envelope: Any) -> RawSpan:
    return RawSpan(trace_id="1" * 32, span_id="2" * 16, name="s", attributes=attributes or {}, **envelope)


def run(resource: dict | None = None, **attributes: object) -> Run:
    return read_run(raw(attributes, resource=resource or {}), strict)


def test_openinference_values_become_inputs_and_outputs():
    found = run(
        **{
            "openinference.span.kind": "CHAIN",
            "input.value": '{"question": "why?"}',
            "input.mime_type": "application/json",
            "output.value": "because",
            "output.mime_type": "text/plain",
        }
    )
    assert (found.kind, found.inputs, found.outputs) == ("chain", {"question": "why?"}, "because")
    assert found.attributes == {}


def test_text_that_claims_to_be_json_stays_text():
    found = run(**{"input.value": "{broken", "input.mime_type": "application/json"})
    assert found.inputs == "{broken"


def test_documents_spread_over_attributes_come_back_in_order():
    spread = {f"retrieval.documents.{i}.document.content": f"text {i}" for i in (10, 2)}
    spread |= {"retrieval.documents.2.document.id": "two", "retrieval.documents.2.document.score": 0.5}
    spread |= {"retrieval.documents.2.document.metadata": '{"page": 3}'}
    found = run(**{"openinference.span.kind": "RETRIEVER"}, **spread)
    assert found.documents == (Document("text 2", "two", 0.5, {"page": 3}), Document("text 10"))
    assert found.attributes == {}


@pytest.mark.parametrize("index", ["999999999999", "-1", "x", "", "²"])
def test_an_index_that_is_no_index_stays_an_attribute(index):
    found = run(**{f"retrieval.documents.{index}.document.content": "text"})
    assert found.documents == ()
    assert found.attributes == {f"retrieval.documents.{index}.document.content": "text"}


def test_documents_of_spanwise_win_over_the_flattened_copy():
    found = run(
        **{
            "spanwise.documents": '[{"content": "a", "id": "1", "score": 0.5, "metadata": {"k": 1}}]',
            "retrieval.documents.0.document.content": "a",
        }
    )
    assert found.documents == (Document("a", "1", 0.5, {"k": 1}),)
    assert found.attributes == {}


def langchain(outputs: str, **listed: str) -> Run:
    """A retriever's span as OpenInference's instrumentor of LangChain sends it: no ids, and no empty documents."""
    texts = {f"retrieval.documents.{key[1:]}.document.content": text for key, text in listed.items()}
    kind = {"openinference.span.kind": "RETRIEVER", "output.mime_type": "application/json"}
    return run(**kind, **texts, **{"output.value": outputs})


def test_ids_and_empty_documents_that_langchain_does_not_list_come_from_its_outputs():
    said = """{"documents": [{"id": "d1", "metadata": {"source": "s"}, "page_content": "a", "type": "Document"},
        {"id": "d2", "page_content": "", "type": "Document"}, {"id": null, "page_content": "b", "metadata": {}}]}"""
    assert langchain(said, d0="a", d2="b").documents == (Document("a", "d1"), Document("", "d2"), Document("b"))


@loop_over(
    "outputs",
    ["[]", "{broken", '"a"', '{"documents": ["b", "a"]}', '{"documents": [{"id": "x", "text": "other"}]}', "[" * 2000],
)
def test_outputs_that_are_not_the_listed_documents_name_none(outputs):
    assert langchain(outputs, d0="a", d1="b").documents == (Document("a"), Document("b"))


def test_outputs_of_more_than_a_megabyte_are_not_looked_into_for_ids():
    said = '{"documents": [{"id": "d", "text": "a"}]}'
    listed = {"retrieval.documents.0.document.content": "a"}
    assert run(**listed, **{"output.value": said}).documents[0].id == "d"
    assert run(**listed, **{"output.value": said + " " * 2**20}).documents[0].id is None


def test_ids_stand_in_metadata_and_in_objects_that_langchain_wrote():
    listed = {"retrieval.documents.0.document.content": "a", "retrieval.documents.0.document.metadata": '{"id": 7}'}
    assert run(**listed).documents[0].id == "7"
    lc = {"lc": 1, "type": "constructor", "id": ["langchain", "Document"], "kwargs": {"page_content": "a", "id": "x"}}
    assert run(**{"gen_ai.retrieval.documents": orjson.dumps([lc]).decode()}).documents == (Document("a", "x"),)


@pytest.mark.parametrize("empty", ['{"content": ""}', '{"content": null}', '{"page_content": null, "id": "d"}'])
def test_an_empty_document_keeps_its_rank(empty):
    found = run(**{"openinference.span.kind": "RETRIEVER", "output.value": f'[{empty}, "b"]'} | JSON_OUTPUT)
    assert [document.content for document in found.documents] == ["", "b"]


def test_a_listed_document_without_content_keeps_its_rank():
    listed = {"retrieval.documents.0.document.score": 0.5, "retrieval.documents.1.document.content": "b"}
    assert run(**listed).documents == (Document("", None, 0.5), Document("b"))


def test_outputs_of_a_retriever_are_its_documents():
    found = run(
        **{
            "openinference.span.kind": "RETRIEVER",
            "output.value": '["a", {"page_content": "b", "doc_uri": "u"}]',
            "output.mime_type": "application/json",
        }
    )
    assert found.documents == (Document("a"), Document("b", "u"))


def test_openinference_llm_call():
    found = run(
        **{
            "openinference.span.kind": "LLM",
            "llm.model_name": "m-1",
            "llm.token_count.prompt": 10,
            "llm.token_count.completion": 5,
            "llm.token_count.total": 15,
            "llm.token_count.prompt_details.cache_read": 4,
            "llm.cost.total": 0.25,
            "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.content": "hi",
        }
    )
    assert found.usage == Usage(10, 5, {"cache_read.input_tokens": 4})
    assert (found.model, found.cost) == ("m-1", 0.25)
    assert found.inputs == [{"role": "user", "content": "hi"}]
    assert found.attributes == {}


@pytest.mark.parametrize(("tokens", "counted"), [(0, 0), ("7", 7), (2**53 - 1, 2**53 - 1), (2**53, None), (-1, None)])
def test_tokens_are_whole_numbers_that_a_float_holds(tokens, counted):
    found = run(**{"gen_ai.usage.input_tokens": tokens})
    assert found.usage == (None if counted is None else Usage(counted, 0))


def test_genai_llm_call():
    messages = '[{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]'
    found = run(
        **{
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "gpt",
            "gen_ai.response.model": "gpt-2026",
            "gen_ai.usage.input_tokens": 7,
            "gen_ai.usage.output_tokens": 3,
            "gen_ai.usage.reasoning.output_tokens": 2,
            "gen_ai.input.messages": messages,
            "gen_ai.conversation.id": "c-1",
        }
    )
    assert (found.kind, found.model, found.session_id) == ("llm", "gpt-2026", "c-1")
    assert found.usage == Usage(7, 3, {"reasoning.output_tokens": 2})
    assert found.inputs[0]["role"] == "user"
    assert found.attributes == {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt"}


def test_tokens_that_an_agent_sums_up_are_not_counted_again():
    found = run(**{"gen_ai.operation.name": "invoke_agent", "gen_ai.usage.input_tokens": 7})
    assert (found.kind, found.usage) == ("agent", None)
    assert found.attributes["gen_ai.usage.input_tokens"] == 7


def test_genai_retrieval_and_tool():
    documents = '[{"id": "d1", "score": 0.9, "content": "text"}]'
    found = run(**{"gen_ai.operation.name": "retrieval", "gen_ai.retrieval.documents": documents})
    assert (found.kind, found.documents) == ("retriever", (Document("text", "d1", 0.9),))
    found = run(**{"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.arguments": '{"city": "Rome"}'})
    assert (found.kind, found.inputs) == ("tool", {"city": "Rome"})


def test_whose_span_it_is():
    resource = {"openinference.project.name": "bot", "deployment.environment.name": "prod", "service.name": "web"}
    found = run(resource, **{"session.id": "s", "user.id": "u", "tag.tags": ["a", "b"], "metadata": '{"k": 1}'})
    assert (found.project, found.environment, found.session_id, found.user_id) == ("bot", "prod", "s", "u")
    assert (found.tags, found.metadata, found.attributes) == (("a", "b"), {"k": 1}, {})
    assert run({"service.name": "web"}).project == "web"
    assert run({"service.name": "unknown_service:python"}).project == "default"


def test_the_experiment_is_taken_and_the_counts_of_spans_are_left():
    found = run(
        **{
            "spanwise.experiment.id": "e",
            "spanwise.example.id": "x",
            "spanwise.repetition": 2,
            "spanwise.spans.open": 0,
        }
    )
    assert (found.experiment_id, found.example_id, found.repetition) == ("e", "x", 2)
    assert found.attributes == {"spanwise.spans.open": 0}


@loop_over(
    ("name", "value"),
    [
        ("metadata", "[1]"),
        ("tag.tags", "a"),
        ("session.id", 5),
        ("llm.token_count.prompt", "x"),
        ("spanwise.cost", True),
        ("llm.cost.total", "inf"),
        ("openinference.span.kind", ["LLM"]),
        ("gen_ai.operation.name", ["chat"]),
    ],
)
def test_a_value_of_the_wrong_type_stays_an_attribute(name, value):
    assert run(**{name: value}).attributes == {name: value}


def test_an_error_tells_its_type_and_message():
    event = Event("exception", 1, {"exception.type": "ValueError", "exception.message": "no"})
    failed = read_run(raw(status=2, message="ignored", events=(event,)))
    assert (failed.status, failed.error) == ("error", "ValueError: no")
    assert read_run(raw({"error.type": "timeout"}, status=2)).error == "timeout"


def test_what_the_envelope_says_besides():
    assert read_run(raw(kind=3, scope="lib", scope_version="1", trace_state="a=b")).attributes == {
        "otel.span.kind": "client",
        "otel.scope.name": "lib",
        "otel.scope.version": "1",
        "otel.trace_state": "a=b",
    }


def test_a_span_of_the_sdk():
    memory = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"openinference.project.name": "p"}))
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("spanwise.tracer")
    with pytest.raises(KeyError), tracer.start_as_current_span("outer"), tracer.start_as_current_span("inner") as span:
        span.set_attributes({"input.value": "hi", "tag.tags": ("x",)})
        raise KeyError("k")
    inner, outer = map(read_sdk_span, memory.get_finished_spans())
    assert (inner.parent_id, inner.trace_id) == (outer.span_id, outer.trace_id)
    assert (inner.inputs, inner.tags, inner.project, inner.error) == ("hi", ("x",), "p", "KeyError: 'k'")
    assert inner.end_ns >= inner.start_ns > 0


# the seam: what a dialect sees, and what becomes of one that fails


def messages_in_events(draft: Draft) -> None:
    """As OTel GenAI ≤ 1.36 has them."""
    prompts = [event.attributes for event in draft.span.events if event.name == "gen_ai.user.message"]
    if prompts and "inputs" not in draft.fields:
        draft.fields["inputs"] = prompts


def by_scope(draft: Draft) -> None:
    if draft.span.scope == "logfire.pydantic_ai" and "return" in draft.attributes:
        draft.fields["outputs"] = draft.attributes.pop("return")


def content_comes_later(draft: Draft) -> None:
    if "response.id" in draft.attributes:
        draft.awaits += ("inputs", "outputs")


def broken(draft: Draft) -> None:
    """Fails half way: what it did before that is undone."""
    draft.fields["inputs"] = draft.attributes.pop("input.value", None)
    draft.awaits += ("outputs",)
    raise AttributeError("'str' object has no attribute 'get'")


def test_a_dialect_reads_events():
    event = Event("gen_ai.user.message", 1, {"content": "hi"})
    found = read_run(raw(events=(event,)), strict, [messages_in_events])
    assert (found.inputs, found.events) == ([{"content": "hi"}], (event,))


def test_a_dialect_is_chosen_by_scope():
    assert read_run(raw({"return": 1}, scope="logfire.pydantic_ai"), strict, [by_scope]).outputs == 1
    assert read_run(raw({"return": 1}, scope="other"), strict, [by_scope]).attributes["return"] == 1


def test_what_comes_later_is_told_from_what_was_not_given():
    assert read_run(raw({"response.id": "r"}), strict, [content_comes_later]).attributes["spanwise.awaits"] == [
        "inputs",
        "outputs",
    ]
    assert read_run(raw(), strict, [content_comes_later]).attributes == {}


@loop_over("place", range(len(DIALECTS) + 1))
def test_a_dialect_that_fails_costs_only_what_it_reads(place):
    faults = []
    span = raw({"input.value": "hi", "gen_ai.operation.name": "chat", "openinference.span.kind": "TOOL"})
    dialects = [*DIALECTS[:place], broken, *DIALECTS[place:]]
    assert read_run(span, lambda *fault: faults.append(fault), dialects) == read_run(span, strict)
    assert [(name, str(error)) for name, error in faults] == [("broken", "'str' object has no attribute 'get'")]


def test_dialects_that_all_fail_leave_the_span_as_it_came():
    def also_broken(draft: Draft) -> None:
        draft.attributes["x"] = 1 / 0

    faults: list[str] = []
    found = read_run(
        raw({"input.value": "hi"}), lambda name, error: faults.append(name), [broken, by_scope, also_broken]
    )
    assert (found.attributes, found.inputs, found.kind) == ({"input.value": "hi"}, None, "unknown")
    assert faults == ["broken", "also_broken"]


def test_a_failing_dialect_is_logged_once_for_each_type_of_error(caplog):
    def faulty(draft: Draft) -> None:
        raise draft.attributes["error"]

    for error in (KeyError("a"), KeyError("b"), OSError("c")):
        read_run(raw({"error": error}), dialects=[faulty])
    assert [record.exc_info[1].args for record in caplog.records] == [("a",), ("c",)]
    assert "dialect 'faulty'" in caplog.text


@pytest.mark.parametrize(
    "kind", ["asyncio.exceptions.CancelledError", "CancelledError", "trio.Cancelled", "GeneratorExit", "AbortError"]
)
def test_a_span_that_a_cancellation_ended_is_cancelled(kind):
    event = Event("exception", 1, {"exception.type": kind})
    found = read_run(raw(status=2, message="cancelled", events=(event,)), strict)
    assert (found.status, found.error) == ("cancelled", None)


def test_a_span_that_failed_after_a_cancellation_is_an_error():
    kinds = ("CancelledError", "KeyError")
    events = tuple(Event("exception", n, {"exception.type": kind}) for n, kind in enumerate(kinds))
    assert read_run(raw(status=2, events=events), strict).status == "error"


@pytest.mark.parametrize("said", ["true", 1, False])
def test_only_true_marks_a_run_as_cancelled(said):
    assert run(**{"spanwise.cancelled": said}).status == "unset"
