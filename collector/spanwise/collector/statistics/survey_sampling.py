"""Survey sampling: sampling position, samples for labelling, weighted means, comparison of two versions."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, log, sqrt
from typing import NamedTuple

from spanwise.collector.records import ScoreSums, Target, WeightedScore
from spanwise.collector.statistics.feedback_tally import ExactSum
from spanwise.collector.statistics.intervals import t_quantile
from spanwise.collector.statistics.score_comparison import Word

# Survey sampling: sampling position of a target, samples for labelling, Hajek means with intervals.

# Fixed and equal for all rules, so that a rule with a lower rate takes a subset of the targets of a rule with a
# higher rate. Head sampling uses the last 56 bits of the trace id unhashed. The hash spreads the traces that head
# sampling kept evenly over [0, 1). The value contains the product's former name, because another value would change
# which traces are sampled.
SAMPLING_SALT = b"assay.monitor.1:"
MANTISSA_BITS = 53  # bits of a float's mantissa, so that all positions are equally likely and none rounds up to 1


def get_sampling_position(target: str) -> float:
    """Return the sampling position of a trace id: a fixed number in [0, 1), evenly distributed.

    For a session, pass "project/session".
    """
    digest = hashlib.sha256(SAMPLING_SALT + target.encode("utf-8", "surrogatepass")).digest()
    return (int.from_bytes(digest[:8], "big") >> (64 - MANTISSA_BITS)) / (1 << MANTISSA_BITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledCase:
    """Case that was drawn for labelling. `stratum` is the group of cases from which it was drawn; "" if there are no
    groups.
    """

    target: Target
    stratum: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSample:
    """Sample for labelling: the cases in random order (`drawn`), and the number of available cases per stratum
    (`cases`).

    The stratum of each target that is in the sample or labelled already is in `of`.
    """

    drawn: tuple[SampledCase, ...]
    cases: Mapping[str, int]
    of: Mapping[Target, str] = field(default_factory=dict)

    def probability(self, stratum: str, voted: int) -> float:
        """Return the probability with which a case of the stratum was drawn, if `voted` of its cases were drawn."""
        return min(1.0, voted / self.cases[stratum])


def draw_label_sample(
    cases: Iterable[tuple[Target, str]], n: int, seed: int, *, voted: Iterable[Target] = (), strata: Sequence[str] = ()
) -> LabelSample:
    """Draw the n cases with the smallest random numbers, which are hashes of seed and case.

    If strata are named, each contributes the same number of cases, or all of its cases if it has fewer. The random
    number of a case never changes: the same seed draws the same sample, a larger n extends it, and new cases are
    included in proportion. Therefore all cases ever drawn are a random sample of all present cases, with equal
    probability within a stratum (permanent random numbers, Ohlsson 1995). Memory grows only with n and `voted`.
    """
    names = tuple(strata) or ("",)
    labelled, counted = set(voted), Counter[str]()
    of: dict[Target, str] = {}
    smallest: dict[str, list[tuple[int, int, Target]]] = {stratum: [] for stratum in names}
    for index, (target, case_stratum) in enumerate(cases):
        stratum = case_stratum if strata else ""
        if stratum not in smallest:
            continue
        counted[stratum] += 1
        if target in labelled:
            of[target] = stratum
        entry = (-_random_number(seed, target), index, target)
        heap = smallest[stratum]
        if len(heap) < n:
            heapq.heappush(heap, entry)
        else:
            heapq.heappushpop(heap, entry)
    ordered = {
        stratum: dict.fromkeys((-number, target) for number, _, target in heap) for stratum, heap in smallest.items()
    }
    chosen = _share_among_strata(
        {stratum: sorted(entries, key=lambda entry: entry[0]) for stratum, entries in ordered.items()}, n
    )
    of |= {drawn.target: drawn.stratum for drawn in chosen}
    # Sort by other random numbers: the order in which the cases were drawn would reveal the judge's score
    chosen.sort(key=lambda drawn: _random_number(seed, drawn.target, "shown"))
    return LabelSample(drawn=tuple(chosen), cases=dict(counted), of=of)


def _random_number(seed: int, target: Target, purpose: str = "drawn") -> int:
    case = f"{target.trace_id} {target.span_id} {target.document} {target.session_id} {target.experiment_id}"
    return int.from_bytes(hashlib.sha256(f"{purpose} {seed} {case}".encode()).digest()[:8])


def _share_among_strata(smallest: Mapping[str, Sequence[tuple[int, Target]]], n: int) -> list[SampledCase]:
    """Return n cases, divided equally among the strata. Strata with too few cases are taken completely."""
    remaining, by_size = n, sorted(smallest, key=lambda stratum: len(smallest[stratum]))
    chosen: list[SampledCase] = []
    for index, stratum in enumerate(by_size):
        share = min(len(smallest[stratum]), -(-remaining // (len(by_size) - index)))
        remaining -= share
        chosen += [SampledCase(target=target, stratum=stratum) for _, target in smallest[stratum][:share]]
    return chosen


MIN_SHOWN_EFFECTIVE = 10.0  # with a smaller effective n, a mean is displayed with the words "too few"
_UPPER_PROBABILITY = 0.975  # upper quantile of a two-sided 95 % interval
_VARIANCE_TOLERANCE = 1e-12  # a smaller variance (relative to the squared mean, if that is above 1) is a rounding error
_MIN_CLUSTERS = 1 + 1e-9  # up to this effective number of clusters, their spread is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledMean:
    """Estimated mean under one key over all targets that a rule could have evaluated.

    The 95 % interval extends from `low` to `high`. It is None if the spread of the scores is unknown. `n` scores
    count. The mean is as precise as that of `effective` sessions (or traces without a session) of equal weight. Two
    kinds of scores are excluded: `unknown` counts those whose sampling probability is unknown, and `outside` those
    whose target the present rate would not select. `unweighted` is the plain mean of the `unknown` scores if no other
    score counts, as for senders without sampling information. `failed` and `skipped` count outcomes without a score.
    If `binary`, all n scores are 0 or 1, so that the mean is a share.
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
    binary: bool = False

    @property
    def too_few(self) -> bool:
        """Return whether there are so few scores that the mean is displayed as uncertain, and without its interval."""
        return self.n > 0 and self.effective < MIN_SHOWN_EFFECTIVE

    def __str__(self) -> str:
        """Return the estimate as a sentence."""
        basis = f"{self.n} scores" + (f", equivalent to {self.effective:.0f} of equal weight" if self.n else "")
        counts = {"failed": self.failed, "skipped": self.skipped, "of unknown probability": self.unknown}
        excluded = "".join(
            f", {count} {description}" for description, count in {**counts, "outside": self.outside}.items() if count
        )
        if self.mean is None:
            plain = (
                "" if self.unweighted is None else f"; unweighted mean {self.unweighted:.3g} of {self.unknown} scores"
            )
            return f"{self.key}: no weighted mean ({basis}{excluded}){plain}"
        interval = "" if self.low is None else f" (95 %: {self.low:.3g} to {self.high:.3g})"
        interval = " (too few)" if self.too_few else interval
        return f"{self.key}: {self.mean:.3g}{interval}, {basis}{excluded}"


