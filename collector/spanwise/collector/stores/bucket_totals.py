"""Totals of the buckets of an aggregate, in all trace backends: counts, exact percentiles, tallies of feedback."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Literal, TypeAlias

from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter
from spanwise.collector.records import Bucket, FeedbackStats
from spanwise.collector.statistics import Tally, percentile

MAX_BUCKETS = 10_000  # limit of an answer (2 KB per bucket); with narrow buckets, there could be one for each trace
MAX_NEWEST = 100_000  # limit of `newest`
PERCENTS = (50, 95, 99)
# Feedback on documents is counted apart from feedback on traces and spans: its key has this suffix
DOCUMENT_SUFFIX = "\x1fdocument"

BucketKey: TypeAlias = tuple[int, str | None]  # start of a bucket, group


class TooManyBuckets(Refused):
    """More buckets than one answer may have."""

    def __init__(self, most: int) -> None:
        remedy = "use wider buckets, a shorter time range, no groups, or only the `newest` traces"
        super().__init__(f"more than {most:,} buckets in one answer: {remedy}")


def check_arguments(
    bucket_ns: int | None, group_by: str | None, groups: Collection[str], newest: int | Literal["all"] | None
) -> None:
    """Raise `Refused` for an invalid argument of `TraceStore.aggregate`. `groups` are the fields for `group_by`."""
    if bucket_ns is not None and bucket_ns <= 0:
        raise Refused(f"bucket_ns must be a positive number of nanoseconds, got {bucket_ns!r}")
    if group_by is not None and group_by not in groups:
        raise Refused(f"cannot group by {group_by!r}; use one of {', '.join(groups)}")
    if newest is not None and newest != "all" and not 1 <= newest <= MAX_NEWEST:
        raise Refused(f"newest must be 1 to {MAX_NEWEST:,} or 'all', got {newest!r}")


def get_place_order(place: BucketKey) -> tuple[int, bool, str]:
    """Return the sort key of a bucket: by time, then group; traces without a group come first."""
    return place[0], place[1] is not None, place[1] or ""


# Limits of the groups by time to the first token, in milliseconds
FIRST_TOKEN_RANGES_MS = (100, 200, 500, 1_000, 2_000, 5_000, 10_000)


def make_range_sql(column: str, limits: Sequence[int]) -> str:
    """Return SQL for the range of a number, such as `100 to 200`; NULL if the column is NULL."""
    names = [f"< {limits[0]}", *(f"{low} to {high}" for low, high in pairwise(limits)), f">= {limits[-1]}"]
    cases = [f"WHEN {column} < {limit} THEN '{name}'" for limit, name in zip(limits, names, strict=False)]
    return f"CASE WHEN {column} IS NULL THEN NULL {' '.join(cases)} ELSE '{names[-1]}' END"


# SQL of the groups that all backends have as columns of a row `t` of `traces`
TRACE_GROUPS: Mapping[str, str] = {
    **{name: f"t.{name}" for name in ("project", "environment", "name")},
    **{name: f"t.{name}_id" for name in ("user", "session", "experiment")},
    "time_to_first_token_ms": make_range_sql("t.time_to_first_token_ms", FIRST_TOKEN_RANGES_MS),
}


class BucketTotals:
    """Counts, latencies and feedback of a bucket while it is computed. `starts` has its first and last start."""

    __slots__ = ("cost", "errors", "input_tokens", "latencies", "output_tokens", "starts", "tallies", "traces")

    def __init__(self) -> None:
        self.traces = self.errors = 0
        self.input_tokens = self.output_tokens = self.cost = 0.0
        self.starts: list[int] = []
        self.latencies: list[int] = []
        self.tallies: defaultdict[str, Tally] = defaultdict(Tally)

    def add(self, traces: int, errors: int, input_tokens: float, output_tokens: float, cost: float) -> None:
        """Add the counts of traces."""
        self.traces += traces
        self.errors += errors
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        self.cost += cost

    def add_feedback(
        self,
        key: str,
        label: str | None,
        said: int,
        n: int,
        total: float,
        binary: int,
        minimum: float | None,
        maximum: float | None,
        failed: int,
        skipped: int,
    ) -> None:
        """Add outcomes with the same key and label. `said` counts those that are neither error nor skip; `n` of them
        have a score, and `binary` the score 0 or 1. Without any score, the extremes are None.
        """
        self.tallies[key].add_counts(
            n=n,
            total=total,
            binary=binary,
            minimum=inf if minimum is None else minimum,
            maximum=-inf if maximum is None else maximum,
            labelled=said - n,
            labels={} if label is None else {label: said},
            failed=failed,
            skipped=skipped,
        )

    def percentiles_ms(self) -> tuple[float, float, float, float]:
        """Return the 50th, 95th and 99th percentile of the latencies, and their relative error."""
        self.latencies.sort()
        p50, p95, p99 = (percentile(self.latencies, percent) / 1e6 for percent in PERCENTS)
        return p50, p95, p99, 0.0

    def stats(self) -> tuple[FeedbackStats, ...]:
        """Return the statistics of all keys, by key."""
        return tuple(name_target(self.tallies[key].stats(key)) for key in sorted(self.tallies))

    def bucket(self, place: BucketKey, filter: Filter, bucket_ns: int | None) -> Bucket:
        """Return the finished bucket. Without `bucket_ns`, it covers the time range of the filter, else of its traces."""
        start, width = place[0], bucket_ns
        if width is None:
            since, until = filter.since_ns, filter.until_ns
            start = since if since is not None else min(self.starts)
            width = (until if until is not None else max(self.starts) + 1) - start
        p50_ms, p95_ms, p99_ms, latency_error = self.percentiles_ms()
        return Bucket(
            start_ns=start,
            width_ns=width,
            group=place[1],
            traces=self.traces,
            errors=self.errors,
            p50_ms=p50_ms,
            p95_ms=p95_ms,
            p99_ms=p99_ms,
            latency_error=latency_error,
            input_tokens=int(self.input_tokens),
            output_tokens=int(self.output_tokens),
            cost=self.cost,
            feedback=self.stats(),
        )


def name_target(stats: FeedbackStats) -> FeedbackStats:
    """Return statistics under a key of the tallies with the key of the feedback, and with its target."""
    if not stats.key.endswith(DOCUMENT_SUFFIX):
        return stats
    return replace(stats, key=stats.key.removesuffix(DOCUMENT_SUFFIX), target="document")
