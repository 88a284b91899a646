"""Readiness of traces and sessions: quiet periods, maximum wait, waiting targets, low-water mark.

A limited number of targets waits in memory. The low-water mark of a rule is the position before the oldest waiting
change.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple

from spanwise.collector.records import Rule, RuleSettings, TraceHead
from spanwise.evaluators.monitors.rule_decision import SECOND_NS, SamplingDraw

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


def compute_due_time(rule: Rule, head: TraceHead, settings: RuleSettings, now_ns: int) -> tuple[int | None, bool]:
    """Return the store's time at which the target of a trace is ready (None: now), and whether spans are missing then."""
    changed = head.changed_ns / SECOND_NS
    if rule.target == "session":
        ready = Readiness(changed + settings.session_quiet_s, not head.whole)
    else:
        ready = trace_readiness(head, settings, changed, changed, again=False)
    due_ns = int(ready.at * SECOND_NS)
    return due_ns if due_ns > now_ns else None, ready.incomplete


@dataclass(frozen=True, slots=True)
class WaitingTarget:
    """Target that waits until it is ready. `head` is the trace head at its last change, and `before` the feed position
    before that change.
    """

    key: str
    head: TraceHead
    drawn: SamplingDraw
    first: float
    ready: Readiness
    before: str


class WaitingTargets:
    """Waiting targets of one rule. It also remembers which targets were admitted while they were incomplete."""

    def __init__(self, most: int = MAX_WAITING_TARGETS) -> None:
        self._most = most
        self._by_key: dict[str, WaitingTarget] = {}  # in the order of their last changes
        self._queue: list[tuple[float, int, WaitingTarget]] = []  # heap, by time; includes targets that were dropped
        self._numbers = count()
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
        while self._queue and self._by_key.get(self._queue[0][2].key) is not self._queue[0][2]:
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else None

    def low_water(self, position: str) -> str:
        """Return the feed position before the oldest change that waits; `position` if none waits."""
        return next((waiting.before for waiting in self._by_key.values()), position)

    def put(self, waiting: WaitingTarget) -> None:
        """Add a waiting target. It replaces an earlier change of the same target."""
        self.drop(waiting.key)  # so that the target moves to the end of the order
        self._push(waiting)

    def postpone(self, key: str, at: float) -> None:
        """Postpone a waiting session, because one of its turns has changed that is not sampled."""
        waiting = self._by_key.get(key)
        if waiting is not None and at > waiting.ready.at:
            self._push(replace(waiting, ready=waiting.ready._replace(at=at)))

    def drop(self, key: str) -> WaitingTarget | None:
        """Remove a waiting target, because it has changed again or is decided."""
        return self._by_key.pop(key, None)

    def take_due(self, now: float) -> Iterator[WaitingTarget]:
        """Remove and yield the targets that are ready."""
        while (at := self.next) is not None and at <= now:
            waiting = heapq.heappop(self._queue)[2]
            self.drop(waiting.key)
            yield waiting

    def record_admitted(self, key: str, *, incomplete: bool) -> None:
        """Record that a target was admitted, and whether it was incomplete then."""
        if incomplete:
            self._incomplete[key] = None
            if len(self._incomplete) > MAX_INCOMPLETE_KEYS:
                self._incomplete.popitem(last=False)

    def was_incomplete(self, key: str) -> bool:
        """Return whether the target was admitted earlier, while it was incomplete."""
        return key in self._incomplete

    def _push(self, waiting: WaitingTarget) -> None:
        self._by_key[waiting.key] = waiting
        heapq.heappush(self._queue, (waiting.ready.at, next(self._numbers), waiting))


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
