"""Attributes under the vendors' names with values that nobody sends: all are kept, none costs more than its size."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.dialects.vendors import strict
from looped_cases import loop_over
from spanwise.collector.dialects import Draft, RawSpan, read_run
from spanwise.collector.dialects.langfuse import langfuse
from spanwise.collector.dialects.langsmith import langsmith
from spanwise.collector.dialects.mlflow import mlflow
from spanwise.collector.dialects.traceloop import laminar, traceloop
from spanwise.collector.records import Event

VENDORS = (langfuse, langsmith, mlflow, traceloop, laminar)
CONTENT = [
    *("gen_ai.prompt", "gen_ai.completion", "langsmith.metadata.usage_metadata"),
    *("langfuse.observation.input", "langfuse.observation.output", "langfuse.trace.input"),
    *("mlflow.spanInputs", "mlflow.spanOutputs", "traceloop.entity.input", "traceloop.entity.output"),
    *("lmnr.span.input", "lmnr.span.output", "langfuse.trace.metadata", "langfuse.observation.metadata"),
    *("langfuse.observation.usage_details", "langfuse.observation.cost_details"),
    *("mlflow.chat.tokenUsage", "mlflow.llm.cost"),
]
OTHERS = [
    *("langsmith.span.kind", "langsmith.span.tags", "langsmith.metadata.session_id", "langsmith.metadata.k"),
    *(
        "langfuse.observation.type",
        "langfuse.trace.tags",
        "langfuse.trace.metadata.k",
        "langfuse.observation.metadata.k",
    ),
    *("langfuse.observation.model.name", "langfuse.session.id", "session.id", "user.id"),
    *("mlflow.spanType", "mlflow.llm.model", "mlflow.traceTag.k", "mlflow.trace.session", "model"),
    *("traceloop.span.kind", "llm.request.type", "traceloop.association.properties.tags", "db.system"),
    *("gen_ai.prompt.0.content", "gen_ai.prompt.0.tool_calls.0.id", "gen_ai.prompt.0.tool_calls"),
    *("gen_ai.completion.99999.role", "gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens"),
    *("lmnr.span.type", "lmnr.association.properties.metadata.k", "lmnr.association.properties.tags"),
    *("gen_ai.operation.name", "gen_ai.usage.cost"),
]
KEYS = [
    "args",
    "kwargs",
    "output",
    "inputs",
    "outputs",
    "documents",
    "usage",
    "usage_metadata",
    "role",
    "input",
    "total",
]
KEYS += ["input_tokens", "output_tokens", "input_token_details", "content", "id", "score"]
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)
words = st.sampled_from(["llm", "generation", "RETRIEVER", "tool", "DEFAULT", "chat", '"CHAIN"', "null", "e30=", "eyJ"])
values = plain | plain.map(json.dumps) | words
attributes = st.dictionaries(st.sampled_from(CONTENT + OTHERS), values, max_size=10)
SCOPES = st.sampled_from(
    ["", "langsmith", "langfuse-sdk", "mlflow.tracing.provider", "traceloop.tracer", "lmnr.tracer"]
)


def raw(named: dict[str, Any], scope: str = "", **fields: Any) -> RawSpan:
    return RawSpan(trace_id="1" * 32, span_id="2" * 16, name="s", attributes=named, scope=scope, **fields)


@pytest.mark.process
@given(attributes, SCOPES, st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_sent_is_read_and_what_stays_is_as_it_came(named: dict[str, Any], scope: str, root: bool) -> None:
    before = json.dumps(named)
    events = (Event("db.query.result", 1, {"db.query.result.id": 1, "db.query.result.metadata": named}),)
    found = read_run(raw(named, scope, parent_id=None if root else "3" * 16, events=events), strict)
    assert json.dumps(named) == before  # nothing is changed in place
    assert {name: found.attributes[name] for name in named if name in found.attributes} == {
        name: value for name, value in named.items() if name in found.attributes
    }


@pytest.mark.process
@given(attributes, SCOPES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_a_dialect_takes_stands_in_a_field(named: dict[str, Any], scope: str) -> None:
    for dialect in VENDORS:
        draft = Draft(raw(named, scope))
        dialect(draft)
        draft.check()
        for name in named.keys() - draft.attributes.keys():
            assert draft.fields, name


def test_a_draft_of_nobodys_is_left_alone():
    for dialect in VENDORS:
        draft = Draft(raw({"http.route": "/", "input.value": "hi", "gen_ai.operation.name": "chat"}))
        dialect(draft)
        assert (draft.fields, draft.sums, len(draft.attributes)) == ({}, False, 3)


LOTS = {
    "properties": {f"langsmith.metadata.{n}": n for n in range(20_000)},
    "metadata": {f"langfuse.trace.metadata.{n}": "[" * 100 for n in range(20_000)},
    "messages": {f"gen_ai.prompt.{n % 10_000}.x{n}": n for n in range(20_000)} | {"gen_ai.prompt.0.role": "a"},
    "tool calls": {f"gen_ai.prompt.0.tool_calls.{n}.id": n for n in range(9_999)} | {"gen_ai.prompt.0.role": "a"},
    "tags": {f"mlflow.traceTag.{n}": "v" for n in range(20_000)},
    "deep": {"lmnr.span.output": "[" * 1_000_000, "lmnr.span.input": '{"a":' * 200_000},
    "texts": {"langfuse.observation.output": "1" * 1_000_000, "langsmith.span.tags": ", ".join("ab" * 200_000)},
    "base64": {"langsmith.span.kind": "llm", "gen_ai.prompt": "e30" * 300_000},
}


@pytest.mark.process
@loop_over("lot", LOTS)
def test_lots_are_read_in_a_time_that_grows_with_them_alone(lot):
    """Quadratic work on any of these would take minutes; only this thread's own time is counted."""
    started = time.thread_time()
    found = read_run(raw(LOTS[lot]), strict)
    assert time.thread_time() - started < 20
    assert found.attributes or found.metadata or found.inputs or found.outputs
