"""Recording span: head sampling, span counts per local trace, id and clock sources, lock with a bounded wait.

A span stores plain values. The span context, the parent's context and all derived values are created on first use,
for most spans by the delivery thread. `LiveSpan` is both the live `Span` and the `ReadableSpan` that exporters read.
"""

from __future__ import annotations

import os
import random
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from opentelemetry import trace as otel
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.span import TraceState

from spanwise.tracer import attribute_names as names
from spanwise.tracer import internal_errors
from spanwise.tracer.http_connections import is_propagation_target

# Lock with a bounded wait, for the time when the interpreter exits.

_MAX_WAIT = 1.0  # seconds


class ExitLock:
    """Lock that waits for at most a second, and not at all while the interpreter is finalizing.

    While the interpreter is finalizing, daemon threads stop permanently, possibly while they hold a lock. A finalizer
    that traces in the main thread would wait for that lock. The exit handler therefore replaces each lock that a
    traced call takes. A thread may then proceed without the lock, but no other thread runs at that time.
    """

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        """Acquire the lock if it becomes free in time."""
        self._lock.acquire(timeout=0.0 if sys.is_finalizing() else _MAX_WAIT)

    def __exit__(self, *error: object) -> None:
        """Release the lock if it is held."""
        self.release()

    def release(self) -> None:
        """Release the lock if it is held."""
        with suppress(RuntimeError):
            self._lock.release()


# Head sampling: OpenTelemetry's consistent probability sampling and its `ot` tracestate member.
#
# A trace is sampled if its randomness is at or above a threshold. Both are integers of 56 bits. Participants that use
# the same values make the same decision. `th` is the threshold (hex digits without trailing zeros), which determines
# the probability. `rv` is a randomness that replaces that of the trace id.
#
# Source: https://opentelemetry.io/docs/specs/otel/trace/tracestate-probability-sampling/

TRACESTATE_KEY = "ot"
ALWAYS_MEMBER = "th:0"  # probability 1
_NEVER_THRESHOLD = 1 << 56
# maximum length of the member, because Spanwise's own tracestate entry (at most 256 characters) contains it, too
_MAX_MEMBER_LENGTH = 128
_THRESHOLD_PATTERN, _RANDOMNESS_PATTERN = re.compile(r"th:([0-9a-f]{1,14})"), re.compile(r"rv:([0-9a-f]{14})")


def compute_threshold(rate: float) -> int:
    """Return the threshold of a probability between 0 and 1."""
    return _NEVER_THRESHOLD - round(rate * _NEVER_THRESHOLD)


def sample_new_trace(limit: int, trace_id: int, ot: str = "") -> tuple[bool, str]:
    """Return whether a new trace is sampled, and its member `ot`.

    The argument `ot` is the member of the trace of another SDK within which the new trace starts.
    """
    sampled = get_randomness(trace_id, ot) >= limit
    return sampled, format_member(limit if sampled else None, ot)


def inherit_member(sampled: bool, trace_id: int, ot: str) -> str:
    """Return the member `ot` of a trace that another process began.

    A threshold that contradicts the sampling decision of that process is removed.
    """
    digits = _find_member_value(ot, _THRESHOLD_PATTERN) if sampled else None
    limit = None if digits is None else int(digits.ljust(14, "0"), 16)
    possible = limit is not None and get_randomness(trace_id, ot) >= limit
    return format_member(limit if possible else None, ot)


def make_kept_member(ot: str) -> str:
    """Return the member `ot` of a trace that is kept whatever its randomness. Its threshold states the probability 1."""
    return format_member(0, ot)


def format_member(limit: int | None, ot: str = "") -> str:
    """Return the member `ot` with this threshold and the other valid parts of `ot`.

    If `ot` is too long, only its randomness is kept.
    """
    own = [] if limit is None else ["th:" + (f"{limit:014x}".rstrip("0") or "0")]
    parts = [part for part in ot.split(";") if part and not part.startswith("th:")]
    others = [
        part
        for part in parts
        if _RANDOMNESS_PATTERN.fullmatch(part) or (len(ot) <= _MAX_MEMBER_LENGTH and not part.startswith("rv:"))
    ]
    return ";".join([*own, *others])


