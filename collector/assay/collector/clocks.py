"""Times that cannot be: senders' clocks that are wrong by more than a day ahead, or by centuries.

What bears such a time is kept with one that can be, and beside it what was sent, under `assay.sent.<field>`. A time
ahead is taken back by whole days, to one of the last 24 hours: what came together stays in its order and lasts as long
as it did, and the same again is the same.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import NamedTuple

from assay.collector.records import JSON, Feedback, OpenRun, Run

DAY_NS = 86_400_000_000_000  # so far ahead a clock may be
INT_MAX = 2**63 - 1
SENT = "assay.sent."


class Span(NamedTuple):
    """From when to when, as it is kept, and what was sent of it where that is something else."""

    start_ns: int
    end_ns: int
    sent: dict[str, JSON]


def bounded_span(start_ns: int, end_ns: int) -> Span | None:
    """A beginning and an end that can be; None if they can be as they are."""
    now = time.time_ns()
    latest = now + DAY_NS
    if 0 <= start_ns <= latest and 0 <= end_ns <= latest:
        return None
    by = _ahead(start_ns, now)
    start = max(0, start_ns - by)
    end = max(0, end_ns - by)
    end = max(start, now) if end > latest else end
    sent = {"start_ns": (start_ns, start), "end_ns": (end_ns, end)}
    return Span(start, end, {SENT + name: was for name, (was, kept) in sent.items() if was != kept})


def bounded_time(time_ns: int) -> int:
    """A moment that can be."""
    return max(0, time_ns - _ahead(time_ns, time.time_ns()))


def _ahead(time_ns: int, now_ns: int) -> int:
    """By how much a moment is taken back: by whole days, or not at all."""
    return 0 if time_ns <= now_ns + DAY_NS else -((now_ns - time_ns) // DAY_NS) * DAY_NS


def bounded_run(run: Run) -> Run:
    """A run whose times can be; the same if they can."""
    found = bounded_span(run.start_ns, run.end_ns)
    if found is None:
        return run
    return replace(run, start_ns=found.start_ns, end_ns=found.end_ns, attributes={**run.attributes, **found.sent})


def bounded_feedback(feedback: Feedback) -> Feedback:
    """Feedback whose time can be, so that a later word can take its place; the same if it can."""
    kept = bounded_time(feedback.created_ns)
    if kept == feedback.created_ns:
        return feedback
    sent = {SENT + "created_ns": feedback.created_ns}
    return replace(feedback, created_ns=kept, metadata={**feedback.metadata, **sent})


def bounded_open(run: OpenRun) -> OpenRun:
    """An open run whose time can be; the same if it can."""
    kept = bounded_time(run.start_ns)
    return run if kept == run.start_ns else replace(run, start_ns=kept)
