"""The one core of `evaluate()`: prepare, drive, score the set, record."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from spanwise.collector._on_demand import OnDemandStore
from spanwise.collector.errors import StoreError
from spanwise.collector.records import Experiment as Record
from spanwise.collector.records import Run
from spanwise.collector.statistics import newest
from spanwise.evaluators.engine._attach import attaching
from spanwise.evaluators.engine._brake import Brake
from spanwise.evaluators.engine._drive import drive
from spanwise.evaluators.engine._experiment import Experiment
from spanwise.evaluators.engine._heartbeat import Heartbeat
from spanwise.evaluators.engine._plan import Done
from spanwise.evaluators.engine._prepare import Job, opened, prepared
from spanwise.evaluators.engine._progress import Bar, bar, notes, resuming, say
from spanwise.evaluators.engine._settings import Settings
from spanwise.evaluators.engine._source import from_loop
from spanwise.evaluators.engine._spool import spool_of
from spanwise.evaluators.engine._spooled import with_spool
from spanwise.evaluators.engine._tally import Tallies
from spanwise.evaluators.engine._task import as_task
from spanwise.evaluators.engine._totals import wall_ns
from spanwise.evaluators.engine._waiting import Watch
from spanwise.evaluators.engine._whole import score_set
from spanwise.evaluators.engine._write import Unstored, Writer
from spanwise.evaluators.protocol import Judgements, as_evaluator, check_keys, judging, waiting_on
from spanwise.evaluators.protocol._telling import told_to


async def run(dataset: Any, task: Any, evaluators: Iterable[Any], settings: Settings) -> Experiment:
    """Prepare an experiment, run it to its end, and return it."""
    judges = [as_evaluator(given) for given in ([evaluators] if isinstance(evaluators, str) else evaluators)]
    whole = (*(judge for judge in judges if judge.summary), *map(as_evaluator, settings.summary_evaluators))
    single = tuple(judge for judge in judges if not judge.summary)
    check_keys((*single, *whole))
    for judge in (*single, *whole):
        if judge.asking is not None:
            judge.asking.ready()
    task = as_task(task) if task is not None else None
    if isinstance(dataset, AsyncIterable):
        dataset = from_loop(dataset, waiting_on(asyncio.get_running_loop()))
    prepare = attaching if settings.attach else prepared
    store = await asyncio.to_thread(opened, settings)
    try:
        job = await asyncio.to_thread(prepare, dataset, task, single, whole, replace(settings, store=store))
        with _settled(), Heartbeat(job.store, job.record.id) if job.kept else nullcontext():
            return await _run(job)
    finally:
        if isinstance(store, OnDemandStore):
            await asyncio.to_thread(store.release)


# Objects. The interpreter itself freezes some hundreds from Python 3.12 on (375 in 3.12.1); a program's `gc.freeze()`
# many thousands, and that maybe before it imports us.
_FROZEN_BY_THE_INTERPRETER = 1_000


@contextmanager
def _settled() -> Iterator[None]:
    """Spare what was there before from being searched for cycles meanwhile: with a model's libraries loaded, each time
    costs more than many runs. Left alone if somebody else has frozen objects.
    """
    ours = gc.get_freeze_count() <= _FROZEN_BY_THE_INTERPRETER
    if ours:
        gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()


async def _run(job: Job) -> Experiment:
    for evaluator in (*job.plan.evaluators, *job.whole):
        for remark in evaluator.remarks:
            job.plan.remark(remark)
    job.tally.remarks = job.plan.remarks
    brake = job.brake
    spool = spool_of(job.plan.experiment_id, job.store)
    progress = job.plan.settings.progress
    shown = bar(job.plan.name, job.total, progress)
    with shown, told_to(shown.waiting), Watch(shown, asyncio.get_running_loop(), aloud=progress is not False) as watch:
        judgements = Judgements()
        writer = Writer(job.store, spool, lambda batch: _count(job.tally, batch, shown, watch), judgements)
        try:
            with judging(judgements=judgements, inside=None):
                await drive(job.plan, job.items, writer, brake)
        except BaseException as error:
            await _interrupted(job, writer, error, watch.text)
            raise _unwrapped(error) from None
        unstored = await asyncio.to_thread(writer.close)
    _remark_on_the_end(job, brake)
    store = job.store if unstored is None else with_spool(job.store, spool)
    experiment = Experiment(job.record, store, job.tally, unstored=unstored, examples=job.examples)
    if unstored is not None:
        say(_of_unstored(unstored, job))
    try:
        if job.whole and unstored is None and not brake.why:
            await score_set(experiment, job.whole, job.store, job.tally)
        status = "interrupted" if unstored or brake.why else "finished"
        experiment.record = await asyncio.to_thread(_closed, job, status)
    except (StoreError, OSError) as problem:  # the runs are done and kept: their results are worth more than the note
        say(f"spanwise: the store could not note the end of the experiment: {problem}")
    if progress is not False and notes.is_terminal and not notes.is_jupyter:
        notes.print(experiment)
    return experiment


def _remark_on_the_end(job: Job, brake: Brake) -> None:
    """Say, below the table and at once, why the experiment stopped, and what is still at work."""
    if brake.why:
        job.plan.remarks[f"stopped: {brake.why}"] = None
        say(f"spanwise: stopped, as {brake.why}; go on with {_go_on(job)}")
    if still := job.plan.strays.alive:
        job.plan.remark(f"{still} tasks did not stop at their timeout and are still at work in this process")


def _count(tally: Tallies, batch: Sequence[Done], shown: Bar, watch: Watch) -> None:
    for done in batch:
        item, root = done.item, done.root
        if not item.stored:
            runs = done.runs or _runs(done)
            tally.add_run(item.slot, root.trace_id, wall_ns(runs), done.error, done.open_spans, item.example.id)
            tally.add_calls(runs)
        tally.add_judgements(done.feedback[len(item.known) :])
        for outcome in newest(done.feedback):
            tally.add_feedback(outcome, done.item.example.id)
    shown.advance(len(batch), tally.failed)
    watch.moved()


def _runs(done: Done) -> Sequence[Run]:
    """Those of a trace to which feedback is attached: none of them is to be stored."""
    return done.case.trace.runs if done.case.trace is not None else ()


def _go_on(job: Job) -> str:
    return resuming(job.record.id) if job.kept else "evaluate(…, attach=True, resume=True)"


async def _interrupted(job: Job, writer: Writer, error: BaseException, waiting: str) -> None:
    """Keep what is done, and say how to go on."""
    unstored = await asyncio.to_thread(writer.close)
    if unstored is not None:
        say(_of_unstored(unstored, job))
    try:
        await asyncio.to_thread(_closed, job, "interrupted")
    except StoreError as problem:
        say(f"spanwise: the store could not note the interruption: {problem}")
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        while_waiting = f", while {waiting}" if waiting else ""
        say(f"spanwise: interrupted after {job.tally.runs} runs{while_waiting}; go on with {_go_on(job)}")


def _closed(job: Job, status: Any) -> Record:
    setup, now = {**(job.record.metadata.get("setup") or {}), **job.surroundings.result()}, time.time_ns()
    before = job.record  # which says how its runs came to an end, where these are only scored
    ended_ns = before.ended_ns or now
    totals = {**job.tally.totals(), "seconds": round((ended_ns - job.record.started_ns) / 1e9, 3)}
    record = replace(
        job.record,
        status=before.status if job.rescores else status,
        ended_ns=before.ended_ns if job.rescores else ended_ns,
        seen_ns=before.seen_ns if job.rescores else now,
        example_count=job.record.example_count or len(job.tally.traces) // max(1, job.plan.settings.repetitions),
        metadata={**job.record.metadata, "setup": setup, "totals": totals},
    )
    if job.kept:
        job.store.save_experiment(record)
    return record


def _of_unstored(unstored: Unstored, job: Job) -> str:
    told = f"spanwise: the store did not take {unstored.runs} runs ({unstored.why})."
    if not unstored.paths:
        return f"{told} Nor could a file be written: they are in memory alone, as the rows of what evaluate() returns"
    kept = " and ".join(map(str, unstored.paths))
    way = resuming(job.record.id) if job.kept else f"spanwise experiments deliver {kept}"
    return f"{told} They are kept in {kept}: {way} stores them without running anything again"


def _unwrapped(error: BaseException) -> BaseException:
    """A single error out of the group that a task group makes of it."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
