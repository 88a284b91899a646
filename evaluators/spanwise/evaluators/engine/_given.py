"""Runs that are there already: stored traces, and answers that examples bring along."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace

from spanwise.collector.records import Link, Run, Target, Trace
from spanwise.evaluators.engine._examples import kept
from spanwise.evaluators.engine._plan import Done, Item, Plan
from spanwise.evaluators.scoring import case_of


def given(plan: Plan, item: Item) -> Done:
    """A run that needs no task: a trace of this experiment, or one to which feedback is attached where it is, a copy of
    another trace, or one around given outputs.
    """
    if item.trace is None:
        trace = _around_outputs(plan, item)
    else:
        trace = item.trace if item.stored or plan.settings.attach else _adopted(plan, item, item.trace)
    runs = () if trace is item.trace else trace.runs
    case = case_of(trace, item.example, plan.kind)
    return Done(item, case, Target(trace_id=trace.trace_id), runs, list(item.known))


def _around_outputs(plan: Plan, item: Item) -> Trace:
    """A trace around what an example brings along, so that feedback has something to hang on."""
    now = time.time_ns()
    trace_id = _trace_id(plan, item)
    run = Run(
        trace_id=trace_id,
        span_id=trace_id[:16],
        name=plan.name,
        start_ns=now,
        end_ns=now,
        status="ok",
        inputs=item.example.inputs,
        outputs=item.example.outputs,
        documents=item.example.documents or (),
        experiment_id=plan.experiment_id,
        example_id=item.example.id,
        repetition=item.repetition,
    )
    if plan.keep_examples:
        run = replace(run, attributes=kept(item.example, run, run.inputs))
    return Trace(run, (run,), complete=True)


def _adopted(plan: Plan, item: Item, trace: Trace) -> Trace:
    """A copy of a stored trace that belongs to the experiment; its root is linked to the original."""
    trace_id = _trace_id(plan, item)
    runs = {run.span_id: replace(run, trace_id=trace_id, experiment_id=None) for run in trace.runs}
    root = replace(
        runs[trace.root.span_id],
        links=(*trace.root.links, Link(trace.trace_id, trace.root.span_id)),
        experiment_id=plan.experiment_id,
        example_id=item.example.id,
        repetition=item.repetition,
    )
    runs[root.span_id] = root
    return Trace(root, tuple(runs.values()), complete=trace.complete)


def _trace_id(plan: Plan, item: Item) -> str:
    """The same for the same run of an experiment, so that storing it twice stores it once."""
    text = f"{plan.experiment_id}|{item.example.id}|{item.repetition}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]
