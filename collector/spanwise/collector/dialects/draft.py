"""Interface of dialects: raw spans and log records, the draft that dialects fill, and side records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypedDict

from spanwise.collector.dialects.attribute_parsing import get_namespaces
from spanwise.collector.former_names import FORMER, present_names
from spanwise.collector.records import JSON, Amendment, Document, Event, Feedback, Link, Usage


@dataclass(slots=True)  # not frozen: one is made for every span, and freezing doubles its price
class RawSpan:
    """An OpenTelemetry span as it arrived: ids in lower-case hex, times in nanoseconds, attributes as plain values.

    `kind` and `status` are OTLP's numbers: 0 unspecified, 1 internal, 2 server, 3 client, 4 producer, 5 consumer; and
    0 unset, 1 ok, 2 error. Spans of one resource share one `resource` mapping.
    """

    trace_id: str
    span_id: str
    name: str
    parent_id: str | None = None
    kind: int = 0
    start_ns: int = 0
    end_ns: int = 0
    status: int = 0
    message: str = ""
    attributes: Mapping[str, JSON] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    links: tuple[Link, ...] = ()
    resource: Mapping[str, JSON] = field(default_factory=dict)
    scope: str = ""
    scope_version: str = ""
    trace_state: str = ""


@dataclass(slots=True)
class RawLog:
    """An OpenTelemetry log record as it arrived, in the same spelling; `span_id` is None if it names no span."""

    trace_id: str
    span_id: str | None
    time_ns: int
    attributes: Mapping[str, JSON] = field(default_factory=dict)
    event_name: str = ""
    body: JSON = None
    resource: Mapping[str, JSON] = field(default_factory=dict)
    scope: str = ""
    scope_version: str = ""

    @property
    def event(self) -> str:
        """The event's name; before OTLP had a field for it, it was an attribute."""
        return self.event_name or str(self.attributes.get("event.name", ""))


SideRecord: TypeAlias = Feedback | Amendment
# A `ValueError` stands for something that makes no sense: the sender is told, and the span is kept all the same
SideResult: TypeAlias = SideRecord | ValueError


def make_side_record(make: Callable[..., SideRecord], *args: Any) -> SideResult:
    """What a function makes of a part of a span, or the `ValueError` that it raises."""
    try:
        return make(*args)
    except ValueError as error:
        return error


def check_side_records(also: Sequence[SideResult]) -> None:
    """Raises `TypeError` for what cannot be said beside a run."""
    for one in also:
        if not isinstance(one, Feedback | Amendment | ValueError):
            raise TypeError(f"a dialect says {one!r:.200} beside a span, which is neither feedback nor an amendment")


class RunFields(TypedDict, total=False):
    """The fields of a `Run` that a convention fills in; the others come from the span's envelope."""

    name: str  # more readable than the span's own, which then stays in the attribute `otel.span.name`
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


# The types of fields, exactly; None for any JSON
FIELD_TYPES: Mapping[str, tuple[type, ...] | None] = {
    "name": (str,),
    "kind": (str,),
    "inputs": None,
    "outputs": None,
    "documents": (tuple,),
    "model": (str,),
    "usage": (Usage,),
    "cost": (float, int, type(None)),
    "session_id": (str,),
    "user_id": (str,),
    "tags": (tuple,),
    "metadata": (dict,),
    "experiment_id": (str, type(None)),
    "example_id": (str, type(None)),
    "repetition": (int,),
}
ELEMENT_TYPES = (("documents", {Document}), ("tags", {str}))


def check_fields(fields: Mapping[str, Any]) -> None:
    """Raises `TypeError` for what a run cannot have, `KeyError` for what is no field that a dialect fills in.

    Every store would trip over it, and over its neighbours with it.
    """
    for name, value in fields.items():
        kinds = FIELD_TYPES[name]
        if kinds is not None and type(value) not in kinds:
            raise TypeError(f"a dialect has filled in {name}={value!r:.200}, which a run cannot have")
    for name, kind in ELEMENT_TYPES:
        if (items := fields.get(name)) and set(map(type, items)) != kind:
            raise TypeError(f"a dialect has filled in {name}={items!r:.200}, which a run cannot have")


class Draft:
    """What arrived, and what has been made of it so far.

    - `span`: the whole span as it arrived, with events, links, scope and resource. It is only read.
    - `attributes`: those that no dialect has taken yet; what is left here at the end stays in `Run.attributes`.
    - `fields`: what the dialects before have taken. The first one to fill a field wins.
    - `namespaces`: what stands before the first dots of the attributes' names, a quick way to see that there is nothing
      to take.
    - `awaits`: fields whose content comes in other messages (log records, siblings). They are named in the run's
      attribute `spanwise.awaits`, so that a reader can tell "not given" from "not here yet"; see `Amendment`.
    - `also`: what the span says beside its run, `Feedback` and `Amendment`s, kept with the run in one commit; of
      something that makes no sense the `ValueError` that says why, as `said` gives it. Add to it, `also += (…,)`.
    - `sums`: whether the tokens that the span names are those of spans below it, where they are counted.
    """

    __slots__ = ("also", "attributes", "awaits", "fields", "namespaces", "span", "sums")

    def __init__(self, span: RawSpan) -> None:
        self.span = span
        self.attributes: dict[str, Any] = dict(span.attributes)
        self.fields: RunFields = {}
        self.namespaces: frozenset[str] = get_namespaces(tuple(self.attributes))
        if FORMER in self.namespaces:
            self.attributes = dict(present_names(self.attributes))
            self.namespaces = get_namespaces(tuple(self.attributes))
        self.awaits: tuple[str, ...] = ()
        self.also: tuple[SideResult, ...] = ()
        self.sums = False

    def check(self) -> None:
        """Raises `TypeError` or `KeyError` for what no store could keep."""
        check_fields(self.fields)
        if self.also:
            check_side_records(self.also)


# Takes from a draft's attributes, events and scope what it knows and fills in fields, without overwriting what is
# there. It changes nothing but the draft, and no value in place: if it raises, the span is read again without it. Its
# `__name__` is what /metrics and the log call it.
#
# One span at a time: siblings arrive in any order and in other requests, so a dialect that needs them says `awaits` and
# lets the later one amend the earlier. Should one request's spans ever be looked at together, the place is
# `intake/_decode.py`, where they all pass, as a `Callable[[Sequence[Draft]], None]` before runs are made of them.
Dialect: TypeAlias = Callable[[Draft], None]


class Applicability(NamedTuple):
    """What a span has in which a dialect may find something: an attribute of one of these namespaces, or a scope that
    begins with one of these.
    """

    namespaces: frozenset[str]
    scopes: tuple[str, ...]


def applies_to(*namespaces: str, scope: str | tuple[str, ...] = ()) -> Callable[[Dialect], Dialect]:
    """Of a dialect: it is given such spans alone. One that does not say where it may find something is given all."""
    place = Applicability(frozenset(namespaces), (scope,) if isinstance(scope, str) else scope)

    def mark(dialect: Dialect) -> Dialect:
        dialect.place = place  # type: ignore[attr-defined]
        return dialect

    return mark


def is_applicable(dialect: Dialect, namespaces: Set[str], scope: str) -> bool:
    """Whether a dialect is given a span with these namespaces and this scope."""
    place: Applicability | None = getattr(dialect, "place", None)
    return place is None or not place.namespaces.isdisjoint(namespaces) or scope.startswith(place.scopes)
