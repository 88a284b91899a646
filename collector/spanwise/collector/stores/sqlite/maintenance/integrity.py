"""Integrity check of the database, its size statistics, and removal of unused rows."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from spanwise.collector.filters import Filter
from spanwise.collector.stores.sqlite.database.connections import Reader
from spanwise.collector.stores.sqlite.database.schema import FILE_VERSION
from spanwise.collector.stores.sqlite.query.filter_sql import compile_filter
from spanwise.collector.stores.sqlite.rollups import hourly_rollups, sealed_rollups
from spanwise.collector.stores.sqlite.score_sums import window_sums


def used_bytes(db: sqlite3.Connection) -> int:
    """Return the bytes of all pages that are not free."""
    pages, free, size = (
        int(db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def file_size(path: str) -> int:
    """Return the bytes of a file; 0 if it does not exist."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def collect_stats(db: sqlite3.Connection, path: str) -> dict[str, Any]:
    """Return sizes in bytes, row counts, and projects with their share of the file, largest first."""
    return {
        "path": path,
        "file_version": int(db.execute("PRAGMA user_version").fetchone()[0]),
        "file_bytes": file_size(path),
        "wal_bytes": file_size(path + "-wal"),
        "page_bytes": int(db.execute("PRAGMA page_size").fetchone()[0]),
        "used_bytes": used_bytes(db),
        **{
            name: int(db.execute(f"SELECT count(*) FROM {name}").fetchone()[0])
            for name in ("spans", "traces", "feedback", "experiments", "decisions", "dictionaries", "resources")
        },
        "waiting_for_text_index": int(db.execute("SELECT count(*) FROM unindexed").fetchone()[0]),
        "projects": list(_project_stats(db)),
    }


def _project_stats(db: sqlite3.Connection) -> Iterator[dict[str, Any]]:
    sql = (
        "SELECT project, count(*), sum(span_count), sum(size), min(start_ns), max(start_ns) FROM traces"
        " WHERE span_count > 0 GROUP BY project ORDER BY sum(size) DESC"
    )
    rows = db.execute(sql).fetchall()
    total = sum(row[3] for row in rows) or 1
    used = used_bytes(db)
    for project, traces, spans, size, first, last in rows:
        yield {
            "project": project,
            "traces": traces,
            "spans": spans,
            "bytes": used * size // total,
            "first_ns": first,
            "last_ns": last,
        }


_INVARIANTS = (
    (
        "spans without a trace",
        "SELECT count(*) FROM spans s WHERE NOT EXISTS (SELECT 1 FROM traces WHERE id = s.trace)",
    ),
    (
        "spans whose resource is missing",
        "SELECT count(*) FROM spans s WHERE NOT EXISTS (SELECT 1 FROM resources WHERE id = s.resource)",
    ),
    (
        "traces whose number of spans is wrong",
        "SELECT count(*) FROM traces t WHERE span_count <> (SELECT count(*) FROM spans WHERE trace = t.id)",
    ),
    (
        "feedback without a trace",
        "SELECT count(*) FROM feedback f WHERE f.trace NOT IN (SELECT id FROM traces)",
    ),
    (
        "entries of the text index without a trace",
        "SELECT count(*) FROM indexed i WHERE NOT EXISTS (SELECT 1 FROM traces WHERE id = i.trace)",
    ),
    (
        "traces that are neither in the text index nor queued for it",
        "SELECT count(*) FROM traces t WHERE span_count > 0 AND NOT EXISTS (SELECT 1 FROM indexed WHERE trace = t.id)"
        " AND NOT EXISTS (SELECT 1 FROM unindexed WHERE trace = t.id)",
    ),
)
_SINCE_VERSION_5 = (
    (
        "traces without a valid position in the change feed",
        "SELECT count(*) FROM traces t WHERE span_count > 0"
        " AND (change IS NULL OR runs_change IS NULL OR change < runs_change OR change > (SELECT change FROM feed))",
    ),
    (
        "traces whose number of open runs is wrong",
        "SELECT count(*) FROM traces t WHERE span_count > 0"
        " AND running <> (SELECT count(*) FROM open_runs o WHERE o.trace_id = t.trace_id)",
    ),
)
_SINCE_VERSION_8 = (
    (
        "response ids without a span",
        "SELECT count(*) FROM responses r WHERE NOT EXISTS (SELECT 1 FROM spans WHERE id = r.span)",
    ),
    (
        "feedback rows with a number beyond the end of the change feed",
        "SELECT count(*) FROM feedback WHERE said > (SELECT change FROM feed)",
    ),
)


_SINCE_VERSION_9 = (
    (
        "summary states of missing traces",
        "SELECT count(*) FROM"
        " (SELECT trace FROM states UNION SELECT trace FROM orphans UNION SELECT trace FROM local_roots)"
        " WHERE trace NOT IN (SELECT id FROM traces)",
    ),
)


