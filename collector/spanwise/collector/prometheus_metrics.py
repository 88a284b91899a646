"""Prometheus metrics of the collector and of monitoring rules."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain

from spanwise.collector.diagnostics import rule_report
from spanwise.collector.errors import StoreError
from spanwise.collector.records import Rule, RuleStatus, Spend
from spanwise.collector.rule_policy import find_period
from spanwise.collector.statistics import SampledMean
from spanwise.collector.stores import GRAIN_NS, Store, estimate_over_time

Labels = tuple[tuple[str, str], ...]

HISTOGRAM_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)

METRIC_HELP = {
    "spanwise_received_total": "Spans or log records received, including refused ones.",
    "spanwise_stored_total": "Spans or feedback records that are durable and acknowledged.",
    "spanwise_refused_total": "Single spans or log records refused, by reason.",
    "spanwise_feedback_out_total": "Feedback that a target of --feedback-to has accepted.",
    "spanwise_feedback_out_dropped_total": "Feedback that a target has refused permanently, by reason.",
    "spanwise_feedback_out_failures_total": "Failed attempts to forward feedback to a target, by reason.",
    "spanwise_feedback_out_waiting": "Feedback in the store that waits to be forwarded.",
    "spanwise_beside_stored_total": "Stored side records: feedback, and content of other spans, that arrived within spans.",
    "spanwise_beside_refused_total": "Refused side records, by reason; their spans were stored.",
    "spanwise_passed_over_total": "Log records and metrics that were accepted but not stored, because Spanwise uses nothing in them.",
    "spanwise_requests_refused_total": "Requests answered with an error, by reason.",
    "spanwise_dialect_errors_total": "Spans or log records read without a dialect, because the dialect failed on them.",
    "spanwise_decoders": "Running decode worker processes.",
    "spanwise_decoder_requests_total": "Requests decoded in worker processes.",
    "spanwise_decoder_seconds_total": "CPU seconds that worker processes spent on decoding.",
    "spanwise_decoder_deaths_total": "Decode worker processes that ended unexpectedly or could not start, by reason.",
    "spanwise_acknowledgement_seconds": "Time from the last byte of a request to its acknowledgement.",
    "spanwise_commit_seconds": "Time from passing a request to the store until it is durable, including the time in the queue.",
    "spanwise_forwarded_total": "Requests that a target of --forward has accepted.",
    "spanwise_forward_rejected_total": "Spans, log records or metrics in accepted requests that the target reported as rejected.",
    "spanwise_forward_dropped_total": "Requests dropped for a target, by reason.",
    "spanwise_forward_failures_total": "Failed attempts to forward to a target, by reason; they are retried.",
    "spanwise_forward_loops_total": "Requests that returned to a collector that had forwarded them; they are not forwarded again.",
    "spanwise_forward_waiting_bytes": "Bytes on disk that wait to be forwarded to a target.",
    "spanwise_forward_waiting_seconds": "Age of the oldest request that waits to be forwarded.",
    "spanwise_notifications_delivered_total": "Notifications of alerts that a target has accepted.",
    "spanwise_notification_failures_total": "Failed attempts to deliver a notification to a target; they are retried.",
    "spanwise_notifications_given_up_total": "Notifications that a target has not accepted for a day; they are not sent again.",
    "spanwise_pending_bytes": "Bytes of the requests that are being read, decoded or written.",
    "spanwise_start_time_seconds": "Time at which this process started to serve, in seconds since the epoch.",
}


class Histogram:
    """Prometheus histogram: counts by upper bound, and the sum of all values."""

    def __init__(self) -> None:
        self.counts, self.sum = [0] * (len(HISTOGRAM_BUCKETS) + 1), 0.0

    def lines(self, name: str, labels: Labels) -> Iterable[str]:
        """Yield the lines of the text format: cumulative buckets, sum and count."""
        total = 0
        for bound, count in zip((*map(str, HISTOGRAM_BUCKETS), "+Inf"), self.counts, strict=True):
            total += count
            yield f"{name}_bucket{_format_labels((*labels, ('le', bound)))} {total}"
        yield f"{name}_sum{_format_labels(labels)} {self.sum!r}"
        yield f"{name}_count{_format_labels(labels)} {total}"


class Metrics:
    """Counters, gauges and histograms of one server. Safe to call from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, Histogram]] = {}
        self._gauges: dict[str, dict[Labels, Callable[[], float]]] = {}

    def add(self, name: str, amount: float, **labels: str) -> None:
        """Increment a counter."""
        key = tuple(labels.items())
        with self._lock:
            series = self._counters.setdefault(name, {})
            series[key] = series.get(key, 0) + amount

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add a duration in seconds to a histogram."""
        key = tuple(labels.items())
        with self._lock:
            series = self._histograms.setdefault(name, {})
            histogram = series.get(key) or series.setdefault(key, Histogram())
            histogram.counts[bisect_left(HISTOGRAM_BUCKETS, value)] += 1
            histogram.sum += value

    def gauge(self, name: str, read: Callable[[], float], **labels: str) -> None:
        """Register a gauge; `read` is called on every scrape."""
        self._gauges.setdefault(name, {})[tuple(labels.items())] = read

    def value(self, name: str, **labels: str) -> float:
        """Return the value of a counter; without labels, the total of its series."""
        series = self._counters.get(name, {})
        return series.get(tuple(labels.items()), 0) if labels else sum(series.values())

    def text(self, extra: Mapping[str, float] | None = None) -> str:
        """Return all metrics, including the `extra` gauges, in Prometheus' text format."""
        with self._lock:
            lines: list[str] = []
            for name, counters in self._counters.items():
                lines += _header_lines(name, "counter")
                lines += (f"{name}{_format_labels(labels)} {value!r}" for labels, value in counters.items())
            for name, histograms in self._histograms.items():
                lines += _header_lines(name, "histogram")
                for labels, histogram in histograms.items():
                    lines += histogram.lines(name, labels)
        for name, gauges in self._gauges.items():
            lines += _header_lines(name, "gauge")
            lines += (f"{name}{_format_labels(labels)} {read()!r}" for labels, read in gauges.items())
        for name, value in (extra or {}).items():
            lines += [*_header_lines(name, "gauge"), f"{name} {value!r}"]
        return "\n".join(lines) + "\n"


