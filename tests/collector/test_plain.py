"""The short way of our own spans says the same as the dialects do."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from looped_cases import loop_over
from spanwise.collector.dialects import read_run, read_sdk_span
from spanwise.collector.dialects.sdk_spans import _PLAIN_ATTRIBUTES, make_raw_span, read_plain_span
from spanwise.collector.records import Run
from spanwise.tracer import attribute_names as names
from spanwise.tracer.trace_capture import capture

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
IDS = {names.EXPERIMENT: "e" * 32, names.EXAMPLE: "x1", names.REPETITION: 2}
ODD = st.dictionaries(
    st.sampled_from([*sorted(_PLAIN_ATTRIBUTES), "llm.model_name", "session.id", "mine"]),
    st.sampled_from(
        ["", "x", "application/json", "CHAIN", "chain", "RETRIEVER", "LLM", "{", "1", -1, 0, 3, 2**60, True, 0.5]
    ),
)


def span_of(inputs=None, outputs=None, *, kind="chain", ids=IDS, odd=None, fails=False):
    try:
        with capture("answer", kind=kind, inputs=inputs, attributes=ids) as captured:
            captured.run.set_outputs(outputs)
            for name, value in (odd or {}).items():
                captured._root.set_attribute(name, value)
            if fails:
                raise ValueError("no")
    except ValueError:
        pass
    return captured.spans(0)[0][0]


def same(span) -> Run:
    run = read_sdk_span(span)
    assert repr(run) == repr(read_run(make_raw_span(span))) or run == read_run(
        make_raw_span(span)
    )  # NaN is no NaN's equal
    return run


@pytest.mark.process
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(VALUES, VALUES)
def test_any_values(inputs, outputs):
    same(span_of(inputs, outputs))


@pytest.mark.process
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(ODD)
def test_any_attributes(odd):
    same(span_of({"q": 1}, "a", odd=odd))


@loop_over("kind", sorted({"chain", "tool", "agent", "guardrail", "evaluator", "llm", "retriever", "reranker"}))
@loop_over("ids", [IDS, None, {names.EXAMPLE: "x"}, {**IDS, names.REPETITION: True}, {**IDS, names.EXAMPLE: ""}])
def test_any_kind_and_ids(kind, ids):
    same(span_of({"q": "why"}, ["a", {"content": "b"}], kind=kind, ids=ids))


def test_a_failed_span():
    assert same(span_of({"q": 1}, fails=True)).error == "ValueError: no"


def test_what_evaluate_makes_for_every_example_goes_the_short_way():
    span = span_of({"q": "why"}, "because")
    assert read_plain_span(span, {}) is not None
    run = same(span)
    assert (run.inputs, run.outputs, run.example_id, run.repetition) == ({"q": "why"}, "because", "x1", 2)
