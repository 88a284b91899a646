"""Which keys are judges', beside whose means stands how far they agree with people."""

from __future__ import annotations

from collections.abc import Mapping

from spanwise.collector.pages.kit.chips import Chip
from spanwise.collector.records import Experiment


def of_experiment(experiment: Experiment) -> dict[str, str | None]:
    """The keys that are judges', as an experiment tells of its evaluators, with their versions."""
    return {
        str(metric["key"]): version if isinstance(version := evaluator.get("version"), str) else None
        for evaluator in experiment.evaluators
        if evaluator.get("source") == "model" and isinstance(metrics := evaluator.get("metrics"), list)
        for metric in metrics
        if isinstance(metric, Mapping) and "key" in metric
    }


def of_chips(chips: Mapping[str, Mapping[str, Chip]]) -> dict[str, str | None]:
    """The keys under which a model has spoken on the traces that are shown; the newest version will count."""
    return {key: None for of_trace in chips.values() for key, chip in of_trace.items() if chip.judged}
