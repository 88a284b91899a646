"""Traceloop's SDK, OpenLLMetry, and Laminar's SDK, whose instrumentations come from it.

Early versions spread messages over indexed attributes. Current versions use the GenAI attributes, which `genai`
reads.
"""

from __future__ import annotations

from collections.abc import Mapping

from spanwise.collector.dialects import field_extraction
from spanwise.collector.dialects.draft import AGGREGATE_KINDS, MAX_INDEX, Draft, applies_to, build_document, parse_json
from spanwise.collector.records import JSON, Document
from spanwise.tracer import attribute_names as names

KINDS = {"workflow": "chain", "task": "chain", "agent": "agent", "tool": "tool"}
REQUESTS = {"chat": "llm", "completion": "llm", "embedding": "embedding", "rerank": "reranker"}
KIND, REQUEST = "traceloop.span.kind", "llm.request.type"
# operation of a retriever in the LangChain instrumentor, which otherwise has the kind of a task
RETRIEVAL_OPERATION = "vector_db_retrieve"
# field → arguments of LangChain's callbacks that may hold its value
CALLBACK_FIELDS = {
    "inputs": ("inputs", "query"),
    "outputs": ("outputs", "output"),
}
PROPERTIES = "traceloop.association.properties."
METADATA_MEMO = field_extraction.make_suffix_memo(PROPERTIES)
MESSAGES = (("inputs", "gen_ai.prompt."), ("outputs", "gen_ai.completion."))
FIRST_MESSAGE_NAMES = (
    "gen_ai.prompt.0.content",
    "gen_ai.prompt.0.role",
    "gen_ai.completion.0.content",
    "gen_ai.completion.0.role",
)
RESULT_EVENTS = ("db.query.result", "db.search.result")  # events of a vector database's span, one per result


@applies_to("traceloop", "gen_ai", "db")
def traceloop(draft: Draft) -> None:
    """Take kind, inputs, outputs, documents, tokens, session, user, tags and metadata."""
    namespaces = draft.namespaces
    if "traceloop" in namespaces:
        _entity(draft)
        field_extraction.take_identity(draft, PROPERTIES)
        field_extraction.take_metadata(draft, METADATA_MEMO)
    if "gen_ai" in namespaces and (
        "traceloop" in namespaces or not draft.attributes.keys().isdisjoint(FIRST_MESSAGE_NAMES)
    ):
        # read a model call with the names that preceded the GenAI attributes. `genai` reads its model and tokens
        request = draft.attributes.get(REQUEST)
        if isinstance(request, str) and request in REQUESTS:
            draft.fields.setdefault("kind", REQUESTS[request])
        for field, prefix in MESSAGES:
            if field not in draft.fields:
                _messages(draft, field, prefix)
    if "db" in namespaces and draft.span.events:
        # take the results of a vector database: one document per event, in their order
        documents = [
            _result(event.attributes, event.name) for event in draft.span.events if event.name in RESULT_EVENTS
        ]
        if documents:
            draft.fields.setdefault("kind", "retriever")
            if not draft.fields.get("documents"):
                draft.fields["documents"] = tuple(documents)


def _entity(draft: Draft) -> None:
    attributes, fields = draft.attributes, draft.fields
    entity_kind = attributes.get(KIND)
    if attributes.get(names.OPERATION) == RETRIEVAL_OPERATION:
        fields.setdefault("kind", "retriever")
    elif isinstance(entity_kind, str) and (kind := KINDS.get(entity_kind)):
        fields.setdefault("kind", kind)
        draft.sums = draft.sums or kind in AGGREGATE_KINDS
    for field, name in (("inputs", "input"), ("outputs", "output")):
        _content(draft, field, f"traceloop.entity.{name}")
    field_extraction.take_result_documents(draft)


