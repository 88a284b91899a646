"""Translation of raw spans to runs, and of log records to feedback, amendments and process reports.

The fast path handles plain steps of a program, which are most spans. Its result equals that of the dialects (a test
compares them on recorded spans of all senders). A span does not qualify if a dialect of a vendor, or a rarer part of
OpenInference, may apply; it goes through all dialects.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import fields, replace
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

from spanwise.collector.dialects.draft import (
    COST_NAMES,
    DOCUMENT_KINDS,
    NATIVE_NAMES,
    TOOL_PARAMETERS,
    Dialect,
    Draft,
    Memo,
    RawLog,
    RawSpan,
    SideResult,
    applies_to,
    is_applicable,
    parse_count,
    parse_json,
    read_documents,
    text_or_none,
    to_text,
    weigh_names,
)
from spanwise.collector.dialects.evaluation_events import evaluation, evaluations, read_feedback
from spanwise.collector.dialects.field_extraction import labels
from spanwise.collector.dialects.genai import MESSAGE_EVENTS, genai, read_event_messages
from spanwise.collector.dialects.haystack import HAYSTACK_OPERATIONS, haystack
from spanwise.collector.dialects.langfuse import langfuse
from spanwise.collector.dialects.langsmith import langsmith
from spanwise.collector.dialects.mlflow import mlflow
from spanwise.collector.dialects.openinference import (
    DEFAULT_MIME,
    FEEDBACK_NAMESPACES,
    FILE_NAMESPACES,
    IDENTITY_NAMESPACES,
    OPENINFERENCE_KINDS,
    RARE_NAMESPACES,
    openinference,
    take_openinference_identity,
)
from spanwise.collector.dialects.pydantic import logfire, pydantic_ai, pydantic_evals
from spanwise.collector.dialects.token_costs import parse_dollars, prices
from spanwise.collector.dialects.traceloop import laminar, traceloop
from spanwise.collector.dialects.vercel import vercel
from spanwise.collector.formatting import split_stack
from spanwise.collector.record_corrections import ATTRIBUTES, SENT_PREFIX, is_own_scope, present_names
from spanwise.collector.records import (
    JSON,
    Amendment,
    Event,
    Feedback,
    OpenRun,
    ProcessReport,
    Run,
    Status,
    make_fast_constructor,
)
from spanwise.tracer import attribute_names as names

# Translation of a raw span to a run: order of dialects, fast path, native attributes, project and status.

log = logging.getLogger("spanwise.collector")

# Function that receives the name of a dialect that failed, and the error. It must not raise, except in tests
FaultHandler: TypeAlias = Callable[[str, Exception], None]

_logged: set[tuple[str, type[Exception]]] = set()


def get_dialect_name(dialect: Callable[..., Any]) -> str:
    """Return the name of a dialect in /metrics and the log."""
    return getattr(dialect, "__name__", type(dialect).__name__)


def log_dialect_error(dialect: str, error: Exception) -> None:
    """Log that a dialect failed on an item, and that the item was translated without it."""
    log_once(f"dialect {dialect!r} failed on an item; the item is read without it", error)


def log_once(message: str, error: Exception) -> None:
    """Log an internal error with its traceback, once per message and type of error, because every span may repeat
    it.
    """
    if (message, type(error)) not in _logged:
        _logged.add((message, type(error)))
        log.error(message, exc_info=error)


@applies_to(*NATIVE_NAMES)
def spanwise(draft: Draft) -> None:
    """Take documents, cost and the experiment's ids."""
    attributes, fields = draft.attributes, draft.fields
    if names.DOCUMENTS_JSON in attributes and (
        retrieved := read_documents(parse_json(attributes[names.DOCUMENTS_JSON]))
    ):
        fields["documents"] = retrieved
        del attributes[names.DOCUMENTS_JSON]
    if names.COST in attributes and (cost := parse_dollars(attributes[names.COST])) is not None:
        fields["cost"] = cost
        del attributes[names.COST]
    if names.EXPERIMENT in attributes:
        fields["experiment_id"] = text_or_none(attributes.pop(names.EXPERIMENT))
        fields["example_id"] = text_or_none(attributes.pop(names.EXAMPLE, None))
        fields["repetition"] = parse_count(attributes.pop(names.REPETITION, 0)) or 0


