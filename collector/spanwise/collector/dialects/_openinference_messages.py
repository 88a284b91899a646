"""OpenInference's messages, prompts and choices, which are spread over attributes, in the form that OpenAI has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spanwise.collector.dialects._draft import Draft
from spanwise.collector.dialects._keys import listed, spread
from spanwise.collector.dialects._values import take_list
from spanwise.collector.records import JSON

INPUT, OUTPUT, PROMPTS, CHOICES = "llm.input_messages", "llm.output_messages", "llm.prompts", "llm.choices"
WHOLE = (PROMPTS, CHOICES)  # which may be a list in one attribute, too
CALLS, PARTS = "tool_calls", "contents"
WITHOUT_WORDS = frozenset(("role", "name", "finish_reason"))


def messages(draft: Draft) -> None:
    """What a model was sent and what it answered, unless inputs and outputs are known."""
    fields, attributes = draft.fields, draft.attributes
    if "inputs" in fields and "outputs" in fields:
        return
    if not spread(tuple(attributes)) and attributes.keys().isdisjoint(WHOLE):
        return
    if "inputs" not in fields and (said := _spoken(attributes, INPUT) or _written(attributes, PROMPTS, "prompt")):
        fields["inputs"] = said
    if "outputs" not in fields and (said := _spoken(attributes, OUTPUT) or _written(attributes, CHOICES, "completion")):
        fields["outputs"] = said


def _spoken(attributes: dict[str, Any], prefix: str) -> list[dict[str, JSON]]:
    """Messages, of which one at least says something: a call that failed has answered with a role alone."""
    listed = spread(tuple(attributes)).get((prefix, "message"), ())
    if any(rest not in WITHOUT_WORDS for one in listed for rest, _ in one):
        return [message(flat) for flat in take_list(attributes, prefix, "message")]
    return []


def _written(attributes: dict[str, Any], prefix: str, element: str) -> JSON:
    """The one text, or all of them, of OpenAI's old completions."""
    texts = attributes.get(prefix)
    if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
        del attributes[prefix]
    else:
        if not _texts_alone(attributes, prefix, element):
            return None
        texts = [flat["text"] for flat in take_list(attributes, prefix, element)]
    return texts[0] if len(texts) == 1 else texts


def _texts_alone(attributes: Mapping[str, JSON], prefix: str, element: str) -> bool:
    lists = spread(tuple(attributes))
    others = any(of[0] == prefix and of[1] != element for of in lists)
    return not others and all(rest == "text" for one in lists.get((prefix, element), ()) for rest, _ in one)


def message(flat: Mapping[str, JSON]) -> dict[str, JSON]:
    """A message out of its flat names; what has none in OpenAI's form keeps its own."""
    made: dict[str, JSON] = {}
    calls: dict[int, dict[str, JSON]] = {}
    parts: dict[int, dict[str, JSON]] = {}
    within: dict[int, dict[str, JSON]] = {}  # tool calls among the parts, as Anthropic's content has them
    for name, value in flat.items():
        place = listed(f"message.{name}") if "." in name else None
        if place is not None and place.prefix == "message.tool_calls" and place.element == "tool_call":
            calls.setdefault(place.position, {})[place.rest] = value
        elif place is not None and place.prefix == "message.contents" and place.element == "message_content":
            parts.setdefault(place.position, {})[place.rest] = value
        elif place is not None and place.prefix == "message.contents" and place.element == "tool_call":
            within.setdefault(place.position, {})[place.rest] = value
        elif place is not None and place.prefix == "message.contents":
            parts.setdefault(place.position, {})[f"{place.element}.{place.rest}"] = value
        else:
            made[name] = value
    if within:
        _move_calls(within, parts, calls)
    if parts:
        made["content" if made.get("content") is None else PARTS] = [_part(parts[place]) for place in sorted(parts)]
    if calls:
        made[CALLS] = [_call(calls[place]) for place in sorted(calls)]
    return made


def _move_calls(
    within: Mapping[int, dict[str, JSON]], parts: dict[int, dict[str, JSON]], calls: dict[int, dict[str, JSON]]
) -> None:
    """Move tool calls from the parts of a message to its list of calls, unless a call of the same id is in it."""
    ids = {call.get("id") for call in calls.values()}
    for position in sorted(within):
        if within[position].get("id") is None or within[position]["id"] not in ids:
            calls[max(calls, default=-1) + 1] = within[position]
        if parts.get(position, {}).keys() <= {"type"}:
            parts.pop(position, None)


def _call(flat: dict[str, JSON]) -> dict[str, JSON]:
    function = {name: flat.pop(f"function.{name}") for name in ("name", "arguments") if f"function.{name}" in flat}
    return {"type": "function", **flat, "function": function}


def _part(flat: Mapping[str, JSON]) -> dict[str, JSON]:
    """`image.image.url` becomes `{"image": {"url": …}}`."""
    made: dict[str, Any] = {}
    for name, value in flat.items():
        head, _, tail = name.partition(".")
        inner = made.setdefault(head, {}) if tail else None
        if isinstance(inner, dict):
            inner[tail.removeprefix(f"{head}.")] = value
        else:
            made[name] = value
    return made
