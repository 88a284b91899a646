"""Queries for sums, which first apply recorded changes; if these are too many, they read all rows instead."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from spanwise.collector.errors import StoreError
from spanwise.collector.records import ScoreSums
from spanwise.collector.statistics import GRAIN_S
from spanwise.collector.stores.sqlite.database_file import DatabaseFile
from spanwise.collector.stores.sqlite.score_sums.contributions import LIVE
from spanwise.collector.stores.sqlite.score_sums.sum_tables import apply_changes, count_changes
from spanwise.collector.stores.sqlite.score_sums.window_sums import SumsQuery, read_tables, sum_rows

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


def count_groups(file: DatabaseFile, query: SumsQuery) -> dict[str, int]:
    """Return the number of weighted scores (or of labels, if a key has more of them) by group, highest first."""
    whole = max(GRAIN_S, (query.until_ns - query.since_ns) // 10**9)
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for sums in read_sums(file, query._replace(block_s=whole, joined=False)):
        place = sums.group or "", sums.key
        counts[place] = max(counts[place], sums.n)
    found: dict[str, int] = defaultdict(int)
    for (group, _), count in counts.items():
        found[group] += count
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


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
