"""Calls to models that nobody's instrumentation sees: judgements that are traced and judged in turn have no end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import context

# As in `opentelemetry.instrumentation.utils`; the last is for instrumentations from before there was a key.
_MARKS = (
    context._SUPPRESS_INSTRUMENTATION_KEY,
    context._SUPPRESS_HTTP_INSTRUMENTATION_KEY,
    "suppress_instrumentation",
)


@contextmanager
def unobserved() -> Iterator[None]:
    """OpenTelemetry's mark for "make no spans here", for clients of models and for HTTP."""
    marked = context.get_current()
    for key in _MARKS:
        marked = context.set_value(key, True, marked)
    token = context.attach(marked)
    try:
        yield
    finally:
        context.detach(token)
