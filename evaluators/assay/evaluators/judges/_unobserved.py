"""Calls to judges that nobody's instrumentation sees: judgements that are traced and judged in turn have no end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unobserved() -> Iterator[None]:
    """OpenTelemetry's mark for "make no spans here", for clients of models and for HTTP."""
    from opentelemetry.instrumentation.utils import suppress_http_instrumentation, suppress_instrumentation

    with suppress_instrumentation(), suppress_http_instrumentation():
        yield
