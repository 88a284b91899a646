"""Rows of feedback: values of the key without NULL, columns for inserts, and markers of deletions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spanwise.collector.records import Feedback
from spanwise.collector.stores.queries import feedback_records
from spanwise.collector.stores.queries.feedback_records import FeedbackRow

FEEDBACK_COLUMNS = ", ".join(FeedbackRow._fields)
# Positions of columns that are empty where the feedback has None: those of the key, and those that are not nullable
_EMPTY_AS_NONE_PLACES = tuple(
    map(FeedbackRow._fields.index, ("trace_id", "session_id", "experiment_id", "rule", "metadata"))
)
# Columns that remain in the marker of a deletion: the key, and what tells whether the deletion is a change in the feed
_KEPT = ("id", "trace_id", "session_id", "experiment_id", "key", "outcome", "source", "rule", "claim")


def encode_feedback(feedback: Feedback) -> FeedbackRow:
    """Return the row of feedback."""
    row = feedback_records.encode_feedback(feedback)
    for place in _EMPTY_AS_NONE_PLACES:
        row[place] = row[place] or ""
    return FeedbackRow._make(row)


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
    values = list(row)
    for place in _EMPTY_AS_NONE_PLACES:
        values[place] = values[place] or None
    target = feedback_records.decode_target(values[1:7])
    return feedback_records.decode_feedback(values[0], target, values[7 : len(FeedbackRow._fields)])