STATUSES: tuple[Status, ...] = ("unset", "ok", "error")
# Names of exceptions that cancel work from outside: asyncio's, trio's, a closed generator, JavaScript's
CANCELLATIONS = frozenset(("CancelledError", "Cancelled", "GeneratorExit", "AbortError"))
SPAN_KINDS = ("", "", "server", "client", "producer", "consumer")  # "internal" is the default, so it is not recorded
DEFAULT_PROJECT = "default"  # of resources that name neither a project nor a service
ENVIRONMENTS = (names.ENVIRONMENT, "deployment.environment", "langfuse.environment")


def retrieval(draft: Draft) -> None:
    """Take the documents of a retriever from its outputs, if it has no others."""
    fields = draft.fields
    if not fields.get("documents") and fields.get("kind") in DOCUMENT_KINDS:
        fields["documents"] = read_documents(fields.get("outputs"))


# Dialects run in this order: first conventions, then steps that depend on the fields filled in
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
    labels,
    evaluations,
    retrieval,
    prices,
)


new_run: Callable[..., Run] = make_fast_constructor(Run)


class TranslatedSpan(NamedTuple):
    """Run and side records translated from a span."""

    run: Run
    also: tuple[SideResult, ...] = ()


_new_translated_span: Callable[[tuple[Run, tuple[SideResult, ...]]], TranslatedSpan] = partial(
    tuple.__new__, TranslatedSpan
)


def read_run(span: RawSpan, fault: FaultHandler = log_dialect_error, dialects: Sequence[Dialect] | None = None) -> Run:
    """Translate a span as `read_span` does. Return only the run, without side records."""
    return read_span(span, fault, dialects).run


def read_span(
    span: RawSpan, fault: FaultHandler = log_dialect_error, dialects: Sequence[Dialect] | None = None
) -> TranslatedSpan:
    """Translate a span of any known convention to a run and side records. Attributes that no field takes are kept.

    A dialect that raises, or fills in an invalid value, is reported to `fault`, and the span is translated without
    it.
    """
    draft = Draft(span)
    try:
        if dialects is None:
            plan = _plans.get((draft.namespaces, span.scope)) or _make_plan(draft.namespaces, span.scope)
            if plan.simple and read_fast_path(draft):
                return _new_translated_span((_build_run(span, draft), ()))
            applicable = plan.dialects
        else:
            applicable = _select_dialects(draft.namespaces, span.scope, dialects)
        for dialect in applicable:
            dialect(draft)
        draft.check()
    except Exception as error:
        applicable = _select_dialects(draft.namespaces, span.scope, DIALECTS if dialects is None else dialects)
        failed = _find_failing_dialect(span, applicable)
        fault(get_dialect_name(failed), error)
        # The failed dialect may have changed the draft. Starting over costs only the spans on which it fails
        return read_span(span, fault, [other for other in applicable if other is not failed])
    return _new_translated_span((_build_run(span, draft), draft.also))


def _build_run(span: RawSpan, draft: Draft) -> Run:
    attributes, get = draft.attributes, draft.fields.get
    if draft.awaits:
        attributes[names.AWAITS] = list(draft.awaits)
    if names.SPANS_STARTED in attributes:  # the tracer leaves out what is usual: the local root itself, and none open
        attributes.setdefault(names.LOCAL_ROOT, span.span_id)
        attributes.setdefault(names.SPANS_OPEN, 0)
    _, project, environment = resolve_project(span.resource)
    status = resolve_status(span.status, attributes, span.events)
    name = get("name")
    if name is not None and name != span.name:
        attributes["otel.span.name"] = span.name
    return new_run(  # positional arguments in the order of the fields
        span.trace_id,
        span.span_id,
        name or span.name,
        span.parent_id,
        get("kind", "unknown"),
        span.start_ns,
        span.end_ns,
        status,
        _make_error_text(span, attributes) if status == "error" else None,
        get("inputs"),
        get("outputs"),
        get("documents", ()),
        get("model"),
        get("usage"),
        get("cost"),
        _add_envelope(span, attributes),
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
        get("prompt_name"),
        get("prompt_version"),
        get("agent_name"),
        get("finish_reasons", ()),
        get("time_to_first_token_ms"),
        get("tools", ()),
    )


def _select_dialects(namespaces: Set[str], scope: str, dialects: Sequence[Dialect]) -> Sequence[Dialect]:
    """Return the dialects that apply to a span with these namespaces and this scope."""
    return [dialect for dialect in dialects if is_applicable(dialect, namespaces, scope)]


