"""False alarms and delays of alerts, simulated with the product's own look.

    python benchmarks/alerts.py                    # 1,000 quarters of each kind of traffic, 200 changes: half an hour
    python benchmarks/alerts.py --quarters 50 --changes 20
    python benchmarks/alerts.py --only strata

The true mean is exactly on the threshold, so every alarm is a false one. 960 traces a day are scored, the window is 24
hours, and a quarter has 90 days. A detection is counted in scored traces from the change until the alert fires.
`--only` names one row. Figures in brackets are those of the simulation that the rules were chosen by.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from spanwise.collector.statistics import (
    WINDOW_BLOCKS,
    AlertCondition,
    AlertState,
    AlertStatus,
    BlockSums,
    evaluate_condition,
)

PER_DAY, DAYS, DAY = 960, 90, 86_400.0
Floats = NDArray[np.float64]
Make = Callable[[np.random.Generator, int, Floats], tuple[Floats, Floats, NDArray[np.int64]]]


@dataclass(frozen=True)
class Kind:
    """Traffic of one kind: makes scores, weights and hours of a number of days, with a true mean for each hour."""

    name: str
    make: Make
    allowed: float  # false alarms per quarter in the simulation that the rules were chosen by
    mean: float = 0.95


def hours_of(days: int, per_hour: int) -> NDArray[np.int64]:
    return np.repeat(np.arange(days * 24), per_hour)


def independent(random: np.random.Generator, days: int, means: Floats) -> tuple[Floats, Floats, NDArray[np.int64]]:
    hours = hours_of(days, PER_DAY // 24)
    return (random.random(len(hours)) < means[hours]).astype(float), np.ones(len(hours)), hours


def strata(random: np.random.Generator, days: int, means: Floats) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Disliked answers (60 % of the bad, 5 % of the good ones) are sampled with rate 1, others with 1/10."""
    bad = 1 - means.mean()
    taken = bad * (0.6 + 0.4 * 0.1) + (1 - bad) * (0.05 + 0.95 * 0.1)
    hours = hours_of(days, round(PER_DAY / 24 / taken))
    is_bad = random.random(len(hours)) >= means[hours]
    rate = np.where(random.random(len(hours)) < np.where(is_bad, 0.6, 0.05), 1.0, 0.1)
    sampled = random.random(len(hours)) < rate
    return (~is_bad[sampled]).astype(float), 1 / rate[sampled], hours[sampled]


def autocorrelated(random: np.random.Generator, days: int, means: Floats) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """A score repeats the one before with the probability 0.5, which is then its autocorrelation."""
    scores, weights, hours = independent(random, days, means)
    last_drawn = np.maximum.accumulate(np.where(random.random(len(scores)) < 0.5, 0, np.arange(len(scores))))
    return scores[last_drawn], weights, hours


def daily(random: np.random.Generator, days: int, means: Floats) -> tuple[Floats, Floats, NDArray[np.int64]]:
    wave = 0.03 * np.sin(2 * np.pi * np.arange(days * 24) / 24)
    return independent(random, days, np.clip(means + wave, 0, 1))


