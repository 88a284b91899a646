"""Sums of a time window, block by block."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from spanwise.collector.errors import Refused
from spanwise.collector.records import ScoreSums
from spanwise.collector.stores.sqlite.score_sums.contributions import (
    ALL_LABELS,
    GRAIN_NS,
    GRAIN_S,
    SCORES,
    Contribution,
    ScoreAmounts,
    check_grouping,
    read_contributions,
)

MAX_BLOCKS = 100_000  # blocks of one query


class SumsQuery(NamedTuple):
    """Query for the sums of a rule over the blocks of a window. `joined` makes a session in several blocks one cluster."""

    rule: str
    project: str
    since_ns: int
    until_ns: int
    block_s: int
    key: str | None = None
    by: str | None = None
    version: str | None = None
    joined: bool = True


def check_query(query: SumsQuery) -> None:
    """Raise `Refused` for a window or a block that does not consist of whole grains."""
    if query.block_s <= 0 or query.block_s % GRAIN_S:
        raise Refused(f"block_s must be a multiple of {GRAIN_S}, got {query.block_s}")
    for name in ("since_ns", "until_ns"):
        if getattr(query, name) % GRAIN_NS:
            raise Refused(f"{name} must be a multiple of {GRAIN_S} seconds, got {getattr(query, name)}")
    if (query.until_ns - query.since_ns) // (query.block_s * 1_000_000_000) > MAX_BLOCKS:
        raise Refused(f"the window has more than {MAX_BLOCKS:,} blocks of {query.block_s} s; choose longer blocks")
    if query.by is not None:
        check_grouping(query.by)


Series: TypeAlias = tuple[str | None, str, str]  # group, key, label of the series
Cluster: TypeAlias = tuple[bool, int | str]  # whether it is a session, and its id


def sum_rows(db: sqlite3.Connection, query: SumsQuery) -> list[ScoreSums]:
    """Return the sums of a window, computed from all rows of feedback and decisions in it."""
    check_query(query)
    window = "f.trace_start_ns >= ? AND f.trace_start_ns < ?"
    sql = f"SELECT DISTINCT f.%s FROM feedback f WHERE f.rule = ? AND {window} AND f.%s IS NOT NULL AND f.standing >= 1"
    bounds = (query.rule, query.since_ns, query.until_ns)
    traces = [row[0] for row in db.execute(sql % ("trace", "trace"), bounds)]
    sessions = [row[0] for row in db.execute(f"{sql % ('session_id', 'session_id')} AND f.trace IS NULL", bounds)]
    groupings = [(query.project, query.rule, query.by)] if query.by is not None else []
    return add_contributions(read_contributions(db, traces, sessions, groupings), query)


def add_contributions(contributions: Mapping[int | str, Contribution], query: SumsQuery) -> list[ScoreSums]:
    """Return the sums of contributions that start within the window of a query."""
    block_ns = query.block_s * 1_000_000_000
    clusters: dict[tuple[str | None, str], dict[Cluster, dict[int, dict[str, ScoreAmounts]]]] = defaultdict(dict)
    for owner, each in contributions.items():
        if not query.since_ns <= each.start_ns < query.until_ns:
            continue
        block = (each.start_ns - query.since_ns) // block_ns
        cluster = (False, owner) if each.cluster is None else (True, each.cluster)
        for series, amounts in each.amounts.items():
            if (series.project, series.rule, series.by) != (query.project, query.rule, query.by or ""):
                continue
            if query.key not in (None, series.key) or query.version not in (None, series.version):
                continue
            place = (series.value if query.by is not None else None, series.key)
            labels = clusters[place].setdefault(cluster, {}).setdefault(block, {})
            before = labels.get(series.label)
            labels[series.label] = amounts if before is None else before.plus(amounts)
    found = []
    for (group, key), of_place in clusters.items():
        blocks: dict[tuple[int, str], list[float]] = {}
        names = {label for of_cluster in of_place.values() for each in of_cluster.values() for label in each}
        for of_cluster in of_place.values():
            _add_cluster(blocks, of_cluster, names, joined=query.joined)
        found += make_records(group, key, blocks, query)
    return sorted(
        found, key=lambda sums: (sums.group or "", sums.key, sums.label or "", sums.label is not None, sums.start_ns)
    )


# Positions of the sums of a block
N, WEIGHT, TOTAL, WEIGHT_SQUARES, PRODUCTS, TOTAL_SQUARES, GRADED, FAILED, SKIPPED, LEFT_OUT, LEFT_OUT_TOTAL = range(11)


def _add_cluster(
    blocks: dict[tuple[int, str], list[float]],
    cluster: Mapping[int, Mapping[str, ScoreAmounts]],
    labels: Iterable[str],
    *,
    joined: bool,
) -> None:
    """Add a cluster to the sums of its blocks, by block and label.

    If it is `joined`, its products with earlier blocks are added to the later block, so that the sums of all blocks
    are those of one cluster.
    """
    earlier: dict[str, tuple[float, float]] = {}
    for block in sorted(cluster):
        amounts = cluster[block]
        for label in labels:
            base = amounts.get(label if label == SCORES else ALL_LABELS)
            own = amounts.get(label)
            if base is None and own is None:
                continue
            weight = base.weight if base is not None else 0.0
            total = own.total if own is not None else 0.0
            before_weight, before_total = earlier.get(label, (0.0, 0.0)) if joined else (0.0, 0.0)
            sums = blocks.setdefault((block, label), [0.0] * 11)
            sums[WEIGHT] += weight
            sums[TOTAL] += total
            sums[WEIGHT_SQUARES] += weight * (weight + 2 * before_weight)
            sums[PRODUCTS] += weight * (total + before_total) + before_weight * total
            sums[TOTAL_SQUARES] += total * (total + 2 * before_total)
            earlier[label] = before_weight + weight, before_total + total
            counts = base if base is not None else ScoreAmounts()
            sums[N] += counts.n
            sums[GRADED] += counts.graded
            sums[FAILED] += counts.failed
            sums[SKIPPED] += counts.skipped
            sums[LEFT_OUT] += counts.left_out
            sums[LEFT_OUT_TOTAL] += counts.left_out_total


def make_records(
    group: str | None, key: str, blocks: Mapping[tuple[int, str], list[float]], query: SumsQuery
) -> list[ScoreSums]:
    """Return the records of one key, without that of all labels."""
    return [
        ScoreSums(
            key=key,
            label=None if label == SCORES else label[1:],
            group=group,
            start_ns=query.since_ns + block * query.block_s * 1_000_000_000,
            n=int(sums[N]),
            weight=sums[WEIGHT],
            total=sums[TOTAL],
            weight_squares=sums[WEIGHT_SQUARES],
            products=sums[PRODUCTS],
            total_squares=sums[TOTAL_SQUARES],
            graded=int(sums[GRADED]),
            failed=int(sums[FAILED]),
            skipped=int(sums[SKIPPED]),
            left_out=int(sums[LEFT_OUT]),
            left_out_total=sums[LEFT_OUT_TOTAL],
        )
        for (block, label), sums in blocks.items()
        if label != ALL_LABELS
    ]
