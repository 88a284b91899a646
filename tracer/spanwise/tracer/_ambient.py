"""Session, user and tags for all spans below, in this process and (as W3C baggage) in those that we call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from secrets import randbits
from typing import Any
from urllib.parse import quote

from opentelemetry import baggage
from opentelemetry import trace as otel
from opentelemetry.context.context import Context

from spanwise.tracer import _context
from spanwise.tracer import attributes as names
from spanwise.tracer._errors import ours
from spanwise.tracer._runtime import current
from spanwise.tracer._span import span_context

_MOST_BAGGAGE = 4_000  # characters of an entry in a header; receivers ignore longer ones
_MARK = {names.MONITOR: True}


@contextmanager
def session(id: str | None) -> Iterator[None]:
    """All spans started inside belong to this conversation; None changes nothing. Also usable as a decorator."""
    with _below({} if id is None else {names.SESSION: _encodable(id)}):
        yield


@contextmanager
def user(id: str | None) -> Iterator[None]:
    """All spans started inside belong to this user; None changes nothing. Also usable as a decorator."""
    with _below({} if id is None else {names.USER: _encodable(id)}):
        yield


@contextmanager
def tags(*tags: str) -> Iterator[None]:
    """All spans started inside get these tags, besides those of outer `tags(…)`. Also usable as a decorator."""
    outer = _context.ambient(_context.live()).get(names.TAGS, ())
    with _below({names.TAGS: tuple(dict.fromkeys((*outer, *map(_encodable, tags))))}):
        yield


@contextmanager
def _below(attributes: dict[str, Any]) -> Iterator[None]:
    current()  # threads started inside, before any span, are to get the context too
    token = _context.attach(_context_with(attributes))
    try:
        yield
    finally:
        _context.detach(token)


@contextmanager
def marked() -> Iterator[None]:
    """All spans started inside, in this process and in those that we call, are a monitor's: no rule looks at them.

    Those of other providers, too: where nothing is current they begin below a span that nobody records, and whose
    tracestate says so.
    """
    with _below(_MARK):
        if otel.get_current_span().get_span_context().is_valid:
            yield
            return
        place = span_context(randbits(128) or 1, randbits(64) or 1, remote=True, marked=True)
        with otel.use_span(otel.NonRecordingSpan(place)):
            yield


def apart() -> Context:
    """A context with nothing in it, but for the mark of a monitor where there is one."""
    is_marked = names.MONITOR in _context.ambient(_context.get_current())
    return _context_with(_MARK, Context()) if is_marked else Context()


def _context_with(attributes: dict[str, Any], ctx: Context | None = None) -> Context:
    ctx = _context.live() if ctx is None else ctx
    new = _context.with_value(ctx, _context.AMBIENT_KEY, {**_context.ambient(ctx), **attributes})
    with ours("baggage"):
        for key, value in attributes.items():
            name, text = _context.BAGGAGE[key], _text(value)
            fits = len(text) * 3 <= _MOST_BAGGAGE or len(quote(text)) <= _MOST_BAGGAGE
            new = baggage.set_baggage(name, text, new) if fits else baggage.remove_baggage(name, new)
    return _context.with_private_baggage(new)


def _text(value: Any) -> str:
    return ";".join(quote(t, safe="") for t in value) if isinstance(value, tuple) else str(value)


def _encodable(value: object) -> str:
    """The text of an id or a tag; what UTF-8 cannot encode, half of an emoji, is replaced."""
    text = str(value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
