"""MLflow's spans.

Source: `SpanAttributeKey` in `mlflow/tracing/constant.py`; `mlflow/tracing/export/genai_semconv`.
"""

from __future__ import annotations

from spanwise.collector.dialects import field_extraction
from spanwise.collector.dialects.draft import Draft, applies_to, parse_json, text_or_none
from spanwise.collector.records import JSON
from spanwise.tracer import attribute_names as names

KINDS = {
    **{kind.upper(): kind for kind in names.KINDS},
    "CHAT_MODEL": "llm",
    **dict.fromkeys(("WORKFLOW", "TASK", "PARSER", "MEMORY", "UNKNOWN"), "chain"),
}
# kinds that consume tokens themselves; agents and chains repeat the tokens of the calls below them
CALL_KINDS = ("llm", "embedding", "reranker")
TYPE, TAGS = "mlflow.spanType", field_extraction.make_suffix_memo("mlflow.traceTag.")
USAGE, COST = "mlflow.chat.tokenUsage", "mlflow.llm.cost"
# the API that was called: "anthropic" excludes cached tokens from its totals, "gemini" excludes reasoning tokens
FORMAT = "mlflow.message.format"
IDENTITY_NAMES = (
    ("session_id", names.SESSION, "mlflow.trace.session"),
    ("user_id", names.USER, "mlflow.trace.user"),
)


@applies_to("mlflow", scope="mlflow.")
def mlflow(draft: Draft) -> None:
    """Take kind, inputs, outputs, model, tokens, cost, session, user, and the trace's tags as metadata."""
    # if MLflow writes GenAI names, the operation's name may hold MLflow's span type
    for name in (TYPE, names.OPERATION):
        span_type = parse_json(draft.attributes.get(name))
        if isinstance(span_type, str) and (kind := KINDS.get(span_type)):
            draft.fields.setdefault("kind", kind)
            break
    field_extraction.take_attribute(draft, "inputs", "mlflow.spanInputs", parse_json)
    field_extraction.take_attribute(draft, "outputs", "mlflow.spanOutputs", parse_json)
    if draft.fields.get("kind", "llm") in CALL_KINDS:
        _call(draft)
    else:
        draft.sums = True
    _take_identity(draft)


def _call(draft: Draft) -> None:
    """Take model, tokens and cost. For failed calls and embeddings, MLflow reports these only in inputs and outputs."""
    fields = draft.fields
    field_extraction.take_attribute(draft, "model", "mlflow.llm.model", _parse_text)
    field_extraction.take_cost(draft, COST)
    api = _parse_text(draft.attributes.get(FORMAT))
    options = {"cache_apart": api == "anthropic", "reasoning_apart": api == "gemini"}
    field_extraction.take_attribute(
        draft, "usage", USAGE, lambda value: field_extraction.read_usage(parse_json(value), **options)
    )
    outputs = fields.get("outputs")
    if isinstance(outputs, dict) and (usage := field_extraction.read_usage(outputs.get("usage"))):
        fields.setdefault("usage", usage)
    if draft.attributes.keys().isdisjoint((names.REQUEST_MODEL, names.RESPONSE_MODEL)):
        field_extraction.take_attribute(draft, "model", "model", _parse_text)


def _take_identity(draft: Draft) -> None:
    """Take session, user, and the trace's tags as metadata.

    MLflow encodes session and user as JSON if a program sets them on a span.
    """
    fields = draft.fields
    for field, name, own_name in IDENTITY_NAMES:
        given = draft.span.attributes.get(name)
        if given is not None and fields.get(field) == given and (text := _parse_text(given)):
            fields[field] = text  # type: ignore[literal-required]
        field_extraction.take_attribute(draft, field, own_name, _parse_text)
    field_extraction.take_metadata(draft, TAGS, read=lambda value: value)


def _parse_text(value: JSON) -> str | None:
    """Return a string, JSON-encoded or plain; None for any other value."""
    return text_or_none(parse_json(value)) if isinstance(value, str) and value.startswith('"') else text_or_none(value)
