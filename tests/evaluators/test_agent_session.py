"""Review of an agent's session by `agent_sanity`: failed runs, tool calls without a result, no final answer."""

import json

import pytest

from looped_cases import loop_over
from spanwise.collector.records import OpenRun, Run, Trace
from spanwise.evaluators import evaluate, get_evaluator, score
from spanwise.evaluators.interface.case_views import find_unanswered_calls
from spanwise.tracer import span, trace

IDS = {"trace_id": "1" * 32}
ARTIFACTS = {
    "answer": "Done.",
    "artifacts": [{"path": "a.json", "content": "[1]"}, {"path": "b.json", "content": "[1"}],
}
CHAT = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}


def run(place, kind, name, parent=0, **fields):
    given = {"start_ns": 10 * place, "end_ns": 10 * place + 5, **fields}
    above = None if place == 0 else f"{parent:016x}"
    return Run(**IDS, span_id=f"{place:016x}", parent_id=above, name=name, kind=kind, **given)


def trace_of(*runs, running=(), **fields):
    root = run(0, "agent", "agent", end_ns=10**6, **fields)
    return Trace(root, (root, *runs), running=running)


def call(place, *calls, **fields):
    outputs = [{"role": "assistant", "content": None, "tool_calls": list(calls or (CHAT,))}]
    return run(place, "llm", "chat", outputs=outputs, **fields)


def review(done, outputs=ARTIFACTS, **parameters):
    [found] = score(get_evaluator("agent_sanity", **parameters), done, outputs=outputs)
    return found


def problems(done, outputs=ARTIFACTS):
    return [(each["kind"], each["span_id"]) for each in review(done, outputs).metadata["session_problems"]]


def test_a_failed_tool_run_is_a_problem_with_a_link_and_changes_no_score():
    failed = run(1, "tool", "search", status="error", error="TimeoutError: too slow")
    found = review(trace_of(failed))
    assert found.score == 0.5
    assert found.metadata["session_problems"] == [
        {
            "kind": "failed_run",
            "message": "tool run 'search' failed: TimeoutError: too slow",
            "run": "search",
            "trace_id": "1" * 32,
            "span_id": f"{1:016x}",
        }
    ]
    assert "b.json" in found.comment
    assert "tool run 'search' failed" in found.comment
    assert set(found.metadata["problems"]) == {"b.json"}


def test_a_sound_session_has_no_problems():
    found = review(
        trace_of(call(1), run(2, "tool", "weather", outputs="sunny"), run(3, "llm", "chat", outputs="Sunny."))
    )
    assert found.metadata["session_problems"] == []
    assert "session_problems" not in score(get_evaluator("agent_sanity"), outputs=ARTIFACTS)[0].metadata


@loop_over(
    ("kind", "status", "count"),
    [("llm", "error", 1), ("tool", "error", 1), ("chain", "error", 0), ("llm", "cancelled", 0), ("tool", "ok", 0)],
)
def test_failed_runs_are_those_of_models_and_tools(kind, status, count):
    assert len(problems(trace_of(run(1, kind, "step", status=status)))) == count


def test_a_failure_that_a_client_library_repeats_is_one_problem():
    outer = run(1, "llm", "ChatOpenAI", status="error")
    inner = run(2, "llm", "openai.chat", parent=1, status="error")
    assert problems(trace_of(outer, inner)) == [("failed_run", outer.span_id)]
    tool = run(1, "tool", "plan", status="error")
    other = run(2, "tool", "search", parent=1, status="error")
    assert len(problems(trace_of(tool, other))) == 2


def test_failures_below_an_evaluator_are_not_the_agents():
    judge = run(1, "evaluator", "faithfulness")
    assert problems(trace_of(judge, run(2, "llm", "judge", parent=1, status="error"))) == []


def test_a_call_that_nothing_answers_has_no_result():
    requested = call(1)
    assert problems(trace_of(requested)) == [("no_result", requested.span_id)]
    assert "tool call 'weather' has no result" in review(trace_of(requested)).comment


ANSWERS = {
    "openai": {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    "openai responses": {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    "anthropic": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "sunny"}]},
    "genai": {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "result": "sunny"}]},
    "bedrock": {"role": "user", "content": [{"toolResult": {"toolUseId": "c1", "content": [{"text": "sunny"}]}}]},
    "ai sdk": {"role": "tool", "content": [{"type": "tool-result", "toolCallId": "c1", "toolName": "weather"}]},
    "langchain": {"lc": 1, "kwargs": {"content": "sunny", "tool_call_id": "c1"}},
    "haystack": {
        "role": "tool",
        "content": [{"tool_call_result": {"result": "sunny", "origin": {"tool_name": "weather", "id": "c1"}}}],
    },
}


@pytest.mark.parametrize("vendor", ANSWERS)
def test_a_result_in_a_later_message_answers_a_call(vendor):
    request = {"role": "assistant", "tool_calls": [CHAT]}
    later = run(3, "llm", "chat", inputs={"messages": [request, ANSWERS[vendor]]}, outputs="It is sunny.")
    assert problems(trace_of(call(1), later)) == []


def test_a_request_that_is_repeated_in_a_later_message_is_no_result():
    later = run(3, "llm", "chat", inputs={"messages": [{"role": "assistant", "tool_calls": [CHAT]}]}, outputs="Hm.")
    assert [kind for kind, _ in problems(trace_of(call(1), later))] == ["no_result"]


