"""Clock skew correction: replaces impossible timestamps of incoming spans and feedback.

What has such a time is stored with a possible one, and with the time that was sent as `spanwise.sent.<field>`. A time
ahead is moved back by whole hours, into the last 60 minutes, so that it leads no list and stretches no chart: a clock
in a wrong time zone is right then, and spans that came together keep their order and duration.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import NamedTuple

from spanwise.collector.records import JSON, Feedback, OpenRun, Run

HOUR_NS, DAY_NS = 3_600_000_000_000, 86_400_000_000_000
MAX_CLOCK_SKEW_NS = 300_000_000_000  # that a clock may be ahead
INT_MAX = 2**63 - 1
SENT_PREFIX = "spanwise.sent."


class CorrectedTimes(NamedTuple):
    """From when to when, as it is kept, and what was sent of it where that is something else."""

    start_ns: int
    end_ns: int
    sent: dict[str, JSON]


def correct_span_times(start_ns: int, end_ns: int) -> CorrectedTimes | None:
    """A beginning and an end that can be; None if they can be as they are."""
    now = time.time_ns()
    latest = now + MAX_CLOCK_SKEW_NS
    if 0 <= start_ns <= latest and 0 <= end_ns <= latest:
        return None
    by = _excess_ns(start_ns, now)
    start = max(0, start_ns - by)
    end = max(0, end_ns - by)
    end = max(start, now) if end > latest else end
    sent = {"start_ns": (start_ns, start), "end_ns": (end_ns, end)}
    return CorrectedTimes(start, end, {SENT_PREFIX + name: was for name, (was, kept) in sent.items() if was != kept})


def correct_time(time_ns: int) -> int:
    """A moment that can be."""
    return max(0, time_ns - _excess_ns(time_ns, time.time_ns()))


def _excess_ns(time_ns: int, now_ns: int) -> int:
    """Return by how much a moment is moved back: by whole hours, or not at all."""
    return 0 if time_ns <= now_ns + MAX_CLOCK_SKEW_NS else -((now_ns - time_ns) // HOUR_NS) * HOUR_NS


def correct_run_times(run: Run) -> Run:
    """A run whose times can be; the same if they can."""
    found = correct_span_times(run.start_ns, run.end_ns)
    if found is None:
        return run
    return replace(run, start_ns=found.start_ns, end_ns=found.end_ns, attributes={**run.attributes, **found.sent})


def correct_feedback_time(feedback: Feedback) -> Feedback:
    """Feedback whose time can be, so that a later word can take its place; the same if it can."""
    kept = correct_time(feedback.created_ns)
    if kept == feedback.created_ns:
        return feedback
    sent = {SENT_PREFIX + "created_ns": feedback.created_ns}
    return replace(feedback, created_ns=kept, metadata={**feedback.metadata, **sent})


def correct_open_run_time(run: OpenRun) -> OpenRun:
    """An open run whose time can be; the same if it can."""
    kept = correct_time(run.start_ns)
    return run if kept == run.start_ns else replace(run, start_ns=kept)
