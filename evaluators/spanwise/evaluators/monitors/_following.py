"""A rule for which this process decides: what waits, what is to be told the store, how far it has read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from spanwise.collector.records import Changes, Decided, Decision, Head, Rule, Setting
from spanwise.collector.rules import filters_of, unit_of
from spanwise.evaluators.monitors._decide import Drawn, InForce, Questions, draw, in_force
from spanwise.evaluators.monitors._known import Known
from spanwise.evaluators.monitors._ready import Mark, Ready, Waiting, Waits, ready
from spanwise.evaluators.monitors._rows import Let, out
from spanwise.evaluators.monitors._targets import target_of

SECOND = 1_000_000_000
ROWS = 1_000  # decided at once
PAST_HISTORY = 1_000  # settings that are looked at: what changed before them is decided by the oldest


class Following:
    """`rule` is the store's record, with `active_from`. `now` in its methods is in seconds, by any clock."""

    def __init__(
        self, rule: Rule, history: Sequence[Setting], token: int, cursor: str | None, start: str, began_ns: int
    ) -> None:
        self.rule, self.history, self.token, self.cursor = rule, history[:PAST_HISTORY], token, cursor
        self.position = self._kept = start
        self.waits = Waits(start)
        self._known = Known(began_ns)
        self.let_in: list[Let] = []
        self.left_out: list[tuple[Head, Drawn]] = []  # of spans and documents, whose rows have to be asked for
        self.rows: list[Decision] = []
        self.outcomes: dict[str, tuple[int, str]] = {}  # of traces that are decided, for the store to count

    @property
    def asks_text(self) -> bool:
        """Whether the text index may hold it up."""
        return any(filter.text for setting in self.history[:1] for filter in filters_of(self.rule, setting.settings))

    def asks(self, questions: Questions) -> list[InForce]:
        """Its settings, newest first, with what they ask of each trace."""
        return [in_force(self.rule, setting, questions) for setting in self.history]

    def meet(self, settings: Sequence[InForce], heads: Sequence[Head], changes: Changes, now: float) -> None:
        """Decide on what has changed, or let it wait."""
        before = self.position
        for head in heads:
            current = _at(settings, head.change)
            drawn = draw(current, head)
            if drawn.verdict == "taken":
                self._take(current, head, drawn, before, changes, now)
            else:
                self._leave(current, head, drawn, now)
            before = head.cursor
        self.position = before if len(heads) < len(changes.heads) else changes.cursor
        self.waits.read(self.position)

    def take_due(self, now: float) -> None:
        """What has waited long enough is let in."""
        for waiting in islice(self.waits.due(now), ROWS):
            self._let_in(Let(waiting.head, waiting.drawn, waiting.ready.incomplete), waiting.key)

    def decided(self) -> Decided | None:
        """What the store is to keep; None if there is nothing new."""
        upto = self.waits.low_water
        if not self.rows and not self.outcomes and upto == self._kept:
            return None
        return Decided(
            project=self.rule.project,
            rule=self.rule.name,
            version=self.rule.version,
            after=self.cursor,
            upto=upto,
            rows=tuple(self.rows),
            outcomes=self.outcomes,
            token=self.token,
        )

    def kept(self, decided: Decided) -> None:
        """The store has it."""
        self.cursor = self._kept = decided.upto
        self.rows, self.outcomes = [], {}
        self.waits.decided()

    def _take(self, current: InForce, head: Head, drawn: Drawn, before: str, changes: Changes, now: float) -> None:
        key = unit_of(self.rule, head)
        earlier = self.waits.drop(key)
        changed = now - max(0, changes.now_ns - head.changed_ns) / SECOND
        first = min(changed, earlier.first if earlier is not None else changed)
        if self.rule.target == "session":
            due = Ready(changed + current.settings.session_quiet_s, not head.whole)
            drawn = _higher(drawn, earlier)
        else:
            due = ready(head, current.settings, first, changed, again=self.waits.was_incomplete(key))
        if due.at <= now or head.size > current.settings.max_bytes:
            self._let_in(Let(head, drawn, due.incomplete), key)
        elif self.waits.full:
            self._let_in(Let(head, drawn, due.incomplete, changes.now_ns + int((due.at - now) * SECOND)), key)
        else:
            self.waits.put(Waiting(key, head, drawn, first, due, Mark(before)))

    def _leave(self, current: InForce, head: Head, drawn: Drawn, now: float) -> None:
        """It is out: what it has waited for is void, and a row that it may have is told."""
        key = unit_of(self.rule, head)
        if drawn.verdict != "outside":
            self.outcomes[head.trace_id] = head.number, drawn.verdict
        if self.rule.target == "session" and drawn.verdict != "sampled_out":
            self.waits.postpone(key, now + current.settings.session_quiet_s)  # another turn of it may be in
            return
        self.waits.drop(key)
        if not self._known.may_have_row(key, head):
            return
        if self.rule.target in ("trace", "session"):
            self.rows.append(out(self.rule, target_of(self.rule, head), head, drawn))
        else:
            self.left_out.append((head, drawn))

    def _let_in(self, let: Let, key: str) -> None:
        self._known.add(key, let.head)
        self.outcomes[let.head.trace_id] = let.head.number, "taken"
        self.waits.took(key, incomplete=let.incomplete)
        self.let_in.append(let)


def _at(settings: Sequence[InForce], change: int) -> InForce:
    return next((one for one in settings if one.from_change <= change), settings[-1])


def _higher(drawn: Drawn, earlier: Waiting | None) -> Drawn:
    """A session is in as soon as one of its turns is: what counts is the highest of their rates."""
    before = earlier.drawn if earlier is not None else drawn
    return before if (before.rate or 0) > (drawn.rate or 0) and drawn.probability is not None else drawn
