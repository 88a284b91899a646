"""Logfire's spans, and its instrumentations of OpenAI, OpenAI Agents and pydantic-evals.

Source: `logfire/_internal/main.py`, `instrument.py` and `integrations/` of 5.2, `pydantic_evals/dataset.py` of 2.62.
Attributes that a program sets have their own names, without the prefix `logfire.`; `logfire.json_schema` lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spanwise.collector.dialects import field_extraction
from spanwise.collector.dialects.attribute_parsing import parse_json, text_or_none
from spanwise.collector.dialects.draft import Draft, applies_to
from spanwise.collector.dialects.pydantic_ai import take_message_events
from spanwise.collector.records import JSON

MESSAGE, MAX_NAME_CHARS = "logfire.msg", 200  # a span's message, and the maximum length of a name
SCHEMA, TAGS, KIND, TEMPLATE = "logfire.json_schema", "logfire.tags", "logfire.span_type", "logfire.msg_template"
# Attributes in which a program may report a result, in order of precedence; "return" is the result of a function
RESULT_NAMES = ("return", "output", "outputs", "result", "response", "answer")
AGENT_KINDS = {"Agent run": "agent", "Function": "tool", "Guardrail": "guardrail"}  # prefix of the template → kind
EVALUATION_SCOPES = frozenset(("pydantic-evals", "pydantic_evals", "logfire.pydantic-evals"))
JSON_TYPES = ("object", "array")  # types in the JSON schema whose values are sent as JSON text


@applies_to("logfire")
def logfire(draft: Draft) -> None:
    """Take name, arguments and result of a function, documents, tags, and the content of instrumented calls."""
    scope = draft.span.scope
    # use the message as the run's name, because the span's name is only a template, such as `Function: {name}`
    message = text_or_none(draft.attributes.get(MESSAGE))
    if message is not None and "name" not in draft.fields:
        draft.fields["name"] = message if len(message) <= MAX_NAME_CHARS else message[: MAX_NAME_CHARS - 1] + "…"
        if len(message) <= MAX_NAME_CHARS:
            del draft.attributes[MESSAGE]
    if not scope.startswith(("logfire", "pydantic")):
        return
    tags = draft.attributes.get(TAGS)
    if isinstance(tags, list) and "tags" not in draft.fields:
        draft.fields["tags"] = tuple(map(str, tags))
        del draft.attributes[TAGS]
    if scope == "logfire":
        _function(draft)
    elif scope in EVALUATION_SCOPES:
        _evaluation(draft)
    elif scope == "logfire.openai_agents":
        _agents(draft)
    elif scope.startswith("logfire."):
        _call(draft)


def _function(draft: Draft) -> None:
    """Take a function's arguments and result, or attributes that a program sets on a span. Skip Logfire's log messages,
    which are also sent as spans.
    """
    attributes, fields = draft.attributes, draft.fields
    if attributes.get(KIND) != "span" or "gen_ai" in draft.namespaces:
        return
    fields.setdefault("kind", "chain")
    values = _read_program_attributes(attributes)
    result_name = next((name for name in RESULT_NAMES if name in values), None)
    if result_name and "outputs" not in fields:
        fields["outputs"] = values.pop(result_name)
        del attributes[result_name]
        field_extraction.take_result_documents(draft)
    if values and "inputs" not in fields:
        fields["inputs"] = values
        for name in values:
            del attributes[name]


def _read_program_attributes(attributes: Mapping[str, Any]) -> dict[str, JSON]:
    """Return the attributes that the program sets, without Logfire's own."""
    schema = parse_json(attributes.get(SCHEMA))
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return {}
    return {
        name: parse_json(attributes[name])
        if isinstance(property_schema, dict) and property_schema.get("type") in JSON_TYPES
        else attributes[name]
        for name, property_schema in properties.items()
        if name in attributes
    }


def _evaluation(draft: Draft) -> None:
    """Take inputs, outputs and metadata of an experiment's case. Its evaluators' spans are below it."""
    fields = draft.fields
    fields.setdefault("kind", "evaluator" if "evaluator_name" in draft.attributes else "chain")
    _take(draft, "inputs", "inputs")
    _take(draft, "outputs", "output")
    metadata = parse_json(draft.attributes.get("metadata"))
    if isinstance(metadata, dict) and "metadata" not in fields:
        fields["metadata"] = metadata
        del draft.attributes["metadata"]


def _agents(draft: Draft) -> None:
    """Take the content of OpenAI Agents' tracing. The group of a trace is its session."""
    attributes, fields = draft.attributes, draft.fields
    template = str(attributes.get(TEMPLATE, "")).partition(":")[0].partition(" {")[0]
    if "gen_ai.request.model" not in attributes:
        fields.setdefault("kind", AGENT_KINDS.get(template, "chain"))
    take_message_events(draft, answered=isinstance(parse_json(attributes.get("response")), dict))
    _take(draft, "inputs", "input")
    _take(draft, "outputs", "output")
    group = text_or_none(attributes.get("group_id"))
    if group and group != "null" and fields.setdefault("session_id", group) == group:
        del attributes["group_id"]
    metadata = parse_json(attributes.get("metadata"))
    if isinstance(metadata, dict) and "metadata" not in fields:
        fields["metadata"] = metadata
        del attributes["metadata"]


def _call(draft: Draft) -> None:
    """Read a model call from the attributes of older Logfire versions, unless the span has those of the GenAI
    conventions.
    """
    take_message_events(draft, answered="gen_ai.usage.output_tokens" in draft.attributes)
    for field, name, part in (("inputs", "request_data", "messages"), ("outputs", "response_data", "message")):
        content = parse_json(draft.attributes.get(name))
        value: Any = content.get(part) if isinstance(content, dict) else None
        if value and not any(key.startswith(f"gen_ai.{field[:-1]}.") for key in draft.attributes):
            draft.fields.setdefault(field, [value] if isinstance(value, dict) else value)  # type: ignore[misc]


def _take(draft: Draft, field: str, name: str) -> None:
    if name in draft.attributes and field not in draft.fields:
        draft.fields[field] = field_extraction.parse_container(draft.attributes.pop(name))  # type: ignore[literal-required]
