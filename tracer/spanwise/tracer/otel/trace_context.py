"""Trace context: parent lookup, current span, private baggage, tracestate entry, and inheritance by threads.

A current OpenTelemetry span of another provider is never the parent of a Spanwise span. Spanwise starts a local root
that links to it. A Spanwise span also never becomes the parent of foreign spans. If another OpenTelemetry set-up is
active, Spanwise stores its current span under its own context key, so that the other set-up's traces do not change.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import Token
from typing import Any, NamedTuple
from urllib.parse import unquote

from opentelemetry import baggage
from opentelemetry import context as otel_context
from opentelemetry import trace as otel
from opentelemetry.context.context import Context
from opentelemetry.trace import SpanContext

from spanwise.tracer import attribute_names as names
from spanwise.tracer.http_connections import is_propagation_target
from spanwise.tracer.otel.live_span import (
    MONITOR_FLAG,
    OUTGOING_KINDS,
    SAMPLED_FLAG,
    TRACESTATE_KEY,
    VENDOR_KEY,
    Clock,
    LiveSpan,
    LocalTrace,
    make_span_context,
)

# Trace context: parent lookup, current span, private baggage and the vendor's tracestate entry.

# OpenTelemetry creates its key at import. The public way to find the key is to set a span in an empty context.
OTEL_KEY: str = next(iter(otel.set_span_in_context(otel.INVALID_SPAN, Context())))
OWN_KEY = otel_context.create_key("spanwise-span")
BAGGAGE = {
    names.SESSION: "spanwise.session",
    names.USER: "spanwise.user",
    names.TAGS: "spanwise.tags",
    names.MONITOR: names.MONITOR,
}
# Found like `OTEL_KEY`. `PRIVATE_ENTRIES` are sent only to destinations that take part in tracing.
BAGGAGE_KEY: str = next(iter(baggage.set_baggage("key", "value", Context())))
PRIVATE_ENTRIES = frozenset((BAGGAGE[names.SESSION], BAGGAGE[names.USER], BAGGAGE[names.TAGS]))
# attributes for all spans that start in the context: session, user, tags
AMBIENT_KEY = otel_context.create_key("spanwise-ambient")
# span context to which a trace that starts in the context links
ORIGIN_KEY = otel_context.create_key("spanwise-origin")
KEPT_PARENT_KEY = otel_context.create_key("spanwise-kept")  # ended span that remains the parent for a queued pool task

# OpenTelemetry's context variable, found in the same way. Using it directly is three times as fast as OpenTelemetry's
# functions.
_token = otel_context.attach(otel_context.get_current())
_variable = _token.var
_variable.reset(_token)
get_current = _variable.get
attach = _variable.set
reset = _variable.reset


class PrivateBaggage(dict[str, object]):
    """Baggage that hides session, user and tags from iteration, unless the current span calls a host that takes part in
    tracing.

    Propagators iterate over the entries after an instrumentation has started the span of a call. A lookup by name
    finds all entries.
    """

    def copy(self) -> PrivateBaggage:
        """Return a copy that has all entries and hides the same ones."""
        return PrivateBaggage(dict.items(self))

    def items(self) -> Any:
        """Return the entries that may be sent now."""
        return self._visible().items()

    def keys(self) -> Any:
        """Return the names of the entries that may be sent now."""
        return self._visible().keys()

    def values(self) -> Any:
        """Return the values of the entries that may be sent now."""
        return self._visible().values()

    def __iter__(self) -> Iterator[str]:
        return iter(self._visible())

    def __len__(self) -> int:
        return len(self._visible())

    def _visible(self) -> dict[str, object]:
        entries = dict(dict.items(self))
        span = get_current().get(OTEL_KEY)
        # the private attribute of SDK spans, too, because their property copies the attributes
        attributes = getattr(span, "_attributes", None)
        is_outgoing = getattr(span, "kind", None) in OUTGOING_KINDS
        if not is_outgoing or attributes is None or not is_propagation_target(attributes):
            for name in PRIVATE_ENTRIES:
                entries.pop(name, None)
        return entries


def with_private_baggage(ctx: Context) -> Context:
    """Return a context whose baggage hides session, user and tags from hosts that do not take part in tracing."""
    entries = ctx.get(BAGGAGE_KEY)
    if type(entries) is not dict or PRIVATE_ENTRIES.isdisjoint(entries):
        return ctx
    return with_value(ctx, BAGGAGE_KEY, PrivateBaggage(entries))


def with_public_baggage(ctx: Context) -> Context:
    """Return a context whose baggage hides no entries, for `inject` and `carry`."""
    entries = ctx.get(BAGGAGE_KEY)
    return with_value(ctx, BAGGAGE_KEY, dict(dict.items(entries))) if isinstance(entries, PrivateBaggage) else ctx


class RemoteParent(NamedTuple):
    """Spanwise parent span that is known only by its ids: it is in another process, or behind a foreign span of this
    process.
    """

    trace_id: int
    span_id: int
    sampled: bool
    ot: str = ""  # OpenTelemetry's member of the tracestate
    marked: bool = False  # True for a span of a monitor


class HiddenSpan(NamedTuple):
    """Current Spanwise span in a context whose OpenTelemetry span is foreign.

    The field `outer` is the span that was OpenTelemetry's current span when the Spanwise span became current.
    """

    span: LiveSpan
    outer: object


def find_parent(ctx: Context) -> LiveSpan | RemoteParent | None:
    """Return the nearest Spanwise span in a context."""
    other = ctx.get(OTEL_KEY)
    if isinstance(other, LiveSpan):
        return other
    remote = _parse_context_entry(other.get_span_context()) if isinstance(other, otel.Span) else None
    own = ctx.get(OWN_KEY)
    if not isinstance(own, HiddenSpan):
        return remote
    # A foreign span that started later may be the child of a deeper Spanwise span. Its tracestate then contains that
    # span.
    newer = other is not own.outer and remote is not None and remote.trace_id == own.span.local.trace_id
    return remote if newer else own.span


def find_foreign_context(ctx: Context) -> SpanContext | None:
    """Return the span context of OpenTelemetry's current span if that is not a Spanwise span, else None."""
    other = ctx.get(OTEL_KEY)
    if not isinstance(other, otel.Span) or isinstance(other, LiveSpan):
        return None
    context = other.get_span_context()
    entry = _parse_context_entry(context)
    # true for a Spanwise span in another process
    is_ours = entry is not None and entry[:2] == (context.trace_id, context.span_id)
    return context if context.is_valid and not is_ours else None


