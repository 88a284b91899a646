"""Measures of a bucket: values, units, differences between two periods, and their links.

A measure is a number that the overview shows for each bucket of a chart, each group, and each period: the number of
traces, the share of errors, a percentile of the latency, tokens, cost, or the mean of a feedback key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Literal, TypeAlias

from spanwise.collector import formatting
from spanwise.collector.pages.components.feedback_display import format_label
from spanwise.collector.records import Bucket, FeedbackStats
from spanwise.collector.statistics import MIN_SHOWN_EFFECTIVE

Unit = Literal["traces", "tokens", "share", "ms", "$", "score"]
FeedbackKey: TypeAlias = tuple[str, str]  # key, and target: "trace" or "document"


@dataclass(frozen=True)
class MeasuredBucket:
    """Bucket with its feedback by key."""

    bucket: Bucket

    @cached_property
    def feedback(self) -> Mapping[FeedbackKey, FeedbackStats]:
        """Return the statistics of feedback by key and target."""
        return {(stats.key, stats.target): stats for stats in self.bucket.feedback}


@dataclass(frozen=True, slots=True)
class Measure:
    """Number of a bucket. `conditions` are pairs of a filter, or a sort order, for the traces that it is about."""

    label: str
    unit: Unit
    value: Callable[[MeasuredBucket], float | None]
    conditions: tuple[tuple[str, str], ...] = ()
    rises_are_bad: bool = False
    percentile: int | None = None
    key: FeedbackKey | None = None  # of a measure of feedback
    of_label: str | None = None  # whose share is the value

    def text(self, value: float | None) -> str:
        """Format a value with its unit."""
        if value is None:
            return "–"
        if self.unit == "share":
            return formatting.percent(value, 1)
        if self.unit == "ms":
            return formatting.milliseconds(value)
        if self.unit == "$":
            return formatting.cost(value)
        return formatting.count(round(value)) if self.unit in ("traces", "tokens") else formatting.number(value)

    def difference(self, now: float | None, before: float | None) -> str:
        """Format the difference of two values with its sign; "" if one is missing.

        Shares differ by percentage points, scores by a number, and everything else in percent of the value before.
        """
        if now is None or before is None:
            return ""
        sign, size = "+" if now > before else "−", abs(now - before)
        if self.unit == "share":
            return formatting.points(now - before)
        if self.unit == "score":
            return formatting.signed(round(now - before, 3))
        if not before:
            return f"+{self.text(now)}" if size else ""
        percent = formatting.percent(size, before)
        return "±0 %" if percent in ("0 %", "0.0 %") else f"{sign}{percent}"

    def stats(self, bucket: MeasuredBucket) -> FeedbackStats | None:
        """Return the statistics of the measure's feedback key; None if it has none in the bucket."""
        return bucket.feedback.get(self.key) if self.key else None

    def too_few(self, at: MeasuredBucket) -> bool:
        """Return whether the value is the weighted mean of so few scores that its interval is not shown."""
        stats = self.stats(at)
        return stats is not None and stats.effective is not None and 0 < stats.effective < MIN_SHOWN_EFFECTIVE

    def band(self, at: MeasuredBucket) -> tuple[float, float] | None:
        """Return the 95 % interval of the value; None without one, or if there are too few scores."""
        stats = self.stats(at)
        if stats is None or self.too_few(at):
            return None
        low, high = stats.low, stats.high
        if self.of_label is not None:
            _, low, high = stats.shares.get(self.of_label, (None, None, None))
        return None if low is None or high is None else (low, high)

    def uncertainty(self, at: MeasuredBucket) -> str:
        """Return what is known of the precision of a weighted mean, for display; "" if the mean is not weighted."""
        stats, band = self.stats(at), self.band(at)
        if stats is None or stats.effective is None:
            return ""
        if not stats.effective:
            return "unweighted: the sampling probability is unknown"
        words = [f"95 %: {self.text(band[0])} to {self.text(band[1])}" if band else ""]
        words += ["too few" if self.too_few(at) else "", f"effective n {formatting.count(round(stats.effective))}"]
        words.append(f"{formatting.count(stats.unweighted)} left out" if stats.unweighted else "")
        return ", ".join(filter(None, words))


def divide_by_traces(get: Callable[[Bucket], float]) -> Callable[[MeasuredBucket], float | None]:
    """Return the value of a measure that is an average of all traces; None without traces."""
    return lambda at: get(at.bucket) / at.bucket.traces if at.bucket.traces else None


def count_tokens(bucket: Bucket) -> int:
    """Return the tokens of a bucket."""
    return bucket.input_tokens + bucket.output_tokens


