"""MLflow's spans, all of whose values are JSON, and what stays of them where it writes GenAI's names.

`SpanAttributeKey` in `mlflow/tracing/constant.py`; `mlflow/tracing/export/genai_semconv`.
"""

from __future__ import annotations

from spanwise.collector.dialects import _calls
from spanwise.collector.dialects._draft import Draft, found_in
from spanwise.collector.dialects._values import from_json, text
from spanwise.collector.records import JSON
from spanwise.tracer import attributes as names

KINDS = {
    **{kind.upper(): kind for kind in names.KINDS},
    "CHAT_MODEL": "llm",
    **dict.fromkeys(("WORKFLOW", "TASK", "PARSER", "MEMORY", "UNKNOWN"), "chain"),
}
CALLS = ("llm", "embedding", "reranker")  # what uses tokens itself; agents and chains repeat those of calls below
TYPE, TAGS = "mlflow.spanType", _calls.below("mlflow.traceTag.")
USAGE, COST = "mlflow.chat.tokenUsage", "mlflow.llm.cost"
FORMAT = "mlflow.message.format"  # whose API was called: the counts of "anthropic" and "gemini" leave out parts
WHOSE = (
    ("session_id", names.SESSION, "mlflow.trace.session"),
    ("user_id", names.USER, "mlflow.trace.user"),
)


@found_in("mlflow", scope="mlflow.")
def mlflow(draft: Draft) -> None:
    """Take kind, inputs, outputs, model, tokens, cost, session, user, and the trace's tags as metadata."""
    _kind(draft)
    _calls.take(draft, "inputs", "mlflow.spanInputs", from_json)
    _calls.take(draft, "outputs", "mlflow.spanOutputs", from_json)
    if draft.fields.get("kind", "llm") in CALLS:
        _call(draft)
    else:
        draft.sums = True
    _whose(draft)


def _kind(draft: Draft) -> None:
    """The type, which is the operation's name where MLflow writes GenAI's and has none for it."""
    for name in (TYPE, names.OPERATION):
        said = from_json(draft.attributes.get(name))
        if isinstance(said, str) and (kind := KINDS.get(said)):
            draft.fields.setdefault("kind", kind)
            return


def _call(draft: Draft) -> None:
    """Model, tokens, cost; of a call that failed, or of embeddings, they stand only in what was asked and answered."""
    fields = draft.fields
    _calls.take(draft, "model", "mlflow.llm.model", _text)
    _calls.take_cost(draft, COST)
    api = _text(draft.attributes.get(FORMAT))
    apart = {"cache_apart": api == "anthropic", "reasoning_apart": api == "gemini"}
    _calls.take(draft, "usage", USAGE, lambda value: _calls.usage(from_json(value), **apart))
    outputs = fields.get("outputs")
    if isinstance(outputs, dict) and (used := _calls.usage(outputs.get("usage"))):
        fields.setdefault("usage", used)
    if draft.attributes.keys().isdisjoint((names.REQUEST_MODEL, names.RESPONSE_MODEL)):
        _calls.take(draft, "model", "model", _text)


def _whose(draft: Draft) -> None:
    """Session and user, which are JSON, too, where a program set them on a span."""
    fields = draft.fields
    for field, name, own in WHOSE:
        given = draft.span.attributes.get(name)
        if given is not None and fields.get(field) == given and (plain := _text(given)):
            fields[field] = plain  # type: ignore[literal-required]
        _calls.take(draft, field, own, _text)
    _calls.take_metadata(draft, TAGS, read=lambda value: value)


def _text(value: JSON) -> str | None:
    """A text, in JSON or as it is."""
    return text(from_json(value)) if isinstance(value, str) and value.startswith('"') else text(value)