def format_gauge(name: str, help: str, values: Iterable[tuple[Labels, float]]) -> Iterable[str]:
    """Yield the lines of one gauge with its description and labelled values."""
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} gauge"
    for labels, value in values:
        yield f"{name}{_format_labels(labels)} {float(value)!r}"


def _header_lines(name: str, kind: str) -> Iterable[str]:
    if name in METRIC_HELP:
        yield f"# HELP {name} {METRIC_HELP[name]}"
    yield f"# TYPE {name} {kind}"


_LABEL_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def _format_labels(labels: Labels) -> str:
    inner = ",".join(f'{name}="{value.translate(_LABEL_ESCAPES)}"' for name, value in labels)
    return f"{{{inner}}}" if inner else ""


RULE_CACHE_S = 5.0
MAX_METRIC_RULES, MAX_METRIC_EVALUATORS = 100, 20  # limits on the number of series: rules, and evaluators per rule
_RULE_METRIC_HELP = {
    "spanwise_rule_targets": "Traces of a rule's version in force, by verdict; each counts once.",
    "spanwise_rule_behind_changes": "Changes of traces that a rule has not decided on yet.",
    "spanwise_rule_lag_seconds": "Age of the oldest of these.",
    "spanwise_rule_rate": "Sample rate in force, outside of strata.",
    "spanwise_rule_spend": "Booked on a rule's budget in the present period: settled, reserved, or of unknown cost.",
    "spanwise_rule_usd": "US dollars of a rule's judge calls in the present UTC month: settled, reserved, or of unknown cost.",
    "spanwise_rule_budget": "Limit of a rule's budget.",
    "spanwise_rule_evaluator_looked": "Evaluations by an evaluator, by the running workers since they started.",
    "spanwise_rule_evaluator_failed": "Evaluations of spanwise_rule_evaluator_looked that failed.",
    "spanwise_rule_evaluator_p95_seconds": "The slowest worker's 95th percentile of an evaluator's calls.",
    "spanwise_rule_score_mean": "Weighted mean of a rule's scores of the traces that started in the last 24 hours.",
    "spanwise_rule_score_low": "Lower end of its 95 % interval; absent with an effective number of scores below 10.",
    "spanwise_rule_score_high": "Upper end of its 95 % interval.",
    "spanwise_rule_score_effective": "Effective number of these scores.",
    "spanwise_rule_score_outcomes": "Scores, failed and skipped evaluations, and scores of unknown weight, of these traces.",
    "spanwise_rule_workers": "Living workers that carry out the version in force.",
    "spanwise_monitor_finished_per_second": "Targets of any rule that living workers finish.",
    "spanwise_monitor_decided_per_second": "Traces that living workers decide on, for each rule.",
}
Sample = tuple[str, Labels, float]
SCORE_WINDOW_NS = 86_400 * 10**9


