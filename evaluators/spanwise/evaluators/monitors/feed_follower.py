"""Change feed of a rule: lease, slices, decisions, and their delivery to the store.

A step reads a slice of changes, queues targets that must wait, and sends decisions to the store. After an
interruption the same changes may be decided again, because writing rows and cursors is idempotent. Rules whose
filters use the full-text index are read separately, because they wait for the index.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from spanwise.collector.records import (
    ChangePage,
    Decision,
    DecisionBatch,
    Rule,
    SettingsVersion,
    Target,
    TraceHead,
)
from spanwise.collector.rule_policy import build_rule_filters, get_sampling_unit
from spanwise.collector.stores import Store
from spanwise.evaluators.monitors.monitored_rule import ActiveRule, RuleKey, refresh_rules, rule_key
from spanwise.evaluators.monitors.readiness import (
    DecidedTargets,
    FeedMark,
    Readiness,
    WaitingTarget,
    WaitingTargets,
    trace_readiness,
)
from spanwise.evaluators.monitors.rule_decision import (
    AdmittedTarget,
    EffectiveRule,
    FilterQueries,
    SamplingDraw,
    apply_setting,
    awaits_text_index,
    batch_by_size,
    choose_targets,
    decide_trace,
    make_decision,
    make_empty_decision,
    make_exclusion,
    trace_target,
)
from spanwise.evaluators.monitors.rule_spending import BudgetPacing

SLICE_HEADS = 1_000  # trace heads per slice
LEASE_S = 9.0  # duration of a rule's decision lease, in seconds
MAX_TRACE_SIZES = 20_000  # number of traces whose sizes are remembered
SECOND_NS = 1_000_000_000


class FeedFollower:
    """Reader of the change feed that makes the decisions of all rules. `now` is a monotonic clock in seconds."""

    def __init__(
        self, store: Store, rules: Sequence[ActiveRule], holder: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._rules, self._holder, self._now = store, rules, holder, now
        self._following: dict[RuleKey, RuleFeed] = {}
        self._builder, self._pacing = DecisionBuilder(store), BudgetPacing(store)
        self._renew_at = 0.0
        self.now_ns = 0  # current time by the store's clock
        self.behind = False  # True if more changes can be read at once
        self.decided = 0  # number of decided changes
        self.sizes: OrderedDict[str, int] = OrderedDict()  # size in bytes of admitted traces, by trace id

    @property
    def waiting(self) -> int:
        """Return the number of targets that wait in memory."""
        return sum(len(one.waits) for one in self._following.values())

    @property
    def deciding(self) -> list[RuleKey]:
        """Return the rules for which this process decides."""
        return list(self._following)

    @property
    def next(self) -> float | None:
        """Return the time when the next waiting target is ready."""
        return min((at for one in self._following.values() if (at := one.waits.next) is not None), default=None)

    def step(self) -> int:
        """Read one slice of changes for each feed position of the rules, and decide on them.

        Returns the number of changes and decision rows.
        """
        if self._now() >= self._renew_at:
            self._lease()
        self.behind = False
        # one read serves all rules at the same feed position; rules with and without full-text filters are read
        # separately
        groups: dict[tuple[bool, str], list[RuleFeed]] = {}
        for one in self._following.values():
            groups.setdefault((one.asks_text, one.position), []).append(one)
        read = sum([self._read(group) for group in groups.values()])
        done = read + self._decide()
        self._pacing.look([one.rule for one in self._following.values()], self.now_ns / SECOND_NS)
        return done

    def take_over(self, dead: Sequence[str]) -> None:
        """Release the leases of dead workers. The next step acquires the free leases."""
        names = {decision_lease_name(*active_rule.name) for active_rule in self._rules}
        for lease in self._store.leases():
            if lease.name in names and lease.holder in dead:
                self._store.release(lease.name, lease.holder)
        self._renew_at = self._now()

    def stop(self) -> None:
        """Release all leases, so that other workers can decide."""
        for name in list(self._following):
            self._leave(name)

    def _lease(self) -> None:
        refresh_rules(self._store, self._rules)
        for active_rule in self._rules:
            if active_rule.idle is not None:
                self._leave(active_rule.name)
                continue
            lease = self._store.acquire(decision_lease_name(*active_rule.name), self._holder, LEASE_S)
            if lease is None:
                self._following.pop(active_rule.name, None)
            elif active_rule.name not in self._following or self._following[active_rule.name].token != lease.token:
                rule = active_rule.in_force
                cursor = self._store.cursor(rule.name, rule.version, project=rule.project)
                if cursor is None:  # no process has decided before
                    start, now_ns = "0" if rule.since_ns is not None else str(rule.active_from), 0
                else:
                    start, now_ns = cursor, self._store.changes(cursor, limit=1).now_ns
                self._following[active_rule.name] = RuleFeed(
                    rule, self._history(rule), lease.token, cursor, start, now_ns
                )
        self._renew_at = self._now() + LEASE_S / 3

    def _leave(self, name: RuleKey) -> None:
        """Stop deciding for a rule and release its lease, so that another worker can decide."""
        if self._following.pop(name, None) is not None:
            self._store.release(decision_lease_name(*name), self._holder)

    def _history(self, rule: Rule) -> list[SettingsVersion]:
        settings = self._store.settings(rule.name, project=rule.project)
        return [setting for setting in settings if setting.version == rule.version] or [
            SettingsVersion(version=rule.version, from_change=0, settings=rule.settings)
        ]

    def _read(self, group: Sequence[RuleFeed]) -> int:
        questions = FilterQueries()
        asked = [(one, one.asks(questions)) for one in group]
        changes = self._store.changes(group[0].position, limit=SLICE_HEADS, filters=questions.filters)
        self.now_ns = changes.now_ns
        if changes.heads and not self._still_holds(group):
            self.behind = True
            return 0
        heads = _decidable_heads(asked, changes)
        # stop at a position that other rules have reached: from there on, one slice serves all of them
        text = group[0].asks_text
        others = {one.position for one in self._following.values() if one.asks_text == text} - {group[0].position}
        last = max((place for place, head in enumerate(heads) if head.cursor in others), default=len(heads) - 1)
        heads = heads[: last + 1]
        for one, settings in asked:
            one.meet(settings, heads, changes, self._now())
        self.behind |= len(heads) == SLICE_HEADS
        self.decided += len(heads)
        return len(heads)

    def _still_holds(self, group: Sequence[RuleFeed]) -> bool:
        """Return whether the rules and settings with which the changes were read are still in force.

        If they are, settings saved later apply only to later changes.
        """
        refresh_rules(self._store, self._rules)
        same = True
        current = {active_rule.name: active_rule for active_rule in self._rules}
        for one in group:
            active_rule = current[rule_key(one.rule)]
            if active_rule.idle is not None:
                self._leave(active_rule.name)
                same = False
            elif active_rule.in_force.settings != one.rule.settings:
                one.rule, one.history = active_rule.in_force, self._history(active_rule.in_force)
                same = False
        return same

    def _decide(self) -> int:
        for one in self._following.values():
            one.take_due(self._now())
            for let in one.let_in:
                self.sizes[let.head.trace_id] = let.head.size
            while len(self.sizes) > MAX_TRACE_SIZES:
                self.sizes.popitem(last=False)
            self._builder.rows(one)
        pairs = [(one, decided) for one in self._following.values() if (decided := one.decided()) is not None]
        if not pairs:
            return 0
        answers = self._store.decide(*(decided for _, decided in pairs))
        for (one, decided), accepted in zip(pairs, answers, strict=True):
            if accepted:
                one.accepted(decided)
            else:  # another worker decides now, or the version is no longer in force: acquire the lease again
                self._following.pop(rule_key(one.rule), None)
                self._renew_at = self._now()
        return sum(len(decided.rows) for _, decided in pairs)


def decision_lease_name(project: str, rule: str) -> str:
    """Return the name of the lease on a rule's decisions."""
    return f"monitor/{project}/{rule}"


