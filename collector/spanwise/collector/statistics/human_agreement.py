"""Agreement of a judge with human labels: pairing, Cohen's kappa, thresholds, prediction-powered inference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, combinations, pairwise
from math import sqrt
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeAlias

from spanwise.collector.records import Feedback, Target
from spanwise.collector.statistics.feedback_tally import UNPARSED, select_latest
from spanwise.collector.statistics.intervals import Moments, hall_interval

if TYPE_CHECKING:
    import numpy


# Agreement of a judge with human labels: pairing, Cohen's kappa, fitted thresholds.

Value: TypeAlias = float | str  # a score, or a label
ValuePair: TypeAlias = tuple[Value, Value]  # value of the judge, value of people

MAX_LEVELS = 12  # with at most this many distinct values, scores are levels of a scale, not measurements
_Z = 1.959963984540054
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Agreement over `n` pairs: the share `agreed` of equal pairs, and Cohen's `kappa` with its 95 % interval.

    With more than two levels of scores, kappa is weighted by squared distances (Cohen 1968), and `within_one` is the
    share of pairs at most one level apart. Without pairs, all of these are None. Kappa is None if both sides always
    give the same single value, because they would then agree by chance as well. It is 0 without an interval if one
    side always gives the same value and the other does not. `confusion` maps (value of the judge, value of people) to
    the number of pairs.
    """

    n: int
    agreed: float | None
    kappa: float | None
    low: float | None
    high: float | None
    weighted: bool = False
    within_one: float | None = None
    confusion: dict[ValuePair, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the text shown next to a judge's mean: "agrees with people 87 % (κ 0.71, 40 labels)"."""
        if self.agreed is None:
            return "never checked"
        labels = f"{self.n} label{'s' * (self.n != 1)}"
        near = self.within_one is not None
        share = f"{self.within_one if near else self.agreed:.0%}".replace("%", " %") + " within one" * near
        return f"agrees with people {share} ({'' if self.kappa is None else f'κ {self.kappa:.2f}, '}{labels})"


def measure_agreement(pairs: Sequence[ValuePair]) -> Agreement:
    """Measure the agreement between a judge and people on the same cases."""
    if not pairs:
        return Agreement(n=0, agreed=None, kappa=None, low=None, high=None)
    values = sorted({value for pair in pairs for value in pair}, key=lambda value: (isinstance(value, str), value))
    graded = len(values) > 2 and not any(isinstance(value, str) for value in values)
    kappa, low, high = _kappa_with_interval(Counter(pairs), values, graded)
    return Agreement(
        n=len(pairs),
        agreed=sum(_is_equal(*pair) for pair in pairs) / len(pairs),
        kappa=kappa,
        low=low,
        high=high,
        weighted=graded,
        within_one=_share_within_one(pairs, values) if graded else None,
        confusion=dict(sorted(Counter(pairs).items(), key=str)) if len(values) <= MAX_LEVELS else {},
    )


def _is_equal(judge: Value, people: Value) -> bool:
    if isinstance(judge, str) or isinstance(people, str):
        return judge == people
    return abs(judge - people) <= _ROUNDING


def _share_within_one(pairs: Sequence[ValuePair], values: Sequence[Value]) -> float:
    """Return the share of pairs at most one level apart.

    A level is 1 wide, or as wide as the smallest distance between two values if that is less.
    """
    numbers = [float(value) for value in values]
    level = min(1.0, *(after - before for before, after in pairwise(numbers)))
    level = 1.0 if all(number.is_integer() for number in numbers) else level
    near = sum(abs(float(judge) - float(people)) <= level + _ROUNDING for judge, people in pairs)
    return near / len(pairs)


def _kappa_with_interval(
    counts: Counter[ValuePair], values: Sequence[Value], graded: bool
) -> tuple[float | None, float | None, float | None]:
    """Return kappa and its interval from the large-sample variance (Fleiss, Cohen, Everitt 1969).

    If all pairs agree, that variance is 0 and carries no information. The lower end is then computed from the lower
    confidence limit of the agreement, 0.025^(1/n) (Clopper, Pearson 1934).
    """
    n = sum(counts.values())
    rows, columns = (_shares(counts, side, n) for side in (0, 1))
    span = (float(values[-1]) - float(values[0])) ** 2 if graded else 1.0

    def likeness(first: Value, second: Value) -> float:
        return 1 - (float(first) - float(second)) ** 2 / span if graded else float(first == second)

    of_row = {row: sum(share * likeness(row, column) for column, share in columns.items()) for row in rows}
    of_column = {column: sum(share * likeness(row, column) for row, share in rows.items()) for column in columns}
    observed = sum(count / n * likeness(*pair) for pair, count in counts.items())
    chance = sum(share * of_row[row] for row, share in rows.items())
    if 1 - chance < _ROUNDING:
        return None, None, None
    kappa = (observed - chance) / (1 - chance)
    if min(len(rows), len(columns)) == 1:
        return 0.0, None, None
    if 1 - observed < _ROUNDING:
        return 1.0, ((0.025 ** (1 / n)) - chance) / (1 - chance), 1.0
    spread = sum(
        count / n * (likeness(row, column) - (of_row[row] + of_column[column]) * (1 - kappa)) ** 2
        for (row, column), count in counts.items()
    )
    error = sqrt(max(0.0, spread - (kappa - chance * (1 - kappa)) ** 2) / n) / (1 - chance)
    return kappa, max(-1.0, kappa - _Z * error), min(1.0, kappa + _Z * error)


def _shares(counts: Counter[ValuePair], side: int, n: int) -> dict[Value, float]:
    shares: dict[Value, float] = {}
    for pair, count in counts.items():
        shares[pair[side]] = shares.get(pair[side], 0.0) + count / n
    return shares


DRAWN_METADATA = "drawn"  # metadata key of labels on sampled cases; its value is {"probability": …}
_LABEL_VALUES = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledCase:
    """One target with the feedback of the judge and of people.

    The judge's value is in `judged`, the majority value of people in `people` (see `get_majority_label`).
    `probability` is the probability with which the case was drawn for labelling; None if no label states it.
    """

    target: Target
    judge: Feedback
    votes: tuple[Feedback, ...]
    judged: Value
    people: Value
    probability: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeCheck:
    """Agreement of one version of a judge with people.

    Each labelled target is in `pairs` or in one of the other fields. `undecided` counts targets on which people are
    evenly split. `failed` and `skipped` count outcomes of the judge. `unjudged` lists targets that this version has
    not scored. The value `among` is the share of pairs of labels on the same target that are equal; None if no target
    has two labels.
    """

    version: str | None
    pairs: tuple[LabelledCase, ...]
    agreement: Agreement
    undecided: int = 0
    failed: int = 0
    skipped: int = 0
    unjudged: tuple[Target, ...] = ()
    among: float | None = None


def _judgement_outcome(judgement: Feedback) -> str:
    """Return the outcome of a judgement. A judgement that could not be parsed counts as an error, because people cannot
    agree with it.
    """
    return "error" if judgement.label == UNPARSED else judgement.outcome


def check_judge(judgements: Iterable[Feedback], votes: Iterable[Feedback], version: str | None = None) -> JudgeCheck:
    """Compare a judge with human labels by target.

    Uses the judge's newest version, or the given one, and the newest label of each person.
    """
    rows_of_judge = list(judgements)
    if version is None and rows_of_judge:
        version = max(rows_of_judge, key=lambda row: row.created_ns).version
    judged = {row.target: row for row in select_latest(row for row in rows_of_judge if row.version == version)}
    of_sessions: dict[str, set[Target]] = {}
    for target in judged:
        if target.session_id is not None:
            of_sessions.setdefault(target.session_id, set()).add(target)
    by_target: dict[Target, list[Feedback]] = {}
    for vote in select_latest(votes):
        if vote.outcome == "score":
            target = vote.target
            if (
                target.session_id is not None
                and target.project is None
                and len(of_sessions.get(target.session_id, ())) == 1
            ):
                [target] = of_sessions[target.session_id]  # the session in any project: this one
            by_target.setdefault(target, []).append(vote)
    decided = {target: value for target, rows in by_target.items() if (value := get_majority_label(rows)) is not None}
    pairs = [
        LabelledCase(
            target=target,
            judge=judged[target],
            votes=tuple(by_target[target]),
            judged=get_feedback_value(judged[target]),
            people=people,
            probability=_drawing_probability(by_target[target]),
        )
        for target, people in decided.items()
        if target in judged and _judgement_outcome(judged[target]) == "score"
    ]
    outcomes = Counter(_judgement_outcome(judged[target]) for target in decided if target in judged)
    equal = [
        get_feedback_value(one) == get_feedback_value(other)
        for rows in by_target.values()
        for one, other in combinations(rows, 2)
    ]
    return JudgeCheck(
        version=version,
        pairs=tuple(pairs),
        agreement=measure_agreement([(pair.judged, pair.people) for pair in pairs]),
        undecided=len(by_target) - len(decided),
        failed=outcomes["error"],
        skipped=outcomes["skip"],
        unjudged=tuple(target for target in decided if target not in judged),
        among=fmean(equal) if equal else None,
    )


def get_feedback_value(feedback: Feedback) -> Value:
    """Return the score as a number or, without a score, the label. The labels "yes" and "no" become 1 and 0.

    The outcome of the feedback must be "score".
    """
    if feedback.score is not None:
        return float(feedback.score)
    return _LABEL_VALUES.get(str(feedback.label).lower(), str(feedback.label))


def get_majority_label(votes: Sequence[Feedback]) -> Value | None:
    """Return the value that most people gave.

    In a tie, return the mean if the labels are grades, and None if they are yes/no or text labels.
    """
    counted = Counter(map(get_feedback_value, votes))
    (first, most), *others = counted.most_common(2)
    if not others or others[0][1] < most:
        return first
    numbers = [value for value in counted.elements() if isinstance(value, float)]
    graded = len(numbers) == len(votes) and not {*numbers} <= {0.0, 1.0}
    return fmean(numbers) if graded else None


def _drawing_probability(votes: Sequence[Feedback]) -> float | None:
    """Return the probability with which the case was drawn, according to its labels. If there are several, return the
    highest.
    """
    stated = [
        drawn.get("probability") for vote in votes if isinstance(drawn := vote.metadata.get(DRAWN_METADATA), Mapping)
    ]
    known = [float(p) for p in stated if isinstance(p, int | float) and not isinstance(p, bool) and 0 < p <= 1]
    return max(known, default=None)


RatedScore: TypeAlias = tuple[float, bool]  # score, and whether people rate it as good
ScoreGap: TypeAlias = tuple[float, float]  # two adjacent scores

MIN_LABELS = 10  # minimum number of labels for a threshold
# Fewest labels of good and of bad cases. Fewer carry no information, even if the scores separate them perfectly
MIN_LABELS_PER_SIDE = 3
CROSS_VALIDATION_FOLDS = 10
_BOOTSTRAP_WORK = 200_000  # maximum number of scores drawn for the bootstrap interval, in all repetitions together
_BOOTSTRAP_REPEATS = 200, 1_000  # minimum and maximum number of bootstrap repetitions
_KAPPA_TOLERANCE = 1e-12
_NO_AGREEMENT = measure_agreement(())


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdFit:
    """Threshold that separates good scores from bad ones. A score equal to the threshold is good.

    With `rising`, scores above the threshold are good, too, otherwise scores below it. The threshold maximises
    Cohen's kappa between passing the threshold and the ratings of people. If several thresholds do, it is the middle
    of the widest gap between scores. `low` to `high` is its 95 % bootstrap interval.

    The `agreement` is cross-validated: each tenth of the labels is compared with a threshold chosen without it.
    `apart` is the share of (good case, bad case) pairs in which the good case has the better score; ties count half.

    If the labels do not determine a threshold, `threshold` and its interval are None, and `why` states the reason.
    """

    n: int
    good: int
    rising: bool = True
    threshold: float | None = None
    low: float | None = None
    high: float | None = None
    why: str | None = None
    apart: float | None = None
    agreement: Agreement = _NO_AGREEMENT


def choose_threshold(rated: Iterable[RatedScore], *, rising: bool = True) -> ThresholdFit:
    """Choose the threshold between the scores of cases that people rate as good and those of bad cases.

    With `rising`, higher scores are better.
    """
    pairs = sorted((score if rising else -score, good) for score, good in rated)
    apart, spread = _rank_probability(pairs)
    fit = ThresholdFit(n=len(pairs), good=sum(good for _, good in pairs), rising=rising, apart=apart)
    if why := _find_shortage(pairs) or _find_missing_order(apart, spread):
        return replace(fit, why=why)
    sign = 1 if rising else -1
    low, high = sorted(sign * end for end in _bootstrap_interval(pairs))
    threshold, held_out = sign * _gap_middle(_best_gap(pairs)), measure_agreement(list(_cross_validate(pairs)))
    return replace(fit, threshold=threshold, low=low, high=high, agreement=held_out)


def _find_shortage(pairs: Sequence[RatedScore]) -> str | None:
    counts = Counter(good for _, good in pairs)
    if not pairs:
        return "no case has both a score and a label"
    if len(counts) == 1:
        word = "good" if pairs[0][1] else "bad"
        return f"all {len(pairs)} labels are {word}; a threshold needs good and bad cases"
    if len(pairs) < MIN_LABELS or min(counts.values()) < MIN_LABELS_PER_SIDE:
        return (
            f"too few labels: {counts[True]} good and {counts[False]} bad; at least {MIN_LABELS} are needed, and"
            f" {MIN_LABELS_PER_SIDE} of each"
        )
    if pairs[0][0] == pairs[-1][0]:
        return f"all scores are {abs(pairs[0][0]):g}, so no threshold separates them"
    return None


def _find_missing_order(apart: float | None, spread: float) -> str | None:
    """Return the reason why there is no threshold, if scores separate good from bad no better than chance, else None.

    Uses the Mann-Whitney test.
    """
    if apart is None or apart - 0.5 > _Z * spread:
        return None
    detail = f"a good case scores better than a bad one in {apart:.0%} of the pairs"
    if 0.5 - apart > _Z * spread:
        return f"the scores are inverted: {detail}; check higher_is_better, and that a label of 1 means good"
    return f"the scores do not separate good from bad better than chance: {detail}"


def _rank_probability(pairs: Sequence[RatedScore]) -> tuple[float | None, float]:
    """Return the probability that a good case scores above a bad one, and the standard error that it has under chance.

    Ties count half.
    """
    at: dict[float, list[int]] = {}
    for score, is_good in pairs:
        at.setdefault(score, [0, 0])[is_good] += 1
    good, n = sum(one for _, one in at.values()), len(pairs)
    bad = n - good
    if not good or not bad:
        return None, 0.0
    below, above = 0, 0.0
    for bads, goods in at.values():  # ascending scores, because the pairs are sorted
        above += goods * (below + bads / 2)
        below += bads
    ties = sum((bads + goods) ** 3 - bads - goods for bads, goods in at.values())
    return above / (good * bad), sqrt(max(0.0, (n + 1 - ties / (n * (n - 1))) / (12 * good * bad)))


def _best_gap(pairs: Sequence[RatedScore]) -> ScoreGap:
    """Return the gap between adjacent scores in which a threshold has the greatest kappa.

    Of several gaps, return the widest, and of equally wide gaps the lowest. Pairs must be sorted. If all scores are
    equal, both ends are that score.
    """
    n, good = len(pairs), sum(good for _, good in pairs)
    gap, best = (pairs[0][0], pairs[0][0]), -2.0
    for place, below in enumerate(accumulate(is_good for _, is_good in pairs[:-1]), 1):
        before, after = pairs[place - 1][0], pairs[place][0]
        if before == after:
            continue
        kappa = _binary_kappa(n, good, n - place, good - below)
        if kappa > best + _KAPPA_TOLERANCE or (kappa > best - _KAPPA_TOLERANCE and after - before > gap[1] - gap[0]):
            gap, best = (before, after), kappa
    return gap


def _binary_kappa(n: int, good: int, passed: int, right: int) -> float:
    """Return Cohen's kappa of a 2×2 table: of `n` cases, `passed` pass, `good` are good, and `right` are both."""
    agreed = (right + n - passed - good + right) / n
    chance = (passed * good + (n - passed) * (n - good)) / (n * n)
    return (agreed - chance) / (1 - chance) if chance < 1 else 0.0


def _gap_middle(gap: ScoreGap) -> float:
    before, after = gap
    middle = before / 2 + after / 2
    return middle if before < middle < after else after


def _bootstrap_interval(pairs: Sequence[RatedScore]) -> ScoreGap:
    """Return the 95 % bootstrap interval of the threshold. Good and bad cases are resampled separately.

    The interval extends from the 2.5th percentile of the lower ends of the best gaps to the 97.5th percentile of
    their upper ends. It uses both ends, because any threshold within a gap is equally good.
    """
    random, sides = Random(len(pairs)), _split_by_label(pairs)  # seeded, so that equal labels give an equal interval
    least, most = _BOOTSTRAP_REPEATS
    repeats = max(least, min(most, _BOOTSTRAP_WORK // len(pairs)))
    gaps = [_best_gap(sorted(chain(*(random.choices(side, k=len(side)) for side in sides)))) for _ in range(repeats)]
    lows, highs = map(sorted, zip(*gaps, strict=True))
    at = round(0.025 * (repeats - 1))
    return lows[at], highs[-1 - at]


def _cross_validate(pairs: Sequence[RatedScore]) -> Iterator[tuple[float, float]]:
    """Yield, for each pair, whether its score passes the threshold chosen from the other folds, and how people rate
    it.
    """
    ordered = list(chain(*_split_by_label(pairs)))
    for fold in range(min(CROSS_VALIDATION_FOLDS, len(pairs))):
        threshold = _gap_middle(
            _best_gap(sorted(pair for place, pair in enumerate(ordered) if place % CROSS_VALIDATION_FOLDS != fold))
        )
        for score, good in ordered[fold::CROSS_VALIDATION_FOLDS]:
            yield float(score >= threshold), float(good)


def _split_by_label(pairs: Sequence[RatedScore]) -> list[list[RatedScore]]:
    """Return the good pairs and the bad pairs."""
    return [[pair for pair in pairs if pair[1] is side] for side in (True, False)]


# Prediction-powered inference: a judge's mean corrected by human labels.

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
