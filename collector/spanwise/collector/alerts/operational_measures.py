"""Operational measures of alerts, read from the state of rules and of the store: errors, lag, spend, silence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from itertools import islice

from spanwise.collector.alert_policy import OPERATIONAL_MEASURES
from spanwise.collector.records import Alert, AlertNumbers, RuleStatus, iterate_pages
from spanwise.collector.rule_policy import get_budget_name
from spanwise.collector.statistics import GRAIN_S, WINDOW_BLOCKS
from spanwise.collector.stores import Store
from spanwise.collector.stores.decision_explanation import WORKER_TIMEOUT_NS, find_load_error

MAX_RESULTS, MAX_SCORES = 20_000, 1_000  # of the latest traces, of which the newest score is found
_SECOND = 1_000_000_000


def read_measure(store: Store, alert: Alert, now_ns: int) -> AlertNumbers:
    """Return the present value of an alert's operational measure, and whether it is a breach.

    An alert without a rule covers all rules of its project: the largest value counts. For measures that are true or
    false, the value is the number of rules for which it is true.
    """
    window = AlertNumbers(since_ns=now_ns - int(alert.window_s) * _SECOND, until_ns=now_ns)
    if alert.no_score_for_s is not None:
        return _measure_silence(store, alert, now_ns)
    assert alert.measure is not None
    if alert.measure == "store_full":
        return _make_numbers(alert, window, float(store.is_full()))
    found = [status for status in store.status(project=alert.project) if alert.rule in (None, status.rule.name)]
    if not found:
        name = f"no rule {alert.rule!r}" if alert.rule is not None else "no rules"
        return _make_numbers(alert, window, None, f"there are {name} in project {alert.project!r}")
    if alert.measure == "evaluator_errors":
        values = [_share_of_errors(store, status, window) for status in found]
        known = [value for value in values if value is not None]
        return _make_numbers(alert, window, max(known, default=None), "" if known else "no results in the window")
    of_rules = [_measure_rule(alert.measure, status, now_ns) for status in found]
    return _make_numbers(alert, window, max(of_rules) if OPERATIONAL_MEASURES[alert.measure][0] else sum(of_rules))


def _make_numbers(alert: Alert, window: AlertNumbers, value: float | None, missing: str = "") -> AlertNumbers:
    threshold, is_breach = 0.0, None if value is None else value > 0
    if alert.above is not None:
        threshold, is_breach = alert.above, None if value is None else value > alert.above
    elif alert.below is not None:
        threshold, is_breach = alert.below, None if value is None else value < alert.below
    return AlertNumbers(
        value=value,
        threshold=threshold,
        missing=missing,
        is_breach=is_breach,
        since_ns=window.since_ns,
        until_ns=window.until_ns,
    )


def _measure_silence(store: Store, alert: Alert, now_ns: int) -> AlertNumbers:
    """Return the seconds since the rule gave its last score; a rule that never gave one has no data.

    The time of scoring counts here, not the start of the trace: a rule that works off old traces is not silent.
    """
    assert alert.rule is not None
    results = iterate_pages(partial(store.weighted, alert.rule, key=alert.key, project=alert.project, limit=1000))
    scores = (one for one in islice(results, MAX_RESULTS) if one.outcome == "score" and one.live_probability != 0)
    newest = max((score.created_ns for score in islice(scores, MAX_SCORES)), default=None)
    seconds = None if newest is None else max(0.0, (now_ns - newest) / _SECOND)
    assert alert.no_score_for_s is not None
    return AlertNumbers(
        value=seconds,
        threshold=alert.no_score_for_s,
        missing="" if newest is not None else f"rule {alert.rule!r} has never given a score",
        is_breach=None if seconds is None else seconds > alert.no_score_for_s,
        since_ns=newest or now_ns,
        until_ns=now_ns,
    )


def _share_of_errors(store: Store, status: RuleStatus, window: AlertNumbers) -> float | None:
    grain_ns = GRAIN_S * _SECOND
    until_ns = (window.until_ns // grain_ns + 1) * grain_ns
    block_ns = (window.until_ns - window.since_ns) // WINDOW_BLOCKS
    sums = store.score_sums(
        status.rule.name,
        project=status.rule.project,
        since_ns=until_ns - WINDOW_BLOCKS * block_ns,
        until_ns=until_ns,
        block_s=block_ns // _SECOND,
        live=True,
    )
    failed: dict[tuple[str, int], int] = defaultdict(int)
    given: dict[tuple[str, int], int] = defaultdict(int)
    for each in sums:  # a result may have a score, a label, or both
        place = each.key, each.start_ns
        failed[place] = max(failed[place], each.failed)
        given[place] = max(given[place], each.n + each.left_out)
    results = sum(failed.values()) + sum(given.values())
    return sum(failed.values()) / results if results else None


def _measure_rule(measure: str, status: RuleStatus, now_ns: int) -> float:
    """Return the value of a measure for one rule; 1 or 0 for measures that are true or false."""
    rule = status.rule
    living = [worker for worker in status.workers if now_ns - worker.seen_ns < WORKER_TIMEOUT_NS]
    if measure == "lag_s":
        return status.lag_s
    if measure == "budget_used":  # of the tightest budget; 0 without a budget
        limits = {get_budget_name(rule, name): limit for name, limit in rule.settings.budget.items() if limit}
        used = [usage for usage in status.booked if usage.budget in limits]
        return max(((one.settled + one.reserved + one.unknown) / limits[one.budget] for one in used), default=0.0)
    if measure == "no_worker":
        return float(rule.enabled and not any(rule.name in worker.rules for worker in living))
    if measure == "rules_broken":
        return float(any(find_load_error(rule, worker) for worker in living))
    assert measure == "rule_paused"
    paused = (worker.data.get("paused") for worker in living)
    return float(any(isinstance(one, Mapping) and one.get(rule.name) for one in paused))
