"""In-memory capture of one trace, for experiments and judges.

with capture("example") as captured:
    task(...)
spans, still_open = captured.spans()
"""

from __future__ import annotations

import asyncio
import functools
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.context.context import Context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from spanwise.tracer import internal_errors
from spanwise.tracer.configuration import DEFAULT_URL
from spanwise.tracer.decorator import TRACED_MARK
from spanwise.tracer.export.delivery_lifecycle import Delivery
from spanwise.tracer.export.span_encoding import FeedbackEvent
from spanwise.tracer.otel import trace_context
from spanwise.tracer.otel.live_span import LiveSpan, is_cancellation, sync_account
from spanwise.tracer.process_runtime import Runtime, get_runtime
from spanwise.tracer.run_recording import Run, build_initial_attributes

__all__ = ["Captured", "FeedbackEvent", "capture", "has_collector", "is_traced", "is_wrapped"]

PROBE_INTERVAL = 5.0  # seconds for which the result of a probe is reused
_condition_lock = threading.Lock()  # guards the creation of `_change`
_last_probe: tuple[float, bool] = (-PROBE_INTERVAL, False)


class Captured:
    """The spans and feedback of one captured trace."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._ended: list[ReadableSpan] = []
        self._feedback: list[FeedbackEvent] = []
        self._change: threading.Condition | None = None  # created by the first waiter: most captures do not need it
        self._root: LiveSpan | None = None
        self.run: Run
        self.trace_id = ""  # 32 hex digits

    @property
    def feedback(self) -> list[FeedbackEvent]:
        """Return the feedback that `current_run().feedback(…)` has attached to runs of this trace so far."""
        return [self._runtime.delivery.finisher.feedback(event) for event in tuple(self._feedback)]

    def spans(self, timeout: float = 1.0) -> tuple[list[ReadableSpan], int]:
        """Return the ended spans, and the number of spans that are still open after at most `timeout` seconds."""
        if self._count_open():
            with _condition_lock:
                change = self._change = self._change or threading.Condition()
            with change:
                change.wait_for(lambda: self._count_open() == 0, timeout)
        return self._get_spans()

    async def aspans(self, timeout: float = 1.0) -> tuple[list[ReadableSpan], int]:  # noqa: ASYNC109
        """Return the same as `spans`, without blocking the event loop."""
        if self._count_open():
            return await asyncio.to_thread(self.spans, timeout)
        return self._get_spans()

    def deliver(self) -> None:
        """Deliver all spans and feedback of the trace like other spans of this process. This includes spans that end
        later.
        """
        put = self._runtime.delivery.put
        if self._root is not None:
            self._root.local.sink, self._root.local.account = put, self._runtime.delivery.account
            sync_account(self._root.local)
            self._runtime.spans.captures.pop(self._root.local.trace_id, None)
        for kept in (self._ended, self._feedback):
            while kept:
                put(kept.pop(0))

    def add_span(self, span: ReadableSpan) -> None:
        """Store an ended span (called by the tracer)."""
        self._ended.append(span)
        change = self._change
        if change is not None:
            with change:
                change.notify_all()

    def add_feedback(self, event: FeedbackEvent) -> None:
        """Store a feedback event (called by the tracer)."""
        self._feedback.append(event)

    def _count_open(self) -> int:
        return self._root.local.open if self._root is not None else 0

    def _get_spans(self) -> tuple[list[ReadableSpan], int]:
        finish = self._runtime.delivery.finisher.span
        return [f for f in map(finish, tuple(self._ended)) if f is not None], self._count_open()


def has_collector() -> bool:
    """Return whether this process has a collector: one is configured, or a server listens at the default address."""
    global _last_probe
    runtime = get_runtime()
    settings = runtime.settings
    if type(runtime.delivery) is not Delivery or settings.url != DEFAULT_URL or settings.traces_url is not None:
        return True
    now = time.monotonic()
    if now - _last_probe[0] >= PROBE_INTERVAL:
        parts = urlsplit(settings.url)
        try:
            with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=0.2):
                _last_probe = now, True
        except OSError:
            _last_probe = now, False
    return _last_probe[1]


@contextmanager
def capture(
    name: str, *, kind: str = "chain", inputs: object = None, attributes: Mapping[str, Any] | None = None
) -> Iterator[Captured]:
    """Open the root span of a new trace, independent of the current span, and keep all its spans in this process.

    The spans are redacted but not delivered. Head sampling does not apply. With `capture="none"`, only the root span
    exists. An exception is recorded on the root span and propagates.
    """
    runtime = get_runtime()
    captured = Captured(runtime)
    span = runtime.captured_root(name, build_initial_attributes(kind, (), None, attributes), captured)
    captured._root, captured.run = span, Run(span, runtime)
    captured.trace_id = captured.run.trace_id
    if inputs is not None:
        captured.run.set_inputs(inputs)
    # Remove a hidden span of Spanwise from the context. The new root span replaces any other current span
    ctx = Context({k: v for k, v in trace_context.get_current().items() if k != trace_context.OWN_KEY})
    token = trace_context.attach(trace_context.with_span(ctx, span, hidden=False))
    try:
        yield captured
    except BaseException as error:
        # the captured code should have returned a value, so a cancellation is a failure, too
        if is_cancellation(error):
            span.set_status(StatusCode.ERROR, internal_errors.describe_error(error))
        else:
            span.fail(error)
        raise
    finally:
        trace_context.detach(token)
        span.end()


def is_traced(function: Any) -> bool:
    """Return whether a call of the function opens a span, because the function is decorated with `@trace`.

    Finds `@trace` below partials, methods, callable objects and other decorators that use `functools.wraps`.
    """
    return any(hasattr(bearer, TRACED_MARK) for bearer in _find_mark_bearers(function))


def is_wrapped(function: Any) -> bool:
    """Return whether another decorator wraps a function decorated with `@trace`. It may change the return value."""
    return is_traced(function) and not any(
        getattr(bearer, TRACED_MARK, None) is bearer for bearer in _find_mark_bearers(function)
    )


def _find_mark_bearers(function: Any) -> tuple[Any, Any]:
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return function, type(function).__call__
