"""Finished spans of the OpenTelemetry SDK, translated to runs in the process that made them.

`evaluate()` creates one such span for every example. Simple spans take a fast path, which gives the same result as
`read_span` (a test compares both). For other spans the fast path returns None, and `read_span` translates them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson
from opentelemetry.trace import SpanKind, StatusCode

from spanwise.collector.dialects.draft import RawSpan, SideRecord
from spanwise.collector.dialects.translation import STATUSES, read_span, resolve_project
from spanwise.collector.records import JSON, Event, Link, Run
from spanwise.tracer import attribute_names as names
from spanwise.tracer.otel.live_span import LiveSpan

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext


_latest_attributes: tuple[Resource, dict[str, JSON]] | None = None


def read_sdk_span(span: ReadableSpan, also: list[SideRecord] | None = None) -> Run:
    """Return the run for a finished span of the SDK. It equals the run after export over OTLP and ingest.

    Valid side records are appended to `also`.
    """
    resource = _read_resource(span.resource)
    if isinstance(span, LiveSpan) and (run := read_plain_span(span, resource)):
        return run
    run, side_records = read_span(make_raw_span(span))
    if also is not None and side_records:
        also += [record for record in side_records if not isinstance(record, ValueError)]
    return run


def make_raw_span(span: ReadableSpan) -> RawSpan:
    """Return a finished span of the SDK as a raw span."""
    trace_id, span_id, parent_id, trace_state = _find_ids(span)
    scope = span.instrumentation_scope
    events, links = span.events, span.links
    return RawSpan(
        trace_id=trace_id,
        span_id=span_id,
        name=span.name,
        parent_id=parent_id,
        kind=span.kind.value + 1,  # the SDK counts from 0; in OTLP, 0 is "unspecified"
        start_ns=span.start_time or 0,
        end_ns=span.end_time or 0,
        status=span.status.status_code.value,
        message=span.status.description or "",
        attributes=_convert_tuples(span.attributes),
        events=tuple([Event(e.name, e.timestamp, _convert_tuples(e.attributes)) for e in events]) if events else (),
        links=tuple([Link(*_format_ids(link.context), _convert_tuples(link.attributes)) for link in links])
        if links
        else (),
        resource=_read_resource(span.resource),
        scope=scope.name if scope else "",
        scope_version=(scope.version or "") if scope else "",
        trace_state=trace_state,
    )


def _find_ids(span: ReadableSpan) -> tuple[str, str, str | None, str]:
    """Return trace id, span id, parent's id and tracestate.

    Spanwise's own spans create their span context on demand, so this reads the ids directly. It leaves out Spanwise's
    entry in the tracestate, which repeats the ids; so does the exporter.
    """
    if isinstance(span, LiveSpan):
        parent = f"{span.parent_id:016x}" if span.parent_id else None
        return f"{span.local.trace_id:032x}", f"{span.span_id:016x}", parent, f"ot={span.ot}" if span.ot else ""
    context = span.get_span_context()
    if context is None:
        raise ValueError(f"span {span.name!r} has no span context, and so no ids")
    return *_format_ids(context), _format_ids(span.parent)[1] if span.parent else None, context.trace_state.to_header()


def _format_ids(context: SpanContext) -> tuple[str, str]:
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


def _read_resource(resource: Resource) -> dict[str, JSON]:
    """Return the resource's attributes as plain values, cached, because all spans of a process share one resource."""
    global _latest_attributes
    latest = _latest_attributes
    if latest is None or latest[0] is not resource:
        latest = _latest_attributes = (resource, _convert_tuples(resource.attributes))
    return latest[1]


def _convert_tuples(attributes: Mapping[str, Any] | None) -> dict[str, JSON]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in (attributes or {}).items()}