def check_integrity(reader: Reader, deep: bool) -> list[str]:
    """Return a message for each problem of the file. `deep` also reads every payload."""
    problems = list(_find_damage(reader.db))
    for name, sql in _invariants(reader.db):
        try:
            count = reader.db.execute(sql).fetchone()[0]
        except sqlite3.Error as error:
            problems.append(f"cannot check for {name}: {error}")
        else:
            problems += [f"{count} {name}"] if count else []
    problems += _check_rollups(reader.db)
    return problems + (_check_payloads(reader) if deep else [])


def _check_rollups(db: sqlite3.Connection) -> Iterator[str]:
    """Yield the problems of the rollups. Those of an older file are not checked: its migration renews their form."""
    if int(db.execute("PRAGMA user_version").fetchone()[0]) < FILE_VERSION:
        return
    try:
        bad = hourly_rollups.count_wrong_hours(db)
    except sqlite3.Error as error:
        yield f"cannot check the hourly rollups: {error}"
        return
    if bad:
        yield f"{bad} hours whose rollups differ from their traces"
    if bad := sealed_rollups.count_wrong_periods(db):
        yield f"{bad} sealed hours and days whose totals differ from the rollups of their hours"
    if bad := window_sums.count_wrong_sums(db):
        yield f"{bad} weighted sums of rules and days that differ from their scores"


def _find_damage(db: sqlite3.Connection) -> Iterator[str]:
    """Yield the problems that SQLite finds, table by table, because SQLite stops at the first unreadable page."""
    try:
        problems = [row[0] for row in db.execute("PRAGMA integrity_check(100)")]
    except sqlite3.Error as error:
        problems = [str(error)]
    if problems == ["ok"]:
        return
    tables: list[str] = []
    with suppress(sqlite3.Error):
        sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0"
        tables = [row[0] for row in db.execute(sql)]
    by_table = [f"{table}: {problem}" for table in tables for problem in _find_table_damage(db, table)]
    yield from by_table or problems


def _find_table_damage(db: sqlite3.Connection, table: str) -> list[str]:
    """Return the problems of a table and its indexes.

    Only the first row of SQLite's result is read. It lists the problems of all pages. Reading further rows may fail.
    """
    try:
        row = db.execute("SELECT integrity_check FROM pragma_integrity_check(?) LIMIT 1", (table,)).fetchone()
    except sqlite3.Error as error:
        return [str(error)]
    return [line for line in row[0].splitlines() if line not in ("ok", "*** in database main ***")]


def _invariants(db: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    yield from _INVARIANTS
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version >= 5:
        yield from _SINCE_VERSION_5
    if version >= 8:
        yield from _SINCE_VERSION_8
    if version >= 9:
        yield from _SINCE_VERSION_9


def _check_payloads(reader: Reader) -> list[str]:
    bad = 0
    try:
        for (blob,) in reader.db.execute("SELECT payload FROM spans"):
            try:
                reader.payload(blob)
            except Exception:  # from zstd, the JSON parser, or a wrong type
                bad += 1
    except sqlite3.Error as error:
        return [f"cannot read all payloads: {error}"]
    return [f"{bad} payloads that cannot be read"] if bad else []


def delete_unused(db: sqlite3.Connection) -> None:
    """Delete resources without spans, menu values without traces, and unused entries of the full-text index.

    A deleted word stays in the index, marked as deleted, until its segments are merged.
    """
    db.execute("INSERT INTO words (words) VALUES ('optimize')")
    # recount hours that had too many rows, because they may have fewer now
    db.execute("UPDATE sums_hours SET state = 1 WHERE state > 0")
    db.execute("DELETE FROM sums_names WHERE hour NOT IN (SELECT hour FROM sums_hours)")
    # Keep the row with the highest id even if unused: SQLite would reuse the id, and readers may still cache the old
    # row
    db.execute(
        "DELETE FROM resources WHERE id < (SELECT max(id) FROM resources) AND id NOT IN (SELECT resource FROM spans)"
    )
    deleted = []
    for field, value in db.execute("SELECT field, value FROM known").fetchall():
        if field not in _FILTERS_BY_FIELD:  # other fields, such as destinations, have no filter
            continue
        [_, condition] = compile_filter(_FILTERS_BY_FIELD[field](value))
        sql = f"SELECT EXISTS (SELECT 1 FROM traces t WHERE t.span_count > 0 AND {condition.sql})"
        if not db.execute(sql, condition.values).fetchone()[0]:
            deleted.append((field, value))
    db.executemany("DELETE FROM known WHERE field = ? AND value = ?", deleted)


_FILTERS_BY_FIELD = {
    "environment": lambda value: Filter(environment=value),
    "kind": lambda value: Filter(any_kind=value),
    "model": lambda value: Filter(model=value),
    "tag": lambda value: Filter(tags=(value,)),
    "prompt": lambda value: Filter(prompt=value),
    "prompt_version": lambda value: Filter(prompt_version=value),
    "agent": lambda value: Filter(agent=value),
    "finish_reason": lambda value: Filter(finish_reason=value),
}