def _parse_context_entry(context: SpanContext) -> RemoteParent | None:
    state = context.trace_state
    remote = parse_tracestate_entry(state[VENDOR_KEY]) if state and VENDOR_KEY in state else None
    # `ot` belongs to the Spanwise trace only if both ids are those of the span; otherwise it is that of a foreign
    # trace
    if remote is not None and remote[:2] == (context.trace_id, context.span_id):
        return remote._replace(ot=state.get(TRACESTATE_KEY, ""))
    return remote


def parse_tracestate_entry(text: str) -> RemoteParent | None:
    """Parse Spanwise's tracestate entry. Return None if it is malformed.

    The format is `trace id-span id-flags` in hex, followed by `-ot` inside a foreign trace.
    """
    head, ot = text.split("-", 3)[:3], "".join(text.split("-", 3)[3:])
    try:
        trace_id, span_id, flags = (int(part, 16) for part in head)
    except ValueError:
        return None
    return (
        RemoteParent(trace_id, span_id, bool(flags & SAMPLED_FLAG), ot, bool(flags & MONITOR_FLAG))
        if trace_id and span_id
        else None
    )


def get_live_context() -> Context:
    """Return the current context. If it belongs to a request that has ended, replace it by a context without that
    request.

    A thread or an asyncio task keeps the context that it was started with. After the root of that trace has ended,
    the next span of the thread or task starts a new trace. The new trace links to the original span and does not have
    the session, user and tags of the ended request. The mark of a monitor is kept. The new context becomes the
    current one.

    The same applies to a forked worker of a process pool, which inherits the context of the first task's submitter.
    """
    ctx = get_current()
    ended = _find_ended_parent(ctx)
    if ended is None:
        return ctx
    # remove the spans of Spanwise
    new = Context(
        {
            key: value
            for key, value in ctx.items()
            if key != OWN_KEY and (key != OTEL_KEY or _get_span_local_trace(value) is None)
        }
    )
    is_marked = names.MONITOR in get_ambient_attributes(ctx)
    if ctx.get(AMBIENT_KEY) is not None:
        new = with_value(new, AMBIENT_KEY, {names.MONITOR: True} if is_marked else None)
    for key, name in BAGGAGE.items():
        if key != names.MONITOR:
            new = baggage.remove_baggage(name, new)
    new = with_value(new, ORIGIN_KEY, ended)
    attach(new)
    return new


