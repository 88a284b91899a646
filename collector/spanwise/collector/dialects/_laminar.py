"""Laminar's SDK: `lmnr/opentelemetry_lib/tracing/attributes.py`, 0.8. Inputs and outputs are JSON."""

from __future__ import annotations

from spanwise.collector.dialects import _calls
from spanwise.collector.dialects._draft import Draft, found_in
from spanwise.collector.dialects._values import from_json

KINDS = {
    "LLM": "llm",
    "CACHED": "llm",
    "TOOL": "tool",
    "EVALUATOR": "evaluator",
    "HUMAN_EVALUATOR": "evaluator",
    **dict.fromkeys(("DEFAULT", "EXECUTOR", "EVALUATION"), "chain"),
}
TYPE = "lmnr.span.type"
PROPERTIES = "lmnr.association.properties."
METADATA = _calls.below(PROPERTIES + "metadata.")


@found_in("lmnr")
def laminar(draft: Draft) -> None:
    """Take kind, inputs, outputs, documents, session, user, tags and metadata; the rest of a call is GenAI's."""
    fields = draft.fields
    _kind(draft)
    _calls.take(draft, "inputs", "lmnr.span.input", from_json)
    _calls.take(draft, "outputs", "lmnr.span.output", from_json)
    if not fields.get("documents") and (documents := _calls.retrieved(fields.get("outputs"))):
        fields["documents"] = documents
    _calls.take_whose(draft, PROPERTIES)
    _calls.take_metadata(draft, METADATA)


def _kind(draft: Draft) -> None:
    """The type, which stays, as it may say more; of embeddings it is that of any call."""
    said = draft.attributes.get(TYPE)
    if isinstance(said, str) and (kind := KINDS.get(said)):
        embeds = kind == "llm" and draft.span.name.endswith(".embeddings")
        draft.fields.setdefault("kind", "embedding" if embeds else kind)
        draft.sums = draft.sums or kind == "chain"