@dataclass(slots=True)
class _KeySums:
    """Sums of the scores under one key. Memory grows with the number of clusters."""

    # (is session, id) of the cluster -> Σw, Σwy
    clusters: dict[tuple[bool, str], tuple[float, float]] = field(default_factory=dict)
    of_unknown: ExactSum = field(default_factory=ExactSum)  # sum of the scores whose probability is unknown
    binary: bool = True
    n: int = 0
    unknown: int = 0
    outside: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, row: WeightedScore) -> None:
        if row.outcome != "score":
            self.failed += row.outcome == "error"
            self.skipped += row.outcome == "skip"
        elif row.score is None:
            return
        elif row.probability is None:
            self.unknown += 1
            self.of_unknown.add(float(row.score))
        elif row.probability == 0:
            self.outside += 1
        else:
            score = float(row.score)
            weight = 1 / row.probability
            cluster = (True, row.session_id) if row.session_id else (False, row.trace_id or "")
            weights, total = self.clusters.get(cluster, (0.0, 0.0))
            self.clusters[cluster] = weights + weight, total + weight * score
            self.binary = self.binary and score in (0.0, 1.0)
            self.n += 1


def estimate_means(scores: Iterable[WeightedScore]) -> list[SampledMean]:
    """Return, per key in alphabetical order, the mean Σwy/Σw with w = 1/p (Hájek 1971) and its interval.

    The interval is that of a ratio estimator, by linearization over clusters (Särndal, Swensson, Wretman 1992,
    section 5.7). A cluster is a session, or a trace without a session. If all scores are 0 or 1, the interval is
    Wilson's for the effective sample size, which is limited to the number of scores (Korn, Graubard 1998). Wilson's
    interval has a width even if all scores are equal.
    """
    sums: dict[str, _KeySums] = {}
    for row in scores:
        sums.setdefault(row.key, _KeySums()).add(row)
    return [_estimate_mean(key, sums[key]) for key in sorted(sums)]


