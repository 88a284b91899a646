"""Metrics as experiments record them: direction, threshold, main keys, and the evaluator of each key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spanwise.collector.records import Experiment


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
