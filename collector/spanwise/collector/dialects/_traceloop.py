"""OpenLLMetry, Traceloop's SDK: `opentelemetry/semconv_ai` up to 0.5.

Messages were spread over indexed attributes at first; by now they are GenAI's, and read there.
"""

from __future__ import annotations

from collections.abc import Mapping

from spanwise.collector.dialects import _calls
from spanwise.collector.dialects._draft import Draft, found_in
from spanwise.collector.dialects._keys import MAX_INDEX
from spanwise.collector.dialects._values import document_of, from_json
from spanwise.collector.records import JSON, Document
from spanwise.tracer import attributes as names

KINDS = {"workflow": "chain", "task": "chain", "agent": "agent", "tool": "tool"}
REQUESTS = {"chat": "llm", "completion": "llm", "embedding": "embedding", "rerank": "reranker"}
KIND, REQUEST = "traceloop.span.kind", "llm.request.type"
RETRIEVES = "vector_db_retrieve"  # an operation of its LangChain instrumentor, of what it else calls a task
WITHIN = {"inputs": ("inputs", "query"), "outputs": ("outputs", "output")}  # what LangChain's callbacks were told
PROPERTIES = "traceloop.association.properties."
METADATA = _calls.below(PROPERTIES)
MESSAGES = (("inputs", "gen_ai.prompt."), ("outputs", "gen_ai.completion."))
FIRST = ("gen_ai.prompt.0.content", "gen_ai.prompt.0.role", "gen_ai.completion.0.content", "gen_ai.completion.0.role")
RESULTS = ("db.query.result", "db.search.result")  # events of spans of vector databases, one for each result


@found_in("traceloop", "gen_ai", "db")
def traceloop(draft: Draft) -> None:
    """Take kind, inputs, outputs, documents, tokens, session, user, tags and metadata."""
    namespaces = draft.namespaces
    if "traceloop" in namespaces:
        _entity(draft)
        _calls.take_whose(draft, PROPERTIES)
        _calls.take_metadata(draft, METADATA)
    if "gen_ai" in namespaces and ("traceloop" in namespaces or not draft.attributes.keys().isdisjoint(FIRST)):
        _call(draft)
    if "db" in namespaces and draft.span.events:
        _results(draft)


def _entity(draft: Draft) -> None:
    attributes, fields = draft.attributes, draft.fields
    said = attributes.get(KIND)
    if attributes.get(names.OPERATION) == RETRIEVES:
        fields.setdefault("kind", "retriever")
    elif isinstance(said, str) and (kind := KINDS.get(said)):
        fields.setdefault("kind", kind)
        draft.sums = draft.sums or kind in ("chain", "agent")
    for field, name in (("inputs", "input"), ("outputs", "output")):
        _content(draft, field, f"traceloop.entity.{name}")
    if not fields.get("documents") and (documents := _calls.retrieved(fields.get("outputs"))):
        fields["documents"] = documents


def _content(draft: Draft, field: str, name: str) -> None:
    """What a decorated function was given or returned; LangChain's stands between what else its callbacks were told,
    which then stays where it is.
    """
    value = from_json(draft.attributes.get(name))
    within = next(
        (key for key in WITHIN[field] if isinstance(value, dict) and "kwargs" in value and key in value), None
    )
    if within:
        _calls.fill(draft, field, value[within])
    else:
        _calls.take(draft, field, name, lambda _: _calls.arguments(value))


def _call(draft: Draft) -> None:
    """A model's call as it was written before GenAI's names; its model and tokens are read with those."""
    request = draft.attributes.get(REQUEST)
    if isinstance(request, str) and request in REQUESTS:
        draft.fields.setdefault("kind", REQUESTS[request])
    for field, prefix in MESSAGES:
        if field not in draft.fields:
            _messages(draft, field, prefix)


def _messages(draft: Draft, field: str, prefix: str) -> None:
    """Messages out of `{prefix}{i}.{name}` and `{prefix}{i}.tool_calls.{j}.{name}`, by index, gaps closed."""
    attributes = draft.attributes
    messages: dict[int, dict[str, JSON]] = {}
    read = [(name, *place) for name in attributes if (place := _place(name, prefix))]
    for name, at, rest in read:
        messages.setdefault(at, {})[rest] = attributes[name]
    if messages and _calls.fill(draft, field, [_with_calls(messages[at]) for at in sorted(messages)]):
        for name, _, _ in read:
            del attributes[name]


def _with_calls(message: dict[str, JSON]) -> dict[str, JSON]:
    """The same message with its tool calls in a list; one that has such a list already stays as it is."""
    calls: dict[int, dict[str, JSON]] = {}
    for name, value in message.items():
        if place := _place(name, "tool_calls."):
            calls.setdefault(place[0], {})[place[1]] = value
    if not calls or "tool_calls" in message:
        return message
    others = {name: value for name, value in message.items() if not _place(name, "tool_calls.")}
    return {**others, "tool_calls": [calls[at] for at in sorted(calls)]}


def _place(name: str, prefix: str) -> tuple[int, str] | None:
    """Index and rest of `{prefix}{index}.{rest}`."""
    if not name.startswith(prefix):
        return None
    index, _, rest = name[len(prefix) :].partition(".")
    if not rest or len(index) > 5 or not (index.isascii() and index.isdigit()) or int(index) >= MAX_INDEX:
        return None
    return int(index), rest


def _results(draft: Draft) -> None:
    """What a vector database returned: a document for each event, in their order."""
    documents = [_result(event.attributes, event.name) for event in draft.span.events if event.name in RESULTS]
    if documents:
        draft.fields.setdefault("kind", "retriever")
        if not draft.fields.get("documents"):
            draft.fields["documents"] = tuple(documents)


def _result(attributes: Mapping[str, JSON], event: str) -> Document:
    said = {name: attributes.get(f"{event}.{name}") for name in ("id", "score", "metadata")}
    return document_of({**said, "content": attributes.get(f"{event}.document")})
