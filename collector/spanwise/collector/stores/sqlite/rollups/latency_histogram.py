"""Latency histograms (DDSketch bins) and their percentiles.

The bins are those of DDSketch (Masson, Rim, Lee: "DDSketch: a fast and fully-mergeable quantile sketch", VLDB 2019):
the value of a bin is within `RELATIVE_ERROR` of all latencies in it.

Format of a blob of bins:

- The first byte is the width of the counts. The number of the first bin plus 1 follows (2 bytes), so that none is
  negative, and then the counts of consecutive bins.
- With width 0, pairs follow: a bin plus 1, and its count, 2 bytes each. This form is for a few latencies that are far
  apart.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate

from ddsketch.mapping import LogarithmicMapping

from spanwise.collector.statistics import nearest_rank

RELATIVE_ERROR = 0.01  # relative error of a percentile
ZERO_BIN = -1  # bin of latency 0; a latency of 1 ns is in bin 0
_MAPPING = LogarithmicMapping(RELATIVE_ERROR)
_ARRAY_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}  # type codes of `array`, by width
_COUNT_WIDTHS = (1, 2, 4)  # widths of counts
_LANE_BYTES = 8  # bytes of each count in the large integers by which blobs are added


def find_bin(latency_ns: int) -> int:
    """Return the bin of a latency."""
    return _MAPPING.key(float(latency_ns)) if latency_ns > 0 else ZERO_BIN


def get_bin_latency(bin: int) -> float:
    """Return the nanoseconds that a bin represents."""
    return 0.0 if bin == ZERO_BIN else float(_MAPPING.value(bin))


def pack_bins(bins: Mapping[int, int]) -> bytes:
    """Pack counts by bin into a blob without empty bins; no bins give an empty blob."""
    here = {bin: count for bin, count in bins.items() if count}
    if not here:
        return b""
    first, most = min(here), max(here.values())
    size, width = max(here) - first + 1, 1 if most < 1 << 8 else 2 if most < 1 << 16 else 4
    if size * width > 4 * len(here) and most < 1 << 16:
        return b"\0" + _array_bytes(array("H", (x for bin in sorted(here) for x in (bin + 1, here[bin]))))
    counts = array(_ARRAY_CODES[width], bytes(size * width))
    for bin, count in here.items():
        counts[bin - first] = count
    return bytes([width]) + (first + 1).to_bytes(2, "little") + _array_bytes(counts)


def add_to_bins(blob: bytes, more: Mapping[int, int]) -> bytes:
    """Return a blob with the counts `more`, which may be negative, added. Raises `ValueError` if a count would be
    negative.
    """
    if blob:  # nearly always the counts fit into the blob as it is
        made = _add_to_counts(blob, more) if blob[0] else _add_to_pairs(blob, more)
        if made is not None:
            return made
    bins = unpack_bins([blob])
    for bin, times in more.items():
        bins[bin] += times
    if any(times < 0 for times in bins.values()):
        raise ValueError("the count of a bin would be negative")
    return pack_bins(bins)


def _add_to_counts(blob: bytes, more: Mapping[int, int]) -> bytes | None:
    """Add to a blob of consecutive counts; return None if the result needs other bins or wider counts."""
    width, first = blob[0], blob[1] + (blob[2] << 8) - 1
    if width not in _COUNT_WIDTHS or (len(blob) - 3) % width:
        return None
    counts, most = _read_array(_ARRAY_CODES[width], blob[3:]), 1 << 8 * width
    for bin, times in more.items():
        place = bin - first
        if not 0 <= place < len(counts) or not 0 <= counts[place] + times < most:
            return None
        counts[place] += times
    return blob[:3] + _array_bytes(counts) if counts[0] and counts[-1] else None


def _add_to_pairs(blob: bytes, more: Mapping[int, int]) -> bytes | None:
    """Add to a blob of pairs; return None if its bins change or a count does not fit."""
    flat = _read_array("H", blob[1:])
    bins = flat[::2]
    for bin, times in more.items():
        place = bisect_left(bins, bin + 1)
        if place == len(bins) or bins[place] != bin + 1 or not 0 < flat[2 * place + 1] + times < 1 << 16:
            return None
        flat[2 * place + 1] += times
    return b"\0" + _array_bytes(flat)


def unpack_bins(blobs: Iterable[bytes]) -> Counter[int]:
    """Return the counts by bin, added over all blobs. Raises `ValueError` for an invalid blob."""
    bins: dict[int, int] = {}
    # First bin, and the counts of consecutive bins as one large integer, so that one addition adds all of them
    runs: list[tuple[int, int]] = []
    for blob in blobs:
        if blob[:1] == b"\0":
            flat = _read_array("H", blob[1:])
            for bin, count in zip(flat[::2], flat[1::2], strict=True):
                bins[bin - 1] = bins.get(bin - 1, 0) + count
        elif blob:
            run = _counts_as_integer(blob)
            runs.append((blob[1] + (blob[2] << 8) - 1, run))
    if runs:
        least = min(first for first, _ in runs)
        total = sum(run << 8 * _LANE_BYTES * (first - least) for first, run in runs)
        size = -(-total.bit_length() // (8 * _LANE_BYTES))
        for bin, count in enumerate(_read_array("Q", total.to_bytes(size * _LANE_BYTES, "little")), least):
            if count:
                bins[bin] = bins.get(bin, 0) + count
    return Counter(bins)


def _counts_as_integer(blob: bytes) -> int:
    """Return consecutive counts as one integer, with `_LANE_BYTES` bytes per count."""
    width, size = blob[0], len(blob) - 3
    if width not in _COUNT_WIDTHS or size < width or size % width:
        raise ValueError(f"invalid latency bins: {blob[:16]!r}")
    lanes = bytearray(_LANE_BYTES * size // width)
    for place in range(width):
        lanes[place::_LANE_BYTES] = blob[3 + place :: width]
    return int.from_bytes(lanes, "little")


def _read_array(code: str, data: bytes) -> array[int]:
    values = array(code, data)
    if sys.byteorder == "big":  # blobs are little-endian, so that a file can be moved to another machine
        values.byteswap()
    return values


def _array_bytes(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def compute_bin_percentiles(bins: Mapping[int, int], *percents: int) -> list[float]:
    """Return percentiles in nanoseconds, within `RELATIVE_ERROR` of `statistics.percentile`. Raises `ValueError`
    without counts.
    """
    counted = sorted(bins.items())
    upto = list(accumulate(count for _, count in counted))
    if not upto or upto[-1] <= 0:
        raise ValueError("a percentile needs at least one latency")
    ranks = [nearest_rank(upto[-1], percent) for percent in percents]
    return [get_bin_latency(counted[bisect_left(upto, rank)][0]) for rank in ranks]
