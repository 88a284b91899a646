"""Explanation of missing parts of a trace: dropped spans, open runs, unanswered calls."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from spanwise.collector import formatting
from spanwise.collector.records import OpenRun, Trace
from spanwise.tracer import attribute_names as names

MAX_NAMED_RUNS = 5  # maximum number of open runs that are listed by name
OPEN_SPANS_TEXT = "Some spans are still open, or have not arrived"
_LONG_NS = 60 * 10**9  # if a run is open for this long, its process may have died


def find_gaps(trace: Trace) -> list[str]:
    """Return the reasons why a trace is incomplete; [] if there are none.

    They include signs of missing parts in a trace that counts as complete.
    """
    reasons = describe_known_gaps(trace.dropped, trace.running)
    # A run answers an outgoing call if it is the first run in its process and has a parent, which is then in another
    # process.
    answers = sum(
        run.parent_id is not None and run.attributes.get(names.LOCAL_ROOT) == run.span_id for run in trace.runs
    )
    answered = min(trace.calls_sent, answers)
    if answered < trace.calls_sent:
        calls = "1 call was" if trace.calls_sent == 1 else f"{trace.calls_sent:,} calls were"
        reasons.append(f"{calls} sent to other services, {answered or 'none'} of them answered by a traced process")
    if any(names.PARTIAL in run.attributes for run in trace.runs):
        reasons.append(
            "Not sampled, and kept only because of its error: of other processes, only failed spans are stored"
        )
    if not trace.complete and not reasons:
        reasons.append(OPEN_SPANS_TEXT)
    return reasons


def describe_known_gaps(dropped: int, running: Sequence[OpenRun], *, complete: bool = True) -> list[str]:
    """Return the reasons that are known without the runs, for traces that have too many runs to read."""
    reasons = [describe_dropped(dropped)] if dropped else []
    reasons += describe_open_runs(running)
    return reasons if reasons or complete else [OPEN_SPANS_TEXT]


def describe_dropped(count: int) -> str:
    """Format the number of spans that were dropped."""
    return f"{count:,} span was dropped by the sender" if count == 1 else f"{count:,} spans were dropped by the sender"


def describe_open_runs(runs: Sequence[OpenRun]) -> Iterator[str]:
    """Yield a sentence per open run with its start. Only the oldest runs are named; the others are counted."""
    for run in sorted(runs, key=lambda run: run.start_ns)[:MAX_NAMED_RUNS]:
        died = ", unless its process has died" if time.time_ns() - run.start_ns > _LONG_NS else ""
        yield f"{run.name or '(no name)'} is running {describe_start(run)}{died}"
    if len(runs) > MAX_NAMED_RUNS:
        yield f"{len(runs) - MAX_NAMED_RUNS:,} more are running"


def describe_start(run: OpenRun) -> str:
    """Format the start of an open run."""
    return f"since {formatting.when(run.start_ns)} ({formatting.ago(run.start_ns)})"