def has_trace_ended(ctx: Context) -> bool:
    """Return whether the trace that a context belongs to has ended in this process."""
    return _find_ended_parent(ctx) is not None


def with_kept_parent(ctx: Context) -> Context:
    """Return a context in which the current span remains a valid parent although its trace has ended."""
    return with_value(ctx, KEPT_PARENT_KEY, ctx.get(OWN_KEY) or ctx.get(OTEL_KEY))


def without_kept_parent(ctx: Context) -> Context:
    """Return the context without the effect of `with_kept_parent`, for a thread that may outlive the pool task starting
    it.
    """
    return with_value(ctx, KEPT_PARENT_KEY, None) if ctx.get(KEPT_PARENT_KEY) is not None else ctx


def _find_ended_parent(ctx: Context) -> SpanContext | None:
    """Return the parent in a context if it has ended together with its local root, or None if it is still valid."""
    current = ctx.get(OWN_KEY) or ctx.get(OTEL_KEY)
    span = current.span if isinstance(current, HiddenSpan) else current
    local = _get_span_local_trace(span)
    if local is None or ctx.get(KEPT_PARENT_KEY) is current:
        return None
    assert isinstance(span, otel.Span)
    if local.epoch != Clock.epoch:
        has_ended = _is_pool_worker()
    else:
        is_captured = local.account is None and local.undecided is None  # spans of a captured trace may end at any time
        has_ended = local.closed and not span.is_recording() and not is_captured
    return make_span_context(local.trace_id, span.get_span_context().span_id) if has_ended else None


def _is_pool_worker() -> bool:
    """Return whether this process is a worker of a process pool."""
    processes = sys.modules.get("multiprocessing.process")
    target = getattr(processes.current_process(), "_target", None) if processes is not None else None
    return getattr(target, "__module__", None) in ("concurrent.futures.process", "multiprocessing.pool")


def _get_span_local_trace(span: object) -> LocalTrace | None:
    if isinstance(span, LiveSpan):
        return span.local
    joined: LocalTrace | None = getattr(span, "_spanwise_local", None)  # a span of a joined provider
    return joined


def with_span(ctx: Context, span: LiveSpan, hidden: bool) -> Context:
    """Return a context in which the span is current."""
    new = Context(ctx)
    if hidden:
        dict.__setitem__(new, OWN_KEY, HiddenSpan(span, ctx.get(OTEL_KEY)))
    else:
        dict.__setitem__(new, OTEL_KEY, span)
    return new


def with_value(ctx: Context, key: str, value: object) -> Context:
    """Return a context with one more entry."""
    return otel_context.set_value(key, value, ctx)


def get_ambient_attributes(ctx: Context) -> Mapping[str, Any]:
    """Return the attributes that every span started in this context gets."""
    attributes = ctx.get(AMBIENT_KEY)
    return attributes if isinstance(attributes, dict) else {}


def read_baggage_attributes(entries: Mapping[str, object]) -> dict[str, Any]:
    """Return the attributes that a calling Spanwise process has sent as baggage."""
    attributes: dict[str, Any] = {key: str(entries[name]) for key, name in BAGGAGE.items() if name in entries}
    tags = attributes.pop(names.TAGS, "")
    if names.MONITOR in attributes:
        attributes[names.MONITOR] = True
    return {**attributes, names.TAGS: tuple(unquote(t) for t in tags.split(";"))} if tags else dict(attributes)


def detach(token: Token[Context]) -> None:
    """Restore the context that was current before.

    A generator may be resumed in another context, for which its token is invalid. In that case, the context stored in
    the token becomes current.
    """
    try:
        _variable.reset(token)
    except ValueError:
        previous = token.old_value
        _variable.set(previous if isinstance(previous, Context) else Context())