def estimate_sums(sums: Iterable[ScoreSums]) -> list[SampledMean]:
    """Return the same estimates as `estimate_means` from sums, per key in alphabetical order.

    Pass the sums of all blocks of a time span: those of scores, or those of one label, whose share is then the mean.
    """
    by_key: dict[str, list[ScoreSums]] = {}
    for block in sums:
        by_key.setdefault(block.key, []).append(block)
    return [_estimate_blocks(key, by_key[key]) for key in sorted(by_key)]


def _estimate_blocks(key: str, blocks: Sequence[ScoreSums]) -> SampledMean:
    n, left_out = (sum(getattr(block, name) for block in blocks) for name in ("n", "left_out"))
    names = ("weight", "total", "weight_squares", "products", "total_squares")
    added = _ClusterSums(*(fsum(getattr(block, name) for block in blocks) for name in names))
    binary = not any(block.graded for block in blocks)
    low, high = added.interval(n, binary=binary)
    return SampledMean(
        key=key,
        mean=added.mean,
        low=low,
        high=high,
        n=n,
        effective=added.effective,
        unknown=left_out,
        failed=sum(block.failed for block in blocks),
        skipped=sum(block.skipped for block in blocks),
        unweighted=fsum(block.left_out_total for block in blocks) / left_out if left_out and not n else None,
        binary=binary and n > 0,
    )


def estimate_share_error(scores: Iterable[WeightedScore], share: float) -> float | None:
    """Return half the width of the 95 % interval of a known share, of which the scores (0 or 1, one key) are a sample.

    None if the spread of the scores is unknown. The interval is symmetric: it says which shares a sample may have.
    """
    sums = _KeySums()
    for row in scores:
        sums.add(row)
    added = _add_clusters(sums)
    if added.effective < _MIN_CLUSTERS:
        return None
    variance = added.variance
    if variance <= _VARIANCE_TOLERANCE:
        variance = share * (1 - share) / added.effective
    return t_quantile(_UPPER_PROBABILITY, max(1, round(added.effective - 1))) * sqrt(variance)


def _add_clusters(sums: _KeySums) -> _ClusterSums:
    weights, totals = ([pair[place] for pair in sums.clusters.values()] for place in (0, 1))
    return _ClusterSums(
        weight=fsum(weights),
        total=fsum(totals),
        weight_squares=fsum(weight * weight for weight in weights),
        products=fsum(weight * total for weight, total in zip(weights, totals, strict=True)),
        total_squares=fsum(total * total for total in totals),
    )


def _estimate_mean(key: str, sums: _KeySums) -> SampledMean:
    added = _add_clusters(sums)
    low, high = added.interval(sums.n, binary=sums.binary)
    return SampledMean(
        key=key,
        mean=added.mean,
        low=low,
        high=high,
        n=sums.n,
        effective=added.effective,
        unknown=sums.unknown,
        outside=sums.outside,
        failed=sums.failed,
        skipped=sums.skipped,
        unweighted=float(sums.of_unknown) / sums.unknown if sums.unknown and not sums.n else None,
        binary=sums.binary and sums.n > 0,
    )


