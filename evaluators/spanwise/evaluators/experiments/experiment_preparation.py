"""Preparation of an experiment: new, resumed, rescored, or attached to live traces."""

from __future__ import annotations

import platform
import secrets
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from os import PathLike
from typing import Any, cast

from spanwise.collector.errors import NotFound, SpanwiseError
from spanwise.collector.records import JSON, Example
from spanwise.collector.records import Experiment as Record
from spanwise.collector.statistics import select_latest
from spanwise.collector.store_connection import OnDemandStore
from spanwise.collector.stores import Store
from spanwise.evaluators.experiments.dataset_source import ExampleSource, make_source, plan_runs
from spanwise.evaluators.experiments.experiment_plan import (
    ExampleEvaluators,
    ExperimentPlan,
    ExperimentSettings,
    PlannedRun,
    StopConditions,
)
from spanwise.evaluators.experiments.experiment_progress import ExperimentTally
from spanwise.evaluators.experiments.experiment_results import Experiment
from spanwise.evaluators.experiments.experiment_resume import (
    StoredRuns,
    list_example_changes,
    list_setup_changes,
    merge_evaluators,
    read_metrics,
    read_stored_runs,
)
from spanwise.evaluators.experiments.result_writer import SpoolBatch, deliver_pending_spools
from spanwise.evaluators.experiments.task_call import RunFixture, TaskFunction, make_fixture
from spanwise.evaluators.interface import (
    Evaluator,
    check_keys,
    digest_code,
    encode_infinities,
    list_untracked_state,
    print_message,
    to_stored_value,
)
from spanwise.evaluators.scoring import check_composites, describe_parts, get_parts
from spanwise.tracer.otel.live_span import SCOPE
from spanwise.tracer.process_runtime import get_runtime as tracing

MAX_UNTRACKED = 5  # maximum number of values listed in the message on state that cannot be compared


class CannotResume(SpanwiseError, ValueError):
    """Raised on resume if a change has made the experiment's stored runs invalid. The message lists the changes."""


@dataclass(slots=True)
class ExperimentJob:
    """Prepared experiment, ready to run."""

    plan: ExperimentPlan
    record: Record
    store: Store
    tally: ExperimentTally
    items: Iterator[PlannedRun]
    total: int | None
    set_evaluators: tuple[Evaluator, ...]  # set-level evaluators
    environment: Future[dict[str, JSON]]
    examples: Sequence[Example] | None = None  # all examples, if they are in memory
    is_saved: bool = True  # False: `record` is never saved
    rescores: bool = False  # True: scores existing runs only, and the record keeps its status
    spent_usd: float = 0.0  # cost of the tasks in earlier parts of a resumed experiment
    choice: ExampleEvaluators | None = None  # evaluators per example
    conditions: StopConditions = field(init=False)

    def __post_init__(self) -> None:
        """Create the stop conditions.

        Raises `ValueError` if a condition is a share of the runs and their number is unknown.
        """
        self.conditions = StopConditions(self.plan.settings, self.total, self.plan.remark, self.spent_usd)
        self.items = self.conditions.skip_unaffordable(self.items)


