"""A dry run: what `evaluate()` would ask judges, and what that would cost: no call is made, and nothing is stored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from spanwise.collector._on_demand import OnDemandStore
from spanwise.evaluators.engine._prepare import opened
from spanwise.evaluators.engine._settings import Options, settings_of
from spanwise.evaluators.engine._source import items_of, source_of
from spanwise.evaluators.scoring import Estimate, estimate


def dry_run(dataset: Any, evaluators: Iterable[Any], **options: Unpack[Options]) -> Estimate:
    """The estimate for what `evaluate(dataset, task, evaluators, …)` would do, with the same options.

    Reference outputs stand for what the task would answer. Raises as `evaluate()` does for a dataset that it cannot
    read, and for an evaluator whose judge is not named.
    """
    settings = settings_of(options, "dry_run")
    store = opened(settings)
    try:
        source = source_of(dataset, store, "dry run", settings.splits, keep=False)
        items, _ = items_of(source, limit=settings.limit, seed=settings.seed, only=settings.ids)
        return estimate(evaluators, (item.trace or item.example for item in items), repetitions=settings.repetitions)
    finally:
        if isinstance(store, OnDemandStore):
            store.release()
