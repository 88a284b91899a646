"""Feedback that a task attached to its own run while it ran."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from spanwise.collector.dialects import Also, RawLog, read_feedback
from spanwise.collector.records import Feedback, Run
from spanwise.tracer.capture import Captured, FeedbackEvent


def feedback_of(captured: Captured, around: Run, root: Run) -> list[Feedback]:
    """The records of what `current_run().feedback(…)` was given: the same as after a way through OTLP.

    What is said of the span `around` the task is said of the root that took its place. What is no feedback, such as one
    without a score, is left out: telemetry never breaks the task that made it.
    """
    events = captured.feedback
    if not events:
        return []
    records = [_feedback(event, {around.span_id: root.span_id}) for event in events]
    return [record for record in records if record is not None]


def feedback_beside(also: Iterable[Also], around: Run, root: Run) -> list[Feedback]:
    """The feedback that the spans of a run say beside it: annotations, evaluation results of other libraries."""
    found = [one for one in also if isinstance(one, Feedback)]
    return [_moved(one, around, root) if one.target.span_id == around.span_id else one for one in found]


def _moved(feedback: Feedback, around: Run, root: Run) -> Feedback:
    return replace(feedback, target=replace(feedback.target, span_id=root.span_id), id="")


def _feedback(event: FeedbackEvent, moved: dict[str, str]) -> Feedback | None:
    span_id = f"{event.span_id:016x}"
    log = RawLog(
        trace_id=f"{event.trace_id:032x}",
        span_id=moved.get(span_id, span_id),
        time_ns=event.time_ns,
        attributes=event.attributes,
    )
    try:
        return read_feedback(log)
    except ValueError:
        return None
