"""From a raw span to a run: each dialect takes what it knows, the envelope gives the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any, NamedTuple

from spanwise.collector.dialects._also import Said
from spanwise.collector.dialects._draft import Dialect, Draft, may_find
from spanwise.collector.dialects._faults import Fault, log_fault, name_of
from spanwise.collector.dialects._feedback import evaluations
from spanwise.collector.dialects._genai import genai
from spanwise.collector.dialects._haystack import haystack
from spanwise.collector.dialects._keys import Memo, weight
from spanwise.collector.dialects._laminar import laminar
from spanwise.collector.dialects._langfuse import langfuse
from spanwise.collector.dialects._langsmith import langsmith
from spanwise.collector.dialects._logfire import logfire
from spanwise.collector.dialects._mlflow import mlflow
from spanwise.collector.dialects._openinference import openinference
from spanwise.collector.dialects._prices import prices
from spanwise.collector.dialects._pydantic_ai import pydantic_ai
from spanwise.collector.dialects._pydantic_evals import pydantic_evals
from spanwise.collector.dialects._raw import RawSpan
from spanwise.collector.dialects._simple import may_be_simple, simple
from spanwise.collector.dialects._spanwise import spanwise
from spanwise.collector.dialects._traceloop import traceloop
from spanwise.collector.dialects._values import as_text, documents
from spanwise.collector.dialects._vercel import vercel
from spanwise.collector.format import split_stack
from spanwise.collector.former_names import is_own_scope
from spanwise.collector.records import JSON, Event, Run, Status, quick
from spanwise.tracer import attributes as names

STATUSES: tuple[Status, ...] = ("unset", "ok", "error")
# Names of exceptions that cancel work from outside: asyncio's, trio's, a closed generator, JavaScript's
CANCELLATIONS = frozenset(("CancelledError", "Cancelled", "GeneratorExit", "AbortError"))
SPAN_KINDS = ("", "", "server", "client", "producer", "consumer")  # internal is what everything is by default
ENVIRONMENTS = (names.ENVIRONMENT, "deployment.environment", "langfuse.environment")
AWAITS = "spanwise.awaits"  # an attribute: the fields that a dialect expects in other messages


def retrieval(draft: Draft) -> None:
    """A retriever whose outputs are documents need not say them twice."""
    fields = draft.fields
    if not fields.get("documents") and fields.get("kind") in ("retriever", "reranker"):
        fields["documents"] = documents(fields.get("outputs"))


# In this order: conventions first, then what follows from the fields that they have filled in
DIALECTS: tuple[Dialect, ...] = (
    spanwise,
    openinference,
    langfuse,
    langsmith,
    mlflow,
    traceloop,
    laminar,
    vercel,
    logfire,
    pydantic_ai,
    haystack,
    genai,
    pydantic_evals,
    evaluations,
    retrieval,
    prices,
)


new_run: Callable[..., Run] = quick(Run)


class Whole(NamedTuple):
    """A span as it was read."""

    run: Run
    also: tuple[Said, ...] = ()


_whole: Callable[[tuple[Run, tuple[Said, ...]]], Whole] = partial(tuple.__new__, Whole)


def read(span: RawSpan, fault: Fault = log_fault, dialects: Sequence[Dialect] | None = None) -> Run:
    """The run that a span is: `read_whole` without what it says beside."""
    return read_whole(span, fault, dialects).run


def read_whole(span: RawSpan, fault: Fault = log_fault, dialects: Sequence[Dialect] | None = None) -> Whole:
    """The run that a span of any known convention is, and what it says beside. What no field has taken stays in
    `attributes`.

    A dialect that raises, or fills in what a run cannot have, is told to `fault`, and the span is read as if that
    dialect did not exist.
    """
    draft = Draft(span)
    try:
        if dialects is None:
            of_all = _given.get((draft.namespaces, span.scope)) or _plan(draft.namespaces, span.scope)
            if of_all.simple and simple(draft):
                return _whole((_run(span, draft), ()))
            asked = of_all.dialects
        else:
            asked = _asked(draft.namespaces, span.scope, dialects)
        for dialect in asked:
            dialect(draft)
        draft.check()
    except Exception as error:
        asked = _asked(draft.namespaces, span.scope, DIALECTS if dialects is None else dialects)
        failed = _failed(span, asked)
        fault(name_of(failed), error)
        # What it had done by then is in the draft: starting anew costs only the spans that it fails on
        return read_whole(span, fault, [other for other in asked if other is not failed])
    return _whole((_run(span, draft), draft.also))


def _run(span: RawSpan, draft: Draft) -> Run:
    attributes, get = draft.attributes, draft.fields.get
    if draft.awaits:
        attributes[AWAITS] = list(draft.awaits)
    _, project, environment = whose(span.resource)
    status = status_of(span.status, attributes, span.events)
    name = get("name")
    if name is not None and name != span.name:
        attributes["otel.span.name"] = span.name
    return new_run(  # its fields in their order
        span.trace_id,
        span.span_id,
        name or span.name,
        span.parent_id,
        get("kind", "unknown"),
        span.start_ns,
        span.end_ns,
        status,
        _error(span, attributes) if status == "error" else None,
        get("inputs"),
        get("outputs"),
        get("documents", ()),
        get("model"),
        get("usage"),
        get("cost"),
        _with_envelope(span, attributes),
        span.events,
        span.links,
        span.resource,
        get("session_id"),
        get("user_id"),
        project,
        environment,
        get("tags", ()),
        get("metadata") or {},
        get("experiment_id"),
        get("example_id"),
        get("repetition", 0),
    )


def _asked(namespaces: Set[str], scope: str, dialects: Sequence[Dialect]) -> Sequence[Dialect]:
    """Which of some dialects are given a span with these namespaces and this scope."""
    return [dialect for dialect in dialects if may_find(dialect, namespaces, scope)]


class Plan(NamedTuple):
    """Which of `DIALECTS` are given spans with some namespaces and scope, and whether these may be simple."""

    dialects: Sequence[Dialect]
    simple: bool


def _plan(namespaces: Set[str], scope: str) -> Plan:
    """How such spans are read, remembered: programs write the same few namespaces together."""
    asked = tuple(_asked(namespaces, scope, DIALECTS))
    plan = Plan(asked, may_be_simple(asked, namespaces))
    size = weight((scope, *namespaces))
    return plan if size is None else _given.keep((namespaces, scope), plan, size)


def _failed(span: RawSpan, dialects: Sequence[Dialect]) -> Dialect:
    """The first dialect that fails on a span, of which it is known that one does."""
    draft = Draft(span)
    for dialect in dialects:
        try:
            dialect(draft)
            draft.check()
        except Exception:
            return dialect
    return dialects[-1]  # one that does not fail every time: leave one out at any rate


def status_of(code: int, attributes: Mapping[str, Any], events: Sequence[Event]) -> Status:
    """Return the status of a run: cancelled if its tracer says so, or if the last exception of a failed one cancels it.

    `code` is OTLP's: 0 unset, 1 ok, 2 error.
    """
    if attributes.get(names.CANCELLED) is True:
        return "cancelled"
    if code == 2 and events and (exception := _last_exception(events)):
        kind = exception.attributes.get("exception.type")
        if isinstance(kind, str) and kind.rpartition(".")[2] in CANCELLATIONS:
            return "cancelled"
    return STATUSES[code] if 0 <= code < 3 else "unset"


def _last_exception(events: Sequence[Event]) -> Event | None:
    return next((event for event in reversed(events) if event.name == "exception"), None)


def _error(span: RawSpan, attributes: Mapping[str, JSON]) -> str:
    exception = _last_exception(span.events)
    if exception and (told := _exception(exception)):
        return told
    return span.message or as_text(attributes.get("error.type") or "error")


def _exception(event: Event) -> str:
    """Return type and message of an exception; a stack trace in the message stays in the event."""
    parts = [as_text(part) for name in ("type", "message") if (part := event.attributes.get(f"exception.{name}"))]
    message, _ = split_stack(": ".join(parts))
    return message


def _with_envelope(span: RawSpan, attributes: dict[str, Any]) -> dict[str, Any]:
    """What else the envelope says, under the names that OpenTelemetry gives it in formats without an envelope."""
    if 1 < span.kind < len(SPAN_KINDS):
        attributes["otel.span.kind"] = SPAN_KINDS[span.kind]
    if span.scope and not is_own_scope(span.scope):
        attributes["otel.scope.name"] = span.scope
        if span.scope_version:
            attributes["otel.scope.version"] = span.scope_version
    if span.trace_state:
        attributes["otel.trace_state"] = span.trace_state
    return attributes


def whose(resource: Mapping[str, JSON]) -> tuple[Mapping[str, JSON] | None, str, str]:
    """A resource, its project and environment: looked up once for all its spans, as they come one after the other."""
    global _latest
    latest = _latest  # one read: another thread may put its own in its place at any time
    if latest[0] is not resource:
        latest = _latest = (resource, _project(resource), _first_text(resource, ENVIRONMENTS) or "default")
    return latest


def _project(resource: Mapping[str, JSON]) -> str:
    """The project that was named, else the service, unless that is only what SDKs put where nobody named one."""
    if named := _first_text(resource, (names.PROJECT,)):
        return named
    service = _first_text(resource, ("service.name",))
    return service if service and not service.startswith("unknown_service") else "default"


def _first_text(resource: Mapping[str, JSON], candidates: tuple[str, ...]) -> str | None:
    values = (resource.get(name) for name in candidates)
    return next((value for value in values if isinstance(value, str) and value), None)


_latest: tuple[Mapping[str, JSON] | None, str, str] = (None, "default", "default")
_given = Memo[tuple[Set[str], str], Plan]()
