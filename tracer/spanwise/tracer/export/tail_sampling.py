"""Tail sampling: spans of unsampled traces wait in memory and are exported if one of them failed.

When the local root ends, all spans are delivered if the root or any span below it had an error. Otherwise they are
discarded. The waiting items of all traces together are bounded in bytes. Above the limit, items of the trace that has
waited longest are dropped: the oldest first, and items with errors last.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Protocol

from opentelemetry.trace import StatusCode

from spanwise.tracer import attribute_names as names
from spanwise.tracer.configuration import MIB
from spanwise.tracer.export.delivery_stats import SpanAccount
from spanwise.tracer.export.span_queue import ExportItem, estimate_bytes
from spanwise.tracer.otel import head_sampling
from spanwise.tracer.otel.exit_lock import ExitLock
from spanwise.tracer.otel.live_span import LiveSpan, sync_account

MAX_BYTES = 32 * MIB  # approximate bytes of spans and feedback

# re-entrant, because a signal handler may interrupt the code that holds it (see `SpanQueue`)
_lock: Any = threading.RLock()
_pending_traces: dict[PendingTrace, None] = {}  # traces with waiting items, in the order in which they began to wait
_bytes = 0


# For the fork handlers in `delivery_lifecycle`. These are methods of the original lock, because `bound_lock_waits`
# may replace `_lock`
acquire_before_fork, release_in_parent = _lock.acquire, _lock.release


def reset_in_child() -> None:
    """Release the lock and forget the waiting spans, which belong to the parent process."""
    global _bytes
    _lock.release()
    _pending_traces.clear()
    _bytes = 0


def bound_lock_waits() -> None:
    """Limit the time that a thread waits for the lock; see `ExitLock`."""
    global _lock
    _lock = ExitLock(_lock)


class DeliveryTarget(Protocol):
    """Destination of ended spans and feedback; a `Delivery`."""

    @property
    def account(self) -> SpanAccount:
        """Return the account that counts the spans sent to this destination."""

    def begin(self) -> None:
        """Prepare for the spans of a trace that has begun."""

    def put(self, item: Any) -> None:
        """Accept an ended span or a feedback event."""

    def lose(self, reason: str, count: int) -> None:
        """Count spans that were dropped before they reached the delivery."""


class PendingTrace:
    """Buffer for the spans and feedback of this process's part of one unsampled trace."""

    __slots__ = ("_buffer", "_delivery", "_dropped", "_is_kept")

    def __init__(self, delivery: DeliveryTarget) -> None:
        self._delivery = delivery
        self._buffer: _PendingItems | None = None  # None until an item waits
        self._dropped = 0
        self._is_kept: bool | None = None  # None while the local root is open: not decided yet

    def put(self, item: Any) -> None:
        """Store an ended span or a feedback event until the decision. Afterwards, deliver or discard it."""
        if self._is_kept is None and type(item) is LiveSpan and item.span_id == item.local.root_id:
            self._decide(item)
        elif not self._store(item) and self._is_kept:
            self._delivery.put(item)

    def _store(self, item: Any) -> bool:
        global _bytes
        failed, weight = _has_failed(item), estimate_bytes(item)
        with _lock:
            if self._is_kept is not None:
                return False
            buffer = self._buffer = self._buffer or _PendingItems()
            (buffer.failed if failed else buffer.others).append((item, weight))
            buffer.has_failed |= failed
            _pending_traces[self] = None
            buffer.bytes += weight
            _bytes += weight
            while _bytes > MAX_BYTES:
                next(iter(_pending_traces))._drop_oldest()
        return True

    def _drop_oldest(self) -> None:
        global _bytes
        buffer = self._buffer
        if buffer is not None:
            _, weight = (buffer.others or buffer.failed).popleft()
            buffer.bytes -= weight
            _bytes -= weight
            self._dropped += 1
        if buffer is None or not (buffer.others or buffer.failed):
            del _pending_traces[self]

    def _decide(self, root: LiveSpan) -> None:
        items = self._take_items(_has_failed(root))
        if not self._is_kept:
            return
        local = root.local
        local.ot, local.account = head_sampling.make_kept_member(local.ot), self._delivery.account
        sync_account(local)
        root._attributes[names.PARTIAL] = True
        if self._dropped:
            local.dropped += self._dropped
            self._delivery.lose("unsampled_full", self._dropped)
        for item in (*items, root):
            self._delivery.put(item)

    def _take_items(self, failed: bool) -> list[Any]:
        global _bytes
        with _lock:
            buffer, self._buffer = self._buffer, None
            if buffer is None:
                self._is_kept = failed
                return []
            _pending_traces.pop(self, None)
            _bytes -= buffer.bytes
            self._is_kept = buffer.has_failed or failed
        return [item for item, _ in (*buffer.others, *buffer.failed)] if self._is_kept else []


class _PendingItems:
    """Waiting items of one trace."""

    __slots__ = ("bytes", "failed", "has_failed", "others")

    def __init__(self) -> None:
        self.others: deque[tuple[ExportItem, int]] = deque()
        self.failed: deque[tuple[ExportItem, int]] = deque()
        self.bytes = 0
        self.has_failed = False  # stays True if the failed item is dropped


def _has_failed(item: Any) -> bool:
    return type(item) is LiveSpan and item._status.status_code is StatusCode.ERROR
