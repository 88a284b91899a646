"""Propagation of session, user and tags to child spans, and of traces to other processes (W3C headers).

headers = inject()                       # in the caller
with extract(headers): work()            # in the other process
executor.submit(carry(work), 1)          # both at once, for ProcessPoolExecutor and multiprocessing
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from secrets import randbits
from typing import Any, Generic, ParamSpec, TypeVar, cast
from urllib.parse import quote

from opentelemetry import baggage
from opentelemetry import trace as otel
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.trace.span import TraceState

from spanwise.tracer import attribute_names as names
from spanwise.tracer.internal_errors import error_boundary
from spanwise.tracer.otel import trace_context
from spanwise.tracer.otel.live_span import (
    VENDOR_KEY,
    LiveSpan,
    LocalTrace,
    count_sent,
    format_tracestate_entry,
    get_local_trace,
    make_span_context,
)
from spanwise.tracer.otel.trace_context import RemoteParent, read_baggage_attributes
from spanwise.tracer.process_runtime import get_runtime

_MAX_BAGGAGE_LENGTH = 4_000  # maximum number of characters of a header entry; receivers ignore longer entries
_MONITOR_MARK = {names.MONITOR: True}


@contextmanager
def session(id: str | None) -> Iterator[None]:
    """Assign all spans that start inside the block to a conversation.

    None changes nothing. Can also be used as a decorator.
    """
    with _attach_attributes({} if id is None else {names.SESSION: _replace_surrogates(id)}):
        yield


@contextmanager
def user(id: str | None) -> Iterator[None]:
    """Assign all spans that start inside the block to a user.

    None changes nothing. Can also be used as a decorator.
    """
    with _attach_attributes({} if id is None else {names.USER: _replace_surrogates(id)}):
        yield


@contextmanager
def tags(*tags: str) -> Iterator[None]:
    """Add tags to all spans that start inside the block, in addition to those of outer blocks.

    Can also be used as a decorator.
    """
    outer = trace_context.get_ambient_attributes(trace_context.get_live_context()).get(names.TAGS, ())
    with _attach_attributes({names.TAGS: tuple(dict.fromkeys((*outer, *map(_replace_surrogates, tags))))}):
        yield


@contextmanager
def _attach_attributes(attributes: dict[str, Any]) -> Iterator[None]:
    # create the runtime now, so that threads that start inside the block before any span inherit the context
    get_runtime()
    token = trace_context.attach(_add_ambient_attributes(attributes))
    try:
        yield
    finally:
        trace_context.detach(token)


@contextmanager
def mark_monitor_spans() -> Iterator[None]:
    """Mark all spans that start inside the block, in this process and in called processes, as spans of a monitor.

    Rules ignore such spans. The mark also reaches spans of other providers. If no span is current, they start below
    an unrecorded span whose tracestate has the mark.
    """
    with _attach_attributes(_MONITOR_MARK):
        if otel.get_current_span().get_span_context().is_valid:
            yield
            return
        marked = make_span_context(randbits(128) or 1, randbits(64) or 1, remote=True, marked=True)
        with otel.use_span(otel.NonRecordingSpan(marked)):
            yield


def make_detached_context() -> Context:
    """Return a context that is empty, except for the mark of a monitor if the current context has it."""
    is_marked = names.MONITOR in trace_context.get_ambient_attributes(trace_context.get_current())
    return _add_ambient_attributes(_MONITOR_MARK, Context()) if is_marked else Context()


def _add_ambient_attributes(attributes: dict[str, Any], ctx: Context | None = None) -> Context:
    ctx = trace_context.get_live_context() if ctx is None else ctx
    new = trace_context.with_value(
        ctx, trace_context.AMBIENT_KEY, {**trace_context.get_ambient_attributes(ctx), **attributes}
    )
    with error_boundary("baggage"):
        for key, value in attributes.items():
            name = trace_context.BAGGAGE[key]
            text = ";".join(quote(tag, safe="") for tag in value) if isinstance(value, tuple) else str(value)
            fits = len(text) * 3 <= _MAX_BAGGAGE_LENGTH or len(quote(text)) <= _MAX_BAGGAGE_LENGTH
            new = baggage.set_baggage(name, text, new) if fits else baggage.remove_baggage(name, new)
    return trace_context.with_private_baggage(new)


def _replace_surrogates(value: object) -> str:
    """Return an id or a tag as text. Characters that UTF-8 cannot encode, such as half of an emoji, are replaced."""
    text = str(value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


P = ParamSpec("P")
R = TypeVar("R")

_TRACE_CONTEXT_PROPAGATOR, _BAGGAGE_PROPAGATOR = TraceContextTextMapPropagator(), W3CBaggagePropagator()


def inject(carrier: MutableMapping[str, str] | None = None) -> MutableMapping[str, str]:
    """Write the current run, session, user and tags into a carrier and return it.

    The carrier is a new dict by default, or a mapping of headers. If another OpenTelemetry set-up traces the
    application, `traceparent` stays that of the other set-up, and Spanwise's ids are sent in `tracestate`.
    """
    headers: MutableMapping[str, str] = {} if carrier is None else carrier
    with error_boundary("inject"):
        ctx = trace_context.get_live_context()
        _write_headers(headers, ctx)
        if (local := _find_local_trace(ctx)) is not None:
            count_sent(local)
    return headers


def _write_headers(headers: MutableMapping[str, str], ctx: Context) -> None:
    context = _make_outgoing_context(ctx)
    if context is not None:
        _TRACE_CONTEXT_PROPAGATOR.inject(headers, otel.set_span_in_context(NonRecordingSpan(context), Context()))
    _BAGGAGE_PROPAGATOR.inject(headers, trace_context.with_public_baggage(ctx))


def _find_local_trace(ctx: Context) -> LocalTrace | None:
    """Return the local trace that an outgoing call belongs to."""
    own = trace_context.find_parent(ctx)
    if isinstance(own, LiveSpan):
        return own.local
    joined = otel.get_current_span(ctx).get_span_context() if own is None and get_runtime().joined else None
    return get_local_trace(joined.trace_id) if joined is not None else None


def _make_outgoing_context(ctx: Context) -> SpanContext | None:
    own = trace_context.find_parent(ctx)
    if own is None:
        return trace_context.find_foreign_context(ctx)
    if isinstance(own, LiveSpan):
        own = RemoteParent(own.local.trace_id, own.span_id, own.local.sampled, own.local.ot, own.marked)
    foreign = trace_context.find_foreign_context(ctx)
    if foreign is None:
        return make_span_context(own.trace_id, own.span_id, sampled=own.sampled, ot=own.ot, marked=own.marked)
    # Add Spanwise's tracestate entry to the foreign context. The context's member `ot` stays that of the foreign
    # trace
    others = [(key, value) for key, value in foreign.trace_state.items() if key != VENDOR_KEY]
    entry = format_tracestate_entry(own.trace_id, own.span_id, own.sampled, own.marked)
    state = TraceState([(VENDOR_KEY, f"{entry}-{own.ot}" if own.ot else entry), *others])
    return SpanContext(foreign.trace_id, foreign.span_id, foreign.is_remote, foreign.trace_flags, state)


@contextmanager
def extract(carrier: Mapping[str, str]) -> Iterator[None]:
    """Continue the trace of a carrier in spans that start inside the block.

    The carrier is the dict of `inject()` or the headers of a request.
    """
    # create the runtime now, so that threads that start inside the block before any span inherit the context
    get_runtime()
    token = trace_context.attach(_make_incoming_context(carrier, trace_context.get_live_context()))
    try:
        yield
    finally:
        trace_context.detach(token)


def _make_incoming_context(carrier: Mapping[str, str], ctx: Context) -> Context:
    with error_boundary("extract"):
        headers = {str(k).lower(): str(v) for k, v in carrier.items()}
        bare = Context({k: v for k, v in ctx.items() if k not in (trace_context.OWN_KEY, trace_context.OTEL_KEY)})
        incoming = trace_context.with_private_baggage(
            _BAGGAGE_PROPAGATOR.extract(headers, _TRACE_CONTEXT_PROPAGATOR.extract(headers, bare))
        )
        return trace_context.with_value(
            incoming, trace_context.AMBIENT_KEY, read_baggage_attributes(baggage.get_all(incoming)) or None
        )
    return ctx


class carry(Generic[P, R]):
    """Picklable callable that runs a function in another process as part of the current run.

    Pickling the callable counts as an outgoing call, each time.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        self._function = function
        self._carrier: dict[str, str] = {}
        self._local: LocalTrace | None = None
        with error_boundary("inject"):
            ctx = trace_context.get_live_context()
            _write_headers(self._carrier, ctx)
            self._local = _find_local_trace(ctx)
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function inside `extract(…)`. A coroutine also runs inside it."""
        if inspect.iscoroutinefunction(self._function):
            return cast(R, self._awaited(*args, **kwargs))
        with extract(self._carrier):
            return self._function(*args, **kwargs)

    async def _awaited(self, *args: Any, **kwargs: Any) -> Any:
        with extract(self._carrier):
            return await cast(Any, self._function(*args, **kwargs))

    def __getstate__(self) -> dict[str, Any]:
        if self._local is not None:
            count_sent(self._local)
        return {"_function": self._function, "_carrier": self._carrier, "_local": None}
