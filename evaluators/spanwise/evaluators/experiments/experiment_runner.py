"""Entry points `evaluate()`, `aevaluate()` and `dry_run()`; execution of a prepared experiment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Unpack

from spanwise.collector.errors import StoreError
from spanwise.collector.records import Example
from spanwise.collector.records import Experiment as Record
from spanwise.collector.statistics import select_latest
from spanwise.collector.store_connection import OnDemandStore
from spanwise.evaluators.experiments.dataset_source import iterate_async_rows, make_source, plan_runs
from spanwise.evaluators.experiments.evaluation_pipeline import run_pipeline
from spanwise.evaluators.experiments.example_evaluators import ExampleEvaluators
from spanwise.evaluators.experiments.experiment_liveness import Heartbeat, StallWatchdog
from spanwise.evaluators.experiments.experiment_plan import FinishedRun
from spanwise.evaluators.experiments.experiment_preparation import (
    ExperimentJob,
    open_experiment_store,
    prepare_attach,
    prepare_experiment,
)
from spanwise.evaluators.experiments.experiment_results import (
    Experiment,
    register_rescore,
    run_set_evaluators,
    save_requested_results,
)
from spanwise.evaluators.experiments.experiment_settings import (
    EvaluateOptions,
    ExperimentSettings,
    accept_options,
    make_settings,
)
from spanwise.evaluators.experiments.experiment_summary import format_resume_command
from spanwise.evaluators.experiments.experiment_totals import ExperimentTally, compute_wall_ns
from spanwise.evaluators.experiments.result_writer import ResultWriter, UnstoredRuns, make_spool, make_spooled_store
from spanwise.evaluators.experiments.run_fixture import FIXTURE, make_fixture
from spanwise.evaluators.experiments.task_call import make_task, run_and_cancel_others
from spanwise.evaluators.interface import (
    Evaluator,
    JudgementBuffer,
    as_evaluator,
    check_keys,
    make_loop_waiter,
    make_progress_bar,
    print_message,
    redirect_status,
    run_coroutine,
    stderr_console,
    use_judge_context,
)
from spanwise.evaluators.scoring import Estimate, estimate


@accept_options
def evaluate(
    dataset: Any, task: Any = None, evaluators: Iterable[Any] = (), **options: Unpack[EvaluateOptions]
) -> Experiment:
    """Run a task over a dataset, score every run with evaluators, and store runs and scores as an experiment.

    Arguments:

    - `dataset`: the name of a stored dataset (`name@3` for a version), a path (JSONL, JSON, CSV, YAML,
      Parquet), a dataset of the Hugging Face hub (`hf://openai/gsm8k`), a DataFrame, an Arrow table, a list or (async) generator of dicts or examples, stored traces or a `Filter` over them, or an
      experiment to score further.
    - `evaluators`: callables, ids or evaluators. They score the examples that name them or that name none (see
      `Example.evaluators`); the others are scored by the evaluators that they name.
    - `task`: called with the inputs by name, with the whole dict if it has a parameter `inputs`, or with the
      single value if the inputs are not a dict. Async tasks run on one event loop, others on threads. The span of
      a task under `@trace` becomes the root of its run, as in production. Without a task the existing outputs,
      traces or runs are scored.
    - `attach`: add feedback to live traces in place; no experiment is stored.
    - `repetitions`: number of runs per example.
    - `limit`: the first examples, or with `seed` a random sample. A task with a parameter `seed` gets one per
      run.
    - `split`: one split or several. `only`: example ids, or prefixes of ids.
    - `timeout`: seconds per attempt. `retries`: further attempts after a transient failure, or after those that
      `retry_on` (exception types, or a function of the exception) accepts.
    - `fail_fast`, `max_failures` (a number, or a share of the runs such as 0.2) and `max_usd` (cost of the tasks'
      spans, those of earlier parts of a resumed experiment included): stop the experiment. Running tasks finish, and
      the experiment can be resumed.
    - `raise_errors`: raise the error of a task.
    - `fixture`: function that returns a context manager, also an async one, for set-up and tear-down around each
      attempt. It gets the example, or its inputs by name. The task gets the context's value as its parameter
      `fixture`.
    - `resume`: continue an interrupted experiment (True: the one named `name`; or an experiment's id).
    - `span_wait`: seconds to wait for spans that are still open when the task ends.
    - `store`: see `spanwise.collector.connect` for None.

    With `resume`, stored runs are not run again, except failed ones. More repetitions, a larger limit and added
    examples are run. Examples, repetitions, seed, split, limit, the given metadata, and the code, constants and plain
    object state that the task reaches in its project (not in installed packages) are compared with the stored
    experiment. Any other change in them raises `CannotResume`. An evaluator whose version, parameters or code have
    changed scores all runs again.

    A failing task or evaluator is recorded as an error, not raised. Raises `ValueError` for a task that does not fit
    the inputs, a bad row or an experiment that cannot be resumed, and `TypeError` for an unknown option.
    """
    return run_coroutine(
        run_and_cancel_others(run_experiment(dataset, task, evaluators, make_settings(options, "evaluate")))
    )


@accept_options
async def aevaluate(
    dataset: Any, task: Any = None, evaluators: Iterable[Any] = (), **options: Unpack[EvaluateOptions]
) -> Experiment:
    """Evaluate as `evaluate` does, from async code. Async tasks and evaluators run on the running event loop."""
    return await run_experiment(dataset, task, evaluators, make_settings(options, "aevaluate"))


@register_rescore
def rescore(experiment: Experiment, evaluators: Iterable[Any], **options: Unpack[EvaluateOptions]) -> Experiment:
    """Score the runs of an experiment with more evaluators, in its own store unless another is given."""
    options.setdefault("store", experiment.store)
    return evaluate(experiment, None, evaluators, **options)


def make_evaluators(evaluators: Any) -> list[Evaluator]:
    """Return the evaluators of a call; one id or function stands for a list of it."""
    return [
        as_evaluator(each)
        for each in ([evaluators] if isinstance(evaluators, str) or callable(evaluators) else evaluators)
    ]


async def run_experiment(
    dataset: Any, task: Any, evaluators: Iterable[Any], settings: ExperimentSettings
) -> Experiment:
    """Prepare an experiment, run it until it is finished, and return it."""
    evaluator_list = make_evaluators(evaluators)
    set_evaluators = (
        *(each for each in evaluator_list if each.summary),
        *map(as_evaluator, settings.summary_evaluators),
    )
    case_evaluators = tuple(each for each in evaluator_list if not each.summary)
    check_keys((*case_evaluators, *set_evaluators))
    for evaluator in (*case_evaluators, *set_evaluators):
        if evaluator.asking is not None:
            evaluator.asking.ready()
    task = make_task(task) if task is not None else None
    if settings.fixture is not None:
        make_fixture(settings.fixture)  # raises an error if it is invalid
        if task is None:
            raise ValueError("fixture=… prepares each run of a task, but there is no task: remove it, or pass a task")
        if FIXTURE in task.takes:
            task = replace(task, wants=task.wants | {FIXTURE})
    if isinstance(dataset, AsyncIterable):
        dataset = iterate_async_rows(dataset, make_loop_waiter(asyncio.get_running_loop()))
    prepare = prepare_attach if settings.attach else prepare_experiment
    store = await asyncio.to_thread(open_experiment_store, settings)
    settings = replace(settings, store=store)
    try:
        job = await asyncio.to_thread(prepare, dataset, task, case_evaluators, set_evaluators, settings)
        with Heartbeat(job.store, job.record.id) if job.is_saved else nullcontext():
            return await _run_job(job)
    finally:
        if isinstance(store, OnDemandStore):
            await asyncio.to_thread(store.release)


async def _run_job(job: ExperimentJob) -> Experiment:
    plan, conditions = job.plan, job.conditions
    for evaluator in (*plan.evaluators, *job.set_evaluators):
        for remark in evaluator.remarks:
            plan.remark(remark)
    job.tally.remarks = plan.remarks
    spool = make_spool(plan.experiment_id, job.store)
    progress = plan.settings.progress
    bar = make_progress_bar(plan.name, job.total, progress)
    loop = asyncio.get_running_loop()
    with (
        bar,
        redirect_status(bar.show_status),
        StallWatchdog(bar, loop, prints=progress is not False) as watchdog,
    ):

        def count(batch: Sequence[FinishedRun]) -> None:
            _count_batch(job.tally, batch)
            bar.advance(len(batch), job.tally.failed)
            watchdog.note_progress()

        judgements = JudgementBuffer()
        writer = ResultWriter(job.store, spool, count, judgements)
        try:
            with use_judge_context(judgements=judgements, inside=None):
                await run_pipeline(plan, job.items, writer, conditions)
        except BaseException as error:
            await _handle_interruption(job, writer, error, watchdog.status)
            while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            raise error from None
        unstored = await asyncio.to_thread(writer.close)
    if conditions.reason:
        plan.remarks[f"stopped: {conditions.reason}"] = None
        print_message(f"spanwise: stopped: {conditions.reason}; continue with {_format_resume_hint(job)}")
    if failures := plan.teardown_failures:
        plan.remark(f"{len(failures)} attempts had a failed tear-down, for example: {failures[0]} (see errors())")
    if running := plan.abandoned.alive:
        plan.remark(f"{running} tasks did not stop at their timeout and still run in this process")
    store = job.store if unstored is None else make_spooled_store(job.store, spool)
    experiment = Experiment(job.record, store, job.tally, unstored=unstored, examples=job.examples)
    if unstored is not None:
        print_message(_describe_unstored(unstored, job))
    try:
        if job.set_evaluators and unstored is None and not conditions.reason:
            await run_set_evaluators(experiment, job.set_evaluators, job.store, job.tally)
        status = "interrupted" if unstored or conditions.reason else "finished"
        experiment.record = await asyncio.to_thread(_close_record, job, status)
    # return the results even if the record could not be updated: the runs are stored
    except (StoreError, OSError) as problem:
        print_message(f"spanwise: the end of the experiment could not be stored: {problem}")
    evaluators = (*plan.evaluators, *job.set_evaluators)
    await asyncio.to_thread(save_requested_results, experiment, [evaluator.key for evaluator in evaluators])
    if progress is not False and stderr_console.is_terminal and not stderr_console.is_jupyter:
        stderr_console.print(experiment)
    return experiment


def _count_batch(tally: ExperimentTally, batch: Sequence[FinishedRun]) -> None:
    """Add a stored batch of runs and their feedback to the totals."""
    for run in batch:
        item, trace = run.item, run.trace
        if not item.stored:
            spans = run.runs or trace.runs  # without own runs, feedback was attached to a trace that is stored already
            wall_ns = compute_wall_ns(spans)
            tally.add_run(item.slot, trace.trace_id, wall_ns, run.error, run.open_spans, item.example.id)
            tally.add_calls(spans)
        tally.add_judgements(run.feedback[len(item.known) :])
        for outcome in select_latest(run.feedback):
            tally.add_feedback(outcome, item.example.id)


def _format_resume_hint(job: ExperimentJob) -> str:
    return format_resume_command(job.record.id) if job.is_saved else "evaluate(…, attach=True, resume=True)"


async def _handle_interruption(job: ExperimentJob, writer: ResultWriter, error: BaseException, status: str) -> None:
    """Store the finished runs, and print the command that resumes the experiment."""
    unstored = await asyncio.to_thread(writer.close)
    if unstored is not None:
        print_message(_describe_unstored(unstored, job))
    try:
        await asyncio.to_thread(_close_record, job, "interrupted")
    except StoreError as problem:
        print_message(f"spanwise: the interruption could not be stored: {problem}")
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        while_waiting = f", while {status}" if status else ""
        print_message(
            f"spanwise: interrupted after {job.tally.runs} runs{while_waiting}; continue with {_format_resume_hint(job)}"
        )


def _close_record(job: ExperimentJob, status: Any) -> Record:
    setup, now = {**(job.record.metadata.get("setup") or {}), **job.environment.result()}, time.time_ns()
    before = job.record  # rescoring keeps the recorded end time and status
    ended_ns = before.ended_ns or now
    totals = {**job.tally.totals(), "seconds": round((ended_ns - job.record.started_ns) / 1e9, 3)}
    spent_usd = job.conditions.spent_usd or (before.metadata.get("totals") or {}).get("spent_usd")
    if spent_usd:
        totals["spent_usd"] = spent_usd
    record = replace(
        job.record,
        evaluators=before.evaluators if job.choice is None else job.choice.describe(before.evaluators),
        status=before.status if job.rescores else status,
        ended_ns=before.ended_ns if job.rescores else ended_ns,
        seen_ns=before.seen_ns if job.rescores else now,
        example_count=job.record.example_count or len(job.tally.traces) // max(1, job.plan.settings.repetitions),
        metadata={**job.record.metadata, "setup": setup, "totals": totals},
    )
    if job.is_saved:
        job.store.save_experiment(record)
    return record


def _describe_unstored(unstored: UnstoredRuns, job: ExperimentJob) -> str:
    message = f"spanwise: the store did not accept {unstored.runs} runs ({unstored.why})."
    if not unstored.paths:
        return (
            f"{message} No file could be written either: they exist only in memory, as rows of the returned experiment"
        )
    files = " and ".join(map(str, unstored.paths))
    command = format_resume_command(job.record.id) if job.is_saved else f"spanwise experiments deliver {files}"
    return f"{message} They are saved in {files}: {command} stores them without running anything again"


def dry_run(dataset: Any, evaluators: Iterable[Any], **options: Unpack[EvaluateOptions]) -> Estimate:
    """Estimate the judge calls and cost of `evaluate(dataset, task, evaluators, …)` with the same options.

    Reference outputs are used in place of the task's answers. Raises the same errors as `evaluate()` for a dataset
    that cannot be read, and for an evaluator without a judge.
    """
    settings = make_settings(options, "dry_run")
    store = open_experiment_store(settings)
    try:
        source = make_source(dataset, store, "dry run", settings.splits, save=False)
        items, _ = plan_runs(source, limit=settings.limit, seed=settings.seed, only=settings.ids)
        cases = [item.trace or item.example for item in items]
        choice = ExampleEvaluators(make_evaluators(evaluators))
        choice.add(case for case in cases if isinstance(case, Example))
        return estimate(choice.all, map(choice.name_all, cases), repetitions=settings.repetitions)
    finally:
        if isinstance(store, OnDemandStore):
            store.release()
