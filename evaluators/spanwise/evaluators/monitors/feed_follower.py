"""Change feed of a rule: lease, slices, decisions, and their delivery to the store.

A step reads a slice of changes, queues targets that must wait, and sends decisions to the store. After an
interruption the same changes may be decided again, because writing rows and cursors is idempotent. Rules whose
filters use the full-text index are read separately, because they wait for the index.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import chain, islice

from spanwise.collector.alerts import ALERT_LEASE
from spanwise.collector.records import (
    ChangePage,
    Decision,
    DecisionBatch,
    Rule,
    SettingsVersion,
    TraceHead,
)
from spanwise.collector.rule_policy import build_rule_filters, get_sampling_unit
from spanwise.collector.stores import Store
from spanwise.evaluators.monitors.backfill_walk import BackfillWalker, refresh_backfills
from spanwise.evaluators.monitors.monitored_rule import ActiveRule, RuleKey, refresh_rules, rule_key
from spanwise.evaluators.monitors.rule_decision import (
    AdmittedTarget,
    DecidedTargets,
    EffectiveRule,
    FilterQueries,
    Readiness,
    SamplingDraw,
    WaitingTarget,
    WaitingTargets,
    apply_setting,
    build_part_rows,
    compute_due_time,
    decide_trace,
    find_decidable,
    make_decision,
    make_exclusion,
    trace_readiness,
    trace_target,
)
from spanwise.evaluators.monitors.rule_spending import BudgetPacing

SLICE_HEADS = 1_000  # trace heads per slice
LEASE_S = 9.0  # duration of a rule's decision lease, in seconds
MAX_TRACE_SIZES = 20_000  # number of traces whose sizes are remembered
DECISIONS_PER_PASS = 1_000  # maximum targets admitted per pass
MAX_SETTINGS = 1_000  # maximum number of settings considered; earlier changes get the oldest of these
SECOND_NS = 1_000_000_000


class FeedFollower:
    """Reader of the change feed that makes the decisions of all rules. `now` is a monotonic clock in seconds."""

    def __init__(
        self, store: Store, rules: Sequence[ActiveRule], holder: str, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._rules, self._holder, self._now = store, rules, holder, now
        self._feeds: dict[RuleKey, RuleFeed] = {}  # feeds of the rules whose lease this process has
        self._pacing = BudgetPacing(store)
        self._walker = BackfillWalker(store, now)
        self._renew_at = 0.0
        self.now_ns = 0  # current time by the store's clock
        self.behind = False  # True if more changes can be read at once
        self.decided = 0  # number of decided changes
        self.sizes: OrderedDict[str, int] = OrderedDict()  # size in bytes of admitted traces, by trace id

    @property
    def waiting(self) -> int:
        """Return the number of targets that wait in memory."""
        return sum(len(feed.waits) for feed in self._feeds.values())

    @property
    def deciding(self) -> list[RuleKey]:
        """Return the rules for which this process decides."""
        return list(self._feeds)

    @property
    def next(self) -> float | None:
        """Return the time when the next waiting target is ready."""
        times = [at for feed in self._feeds.values() if (at := feed.waits.next) is not None]
        jobs = [rule.backfill for rule in self._rules if rule.backfill is not None and rule.name in self._feeds]
        times += [at for job in jobs if (at := self._walker.find_next(job)) is not None]
        return min(times, default=None)

    def step(self) -> int:
        """Read one slice of changes for each feed position of the rules, and decide on them.

        Returns the number of changes and decision rows.
        """
        if self._now() >= self._renew_at:
            self._acquire_leases()
        self.behind = False
        # one read serves all rules at the same feed position; rules with and without full-text filters are read
        # separately
        groups: dict[tuple[bool, str], list[RuleFeed]] = {}
        for feed in self._feeds.values():
            groups.setdefault((feed.uses_text, feed.position), []).append(feed)
        read = sum([self._read(group) for group in groups.values()])
        done = read + self._decide()
        if not self.behind:  # live traffic goes first
            done += self._walk_backfills()
        self._pacing.adjust([feed.rule for feed in self._feeds.values()], self.now_ns / SECOND_NS)
        return done

    def take_over(self, dead: Sequence[str]) -> None:
        """Release the leases of dead workers. The next step acquires the free leases."""
        names = {ALERT_LEASE, *(decision_lease_name(*active_rule.name) for active_rule in self._rules)}
        for lease in self._store.leases():
            if lease.name in names and lease.holder in dead:
                self._store.release(lease.name, lease.holder)
        self._renew_at = self._now()

    def stop(self) -> None:
        """Release all leases, so that other workers can decide."""
        for name in list(self._feeds):
            self._release(name)

    def _acquire_leases(self) -> None:
        refresh_rules(self._store, self._rules)
        refresh_backfills(self._store, self._rules)
        for active_rule in self._rules:
            name = active_rule.name
            if active_rule.idle is not None:
                self._release(name)
                continue
            lease = self._store.acquire(decision_lease_name(*name), self._holder, LEASE_S)
            if lease is None:
                self._feeds.pop(name, None)
            elif name not in self._feeds or self._feeds[name].token != lease.token:
                rule = active_rule.in_force
                cursor = self._store.cursor(rule.name, rule.version, project=rule.project)
                if cursor is None:  # no process has decided before
                    start, now_ns = "0" if rule.since_ns is not None else str(rule.active_from), 0
                else:
                    start, now_ns = cursor, self._store.changes(cursor, limit=1).now_ns
                self._feeds[name] = RuleFeed(rule, self._history(rule), lease.token, cursor, start, now_ns)
        self._renew_at = self._now() + LEASE_S / 3

    def _release(self, name: RuleKey) -> None:
        """Stop deciding for a rule and release its lease, so that another worker can decide."""
        if self._feeds.pop(name, None) is not None:
            self._store.release(decision_lease_name(*name), self._holder)

    def _history(self, rule: Rule) -> list[SettingsVersion]:
        settings = self._store.settings(rule.name, project=rule.project)
        return [setting for setting in settings if setting.version == rule.version] or [
            SettingsVersion(version=rule.version, from_change=0, settings=rule.settings)
        ]

    def _read(self, group: Sequence[RuleFeed]) -> int:
        """Read a slice of changes for feeds at the same position, and return the number of its heads."""
        queries = FilterQueries()
        settings = [feed.apply_settings(queries) for feed in group]
        changes = self._store.changes(group[0].position, limit=SLICE_HEADS, filters=queries.filters)
        self.now_ns = changes.now_ns
        if changes.heads and not self._still_holds(group):
            self.behind = True
            return 0
        heads = find_decidable([history[0] for history in settings], changes)
        # stop at a position that other rules have reached: from there on, one slice serves all of them
        uses_text, position = group[0].uses_text, group[0].position
        others = {feed.position for feed in self._feeds.values() if feed.uses_text == uses_text} - {position}
        last = max((place for place, head in enumerate(heads) if head.cursor in others), default=len(heads) - 1)
        heads = heads[: last + 1]
        for feed, history in zip(group, settings, strict=True):
            feed.decide(history, heads, changes, self._now())
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
        for feed in group:
            active_rule = current[rule_key(feed.rule)]
            if active_rule.idle is not None:
                self._release(active_rule.name)
                same = False
            elif active_rule.in_force.settings != feed.rule.settings:
                feed.rule, feed.history = active_rule.in_force, self._history(active_rule.in_force)
                same = False
        return same

    def _decide(self) -> int:
        """Send the decisions of all feeds to the store, and return the number of their rows."""
        for feed in self._feeds.values():
            feed.admit_due(self._now())
            self._remember_sizes(feed.admitted)
            self._build_rows(feed)
        batches = [(feed, batch) for feed in self._feeds.values() if (batch := feed.make_batch()) is not None]
        if not batches:
            return 0
        answers = self._store.decide(*(batch for _, batch in batches))
        for (feed, batch), accepted in zip(batches, answers, strict=True):
            if accepted:
                feed.accept(batch)
            else:  # another worker decides now, or the version is no longer in force: acquire the lease again
                self._feeds.pop(rule_key(feed.rule), None)
                self._renew_at = self._now()
        return sum(len(batch.rows) for _, batch in batches)

    def _build_rows(self, feed: RuleFeed) -> None:
        """Convert the admitted and excluded targets of a feed into decision rows.

        The traces of span and document rules are read to find their targets.
        """
        rule = feed.rule
        if rule.target in ("trace", "session"):
            feed.rows += [make_decision(rule, trace_target(rule, target.head), target) for target in feed.admitted]
        else:
            admitted = {target.head.trace_id: target for target in feed.admitted}
            # a single assignment: if the store fails in between, no rows are added, and the next step repeats all
            # batches
            feed.rows += list(build_part_rows(self._store, rule, admitted))
        feed.admitted = []
        while feed.excluded:
            head, drawn, next_ns = feed.excluded[-1]
            stored = self._store.decisions(
                trace_id=head.trace_id, rule=rule.name, version=rule.version, project=rule.project, limit=1_000
            )
            targets = [decision.target for decision in stored if decision.target.trace_id == head.trace_id]
            feed.rows += [make_exclusion(rule, target, head, drawn, next_ns) for target in targets]
            feed.excluded.pop()

    def _walk_backfills(self) -> int:
        """Decide on one page of each backfill that this process may continue, and return the number of its traces."""
        read = 0
        for active_rule in self._rules:
            feed = self._feeds.get(active_rule.name)
            if feed is None or active_rule.backfill is None:
                continue
            page = self._walker.step(active_rule.backfill, feed.rule, feed.token)
            if page is not None:
                active_rule.backfill = page.backfill
                feed.record_backfilled(page.admitted)
                self._remember_sizes(page.admitted)
                self.behind |= page.read > 0
                read += page.read
        return read

    def _remember_sizes(self, targets: Sequence[AdmittedTarget]) -> None:
        self.sizes.update((target.head.trace_id, target.head.size) for target in targets)
        while len(self.sizes) > MAX_TRACE_SIZES:
            self.sizes.popitem(last=False)


def decision_lease_name(project: str, rule: str) -> str:
    """Return the name of the lease on a rule's decisions."""
    return f"monitor/{project}/{rule}"


