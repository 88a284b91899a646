"""How far judges agree with people, in the words that stand beside their means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from assay.collector.pages.kit.chips import Chip
from assay.collector.records import Experiment
from assay.collector.stores import Store, checked


def trust(store: Store, judges: Mapping[str, str | None]) -> dict[str, str]:
    """Per key of a judge, at a version (None: the newest), one sentence: what it is against people's votes."""
    return {key: str(found.agreement) for key, found in checked(store, judges).items()}


def of_experiments(experiments: Iterable[Experiment]) -> dict[str, str | None]:
    """The keys that are judges', as experiments tell of their evaluators, with their versions; the last counts."""
    return {
        str(metric["key"]): version if isinstance(version := evaluator.get("version"), str) else None
        for experiment in experiments
        for evaluator in experiment.evaluators
        if evaluator.get("source") == "model" and isinstance(metrics := evaluator.get("metrics"), list)
        for metric in metrics
        if isinstance(metric, Mapping) and "key" in metric
    }


def of_chips(chips: Mapping[str, Mapping[str, Chip]]) -> dict[str, str | None]:
    """The keys under which a model has spoken on the traces that are shown; the newest version will count."""
    shown = (chip.feedback for of_trace in chips.values() for chip in of_trace.values())
    return {feedback.key: None for feedback in shown if feedback.source == "model"}