class _ClusterSums(NamedTuple):
    """Sums over clusters, where W and Y are the sums of w and w·y in a cluster: ΣW, ΣY, ΣW², ΣWY, ΣY²."""

    weight: float
    total: float
    weight_squares: float
    products: float
    total_squares: float

    @property
    def mean(self) -> float | None:
        return self.total / self.weight if self.weight else None

    @property
    def effective(self) -> float:
        """Return the number of clusters of equal weight with the same precision (Kish 1965)."""
        return self.weight * (self.weight / self.weight_squares) if self.weight_squares else 0.0

    @property
    def variance(self) -> float:
        """Return the variance of the mean, by linearization over clusters. The effective number must exceed 1.

        The deviations from the mean are increased, because the clusters themselves have moved it towards them.
        """
        mean, effective = self.mean or 0.0, self.effective
        squares = self.total_squares - 2 * mean * self.products + mean * mean * self.weight_squares
        return max(0.0, squares / self.weight / self.weight) * effective / (effective - 1)

    def interval(self, n: int, *, binary: bool) -> tuple[float, float] | tuple[None, None]:
        """Return the 95 % interval of the mean of `n` scores; None if the spread of the scores is unknown."""
        mean, effective = self.mean, self.effective
        if mean is None or effective < _MIN_CLUSTERS:
            return None, None
        variance = self.variance
        t = t_quantile(_UPPER_PROBABILITY, max(1, round(effective - 1)))
        if binary:
            effective_n = mean * (1 - mean) / variance if variance > _VARIANCE_TOLERANCE else effective
            return _wilson_interval(mean, min(effective_n, n), t)
        if variance <= _VARIANCE_TOLERANCE * max(1.0, mean * mean):
            return None, None
        return mean - t * sqrt(variance), mean + t * sqrt(variance)


