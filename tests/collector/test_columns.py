"""What is read of a request by columns is what OTLP's own classes say of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from collector.otlp import attribute, field, nested, request, span
from looped_cases import loop_over
from spanwise.collector.dialects import RawSpan
from spanwise.collector.ingest import protobuf_decoder
from spanwise.collector.ingest.otlp_signals import TRACES, read_span_item
from spanwise.collector.ingest.request_decoder import (
    Allowance,
    ItemRefused,
    Limits,
    PermanentError,
    Scope,
    count_by_reason,
    decode,
)

LENGTHS = (0, 1, 126, 127, 128, 129, 130, 4091, 4092, 4093, 4094, 16_390)
TEXTS = st.text(max_size=5) | st.sampled_from(LENGTHS).map(lambda length: "x" * length)
SCALARS = st.one_of(
    st.builds(lambda it: AnyValue(string_value=it), TEXTS),
    st.builds(lambda it: AnyValue(string_value="ü" * it), st.sampled_from((1, 63, 64, 65, 2045, 2046, 2047))),
    st.builds(lambda it: AnyValue(int_value=it), st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 70_000)),
    st.builds(lambda it: AnyValue(double_value=it), st.floats()),
    st.builds(lambda it: AnyValue(bool_value=it), st.booleans()),
    st.builds(lambda it: AnyValue(bytes_value=it), st.binary(max_size=3)),
    st.just(AnyValue()),
)
LISTS = st.builds(lambda it: AnyValue(array_value=ArrayValue(values=it)), st.lists(SCALARS, max_size=3))
MAPS = st.builds(
    lambda it: AnyValue(kvlist_value=KeyValueList(values=it)),
    st.lists(st.builds(KeyValue, key=st.sampled_from("ab"), value=SCALARS), max_size=3),
)
PAIRS = st.lists(
    st.builds(KeyValue, key=st.sampled_from(("a", "b", "c", "")), value=st.none() | SCALARS | LISTS | MAPS), max_size=6
)


def both(body: bytes, limits: Limits) -> list[list[Any]]:
    """The spans of a request, or why one is refused, by columns and by OTLP's classes; and what they use up."""
    [(_, scope, items)] = protobuf_decoder.iterate_columnar_groups(body)
    assert scope == Scope("", "")
    whole = ExportTraceServiceRequest.FromString(body)
    found = []
    for these, raw in (
        (items, protobuf_decoder.convert_columnar_span),
        (whole.resource_spans[0].scope_spans[0].spans, protobuf_decoder.convert_span),
    ):
        allowance, said = Allowance(limits), []
        for one in these:
            try:
                said.append(repr(raw(one, {}, scope, allowance)))
            except ItemRefused as error:
                said.append(f"{error.reason}: {error}")
        found.append([*said, allowance.used])
    return found


@given(
    st.lists(PAIRS, min_size=1, max_size=3),
    st.sampled_from(([], [Span.Event(name="e", attributes=[attribute("k", "v")])])),
)
def test_spans_are_read_alike(pairs, events):
    spans = [
        span(attributes=some, events=events, status=Status(code=2, message="m"), trace_state="a=b", kind=3, flags=257)
        for some in pairs
    ]
    by_columns, by_classes = both(request(*spans), Limits())
    assert by_columns == by_classes


def test_an_attribute_without_a_name_keeps_its_value_and_leaves_the_others_theirs():
    attributes = [attribute("", "nobody's"), attribute("user.email", "ann"), attribute("plan", "free")]
    body = request(span(attributes=[*attributes, KeyValue(key="empty")]), span(attributes=[attribute("a", "b")]))
    [(_, scope, items)] = protobuf_decoder.iterate_columnar_groups(body)
    read = [protobuf_decoder.convert_columnar_span(item, {}, scope, Allowance(Limits())).attributes for item in items]
    assert read == [{"": "nobody's", "user.email": "ann", "plan": "free", "empty": None}, {"a": "b"}]


def test_what_stands_before_a_long_text_counts_once():
    listed = KeyValue(key="a", value=AnyValue(array_value=ArrayValue(values=[AnyValue(string_value="x")])))
    by_columns, by_classes = both(request(span(attributes=[listed, attribute("b", "y" * 5000)])), Limits())
    assert by_columns == by_classes


@loop_over(
    ("limits", "attributes"),
    [
        (Limits(value_bytes=5000), [attribute("a", "x" * 5001)]),
        (Limits(value_bytes=5000), [attribute("a", "ü" * 4999)]),
        (Limits(value_bytes=5), [attribute("a", "x" * 6)]),
        (Limits(attributes=2), [attribute(name, "x") for name in "abc"]),
        (Limits(attributes=2), [attribute(name, "x") for name in "aba"]),
        (Limits(depth=3), [attribute("a", nested(4)), attribute("b", "x")]),
        (Limits(), [attribute("a", nested(2)), KeyValue(key="b")]),
    ],
)
def test_what_is_too_much_is_refused_alike(limits, attributes):
    by_columns, by_classes = both(request(span(attributes=attributes)), limits)
    assert by_columns == by_classes


def test_more_values_than_a_request_may_have_are_refused():
    with pytest.raises(PermanentError, match="more than 3 values"):
        decode(TRACES.protobuf, request(span(attributes=[attribute(name, "x") for name in "abcd"])), Limits(values=3))


def test_a_length_written_in_more_bytes_than_it_needs_is_read_all_the_same():
    padded = field(9, field(1, b"a") + field(2, b"\x0a\x81\x00x"))
    body = field(1, field(2, field(2, span().SerializeToString() + padded)))
    [kept] = decode(TRACES.protobuf, body, Limits()).items
    assert kept.attributes == {"a": "x"}


def test_a_text_that_is_none_costs_its_span_alone_whatever_was_read_before():
    good, bad = span(attributes=[attribute("a", "good")]), span(attributes=[attribute("a", "~~~~")])
    decoded = decode(TRACES.protobuf, request(good, bad, good).replace(b"~~~~", b"\xff\xff\xff\xff"), Limits())
    assert [run.attributes for run in decoded.items] == [{"a": "good"}] * 2
    assert count_by_reason(decoded.refused) == {"malformed": 1}
    assert decoded.values == 2


@pytest.mark.parametrize(
    ("attributes", "tags", "example", "sent"),
    [
        ({"tag.tags": ["a", "b"]}, ("a", "b"), None, set()),
        ({"tag.tags": ["a", "b" * 2001]}, ("a", "b" * 2000), None, {"spanwise.sent.tags"}),
        ({"tag.tags": ["a"] * 101}, ("a",) * 100, None, {"spanwise.sent.tags"}),
        (
            {"spanwise.experiment.id": "", "spanwise.example.id": "e" * 2001},
            (),
            "e" * 2000,
            {"spanwise.sent.example_id"},
        ),
    ],
)
def test_what_stands_in_lists_is_bounded(attributes, tags, example, sent):
    run = read_span_item(RawSpan("1" * 32, "2" * 16, "s", attributes=attributes), strict)
    assert (run.tags, run.example_id, {*run.attributes}) == (tags, example, sent)


def strict(dialect: str, error: Exception) -> None:
    raise error
