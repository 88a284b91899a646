"""Sums of a time window, block by block, from the tables of sums or from all rows."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from math import isclose
from typing import NamedTuple, TypeVar

from spanwise.collector.records import ScoreSums
from spanwise.collector.stores.sqlite.score_sums.contributions import Contribution, Grouping, read_contributions
from spanwise.collector.stores.sqlite.score_sums.session_clusters import HOURS, WIDTHS_S
from spanwise.collector.stores.sqlite.score_sums.sum_tables import count_changes
from spanwise.collector.stores.table_rows import select_many
from spanwise.collector.stores.weighted_sums import (
    ClusterSums,
    LabelledSums,
    ScoreAmounts,
    SumPlace,
    SumsQuery,
    make_sum_records,
)

_MAX_HOUR = 2**62  # beyond all hours
TRACES_PER_READ = 5_000  # traces whose scores are in memory at once
_NS = 1_000_000_000
_DAY_NS = 86_400 * _NS


_SELECT_DAYS = (
    f"SELECT DISTINCT trace_start_ns / {_DAY_NS} FROM feedback WHERE rule = :rule UNION SELECT DISTINCT block FROM score_sums"
    f" WHERE level = {len(WIDTHS_S) - 1} AND series IN (SELECT id FROM score_series WHERE rule = :rule AND field = '')"
)


def count_wrong_sums(db: sqlite3.Connection) -> int:
    """Return how many sums of rules and days differ from the scores; 0 while there are recorded changes."""
    if count_changes(db, 1):
        return 0
    bad = 0
    for project, rule in db.execute("SELECT DISTINCT project, rule FROM score_series").fetchall():
        for (day,) in db.execute(_SELECT_DAYS, {"rule": rule}).fetchall():
            query = SumsQuery(rule, project, day * _DAY_NS, (day + 1) * _DAY_NS, _DAY_NS // _NS)
            found, expected = read_tables(db, query), sum_rows(db, query)
            values = [
                (getattr(one, name), getattr(other, name))
                for one, other in zip(found, expected, strict=False)
                for name in ScoreSums.__slots__
            ]
            # sums of rows are rounded
            is_equal = all(
                a == b or (isinstance(a, float) and isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)) for a, b in values
            )
            bad += len(found) != len(expected) or not is_equal
    return bad


P = TypeVar("P", bound=Hashable)

_SELECT_SUMS = (
    "SELECT series, (block - ?) / ?, label, sum(n), sum(graded), sum(failed), sum(skipped), sum(left_out), sum(weight),"
    " sum(total), sum(weight_squares), sum(products), sum(total_squares), sum(left_out_total) FROM score_sums"
    " WHERE level = ? AND block >= ? AND block < ? AND series IN (%s) GROUP BY 1, 2, 3"
)
_SELECT_CLUSTERS = (
    "SELECT series, session, block, label, weight, total FROM score_clusters"
    " WHERE level = ? AND block >= ? AND block < ? AND series IN (%s)"
)
_SELECT_SPANNING = (
    "SELECT s.series, s.session, s.block, s.label, s.weight, s.total FROM (VALUES {}) v"
    " CROSS JOIN score_clusters s INDEXED BY score_clusters_that_span ON s.spans = v.column1"
    f" WHERE s.level = {HOURS} AND s.spans > 0 AND s.block >= ? AND s.block < ? AND s.series IN (%s)"
)


class BlockWindow(NamedTuple):
    """Blocks `first` (inclusive) to `last` (exclusive) of a level.

    They are joined to blocks of `per_block`, which are counted from `origin`.
    """

    level: int
    first: int
    last: int
    origin: int
    per_block: int


def choose_level(*bounds_ns: int) -> int:
    """Return the widest level of sums whose blocks begin and end at all of these times."""
    return max(level for level, width in enumerate(WIDTHS_S) if not any(bound % (width * _NS) for bound in bounds_ns))


def read_tables(db: sqlite3.Connection, query: SumsQuery) -> list[ScoreSums]:
    """Return the sums of a window from the tables of sums."""
    level = choose_level(query.block_s * _NS, query.since_ns, query.until_ns)
    width_ns = WIDTHS_S[level] * _NS
    first, last = query.since_ns // width_ns, query.until_ns // width_ns
    window = BlockWindow(level, first, last, first, query.block_s * _NS // width_ns)
    found = sum_blocks(db, _find_series(db, query), window, joined=query.joined)
    return make_sum_records(found, read_label_names(db, found.values()), query)


def read_label_names(db: sqlite3.Connection, sums: Iterable[LabelledSums]) -> dict[int, str]:
    """Return the names of all labels in these sums, by id."""
    ids = {id for each in sums for id in each.label_ids}
    return dict(select_many(db, "SELECT id, label FROM score_labels WHERE id IN (%s)", ids))


def sum_blocks(
    db: sqlite3.Connection, places: Mapping[int, P], window: BlockWindow, *, joined: bool
) -> dict[P, LabelledSums]:
    """Return the sums of series, added up by the place that each series belongs to."""
    bounds = (window.level, window.first, window.last)
    found: dict[P, LabelledSums] = defaultdict(LabelledSums)
    grouped = (window.origin, window.per_block, *bounds)
    for series, block, label, *sums in select_many(db, _SELECT_SUMS, places, grouped):
        found[places[series]].add(block, label, sums)
    is_shared = len(set(places.values())) < len(places)  # by several versions of a rule
    if not (joined or window.per_block > 1 or is_shared):
        return found
    parts: dict[tuple[P, int], dict[tuple[int, int], dict[int, tuple[float, float]]]] = defaultdict(dict)
    for series, session, block, label, weight, total in _select_clusters(db, places, window, is_shared=is_shared):
        labels = parts[places[series], session].setdefault((block, series), {})
        before = labels.get(label, (0.0, 0.0))
        labels[label] = before[0] + weight, before[1] + total
    for (place, _), of_session in parts.items():
        if len(of_session) > 1:
            in_order = [
                ((block - window.origin) // window.per_block, of_session[block, series])
                for block, series in sorted(of_session)
            ]
            found[place].add_products(in_order, joined=joined)
    return found


def _select_clusters(
    db: sqlite3.Connection, series: Iterable[int], window: BlockWindow, *, is_shared: bool
) -> Iterator[tuple[int, int, int, int, float, float]]:
    """Yield series, session, block, label, Σw and Σw·y of the sessions that may have several parts in a window.

    Those of blocks of several hours come hour by hour.
    """
    if window.level == 0:
        yield from select_many(db, _SELECT_CLUSTERS, series, (0, window.first, window.last))
        return
    hours = WIDTHS_S[window.level] // WIDTHS_S[HOURS]
    bounds = (max(window.first * hours, -_MAX_HOUR), min(window.last * hours, _MAX_HOUR))
    if is_shared:
        rows = select_many(db, _SELECT_CLUSTERS, series, (HOURS, *bounds))
    else:
        spans = ",".join(f"({level})" for level in range(window.level, len(WIDTHS_S)))
        rows = select_many(db, _SELECT_SPANNING.format(spans), series, bounds)
    for of_series, session, hour, *sums in rows:
        yield of_series, session, hour // hours, *sums


def _find_series(db: sqlite3.Connection, query: SumsQuery) -> dict[int, SumPlace]:
    """Return group and key of each series of a query, by id."""
    sql = "SELECT id, value, key FROM score_series WHERE project = ? AND rule = ? AND field = ?"
    values = [query.project, query.rule, query.field]
    for name, value in (("key", query.key), ("version", query.version)):
        if value is not None:
            sql, values = f"{sql} AND {name} = ?", [*values, value]
    rows: Iterable[Sequence[str]] = db.execute(sql, values)
    if query.groups:
        rows = select_many(db, f"{sql} AND value IN (%s)", query.groups, values)
    return {int(id): (None if query.by is None else value, key) for id, value, key in rows}


def sum_rows(db: sqlite3.Connection, query: SumsQuery) -> list[ScoreSums]:
    """Return the sums of a window, computed from all rows of feedback and decisions in it."""
    sql = (
        "SELECT DISTINCT f.{0} FROM feedback f WHERE f.rule = ? AND f.trace_start_ns >= ? AND f.trace_start_ns < ?"
        " AND f.standing >= 1 AND f.{0} IS NOT NULL"
    )
    bounds = (query.rule, query.since_ns, query.until_ns)
    traces = [row[0] for row in db.execute(sql.format("trace"), bounds)]
    sessions = [row[0] for row in db.execute(f"{sql.format('session_id')} AND f.trace IS NULL", bounds)]
    groupings = [Grouping(query.project, query.rule, query.field)] if query.field else []
    sums = ClusterSums[SumPlace]()
    chunks = [(traces[at : at + TRACES_PER_READ], ()) for at in range(0, len(traces), TRACES_PER_READ)]
    for some_traces, some_sessions in (*chunks, ((), sessions)):
        contributions = read_contributions(db, some_traces, some_sessions, groupings)
        for owner, each in ((owner, each) for owner, some in contributions.items() for each in some):
            if query.since_ns <= each.start_ns < query.until_ns:
                block = (each.start_ns - query.since_ns) // (query.block_s * _NS)
                for place, label, amounts in _select_amounts(each, query):
                    sums.add(place, block, owner, each.cluster, label, amounts)
    return make_sum_records(sums.add_up(joined=query.joined), sums.label_names, query)


def _select_amounts(contribution: Contribution, query: SumsQuery) -> Iterable[tuple[SumPlace, str, ScoreAmounts]]:
    """Yield group and key, label, and amounts of the series that a query selects."""
    for series, amounts in contribution.amounts.items():
        if (
            (series.project, series.rule, series.field) == (query.project, query.rule, query.field)
            and query.key in (None, series.key)
            and query.version in (None, series.version)
            and (not query.groups or series.value in query.groups)
        ):
            yield (None if query.by is None else series.value, series.key), series.label, amounts
