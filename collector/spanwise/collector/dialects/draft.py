"""Interface of dialects: raw spans and log records, the draft that dialects fill, and side records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypedDict

from spanwise.collector.dialects.attribute_parsing import get_namespaces
from spanwise.collector.former_names import FORMER, present_names
from spanwise.collector.records import JSON, Amendment, Document, Event, Feedback, Link, Usage


# not frozen: every span needs an instance, and an instance of a frozen class takes twice as long to create
@dataclass(slots=True)
class RawSpan:
    """OpenTelemetry span before translation: ids in lower-case hex, times in nanoseconds, attributes as plain values.

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
    """OpenTelemetry log record before translation, in the same format. `span_id` is None if the record has no span."""

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
        """Return the event's name. Older OTLP versions have it in an attribute instead of a field."""
        return self.event_name or str(self.attributes.get("event.name", ""))


SideRecord: TypeAlias = Feedback | Amendment
# A `ValueError` represents invalid data. It is reported to the sender, and the span is stored all the same
SideResult: TypeAlias = SideRecord | ValueError


def make_side_record(make: Callable[..., SideRecord], *args: Any) -> SideResult:
    """Return the result of `make`, or the `ValueError` that it raises."""
    try:
        return make(*args)
    except ValueError as error:
        return error


def check_side_records(also: Sequence[SideResult]) -> None:
    """Raise `TypeError` for anything but feedback, amendments and `ValueError`s."""
    for record in also:
        if not isinstance(record, Feedback | Amendment | ValueError):
            raise TypeError(f"a side record must be feedback or an amendment, got {record!r:.200}")


class RunFields(TypedDict, total=False):
    """Fields of a `Run` that a dialect fills in. The other fields (ids, times, status, resource) come from the raw
    span.
    """

    name: str  # more readable than the span's own name, which then stays in the attribute `otel.span.name`
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
    prompt_name: str
    prompt_version: str
    agent_name: str
    finish_reasons: tuple[str, ...]
    time_to_first_token_ms: float
    tools: tuple[JSON, ...]


# Exact types of fields; None allows any JSON value
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
    "prompt_name": (str,),
    "prompt_version": (str,),
    "agent_name": (str,),
    "finish_reasons": (tuple,),
    "time_to_first_token_ms": (float, int),
    "tools": (tuple,),
}
ELEMENT_TYPES = (("documents", {Document}), ("tags", {str}), ("finish_reasons", {str}))


def check_fields(fields: Mapping[str, Any]) -> None:
    """Raise `TypeError` for a value of a wrong type, and `KeyError` for a field that dialects do not fill in.

    Because of one such value, a store would refuse the run together with all other runs of its batch.
    """
    for name, value in fields.items():
        kinds = FIELD_TYPES[name]
        if kinds is not None and type(value) not in kinds:
            raise TypeError(f"a dialect has filled in {name}={value!r:.200}, which is of a wrong type")
    for name, kind in ELEMENT_TYPES:
        if (items := fields.get(name)) and set(map(type, items)) != kind:
            raise TypeError(f"a dialect has filled in {name}={items!r:.200}, which is of a wrong type")


class Draft:
    """Raw span together with the run fields that dialects have extracted from it so far.

    - `span`: the raw span with events, links, scope and resource. Dialects must not change it.
    - `attributes`: the attributes that no dialect has taken yet. Those left at the end are stored in `Run.attributes`.
    - `fields`: the run fields that dialects have filled in. The first dialect to fill a field wins.
    - `namespaces`: the namespaces of the attributes (see `NamespaceMemo`), for a quick check whether a dialect applies.
    - `awaits`: fields whose content arrives in other messages (log records, siblings). The run's attribute
      `spanwise.awaits` lists them, so that a reader can distinguish "not given" from "not arrived yet"; see
      `Amendment`.
    - `also`: side records of the span, `Feedback` and `Amendment`s, stored with the run in one commit. For invalid
      data it holds the `ValueError` with the reason, as `make_side_record` returns it. Append with `also += (…,)`.
    - `sums`: True if the span's token counts and cost are totals of the spans below it. They are then ignored, because
      the spans below report their own.
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
        """Raise `TypeError` or `KeyError` for values that no store could keep."""
        check_fields(self.fields)
        if self.also:
            check_side_records(self.also)


# A dialect is a function that takes the attributes, events and scope that it recognizes from a draft, and fills in
# run fields that are still empty. It changes only the draft, and replaces values instead of modifying them: if it
# raises, the span is translated again without it. `/metrics` and the log show its `__name__`. A dialect sees one span
# at a time, because siblings arrive in any order and in other requests. If it needs their content, it sets `awaits`,
# and the later span amends the earlier one. A dialect for all spans of one request would be a
# `Callable[[Sequence[Draft]], None]` in `ingest/request_decoder.py`.
Dialect: TypeAlias = Callable[[Draft], None]


class Applicability(NamedTuple):
    """Condition under which a dialect applies: an attribute in one of the namespaces, or a scope with one of the
    prefixes.
    """

    namespaces: frozenset[str]
    scopes: tuple[str, ...]


def applies_to(*namespaces: str, scope: str | tuple[str, ...] = ()) -> Callable[[Dialect], Dialect]:
    """Restrict a dialect to spans with these namespaces or scopes. A dialect without this decorator gets all spans."""
    applicability = Applicability(frozenset(namespaces), (scope,) if isinstance(scope, str) else scope)

    def mark(dialect: Dialect) -> Dialect:
        dialect.place = applicability  # type: ignore[attr-defined]
        return dialect

    return mark


def is_applicable(dialect: Dialect, namespaces: Set[str], scope: str) -> bool:
    """Return whether a dialect applies to a span with these namespaces and this scope."""
    applicability: Applicability | None = getattr(dialect, "place", None)
    if applicability is None:
        return True
    return not applicability.namespaces.isdisjoint(namespaces) or scope.startswith(applicability.scopes)