class ReadPlan(NamedTuple):
    """Dialects that apply to spans with the same namespaces and scope. If `simple`, the fast path may apply."""

    dialects: Sequence[Dialect]
    simple: bool


def _make_plan(namespaces: Set[str], scope: str) -> ReadPlan:
    """Return and cache the plan for spans with these namespaces and this scope. Programs use few combinations of
    both.
    """
    applicable = tuple(_select_dialects(namespaces, scope, DIALECTS))
    plan = ReadPlan(applicable, may_use_fast_path(applicable, namespaces))
    size = weigh_names((scope, *namespaces))
    return plan if size is None else _plans.keep((namespaces, scope), plan, size)


def _find_failing_dialect(span: RawSpan, dialects: Sequence[Dialect]) -> Dialect:
    """Return the first dialect that fails on a span. The caller knows that one of them has failed."""
    draft = Draft(span)
    for dialect in dialects:
        try:
            dialect(draft)
            draft.check()
        except Exception:
            return dialect
    return dialects[-1]  # the error did not occur again. Exclude some dialect anyway, so that the retries end


def resolve_status(code: int, attributes: Mapping[str, Any], events: Sequence[Event]) -> Status:
    """Return the status of a run.

    A run is cancelled if the tracer reports that, or if it failed with an exception in `CANCELLATIONS`. `code` is
    OTLP's: 0 unset, 1 ok, 2 error.
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


# LangSmith sends "Exception" as the type of every exception, and its representation as the message
_REPRESENTED_EXCEPTION = re.compile(r"[A-Z]\w{1,100}\(")


def _make_error_text(span: RawSpan, attributes: Mapping[str, JSON]) -> str:
    exception = _last_exception(span.events)
    if exception:
        fields = exception.attributes
        parts = [to_text(part) for name in ("type", "message") if (part := fields.get(f"exception.{name}"))]
        if len(parts) == 2 and parts[0] == "Exception" and _REPRESENTED_EXCEPTION.match(parts[1]):
            parts = parts[1:]
        message, _ = split_stack(": ".join(parts))  # some senders append a stack trace to the message
        if message:
            return message
    return span.message or to_text(attributes.get("error.type") or "error")


def _add_envelope(span: RawSpan, attributes: dict[str, Any]) -> dict[str, Any]:
    """Add span kind, scope and trace state to the attributes.

    Their names are those that OpenTelemetry defines for formats without fields for them.
    """
    if 1 < span.kind < len(SPAN_KINDS):
        attributes["otel.span.kind"] = SPAN_KINDS[span.kind]
    if span.scope and not is_own_scope(span.scope):
        attributes["otel.scope.name"] = span.scope
        if span.scope_version:
            attributes["otel.scope.version"] = span.scope_version
    if span.trace_state:
        attributes["otel.trace_state"] = span.trace_state
    return attributes


def resolve_project(resource: Mapping[str, JSON]) -> tuple[Mapping[str, JSON] | None, str, str]:
    """Return a resource, its project and its environment.

    The last result is cached, because consecutive spans usually share a resource.
    """
    global _latest_resource
    latest = _latest_resource  # one read, because another thread may replace the value at any time
    if latest[0] is not resource:
        latest = _latest_resource = (resource, _find_project(resource), _find_text(resource, ENVIRONMENTS) or "default")
    return latest


def _find_project(resource: Mapping[str, JSON]) -> str:
    """Return the project that the resource names, or else the service name, unless that is an SDK's default."""
    if named := _find_text(resource, (names.PROJECT,)):
        return named
    service = _find_text(resource, ("service.name",))
    return service if service and not service.startswith("unknown_service") else DEFAULT_PROJECT


def _find_text(resource: Mapping[str, JSON], candidates: tuple[str, ...]) -> str | None:
    values = (resource.get(name) for name in candidates)
    return next((value for value in values if isinstance(value, str) and value), None)


_latest_resource: tuple[Mapping[str, JSON] | None, str, str] = (None, "default", "default")
_plans = Memo[tuple[Set[str], str], ReadPlan]()


# Dialects that find nothing in plain spans: OpenInference, and those that get all spans
IDLE_DIALECTS = frozenset(("openinference", "haystack", "evaluations", "retrieval", "prices"))
EXCLUDED_NAMESPACES = frozenset(
    ("haystack", TOOL_PARAMETERS, *RARE_NAMESPACES, *FEEDBACK_NAMESPACES, *FILE_NAMESPACES, *COST_NAMES)
)
JSON_TYPE = "application/json"


