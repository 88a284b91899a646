"""What experiments' evaluators have said of their keys: which way is good, whether scores lie in 0…1, in which unit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spanwise.collector import format
from spanwise.collector.records import Bucket, Experiment, FeedbackStats
from spanwise.collector.statistics import TASK_OK

_UNITS = {"latency": "s", "cost": "$"}  # by the evaluator's id; what they say elsewhere is a number


@dataclass(frozen=True, slots=True)
class Known:
    """What was declared of a key. `bounded`: its scores lie in 0…1, so that a bar says something."""

    rising: bool = True
    bounded: bool = True
    unit: str = ""

    def number(self, value: float | bool) -> str:
        """A score in its unit."""
        if self.unit == "s":
            return format.duration(float(value) * 1e9)
        return format.cost(float(value)) if self.unit == "$" else format.number(value)

    def signed(self, difference: float) -> str:
        """A difference in the unit, always with its sign."""
        sign = format.signed(difference)
        return sign if sign == "±0" or not self.unit else sign[0] + self.number(abs(difference))


TASKS = Known()


def known(experiments: Iterable[Experiment]) -> dict[str, Known]:
    """By key, as far as anything was declared; of several experiments the last that did."""
    return {TASK_OK: TASKS, **dict(one for experiment in experiments for one in _of(experiment))}


def with_tasks(result: Bucket) -> list[FeedbackStats]:
    """The statistics of an experiment by key, and before them those of `task_ok` if a task has failed."""
    others = sorted((stats for stats in result.feedback if stats.key != TASK_OK), key=lambda stats: stats.key)
    return [task_ok(result), *others] if result.errors else others


def task_ok(result: Bucket) -> FeedbackStats:
    """Of an experiment's runs those whose task ended without an error, as the scores of a key."""
    share = 1 - result.errors / result.traces if result.traces else None
    return FeedbackStats(key=TASK_OK, n=result.traces, mean=share, minimum=0.0, maximum=1.0)


def _of(experiment: Experiment) -> Iterator[tuple[str, Known]]:
    for evaluator in experiment.evaluators:
        metrics, origin = evaluator.get("metrics"), evaluator.get("origin")
        unit = _UNITS.get(str(origin.get("type")), "") if isinstance(origin, Mapping) else ""
        for metric in metrics if isinstance(metrics, list) else ():
            if isinstance(metric, Mapping) and "key" in metric:
                yield str(metric["key"]), _known(metric, unit)


def _known(metric: Mapping[str, Any], unit: str) -> Known:
    ends = metric.get("range")
    bounded = not isinstance(ends, list) or (len(ends) == 2 and ends[0] == 0 and ends[1] == 1)
    return Known(metric.get("higher_is_better") is not False, bounded, unit)