# kinds of spans that have no documents
_PLAIN_KINDS = {kind.upper(): kind for kind in ("chain", "tool", "agent", "guardrail", "evaluator")}
_COUNTS = frozenset((names.LOCAL_ROOT, names.SPANS_STARTED, names.SPANS_OPEN, names.SPANS_DROPPED, names.CALLS_SENT))
# a null output stays as an attribute, as in `openinference`
_COUNTS_AND_NULL = _COUNTS | {names.OUTPUT_VALUE, names.OUTPUT_MIME}
_CONTENT_ATTRIBUTES = frozenset(
    (names.KIND, names.INPUT_VALUE, names.INPUT_MIME, names.OUTPUT_VALUE, names.OUTPUT_MIME)
)
_EXPERIMENT = frozenset((names.EXPERIMENT, names.EXAMPLE, names.REPETITION))
_PLAIN_ATTRIBUTES = _COUNTS | _CONTENT_ATTRIBUTES | _EXPERIMENT


def read_plain_span(span: LiveSpan, resource: Mapping[str, JSON]) -> Run | None:
    """Return the run for a simple finished span of Spanwise's tracer; None if the span needs `read_span`.

    A simple span has a kind without documents, no error, events or links, and no attributes of other conventions.
    """
    # private fields, because the SDK's properties wrap or copy values, which costs more than all the rest
    attributes, code = span._attributes, span._status.status_code
    kind = _PLAIN_KINDS.get(attributes.get(names.KIND, ""))
    if kind is None or code is StatusCode.ERROR or span._kind is not SpanKind.INTERNAL:
        return None
    if not attributes.keys() <= _PLAIN_ATTRIBUTES or span._events or span._links or span.local.ot:
        return None
    try:
        fields = _read_experiment(attributes)
        inputs = _read_value(attributes, names.INPUT_VALUE, names.INPUT_MIME)
        outputs = _read_value(attributes, names.OUTPUT_VALUE, names.OUTPUT_MIME)
    except ValueError:
        return None
    stored_names = _COUNTS if outputs is not None else _COUNTS_AND_NULL
    _, project, environment = resolve_project(resource)
    return Run(
        trace_id=f"{span.local.trace_id:032x}",
        span_id=f"{span.span_id:016x}",
        parent_id=f"{span.parent_id:016x}" if span.parent_id else None,
        name=span._name,
        kind=kind,
        start_ns=span._start_time or 0,
        end_ns=span._end_time or 0,
        status=STATUSES[code.value],
        inputs=inputs,
        outputs=outputs,
        attributes={name: value for name, value in attributes.items() if name in stored_names},
        resource=resource,
        project=project,
        environment=environment,
        **fields,
    )


def _read_experiment(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ids of experiment and example, and the repetition; {} for a span outside of experiments.

    Raise `ValueError` if they are not as `capture` sets them.
    """
    if names.EXPERIMENT not in attributes:
        if not _EXPERIMENT.isdisjoint(attributes):
            raise ValueError("no experiment id")
        return {}
    experiment, example, repetition = (attributes.get(name) for name in _EXPERIMENT_ORDER)
    if not (isinstance(experiment, str) and isinstance(example, str) and type(repetition) is int):
        raise ValueError("ids of a wrong type")
    if not experiment or not example or not 0 <= repetition < 2**53:
        raise ValueError("empty ids or invalid repetition")
    return {"experiment_id": experiment, "example_id": example, "repetition": repetition}


_EXPERIMENT_ORDER = (names.EXPERIMENT, names.EXAMPLE, names.REPETITION)


def _read_value(attributes: Mapping[str, Any], name: str, mime: str) -> JSON:
    """Return the value of an attribute, parsed if its MIME type is JSON.

    Raise `ValueError` for invalid JSON, or for a MIME type without a value.
    """
    if name not in attributes:
        if mime in attributes:
            raise ValueError("a MIME type without a value")
        return None
    value = attributes[name]
    if not isinstance(value, str):
        raise ValueError("not a string")
    return orjson.loads(value) if attributes.get(mime) == "application/json" else value
