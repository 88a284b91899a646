"""Sums of a time window, block by block: from the tables of sums, or from all rows while the tables lack changes."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from spanwise.collector.errors import Refused, StoreError
from spanwise.collector.records import ScoreSums
from spanwise.collector.stores.sqlite.database.bulk_statements import select_many
from spanwise.collector.stores.sqlite.database_file import DatabaseFile
from spanwise.collector.stores.sqlite.score_sums.contributions import (
    ALL_LABELS,
    GRAIN_NS,
    GRAIN_S,
    LABEL_PREFIX,
    SCORES,
    Contribution,
    Grouping,
    ScoreAmounts,
    check_grouping,
    read_contributions,
)
from spanwise.collector.stores.sqlite.score_sums.sum_tables import (
    ALL_LABELS_ID,
    FIRST_LABEL_ID,
    SCORES_ID,
    WIDTHS_S,
    apply_changes,
    count_changes,
    hash_session,
)

MAX_BLOCKS = 100_000  # blocks of one query
MAX_APPLIED = 5_000  # changes that a query applies; if there are more, it reads all rows instead
CHANGES_PER_TRANSACTION = 500
_NS = 1_000_000_000


class SumsQuery(NamedTuple):
    """Query for the sums of a rule over the blocks of a window.

    If `joined`, a session in several blocks of the window is one cluster, otherwise one per block.
    """

    rule: str
    project: str
    since_ns: int
    until_ns: int
    block_s: int
    key: str | None = None
    version: str | None = None
    by: str | None = None
    groups: Collection[str] | None = None
    joined: bool = True

    def check(self) -> None:
        """Raise `Refused` for a window or a block that does not consist of whole grains, and for an unknown field."""
        if self.block_s <= 0 or self.block_s % GRAIN_S:
            raise Refused(f"block_s must be a multiple of {GRAIN_S}, got {self.block_s}")
        for name in ("since_ns", "until_ns"):
            if getattr(self, name) % GRAIN_NS:
                raise Refused(f"{name} must be a multiple of {GRAIN_S} seconds, got {getattr(self, name)}")
        if (self.until_ns - self.since_ns) // (self.block_s * _NS) > MAX_BLOCKS:
            raise Refused(f"the window has more than {MAX_BLOCKS:,} blocks of {self.block_s} s; choose longer blocks")
        if self.by is not None:
            check_grouping(self.by)
        elif self.groups is not None:
            raise Refused("groups were named without the field that they are values of; name it with by=")

    @property
    def level(self) -> int:
        """Return the widest level of sums whose blocks lie within those of the query."""
        bounds = (self.block_s * _NS, self.since_ns, self.until_ns)
        return max(level for level, width in enumerate(WIDTHS_S) if not any(bound % (width * _NS) for bound in bounds))


def read_sums(file: DatabaseFile, query: SumsQuery) -> list[ScoreSums]:
    """Return the sums of a window, including all changes that were committed before the call."""
    query.check()
    is_current = _apply_some_changes(file)
    with file.read() as reader:
        if is_current and _is_covered(reader.db, query):
            return _read_tables(reader.db, query)
        return _sum_rows(reader.db, query)


def count_groups(file: DatabaseFile, query: SumsQuery) -> dict[str, int]:
    """Return the number of weighted scores (or of labels, if a key has more of them) by group, highest first."""
    whole = max(GRAIN_S, (query.until_ns - query.since_ns) // _NS)
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for sums in read_sums(file, query._replace(block_s=whole, joined=False)):
        place = sums.group or "", sums.key
        counts[place] = max(counts[place], sums.n)
    found: dict[str, int] = defaultdict(int)
    for (group, _), count in counts.items():
        found[group] += count
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _apply_some_changes(file: DatabaseFile) -> bool:
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


def _is_covered(db: sqlite3.Connection, query: SumsQuery) -> bool:
    """Return whether the tables have the groups of a query."""
    if query.by is None:
        return True
    sql = "SELECT since_ns FROM score_groupings WHERE (project, rule, field) = (?, ?, ?)"
    row = db.execute(sql, (query.project, query.rule, query.by)).fetchone()
    return row is not None and row[0] <= query.since_ns


# Sums of a block, in the order of the columns of `_SELECT_SUMS`
_N, _GRADED, _FAILED, _SKIPPED, _LEFT_OUT = range(5)
_WEIGHT, _TOTAL, _WEIGHT_SQUARES, _PRODUCTS, _TOTAL_SQUARES, _LEFT_OUT_TOTAL = range(5, 11)
_Place: TypeAlias = tuple[str | None, str]  # group, key
_Blocks: TypeAlias = dict[tuple[int, int], list[float]]  # by number of the block and label
_ClusterPart: TypeAlias = tuple[int, Mapping[int, tuple[float, float]]]  # block, Σw and Σw·y by label

_SELECT_SUMS = (
    "SELECT series, (block - ?) / ?, label, sum(n), sum(graded), sum(failed), sum(skipped), sum(left_out), sum(weight),"
    " sum(total), sum(weight_squares), sum(products), sum(total_squares), sum(left_out_total) FROM score_sums"
    " WHERE level = ? AND block >= ? AND block < ? AND series IN (%s) GROUP BY 1, 2, 3"
)
_SELECT_CLUSTERS = (
    "SELECT series, session, block, label, weight, total FROM score_clusters"
    " WHERE level = ? AND block >= ? AND block < ? AND series IN (%s)"
)


def _read_tables(db: sqlite3.Connection, query: SumsQuery) -> list[ScoreSums]:
    places = _find_series(db, query)
    width_ns = WIDTHS_S[query.level] * _NS
    first, last, per_block = query.since_ns // width_ns, query.until_ns // width_ns, query.block_s * _NS // width_ns
    bounds = (query.level, first, last)
    found: dict[_Place, _Blocks] = defaultdict(dict)
    for series, block, label, *sums in select_many(db, _SELECT_SUMS, places, (first, per_block, *bounds)):
        _add(found[places[series]], (block, label), sums)
    if query.joined or per_block > 1 or query.version is None:
        parts: dict[tuple[_Place, int], dict[tuple[int, int], dict[int, tuple[float, float]]]] = defaultdict(dict)
        for series, session, block, label, *amounts in select_many(db, _SELECT_CLUSTERS, places, bounds):
            parts[places[series], session].setdefault((block, series), {})[label] = amounts[0], amounts[1]
        for (place, _), of_session in parts.items():
            if len(of_session) > 1:
                in_order = [
                    ((block - first) // per_block, of_session[block, series]) for block, series in sorted(of_session)
                ]
                _add_products(found[place], in_order, joined=query.joined)
    used = {label for blocks in found.values() for _, label in blocks if label >= FIRST_LABEL_ID}
    names = dict(select_many(db, "SELECT id, label FROM score_labels WHERE id IN (%s)", used))
    return _make_records(found, names, query)


def _find_series(db: sqlite3.Connection, query: SumsQuery) -> dict[int, _Place]:
    """Return group and key of each series of a query, by id."""
    sql = "SELECT id, value, key FROM score_series WHERE project = ? AND rule = ? AND field = ?"
    values = [query.project, query.rule, query.by or ""]
    for name, value in (("key", query.key), ("version", query.version)):
        if value is not None:
            sql, values = f"{sql} AND {name} = ?", [*values, value]
    rows = (
        db.execute(sql, values)
        if query.groups is None
        else select_many(db, f"{sql} AND value IN (%s)", query.groups, values)
    )
    return {id: (None if query.by is None else value, key) for id, value, key in rows}


def _sum_rows(db: sqlite3.Connection, query: SumsQuery) -> list[ScoreSums]:
    """Return the sums of a window, computed from all rows of feedback and decisions in it."""
    sql = (
        "SELECT DISTINCT f.{0} FROM feedback f WHERE f.rule = ? AND f.trace_start_ns >= ? AND f.trace_start_ns < ?"
        " AND f.standing >= 1 AND f.{0} IS NOT NULL"
    )
    bounds = (query.rule, query.since_ns, query.until_ns)
    traces = [row[0] for row in db.execute(sql.format("trace"), bounds)]
    sessions = [row[0] for row in db.execute(f"{sql.format('session_id')} AND f.trace IS NULL", bounds)]
    groupings = [Grouping(query.project, query.rule, query.by)] if query.by is not None else []
    contributions = read_contributions(db, traces, sessions, groupings)
    label_ids = {SCORES: SCORES_ID, ALL_LABELS: ALL_LABELS_ID}
    clusters: dict[tuple[_Place, int | tuple[int]], dict[int, dict[int, ScoreAmounts]]] = defaultdict(dict)
    for owner, each in ((owner, each) for owner, some in contributions.items() for each in some):
        if not query.since_ns <= each.start_ns < query.until_ns:
            continue
        block = (each.start_ns - query.since_ns) // (query.block_s * _NS)
        cluster = (int(owner),) if each.cluster is None else hash_session(each.cluster)
        for place, label, amounts in _select_amounts(each, query):
            id = label_ids.setdefault(label, len(label_ids))
            labels = clusters[place, cluster].setdefault(block, {})
            labels[id] = amounts.plus(labels[id]) if id in labels else amounts
    found: dict[_Place, _Blocks] = defaultdict(dict)
    for (place, _), blocks in clusters.items():
        for block, labels in blocks.items():
            _add_cluster(found[place], block, labels)
        in_order = [(block, {id: (a.weight, a.total) for id, a in blocks[block].items()}) for block in sorted(blocks)]
        _add_products(found[place], in_order, joined=query.joined)
    names = {id: label.removeprefix(LABEL_PREFIX) for label, id in label_ids.items()}
    return _make_records(found, names, query)


def _select_amounts(contribution: Contribution, query: SumsQuery) -> Iterable[tuple[_Place, str, ScoreAmounts]]:
    """Yield group and key, label, and amounts of the series that a query selects."""
    for series, amounts in contribution.amounts.items():
        if (
            (series.project, series.rule, series.field) == (query.project, query.rule, query.by or "")
            and query.key in (None, series.key)
            and query.version in (None, series.version)
            and (query.groups is None or series.value in query.groups)
        ):
            yield (None if query.by is None else series.value, series.key), series.label, amounts


def _add_cluster(blocks: _Blocks, block: int, labels: Mapping[int, ScoreAmounts]) -> None:
    """Add the part of a cluster within one block."""
    all_labels = labels[ALL_LABELS_ID].weight if ALL_LABELS_ID in labels else 0.0
    for label, amounts in labels.items():
        weight, total = amounts.weight, amounts.total
        sums = (
            *(amounts.n, amounts.graded, amounts.failed, amounts.skipped, amounts.left_out, weight, total),
            *(weight * weight, (weight if label == SCORES_ID else all_labels) * total, total * total),
            amounts.left_out_total,
        )
        _add(blocks, (block, label), sums)


def _add_products(blocks: _Blocks, cluster: Sequence[_ClusterPart], *, joined: bool) -> None:
    """Add the products of the parts of one cluster, which are in the order of their blocks, to the later block.

    Unless the cluster is `joined`, only products within a block are added.
    """
    earlier: dict[int, tuple[float, float]] = {}
    last = None
    for block, labels in cluster:
        if not joined and block != last:
            earlier = {}
        last = block
        all_labels, all_earlier = (part.get(ALL_LABELS_ID, (0.0, 0.0))[0] for part in (labels, earlier))
        # a label that only earlier parts have still has products with the weight of all labels of this part
        for label in {*labels, *(label for label in earlier if label >= FIRST_LABEL_ID and all_labels)}:
            weight, total = labels.get(label, (0.0, 0.0))
            weight_before, total_before = earlier.get(label, (0.0, 0.0))
            is_scores = label == SCORES_ID
            products = (weight if is_scores else all_labels) * total_before
            products += (weight_before if is_scores else all_earlier) * total
            added = [0.0] * 11
            added[_WEIGHT_SQUARES:_LEFT_OUT_TOTAL] = 2 * weight * weight_before, products, 2 * total * total_before
            _add(blocks, (block, label), added)
            earlier[label] = weight_before + weight, total_before + total


def _add(blocks: _Blocks, place: tuple[int, int], sums: Sequence[float]) -> None:
    before = blocks.get(place)
    blocks[place] = list(sums) if before is None else [a + b for a, b in zip(before, sums, strict=True)]


_NONE = [0.0] * 11


def _make_records(found: Mapping[_Place, _Blocks], names: Mapping[int, str], query: SumsQuery) -> list[ScoreSums]:
    """Return the records of all blocks that have scores, labels, errors or skips."""
    records = []
    for group, key in sorted(found, key=lambda place: (place[0] or "", place[1])):
        blocks = found[group, key]
        make = partial(_make_record, group, key, query)
        scores = sorted(block for block, label in blocks if label == SCORES_ID)
        records += [make(None, block, blocks[block, SCORES_ID], blocks[block, SCORES_ID]) for block in scores]
        labelled = sorted(block for block, label in blocks if label == ALL_LABELS_ID)
        for id in sorted({label for _, label in blocks if label >= FIRST_LABEL_ID}, key=lambda id: names[id]):
            for block in labelled:
                own, counts = blocks.get((block, id), _NONE), blocks[block, ALL_LABELS_ID]
                outcomes = blocks.get((block, SCORES_ID), _NONE)
                combined = [*counts[:_FAILED], outcomes[_FAILED], outcomes[_SKIPPED], *counts[_LEFT_OUT:]]
                records.append(make(names[id], block, combined, own))
    return records


def _make_record(
    group: str | None,
    key: str,
    query: SumsQuery,
    label: str | None,
    block: int,
    sums: Sequence[Any],
    own: Sequence[Any],
) -> ScoreSums:
    """Return a record with the counts and weights of `sums`, and the totals of `own`."""
    return ScoreSums(
        key=key,
        label=label,
        group=group,
        start_ns=query.since_ns + block * query.block_s * _NS,
        n=int(sums[_N]),
        weight=sums[_WEIGHT],
        total=own[_TOTAL],
        weight_squares=sums[_WEIGHT_SQUARES],
        products=own[_PRODUCTS],
        total_squares=own[_TOTAL_SQUARES],
        graded=int(sums[_GRADED]),
        failed=int(sums[_FAILED]),
        skipped=int(sums[_SKIPPED]),
        left_out=int(sums[_LEFT_OUT]),
        left_out_total=sums[_LEFT_OUT_TOTAL],
    )
