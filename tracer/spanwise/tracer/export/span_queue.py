"""Queue of ended spans and feedback, with eviction by priority; tail sampling; counts of spans by outcome.

At `HIGH_BYTES`, the threads that fill the queue start to write a part of it to the spool (see `Delivery.put`). While
the collector is unreachable, and when the process ends, they do so at `REDUCED_BYTES`, so that little is left to
write. Without a spool, the queue grows to `MAX_BYTES`.

Above that, the queue drops spans without children first and local roots last. A lost leaf costs one span; a lost
parent costs the tree below it.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import orjson
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from spanwise.tracer import attribute_names as names
from spanwise.tracer.configuration import MIB
from spanwise.tracer.export.disk_spool import count_spooled
from spanwise.tracer.export.otlp_http_client import OtlpHttpClient, RequestOutcome
from spanwise.tracer.export.span_encoding import LOGS_PATH, TRACES_PATH, FeedbackEvent, encode_events
from spanwise.tracer.export.span_sanitizer import SpanSanitizer
from spanwise.tracer.otel import live_span
from spanwise.tracer.otel.live_span import (
    Clock,
    ExitLock,
    LiveSpan,
    LocalTrace,
    count_dropped,
    sync_account,
    sync_open_traces,
)

# Bounded queue of ended spans and feedback, with eviction by priority.

ExportItem: TypeAlias = ReadableSpan | FeedbackEvent
WeightedItem: TypeAlias = tuple[ExportItem, int]  # item and its weight in bytes
BATCH_ITEMS = 512
HIGH_BYTES = 64 * MIB
REDUCED_BYTES = 4 * MIB
MAX_BYTES = 256 * MIB
_SPAN_OVERHEAD_BYTES = 1_500  # size of a span without its texts
_ROOT, _INNER, _LEAF = 0, 1, 2


class SpanQueue:
    """Queue of export items in three ranks, first in, first out within each rank. Its size in bytes is approximately
    bounded.

    A signal handler, or a finalizer that the garbage collector runs, may interrupt a method and call the queue again
    in the same thread. Therefore no method relies on a value that it read on an earlier line, and counters are only
    incremented or decremented. `put` and `take` use different locks: a handler that interrupts `put` may wait for the
    delivery thread, which calls `take`.
    """

    def __init__(self, high_bytes: int = HIGH_BYTES, max_bytes: int = MAX_BYTES) -> None:
        self.dropped: Counter[str] = Counter()
        self._high_bytes = self._high = high_bytes
        self.in_flight = 0  # items that were taken and are not yet sent, spooled or dropped
        self._max = max_bytes
        self._ranks: tuple[deque[WeightedItem], ...] = (deque(), deque(), deque())
        self._put_lock: Any = threading.RLock()
        self._added = self._added_bytes = 0
        self._take_lock: Any = threading.RLock()
        self._removed = self._removed_bytes = 0

    def __len__(self) -> int:
        return self._added - self._removed

    @property
    def pending(self) -> int:
        """Return the number of items that are queued, or taken and not yet settled."""
        return len(self) + self.in_flight

    @property
    def bytes(self) -> int:
        """Return the approximate number of queued bytes."""
        return self._added_bytes - self._removed_bytes

    @property
    def is_high(self) -> bool:
        """Return whether the queue exceeds the size that should be kept in memory."""
        return self.bytes > self._high

    def put(self, item: ExportItem) -> bool:
        """Queue an item, and drop the least important item if the queue is full.

        Return True if the queue is high or contains another full batch.
        """
        rank, weight = _get_rank(item), estimate_bytes(item)
        with self._put_lock:
            self._added += 1  # counted before it is appended, so that the queue's length is never negative
            self._added_bytes += weight
            self._ranks[rank].append((item, weight))
        size = self._added_bytes - self._removed_bytes
        if size > self._max:
            self._evict()
        return size > self._high or (self._added - self._removed) % BATCH_ITEMS == 0

    def put_back(self, items: Sequence[ExportItem]) -> None:
        """Return items that were taken to the front of their ranks."""
        for item in reversed(items):
            rank, weight = _get_rank(item), estimate_bytes(item)
            with self._put_lock:
                self._added += 1
                self._added_bytes += weight
                self._ranks[rank].appendleft((item, weight))
        self.settle(len(items))
        self._evict()

    def take(self) -> list[ExportItem]:
        """Take all queued items, in the order of the ranks."""
        return self._take(self._ranks, len(self))

    def take_some(self, most: int) -> list[ExportItem]:
        """Take the oldest items, beginning with those without children."""
        return self._take(reversed(self._ranks), most)

    def settle(self, count: int) -> None:
        """Record that `count` taken items were sent, spooled or dropped."""
        with self._take_lock:
            self.in_flight -= count

    def use_reduced_limit(self, reduced: bool) -> None:
        """Lower the size from which on the queue is high, or restore it."""
        self._high = min(REDUCED_BYTES, self._high_bytes) if reduced else self._high_bytes

    def bound_waits(self) -> None:
        """Limit the time that a thread waits for the locks; see `ExitLock`."""
        self._put_lock, self._take_lock = ExitLock(self._put_lock), ExitLock(self._take_lock)

    def _take(self, ranks: Iterable[deque[WeightedItem]], most: int) -> list[ExportItem]:
        taken: list[ExportItem] = []
        with self._take_lock:
            for rank in ranks:
                while len(taken) < most and (entry := _try_pop(rank.popleft)):
                    taken.append(entry[0])
                    self.in_flight += 1
                    self._removed += 1
                    self._removed_bytes += entry[1]
        return taken

    def _evict(self) -> None:
        """Drop items until the queue is within its limit: those of the lowest rank first, and within a rank the newest.

        The newest items have caused the overload.
        """
        with self._take_lock:
            for rank in reversed(self._ranks):
                while self.bytes > self._max and (entry := _try_pop(rank.pop)):
                    item, weight = entry
                    self._removed += 1
                    self._removed_bytes += weight
                    self.dropped["queue_full"] += 1
                    if isinstance(item, LiveSpan):
                        count_dropped(item)


def _try_pop(pop: Callable[[], WeightedItem]) -> WeightedItem | None:
    """Pop an entry. Return None if the deque is empty: a signal handler may empty it between a check and the pop."""
    try:
        return pop()
    except IndexError:
        return None


def _get_rank(item: Any) -> int:
    if type(item) is not LiveSpan:
        return _ROOT if isinstance(item, FeedbackEvent) or item.parent is None else _INNER
    return _ROOT if item.span_id == item.local.root_id else _INNER if item.has_children else _LEAF


def estimate_bytes(item: Any) -> int:
    """Return the approximate size of an item in bytes: its texts and a constant overhead."""
    weight = _SPAN_OVERHEAD_BYTES
    for value in (item.attributes if isinstance(item, FeedbackEvent) else item._attributes or {}).values():
        if type(value) is str:
            weight += len(value)
    if type(item) is LiveSpan:
        item.weight = weight
    return weight


# Delivery statistics: span counts by outcome, and reports of counts and open spans to the collector.
#
# Reports are OTLP log events for collectors that identify themselves as Spanwise's in their responses. Reports are
# not stored: a report that cannot be sent is replaced by a later one.


@dataclass(frozen=True, slots=True)
class FlushResult:
    """Result of a flush.

    The result is true if the collector has acknowledged every span and feedback event queued before the flush.
    """

    delivered: int = 0
    spilled: int = 0  # items of this process on disk, to be sent when the collector is reachable
    dropped: int = 0
    pending: int = 0  # still queued after the timeout

    def __bool__(self) -> bool:
        return not (self.spilled or self.dropped or self.pending)


class DeliveryCounts:
    """Counts of spans and feedback events since the start of the process."""

    def __init__(self) -> None:
        self.delivered = self.spilled = 0
        self.dropped: Counter[str] = Counter()
        self._lock: Any = threading.RLock()

    def add(self, *, delivered: int = 0, spilled: int = 0, dropped: int = 0, reason: str = "") -> None:
        """Add to the counts."""
        with self._lock:
            self.delivered += delivered
            self.spilled += spilled
            if dropped:
                self.dropped[reason] += dropped

    @property
    def settled(self) -> int:
        """Return the total of delivered, spooled and dropped items.

        An item that was spooled counts a second time when it is sent from the spool.
        """
        return self.delivered + self.spilled + sum(tuple(self.dropped.values()))

    def bound_waits(self) -> None:
        """Limit the time that a thread waits for the lock; see `ExitLock`."""
        self._lock = ExitLock(self._lock)


REPORT_AGE_NS = 1_000_000_000  # age in nanoseconds at which an open run is reported
_MAX_PER_REPORT = 1_000
_MAX_UNREPORTED = 50_000  # with more open spans, some probably never end: the set is cleared


class SpanAccount:
    """Counts of the spans that are delivered to one address.

    The numbers of started and ended spans are added per trace, by `sync_account`, so that they cost a traced call no
    time.
    """

    def __init__(self) -> None:
        self.started = self.open = self.delivered = 0
        self.dropped: Counter[str] = Counter()  # by reason
        self.folders: set[Path | None] = set()  # spool directories
        self.resource: Resource | None = None
        self.unreported: set[Any] = set()  # open spans that have not been reported yet

    def find_unreported(self) -> list[Any]:
        """Return the spans that have been open for longer than `REPORT_AGE_NS`, oldest first, up to the limit of one
        request.
        """
        unreported, latest = tuple(self.unreported), Clock.now() - REPORT_AGE_NS
        if len(unreported) > _MAX_UNREPORTED:
            self.unreported.clear()
        due = [span for span in unreported if span.end_time is None and (span.start_time or 0) <= latest]
        return sorted(due, key=lambda span: span.start_time or 0)[:_MAX_PER_REPORT]

    def mark_reported(self, spans: list[Any]) -> None:
        """Mark open spans as reported, so that they are not reported again."""
        self.unreported.difference_update(spans)

    def report(self, pending: int, dropped: Counter[str]) -> dict[str, Any]:
        """Return the attributes of a process report: counts of started, open, delivered, … spans.

        The given `dropped` is added to the account's own count.
        """
        sync_open_traces(self)
        return {
            names.REPORT_STARTED: self.started,
            names.REPORT_OPEN: self.open,
            names.REPORT_DELIVERED: self.delivered,
            names.REPORT_SPILLED: sum(map(count_spooled, self.folders)),
            names.REPORT_PENDING: pending,
            names.REPORT_DROPPED: orjson.dumps(self.dropped + dropped).decode(),
            names.REPORT_PID: os.getpid(),
        }


_accounts: weakref.WeakValueDictionary[str, SpanAccount] = weakref.WeakValueDictionary()


def get_account(url: str) -> SpanAccount:
    """Return the account of an address. All runtimes of this process that deliver there share it."""
    account = _accounts.get(url)
    if account is None:
        account = _accounts[url] = SpanAccount()
    return account


def forget_accounts() -> None:
    """Remove all accounts, in a forked child."""
    _accounts.clear()


PERIOD = 10.0  # minimum seconds between two reports
SendRequest = Callable[[str, bytes], RequestOutcome]


class ProcessReporter:
    """Reporter that sends counts and open spans to the collector. It runs on the delivery thread."""

    def __init__(
        self, account: SpanAccount, queue: SpanQueue, sanitizer: SpanSanitizer, client: OtlpHttpClient
    ) -> None:
        self._account, self._queue, self._sanitizer, self._client = account, queue, sanitizer, client
        self._reported: dict[str, Any] = {}
        self._next_report = 0.0

    def send_reports(self, send: SendRequest, urgent: bool) -> None:
        """Send the spans that have been open for long, and the counts if they have changed since the last report.

        An urgent report is sent even if the last one was sent a moment ago, because it may be the last one.
        """
        due = self._account.find_unreported()
        if due and self._client.is_spanwise is None:
            # Send an empty request, which every collector accepts. The response shows whether the collector is
            # Spanwise's
            verdict = send(TRACES_PATH, b"").verdict
            if self._client.is_spanwise is None and verdict != "later":
                self._client.is_spanwise = False
        if self._client.is_spanwise:
            resources = {id(resource): resource for resource in (_get_local_trace_of(span).resource for span in due)}
            for key, resource in resources.items():
                spans = [span for span in due if id(_get_local_trace_of(span).resource) == key]
                attributes = self._sanitizer.resource(resource).attributes
                body = encode_events([self._make_started_event(span, attributes) for span in spans])
                if send(LOGS_PATH, body).verdict != "later":
                    self._account.mark_reported(spans)
            self._send_counts(send, urgent)
        elif self._client.is_spanwise is False:
            self._account.mark_reported(due)

    def _make_started_event(self, span: Any, resource: Any) -> FeedbackEvent:
        context, parent = span.get_span_context(), span.parent
        attributes = {
            names.STARTED_NAME: self._sanitizer.name(span.name),
            names.KIND: (span.attributes or {}).get(names.KIND),
            names.STARTED_PARENT: f"{parent.span_id:016x}" if parent else None,
            names.LOCAL_ROOT: f"{_get_local_trace_of(span).root_id:016x}",
        }
        start = span.start_time or 0
        return FeedbackEvent(context.trace_id, context.span_id, start, attributes, resource, names.STARTED_EVENT)

    def _send_counts(self, send: SendRequest, urgent: bool) -> None:
        if not urgent and time.monotonic() < self._next_report:
            return
        report, resource = self._account.report(self._queue.pending, self._queue.dropped), self._account.resource
        if not report[names.REPORT_STARTED] or report == self._reported or resource is None:
            return
        event = FeedbackEvent(0, 0, Clock.now(), report, resource.attributes, names.REPORT_EVENT)
        self._next_report = time.monotonic() + PERIOD
        if send(LOGS_PATH, encode_events([event])).verdict == "ok":
            self._reported = report


def _get_local_trace_of(span: Any) -> LocalTrace:
    local: LocalTrace = span.local if isinstance(span, LiveSpan) else span._spanwise_local
    return local


# Tail sampling: spans of unsampled traces wait in memory and are exported if one of them failed.
#
# When the local root ends, all spans are delivered if the root or any span below it had an error. Otherwise they are
# discarded. The waiting items of all traces together are bounded in bytes. Above the limit, items of the trace that
# has waited longest are dropped: the oldest first, and items with errors last.

MAX_TAIL_BYTES = 32 * MIB  # approximate bytes of spans and feedback

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
            while _bytes > MAX_TAIL_BYTES:
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
        local.ot, local.account = live_span.make_kept_member(local.ot), self._delivery.account
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
