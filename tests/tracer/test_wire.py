"""Our encoder against the standard one: the same messages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.span import TraceState

from spanwise.tracer import span
from spanwise.tracer.export.span_encoding import encode_spans as encode
from spanwise.tracer.testing import Spans

texts = st.text(st.characters(codec="utf-8"), max_size=30)
scalars = texts | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.binary(max_size=9)
attributes = st.dictionaries(texts, scalars | st.lists(texts, max_size=3).map(tuple), max_size=3)
contexts = st.builds(
    SpanContext,
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.booleans(),
    st.just(TraceFlags(1)),
    st.sampled_from([TraceState(), TraceState([("a", "1"), ("b", "2")])]),
)
times = st.integers(0, 2**63)
spans = st.builds(
    ReadableSpan,
    name=texts,
    context=contexts,
    parent=st.none() | contexts,
    attributes=attributes,
    resource=st.sampled_from([Resource({"r": 1}), Resource({"s": "x"}, "schema")]),
    events=st.lists(st.builds(Event, texts, attributes, times.filter(bool)), max_size=2),
    links=st.lists(st.builds(Link, contexts, attributes), max_size=2),
    kind=st.sampled_from(list(SpanKind)),
    status=st.builds(Status, st.just(StatusCode.ERROR), texts) | st.just(Status(StatusCode.OK)),
    start_time=times,
    end_time=times,
    instrumentation_scope=st.sampled_from([InstrumentationScope("a", "1", "u", {"k": 1}), InstrumentationScope("b")]),
)


def parts(message: Any) -> list[Any]:
    """Resource, scope and span of every span, whatever the grouping."""
    groups = ((r, s) for r in message.resource_spans for s in r.scope_spans)
    return sorted(
        ((r.resource, r.schema_url, s.scope, s.schema_url, sent) for r, s in groups for sent in s.spans),
        key=lambda part: part[-1].SerializeToString(deterministic=True),
    )


@pytest.mark.process
@given(st.lists(spans, max_size=4))
@settings(max_examples=50, deadline=None)
def test_the_standard_encoder_writes_the_same_messages(given: list[ReadableSpan]) -> None:
    ours = ExportTraceServiceRequest.FromString(encode(given))
    assert parts(ours) == parts(encode_spans(given))


def test_our_own_spans_too_but_for_our_entry_in_the_tracestate(traced: Spans) -> None:
    with span("root", inputs={"a": 1}), span("child", tags=["t"]) as run:
        run.record_exception(ValueError("x"))
    ours = ExportTraceServiceRequest.FromString(encode(traced.spans))
    standard = encode_spans(traced.spans)
    for resource in standard.resource_spans:
        for message in resource.scope_spans[0].spans:
            message.trace_state = "" if message.parent_span_id else "ot=th:0"
    assert parts(ours) == parts(standard)
