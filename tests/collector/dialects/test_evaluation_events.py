"""`gen_ai.evaluation.result` in events of spans, with names written out or within each other."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from collector.otlp import attribute, request, span
from spanwise.collector.dialects import RawLog, RawSpan, read_feedback, read_span
from spanwise.collector.records import Event, Feedback, Target
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

NAME = "gen_ai.evaluation.result"
ZERO = {"gen_ai.evaluation.name": "ok", "gen_ai.evaluation.score.value": 0.0}
HERE = Target(trace_id="1" * 32, span_id="2" * 16)


def said(*events: Event) -> tuple[Any, ...]:
    raw = RawSpan(trace_id="1" * 32, span_id="2" * 16, name="s", events=events, end_ns=9)
    return read_span(raw).also


def test_an_event_of_a_span_is_feedback_on_it():
    (one,) = said(Event(NAME, 7, ZERO), Event("other", 7, ZERO))
    assert (one.target, one.key, one.score, one.created_ns) == (HERE, "ok", 0.0, 7)


def test_an_event_without_a_time_is_as_old_as_its_span():
    assert said(Event(NAME, 0, ZERO))[0].created_ns == 9


def test_a_failed_evaluation_has_no_score():
    (one,) = said(Event(NAME, 7, {**ZERO, "error.type": "TimeoutError"}))
    assert (one.outcome, one.error, one.score) == ("error", "TimeoutError", None)


def test_one_that_says_nothing_is_a_fault_beside_those_that_do():
    first, second = said(Event(NAME, 7, {"gen_ai.evaluation.name": "ok"}), Event(NAME, 7, ZERO))
    assert (type(first), type(second)) == (ValueError, Feedback)


def test_the_same_result_as_event_and_as_log_record_is_one():
    log = RawLog("1" * 32, "2" * 16, 7, ZERO, NAME)
    assert said(Event(NAME, 7, ZERO))[0].id == read_feedback(log).id


@pytest.mark.parametrize(
    ("attributes", "body"),
    [
        ({"gen_ai": {"evaluation": {"name": "ok", "score": {"value": 0.0, "label": "bad"}}}}, None),
        ({"gen_ai.evaluation": {"name": "ok", "score": {"value": 0.0, "label": "bad"}}}, None),
        ({}, {"gen_ai.evaluation.name": "ok", "gen_ai.evaluation.score": {"value": 0.0, "label": "bad"}}),
        ({}, {"gen_ai": {"evaluation": {"name": "ok", "score": {"value": 0, "label": "bad"}}}}),
    ],
)
def test_names_may_stand_within_each_other_or_in_the_body(attributes, body):
    one = read_feedback(RawLog("1" * 32, "2" * 16, 7, attributes, NAME, body))
    assert (one.key, one.score, one.label, dict(one.metadata)) == ("ok", 0.0, "bad", {})


def test_a_judge_of_pydantic_evals_is_a_model():
    spec = {"gen_ai.evaluation.evaluator.source": '{"name": "LLMJudge", "arguments": {"rubric": "r"}}'}
    one = read_feedback(RawLog("1" * 32, "2" * 16, 7, {**ZERO, **spec}, NAME))
    assert (one.source, one.evaluator) == ("model", "LLMJudge")


@pytest.mark.parametrize("spec", ["{", "[]", '{"name": 5}', 7, None])
def test_an_evaluator_that_cannot_be_read_costs_its_name_alone(spec):
    one = read_feedback(RawLog("1" * 32, "2" * 16, 7, {**ZERO, "gen_ai.evaluation.evaluator.source": spec}, NAME))
    assert (one.key, one.score, one.evaluator) == ("ok", 0.0, None)


def test_by_the_wire_it_stands_on_its_trace(tmp_path):
    values = [attribute("gen_ai.evaluation.name", "ok"), attribute("gen_ai.evaluation.score.label", "good")]
    body = request(span(events=[{"name": NAME, "time_unix_nano": 10**18, "attributes": values}]))
    with SQLiteStore(tmp_path / "a.db") as store, Server(store) as server:
        headers = {"content-type": "application/x-protobuf"}
        answer = httpx.post(f"{server.url}/v1/traces", content=body, headers=headers)
        assert (answer.status_code, answer.content) == (200, b"")
        trace = store.trace(next(iter(store.traces())).trace_id)
        assert [(one.key, one.label) for one in trace.feedback] == [("ok", "good")]
        assert [event.name for event in trace.root.events] == [NAME]
