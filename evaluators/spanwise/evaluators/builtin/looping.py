"""Looping evaluator: unique sentences, longest repeated substring, compression ratio.

A window is a substring of a given length. Equal windows of one length get the same name, an integer (Karp, Miller,
Rosenberg 1972). The names for length 2l are made of pairs of names for length l. The names for any other length are
made of the names of two overlapping windows whose lengths are powers of two.

A length is possible if two windows with the same name do not overlap. All shorter lengths are then possible too, so
the longest length is found by doubling and then by binary search. Windows whose name can no longer repeat get 0 and
are dropped.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from spanwise.evaluators.builtin.case_text import extract_text, split_sentences
from spanwise.evaluators.interface import Metric, Skip, register_builtin
from spanwise.evaluators.interface.evaluator_spec import SECURE, VALID

MIN_SENTENCE_LENGTH = 10  # minimum characters of a counted sentence


def unique_sentences(text: str, *, shortest: int = MIN_SENTENCE_LENGTH) -> float:
    """Return the number of distinct sentences over the number of all sentences. Sentences below `shortest` characters do
    not count.

    Raises `Skip` if no sentence counts.
    """
    counted = [sentence for sentence in split_sentences(text) if len(sentence) >= shortest]
    if not counted:
        raise Skip(f"no sentence has {shortest} characters or more")
    return len(set(counted)) / len(counted)


def repeated_share(text: str) -> float:
    """Return length × count of the longest part with at least two occurrences, over the length of the text.

    Occurrences do not overlap. Raises `Skip` for an empty text.
    """
    if not text:
        raise Skip("the text is empty")
    repeat = find_longest_repeat(text)
    return len(repeat.text) * repeat.count / len(text)


def compression_ratio(text: str) -> float:
    """Return the size after compression over the size before, in bytes (UTF-8, zlib at level 9). It is above 1 for short
    texts. Raises `Skip` for an empty text.
    """
    raw = text.encode("utf-8", "surrogatepass")
    if not raw:
        raise Skip("the text is empty")
    return len(zlib.compress(raw, 9)) / len(raw)


@register_builtin(
    "looping",
    metrics=(
        Metric("looping_unique_sentences", threshold=0.75, primary=True),
        Metric("looping_longest_repeat", threshold=0.75, higher_is_better=False),
        Metric("looping_compression", (0.0, float("inf")), threshold=0.75),
    ),
    standards=(SECURE, VALID),
    source="H2O Eval Studio: looping detection",
    canonical="zlib; brute force",
    example='get_evaluator("looping"), outputs="I am sorry, I cannot. " * 20',
)
@dataclass(frozen=True, slots=True)
class Looping:
    """Three signs of a loop in the answer.

    - Unique sentences: number of distinct sentences over the number of all sentences. Sentences shorter than `shortest`
      characters do not count.
    - Longest repeat: length × count of the longest part that occurs at least twice, over the length of the text.
      Occurrences do not overlap, so that it is in [0, 1] and near 1 for a loop. Among equally long parts the most
      frequent counts.
    - Compression: bytes after zlib (level 9) over bytes before; short texts give more than 1.
    """

    shortest: int = MIN_SENTENCE_LENGTH

    def __post_init__(self) -> None:
        if self.shortest < 1:
            raise ValueError(f"shortest is 1 character or more, not {self.shortest!r}")

    def __call__(self, outputs: Any) -> list[dict[str, Any]]:
        text = extract_text(outputs)
        if not text:
            raise Skip("the answer is empty")
        repeat = find_longest_repeat(text)
        shown = {"repeat": repeat.text[:200], "count": repeat.count}
        return [
            self._unique(text),
            {"key": "looping_longest_repeat", "score": len(repeat.text) * repeat.count / len(text), "metadata": shown},
            {"key": "looping_compression", "score": compression_ratio(text)},
        ]

    def _unique(self, text: str) -> dict[str, Any]:
        try:
            score: float | None = unique_sentences(text, shortest=self.shortest)
        except Skip as why:
            return {"key": "looping_unique_sentences", "score": None, "comment": str(why)}
        return {"key": "looping_unique_sentences", "score": score}


if TYPE_CHECKING:
    import numpy as np

    WindowNames: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Longest repeated part, and its number of occurrences without overlaps (of several, one of the most frequent)."""

    text: str = ""
    count: int = 0


def find_longest_repeat(text: str) -> Repeat:
    """Return the longest substring with at least two occurrences that do not overlap; `Repeat()` if nothing repeats."""
    import numpy as np

    if len(text) < 2:
        return Repeat()
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.int64)
    level = _rename_windows(np.arange(len(codes)), codes, 1, len(codes))
    powers = []
    length = 1
    while level.any():
        powers.append(level)
        level = _join_names(level, level, length, 2 * length)
        length *= 2
    if not powers:
        return Repeat()
    return _read_repeat(text, *_longest_names(powers))


def _longest_names(powers: list[WindowNames]) -> tuple[WindowNames, int]:
    """Return the names at the greatest possible length, found by adding smaller powers of two to the highest one."""
    names, length = powers[-1], 2 ** (len(powers) - 1)
    for power in range(len(powers) - 2, -1, -1):
        longer = _join_names(names, powers[power], length, length + 2**power)
        if longer.any():
            names, length = longer, length + 2**power
    return names, length


def _join_names(first: WindowNames, second: WindowNames, by: int, length: int) -> WindowNames:
    """Return names for windows of `length`. Each is made of a window in `first` and the window in `second` that begins
    `by` characters later.
    """
    import numpy as np

    alive = np.flatnonzero(first[: max(0, len(first) - by)])
    after = second[alive + by]
    alive, after = alive[after > 0], after[after > 0]
    return _rename_windows(alive, (first[alive] << _name_bits(first)) | after, length, len(first))


def _rename_windows(alive: WindowNames, pairs: WindowNames, length: int, size: int) -> WindowNames:
    """Return new names, from 1, of the windows at the positions `alive`. Equal windows get the same name; if all of them
    overlap, they get 0.
    """
    import numpy as np

    names = np.zeros(size, dtype=np.int64)
    if len(alive) < 2:
        return names
    pairs, positions = _sort_windows(pairs, alive, _name_bits(names))
    starts = np.flatnonzero(np.concatenate(([True], pairs[1:] != pairs[:-1])))
    ends = np.append(starts[1:], len(pairs)) - 1
    keep = positions[ends] - positions[starts] >= length
    names[positions] = np.repeat(np.cumsum(keep) * keep, ends - starts + 1)
    return names


def _sort_windows(pairs: WindowNames, positions: WindowNames, bits: int) -> tuple[WindowNames, WindowNames]:
    """Sort windows by pair, then by position."""
    import numpy as np

    if 3 * bits > 63:  # for texts above two million characters
        order = np.argsort(pairs, kind="stable")
        return pairs[order], positions[order]
    keys = np.sort((pairs << bits) | positions)  # sorting single integers is many times faster than argsort
    return keys >> bits, keys & ((1 << bits) - 1)


def _name_bits(names: WindowNames) -> int:
    """Return the number of bits that hold a position in the text. A name needs no more bits, because there are at most
    half as many names as positions.
    """
    return max(21, len(names).bit_length())


def _read_repeat(text: str, names: WindowNames, length: int) -> Repeat:
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
