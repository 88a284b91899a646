"""Feedback that a task attached to its own run while it ran."""

from __future__ import annotations

from assay.collector.dialects import RawLog, read_feedback
from assay.collector.records import Feedback
from assay.tracer.capture import FeedbackEvent


def feedback_of_run(event: FeedbackEvent) -> Feedback | None:
    """The record of what `current_run().feedback(…)` was given: the same as after a way through OTLP.

    None for what is no feedback, such as one without a score: telemetry never breaks the task that made it.
    """
    log = RawLog(
        trace_id=f"{event.trace_id:032x}",
        span_id=f"{event.span_id:016x}",
        time_ns=event.time_ns,
        attributes=event.attributes,
    )
    try:
        return read_feedback(log)
    except ValueError:
        return None
