"""Tool calls as evaluators read them: from spans of tools and from the replies of models."""

import json
import sys
from pathlib import Path

import pytest

from looped_cases import loop_over
from spanwise.collector.records import Run, Trace
from spanwise.evaluators import get_evaluator, score
from spanwise.evaluators.interface.case_views import extract_tool_calls

sys.path.append(str(Path(__file__).parent.parent / "collector" / "dialects"))

IDS = {"trace_id": "1" * 32}
ROME = {"city": "Rome"}
CHAT = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": json.dumps(ROME)}}


def run(place, kind, name="step", parent=0, **fields):
    given = {"start_ns": 10 * place, "end_ns": 10 * place + 5, **fields}
    above = None if place == 0 else f"{parent:016x}"
    return Run(**IDS, span_id=f"{place:016x}", parent_id=above, name=name, kind=kind, **given)


def trace_of(*runs):
    root = run(0, "agent", "agent", end_ns=10**6)
    return Trace(root, (root, *runs))


def reply(place, *calls, **fields):
    return run(
        place, "llm", "chat", outputs=[{"role": "assistant", "content": None, "tool_calls": list(calls)}], **fields
    )


def names(*runs):
    return [call.name for call in extract_tool_calls(trace_of(*runs)) or ()]


REPLIES = {
    "openai chat": [{"role": "assistant", "content": None, "tool_calls": [CHAT]}],
    "openai completion": {"object": "chat.completion", "choices": [{"message": {"content": None, "tool_calls": [CHAT]}}]},
    "openai before tools": [{"role": "assistant", "function_call": {"name": "weather", "arguments": '{"city": "Rome"}'}}],
    "openai responses": [{"type": "function_call", "id": "f", "call_id": "c1", "name": "weather", "arguments": '{"city": "Rome"}'}],
    "openai response": {
        "object": "response",
        "output": [
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Rome"}'},
        ],
    },
    "anthropic": {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "…"}, {"type": "tool_use", "id": "c1", "name": "weather", "input": ROME}],
    },
    "genai parts": [{"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "weather", "arguments": ROME}]}],
    "gemini": {"candidates": [{"content": {"role": "model", "parts": [{"function_call": {"name": "weather", "args": ROME}}]}}]},
    "gemini over http": {"candidates": [{"content": {"parts": [{"functionCall": {"name": "weather", "args": ROME}}]}}]},
    "langchain": [{"role": "assistant", "content": "", "tool_calls": [{"name": "weather", "args": ROME, "id": "c1", "type": "tool_call"}]}],
    "langchain result": {
        "generations": [
            [
                {
                    "text": "",
                    "message": {
                        "lc": 1,
                        "kwargs": {
                            "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": ROME}],
                            "additional_kwargs": {"tool_calls": [CHAT]},
                            "tool_calls": [{"name": "weather", "args": ROME, "id": "c1", "type": "tool_call"}],
                            "invalid_tool_calls": [{"name": "weather", "args": "{", "id": "c2", "type": "invalid_tool_call"}],
                        },
                    },
                }
            ]
        ]
    },
    "langchain gemini": {
        "content": "",
        "additional_kwargs": {"function_call": {"name": "weather", "arguments": '{"city": "Rome"}'}},
        "tool_calls": [{"name": "weather", "args": ROME, "id": "c1", "type": "tool_call"}],
    },
    "llama_index": {
        "message": {"role": "assistant", "additional_kwargs": {"tool_calls": [CHAT]}, "blocks": [{"tool_call_id": "c1", "tool_name": "weather", "tool_kwargs": '{"city": "Rome"}'}]},
        "raw": {"choices": [{"message": {"tool_calls": [CHAT]}}]},
    },
    "haystack": {"replies": [{"role": "assistant", "content": [{"tool_call": {"tool_name": "weather", "arguments": ROME, "id": "c1"}}]}]},
    "bedrock": {"output": {"message": {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c1", "name": "weather", "input": ROME}}]}}},
    "traceloop": [{"role": "assistant", "tool_calls": [{"id": "c1", "name": "weather", "arguments": '{"city": "Rome"}'}]}],
    "ollama": {"message": {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": ROME}}]}},
}  # fmt: skip


@loop_over("format", REPLIES)
def test_a_call_is_read_from_the_reply_of_a_model(format):
    done = trace_of(run(1, "llm", "chat", outputs=REPLIES[format]))
    expected = [{"name": "weather", "arguments": ROME}]
    scores = score(get_evaluator("tool_calls", expected=expected, match="strict", all_arguments=True), done)
    assert [one.score for one in scores] == [True, 1.0, 1.0]
    assert [one.score for one in score(get_evaluator("tool_calls", expected=[]), done)[:2]] == [False, 0.0]
    assert score(get_evaluator("tool_calls", expected=[], match="superset"), done)[0].score is True
    assert score(get_evaluator("tool_calls", expected=[], match="strict"), done)[0].score is False


@loop_over("format", REPLIES)
def test_a_call_and_the_span_of_its_tool_count_once(format):
    model = run(1, "llm", "chat", outputs=REPLIES[format])
    with_id = run(2, "tool", "execute_tool weather", inputs=ROME, attributes={"gen_ai.tool.call.id": "c1"})
    assert names(model, with_id) == names(model, run(2, "tool", "weather", inputs=ROME)) == ["weather"]


@loop_over(
    "outputs",
    [
        "I would call weather",
        [{"role": "tool", "tool_call_id": "c1", "content": [{"type": "tool_use", "name": "x", "input": {}}]}],
        [{"role": "assistant", "content": "no", "tool_calls": None, "function_call": None}],
        [{"type": "function_call_output", "call_id": "c1", "output": {"tool_calls": [CHAT]}}],
        {"tools": [{"type": "function", "function": {"name": "weather", "parameters": {}}}]},
        [{"type": "tool_call"}, {"tool_calls": ["weather", 3, {}]}],
    ],
)
def test_what_is_no_call_of_the_model_is_not_counted(outputs):
    assert extract_tool_calls(trace_of(run(1, "llm", outputs=outputs))) == []


def test_two_calls_with_one_name_take_the_spans_with_their_arguments():
    oslo = {**CHAT, "id": "c2", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    spans = [run(2, "tool", "weather", inputs={"city": "Oslo"}), run(3, "tool", "weather", inputs=ROME)]
    calls = extract_tool_calls(trace_of(reply(1, CHAT, oslo), *spans))
    assert [call.arguments for call in calls] == [[{"city": "Oslo"}] * 2, [ROME] * 2]


def test_ids_that_begin_anew_in_each_reply_are_other_calls():
    oslo = {**CHAT, "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    spans = [run(2, "tool", "weather", inputs=ROME, attributes={"tool_call.id": "c1"})]
    spans += [run(4, "tool", "weather", inputs={"city": "Oslo"}, attributes={"tool_call.id": "c1"})]
    assert names(reply(1, CHAT), spans[0], reply(3, oslo), spans[1]) == ["weather", "weather"]


def test_the_same_reply_in_a_framework_and_in_its_client_counts_once():
    inner = reply(2, {"function": {"name": "weather", "arguments": ROME}}, parent=1)
    assert names(reply(1, {"function": {"name": "weather", "arguments": ROME}}), inner) == ["weather"]


def test_a_tool_inside_itself_and_a_second_attempt_are_one_call():
    outer = run(2, "tool", "execute_tool weather", attributes={"gen_ai.tool.call.id": "c1"})
    again = run(4, "tool", "execute_tool weather", attributes={"gen_ai.tool.call.id": "c1"})
    assert names(reply(1, CHAT), outer, run(3, "tool", "tools/call weather", parent=2), again) == ["weather"]


def test_calls_without_a_span_stand_between_those_that_have_one():
    other = {"id": "c2", "function": {"name": "time", "arguments": "{}"}}
    assert names(reply(1, CHAT), run(2, "tool", "weather"), reply(3, other), run(4, "tool", "send")) == [
        "weather",
        "time",
        "send",
    ]


def test_a_span_is_no_call_that_was_asked_for_later():
    assert names(run(1, "tool", "weather"), reply(2, CHAT)) == ["weather", "weather"]


def test_calls_of_an_evaluator_inside_the_trace_are_not_the_agents():
    judge = run(2, "evaluator", "judge")
    assert names(reply(1), judge, reply(3, CHAT, parent=2), run(4, "tool", "score", parent=2)) == []


def test_structured_output_of_pydantic_ai_is_no_tool():
    final = {"type": "tool_call", "id": "c1", "name": "final_result", "arguments": {}}
    model = run(
        1, "llm", outputs=[{"role": "assistant", "parts": [final]}], attributes={"otel.scope.name": "pydantic-ai"}
    )
    assert names(model) == []


@loop_over(
    ("runs", "outcome"),
    [
        ([], "skip"),
        ([run(1, "chain")], "skip"),
        ([run(1, "llm")], "skip"),  # content is not recorded
        ([run(1, "llm", inputs="hi", status="error", error="TimeoutError")], "score"),
        ([run(1, "llm", outputs="hi")], "score"),
        ([run(1, "tool")], "score"),
    ],
)
def test_a_trace_that_does_not_tell_its_calls_is_skipped(runs, outcome):
    for id, parameters in (("tool_calls", {}), ("trajectory_match", {"kinds": ["tool"]})):
        assert {
            one.outcome for one in score(get_evaluator(id, expected=["weather"], **parameters), trace_of(*runs))
        } == {outcome}


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("execute_tool weather", {}),
        ("execute_tool", {"gen_ai.tool.name": "weather"}),
        ("tools/call weather", {"mcp.method.name": "tools/call"}),
        ("FunctionTool.run", {"tool.name": "weather"}),
        ("weather.tool", {"traceloop.entity.name": "weather"}),
    ],
)
def test_a_trajectory_has_the_names_of_tools(name, attributes):
    done = trace_of(run(1, "chain", "plan"), run(2, "tool", name, attributes=attributes))
    assert score(get_evaluator("trajectory_match", expected=["plan", "weather"]), done)[0].score is True
    assert score(get_evaluator("tool_calls", expected=["weather"], match="strict"), done)[0].score is True


def test_a_trajectory_and_a_limit_of_steps_count_calls_without_a_span():
    done = trace_of(reply(1, CHAT), run(2, "llm", "chat", outputs="20 degrees"))
    assert score(get_evaluator("trajectory_match", expected=["chat", "weather", "chat"]), done)[0].score is True
    assert score(get_evaluator("step_limit", limit=2), done)[0].score is False
    assert score(get_evaluator("step_limit", limit=2, kinds=["llm"]), done)[0].score is True


def test_a_reply_nested_without_end_is_read_to_a_depth():
    deep = CHAT
    for _ in range(500):
        deep = {"content": [deep]}
    assert names(run(1, "llm", outputs=deep)) == []


SENT = ("vercel/ai6 openinference/llama_index traceloop/old logfire_sdk/agents haystack/content openai_v2/span").split()


def test_what_senders_have_sent_has_each_call_once():
    from sent import stored, traces

    with stored(*SENT) as store:
        calls = [extract_tool_calls(trace) for trace in traces(store)]
    assert [call.name for each in calls for call in each or ()].count("track") == 6
    assert [call.name for each in calls for call in each or ()].count("find") == 2
    assert {len(each) for each in calls if each} == {1}
