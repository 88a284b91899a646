"""Labels of a run under the names of all conventions: prompt, agent, finish reasons, time to the first token, tools.

`LABELS` is the table of names. Of several attributes for one field the first one in the table wins: OpenInference,
then the sender's own names, then GenAI, as in all other fields. An attribute whose value is not in the field, because
it has a wrong type or another one wins, stays with the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from spanwise.collector.dialects.attribute_parsing import MAX_INDEX, NameTuple, memoize_names, parse_json, parse_number
from spanwise.collector.dialects.draft import Draft, RawSpan, applies_to
from spanwise.collector.dialects.field_extraction import fill_field
from spanwise.collector.records import JSON
from spanwise.tracer import attribute_names as names

MAX_MS = 1e12  # a longer time to the first token is an error of the sender
# events that a sender adds when the first token arrives, or for each part of an answer
FIRST_TOKEN_EVENTS = frozenset(
    ("First Token Stream Event", "llm.content.completion.chunk", "gen_ai.content.completion.chunk")
)
# Content that the sender has stored elsewhere: the attributes are addresses. The collector does not fetch them
CONTENT_REFERENCES = {
    "gen_ai.input.messages.ref": "inputs",
    "gen_ai.input.messages_ref": "inputs",
    "gen_ai.output.messages.ref": "outputs",
    "gen_ai.output.messages_ref": "outputs",
    "gen_ai.system_instructions.ref": "system instructions",
    "gen_ai.system_instructions_ref": "system instructions",
}
TOOL_PREFIXES = ("llm.tools.", "llm.request.functions.")  # lists of tools over several attributes, in this order
Reader: TypeAlias = Callable[[JSON, RawSpan], Any]


def _read_text(value: JSON, span: RawSpan) -> str | None:
    """Return a text or an integer, such as a version, as text."""
    if type(value) is int:
        return str(value)
    return value if isinstance(value, str) and value else None


def _read_json_text(value: JSON, span: RawSpan) -> str | None:
    return _read_text(parse_json(value), span)


def _read_reasons(value: JSON, span: RawSpan) -> tuple[str, ...] | None:
    """Return a text, or a list of texts (also as JSON), without repetitions."""
    if isinstance(value, str) and value.startswith("["):
        value = parse_json(value)
    reasons = value if isinstance(value, list) else [value]
    if not reasons or not all(isinstance(reason, str) and reason for reason in reasons):
        return None
    return tuple(dict.fromkeys(map(str, reasons)))


def _read_ms(value: JSON, span: RawSpan) -> float | None:
    number = parse_number(value)
    return number if number is not None and 0 <= number <= MAX_MS else None


def _read_seconds(value: JSON, span: RawSpan) -> float | None:
    number = parse_number(value)
    return None if number is None else _read_ms(round(number * 1000, 6), span)  # to the nanosecond


def _read_moment(value: JSON, span: RawSpan) -> float | None:
    """Return the milliseconds from the start of the span to a time in ISO 8601, in JSON or not."""
    text = parse_json(value)
    if not isinstance(text, str):
        return None
    try:
        moment_ms = datetime.fromisoformat(text).timestamp() * 1000
    except (ValueError, OverflowError, OSError):
        return None
    return _read_ms(round(moment_ms - span.start_ns / 1e6, 3), span)


def _read_linked(key: str) -> Reader:
    """Return a reader of a field of the first of the prompts that MLflow links to a trace."""

    def read(value: JSON, span: RawSpan) -> str | None:
        linked = parse_json(value)
        first = linked[0] if isinstance(linked, list) and linked else None
        return _read_text(first.get(key), span) if isinstance(first, dict) else None

    return read


def _read_tools(value: JSON, span: RawSpan) -> tuple[JSON, ...] | None:
    """Return definitions of tools: a list of objects, each or all of them possibly as JSON."""
    listed = parse_json(value)
    tools = [parse_json(tool) for tool in listed] if isinstance(listed, list) else []
    return tuple(tools) if tools and all(isinstance(tool, dict) and tool for tool in tools) else None


class Label(NamedTuple):
    """Attribute that is read into a field of the run.

    `scopes`: prefixes of the instrumentation scopes that use this name; "" is any. `takes`: the field holds all of
    the attribute, which therefore does not stay with the run.
    """

    field: str
    name: str
    read: Reader
    scopes: tuple[str, ...] = ("",)
    takes: bool = True


LABELS: tuple[Label, ...] = (
    Label("prompt_name", "langfuse.observation.prompt.name", _read_text),
    Label("prompt_name", "traceloop.prompt.key", _read_text),
    Label("prompt_name", "mlflow.prompt.name", _read_json_text),
    Label("prompt_name", "mlflow.linkedPrompts", _read_linked("name"), takes=False),
    Label("prompt_name", "mlflow.traceTag.mlflow.linkedPrompts", _read_linked("name"), takes=False),
    Label("prompt_name", "langsmith.metadata.lc_hub_repo", _read_text, takes=False),
    Label("prompt_name", names.PROMPT_NAME, _read_text),
    Label("prompt_name", "prompt.id", _read_text),
    Label("prompt_version", names.PROMPT_TEMPLATE_VERSION, _read_text),
    Label("prompt_version", "langfuse.observation.prompt.version", _read_text),
    Label("prompt_version", "traceloop.prompt.version", _read_text),
    Label("prompt_version", "mlflow.prompt.version", _read_json_text),
    Label("prompt_version", "mlflow.linkedPrompts", _read_linked("version"), takes=False),
    Label("prompt_version", "mlflow.traceTag.mlflow.linkedPrompts", _read_linked("version"), takes=False),
    Label("prompt_version", "langsmith.metadata.lc_hub_commit_hash", _read_text, takes=False),
    Label("prompt_version", names.PROMPT_VERSION, _read_text),
    Label("agent_name", "agent.name", _read_text),
    Label("agent_name", "agent_name", _read_text, ("pydantic-ai", "logfire")),
    Label("agent_name", names.AGENT_NAME, _read_text),
    Label("finish_reasons", "llm.finish_reason", _read_reasons),
    Label("finish_reasons", "ai.response.finishReason", _read_reasons),
    Label("finish_reasons", names.FINISH_REASONS, _read_reasons),
    Label("time_to_first_token_ms", "langfuse.observation.completion_start_time", _read_moment, takes=False),
    Label("time_to_first_token_ms", "ai.response.msToFirstChunk", _read_ms),
    Label("time_to_first_token_ms", "ai.stream.msToFirstChunk", _read_ms),
    Label("time_to_first_token_ms", names.TIME_TO_FIRST_CHUNK, _read_seconds),
    Label("time_to_first_token_ms", "gen_ai.client.operation.time_to_first_chunk", _read_seconds),
    Label("time_to_first_token_ms", "gen_ai.response.time_to_first_token", _read_seconds),
    Label("time_to_first_token_ms", "gen_ai.server.time_to_first_token", _read_seconds),
    Label("time_to_first_token_ms", "gen_ai.server.ttft", _read_seconds),
    Label("time_to_first_token_ms", "gen_ai.latency.time_to_first_token", _read_seconds),
    Label("tools", "ai.prompt.tools", _read_tools),
    Label("tools", "mlflow.chat.tools", _read_tools),
    Label("tools", names.TOOL_DEFINITIONS, _read_tools),
)


@applies_to(*("agent", "agent_name", "ai", "gen_ai", "langfuse", "langsmith", "llm", "mlflow", "prompt", "traceloop"))
def labels(draft: Draft) -> None:
    """Take prompt, agent, finish reasons, time to the first token and offered tools."""
    span, fields = draft.span, draft.fields
    plan = _plan_labels(tuple(span.attributes))
    if plan.tools:
        _take_listed_tools(draft, plan.tools)
    for field, name, read, scopes, takes in plan.labels:
        if not span.scope.startswith(scopes):
            continue
        if fill_field(draft, field, read(span.attributes[name], span)) and takes:
            draft.attributes.pop(name, None)
    if fields.get("kind") == "llm":
        if "finish_reasons" not in fields and isinstance(answers := fields.get("outputs"), list):
            given = [answer.get("finish_reason") for answer in answers if isinstance(answer, dict)]
            if reasons := tuple(dict.fromkeys(reason for reason in given if isinstance(reason, str) and reason)):
                fields["finish_reasons"] = reasons
        if span.events and "time_to_first_token_ms" not in fields:
            times = [event.time_ns for event in span.events if event.name in FIRST_TOKEN_EVENTS]
            if times and (first_ms := _read_ms((min(times) - span.start_ns) / 1e6, span)) is not None:
                fields["time_to_first_token_ms"] = first_ms


class LabelPlan(NamedTuple):
    """Labels among a span's attributes, and for each list of tools its elements in order: (name in it, attribute)."""

    labels: tuple[Label, ...]
    tools: tuple[tuple[tuple[tuple[str, str], ...], ...], ...]