class RuleFeed:
    """State of one rule's feed. `rule` is the stored record, which includes `active_from`. `now` is the time in
    seconds; any clock will do, but always the same one.
    """

    def __init__(
        self, rule: Rule, history: Sequence[SettingsVersion], token: int, cursor: str | None, start: str, began_ns: int
    ) -> None:
        self.rule, self.history, self.token = rule, history[:MAX_SETTINGS], token
        self.position = start  # position up to which the feed was read
        self._cursor = cursor  # position up to which the store has all decisions
        self._accepted_cursor = start
        self.waits = WaitingTargets()
        self._decided = DecidedTargets(began_ns)
        self.admitted: list[AdmittedTarget] = []
        # excluded traces of span and document rules; the store must be queried for their rows
        self.excluded: list[tuple[TraceHead, SamplingDraw, int | None]] = []
        self.rows: list[Decision] = []
        # decided traces, each with the outcome that the store's counters add
        self._outcomes: dict[str, tuple[int, str]] = {}

    @property
    def uses_text(self) -> bool:
        """Return whether the rule uses the full-text index. The index may be behind, so such a rule may have to
        wait.
        """
        filters = (build_rule_filters(self.rule, setting.settings) for setting in self.history[:1])
        return any(filter.text for filter in chain.from_iterable(filters))

    def apply_settings(self, queries: FilterQueries) -> list[EffectiveRule]:
        """Return the rule with each of its settings, newest first, and with the indices of their filters."""
        return [apply_setting(self.rule, setting, queries) for setting in self.history]

    def decide(
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
                self._exclude(current, head, drawn, changes, now)
            before = head.cursor
        self.position = before if len(heads) < len(changes.heads) else changes.cursor

    def record_backfilled(self, targets: Sequence[AdmittedTarget]) -> None:
        """Record that targets have decisions, which later changes must update."""
        for target in targets:
            self._decided.add(get_sampling_unit(self.rule, target.head), target.head)

    def admit_due(self, now: float) -> None:
        """Admit the waiting targets that have become ready."""
        for waiting in islice(self.waits.take_due(now), DECISIONS_PER_PASS):
            self._admit(AdmittedTarget(waiting.head, waiting.drawn, waiting.ready.incomplete), waiting.key)

    def make_batch(self) -> DecisionBatch | None:
        """Return the decisions to send to the store; None if there are none."""
        upto = self.waits.low_water(self.position)
        if not self.rows and not self._outcomes and upto == self._accepted_cursor:
            return None
        return DecisionBatch(
            project=self.rule.project,
            rule=self.rule.name,
            version=self.rule.version,
            after=self._cursor,
            upto=upto,
            rows=tuple(self.rows),
            outcomes=self._outcomes,
            token=self.token,
        )

    def accept(self, batch: DecisionBatch) -> None:
        """Record that the store has accepted the decisions."""
        self._cursor = self._accepted_cursor = batch.upto
        self.rows, self._outcomes = [], {}

    def _take(
        self, current: EffectiveRule, head: TraceHead, drawn: SamplingDraw, before: str, changes: ChangePage, now: float
    ) -> None:
        """Admit a sampled trace, or queue it until it is ready."""
        key = get_sampling_unit(self.rule, head)
        earlier = self.waits.drop(key)
        changed = now - max(0, changes.now_ns - head.changed_ns) / SECOND_NS
        first = min(changed, earlier.first if earlier is not None else changed)
        if self.rule.target == "session":
            due = Readiness(changed + current.settings.session_quiet_s, not head.whole)
            # a session is sampled if any of its turns is
            if earlier is not None and (earlier.drawn.rate or 0) > (drawn.rate or 0) and drawn.probability is not None:
                drawn = earlier.drawn
        else:
            due = trace_readiness(head, current.settings, first, changed, again=self.waits.was_incomplete(key))
        if due.at <= now or head.size > current.settings.max_bytes:
            self._admit(AdmittedTarget(head, drawn, due.incomplete), key)
        elif self.waits.full:
            next_ns = changes.now_ns + int((due.at - now) * SECOND_NS)
            self._admit(AdmittedTarget(head, drawn, due.incomplete, next_ns), key)
        else:
            self.waits.put(WaitingTarget(key, head, drawn, first, due, before))

    def _admit(self, target: AdmittedTarget, key: str) -> None:
        self._decided.add(key, target.head)
        self._outcomes[target.head.trace_id] = target.head.number, "taken"
        self.waits.record_admitted(key, incomplete=target.incomplete)
        self.admitted.append(target)

    def _exclude(
        self, current: EffectiveRule, head: TraceHead, drawn: SamplingDraw, changes: ChangePage, now: float
    ) -> None:
        """Exclude a trace: it waits no longer, and if it has a decision already, that decision is updated."""
        key = get_sampling_unit(self.rule, head)
        if drawn.verdict != "outside":
            self._outcomes[head.trace_id] = head.number, drawn.verdict
        if self.rule.target == "session" and drawn.verdict != "sampled_out":
            # another turn of the session may be sampled
            self.waits.postpone(key, now + current.settings.session_quiet_s)
            return
        self.waits.drop(key)
        if not self._decided.may_have_row(key, head):
            return
        next_ns, _ = compute_due_time(self.rule, head, current.settings, changes.now_ns)
        if self.rule.target in ("trace", "session"):
            self.rows.append(make_exclusion(self.rule, trace_target(self.rule, head), head, drawn, next_ns))
        else:
            self.excluded.append((head, drawn, next_ns))
