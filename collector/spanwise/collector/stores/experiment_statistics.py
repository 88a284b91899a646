"""Stored experiments: their metrics, examples, statistics per key, and the history of a dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from spanwise.collector.errors import Forbidden, NotFound
from spanwise.collector.filters import Filter
from spanwise.collector.records import EXAMPLE_ATTRIBUTE, Bucket, Example, Experiment, RunScores, iterate_pages
from spanwise.collector.statistics import (
    TASK_OK,
    Interval,
    RepeatedRuns,
    ScoreSample,
    collect_repeated_runs,
    select_latest,
)
from spanwise.collector.stores.store_interfaces import Store, TraceStore

# Metrics as experiments record them: direction, threshold, main keys, and the evaluator of each key.


@dataclass(frozen=True, slots=True)
class RecordedMetric:
    """Metric of a key as an experiment records it, and the record of its evaluator."""

    metric: Mapping[str, Any]
    evaluator: Mapping[str, Any]

    @property
    def version(self) -> object:
        """Return the version of the evaluator."""
        return self.evaluator.get("version")

    @property
    def evaluator_id(self) -> str:
        """Return the registered id of the evaluator; "" if it is not registered."""
        origin = self.evaluator.get("origin")
        return str(origin.get("type") or "") if isinstance(origin, Mapping) else ""

    @property
    def is_rising(self) -> bool:
        """Return whether a higher score is better."""
        return self.metric.get("higher_is_better") is not False

    @property
    def threshold(self) -> float | None:
        """Return the threshold, which may be infinite; None without one."""
        threshold = self.metric.get("threshold")
        if threshold in ("Infinity", "-Infinity"):
            return float(threshold)
        return threshold if isinstance(threshold, int | float) else None


def list_metrics(record: Experiment) -> dict[str, RecordedMetric]:
    """Return the recorded metrics by key."""
    found: dict[str, RecordedMetric] = {}
    for evaluator in record.evaluators:
        metrics = evaluator.get("metrics")
        for metric in metrics if isinstance(metrics, list | tuple) else ():
            if isinstance(metric, Mapping) and "key" in metric:
                found[str(metric["key"])] = RecordedMetric(metric, evaluator)
    return found


def list_primary_keys(record: Experiment) -> list[str]:
    """Return the main keys of the evaluators that are declared primary; of one without a main key, all its keys."""
    metrics = list_metrics(record).values()
    keys: list[str] = []
    for evaluator in record.evaluators:
        if evaluator.get("primary") is True and evaluator.get("summary") is not True:
            own = [each.metric for each in metrics if each.evaluator is evaluator]
            keys += [str(metric["key"]) for metric in [each for each in own if each.get("primary")] or own]
    return keys


# Examples of a stored experiment: those of its dataset version, or those that its traces hold.

_EXAMPLE_PAGE = 1_000
_TRACE_PAGE = 200


def iterate_examples(store: Store, record: Experiment) -> Iterator[Example]:
    """Yield the examples of an experiment's dataset version, page by page and in their order.

    Yield nothing if the version is unknown or deleted, or if the reader may not see it.
    """
    if record.dataset_version is None:
        return
    offset = 0
    try:
        while page := store.examples(record.dataset, record.dataset_version, limit=_EXAMPLE_PAGE, offset=offset):
            yield from page
            offset += len(page)
    except (NotFound, Forbidden):  # experiments outlive their dataset: the user may have deleted it
        return


def read_run_examples(store: Store, record: Experiment, runs: Sequence[RunScores]) -> Iterator[Example]:
    """Yield the examples of an experiment's runs. Those of a dataset that was not stored are read from the traces.

    They have only id, inputs, base and categories.
    """
    yield from iterate_examples(store, record)
    trace_ids = [run.trace_id for run in runs if run.repetition == 0] if record.dataset_version is None else []
    for start in range(0, len(trace_ids), _TRACE_PAGE):
        for trace in store.many(trace_ids[start : start + _TRACE_PAGE]):
            row: Any = trace.root.attributes.get(EXAMPLE_ATTRIBUTE)
            if isinstance(row, Mapping) and trace.root.example_id is not None:
                yield Example(
                    id=trace.root.example_id,
                    inputs=row.get("inputs", trace.root.inputs),
                    base_id=row.get("base_id"),
                    categories=tuple(row.get("categories") or ()),
                )


# Statistics of a stored experiment per key: the interval of the mean, and statistics of repeated runs.

MAX_SCORES = 50_000  # most runs and scores of an experiment that are read to compute intervals
MAX_FEEDBACK = 5_000  # most scores of a key that are read as feedback, because some runs have several
_RUNS_PER_PAGE = 5_000
_FEEDBACK_PER_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class KeyStatistics:
    """Interval of a key's mean, and its repeated runs.

    `interval` is None if there are too few scores, `repeats` without repetitions.
    """

    interval: Interval | None = None
    repeats: RepeatedRuns | None = None


def estimate_keys(store: TraceStore, experiment: Experiment, result: Bucket) -> dict[str, KeyStatistics]:
    """Return the statistics of `task_ok` and of each key in `result`, the aggregate of all runs of the experiment.

    The intervals are those of the means in `result`, and equal those of `evaluate()`. An experiment with more than
    `MAX_SCORES` runs and scores has none: {}. A key under which some runs have several scores, as on documents, has
    none above `MAX_FEEDBACK` scores.
    """
    counts: Counter[str] = Counter()  # scores of runs and of their documents, which `evaluate()` does not tell apart
    for stats in result.feedback:
        if stats.n and stats.key != TASK_OK:
            counts[stats.key] += stats.n
    if result.traces + sum(counts.values()) > MAX_SCORES:
        return {}
    repetitions = _get_repetitions(experiment)
    metrics = list_metrics(experiment)
    ends: dict[str, tuple[str, bool]] = {}
    scores: dict[str, list[tuple[str, float]]] = {TASK_OK: [], **{key: [] for key in counts}}
    for run in iterate_pages(partial(store.scores, experiment.id, limit=_RUNS_PER_PAGE)):
        ends[run.trace_id] = run.example_id or run.trace_id, run.status != "error"
        scores[TASK_OK].append((run.trace_id, float(run.status != "error")))
        for key, score in run.scores.items():
            if key in counts and score is not None and not isinstance(score, str):
                scores[key].append((run.trace_id, float(score)))
    found: dict[str, KeyStatistics] = {}
    for key, of_runs in scores.items():
        pairs = of_runs
        if key != TASK_OK and len(of_runs) != counts[key]:  # `scores` has only the newest score of a run
            if counts[key] > MAX_FEEDBACK:
                continue
            pairs, of_runs = _read_scores(store, experiment, key, ends)
        sample = ScoreSample((score for _, score in pairs), (ends[trace][0] for trace, _ in pairs))
        repeats = None
        if repetitions > 1:
            metric = metrics.get(key)
            repeats = collect_repeated_runs(
                key,
                repetitions,
                ends,
                of_runs,
                threshold=metric.threshold if metric else None,
                higher_is_better=metric.is_rising if metric else True,
            )
        found[key] = KeyStatistics(sample.interval(), repeats)
    return found


def _read_scores(
    store: TraceStore, experiment: Experiment, key: str, runs: Container[str]
) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
    """Return trace and value of every score that counts, and of those that are not on documents.

    A person's label on a judge's score is a check of the judge. It does not count in addition to the score.
    """
    pages = partial(store.feedbacks, experiment=experiment.id, key=key, limit=_FEEDBACK_PER_PAGE)
    feedback = select_latest(iterate_pages(pages))
    judged = {each.target.trace_id for each in feedback if each.source == "model"}
    scores: list[tuple[str, float]] = []
    of_runs: list[tuple[str, float]] = []
    for each in feedback:
        trace = each.target.trace_id
        if each.score is None or trace is None or trace not in runs or (each.source == "human" and trace in judged):
            continue
        scores.append((trace, float(each.score)))
        if each.target.document is None:
            of_runs.append(scores[-1])
    return scores, of_runs


def _get_repetitions(experiment: Experiment) -> int:
    setup = experiment.metadata.get("setup")
    repetitions = setup.get("repetitions") if isinstance(setup, Mapping) else None
    return repetitions if isinstance(repetitions, int) else 1


# History of a dataset's experiments: the mean of each key with its interval, in order of time.


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPoint:
    """Result of one experiment under one key. `interval` is None if there are too few scores, or too many to read."""

    experiment_id: str
    name: str
    started_ns: int
    status: str
    key: str
    n: int
    mean: float
    interval: Interval | None


def list_history(store: Store, dataset: str, *, limit: int = 50) -> list[HistoryPoint]:
    """Return the points of the newest experiments over a dataset, earliest first.

    Intervals are computed for the newest experiments, until `MAX_SCORES` runs and scores have been read.
    """
    experiments = store.experiments(dataset=dataset, limit=limit)
    if not experiments:
        return []
    buckets = store.aggregate(
        Filter(experiments=tuple(each.id for each in experiments)), group_by="experiment", newest="all"
    )
    results = {bucket.group: bucket for bucket in buckets}
    left, points = MAX_SCORES, []
    for experiment in experiments:
        result = results.get(experiment.id)
        if result is None:
            continue
        left -= result.traces + sum(stats.n for stats in result.feedback)
        estimates = estimate_keys(store, experiment, result) if left >= 0 else {}
        # of a key on both runs and documents, the point is the mean over the runs
        by_key = {stats.key: stats for stats in reversed(result.feedback)}
        means = [(key, by_key[key].n, by_key[key].mean) for key in sorted(by_key) if key != TASK_OK]
        if result.errors:
            means.insert(0, (TASK_OK, result.traces, 1 - result.errors / result.traces))
        points += [
            HistoryPoint(
                experiment_id=experiment.id,
                name=experiment.name,
                started_ns=experiment.started_ns,
                status=experiment.status,
                key=key,
                n=n,
                mean=mean,
                interval=estimates[key].interval if key in estimates else None,
            )
            for key, n, mean in means
            if mean is not None
        ]
    return sorted(points, key=lambda point: point.started_ns)
