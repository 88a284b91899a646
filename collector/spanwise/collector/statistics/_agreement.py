"""How far two raters agree, beyond what chance would give: a judge and people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import sqrt
from typing import TypeAlias

Value: TypeAlias = float | str  # a score, or a label
Pair: TypeAlias = tuple[Value, Value]  # what the judge said, what people said

LEVELS = 12  # values up to which they are levels of a scale, and not measurements
_Z = 1.959963984540054
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Over `n` pairs: the share `agreed` that are alike, and Cohen's `kappa` with its 95 % interval.

    With more than two levels of scores kappa is weighted by squared distances (Cohen 1968) and `within_one` is the
    share at most one level apart. None where there are no pairs; kappa is None where both always say the same one
    thing, as chance alone would agree then, and is 0 without an interval where one of the two always does, whatever the
    other says. `confusion` counts pairs: (judge, people).
    """

    n: int
    agreed: float | None
    kappa: float | None
    low: float | None
    high: float | None
    weighted: bool = False
    within_one: float | None = None
    confusion: dict[Pair, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """As it stands beside a judge's mean: "agrees with people 87 % (κ 0.71, 40 votes)"."""
        if self.agreed is None:
            return "never checked"
        votes = f"{self.n} vote{'s' * (self.n != 1)}"
        near = self.within_one is not None
        share = f"{self.within_one if near else self.agreed:.0%}".replace("%", " %") + " within one" * near
        return f"agrees with people {share} ({'' if self.kappa is None else f'κ {self.kappa:.2f}, '}{votes})"


def agreement(pairs: Sequence[Pair]) -> Agreement:
    """What the judge and people said of the same cases."""
    if not pairs:
        return Agreement(n=0, agreed=None, kappa=None, low=None, high=None)
    values = sorted({value for pair in pairs for value in pair}, key=lambda value: (isinstance(value, str), value))
    graded = len(values) > 2 and not any(isinstance(value, str) for value in values)
    kappa, low, high = _kappa(Counter(pairs), values, graded)
    return Agreement(
        n=len(pairs),
        agreed=sum(_alike(*pair) for pair in pairs) / len(pairs),
        kappa=kappa,
        low=low,
        high=high,
        weighted=graded,
        within_one=_within_one(pairs, values) if graded else None,
        confusion=dict(sorted(Counter(pairs).items(), key=str)) if len(values) <= LEVELS else {},
    )


def _alike(judge: Value, people: Value) -> bool:
    if isinstance(judge, str) or isinstance(people, str):
        return judge == people
    return abs(judge - people) <= _ROUNDING


def _within_one(pairs: Sequence[Pair], values: Sequence[Value]) -> float:
    """A level is 1 wide, or as wide as the least distance that there is."""
    numbers = [float(value) for value in values]
    level = min(1.0, *(after - before for before, after in pairwise(numbers)))
    level = 1.0 if all(number.is_integer() for number in numbers) else level
    near = sum(abs(float(judge) - float(people)) <= level + _ROUNDING for judge, people in pairs)
    return near / len(pairs)


def _kappa(
    counts: Counter[Pair], values: Sequence[Value], graded: bool
) -> tuple[float | None, float | None, float | None]:
    """Kappa and its interval from the large-sample variance (Fleiss, Cohen, Everitt 1969).

    Where both agree on every pair that variance is 0, and says nothing: the lower end is then what kappa would be at
    the lowest agreement of which so many alike pairs are no surprise (Clopper, Pearson 1934).
    """
    n = sum(counts.values())
    rows, columns = (_shares(counts, place, n) for place in (0, 1))
    span = (float(values[-1]) - float(values[0])) ** 2 if graded else 1.0

    def likeness(one: Value, other: Value) -> float:
        return 1 - (float(one) - float(other)) ** 2 / span if graded else float(one == other)

    of_row = {row: sum(share * likeness(row, column) for column, share in columns.items()) for row in rows}
    of_column = {column: sum(share * likeness(row, column) for row, share in rows.items()) for column in columns}
    seen = sum(count / n * likeness(*pair) for pair, count in counts.items())
    chance = sum(share * of_row[row] for row, share in rows.items())
    if 1 - chance < _ROUNDING:
        return None, None, None
    kappa = (seen - chance) / (1 - chance)
    if min(len(rows), len(columns)) == 1:
        return 0.0, None, None
    if 1 - seen < _ROUNDING:
        return 1.0, ((0.025 ** (1 / n)) - chance) / (1 - chance), 1.0
    spread = sum(
        count / n * (likeness(row, column) - (of_row[row] + of_column[column]) * (1 - kappa)) ** 2
        for (row, column), count in counts.items()
    )
    error = sqrt(max(0.0, spread - (kappa - chance * (1 - kappa)) ** 2) / n) / (1 - chance)
    return kappa, max(-1.0, kappa - _Z * error), min(1.0, kappa + _Z * error)


def _shares(counts: Counter[Pair], place: int, n: int) -> dict[Value, float]:
    shares: dict[Value, float] = {}
    for pair, count in counts.items():
        shares[pair[place]] = shares.get(pair[place], 0.0) + count / n
    return shares
