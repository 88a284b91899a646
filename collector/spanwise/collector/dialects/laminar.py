"""Laminar's SDK."""

from __future__ import annotations

from spanwise.collector.dialects import field_extraction
from spanwise.collector.dialects.attribute_parsing import parse_json
from spanwise.collector.dialects.draft import Draft, applies_to

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
METADATA_MEMO = field_extraction.make_suffix_memo(PROPERTIES + "metadata.")


@applies_to("lmnr")
def laminar(draft: Draft) -> None:
    """Take kind, inputs, outputs, documents, session, user, tags and metadata. `genai` reads model and tokens."""
    # derive the kind from the type, which also stays as an attribute. Embedding calls have the same type as other
    # model calls; their span name differs
    span_type = draft.attributes.get(TYPE)
    if isinstance(span_type, str) and (kind := KINDS.get(span_type)):
        is_embedding = kind == "llm" and draft.span.name.endswith(".embeddings")
        draft.fields.setdefault("kind", "embedding" if is_embedding else kind)
        draft.sums = draft.sums or kind == "chain"
    field_extraction.take_attribute(draft, "inputs", "lmnr.span.input", parse_json)
    field_extraction.take_attribute(draft, "outputs", "lmnr.span.output", parse_json)
    field_extraction.take_result_documents(draft)
    field_extraction.take_identity(draft, PROPERTIES)
    field_extraction.take_metadata(draft, METADATA_MEMO)
