"""Following the feed: one reader for all rules of a process, which decides for those whose lease it holds.

A step reads a slice of what changed, lets what has to wait do so, and gives the store what is decided. Whatever breaks
off on the way is decided again: rows and cursors are idempotent. Rules whose filters ask the text index go by
themselves, as they wait for it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from spanwise.collector.records import Changes, Decided, Head, Rule, Setting
from spanwise.collector.stores import Store
from spanwise.evaluators.monitors._decide import InForce, Questions, awaits
from spanwise.evaluators.monitors._following import Following
from spanwise.evaluators.monitors._held import Held, Name, name_of, refresh
from spanwise.evaluators.monitors._pacing import Pacing
from spanwise.evaluators.monitors._spread import Spread

SLICE = 1_000  # heads at once
LEASE = 9.0  # seconds that the right to decide is held for
SIZES = 20_000  # of traces that are remembered
SECOND = 1_000_000_000


class Follower:
    """Reads the feed and decides. `now` is a clock that measures, in seconds."""

    def __init__(
        self, store: Store, held: Sequence[Held], holder: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._held, self._holder, self._now = store, held, holder, now
        self._following: dict[Name, Following] = {}
        self._spread, self._pacing = Spread(store), Pacing(store)
        self._renew_at = 0.0
        self.now_ns = 0  # the store's
        self.behind = False  # whether there is more to be read at once
        self.decided = 0  # changes of traces
        self.sizes: OrderedDict[str, int] = OrderedDict()  # bytes of traces that were let in

    @property
    def waiting(self) -> int:
        """Targets that wait in memory."""
        return sum(len(one.waits) for one in self._following.values())

    @property
    def deciding(self) -> list[Name]:
        """Rules for which this process decides."""
        return list(self._following)

    @property
    def next(self) -> float | None:
        """When something that waits will be ready."""
        return min((at for one in self._following.values() if (at := one.waits.next) is not None), default=None)

    def step(self) -> int:
        """Read one slice for each place that rules are at, and decide; how many changes and rows that was."""
        if self._now() >= self._renew_at:
            self._lease()
        self.behind = False
        read = sum([self._read(group) for group in _groups(self._following.values())])
        done = read + self._decide()
        self._pacing.look([one.rule for one in self._following.values()], self.now_ns / SECOND)
        return done

    def take_over(self, dead: Sequence[str]) -> None:
        """Release the leases of dead holders, and acquire what is free at the next step."""
        names = {lease_of(*held.name) for held in self._held}
        for lease in self._store.leases():
            if lease.name in names and lease.holder in dead:
                self._store.release(lease.name, lease.holder)
        self._renew_at = self._now()

    def stop(self) -> None:
        """Let others decide."""
        for name in list(self._following):
            self._leave(name)

    def _lease(self) -> None:
        refresh(self._store, self._held)
        for held in self._held:
            if held.idle is not None:
                self._leave(held.name)
                continue
            lease = self._store.acquire(lease_of(*held.name), self._holder, LEASE)
            if lease is None:
                self._following.pop(held.name, None)
            elif held.name not in self._following or self._following[held.name].token != lease.token:
                self._begin(held, lease.token)
        self._renew_at = self._now() + LEASE / 3

    def _leave(self, name: Name) -> None:
        """Let another decide for a rule."""
        if self._following.pop(name, None) is not None:
            self._store.release(lease_of(*name), self._holder)

    def _begin(self, held: Held, token: int) -> None:
        rule = held.in_force
        cursor = self._store.cursor(rule.name, rule.version, project=rule.project)
        start = cursor if cursor is not None else _start(rule)
        now_ns = self._store.changes(start, limit=1).now_ns if cursor is not None else 0  # nobody has decided before
        self._following[held.name] = Following(rule, self._history(rule), token, cursor, start, now_ns)

    def _history(self, rule: Rule) -> list[Setting]:
        kept = self._store.settings(rule.name, project=rule.project)
        return [setting for setting in kept if setting.version == rule.version] or [
            Setting(version=rule.version, from_change=0, settings=rule.settings)
        ]

    def _read(self, group: Sequence[Following]) -> int:
        questions = Questions()
        asked = [(one, one.asks(questions)) for one in group]
        changes = self._store.changes(group[0].position, limit=SLICE, filters=questions.filters)
        self.now_ns = changes.now_ns
        if changes.heads and not self._still_holds(group):
            self.behind = True
            return 0
        heads = self._until_others(group, _told(asked, changes))
        for one, settings in asked:
            one.meet(settings, heads, changes, self._now())
        self.behind |= len(heads) == SLICE
        self.decided += len(heads)
        return len(heads)

    def _still_holds(self, group: Sequence[Following]) -> bool:
        """Whether rules and settings are those that were asked with. What is saved from now on holds for later changes
        than those that were read.
        """
        refresh(self._store, self._held)
        same = True
        current = {held.name: held for held in self._held}
        for one in group:
            held = current[name_of(one.rule)]
            if held.idle is not None:
                self._leave(held.name)
                same = False
            elif held.in_force.settings != one.rule.settings:
                one.rule, one.history = held.in_force, self._history(held.in_force)
                same = False
        return same

    def _until_others(self, group: Sequence[Following], heads: Sequence[Head]) -> Sequence[Head]:
        """Only as far as to where other rules are: from there on one slice does for all."""
        text = group[0].asks_text
        others = {one.position for one in self._following.values() if one.asks_text == text} - {group[0].position}
        last = max((place for place, head in enumerate(heads) if head.cursor in others), default=len(heads) - 1)
        return heads[: last + 1]

    def _decide(self) -> int:
        for one in self._following.values():
            one.take_due(self._now())
            self._remember(one)
            self._spread.rows(one)
        pairs = [(one, decided) for one in self._following.values() if (decided := one.decided()) is not None]
        if not pairs:
            return 0
        answers = self._store.decide(*(decided for _, decided in pairs))
        for (one, decided), kept in zip(pairs, answers, strict=True):
            self._told(one, decided, kept)
        return sum(len(decided.rows) for _, decided in pairs)

    def _told(self, one: Following, decided: Decided, kept: bool) -> None:
        if kept:
            one.kept(decided)
            return
        self._following.pop(name_of(one.rule), None)  # another decides, or the version is not in force: begin anew
        self._renew_at = self._now()

    def _remember(self, one: Following) -> None:
        for let in one.let_in:
            self.sizes[let.head.trace_id] = let.head.size
        while len(self.sizes) > SIZES:
            self.sizes.popitem(last=False)


def lease_of(project: str, rule: str) -> str:
    """The name of the lease on deciding for a rule."""
    return f"monitor/{project}/{rule}"


def _start(rule: Rule) -> str:
    """Where the feed begins for a rule that has decided nothing yet."""
    return "0" if rule.since_ns is not None else str(rule.active_from)


def _groups(following: Iterable[Following]) -> list[list[Following]]:
    """Rules that stand at the same place and wait for the same."""
    groups: dict[tuple[bool, str], list[Following]] = {}
    for one in following:
        groups.setdefault((one.asks_text, one.position), []).append(one)
    return list(groups.values())


def _told(asked: Sequence[tuple[Following, list[InForce]]], changes: Changes) -> Sequence[Head]:
    """What comes before the first trace of which the text index cannot tell yet what it says.

    One that it has not reached in all the time that traces are waited for is taken to say nothing.
    """
    if not any(None in head.passes for head in changes.heads):
        return changes.heads
    for place, head in enumerate(changes.heads):
        age = (changes.now_ns - head.changed_ns) / SECOND
        if any(awaits(settings[0], head) and age < settings[0].settings.max_wait_s for _, settings in asked):
            return changes.heads[:place]
    return changes.heads
