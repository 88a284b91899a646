"""Finished spans of the OpenTelemetry SDK, in the process that made them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spanwise.collector.dialects._also import Also
from spanwise.collector.dialects._plain import plain
from spanwise.collector.dialects._raw import RawSpan
from spanwise.collector.dialects._read import read_whole
from spanwise.collector.records import JSON, Event, Link, Run
from spanwise.tracer.spans import LiveSpan

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext


_latest: tuple[Resource, dict[str, JSON]] | None = None


def from_readable(span: ReadableSpan, also: list[Also] | None = None) -> Run:
    """The run that a finished span of the SDK is: the same as after a way through OTLP and the intake.

    What it says beside is added to `also`, but for what makes no sense.
    """
    resource = _resource(span.resource)
    if isinstance(span, LiveSpan) and (run := plain(span, resource)):
        return run
    run, beside = read_whole(raw(span))
    if also is not None and beside:
        also += [one for one in beside if not isinstance(one, ValueError)]
    return run


def raw(span: ReadableSpan) -> RawSpan:
    """A finished span of the SDK as one that has arrived."""
    trace_id, span_id, parent_id, trace_state = _place(span)
    scope = span.instrumentation_scope
    events, links = span.events, span.links
    return RawSpan(
        trace_id=trace_id,
        span_id=span_id,
        name=span.name,
        parent_id=parent_id,
        kind=span.kind.value + 1,  # the SDK counts from 0, OTLP keeps 0 for "unspecified"
        start_ns=span.start_time or 0,
        end_ns=span.end_time or 0,
        status=span.status.status_code.value,
        message=span.status.description or "",
        attributes=_with_lists(span.attributes),
        events=tuple([Event(e.name, e.timestamp, _with_lists(e.attributes)) for e in events]) if events else (),
        links=tuple([Link(*_ids(link.context), _with_lists(link.attributes)) for link in links]) if links else (),
        resource=_resource(span.resource),
        scope=scope.name if scope else "",
        scope_version=(scope.version or "") if scope else "",
        trace_state=trace_state,
    )


def _place(span: ReadableSpan) -> tuple[str, str, str | None, str]:
    """(trace id, span id, parent's id, tracestate). Of our own spans without the contexts, which are made when asked
    for, and without our entry in the tracestate, which says the ids once more: on the wire it is left out, too.
    """
    if isinstance(span, LiveSpan):
        parent = f"{span.parent_id:016x}" if span.parent_id else None
        return f"{span.local.trace_id:032x}", f"{span.span_id:016x}", parent, f"ot={span.ot}" if span.ot else ""
    context = span.get_span_context()
    if context is None:
        raise ValueError(f"span {span.name!r} has no context, so neither trace nor span id")
    return *_ids(context), _ids(span.parent)[1] if span.parent else None, context.trace_state.to_header()


def _ids(context: SpanContext) -> tuple[str, str]:
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


def _resource(resource: Resource) -> dict[str, JSON]:
    """Its attributes, made plain once: all spans of a process share one resource, and so do their runs."""
    global _latest
    latest = _latest
    if latest is None or latest[0] is not resource:
        latest = _latest = (resource, _with_lists(resource.attributes))
    return latest[1]


def _with_lists(attributes: Mapping[str, Any] | None) -> dict[str, JSON]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in (attributes or {}).items()}
