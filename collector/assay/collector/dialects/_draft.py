"""A span while the dialects read it, and what a dialect is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any, TypeAlias, TypedDict

from assay.collector.dialects._keys import namespace
from assay.collector.dialects._raw import RawSpan
from assay.collector.records import JSON, Document, Usage


class Fields(TypedDict, total=False):
    """The fields of a `Run` that a convention fills in; the others come from the span's envelope."""

    kind: str
    inputs: JSON
    outputs: JSON
    documents: tuple[Document, ...]
    model: str
    usage: Usage
    cost: float | None
    session_id: str
    user_id: str
    tags: tuple[str, ...]
    metadata: Mapping[str, JSON]
    experiment_id: str | None
    example_id: str | None
    repetition: int


class Draft:
    """What arrived, and what has been made of it so far.

    - `span`: the whole span as it arrived, with events, links, scope and resource. It is only read.
    - `attributes`: those that no dialect has taken yet; what is left here at the end stays in `Run.attributes`.
    - `fields`: what the dialects before have taken. The first one to fill a field wins.
    - `namespaces`: what stands before the first dots of the attributes' names, a quick way to see that there is nothing
      to take.
    - `awaits`: fields whose content comes in other messages (log records, siblings). They are named in the run's
      attribute `assay.awaits`, so that a reader can tell "not given" from "not here yet"; see `Amendment`.
    """

    __slots__ = ("attributes", "awaits", "fields", "namespaces", "span")

    def __init__(self, span: RawSpan) -> None:
        self.span = span
        self.attributes: dict[str, Any] = dict(span.attributes)
        self.fields: Fields = {}
        self.namespaces: Set[str] = set(map(namespace, self.attributes))
        self.awaits: tuple[str, ...] = ()


# Takes from a draft's attributes, events and scope what it knows and fills in fields, without overwriting what is
# there. It changes nothing but the draft, and no value in place: if it raises, the span is read again without it. Its
# `__name__` is what /metrics and the log call it.
#
# One span at a time: siblings arrive in any order and in other requests, so a dialect that needs them says `awaits` and
# lets the later one amend the earlier. Should one request's spans ever be looked at together, the place is
# `intake/_decode.py`, where they all pass, as a `Callable[[Sequence[Draft]], None]` before runs are made of them.
Dialect: TypeAlias = Callable[[Draft], None]
