"""The bounded queue between the application's threads and the delivery thread.

Beyond a first bound whoever fills it takes some of it to the disk (see `Delivery.put`). Where that cannot be, it grows
to a second one, at which spans without children go first and local roots last: a lost leaf costs one span, a lost
parent a tree.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from opentelemetry.sdk.trace import ReadableSpan

from assay.tracer._encode import FeedbackEvent
from assay.tracer._settings import MIB
from assay.tracer._span import LiveSpan, count_dropped

Item: TypeAlias = ReadableSpan | FeedbackEvent
Entry: TypeAlias = tuple[Item, int]  # and its weight, in bytes
HIGH_BYTES = 64 * MIB  # from here on to the disk
_HELD_UP_BYTES = MIB  # the same while nothing gets on: what is left when the process ends then is soon written
MAX_BYTES = 256 * MIB  # dropped beyond
_OWN_BYTES = 1_500  # of a span without its texts
_ROOT, _INNER, _LEAF = 0, 1, 2


class Queue:
    """First in, first out within each of three ranks. Bounded in bytes, about."""

    def __init__(self, high_bytes: int = HIGH_BYTES, max_bytes: int = MAX_BYTES) -> None:
        self.dropped: Counter[str] = Counter()
        self.high = high_bytes
        self.is_held_up = False
        self._max = max_bytes
        # Whoever holds a lock of ours may be interrupted by a signal handler, or by the garbage collector that ends a
        # generator: what is traced there passes here a second time, in the same thread. So nothing rests on what was
        # looked at a line before, and counts are added to, never set.
        self._lock = threading.RLock()
        self._ranks: tuple[deque[Entry], ...] = (deque(), deque(), deque())
        self._count = self._bytes = 0

    def __len__(self) -> int:
        return self._count

    def put(self, item: Item) -> int:
        """Queue an item, or drop the least needed one; returns how many are queued."""
        rank, weight = _rank(item), weight_of(item)
        with self._lock:
            self._ranks[rank].append((item, weight))
            self._count += 1
            self._bytes += weight
            if self._bytes > self._max:
                self._evict()
            return self._count

    @property
    def is_high(self) -> bool:
        """Whether there is more than should be in memory."""
        return self._bytes > self.high or (self.is_held_up and self._bytes > _HELD_UP_BYTES)

    def take_some(self, most: int) -> list[Item]:
        """The oldest items, those without children first."""
        return self._take(reversed(self._ranks), most)

    def take(self) -> list[Item]:
        """Everything queued, in the order of the ranks."""
        return self._take(self._ranks, sys.maxsize)

    def _take(self, ranks: Iterable[deque[Entry]], most: int) -> list[Item]:
        taken: list[Item] = []
        with self._lock:
            for rank in ranks:
                while len(taken) < most and (entry := _popped(rank.popleft)):
                    taken.append(entry[0])
                    self._count -= 1
                    self._bytes -= entry[1]
        return taken

    def _evict(self) -> None:
        """The newest of the lowest rank goes, so that what is dropped is what the overload brought."""
        for rank in reversed(self._ranks):
            while self._bytes > self._max and (entry := _popped(rank.pop)):
                item, weight = entry
                self._count -= 1
                self._bytes -= weight
                self.dropped["queue_full"] += 1
                if isinstance(item, LiveSpan):
                    count_dropped(item)


def _popped(pop: Callable[[], Entry]) -> Entry | None:
    """An entry, or None where there is none (any more: a signal handler may come between looking and taking)."""
    try:
        return pop()
    except IndexError:
        return None


def _rank(item: Any) -> int:
    if type(item) is not LiveSpan:
        return _ROOT if isinstance(item, FeedbackEvent) or item.parent is None else _INNER
    return _ROOT if item.span_id == item.local.root_id else _INNER if item.has_children else _LEAF


def weight_of(item: Any) -> int:
    """About how many bytes an item holds: its text."""
    weight = _OWN_BYTES
    for value in (item.attributes if isinstance(item, FeedbackEvent) else item._attributes or {}).values():
        if type(value) is str:
            weight += len(value)
    if type(item) is LiveSpan:
        item.weight = weight
    return weight
