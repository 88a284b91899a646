"""The threshold that tells good from bad by a score as people do, with its interval; or why there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from math import sqrt
from random import Random
from typing import TypeAlias

from spanwise.collector.statistics._agreement import Agreement, agreement

Rated: TypeAlias = tuple[float, bool]  # a score, and whether people call it good
Gap: TypeAlias = tuple[float, float]  # two scores that follow each other

LEAST = 10  # votes,
EACH = 3  # and those of good and of bad: fewer tell nothing, however well they are told apart
FOLDS = 10
_WORK = 200_000  # scores that are drawn for the interval, in all
_DRAWS = 200, 1_000  # the fewest and the most repetitions of that
_Z = 1.959963984540054
_ROUNDING = 1e-12
_UNKNOWN = agreement(())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """From `threshold` on (a score equal to it too) scores are good; with `rising` False, up to there.

    It is the one with the greatest Cohen's kappa between passing and people, in the middle of the widest gap where
    several have that. `low` to `high` is its 95 % interval, from votes drawn anew of these. `agreement` is of votes
    that were left out, a tenth at a time, when the threshold for them was chosen. `apart` is how often a good one has
    the better score than a bad one (ties count half).

    Where votes do not give one, `threshold` and its interval are None, and `why` says so.
    """

    n: int
    good: int
    rising: bool = True
    threshold: float | None = None
    low: float | None = None
    high: float | None = None
    why: str | None = None
    apart: float | None = None
    agreement: Agreement = _UNKNOWN


def cut(rated: Iterable[Rated], *, rising: bool = True) -> Cut:
    """The threshold of scores of which people have said whether they are good; `rising`: more is better."""
    pairs = sorted((score if rising else -score, good) for score, good in rated)
    apart, spread = _apart(pairs)
    found = Cut(n=len(pairs), good=sum(good for _, good in pairs), rising=rising, apart=apart)
    if why := _too_little(pairs) or _no_order(apart, spread):
        return replace(found, why=why)
    sign = 1 if rising else -1
    low, high = sorted(sign * end for end in _interval(pairs))
    threshold, held_out = sign * _middle(_best(pairs)), agreement(list(_held_out(pairs)))
    return replace(found, threshold=threshold, low=low, high=high, agreement=held_out)


def _too_little(pairs: Sequence[Rated]) -> str | None:
    counts = Counter(good for _, good in pairs)
    if not pairs:
        return "no case has both a score and a vote"
    if len(counts) == 1:
        word = "good" if pairs[0][1] else "bad"
        return f"all {len(pairs)} votes say {word}: a threshold is between good ones and bad ones"
    if len(pairs) < LEAST or min(counts.values()) < EACH:
        told = f"{counts[True]} good and {counts[False]} bad"
        return f"there are too few votes, {told}: it takes {LEAST}, of either {EACH} at least"
    if pairs[0][0] == pairs[-1][0]:
        return f"all scores are {abs(pairs[0][0]):g}: there is nothing to tell apart"
    return None


def _no_order(apart: float | None, spread: float) -> str | None:
    """Mann and Whitney's test: a share as near to a half as chance makes it tells nothing."""
    if apart is None or apart - 0.5 > _Z * spread:
        return None
    said = f"of a good and a bad one the good one has the better score {apart:.0%} of the time"
    if 0.5 - apart > _Z * spread:
        return f"scores are inverted: {said}; is higher_is_better right, and a vote of 1 good?"
    return f"scores do not tell good from bad more than chance does: {said}"


def _apart(pairs: Sequence[Rated]) -> tuple[float | None, float]:
    """How often a good one scores above a bad one, ties as half; and its standard error where that is chance alone."""
    at: dict[float, list[int]] = {}
    for score, is_good in pairs:
        at.setdefault(score, [0, 0])[is_good] += 1
    good, n = sum(one for _, one in at.values()), len(pairs)
    bad = n - good
    if not good or not bad:
        return None, 0.0
    below, above = 0, 0.0
    for bads, goods in at.values():  # in the order of the scores
        above += goods * (below + bads / 2)
        below += bads
    ties = sum((bads + goods) ** 3 - bads - goods for bads, goods in at.values())
    return above / (good * bad), sqrt(max(0.0, (n + 1 - ties / (n * (n - 1))) / (12 * good * bad)))


def _best(pairs: Sequence[Rated]) -> Gap:
    """The gap between two scores with the greatest kappa; of several the widest, of these the lowest. Pairs in order.

    Of scores that are all the same there is none: both ends are that score.
    """
    n, good = len(pairs), sum(good for _, good in pairs)
    gap, best = (pairs[0][0], pairs[0][0]), -2.0
    for place, below in enumerate(accumulate(is_good for _, is_good in pairs[:-1]), 1):
        before, after = pairs[place - 1][0], pairs[place][0]
        if before == after:
            continue
        kappa = _kappa(n, good, n - place, good - below)
        if kappa > best + _ROUNDING or (kappa > best - _ROUNDING and after - before > gap[1] - gap[0]):
            gap, best = (before, after), kappa
    return gap


def _kappa(n: int, good: int, passed: int, right: int) -> float:
    """Cohen's, of two by two: `passed` of `n` pass, `right` of these are among the `good`."""
    agreed = (right + n - passed - good + right) / n
    chance = (passed * good + (n - passed) * (n - good)) / (n * n)
    return (agreed - chance) / (1 - chance) if chance < 1 else 0.0


def _middle(gap: Gap) -> float:
    before, after = gap
    middle = before / 2 + after / 2
    return middle if before < middle < after else after


def _interval(pairs: Sequence[Rated]) -> Gap:
    """Goods and bads are each drawn anew, as many as there are: percentile 2.5 of the lower ends of the gaps that come
    of it, and 97.5 of their upper ends, as any threshold in a gap does as well.
    """
    random, sides = Random(len(pairs)), _sides(pairs)  # the same votes, the same interval
    least, most = _DRAWS
    repeats = max(least, min(most, _WORK // len(pairs)))
    gaps = [_best(sorted(chain(*(random.choices(side, k=len(side)) for side in sides)))) for _ in range(repeats)]
    lows, highs = map(sorted, zip(*gaps, strict=True))
    at = round(0.025 * (repeats - 1))
    return lows[at], highs[-1 - at]


def _held_out(pairs: Sequence[Rated]) -> Iterator[tuple[float, float]]:
    """Of each pair whether it passes the threshold of the others, and what people say."""
    ordered = list(chain(*_sides(pairs)))
    for fold in range(min(FOLDS, len(pairs))):
        threshold = _middle(_best(sorted(pair for place, pair in enumerate(ordered) if place % FOLDS != fold)))
        for score, good in ordered[fold::FOLDS]:
            yield float(score >= threshold), float(good)


def _sides(pairs: Sequence[Rated]) -> list[list[Rated]]:
    """The goods, and the bads."""
    return [[pair for pair in pairs if pair[1] is side] for side in (True, False)]
