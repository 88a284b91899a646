"""Queries for sums, which first apply recorded changes; if these are too many, they read all rows instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

from spanwise.collector.errors import StoreError
from spanwise.collector.records import ScoreSums
from spanwise.collector.stores.queries.measure_query import MeasureQuery
from spanwise.collector.stores.sqlite.database_file import DatabaseFile
from spanwise.collector.stores.sqlite.score_sums.sum_tables import apply_changes, count_changes
from spanwise.collector.stores.sqlite.score_sums.trace_measures import (
    find_measure,
    is_read_by_alert,
    keep_sums,
    read_kept_sums,
    read_measure_state,
    register_measure,
    sum_measure,
)
from spanwise.collector.stores.sqlite.score_sums.window_sums import read_tables, sum_rows
from spanwise.collector.stores.weighted_sums import GRAIN_NS, LIVE, SumsQuery

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


def read_measure_sums(file: DatabaseFile, query: MeasureQuery) -> list[ScoreSums]:
    """Return the sums of a measure, as `TraceStore.measure_sums` does. Those that an alert reads are kept."""
    with file.read() as reader:
        is_new = find_measure(reader.db, query) is None and is_read_by_alert(reader.db, query)
    if is_new:
        with suppress(StoreError):  # the file is read-only, or the disk is full
            file.write(lambda db: register_measure(db, query))
    with file.read() as reader:
        db, id = reader.db, find_measure(reader.db, query)
        if id is None or query.since_ns % query.block_ns or query.until_ns % query.block_ns:
            return sum_measure(db, query)
        state = read_measure_state(db)
        first, last = query.since_ns // query.block_ns, query.until_ns // query.block_ns
        sql = "SELECT block FROM measure_blocks WHERE measure = ? AND block >= ? AND block < ?"
        kept = {block for (block,) in db.execute(sql, (id, first, last))}
        kept -= {grain * GRAIN_NS // query.block_ns for grain in state.grains}
        missing = [block for block in range(first, last) if block not in kept]
        parts = [
            query._replace(since_ns=start * query.block_ns, until_ns=end * query.block_ns)
            for start, end in _list_parts(missing)
        ]
        computed = [sums for part in parts for sums in sum_measure(db, part)]
        found = [sums for sums in read_kept_sums(db, id, query, first, last) if sums.start_ns // query.block_ns in kept]
    if missing:
        # the file is read-only, or the disk is full: the next query computes the blocks again
        with suppress(StoreError):
            file.write(lambda db: keep_sums(db, id, query, state, missing, computed))
    return sorted([*found, *computed], key=lambda sums: (sums.start_ns, sums.group or ""))


def _list_parts(blocks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield first and last (exclusive) number of each series of adjacent blocks."""
    start = 0
    for place in range(1, len(blocks) + 1):
        if place == len(blocks) or blocks[place] != blocks[place - 1] + 1:
            yield blocks[start], blocks[place - 1] + 1
            start = place
