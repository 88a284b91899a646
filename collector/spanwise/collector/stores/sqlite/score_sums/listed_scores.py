"""Scores of rules one by one: those of a window, and those of the traces in the buckets of an aggregate."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from spanwise.collector.records import Page
from spanwise.collector.stores.backends import BucketScore, RuleScore, ScoreQuery
from spanwise.collector.stores.sqlite.score_sums.bucket_weights import ListScoredTraces
from spanwise.collector.stores.sqlite.score_sums.contributions import read_session_values, read_trace_values
from spanwise.collector.stores.sqlite.write import feedback_table
from spanwise.collector.stores.table_rows import cut_page, parse_cursor, select_many

TRACES_PER_READ = 5_000
_TRACE_PLACE, _SESSION_PLACE = map(feedback_table.FEEDBACK_COLUMNS.index, ("trace", "session_id"))
_IS_CURRENT = "f.standing >= 1 AND (f.outcome <> 'score' OR f.score IS NOT NULL OR {})"
_OF_RULE = (
    feedback_table.SELECT_FEEDBACK.replace(" FROM", ", t.session_id, f.trace_start_ns, f.rowid FROM")
    + " LEFT JOIN traces t ON t.id = f.trace WHERE f.rule = ? AND (t.project = ? OR f.trace IS NULL AND (f.project IS NULL OR f.project = ?))"
)
_OF_TRACES = (
    feedback_table.SELECT_FEEDBACK.replace(" FROM", ", t.session_id, f.trace_start_ns, t.project FROM")
    + " INDEXED BY feedback_by_trace CROSS JOIN traces t ON t.id = f.trace WHERE f.rule IS NOT NULL"
    f" AND {_IS_CURRENT.format('f.label IS NOT NULL')} AND t.project IS NOT NULL AND f.trace IN (%s)"
)


def list_rule_scores(db: sqlite3.Connection, query: ScoreQuery) -> Page[RuleScore]:
    """Return one page of a rule's scores, errors and skips, ordered by start of the trace, latest first."""
    conditions = [_IS_CURRENT.format("f.label IS NOT NULL" if query.labelled else "0")]
    values: list[Any] = [query.rule, query.project, query.project]
    bounds = (
        ("f.key = ?", query.key),
        ("f.trace_start_ns >= ?", query.since_ns),
        ("f.trace_start_ns < ?", query.until_ns),
    )
    for sql, value in bounds:
        if value is not None:
            conditions.append(sql)
            values.append(value)
    if query.cursor is not None:
        conditions.append("(f.trace_start_ns, f.rowid) < (?, ?)")
        values.extend(parse_cursor(query.cursor))
    sql = " AND ".join([_OF_RULE, *conditions]) + " ORDER BY f.trace_start_ns DESC, f.rowid DESC LIMIT ?"
    fetched = db.execute(sql, (*values, query.limit + 1)).fetchall()
    rows, next = cut_page(fetched, query.limit, time=-2, key=-1)
    groups: dict[int | str, list[str]] = {}
    if query.by is not None:
        groups |= read_trace_values(db, query.by, {row[_TRACE_PLACE] for row in rows} - {None})
        sessions = {row[_SESSION_PLACE] for row in rows} - {None}
        groups |= read_session_values(db, query.by, query.project, sessions)
    items = (_make_score(row, groups.get(row[_TRACE_PLACE] or row[_SESSION_PLACE], ())) for row in rows)
    return Page(items=tuple(items), next=next)


def list_bucket_scores(db: sqlite3.Connection, list_traces: ListScoredTraces) -> Iterator[BucketScore]:
    """Yield the scores, errors and skips of rules on the traces of an aggregate, also those with only a label."""
    places: dict[int, list[tuple[int, str | None]]] = defaultdict(list)
    for start_ns, group, trace in list_traces():
        places[trace].append((start_ns, group))
    for row in select_many(db, _OF_TRACES, places):
        score = _make_score(row)
        for start_ns, group in places[row[_TRACE_PLACE]]:
            yield BucketScore(start_ns, group, row[-1], score)


def _make_score(row: Any, groups: Iterable[str] = ()) -> RuleScore:
    feedback = feedback_table.feedback_from_row(row)
    return RuleScore(feedback, row[-3] or row[_SESSION_PLACE], row[-2], tuple(groups))
