"""Change feed: heads of traces in the order of their last change, and the values that filters compare."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from spanwise.collector.filter_evaluation import KeyFeedback, TraceValues
from spanwise.collector.filters import Filter
from spanwise.collector.records import ChangePage, ConditionResult, TraceHead
from spanwise.collector.stores.queries import change_pages, filter_reader
from spanwise.collector.stores.queries.filter_reader import LISTS, Results
from spanwise.collector.stores.queries.trace_reader import missing_trace
from spanwise.collector.stores.sqlite.database.connections import Reader
from spanwise.collector.stores.sqlite.query.filter_sql import VERSION_SQL, complete_sql
from spanwise.collector.stores.sqlite.search.searchable_text import compile_match
from spanwise.collector.stores.table_rows import dumps, iterate_rows, loads, parse_cursor

# Values of stored traces that filters compare (see `spanwise.collector.filter_evaluation`).

MAX_ID_GAP = 2_000  # up to this gap, scanning the ids between two traces is cheaper than a second search

BATCH_ROWS, BATCH_CHARACTERS = 1_000, 16_000_000  # traces, and characters of their JSON, that are evaluated together

# SQL expressions on a row `t`, by value. `FilterReader` converts some of the results
_COLUMNS: Mapping[str, str] = {
    **{name: f"t.{name}" for name in TraceValues.__annotations__},
    "complete": complete_sql(),
    "version": VERSION_SQL,
    "errors": "t.error_count",
    "feedback": "NULL",
    "texts": "EXISTS (SELECT 1 FROM unindexed u WHERE u.trace = t.id)",  # the trace waits for full-text indexing
}
# The index is forced. Otherwise SQLite would choose the index of scores and scan the scores of all traces.
_SELECT_FEEDBACK = (
    "SELECT f.trace, f.key, f.outcome, f.score, f.label, f.document IS NOT NULL FROM feedback f INDEXED BY feedback_by_trace"
    " WHERE f.key IN (SELECT value FROM json_each(?)) AND f.rule IS NULL AND f.trace IN (%s)"
    " ORDER BY f.created_ns, f.rowid"
)
_NO_FEEDBACK = KeyFeedback()


class FilterReader(filter_reader.FilterReader):
    """Reader of traces with the results of some filters.

    It selects columns of the caller, and those that the filters require.
    """

    loaded = ("tags", "metadata", "prompts", "agents", "finish_reasons", *LISTS)

    def __init__(self, reader: Reader, filters: Sequence[Filter], columns: Sequence[str] = ()) -> None:
        """Compile the filters. `columns` are SQL expressions on a row `t`. Raise `Refused` for an invalid filter."""
        super().__init__(filters)
        self._db, self._check_stopped = reader.db, reader.check_stopped
        wanted = {name: column for name, column in _COLUMNS.items() if name in self._required}
        # each column only once, because reading it costs as much as finding the row
        self._columns = list(dict.fromkeys([*columns, "t.id", *wanted.values()]))
        self.positions = {name: self._columns.index(column) for name, column in wanted.items()}
        self.key_column = self._columns.index("t.id")

    def read(self, source: str, values: Sequence[Any]) -> Iterator[tuple[Any, Results]]:
        """Yield each selected row, which begins with the caller's columns, and the result of each filter."""
        for rows in self._select(source, values):
            yield from zip(rows, self.evaluate(rows), strict=False)

    def explain(self, source: str, values: Sequence[Any]) -> list[list[ConditionResult]]:
        """Return the results of the conditions of the first filter for each selected trace."""
        return [results for rows in self._select(source, values) for results in self.explain_rows(rows)]

    def _select(self, source: str, values: Sequence[Any]) -> Iterator[list[Any]]:
        """Yield rows in batches of at most `BATCH_ROWS` rows, whose JSON has about `BATCH_CHARACTERS` characters."""
        cursor = self._db.execute(f"SELECT {', '.join(self._columns)} {source}", values)
        positions = [self.positions[name] for name in self.loaded if name in self.positions]
        if not positions:
            yield from iter(lambda: cursor.fetchmany(BATCH_ROWS), [])
            return
        rows, characters = list[Any](), 0
        for row in cursor:
            rows.append(row)
            for position in positions:
                characters += len(row[position] or "")
            if len(rows) == BATCH_ROWS or characters > BATCH_CHARACTERS:
                yield rows
                rows, characters = [], 0
        yield rows

    def load(self, name: str, value: Any) -> Any:
        return loads(value) if value else {}

    def find_listed(self, keys: Sequence[int], column: str, wanted: Collection[str]) -> Mapping[int, Sequence[str]]:
        sql = f"SELECT DISTINCT {column} FROM spans WHERE trace = ? AND {column} IN (SELECT value FROM json_each(?))"
        return {key: [row[0] for row in self._db.execute(sql, (key, dumps([*wanted])))] for key in keys}

    def read_errors(self, keys: Sequence[int]) -> Mapping[int, Iterable[str]]:
        return {key: _SpanErrors(self._db, key) for key in keys}

    def read_feedback(self, keys: Sequence[int], names: Collection[str]) -> Mapping[int, Mapping[str, KeyFeedback]]:
        found: dict[int, dict[str, KeyFeedback]] = {}
        selected = iterate_rows(self._db, _SELECT_FEEDBACK, keys, (dumps([*names]),))
        for trace, key, outcome, score, label, is_of_document in selected:
            feedback = found.setdefault(trace, {})
            known = feedback.get(key, _NO_FEEDBACK)
            if is_of_document:
                feedback[key] = known._replace(total=known.total + 1)
            else:
                feedback[key] = KeyFeedback(outcome, score, label, known.total + 1)
        return found

    def find_text(self, text: str, keys: Sequence[int]) -> set[int]:
        return find_text(self._db, text, keys)

    def is_indexed(self, value: Any) -> bool:
        return not value