class RuleMetrics:
    """Cache of the metrics of all rules, so that scrapes cause at most one store query per `RULE_CACHE_S` seconds."""

    def __init__(self) -> None:
        self._text, self._until = "", 0.0

    def text(self, store: Store) -> str:
        """Return the metrics of the rules in Prometheus' text format; the cached text if the store cannot answer."""
        if time.monotonic() >= self._until:
            with suppress(StoreError):
                month_ns, _ = find_period("month", time.time_ns())
                spend = {
                    (each.project, each.rule): each for each in store.spend(by=("project", "rule"), since_ns=month_ns)
                }
                self._text = _rule_metrics_text(store, store.status()[:MAX_METRIC_RULES], spend)
            self._until = time.monotonic() + RULE_CACHE_S
        return self._text


def _rule_metrics_text(
    store: Store, statuses: Sequence[RuleStatus], spend: Mapping[tuple[str | None, str | None], Spend]
) -> str:
    series: dict[str, list[tuple[Labels, float]]] = {}
    now_ns = time.time_ns()
    samples: list[Sample] = []
    if statuses:
        finished, decided = rule_report.sum_throughput(
            (worker for status in statuses for worker in status.workers), now_ns
        )
        samples.append(("spanwise_monitor_finished_per_second", (), finished))
        samples.append(("spanwise_monitor_decided_per_second", (), decided))
    samples += chain.from_iterable(_rule_samples(status, now_ns) for status in statuses)
    samples += chain.from_iterable(_score_samples(store, status.rule, now_ns) for status in statuses)
    for status in statuses:
        labels: Labels = (("project", status.rule.project), ("rule", status.rule.name))
        if (spent := spend.get((status.rule.project, status.rule.name))) is not None:
            for state in ("settled", "reserved", "unknown"):
                samples.append(("spanwise_rule_usd", (*labels, ("state", state)), getattr(spent, state)))
    for name, labels, value in samples:
        series.setdefault(name, []).append((labels, value))
    lines = [
        line
        for name, help in _RULE_METRIC_HELP.items()
        if name in series
        for line in format_gauge(name, help, series[name])
    ]
    return "".join(f"{line}\n" for line in lines)


def _rule_samples(status: RuleStatus, now_ns: int) -> Iterator[Sample]:
    rule_labels: Labels = (("project", status.rule.project), ("rule", status.rule.name))
    for verdict in rule_report.WORDS:
        yield "spanwise_rule_targets", (*rule_labels, ("verdict", verdict)), status.counts.get(verdict, 0)
    yield "spanwise_rule_behind_changes", rule_labels, status.behind
    yield "spanwise_rule_lag_seconds", rule_labels, status.lag_s
    yield "spanwise_rule_rate", rule_labels, status.rate
    yield "spanwise_rule_workers", rule_labels, len(rule_report.find_active_workers(status, now_ns))
    for budget in rule_report.spending(status.rule, status.booked):
        labels = (*rule_labels, ("budget", budget.name))
        yield "spanwise_rule_budget", labels, budget.limit
        for state in ("settled", "reserved", "unknown"):
            yield "spanwise_rule_spend", (*labels, ("state", state)), getattr(budget, state)
    for evaluator in rule_report.work(status, now_ns)[:MAX_METRIC_EVALUATORS]:
        labels = (*rule_labels, ("evaluator", evaluator.key))
        yield "spanwise_rule_evaluator_looked", labels, evaluator.looked
        yield "spanwise_rule_evaluator_failed", labels, evaluator.failed
        if evaluator.p95_s is not None:
            yield "spanwise_rule_evaluator_p95_seconds", labels, evaluator.p95_s


def _score_samples(store: Store, rule: Rule, now_ns: int) -> Iterator[Sample]:
    """Yield the estimates of a rule's keys over the traces of the last 24 hours."""
    until = -(-now_ns // GRAIN_NS) * GRAIN_NS
    since, width = until - SCORE_WINDOW_NS, SCORE_WINDOW_NS
    points = estimate_over_time(store, rule, since_ns=since, until_ns=until, bucket_ns=width)
    for point in [point for point in points if point.label is None][:MAX_METRIC_EVALUATORS]:
        mean = point.estimate
        assert isinstance(mean, SampledMean)
        labels: Labels = (("project", rule.project), ("rule", rule.name), ("key", mean.key))
        if mean.mean is not None:
            yield "spanwise_rule_score_mean", labels, mean.mean
        if mean.low is not None and mean.high is not None and not mean.too_few:
            yield "spanwise_rule_score_low", labels, mean.low
            yield "spanwise_rule_score_high", labels, mean.high
        yield "spanwise_rule_score_effective", labels, mean.effective
        counts = {"scored": mean.n, "failed": mean.failed, "skipped": mean.skipped, "left_out": mean.unknown}
        for outcome, count in counts.items():
            yield "spanwise_rule_score_outcomes", (*labels, ("outcome", outcome)), count
