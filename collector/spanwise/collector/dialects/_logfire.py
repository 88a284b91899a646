"""Logfire's own spans, and those of its instrumentations of OpenAI's client, of OpenAI Agents, and of pydantic-evals.

Source: `logfire/_internal/main.py`, `instrument.py` and `integrations/` of 5.2, `pydantic_evals/dataset.py` of 2.62.
What a program says stands under names of its own, beside `logfire.*`; `logfire.json_schema` lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spanwise.collector.dialects import _calls
from spanwise.collector.dialects._draft import Draft, found_in
from spanwise.collector.dialects._pydantic_ai import structured, take_events
from spanwise.collector.dialects._values import from_json, text
from spanwise.collector.records import JSON

MESSAGE, NAME = "logfire.msg", 200  # a span's message, and characters of it that are a good name
SCHEMA, TAGS, KIND, TEMPLATE = "logfire.json_schema", "logfire.tags", "logfire.span_type", "logfire.msg_template"
# Under which a program says what came of a span; a function's is the first
RETURNS = ("return", "output", "outputs", "result", "response", "answer")
AGENTS = {"Agent run": "agent", "Function": "tool", "Guardrail": "guardrail"}  # by how templates begin
EVALS = frozenset(("pydantic-evals", "pydantic_evals", "logfire.pydantic-evals"))
DECODED = ("object", "array")  # types of values that travel as JSON


@found_in("logfire")
def logfire(draft: Draft) -> None:
    """Take a span's message as its name, a function's arguments and what it has returned, documents, tags, and what
    the instrumentations say.
    """
    scope = draft.span.scope
    _name(draft)
    if not scope.startswith(("logfire", "pydantic")):
        return
    _tags(draft)
    if scope == "logfire":
        _function(draft)
    elif scope in EVALS:
        _evaluation(draft)
    elif scope == "logfire.openai_agents":
        _agents(draft)
    elif scope.startswith("logfire."):
        _call(draft)


def _name(draft: Draft) -> None:
    """Take the message: the span's name is its template, such as `Function: {name}`."""
    message = text(draft.attributes.get(MESSAGE))
    if message is not None and "name" not in draft.fields:
        draft.fields["name"] = message if len(message) <= NAME else message[: NAME - 1] + "…"
        if len(message) <= NAME:
            del draft.attributes[MESSAGE]


def _tags(draft: Draft) -> None:
    tags = draft.attributes.get(TAGS)
    if isinstance(tags, list) and "tags" not in draft.fields:
        draft.fields["tags"] = tuple(map(str, tags))
        del draft.attributes[TAGS]


def _function(draft: Draft) -> None:
    """A function's arguments, or what a program says of a span; logs are neither."""
    attributes, fields = draft.attributes, draft.fields
    if attributes.get(KIND) != "span" or "gen_ai" in draft.namespaces:
        return
    fields.setdefault("kind", "chain")
    said = _said(attributes)
    returned = next((name for name in RETURNS if name in said), None)
    if returned and "outputs" not in fields:
        fields["outputs"] = said.pop(returned)
        del attributes[returned]
        if not fields.get("documents") and (documents := _calls.retrieved(fields["outputs"])):
            fields["documents"] = documents
    if said and "inputs" not in fields:
        fields["inputs"] = said
        for name in said:
            del attributes[name]


def _said(attributes: Mapping[str, Any]) -> dict[str, JSON]:
    """What a program says, without what Logfire does."""
    schema = from_json(attributes.get(SCHEMA))
    named = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(named, dict):
        return {}
    return {name: _value(attributes[name], how) for name, how in named.items() if name in attributes}


def _value(value: JSON, how: JSON) -> JSON:
    return from_json(value) if isinstance(how, dict) and how.get("type") in DECODED else value


def _evaluation(draft: Draft) -> None:
    """A case of an experiment: what it was given and has given, and what is known of it. The evaluators' spans are
    below it."""
    fields = draft.fields
    fields.setdefault("kind", "evaluator" if "evaluator_name" in draft.attributes else "chain")
    _take(draft, "inputs", "inputs")
    _take(draft, "outputs", "output")
    metadata = from_json(draft.attributes.get("metadata"))
    if isinstance(metadata, dict) and "metadata" not in fields:
        fields["metadata"] = metadata
        del draft.attributes["metadata"]


def _agents(draft: Draft) -> None:
    """OpenAI Agents' tracing. A trace's group is what others call its session."""
    attributes, fields = draft.attributes, draft.fields
    begin = str(attributes.get(TEMPLATE, "")).partition(":")[0].partition(" {")[0]
    if "gen_ai.request.model" not in attributes:
        fields.setdefault("kind", AGENTS.get(begin, "chain"))
    take_events(draft, answered=isinstance(from_json(attributes.get("response")), dict))
    _take(draft, "inputs", "input")
    _take(draft, "outputs", "output")
    group = text(attributes.get("group_id"))
    if group and group != "null" and fields.setdefault("session_id", group) == group:
        del attributes["group_id"]
    metadata = from_json(attributes.get("metadata"))
    if isinstance(metadata, dict) and "metadata" not in fields:
        fields["metadata"] = metadata
        del attributes["metadata"]


def _call(draft: Draft) -> None:
    """A model's call as Logfire has told it before it followed the conventions, where they say nothing."""
    take_events(draft, answered="gen_ai.usage.output_tokens" in draft.attributes)
    for field, name, part in (("inputs", "request_data", "messages"), ("outputs", "response_data", "message")):
        content = from_json(draft.attributes.get(name))
        told: Any = content.get(part) if isinstance(content, dict) else None
        if told and not any(key.startswith(f"gen_ai.{field[:-1]}.") for key in draft.attributes):
            draft.fields.setdefault(field, [told] if isinstance(told, dict) else told)  # type: ignore[misc]


def _take(draft: Draft, field: str, name: str) -> None:
    if name in draft.attributes and field not in draft.fields:
        draft.fields[field] = structured(draft.attributes.pop(name))  # type: ignore[literal-required]