def _wilson_interval(share: float, n: float, t: float) -> tuple[float, float]:
    """Return the 95 % interval of a share that was observed in n cases (Wilson 1927)."""
    middle = (share + t * t / (2 * n)) / (1 + t * t / n)
    half = t / (1 + t * t / n) * sqrt(share * (1 - share) / n + t * t / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


# Comparison of two versions in production: weighted difference of means with a confidence sequence.
#
# A confidence sequence is an interval that holds at all looks together, however often somebody looks. A plain 95 %
# interval holds for one look only.

MIN_VERSION_TRACES = 200  # scored traces of each version from which an interval is shown, because it is asymptotic
_ALPHA = 0.05
_TAU = 0.05  # of the scale; the differences for which the interval is narrowest
_PRIOR_SCORES = 2.0  # scores at the middle of the scale in the mean that the variance is computed around
MAX_FURTHER = 10_000_000  # a larger number of further scores is not stated


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionScore:
    """Score of one trace of a version, with the weight 1/p of its sampling probability p.

    `cluster` is the user, otherwise the session, otherwise the trace. Without a `trace_id`, the score is the only one
    of its trace.
    """

    score: float
    weight: float
    cluster: str
    start_ns: int
    trace_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionMean:
    """Weighted mean of a version's `n` scores of `traces`, with the variance of that mean over clusters."""

    mean: float
    variance: float
    n: int
    traces: int
    clusters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionDifference:
    """Difference of two versions, b minus a, with its 95 % confidence sequence from `low` to `high`.

    The interval is None until both versions have `MIN_VERSION_TRACES` scored traces. `conclusion` has the words of
    `compare`. `further` is about how many more traces of each version would decide, if the difference stays as it is;
    None if it is decided, or if no reasonable number would do.
    """

    a: VersionMean | None
    b: VersionMean | None
    difference: float | None
    low: float | None
    high: float | None
    conclusion: Word
    further: int | None = None

    def __str__(self) -> str:
        """Format the conclusion, as "better" or "inconclusive (about 1,200 more traces of each version)"."""
        if self.low is None:
            return f"inconclusive: {MIN_VERSION_TRACES} scored traces of each version are needed"
        more = f" (about {self.further:,} more traces of each version)" if self.further else ""
        return f"{self.conclusion}{more}"


def compare_versions(
    a: Sequence[VersionScore],
    b: Sequence[VersionScore],
    *,
    rising: bool | None,
    margin: float | None = None,
    scale: tuple[float, float] = (0.0, 1.0),
) -> VersionDifference:
    """Return the weighted difference of two versions, b minus a, and what it says.

    `rising` tells whether a higher score is better (None: neither). `margin` is the difference that is not worth
    speaking of. `scale` are the lowest and the highest possible score. The interval is a normal mixture: with the
    variance v of the difference, its half width is √(v(v+τ²)/τ² · ln((v+τ²)/(v·α²))) (Waudby-Smith and others, arXiv
    2103.06476). Raises `ValueError` for an empty scale or a margin below 0.
    """
    if not scale[0] < scale[1]:
        raise ValueError(f"scale must be a lower and a higher score, got {scale!r}")
    if margin is not None and not margin >= 0:
        raise ValueError(f"margin must be a number >= 0, got {margin!r}")
    of_a, of_b = _estimate_version_mean(a, scale), _estimate_version_mean(b, scale)
    difference = None if of_a is None or of_b is None else of_b.mean - of_a.mean
    if of_a is None or of_b is None or difference is None or min(of_a.traces, of_b.traces) < MIN_VERSION_TRACES:
        return VersionDifference(a=of_a, b=of_b, difference=difference, low=None, high=None, conclusion="inconclusive")
    tau = _TAU * (scale[1] - scale[0])
    variance = of_a.variance + of_b.variance
    half = _half_width(variance, tau)
    low, high = difference - half, difference + half
    conclusion = _conclude(low, high, rising, margin)
    further = None
    if conclusion == "inconclusive":
        further = _further_scores(difference, variance, max(of_a.traces, of_b.traces), tau, margin)
    return VersionDifference(
        a=of_a, b=of_b, difference=difference, low=low, high=high, conclusion=conclusion, further=further
    )


def _estimate_version_mean(scores: Iterable[VersionScore], scale: tuple[float, float]) -> VersionMean | None:
    clusters: dict[str, list[float]] = {}
    traces: set[str] = set()
    n = alone = 0
    for score in scores:
        sums = clusters.setdefault(score.cluster, [0.0, 0.0])
        sums[0] += score.weight
        sums[1] += score.weight * score.score
        n += 1
        if score.trace_id is None:
            alone += 1
        else:
            traces.add(score.trace_id)
    if not clusters:
        return None
    weight = fsum(w for w, _ in clusters.values())
    total = fsum(t for _, t in clusters.values())
    # Two scores at the middle of the scale keep the variance above 0 while all scores are equal
    prior = _PRIOR_SCORES * weight / n
    center = (total + prior * (scale[0] + scale[1]) / 2) / (weight + prior)
    variance = fsum((t - center * w) ** 2 for w, t in clusters.values()) / weight**2
    return VersionMean(mean=total / weight, variance=variance, n=n, traces=alone + len(traces), clusters=len(clusters))


def _half_width(variance: float, tau: float) -> float:
    if variance <= 0:
        return 0.0
    inflated = variance + tau**2
    return sqrt(variance * inflated / tau**2 * log(inflated / (variance * _ALPHA**2)))


def _conclude(low: float, high: float, rising: bool | None, margin: float | None) -> Word:
    if margin is not None and -margin <= low and high <= margin:
        return "equivalent"
    if low <= 0 <= high:
        return "inconclusive"
    if rising is None:
        return "higher" if low > 0 else "lower"
    return "better" if (low > 0) == rising else "worse"


def _further_scores(difference: float, variance: float, n: int, tau: float, margin: float | None) -> int | None:
    """Return how many more traces of each version would decide: the interval then excludes 0, or is within the margin."""
    target = abs(difference)
    if margin is not None:
        target = max(target, margin - abs(difference))
    if target <= 0:
        return None
    factor = 1.0
    while _half_width(variance / factor, tau) > target:
        factor *= 1.05
        if n * factor > MAX_FURTHER:
            return None
    further = n * (factor - 1)
    return max(10, 10 * round(further / 10)) if further < 1000 else 100 * round(further / 100)
