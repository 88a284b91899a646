"""Logfire, from its own bytes: functions, spans, logs, OpenAI's client and OpenAI Agents through it; pydantic-evals."""

from __future__ import annotations

from functools import cache

import pytest

from collector.dialects.sent import runs, stored, tokens, traces
from fixtures.dialects.capture import ANSWER
from spanwise.collector.dialects import RawSpan, read_run
from spanwise.collector.records import Run, Trace

QUESTION = "When do parcels arrive?"


@cache
def sent(file: str) -> list[Trace]:
    with stored(file) as store:
        return traces(store)


def named(trace: Trace) -> dict[str, Run]:
    return {run.attributes["logfire.msg_template"].split(" {")[0]: run for run in trace.runs}


@pytest.mark.parametrize(
    ("file", "template", "name"),
    [
        ("logfire_sdk/program", "search", f"search {QUESTION}"),
        ("logfire_sdk/agents", "Function:", "Function: find"),
        ("pydantic_evals/offline", "case:", "case: parcel"),
    ],
)
def test_a_span_is_called_what_its_message_says(file: str, template: str, name: str) -> None:
    found = named(sent(file)[0])[template]
    assert (found.name, found.attributes["otel.span.name"].split(" {")[0]) == (name, template)
    assert "logfire.msg" not in found.attributes


@pytest.mark.parametrize(("message", "name"), [("x" * 201, "x" * 199 + "…"), ("", "s"), (1, "s")])
def test_a_message_that_is_no_good_name_is_kept_whole(message: object, name: str) -> None:
    sent = RawSpan(trace_id="1" * 32, span_id="2" * 16, name="s", attributes={"logfire.msg": message})
    found = read_run(sent)
    assert (found.name, found.attributes["logfire.msg"]) == (name, message)


def test_a_functions_arguments_are_inputs_and_what_it_returns_outputs() -> None:
    answer, nothing = sent("logfire_sdk/program")
    search = named(answer)["search"]
    assert (answer.root.kind, answer.root.inputs, answer.root.outputs) == ("chain", {"question": QUESTION}, ANSWER)
    assert search.inputs == {"query": QUESTION, "top_k": 2}
    assert [one["id"] for one in search.outputs] == ["d1", "d2"]
    assert [(one.id, one.score, one.content) for one in answer.documents] == [
        ("d1", 0.9, "three days"),
        ("d2", 0.4, "by ship"),
    ]
    assert (nothing.root.status, nothing.root.error, nothing.root.outputs) == ("error", "KeyError: 'parcel'", None)


def test_what_a_program_says_of_a_span_are_its_inputs_and_its_result_outputs() -> None:
    ask = named(sent("logfire_sdk/program")[0])["ask"]
    assert (ask.inputs, ask.outputs, ask.tags) == ({"step": 1, "settings": {"deep": [1]}}, ANSWER, ("beta", "parcels"))


def test_a_log_is_no_step() -> None:
    told = named(sent("logfire_sdk/program")[0])["told"]
    assert (told.kind, told.inputs, told.attributes["length"]) == ("unknown", None, 37)


def test_calls_of_openais_client_have_tokens_and_cost() -> None:
    answer = sent("logfire_sdk/program")[0]
    call, *_, responses = [run for run in runs(answer, "llm") if run.usage]
    assert call.outputs[0]["parts"] == [{"type": "text", "content": ANSWER}]
    assert [message["role"] for message in responses.inputs] == ["system", "user"]
    assert (call.model, call.cost, tokens(answer)) == ("gpt-4o-mini", 8.55e-06, [(21, 9), (4, 0), (21, 9)])


@pytest.mark.parametrize(("file", "first"), [("agents", ["system", "user"]), ("responses", ["user"])])
def test_openai_agents_through_logfire(file: str, first: list[str]) -> None:
    [trace] = sent(f"logfire_sdk/{file}")
    calls, [tool], [agent] = (runs(trace, kind) for kind in ("llm", "tool", "agent"))
    assert [message["role"] for message in calls[0].inputs] == first
    assert [message["role"] for message in calls[1].inputs] == [*first, "assistant", "tool"]
    assert [message["tool_calls"][0]["function"]["name"] for message in calls[0].outputs] == ["find"]
    assert ([message["content"] for message in calls[1].outputs], calls[1].model) == ([ANSWER], "gpt-4o-mini")
    assert (tool.inputs, tool.outputs) == ({"query": "parcel"}, "parcel: three days")
    assert agent.attributes["name"] == "clerk"
    assert (trace.root.session_id, trace.root.metadata) == ("s1", {"tenant": "t1"})
    assert tokens(trace) == [(21, 9), (21, 9)]


def test_a_case_of_pydantic_evals_has_what_it_was_given_and_has_given() -> None:
    [trace] = sent("pydantic_evals/offline")
    case = named(trace)["case:"]
    assert (case.kind, case.inputs, case.outputs) == ("chain", "Where is my parcel?", ANSWER)
    assert len(runs(trace, "evaluator")) == 3
