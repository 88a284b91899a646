"""Statistics of a stored experiment per key: the interval of the mean, and statistics of repeated runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import partial

from spanwise.collector.records import Bucket, Experiment, iterate_pages
from spanwise.collector.statistics import (
    TASK_OK,
    Interval,
    RepeatedRuns,
    ScoreSample,
    collect_repeated_runs,
    select_latest,
)
from spanwise.collector.stores.recorded_metrics import list_metrics
from spanwise.collector.stores.trace_store import TraceStore

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
