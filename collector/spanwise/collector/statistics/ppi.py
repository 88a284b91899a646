"""Prediction-powered inference: a judge's mean corrected by human labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any, TypeAlias

from spanwise.collector.statistics.intervals import Moments, hall_interval

if TYPE_CHECKING:
    import numpy


MIN_PPI_LABELS = 100  # minimum number of labels for which the interval of PPI++ has its stated coverage
POSTERIOR_DRAWS = 10_000
_INTERVAL_ENDS = (0.025, 0.975)
_TOLERANCE = 1e-9

# Value of the judge, value of people, and the probability with which the case was drawn
WeightedLabel: TypeAlias = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectedMean:
    """Estimated mean of human labels over all cases, with its 95 % interval from `low` to `high`.

    The judge's own mean is in `judge`. The cases that the judge has scored (their number is `cases`) are treated as a
    sample of the application's behaviour. Therefore the interval has a width even if all cases are labelled. `votes`
    is the number of labelled cases. `alone` is the estimate from the labels only: the mean and its interval. If there
    is no mean, `why` states the reason.
    """

    mean: float | None
    low: float | None
    high: float | None
    judge: float | None
    votes: int
    cases: int
    method: str
    alone: tuple[float, float, float] | None = None
    why: str | None = None
    error: float | None = None  # standard error; only with PPI++
    tuning: float | None = None  # λ of PPI++: the weight of the judge's scores, 0 to 1
    notes: tuple[str, ...] = ()  # notes on excluded cases

    def __str__(self) -> str:
        """Return the estimate as one or two sentences."""
        judge = "the judge has no scores" if self.judge is None else f"the judge gives {self.judge:.3g}"
        basis = f"{judge}; {self.votes} labels on {self.cases} cases{''.join(f'; {note}' for note in self.notes)}"
        if self.mean is None:
            return f"no corrected mean: {self.why} ({basis})"
        return f"estimated mean of human labels {self.mean:.3g} (95 %: {self.low:.3g} to {self.high:.3g}); {basis}"


def estimate_ppi_mean(scores: Sequence[float], votes: Sequence[WeightedLabel]) -> CorrectedMean:
    """Estimate the mean of human labels from all scores of a judge, and from labels on some of the same cases.

    Each label states the probability with which its case was drawn; only ratios of these probabilities matter. If all
    scores and labels are 0 or 1, the estimate is post-stratified by the judge's score. Otherwise it uses PPI++
    (Angelopoulos, Duchi, Zrnic 2023, arXiv 2311.01453), and there is no mean if the effective number of labels is below
    `MIN_PPI_LABELS`. Raises `ValueError` for a probability outside (0, 1], and if there are more labels than scores.
    """
    if len(votes) > len(scores):
        raise ValueError(f"every labelled case must be scored, got {len(votes)} labels and {len(scores)} scores")
    if wrong := [probability for _, _, probability in votes if not 0 < probability <= 1]:
        raise ValueError(f"a sampling probability must be above 0 and at most 1, got {wrong[0]!r}")
    judge = sum(scores) / len(scores) if scores else None
    if not votes:
        return _without_mean("no labels", judge, votes, scores)
    if {*scores, *(value for vote in votes for value in vote[:2])} <= {0.0, 1.0}:
        return _post_stratify(scores, votes)
    if (equal := _effective_size([1 / probability for _, _, probability in votes])) < MIN_PPI_LABELS:
        alike = f", equivalent to {equal:.0f} of equal weight" * (len(votes) >= MIN_PPI_LABELS)
        return _without_mean(
            f"too few labels: {len(votes)}{alike}; graded scores need {MIN_PPI_LABELS}", judge, votes, scores
        )
    return _estimate_ppi(scores, votes)


def _without_mean(
    why: str, judge: float | None, votes: Sequence[WeightedLabel], scores: Sequence[float]
) -> CorrectedMean:
    return CorrectedMean(
        mean=None, low=None, high=None, judge=judge, votes=len(votes), cases=len(scores), method="none", why=why
    )


def _post_stratify(scores: Sequence[float], votes: Sequence[WeightedLabel]) -> CorrectedMean:
    """Estimate the share of yes labels for each score of the judge, and weight these two shares by the frequency of the
    score.

    The interval comes from random draws. They are taken from the posteriors of both shares and of the frequency,
    under Jeffreys' prior, Beta(½, ½).
    """
    import numpy

    random = numpy.random.default_rng(0)
    yes = sum(scores)
    both = 0 < yes < len(scores)
    says_yes = random.beta(yes + 0.5, len(scores) - yes + 0.5, POSTERIOR_DRAWS) if both else float(yes > 0)
    shares = [_beta_posterior(votes, verdict) for verdict in (0.0, 1.0)]
    of_no, of_yes = (random.beta(*share, POSTERIOR_DRAWS) for share in shares)
    low, high = numpy.quantile(says_yes * of_yes + (1 - says_yes) * of_no, _INTERVAL_ENDS)
    weight = (yes + 0.5) / (len(scores) + 1) if both else float(yes > 0)
    alone = _beta_posterior(votes, None)
    lowest, highest = numpy.quantile(random.beta(*alone, POSTERIOR_DRAWS), _INTERVAL_ENDS)
    return CorrectedMean(
        mean=weight * _beta_mean(shares[1]) + (1 - weight) * _beta_mean(shares[0]),
        low=float(low),
        high=float(high),
        judge=yes / len(scores),
        votes=len(votes),
        cases=len(scores),
        method="post-stratified by the judge's verdict",
        alone=(_beta_mean(alone), float(lowest), float(highest)),
    )


def _effective_size(weights: Sequence[float]) -> float:
    """Return the effective sample size (Σw)²/Σw² (Kish 1965)."""
    return sum(weights) ** 2 / sum(weight * weight for weight in weights)


def _beta_mean(beta: tuple[float, float]) -> float:
    return beta[0] / sum(beta)


def _beta_posterior(votes: Sequence[WeightedLabel], verdict: float | None) -> tuple[float, float]:
    """Return the parameters of the Beta posterior for the share of yes labels among cases with the judge's `verdict`.

    None selects all cases. Labels of unequal weight count with their effective sample size.
    """
    weighted = [(1 / probability, vote) for judge, vote, probability in votes if verdict in (None, judge)]
    total = sum(weight for weight, _ in weighted)
    if not total:
        return 0.5, 0.5
    share = sum(weight * vote for weight, vote in weighted) / total
    n = _effective_size([weight for weight, _ in weighted])
    return n * share + 0.5, n * (1 - share) + 0.5


def _estimate_ppi(scores: Sequence[float], votes: Sequence[WeightedLabel]) -> CorrectedMean:
    """Estimate the mean by PPI++, in the form for equal or for unequal weights.

    The interval is adjusted for the skewness of the residuals (Hall 1992). If nearly all scores are 5, a symmetric
    interval from 100 labels covers the true mean only 9 times in 10.
    """
    import numpy

    judged, voted, probabilities = numpy.asarray(votes, float).T
    everything = numpy.asarray(scores, float)
    weights = probabilities.mean() / probabilities
    weights /= weights.mean()
    estimate = _estimate_equal_weights if numpy.ptp(weights) < _TOLERANCE else _estimate_unequal_weights
    mean, error, third, tuning = estimate(judged, voted, weights, everything)
    effective_labels = round(_effective_size(weights.tolist()))
    low, high = _skewed_interval(mean, error, third, effective_labels)
    alone, of_alone, third_alone, _ = _estimate_unequal_weights(numpy.zeros(len(votes)), voted, weights, everything)
    return CorrectedMean(
        mean=mean,
        low=low,
        high=high,
        judge=float(everything.mean()),
        votes=len(votes),
        cases=len(scores),
        method="PPI++",
        alone=(alone, *_skewed_interval(alone, of_alone, third_alone, effective_labels)),
        error=error,
        tuning=tuning,
    )


def _skewed_interval(mean: float, error: float, third: float, n: int) -> tuple[float, float]:
    """Return the interval of an estimate from its standard error and third central moment."""
    return hall_interval(Moments(n, mean, error, third / error**3 if error else 0.0))


Array: TypeAlias = "numpy.ndarray[Any, numpy.dtype[numpy.float64]]"
Estimate: TypeAlias = tuple[float, float, float, float]  # mean, standard error, third central moment, λ


def _estimate_equal_weights(judged: Array, voted: Array, weights: Array, everything: Array) -> Estimate:
    """Estimate with equal weights, where the cases without labels are the unlabelled sample.

    Sums over the unlabelled cases are the sums over all cases minus those over the labelled cases.
    """
    n, unlabelled = len(voted), len(everything) - len(voted)
    if not unlabelled or not everything.std():
        return float(voted.mean()), float(voted.std()) / sqrt(n), _third_moment(voted, n), 0.0
    mean_unlabelled = (everything.sum() - judged.sum()) / unlabelled
    variance_unlabelled = max(0.0, ((everything**2).sum() - (judged**2).sum()) / unlabelled - mean_unlabelled**2)
    together = ((voted - voted.mean()) * (judged - judged.mean())).mean()
    tuning = min(1.0, max(0.0, float(together / ((1 + n / unlabelled) * everything.var(ddof=1)))))
    residuals = voted - tuning * judged
    error = sqrt(tuning**2 * variance_unlabelled / unlabelled + residuals.var() / n)
    third = tuning**3 * _third_moment(everything, unlabelled) + _third_moment(residuals, n)
    return float(tuning * mean_unlabelled + residuals.mean()), error, third, tuning


def _third_moment(values: Array, n: int) -> float:
    """Return the third central moment of the mean of n values."""
    return float(((values - values.mean()) ** 3).mean()) / n**2


def _estimate_unequal_weights(judged: Array, voted: Array, weights: Array, everything: Array) -> Estimate:
    """Estimate with unequal weights, where the unlabelled cases are not a random sample.

    The scores of all cases take the place of the unlabelled scores. With equal weights, this gives the same estimate as
    `_estimate_equal_weights`, with a λ that is larger by the factor 1 + n/(N − n), for n labels and N scores.
    """
    n, cases = len(voted), len(everything)
    off_judged, off_voted = judged - (weights * judged).mean(), voted - (weights * voted).mean()
    spread = (weights * off_judged**2).mean()
    tuning = min(1.0, max(0.0, float((weights * off_judged * off_voted).mean() / spread))) if spread else 0.0
    mean = tuning * everything.mean() + (weights * (voted - tuning * judged)).mean()
    residuals = weights * (off_voted - tuning * off_judged)
    error = sqrt((1 - n / cases) * (residuals**2).sum() / n**2 + (weights * off_voted**2).mean() / cases)
    return float(mean), error, float((residuals**3).sum()) / n**3, tuning
