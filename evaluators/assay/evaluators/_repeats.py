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
    level = _named(codes + 1, None, 1)
    powers = []
    length = 1
    while level.any():
        powers.append(level)
        level = _named(level, _shifted(level, length), 2 * length)
        length *= 2
    if not powers:
        return Repeat()
    return _read(text, *_longest(powers))


def _longest(powers: list[Names]) -> tuple[Names, int]:
    """Names at the greatest possible length: from the highest power of two down, each smaller power added if it can."""
    names, length = powers[-1], 2 ** (len(powers) - 1)
    for power in range(len(powers) - 2, -1, -1):
        longer = _named(names, _shifted(powers[power], length), length + 2**power)
        if longer.any():
            names, length = longer, length + 2**power
    return names, length


def _shifted(names: Names, by: int) -> Names:
    import numpy as np

    shifted = np.zeros_like(names)
    if by < len(names):
        shifted[:-by] = names[by:]
    return shifted


def _named(first: Names, second: Names | None, length: int) -> Names:
    """New names, from 1, for pairs of names; 0 where the window can have no second one of its kind clear of it."""
    import numpy as np

    alive = np.flatnonzero(first) if second is None else np.flatnonzero((first > 0) & (second > 0))
    names = np.zeros(len(first), dtype=np.int64)
    if len(alive) < 2:
        return names
    pairs = first[alive] if second is None else (first[alive] << 31) | second[alive]
    order = np.argsort(pairs, kind="stable")  # equal pairs stay in the order of the text
    pairs, positions = pairs[order], alive[order]
    starts = np.flatnonzero(np.concatenate(([True], pairs[1:] != pairs[:-1])))
    ends = np.append(starts[1:], len(pairs)) - 1
    keep = positions[ends] - positions[starts] >= length
    group = np.repeat(np.cumsum(keep) * keep, ends - starts + 1)
    names[positions] = group
    return names


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
