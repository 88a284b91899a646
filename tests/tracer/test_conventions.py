"""Spans in the conventions of OpenInference and OpenTelemetry GenAI, as a decoder of `opentelemetry-proto` reads them."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider

from spanwise.tracer import attribute_names as names
from spanwise.tracer import configure, current_run, flush, session, span, trace, tracer_provider
from spanwise.tracer.configuration import ALL_CONVENTIONS, resolve_settings, resolve_valid_settings
from spanwise.tracer.content.model_calls import find_provider, read_model_request, read_model_response

from .conftest import Sink

CLIENT, INTERNAL = 3, 1  # span kinds in OTLP
TOOL = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object"}}}
DEFINITION = {"type": "function", "name": "weather", "description": "d", "parameters": {"type": "object"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}}
CALL_PART = {"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Rome"}}


@trace(kind="llm")
def call(messages: list[dict[str, Any]], tools: list[Any], temperature: float = 0.3) -> dict[str, Any]:
    run = current_run()
    run.set_model("gpt-4o")
    run.set_usage(10, 5, cost=0.25, cache_read=4, cache_creation=1, reasoning=2)
    run.feedback("good", True)
    message = {"role": "assistant", "content": "It is sunny.", "tool_calls": [CALL]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return {"id": "chatcmpl-1", "model": "gpt-4o-2024", "choices": [choice]}


@trace(kind="tool")
def weather(city: str, tool_call_id: str = "c1") -> dict[str, int]:
    return {"celsius": 20}


@trace(kind="retriever")
def search(query: str) -> list[dict[str, Any]]:
    return [{"id": "d1", "content": "Rome is warm.", "score": 0.5, "metadata": {"page": 1}}]


@trace(kind="agent")
def agent(question: str) -> str:
    search(question)
    weather("Rome")
    call([{"role": "system", "content": "Be kind."}, {"role": "user", "content": question}], [TOOL])
    return "sunny"


@trace
def chain(question: str) -> str:
    return agent(question)


def attributes_of(item: Any) -> dict[str, Any]:
    return {pair.key: value_of(pair.value) for pair in item.attributes}


def value_of(value: Any) -> Any:
    field = value.WhichOneof("value")
    return [value_of(v) for v in value.array_value.values] if field == "array_value" else getattr(value, field)


def sent(sink: Sink) -> dict[str, dict[str, Any]]:
    """Deliver, and return the attributes of all spans that arrived, by name."""
    assert flush(60)
    return {each.name: attributes_of(each) for each in sink.spans()}


def run_all(sink: Sink, **settings: Any) -> dict[str, dict[str, Any]]:
    configure(url=sink.url, **settings)
    with session("s1"):
        chain("How is Rome?")
    return sent(sink)


def test_model_calls_in_genai(sink: Sink) -> None:
    found = run_all(sink, conventions={"gen_ai"})["call"]
    texts = {key: found.pop(key) for key in (names.INPUT_MESSAGES, names.OUTPUT_MESSAGES, names.TOOL_DEFINITIONS)}
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.request.temperature": 0.3,
        "gen_ai.response.model": "gpt-4o-2024",
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.finish_reasons": ["tool_calls"],
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.usage.cache_creation.input_tokens": 1,
        "gen_ai.usage.reasoning.output_tokens": 2,
        "gen_ai.conversation.id": "s1",
        "llm.cost.total": 0.25,
    }
    assert orjson.loads(texts[names.TOOL_DEFINITIONS]) == [DEFINITION]
    assert orjson.loads(texts[names.INPUT_MESSAGES]) == [
        {"role": "system", "parts": [{"type": "text", "content": "Be kind."}]},
        {"role": "user", "parts": [{"type": "text", "content": "How is Rome?"}]},
    ]
    text = {"type": "text", "content": "It is sunny."}
    assert orjson.loads(texts[names.OUTPUT_MESSAGES]) == [
        {"role": "assistant", "parts": [text, CALL_PART], "finish_reason": "tool_call"}
    ]


def test_tools_retrievers_agents_and_chains_in_genai(sink: Sink) -> None:
    found = run_all(sink, conventions={"gen_ai"})
    assert found["weather"] == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "weather",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.tool.call.arguments": '{"city":"Rome","tool_call_id":"c1"}',
        "gen_ai.tool.call.result": '{"celsius":20}',
        "gen_ai.conversation.id": "s1",
    }
    documents = orjson.loads(found["search"].pop("gen_ai.retrieval.documents"))
    assert documents == [{"id": "d1", "content": "Rome is warm.", "score": 0.5, "metadata": {"page": 1}}]
    assert found["search"] == {
        "gen_ai.operation.name": "retrieval",
        "gen_ai.retrieval.query.text": "How is Rome?",
        "gen_ai.conversation.id": "s1",
    }
    (said,) = orjson.loads(found["agent"].pop("gen_ai.input.messages"))
    assert said == {"role": "user", "parts": [{"type": "text", "content": "How is Rome?"}]}
    (reply,) = orjson.loads(found["agent"].pop("gen_ai.output.messages"))
    assert reply == {"role": "assistant", "parts": [{"type": "text", "content": "sunny"}], "finish_reason": "stop"}
    assert found["agent"] == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "agent",
        "gen_ai.conversation.id": "s1",
    }
    assert (found["chain"]["gen_ai.operation.name"], found["chain"]["input.value"]) == (
        "invoke_workflow",
        '{"question":"How is Rome?"}',
    )


@pytest.mark.parametrize(
    ("kind", "operation", "is_kept"),
    [("embedding", "embeddings", False), ("reranker", "rerank", False), ("guardrail", "guardrail", True)],
)
def test_other_kinds_have_an_operation(sink: Sink, kind: str, operation: str, is_kept: bool) -> None:
    configure(url=sink.url, conventions={"gen_ai"})
    with span("s", kind=kind):
        pass
    found = sent(sink)["s"]
    assert (found["gen_ai.operation.name"], names.KIND in found) == (operation, is_kept)


def test_both_conventions_carry_the_contents_twice(sink: Sink) -> None:
    found = run_all(sink, conventions=ALL_CONVENTIONS)
    assert (found["call"][names.KIND], found["call"]["input.mime_type"]) == ("LLM", "application/json")
    assert {"input.value", "output.value", names.INPUT_MESSAGES, names.OUTPUT_MESSAGES} <= found["call"].keys()
    assert found["search"]["retrieval.documents.0.document.content"] == "Rome is warm."
    assert {names.RETRIEVED_DOCUMENTS, names.QUERY_TEXT} <= found["search"].keys()


def test_model_calls_and_retrievers_are_clients_under_the_schema_of_genai(sink: Sink) -> None:
    run_all(sink, conventions={"gen_ai"})
    assert {each.name: each.kind for each in sink.spans()} == {
        "chain": INTERNAL,
        "agent": INTERNAL,
        "search": CLIENT,
        "weather": INTERNAL,
        "call": CLIENT,
    }
    (request,) = [ExportTraceServiceRequest.FromString(b) for path, _, b in sink.requests if path == "/v1/traces"]
    (scope,) = request.resource_spans[0].scope_spans
    assert (scope.scope.name, scope.schema_url) == ("spanwise", "https://opentelemetry.io/schemas/gen-ai/1.42.0")


def test_the_compact_form_has_no_name_of_genai_and_no_mime_type(sink: Sink) -> None:
    found = run_all(sink)
    kept = {"session.id", names.KIND, "input.value", "output.value"}
    assert found["chain"].keys() == kept | {"spanwise.spans.started"}
    assert found["search"].keys() == found["weather"].keys() == found["agent"].keys() == kept
    assert {each.kind for each in sink.spans()} == {INTERNAL}


@pytest.mark.parametrize(
    ("value", "mime"),
    [("plain", None), ("true", "text/plain"), ("12", "text/plain"), ('{"a":1}', "text/plain"), ({"a": 1}, None)],
)
def test_the_compact_form_has_the_type_of_a_text_that_could_be_json(sink: Sink, value: Any, mime: str | None) -> None:
    configure(url=sink.url)
    with span("s") as run:
        run.set_outputs(value)
    assert sent(sink)["s"].get("output.mime_type") == mime


def test_feedback_names_the_response(sink: Sink) -> None:
    run_all(sink, conventions={"gen_ai"})
    (record,) = sink.logs()
    assert attributes_of(record)["gen_ai.response.id"] == "chatcmpl-1"


def test_an_attribute_of_the_application_wins(sink: Sink) -> None:
    configure(url=sink.url, conventions=ALL_CONVENTIONS)
    with span("s", kind="llm", inputs={"messages": [{"role": "user", "content": "derived"}]}) as run:
        run.set_attribute("gen_ai.operation.name", "generate_content")
        run.set_attribute("gen_ai.provider.name", "mine")
        run.set_attribute("gen_ai.input.messages", "theirs")
        run.set_outputs("derived")
    found = sent(sink)["s"]
    assert (found["gen_ai.operation.name"], found["gen_ai.provider.name"]) == ("generate_content", "mine")
    assert (found["gen_ai.input.messages"], found["input.value"]) == (
        "theirs",
        '{"messages":[{"role":"user","content":"derived"}]}',
    )


def test_spans_of_instrumentations_keep_their_attributes(sink: Sink) -> None:
    configure(url=sink.url, conventions={"gen_ai"})
    given = {
        "openinference.span.kind": "LLM",
        "llm.model_name": "claude-x",
        "llm.token_count.prompt": 7,
        "input.value": '{"messages":[{"role":"user","content":"hi"}]}',
        "input.mime_type": "application/json",
    }
    with tracer_provider().get_tracer("openinference.instrumentation.x").start_as_current_span("s", attributes=given):
        pass
    found = sent(sink)["s"]
    assert given.items() <= found.items()
    assert (found["gen_ai.request.model"], found["gen_ai.usage.input_tokens"]) == ("claude-x", 7)
    assert found["gen_ai.provider.name"] == "anthropic"
    assert orjson.loads(found["gen_ai.input.messages"])[0]["parts"][0]["content"] == "hi"


def test_spans_of_a_joined_provider_get_the_conventions(sink: Sink) -> None:
    configure(url=sink.url, conventions={"gen_ai"}, provider=TracerProvider())
    weather("Rome")
    assert sent(sink)["weather"]["gen_ai.tool.call.result"] == '{"celsius":20}'


@pytest.mark.parametrize(
    "redact",
    [
        [re.compile("Rome|sunny")],
        [lambda key, value: re.sub("Rome|sunny", "x", value) if isinstance(value, str) else value],
    ],
)
@pytest.mark.parametrize("conventions", [set(), {"gen_ai"}, ALL_CONVENTIONS])
def test_what_is_redacted_has_no_other_name(sink: Sink, redact: list[Any], conventions: set[str]) -> None:
    configure(url=sink.url, conventions=conventions, redact=redact)
    chain("How is Rome?")
    assert len(sent(sink)) == 5
    assert b"Rome" not in sink.bytes()
    assert b"sunny" not in sink.bytes()


def test_keys_are_redacted_inside_of_messages(sink: Sink) -> None:
    run_all(sink, conventions=ALL_CONVENTIONS, redact=["content", "city", "question", "query"])
    for secret in (b"Be kind.", b"How is Rome?", b"It is sunny.", b'"Rome"'):
        assert secret not in sink.bytes()


@pytest.mark.parametrize("key", ["gen_ai.input.messages", "gen_ai.tool.call.result", "gen_ai.retrieval.query.text"])
def test_a_derived_name_can_be_redacted(sink: Sink, key: str) -> None:
    found = run_all(sink, conventions={"gen_ai"}, redact=[key])
    values = [attributes[key] for attributes in found.values() if key in attributes]
    assert set(values) == {"[redacted]"}


@pytest.mark.parametrize("conventions", [{"gen_ai"}, ALL_CONVENTIONS])
def test_without_content_no_content_is_derived(sink: Sink, conventions: set[str]) -> None:
    found = run_all(sink, conventions=conventions, capture="metadata")
    for secret in (b"Rome", b"sunny", b"celsius", b"Be kind", b"description"):
        assert secret not in sink.bytes()
    assert (found["call"]["gen_ai.usage.input_tokens"], found["call"]["llm.cost.total"]) == (10, 0.25)


WRONG: list[Any] = [7, 1.5, True, "text", '{"a":', [], ["x"], "[1,2]", '{"choices":[1,null]}', '[{"role":5}]', "null"]
DERIVED_FROM = [
    "input.value",
    "output.value",
    "spanwise.documents",
    "session.id",
    "spanwise.cost",
    "gen_ai.request.model",
]
DERIVED_FROM += ["llm.model_name", "tool.name", "agent.name", "gen_ai.system", "gen_ai.response.id"]


@pytest.mark.parametrize("kind", names.KINDS)
def test_values_of_a_wrong_type_harm_nothing(sink: Sink, kind: str) -> None:
    configure(url=sink.url, conventions=ALL_CONVENTIONS)
    for value in WRONG:
        for mime in ("application/json", "text/plain", 3):
            with span("s", kind=kind) as run:
                for name in DERIVED_FROM:
                    run.span.set_attribute(name, value)
                run.span.set_attribute("input.mime_type", mime)
                run.span.set_attribute("output.mime_type", mime)
    assert flush(60)
    assert len(sink.spans()) == len(WRONG) * 3


def test_messages_of_a_megabyte(sink: Sink) -> None:
    configure(url=sink.url, conventions=ALL_CONVENTIONS)
    big = [{"role": "user", "content": "é" * 1000} for _ in range(1000)]
    with span("s", kind="llm", inputs={"messages": big}):
        pass
    found = sent(sink)["s"]
    assert orjson.loads(found["gen_ai.input.messages"])[0]["parts"][0]["content"] == "é" * 1000
    assert len(found["gen_ai.input.messages"]) < 2 * (1 << 20)


def part(text: str) -> dict[str, str]:
    return {"type": "text", "content": text}


USER = {"role": "user", "parts": [part("hi")]}


@pytest.mark.parametrize(
    ("inputs", "messages"),
    [
        ("hi", [USER]),
        ({"question": "hi"}, [USER]),
        ({"question": "hi", "top_k": 3}, [USER]),
        ({"prompt": "hi"}, [USER]),
        ({"kwargs": {"messages": [{"role": "user", "content": "hi"}]}}, [USER]),
        ({"a": "x", "b": "y"}, [{"role": "user", "parts": [part('{"a":"x","b":"y"}')]}]),
        ({"input": "hi", "instructions": "be"}, [{"role": "system", "parts": [part("be")]}, USER]),
        (
            {"system": [{"type": "text", "text": "be"}], "messages": [{"role": "user", "content": "hi"}]},
            [{"role": "system", "parts": [part("be")]}, USER],
        ),
        (
            {
                "input": [
                    {"role": "developer", "content": [{"type": "input_text", "text": "be"}]},
                    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Rome"}'},
                    {"type": "function_call_output", "call_id": "c1", "output": "20"},
                ]
            },
            [
                {"role": "system", "parts": [part("be")]},
                {"role": "assistant", "parts": [CALL_PART]},
                {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "20"}]},
            ],
        ),
        (
            [{"role": "tool", "tool_call_id": "c1", "content": "20"}],
            [{"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "20"}]}],
        ),
        (
            [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "20"}]}],
            [{"role": "user", "parts": [{"type": "tool_call_response", "id": "c1", "response": "20"}]}],
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}],
            [
                {
                    "role": "user",
                    "parts": [{"type": "blob", "modality": "image", "mime_type": "image/png", "content": "AA=="}],
                }
            ],
        ),
        ({"contents": [{"role": "model", "parts": [{"text": "hi"}]}]}, [{"role": "assistant", "parts": [part("hi")]}]),
        ([{"role": "user", "parts": [part("hi")]}], [USER]),
        ([], [{"role": "user", "parts": [part("[]")]}]),
        (None, []),
    ],
)
def test_requests_become_messages(inputs: Any, messages: list[Any]) -> None:
    assert read_model_request(inputs).messages == messages


OPENAI_RESPONSE = {
    "id": "resp_1",
    "model": "gpt-5",
    "status": "completed",
    "output": [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "thinking"}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Rome"}'},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]},
    ],
}
ANTHROPIC_MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-x",
    "stop_reason": "tool_use",
    "content": [
        {"type": "thinking", "thinking": "thinking"},
        {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}},
        {"type": "text", "text": "hi"},
    ],
}
THOUGHT = {"type": "reasoning", "content": "thinking"}


@pytest.mark.parametrize(
    ("outputs", "id", "model", "reasons", "parts", "finish"),
    [
        ("hi", None, None, [], [part("hi")], "stop"),
        ({"answer": 1}, None, None, [], [part('{"answer":1}')], "stop"),
        ({"role": "assistant", "content": "hi"}, None, None, [], [part("hi")], "stop"),
        (OPENAI_RESPONSE, "resp_1", "gpt-5", ["completed"], [THOUGHT, CALL_PART, part("hi")], "stop"),
        (ANTHROPIC_MESSAGE, "msg_1", "claude-x", ["tool_use"], [THOUGHT, CALL_PART, part("hi")], "tool_call"),
        (
            {"candidates": [{"content": {"role": "model", "parts": [{"text": "hi"}]}, "finishReason": "STOP"}]},
            None,
            None,
            ["STOP"],
            [part("hi")],
            "stop",
        ),
        ({"choices": [{"text": "hi", "finish_reason": "length"}]}, None, None, ["length"], [part("hi")], "length"),
    ],
)
def test_responses_become_messages(
    outputs: Any, id: str | None, model: str | None, reasons: list[str], parts: list[Any], finish: str
) -> None:
    response = read_model_response(outputs)
    assert (response.id, response.model, response.finish_reasons) == (id, model, reasons)
    assert response.messages == [{"role": "assistant", "parts": parts, "finish_reason": finish}]


@pytest.mark.parametrize(
    "tool",
    [
        TOOL,
        {"type": "function", **TOOL["function"]},
        {"name": "weather", "description": "d", "input_schema": {"type": "object"}},
    ],  # type: ignore[dict-item]
)
def test_tools_of_all_providers_get_one_form(tool: dict[str, Any]) -> None:
    assert read_model_request({"messages": [], "tools": [tool]}).tools == [DEFINITION]


def test_other_tools_are_kept() -> None:
    assert read_model_request({"messages": [], "tools": [{"type": "web_search"}, 5]}).tools == [{"type": "web_search"}]


@pytest.mark.parametrize(
    ("model", "attributes", "provider"),
    [
        ("gpt-4o", {}, "openai"),
        ("azure/gpt-4o", {}, "azure.ai.openai"),
        ("meta/llama-3", {}, None),
        ("together/claude-3", {}, "anthropic"),
        ("my-model", {"llm.provider": "aws"}, "aws.bedrock"),
        ("my-model", {"gen_ai.system": "acme"}, "acme"),
        (None, {}, None),
    ],
)
def test_providers(model: str | None, attributes: dict[str, str], provider: str | None) -> None:
    assert find_provider(model, attributes) == provider


@pytest.mark.parametrize(
    ("variables", "arguments", "conventions"),
    [
        ({}, {}, frozenset()),
        ({"SPANWISE_URL": "http://a"}, {}, frozenset()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a"}, {}, ALL_CONVENTIONS),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a"}, {"url": "http://b"}, frozenset()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "SPANWISE_CONVENTIONS": "none"}, {}, frozenset()),
        ({"SPANWISE_CONVENTIONS": "gen_ai"}, {}, {"gen_ai"}),
        ({"SPANWISE_CONVENTIONS": " GEN_AI , openinference"}, {}, ALL_CONVENTIONS),
        ({"SPANWISE_CONVENTIONS": "gen_ai"}, {"conventions": {"openinference"}}, {"openinference"}),
        ({"SPANWISE_CONVENTIONS": "gen_ai"}, {"conventions": ()}, frozenset()),
    ],
)
def test_which_conventions_apply(
    variables: dict[str, str], arguments: dict[str, Any], conventions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPANWISE_URL", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert resolve_settings(**arguments).wire_conventions == conventions


def test_unknown_conventions(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="conventions must be a set of openinference, gen_ai, got 'genai'"):
        configure(conventions={"genai"})  # type: ignore[arg-type]
    monkeypatch.setenv("SPANWISE_CONVENTIONS", "genai")
    monkeypatch.setenv("SPANWISE_PROJECT", "p")
    settings = resolve_valid_settings()
    assert (settings.conventions, settings.project) == (None, "p")