# Context inheritance by threads, timers and tasks of thread pools.
#
# - A thread runs in the context of the code that started it. The threads of a pool run in an empty context, because they
#   outlive the code that created the pool.
# - A task of a `ThreadPoolExecutor` or a `multiprocessing.pool.ThreadPool` runs in the context of the code that submitted
#   it, even if the run that was current there has ended before the task begins.
# - `trace_context.get_live_context` decides, when a span starts, if an inherited context still applies.
#
# The methods are wrapped on the class. Other wrappers of the same methods keep working, inside or outside of
# Spanwise's.

_POOL_MODULES = ("concurrent.futures.thread", "concurrent.futures.process", "multiprocessing.pool")
# methods that submit tasks; all other ones call one of these
_THREAD_POOL_METHODS = ("apply_async", "_map_async", "imap", "imap_unordered")
_patch_lock = threading.Lock()
_on = False
_originals: dict[tuple[type, str], tuple[Any, Any]] = {}  # by class and method: the original and the wrapper


def patch_thread_methods() -> None:
    """Wrap the methods that start threads and submit tasks. A second call does nothing."""
    global _on
    if _on:
        return
    from concurrent.futures import ThreadPoolExecutor

    with _patch_lock:
        _on = True
        _wrap_method(threading.Thread, "start", _wrap_start)
        _wrap_method(ThreadPoolExecutor, "submit", _wrap_submit)
    _wrap_thread_pool()


def restore_thread_methods() -> None:
    """Restore the original methods.

    If another library has wrapped Spanwise's wrapper, the wrapper stays in place and does nothing.
    """
    global _on
    with _patch_lock:
        _on = False
        for (owner, name), (original, wrapper) in tuple(_originals.items()):
            if owner.__dict__.get(name) is wrapper:
                if original is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, original)
                del _originals[owner, name]


def _wrap_method(owner: type, name: str, make: Callable[[Any], Any]) -> None:
    if (owner, name) not in _originals:
        # None if the method is inherited. The wrapper calls the method found through the class: the original may be a
        # descriptor
        original = owner.__dict__.get(name)
        inner = getattr(owner, name)
        wrapper = functools.wraps(inner)(make(inner))
        _originals[owner, name] = original, wrapper
        setattr(owner, name, wrapper)


def _wrap_thread_pool() -> None:
    """Wrap `multiprocessing.pool.ThreadPool` if the application has imported it. The import would take 30 ms."""
    if (module := sys.modules.get("multiprocessing.pool")) is not None and hasattr(module, "ThreadPool"):
        with _patch_lock:
            for name in _THREAD_POOL_METHODS if _on else ():
                _wrap_method(module.ThreadPool, name, _wrap_apply)


def _wrap_start(original: Any) -> Any:
    def start(self: threading.Thread, *args: Any, **kwargs: Any) -> Any:
        if _on:
            target = getattr(self, "_target", None)
            if getattr(target, "__module__", None) in _POOL_MODULES or type(self).__module__ in _POOL_MODULES:
                _wrap_thread_pool()
            elif context := get_live_context():
                _run_in_context(self, [without_kept_parent(context)])
        return original(self, *args, **kwargs)

    return start


def _run_in_context(thread: Any, contexts: list[Any]) -> None:
    """Make a thread run in a context. The thread releases its reference to the context when it starts."""
    before, inner = thread.__dict__.get("run"), thread.run

    def run() -> None:
        if before is None:
            del thread.run
        else:
            thread.run = before
        token = attach(contexts.pop())
        try:
            inner()
        finally:
            detach(token)

    thread.run = run


def _wrap_submit(original: Any) -> Any:
    def submit(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        context = get_live_context() if _on else None
        if context:
            fn = functools.partial(_call_in_context, context, fn)
        return original(self, fn, *args, **kwargs)

    return submit


def _wrap_apply(original: Any) -> Any:
    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        context = get_live_context() if _on else None
        if context and args:
            args = (functools.partial(_call_in_context, context, args[0]), *args[1:])
        elif context and "func" in kwargs:
            kwargs["func"] = functools.partial(_call_in_context, context, kwargs["func"])
        return original(self, *args, **kwargs)

    return apply


def _call_in_context(context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    token = attach(with_kept_parent(context) if has_trace_ended(context) else context)
    try:
        return function(*args, **kwargs)
    finally:
        detach(token)
