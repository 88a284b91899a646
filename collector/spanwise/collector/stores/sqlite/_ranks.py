"""Percentiles of latencies that are gathered part by part, exactly."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from spanwise.collector.statistics import nearest_rank, percentile
from spanwise.collector.stores.sqlite._latencies import InOrder, alike, in_order, ordered

PERCENTS = (50, 95)


class Ranks:
    """The percentiles of `n` latencies, in nanoseconds. They are found as soon as all are there, and no latency is kept
    then: a thousand hours have as many as there are traces.
    """

    def __init__(self, n: int) -> None:
        self._left = n
        self._parts: list[InOrder] = []
        self._found: dict[int, int] | None = None

    def add(self, latencies: Iterable[int]) -> None:
        """Some of them."""
        if some := list(latencies):
            self.add_ordered(ordered(some))

    def add_ordered(self, blob: bytes) -> None:
        """The same as `_latencies.ordered` has them; damaged ones are left out."""
        try:
            part = in_order(blob)
        except ValueError:
            return
        self._parts.append(part)
        self._left -= len(part[2]) + 1
        self._found = None if self._left else self._rank()

    def _rank(self) -> dict[int, int]:
        least, unit, parts = alike(self._parts)
        self._parts.clear()
        return {percent: least + unit * _together(parts, percent) for percent in PERCENTS}

    def found(self) -> dict[int, int] | None:
        """Nanoseconds by percent; None where there were not as many as that."""
        return self._found


def _together(parts: Sequence[Sequence[int]], percent: int) -> int:
    """The percentile of all parts, each in order. It lies between the least and the greatest of their own, so that what
    lies there alone is put in order.
    """
    own = [percentile(part, percent) for part in parts]
    least, most, before = min(own), max(own), 0
    between: list[int] = []
    for part in parts:
        first = bisect_left(part, least)
        before += first
        between += part[first : bisect_right(part, most, first)]
    between.sort()
    rank = nearest_rank(sum(map(len, parts)), percent)
    return between[rank - 1 - before]