def get_randomness(trace_id: int, ot: str = "") -> int:
    """Return the randomness that is compared with a threshold."""
    explicit = _find_member_value(ot, _RANDOMNESS_PATTERN) if ot else None
    return trace_id & (_NEVER_THRESHOLD - 1) if explicit is None else int(explicit, 16)


def _find_member_value(ot: str, form: re.Pattern[str]) -> str | None:
    return next((found[1] for part in ot.split(";") if (found := form.fullmatch(part))), None)


# Recording span, span counts per local trace, and id and clock sources.

SCOPE = InstrumentationScope("spanwise", "0.1.0")  # instrumentation scope of the spans of `@trace` and `span(…)`
OUTGOING_KINDS = (SpanKind.CLIENT, SpanKind.PRODUCER)  # kinds of spans that call another process
VENDOR_KEY = "spanwise"  # Spanwise's key in the W3C tracestate
SAMPLED_FLAG, MONITOR_FLAG = 1, 2  # flags of the tracestate entry
MAX_ATTRIBUTES = 10_000
MAX_EVENTS = 1_000
_UNSET, _OK = Status(StatusCode.UNSET), Status(StatusCode.OK)
_SAMPLED, _NOT_SAMPLED = TraceFlags(TraceFlags.SAMPLED), TraceFlags(TraceFlags.DEFAULT)

_random = random.Random()  # separate generator: an application that calls random.seed(0) must not repeat ids
# guards the counts of every LocalTrace; re-entrant for signal handlers (see `SpanQueue`)
_lock: Any = threading.RLock()
_time_ns = time.time_ns


class Clock:
    """Source of ids and times. The test kit replaces the functions."""

    bits: Callable[[int], int] = staticmethod(_random.getrandbits)
    now: Callable[[], int] = staticmethod(_time_ns)
    epoch: int = 0  # number of forks; a span of an earlier epoch belongs to the parent process


def _after_fork() -> None:
    _lock.release()
    _random.seed()
    Clock.epoch += 1


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_after_fork)


class SpanCounts(Protocol):
    """Counts of the spans that are delivered to one address; a `SpanAccount`."""

    started: int
    open: int
    unreported: set[Any]  # open spans that have not been reported yet


class SpanBuffer(Protocol):
    """Buffer for the spans of an unsampled trace; a `PendingTrace`."""

    def put(self, item: Any) -> None:
        """Store an ended span or a feedback event until the decision."""


class LocalTrace:
    """This process's part of a trace: counts of started, open and dropped spans, and of outgoing calls."""

    __slots__ = (
        "account",
        "closed",
        "dropped",
        "epoch",
        "open",
        "ot",
        "resource",
        "root_id",
        "sampled",
        "sent",
        "sink",
        "started",
        "synced_open",
        "synced_started",
        "trace_id",
        "undecided",
    )

    def __init__(
        self,
        trace_id: int,
        sink: Callable[[Any], None],
        resource: Resource,
        sampled: bool = True,
        ot: str = "",
    ) -> None:
        self.trace_id = trace_id
        self.sink = sink
        self.resource = resource
        self.undecided: SpanBuffer | None = None
        # decision of head sampling, and the tracestate member that records it
        self.sampled, self.ot = sampled, ot
        self.root_id = self.started = self.open = self.dropped = self.sent = 0
        self.account: SpanCounts | None = None  # counts for the address to which the spans are delivered
        self.synced_started = self.synced_open = 0  # counts that the account already includes
        self.closed = False  # True after the local root has ended
        self.epoch = Clock.epoch


_MAX_OPEN_TRACES = 10_000
_open_traces: dict[int, LocalTrace] = {}  # by trace id, while the local root is open


def get_local_trace(trace_id: int) -> LocalTrace | None:
    """Return this process's part of a trace while its local root is open."""
    local = _open_traces.get(trace_id)
    return local if local is not None and local.epoch == Clock.epoch and not local.closed else None


def begin_local_trace(
    trace_id: int, sink: Callable[[Any], None], resource: Resource, sampled: bool = True, ot: str = ""
) -> LocalTrace:
    """Register and return this process's part of a trace."""
    local = _open_traces[trace_id] = LocalTrace(trace_id, sink, resource, sampled, ot)
    while len(_open_traces) > _MAX_OPEN_TRACES:  # traces that never end must not fill the memory
        with suppress(RuntimeError, StopIteration):  # another thread has begun or ended a trace meanwhile
            forgotten = _open_traces.pop(next(iter(_open_traces)), None)
            if forgotten is not None:
                sync_account(forgotten)
    return local


