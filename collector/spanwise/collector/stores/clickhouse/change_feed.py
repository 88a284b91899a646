"""Change feed: heads of traces in the order of their last change, and of those of a past period.

A change is a row that was inserted: a summary, feedback without a rule (or its deletion), or a started run. Its position
is the server's time during the insert. A page ends at the horizon (`Database.horizon`), before which no insert is still
running, so no change appears before a position that a reader has passed. `docs/scale-out-protocol.md` has the details.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from spanwise.collector.filters import Filter
from spanwise.collector.records import ChangePage, ConditionResult, TraceHead
from spanwise.collector.stores.clickhouse.connection import Database, QueryParameters
from spanwise.collector.stores.clickhouse.filter_values import ValueReader
from spanwise.collector.stores.clickhouse.record_lists import find_traces
from spanwise.collector.stores.queries import change_pages
from spanwise.collector.stores.queries.trace_reader import missing_trace

# The last change of each trace that meets a condition on `number`. Rows that were replaced are included: a trace whose
# replaced row is in a range has a later row, too
_ROWS = (
    "SELECT trace_id, change AS number FROM traces WHERE {traces}"
    " UNION ALL SELECT trace_id, number FROM feedback WHERE rule = '' AND trace_id <> '' AND {others}"
    " UNION ALL SELECT trace_id, number FROM open_runs WHERE is_deleted = 0 AND {others}"
)
_CHANGES = f"SELECT trace_id, max(number) AS change FROM ({_ROWS}) GROUP BY trace_id"
_HEAD_FIELDS = (
    *("trace_id", "start_ns", "rooted", "partial", "judgement", "size", "span_count", "probability", "project"),
    *("environment", "experiment_id", "session_id", "number"),
)
_HEAD_COLUMNS = ", ".join(
    (
        *(f"t.{name}" for name in _HEAD_FIELDS),
        *("t.change", "t.complete", "t.dropped = 0", "t.trace_id IN (SELECT trace_id FROM open_runs FINAL)"),
    )
)


def _select_rows(parameters: QueryParameters, begin: int, end: int, rows: str = _ROWS) -> str:
    after, upto = parameters.bind(begin, "UInt64"), parameters.bind(end, "UInt64")
    return rows.format(traces=f"change > {after} AND change <= {upto}", others=f"number > {after} AND number <= {upto}")


def read_changes(db: Database, after: str | None, limit: int, filters: Sequence[Filter]) -> ChangePage:
    """Return the heads of the traces that changed after `after`, with the result of each filter.

    Raise `Refused` for an invalid cursor or invalid filters.
    """
    wanted = change_pages.validate_filters(filters)
    position, horizon, limit = parse_change(db, after), db.horizon(), min(limit, change_pages.MAX_HEADS)
    heads, end = list[TraceHead](), position if limit > 0 else horizon
    while not heads and end < horizon:
        end = _find_end(db, position, horizon, limit)
        parameters = QueryParameters()
        changes = dict(db.query(_select_rows(parameters, position, end, _CHANGES), parameters))
        # A trace is listed at its last change, which may be after this page, or have been made since the horizon was read
        last = _read_last_changes(db, list(changes), horizon)
        current = {id: change for id, change in changes.items() if last.get(id) == change}
        heads = [head for head in _read_heads(db, current, wanted, horizon) if head.change <= horizon]
        # also past changes of traces without runs, which have no head
        position = max(changes.values(), default=position)
    heads.sort(key=lambda head: (head.change, head.trace_id))
    return ChangePage(heads=tuple(heads), cursor=str(position), now_ns=horizon)


def _find_end(db: Database, begin: int, horizon: int, limit: int) -> int:
    """Return the position of the row that is `limit` rows after a position, or the horizon if there are fewer."""
    parameters = QueryParameters()
    rows = _select_rows(parameters, begin, horizon)
    found = db.query(f"SELECT number FROM ({rows}) ORDER BY number LIMIT 1 OFFSET {limit - 1}", parameters)
    return int(found[0][0]) if found else horizon


def read_period(
    db: Database,
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
    wanted, now_ns = change_pages.validate_filters(filters), db.now()
    wanted_traces = Filter(project=project, since_ns=since_ns, until_ns=until_ns)
    rows, _ = find_traces(
        db, wanted_traces, "t.trace_id, t.start_ns", max(0, min(limit, change_pages.MAX_HEADS)), after
    )
    ids = [row[0] for row in rows]
    found = {head.trace_id: head for head in _read_heads(db, _read_last_changes(db, ids, now_ns), wanted, now_ns)}
    heads = tuple(replace(found[id], cursor=f"{found[id].start_ns}.{id}") for id in ids if id in found)
    return ChangePage(heads=heads, cursor=heads[-1].cursor if heads else after or f"{until_ns}.", now_ns=now_ns)


def read_head(db: Database, trace_id: str, filters: Sequence[Filter]) -> TraceHead:
    """Return the head of one trace. Raise `NotFound` if the store has no runs of it."""
    now_ns = db.now()
    heads = _read_heads(db, _read_last_changes(db, [trace_id], now_ns), change_pages.validate_filters(filters), now_ns)
    if not heads:
        raise missing_trace(trace_id)
    return heads[0]


def _read_last_changes(db: Database, trace_ids: Sequence[str], horizon: int) -> dict[str, int]:
    """Return the positions of the last changes of traces up to the horizon."""
    parameters = QueryParameters()
    where, upto = f"trace_id IN {parameters.texts(trace_ids)}", parameters.bind(horizon, "UInt64")
    changes = _CHANGES.format(traces=f"{where} AND change <= {upto}", others=f"{where} AND number <= {upto}")
    return dict(db.query(changes, parameters)) if trace_ids else {}


def _read_heads(db: Database, changes: Mapping[str, int], filters: Sequence[Filter], now_ns: int) -> list[TraceHead]:
    """Return the heads of those of the traces that have runs. `changes` has the position of each."""
    if not changes:
        return []
    ids = list(changes)
    sql = f"SELECT {_HEAD_COLUMNS} FROM traces AS t FINAL WHERE t.trace_id IN {{ids:Array(String)}}"
    rows = db.query(sql, {"ids": ids})
    results = ValueReader(db, now_ns, filters).evaluate_traces(ids) if filters else {}
    # a trace that arrived or was deleted between the queries has no results
    return [
        _make_head(row, changes[row[0]], results.get(row[0], ())) for row in rows if row[0] in results or not filters
    ]


def _make_head(row: Sequence[Any], change: int, passes: tuple[bool | None, ...]) -> TraceHead:
    *values, runs_change, complete, whole, is_open = row
    fields: dict[str, Any] = dict(zip(_HEAD_FIELDS, values, strict=True))
    change = max(change, runs_change)
    return TraceHead(
        **fields,
        change=change,
        runs_change=runs_change,
        changed_ns=change,
        settled=False if is_open else None if complete is None else bool(complete),
        whole=bool(whole),
        cursor=str(change),
        passes=passes,
    )


def explain_filter(db: Database, trace_id: str, filter: Filter) -> list[ConditionResult]:
    """Return the result of each condition for one trace. Raise `NotFound` if the store has no runs of it."""
    reader = ValueReader(db, db.now(), [filter])
    for explained in (results for rows in reader.read([trace_id]) for results in reader.explain_rows(rows)):
        return explained
    raise missing_trace(trace_id)


def count_later_changes(db: Database, after: str | None) -> tuple[int, int | None]:
    """Return the number of traces in the feed after a position, and the time of the first change among them."""
    parameters = QueryParameters()
    changes = _select_rows(parameters, parse_change(db, after), db.horizon(), _CHANGES)
    with_runs = f"SELECT trace_id FROM traces WHERE trace_id IN (SELECT trace_id FROM ({changes}))"
    [(count, first)] = db.query(
        f"SELECT count(), min(change) FROM ({changes}) WHERE trace_id IN ({with_runs})", parameters
    )
    return count, first if count else None


def read_latest_change(db: Database) -> int:
    """Return the position of the last change up to the horizon. Later changes have higher positions."""
    horizon = db.horizon()
    for seconds in (60, 3600, 86_400, horizon):  # the skip index finds recent changes without reading the others
        parameters = QueryParameters()
        rows = _select_rows(parameters, max(0, horizon - seconds * 10**9), horizon)
        [(latest,)] = db.query(f"SELECT max(number) FROM ({rows})", parameters)
        if latest:
            return int(latest)
    return 0


def parse_change(db: Database, cursor: str | None) -> int:
    """Return the position of a cursor. Raise `Refused` for a cursor that this store did not issue."""
    if cursor is None:
        return 0
    number = change_pages.parse_change_number(cursor)
    if number < 0 or 0 < number < db.created_ns or (number > db.floor() and number > db.now()):
        raise change_pages.refuse_change(cursor)
    return number
