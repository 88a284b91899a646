"""Sort order of lists: names of columns, validation, and cursors that belong to one order and filter.

A sort order is the name of a column, with `-` before it for descending order: `latency_ms`, `-cost`,
`-feedback.groundedness`. `errors` lists items with the most failed runs first.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter, filter_to_dict

TRACE_COLUMNS = ("start", "latency_ms", "time_to_first_token_ms", "cost", "tokens", "errors", "runs")
SESSION_COLUMNS = ("start", "duration_ms", "traces", "errors", "tokens", "cost")
DATASET_COLUMNS = ("created", "version", "examples")
EXPERIMENT_COLUMNS = ("start", "duration_ms", "examples")
FEEDBACK_PREFIX = "feedback."
MAX_KEY_CHARACTERS = 1_000  # longest feedback key of a sort order


class SortOrder(NamedTuple):
    """Column to sort by. For feedback, `column` is "feedback" and `key` the feedback key."""

    column: str
    is_descending: bool
    key: str = ""

    @property
    def sql(self) -> str:
        """Return the direction as SQL."""
        return "DESC" if self.is_descending else "ASC"


def parse_sort(text: str, columns: Sequence[str], *, feedback: bool = False) -> SortOrder:
    """Return the sort order that a text such as `-latency_ms` names. Raises `Refused` for any other text."""
    name = text.removeprefix("-")
    if name in columns:
        return SortOrder(name, text != name)
    if feedback and name.startswith(FEEDBACK_PREFIX) and len(FEEDBACK_PREFIX) < len(name) <= MAX_KEY_CHARACTERS:
        return SortOrder("feedback", text != name, name.removeprefix(FEEDBACK_PREFIX))
    expected = ", ".join((*columns, *(["feedback.KEY"] if feedback else ())))
    shown = text if len(text) <= 100 else f"{text[:99]}…"
    raise Refused(f"cannot sort by {shown!r}; expected one of: {expected}; a `-` before it sorts in descending order")


def fingerprint(sort: str, filter: Filter) -> str:
    """Return a short text that differs between sort orders and filters.

    The time range does not count, because `since=1h` is another time in each request. Neither do the experiments of a
    dataset, which may become more.
    """
    conditions = filter_to_dict(replace(filter, since_ns=None, until_ns=None, experiments=None))
    return hashlib.sha256(json.dumps([sort, conditions]).encode()).hexdigest()[:12]


def make_cursor(mark: str, position: Sequence[Any]) -> str:
    """Return a cursor: the fingerprint of the list, and a position in it as JSON values."""
    return f"{mark}.{base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip('=')}"


def read_cursor(cursor: str, mark: str, kinds: Sequence[Any]) -> list[Any]:
    """Return the position in a cursor, whose values must be of these types.

    Raises `Refused` for a cursor of another list, and for anything that is no cursor.
    """
    found, _, data = cursor.partition(".")
    if found != mark:
        shown = cursor if len(cursor) <= 100 else f"{cursor[:99]}…"
        raise Refused(f"the cursor {shown!r} is not of this filter and sort order; begin again without a cursor")
    try:
        position = json.loads(base64.urlsafe_b64decode(data + "=" * (-len(data) % 4)))
        # beyond these bounds SQLite raises an error
        in_range = all(abs(value) < 2**63 for value in position if isinstance(value, int))
    except (ValueError, TypeError, RecursionError):
        position, in_range = None, False
    if not (isinstance(position, list) and in_range and len(position) == len(kinds)) or not all(
        map(isinstance, position, kinds)
    ):
        raise Refused(f"invalid cursor {cursor[:100]!r}; use `next` of the previous page")
    return position
