"""What all targets would have scored, from those that a rule looked at: each stands for one over its probability."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import fsum, sqrt

from spanwise.collector.records import WeightedScore
from spanwise.collector.statistics._student import quantile
from spanwise.collector.statistics._sum import Sum

_LEVEL = 0.975  # both ends of a 95 % interval
_ALIKE = 1e-12  # a variance below is rounding
_TWO = 1 + 1e-9  # clusters, some at least, from which on one can be compared with another


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledMean:
    """The mean under one key of all that a rule could have looked at, with its 95 % interval from `low` to `high`.

    `n` scores count, which are as sure as `effective` sessions (or traces without a session) of equal weight would be.
    Left out are `unknown` scores, whose probability is unknown, and `outside` ones, of targets that the present rate
    would not take. `unweighted` is the plain mean of the `unknown` scores where no other score counts, as of senders
    without sampling information. `failed` and `skipped` count the outcomes that are no scores. No interval where
    nothing says how far scores scatter.
    """

    key: str
    mean: float | None
    low: float | None
    high: float | None
    n: int
    effective: float
    unknown: int = 0
    outside: int = 0
    failed: int = 0
    skipped: int = 0
    unweighted: float | None = None

    def __str__(self) -> str:
        """In a sentence."""
        basis = f"{self.n} scores" + (f", as sure as {self.effective:.0f} of equal weight" if self.n else "")
        counts = {"failed": self.failed, "skipped": self.skipped, "of unknown probability": self.unknown}
        left = "".join(f", {count} {words}" for words, count in {**counts, "outside": self.outside}.items() if count)
        if self.mean is None:
            plain = (
                "" if self.unweighted is None else f"; unweighted mean {self.unweighted:.3g} of {self.unknown} scores"
            )
            return f"{self.key}: no weighted mean ({basis}{left}){plain}"
        interval = "" if self.low is None else f" (95 %: {self.low:.3g} to {self.high:.3g})"
        return f"{self.key}: {self.mean:.3g}{interval}, {basis}{left}"


@dataclass(slots=True)
class _Sums:
    """Sums of one key; memory grows with the number of clusters."""

    clusters: dict[tuple[bool, str], tuple[float, float]] = field(default_factory=dict)  # by session or trace: Σw, Σwy
    of_unknown: Sum = field(default_factory=Sum)  # of the scores whose probability is unknown
    binary: bool = True
    n: int = 0
    unknown: int = 0
    outside: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, one: WeightedScore) -> None:
        if one.outcome != "score":
            self.failed += one.outcome == "error"
            self.skipped += one.outcome == "skip"
        elif one.score is None:
            return
        elif one.probability is None:
            self.unknown += 1
            self.of_unknown.add(float(one.score))
        elif one.probability == 0:
            self.outside += 1
        else:
            self._weigh(one, float(one.score), 1 / one.probability)

    def _weigh(self, one: WeightedScore, score: float, weight: float) -> None:
        cluster = (True, one.session_id) if one.session_id else (False, one.trace_id or "")
        weights, total = self.clusters.get(cluster, (0.0, 0.0))
        self.clusters[cluster] = weights + weight, total + weight * score
        self.binary = self.binary and score in (0.0, 1.0)
        self.n += 1


def sampled_means(scores: Iterable[WeightedScore]) -> list[SampledMean]:
    """Per key, in the order of their names, the mean Σwy/Σw with w = 1/p (Hájek 1971) and its interval.

    The interval is that of a ratio, by linearization over clusters (Särndal, Swensson, Wretman 1992, section 5.7). A
    cluster is a session, or a trace without a session. Where all scores are 0 or 1 it is Wilson's, for as many equal
    weights as the mean is sure but no more than there are scores (Korn, Graubard 1998): it has a width also where all
    are alike.
    """
    sums: dict[str, _Sums] = {}
    for one in scores:
        sums.setdefault(one.key, _Sums()).add(one)
    return [_mean(key, sums[key]) for key in sorted(sums)]


def _mean(key: str, sums: _Sums) -> SampledMean:
    weight = fsum(weights for weights, _ in sums.clusters.values())
    mean = fsum(total for _, total in sums.clusters.values()) / weight if weight else None
    shares = [weights / weight for weights, _ in sums.clusters.values()]
    effective = 1 / fsum(share * share for share in shares) if shares else 0.0  # Kish 1965
    low, high = (None, None) if mean is None or effective < _TWO else _interval(mean, weight, shares, effective, sums)
    return SampledMean(
        key=key,
        mean=mean,
        low=low,
        high=high,
        n=sums.n,
        effective=effective,
        unknown=sums.unknown,
        outside=sums.outside,
        failed=sums.failed,
        skipped=sums.skipped,
        unweighted=float(sums.of_unknown) / sums.unknown if sums.unknown and not sums.n else None,
    )


def _interval(
    mean: float, weight: float, shares: list[float], effective: float, sums: _Sums
) -> tuple[float, float] | tuple[None, None]:
    # What a cluster misses of the mean, and as much again as it has pulled the mean to itself (Bell, McCaffrey 2002)
    missed = zip((total - mean * weights for weights, total in sums.clusters.values()), shares, strict=True)
    variance = fsum(miss * miss / (1 - share) for miss, share in missed) / weight**2
    t = quantile(_LEVEL, max(1, round(effective - 1)))
    if sums.binary:
        sure = mean * (1 - mean) / variance if variance > _ALIKE else effective
        return _wilson(mean, min(sure, sums.n), t)
    if variance <= _ALIKE:
        return None, None
    return mean - t * sqrt(variance), mean + t * sqrt(variance)


def _wilson(share: float, n: float, t: float) -> tuple[float, float]:
    """The interval of a share of n (Wilson 1927)."""
    middle = (share + t * t / (2 * n)) / (1 + t * t / n)
    half = t / (1 + t * t / n) * sqrt(share * (1 - share) / n + t * t / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)
