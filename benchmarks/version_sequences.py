"""Coverage of the comparison of two versions in production, at all looks together, simulated with the product's code.

    python benchmarks/version_sequences.py                    # 1,000 simulations of each kind of traffic: some minutes
    python benchmarks/version_sequences.py --simulations 100

Each simulation scores 3,000 traces of each version, and looks at the comparison every 100 traces from 200 on. It counts
as covered if the interval contains the true difference at every look. For comparison, the table has the coverage of a
plain 95 % interval at all looks. Exits with 1 if a confidence sequence covers less than 95 %.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

from spanwise.collector.statistics import VersionScore, compare_versions

TRACES, FIRST_LOOK, LOOK_EVERY = 3_000, 200, 100
LEAST_COVERAGE = 0.95
Z = 1.96


@dataclass(frozen=True)
class Kind:
    """Traffic of one kind: makes the scores of a version with a true mean."""

    name: str
    make: Callable[[random.Random, float, int], list[VersionScore]]


def independent(chance: random.Random, mean: float, count: int) -> list[VersionScore]:
    """Each trace is a cluster."""
    return [
        VersionScore(score=float(chance.random() < mean), weight=1.0, cluster=str(number), start_ns=0)
        for number in range(count)
    ]


def strata(chance: random.Random, mean: float, count: int) -> list[VersionScore]:
    """Disliked answers (60 % of the bad, 5 % of the good ones) are sampled with rate 1, others with 1/10."""
    scores: list[VersionScore] = []
    while len(scores) < count:
        is_good = chance.random() < mean
        rate = 1.0 if chance.random() < (0.05 if is_good else 0.6) else 0.1
        if chance.random() < rate:
            cluster = str(len(scores))
            scores.append(VersionScore(score=float(is_good), weight=1 / rate, cluster=cluster, start_ns=0))
    return scores


def sessions(chance: random.Random, mean: float, count: int) -> list[VersionScore]:
    """Sessions of five turns; the mean of a session is drawn from Beta(3m, 3(1 - m))."""
    scores: list[VersionScore] = []
    while len(scores) < count:
        own, cluster = chance.betavariate(3 * mean, 3 * (1 - mean)), f"session {len(scores)}"
        scores += [
            VersionScore(score=float(chance.random() < own), weight=1.0, cluster=cluster, start_ns=0) for _ in range(5)
        ]
    return scores[:count]


KINDS = (Kind("independent", independent), Kind("strata", strata), Kind("clustered sessions", sessions))


def simulate(kind: Kind, seed: int, means: tuple[float, float], traces: int = TRACES) -> tuple[bool, bool]:
    """Return whether the confidence sequence, and a plain interval, contain the true difference at every look."""
    chance = random.Random(f"{kind.name} {seed}")  # text, because tuples have no stable hash
    a, b = (kind.make(chance, mean, traces) for mean in means)
    truth, holds, plain = means[1] - means[0], True, True
    for count in range(FIRST_LOOK, traces + 1, LOOK_EVERY):
        found = compare_versions(a[:count], b[:count], rising=None)
        assert found.a is not None
        assert found.b is not None
        assert found.difference is not None
        assert found.low is not None
        assert found.high is not None
        holds = holds and found.low <= truth <= found.high
        plain = plain and abs(found.difference - truth) <= Z * sqrt(found.a.variance + found.b.variance)
    return holds, plain


def main() -> int:
    """Print the coverage of each kind of traffic."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=1_000)
    simulations = parser.parse_args().simulations
    is_covered = True
    for means in ((0.9, 0.9), (0.85, 0.9)):
        for kind in KINDS:
            results = [simulate(kind, seed, means) for seed in range(simulations)]
            holds, plain = (sum(each) / simulations for each in zip(*results, strict=True))
            is_covered = is_covered and holds >= LEAST_COVERAGE
            mark = "" if holds >= LEAST_COVERAGE else " !"
            print(
                f"{means[0]:.2f} → {means[1]:.2f}  {kind.name:20} {holds:.3f}{mark}  plain interval {plain:.3f}",
                flush=True,
            )
    return 0 if is_covered else 1


if __name__ == "__main__":
    sys.exit(main())
