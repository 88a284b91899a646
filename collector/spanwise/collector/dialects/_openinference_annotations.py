"""OpenInference's annotations and evaluations: `spec/annotations.md`. Feedback on a span, its trace or its session.

They are read, not taken: the attributes stay with the span that brought them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from spanwise.collector.dialects._also import said
from spanwise.collector.dialects._draft import Draft
from spanwise.collector.dialects._keys import Listed, listed
from spanwise.collector.dialects._raw import RawSpan
from spanwise.collector.dialects._values import as_text, from_json, number, text
from spanwise.collector.records import JSON, Feedback, Source, Target
from spanwise.tracer import attributes as names

# Prefix → scope, and how one of the list is called
FORMS = {
    f"{scope}{many}": (scope.rstrip(".") or "span", one)
    for scope in ("", "trace.", "session.")
    for many, one in (("annotations", "annotation"), ("evaluations", "evaluation"))
}
PREFIXES = tuple(FORMS)
SOURCES: Mapping[JSON, Source] = {"HUMAN": "human", "LLM": "model", "CODE": "code"}
READ = frozenset(("name", "score", "label", "explanation", "annotator_kind", "identifier", "metadata"))
EXPLAINED = "explanation"  # the label of one that has nothing but words, which are its comment
CARRIERS = (None, "evaluator")  # kinds of a span that is there for its feedback


def read_annotations(draft: Draft) -> None:
    """Say the feedback of all three scopes; what is none tells its sender why."""
    if found := _listed(draft.attributes):
        draft.also += tuple([said(_feedback, draft, FORMS[prefix][0], flat) for (prefix, _), flat in found.items()])


def _listed(attributes: Mapping[str, JSON]) -> dict[tuple[str, int], dict[str, JSON]]:
    found: dict[tuple[str, int], dict[str, JSON]] = {}
    for name, place in _places(attributes):
        found.setdefault((place.prefix, place.position), {})[place.rest] = attributes[name]
    return found


def _places(attributes: Mapping[str, JSON]) -> Iterator[tuple[str, Listed]]:
    for name in attributes:
        place = listed(name) if name.startswith(PREFIXES) else None
        if place is not None and place.prefix in FORMS and place.element == FORMS[place.prefix][1]:
            yield name, place


def _feedback(draft: Draft, scope: str, flat: Mapping[str, JSON]) -> Feedback:
    """Raises `ValueError` for what lacks a name, a value, or a target."""
    kind, key = flat.get("annotator_kind"), flat.get("name")
    score, label = flat.get("score"), flat.get("label")
    if not text(key):
        raise ValueError(f"an annotation has no name, only {sorted(flat)!r:.200}")
    if score is not None and (isinstance(score, bool | str) or number(score) is None):
        raise ValueError(f"annotation {key!r:.200}: score {score!r:.200} is not a number")
    if score is None and label is None:
        if not text(flat.get("explanation")):
            raise ValueError(f"annotation {key!r:.200} has neither score, label nor explanation")
        label = EXPLAINED
    source = SOURCES.get(kind, "code") if isinstance(kind, str) else "code"
    named = None if flat.get("identifier") is None else as_text(flat["identifier"])
    return Feedback(
        target=_target(draft, scope),
        key=as_text(key),
        score=number(score),
        label=None if label is None else as_text(label),
        comment=None if flat.get("explanation") is None else as_text(flat["explanation"]),
        source=source,
        author=named if source == "human" else None,
        evaluator=None if source == "human" else named,
        metadata=_metadata(flat),
        created_ns=draft.span.end_ns or time.time_ns(),
    )


def _metadata(flat: Mapping[str, JSON]) -> dict[str, JSON]:
    """What was given as metadata, and what `Feedback` has no field for."""
    metadata = from_json(flat.get("metadata"))
    rest: dict[str, JSON] = {name: value for name, value in flat.items() if name not in READ}
    kind = flat.get("annotator_kind")
    if kind is not None and not (isinstance(kind, str) and kind in SOURCES):
        rest["annotator_kind"] = kind
    if isinstance(metadata, dict):
        return {**rest, **metadata}
    return rest if metadata is None else {**rest, "metadata": metadata}


def _target(draft: Draft, scope: str) -> Target:
    span = draft.span
    if scope == "session":
        if session := text(span.attributes.get(names.SESSION)):
            return Target(session_id=session)
        raise ValueError(f"an annotation of a session stands on span {span.name!r:.200}, which has no session.id")
    trace_id, span_id = _linked(span) if draft.fields.get("kind") in CARRIERS and span.links else _own(span)
    return Target(trace_id=trace_id) if scope == "trace" else Target(trace_id=trace_id, span_id=span_id)


def _own(span: RawSpan) -> tuple[str, str]:
    return span.trace_id, span.span_id


def _linked(span: RawSpan) -> tuple[str, str]:
    """The span that a carrier, which came after it, speaks of."""
    if len(span.links) != 1:
        raise ValueError(
            f"span {span.name!r:.200} carries annotations and {len(span.links)} links, where one says whose"
        )
    return span.links[0].trace_id, span.links[0].span_id
