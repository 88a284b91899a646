"""Statistics over stored scores: agreement of judges with people, weighted means and percentiles of rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from spanwise.collector.records import Experiment, Feedback, Rule, Source, Target, iterate_pages
from spanwise.collector.statistics import (
    CorrectedMean,
    JudgeCheck,
    SampledMean,
    SampledPercentile,
    check_judge,
    estimate_means,
    estimate_percentiles,
    estimate_ppi_mean,
    estimate_sums,
)
from spanwise.collector.stores.control_store import ControlStore
from spanwise.collector.stores.trace_store import TraceStore

MAX_LABELS = 1_000  # maximum number of human labels per key, newest first
_TRACES_PER_QUERY = 100  # traces per query; their ids are part of a URL


class JudgeAgreement:
    """Agreement of judges with human feedback. Each query is sent once, so create one instance per request or table."""

    def __init__(self, store: TraceStore) -> None:
        self._store = store
        self._read: dict[str, tuple[list[Feedback], list[Feedback]]] = {}
        self._checked: dict[tuple[str, str | None], JudgeCheck] = {}

    def of(self, key: str, version: str | None = None) -> JudgeCheck:
        """Compare a version of a judge (None: the newest) with human feedback under the same key."""
        if (key, version) not in self._checked:
            if key not in self._read:
                votes = list_human_feedback(self._store, key)
                self._read[key] = list(list_judge_scores(self._store, key, [vote.target for vote in votes])), votes
            self._checked[key, version] = check_judge(*self._read[key], version)
        return self._checked[key, version]

    def said(self, judges: Mapping[str, str | None]) -> dict[str, str]:
        """Return a sentence on the agreement for each judge, given by key and version."""
        return {key: str(self.of(key, version).agreement) for key, version in judges.items()}


def get_judge_keys(experiment: Experiment) -> dict[str, str | None]:
    """Return the keys that judges score, with the judges' versions, from the experiment's list of evaluators."""
    return {
        str(metric["key"]): version if isinstance(version := evaluator.get("version"), str) else None
        for evaluator in experiment.evaluators
        if evaluator.get("source") == "model" and isinstance(metrics := evaluator.get("metrics"), list)
        for metric in metrics
        if isinstance(metric, Mapping) and "key" in metric
    }


def list_human_feedback(store: TraceStore, key: str, most: int = MAX_LABELS) -> list[Feedback]:
    """Return human feedback under a key, newest first."""
    return list(islice(iterate_pages(partial(store.feedbacks, key=key, source="human", limit=MAX_LABELS)), most))


def list_judge_scores(
    store: TraceStore, key: str, targets: Sequence[Target], source: Source = "model"
) -> Iterator[Feedback]:
    """Yield scores of models (or code) under a key on these targets or on other parts of the same traces."""
    traces = list(dict.fromkeys(target.trace_id for target in targets if target.trace_id is not None))
    for start in range(0, len(traces), _TRACES_PER_QUERY):
        ids = tuple(traces[start : start + _TRACES_PER_QUERY])
        yield from iterate_pages(partial(store.feedbacks, key=key, source=source, trace_ids=ids, limit=MAX_LABELS))
    for target in dict.fromkeys(target for target in targets if target.trace_id is None):
        yield from store.feedbacks(key=key, source=source, target=target, limit=MAX_LABELS)


MAX_OUTCOMES = 100_000  # maximum number of outcomes per rule; those of the latest traces are read first
_PAGE_SIZE = 1_000


def summarize_rule(
    store: ControlStore,
    rule: Rule,
    *,
    key: str | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
    most: int = MAX_OUTCOMES,
) -> list[SampledMean]:
    """Return, for each key, the weighted mean of the scores of this version of a rule, with its interval.

    `since_ns` and `until_ns` select traces by start time, so a late score counts for the day of its trace. If there are
    more than `most` outcomes, only those of the latest traces are read.
    """
    ask = partial(store.weighted, rule.name, key=key, version=rule.version, project=rule.project)
    pages = partial(ask, since_ns=since_ns, until_ns=until_ns, limit=min(most, _PAGE_SIZE))
    return estimate_means(islice(iterate_pages(pages), most))


GRAIN_NS = 150 * 10**9  # sums of scores exist for multiples of this time
MAX_CORRECTED_SCORES = 5_000  # newest scores of a judge whose mean is corrected
NO_PROBABILITY = "no label has a sampling probability; collect labels with `spanwise judges label`"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePoint:
    """Estimate of one key over the traces that started in [start_ns, start_ns + width_ns).

    With a `label`, the estimate is its share among all labelled scores. `group` is the value of the field by which the
    points are grouped.
    """

    start_ns: int
    width_ns: int
    label: str | None = None
    group: str | None = None
    estimate: SampledMean | SampledPercentile


def estimate_over_time(
    store: ControlStore,
    rule: Rule,
    *,
    since_ns: int,
    until_ns: int,
    bucket_ns: int,
    key: str | None = None,
    by: str | None = None,
    groups: Sequence[str] = (),
) -> list[ScorePoint]:
    """Return the weighted mean of each key, and the share of each label, in equal buckets of a window.

    Each point equals `summarize_rule` over the same span: its scores are those of this version of the rule, of traces
    that started in the bucket. The times are multiples of `GRAIN_NS`. The points are in the order of group, key, label
    and time; buckets without outcomes are left out.
    """
    sums = store.score_sums(
        rule.name,
        project=rule.project,
        key=key,
        version=rule.version,
        since_ns=since_ns,
        until_ns=until_ns,
        block_s=bucket_ns // 10**9,
        by=by,
        groups=groups,
        joined=False,
    )
    return [
        ScorePoint(
            start_ns=one.start_ns,
            width_ns=bucket_ns,
            label=one.label,
            group=one.group,
            estimate=estimate_sums([one])[0],
        )
        for one in sums
    ]


def estimate_percentiles_over_time(
    store: ControlStore,
    rule: Rule,
    percent: float,
    *,
    since_ns: int,
    until_ns: int,
    bucket_ns: int,
    key: str | None = None,
    most: int = MAX_OUTCOMES,
) -> list[ScorePoint]:
    """Return a weighted percentile of the scores of each key, in equal buckets of a window.

    Reads the scores themselves: those of the latest traces, if there are more than `most` outcomes. Raises `ValueError`
    for a percent that is not between 0 and 100.
    """
    ask = partial(store.weighted, rule.name, key=key, version=rule.version, project=rule.project)
    pages = partial(ask, since_ns=since_ns, until_ns=until_ns, limit=min(most, _PAGE_SIZE))
    by_bucket = defaultdict(list)
    for row in islice(iterate_pages(pages), most):
        by_bucket[(row.start_ns - since_ns) // bucket_ns].append(row)
    return sorted(
        (
            ScorePoint(start_ns=since_ns + bucket * bucket_ns, width_ns=bucket_ns, estimate=estimate)
            for bucket, rows in by_bucket.items()
            for estimate in estimate_percentiles(rows, percent)
        ),
        key=lambda point: (point.estimate.key, point.start_ns),
    )


def correct_judge_mean(store: TraceStore, check: JudgeCheck, key: str) -> CorrectedMean | None:
    """Return the mean of human labels that a judge's scores and the labels on some of them imply; None without labels.

    It is the estimate of `spanwise.evaluators.corrected_mean` for the newest `MAX_CORRECTED_SCORES` scores of this
    version of the judge. Labels that were not drawn with a probability are left out, unless all scores are labelled.
    """
    pairs = [
        pair for pair in check.pairs if isinstance(pair.judged, float | int) and isinstance(pair.people, float | int)
    ]
    if not pairs:
        return None
    values: dict[Target, float] = {}
    ask = partial(store.feedbacks, key=key, source="model", limit=_PAGE_SIZE)
    for row in islice(iterate_pages(ask), MAX_CORRECTED_SCORES):
        if row.version == check.version and row.score is not None:
            values.setdefault(row.target, float(row.score))
    is_random = len(pairs) >= len(values)
    used = [pair for pair in pairs if is_random or pair.probability is not None]
    scores = list(values.values())
    if not used or len(used) > len(scores):
        judge = sum(scores) / len(scores) if scores else None
        counts = {"judge": judge, "votes": len(pairs), "cases": len(scores)}
        return CorrectedMean(mean=None, low=None, high=None, method="none", why=NO_PROBABILITY, **counts)  # type: ignore[arg-type]
    labels = [
        (float(pair.judged), float(pair.people), 1.0 if is_random or pair.probability is None else pair.probability)
        for pair in used
    ]
    return estimate_ppi_mean(scores, labels)