def _content(draft: Draft, field: str, name: str) -> None:
    """Take arguments or result of a decorated function.

    The LangChain instrumentor sends all arguments of a callback. Only the value in them is copied, and they stay as
    an attribute.
    """
    value = parse_json(draft.attributes.get(name))
    key_of_value = next(
        (key for key in CALLBACK_FIELDS[field] if isinstance(value, dict) and "kwargs" in value and key in value), None
    )
    if key_of_value:
        field_extraction.fill_field(draft, field, value[key_of_value])
    else:
        field_extraction.take_attribute(draft, field, name, lambda _: field_extraction.unwrap_arguments(value))


def _messages(draft: Draft, field: str, prefix: str) -> None:
    """Take messages from `{prefix}{i}.{name}` and `{prefix}{i}.tool_calls.{j}.{name}`, by index. Missing indexes are
    skipped.
    """
    attributes = draft.attributes
    messages: dict[int, dict[str, JSON]] = {}
    parts = [(name, *place) for name in attributes if (place := _split_index(name, prefix))]
    for name, index, rest in parts:
        messages.setdefault(index, {})[rest] = attributes[name]
    if messages and field_extraction.fill_field(
        draft, field, [_collect_tool_calls(messages[index]) for index in sorted(messages)]
    ):
        for name, _, _ in parts:
            del attributes[name]


def _collect_tool_calls(message: dict[str, JSON]) -> dict[str, JSON]:
    """Return the message with its tool calls in a list. A message that has such a list is returned unchanged."""
    calls: dict[int, dict[str, JSON]] = {}
    for name, value in message.items():
        if place := _split_index(name, "tool_calls."):
            calls.setdefault(place[0], {})[place[1]] = value
    if not calls or "tool_calls" in message:
        return message
    others = {name: value for name, value in message.items() if not _split_index(name, "tool_calls.")}
    return {**others, "tool_calls": [calls[index] for index in sorted(calls)]}


def _split_index(name: str, prefix: str) -> tuple[int, str] | None:
    """Return index and rest of `{prefix}{index}.{rest}`."""
    if not name.startswith(prefix):
        return None
    index, _, rest = name[len(prefix) :].partition(".")
    if not rest or len(index) > 5 or not (index.isascii() and index.isdigit()) or int(index) >= MAX_INDEX:
        return None
    return int(index), rest


def _result(attributes: Mapping[str, JSON], event: str) -> Document:
    fields = {name: attributes.get(f"{event}.{name}") for name in ("id", "score", "metadata")}
    return build_document({**fields, "content": attributes.get(f"{event}.document")})


LAMINAR_KINDS = {
    "LLM": "llm",
    "CACHED": "llm",
    "TOOL": "tool",
    "EVALUATOR": "evaluator",
    "HUMAN_EVALUATOR": "evaluator",
    **dict.fromkeys(("DEFAULT", "EXECUTOR", "EVALUATION"), "chain"),
}
LAMINAR_TYPE = "lmnr.span.type"
LAMINAR_PROPERTIES = "lmnr.association.properties."
LAMINAR_METADATA_MEMO = field_extraction.make_suffix_memo(LAMINAR_PROPERTIES + "metadata.")


@applies_to("lmnr")
def laminar(draft: Draft) -> None:
    """Take kind, inputs, outputs, documents, session, user, tags and metadata. `genai` reads model and tokens."""
    # derive the kind from the type, which also stays as an attribute. Embedding calls have the same type as other
    # model calls; their span name differs
    span_type = draft.attributes.get(LAMINAR_TYPE)
    if isinstance(span_type, str) and (kind := LAMINAR_KINDS.get(span_type)):
        is_embedding = kind == "llm" and draft.span.name.endswith(".embeddings")
        draft.fields.setdefault("kind", "embedding" if is_embedding else kind)
        draft.sums = draft.sums or kind == "chain"
    field_extraction.take_attribute(draft, "inputs", "lmnr.span.input", parse_json)
    field_extraction.take_attribute(draft, "outputs", "lmnr.span.output", parse_json)
    field_extraction.take_result_documents(draft)
    field_extraction.take_identity(draft, LAMINAR_PROPERTIES)
    field_extraction.take_metadata(draft, LAMINAR_METADATA_MEMO)
