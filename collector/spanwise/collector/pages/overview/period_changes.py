"""Measures that changed most from one period to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spanwise.collector.pages.overview.bucket_measures import (
    COST_PER_TRACE,
    ERRORS,
    P50,
    P95,
    P99,
    TOKENS_PER_TRACE,
    TRACES,
    Measure,
    MeasuredBucket,
    get_standard_score,
    list_feedback_measures,
)

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
