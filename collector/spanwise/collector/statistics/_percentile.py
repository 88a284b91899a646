"""Percentiles of latencies."""

from __future__ import annotations

from collections.abc import Sequence


def percentile(ordered: Sequence[int], percent: int) -> int:
    """The nearest rank: the smallest of the values below or at which at least `percent` % of them lie.

    `ordered` ascends and holds integers, as nanoseconds; so the answer is one of them, the same wherever it is asked.
    Raises `ValueError` for no values, or a percent that is not in 1 to 100.
    """
    if not ordered or not 1 <= percent <= 100:
        raise ValueError(
            f"no percentile {percent!r} of {len(ordered)} values: it takes some, and a percent in 1 to 100"
        )
    return ordered[nearest_rank(len(ordered), percent) - 1]


def nearest_rank(n: int, percent: int) -> int:
    """Of `n` values in order, the first one 1, which of them is their percentile."""
    return (n * percent + 99) // 100