def _decidable_heads(asked: Sequence[tuple[RuleFeed, list[EffectiveRule]]], changes: ChangePage) -> Sequence[TraceHead]:
    """Return the trace heads before the first one whose full-text answer is not yet known.

    A trace that the index does not reach within `max_wait_s` counts as not matching.
    """
    if not any(None in head.passes for head in changes.heads):
        return changes.heads
    for place, head in enumerate(changes.heads):
        age = (changes.now_ns - head.changed_ns) / SECOND_NS
        if any(awaits_text_index(settings[0], head) and age < settings[0].settings.max_wait_s for _, settings in asked):
            return changes.heads[:place]
    return changes.heads


DECISIONS_PER_PASS = 1_000  # maximum targets admitted per pass
MAX_SETTINGS = 1_000  # maximum number of settings considered; earlier changes get the oldest of these


class RuleFeed:
    """State of one rule's feed. `rule` is the stored record, which includes `active_from`. `now` is the time in
    seconds; any clock will do, but always the same one.
    """

    def __init__(
        self, rule: Rule, history: Sequence[SettingsVersion], token: int, cursor: str | None, start: str, began_ns: int
    ) -> None:
        self.rule, self.history, self.token, self.cursor = rule, history[:MAX_SETTINGS], token, cursor
        self.position = self._accepted_cursor = start
        self.waits = WaitingTargets(start)
        self._known = DecidedTargets(began_ns)
        self.let_in: list[AdmittedTarget] = []
        self.left_out: list[
            tuple[TraceHead, SamplingDraw]
        ] = []  # excluded traces of span and document rules; the store must be queried for their rows
        self.rows: list[Decision] = []
        # decided traces, each with the outcome that the store's counters add
        self.outcomes: dict[str, tuple[int, str]] = {}

    @property
    def asks_text(self) -> bool:
        """Return whether the rule uses the full-text index. The index may be behind, so such a rule may have to
        wait.
        """
        return any(
            filter.text for setting in self.history[:1] for filter in build_rule_filters(self.rule, setting.settings)
        )

    def asks(self, questions: FilterQueries) -> list[EffectiveRule]:
        """Return the rule with each of its settings, newest first, and with the indices of their filters."""
        return [apply_setting(self.rule, setting, questions) for setting in self.history]

    def meet(
        self, settings: Sequence[EffectiveRule], heads: Sequence[TraceHead], changes: ChangePage, now: float
    ) -> None:
        """Decide on changed traces, or queue them if they must wait."""
        before = self.position
        for head in heads:
            current = next((one for one in settings if one.from_change <= head.change), settings[-1])
            drawn = decide_trace(current, head)
            if drawn.verdict == "taken":
                self._take(current, head, drawn, before, changes, now)
            else:
                self._leave(current, head, drawn, now)
            before = head.cursor
        self.position = before if len(heads) < len(changes.heads) else changes.cursor
        self.waits.read(self.position)

    def take_due(self, now: float) -> None:
        """Admit the waiting targets that have become ready."""
        for waiting in islice(self.waits.due(now), DECISIONS_PER_PASS):
            self._let_in(AdmittedTarget(waiting.head, waiting.drawn, waiting.ready.incomplete), waiting.key)

    def decided(self) -> DecisionBatch | None:
        """Return the decisions to send to the store; None if there are none."""
        upto = self.waits.low_water
        if not self.rows and not self.outcomes and upto == self._accepted_cursor:
            return None
        return DecisionBatch(
            project=self.rule.project,
            rule=self.rule.name,
            version=self.rule.version,
            after=self.cursor,
            upto=upto,
            rows=tuple(self.rows),
            outcomes=self.outcomes,
            token=self.token,
        )

    def accepted(self, decided: DecisionBatch) -> None:
        """Record that the store has accepted the decisions."""
        self.cursor = self._accepted_cursor = decided.upto
        self.rows, self.outcomes = [], {}
        self.waits.decided()

    def _take(
        self, current: EffectiveRule, head: TraceHead, drawn: SamplingDraw, before: str, changes: ChangePage, now: float
    ) -> None:
        key = get_sampling_unit(self.rule, head)
        earlier = self.waits.drop(key)
        changed = now - max(0, changes.now_ns - head.changed_ns) / SECOND_NS
        first = min(changed, earlier.first if earlier is not None else changed)
        if self.rule.target == "session":
            due = Readiness(changed + current.settings.session_quiet_s, not head.whole)
            # a session is sampled if any of its turns is
            earlier_draw = earlier.drawn if earlier is not None else drawn
            if (earlier_draw.rate or 0) > (drawn.rate or 0) and drawn.probability is not None:
                drawn = earlier_draw
        else:
            due = trace_readiness(head, current.settings, first, changed, again=self.waits.was_incomplete(key))
        if due.at <= now or head.size > current.settings.max_bytes:
            self._let_in(AdmittedTarget(head, drawn, due.incomplete), key)
        elif self.waits.full:
            self._let_in(
                AdmittedTarget(head, drawn, due.incomplete, changes.now_ns + int((due.at - now) * SECOND_NS)), key
            )
        else:
            self.waits.put(WaitingTarget(key, head, drawn, first, due, FeedMark(before)))

    def _leave(self, current: EffectiveRule, head: TraceHead, drawn: SamplingDraw, now: float) -> None:
        """Exclude a trace: it waits no longer, and if it has a decision already, that decision is updated."""
        key = get_sampling_unit(self.rule, head)
        if drawn.verdict != "outside":
            self.outcomes[head.trace_id] = head.number, drawn.verdict
        if self.rule.target == "session" and drawn.verdict != "sampled_out":
            # another turn of the session may be sampled
            self.waits.postpone(key, now + current.settings.session_quiet_s)
            return
        self.waits.drop(key)
        if not self._known.may_have_row(key, head):
            return
        if self.rule.target in ("trace", "session"):
            self.rows.append(make_exclusion(self.rule, trace_target(self.rule, head), head, drawn))
        else:
            self.left_out.append((head, drawn))

    def _let_in(self, let: AdmittedTarget, key: str) -> None:
        self._known.add(key, let.head)
        self.outcomes[let.head.trace_id] = let.head.number, "taken"
        self.waits.took(key, incomplete=let.incomplete)
        self.let_in.append(let)


