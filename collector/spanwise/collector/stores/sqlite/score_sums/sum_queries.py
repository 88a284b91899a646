"""Queries for sums, which first apply recorded changes; if these are too many, they read all rows instead."""

from __future__ import annotations

from functools import partial

from spanwise.collector.errors import StoreError
from spanwise.collector.records import ScoreSums
from spanwise.collector.stores.sqlite.database_file import DatabaseFile
from spanwise.collector.stores.sqlite.score_sums.sum_tables import apply_changes, count_changes
from spanwise.collector.stores.sqlite.score_sums.window_sums import read_tables, sum_rows
from spanwise.collector.stores.weighted_sums import LIVE, SumsQuery

MAX_APPLIED = 5_000  # changes that a query applies; if there are more, it reads all rows instead
CHANGES_PER_TRANSACTION = 500


def read_sums(file: DatabaseFile, query: SumsQuery) -> list[ScoreSums]:
    """Return the sums of a window, including all changes that were committed before the call."""
    query.check()
    is_current = apply_some_changes(file)
    with file.read() as reader:
        sql = "SELECT since_ns FROM score_groupings WHERE (project, rule, field) = (?, ?, ?)"
        if query.live and not reader.db.execute(sql, (query.project, query.rule, LIVE)).fetchone():
            query = query._replace(live=False)  # the rule never had a backfill
        if is_current and query.field:
            row = reader.db.execute(sql, (query.project, query.rule, query.field)).fetchone()
            is_current = row is not None and row[0] <= query.since_ns
        return read_tables(reader.db, query) if is_current else sum_rows(reader.db, query)


def apply_some_changes(file: DatabaseFile) -> bool:
    """Apply recorded changes, and return whether the sums include them now."""
    with file.read() as reader:
        count = count_changes(reader.db, MAX_APPLIED + 1)
    if count > MAX_APPLIED:
        return False
    try:
        while count > 0:
            file.write(partial(apply_changes, limit=CHANGES_PER_TRANSACTION))
            count -= CHANGES_PER_TRANSACTION
    except StoreError:  # the file is read-only, or the disk is full
        return False
    return True
