"""The runs of a trace as rows of a waterfall: depth-first, each with its place on the trace's clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spanwise.collector.records import Branch, Run, Trace
from spanwise.collector.stores import Line, branch, in_order

WHOLE = 1_000  # runs of a trace that is shown in one piece
SHOWN = 500  # rows at a time of one that has more


@dataclass(frozen=True, slots=True)
class Row:
    """One run in the tree. `left` and `width` are percent of the trace's length."""

    run: Branch
    left: float
    width: float


def span_of(runs: Sequence[Run]) -> tuple[int, int]:
    """When the first of the runs starts and the last ends; two equal moments for runs without times."""
    start = min((run.start_ns for run in runs), default=0)
    return start, max((max(run.end_ns, run.start_ns) for run in runs), default=start)


def rows(trace: Trace) -> list[Row]:
    """All runs, children below their parents by start time. A run whose parent is not there stands as a root."""
    marks, known = _feedback_by_run(trace), {run.span_id for run in trace.runs}
    lines = [Line(*(getattr(run, name) for name in Line._fields)) for run in trace.runs]
    branches = (
        branch(position, depth, line, known, *marks.get(line.span_id, (0, 0)))
        for position, (depth, line) in enumerate(in_order(lines))
    )
    return on_clock(branches, *span_of(trace.runs))


def on_clock(branches: Iterable[Branch], start_ns: int, end_ns: int) -> list[Row]:
    """Runs as rows, of a trace between two moments."""
    length = max(1, end_ns - start_ns)
    return [
        Row(run, round(100 * (run.start_ns - start_ns) / length, 2), round(100 * run.duration_ns / length, 2))
        for run in branches
    ]


def _feedback_by_run(trace: Trace) -> dict[str, tuple[int, int]]:
    marks: dict[str, tuple[int, int]] = {}
    for item in trace.feedback:
        if item.target.span_id:
            n, failed = marks.get(item.target.span_id, (0, 0))
            marks[item.target.span_id] = n + 1, failed + (item.outcome == "error")
    return marks
