"""Readiness of traces and sessions: quiet periods, maximum wait, waiting targets, low-water mark.

What waits, waits in memory, up to a bound. The low-water mark of a rule stands before the oldest change that does.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from spanwise.collector.records import RuleSettings, TraceHead
from spanwise.evaluators.monitors.rule_decision import SamplingDraw

MAX_WAITING_TARGETS = 10_000  # targets that wait in the memory of one rule
MAX_INCOMPLETE_KEYS = 20_000  # ids that are remembered of what went before


class Readiness(NamedTuple):
    """`at`: seconds, by the clock that was asked with. `incomplete`: that it is taken as it is then."""

    at: float
    incomplete: bool


def trace_readiness(head: TraceHead, settings: RuleSettings, first: float, changed: float, *, again: bool) -> Readiness:
    """When a trace may be looked at that was first seen to change at `first` and has changed last at `changed`.

    `again`: it was taken before although something was missing; then only what is whole, or a long silence, is
    worth another look.
    """
    if head.settled:
        return Readiness(changed, not head.whole)
    longest = (changed if again else first) + settings.max_wait_s
    if head.settled is None and head.rooted and changed + settings.quiet_s <= longest:
        return Readiness(changed + settings.quiet_s, not head.whole)
    return Readiness(longest, True)


@dataclass(slots=True)
class WaitingTarget:
    """A target that waits; `head` is that of its last change, `mark` stands before that change."""

    key: str
    head: TraceHead
    drawn: SamplingDraw
    first: float
    ready: Readiness
    mark: FeedMark


@dataclass(slots=True)
class FeedMark:
    """A stretch of the feed that begins with a change which waits."""

    before: str  # the position in front of it
    waits: bool = True


class WaitingTargets:
    """What waits of one rule, and how far everything before is decided.

    It also remembers what was let in before it was whole.
    """

    def __init__(self, cursor: str, most: int = MAX_WAITING_TARGETS) -> None:
        self._most = most
        self._by_key: dict[str, WaitingTarget] = {}
        self._due: list[tuple[float, int, WaitingTarget]] = []
        self._numbers = 0
        self._marks: list[FeedMark] = [FeedMark(cursor, waits=False)]
        self._position = cursor
        self._incomplete: OrderedDict[str, None] = OrderedDict()  # that were taken before they were whole

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def full(self) -> bool:
        """Whether what comes has no place here any more."""
        return len(self._by_key) >= self._most

    @property
    def next(self) -> float | None:
        """When the next of them is ready."""
        while self._due and self._by_key.get(self._due[0][2].key) is not self._due[0][2]:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def get(self, key: str) -> WaitingTarget | None:
        """What waits under a key."""
        return self._by_key.get(key)

    def took(self, key: str, *, incomplete: bool) -> None:
        """It is let in, perhaps as it is."""
        if incomplete:
            self._incomplete[key] = None
            if len(self._incomplete) > MAX_INCOMPLETE_KEYS:
                self._incomplete.popitem(last=False)

    def was_incomplete(self, key: str) -> bool:
        """Whether it was taken as it was before."""
        return key in self._incomplete

    def put(self, waiting: WaitingTarget) -> None:
        """Let a target wait, in the place of an earlier change of the same."""
        self.drop(waiting.key)
        self._marks.append(waiting.mark)
        self._push(waiting)

    def postpone(self, key: str, at: float) -> None:
        """Let what waits under a key, if anything does, wait longer: a turn of its session that is out has changed."""
        waiting = self._by_key.get(key)
        if waiting is not None and at > waiting.ready.at:
            self._push(replace(waiting, ready=waiting.ready._replace(at=at)))

    def drop(self, key: str) -> WaitingTarget | None:
        """It waits no more: it has changed again, or is decided."""
        waiting = self._by_key.pop(key, None)
        if waiting is not None:
            waiting.mark.waits = False
        return waiting

    def due(self, now: float) -> Iterator[WaitingTarget]:
        """Those that are ready; they wait no more."""
        while (at := self.next) is not None and at <= now:
            waiting = heapq.heappop(self._due)[2]
            self.drop(waiting.key)
            yield waiting

    def read(self, position: str) -> None:
        """The feed was read up to here."""
        self._position = position

    @property
    def low_water(self) -> str:
        """The position before the oldest change that waits."""
        return next((mark.before for mark in self._marks if mark.waits), self._position)

    def decided(self) -> None:
        """What stands before the low-water mark is kept."""
        first = next((place for place, mark in enumerate(self._marks) if mark.waits), None)
        if first is None:
            self._marks = [FeedMark(self._position, waits=False)]
        elif first > 0:
            self._marks = self._marks[first:]
        else:
            self._marks = _merge_marks(self._marks)

    def _push(self, waiting: WaitingTarget) -> None:
        self._by_key[waiting.key] = waiting
        self._numbers += 1
        heapq.heappush(self._due, (waiting.ready.at, self._numbers, waiting))


def _merge_marks(marks: list[FeedMark]) -> list[FeedMark]:
    """Without those that wait no more behind one that does: a trace that changes for hours makes a mark each time."""
    if len(marks) < 2 * sum(mark.waits for mark in marks) + 100:
        return marks
    return [marks[0], *(mark for mark in marks[1:] if mark.waits)]


MAX_DECIDED_TARGETS = 50_000
CLOCK_MARGIN_NS = 60_000_000_000  # by which the clocks of senders may differ from the store's


class DecidedTargets:
    """Of which targets it has to be told that they are out by now: those that may have been in before.

    Of those that this process has let in itself it knows, up to a bound; of those that were there before it began to
    decide (`before_ns`, 0 where nobody did) it has to suppose so. Of most of the traffic it is sure, which saves a
    write for each trace that is not sampled.
    """

    def __init__(self, before_ns: int) -> None:
        self._before_ns = before_ns + CLOCK_MARGIN_NS if before_ns else 0
        self._ids: OrderedDict[str, None] = OrderedDict()

    def add(self, key: str, head: TraceHead) -> None:
        """It gets a row."""
        self._ids[key] = None
        self._ids.move_to_end(key)
        if len(self._ids) > MAX_DECIDED_TARGETS:
            self._ids.popitem(last=False)
            self._before_ns = max(self._before_ns, head.start_ns)

    def may_have_row(self, key: str, head: TraceHead) -> bool:
        """False only where there can be none."""
        return key in self._ids or head.start_ns <= self._before_ns or head.change != head.runs_change
