"""The runs of a trace as rows of a waterfall: depth-first, each with its place on the trace's clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from assay.collector.records import Run, Trace

SHOWN = 2_000  # rows on a page


@dataclass(frozen=True, slots=True)
class Row:
    """One run in the tree. `left` and `width` are percent of the trace's length."""

    run: Run
    depth: int
    left: float
    width: float
    feedback: int
    failed: int
    lost_parent: bool


def span_of(runs: Sequence[Run]) -> tuple[int, int]:
    """When the first of the runs starts and the last ends; two equal moments for runs without times."""
    start = min((run.start_ns for run in runs), default=0)
    return start, max((max(run.end_ns, run.start_ns) for run in runs), default=start)


def rows(trace: Trace) -> list[Row]:
    """All runs, children below their parents by start time. A run whose parent is not there stands as a root."""
    start, end = span_of(trace.runs)
    length = max(1, end - start)
    marks = _feedback_by_run(trace)
    known = {run.span_id for run in trace.runs}
    return [
        Row(
            run,
            depth,
            round(100 * (run.start_ns - start) / length, 2),
            round(100 * run.duration_ns / length, 2),
            *marks.get(run.span_id, (0, 0)),
            lost_parent=run.parent_id is not None and run.parent_id not in known,
        )
        for run, depth in _walk(trace.runs)
    ]


def _feedback_by_run(trace: Trace) -> dict[str, tuple[int, int]]:
    marks: dict[str, tuple[int, int]] = {}
    for item in trace.feedback:
        if item.target.span_id:
            n, failed = marks.get(item.target.span_id, (0, 0))
            marks[item.target.span_id] = n + 1, failed + (item.outcome == "error")
    return marks


def _walk(runs: Sequence[Run]) -> Iterator[tuple[Run, int]]:
    """Depth-first without recursion, each run once: parents that form a ring do not hide their runs."""
    known = {run.span_id for run in runs}
    children: dict[str | None, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: (run.start_ns, run.end_ns), reverse=True):
        children[run.parent_id if run.parent_id in known else None].append(run)
    seen: set[str] = set()
    for start in (children[None], sorted(runs, key=lambda run: run.start_ns, reverse=True)):
        stack = [(run, 0) for run in start if run.span_id not in seen]
        while stack:
            run, depth = stack.pop()
            if run.span_id in seen:
                continue
            seen.add(run.span_id)
            yield run, depth
            stack += [(child, depth + 1) for child in children[run.span_id]]
