"""A trace across processes: W3C traceparent, tracestate and baggage in a dict that travels with the work.

headers = inject()                       # in the caller
with extract(headers): work()            # in the other process
executor.submit(carry(work), 1)          # both at once, for ProcessPoolExecutor and multiprocessing
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, Generic, ParamSpec, TypeVar, cast

from opentelemetry import baggage
from opentelemetry import trace as otel
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.trace.span import TraceState

from spanwise.tracer import _context
from spanwise.tracer._context import Remote, from_baggage
from spanwise.tracer._errors import ours
from spanwise.tracer._runtime import current
from spanwise.tracer._span import VENDOR, LiveSpan, Local, count_sent, entry, open_local, span_context

P = ParamSpec("P")
R = TypeVar("R")

_TRACE, _BAGGAGE = TraceContextTextMapPropagator(), W3CBaggagePropagator()


def inject(carrier: MutableMapping[str, str] | None = None) -> MutableMapping[str, str]:
    """Put the current run, session, user and tags into a carrier (a new dict, or headers) and return it.

    Inside an application that another OpenTelemetry set-up traces, `traceparent` stays the one of that set-up; our ids
    travel in `tracestate`.
    """
    headers: MutableMapping[str, str] = {} if carrier is None else carrier
    with ours("inject"):
        ctx = _context.live()
        _write(headers, ctx)
        if (local := _local(ctx)) is not None:
            count_sent(local)
    return headers


def _write(headers: MutableMapping[str, str], ctx: Context) -> None:
    context = _outgoing(ctx)
    if context is not None:
        _TRACE.inject(headers, otel.set_span_in_context(NonRecordingSpan(context), Context()))
    _BAGGAGE.inject(headers, _context.with_open_baggage(ctx))


def _local(ctx: Context) -> Local | None:
    """This process's part of the trace that a call goes out from."""
    own = _context.parent(ctx)
    if isinstance(own, LiveSpan):
        return own.local
    joined = otel.get_current_span(ctx).get_span_context() if own is None and current().joined else None
    return open_local(joined.trace_id) if joined is not None else None


def _outgoing(ctx: Context) -> SpanContext | None:
    own = _context.parent(ctx)
    if own is None:
        return _context.foreign(ctx)
    if isinstance(own, LiveSpan):
        own = Remote(own.local.trace_id, own.span_id, own.local.sampled, own.local.ot, own.marked)
    foreign = _context.foreign(ctx)
    if foreign is None:
        return span_context(own.trace_id, own.span_id, sampled=own.sampled, ot=own.ot, marked=own.marked)
    return _with_entry(foreign, own)


def _with_entry(context: SpanContext, own: Remote) -> SpanContext:
    """A foreign context beside which ours travels. The member `ot` there is that of the foreign trace."""
    others = [(k, v) for k, v in context.trace_state.items() if k != VENDOR]
    ours = entry(own.trace_id, own.span_id, own.sampled, own.marked) + (f"-{own.ot}" if own.ot else "")
    state = TraceState([(VENDOR, ours), *others])
    return SpanContext(context.trace_id, context.span_id, context.is_remote, context.trace_flags, state)


@contextmanager
def extract(carrier: Mapping[str, str]) -> Iterator[None]:
    """What starts inside continues the trace in the carrier: `inject()`'s dict, or the headers of a request."""
    current()  # threads started inside, before any span, are to get the context too
    token = _context.attach(_incoming(carrier, _context.live()))
    try:
        yield
    finally:
        _context.detach(token)


def _incoming(carrier: Mapping[str, str], ctx: Context) -> Context:
    with ours("extract"):
        headers = {str(k).lower(): str(v) for k, v in carrier.items()}
        bare = Context({k: v for k, v in ctx.items() if k not in (_context.OWN_KEY, _context.OTEL_KEY)})
        incoming = _context.with_private_baggage(_BAGGAGE.extract(headers, _TRACE.extract(headers, bare)))
        return _context.with_value(incoming, _context.AMBIENT_KEY, from_baggage(baggage.get_all(incoming)) or None)
    return ctx


class carry(Generic[P, R]):
    """A picklable callable that runs a function in another process as part of the run that is current now.

    Each time that it is pickled counts as a call sent out.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        self._function = function
        self._carrier: dict[str, str] = {}
        self._local: Local | None = None
        with ours("inject"):
            ctx = _context.live()
            _write(self._carrier, ctx)
            self._local = _local(ctx)
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function inside `extract(…)`; a coroutine runs inside as well."""
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
