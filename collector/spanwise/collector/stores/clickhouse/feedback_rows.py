"""Rows of feedback: encoding of feedback as columns, and decoding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from spanwise.collector.records import Feedback, Outcome, Source, Target, restore_feedback
from spanwise.collector.stores.table_rows import INT_MAX, clean, dumps, loads


class FeedbackRow(NamedTuple):
    """Columns of `feedback` with content. Texts of the key are empty where the feedback has None."""

    id: str
    trace_id: str
    span_id: str | None
    document: int | None
    session_id: str
    experiment_id: str
    project: str | None
    key: str
    score: float | None
    is_bool: bool
    label: str | None
    comment: str | None
    outcome: Outcome
    error: str | None
    source: Source
    author: str | None
    evaluator: str | None
    version: str | None
    rule: str
    claim: int | None
    judge_trace_id: str | None
    metadata: str
    created_ns: int


FEEDBACK_COLUMNS = ", ".join(FeedbackRow._fields)
# Columns that remain in the marker of a deletion: the key, and what tells whether the deletion is a change in the feed
_KEPT = ("id", "trace_id", "session_id", "experiment_id", "key", "outcome", "source", "rule", "claim")


def encode_feedback(feedback: Feedback) -> FeedbackRow:
    """Return the row of feedback."""
    target = feedback.target
    row = FeedbackRow(
        id=feedback.id,
        trace_id=target.trace_id or "",
        span_id=target.span_id,
        document=target.document,
        session_id=target.session_id or "",
        experiment_id=target.experiment_id or "",
        project=target.project,
        key=feedback.key,
        score=None if feedback.score is None else float(feedback.score),
        is_bool=isinstance(feedback.score, bool),
        label=feedback.label,
        comment=feedback.comment,
        outcome=feedback.outcome,
        error=feedback.error,
        source=feedback.source,
        author=feedback.author,
        evaluator=feedback.evaluator,
        version=feedback.version,
        rule=feedback.rule or "",
        claim=None if feedback.claim is None else max(0, min(feedback.claim, INT_MAX)),
        judge_trace_id=feedback.judge_trace_id,
        metadata=dumps(feedback.metadata) if feedback.metadata else "",
        created_ns=feedback.created_ns,
    )
    return FeedbackRow._make(clean(value) if isinstance(value, str) and not value.isascii() else value for value in row)


def make_feedback_columns(
    rows: Sequence[FeedbackRow], floor: int, deleted: Iterable[FeedbackRow] = ()
) -> dict[str, Sequence[Any]]:
    """Return the columns for inserting rows, and markers of deleted rows."""
    markers = [FeedbackRow(**{name: getattr(row, name) for name in _KEPT}, **_EMPTY) for row in deleted]
    every = [*rows, *markers]
    columns = dict(zip(FeedbackRow._fields, zip(*every, strict=True), strict=True))
    return {**columns, "is_deleted": [0] * len(rows) + [1] * len(markers), "floor": [floor] * len(every)}


_EMPTY: Mapping[str, Any] = {
    **{name: None for name in FeedbackRow._fields if name not in _KEPT},
    "is_bool": False,
    "metadata": "",
    "created_ns": 0,
}


def decode_row(row: Sequence[Any]) -> FeedbackRow:
    """Return a row of `FEEDBACK_COLUMNS` with named fields."""
    return FeedbackRow(*row[: len(FeedbackRow._fields)])


def decode_feedback(row: Sequence[Any]) -> Feedback:
    """Return the feedback of a row that begins with `FEEDBACK_COLUMNS`."""
    of = decode_row(row)
    target = Target(
        trace_id=of.trace_id or None,
        span_id=of.span_id,
        document=of.document,
        session_id=of.session_id or None,
        experiment_id=of.experiment_id or None,
        project=of.project,
    )
    return restore_feedback(
        target,
        of.id,
        of.key,
        bool(of.score) if of.is_bool and of.score is not None else of.score,
        of.label,
        of.comment,
        of.outcome,
        of.error,
        of.source,
        of.author,
        of.evaluator,
        of.version,
        of.rule or None,
        of.claim,
        of.judge_trace_id,
        loads(of.metadata) if of.metadata else {},
        of.created_ns,
    )
