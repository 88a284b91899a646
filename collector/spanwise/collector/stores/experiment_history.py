"""History of a dataset's experiments: the mean of each key with its interval, in order of time."""

from __future__ import annotations

from dataclasses import dataclass

from spanwise.collector.filters import Filter
from spanwise.collector.statistics import TASK_OK, Interval
from spanwise.collector.stores.control_store import Store
from spanwise.collector.stores.experiment_statistics import MAX_SCORES, estimate_keys


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
