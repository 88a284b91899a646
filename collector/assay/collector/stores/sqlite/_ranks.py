"""Percentiles of what sums have counted, exactly: bins say where they lie, so that few rows have to be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from assay.collector.stores.sqlite._latencies import bounds, place

PERCENTS = (50, 95)
RANGES = 16  # of latencies in one statement; more become one, from the least to the greatest
Group: TypeAlias = str | None
# A condition on rows `t` with its values to the latencies of those that pass, by group
Ask: TypeAlias = Callable[[str, tuple[int, ...]], Iterable[tuple[Group, list[int]]]]


def find(groups: Mapping[Group, Counter[int]], ask: Ask) -> dict[Group, dict[int, int]]:
    """Nanoseconds by percent, of groups of which these are the bins. One whose rows are not as its bins say is left
    out: they may be of a machine whose logarithm has another last digit.
    """
    places = {group: [place(bins, percent) for percent in PERCENTS] for group, bins in groups.items()}
    latencies = dict(ask(*_ranges({bin for theirs in places.values() for bin, _ in theirs})))
    found = {}
    for group, theirs in places.items():
        ranked = [_ranked(latencies.get(group, ()), *one, groups[group][one[0]]) for one in theirs]
        known = {percent: one for percent, one in zip(PERCENTS, ranked, strict=True) if one is not None}
        if len(known) == len(PERCENTS):
            found[group] = known
    return found


def _ranked(latencies: Sequence[int], bin: int, rank: int, count: int) -> int | None:
    least, most = bounds(bin)
    inside = sorted(one for one in latencies if least <= one <= most)
    return inside[rank] if len(inside) == count else None


def _ranges(bins: Collection[int]) -> tuple[str, tuple[int, ...]]:
    ranges = list(_joined(map(bounds, sorted(bins))))
    if len(ranges) > RANGES:
        ranges = [(ranges[0][0], ranges[-1][1])]
    sql = " OR ".join(["t.end_ns - t.start_ns BETWEEN ? AND ?"] * len(ranges))
    return f" AND ({sql})", tuple(bound for one in ranges for bound in one)


def _joined(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Those that touch as one."""
    current: tuple[int, int] | None = None
    for least, most in ranges:
        if current is not None and least == current[1] + 1:
            current = current[0], most
        else:
            if current is not None:
                yield current
            current = least, most
    if current is not None:
        yield current
