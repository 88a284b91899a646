"""What other products read of Spanwise's spans: Phoenix and MLflow, each in its own process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from spanwise.tracer import configure, current_run, flush, session, trace

from .receivers import MISSING, PYTHON, mlflow, phoenix, read_mlflow, read_phoenix

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PYTHON.exists(), reason=MISSING)]
TOOL = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}}


@trace(kind="llm")
def call(messages: list[dict[str, Any]], tools: list[Any]) -> dict[str, Any]:
    current_run().set_model("gpt-4o")
    current_run().set_usage(10, 5, cost=0.25, cache_read=4)
    message = {"role": "assistant", "content": "It is sunny.", "tool_calls": [CALL]}
    return {
        "id": "chatcmpl-1",
        "model": "gpt-4o-2024",
        "choices": [{"message": message, "finish_reason": "tool_calls"}],
    }


@trace(kind="tool")
def weather(city: str) -> dict[str, int]:
    return {"celsius": 20}


@trace(kind="retriever")
def search(query: str) -> list[dict[str, Any]]:
    return [{"id": "d1", "content": "Rome is warm.", "score": 0.5}]


@trace(kind="agent")
def agent(question: str) -> str:
    search(question)
    weather("Rome")
    call([{"role": "user", "content": question}], [TOOL])
    return "sunny"


def send(**settings: Any) -> None:
    configure(project="receivers", spill_dir="off", **settings)
    with session("s1"):
        agent("How is Rome?")
    assert flush(60)


@pytest.mark.parametrize("conventions", [{"gen_ai"}, {"openinference", "gen_ai"}])
def test_phoenix_reads_contents_tools_and_cost(tmp_path: Path, conventions: set[Any]) -> None:
    with phoenix(tmp_path) as url:
        send(url=url, conventions=conventions)
        spans = read_phoenix(url, 4)
    assert {name: span["span_kind"] for name, span in spans.items()} == {
        "agent": "AGENT",
        "search": "RETRIEVER",
        "weather": "TOOL",
        "call": "LLM",
    }
    called = spans["call"]["attributes"]
    assert called["llm.input_messages.0.message.content"] == "How is Rome?"
    assert called["llm.output_messages.0.message.content"] == "It is sunny."
    made = "llm.output_messages.0.message.tool_calls.0.tool_call."
    assert (called[f"{made}id"], called[f"{made}function.name"]) == ("c1", "weather")
    assert json.loads(called["llm.tools.0.tool.json_schema"])["function"]["name"] == "weather"
    assert (called["llm.model_name"], called["llm.cost.total"]) == ("gpt-4o", 0.25)
    assert (called["llm.token_count.prompt"], called["llm.token_count.completion"]) == (10, 5)
    assert spans["search"]["attributes"]["retrieval.documents.0.document.content"] == "Rome is warm."
    assert spans["weather"]["attributes"]["tool.name"] == "weather"
    assert spans["weather"]["attributes"]["output.value"] == '{"celsius":20}'
    assert {span["attributes"]["session.id"] for span in spans.values()} == {"s1"}


def test_mlflow_reads_contents_tools_and_tokens_from_an_exporter(tmp_path: Path) -> None:
    with mlflow(tmp_path) as url:
        send(exporters=[OTLPSpanExporter(f"{url}/v1/traces", headers={"x-mlflow-experiment-id": "0"})])
        spans = read_mlflow(url)["spans"]
    assert {name: span["type"] for name, span in spans.items()} == {
        "agent": "AGENT",
        "search": "RETRIEVER",
        "weather": "TOOL",
        "call": "LLM",
    }
    assert (spans["agent"]["inputs"], spans["agent"]["outputs"]) == ({"question": "How is Rome?"}, "sunny")
    assert (spans["weather"]["inputs"], spans["weather"]["outputs"]) == ({"city": "Rome"}, {"celsius": 20})
    assert spans["search"]["outputs"] == [{"id": "d1", "content": "Rome is warm.", "score": 0.5}]
    called = spans["call"]["attributes"]
    assert called["mlflow.chat.tools"][0]["name"] == "weather"
    assert (called["mlflow.chat.tokenUsage"]["input_tokens"], called["mlflow.llm.provider"]) == (10, "openai")
    # MLflow computes costs from its own prices; a reported cost stays an attribute
    assert called["llm.cost.total"] == 0.25


def test_mlflow_reads_genai_alone(tmp_path: Path) -> None:
    with mlflow(tmp_path) as url:
        send(url=url, headers={"x-mlflow-experiment-id": "0"}, conventions={"gen_ai"})
        spans = read_mlflow(url)["spans"]
    assert spans["call"]["inputs"] == [{"role": "user", "parts": [{"type": "text", "content": "How is Rome?"}]}]
    assert spans["call"]["outputs"][0]["parts"][0]["content"] == "It is sunny."
    assert (spans["weather"]["inputs"], spans["weather"]["outputs"]) == ({"city": "Rome"}, {"celsius": 20})
