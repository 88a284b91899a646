"""How monitors fare, for `/metrics`: per rule its queue, lag, rate, spend, evaluators; read at most every few seconds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

from assay.collector import verdicts
from assay.collector._metrics import Labels, gauge_lines
from assay.collector.errors import StoreError
from assay.collector.records import RuleStatus
from assay.collector.stores import Store

FRESH_S = 5.0
RULES, EVALUATORS = 100, 20  # at most so many series of each kind: all rules, and of each rule
_NAMES = {
    "assay_rule_targets": "Targets of a rule's version in force, by verdict.",
    "assay_rule_behind_changes": "Changes of traces that a rule has not decided on yet.",
    "assay_rule_lag_seconds": "Age of the oldest of these.",
    "assay_rule_rate": "Sample rate in force, outside of strata.",
    "assay_rule_spend": "Booked on a rule's budget in the present period: settled, reserved, or repeated by crashes.",
    "assay_rule_budget": "Limit of a rule's budget.",
    "assay_rule_evaluations_per_second": "What living workers say of their throughput.",
    "assay_rule_evaluator_looked": "Targets that an evaluator has looked at, of living workers since they began.",
    "assay_rule_evaluator_failed": "Those of them that failed.",
    "assay_rule_evaluator_p95_seconds": "The slowest worker's 95th percentile of an evaluator's calls.",
    "assay_rule_workers": "Living workers that carry out the version in force.",
}
Sample = tuple[str, Labels, float]


class RuleMetrics:
    """Text about all rules, which is kept for a few seconds: many may ask, the store is asked once."""

    def __init__(self) -> None:
        self._text, self._until = "", 0.0

    def text(self, store: Store) -> str:
        """Prometheus' text format; what it was before where the store cannot say now."""
        if time.monotonic() >= self._until:
            with suppress(StoreError):
                self._text = _text(store.status()[:RULES])
            self._until = time.monotonic() + FRESH_S
        return self._text


def _text(statuses: Iterable[RuleStatus]) -> str:
    series: dict[str, list[tuple[Labels, float]]] = {}
    for status in statuses:
        for name, labels, value in _samples(status, time.time_ns()):
            series.setdefault(name, []).append((labels, value))
    lines = [line for name, help in _NAMES.items() if name in series for line in gauge_lines(name, help, series[name])]
    return "".join(f"{line}\n" for line in lines)


def _samples(status: RuleStatus, now_ns: int) -> Iterator[Sample]:
    own: Labels = (("project", status.rule.project), ("rule", status.rule.name))
    for verdict in verdicts.WORDS:
        yield "assay_rule_targets", (*own, ("verdict", verdict)), status.counts.get(verdict, 0)
    yield "assay_rule_behind_changes", own, status.behind
    yield "assay_rule_lag_seconds", own, status.lag_s
    yield "assay_rule_rate", own, status.rate
    yield "assay_rule_workers", own, len(verdicts.carrying(status, now_ns))
    yield from _money(own, status)
    yield from _work(own, status, now_ns)


def _money(own: Labels, status: RuleStatus) -> Iterator[Sample]:
    for budget in verdicts.spending(status.rule, status.booked):
        labels = (*own, ("budget", budget.name))
        yield "assay_rule_budget", labels, budget.limit
        for state in ("settled", "reserved", "repeated"):
            yield "assay_rule_spend", (*labels, ("state", state)), getattr(budget, state)


def _work(own: Labels, status: RuleStatus, now_ns: int) -> Iterator[Sample]:
    work = verdicts.work(status, now_ns)
    if work.per_s is not None:
        yield "assay_rule_evaluations_per_second", own, work.per_s
    for one in work.evaluators[:EVALUATORS]:
        labels = (*own, ("evaluator", one.key))
        yield "assay_rule_evaluator_looked", labels, one.looked
        yield "assay_rule_evaluator_failed", labels, one.failed
        if one.p95_s is not None:
            yield "assay_rule_evaluator_p95_seconds", labels, one.p95_s
