"""OpenTelemetry span exporters of the application, each with a thread and a bounded queue.

The delivery thread passes sanitized spans to every exporter. An exporter that raises, fails or hangs affects neither
the application nor the other exporters. Its spans are dropped and counted: `exporter_failed` (it raised, or did not
report success), `exporter_full` (it is too slow for its queue) or `exporter_stuck` (it did not end in time at the end
of the process).
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import ReadableSpan

from spanwise.tracer import internal_errors
from spanwise.tracer.configuration import MIB
from spanwise.tracer.export.otlp_http_client import to_one_line

CountItems: TypeAlias = Callable[..., None]  # `DeliveryCounts.add`
_Waiter: TypeAlias = "queue.SimpleQueue[None]"
MAX_BATCH = 512  # spans per call of `export`, as in OpenTelemetry's batch processor
MAX_PENDING_BYTES = 64 * MIB  # approximate bytes of spans that wait for one exporter
_MIN_SPAN_BYTES = 1_500
EXIT_TIMEOUT = 2.0  # seconds without progress that the end of the process waits for an exporter
MAX_EXIT_TIME = 5.0  # seconds that it waits at most, even if the exporter makes progress


class ExternalExporter:
    """Worker of one span exporter. `put` may be called by any thread."""

    def __init__(self, exporter: Any, count: CountItems) -> None:
        """Create the worker. `exporter` is a `SpanExporter`, or a function that makes one in the worker's thread."""
        self.source = exporter
        self._exporter: Any = exporter if callable(getattr(exporter, "export", None)) else None
        self._count = count
        self._lock = threading.RLock()  # re-entrant for signal handlers (see `SpanQueue`)
        self._thread: threading.Thread | None = None
        self._batches: queue.SimpleQueue[list[tuple[ReadableSpan, int]] | _Waiter | None] = queue.SimpleQueue()
        self._pending_bytes = 0
        self.pending = 0  # spans that wait or are being exported
        self._is_ending = self._is_abandoned = False
        self.shuts_down = True  # False: another configuration goes on using the exporter

    def put(self, spans: Sequence[ReadableSpan]) -> None:
        """Queue spans. Those beyond the limit are dropped."""
        weighted = [
            (
                span,
                _MIN_SPAN_BYTES + sum(len(value) for value in (span._attributes or {}).values() if type(value) is str),
            )
            for span in spans
        ]
        with self._lock:
            kept: list[tuple[ReadableSpan, int]] = []
            for span, weight in weighted:
                if self._is_abandoned or self._pending_bytes + weight > MAX_PENDING_BYTES:
                    continue
                self._pending_bytes += weight
                self.pending += 1
                kept.append((span, weight))
        if lost := len(spans) - len(kept):
            self._drop("exporter_full", lost, "spans end faster than it exports them")
        for start in range(0, len(kept), MAX_BATCH):
            self._batches.put(kept[start : start + MAX_BATCH])
        if kept:
            self._ensure_started()

    def flush(self, end: float) -> None:
        """Wait until the spans that are queued now have been exported, or until `end` on the monotonic clock."""
        if self.pending and self._thread is not threading.current_thread():
            done: _Waiter = queue.SimpleQueue()
            self._batches.put(done)
            try:
                done.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                return

    def begin_close(self) -> None:
        """Tell the worker to export the queued spans, shut down the exporter and end."""
        if not self._is_ending:
            self._is_ending = True
            self._batches.put(None)

    def wait_closed(self, longest: float) -> None:
        """Wait for the end of the worker, until `longest` on the monotonic clock. Drop what remains.

        Returns earlier if the exporter makes no progress for `EXIT_TIMEOUT` seconds.
        """
        thread = self._thread
        while thread is not None and thread is not threading.current_thread():
            before = self.pending
            thread.join(max(0.0, min(EXIT_TIMEOUT, longest - time.monotonic())))
            if not thread.is_alive() or self.pending == before or time.monotonic() >= longest:
                break
        with self._lock:
            self._is_abandoned, stuck, self.pending = True, self.pending, 0
        if stuck:
            self._drop("exporter_stuck", stuck, "it did not end in time")

    def _ensure_started(self) -> None:
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            thread = threading.Thread(target=self._run, name="spanwise-exporter", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads: the next spans try again
                return
            self._thread = thread

    def _run(self) -> None:
        otel_context.attach(otel_context.Context({otel_context._SUPPRESS_INSTRUMENTATION_KEY: True}))
        with internal_errors.error_boundary("exporter"):
            for session in _iterate_sessions(self._exporter):
                session.close()  # in a forked child, its idle connections are also the parent's; it opens others
        while (batch := self._batches.get()) is not None:
            if isinstance(batch, list):
                self._export(batch)
            else:
                batch.put(None)
        if self.shuts_down and self._exporter is not None:
            try:
                self._exporter.shutdown()
            except BaseException as error:  # an exporter may call `sys.exit`, which must not end this thread loudly
                self._warn("shutdown", f"shutdown() raised {internal_errors.describe_error(error)}")

    def _export(self, batch: list[tuple[ReadableSpan, int]]) -> None:
        """Export a batch, and count its spans as delivered or dropped."""
        failure = ""
        try:
            if self._exporter is None:
                self._exporter = self.source()
            result = self._exporter.export([span for span, _ in batch])
            if getattr(result, "name", None) != "SUCCESS":
                failure = f"export() returned {result!r}"
        except BaseException as error:
            failure = f"export() raised {internal_errors.describe_error(error)}"
        with self._lock:
            if self._is_abandoned:  # the spans have been counted
                return
            self.pending -= len(batch)
            self._pending_bytes -= sum(weight for _, weight in batch)
        if failure:
            self._drop("exporter_failed", len(batch), failure)
        else:
            self._count(delivered=len(batch))

    def _drop(self, reason: str, count: int, cause: str) -> None:
        self._count(dropped=count, reason=reason)
        self._warn(reason, f"spans are dropped: {reason}: {cause}")

    def _warn(self, key: str, text: str) -> None:
        source = self.source if self._exporter is None else self._exporter
        name = getattr(source, "__qualname__", None) or type(source).__qualname__
        internal_errors.warn_once(f"{key}:{name}", f"exporter {name}: {to_one_line(text)}")


def _iterate_sessions(value: Any, depth: int = 4) -> Iterator[Any]:
    """Iterate over the HTTP sessions of `requests` that an exporter holds, itself or in the client that it wraps."""
    session = getattr(sys.modules.get("requests"), "Session", None)  # None while another thread imports the module
    if session is not None and isinstance(value, session):
        yield value
    elif depth and type(value).__module__ != "builtins":
        for each in list(getattr(value, "__dict__", {}).values()):
            yield from _iterate_sessions(each, depth - 1)