def prepare_experiment(
    dataset: Any,
    task: TaskFunction | None,
    evaluators: tuple[Evaluator, ...],
    set_evaluators: tuple[Evaluator, ...],
    settings: ExperimentSettings,
) -> ExperimentJob:
    """Determine the planned and finished runs, and save the experiment's record.

    Reads from and writes to the store.

    `settings.store` is an open store (see `open_experiment_store`). Raises `ValueError` for invalid arguments,
    `NotFound`, and the errors of the store.
    """
    store = cast(Store, settings.store)
    if isinstance(dataset, Experiment):
        if task is not None:
            raise ValueError("the runs of an experiment exist already: score them with task=None, or pass a dataset")
        if (dataset.record.metadata.get("setup") or {}).get("attach"):
            raise ValueError("attach=True stores no experiment: score the traces again with attach=True")
        return _prepare_rescoring(dataset, evaluators, set_evaluators, store, settings)
    name = settings.name or (task.name if task else "given")
    source = make_source(dataset, store, name, settings.splits, outputs_are_references=task is not None)
    choice = ExampleEvaluators(evaluators, set_evaluators)
    can_read_twice = not source.is_unsaved and not source.has_traces
    if can_read_twice:
        selected, _ = plan_runs(source, limit=settings.limit, seed=settings.seed, only=settings.ids)
        choice.add(item.example for item in selected)
        evaluators = choice.all
    check_composites(evaluators)
    record, stored, tally = _begin_or_resume(name, task, source, evaluators, set_evaluators, store, settings)
    record = replace(record, evaluators=choice.describe(record.evaluators))
    items, total = plan_runs(
        source, repetitions=settings.repetitions, limit=settings.limit, seed=settings.seed, only=settings.ids
    )
    items = choice.assign(items, counting=not can_read_twice)
    plan = ExperimentPlan(
        experiment_id=record.id,
        name=record.name,
        task=task,
        evaluators=evaluators,
        settings=settings,
        kind=source.kind,
        keep_examples=source.is_unsaved,
        fixture=None if settings.fixture is None else make_fixture(settings.fixture),
    )
    items = _check_first_run(items, plan, settings.splits)
    if stored is not None:
        items = _iterate_remaining_runs(items, stored, evaluators, tally, store)
        total = None if total is None else max(0, total - len(stored.traces))
    job = ExperimentJob(
        plan,
        record,
        store,
        tally,
        items,
        total,
        set_evaluators,
        collect_environment(),
        source.in_memory,
        spent_usd=stored.spent_usd if stored is not None and task is not None else 0.0,
        choice=choice,
    )
    store.save_experiment(record)
    return job


def _begin_or_resume(
    name: str,
    task: TaskFunction | None,
    source: ExampleSource,
    evaluators: tuple[Evaluator, ...],
    set_evaluators: tuple[Evaluator, ...],
    store: Store,
    settings: ExperimentSettings,
) -> tuple[Record, StoredRuns | None, ExperimentTally]:
    """Return the record of a new or an interrupted experiment, with its stored runs.

    With `resume=True`, a new experiment begins if there is none of this name. Raises `NotFound` for an unknown id.
    """
    setup = make_setup(
        task,
        settings.parameters,
        dataset=source.name,
        dataset_version=source.version,
        fixture=None if settings.fixture is None else make_fixture(settings.fixture),
    )
    every = (*evaluators, *set_evaluators)
    described = describe_evaluators(every)
    tally = ExperimentTally((metric for evaluator in every for metric in evaluator.metrics), settings.repetitions)
    earlier: Record | None = None
    if settings.resume:
        try:
            earlier = store.experiment(name if settings.resume is True else settings.resume)
        except NotFound:
            if settings.resume is not True:
                raise
    if earlier is None:
        # `resume` and `compare` use the newest experiment of a name, which must not be a partial one
        if settings.only and not name.endswith("-only"):
            name += "-only"
        metadata = {**to_stored_value(settings.metadata or {}), "setup": setup}
        record = Record(
            id=secrets.token_hex(16),
            name=name,
            dataset=source.name,
            dataset_version=source.version,
            project=tracing().settings.project,  # that of the spans
            evaluators=described,
            metadata=metadata,
            example_count=source.count or 0,
            seen_ns=time.time_ns(),
        )
        return record, None, tally
    changed = list_setup_changes(earlier, setup, settings.metadata or {})
    if changed := changed or list_example_changes(store, earlier, source, setup):
        raise CannotResume(
            f"experiment {earlier.name!r} ({earlier.id[:8]}) cannot be resumed: {'; '.join(changed)}. "
            "Its stored runs do not match any more: start a new experiment, without resume"
        )
    if task and settings.progress is not False and (unknown := list_untracked_state(task.function)):
        print_message(f"spanwise: cannot check whether these values have changed: {', '.join(unknown[:MAX_UNTRACKED])}")
    deliver_pending_spools(earlier.id, store)
    check_keys(every, earlier.evaluators)
    check_composites(evaluators, earlier.evaluators)
    merged = merge_evaluators(earlier.evaluators, describe_evaluators(every, earlier.evaluators))
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
    stored = read_stored_runs(store, record, tally, evaluators, retrying=task is not None)
    # delete the replaced runs, in case an earlier process was killed before it deleted them
    SpoolBatch([], [], stored.replaced).deliver(store)
    if stored.retried and settings.progress is not False:
        print_message(f"spanwise: rerunning {sum(map(len, stored.retried.values()))} failed runs")
    return record, stored, tally


