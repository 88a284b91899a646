"""The page of the attribute names that dialects read and the tracer sends, made from their tables.

    python docs/conventions.py      # writes docs/senders/conventions.md

A test fails if the page is not what this program makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from spanwise.collector.dialects import evaluation_events, genai, langfuse, langsmith, mlflow, openinference, vercel
from spanwise.collector.dialects.draft import PARTIAL_COST_NAMES, TOOL_PARAMETERS, TOTAL_COST_NAMES
from spanwise.collector.dialects.field_extraction import CONTENT_REFERENCES, FIRST_TOKEN_EVENTS, LABELS, TOOL_PREFIXES
from spanwise.collector.dialects.traceloop import KIND as TRACELOOP_KIND
from spanwise.collector.dialects.traceloop import LAMINAR_PROPERTIES, LAMINAR_TYPE
from spanwise.collector.dialects.traceloop import PROPERTIES as TRACELOOP_PROPERTIES
from spanwise.collector.dialects.traceloop import REQUEST as TRACELOOP_REQUEST
from spanwise.tracer import attribute_names as names

PAGE = Path(__file__).parent / "senders" / "conventions.md"
OPENINFERENCE_PREFIXES = (
    *("openinference.", "input.", "output.", "llm.", "retrieval.", "reranker.", "embedding.", "decision."),
    *("session.", "user.", "metadata", "tag.", "tool.", "prompt.", "agent."),
)
OTHER_NAMES = (
    "llm.request.functions.",
    "llm.request.type",
    "llm.content.",
)  # OpenLLMetry's, although they begin like OpenInference's
SENT = {value.rstrip(".") for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
# field of a run → names that are read into it
FIELDS: Mapping[str, tuple[str, ...]] = {
    "kind": (
        *(names.KIND, names.OPERATION, langfuse.TYPE, langsmith.KIND, mlflow.TYPE),
        *(TRACELOOP_KIND, TRACELOOP_REQUEST, vercel.OPERATION, LAMINAR_TYPE),
    ),
    "inputs": (
        *(f"{openinference.INPUT_MESSAGES}.N.message.*", openinference.PROMPTS, names.INPUT_VALUE, TOOL_PARAMETERS),
        *(openinference.RERANKER_QUERY, f"{openinference.INPUT_FILES}.N.document.*"),
        *(genai.INPUT_MESSAGES, genai.INSTRUCTIONS, *genai.INPUTS, f"{genai.MEMORY_RECORDS} (written)"),
        *(f"{prefix}input" for prefix in langfuse.CONTENT_PREFIXES),
        *("mlflow.spanInputs", "traceloop.entity.input", "lmnr.span.input", *vercel.INPUTS),
    ),
    "outputs": (
        *(f"{openinference.OUTPUT_MESSAGES}.N.message.*", openinference.CHOICES, names.OUTPUT_VALUE),
        *(f"{openinference.OUTPUT_FILES}.N.document.*", genai.OUTPUT_MESSAGES, *genai.OUTPUTS),
        *(f"{prefix}output" for prefix in langfuse.CONTENT_PREFIXES),
        *("mlflow.spanOutputs", "traceloop.entity.output", "lmnr.span.output", *vercel.OUTPUTS, *vercel.TEXTS),
    ),
    "documents": (
        *(f"{prefix}.N.document.*" for prefix in openinference.DOCUMENT_LISTS),
        *(genai.RETRIEVED_DOCUMENTS, f"{genai.MEMORY_RECORDS} (found)", names.DOCUMENTS_JSON),
    ),
    "model": (
        *openinference.MODEL_NAMES,
        *(*openinference.GENAI_MODEL_NAMES, langfuse.MODEL, "mlflow.llm.model", *vercel.MODELS),
    ),
    "usage": (
        *(openinference.PROMPT_TOKENS, openinference.COMPLETION_TOKENS, *openinference.DETAIL_NAMES),
        *(*openinference.DECISION_TOKENS, *genai.INPUT_TOKEN_NAMES, *genai.OUTPUT_TOKEN_NAMES, f"{genai.USAGE}*"),
        *(langfuse.USAGE, mlflow.USAGE, langsmith.USAGE, *vercel.INPUT_TOKEN_NAMES, *vercel.OUTPUT_TOKEN_NAMES),
    ),
    "cost": (
        *TOTAL_COST_NAMES,
        *(f"{first} + {second}" for first, second in PARTIAL_COST_NAMES),
        *(names.COST, langfuse.COST, mlflow.COST),
    ),
    "session_id": (
        *(names.SESSION, genai.CONVERSATION, "langfuse.session.id", "mlflow.trace.session"),
        *(f"{langsmith.METADATA}session_id", f"{TRACELOOP_PROPERTIES}session_id", f"{LAMINAR_PROPERTIES}session_id"),
    ),
    "user_id": (
        *(names.USER, "langfuse.user.id", "mlflow.trace.user"),
        *(f"{langsmith.METADATA}user_id", f"{TRACELOOP_PROPERTIES}user_id", f"{LAMINAR_PROPERTIES}user_id"),
    ),
    "tags": (names.TAGS, langfuse.TAGS, langsmith.TAGS, f"{TRACELOOP_PROPERTIES}tags", f"{LAMINAR_PROPERTIES}tags"),
    "metadata": (
        *(names.METADATA, *(f"{name}.*" for name in langfuse.METADATA_NAMES), f"{langsmith.METADATA}*"),
        *("mlflow.traceTag.*", f"{TRACELOOP_PROPERTIES}*", f"{LAMINAR_PROPERTIES}metadata.*"),
    ),
    **{
        field: tuple(label.name for label in LABELS if label.field == field)
        for field in dict.fromkeys(label.field for label in LABELS)
    },
}
MORE: Mapping[str, tuple[str, ...]] = {
    "time_to_first_token_ms": tuple(f"event {name!r}" for name in sorted(FIRST_TOKEN_EVENTS)),
    "tools": tuple(f"{prefix}N.*" for prefix in TOOL_PREFIXES),
    "finish_reasons": ("finish_reason of the output messages",),
}
FEEDBACK: Mapping[str, str] = {
    names.EVALUATION_NAME: "key",
    names.EVALUATION_SCORE: "score",
    **{name: field for field, name in evaluation_events.TEXT_FIELDS.items()},
    names.ERROR_TYPE: "outcome `error`",
    names.RESPONSE_ID: "target: the run with this response id, if the event has no span context",
    evaluation_events.CONVERSATION: "target: the session, if the event has neither a span context nor a response id",
}
INTRODUCTION = """\
# Conventions

