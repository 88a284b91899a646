"""Threshold of an evaluator fitted to human feedback, with its confidence interval."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from spanwise.collector.records import Case, Feedback, Target, Trace
from spanwise.collector.statistics import Agreement, JudgeCheck, ThresholdFit, Value, check_judge, choose_threshold
from spanwise.collector.stores import Store
from spanwise.evaluators.interface import Evaluator, Metric, as_evaluator, run_coroutine
from spanwise.evaluators.scoring.case_scoring import make_case, normalize_case
from spanwise.evaluators.scoring.judge_calibration import (
    TRACES_PER_BATCH,
    judge_feedback_key,
    load_labels,
    match_labels,
    open_optional_store,
)

ScorePair: TypeAlias = tuple[Any, Any]  # a score, a case or its fields; and a boolean, grade or label
_LABELS_HINT = (
    "votes must be the key of human feedback, a list of feedback, or a list of pairs of a score (or a case, or a dict of "
    "its fields) and True or False"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedThreshold:
    """Threshold fitted for one version of an evaluator, that is, for its model and its parameters.

    Pass it to `get_evaluator(…, threshold=fitted.threshold)`. `low` and `high` are the ends of its 95 % interval.
    `agreement` compares pass and fail under the threshold with human labels that were left out of the fit.
    `threshold` is None if the labels determine none, and `why` gives the reason: too few labels, all labels equal, or
    scores that are inverted or uninformative.

    `n` labels count, of which `good` are positive. For pairs of a positive and a negative case, `apart` is the
    share in which the positive case has the better score. `undecided`, `failed`, `skipped` and `unjudged` count
    labelled cases that are left out, as in a `Calibration`.
    """

    key: str
    version: str | None
    higher_is_better: bool
    threshold: float | None
    low: float | None
    high: float | None
    why: str | None
    n: int
    good: int
    apart: float | None
    agreement: Agreement
    undecided: int = 0
    failed: int = 0
    skipped: int = 0
    unjudged: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        confusion = [[*pair, count] for pair, count in self.agreement.confusion.items()]
        return {**asdict(self), "agreement": {**asdict(self.agreement), "confusion": confusion}}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        named = f"{self.key}{f', version {self.version}' if self.version else ''}"
        if self.threshold is None:
            yield f"{named}: no threshold: {self.why}"
        else:
            side = "from" if self.higher_is_better else "up to"
            yield f"{named}: good {side} {self.threshold:.4g} (95 %: {self.low:.4g} to {self.high:.4g})"
            yield f"on votes left out of the fit it {self.agreement}"
        counts = {
            "undecided: people differ evenly": self.undecided,
            "the evaluator failed": self.failed,
            "the evaluator skipped": self.skipped,
            "not scored by this version": self.unjudged,
        }
        if left_out := [f"{count} {reason}" for reason, count in counts.items() if count]:
            yield f"left out: {'; '.join(left_out)}"


def fit_threshold(
    evaluator: Any,
    votes: str | Iterable[Feedback] | Iterable[ScorePair] | None = None,
    *,
    good: float | str | None = None,
    higher_is_better: bool | None = None,
    store: Store | str | None = None,
    version: str | None = None,
    missing: bool = False,
) -> FittedThreshold:
    """Fit the threshold of an evaluator's primary metric to human labels of the same cases.

    `evaluator` is an evaluator, the key of its feedback, or a list of its feedback. `votes` is one of:

    - the key of human feedback (None: the key of the metric) or a list of feedback, paired by target as in
      `calibrate`;
    - a list of pairs of a score (or a case, or a dict of a case's fields, which the evaluator scores now) and a
      boolean.

    A label is yes or no. `good` maps other labels: the lowest grade that is good, or the textual label that is.
    `higher_is_better` defaults to that of the metric. `version`, `missing` and `store` are as in `calibrate`.

    Raises `ValueError` without labels, for grades or textual labels without `good`, and for an evaluator that gives
    textual labels in place of scores.
    """
    known = None if isinstance(evaluator, str | list | tuple) else as_evaluator(evaluator)
    metric = _primary_metric(known) if known else None
    rising = higher_is_better if higher_is_better is not None else metric.higher_is_better if metric else True
    key = metric.key if metric else judge_feedback_key(evaluator, None)
    given = votes if votes is None or isinstance(votes, str) else list(votes)
    if isinstance(given, list) and given and not isinstance(given[0], Feedback):
        checked = _match_pairs(known, key, given)
    else:
        checked = _match_stored_labels(evaluator, known, key, given, store=store, version=version, missing=missing)
    rated: list[tuple[float, bool]] = []
    for pair in checked.pairs:
        if isinstance(pair.judged, str):
            raise ValueError(f"a threshold needs scores, but the evaluator gave the label {pair.judged!r:.100}")
        rated.append((pair.judged, _is_good(pair.people, good)))
    return _make_fitted(key, checked, choose_threshold(rated, rising=rising))


def _primary_metric(evaluator: Evaluator) -> Metric:
    """Return the metric to which `threshold=` belongs. Raises `ValueError` if there is not exactly one."""
    primary = [metric for metric in evaluator.metrics if metric.primary] or list(evaluator.metrics)
    if len(primary) != 1:
        keys = ", ".join(metric.key for metric in primary) or "none"
        raise ValueError(f"a threshold is fitted to one metric; {evaluator.key!r} has {keys}: name the key of one")
    return primary[0]


def _match_stored_labels(
    given: Any,
    evaluator: Evaluator | None,
    key: str,
    votes: str | list[Any] | None,
    *,
    store: Store | str | None,
    version: str | None,
    missing: bool,
) -> JudgeCheck:
    if missing and evaluator is None:
        raise ValueError(f"missing=True needs an evaluator, got {given!r:.100}")
    votes_key = votes if isinstance(votes, str) else key if votes is None else None
    if isinstance(votes, list) and not all(isinstance(vote, Feedback) for vote in votes):
        raise ValueError(_LABELS_HINT)
    with open_optional_store(store, needed=not isinstance(given, list | tuple) or votes_key is not None) as opened:
        labels = load_labels(opened, votes, votes_key)
        return match_labels(opened, given, key, labels, evaluator, version=version, missing=missing)


def _match_pairs(evaluator: Evaluator | None, key: str, pairs: Sequence[Any]) -> JudgeCheck:
    """Convert pairs to feedback, each pair with a separate target. Raises `ValueError` for an invalid pair."""
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise ValueError(_LABELS_HINT)
    judged, verdicts = zip(*pairs, strict=True)
    targets = [Target(trace_id=f"{number:032x}") for number in range(1, len(pairs) + 1)]
    votes = []
    for target, verdict in zip(targets, verdicts, strict=True):
        if not isinstance(verdict, bool | int | float | str):
            raise ValueError(f"a label must be True, False, a number or a text, got {verdict!r:.100}")
        value = {"label": verdict} if isinstance(verdict, str) else {"score": verdict}
        votes.append(Feedback(target=target, key=key, source="human", **value))
    version = evaluator.version if evaluator else None
    if all(isinstance(value, int | float) for value in judged):
        rows = zip(targets, judged, strict=True)
        return check_judge(
            [Feedback(target=target, key=key, score=score, version=version) for target, score in rows], votes
        )
    if evaluator is None:
        raise ValueError(f"cases need an evaluator, got the key {key!r}; pass the evaluator, or a score in each pair")
    cases = list(map(_pair_case, judged))

    async def score_batches() -> list[Feedback]:
        scored: list[Feedback] = []
        for number in range(0, len(cases), TRACES_PER_BATCH):
            batch = slice(number, number + TRACES_PER_BATCH)
            for row in await evaluator.evaluate_batch(cases[batch], targets[batch]):
                scored += row
        return scored

    scored = run_coroutine(score_batches())
    return check_judge((feedback for feedback in scored if feedback.key == key), votes, version)


def _pair_case(judged: Any) -> Case:
    if isinstance(judged, Case):
        return normalize_case(judged)
    if isinstance(judged, Trace):
        return make_case(judged)
    if isinstance(judged, Mapping):
        return normalize_case(make_case(None, **judged))
    raise ValueError(
        f"a pair must begin with a case, a trace, a dict of a case's fields, or a score, got {judged!r:.100}"
    )


def _is_good(value: Value, good: float | str | None) -> bool:
    if isinstance(value, str) or isinstance(good, str):
        if not isinstance(good, str):
            raise ValueError(
                f"human labels must be yes or no, got {value!r:.100}; pass the good label, such as good={value!r:.50}"
            )
        return value == good
    if good is None and value not in (0.0, 1.0):
        raise ValueError(
            f"human labels must be yes or no, got {value:g}; pass the lowest good grade, such as good={value:g}"
        )
    return value >= (0.5 if good is None else good)


def _make_fitted(key: str, checked: JudgeCheck, fit: ThresholdFit) -> FittedThreshold:
    return FittedThreshold(
        key=key,
        version=checked.version,
        higher_is_better=fit.rising,
        threshold=fit.threshold,
        low=fit.low,
        high=fit.high,
        why=fit.why,
        n=fit.n,
        good=fit.good,
        apart=fit.apart,
        agreement=fit.agreement,
        undecided=checked.undecided,
        failed=checked.failed,
        skipped=checked.skipped,
        unjudged=len(checked.unjudged),
    )