_SLOWEST = (("sort", "-latency_ms"),)
TRACES = Measure("Traces", "traces", lambda at: at.bucket.traces)
ERRORS = Measure(
    "Errors", "share", divide_by_traces(lambda bucket: bucket.errors), (("status", "error"),), rises_are_bad=True
)
P50 = Measure("p50", "ms", lambda at: at.bucket.p50_ms, _SLOWEST, rises_are_bad=True, percentile=50)
P95 = Measure("p95", "ms", lambda at: at.bucket.p95_ms, _SLOWEST, rises_are_bad=True, percentile=95)
P99 = Measure("p99", "ms", lambda at: at.bucket.p99_ms, _SLOWEST, rises_are_bad=True, percentile=99)
TOKENS = Measure(
    "Tokens", "tokens", lambda at: count_tokens(at.bucket) if at.bucket.traces else None, (("sort", "-tokens"),)
)
COST = Measure(
    "Cost", "$", lambda at: at.bucket.cost if at.bucket.traces else None, (("sort", "-cost"),), rises_are_bad=True
)
TOKENS_PER_TRACE = Measure("Tokens per trace", "tokens", divide_by_traces(count_tokens), TOKENS.conditions)
COST_PER_TRACE = Measure(
    "Cost per trace", "$", divide_by_traces(lambda bucket: bucket.cost), COST.conditions, rises_are_bad=True
)
MEASURES = (TRACES, ERRORS, P50, P95, P99, TOKENS, COST)


def get_feedback_measure(stats: FeedbackStats) -> Measure:
    """Return the measure of a feedback key, of which `stats` are the statistics of the whole time range.

    It is the mean of the scores, as a share if all of them are 0 or 1. Without scores, it is the share of the most
    frequent label.
    """
    key: FeedbackKey = (stats.key, stats.target)
    condition = "document_feedback" if stats.target == "document" else "feedback"
    if not stats.n and stats.labels:
        label = max(sorted(stats.labels), key=lambda name: stats.labels[name])

        def share(at: MeasuredBucket) -> float | None:
            found = at.feedback.get(key)
            if found is None or not found.labels:
                return None
            if found.shares:
                return found.shares.get(label, (0.0, None, None))[0]
            return found.labels.get(label, 0) / sum(found.labels.values())

        return Measure(
            f"{stats.key}: {format_label(label)}",
            "share",
            share,
            ((condition, f"{stats.key}={label}"),),
            key=key,
            of_label=label,
        )

    def mean(at: MeasuredBucket) -> float | None:
        found = at.feedback.get(key)
        return None if found is None or found.mean is None else float(found.mean)

    unit: Unit = "share" if stats.binary else "score"
    return Measure(stats.key, unit, mean, ((condition, f"{stats.key}>=-inf"),), key=key)


def list_feedback_measures(total: Bucket) -> list[Measure]:
    """Return the measures of all feedback keys of a bucket, those with most outcomes first."""
    return [
        get_feedback_measure(stats)
        for stats in sorted(
            total.feedback,
            key=lambda stats: (-(stats.n + stats.labelled + stats.failed + stats.skipped), stats.key, stats.target),
        )
    ]


def get_standard_score(measure: Measure, now: MeasuredBucket, before: MeasuredBucket) -> float | None:
    """Return the difference of two periods in standard errors; None if that is unknown.

    Counts of traces are taken as Poisson distributed. The variance of shares and scores is bounded by their extremes
    (Bhatia and Davis 2000), so that the result is rather too small than too large.
    """
    if measure.unit == "traces":
        total = now.bucket.traces + before.bucket.traces
        return (now.bucket.traces - before.bucket.traces) / sqrt(total) if total else None
    means, variance = [], 0.0
    for at in (now, before):
        value, stats = measure.value(at), measure.stats(at)
        n: float = at.bucket.traces if stats is None else stats.n or sum(stats.labels.values())
        if stats is not None and stats.effective:
            n = min(n, stats.effective)
        if value is None or not n:
            return None
        low, high = 0.0, 1.0
        if measure.unit == "score" and stats is not None and stats.minimum is not None and stats.maximum is not None:
            low, high = float(stats.minimum), float(stats.maximum)
        # a few values may be equal by chance, so the variance is at least what one different value would cause
        variance += max((high - value) * (value - low), (high - low) ** 2 / n) / n
        means.append(value)
    return (means[0] - means[1]) / sqrt(variance) if variance else None


def get_extent(values: Sequence[float | None]) -> tuple[float, float]:
    """Return the smallest and the largest value, (0, 0) without values."""
    known = [value for value in values if value is not None]
    return min(known, default=0.0), max(known, default=0.0)