def may_use_fast_path(dialects: Iterable[Dialect], namespaces: Set[str]) -> bool:
    """Return whether the fast path may apply to a span with these namespaces and dialects."""
    return EXCLUDED_NAMESPACES.isdisjoint(namespaces) and IDLE_DIALECTS.issuperset(map(get_dialect_name, dialects))


def read_fast_path(draft: Draft) -> bool:
    """Fill in the draft if the span is a plain step. Return whether it is one; if not, the draft is unchanged."""
    span, attributes, fields = draft.span, draft.attributes, draft.fields
    if span.events or span.name in HAYSTACK_OPERATIONS:
        return False
    value = attributes.get(names.KIND)
    if value is not None:
        kind = OPENINFERENCE_KINDS.get(value) if isinstance(value, str) else None
        if kind is None or kind in DOCUMENT_KINDS:
            return False
        fields["kind"] = kind
        del attributes[names.KIND]
    if names.INPUT_VALUE in attributes:
        value = attributes.pop(names.INPUT_VALUE)
        mime = attributes.pop(names.INPUT_MIME, DEFAULT_MIME.get(span.scope))
        fields["inputs"] = parse_json(value) if mime == JSON_TYPE else value
    if names.OUTPUT_VALUE in attributes:
        value = attributes[names.OUTPUT_VALUE]
        mime = attributes.get(names.OUTPUT_MIME, DEFAULT_MIME.get(span.scope))
        value = parse_json(value) if mime == JSON_TYPE else value
        if value is not None:  # a null stays as an attribute, as in `openinference`
            fields["outputs"] = value
            del attributes[names.OUTPUT_VALUE]
            attributes.pop(names.OUTPUT_MIME, None)
    if not IDENTITY_NAMESPACES.isdisjoint(draft.namespaces):
        take_openinference_identity(draft)
    return True


# Translation of log records to feedback, amendments, open runs and process reports.

_SPAN_ID = re.compile("[0-9a-f]{16}")
MAX_RESPONSE_ID_CHARACTERS = 200  # stores find no longer one
_ANY_ID = "f" * 32  # stands for the trace, which is not known yet
_FEEDBACK_FIELDS = tuple(field.name for field in fields(Feedback) if field.name not in ("target", "id", "claim"))
_MAX_INSTANCE_CHARS = 200  # maximum length of an instance's name


def evaluation_of_response(log: RawLog) -> Amendment | None:
    """Return feedback on a model response as an amendment, if the record has no span context but names a response.

    It concerns the run with this response id, in the project that the resource names, or in any if it names none.
    """
    if log.event != names.EVALUATION_EVENT or log.trace_id or log.attributes.get(names.FEEDBACK_SCOPE) is not None:
        return None
    response_id = text_or_none(log.attributes.get(names.RESPONSE_ID))
    if response_id is None:
        return None
    if len(response_id) > MAX_RESPONSE_ID_CHARACTERS or not response_id.isascii():
        raise ValueError(
            f"{names.RESPONSE_ID} must have at most {MAX_RESPONSE_ID_CHARACTERS} ASCII characters, got {response_id!r:.100}"
        )
    feedback = read_feedback(replace(log, trace_id=_ANY_ID, span_id=None))
    given = {name: value for name in _FEEDBACK_FIELDS if (value := getattr(feedback, name)) is not None}
    _, project, _ = resolve_project(log.resource)
    named = None if project == DEFAULT_PROJECT else project
    return Amendment("", "", {"feedback": {feedback.id: given}}, response_id=response_id, project=named)


def started(log: RawLog) -> OpenRun | None:
    """Return an open run if the record reports a started span, else None. Raise `ValueError` if the span is missing."""
    if log.event != names.STARTED_EVENT:
        return None
    if log.span_id is None:
        raise ValueError(f"event {log.event!r} requires a span id")
    attributes, (_, project, environment) = log.attributes, resolve_project(log.resource)
    return OpenRun(
        trace_id=log.trace_id,
        span_id=log.span_id,
        name=to_text(attributes.get(names.STARTED_NAME) or ""),
        parent_id=_parse_span_id(attributes.get(names.STARTED_PARENT)),
        kind=to_text(attributes.get(names.KIND) or "unknown").lower(),
        start_ns=log.time_ns,
        local_root=_parse_span_id(attributes.get(names.LOCAL_ROOT)),
        project=project,
        environment=environment,
        instance=text_or_none(log.resource.get(names.INSTANCE)),
    )


