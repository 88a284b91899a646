"""Bounded queue of ended spans and feedback, with eviction by priority.

At `HIGH_BYTES`, the threads that fill the queue start to write a part of it to the spool (see `Delivery.put`). While
the collector is unreachable, and when the process ends, they do so at `REDUCED_BYTES`, so that little is left to
write. Without a spool, the queue grows to `MAX_BYTES`.

Above that, the queue drops spans without children first and local roots last. A lost leaf costs one span; a lost
parent costs the tree below it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from opentelemetry.sdk.trace import ReadableSpan

from spanwise.tracer.configuration import MIB
from spanwise.tracer.export.otlp_encoding import FeedbackEvent
from spanwise.tracer.otel.exit_lock import ExitLock
from spanwise.tracer.otel.live_span import LiveSpan, count_dropped

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