def sessions(random: np.random.Generator, days: int, means: Floats) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Five turns in a row are one session, whose own mean has the distribution Beta(3m, 3(1 - m)); it is not marked."""
    hours = hours_of(days, PER_DAY // 24)
    of_session = means[hours[::5]]
    drawn = np.repeat(random.beta(3 * of_session, 3 * (1 - of_session)), 5)
    return (random.random(len(hours)) < drawn).astype(float), np.ones(len(hours)), hours


def graded(random: np.random.Generator, days: int, means: Floats) -> tuple[Floats, Floats, NDArray[np.int64]]:
    hours = hours_of(days, PER_DAY // 24)
    size = means * (1 - means) / 0.2**2 - 1  # of a beta distribution with the standard deviation 0.2
    return random.beta((means * size)[hours], ((1 - means) * size)[hours]), np.ones(len(hours)), hours


KINDS = (
    Kind("independent", independent, 0.31),
    Kind("strata", strata, 0.12),
    Kind("autocorrelated", autocorrelated, 0.74),
    Kind("daily", daily, 0.09),
    Kind("sessions", sessions, 0.66),
    Kind("graded", graded, 0.02, mean=0.8),
)


def make_blocks(scores: Floats, weights: Floats, hours: NDArray[np.int64], count: int) -> list[BlockSums]:
    """Return the sums of each hour. Every trace is a cluster of its own."""
    totals = weights * scores
    is_graded = ((scores != 0) & (scores != 1)).astype(float)
    columns = [
        np.bincount(hours, column, count)
        for column in (weights, totals, weights * weights, weights * totals, totals * totals)
    ]
    numbers, graded_ones = np.bincount(hours, minlength=count), np.bincount(hours, is_graded, count)
    return [
        BlockSums(int(n), *sums, graded=int(g))
        for n, g, *sums in zip(numbers.tolist(), graded_ones.tolist(), *(c.tolist() for c in columns), strict=True)
    ]


def run(blocks: list[BlockSums], condition: AlertCondition, groups: int = 1) -> Iterator[int]:
    """Iterate over the hours after which the alert begins to fire."""
    state = AlertState()
    before = 7 * WINDOW_BLOCKS if condition.drop is not None else 0
    anchor = None  # the baseline does not move while the alert fires
    for hour in range(WINDOW_BLOCKS + before, len(blocks) + 1):
        start = hour - WINDOW_BLOCKS if anchor is None else anchor
        baseline = blocks[start - before : start]
        result = evaluate_condition(
            condition, blocks[hour - WINDOW_BLOCKS : hour], seconds=DAY, baseline=baseline, groups=groups
        )
        state, old = state.advance(result.is_breach), state
        if state.status is AlertStatus.FIRING:
            anchor = start
            if old.status is not AlertStatus.FIRING:
                yield hour
        else:
            anchor = None


def false_alarms(kind: Kind, quarters: int, seed: int, *, above: float = 0.0, groups: int = 1) -> float:
    """Return the false alarms per quarter, with the true mean `above` the threshold."""
    random = np.random.default_rng([seed, len(kind.name), int(1000 * above), groups])
    condition = AlertCondition(below=kind.mean)
    means = np.full(DAYS * 24, kind.mean + above)
    found = 0
    for _ in range(quarters * groups):
        blocks = make_blocks(*kind.make(random, DAYS, means), DAYS * 24)
        found += sum(1 for _ in run(blocks, condition, groups))
    return found / quarters


def delays(low: float, condition: AlertCondition, changes: int, seed: int, days: int = 14) -> list[float]:
    """Return the scored traces from a change of .95 to `low` until the alert fires; infinite if it never does."""
    random = np.random.default_rng([seed, int(1000 * low), changes])
    quiet = 9
    means = np.concatenate([np.full(quiet * 24, 0.95), np.full(days * 24, low)])
    found = []
    while len(found) < changes:
        blocks = make_blocks(*independent(random, quiet + days, means), len(means))
        fired = list(run(blocks, condition))
        if any(hour <= quiet * 24 for hour in fired):
            continue  # a false alarm before the change says nothing about the delay
        found.append(min((hour - quiet * 24) * PER_DAY / 24 for hour in fired) if fired else float("inf"))
    return sorted(found)


DETECTIONS = (
    (".95 -> .90 (below .95)", 0.90, AlertCondition(below=0.95), 640, 840),
    (".95 -> .85 (below .95)", 0.85, AlertCondition(below=0.95), 440, 560),
    (".95 -> .85 (below .93)", 0.85, AlertCondition(below=0.93), 680, 800),
    (".95 -> .85 (drop .02)", 0.85, AlertCondition(drop=0.02), 640, None),
    (".95 -> .90 (drop .02)", 0.90, AlertCondition(drop=0.02), 1720, None),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quarters", type=int, default=1_000)
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="a kind of traffic, `groups` or `delays`")
    args = parser.parse_args()
    print("| traffic | false alarms per quarter | before | mean .02 above |\n|---|---|---|---|")
    for kind in KINDS:
        if args.only in ("", kind.name):
            on = false_alarms(kind, args.quarters, args.seed)
            above = false_alarms(kind, args.quarters, args.seed, above=0.02)
            print(f"| {kind.name} | {on:.2f} | [{kind.allowed}] | {above:.2f} |", flush=True)
    if args.only in ("", "groups"):
        found = false_alarms(KINDS[0], max(1, args.quarters // 100), args.seed, groups=100)
        print(f"| 100 groups, independent ({max(1, args.quarters // 100)} quarters) | {found:.2f} | [0.65] | |")
    if args.only in ("", "delays"):
        print("\n| change | scored traces until it fires: median, 90 % | before |\n|---|---|---|")
        for name, low, condition, middle, late in DETECTIONS:
            found = delays(low, condition, args.changes, args.seed)
            print(
                f"| {name} | {median(found):.0f}, {found[int(0.9 * len(found))]:.0f} | [{middle}, {late}] |", flush=True
            )


if __name__ == "__main__":
    main()