@memoize_names
def _plan_labels(names: NameTuple) -> LabelPlan:
    present = frozenset(names)
    lists = []
    for prefix in TOOL_PREFIXES:
        elements: dict[int, list[tuple[str, str]]] = {}
        for name in names:
            if name.startswith(prefix):
                index, _, rest = name.removeprefix(prefix).partition(".")
                if rest and index.isascii() and index.isdigit() and len(index) < 6 and int(index) < MAX_INDEX:
                    elements.setdefault(int(index), []).append((rest.removeprefix("tool."), name))
        if elements:
            lists.append(tuple(tuple(elements[index]) for index in sorted(elements)))
    return LabelPlan(tuple(label for label in LABELS if label.name in present), tuple(lists))


def _take_listed_tools(draft: Draft, lists: Sequence[Sequence[Sequence[tuple[str, str]]]]) -> None:
    """Take tools that are spread over attributes: each with a JSON schema, or with name, description and parameters."""
    attributes = draft.span.attributes
    for elements in lists:
        tools = [_build_tool({rest: attributes[name] for rest, name in element}) for element in elements]
        if all(tools) and fill_field(draft, "tools", tuple(tools)):
            for element in elements:
                for _, name in element:
                    draft.attributes.pop(name, None)


def _build_tool(flat: Mapping[str, JSON]) -> dict[str, JSON] | None:
    if flat.keys() == {"json_schema"}:
        schema = parse_json(flat["json_schema"])
        return schema if isinstance(schema, dict) else None
    if "name" not in flat:
        return None
    parsed = {key: parse_json(value) if key == "parameters" else value for key, value in flat.items()}
    return {"type": "function", "function": parsed}
