"""Limits and cursors of the pages of the change feed, in all backends."""

from __future__ import annotations

from collections.abc import Sequence

from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter, validate_rule_filter

MAX_HEADS = 10_000  # maximum number of heads in a page
MAX_FILTERS = 500  # maximum number of filters in a call


def validate_filters(filters: Sequence[Filter]) -> list[Filter]:
    """Return the filters of a call. Raise `Refused` for too many or invalid filters."""
    if len(filters) > MAX_FILTERS:
        raise Refused(f"at most {MAX_FILTERS} filters can be evaluated at once, got {len(filters)}; use several calls")
    return [validate_rule_filter(filter) for filter in filters]


def parse_change_number(cursor: str) -> int:
    """Return the change number of a cursor; -1 if the text is not a change number."""
    return int(cursor) if cursor.isascii() and cursor.isdigit() and len(cursor) < 20 else -1


def refuse_change(cursor: str | None) -> Refused:
    """Return the error for a cursor that the store did not issue."""
    return Refused(
        f"cursor {cursor!r} is no position in this store's feed; use the `cursor` of an earlier page, or none"
    )