class DecisionBuilder:
    """Builder of decision rows. It reads traces to find their target spans and documents."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def rows(self, one: RuleFeed) -> None:
        """Convert the admitted and excluded targets of a rule into decision rows."""
        if one.rule.target in ("trace", "session"):
            one.rows += [make_decision(one.rule, trace_target(one.rule, let.head), let) for let in one.let_in]
        else:
            lets = {let.head.trace_id: let for let in one.let_in}
            lots = batch_by_size([(id, let.head.size) for id, let in lets.items()])
            # a single assignment: if the store fails in between, no rows are added, and the next step repeats all
            # batches
            one.rows += [row for lot in lots for row in self._rows_of_batch(one.rule, {id: lets[id] for id in lot})]
        one.let_in = []
        while one.left_out:
            head, drawn = one.left_out[-1]
            one.rows += [
                make_exclusion(one.rule, target, head, drawn) for target in self._known(one.rule, head.trace_id)
            ]
            one.left_out.pop()

    def _rows_of_batch(self, rule: Rule, lets: Mapping[str, AdmittedTarget]) -> list[Decision]:
        small = [id for id, let in lets.items() if let.head.size <= rule.settings.max_bytes]
        rows = [make_decision(rule, Target(trace_id=id), lets[id]) for id in lets.keys() - set(small)]
        for trace in self._store.many(small):
            let = lets[trace.trace_id]
            targets, share = choose_targets(rule, trace)
            if not targets:
                rows.append(make_empty_decision(rule, let))
            rows += [make_decision(rule, target, let, share) for target in targets]
        return rows

    def _known(self, rule: Rule, trace_id: str) -> list[Target]:
        page = self._store.decisions(
            trace_id=trace_id, rule=rule.name, version=rule.version, project=rule.project, limit=1_000
        )
        return [decision.target for decision in page if decision.target.trace_id == trace_id]
