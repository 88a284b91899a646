"""Runs and feedback in lots of a request's size, so cut that no crash in between parts what belongs together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from spanwise.collector.records import Feedback, Run

Lot: TypeAlias = tuple[Sequence[Run], Sequence[Feedback]]


def lots(runs: Sequence[Run], feedback: Sequence[Feedback], size: int) -> Iterator[Lot]:
    """Runs and feedback, about `size` of both at once, by whole traces; nothing for nothing.

    Of a trace with more the root comes last, together with the feedback: what its root does not show was never there.
    """
    if len(runs) + len(feedback) <= size:
        if runs or feedback:
            yield runs, feedback
        return
    some_runs: list[Run] = []
    some_feedback: list[Feedback] = []
    for more_runs, more_feedback in _traces(runs, feedback):
        held = len(some_runs) + len(some_feedback)
        if held and held + len(more_runs) + len(more_feedback) > size:
            yield some_runs, some_feedback
            some_runs, some_feedback = [], []
        while len(more_runs) > size:
            yield more_runs[:size], ()
            more_runs = more_runs[size:]
        some_runs += more_runs
        some_feedback += more_feedback
    yield some_runs, some_feedback


def halves(runs: Sequence[Run], feedback: Sequence[Feedback]) -> Iterator[Lot]:
    """A lot in two, by whole traces; of a single trace the root comes last, with the feedback; what cannot be parted
    comes as it is.
    """
    traces = list(_traces(runs, feedback))
    if len(traces) > 1:
        for some in (traces[: len(traces) // 2], traces[len(traces) // 2 :]):
            yield [run for part, _ in some for run in part], [row for _, part in some for row in part]
        return
    (ordered, rows), middle = traces[0], len(runs) // 2
    if middle:
        yield ordered[:middle], ()
        yield ordered[middle:], rows
    elif ordered and rows:  # which may be there before what it is said of
        yield (), rows
        yield ordered, ()
    elif len(rows) > 1:
        yield (), rows[: len(rows) // 2]
        yield (), rows[len(rows) // 2 :]
    else:
        yield ordered, rows


def _traces(runs: Sequence[Run], feedback: Sequence[Feedback]) -> Iterator[tuple[list[Run], list[Feedback]]]:
    """What belongs to one trace (or to none), in the order of arrival, with its root last."""
    by_trace: dict[str | None, tuple[list[Run], list[Feedback]]] = {}
    for run in sorted(runs, key=lambda run: run.parent_id is None):
        by_trace.setdefault(run.trace_id, ([], []))[0].append(run)
    for outcome in feedback:
        by_trace.setdefault(outcome.target.trace_id, ([], []))[1].append(outcome)
    return iter(by_trace.values())