class _SpanErrors:
    """Error texts of the runs of a trace. They are read while they are iterated."""

    def __init__(self, db: sqlite3.Connection, trace: int) -> None:
        self._db, self._trace = db, trace

    def __iter__(self) -> Iterator[str]:
        sql = "SELECT coalesce(error, '') FROM spans WHERE trace = ? AND (error IS NOT NULL OR status = 'error')"
        for (error,) in self._db.execute(sql, (self._trace,)):
            yield error


def find_text(db: sqlite3.Connection, text: str, traces: Iterable[int]) -> set[int]:
    """Return which of some traces contain all terms of a text, by the full-text index.

    Traces with adjacent ids are searched together. One query per trace would walk part of the posting list of a
    frequent word each time.
    """
    match = compile_match(text)
    sql = "SELECT rowid FROM words WHERE words MATCH ? AND rowid BETWEEN ? AND ?"
    ranges = split_ranges(sorted(traces)) if match else ()
    return {row[0] for ids in ranges for row in db.execute(sql, (match, ids[0], ids[-1]))}


def split_ranges(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Split ascending ids where the gap to the previous id is larger than `MAX_ID_GAP`."""
    begin = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or ids[end] - ids[end - 1] > MAX_ID_GAP:
            yield ids[begin:end]
            begin = end


# Change feed: heads of traces in the order of their last change, and of those of a past period.

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


def read_changes(reader: Reader, after: str | None, limit: int, filters: Sequence[Filter]) -> ChangePage:
    """Return the heads of the traces that changed after `after`, with the result of each filter.

    Raise `Refused` for an invalid cursor or invalid filters.
    """
    now_ns, begin = _read_clock(reader), parse_change(reader, after)
    heads = _read_heads(
        reader, filters, f"{_FROM_FEED} ORDER BY t.change LIMIT ?", (begin, max(0, min(limit, change_pages.MAX_HEADS)))
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
) -> ChangePage:
    """Return the heads of the traces of a project that started in [`since_ns`, `until_ns`), latest first.

    Their cursors are positions in this list. Raise `Refused` for an invalid cursor or invalid filters.
    """
    now_ns = _read_clock(reader)
    start_ns, number = (until_ns, 0) if after is None else parse_cursor(after)
    values = (project, since_ns, start_ns, start_ns, number, max(0, min(limit, change_pages.MAX_HEADS)))
    found = _read_heads(reader, filters, _FROM_PERIOD, values)
    heads = tuple(replace(head, cursor=f"{head.start_ns}.{head.number}") for head in found)
    return ChangePage(heads=heads, cursor=heads[-1].cursor if heads else f"{start_ns}.{number}", now_ns=now_ns)


def _read_clock(reader: Reader) -> int:
    """Return the store's time. Called before the first read, so that a change that the snapshot lacks is later."""
    return int(reader.db.execute("SELECT store_now()").fetchone()[0])


def read_head(reader: Reader, trace_id: str, filters: Sequence[Filter]) -> TraceHead:
    """Return the head of one trace. Raise `NotFound` if the store has no runs of it."""
    heads = _read_heads(reader, filters, _FROM_TRACE, (trace_id,))
    if not heads:
        raise missing_trace(trace_id)
    return heads[0]


def explain_filter(reader: Reader, trace_id: str, filter: Filter) -> list[ConditionResult]:
    """Return the result of each condition for one trace. Raise `NotFound` if the store has no runs of it."""
    explained = FilterReader(reader, [filter]).explain(_FROM_TRACE, (trace_id,))
    if not explained:
        raise missing_trace(trace_id)
    return explained[0]


def _read_heads(reader: Reader, filters: Sequence[Filter], source: str, values: Sequence[Any]) -> tuple[TraceHead, ...]:
    """Return the heads of the selected traces. Raise `Refused` for too many or invalid filters."""
    filter_reader = FilterReader(reader, change_pages.validate_filters(filters), _HEAD_COLUMNS)
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


def count_later_changes(reader: Reader, after: str | None) -> tuple[int, int | None]:
    """Return the number of traces in the feed after a position, and the time of the first change among them."""
    db, begin = reader.db, parse_change(reader, after)
    count = db.execute(f"SELECT count(*) {_FROM_FEED}", (begin,)).fetchone()[0]
    first = db.execute(f"SELECT t.changed_ns {_FROM_FEED} ORDER BY t.change LIMIT 1", (begin,)).fetchone()
    return int(count), first[0] if first else None


def parse_change(reader: Reader, cursor: str | None) -> int:
    """Return the change number of a cursor. Raise `Refused` for a cursor that this store did not issue."""
    if cursor is None:
        return 0
    number = change_pages.parse_change_number(cursor)
    if not 0 <= number <= read_latest_change(reader):
        raise change_pages.refuse_change(cursor)
    return number


def read_latest_change(reader: Reader) -> int:
    """Return the highest change number issued so far."""
    return int(reader.db.execute("SELECT change FROM feed").fetchone()[0])
