"""One bucket of a group of an aggregate, while its parts are put together."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from spanwise.collector.records import FeedbackStats
from spanwise.collector.statistics import Tally, percentile
from spanwise.collector.stores.sqlite import _latencies


class Total:
    """Counts, latencies, and what is said. `first` and `last` are hours of the sums."""

    __slots__ = (
        "bins",
        "cost",
        "errors",
        "first",
        "input_tokens",
        "is_summed",
        "last",
        "latencies",
        "ordered",
        "output_tokens",
        "percentiles",
        "starts",
        "tallies",
        "traces",
    )

    def __init__(self) -> None:
        self.traces = self.errors = 0
        self.is_summed = False
        self.input_tokens = self.output_tokens = self.cost = 0.0
        self.first: int | None = None
        self.last: int | None = None
        self.starts: list[int] = []
        self.latencies: list[int] = []
        self.ordered: list[bytes] = []  # more of them, as `_latencies.ordered` has them
        self.bins: Mapping[int, int] = {}
        self.percentiles: dict[int, int] = {}  # that are known, in nanoseconds
        self.tallies: dict[str, Tally] = {}

    def add(self, traces: int, errors: int, input_tokens: float, output_tokens: float, cost: float) -> None:
        self.traces += traces
        self.errors += errors
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        self.cost += cost

    def add_hours(self, first: int, last: int) -> None:
        """Some of it are sums, of hours from the first to the last."""
        self.is_summed = True
        self.first = first if self.first is None else min(self.first, first)
        self.last = last if self.last is None else max(self.last, last)

    def add_said(
        self,
        key: str,
        label: str | None,
        said: int,
        n: int,
        total: float,
        minimum: float | None,
        maximum: float | None,
        failed: int,
        skipped: int,
    ) -> None:
        """Add outcomes that share a key and a label: of `said` that are no error and no skip `n` have a score."""
        labels = {} if label is None else {label: said}
        self.add_outcomes(key, n, total, minimum, maximum, said - n, labels, failed, skipped)

    def add_outcomes(
        self,
        key: str,
        n: int,
        total: float,
        minimum: float | None,
        maximum: float | None,
        labelled: int,
        labels: Mapping[str, int],
        failed: int,
        skipped: int,
    ) -> None:
        """Add outcomes of a key, `n` of them with a score; there is no extreme where none has."""
        self.tally(key).add_counts(
            n=n,
            total=total,
            minimum=inf if minimum is None else minimum,
            maximum=-inf if maximum is None else maximum,
            labelled=labelled,
            labels=labels,
            failed=failed,
            skipped=skipped,
        )

    def tally(self, key: str) -> Tally:
        """Of a key."""
        found = self.tallies.get(key)
        if found is None:
            found = self.tallies[key] = Tally()
        return found

    def percentile_ms(self, percent: int) -> float:
        if self.bins:
            return _latencies.percentile(self.bins, percent) / 1e6
        if percent in self.percentiles:
            return self.percentiles[percent] / 1e6
        self.latencies.sort()
        return percentile(self.latencies, percent) / 1e6

    @property
    def latency_error(self) -> float:
        return _latencies.ERROR if self.bins else 0.0

    def stats(self) -> tuple[FeedbackStats, ...]:
        """By name."""
        return tuple(self.tallies[key].stats(key) for key in sorted(self.tallies))
