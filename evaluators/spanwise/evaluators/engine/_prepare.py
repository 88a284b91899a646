"""Before anything runs: what is to be done, what is done already, and whether the task fits."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import chain
from os import PathLike
from typing import Any, cast

from spanwise.collector._on_demand import OnDemandStore
from spanwise.collector.errors import NotFound, SpanwiseError
from spanwise.collector.records import JSON, Example
from spanwise.collector.records import Experiment as Record
from spanwise.collector.stores import Store
from spanwise.evaluators.engine import _setup
from spanwise.evaluators.engine._brake import Brake
from spanwise.evaluators.engine._experiment import Experiment
from spanwise.evaluators.engine._growth import other_examples
from spanwise.evaluators.engine._plan import Item, Plan
from spanwise.evaluators.engine._progress import say
from spanwise.evaluators.engine._recall import Recall, metrics_of, recall
from spanwise.evaluators.engine._settings import Settings
from spanwise.evaluators.engine._source import Source, items_of, source_of
from spanwise.evaluators.engine._spool import Parcel, deliver_waiting
from spanwise.evaluators.engine._tally import Tallies
from spanwise.evaluators.engine._task import Task
from spanwise.evaluators.protocol import Evaluator, check_keys, unknown_to
from spanwise.tracer.spans import current as tracing

UNKNOWN = 5  # values that cannot be compared, of which one is told


class CannotResume(SpanwiseError, ValueError):
    """An experiment whose stored runs do not count any more; says what has changed."""


@dataclass(slots=True)
class Job:
    """An experiment that is ready to run."""

    plan: Plan
    record: Record
    store: Store
    tally: Tallies
    items: Iterator[Item]
    total: int | None
    whole: tuple[Evaluator, ...]  # set-level evaluators
    surroundings: Future[dict[str, JSON]]
    examples: Sequence[Example] | None = None  # all of them, if they are in memory anyway
    kept: bool = True  # False: `record` is in no store
    rescores: bool = False  # only scores runs that are there: nothing is known of those that may be missing
    brake: Brake = field(init=False)

    def __post_init__(self) -> None:
        """Raises `ValueError` for a share of runs that nobody has counted."""
        self.brake = Brake(self.plan.settings, self.total, self.plan.remark)


def prepared(
    dataset: Any,
    task: Task | None,
    evaluators: tuple[Evaluator, ...],
    whole: tuple[Evaluator, ...],
    settings: Settings,
) -> Job:
    """Find out what is to be done and what is done already, and note the experiment in its store. Reads and writes.

    `settings.store` is a store (`opened`).

    Raises `ValueError` for what a caller can mend, `NotFound`, and what the store raises.
    """
    store = cast(Store, settings.store)
    if isinstance(dataset, Experiment):
        if task is not None:
            raise ValueError("an experiment's runs are there already: score them with task=None, or name a dataset")
        if (dataset.record.metadata.get("setup") or {}).get("attach"):
            raise ValueError("attached feedback has no experiment: score the traces again, with attach=True")
        return _rescoring(dataset, evaluators, whole, store, settings)
    name = settings.name or (task.name if task else "given")
    source = source_of(dataset, store, name, settings.splits, outputs_are_references=task is not None)
    record, recalled, tally = _begun(name, task, source, evaluators, store, settings)
    items, total = items_of(
        source, repetitions=settings.repetitions, limit=settings.limit, seed=settings.seed, only=settings.ids
    )
    plan = Plan(
        experiment_id=record.id,
        name=record.name,
        task=task,
        evaluators=evaluators,
        settings=settings,
        kind=source.kind,
        keep_examples=source.keep,
    )
    items = _checked(items, plan, settings.splits)
    if recalled is not None:
        items = _remaining(items, recalled, evaluators, tally, store)
        total = None if total is None else max(0, total - len(recalled.traces))
    job = Job(plan, record, store, tally, items, total, whole, _setup.surroundings(), source.listed)
    store.save_experiment(record)
    return job


def _begun(
    name: str, task: Task | None, source: Source, evaluators: tuple[Evaluator, ...], store: Store, settings: Settings
) -> tuple[Record, Recall | None, Tallies]:
    """A new experiment, or one that was interrupted, with what is known of its runs."""
    setup = _setup.setup_of(task, settings.parameters, dataset=source.name, dataset_version=source.version)
    described = _setup.described(evaluators)
    tally = Tallies((metric for evaluator in evaluators for metric in evaluator.metrics), settings.repetitions)
    earlier = _earlier(name, store, settings)
    if earlier is None:
        if settings.only and not name.endswith("-only"):  # the newest of a name is what others go on with and compare
            name += "-only"
        metadata = {**_setup.plain(settings.metadata or {}), "setup": setup}
        record = Record(
            id=secrets.token_hex(16),
            name=name,
            dataset=source.name,
            dataset_version=source.version,
            project=_project(),
            evaluators=described,
            metadata=metadata,
            example_count=source.count or 0,
            seen_ns=time.time_ns(),
        )
        return record, None, tally
    changed = _setup.changes(earlier, setup, settings.metadata or {})
    if changed := changed or other_examples(store, earlier, source, setup):
        raise CannotResume(
            f"experiment {earlier.name!r} ({earlier.id[:8]}) cannot be resumed: {'; '.join(changed)}. "
            "Its stored runs are of something else: begin a new experiment, without resume"
        )
    if task and settings.progress is not False and (unknown := unknown_to(task.function)):
        say(f"spanwise: cannot tell whether this is as it was: {', '.join(unknown[:UNKNOWN])}")
    deliver_waiting(earlier.id, store)
    check_keys(evaluators, earlier.evaluators)
    merged = _setup.merged(earlier.evaluators, described)
    record = replace(
        earlier,
        dataset=source.name,
        dataset_version=source.version,
        status="running",
        evaluators=merged,
        metadata={**earlier.metadata, "setup": setup},
        ended_ns=None,
        example_count=source.count or earlier.example_count,
        seen_ns=time.time_ns(),
    )
    recalled = recall(store, record, tally, evaluators, retrying=task is not None)
    Parcel([], [], recalled.replaced).deliver(store)  # a kill came before that could be done
    if recalled.again and settings.progress is not False:
        say(f"spanwise: {sum(map(len, recalled.again.values()))} runs that failed are run again")
    return record, recalled, tally


def _rescoring(
    experiment: Experiment,
    evaluators: tuple[Evaluator, ...],
    whole: tuple[Evaluator, ...],
    store: Store,
    settings: Settings,
) -> Job:
    """More evaluators over the runs that an experiment has already."""
    deliver_waiting(experiment.id, store)
    record = store.experiment(experiment.id)  # somebody may have scored it further since
    check_keys(evaluators, record.evaluators)
    merged = _setup.merged(record.evaluators, _setup.described(evaluators))
    record = replace(record, evaluators=merged, metadata={**record.metadata, **_setup.plain(settings.metadata or {})})
    repetitions = int((record.metadata.get("setup") or {}).get("repetitions") or 1)
    metrics = chain(metrics_of(record), (metric for evaluator in evaluators for metric in evaluator.metrics))
    tally = Tallies(metrics, repetitions)
    recalled = recall(store, record, tally, evaluators)
    kind = store.dataset(record.dataset).kind if record.dataset_version is not None else "kv"
    plan = Plan(
        experiment_id=record.id, name=record.name, task=None, evaluators=evaluators, settings=settings, kind=kind
    )
    plan.remarks.update(tally.remarks)
    items = _stored_items(experiment, recalled, evaluators, tally)
    return Job(plan, record, store, tally, items, len(recalled.traces), whole, _setup.surroundings(), rescores=True)


def _stored_items(
    experiment: Experiment, recalled: Recall, evaluators: tuple[Evaluator, ...], tally: Tallies
) -> Iterator[Item]:
    for slot, row in enumerate(experiment.rows()):
        tally.traces[slot] = row.trace.trace_id
        missing = recalled.missing(row.trace.trace_id, evaluators)
        if missing:
            errors = recalled.seen.errors(row.trace.trace_id)
            yield Item(slot, row.known_example, row.repetition, row.trace, missing, stored=True, errors=errors)


def _remaining(
    items: Iterator[Item], recalled: Recall, evaluators: tuple[Evaluator, ...], tally: Tallies, store: Store
) -> Iterator[Item]:
    """What is left to do of an interrupted experiment: runs that are not stored, and scores of those that are."""
    for item in items:
        run = item.example.id, item.repetition
        trace_id = recalled.traces.get(run)
        if trace_id is None:
            yield replace(item, replaces=recalled.again.get(run, ()))
            continue
        tally.traces[item.slot] = trace_id
        missing = recalled.missing(trace_id, evaluators)
        if missing:
            errors = recalled.seen.errors(trace_id)
            yield replace(item, trace=store.trace(trace_id), evaluators=missing, stored=True, errors=errors)


def _checked(items: Iterator[Item], plan: Plan, splits: Sequence[str] | None) -> Iterator[Item]:
    """Fail before anything runs when the task does not fit the first example."""
    first = next(items, None)
    if first is None:
        of_splits = f" in split {' or '.join(map(repr, splits))}" if splits else ""
        raise NotFound(f"the dataset has no examples{of_splits}")
    if plan.task is not None and first.trace is None:
        plan.task.arguments(first.example, plan.kind, plan.seed_of(first.example, 0))
    return chain([first], items)


def opened(settings: Settings) -> Store:
    """The store that is meant; says where results go if that was not said.

    One that is opened here is an `OnDemandStore`, which the caller releases.
    """
    where = settings.store
    if isinstance(where, OnDemandStore):
        where.hold()
        return cast(Store, where)
    if where is not None and not isinstance(where, str | PathLike):
        return where
    store = OnDemandStore(where)
    store.hold()
    if settings.progress is not False:
        say(f"spanwise: results go to {store.where}")
    return cast(Store, store)


def _earlier(name: str, store: Store, settings: Settings) -> Record | None:
    """The experiment to resume. `True` begins a new one if there is none of that name."""
    if not settings.resume:
        return None
    try:
        return store.experiment(name if settings.resume is True else settings.resume)
    except NotFound:
        if settings.resume is True:
            return None
        raise


def _project() -> str:
    """The project under which the tracer files its spans."""
    return tracing().settings.project
