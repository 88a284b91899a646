"""Prompt, agent, finish reasons, time to the first token and offered tools, under the names of all conventions."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.dialects.sent import FIXTURES, traces
from collector.dialects.vendors import strict
from fixtures.dialects.capture import replay
from spanwise.collector.dialects import RawSpan, read_run
from spanwise.collector.dialects.field_extraction import LABELS
from spanwise.collector.ingest.request_decoder import MAX_NAME_CHARS, truncate_fields
from spanwise.collector.records import Event, Run
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

FIELDS = ("prompt_name", "prompt_version", "agent_name", "finish_reasons", "time_to_first_token_ms", "tools")
EMPTY = {"prompt_name": None, "prompt_version": None, "agent_name": None, "finish_reasons": (), "tools": ()} | {
    "time_to_first_token_ms": None
}
TOOL = {"type": "function", "function": {"name": "track", "parameters": {"type": "object"}}}


def read(attributes: dict[str, Any], scope: str = "", events: tuple[Event, ...] = (), start_ns: int = 0) -> Run:
    span = RawSpan("1" * 32, "2" * 16, "s", start_ns=start_ns, attributes=attributes, events=events, scope=scope)
    return read_run(span, strict)


@pytest.mark.parametrize(
    ("attributes", "name", "version"),
    [
        ({"gen_ai.prompt.name": "greet", "gen_ai.prompt.version": "v2"}, "greet", "v2"),
        ({"prompt.id": "p1", "llm.prompt_template.version": "v2"}, "p1", "v2"),
        ({"langfuse.observation.prompt.name": "greet", "langfuse.observation.prompt.version": 7}, "greet", "7"),
        ({"traceloop.prompt.key": "greet", "traceloop.prompt.version": 3}, "greet", "3"),
        ({"mlflow.prompt.name": '"greet"', "mlflow.prompt.version": "4"}, "greet", "4"),
        ({"mlflow.linkedPrompts": '[{"name":"greet","version":"4"},{"name":"other"}]'}, "greet", "4"),
        ({"langsmith.metadata.lc_hub_repo": "greet", "langsmith.metadata.lc_hub_commit_hash": "ab12"}, "greet", "ab12"),
        ({"gen_ai.prompt.name": "greet"}, "greet", None),
    ],
)
def test_a_prompt_is_read_under_the_names_of_each_convention(
    attributes: dict[str, Any], name: str, version: str | None
) -> None:
    assert (found := read(attributes)).prompt_name == name
    assert found.prompt_version == version


def test_template_and_variables_of_a_prompt_stay_attributes() -> None:
    template = {"llm.prompt_template.template": "Say {x}", "llm.prompt_template.variables": '{"x": 1}'}
    found = read({"llm.prompt_template.version": "v2", **template, "gen_ai.prompt.variable.x": "1"})
    assert found.attributes == {**template, "gen_ai.prompt.variable.x": "1"}


@pytest.mark.parametrize(
    ("attributes", "scope", "agent"),
    [
        ({"gen_ai.agent.name": "Planner"}, "", "Planner"),
        ({"agent.name": "Planner", "openinference.span.kind": "AGENT"}, "", "Planner"),
        ({"agent_name": "Planner"}, "pydantic-ai", "Planner"),
        ({"agent_name": "Planner"}, "logfire.openai_agents", "Planner"),
        ({"agent_name": "Planner"}, "other", None),
    ],
)
def test_the_name_of_an_agent(attributes: dict[str, Any], scope: str, agent: str | None) -> None:
    assert read(attributes, scope).agent_name == agent


@pytest.mark.parametrize(
    ("attributes", "reasons"),
    [
        ({"gen_ai.response.finish_reasons": ["stop", "length", "stop"]}, ("stop", "length")),
        ({"gen_ai.response.finish_reasons": "stop"}, ("stop",)),
        ({"gen_ai.response.finish_reasons": '["tool_calls"]'}, ("tool_calls",)),
        ({"llm.finish_reason": "end_turn"}, ("end_turn",)),
        ({"ai.response.finishReason": "tool-calls"}, ("tool-calls",)),
        (
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.output.messages": '[{"role":"assistant","parts":[],"finish_reason":"length"}]',
            },
            ("length",),
        ),
    ],
)
def test_finish_reasons(attributes: dict[str, Any], reasons: tuple[str, ...]) -> None:
    assert read(attributes).finish_reasons == reasons


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.response.time_to_first_chunk": 0.2},
        {"gen_ai.client.operation.time_to_first_chunk": 0.2},
        {"gen_ai.server.time_to_first_token": "0.2"},
        {"gen_ai.latency.time_to_first_token": 0.2},
        {"ai.response.msToFirstChunk": 200},
        {"langfuse.observation.completion_start_time": '"1970-01-01T00:00:01.2Z"'},
        {"langfuse.observation.completion_start_time": "1970-01-01T00:00:01.200000+00:00"},
    ],
)
def test_the_time_to_the_first_token_in_milliseconds(attributes: dict[str, Any]) -> None:
    assert read(attributes, start_ns=10**9).time_to_first_token_ms == 200


def test_the_time_to_the_first_token_of_an_event() -> None:
    events = tuple(Event("First Token Stream Event", time_ns) for time_ns in (1_300_000_000, 1_200_000_000))
    attributes = {"openinference.span.kind": "LLM", "llm.model_name": "m"}
    assert read(attributes, events=events, start_ns=10**9).time_to_first_token_ms == 200
    assert read(attributes, events=events, start_ns=2 * 10**9).time_to_first_token_ms is None  # before the start


@pytest.mark.parametrize(
    "attributes",
    [
        {"gen_ai.tool.definitions": json.dumps([TOOL])},
        {"gen_ai.tool.definitions": [TOOL]},
        {"ai.prompt.tools": [json.dumps(TOOL)]},
        {"mlflow.chat.tools": json.dumps([TOOL])},
        {"llm.tools.0.tool.json_schema": json.dumps(TOOL)},
        {
            "llm.request.functions.0.name": "track",
            "llm.request.functions.0.parameters": json.dumps({"type": "object"}),
        },
    ],
)
def test_offered_tools_are_a_field(attributes: dict[str, Any]) -> None:
    assert (found := read(attributes)).tools == (TOOL,)
    assert found.attributes == {}


def test_offered_tools_are_in_the_order_of_their_index() -> None:
    names = {f"llm.tools.{n}.tool.json_schema": json.dumps({"name": f"t{n}"}) for n in (10, 2, 0)}
    assert [tool["name"] for tool in read(names).tools] == ["t0", "t2", "t10"]


def test_of_two_conventions_openinference_wins_and_what_the_other_says_stays() -> None:
    both = {"openinference.span.kind": "LLM", "input.value": "question", "output.value": "answer"}
    both |= {"llm.finish_reason": "stop", "llm.prompt_template.version": "v1", "agent.name": "a"}
    both |= {"llm.tools.0.tool.json_schema": '{"name": "f"}', "llm.model_name": "m1"}
    genai = {"gen_ai.response.finish_reasons": ["length"], "gen_ai.prompt.version": "v2", "gen_ai.agent.name": "b"}
    genai |= {"gen_ai.tool.definitions": '[{"name": "g"}]', "gen_ai.request.model": "m2"}
    found = read({**genai, **both})
    assert (found.finish_reasons, found.prompt_version, found.agent_name) == (("stop",), "v1", "a")
    assert (found.tools, found.model, found.inputs) == (({"name": "f"},), "m1", "question")
    assert found.attributes == genai


def test_equal_values_of_two_conventions_are_kept_once() -> None:
    both = {"llm.finish_reason": "stop", "gen_ai.response.finish_reasons": ["stop"]}
    both |= {"agent.name": "a", "gen_ai.agent.name": "a"}
    assert read(both).attributes == {}


WRONG: list[Any] = ["", [], {}, True, 1.5, None, [1], [""], [None], {"a": 1}, "[", "x" * 5, float("nan"), -1, 10**30]
VALID = {
    "prompt_name": str,
    "prompt_version": str,
    "agent_name": str,
    "finish_reasons": tuple,
    "time_to_first_token_ms": float | int,
    "tools": tuple,
}


@pytest.mark.parametrize("label", LABELS, ids=lambda label: f"{label.field}-{label.name}")
@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_a_value_of_a_wrong_type_stays_an_attribute(label: Any, value: Any) -> None:
    found = read({label.name: value}, label.scopes[0])
    if getattr(found, label.field) == EMPTY[label.field]:
        kept = {**found.attributes, **{f"langsmith.metadata.{key}": value for key, value in found.metadata.items()}}
        kept |= {f"mlflow.traceTag.{key}": value for key, value in found.metadata.items()}
        assert repr(kept.get(label.name)) == repr(value)
    else:
        assert isinstance(getattr(found, label.field), VALID[label.field])


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = [
    *(label.name for label in LABELS),
    *("llm.tools.0.tool.json_schema", "llm.tools.0.tool.name", "llm.tools.x.tool.name", "llm.tools.0"),
    *("llm.request.functions.0.name", "llm.request.functions.99999999.name", "tool.parameters"),
    *("gen_ai.memory.records", "gen_ai.memory.query.text", "gen_ai.operation.name", "openinference.span.kind"),
]


@given(st.dictionaries(st.sampled_from(NAMES), JSON_VALUES | JSON_VALUES.map(json.dumps), max_size=6))
def test_no_value_makes_a_dialect_fail(attributes: dict[str, Any]) -> None:
    read(attributes)


@pytest.mark.process
def test_tools_and_messages_of_a_megabyte_are_read_in_the_time_that_their_size_takes() -> None:
    tools = json.dumps([{"name": "f", "description": "x" * 2**20}])
    many = {f"llm.tools.{n}.tool.json_schema": '{"name":"f"}' for n in range(5_000)}
    message = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "y" * 2**20}]}])
    began = time.process_time()
    found = read({"gen_ai.tool.definitions": tools, "gen_ai.input.messages": message, "gen_ai.operation.name": "chat"})
    assert len(found.tools[0]["description"]) == 2**20
    assert len(read(many).tools) == 5_000
    assert time.process_time() - began < 2


def test_a_name_of_a_megabyte_is_cut_and_kept_whole_among_the_attributes() -> None:
    cut = truncate_fields(read({"gen_ai.prompt.name": "p" * 2**20, "gen_ai.response.finish_reasons": ["r" * 2**20]}))
    assert (len(cut.prompt_name or ""), len(cut.finish_reasons[0])) == (MAX_NAME_CHARS, MAX_NAME_CHARS)
    assert max(len(str(value)) for value in cut.attributes.values()) >= 2**20


# What the senders of the fixtures tell: number of runs with tools, then agents, finish reasons, with a first token
SENDERS: dict[str, tuple[int, set[str], set[str], bool]] = {
    "laminar/rag": (1, set(), {"stop", "tool_calls"}, True),
    "langfuse/rag": (0, set(), set(), True),
    "langsmith/rag": (0, set(), {"stop", "tool_calls"}, False),
    "logfire_sdk/agents": (0, {"clerk"}, set(), False),
    "mlflow/genai": (1, {"agent"}, {"stop", "tool_calls"}, False),
    "mlflow/native": (1, set(), set(), False),
    "openai_agents/agents": (0, {"clerk"}, set(), False),
    "openai_v2/span": (0, set(), {"stop", "tool_calls"}, False),
    "openinference/openai": (2, set(), {"stop", "tool_calls"}, True),
    "openinference/llama_index": (4, set(), {"stop", "tool_calls"}, True),
    "pydantic_ai/version1": (0, {"parcels"}, set(), False),
    "pydantic_ai/version5": (2, {"parcels"}, {"stop", "tool_call"}, True),
    "traceloop/old": (1, set(), {"stop", "tool_calls"}, True),
    "traceloop/rag": (1, {"parcels"}, {"stop", "tool_call"}, True),
    "vercel/ai6": (6, set(), {"stop", "tool-calls"}, True),
}


@pytest.mark.process
@pytest.mark.parametrize("sender", SENDERS)
def test_what_senders_tell_is_in_runs_and_summaries(sender: str, tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "a.db") as store, Server(store) as server:
        assert {status for status, _ in replay(FIXTURES / f"{sender}.jsonl.gz", server.url)} <= {200, 202, 404}
        summaries = list(store.each())
        found = [one for trace in traces(store) for one in trace.runs]
    agents = {one.agent_name for one in found if one.agent_name}
    reasons = {reason for one in found for reason in one.finish_reasons}
    has_time = any(one.time_to_first_token_ms is not None for one in found)
    assert (sum(bool(one.tools) for one in found), agents, reasons, has_time) == SENDERS[sender]
    assert {agent for one in summaries for agent in one.agents} == agents
    assert {reason for one in summaries for reason in one.finish_reasons} == reasons
