"""opentelemetry-instrumentation-openai-v2, from its own bytes: content in log records before the span, on it, on both."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from collector.dialects.sent import FIXTURES, runs, stored, tokens, traces
from collector.otlp import post
from fixtures.dialects.capture import ANSWER, Request, load
from spanwise.collector.ingest import Receiver
from spanwise.collector.ingest.otlp_receiver import SignalRoute
from spanwise.collector.ingest.otlp_signals import LOGS, TRACES
from spanwise.collector.records import Run, Trace, Usage
from spanwise.collector.stores.sqlite import SQLiteStore

QUESTION, INSTRUCTIONS = "When do parcels arrive?", "Answer from the documents."
MODES = ("events", "old", "span", "event", "both")


@cache
def trace_of(mode: str) -> Trace:
    with stored(f"openai_v2/{mode}") as store:
        [trace] = traces(store)
        return trace


def said(message: object) -> tuple[object, object]:
    """Role and text of a message, in parts or not."""
    assert isinstance(message, dict)
    parts = message.get("parts", [message])
    return message["role"], parts[0].get("content", parts[0].get("response"))


@pytest.mark.process
@pytest.mark.parametrize("mode", MODES)
def test_content_is_shown_once_wherever_it_came(mode: str) -> None:
    first, answered, streamed, failed = runs(trace_of(mode), "llm")
    asked = [("system", INSTRUCTIONS), ("user", QUESTION)]
    assert [said(one) for one in first.inputs] == [said(one) for one in streamed.inputs] == asked
    assert [said(one)[0] for one in answered.inputs] == ["system", "user", "assistant", "tool"]
    assert said(answered.inputs[-1])[1] == "d1: three days"
    assert [said(one) for one in answered.outputs] == [said(one) for one in streamed.outputs] == [("assistant", ANSWER)]
    assert ([said(one) for one in failed.inputs], failed.outputs, failed.status) == (asked, None, "error")


@pytest.mark.parametrize("mode", MODES)
def test_models_tokens_kinds_documents_and_session_are_read(mode: str) -> None:
    trace = trace_of(mode)
    assert [run.model for run in runs(trace, "llm")] == ["gpt-4o-mini"] * 3 + ["broken"]
    assert sorted(tokens(trace))[-3:] == [(21, 9), (21, 9), (21, 9)]
    [retrieval] = runs(trace, "retriever")
    assert [(one.id, one.score) for one in retrieval.documents] == [("d1", 0.9), ("d2", 0.4)]
    assert (retrieval.inputs, trace.root.session_id) == ("parcels", "s1")


@pytest.mark.parametrize("mode", MODES[1:])  # 2.1 does not see them
def test_embeddings_have_model_and_tokens(mode: str) -> None:
    [embedding] = runs(trace_of(mode), "embedding")
    assert (embedding.model, embedding.usage) == ("text-embedding-3-small", Usage(4, 0))


def test_a_tools_call_is_in_what_the_model_said() -> None:
    [made] = runs(trace_of("old"), "llm")[0].outputs
    assert made["tool_calls"][0]["function"] == {"name": "find", "arguments": '{"query": "parcel"}'}
    assert made["finish_reason"] == "tool_calls"


def contents(sent: list[Request], folder: Path) -> list[Run]:
    """What is stored after requests in this order."""
    folder.mkdir()
    with SQLiteStore(folder / "a.db") as store:
        receiver = Receiver(store)
        routes = {"/v1/logs": SignalRoute(receiver, LOGS), "/v1/traces": SignalRoute(receiver, TRACES)}
        assert {post(routes[one.path], one.body).status_code for one in sent} == {200}
        return sorted((run for trace in traces(store) for run in trace.runs), key=lambda run: run.span_id)


@pytest.mark.process
@pytest.mark.parametrize("mode", ["old", "event"])
def test_log_records_before_after_and_twice_give_the_same_runs(mode: str, tmp_path: Path) -> None:
    sent = list(load(FIXTURES / "openai_v2" / f"{mode}.jsonl.gz"))
    logs, spans = ([one for one in sent if one.path == path] for path in ("/v1/logs", "/v1/traces"))
    orders = (logs + spans, spans + logs, spans + logs[::-1], sent[::-1] + sent)
    found = [contents(order, tmp_path / str(number)) for number, order in enumerate(orders)]
    assert found[0] == found[1] == found[2] == found[3]
