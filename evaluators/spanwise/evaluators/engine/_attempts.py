"""Attempts that failed before the one that counts: kept in its trace, with what they cost, as runs below its root."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from spanwise.collector.records import Run
from spanwise.tracer import attributes as names


def marked(runs: Sequence[Run], root: Run, number: int) -> tuple[tuple[Run, ...], Run]:
    """The runs of an attempt and their root, which says the how manieth it is, from 1."""
    root_ = replace(root, attributes={**root.attributes, names.ATTEMPT: number})
    return tuple(root_ if run is root else run for run in runs), root_


def as_attempt(runs: Sequence[Run], root: Run, number: int, below: Run) -> Iterator[Run]:
    """The runs of an attempt that failed, in the trace of the one that counts and `below` its root.

    They belong to no example of the experiment: one run is counted, and evaluators see none of them (`case_of`).
    """
    marked_runs, own = marked(runs, root, number)
    for run in marked_runs:
        parent = below.span_id if run is own else run.parent_id
        yield replace(run, trace_id=below.trace_id, parent_id=parent, experiment_id=None, example_id=None, repetition=0)
