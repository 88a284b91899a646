"""pydantic-ai's instrumentation, data format versions 1 to 6.

Source: `pydantic_ai/_instrumentation.py`, `pydantic_ai/models/instrumented.py` and `pydantic_ai/agent/__init__.py` of
1.0 and 2.62. From version 3 on, model calls and tools follow OpenTelemetry's GenAI conventions, which `genai` reads.
"""

from __future__ import annotations

from spanwise.collector.dialects.attribute_parsing import parse_json, text_or_none
from spanwise.collector.dialects.draft import Draft, applies_to
from spanwise.collector.dialects.field_extraction import fill_field, parse_container, take_attribute
from spanwise.collector.dialects.genai import read_event_list, read_instructions
from spanwise.collector.records import JSON

SCOPE = "pydantic-ai"
# attributes with all messages of a run; up to data format version 1, the second one is used
HISTORY_NAME, EVENTS_NAME = "pydantic_ai.all_messages", "all_messages_events"
NEW_INDEX_NAME = "pydantic_ai.new_message_index"  # index of the first message that is new in this run
RESULT_NAME = "final_result"


@applies_to(scope=SCOPE)
def pydantic_ai(draft: Draft) -> None:
    """Take inputs and outputs of an agent or a tool call, and messages in one attribute."""
    if draft.span.scope != SCOPE:
        return
    attributes, fields = draft.attributes, draft.fields
    if "agent_name" in attributes and ("model_name" in attributes or HISTORY_NAME in attributes):
        _agent(draft)
    elif "tool_arguments" in attributes or "tool_response" in attributes:
        fields = draft.fields
        fields.setdefault("kind", "tool")
        for name, field in (("tool_arguments", "inputs"), ("tool_response", "outputs")):
            if name in attributes and field not in fields:
                fields[field] = parse_json(attributes.pop(name))  # type: ignore[literal-required]
    elif "events" in attributes:
        take_message_events(draft)
    elif "tools" in attributes and draft.span.name.startswith("running "):
        fields.setdefault("kind", "chain")


def _agent(draft: Draft) -> None:
    """Take the messages before the first new answer as inputs, and those from the last answer on as outputs.

    The attribute `final_result` takes precedence as outputs. The attribute with all messages stays.
    """
    attributes, fields = draft.attributes, draft.fields
    fields.setdefault("kind", "agent")
    draft.sums = True
    take_attribute(draft, "model", "model_name", text_or_none)
    if EVENTS_NAME in attributes:
        events = read_event_list(attributes[EVENTS_NAME])
        messages = events[0] if events else []
    else:
        history = parse_json(attributes.get(HISTORY_NAME))
        messages = history if isinstance(history, list) else []
    new_index = attributes.get(NEW_INDEX_NAME)
    start = new_index if type(new_index) is int and 0 <= new_index < len(messages) else 0
    answers = [index for index in range(start, len(messages)) if _is_answer(messages[index])]
    inputs, outputs = (messages[: answers[0]], messages[answers[-1] :]) if answers else (messages, [])
    if all_inputs := [*read_instructions(attributes, inputs), *inputs]:
        fields.setdefault("inputs", all_inputs)
    if RESULT_NAME in attributes and "outputs" not in fields:
        fields["outputs"] = parse_container(attributes.pop(RESULT_NAME))
    elif outputs:
        fields.setdefault("outputs", outputs)


def _is_answer(message: JSON) -> bool:
    return isinstance(message, dict) and message.get("role") == "assistant"


def take_message_events(draft: Draft, *, answered: bool = False) -> None:
    """Take messages from a list of events in the attribute `events`. The attribute stays if it holds anything else.

    If a model has `answered` and no event is a choice, the assistant's messages at the end are the answer.
    """
    messages = read_event_list(draft.attributes.get("events"))
    if messages is None:
        return
    inputs, outputs = messages
    if answered and not outputs:
        split = next((at for at in range(len(inputs), 0, -1) if not _is_answer(inputs[at - 1])), 0)
        inputs, outputs = inputs[:split], inputs[split:]
    filled = [
        fill_field(draft, field, content) for field, content in (("inputs", inputs), ("outputs", outputs)) if content
    ]
    if filled and all(filled):
        del draft.attributes["events"]
