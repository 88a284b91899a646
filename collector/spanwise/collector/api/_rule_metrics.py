"""How monitors fare, for `/metrics`: per rule its queue, lag, rate, spend and evaluators."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain

from spanwise.collector import verdicts
from spanwise.collector._metrics import Labels, gauge_lines
from spanwise.collector.errors import StoreError
from spanwise.collector.records import RuleStatus
from spanwise.collector.stores import Store

FRESH_S = 5.0
RULES, EVALUATORS = 100, 20  # at most so many series of each kind: all rules, and of each rule
_NAMES = {
    "spanwise_rule_targets": "Traces of a rule's version in force, by verdict; each counts once.",
    "spanwise_rule_behind_changes": "Changes of traces that a rule has not decided on yet.",
    "spanwise_rule_lag_seconds": "Age of the oldest of these.",
    "spanwise_rule_rate": "Sample rate in force, outside of strata.",
    "spanwise_rule_spend": "Booked on a rule's budget in the present period: settled, reserved, or of unknown cost.",
    "spanwise_rule_budget": "Limit of a rule's budget.",
    "spanwise_rule_evaluator_looked": "Evaluations by an evaluator, by the running workers since they started.",
    "spanwise_rule_evaluator_failed": "Evaluations of spanwise_rule_evaluator_looked that failed.",
    "spanwise_rule_evaluator_p95_seconds": "The slowest worker's 95th percentile of an evaluator's calls.",
    "spanwise_rule_workers": "Living workers that carry out the version in force.",
    "spanwise_monitor_finished_per_second": "Targets of any rule that living workers finish.",
    "spanwise_monitor_decided_per_second": "Traces that living workers decide on, for each rule.",
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


def _text(statuses: Sequence[RuleStatus]) -> str:
    series: dict[str, list[tuple[Labels, float]]] = {}
    now_ns = time.time_ns()
    for name, labels, value in chain(_whole(statuses, now_ns), *(_samples(one, now_ns) for one in statuses)):
        series.setdefault(name, []).append((labels, value))
    lines = [line for name, help in _NAMES.items() if name in series for line in gauge_lines(name, help, series[name])]
    return "".join(f"{line}\n" for line in lines)


def _whole(statuses: Sequence[RuleStatus], now_ns: int) -> Iterator[Sample]:
    if statuses:
        finished, decided = verdicts.throughput((worker for one in statuses for worker in one.workers), now_ns)
        yield "spanwise_monitor_finished_per_second", (), finished
        yield "spanwise_monitor_decided_per_second", (), decided


def _samples(status: RuleStatus, now_ns: int) -> Iterator[Sample]:
    own: Labels = (("project", status.rule.project), ("rule", status.rule.name))
    for verdict in verdicts.WORDS:
        yield "spanwise_rule_targets", (*own, ("verdict", verdict)), status.counts.get(verdict, 0)
    yield "spanwise_rule_behind_changes", own, status.behind
    yield "spanwise_rule_lag_seconds", own, status.lag_s
    yield "spanwise_rule_rate", own, status.rate
    yield "spanwise_rule_workers", own, len(verdicts.carrying(status, now_ns))
    yield from _money(own, status)
    yield from _work(own, status, now_ns)


def _money(own: Labels, status: RuleStatus) -> Iterator[Sample]:
    for budget in verdicts.spending(status.rule, status.booked):
        labels = (*own, ("budget", budget.name))
        yield "spanwise_rule_budget", labels, budget.limit
        for state in ("settled", "reserved", "unknown"):
            yield "spanwise_rule_spend", (*labels, ("state", state)), getattr(budget, state)


def _work(own: Labels, status: RuleStatus, now_ns: int) -> Iterator[Sample]:
    for one in verdicts.work(status, now_ns)[:EVALUATORS]:
        labels = (*own, ("evaluator", one.key))
        yield "spanwise_rule_evaluator_looked", labels, one.looked
        yield "spanwise_rule_evaluator_failed", labels, one.failed
        if one.p95_s is not None:
            yield "spanwise_rule_evaluator_p95_seconds", labels, one.p95_s
