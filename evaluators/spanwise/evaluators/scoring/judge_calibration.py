"""Calibration of judges against human feedback: agreement, biases, prediction-powered mean."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from math import sqrt
from statistics import fmean, median, variance
from typing import Any

from spanwise.collector import connect
from spanwise.collector.filters import Filter
from spanwise.collector.records import Feedback, Target, Trace, iterate_pages
from spanwise.collector.statistics import (
    Agreement,
    CorrectedMean,
    JudgeCheck,
    LabelledCase,
    Value,
    check_judge,
    estimate_ppi_mean,
    get_feedback_value,
    measure_agreement,
    t_quantile,
)
from spanwise.collector.stores import Store, list_human_feedback, list_judge_scores
from spanwise.evaluators.interface import Evaluator, as_evaluator, run_coroutine
from spanwise.evaluators.scoring.case_scoring import ascore, make_case

TRACES_PER_BATCH = 50  # traces that are read and judged together
# fields that identify a case as an example of the prompt
_EXAMPLE_FIELDS = ("inputs", "outputs", "reference_outputs", "history")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """Mean difference between the judge's scores and people's, with its 95 % interval and the number of cases.

    If the cases are compared in two halves, such as shorter and longer answers, `difference` is the mean difference
    of the second half minus that of the first. With fewer than two cases there is no `Bias`, only None.
    """

    what: str
    n: int
    difference: float
    low: float
    high: float

    def __str__(self) -> str:
        is_significant = not self.low <= 0 <= self.high
        interval = f"{self.difference:+.2g} ({self.low:+.2g} to {self.high:+.2g}, {self.n} cases)"
        return f"{self.what}: {interval}{'' if is_significant else ', no more than chance'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Case on which the judge and people disagree. `why` is the judge's rationale; `said` holds people's comments."""

    target: Target
    judged: Value
    people: Value
    why: str | None
    said: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Comparison of one version of a judge with human labels under `votes_key` (None: labels given as a list).

    - `agreement` holds the share, kappa with its interval, and the confusion matrix.
    - `differing` lists the cases on which judge and people disagree, largest difference first.
    - `undecided`, `failed`, `skipped`, `unjudged` and `examples` count labelled targets that are left out:
      people disagree evenly; the judge failed, skipped, or has not scored it; the case is an example in the
      judge's prompt.
    - `among` is the share of pairs of people who agree with each other.
    - `length` and `position` are biases: judges tend to prefer long answers, and the answer shown first.
    """

    key: str
    version: str | None
    votes_key: str | None
    agreement: Agreement
    differing: tuple[Difference, ...]
    bias: Bias | None
    length: Bias | None
    position: Bias | None
    among: float | None
    undecided: int
    failed: int
    skipped: int
    unjudged: int
    examples: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        confusion = [[*pair, count] for pair, count in self.agreement.confusion.items()]
        return {**asdict(self), "agreement": {**asdict(self.agreement), "confusion": confusion}}

    def __repr__(self) -> str:
        return f"<Calibration {self.key!r} {self.version or ''}: {self.agreement}>"

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.key}{f', version {self.version}' if self.version else ''}: {self.agreement}"
        if self.agreement.kappa is not None and self.agreement.low is not None:
            weighted = " (weighted by squared distance)" * self.agreement.weighted
            yield f"κ {self.agreement.kappa:.2f}, 95 %: {self.agreement.low:.2f} to {self.agreement.high:.2f}{weighted}"
        yield from _format_matrix(self.agreement.confusion)
        yield from (str(bias) for bias in (self.bias, self.length, self.position) if bias)
        if self.among is not None:
            yield f"people agree with each other {self.among:.0%}"
        if self.differing:
            yield f"{len(self.differing)} cases differ: `.differing`"
        counts = {
            "undecided: people differ evenly": self.undecided,
            "the judge failed": self.failed,
            "the judge skipped": self.skipped,
            "not judged by this version": self.unjudged,
            "examples of the prompt": self.examples,
        }
        if left_out := [f"{count} {reason}" for reason, count in counts.items() if count]:
            yield f"left out: {'; '.join(left_out)}"


def calibrate(
    judge: Any,
    votes: str | Iterable[Feedback] | None = None,
    *,
    store: Store | str | None = None,
    version: str | None = None,
    missing: bool = False,
) -> Calibration:
    """Compare a judge with human labels of the same targets.

    `judge` is an evaluator, the key of its feedback, or a list of its feedback. `votes` is the key of human
    feedback (None: the judge's own key), or a list of feedback. Scores and labels are paired by target: the
    same trace, span or session. One version of the judge counts: `version`, else the evaluator's, else the
    newest. With `missing`, the evaluator also scores the labelled traces that it has not scored, and the store
    keeps these scores. `store` is resolved as by `connect()`.

    Raises `ValueError` if there are no labels, and for `missing` without an evaluator.
    """
    evaluator = None if isinstance(judge, str | list | tuple) else as_evaluator(judge)
    if missing and evaluator is None:
        raise ValueError(f"missing=True needs an evaluator, got {judge!r:.100}")
    key = judge_feedback_key(judge, evaluator)
    votes_key = votes if isinstance(votes, str) else key if votes is None else None
    with open_optional_store(store, needed=not isinstance(judge, list | tuple) or votes_key is not None) as opened:
        labels = load_labels(opened, votes, votes_key)
        checked = match_labels(opened, judge, key, labels, evaluator, version=version, missing=missing)
        texts = dict(_case_texts(opened, checked.pairs)) if opened else {}
    return _make_calibration(key, votes_key, checked, texts, evaluator)


def judge_feedback_key(judge: Any, evaluator: Evaluator | None) -> str:
    """Return the key of a judge's feedback. Raises `ValueError` for a list of feedback under no key or under several."""
    if evaluator is not None:
        return evaluator.key
    if isinstance(judge, str):
        return judge
    keys = {row.key for row in judge}
    if len(keys) != 1:
        raise ValueError(f"the feedback of a judge must have a single key, got {sorted(keys)!r:.200}")
    return str(keys.pop())


@contextmanager
def open_optional_store(store: Store | str | None, *, needed: bool = True) -> Iterator[Store | None]:
    """Yield the given store, or open one with `connect` and close it afterwards. Yield None if no store is given or
    needed.
    """
    if store is not None and not isinstance(store, str):
        yield store
        return
    if store is None and not needed:
        yield None
        return
    opened = connect(store)
    try:
        yield opened
    finally:
        opened.close()


def load_labels(store: Store | None, votes: Any, key: str | None) -> list[Feedback]:
    labels = list(votes) if key is None else list_human_feedback(store, key) if store else []
    if not labels:
        where = f" under {key!r} in {store.where}" if key and store else ""
        raise ValueError(f"there are no human labels{where}; collect some with `spanwise judges label`")
    return labels


def match_labels(
    store: Store | None,
    judge: Any,
    key: str,
    votes: Sequence[Feedback],
    evaluator: Evaluator | None,
    *,
    version: str | None,
    missing: bool,
) -> JudgeCheck:
    """Match labels with the judge's scores of the same targets.

    The scores are a list of feedback, else those in the store under the key. With `missing`, the evaluator first adds
    the scores that the store lacks.
    """
    judge_version = version or (evaluator.version if evaluator else None)
    source = evaluator.make.source if evaluator else "model"

    def get_scores() -> Iterable[Feedback]:
        if isinstance(judge, list | tuple):
            return judge
        return list_judge_scores(store, key, [vote.target for vote in votes], source) if store else ()

    checked = check_judge(get_scores(), votes, judge_version)
    if missing and evaluator and checked.unjudged and store:
        _score_missing(store, evaluator, checked.unjudged)
        checked = check_judge(get_scores(), votes, judge_version)
    return checked


def _score_missing(store: Store, evaluator: Evaluator, targets: Sequence[Target]) -> None:
    """Score the labelled traces that the judge has not scored, in batches, and store the feedback."""
    ids = list(dict.fromkeys(target.trace_id for target in targets if target.trace_id and target.span_id is None))

    async def score_all(traces: Sequence[Trace]) -> list[Feedback]:
        results = await asyncio.gather(*(ascore(evaluator, trace) for trace in traces))
        return [feedback for rows in results for feedback in rows]

    for start in range(0, len(ids), TRACES_PER_BATCH):
        store.add_feedback(run_coroutine(score_all(store.many(ids[start : start + TRACES_PER_BATCH]))))


def _case_texts(store: Store, pairs: Sequence[LabelledCase]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield, per trace id, the texts that identify a case as a prompt example, and the length of its answer in
    characters.
    """
    ids = list(dict.fromkeys(pair.target.trace_id for pair in pairs if pair.target.trace_id))
    for start in range(0, len(ids), TRACES_PER_BATCH):
        for trace in store.many(ids[start : start + TRACES_PER_BATCH]):
            case = make_case(trace)
            fields = {name: _stripped_text(getattr(case, name)) for name in _EXAMPLE_FIELDS}
            yield trace.trace_id, {**fields, "length": len(fields["outputs"])}


def _make_calibration(
    key: str,
    votes_key: str | None,
    checked: JudgeCheck,
    texts: Mapping[str, Mapping[str, Any]],
    judge: Evaluator | None,
) -> Calibration:
    examples = [dict(example) for example in getattr(judge.function, "examples", None) or ()] if judge else []
    pairs = [pair for pair in checked.pairs if not _is_example(texts.get(pair.target.trace_id or ""), examples)]
    return Calibration(
        key=key,
        version=checked.version,
        votes_key=votes_key,
        agreement=measure_agreement([(pair.judged, pair.people) for pair in pairs]),
        differing=tuple(_list_differences(pairs)),
        bias=_measure_bias("the judge above people", [gap for pair in pairs if (gap := _score_gap(pair)) is not None]),
        length=_length_bias(pairs, texts),
        position=_position_bias(pairs),
        among=checked.among,
        undecided=checked.undecided,
        failed=checked.failed,
        skipped=checked.skipped,
        unjudged=len(checked.unjudged),
        examples=len(checked.pairs) - len(pairs),
    )


def _is_example(case: Mapping[str, Any] | None, examples: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the case is one of the examples in the prompt: all input and output fields of the example equal
    those of the case.
    """
    if case is None:
        return False
    example_fields = (
        {name: _stripped_text(example[name]) for name in _EXAMPLE_FIELDS if name in example} for example in examples
    )
    return any(fields and all(case[name] == text for name, text in fields.items()) for fields in example_fields)


def _stripped_text(value: Any) -> str:
    if isinstance(value, Mapping) and len(value) == 1:
        value = next(iter(value.values()))
    return value.strip() if isinstance(value, str) else "" if value is None else repr(value)


def _score_gap(pair: LabelledCase) -> float | None:
    if isinstance(pair.judged, str) or isinstance(pair.people, str):
        return None
    return pair.judged - pair.people


def _list_differences(pairs: Sequence[LabelledCase]) -> list[Difference]:
    differing = [pair for pair in pairs if (pair.judged != pair.people if (gap := _score_gap(pair)) is None else gap)]
    differing.sort(key=lambda pair: -abs(_score_gap(pair) or 0.0))
    return [
        Difference(
            target=pair.target,
            judged=pair.judged,
            people=pair.people,
            why=pair.judge.comment,
            said="; ".join(vote.comment for vote in pair.votes if vote.comment) or None,
        )
        for pair in differing
    ]


def _measure_bias(what: str, gaps: Sequence[float]) -> Bias | None:
    if len(gaps) < 2:
        return None
    half = t_quantile(0.975, len(gaps) - 1) * sqrt(variance(gaps) / len(gaps))
    mean = fmean(gaps)
    return Bias(what=what, n=len(gaps), difference=mean, low=mean - half, high=mean + half)


def _length_bias(pairs: Sequence[LabelledCase], texts: Mapping[str, Mapping[str, Any]]) -> Bias | None:
    """Return the judge's bias on the longer half of the answers minus its bias on the shorter half."""
    measured = [
        (case["length"], gap)
        for pair in pairs
        if (case := texts.get(pair.target.trace_id or "")) and (gap := _score_gap(pair)) is not None
    ]
    if not measured:
        return None
    middle = median(length for length, _ in measured)
    what = f"for answers longer than {middle:g} characters"
    return _mean_difference(
        what, [g for length, g in measured if length <= middle], [g for length, g in measured if length > middle]
    )


def _position_bias(pairs: Sequence[LabelledCase]) -> Bias | None:
    """Return the position bias. For pairwise judges it is the preference for the answer shown first. For documents it is
    the bias at later ranks minus that at earlier ranks.
    """
    turned = [pair.judge.metadata.get("pairwise") for pair in pairs]
    known = [metadata["turned"] for metadata in turned if isinstance(metadata, Mapping) and "turned" in metadata]
    if known:
        return _measure_bias(
            "towards the answer shown first", [{"first": 1.0, "second": -1.0}.get(metadata, 0.0) for metadata in known]
        )
    placed = [(pair.target.document, gap) for pair in pairs if (gap := _score_gap(pair)) is not None]
    ranks = [(rank, gap) for rank, gap in placed if rank is not None]
    if not ranks:
        return None
    middle = median(rank for rank, _ in ranks)
    what = f"for documents after the {middle + 1:g}."
    return _mean_difference(
        what, [gap for rank, gap in ranks if rank <= middle], [gap for rank, gap in ranks if rank > middle]
    )


def _mean_difference(what: str, first: Sequence[float], second: Sequence[float]) -> Bias | None:
    """Return the second mean minus the first with Welch's interval, using the degrees of freedom of the smaller half."""
    if min(len(first), len(second)) < 2:
        return None
    half = t_quantile(0.975, min(len(first), len(second)) - 1)
    half *= sqrt(variance(first) / len(first) + variance(second) / len(second))
    mean = fmean(second) - fmean(first)
    return Bias(what=what, n=len(first) + len(second), difference=mean, low=mean - half, high=mean + half)


def _format_matrix(confusion: Mapping[tuple[Value, Value], int]) -> Iterator[str]:
    """Yield the lines of the confusion matrix, one row per value of the judge."""
    if not confusion:
        return
    values = sorted({value for pair in confusion for value in pair}, key=lambda value: (isinstance(value, str), value))
    names = [value if isinstance(value, str) else f"{value:g}" for value in values]
    width = max(6, *(len(name) + 1 for name in names))
    yield f"{'judge ↓ people →':<18}" + "".join(f"{name:>{width}}" for name in names)
    for name, judged in zip(names, values, strict=True):
        yield f"{name:<18}" + "".join(f"{confusion.get((judged, people), 0):>{width}}" for people in values)


_PAGE_ROWS = 5_000
_MAX_LABELS = 100_000  # maximum number of human labels


def corrected_mean(
    scores: Any,
    votes: str | Iterable[Feedback] | None = None,
    *,
    store: Store | str | None = None,
    where: Filter | None = None,
    version: str | None = None,
    assume_random: bool = False,
) -> CorrectedMean:
    """Return the mean score that people would give to all cases that a judge has scored, with its 95 % interval.

    The method is prediction-powered inference (PPI). `scores` is the key of the judge's feedback, its
    evaluator, or a list of its feedback. `votes` is the key of human feedback (None: the judge's own key), or a
    list. `where` restricts the traces (`Filter(experiment=…)`). One version of the judge counts: `version`,
    else the evaluator's, else the newest. Labels of cases that the judge has not scored are left out, and
    `notes` reports their number.

    Labels from `spanwise judges label` carry the sampling probability of their case, and are weighted by its inverse.
    Raises `ValueError` if no label has a probability and not all cases are labelled, as people tend to label
    conspicuous cases. `assume_random=True` declares that all cases were equally likely.
    """
    evaluator = None if isinstance(scores, str | list | tuple) else as_evaluator(scores)
    key = judge_feedback_key(scores, evaluator)
    votes_key = votes if isinstance(votes, str) else key if votes is None else None
    listed = isinstance(scores, list | tuple)
    with open_optional_store(store, needed=not listed or votes_key is not None) as opened:
        labels: list[Any] = []
        if votes_key is None:
            labels = list(votes) if votes is not None else []
        elif opened:
            labels = list_human_feedback(opened, votes_key, most=_MAX_LABELS)
        rows: Iterator[Feedback] = iter(())
        if listed:
            rows = iter(sorted(scores, key=lambda row: -row.created_ns))  # newest first
        elif opened:
            rows = iterate_pages(partial(opened.feedbacks, where, key=key, source="model", limit=_PAGE_ROWS))
        judge_version = version or (evaluator.version if evaluator else None)
        values, judged = _gather_scores(rows, {label.target for label in labels}, judge_version)
    checked = check_judge(judged, labels)
    pairs = checked.pairs
    weighted = [pair for pair in pairs if pair.probability is not None]
    if not assume_random and len(pairs) < len(values) and pairs and not weighted:
        raise ValueError(
            f"none of {len(pairs)} labels has a sampling probability; collect labels with `spanwise judges label`, or pass "
            "assume_random=True if all cases were equally likely to be labelled"
        )
    random = assume_random or len(pairs) == len(values)
    used = pairs if random else weighted
    notes = []
    if excluded := len(pairs) - len(used):
        notes.append(f"{excluded} votes without a probability are left out")
    if excluded := len(labels) - sum(len(pair.votes) for pair in pairs):
        notes.append(
            f"{excluded} votes are on cases that the judge has not scored, undecided, or replaced by later ones"
        )
    corrections = [
        (
            _require_number(pair.judged, "the judge"),
            _require_number(pair.people, "people"),
            1.0 if random or pair.probability is None else pair.probability,
        )
        for pair in used
    ]
    return replace(estimate_ppi_mean(values, corrections), notes=tuple(notes))


def _gather_scores(
    rows: Iterator[Feedback], voted: set[Target], version: str | None
) -> tuple[list[float], list[Feedback]]:
    """Return all scores of one version, one per target, and the feedback on labelled targets. The rows must arrive
    newest first.

    Raises `ValueError` for textual labels, which have no mean.
    """
    first = next(rows, None)
    if first is None:
        return [], []
    version = first.version if version is None else version
    values: list[float] = []
    judged: list[Feedback] = []
    scored: set[Target] = set()
    for row in chain((first,), rows):
        if row.version != version or row.target in scored:
            continue
        scored.add(row.target)
        if row.target in voted:
            judged.append(row)
        if row.outcome == "score":
            values.append(_require_number(get_feedback_value(row), "the judge"))
    return values, judged


def _require_number(value: float | str, whose: str) -> float:
    if isinstance(value, str):
        raise ValueError(
            f"textual labels have no mean: {whose} gave {value!r:.100}; use a scale with a score for each label"
        )
    return value
