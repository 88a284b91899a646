"""Latencies counted in bins, of which percentiles come with a known error; counts can be taken away again, exactly.

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
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import gcd
from struct import Struct
from typing import TypeAlias

from ddsketch.mapping import LogarithmicMapping

from spanwise.collector.statistics import nearest_rank

ERROR = 0.01  # of a percentile, relative
EXACT = 10_000  # traces, of which a percentile is one of their latencies
NOTHING = -1  # the bin of what took no time: others begin at 0, the logarithm of a nanosecond
_MAPPING = LogarithmicMapping(ERROR)
_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}  # of `array`, by width
_WIDTHS = (1, 2, 4)  # of counts
_HEAD = Struct("<BQQ")  # before the steps between latencies in order
_OLDER = (bytes(6), b"\xff" * 6)  # at 2:8 of the older form alone: a bin is below 65,536, and no count is 0
_LANE = 8  # bytes of a count while blobs are added up


def bin_of(latency_ns: int) -> int:
    """The bin that counts a latency."""
    return _MAPPING.key(float(latency_ns)) if latency_ns > 0 else NOTHING


def latency_of(bin: int) -> float:
    """Nanoseconds that a bin stands for."""
    return 0.0 if bin == NOTHING else float(_MAPPING.value(bin))


def packed(bins: Mapping[int, int]) -> bytes:
    """As a blob; empty bins are left out, and of no bins it is empty."""
    here = {bin: count for bin, count in bins.items() if count}
    if not here:
        return b""
    first, most = min(here), max(here.values())
    size, width = max(here) - first + 1, 1 if most < 1 << 8 else 2 if most < 1 << 16 else 4
    if size * width > 4 * len(here) and most < 1 << 16:
        return b"\0" + _bytes(array("H", (x for bin in sorted(here) for x in (bin + 1, here[bin]))))
    counts = array(_CODES[width], bytes(size * width))
    for bin, count in here.items():
        counts[bin - first] = count
    return bytes([width]) + (first + 1).to_bytes(2, "little") + _bytes(counts)


def added(blob: bytes, more: Mapping[int, int]) -> bytes:
    """A blob with more in it, or less. Raises `ValueError` where less than nothing would be left in a bin."""
    if blob and blob[2:8] not in _OLDER:  # nearly always there is room for it in the blob as it is
        made = _added_to_counts(blob, more) if blob[0] else _added_to_pairs(blob, more)
        if made is not None:
            return made
    bins = unpacked([blob])
    for bin, times in more.items():
        bins[bin] += times
    if any(times < 0 for times in bins.values()):
        raise ValueError("fewer latencies than none in a bin")
    return packed(bins)


def _added_to_counts(blob: bytes, more: Mapping[int, int]) -> bytes | None:
    """A blob without gaps, of the same size; None where that has no room."""
    width, first = blob[0], blob[1] + (blob[2] << 8) - 1
    if width not in _WIDTHS or (len(blob) - 3) % width:
        return None
    counts, most = _array(_CODES[width], blob[3:]), 1 << 8 * width
    for bin, times in more.items():
        place = bin - first
        if not 0 <= place < len(counts) or not 0 <= counts[place] + times < most:
            return None
        counts[place] += times
    return blob[:3] + _bytes(counts) if counts[0] and counts[-1] else None


def _added_to_pairs(blob: bytes, more: Mapping[int, int]) -> bytes | None:
    """A blob of pairs with other counts; None where other bins are in it then, or a count does not fit."""
    flat = _array("H", blob[1:])
    bins = flat[::2]
    for bin, times in more.items():
        place = bisect_left(bins, bin + 1)
        if place == len(bins) or bins[place] != bin + 1 or not 0 < flat[2 * place + 1] + times < 1 << 16:
            return None
        flat[2 * place + 1] += times
    return b"\0" + _bytes(flat)


def unpacked(blobs: Iterable[bytes]) -> Counter[int]:
    """All that is in blobs together. Raises `ValueError` for what is no blob."""
    bins: dict[int, int] = {}
    runs: dict[int, int] = {}  # by first bin, the counts of blobs as one integer: so they are added up all at once
    for blob in blobs:
        if blob[2:8] in _OLDER:
            _add_pairs(bins, _array("q", blob), 0)
        elif blob[:1] == b"\0":
            _add_pairs(bins, _array("H", blob[1:]), 1)
        elif blob:
            run = _run(blob)
            first = blob[1] + (blob[2] << 8) - 1
            runs[first] = runs.get(first, 0) + run
    for first, run in runs.items():
        _add_run(bins, first, run)
    return Counter(bins)


def _add_pairs(bins: dict[int, int], flat: array[int], up: int) -> None:
    for bin, count in zip(flat[::2], flat[1::2], strict=True):
        bins[bin - up] = bins.get(bin - up, 0) + count


def _run(blob: bytes) -> int:
    """The counts of a blob without gaps, each of `_LANE` bytes of an integer."""
    width, size = blob[0], len(blob) - 3
    if width not in _WIDTHS or size < width or size % width:
        raise ValueError(f"no latencies in bins: {blob[:16]!r}")
    lanes = bytearray(_LANE * size // width)
    for place in range(width):
        lanes[place::_LANE] = blob[3 + place :: width]
    return int.from_bytes(lanes, "little")


def _add_run(bins: dict[int, int], first: int, run: int) -> None:
    size = -(-run.bit_length() // (8 * _LANE))
    for bin, count in enumerate(_array("Q", run.to_bytes(size * _LANE, "little")), first):
        if count:
            bins[bin] = bins.get(bin, 0) + count


def _array(code: str, data: bytes) -> array[int]:
    values = array(code, data)
    if sys.byteorder == "big":  # a file may be carried to another machine
        values.byteswap()
    return values


def _bytes(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def ordered(latencies: Iterable[int]) -> bytes:
    """Latencies (at least one, none below 0) as they are, in order."""
    here = sorted(latencies)
    steps = [after - before for before, after in pairwise(here)]
    unit = gcd(*steps) or 1
    whole = [step // unit for step in steps]
    most = max(whole, default=0)
    width = next(width for width in _CODES if most < 1 << 8 * width)
    return _HEAD.pack(width, unit, here[0]) + _bytes(array(_CODES[width], whole))


# In which unit, the least, and how many units it is from each to the next
InOrder: TypeAlias = tuple[int, int, Sequence[int]]


def in_order(blob: bytes) -> InOrder:
    """As `ordered` has made them. Raises `ValueError` for what are none."""
    if len(blob) < _HEAD.size:
        raise ValueError(f"no latencies in order: {blob[:16]!r}")
    width, unit, least = _HEAD.unpack_from(blob)
    steps = blob[_HEAD.size :]
    if width not in _CODES or not unit or len(steps) % width:
        raise ValueError(f"no latencies in order: {blob[:16]!r}")
    return unit, least, steps if width == 1 else _array(_CODES[width], steps)


def all_of(blob: bytes) -> list[int]:
    """All latencies that are in order there. Raises `ValueError` for what are none."""
    least, unit, [found] = alike([in_order(blob)])
    return [least + unit * above for above in found]


def together(parts: Sequence[bytes]) -> bytes:
    """Latencies of several parts (at least one), each in order. Raises `ValueError` for what are none."""
    if not parts:
        raise ValueError("no latencies in order")
    return parts[0] if len(parts) == 1 else ordered(one for part in parts for one in all_of(part))


def alike(parts: Sequence[InOrder]) -> tuple[int, int, list[list[int]]]:
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


def percentile(bins: Mapping[int, int], percent: int) -> float:
    """Nanoseconds within `ERROR` of `statistics.percentile` of what was counted (at least one)."""
    counted = sorted(bins.items())
    upto = list(accumulate(count for _, count in counted))
    if not upto or upto[-1] <= 0:
        raise ValueError(f"no percentile {percent!r} of nothing")
    return latency_of(counted[bisect_left(upto, nearest_rank(upto[-1], percent))][0])
