"""What agents may change where they are let: feedback, marked as a model's."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from spanwise.cli.mcp import shown
from spanwise.cli.mcp.reading import TraceId, trace_of
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.records import Feedback, Target
from spanwise.collector.stores import Store

Key = Annotated[str, Field(min_length=1, max_length=200, description="What it is about: correctness, root_cause, …")]
Score = Annotated[bool | float | None, Field(description="A finite number, true or false; or give a label.")]
Label = Annotated[str | None, Field(max_length=200, description="A word instead of a score.")]
Comment = Annotated[str | None, Field(max_length=10_000, description="Why.")]
OnSpan = Annotated[str | None, Field(description="Only this span of the trace.")]
AUTHOR = "mcp"


def add_feedback(
    store: Store,
    trace_id: TraceId,
    key: Key,
    score: Score = None,
    label: Label = None,
    comment: Comment = None,
    span_id: OnSpan = None,
) -> dict[str, Any]:
    """Say something of a trace or one of its spans; the next word under the same key replaces it.

    It is kept with source "model" and author "mcp": it counts as no person's vote.
    """
    if score is None and not label:
        raise Refused("give a score or a label")
    trace = trace_of(store, trace_id)
    span = None if span_id is None else span_id.lower()
    if span is not None and all(run.span_id != span for run in trace.runs):
        raise NotFound(f"the trace has no span {span_id!r}")
    target = Target(trace_id=trace.trace_id, span_id=span)
    said = Feedback(target=target, key=key, score=score, label=label, comment=comment, source="model", author=AUTHOR)
    store.add_feedback([said])
    return shown.answer(kept=shown.feedback(said))
