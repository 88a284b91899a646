"""Spans and log records before any convention is read into them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spanwise.collector.records import JSON, Event, Link


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
