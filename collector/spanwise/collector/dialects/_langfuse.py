"""Langfuse's SDKs from 3 on: `langfuse/_client/attributes.py`. Values are texts, or JSON of what is no text."""

from __future__ import annotations

from spanwise.collector.dialects import _calls
from spanwise.collector.dialects._draft import Draft, found_in
from spanwise.collector.dialects._values import count, from_json, text
from spanwise.collector.dialects.token_counts import token_usage
from spanwise.collector.records import JSON

KINDS = {
    "generation": "llm",
    **{kind: kind for kind in ("agent", "tool", "chain", "retriever", "evaluator", "guardrail", "embedding")},
}
STEPS = {"span": "chain", "event": "chain"}
TYPE, TAGS = "langfuse.observation.type", "langfuse.trace.tags"
MODEL = "langfuse.observation.model.name"
USAGE, COST = "langfuse.observation.usage_details", "langfuse.observation.cost_details"
METADATA = ("langfuse.trace.metadata", "langfuse.observation.metadata")
PROPERTIES = tuple(_calls.below(f"{whole}.") for whole in METADATA)
PLACES = (("inputs", "input"), ("outputs", "output"))
WHERE = ("langfuse.trace.", "langfuse.observation.")  # what is said of the whole trace is the root's
COUNTED = frozenset(("input", "output", "total"))


@found_in("langfuse")
def langfuse(draft: Draft) -> None:
    """Take kind, inputs, outputs, model, tokens, cost, session, user, tags and metadata."""
    _kind(draft)
    _content(draft)
    _calls.take(draft, "model", MODEL, text)
    _usage(draft)
    _calls.take(draft, "session_id", "langfuse.session.id", text)
    _calls.take(draft, "user_id", "langfuse.user.id", text)
    _calls.take(draft, "tags", TAGS, lambda value: _calls.strings(value) or None)
    _metadata(draft)


def _kind(draft: Draft) -> None:
    said = draft.attributes.get(TYPE)
    said = said.lower() if isinstance(said, str) else None
    if said in KINDS and _calls.fill(draft, "kind", KINDS[said]):
        del draft.attributes[TYPE]
    elif said in STEPS:
        draft.fields.setdefault("kind", STEPS[said])


def _content(draft: Draft) -> None:
    """Inputs and outputs. What a model says is a text, even if it looks like a number."""
    read = _calls.container if draft.fields.get("kind") == "llm" else _calls.result
    for field, place in PLACES:
        for said in WHERE[draft.span.parent_id is not None :]:
            _calls.take(draft, field, said + place, lambda value: _calls.arguments(read(value)))


def _usage(draft: Draft) -> None:
    """Cost, and tokens in OpenAI's words or in Langfuse's own, of which parts stand beside `input` and `output`, not
    within.
    """
    attributes = draft.attributes
    if draft.fields.get("kind") in ("chain", "agent"):
        draft.sums = True
        return
    _calls.take_cost(draft, COST)
    said = from_json(attributes.get(USAGE))
    if (used := _calls.usage(said)) is None:
        return
    if ("input" in said or "output" in said) and count(said.get("total")) != used.total_tokens:
        used = token_usage(_sum(said, "input") + _cached(said), _sum(said, "output"), dict(used.details))
    whole = said.keys() <= COUNTED and count(said.get("total")) in (None, used.total_tokens)
    if _calls.fill(draft, "usage", used) and whole:
        del attributes[USAGE]


def _cached(said: dict[str, JSON]) -> int:
    """Parts of the input under Anthropic's names."""
    return sum(count(tokens) or 0 for name, tokens in said.items() if name.startswith("cache"))


def _sum(said: dict[str, JSON], side: str) -> int:
    return sum(count(tokens) or 0 for name, tokens in said.items() if name.startswith(side))


def _metadata(draft: Draft) -> None:
    """The trace's metadata, then the observation's. SDKs from 5 on encode texts, too, so that "12" is not 12."""
    read = from_json if _encodes_texts(draft) else _unless_plain
    for whole in METADATA:
        _calls.take(draft, "metadata", whole, _object)
    _calls.take_metadata(draft, *PROPERTIES, read=read)


def _encodes_texts(draft: Draft) -> bool:
    major = draft.span.scope_version.partition(".")[0]
    return draft.span.scope == "langfuse-sdk" and major.isdecimal() and int(major) >= 5


def _unless_plain(value: JSON) -> JSON:
    return from_json(value) if isinstance(value, str) and value[:1] in ("{", "[", '"') else value


def _object(value: JSON) -> dict[str, JSON] | None:
    return found if isinstance(found := _calls.container(value), dict) else None
