"""Latencies counted in bins, of which percentiles come with a known error; counts can be taken away again, exactly.

The bins are those of DDSketch (Masson, Rim, Lee: "DDSketch: a fast and fully-mergeable quantile sketch", VLDB 2019):
what a bin stands for is within `ERROR` of all that is in it.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain

from ddsketch.mapping import LogarithmicMapping

ERROR = 0.01  # of a percentile, relative
NOTHING = -1  # the bin of what took no time: others begin at 0, the logarithm of a nanosecond
_MAPPING = LogarithmicMapping(ERROR)


def bin_of(latency_ns: int) -> int:
    """The bin that counts a latency."""
    return _MAPPING.key(float(latency_ns)) if latency_ns > 0 else NOTHING


def latency_of(bin: int) -> float:
    """Nanoseconds that a bin stands for."""
    return 0.0 if bin == NOTHING else float(_MAPPING.value(bin))


def packed(bins: Mapping[int, int]) -> bytes:
    """As a blob, pairs of a bin and its count; empty bins are left out."""
    pairs = ((bin, count) for bin, count in sorted(bins.items()) if count)
    return _little(array("q", chain.from_iterable(pairs))).tobytes()


def unpacked(blobs: Iterable[bytes]) -> Counter[int]:
    """All that is in blobs together."""
    flat = array("q")
    flat.frombytes(b"".join(blobs))
    _little(flat)
    bins: dict[int, int] = {}
    for bin, count in zip(flat[::2], flat[1::2], strict=True):
        bins[bin] = bins.get(bin, 0) + count
    return Counter(bins)


def _little(values: array[int]) -> array[int]:
    if sys.byteorder == "big":  # a file may be carried to another machine
        values.byteswap()
    return values


def percentile(bins: Mapping[int, int], percent: int) -> float:
    """Nanoseconds within `ERROR` of `statistics.percentile` of what was counted (at least one)."""
    rank, seen = (sum(bins.values()) * percent + 99) // 100, 0
    for bin, count in sorted(bins.items()):
        seen += count
        if seen >= rank:
            return latency_of(bin)
    raise ValueError(f"no percentile {percent!r} of nothing")
