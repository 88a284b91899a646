"""Measures of a bucket: values, units, differences between two periods, and those that changed most.

A measure is a number that the overview shows for each bucket of a chart, each group, and each period: the number of
traces, the share of errors, a percentile of the latency, tokens, cost, or the mean of a feedback key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Literal, TypeAlias

from spanwise.collector import formatting
from spanwise.collector.pages.components.feedback_display import format_label
from spanwise.collector.records import Bucket, FeedbackStats
from spanwise.collector.statistics import MIN_SHOWN_EFFECTIVE

# Measures of a bucket: values, units, differences between two periods, and their links.

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
        """Return the known precision of a weighted mean, for display; "" if the mean is not weighted."""
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


# Measures that changed most from one period to the next.

MAX_CHANGES = 5
NEARLY = 0.7  # a group does not stand out if all traces changed by at least this part of its change
MIN_STANDARD_SCORE = 3.0  # counts, shares and scores must differ by this many standard errors
MIN_RATIO = 0.1  # and by this part of the value before
MIN_RATIO_OF_ESTIMATES = 0.2  # the same for percentiles and averages, whose standard errors are unknown
MIN_TRACES_ABOVE = 5  # a percentile counts if at least this many traces are above it
MIN_TRACES = 30  # an average per trace counts from this number of traces on
_SMALLEST_SHARE = 0.02  # lower limit of the divisor for shares and scores, because a ratio to nearly 0 is huge


@dataclass(frozen=True, slots=True)
class Change:
    """Measure that differs between two periods, in all traces (`group` is None) or in those of one group."""

    measure: Measure
    group: str | None
    now: float
    before: float
    size: float  # difference divided by the value before; larger changes are shown first

    @property
    def subject(self) -> str:
        """Return the name under which related measures are one: all percentiles are the latency."""
        return "latency" if self.measure.percentile else self.measure.label

    @property
    def judgement(self) -> str:
        """Return "worse" or "better" if a rise has such a meaning, else ""."""
        if not self.measure.rises_are_bad:
            return ""
        return "worse" if self.rises else "better"

    @property
    def rises(self) -> bool:
        """Return whether the value has risen."""
        return self.now > self.before


def find_changes(
    now: MeasuredBucket,
    before: MeasuredBucket,
    groups: Mapping[str, tuple[MeasuredBucket, MeasuredBucket]],
) -> list[Change]:
    """Return the largest notable changes of a period and of its groups, each given as (now, before).

    Of percentiles, only the one that changed most is returned. A change of a group is left out if the same measure of
    all traces changed nearly as much.
    """
    overall: dict[str, Change] = {}
    for change in sorted(_compare(now, before, None), key=lambda change: -change.size):
        overall.setdefault(change.subject, change)
    found = dict[tuple[str | None, str], Change]({(None, subject): change for subject, change in overall.items()})
    of_groups = [change for name, pair in groups.items() for change in _compare(*pair, name)]
    for change in sorted(of_groups, key=lambda change: -change.size):
        common = overall.get(change.subject)
        if common is None or common.rises != change.rises or common.size < NEARLY * change.size:
            found.setdefault((change.group, change.subject), change)
    return sorted(found.values(), key=lambda change: -change.size)[:MAX_CHANGES]


def _compare(now: MeasuredBucket, before: MeasuredBucket, group: str | None) -> Iterable[Change]:
    measures = (TRACES, ERRORS, P50, P95, P99, TOKENS_PER_TRACE, COST_PER_TRACE, *list_feedback_measures(now.bucket))
    for measure in measures:
        value, value_before = measure.value(now), measure.value(before)
        if value is None or value_before is None or value == value_before:
            continue
        smallest = _SMALLEST_SHARE if measure.unit in ("share", "score") else 0.0
        size = abs(value - value_before) / max(abs(value_before), smallest) if value_before or smallest else 0.0
        if size and is_notable(measure, now, before, size):
            yield Change(measure, group, value, value_before, size)


def is_notable(measure: Measure, now: MeasuredBucket, before: MeasuredBucket, size: float) -> bool:
    """Return whether a difference, of `size` times the value before, is large and unlikely to be chance."""
    traces = min(now.bucket.traces, before.bucket.traces)
    if measure.percentile is not None:
        return size >= MIN_RATIO_OF_ESTIMATES and traces * (100 - measure.percentile) >= 100 * MIN_TRACES_ABOVE
    if measure.unit in ("tokens", "$"):
        return size >= MIN_RATIO_OF_ESTIMATES and traces >= MIN_TRACES
    score = get_standard_score(measure, now, before)
    return size >= MIN_RATIO and score is not None and abs(score) >= MIN_STANDARD_SCORE
