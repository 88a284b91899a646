"""Readiness of traces and sessions: quiet periods, maximum wait, waiting targets, low-water mark.

A limited number of targets waits in memory. The low-water mark of a rule is the position before the oldest waiting
change.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from spanwise.collector.records import RuleSettings, TraceHead
from spanwise.evaluators.monitors.rule_decision import SamplingDraw

MAX_WAITING_TARGETS = 10_000  # maximum targets of one rule that wait in memory
MAX_INCOMPLETE_KEYS = 20_000  # maximum number of remembered ids of targets that were admitted while incomplete


class Readiness(NamedTuple):
    """Time when a target is ready. `at` is in seconds of the caller's clock. `incomplete` means that spans are still
    missing at that time.
    """

    at: float
    incomplete: bool


def trace_readiness(head: TraceHead, settings: RuleSettings, first: float, changed: float, *, again: bool) -> Readiness:
    """Return the readiness of a trace whose first known change was at `first` and whose last was at `changed`.

    The flag `again` means that the trace was evaluated before, while it was incomplete. It is evaluated again only
    when it is complete, or after a long time without changes.
    """
    if head.settled:
        return Readiness(changed, not head.whole)
    longest = (changed if again else first) + settings.max_wait_s
    if head.settled is None and head.rooted and changed + settings.quiet_s <= longest:
        return Readiness(changed + settings.quiet_s, not head.whole)
    return Readiness(longest, True)


@dataclass(slots=True)
class WaitingTarget:
    """Target that waits until it is ready. `head` is the trace head at its last change; `mark` is the feed position
    before that change.
    """

    key: str
    head: TraceHead
    drawn: SamplingDraw
    first: float
    ready: Readiness
    mark: FeedMark


@dataclass(slots=True)
class FeedMark:
    """Section of the feed that starts with a change of a waiting target."""

    before: str  # feed position before the section
    waits: bool = True


class WaitingTargets:
    """Waiting targets of one rule, and the feed position up to which everything is decided.

    It also remembers which targets were admitted while they were incomplete.
    """

    def __init__(self, cursor: str, most: int = MAX_WAITING_TARGETS) -> None:
        self._most = most
        self._by_key: dict[str, WaitingTarget] = {}
        self._due: list[tuple[float, int, WaitingTarget]] = []
        self._numbers = 0
        self._marks: list[FeedMark] = [FeedMark(cursor, waits=False)]
        self._position = cursor
        self._incomplete: OrderedDict[str, None] = OrderedDict()  # keys of targets that were admitted while incomplete

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def full(self) -> bool:
        """Return whether the limit of waiting targets is reached."""
        return len(self._by_key) >= self._most

    @property
    def next(self) -> float | None:
        """Return the time when the next target is ready."""
        while self._due and self._by_key.get(self._due[0][2].key) is not self._due[0][2]:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def get(self, key: str) -> WaitingTarget | None:
        """Return the target that waits under a key."""
        return self._by_key.get(key)

    def took(self, key: str, *, incomplete: bool) -> None:
        """Record that a target was admitted, and whether it was incomplete then."""
        if incomplete:
            self._incomplete[key] = None
            if len(self._incomplete) > MAX_INCOMPLETE_KEYS:
                self._incomplete.popitem(last=False)

    def was_incomplete(self, key: str) -> bool:
        """Return whether the target was admitted earlier, while it was incomplete."""
        return key in self._incomplete

    def put(self, waiting: WaitingTarget) -> None:
        """Add a waiting target. It replaces an earlier change of the same target."""
        self.drop(waiting.key)
        self._marks.append(waiting.mark)
        self._push(waiting)

    def postpone(self, key: str, at: float) -> None:
        """Postpone a waiting session, because one of its turns has changed that is not sampled."""
        waiting = self._by_key.get(key)
        if waiting is not None and at > waiting.ready.at:
            self._push(replace(waiting, ready=waiting.ready._replace(at=at)))

    def drop(self, key: str) -> WaitingTarget | None:
        """Remove a waiting target, because it has changed again or is decided."""
        waiting = self._by_key.pop(key, None)
        if waiting is not None:
            waiting.mark.waits = False
        return waiting

    def due(self, now: float) -> Iterator[WaitingTarget]:
        """Remove and yield the targets that are ready."""
        while (at := self.next) is not None and at <= now:
            waiting = heapq.heappop(self._due)[2]
            self.drop(waiting.key)
            yield waiting

    def read(self, position: str) -> None:
        """Record the position up to which the feed was read."""
        self._position = position

    @property
    def low_water(self) -> str:
        """Return the feed position before the oldest change that waits."""
        return next((mark.before for mark in self._marks if mark.waits), self._position)

    def decided(self) -> None:
        """Drop the marks before the low-water mark. Call it after the store has saved the low-water mark."""
        first = next((place for place, mark in enumerate(self._marks) if mark.waits), None)
        if first is None:
            self._marks = [FeedMark(self._position, waits=False)]
        elif first > 0:
            self._marks = self._marks[first:]
        elif len(self._marks) >= 2 * sum(mark.waits for mark in self._marks) + 100:
            # remove marks that no longer wait, because a trace that changes for hours adds a mark at each change
            self._marks = [self._marks[0], *(mark for mark in self._marks[1:] if mark.waits)]

    def _push(self, waiting: WaitingTarget) -> None:
        self._by_key[waiting.key] = waiting
        self._numbers += 1
        heapq.heappush(self._due, (waiting.ready.at, self._numbers, waiting))


MAX_DECIDED_TARGETS = 50_000
CLOCK_MARGIN_NS = 60_000_000_000  # maximum assumed difference between the clocks of senders and the store


class DecidedTargets:
    """Filter for targets that may have a decision in the store. Such a decision must be updated if its target is no
    longer sampled.

    The targets that this process has admitted are remembered, up to a limit. Of targets that started before this
    process began to decide (`before_ns`, 0 if no process decided before), a decision is assumed. For most traffic the
    answer is no, which saves a write for each trace that is not sampled.
    """

    def __init__(self, before_ns: int) -> None:
        self._before_ns = before_ns + CLOCK_MARGIN_NS if before_ns else 0
        self._ids: OrderedDict[str, None] = OrderedDict()

    def add(self, key: str, head: TraceHead) -> None:
        """Record that a target gets a decision."""
        self._ids[key] = None
        self._ids.move_to_end(key)
        if len(self._ids) > MAX_DECIDED_TARGETS:
            self._ids.popitem(last=False)
            self._before_ns = max(self._before_ns, head.start_ns)

    def may_have_row(self, key: str, head: TraceHead) -> bool:
        """Return whether the target may have a decision. False means that it certainly has none."""
        return key in self._ids or head.start_ns <= self._before_ns or head.change != head.runs_change
