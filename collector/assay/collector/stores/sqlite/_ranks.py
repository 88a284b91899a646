"""Percentiles of what sums have counted, exactly: bins say where they lie, so that few latencies are looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from assay.collector.stores.sqlite._latencies import between, bounds, places

PERCENTS = (50, 95)


class Ranks:
    """Gathers the latencies of the bins in which the percentiles of a place lie."""

    def __init__(self, bins: Counter[int]) -> None:
        self._places = places(bins, PERCENTS)
        self._counts = [bins[bin] for bin, _ in self._places]
        self._ranges = [bounds(bin) for bin, _ in self._places]
        self._inside: list[list[int]] = [[] for _ in PERCENTS]

    def add(self, latencies: Iterable[int]) -> None:
        """Some of the place's latencies, in nanoseconds."""
        some = list(latencies)
        for inside, (least, most) in zip(self._inside, self._ranges, strict=True):
            inside += [one for one in some if least <= one <= most]

    def add_ordered(self, blob: bytes) -> None:
        """The same as `_latencies.ordered` has them; damaged ones are left out."""
        with suppress(ValueError):
            for inside, some in zip(self._inside, between(blob, self._ranges), strict=True):
                inside += some

    def found(self) -> dict[int, int] | None:
        """Nanoseconds by percent; None where there are not as many as the bins say: they may be of a machine whose
        logarithm has another last digit.
        """
        if [len(inside) for inside in self._inside] != self._counts:
            return None
        ranked = zip(PERCENTS, self._inside, self._places, strict=True)
        return {percent: sorted(inside)[rank] for percent, inside, (_, rank) in ranked}
