"""Products of Pydantic: pydantic-ai, Logfire and its instrumentations, pydantic-evals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spanwise.collector.dialects import field_extraction
from spanwise.collector.dialects.draft import (
    Draft,
    SideResult,
    applies_to,
    make_side_record,
    parse_json,
    parse_number,
    text_or_none,
    to_text,
)
from spanwise.collector.dialects.evaluation_events import JUDGE_EVALUATORS
from spanwise.collector.dialects.field_extraction import fill_field, parse_container, take_attribute
from spanwise.collector.dialects.genai import read_event_list, read_instructions
from spanwise.collector.records import JSON, Feedback, Target

# pydantic-ai's instrumentation, data format versions 1 to 6.
#
# Source: `pydantic_ai/_instrumentation.py`, `pydantic_ai/models/instrumented.py` and `pydantic_ai/agent/__init__.py`
# of 1.0 and 2.62. From version 3 on, model calls and tools follow OpenTelemetry's GenAI conventions, which `genai`
# reads.

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


# Logfire's spans, and its instrumentations of OpenAI, OpenAI Agents and pydantic-evals.
#
# Source: `logfire/_internal/main.py`, `instrument.py` and `integrations/` of 5.2, `pydantic_evals/dataset.py` of
# 2.62. Attributes that a program sets have their own names, without the prefix `logfire.`; `logfire.json_schema`
# lists them.

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


# pydantic-evals: scores of an experiment's cases, and evaluators that failed.
#
# Source: `pydantic_evals/dataset.py` and `evaluators/_run_evaluator.py` of pydantic-evals 2.62. Its online
# evaluations arrive as events; see `evaluation_events`.

SCOPES = frozenset(("pydantic-evals", "pydantic_evals", "logfire.pydantic-evals"))
# each of the form {name: {name, value, reason, source, evaluator_version}}
RESULTS = ("assertions", "scores", "labels")
EVALUATOR_NAME = "evaluator_name"  # attribute that only evaluators' spans have


@applies_to(scope=tuple(SCOPES))
def pydantic_evals(draft: Draft) -> None:
    """Add the scores of a case, and errors of evaluators on it, to the draft. The attributes stay with the case."""
    if draft.span.scope not in SCOPES:
        return
    target = Target(trace_id=draft.span.trace_id, span_id=draft.span.span_id)
    records: list[SideResult] = []
    for kind in RESULTS:
        results = parse_json(draft.attributes.get(kind))
        for name, result in results.items() if isinstance(results, dict) else ():
            if isinstance(result, dict) and "value" in result:
                records.append(make_side_record(_result, draft, target, name, result))
    draft.also += tuple(records)
    if EVALUATOR_NAME in draft.attributes and draft.span.status == 2 and draft.span.parent_id:
        draft.also += (make_side_record(_failure, draft),)


def _result(draft: Draft, target: Target, name: str, result: Mapping[str, JSON]) -> Feedback:
    """Return the feedback of one result. Raise `ValueError` for a value that is not a score or label."""
    source = result.get("source")
    reason = result.get("reason")
    return Feedback(
        target=target,
        key=name,
        **_read_value(name, result["value"]),
        **_read_evaluator(source if isinstance(source, dict) else {}),
        comment=None if reason is None else to_text(reason),
        version=text_or_none(result.get("evaluator_version")),
        created_ns=draft.span.end_ns,
        metadata={"source": source} if source else {},
    )


def _read_value(name: str, value: JSON) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"score": value}
    if isinstance(value, str):
        return {"label": value}
    score = parse_number(value)
    if score is None:
        raise ValueError(f"feedback {name!r}: {value!r:.200} is neither a finite number nor a string")
    return {"score": score}


def _read_evaluator(source: Mapping[str, JSON]) -> dict[str, Any]:
    name = text_or_none(source.get("name"))
    return {"evaluator": name, "source": "model" if name in JUDGE_EVALUATORS else "code"}


def _failure(draft: Draft) -> Feedback:
    """Return the failure of an evaluator as feedback on the case. The case is the parent of the evaluator's span."""
    span = draft.span
    name = to_text(draft.attributes[EVALUATOR_NAME])
    exception = next((event.attributes for event in reversed(span.events) if event.name == "exception"), {})
    error = [to_text(exception[part]) for part in ("exception.type", "exception.message") if exception.get(part)]
    return Feedback(
        target=Target(trace_id=span.trace_id, span_id=span.parent_id),
        key=name,
        outcome="error",
        error=": ".join(error) or span.message or "error",
        **_read_evaluator({"name": name}),
        created_ns=span.end_ns,
    )
