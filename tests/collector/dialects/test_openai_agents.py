"""OpenAI Agents through OpenInference's instrumentation, from its own bytes."""

from __future__ import annotations

from collector.dialects.sent import runs, stored, tokens, traces
from fixtures.dialects.capture import ANSWER
from spanwise.collector.stores import derived_fields


def test_agents_tools_and_calls_are_read() -> None:
    with stored("openai_agents/agents") as store:
        [trace] = traces(store)
    first, answered = runs(trace, "llm")
    [tool] = runs(trace, "tool")
    assert [message["role"] for message in first.inputs] == ["system", "user"]
    assert (answered.outputs[0]["content"], answered.model) == (ANSWER, "gpt-4o-mini")
    assert (tool.inputs, tool.outputs) == ({"query": "parcel"}, "parcel: three days")
    assert [run.name for run in runs(trace, "agent")] == ["parcels", "clerk"]
    assert trace.root.inputs == first.inputs
    assert trace.root.outputs == answered.outputs
    assert derived_fields(trace.root) == ("inputs", "outputs")
    assert tokens(trace) == [(21, 9), (21, 9)]