This page is generated from the tables of the code: `python docs/conventions.py`.
It lists which attribute is read into which field of a run. `N` is an index, and `*` any name. Versions: OpenTelemetry
GenAI 0.1.0 and its predecessors, OpenInference 0.1.42.

Of several attributes for one field, the first convention wins: OpenInference, then the sender's own names, then GenAI.
Only `prompt.id` comes last. An attribute whose value is not in the field (another one wins, or it has a wrong type) stays in `Run.attributes`. In
the same way two equal values are kept once.

Spanwise's tracer sends the names in **bold**, each in the [conventions](../conventions.md) that are switched on.
"""


def render() -> str:
    """Return the page as Markdown."""
    return "\n".join([INTRODUCTION, *_sections()]) + "\n"


def _sections() -> Iterator[str]:
    yield "## Fields of a run\n\n| field | OpenInference | GenAI | other names |\n|---|---|---|---|"
    for field, listed in FIELDS.items():
        groups: dict[str, list[str]] = {"openinference": [], "gen_ai": [], "other": []}
        for name in (*listed, *MORE.get(field, ())):
            groups[_find_convention(name)].append(name)
        yield f"| `{field}` | {' | '.join(map(_join, groups.values()))} |"
    yield "\n## Operations\n\nKinds of runs by `gen_ai.operation.name`. Tokens and cost of an operation marked with + are"
    yield "those of calls that have spans of their own, so they are not counted again.\n\n| operation | kind |\n|---|---|"
    for operation, kind in genai.OPERATION_KINDS.items():
        yield f"| `{operation}`{' +' if operation in genai.AGGREGATE_OPERATIONS else ''} | {kind} |"
    yield f"\n## Feedback\n\nAttributes of the log event `{names.EVALUATION_EVENT}`. All others become metadata."
    yield "\n| attribute | feedback |\n|---|---|"
    for name, field in FEEDBACK.items():
        yield f"| `{name}` | {field} |"
    yield "\n## Content that is stored elsewhere\n\nA run's page and `spanwise doctor` name these references. They are not"
    yield "fetched.\n\n| attribute | what it refers to |\n|---|---|"
    for name, what in CONTENT_REFERENCES.items():
        yield f"| `{name}` | {what} |"


def _find_convention(name: str) -> str:
    bare = name.removeprefix("event '")
    if bare.startswith("gen_ai."):
        return "gen_ai"
    is_openinference = bare.startswith((*OPENINFERENCE_PREFIXES, "First Token")) and not bare.startswith(OTHER_NAMES)
    return "openinference" if is_openinference else "other"


def _join(listed: Iterable[str]) -> str:
    """Return the names as Markdown, those that the tracer sends in bold."""
    return ", ".join(f"**`{name}`**" if name.partition(".N.")[0] in SENT else f"`{name}`" for name in listed)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
