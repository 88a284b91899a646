"""Messages of a model as OpenTelemetry's GenAI conventions have carried them: as events, as choices, as lists.

Up to v1.36 each message was an event of its own (`gen_ai.user.message`, …, `gen_ai.choice`), with what it says in the
event's body, in its attributes, or as JSON in one of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from spanwise.collector.dialects._values import from_json
from spanwise.collector.records import JSON

ROLES = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}
CHOICE = "gen_ai.choice"
PROMPT, COMPLETION = "gen_ai.content.prompt", "gen_ai.content.completion"  # up to v1.27, all messages in one
WHOLE = {PROMPT: "gen_ai.prompt", COMPLETION: "gen_ai.completion"}  # the attribute that holds them
DETAILS = "gen_ai.client.inference.operation.details"
EVENTS = frozenset((*ROLES, CHOICE, *WHOLE, DETAILS))
GIVEN, MADE = "gen_ai.input.messages", "gen_ai.output.messages"
INSTRUCTIONS = "gen_ai.system_instructions"
CONTENT = "gen_ai.event.content"  # an attribute: the body as JSON
ENVELOPE = frozenset(("gen_ai.system", "gen_ai.provider.name", "event.name", CONTENT))
SAYS = ("content", "tool_calls", "parts", "refusal", "reasoning_content")  # a message without any of these is none


def of_event(name: str, body: JSON, attributes: Mapping[str, JSON]) -> tuple[list[JSON], list[JSON]]:
    """What an event of `EVENTS` says was given to the model, and what it made; nothing where content is not kept."""
    if name == DETAILS:
        said = {**attributes, **body} if isinstance(body, dict) else attributes
        return given(said), choices(from_json(said.get(MADE)))
    if name in WHOLE:
        told = _listed(from_json(attributes.get(WHOLE[name], body)))
        return (told, []) if name == PROMPT else ([], told)
    message = _body(body, attributes)
    if name == CHOICE:
        return [], [made for made in choices([message]) if isinstance(made, dict) and _says(made)]
    return ([{"role": ROLES[name], **message}], []) if _says(message) else ([], [])


def given(attributes: Mapping[str, JSON]) -> list[JSON]:
    """What was given to the model, its instructions first, unless the messages hold them already."""
    messages = _listed(from_json(attributes.get(GIVEN)))
    return [*instructions(attributes, messages), *messages]


def instructions(attributes: Mapping[str, JSON], messages: Iterable[JSON] = ()) -> list[JSON]:
    """The system's message that instructions are, which stand apart from the messages."""
    parts = from_json(attributes.get(INSTRUCTIONS))
    if not parts or any(isinstance(message, dict) and message.get("role") == "system" for message in messages):
        return []
    return [{"role": "system", "parts": parts if isinstance(parts, list) else [{"type": "text", "content": parts}]}]


def choices(value: JSON) -> list[JSON]:
    """Messages of a model, out of OpenAI's choices where they are such: then with why they ended."""
    if isinstance(value, Mapping):
        value = value.get("choices", value)
    return list(map(_choice, _listed(value)))


def _choice(value: JSON) -> JSON:
    if not isinstance(value, dict):
        return value
    message = from_json(value.get("message"))
    if isinstance(message, str):
        message = {"content": message}
    if not isinstance(message, dict) or "content" in value or "parts" in value:
        return value
    beside = {name: said for name, said in value.items() if name != "message" and said is not None}
    if beside.get("index") == 0:
        del beside["index"]
    return {"role": "assistant", **message, **beside}


def _body(body: JSON, attributes: Mapping[str, JSON]) -> dict[str, Any]:
    """What an event says, in its body or, without one, in its attributes."""
    said = from_json(body if body is not None else attributes.get(CONTENT))
    if said is None:
        plain = {name: value for name, value in attributes.items() if name not in ENVELOPE}
        return {name: from_json(value) if name in ("tool_calls", "content") else value for name, value in plain.items()}
    return said if isinstance(said, dict) else {"content": said}


def _listed(value: JSON) -> list[JSON]:
    if value is None or value == "":
        return []
    return value if isinstance(value, list) else [value]


def _says(message: Mapping[str, JSON]) -> bool:
    return any(message.get(name) for name in SAYS)


def of_events(value: JSON) -> tuple[list[JSON], list[JSON]] | None:
    """The same of a list of events in one attribute, each with its name; None for what is no such list."""
    events = from_json(value)
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        return None
    messages: tuple[list[JSON], list[JSON]] = ([], [])
    for event in events:
        name = event.get("event.name")
        if name not in EVENTS:
            return None
        body = {key: said for key, said in event.items() if key not in ENVELOPE and key != "gen_ai.message.index"}
        for all_of_it, said in zip(messages, of_event(name, body, {}), strict=True):
            all_of_it += said
    return messages
