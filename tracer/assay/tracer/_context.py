"""Whose child a new span is, and how it becomes the current one.

A current OpenTelemetry span that is not ours is never our parent: we start a local root and link to it. And we do not
become the parent of foreign spans: where another OpenTelemetry set-up is active, our current span is kept under a key
of our own, so that its traces stay as they would be without us.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Token
from typing import Any, NamedTuple
from urllib.parse import unquote

from opentelemetry import context as otel_context
from opentelemetry import trace as otel
from opentelemetry.context.context import Context
from opentelemetry.trace import SpanContext

from assay.tracer import attributes as names
from assay.tracer._sampling import KEY
from assay.tracer._span import MARKED, SAMPLED, VENDOR, LiveSpan

# OpenTelemetry makes its key at import; the public way to learn it is to set a span in an empty context.
OTEL_KEY: str = next(iter(otel.set_span_in_context(otel.INVALID_SPAN, Context())))
OWN_KEY = otel_context.create_key("assay-span")
BAGGAGE = {
    names.SESSION: "assay.session",
    names.USER: "assay.user",
    names.TAGS: "assay.tags",
    names.MONITOR: names.MONITOR,
}
AMBIENT_KEY = otel_context.create_key("assay-ambient")  # attributes for all spans below: session, user, tags

# The variable behind OpenTelemetry's context, learnt in the same way: it is three times as fast as the functions.
_token = otel_context.attach(otel_context.get_current())
_variable = _token.var
_variable.reset(_token)
get_current = _variable.get
attach = _variable.set
reset = _variable.reset


class Remote(NamedTuple):
    """A parent of ours in another process, or in this one behind a span that is not ours."""

    trace_id: int
    span_id: int
    sampled: bool
    ot: str = ""  # OpenTelemetry's member of the tracestate
    marked: bool = False  # a monitor's


class Hidden(NamedTuple):
    """A current span of ours beside a foreign one; `outer` is OpenTelemetry's current span when ours became current."""

    span: LiveSpan
    outer: object


def parent(ctx: Context) -> LiveSpan | Remote | None:
    """The nearest span of ours in a context."""
    other = ctx.get(OTEL_KEY)
    if isinstance(other, LiveSpan):
        return other
    remote = _entry(other.get_span_context()) if isinstance(other, otel.Span) else None
    own = ctx.get(OWN_KEY)
    if not isinstance(own, Hidden):
        return remote
    # A foreign span that was started after ours may be the child of a deeper one of ours: its tracestate says so.
    newer = other is not own.outer and remote is not None and remote.trace_id == own.span.local.trace_id
    return remote if newer else own.span


def foreign(ctx: Context) -> SpanContext | None:
    """The context of a current span that is not ours."""
    other = ctx.get(OTEL_KEY)
    if not isinstance(other, otel.Span) or isinstance(other, LiveSpan):
        return None
    context = other.get_span_context()
    entry = _entry(context)
    is_ours = entry is not None and entry[:2] == (context.trace_id, context.span_id)  # our span in another process
    return context if context.is_valid and not is_ours else None


def _entry(context: SpanContext) -> Remote | None:
    state = context.trace_state
    remote = parse_entry(state[VENDOR]) if state and VENDOR in state else None
    if remote is not None and remote[:2] == (context.trace_id, context.span_id):  # else `ot` is that of a foreign trace
        return remote._replace(ot=state.get(KEY, ""))
    return remote


def parse_entry(text: str) -> Remote | None:
    """Our tracestate entry, `trace id-span id-flags` in hex, and `-ot` inside a foreign trace; None if malformed."""
    head, ot = text.split("-", 3)[:3], "".join(text.split("-", 3)[3:])
    try:
        trace_id, span_id, flags = (int(part, 16) for part in head)
    except ValueError:
        return None
    return Remote(trace_id, span_id, bool(flags & SAMPLED), ot, bool(flags & MARKED)) if trace_id and span_id else None


def with_span(ctx: Context, span: LiveSpan, hidden: bool) -> Context:
    """A context in which the span is the current one."""
    new = Context(ctx)
    if hidden:
        dict.__setitem__(new, OWN_KEY, Hidden(span, ctx.get(OTEL_KEY)))
    else:
        dict.__setitem__(new, OTEL_KEY, span)
    return new


def with_value(ctx: Context, key: str, value: object) -> Context:
    """A context with one more entry."""
    return otel_context.set_value(key, value, ctx)


def ambient(ctx: Context) -> Mapping[str, Any]:
    """Attributes that every span started in this context gets."""
    attributes = ctx.get(AMBIENT_KEY)
    return attributes if isinstance(attributes, dict) else {}


def from_baggage(entries: Mapping[str, object]) -> dict[str, Any]:
    """Attributes that a calling process of ours sent along."""
    attributes: dict[str, Any] = {key: str(entries[name]) for key, name in BAGGAGE.items() if name in entries}
    tags = attributes.pop(names.TAGS, "")
    if names.MONITOR in attributes:
        attributes[names.MONITOR] = True
    return {**attributes, names.TAGS: tuple(unquote(t) for t in tags.split(";"))} if tags else dict(attributes)


def detach(token: Token[Context]) -> None:
    """Give back the context that was current. A generator may be resumed elsewhere, where its token does not count."""
    try:
        _variable.reset(token)
    except ValueError:
        previous = token.old_value
        _variable.set(previous if isinstance(previous, Context) else Context())