def _prepare_rescoring(
    experiment: Experiment,
    evaluators: tuple[Evaluator, ...],
    set_evaluators: tuple[Evaluator, ...],
    store: Store,
    settings: ExperimentSettings,
) -> ExperimentJob:
    """Prepare the scoring of an experiment's existing runs by more evaluators."""
    deliver_pending_spools(experiment.id, store)
    record = store.experiment(experiment.id)  # another process may have added scores
    every = (*evaluators, *set_evaluators)
    check_keys(every, record.evaluators)
    check_composites(evaluators, record.evaluators)
    merged = merge_evaluators(record.evaluators, describe_evaluators(every, record.evaluators))
    record = replace(
        record,
        evaluators=merged,
        metadata={**record.metadata, **to_stored_value(settings.metadata or {})},
    )
    repetitions = int((record.metadata.get("setup") or {}).get("repetitions") or 1)
    metrics = chain(read_metrics(record), (metric for evaluator in every for metric in evaluator.metrics))
    tally = ExperimentTally(metrics, repetitions)
    stored = read_stored_runs(store, record, tally, evaluators)
    kind = store.dataset(record.dataset).kind if record.dataset_version is not None else "kv"
    plan = ExperimentPlan(
        experiment_id=record.id, name=record.name, task=None, evaluators=evaluators, settings=settings, kind=kind
    )
    plan.remarks.update(tally.remarks)
    choice = ExampleEvaluators(evaluators, set_evaluators)
    items = _iterate_stored_runs(experiment, stored, choice, tally)
    return ExperimentJob(
        plan,
        record,
        store,
        tally,
        items,
        len(stored.traces),
        set_evaluators,
        collect_environment(),
        rescores=True,
        choice=choice,
    )


def _iterate_stored_runs(
    experiment: Experiment, stored: StoredRuns, choice: ExampleEvaluators, tally: ExperimentTally
) -> Iterator[PlannedRun]:
    for slot, row in enumerate(experiment.rows()):
        tally.traces[slot] = row.trace.trace_id
        example = row.known_example
        missing = stored.evaluated.missing(row.trace.trace_id, choice.select_known(example, count=row.repetition == 0))
        if missing:
            errors = stored.evaluated.errors(row.trace.trace_id)
            yield PlannedRun(slot, example, row.repetition, row.trace, missing, stored=True, errors=errors)


def _iterate_remaining_runs(
    items: Iterator[PlannedRun],
    stored: StoredRuns,
    evaluators: tuple[Evaluator, ...],
    tally: ExperimentTally,
    store: Store,
) -> Iterator[PlannedRun]:
    """Yield the work that an interrupted experiment has left: runs that are missing, and stored runs without some
    scores.
    """
    for item in items:
        run = item.example.id, item.repetition
        trace_id = stored.traces.get(run)
        if trace_id is None:
            yield replace(item, replaces=stored.retried.get(run, ()))
            continue
        tally.traces[item.slot] = trace_id
        missing = stored.evaluated.missing(trace_id, evaluators if item.evaluators is None else item.evaluators)
        if missing:
            errors = stored.evaluated.errors(trace_id)
            yield replace(item, trace=store.trace(trace_id), evaluators=missing, stored=True, errors=errors)


