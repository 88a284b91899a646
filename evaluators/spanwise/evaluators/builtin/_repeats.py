"""The longest part of a text that comes twice without overlapping itself, in O(n log² n) and exactly.

Windows of one length get the same name when they are equal (Karp, Miller, Rosenberg 1972): names of length 2l come from
pairs of names of length l, names of any length from two overlapping powers of two. A length is possible when some name
has two windows that do not overlap, and whatever is possible for a length is so for all shorter ones; so the length is
found by doubling, then by binary steps down. Windows whose name cannot repeat any more get 0 and drop out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    Names: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Repeat:
    """The longest repeated part, and how often it comes without overlaps (of several, one of the most frequent)."""

    text: str = ""
    count: int = 0


def longest_repeat(text: str) -> Repeat:
    """The longest substring with at least two occurrences that do not overlap; `Repeat()` if nothing comes twice."""
    import numpy as np

    if len(text) < 2:
        return Repeat()
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.int64)
    level = _renamed(np.arange(len(codes)), codes, 1, len(codes))
    powers = []
    length = 1
    while level.any():
        powers.append(level)
        level = _joined(level, level, length, 2 * length)
        length *= 2
    if not powers:
        return Repeat()
    return _read(text, *_longest(powers))


def _longest(powers: list[Names]) -> tuple[Names, int]:
    """Names at the greatest possible length: from the highest power of two down, each smaller power added if it can."""
    names, length = powers[-1], 2 ** (len(powers) - 1)
    for power in range(len(powers) - 2, -1, -1):
        longer = _joined(names, powers[power], length, length + 2**power)
        if longer.any():
            names, length = longer, length + 2**power
    return names, length


def _joined(first: Names, second: Names, by: int, length: int) -> Names:
    """New names for windows of `length`, which are those of `first` and, `by` further on, of `second`."""
    import numpy as np

    alive = np.flatnonzero(first[: max(0, len(first) - by)])
    after = second[alive + by]
    alive, after = alive[after > 0], after[after > 0]
    return _renamed(alive, (first[alive] << _bits(first)) | after, length, len(first))


def _renamed(alive: Names, pairs: Names, length: int, size: int) -> Names:
    """New names, from 1, of the windows at `alive`; 0 for one that can have no second one of its kind clear of it."""
    import numpy as np

    names = np.zeros(size, dtype=np.int64)
    if len(alive) < 2:
        return names
    pairs, positions = _sorted(pairs, alive, _bits(names))
    starts = np.flatnonzero(np.concatenate(([True], pairs[1:] != pairs[:-1])))
    ends = np.append(starts[1:], len(pairs)) - 1
    keep = positions[ends] - positions[starts] >= length
    names[positions] = np.repeat(np.cumsum(keep) * keep, ends - starts + 1)
    return names


def _sorted(pairs: Names, positions: Names, bits: int) -> tuple[Names, Names]:
    """By pair, then in the order of the text."""
    import numpy as np

    if 3 * bits > 63:  # above two million characters
        order = np.argsort(pairs, kind="stable")
        return pairs[order], positions[order]
    keys = np.sort((pairs << bits) | positions)  # one number each: many times faster than an order
    return keys >> bits, keys & ((1 << bits) - 1)


def _bits(names: Names) -> int:
    """How many hold a position in the text, and a name: there are at most half as many."""
    return max(21, len(names).bit_length())


def _read(text: str, names: Names, length: int) -> Repeat:
    import numpy as np

    alive = np.flatnonzero(names)
    order = np.argsort(names[alive], kind="stable")
    positions = alive[order]
    labels = names[positions]
    best, most, first, last, count, current = 0, 0, 0, 0, 0, 0
    for position, label in zip(positions.tolist(), labels.tolist(), strict=True):
        if label != current:
            current, count, last, first = label, 1, position, position
        elif position >= last + length:
            count, last = count + 1, position
        if count > most:
            best, most = first, count
    return Repeat(text[best : best + length], most)
