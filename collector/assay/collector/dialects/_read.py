"""From a raw span to a run: the envelope first, then each dialect takes the attributes that it knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any, TypeAlias

from assay.collector.dialects import _assay, _genai, _openinference, _prices
from assay.collector.dialects._keys import namespace
from assay.collector.dialects._raw import RawSpan
from assay.collector.dialects._values import as_text, documents
from assay.collector.records import JSON, Event, Run, Status
from assay.tracer import attributes as names

# Takes from the attributes what it knows and puts it into the draft of a Run, without overwriting what is there. The
# third argument is what stands before the first dots of the attributes' names: a quick way to see that there is nothing
Dialect: TypeAlias = Callable[[dict[str, Any], dict[str, Any], Set[str]], None]

DIALECTS: tuple[Dialect, ...] = (_assay.read, _openinference.read, _genai.read)

STATUSES: tuple[Status, ...] = ("unset", "ok", "error")
SPAN_KINDS = ("", "", "server", "client", "producer", "consumer")  # internal is what everything is by default
ENVIRONMENTS = (names.ENVIRONMENT, "deployment.environment")


def read(raw: RawSpan) -> Run:
    """The run that a span of any known convention is. What no field has taken stays in `attributes`."""
    attributes = dict(raw.attributes)
    draft: dict[str, Any] = {}
    namespaces = set(map(namespace, attributes))
    for dialect in DIALECTS:
        dialect(attributes, draft, namespaces)
    _documents(draft)
    if "usage" in draft and "cost" not in draft and "model" in draft:
        draft["cost"] = _prices.cost(draft["model"], draft["usage"], raw.attributes, raw.start_ns)
    project, environment = _whose(raw.resource)
    status = STATUSES[raw.status] if 0 <= raw.status < 3 else "unset"
    return Run(
        trace_id=raw.trace_id,
        span_id=raw.span_id,
        name=raw.name,
        parent_id=raw.parent_id,
        kind=draft.pop("kind", "unknown"),
        start_ns=raw.start_ns,
        end_ns=raw.end_ns,
        status=status,
        error=_error(raw, attributes) if status == "error" else None,
        attributes=_with_envelope(raw, attributes),
        events=raw.events,
        links=raw.links,
        resource=raw.resource,
        project=project,
        environment=environment,
        **draft,
    )


def _documents(draft: dict[str, Any]) -> None:
    """A retriever whose outputs are documents need not say them twice."""
    if not draft.get("documents") and draft.get("kind") in ("retriever", "reranker"):
        draft["documents"] = documents(draft.get("outputs"))


def _error(raw: RawSpan, attributes: Mapping[str, JSON]) -> str:
    exception = next((event for event in reversed(raw.events) if event.name == "exception"), None)
    if exception and (found := _exception(exception)):
        return found
    return raw.message or as_text(attributes.get("error.type") or "error")


def _exception(event: Event) -> str:
    parts = (event.attributes.get("exception.type"), event.attributes.get("exception.message"))
    return ": ".join(as_text(part) for part in parts if part)


def _with_envelope(raw: RawSpan, attributes: dict[str, Any]) -> dict[str, Any]:
    """What else the envelope says, under the names that OpenTelemetry gives it in formats without an envelope."""
    if 1 < raw.kind < len(SPAN_KINDS):
        attributes["otel.span.kind"] = SPAN_KINDS[raw.kind]
    if raw.scope and raw.scope != "assay" and not raw.scope.startswith("assay."):
        attributes["otel.scope.name"] = raw.scope
        if raw.scope_version:
            attributes["otel.scope.version"] = raw.scope_version
    if raw.trace_state:
        attributes["otel.trace_state"] = raw.trace_state
    return attributes


def _whose(resource: Mapping[str, JSON]) -> tuple[str, str]:
    """Project and environment: looked up once for all spans of a resource, as they come one after the other."""
    global _latest
    latest = _latest  # one read: another thread may put its own in its place at any time
    if latest[0] is not resource:
        latest = _latest = (resource, _project(resource), _first_text(resource, ENVIRONMENTS) or "default")
    return latest[1:]


def _project(resource: Mapping[str, JSON]) -> str:
    """The project that was named, else the service, unless that is only what SDKs put where nobody named one."""
    if named := _first_text(resource, (names.PROJECT,)):
        return named
    service = _first_text(resource, ("service.name",))
    return service if service and not service.startswith("unknown_service") else "default"


def _first_text(resource: Mapping[str, JSON], candidates: tuple[str, ...]) -> str | None:
    found = (resource.get(name) for name in candidates)
    return next((value for value in found if isinstance(value, str) and value), None)


_latest: tuple[Mapping[str, JSON] | None, str, str] = (None, "default", "default")
