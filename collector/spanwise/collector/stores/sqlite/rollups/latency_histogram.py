"""Latency histograms (DDSketch bins), exact latencies in order, and their percentiles.

The bins are those of DDSketch (Masson, Rim, Lee: "DDSketch: a fast and fully-mergeable quantile sketch", VLDB 2019):
what a bin stands for is within `ERROR` of all that is in it.

A blob of bins begins with a byte, the width of its counts. What follows is the first bin, one up so that none is below
0, and the counts from that one on without a gap; with width 0 it is pairs of a bin, one up, and its count, all of two
bytes: of a few latencies that lie far apart. An older form has pairs of eight bytes each and nothing before them; it is
read, and no more written.

Latencies in order, as they are (`ordered`), are of hours and days at rest: the width of a step in a byte, in eight each
what all steps are multiples of and the least latency, and the steps from each to the next.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import gcd
from struct import Struct
from typing import TypeAlias

from ddsketch.mapping import LogarithmicMapping

from spanwise.collector.statistics import nearest_rank, percentile

RELATIVE_ERROR = 0.01  # of a percentile, relative
MAX_EXACT_TRACES = 10_000  # traces, of which a percentile is one of their latencies
ZERO_BIN = -1  # the bin of what took no time: others begin at 0, the logarithm of a nanosecond
_MAPPING = LogarithmicMapping(RELATIVE_ERROR)
_ARRAY_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}  # of `array`, by width
_COUNT_WIDTHS = (1, 2, 4)  # of counts
_ORDERED_HEADER = Struct("<BQQ")  # before the steps between latencies in order
_OLD_FORM_MARKERS = (bytes(6), b"\xff" * 6)  # at 2:8 of the older form alone: a bin is below 65,536, and no count is 0
_LANE_BYTES = 8  # bytes of a count while blobs are added up


def find_bin(latency_ns: int) -> int:
    """The bin that counts a latency."""
    return _MAPPING.key(float(latency_ns)) if latency_ns > 0 else ZERO_BIN


def get_bin_latency(bin: int) -> float:
    """Nanoseconds that a bin stands for."""
    return 0.0 if bin == ZERO_BIN else float(_MAPPING.value(bin))


def pack_bins(bins: Mapping[int, int]) -> bytes:
    """As a blob; empty bins are left out, and of no bins it is empty."""
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
    """A blob with more in it, or less. Raises `ValueError` where less than nothing would be left in a bin."""
    if blob and blob[2:8] not in _OLD_FORM_MARKERS:  # nearly always there is room for it in the blob as it is
        made = _add_to_counts(blob, more) if blob[0] else _add_to_pairs(blob, more)
        if made is not None:
            return made
    bins = unpack_bins([blob])
    for bin, times in more.items():
        bins[bin] += times
    if any(times < 0 for times in bins.values()):
        raise ValueError("fewer latencies than none in a bin")
    return pack_bins(bins)


def _add_to_counts(blob: bytes, more: Mapping[int, int]) -> bytes | None:
    """A blob without gaps, of the same size; None where that has no room."""
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
    """A blob of pairs with other counts; None where other bins are in it then, or a count does not fit."""
    flat = _read_array("H", blob[1:])
    bins = flat[::2]
    for bin, times in more.items():
        place = bisect_left(bins, bin + 1)
        if place == len(bins) or bins[place] != bin + 1 or not 0 < flat[2 * place + 1] + times < 1 << 16:
            return None
        flat[2 * place + 1] += times
    return b"\0" + _array_bytes(flat)


def unpack_bins(blobs: Iterable[bytes]) -> Counter[int]:
    """All that is in blobs together. Raises `ValueError` for what is no blob."""
    bins: dict[int, int] = {}
    runs: dict[int, int] = {}  # by first bin, the counts of blobs as one integer: so they are added up all at once
    for blob in blobs:
        if blob[2:8] in _OLD_FORM_MARKERS:
            _add_pairs(bins, _read_array("q", blob), 0)
        elif blob[:1] == b"\0":
            _add_pairs(bins, _read_array("H", blob[1:]), 1)
        elif blob:
            run = _counts_as_integer(blob)
            first = blob[1] + (blob[2] << 8) - 1
            runs[first] = runs.get(first, 0) + run
    for first, run in runs.items():
        _add_integer(bins, first, run)
    return Counter(bins)


def _add_pairs(bins: dict[int, int], flat: array[int], up: int) -> None:
    for bin, count in zip(flat[::2], flat[1::2], strict=True):
        bins[bin - up] = bins.get(bin - up, 0) + count


def _counts_as_integer(blob: bytes) -> int:
    """The counts of a blob without gaps, each of `_LANE` bytes of an integer."""
    width, size = blob[0], len(blob) - 3
    if width not in _COUNT_WIDTHS or size < width or size % width:
        raise ValueError(f"no latencies in bins: {blob[:16]!r}")
    lanes = bytearray(_LANE_BYTES * size // width)
    for place in range(width):
        lanes[place::_LANE_BYTES] = blob[3 + place :: width]
    return int.from_bytes(lanes, "little")


def _add_integer(bins: dict[int, int], first: int, run: int) -> None:
    size = -(-run.bit_length() // (8 * _LANE_BYTES))
    for bin, count in enumerate(_read_array("Q", run.to_bytes(size * _LANE_BYTES, "little")), first):
        if count:
            bins[bin] = bins.get(bin, 0) + count


def _read_array(code: str, data: bytes) -> array[int]:
    values = array(code, data)
    if sys.byteorder == "big":  # a file may be carried to another machine
        values.byteswap()
    return values


def _array_bytes(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def pack_latencies(latencies: Iterable[int]) -> bytes:
    """Latencies (at least one, none below 0) as they are, in order."""
    here = sorted(latencies)
    steps = [after - before for before, after in pairwise(here)]
    unit = gcd(*steps) or 1
    whole = [step // unit for step in steps]
    most = max(whole, default=0)
    width = next(width for width in _ARRAY_CODES if most < 1 << 8 * width)
    return _ORDERED_HEADER.pack(width, unit, here[0]) + _array_bytes(array(_ARRAY_CODES[width], whole))


# In which unit, the least, and how many units it is from each to the next
LatencySteps: TypeAlias = tuple[int, int, Sequence[int]]


def parse_latencies(blob: bytes) -> LatencySteps:
    """As `ordered` has made them. Raises `ValueError` for what are none."""
    if len(blob) < _ORDERED_HEADER.size:
        raise ValueError(f"no latencies in order: {blob[:16]!r}")
    width, unit, least = _ORDERED_HEADER.unpack_from(blob)
    steps = blob[_ORDERED_HEADER.size :]
    if width not in _ARRAY_CODES or not unit or len(steps) % width:
        raise ValueError(f"no latencies in order: {blob[:16]!r}")
    return unit, least, steps if width == 1 else _read_array(_ARRAY_CODES[width], steps)


def unpack_latencies(blob: bytes) -> list[int]:
    """All latencies that are in order there. Raises `ValueError` for what are none."""
    least, unit, [found] = to_common_unit([parse_latencies(blob)])
    return [least + unit * above for above in found]


def merge_latencies(parts: Sequence[bytes]) -> bytes:
    """Latencies of several parts (at least one), each in order. Raises `ValueError` for what are none."""
    if not parts:
        raise ValueError("no latencies in order")
    return parts[0] if len(parts) == 1 else pack_latencies(one for part in parts for one in unpack_latencies(part))


def to_common_unit(parts: Sequence[LatencySteps]) -> tuple[int, int, list[list[int]]]:
    """The least of all parts (at least one), a unit, and how many units above the least the latencies of each part are:
    with such small numbers all that is done with them takes half the time.
    """
    start = min([least for _, least, _ in parts])
    common = gcd(*[least - start for _, least, _ in parts], *[unit for unit, _, steps in parts if steps]) or 1
    found = []
    for unit, least, steps in parts:
        above = (least - start) // common
        if unit == common:
            found.append(list(accumulate(steps, initial=above)))
        else:
            found.append([above + unit // common * some for some in accumulate(steps, initial=0)])
    return start, common, found


def compute_bin_percentile(bins: Mapping[int, int], percent: int) -> float:
    """Nanoseconds within `ERROR` of `statistics.percentile` of what was counted (at least one)."""
    counted = sorted(bins.items())
    upto = list(accumulate(count for _, count in counted))
    if not upto or upto[-1] <= 0:
        raise ValueError(f"no percentile {percent!r} of nothing")
    return get_bin_latency(counted[bisect_left(upto, nearest_rank(upto[-1], percent))][0])


PERCENTS = (50, 95)


class ExactPercentiles:
    """The percentiles of `n` latencies, in nanoseconds. They are found as soon as all are there, and no latency is kept
    then: a thousand hours have as many as there are traces.
    """

    def __init__(self, n: int) -> None:
        self._left = n
        self._parts: list[LatencySteps] = []
        self._found: dict[int, int] | None = None

    def add(self, latencies: Iterable[int]) -> None:
        """Some of them."""
        if some := list(latencies):
            self.add_ordered(pack_latencies(some))

    def add_ordered(self, blob: bytes) -> None:
        """The same as `_latencies.ordered` has them; damaged ones are left out."""
        try:
            part = parse_latencies(blob)
        except ValueError:
            return
        self._parts.append(part)
        self._left -= len(part[2]) + 1
        self._found = None if self._left else self._rank()

    def _rank(self) -> dict[int, int]:
        least, unit, parts = to_common_unit(self._parts)
        self._parts.clear()
        return {percent: least + unit * _percentile_of_parts(parts, percent) for percent in PERCENTS}

    def found(self) -> dict[int, int] | None:
        """Nanoseconds by percent; None where there were not as many as that."""
        return self._found


def _percentile_of_parts(parts: Sequence[Sequence[int]], percent: int) -> int:
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