def sync_account(local: LocalTrace) -> None:
    """Add the latest counts of started and open spans of a trace to its account."""
    with _lock:
        _sync_account_locked(local)


def _sync_account_locked(local: LocalTrace) -> None:
    account, started, open = local.account, local.started, local.open
    if account is not None:
        account.started += started - local.synced_started
        account.open += open - local.synced_open
        local.synced_started, local.synced_open = started, open


def move_to_account(source: SpanCounts, target: SpanCounts) -> None:
    """Move a started span to another account, because it is delivered to another address."""
    with _lock:
        source.started -= 1
        target.started += 1


def bound_lock_waits() -> None:
    """Limit the time that a thread waits for the lock; see `ExitLock`."""
    global _lock
    _lock = ExitLock(_lock)


def sync_open_traces(account: SpanCounts) -> None:
    """Add the latest counts of all traces with an open local root to an account."""
    for local in tuple(_open_traces.values()):
        if local.account is account:
            sync_account(local)


class LiveSpan(ReadableSpan, otel.Span):
    """Recording span of Spanwise."""

    _kind = SpanKind.INTERNAL
    _events: Sequence[Event] = ()
    _links: Sequence[Link] = ()
    _status = _UNSET
    _end_time: int | None = None
    _instrumentation_info = None
    parent_remote = False
    # True if the span is current only under Spanwise's key, because a foreign span is current under OpenTelemetry's
    hidden = False
    has_children = False
    ambient: dict[str, Any] | None = None  # attributes for all spans below, received from a remote parent
    finished = False  # True after sanitization
    passed_on = False  # True after the span was passed to the exporters of the application
    # what to do for an exception that leaves the span
    records_exceptions = sets_error_status = True
    dropped_attributes = dropped_events = 0  # number dropped because of the limits  # type: ignore[assignment]
    weight = 1000  # approximate size in bytes; set by the queue
    _attributes: dict[str, Any]

    def __init__(
        self,
        name: str,
        local: LocalTrace,
        parent_id: int,
        attributes: dict[str, Any],
        scope: InstrumentationScope,
        start_time: int | None = None,
    ) -> None:
        self._name = name
        self.local = local
        self.parent_id = parent_id
        self._attributes = attributes
        self._instrumentation_scope = scope
        self.span_id = Clock.bits(64) or 1
        self._start_time = start_time or Clock.now()
        with _lock:
            local.started += 1
            local.open += 1
            if local.root_id == 0:
                local.root_id = self.span_id
        account = local.account
        if account is not None:
            account.unreported.add(self)

    @property
    def marked(self) -> bool:
        """Return whether a monitor created the span."""
        return names.MONITOR in self._attributes

    # -- read by exporters and propagators --

    @property
    def _context(self) -> SpanContext:  # type: ignore[override]
        context = self.__dict__.get("_own_context")
        if context is None:
            local = self.local
            plain = make_span_context(
                local.trace_id, self.span_id, sampled=local.sampled, ot=local.ot, marked=self.marked
            )
            called = self._attributes if self._kind in OUTGOING_KINDS else None
            state = _OutgoingTraceState(local, called, plain.trace_state)
            context = SpanContext(plain.trace_id, plain.span_id, False, plain.trace_flags, state)
            self._own_context = context
        return context

    @property
    def context(self) -> SpanContext:
        """Return the span's own context."""
        return self._context

    def get_span_context(self) -> SpanContext:
        """Return the span's own context, which is created on first use."""
        return self._context

    @property
    def parent(self) -> SpanContext | None:
        """Return the parent's context, or None for the root of a trace."""
        local = self.local
        if not self.parent_id:
            return None
        return make_span_context(local.trace_id, self.parent_id, self.parent_remote, local.sampled, local.ot)

    @property
    def ot(self) -> str:
        """Return the member `ot` of the exported tracestate. If every trace is sampled, only local roots have it."""
        local = self.local
        return local.ot if local.ot != ALWAYS_MEMBER or self.span_id == local.root_id else ""

    @property
    def resource(self) -> Resource:
        """Return the resource of the process that created the span."""
        return self.local.resource

    # -- recording --

    def is_recording(self) -> bool:
        """Return True until the span has ended."""
        return self._end_time is None

    def set_attribute(self, key: str, value: Any) -> None:
        """Set an attribute. A list is copied, so that later changes have no effect."""
        if self._end_time is not None:
            return
        if len(self._attributes) < MAX_ATTRIBUTES or key in self._attributes:
            self._attributes[key] = tuple(value) if type(value) is list else value
        else:
            self.dropped_attributes += 1
            _report_limit_exceeded("attributes", MAX_ATTRIBUTES)

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        for key, value in (attributes or {}).items():
            self.set_attribute(key, value)

    def update_name(self, name: str) -> None:
        """Rename the span."""
        if self._end_time is None:
            self._name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Set the status. OK is final and UNSET is ignored, as OpenTelemetry specifies."""
        new = status if isinstance(status, Status) else Status(status, description)
        if self._end_time is None and self._status.status_code is not StatusCode.OK and not new.is_unset:
            self._status = new

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        """Append an event. A span holds at most `MAX_EVENTS`."""
        if self._end_time is not None:
            return
        if len(self._events) < MAX_EVENTS:
            self._events = (*self._events, Event(name, dict(attributes or {}), timestamp or Clock.now()))
        else:
            self.dropped_events += 1
            _report_limit_exceeded("events", MAX_EVENTS)

    def add_link(self, context: SpanContext, attributes: Any = None) -> None:
        """Append a link to another span."""
        if self._end_time is None and context is not None and context.is_valid:
            self._links = (*self._links, Link(context, dict(attributes or {})))

    def record_exception(
        self, exception: BaseException, attributes: Any = None, timestamp: int | None = None, escaped: bool = False
    ) -> None:
        """Append the exception as an event, unless a span below has already recorded it in this trace."""
        if mark_exception_recorded(exception, self.local.trace_id):
            self.add_event(
                "exception", {**_make_exception_attributes(exception, escaped), **(attributes or {})}, timestamp
            )

    def end(self, end_time: int | None = None) -> None:
        """End the span and pass it to delivery. A second call does nothing."""
        local = self.local
        with _lock:
            if self._end_time is not None:
                return
            self._end_time = end_time or Clock.now()
            local.open -= 1
            if self.span_id == local.root_id or local.closed:
                self._attributes.update(_close_local_trace(local))
        account = local.account
        if account is not None:
            account.unreported.discard(self)
        # in a forked child, do not deliver the parent process's span, which the parent ends itself
        if local.epoch == Clock.epoch:
            local.sink(self)

    def __exit__(self, exc_type: Any, exc: BaseException | None, tb: Any) -> None:
        """End the span as a context manager and record an exception."""
        if exc is not None:
            self.fail(exc)
        self.end()

    def fail(self, error: BaseException) -> None:
        """Record an exception that leaves the span, once per trace, and set the status.

        `records_exceptions` and `sets_error_status` can disable the event and the status. A cancellation is marked as
        such and is not an error.
        """
        if is_cancellation(error):
            return self.set_attribute(names.CANCELLED, True)
        if self.records_exceptions:
            self.record_exception(error, escaped=True)
        if self.sets_error_status:
            self.set_status(Status(StatusCode.ERROR, internal_errors.describe_error(error)))
        return None

    def infer_status(self) -> None:
        """Set the status to OK if the run ended without an error and was not cancelled."""
        if self._status is _UNSET and names.CANCELLED not in self._attributes:
            self._status = _OK


def mark_ok(span: otel.Span) -> None:
    """Set the status of a successful span of a joined provider to OK, unless it has a status already."""
    if isinstance(span, LiveSpan):
        span.infer_status()
    elif (status := getattr(span, "status", None)) is not None and status.is_unset:
        span.set_status(_OK)


def is_cancellation(error: BaseException) -> bool:
    """Return whether an exception cancels work from outside: a closed generator, a cancelled task (asyncio, trio)."""
    if isinstance(error, Exception):
        return False
    return isinstance(error, GeneratorExit) or any(
        kind.__name__ in ("CancelledError", "Cancelled") for kind in type(error).__mro__
    )


def _report_limit_exceeded(what: str, most: int) -> None:
    internal_errors.counts[f"dropped_{what}"] += 1
    internal_errors.warn_once(
        what, f"a span has more than {most:,} {what}; further ones are dropped and counted on the span"
    )


def _close_local_trace(local: LocalTrace) -> dict[str, Any]:
    """Close the local trace and return the attributes of its root, and of every span that ends later.

    The caller holds the lock.
    """
    local.closed = True
    _open_traces.pop(local.trace_id, None)
    _sync_account_locked(local)
    attributes = {
        names.LOCAL_ROOT: f"{local.root_id:016x}",
        names.SPANS_STARTED: local.started,
        names.SPANS_OPEN: local.open,
    }
    return {**attributes, names.CALLS_SENT: local.sent} if local.sent else attributes


def count_started(local: LocalTrace, span_id: int) -> None:
    """Count a started span that is not a `LiveSpan`."""
    with _lock:
        local.started += 1
        local.open += 1
        local.root_id = local.root_id or span_id


def count_ended(local: LocalTrace, span_id: int) -> dict[str, Any]:
    """Count the end of a span that is not a `LiveSpan`. Return the attributes to add to it."""
    with _lock:
        local.open -= 1
        return _close_local_trace(local) if span_id == local.root_id or local.closed else {}


def make_span_context(
    trace_id: int, span_id: int, remote: bool = False, sampled: bool = True, ot: str = "", marked: bool = False
) -> SpanContext:
    """Return a span context with Spanwise's tracestate entry and OpenTelemetry's.

    Other processes recognise a Spanwise span by the entry.
    """
    own = [(VENDOR_KEY, format_tracestate_entry(trace_id, span_id, sampled, marked))]
    state = TraceState([*own, (TRACESTATE_KEY, ot)] if ot else own)
    return SpanContext(trace_id, span_id, remote, _SAMPLED if sampled else _NOT_SAMPLED, state)


def format_tracestate_entry(trace_id: int, span_id: int, sampled: bool, marked: bool = False) -> str:
    """Return Spanwise's tracestate entry. `marked` is true for a span of a monitor."""
    return f"{trace_id:032x}-{span_id:016x}-{SAMPLED_FLAG * sampled + MONITOR_FLAG * marked:02x}"


