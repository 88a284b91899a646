"""When a trace, or a session, is ready to be looked at: what it waits for, and until when. No clock of its own.

What waits, waits in memory, up to a bound. The low-water mark of a rule stands before the oldest change that does.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from spanwise.collector.records import Head, RuleSettings
from spanwise.evaluators.monitors._decide import Drawn

MOST = 10_000  # targets that wait in the memory of one rule
KNOWN = 20_000  # ids that are remembered of what went before


class Ready(NamedTuple):
    """`at`: seconds, by the clock that was asked with. `incomplete`: that it is taken as it is then."""

    at: float
    incomplete: bool


def ready(head: Head, settings: RuleSettings, first: float, changed: float, *, again: bool) -> Ready:
    """When a trace may be looked at that was first seen to change at `first` and has changed last at `changed`.

    `again`: it was taken before although something was missing; then only what is whole, or a long silence, is
    worth another look.
    """
    if head.settled:
        return Ready(changed, not head.whole)
    longest = (changed if again else first) + settings.max_wait_s
    if head.settled is None and head.rooted and changed + settings.quiet_s <= longest:
        return Ready(changed + settings.quiet_s, not head.whole)
    return Ready(longest, True)


@dataclass(slots=True)
class Waiting:
    """A target that waits; `head` is that of its last change, `mark` stands before that change."""

    key: str
    head: Head
    drawn: Drawn
    first: float
    ready: Ready
    mark: Mark


@dataclass(slots=True)
class Mark:
    """A stretch of the feed that begins with a change which waits."""

    before: str  # the position in front of it
    waits: bool = True


class Waits:
    """What waits of one rule, and how far everything before is decided.

    It also remembers what was let in before it was whole.
    """

    def __init__(self, cursor: str, most: int = MOST) -> None:
        self._most = most
        self._by_key: dict[str, Waiting] = {}
        self._due: list[tuple[float, int, Waiting]] = []
        self._numbers = 0
        self._marks: list[Mark] = [Mark(cursor, waits=False)]
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

    def get(self, key: str) -> Waiting | None:
        """What waits under a key."""
        return self._by_key.get(key)

    def took(self, key: str, *, incomplete: bool) -> None:
        """It is let in, perhaps as it is."""
        if incomplete:
            self._incomplete[key] = None
            if len(self._incomplete) > KNOWN:
                self._incomplete.popitem(last=False)

    def was_incomplete(self, key: str) -> bool:
        """Whether it was taken as it was before."""
        return key in self._incomplete

    def put(self, waiting: Waiting) -> None:
        """Let a target wait, in the place of an earlier change of the same."""
        self.drop(waiting.key)
        self._marks.append(waiting.mark)
        self._push(waiting)

    def postpone(self, key: str, at: float) -> None:
        """Let what waits under a key, if anything does, wait longer: a turn of its session that is out has changed."""
        waiting = self._by_key.get(key)
        if waiting is not None and at > waiting.ready.at:
            self._push(replace(waiting, ready=waiting.ready._replace(at=at)))

    def drop(self, key: str) -> Waiting | None:
        """It waits no more: it has changed again, or is decided."""
        waiting = self._by_key.pop(key, None)
        if waiting is not None:
            waiting.mark.waits = False
        return waiting

    def due(self, now: float) -> Iterator[Waiting]:
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
            self._marks = [Mark(self._position, waits=False)]
        elif first > 0:
            self._marks = self._marks[first:]
        else:
            self._marks = _merged(self._marks)

    def _push(self, waiting: Waiting) -> None:
        self._by_key[waiting.key] = waiting
        self._numbers += 1
        heapq.heappush(self._due, (waiting.ready.at, self._numbers, waiting))


def _merged(marks: list[Mark]) -> list[Mark]:
    """Without those that wait no more behind one that does: a trace that changes for hours makes a mark each time."""
    if len(marks) < 2 * sum(mark.waits for mark in marks) + 100:
        return marks
    return [marks[0], *(mark for mark in marks[1:] if mark.waits)]
