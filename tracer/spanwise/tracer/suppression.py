"""Suppression of instrumentation around our own HTTP requests: they must not create traces in the store they go to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import context

__all__ = ["suppress_instrumentation"]

# As in `opentelemetry.instrumentation.utils`, which the core install lacks. Older instrumentations read the last key.
_KEYS = (
    context._SUPPRESS_INSTRUMENTATION_KEY,
    context._SUPPRESS_HTTP_INSTRUMENTATION_KEY,
    "suppress_instrumentation",
)


@contextmanager
def suppress_instrumentation() -> Iterator[None]:
    """Ask OpenTelemetry instrumentations of HTTP and model clients to make no spans and send no context inside."""
    marked = context.get_current()
    for key in _KEYS:
        marked = context.set_value(key, True, marked)
    token = context.attach(marked)
    try:
        yield
    finally:
        context.detach(token)
