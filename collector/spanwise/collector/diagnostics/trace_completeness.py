"""Explanation of what is missing from a trace: dropped spans, open runs, unanswered calls."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from spanwise.collector import formatting
from spanwise.collector.records import OpenRun, Run, Trace
from spanwise.tracer import attribute_names as names

MAX_NAMED_RUNS = 5  # open runs by name
OPEN_SPANS_TEXT = "Some spans are still open, or have not arrived"
_LONG_NS = 60 * 10**9  # after which a run that is open may as well have died


def find_gaps(trace: Trace) -> list[str]:
    """Why a trace is not whole, or what it may lack though it counts as complete. Nothing where nothing is missing."""
    told = describe_known_gaps(trace.dropped, trace.running)
    answered = min(trace.calls_sent, sum(map(_is_answer, trace.runs)))
    if answered < trace.calls_sent:
        told.append(
            f"{_count_calls(trace.calls_sent)} sent out, {answered or 'none'} of them answered by a traced process"
        )
    if any(names.PARTIAL in run.attributes for run in trace.runs):
        told.append("Kept for its error though it was not sampled: of other processes only what failed is here")
    if not trace.complete and not told:
        told.append(OPEN_SPANS_TEXT)
    return told


def describe_known_gaps(dropped_: int, running: Sequence[OpenRun], *, complete: bool = True) -> list[str]:
    """The same as far as it can be told without the runs, of which there may be too many to read."""
    told = [describe_dropped(dropped_)] if dropped_ else []
    told += describe_open_runs(running)
    return told if told or complete else [OPEN_SPANS_TEXT]


def describe_dropped(count: int) -> str:
    """How many spans will never come."""
    return f"{count:,} span was dropped by the sender" if count == 1 else f"{count:,} spans were dropped by the sender"


def describe_open_runs(runs: Sequence[OpenRun]) -> Iterator[str]:
    """Since when runs are open, those that began first by name."""
    for run in sorted(runs, key=lambda run: run.start_ns)[:MAX_NAMED_RUNS]:
        died = ", unless its process has died" if time.time_ns() - run.start_ns > _LONG_NS else ""
        yield f"{run.name or '(no name)'} is running {describe_start(run)}{died}"
    if len(runs) > MAX_NAMED_RUNS:
        yield f"{len(runs) - MAX_NAMED_RUNS:,} more are running"


def describe_start(run: OpenRun) -> str:
    """Since when a run is open."""
    return f"since {formatting.when(run.start_ns)} ({formatting.ago(run.start_ns)})"


def _count_calls(count: int) -> str:
    return "1 call was" if count == 1 else f"{count:,} calls were"


def _is_answer(run: Run) -> bool:
    """Whether a run is where a process took over from another."""
    return run.parent_id is not None and run.attributes.get(names.LOCAL_ROOT) == run.span_id