def test_calls_without_an_id_are_answered_by_name_as_often_as_there_are_results():
    asked = [{"functionCall": {"name": "weather", "args": {"city": city}}} for city in ("Rome", "Oslo")]
    reply = run(1, "llm", "gemini", outputs={"candidates": [{"content": {"role": "model", "parts": asked}}]})
    told = {"functionResponse": {"name": "weather", "response": {"sky": "blue"}}}
    for number in range(3):
        messages = {"contents": [{"role": "user", "parts": [told] * number}]}
        later = [run(place, "llm", "gemini", inputs=messages, outputs="Blue.") for place in (2, 3)]
        assert len(find_unanswered_calls(trace_of(reply, *later))) == 2 - number


@loop_over(
    "hosted",
    [
        [{"type": "web_search_call", "id": "w1", "status": "completed", "action": {"query": "cats"}}],
        [{"type": "mcp_call", "id": "m1", "name": "find", "arguments": "{}", "output": "found"}],
        {
            "role": "assistant",
            "content": [
                {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
                {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
            ],
        },
    ],
)
def test_calls_of_hosted_tools_are_answered_by_the_server(hosted):
    assert problems(trace_of(run(1, "llm", "chat", outputs=hosted))) == []


def test_a_tool_run_that_has_not_ended_is_one_problem():
    waiting = OpenRun(**IDS, span_id="9" * 16, name="weather", kind="tool")
    assert problems(trace_of(call(1), running=(waiting,))) == [("no_result", "9" * 16)]


def test_a_failed_tool_run_is_no_call_without_a_result():
    failed = run(2, "tool", "weather", status="error")
    assert problems(trace_of(call(1), failed)) == [("failed_run", failed.span_id)]


@loop_over(
    ("outputs", "is_missing"),
    [
        ("", True),
        (" \n", True),
        ({"answer": ""}, True),
        ({"answer": "", "artifacts": ARTIFACTS["artifacts"]}, True),
        ({"artifacts": []}, True),
        ({"artifacts": ARTIFACTS["artifacts"]}, False),
        ("42", False),
        ({"answer": 0}, False),
    ],
)
def test_an_empty_answer_is_no_final_answer(outputs, is_missing):
    found = review(trace_of(run(1, "llm", "chat", outputs="…")), outputs)
    assert [each["kind"] for each in found.metadata["session_problems"]] == ["no_answer"] * is_missing


def test_a_session_without_outputs_is_a_skip_with_its_problems():
    done = trace_of(call(1, start_ns=1), status="error", error="MaxSteps: 10")
    found = review(done, None)
    assert found.outcome == "skip"
    assert "needs outputs; the run failed" in found.comment
    assert [each["kind"] for each in found.metadata["session_problems"]] == ["no_result", "no_answer"]


def test_the_last_reply_of_a_model_is_the_answer_where_the_root_has_none():
    assert problems(trace_of(run(1, "llm", "chat", outputs="It is done.")), None) == []
    assert problems(trace_of(run(1, "llm", "chat", outputs="Let me see."), call(2)), None)[-1][0] == "no_answer"


def test_an_answer_that_was_not_recorded_is_not_missing():
    assert problems(trace_of(run(1, "llm", "chat")), None) == []
    assert problems(trace_of(), None) == []


def test_a_task_that_returns_none_gives_no_final_answer(store):
    experiment = evaluate([{"inputs": "q"}], lambda inputs: None, ["agent_sanity"], store=store, progress=False)
    [row] = experiment.rows()
    found = row.feedback["agent_sanity"]
    assert (found.score, [each["kind"] for each in found.metadata["session_problems"]]) == (0.0, ["no_answer"])


def test_a_directory_is_checked_where_the_agent_failed(tmp_path):
    (tmp_path / "a.json").write_text("[1]")
    found = review(trace_of(status="error"), None, directory=str(tmp_path))
    assert (found.score, found.metadata["session_problems"][0]["kind"]) == (1.0, "no_answer")


def test_files_without_a_directory_are_a_skip_with_the_problems_of_the_session():
    found = review(trace_of(run(1, "tool", "write", status="error")), {"answer": "Done.", "artifacts": ["a.json"]})
    assert (found.outcome, len(found.metadata["session_problems"])) == ("skip", 1)
    assert "get_evaluator('agent_sanity', directory=…)" in found.comment


def test_many_problems_are_cut():
    found = review(trace_of(*(run(place, "tool", "t" * 1000, status="error") for place in range(1, 300))))
    assert len(found.metadata["session_problems"]) == 100
    assert len(found.comment) == 1000
    assert len(json.dumps(found.metadata["session_problems"])) < 100_000


def test_hostile_messages_do_not_break_the_review():
    deep = "x"
    for _ in range(5_000):
        deep = [{"content": deep}]
    odd = [
        None,
        3,
        {"role": ["tool"], "type": 3},
        {"role": {}, "tool_call_id": 7},
        {"origin": "a"},
        {"type": "_result"},
    ]
    done = trace_of(call(1), run(2, "llm", "chat", inputs=odd, outputs="So."), run(3, "llm", "chat", inputs=deep))
    assert [kind for kind, _ in problems(done)] == ["no_result"]


@trace(kind="agent", name="agent")
def agent(q):
    with span("search", kind="tool") as step:
        step.set_outputs("nothing")
    try:
        with span("send", kind="tool"):
            raise ConnectionError("no network")
    except ConnectionError:
        return ARTIFACTS


def test_problems_of_an_experiment_lead_to_its_runs(store):
    experiment = evaluate([{"inputs": {"q": "Why?"}}], agent, ["agent_sanity"], store=store, progress=False)
    [row] = experiment.rows()
    [found] = row.feedback["agent_sanity"].metadata["session_problems"]
    linked = next(each for each in row.trace.runs if each.span_id == found["span_id"])
    assert (linked.name, found["trace_id"], row.scores["agent_sanity"]) == ("send", row.trace.trace_id, 0.5)