class _OutgoingTraceState(TraceState):
    """Tracestate of a Spanwise span. Propagators serialize it only when they write it into the headers of a call."""

    def __init__(self, local: LocalTrace, called: Mapping[str, Any] | None, state: TraceState) -> None:
        super().__init__()
        self._dict = dict(state)
        self._local, self._called = local, called

    def to_header(self) -> str:
        """Return the `tracestate` header. A call to a destination that takes part in tracing is counted."""
        if self._called is not None and is_propagation_target(self._called):
            count_sent(self._local)
        return super().to_header()

    def __reduce__(self) -> Any:
        """Reduce to an ordinary `TraceState`, because another process cannot update the counts of this one."""
        return TraceState, (list(self.items()),)


def count_sent(local: LocalTrace) -> None:
    """Count a call to another process. That process may have a local root below a span of this one."""
    with _lock:
        local.sent += 1


def count_dropped(span: LiveSpan) -> None:
    """Count a span that will not be delivered, in its trace."""
    with _lock:
        span.local.dropped += 1


def mark_exception_recorded(error: BaseException, trace_id: int) -> bool:
    """Mark an exception as recorded in a trace. Return False if it was marked for this trace before."""
    try:
        if getattr(error, "__spanwise_recorded__", None) == trace_id:
            return False
        error.__spanwise_recorded__ = trace_id  # type: ignore[attr-defined]
    except Exception:  # the exception allows no new attributes
        pass
    return True


def _make_exception_attributes(error: BaseException, escaped: bool) -> dict[str, Any]:
    kind = type(error)
    try:
        # start at the first frame outside of Spanwise, because frames of Spanwise do not explain the failure
        frames = error.__traceback__
        while frames is not None and str(frames.tb_frame.f_globals.get("__name__")).startswith("spanwise."):
            frames = frames.tb_next
        stack = "".join(traceback.format_exception(kind, error, frames or error.__traceback__))
    except Exception:
        stack = ""
    return {
        "exception.type": kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}",
        "exception.message": internal_errors.describe_error(error).partition(": ")[2],
        "exception.stacktrace": stack,
        "exception.escaped": str(escaped),
    }
