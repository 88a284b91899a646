"""pydantic-ai's own instrumentation, versions 1 to 6 of its data format.

Source: `pydantic_ai/_instrumentation.py`, `pydantic_ai/models/instrumented.py` and `pydantic_ai/agent/__init__.py` of
1.0 and 2.62. Model calls and tools are OpenTelemetry's GenAI from version 3 on, which `genai` reads.
"""

from __future__ import annotations

from typing import Any

from spanwise.collector.dialects._calls import fill
from spanwise.collector.dialects._draft import Draft, found_in
from spanwise.collector.dialects._messages import instructions, of_events
from spanwise.collector.dialects._values import from_json, text
from spanwise.collector.records import JSON

SCOPE = "pydantic-ai"
HISTORY, EVENTS = "pydantic_ai.all_messages", "all_messages_events"  # of a run; the latter up to version 1
NEW = "pydantic_ai.new_message_index"  # of the first message that is not of a run before
RESULT = "final_result"


@found_in(scope=SCOPE)
def pydantic_ai(draft: Draft) -> None:
    """Take what an agent was asked and has answered, a tool's call, messages in one attribute."""
    if draft.span.scope != SCOPE:
        return
    attributes, fields = draft.attributes, draft.fields
    if "agent_name" in attributes and ("model_name" in attributes or HISTORY in attributes):
        _agent(draft)
    elif "tool_arguments" in attributes or "tool_response" in attributes:
        _tool(draft)
    elif "events" in attributes:
        take_events(draft)
    elif "tools" in attributes and draft.span.name.startswith("running "):
        fields.setdefault("kind", "chain")


def _agent(draft: Draft) -> None:
    """All messages stay in their attribute: inputs and outputs are its ends."""
    attributes, fields = draft.attributes, draft.fields
    fields.setdefault("kind", "agent")
    draft.sums = True
    if (model := text(attributes.get("model_name"))) and fields.setdefault("model", model) == model:
        del attributes["model_name"]
    asked, answered = _ends(_history(attributes), attributes.get(NEW))
    if whole := [*instructions(attributes, asked), *asked]:
        fields.setdefault("inputs", whole)
    if RESULT in attributes and "outputs" not in fields:
        fields["outputs"] = structured(attributes.pop(RESULT))
    elif answered:
        fields.setdefault("outputs", answered)


def _history(attributes: dict[str, Any]) -> list[JSON]:
    if EVENTS in attributes:
        told = of_events(attributes[EVENTS])
        return told[0] if told else []
    messages = from_json(attributes.get(HISTORY))
    return messages if isinstance(messages, list) else []


def _ends(messages: list[JSON], new: JSON) -> tuple[list[JSON], list[JSON]]:
    """What a run was asked, with what was said before it, and what it said last."""
    start = new if type(new) is int and 0 <= new < len(messages) else 0
    places = [place for place in range(start, len(messages)) if _is_answer(messages[place])]
    return (messages[: places[0]], messages[places[-1] :]) if places else (messages, [])


def _is_answer(message: JSON) -> bool:
    return isinstance(message, dict) and message.get("role") == "assistant"


def _tool(draft: Draft) -> None:
    fields = draft.fields
    fields.setdefault("kind", "tool")
    for name, field in (("tool_arguments", "inputs"), ("tool_response", "outputs")):
        if name in draft.attributes and field not in fields:
            fields[field] = from_json(draft.attributes.pop(name))  # type: ignore[literal-required]


def take_events(draft: Draft, *, answered: bool = False) -> None:
    """Messages as a list of events in the attribute `events`, which stays if it holds anything else.

    Where a model has `answered`, and nothing in it is a choice, the answer is what the assistant says at its end.
    """
    told = of_events(draft.attributes.get("events"))
    if told is None:
        return
    given, made = told
    if answered and not made:
        place = next((at for at in range(len(given), 0, -1) if not _is_answer(given[at - 1])), 0)
        given, made = given[:place], given[place:]
    filled = [fill(draft, field, said) for field, said in (("inputs", given), ("outputs", made)) if said]
    if filled and all(filled):
        del draft.attributes["events"]


def structured(value: JSON) -> JSON:
    """An object or a list out of its JSON; any other text, such as a number that a model wrote, is what it is."""
    return from_json(value) if isinstance(value, str) and value[:1] in ("{", "[") else value
