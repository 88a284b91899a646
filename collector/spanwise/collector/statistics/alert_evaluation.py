"""Evaluation of alerts: estimate of a window, one-sided bound, breach, and the state that follows from it.

An alert is evaluated 24 times per window. Each evaluation ("look") reads the sums of 24 equal time blocks. The rules
were chosen by simulation (`benchmarks/alerts.py`): a threshold that equals the true mean is reported less than once per
quarter, for independent, stratified, autocorrelated, daily varying and clustered scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, sqrt

from spanwise.collector.statistics.intervals import t_quantile, wilson_interval, z_quantile

GRAIN_S = 150  # the store keeps sums of scores per 150 s: a 24th of an hour, the shortest window
WINDOW_BLOCKS = 24  # blocks of a window, and looks per window
MIN_FILLED_BLOCKS = 12  # fewer blocks with scores are no data
MIN_EFFECTIVE_N = 30.0  # a smaller effective n is no data
SURE = 0.999  # probability with which the bound holds, for one look at one group
_MIN_DROP_VARIANCE = 1e-6  # of each mean of a drop, so that two constant means are not infinitely sure
_NO_VARIANCE = 1e-15  # smaller variances are rounding errors


@dataclass(slots=True)
class BlockSums:
    """Sums of the weighted scores of the traces that started in one time block.

    A score y with the sampling probability p has the weight w = 1/p. A cluster is a session, or a trace without one; W
    and Y are its sums of w and w·y. Sums of blocks can be added: a cluster in two blocks then counts as two.
    """

    n: int = 0  # scores
    weight: float = 0.0  # ΣW
    total: float = 0.0  # ΣY
    weight_squares: float = 0.0  # ΣW²
    products: float = 0.0  # ΣWY
    total_squares: float = 0.0  # ΣY²
    graded: int = 0  # scores other than 0 and 1

    def add_cluster(self, weight: float, total: float, n: int = 1, graded: int = 0) -> None:
        """Add the sums of one cluster: Σw and Σw·y of its `n` scores, of which `graded` are neither 0 nor 1."""
        self.n += n
        self.graded += graded
        self.weight += weight
        self.total += total
        self.weight_squares += weight * weight
        self.products += weight * total
        self.total_squares += total * total

    def merge(self, other: BlockSums) -> None:
        """Add the sums of another block."""
        self.n += other.n
        self.graded += other.graded
        self.weight += other.weight
        self.total += other.total
        self.weight_squares += other.weight_squares
        self.products += other.products
        self.total_squares += other.total_squares


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowEstimate:
    """Weighted mean of the scores of a window, and its variance.

    `mean` is None without scores. `variance` is the larger of the variance over clusters, as of `SampledMean`, and the
    variance over time blocks (batch means). The second one grows if the means of blocks differ, as with a daily wave or
    with similar neighbours. `effective_n` is the number of clusters of equal weight with the same precision (Kish 1965).
    """

    mean: float | None
    variance: float
    effective_n: float
    n: int
    filled_blocks: int
    is_share: bool  # all scores are 0 or 1

    def bound(self, sure: float, *, upper: bool) -> float:
        """Return how high (or low) the true mean can be, with the probability `sure`. There must be scores.

        For shares, this is Wilson's bound for the n that the variance implies; for graded scores, the bound of Student's
        t with as many degrees of freedom as blocks, less one.
        """
        assert self.mean is not None
        if not self.is_share:
            half = t_quantile(sure, WINDOW_BLOCKS - 1) * sqrt(self.variance)
            return self.mean + half if upper else self.mean - half
        spread = self.mean * (1 - self.mean)
        n = max(1.0, spread / self.variance if self.variance > _NO_VARIANCE else self.effective_n)
        return wilson_interval(self.mean * n, n, 2 * sure - 1)[upper]


def estimate_window(blocks: Sequence[BlockSums]) -> WindowEstimate:
    """Return the estimate of the mean over equal time blocks, empty ones included."""
    window = BlockSums()
    for block in blocks:
        window.merge(block)
    filled = sum(1 for block in blocks if block.weight > 0)
    if window.weight <= 0:
        return WindowEstimate(mean=None, variance=inf, effective_n=0.0, n=0, filled_blocks=0, is_share=True)
    mean = window.total / window.weight
    effective = window.weight**2 / window.weight_squares
    of_clusters = window.total_squares - 2 * mean * window.products + mean * mean * window.weight_squares
    if effective > 1:  # each cluster has itself moved the mean towards it
        of_clusters *= effective / (effective - 1)
    of_blocks = sum((block.total - mean * block.weight) ** 2 for block in blocks) * len(blocks) / (len(blocks) - 1)
    return WindowEstimate(
        mean=mean,
        variance=max(0.0, of_clusters, of_blocks) / window.weight**2,
        effective_n=effective,
        n=window.n,
        filled_blocks=filled,
        is_share=window.graded == 0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertCondition:
    """Condition of an alert. Exactly one of `below`, `above` and `drop` is given; all are in units of the score.

    `drop` compares the window with the baseline, the seven days before it.
    """

    below: float | None = None
    above: float | None = None
    drop: float | None = None
    sure: float = SURE

    def __post_init__(self) -> None:
        """Raise `ValueError` for a condition that cannot be evaluated."""
        given = [value for value in (self.below, self.above, self.drop) if value is not None]
        if len(given) != 1:
            raise ValueError(f"an alert needs exactly one of below, above and drop; got {len(given)}")
        if self.drop is not None and not self.drop >= 0:
            raise ValueError(f"drop must be a number >= 0, got {self.drop!r}")
        if not 0.5 < self.sure < 1:
            raise ValueError(f"sure must be a probability above 0.5 and below 1, got {self.sure!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertLook:
    """Result of one look. `is_breach` is None if there are too few scores; `missing` then says why.

    `bound` is the one-sided bound of the mean that `below` and `above` compare, and for `drop` of the difference
    between baseline and window.
    """

    window: WindowEstimate
    baseline: WindowEstimate | None = None
    bound: float | None = None
    is_breach: bool | None = None
    missing: str = ""


def evaluate_condition(
    condition: AlertCondition,
    blocks: Sequence[BlockSums],
    *,
    seconds: float,
    baseline: Sequence[BlockSums] | WindowEstimate = (),
    groups: int = 1,
) -> AlertLook:
    """Evaluate a condition on a window of `seconds`, divided into `WINDOW_BLOCKS` blocks.

    `baseline` are the blocks before the window, of the same length, or their estimate; only `drop` needs them. `groups` is the number of
    groups of this alert that have data: the probability of an error is divided by it. Raises `ValueError` for another
    number of blocks.
    """
    if len(blocks) != WINDOW_BLOCKS:
        raise ValueError(f"a window has {WINDOW_BLOCKS} blocks, got {len(blocks)}")
    window = estimate_window(blocks)
    if missing := _describe_missing(window, seconds, "window"):
        return AlertLook(window=window, missing=missing)
    sure = 1 - (1 - condition.sure) / max(1, groups)
    assert window.mean is not None
    if condition.below is not None:
        bound = window.bound(sure, upper=True)
        return AlertLook(window=window, bound=bound, is_breach=bound < condition.below)
    if condition.above is not None:
        bound = window.bound(sure, upper=False)
        return AlertLook(window=window, bound=bound, is_breach=bound > condition.above)
    if isinstance(baseline, WindowEstimate):
        before = baseline
    else:
        before = estimate_window(baseline)
        if missing := _describe_missing(before, seconds * len(baseline) / WINDOW_BLOCKS, "baseline"):
            return AlertLook(window=window, baseline=before, missing=missing)
    assert before.mean is not None
    assert condition.drop is not None
    variance = max(window.variance, _MIN_DROP_VARIANCE) + max(before.variance, _MIN_DROP_VARIANCE)
    bound = before.mean - window.mean - z_quantile(sure) * sqrt(variance)
    return AlertLook(window=window, baseline=before, bound=bound, is_breach=bound > condition.drop)


def _describe_missing(estimate: WindowEstimate, seconds: float, name: str) -> str:
    """Return what keeps an estimate from being used, or ""."""
    if not estimate.n:
        return f"no scores in the {name}"
    if estimate.effective_n < MIN_EFFECTIVE_N:
        hours = seconds / 3600 * MIN_EFFECTIVE_N / estimate.effective_n
        enough = f"{max(1, round(hours))} hours" if hours < 47.5 else f"{round(hours / 24 + 0.5)} days"
        remedy = (
            f"at this rate a window of {enough} would do"
            if hours <= 7 * 24
            else "at this rate not even a window of 7 days would do"
        )
        return f"effective n {estimate.effective_n:.0f} of {MIN_EFFECTIVE_N:.0f} in the {name}: {remedy}"
    if estimate.filled_blocks < MIN_FILLED_BLOCKS:
        return f"scores in {estimate.filled_blocks} parts of the {name}; {MIN_FILLED_BLOCKS} are needed"
    return ""


class AlertStatus(StrEnum):
    """Status of one group of an alert. "no data" is never "ok"."""

    NO_DATA = "no data"
    OK = "ok"
    FIRING = "firing"
    RESOLVED = "resolved"  # until the next look


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertState:
    """Status after the last look, and the numbers of looks in a row that breached or did not."""

    status: AlertStatus = AlertStatus.NO_DATA
    breaches: int = 0
    clears: int = 0

    def advance(self, is_breach: bool | None, *, fire_after: int = 3, resolve_after: int = 3) -> AlertState:
        """Return the state after another look. A look without data never resolves a firing alert."""
        if self.status is AlertStatus.FIRING:
            clears = self.clears + 1 if is_breach is False else 0
            if clears >= resolve_after:
                return AlertState(status=AlertStatus.RESOLVED, clears=clears)
            return AlertState(status=AlertStatus.FIRING, breaches=self.breaches, clears=clears)
        if is_breach is None:
            return AlertState()
        if not is_breach:
            return AlertState(status=AlertStatus.OK, clears=self.clears + 1)
        breaches = self.breaches + 1
        status = AlertStatus.FIRING if breaches >= fire_after else AlertStatus.OK
        return AlertState(status=status, breaches=breaches)
