"""Runs as OTLP spans under the names that every tool knows, and back to equal runs.

What the names cannot say, or would say otherwise when read again, stands beside them in one attribute (`EXACT`), as
JSON of the fields that would differ. Whoever does not know it has a span like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from spanwise.collector import _wire
from spanwise.collector.dialects import Fault, RawSpan, Whole
from spanwise.collector.dialects._read import SPAN_KINDS, STATUSES
from spanwise.collector.exchange._values import attributes
from spanwise.collector.former_names import present_names, present_run
from spanwise.collector.intake import _json
from spanwise.collector.intake._decode import Codec, decode
from spanwise.collector.intake._limits import Limits
from spanwise.collector.intake._traces import read_item
from spanwise.collector.records import JSON, Run, canonical
from spanwise.tracer import attributes as names

Place = tuple[str, str]  # ids of a trace and a span
EXACT = "spanwise.exact"
LIMITS = Limits(spans=10**9, values=10**9, value_bytes=2**31, attributes=10**6)  # of a file that its owner takes in
_IDS = ("trace_id", "span_id", "parent_id")


def _read(span: RawSpan, fault: Fault) -> Run:
    span.attributes = dict(present_names(span.attributes))
    exact = span.attributes.pop(EXACT, None)
    kept = read_item(span, fault)
    run = kept.run if isinstance(kept, Whole) else kept
    if not isinstance(exact, str):
        return run
    fields = _wire.decode(dict[str, Any], exact)
    return present_run(msgspec.convert({**msgspec.to_builtins(run), **fields}, Run))


SPANS: Codec[Run] = _json.codec("Spans", "spans", _json.JSONSpan, _json.raw_span, _read)


def request(runs: Sequence[Run]) -> tuple[bytes, list[Run]]:
    """An `ExportTraceServiceRequest` as JSON, without those whose ids OpenTelemetry has no room for; these."""
    spans = {_place(run): _span(run) for run in runs}
    found = _found(runs, spans)
    inexact = [run for run in runs if found.get(_place(run)) != run]
    for run in inexact:
        place = _place(run)
        if place not in found:  # too deep, say, for any collector: its fields alone, then
            spans[place] = _bare(run)
        fields = _differing(run, found.get(place))
        spans[place]["attributes"] += attributes({EXACT: _wire.encode(fields).decode()})
    lost = {_place(run) for run in inexact} - _found(inexact, spans).keys()
    kept = [run for run in runs if _place(run) not in lost]
    return _encoded(kept, spans), [run for run in runs if _place(run) in lost]


def _place(run: Run) -> Place:
    return run.trace_id, run.span_id


def _found(runs: Iterable[Run], spans: Mapping[Place, Any]) -> dict[Place, Run]:
    """What is read of the spans."""
    return {_place(run): run for run in decode(SPANS, _encoded(runs, spans), LIMITS).items}


def _encoded(runs: Iterable[Run], spans: Mapping[Place, Any]) -> bytes:
    groups: dict[bytes, tuple[Mapping[str, JSON], dict[tuple[str, str], list[Any]]]] = {}
    for run in runs:
        _, scopes = groups.setdefault(canonical(run.resource), (run.resource, {}))
        scopes.setdefault(_scope(run), []).append(spans[_place(run)])
    return _wire.encode({"resourceSpans": [_group(resource, scopes) for resource, scopes in groups.values()]})


def _group(resource: Mapping[str, JSON], scopes: Mapping[tuple[str, str], list[Any]]) -> dict[str, Any]:
    parts = [{"scope": {"name": name, "version": version}, "spans": of} for (name, version), of in scopes.items()]
    return {"resource": {"attributes": attributes(resource)}, "scopeSpans": parts}


def _scope(run: Run) -> tuple[str, str]:
    name, version = run.attributes.get("otel.scope.name"), run.attributes.get("otel.scope.version")
    return str(name or "spanwise"), str(version or "")


def _bare(run: Run) -> dict[str, Any]:
    parent = {"parentSpanId": run.parent_id} if run.parent_id else {}
    times = {"startTimeUnixNano": str(run.start_ns), "endTimeUnixNano": str(run.end_ns)}
    return {"traceId": run.trace_id, "spanId": run.span_id, **parent, "name": run.name, **times, "attributes": []}


def _status_code(run: Run) -> int:
    """Return OTLP's code; a cancellation is told by its attribute, or by an exception beside the code for errors."""
    if run.status != "cancelled":
        return STATUSES.index(run.status)
    return 0 if names.CANCELLED in run.attributes else 2


def _span(run: Run) -> dict[str, Any]:
    kind = run.attributes.get("otel.span.kind")
    message = {"message": run.error} if run.error is not None else {}
    made = {
        **_bare(run),
        "kind": SPAN_KINDS.index(kind) if kind in SPAN_KINDS[2:] else 1,
        "status": {"code": _status_code(run), **message},
        "attributes": attributes({**run.attributes, **_names(run)}),
        "events": [
            {"name": event.name, "timeUnixNano": str(event.time_ns), "attributes": attributes(event.attributes)}
            for event in run.events
        ],
        "links": [
            {"traceId": link.trace_id, "spanId": link.span_id, "attributes": attributes(link.attributes)}
            for link in run.links
        ],
    }
    state = run.attributes.get("otel.trace_state")
    return {**made, "traceState": state} if isinstance(state, str) else made


def _names(run: Run) -> dict[str, JSON]:
    """The fields of a run under the names of OpenInference, of OpenTelemetry GenAI, and our own."""
    usage = run.usage
    said: dict[str, JSON] = {
        names.KIND: None if run.kind == "unknown" else run.kind.upper(),
        **_content(names.INPUT_VALUE, names.INPUT_MIME, run.inputs),
        **_content(names.OUTPUT_VALUE, names.OUTPUT_MIME, run.outputs),
        names.DOCUMENTS_JSON: _wire.encode(run.documents).decode() if run.documents else None,
        names.REQUEST_MODEL: run.model,
        names.INPUT_TOKENS: usage.input_tokens if usage else None,
        names.OUTPUT_TOKENS: usage.output_tokens if usage else None,
        **{f"gen_ai.usage.{name}": count for name, count in (usage.details.items() if usage else ())},
        names.COST: run.cost,
        names.SESSION: run.session_id,
        names.USER: run.user_id,
        names.TAGS: list(run.tags) or None,
        names.METADATA: _wire.encode(run.metadata).decode() if run.metadata else None,
        names.EXPERIMENT: run.experiment_id,
        names.EXAMPLE: run.example_id,
        names.REPETITION: run.repetition or None,
    }
    return {name: given for name, given in said.items() if given is not None}


def _content(name: str, mime: str, content: JSON) -> dict[str, JSON]:
    if content is None:
        return {}
    if isinstance(content, str):
        return {name: content}
    return {name: _wire.encode(content).decode(), mime: "application/json"}


def _differing(run: Run, found: Run | None) -> dict[str, Any]:
    fields = [name for name in Run.__dataclass_fields__ if name not in _IDS]
    return {name: getattr(run, name) for name in fields if found is None or getattr(run, name) != getattr(found, name)}