def _check_first_run(
    items: Iterator[PlannedRun], plan: ExperimentPlan, splits: Sequence[str] | None
) -> Iterator[PlannedRun]:
    """Raise an error before any run starts if the dataset is empty or the task does not fit the first example."""
    first = next(items, None)
    if first is None:
        of_splits = f" in split {' or '.join(map(repr, splits))}" if splits else ""
        raise NotFound(f"the dataset has no examples{of_splits}")
    if plan.task is not None and first.trace is None:
        plan.task.arguments(first.example, plan.kind, plan.seed_of(first.example, 0))
        if plan.fixture is not None:
            plan.fixture.arguments(first.example, plan.kind, plan.seed_of(first.example, 0))
    return chain([first], items)


def open_experiment_store(settings: ExperimentSettings) -> Store:
    """Return the store of the settings. If none is given, open the default store and print where the results are
    stored.

    The default store is opened as an `OnDemandStore`, which the caller must release.
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
        print_message(f"spanwise: results go to {store.where}")
    return cast(Store, store)


def prepare_attach(
    dataset: Any,
    task: TaskFunction | None,
    evaluators: tuple[Evaluator, ...],
    set_evaluators: Sequence[Evaluator],
    settings: ExperimentSettings,
) -> ExperimentJob:
    """Prepare an evaluation with `attach=True`.

    With `resume=True` evaluators skip traces that they have scored or skipped at their current version.

    Raises `ValueError` if there is no trace to which feedback could be attached.
    """
    if task is not None:
        raise ValueError("attach=True scores existing traces: pass task=None")
    if set_evaluators:
        key = set_evaluators[0].key
        raise ValueError(f"attach=True: the set-level evaluator {key!r} scores all cases together, not a trace")
    if settings.repetitions != 1:
        raise ValueError(f"attach=True requires repetitions=1, got {settings.repetitions!r}")
    if isinstance(settings.resume, str):
        raise ValueError(f"attach=True stores no experiment with an id: use resume=True, got {settings.resume!r}")
    if isinstance(dataset, Experiment):
        raise ValueError(
            "attach=True requires live traces: score the runs of an experiment with experiment.evaluate([…])"
        )
    check_composites(evaluators)
    store, name = cast(Store, settings.store), settings.name or "attached"
    source = make_source(dataset, store, name, settings.splits, reload_traces=True)
    if not source.has_traces:
        raise ValueError(f"attach=True requires live traces: a Filter or a list of traces, got {dataset!r:.200}")
    items, total = plan_runs(source, limit=settings.limit, seed=settings.seed, only=settings.ids)
    if settings.resume:
        items = (_select_missing_evaluators(item, evaluators) for item in items)
    setup = make_setup(None, settings.parameters, dataset=source.name, dataset_version=None)
    record = Record(
        id=secrets.token_hex(16),
        name=name,
        dataset=source.name,
        evaluators=describe_evaluators(evaluators),
        metadata={**to_stored_value(settings.metadata or {}), "setup": {**setup, "attach": True}},
        example_count=source.count or 0,
    )
    plan = ExperimentPlan(experiment_id=record.id, name=name, task=None, evaluators=evaluators, settings=settings)
    tally = ExperimentTally(metric for evaluator in evaluators for metric in evaluator.metrics)
    return ExperimentJob(plan, record, store, tally, items, total, (), collect_environment(), is_saved=False)


def _select_missing_evaluators(item: PlannedRun, evaluators: tuple[Evaluator, ...]) -> PlannedRun:
    """Return an item with only the evaluators that still have to score its trace at their current version, and with
    the existing feedback of all evaluators. Errors do not count as feedback.
    """
    if item.trace is None:
        return item
    versions = {(evaluator.make.name, evaluator.version) for evaluator in evaluators}
    feedback = tuple(
        each
        for each in select_latest(item.trace.feedback)
        if (each.evaluator, each.version) in versions and each.outcome != "error"
    )
    counts = Counter(evaluator.make.name for evaluator in evaluators)
    keys = {(each.evaluator, each.key) for each in feedback}
    names = {each.evaluator for each in feedback}
    missing = tuple(
        evaluator
        for evaluator in evaluators
        if not any((evaluator.make.name, key) in keys for key in evaluator.make.keys)
        and not (evaluator.make.name in names and counts[evaluator.make.name] == 1)
    )
    return replace(item, evaluators=missing, known=feedback)


def make_setup(
    task: TaskFunction | None,
    parameters: Mapping[str, JSON],
    *,
    dataset: str,
    dataset_version: int | None,
    fixture: RunFixture | None = None,
) -> dict[str, JSON]:
    """Return plain values that describe the setup of an experiment.

    Facts that take long to find out are added by `collect_environment`.
    """
    code = digest_code(task.function) if task else None
    return {
        "dataset": dataset,
        "dataset_version": dataset_version,
        "task": task.name if task else None,
        "task_code": code if fixture is None else {**(code or {}), **digest_code(fixture.task.function)},
        **({} if fixture is None else {"fixture": fixture.name}),
        **parameters,
    }


def describe_evaluators(
    evaluators: Sequence[Evaluator], recorded: Sequence[Mapping[str, Any]] = ()
) -> tuple[Mapping[str, JSON], ...]:
    """Return descriptions of evaluators in the form in which an experiment records them.

    `recorded` holds the evaluators that the experiment has recorded already, which composites may use.
    """
    described = tuple(
        {
            "key": evaluator.key,
            "version": evaluator.version,
            "source": evaluator.make.source,
            "summary": evaluator.summary,
            "metrics": [metric.to_dict() for metric in evaluator.metrics],
            "origin": encode_infinities(_describe_origin(evaluator)),
            "code": {} if evaluator.spec else digest_code(evaluator.function),
            "standards": list(evaluator.standards),
            **({"min_cases": evaluator.min_cases} if evaluator.min_cases else {}),
            **({"primary": True} if evaluator.primary else {}),
        }
        for evaluator in evaluators
    )
    return tuple(
        {**record, "code": describe_parts(evaluator, described, recorded)} if get_parts(evaluator) else record
        for evaluator, record in zip(evaluators, described, strict=True)
    )


def _describe_origin(evaluator: Evaluator) -> Mapping[str, Any]:
    """Return the origin of an evaluator, with judges replaced by their identities.

    Identities are the same in every process and contain no API keys.
    """
    parameters = evaluator.origin.get("init_parameters") or {}
    judges = getattr(evaluator.asking, "judges", ())
    if "judge" not in parameters or not judges:
        return dict(evaluator.origin)
    identities = [dict(judge.identity) for judge in judges]
    return {**evaluator.origin, "init_parameters": {**parameters, "judge": identities}}


def collect_environment() -> Future[dict[str, JSON]]:
    """Start a background thread that reads versions, the git commit, and whether tracked files are changed."""

    def read() -> dict[str, JSON]:
        versions: dict[str, JSON] = {"spanwise": SCOPE.version, "python": platform.python_version()}
        commit = _run_git("rev-parse", "HEAD")
        if commit is not None:
            changed = _run_git("status", "--porcelain", "--untracked-files=no")
            versions |= {"git_commit": commit, "git_changed": bool(changed)}
        return versions

    pool = ThreadPoolExecutor(1, "spanwise-setup")
    future = pool.submit(read)
    pool.shutdown(wait=False)
    return future


def _run_git(*arguments: str) -> str | None:
    try:
        finished = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return finished.stdout.strip()
