"""How often the interval of `corrected` holds the true mean: simulated, seeded, the same on every machine.

Each cell is `--rounds` rounds of: cases whose people's votes have the true mean, a judge that errs as often as its
name says, votes on some of the cases, the interval. `python benchmarks/corrected.py [--rounds 2000]` prints a
Markdown table per method; `tests/collector/test_corrected_coverage.py` runs some of the cells.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy

from spanwise.collector.statistics import CorrectedMean, estimate_ppi_mean

VOTES = (40, 100, 200, 400)
MEANS = (0.5, 0.7, 0.8, 0.9, 0.95)
CASES = 2_000
JUDGES = {  # yes where people say yes, yes where they say no
    "good": (0.95, 0.10),
    "fair": (0.88, 0.25),
    "lenient": (0.98, 0.55),
    "poor": (0.65, 0.45),
    "always yes": (1.0, 1.0),
}
GRADES = {  # how likely 1 to 5 are
    "even": (0.2, 0.2, 0.2, 0.2, 0.2),
    "high": (0.02, 0.05, 0.13, 0.35, 0.45),
    "very high": (0.01, 0.01, 0.03, 0.10, 0.85),
}
NOISE = {"good": 0.5, "fair": 1.2, "poor": 3.0}  # standard deviation of the judge's error, before rounding

Random = numpy.random.Generator


@dataclass(frozen=True)
class Cell:
    """The share of rounds whose interval held the truth, and the mean widths with the judge and without."""

    held: float
    width: float
    alone: float


def cell(rounds: int, seed: int, truth: float, made: Callable[[Random], CorrectedMean]) -> Cell | None:
    random = numpy.random.default_rng(seed)
    results = [made(random) for _ in range(rounds)]
    if any(it.mean is None for it in results):
        return None
    held = sum(it.low <= truth <= it.high for it in results)  # type: ignore[operator]
    width = sum(it.high - it.low for it in results)  # type: ignore[operator]
    alone = sum(it.alone[2] - it.alone[1] for it in results)  # type: ignore[index]
    return Cell(held / rounds, width / rounds, alone / rounds)


def two_valued(
    mean: float, judge: str, votes: int, *, cases: int = CASES, draw: str = "random"
) -> Callable[[Random], CorrectedMean]:
    """One round of scores that are yes or no. `draw`: "random", "by verdict" (as many of each), "unequal" (1 to 6)."""
    said = JUDGES[judge]

    def round(random: Random) -> CorrectedMean:
        people = random.random(cases) < mean
        judged = random.random(cases) < numpy.where(people, *said)
        chosen, probability = DRAWS[draw](random, judged, votes)
        return estimate_ppi_mean(
            judged.astype(float).tolist(),
            list(zip(judged[chosen].astype(float), people[chosen].astype(float), probability[chosen], strict=True)),
        )

    return round


def graded(
    grades: str, judge: str, votes: int, *, cases: int = CASES, draw: str = "random"
) -> Callable[[Random], CorrectedMean]:
    """One round of scores from 1 to 5."""

    def round(random: Random) -> CorrectedMean:
        people = random.choice(5, cases, p=GRADES[grades]) + 1.0
        judged = numpy.clip(numpy.round(people + random.normal(0, NOISE[judge], cases)), 1, 5)
        chosen, probability = DRAWS[draw](random, judged >= 4, votes)
        return estimate_ppi_mean(
            judged.tolist(), list(zip(judged[chosen], people[chosen], probability[chosen], strict=True))
        )

    return round


def _at_random(random: Random, judged: numpy.ndarray, votes: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    return random.choice(len(judged), votes, replace=False), numpy.full(len(judged), votes / len(judged))


def _by_verdict(random: Random, judged: numpy.ndarray, votes: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    chosen, probability = [], numpy.ones(len(judged))
    few, many = sorted((numpy.flatnonzero(judged), numpy.flatnonzero(~judged)), key=len)
    for group, wanted in ((few, min(votes // 2, len(few))), (many, votes - min(votes // 2, len(few)))):
        chosen.append(random.choice(group, wanted, replace=False))
        probability[group] = wanted / max(1, len(group))
    return numpy.concatenate(chosen), probability


def _unequally(random: Random, judged: numpy.ndarray, votes: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Three kinds of cases, as many votes on each: the rare kinds are likelier to be drawn."""
    kind = random.choice(3, len(judged), p=(0.6, 0.3, 0.1))
    probability, chosen = numpy.ones(len(judged)), []
    for number, wanted in enumerate((votes - 2 * (votes // 3), votes // 3, votes // 3)):
        group = numpy.flatnonzero(kind == number)
        chosen.append(random.choice(group, wanted, replace=False))
        probability[group] = wanted / len(group)
    return numpy.concatenate(chosen), probability


DRAWS = {"random": _at_random, "by verdict": _by_verdict, "unequal": _unequally}


def rows(rounds: int) -> Iterator[str]:
    head = " | ".join(f"{votes} votes" for votes in VOTES)
    yield f"| draw, judge, mean | {head} |\n|---|{'---|' * len(VOTES)}"
    plans = [("random", judge) for judge in JUDGES] + [
        ("by verdict", "good"),
        ("by verdict", "fair"),
        ("unequal", "fair"),
    ]
    for draw, judge in plans:
        for mean in MEANS:
            cells = [cell(rounds, votes, mean, two_valued(mean, judge, votes, draw=draw)) for votes in VOTES]
            yield f"| {draw}, {judge}, {mean} | {' | '.join(map(_shown, cells))} |"
    yield f"\n| draw, judge, grades | {' | '.join(f'{votes} votes' for votes in VOTES[1:])} |\n|---|{'---|' * len(VOTES[1:])}"
    for draw, judge in (*(("random", judge) for judge in NOISE), ("unequal", "fair")):
        for grades, shares in GRADES.items():
            truth = float(numpy.dot(shares, range(1, 6)))
            cells = [cell(rounds, votes, truth, graded(grades, judge, votes, draw=draw)) for votes in VOTES[1:]]
            yield f"| {draw}, {judge}, {grades} ({truth:.2f}) | {' | '.join(map(_shown, cells))} |"


def _shown(cell: Cell | None) -> str:
    if cell is None:
        return "too few"
    return f"{cell.held:.1%} ({cell.width / cell.alone:.2f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2_000)
    for row in rows(parser.parse_args().rounds):
        print(row, flush=True)
