"""Live traces scored where they are: feedback is attached to the very traces, and no experiment is kept."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from spanwise.collector.records import Experiment as Record
from spanwise.collector.records import Feedback, Trace
from spanwise.collector.statistics import newest
from spanwise.collector.stores import Store
from spanwise.evaluators.engine import _setup
from spanwise.evaluators.engine._experiment import Experiment
from spanwise.evaluators.engine._plan import Item, Plan
from spanwise.evaluators.engine._prepare import Job
from spanwise.evaluators.engine._settings import Settings
from spanwise.evaluators.engine._source import Source, items_of, source_of
from spanwise.evaluators.engine._tally import Tallies
from spanwise.evaluators.engine._task import Task
from spanwise.evaluators.protocol import Evaluator


def attaching(
    dataset: Any, task: Task | None, evaluators: tuple[Evaluator, ...], whole: Sequence[Evaluator], settings: Settings
) -> Job:
    """What is to be done with `attach=True`. With `resume=True` evaluators look at no trace again that they have scored
    or skipped at the version that they are at.

    Raises `ValueError` for what has no trace to attach to.
    """
    _check(task, whole, settings)
    store, name = cast(Store, settings.store), settings.name or "attached"
    if isinstance(dataset, Experiment):
        raise ValueError("attach=True takes live traces; an experiment's runs are scored by experiment.evaluate([…])")
    source = source_of(dataset, store, name, settings.splits, stored=True)
    if not source.traces:
        raise ValueError(f"attach=True takes live traces, a Filter or a list of them, not {dataset!r:.200}")
    items, total = items_of(source, limit=settings.limit, seed=settings.seed, only=settings.ids)
    if settings.resume:
        items = (_unscored(item, evaluators) for item in items)
    record = _unkept(name, source, evaluators, settings)
    plan = Plan(experiment_id=record.id, name=name, task=None, evaluators=evaluators, settings=settings)
    tally = Tallies(metric for evaluator in evaluators for metric in evaluator.metrics)
    return Job(plan, record, store, tally, items, total, (), _setup.surroundings(), kept=False)


def said_before(trace: Trace, evaluators: Sequence[Evaluator]) -> list[Feedback]:
    """What these evaluators have said of a trace, at the versions that they are at; errors do not count."""
    versions = {(evaluator.make.name, evaluator.version) for evaluator in evaluators}
    said = [one for one in newest(trace.feedback) if (one.evaluator, one.version) in versions]
    return [one for one in said if one.outcome != "error"]


def _check(task: Task | None, whole: Sequence[Evaluator], settings: Settings) -> None:
    if task is not None:
        raise ValueError("attach=True scores traces that are there: give None in place of a task")
    if whole:
        raise ValueError(f"attach=True: {whole[0].key!r} judges a whole set, which has no one trace to attach to")
    if settings.repetitions != 1:
        raise ValueError(f"attach=True: the same trace has no repetitions, not {settings.repetitions!r}")
    if isinstance(settings.resume, str):
        raise ValueError(
            f"attach=True keeps no experiment that could be resumed: say resume=True, not {settings.resume!r}"
        )


def _unscored(item: Item, evaluators: tuple[Evaluator, ...]) -> Item:
    """An item for those evaluators that have still to look at its trace, with what the others have said."""
    if item.trace is None:
        return item
    known = said_before(item.trace, evaluators)
    named = Counter(evaluator.make.name for evaluator in evaluators)
    keys = {(one.evaluator, one.key) for one in known}
    names = {one.evaluator for one in known}
    missing = tuple(
        evaluator
        for evaluator in evaluators
        if not any((evaluator.make.name, key) in keys for key in evaluator.make.keys)
        and not (evaluator.make.name in names and named[evaluator.make.name] == 1)
    )
    return replace(item, evaluators=missing, known=tuple(known))


def _unkept(name: str, source: Source, evaluators: tuple[Evaluator, ...], settings: Settings) -> Record:
    """A record that is in no store: an experiment has runs of its own, and here there are none."""
    setup = _setup.setup_of(None, settings.parameters, dataset=source.name, dataset_version=None)
    return Record(
        id=secrets.token_hex(16),
        name=name,
        dataset=source.name,
        evaluators=_setup.described(evaluators),
        metadata={**_setup.plain(settings.metadata or {}), "setup": {**setup, "attach": True}},
        example_count=source.count or 0,
    )
