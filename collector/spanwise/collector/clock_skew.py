"""Clock skew correction: replaces impossible timestamps of incoming spans and feedback.

The store keeps the corrected time. The attribute `spanwise.sent.<field>` keeps the time that was sent. A time in the
future is moved back by whole hours into the last 60 minutes, so that it neither appears first in lists nor stretches
charts. This corrects a clock that is set to a wrong time zone. Spans that arrived together keep their order and
duration.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import NamedTuple

from spanwise.collector.records import JSON, Feedback, OpenRun, Run

HOUR_NS, DAY_NS = 3_600_000_000_000, 86_400_000_000_000
MAX_CLOCK_SKEW_NS = 300_000_000_000  # a sender's clock may be ahead of the server's by this much
INT_MAX = 2**63 - 1
SENT_PREFIX = "spanwise.sent."


class CorrectedTimes(NamedTuple):
    """Corrected start and end, and in `sent` the original values of those that changed."""

    start_ns: int
    end_ns: int
    sent: dict[str, JSON]


def correct_span_times(start_ns: int, end_ns: int) -> CorrectedTimes | None:
    """Return the corrected start and end of a span; None if both are plausible as they are."""
    now = time.time_ns()
    latest = now + MAX_CLOCK_SKEW_NS
    if 0 <= start_ns <= latest and 0 <= end_ns <= latest:
        return None
    excess = _excess_ns(start_ns, now)
    start = max(0, start_ns - excess)
    end = max(0, end_ns - excess)
    end = max(start, now) if end > latest else end
    sent = {"start_ns": (start_ns, start), "end_ns": (end_ns, end)}
    return CorrectedTimes(
        start, end, {SENT_PREFIX + name: was for name, (was, corrected) in sent.items() if was != corrected}
    )


def correct_time(time_ns: int) -> int:
    """Return the time, corrected if it is negative or in the future."""
    return max(0, time_ns - _excess_ns(time_ns, time.time_ns()))


def _excess_ns(time_ns: int, now_ns: int) -> int:
    """Return the nanoseconds to subtract from a future time: whole hours, or 0 if the time is plausible."""
    return 0 if time_ns <= now_ns + MAX_CLOCK_SKEW_NS else -((now_ns - time_ns) // HOUR_NS) * HOUR_NS


def correct_run_times(run: Run) -> Run:
    """Return the run with corrected times; the same object if they are plausible."""
    found = correct_span_times(run.start_ns, run.end_ns)
    if found is None:
        return run
    return replace(run, start_ns=found.start_ns, end_ns=found.end_ns, attributes={**run.attributes, **found.sent})


def correct_feedback_time(feedback: Feedback) -> Feedback:
    """Return the feedback with a corrected time; the same object if it is plausible.

    Feedback from the future would prevail over all later feedback on the same key.
    """
    corrected = correct_time(feedback.created_ns)
    if corrected == feedback.created_ns:
        return feedback
    sent = {SENT_PREFIX + "created_ns": feedback.created_ns}
    return replace(feedback, created_ns=corrected, metadata={**feedback.metadata, **sent})


def correct_open_run_time(run: OpenRun) -> OpenRun:
    """Return the open run with a corrected start; the same object if it is plausible."""
    corrected = correct_time(run.start_ns)
    return run if corrected == run.start_ns else replace(run, start_ns=corrected)
