"""pydantic-ai's instrumentation, data format versions 1 to 6.

Source: `pydantic_ai/_instrumentation.py`, `pydantic_ai/models/instrumented.py` and `pydantic_ai/agent/__init__.py` of
1.0 and 2.62. From version 3 on, model calls and tools follow OpenTelemetry's GenAI conventions, which `genai` reads.
"""

from __future__ import annotations

from spanwise.collector.dialects.attribute_parsing import parse_json, text_or_none
from spanwise.collector.dialects.draft import Draft, applies_to
from spanwise.collector.dialects.field_extraction import fill_field
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
    if (model := text_or_none(attributes.get("model_name"))) and fields.setdefault("model", model) == model:
        del attributes["model_name"]
    if EVENTS_NAME in attributes:
        told = read_event_list(attributes[EVENTS_NAME])
        messages = told[0] if told else []
    else:
        history = parse_json(attributes.get(HISTORY_NAME))
        messages = history if isinstance(history, list) else []
    new = attributes.get(NEW_INDEX_NAME)
    start = new if type(new) is int and 0 <= new < len(messages) else 0
    places = [place for place in range(start, len(messages)) if _is_answer(messages[place])]
    asked, answered = (messages[: places[0]], messages[places[-1] :]) if places else (messages, [])
    if whole := [*read_instructions(attributes, asked), *asked]:
        fields.setdefault("inputs", whole)
    if RESULT_NAME in attributes and "outputs" not in fields:
        fields["outputs"] = parse_structured(attributes.pop(RESULT_NAME))
    elif answered:
        fields.setdefault("outputs", answered)


def _is_answer(message: JSON) -> bool:
    return isinstance(message, dict) and message.get("role") == "assistant"


def take_message_events(draft: Draft, *, answered: bool = False) -> None:
    """Take messages from a list of events in the attribute `events`. The attribute stays if it holds anything else.

    If a model has `answered` and no event is a choice, the assistant's messages at the end are the answer.
    """
    told = read_event_list(draft.attributes.get("events"))
    if told is None:
        return
    given, made = told
    if answered and not made:
        place = next((at for at in range(len(given), 0, -1) if not _is_answer(given[at - 1])), 0)
        given, made = given[:place], given[place:]
    filled = [fill_field(draft, field, said) for field, said in (("inputs", given), ("outputs", made)) if said]
    if filled and all(filled):
        del draft.attributes["events"]


def parse_structured(value: JSON) -> JSON:
    """Return the object or list in a JSON text. Any other text, such as a number that a model wrote, stays a string."""
    return parse_json(value) if isinstance(value, str) and value[:1] in ("{", "[") else value
