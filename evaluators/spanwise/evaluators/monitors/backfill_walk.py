"""Walk of a backfill: pages of its period, decisions on their traces, and the job that a rule executes now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from spanwise.collector.records import Backfill, BackfillStep, Decision, DecisionBatch, Rule, SettingsVersion
from spanwise.collector.rule_policy import get_backfill_rule, get_sampling_unit
from spanwise.collector.stores import Store
from spanwise.evaluators.monitors.monitored_rule import ActiveRule
from spanwise.evaluators.monitors.rule_decision import (
    AdmittedTarget,
    FilterQueries,
    apply_setting,
    build_part_rows,
    compute_due_time,
    decide_trace,
    find_decidable,
    make_decision,
    trace_target,
)
from spanwise.evaluators.monitors.rule_spending import find_unpriced_judge

PAGE_TRACES = 200  # traces of one page
# Open targets of a backfill above which its next page waits. Few wait in the store at once, so that a long backfill
# takes no space, and ends soon when it is paused or cancelled
MAX_WAITING = 400
FULL_POLL_S = 0.2  # seconds until the number of open targets is read again


class WalkedPage(NamedTuple):
    """Page of a backfill that was decided: the backfill after it, and the traces in its sample."""

    backfill: Backfill
    read: int
    admitted: Sequence[AdmittedTarget]


def refresh_backfills(store: Store, active_rules: Iterable[ActiveRule]) -> None:
    """Set the backfill that each rule executes: the oldest one of its version that runs.

    A backfill that has ended follows if a trace in its sample changed, so that the trace is scored again.
    """
    jobs = [job for job in reversed(store.backfills(active=True)) if job.state in ("running", "done")]
    for active_rule in active_rules:
        version = (*active_rule.name, active_rule.record.version)
        own = [job for job in jobs if (job.project, job.rule, job.version) == version]
        reasons = {job.id: find_unpriced_judge(job.budget, active_rule.evaluators) for job in own}
        active_rule.backfill = next((job for job in own if reasons[job.id] is None), None)
        active_rule.barred_backfills = {id: reason for id, reason in reasons.items() if reason is not None}


class BackfillWalker:
    """Reader of the periods of backfills. `now` is a monotonic clock in seconds."""

    def __init__(self, store: Store, now: Callable[[], float]) -> None:
        self._store, self._now = store, now
        self._full_until: dict[str, float] = {}  # backfills with many open targets, by id

    def find_next(self, backfill: Backfill) -> float | None:
        """Return the time at which a backfill with many open targets may continue; None if it does not wait for them."""
        return self._full_until.get(backfill.id) if backfill.state == "running" and not backfill.walked else None

    def step(self, backfill: Backfill, rule: Rule, token: int) -> WalkedPage | None:
        """Decide on the next page of a backfill. Return None if there is nothing to do now.

        `token` is that of the lease on the rule's feed.
        """
        if backfill.state != "running" or backfill.walked or self._now() < self._full_until.get(backfill.id, 0.0):
            return None
        jobs = self._store.backfills(rule=rule.name, project=rule.project, active=True)
        current = next((job for job in jobs if job.id == backfill.id), None)
        if current is None or current.state != "running" or current.walked:
            self._full_until.pop(backfill.id, None)
            return None
        if current.waiting >= MAX_WAITING:
            self._full_until[backfill.id] = self._now() + FULL_POLL_S
            return None
        return self._decide_page(current, rule, token)

    def _decide_page(self, backfill: Backfill, rule: Rule, token: int) -> WalkedPage | None:
        applied, queries = get_backfill_rule(rule, backfill), FilterQueries()
        setting = SettingsVersion(version=rule.version, from_change=0, settings=applied.settings)
        effective = apply_setting(applied, setting, queries)
        page = self._store.heads(
            project=rule.project,
            since_ns=backfill.since_ns,
            until_ns=backfill.until_ns,
            after=backfill.cursor,
            limit=PAGE_TRACES,
            filters=queries.filters,
        )
        heads = find_decidable([effective], page)
        if page.heads and not heads:
            return None
        matched = sampled = 0
        admitted: dict[str, AdmittedTarget] = {}
        for head in heads:
            drawn = decide_trace(effective, head)
            matched += drawn.verdict in ("taken", "sampled_out")
            if drawn.verdict == "taken":
                sampled += 1
                next_ns, incomplete = compute_due_time(applied, head, applied.settings, page.now_ns)
                target = AdmittedTarget(head, drawn, incomplete, next_ns)
                earlier = admitted.get(get_sampling_unit(applied, head))
                if earlier is None or (drawn.rate or 0) > (earlier.drawn.rate or 0):
                    admitted[get_sampling_unit(applied, head)] = target
        walked = len(page.heads) < PAGE_TRACES and len(heads) == len(page.heads)
        batch = DecisionBatch(
            project=rule.project,
            rule=rule.name,
            version=rule.version,
            after=backfill.cursor,
            upto=heads[-1].cursor if heads else backfill.cursor or page.cursor,
            rows=tuple(self._build_rows(applied, admitted)),
            outcomes={target.head.trace_id: (target.head.number, "taken") for target in admitted.values()},
            token=token,
            backfill=BackfillStep(id=backfill.id, read=len(heads), matched=matched, sampled=sampled, walked=walked),
        )
        self._full_until.pop(backfill.id, None)
        if not all(self._store.decide(batch)):  # paused, cancelled, or another process decides now
            return None
        after = replace(backfill, cursor=batch.upto, walked=walked)
        return WalkedPage(after, len(heads), list(admitted.values()))

    def _build_rows(self, rule: Rule, admitted: dict[str, AdmittedTarget]) -> Iterable[Decision]:
        if rule.target in ("trace", "session"):
            return [make_decision(rule, trace_target(rule, target.head), target) for target in admitted.values()]
        return build_part_rows(self._store, rule, admitted)
