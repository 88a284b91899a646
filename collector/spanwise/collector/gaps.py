"""What is missing of a trace, in sentences, alike on pages and in terminals."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from spanwise.collector import format
from spanwise.collector.records import OpenRun, Run, Trace
from spanwise.tracer import attributes as names

SHOWN = 5  # open runs by name
OPEN = "Some spans are still open, or have not arrived"
_LONG_NS = 60 * 10**9  # after which a run that is open may as well have died


def gaps(trace: Trace) -> list[str]:
    """Why a trace is not whole, or what it may lack though it counts as complete. Nothing where nothing is missing."""
    told = known(trace.dropped, trace.running)
    answered = min(trace.calls_sent, sum(map(_is_answer, trace.runs)))
    if answered < trace.calls_sent:
        told.append(f"{_calls(trace.calls_sent)} sent out, {answered or 'none'} of them answered by a traced process")
    if any(names.PARTIAL in run.attributes for run in trace.runs):
        told.append("Kept for its error though it was not sampled: of other processes only what failed is here")
    if not trace.complete and not told:
        told.append(OPEN)
    return told


def known(dropped_: int, running: Sequence[OpenRun], *, complete: bool = True) -> list[str]:
    """The same as far as it can be told without the runs, of which there may be too many to read."""
    told = [dropped(dropped_)] if dropped_ else []
    told += open_runs(running)
    return told if told or complete else [OPEN]


def dropped(count: int) -> str:
    """How many spans will never come."""
    return f"{count:,} span was dropped by the sender" if count == 1 else f"{count:,} spans were dropped by the sender"


def open_runs(runs: Sequence[OpenRun]) -> Iterator[str]:
    """Since when runs are open, those that began first by name."""
    for run in sorted(runs, key=lambda run: run.start_ns)[:SHOWN]:
        died = ", unless its process has died" if time.time_ns() - run.start_ns > _LONG_NS else ""
        yield f"{run.name or '(no name)'} is running {since(run)}{died}"
    if len(runs) > SHOWN:
        yield f"{len(runs) - SHOWN:,} more are running"


def since(run: OpenRun) -> str:
    """Since when a run is open."""
    return f"since {format.when(run.start_ns)} ({format.ago(run.start_ns)})"


def _calls(count: int) -> str:
    return "1 call was" if count == 1 else f"{count:,} calls were"


def _is_answer(run: Run) -> bool:
    """Whether a run is where a process took over from another."""
    return run.parent_id is not None and run.attributes.get(names.LOCAL_ROOT) == run.span_id