def report(log: RawLog) -> ProcessReport | None:
    """Return a process report if the record is one, else None. Raise `ValueError` if the process is missing."""
    if log.event != names.REPORT_EVENT:
        return None
    instance, (_, project, environment) = log.resource.get(names.INSTANCE), resolve_project(log.resource)
    if not isinstance(instance, str) or not 0 < len(instance) <= _MAX_INSTANCE_CHARS:
        raise ValueError(
            f"event {log.event!r} requires the resource attribute {names.INSTANCE!r}, of at most {_MAX_INSTANCE_CHARS} characters"
        )
    attributes = log.attributes
    value = parse_json(attributes.get(names.REPORT_DROPPED))
    counts = {reason: parse_count(number) for reason, number in value.items()} if isinstance(value, Mapping) else {}
    return ProcessReport(
        instance=instance,
        reported_ns=log.time_ns,
        started=parse_count(attributes.get(names.REPORT_STARTED)) or 0,
        open=parse_count(attributes.get(names.REPORT_OPEN)) or 0,
        delivered=parse_count(attributes.get(names.REPORT_DELIVERED)) or 0,
        spilled=parse_count(attributes.get(names.REPORT_SPILLED)) or 0,
        pending=parse_count(attributes.get(names.REPORT_PENDING)) or 0,
        dropped={reason: number for reason, number in counts.items() if number},
        pid=parse_count(attributes.get(names.REPORT_PID, log.resource.get(names.REPORT_PID))),
        service=text_or_none(log.resource.get("service.name")),
        project=project,
        environment=environment,
    )


def _parse_span_id(value: JSON) -> str | None:
    return value if isinstance(value, str) and _SPAN_ID.fullmatch(value) else None


def content(log: RawLog) -> Amendment | None:
    """Return an amendment with the messages of a call; None if the record has none or does not identify the call."""
    if log.event not in MESSAGE_EVENTS:
        return None
    inputs, outputs = read_event_messages(log.event, log.body, log.attributes)
    fields = {"input_messages": inputs, "output_messages": outputs}
    key = _make_message_key(log)
    fields_by_key: dict[str, JSON] = {name: {key: messages} for name, messages in fields.items() if messages}
    if not fields_by_key:
        return None
    if log.trace_id and log.span_id:
        return Amendment(log.trace_id, log.span_id, fields_by_key)
    response = text_or_none(log.attributes.get(names.RESPONSE_ID))
    return Amendment("", "", fields_by_key, response_id=response) if response else None


def _make_message_key(log: RawLog) -> str:
    """Return a key that sorts the messages of a call by the time of sending.

    Copies of a record have the same key, and different records have different keys.
    """
    # future times may have been replaced by one value
    sent = parse_count(log.attributes.get(f"{SENT_PREFIX}created_ns")) or log.time_ns
    text = to_text([log.event, log.body, {name: log.attributes[name] for name in sorted(log.attributes)}])
    return f"{sent:020d}.{blake2b(text.encode(errors='replace'), digest_size=6).hexdigest()}"


LogItem: TypeAlias = Feedback | Amendment | OpenRun | ProcessReport
# Function that translates a log record. It returns None for a record that it does not recognize, and raises
# `ValueError` with a reason for the sender if the record is invalid
LogDialect: TypeAlias = Callable[[RawLog], LogItem | None]

LOG_DIALECTS: tuple[LogDialect, ...] = (evaluation_of_response, evaluation, started, report, content)


def read_log(
    log: RawLog, fault: FaultHandler = log_dialect_error, dialects: Sequence[LogDialect] | None = None
) -> LogItem | None:
    """Return the result of the first dialect that recognizes this record, else None.

    Raise `ValueError` for an invalid record. Any other error of a dialect is raised only if no other dialect
    recognizes the record.
    """
    log.attributes = present_names(log.attributes)
    log.event_name = ATTRIBUTES.get(log.event_name, log.event_name)
    failed: Exception | None = None
    for dialect in LOG_DIALECTS if dialects is None else dialects:
        try:
            item = dialect(log)
            if item is not None:
                return item
        except ValueError:
            raise
        except Exception as error:
            fault(get_dialect_name(dialect), error)
            failed = error
    if failed is not None:
        raise failed
    return None
