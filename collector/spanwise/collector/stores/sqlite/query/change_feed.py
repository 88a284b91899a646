"""Change feed: heads of traces in the order of their last change, and of those of a past period."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.filters import Filter, validate_rule_filter
from spanwise.collector.records import ChangePage, ConditionResult, TraceHead
from spanwise.collector.stores.sqlite.database.bulk_statements import parse_cursor
from spanwise.collector.stores.sqlite.database.connections import Reader
from spanwise.collector.stores.sqlite.query.trace_values import FilterReader

MAX_HEADS = 10_000  # maximum number of heads in a page
MAX_FILTERS = 500  # maximum number of filters in a call

# Reading a column costs as much as finding the row, so all flags share one integer column
_FLAGS_SQL = (
    "coalesce(t.complete, 2) | (t.rooted << 2) | (t.partial << 3) | (t.judgement << 4) | ((t.dropped > 0) << 5)"
)
_HEAD_COLUMNS = (
    *("t.trace_id", "t.change", "t.runs_change", "t.changed_ns", "t.start_ns", _FLAGS_SQL, "t.size", "t.span_count"),
    *("t.probability", "t.project", "t.environment", "t.experiment_id", "t.session_id", "t.id"),
)
# Maps `_FLAGS_SQL` to: settled, whole, rooted, partial, judgement
_FLAGS_BY_CODE = [
    ((False, True, None, None)[code & 3], not code & 32, bool(code & 4), bool(code & 8), bool(code & 16))
    for code in range(64)
]
_FROM_FEED = "FROM traces t INDEXED BY traces_by_change WHERE t.change > ?"
_FROM_PERIOD = (
    "FROM traces t INDEXED BY traces_shown_by_project WHERE (t.kind <> 'evaluator' OR t.experiment_id IS NOT NULL)"
    " AND t.project = ? AND t.start_ns >= ? AND t.start_ns <= ? AND (t.start_ns < ? OR t.id < ?)"
    " AND t.change IS NOT NULL AND t.span_count > 0 ORDER BY t.start_ns DESC, t.id DESC LIMIT ?"
)
_FROM_TRACE = "FROM traces t WHERE t.trace_id = ? AND t.span_count > 0"


def read_changes(reader: Reader, after: str | None, limit: int, filters: Sequence[Filter], now_ns: int) -> ChangePage:
    """Return the heads of the traces that changed after `after`, with the result of each filter.

    Raise `Refused` for an invalid cursor or invalid filters.
    """
    begin = parse_change(reader.db, after)
    heads = _read_heads(
        reader, filters, f"{_FROM_FEED} ORDER BY t.change LIMIT ?", (begin, max(0, min(limit, MAX_HEADS)))
    )
    return ChangePage(heads=heads, cursor=heads[-1].cursor if heads else str(begin), now_ns=now_ns)


def read_period(
    reader: Reader,
    project: str,
    since_ns: int,
    until_ns: int,
    after: str | None,
    limit: int,
    filters: Sequence[Filter],
    now_ns: int,
) -> ChangePage:
    """Return the heads of the traces of a project that started in [`since_ns`, `until_ns`), latest first.

    Their cursors are positions in this list. Raise `Refused` for an invalid cursor or invalid filters.
    """
    start_ns, number = (until_ns, 0) if after is None else parse_cursor(after)
    values = (project, since_ns, start_ns, start_ns, number, max(0, min(limit, MAX_HEADS)))
    found = _read_heads(reader, filters, _FROM_PERIOD, values)
    heads = tuple(replace(head, cursor=f"{head.start_ns}.{head.number}") for head in found)
    return ChangePage(heads=heads, cursor=heads[-1].cursor if heads else f"{start_ns}.{number}", now_ns=now_ns)


def read_head(reader: Reader, trace_id: str, filters: Sequence[Filter]) -> TraceHead:
    """Return the head of one trace. Raise `NotFound` if the store has no runs of it."""
    heads = _read_heads(reader, filters, _FROM_TRACE, (trace_id,))
    if not heads:
        raise NotFound(f"there is no trace {trace_id!r} in this store")
    return heads[0]


def explain_filter(reader: Reader, trace_id: str, filter: Filter) -> list[ConditionResult]:
    """Return the result of each condition for one trace. Raise `NotFound` if the store has no runs of it."""
    explained = FilterReader(reader, [filter]).explain(_FROM_TRACE, (trace_id,))
    if not explained:
        raise NotFound(f"there is no trace {trace_id!r} in this store")
    return explained[0]


def _read_heads(reader: Reader, filters: Sequence[Filter], source: str, values: Sequence[Any]) -> tuple[TraceHead, ...]:
    """Return the heads of the selected traces. Raise `Refused` for too many or invalid filters."""
    if len(filters) > MAX_FILTERS:
        raise Refused(f"at most {MAX_FILTERS} filters can be evaluated at once, got {len(filters)}; use several calls")
    filter_reader = FilterReader(reader, [validate_rule_filter(filter) for filter in filters], _HEAD_COLUMNS)
    return tuple([_make_head(row, results) for row, results in filter_reader.read(source, values)])


class _HeadDraft:
    """Mutable substitute for `TraceHead`. Setting the fields of a frozen dataclass costs several times as much."""

    __slots__ = TraceHead.__slots__


def _make_head(row: Sequence[Any], results: tuple[bool | None, ...]) -> TraceHead:
    head: Any = _HeadDraft()
    (
        head.trace_id,
        head.change,
        head.runs_change,
        head.changed_ns,
        head.start_ns,
        flags,
        head.size,
        head.span_count,
        head.probability,
        head.project,
        head.environment,
        head.experiment_id,
        head.session_id,
        head.number,
        *_,
    ) = row
    head.settled, head.whole, head.rooted, head.partial, head.judgement = _FLAGS_BY_CODE[flags]
    head.cursor = str(head.change)
    head.passes = results
    head.__class__ = TraceHead  # both classes have the same slots
    return cast(TraceHead, head)


def count_later_changes(db: sqlite3.Connection, after: str | None) -> tuple[int, int | None]:
    """Return the number of traces in the feed after a position, and the time of the first change among them."""
    begin = parse_change(db, after)
    count = db.execute(f"SELECT count(*) {_FROM_FEED}", (begin,)).fetchone()[0]
    first = db.execute(f"SELECT t.changed_ns {_FROM_FEED} ORDER BY t.change LIMIT 1", (begin,)).fetchone()
    return int(count), first[0] if first else None


def parse_change(db: sqlite3.Connection, cursor: str | None) -> int:
    """Return the change number of a cursor. Raise `Refused` for a cursor that this store did not issue."""
    if cursor is None:
        return 0
    number = int(cursor) if cursor.isascii() and cursor.isdigit() and len(cursor) < 20 else -1
    if not 0 <= number <= read_latest_change(db):
        raise Refused(
            f"cursor {cursor!r} is no position in this store's feed; use the `cursor` of an earlier page, or none"
        )
    return number


def read_latest_change(db: sqlite3.Connection) -> int:
    """Return the highest change number issued so far."""
    return int(db.execute("SELECT change FROM feed").fetchone()[0])
