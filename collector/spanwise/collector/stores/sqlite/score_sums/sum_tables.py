"""Tables of sums: changed traces are subtracted with their old contribution and added with their new one.

Sums exist at four widths: grains of 150 seconds, hours, quarters of a day, and days. At each width, a session is one cluster within a
block. `score_contributions` has the contribution of each trace as it is included in the sums, and `score_clusters` the
sums of each session (see `session_clusters`). All sums are exact (see `ExactSum`), so that adding and subtracting never
drifts.

Changed traces and sessions are recorded in `score_changes` and `score_target_changes`, in the transaction of the
change (see `score_sum_schema`). `apply_changes` removes them in the transaction that changes the sums. A crash in between loses nothing.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from spanwise.collector.statistics import GRAIN_S
from spanwise.collector.stores.control.decision_rows import decode_target
from spanwise.collector.stores.sqlite.database.score_sum_schema import watch_group_fields
from spanwise.collector.stores.sqlite.score_sums.contributions import (
    Contribution,
    Grouping,
    SeriesKey,
    read_contributions,
)
from spanwise.collector.stores.sqlite.score_sums.exact_rows import (
    change_parts,
    encode_parts,
    expand,
    replace_rows,
    select_places,
)
from spanwise.collector.stores.sqlite.score_sums.session_clusters import WIDTHS_S, ClusterSums, SessionClusters
from spanwise.collector.stores.table_rows import delete_many, insert_many, select_many
from spanwise.collector.stores.weighted_sums import (
    ALL_LABELS,
    ALL_LABELS_ID,
    FIRST_LABEL_ID,
    GRAIN_NS,
    LABEL_PREFIX,
    LIVE,
    SCORES,
    SCORES_ID,
    ScoreAmounts,
    check_grouping,
    hash_session,
    make_live_field,
)

_GRAINS = tuple(width // GRAIN_S for width in WIDTHS_S)
MAX_LABELS = 100  # labels per series; further ones count only as labelled scores
MAX_LABEL_CHARACTERS = 200
MAX_GROUPS = 10_000  # values per grouping; further ones are in the group `OTHER_GROUPS`
OTHER_GROUPS = "\N{HORIZONTAL ELLIPSIS}"
FILL_DAYS = 15  # age of the traces that a new grouping covers
_DAY_NS = 86_400 * 1_000_000_000

_SUM_COLUMNS = (
    *("series", "level", "block", "label", "n", "graded", "failed", "skipped", "left_out"),
    *("weight", "total", "weight_squares", "products", "total_squares", "left_out_total", "exact"),
)
_SumPlace: TypeAlias = tuple[int, int, int, int]  # series, level, block, label
_COUNTS, _SUMS = 5, 6  # counts and sums of a row


class _Stored(msgspec.Struct, array_like=True):
    """Contribution as stored: grain, cluster id of the session, and amounts with the ids of series and label."""

    grain: int
    session: int | None
    amounts: list[tuple[int, int, int, float, float, int, int, int, int, float]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Stored]).decode


def count_changes(db: sqlite3.Connection, enough: int) -> int:
    """Return the number of recorded changes; stop counting at `enough`."""
    counts = (
        int(db.execute(f"SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT ?)", (enough,)).fetchone()[0])
        for table in ("score_changes", "score_target_changes")
    )
    return min(enough, sum(counts))


def apply_changes(db: sqlite3.Connection, limit: int) -> int:
    """Apply up to `limit` recorded changes to the sums, those of the newest traces first. Return their number."""
    traces = [row[0] for row in db.execute("SELECT trace FROM score_changes ORDER BY trace DESC LIMIT ?", (limit,))]
    targets = [row[0] for row in db.execute("SELECT target FROM score_target_changes LIMIT ?", (limit - len(traces),))]
    sessions = [target[1:] for target in targets if target.startswith("/")]
    ids = {decode_target("", target).trace_id for target in targets if not target.startswith("/")}
    keys = {*traces, *(row[0] for row in select_many(db, "SELECT id FROM traces WHERE trace_id IN (%s)", ids))}
    if keys or sessions:
        _Update(db).run(keys, sessions)
    delete_many(db, "score_changes", "trace", traces)
    delete_many(db, "score_target_changes", "target", targets)
    return len(traces) + len(targets)


def register_grouping(db: sqlite3.Connection, project: str, rule: str, by: str) -> None:
    """Keep the sums of a rule per value of a field from now on, and add those of the last `FILL_DAYS` days.

    `by` is tag, model, environment, prompt_version, agent, name, user or metadata.KEY; `Refused` is raised for another.
    Registering a grouping again changes nothing.
    """
    check_grouping(by)
    _register(db, project, rule, by)
    if db.execute(f"{_SELECT_GROUPING} AND field = ?", (project, rule, LIVE)).fetchone():
        _register(db, project, rule, make_live_field(by))


def register_live_sums(db: sqlite3.Connection, project: str, rule: str) -> None:
    """Keep the sums of a rule without its backfills, too, in total and for each field by which its sums are grouped."""
    fields = [row[0] for row in db.execute(_SELECT_GROUPING, (project, rule)).fetchall()]
    for by in (None, *(field for field in fields if not field.startswith(LIVE))):
        _register(db, project, rule, make_live_field(by))


_SELECT_GROUPING = "SELECT field FROM score_groupings WHERE project = ? AND rule = ?"


def _register(db: sqlite3.Connection, project: str, rule: str, field: str) -> None:
    row = (project, rule, field)
    watch_group_fields(db)
    if db.execute("INSERT OR IGNORE INTO score_groupings VALUES (?, ?, ?, ?)", (*row, 0)).rowcount:
        [newest] = db.execute("SELECT max(trace_start_ns) FROM feedback WHERE rule = ?", (rule,)).fetchone()
        since = (newest or 0) - FILL_DAYS * _DAY_NS
        since = since // _DAY_NS * _DAY_NS  # whole blocks at all widths
        sql = "UPDATE score_groupings SET since_ns = ? WHERE (project, rule, field) = (?, ?, ?)"
        db.execute(sql, (since, *row))
        db.execute(
            "INSERT OR IGNORE INTO score_changes SELECT DISTINCT trace FROM feedback"
            " WHERE rule = ? AND trace_start_ns >= ? AND trace IS NOT NULL",
            (rule, since),
        )
        db.execute(
            "INSERT OR IGNORE INTO score_target_changes SELECT DISTINCT '/' || session_id FROM feedback"
            " WHERE rule = ? AND trace_start_ns >= ? AND trace IS NULL AND session_id IS NOT NULL",
            (rule, since),
        )


def remove_grouping(db: sqlite3.Connection, project: str, rule: str, by: str) -> None:
    """Stop keeping the sums of a rule per value of a field. The sums remain until their traces change."""
    sql = "DELETE FROM score_groupings WHERE (project, rule) = (?, ?) AND field IN (?, ?)"
    db.execute(sql, (project, rule, by, make_live_field(by)))


class _RowChange:
    """Change of one row of `score_sums`: counts, clusters that are added and removed, and other numbers for each sum.

    A cluster is its Σw, its Σw·y, and the weight that its Σw·y is multiplied with in ΣWY.
    """

    __slots__ = ("added", "counts", "numbers", "removed")

    def __init__(self) -> None:
        self.counts = [0] * _COUNTS
        self.added: list[_Cluster] = []
        self.removed: list[_Cluster] = []
        self.numbers: list[list[float]] = [[] for _ in range(_SUMS)]

    def merge(self, other: _RowChange) -> None:
        """Add the change of a narrower block, whose numbers are exact sums already."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        for own, numbers in zip(self.numbers, other.numbers, strict=True):
            own += numbers

    def add_up(self) -> list[list[float]]:
        """Replace the clusters by the exact sums of their products, and return the numbers that are added to each sum."""
        if self.added or self.removed:
            for numbers, added, removed in zip(
                self.numbers, _list_products(self.added), _list_products(self.removed), strict=False
            ):
                numbers += added
                numbers += [-product for product in removed]
            self.numbers = [expand(numbers) for numbers in self.numbers]
            self.added, self.removed = [], []
        return self.numbers


_Cluster: TypeAlias = tuple[float, float, float]


def _list_products(clusters: Sequence[_Cluster]) -> tuple[list[float], ...]:
    """Return Σw, Σw·y, and the products ΣW², ΣWY and ΣY² of each cluster."""
    weights = [weight for weight, _, _ in clusters]
    totals = [total for _, total, _ in clusters]
    with_totals = [with_total * total for _, total, with_total in clusters]
    squares = [weight * weight for weight in weights]
    return weights, totals, squares, with_totals, [total * total for total in totals]


class _Update:
    """One update of the tables."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._rows: dict[_SumPlace, _RowChange] = defaultdict(_RowChange)
        self._clusters = SessionClusters(db, self._replace_products)
        self._names = _Names(db)

    def run(self, traces: Iterable[int], sessions: Sequence[str]) -> None:
        groupings = [Grouping(*row) for row in self._db.execute("SELECT project, rule, field FROM score_groupings")]
        new = read_contributions(self._db, traces, sessions, groupings)
        owners: list[int | str] = [*traces, *(f"/{session}" for session in sessions)]
        old = dict(select_many(self._db, "SELECT owner, data FROM score_contributions WHERE owner IN (%s)", owners))
        written: list[tuple[int | str, bytes]] = []
        removed: list[int | str] = []
        for owner in owners:
            now = new.get(owner if isinstance(owner, int) else owner[1:], ())
            stored = [each for each in map(self._names.encode, now) if each.amounts]
            data = _encode(stored) if stored else None
            before = old.get(owner)
            if data == before:
                continue
            for each in _decode(before) if before is not None else ():
                self._add(each, -1)
            for each in stored:
                self._add(each, 1)
            if data is not None:
                written.append((owner, data))
            else:
                removed.append(owner)
        self._add_wider_blocks()
        self._clusters.apply()
        self._change_rows()
        insert_many(
            self._db,
            "score_contributions",
            ("owner", "data"),
            written,
            "ON CONFLICT DO UPDATE SET data = excluded.data",
        )
        delete_many(self._db, "score_contributions", "owner", removed)
        self._names.delete_unused()

    def _add(self, stored: _Stored, sign: int) -> None:
        """Add or subtract the contribution of a trace, in its grain."""
        grain, session = stored.grain, stored.session
        all_labels = {row[0]: row[3] for row in stored.amounts if row[1] == ALL_LABELS_ID}
        for series, label, n, weight, total, graded, failed, skipped, left_out, left_out_total in stored.amounts:
            change = self._rows[series, 0, grain, label]
            counts = change.counts
            counts[0] += sign * n
            counts[1] += sign * graded
            counts[2] += sign * failed
            counts[3] += sign * skipped
            counts[4] += sign * left_out
            if left_out_total:
                change.numbers[-1].append(sign * left_out_total)
            if not (weight or total):
                continue
            if session is None:
                with_total = weight if label == SCORES_ID else all_labels.get(series, 0.0)
                (change.added if sign > 0 else change.removed).append((weight, total, with_total))
            else:
                self._clusters.add(series, grain, session, label, sign * weight, sign * total)

    def _add_wider_blocks(self) -> None:
        """Add the changes of grains to the wider blocks that contain them."""
        rows = list(self._rows.items())
        for _, change in rows:
            change.add_up()
        for level, grains in list(enumerate(_GRAINS))[1:]:
            for (series, _, grain, label), change in rows:
                self._rows[series, level, grain // grains, label].merge(change)

    def _replace_products(self, block: tuple[int, int, int], old: ClusterSums, new: ClusterSums) -> None:
        """Replace the products of a session in the sums of a block: series, level and number."""
        all_before, all_after = (sums[ALL_LABELS_ID][0] if ALL_LABELS_ID in sums else 0.0 for sums in (old, new))
        for label in new if old.keys() <= new.keys() else {**old, **new}:
            change = self._rows[(*block, label)]
            if label in old:
                weight, total, _ = old[label]
                change.removed.append((weight, total, weight if label == SCORES_ID else all_before))
            if label in new:
                weight, total, _ = new[label]
                change.added.append((weight, total, weight if label == SCORES_ID else all_after))

    def _change_rows(self) -> None:
        before = {row[:4]: row[4:] for row in select_places(self._db, "score_sums", _SUM_COLUMNS, self._rows)}
        written: list[Sequence[Any]] = []
        removed: list[Sequence[Any]] = []
        for place, change in self._rows.items():
            old = before.get(place)
            counts = change.counts if old is None else [a + b for a, b in zip(old, change.counts, strict=False)]
            parts = change_parts(None if old is None else old[_COUNTS:], change.add_up())
            if any(counts) or any(parts):
                exact = encode_parts(parts)
                written.append((*place, *counts, *(part[0] if part else 0.0 for part in parts), exact))
            elif old is not None:
                removed.append(place)
        replace_rows(self._db, "score_sums", _SUM_COLUMNS, written)
        self._db.executemany("DELETE FROM score_sums WHERE (series, level, block, label) = (?, ?, ?, ?)", removed)


class _Names:
    """Ids of series and labels, created as needed. For one update."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._series: dict[SeriesKey, int] = {}
        self._places: dict[SeriesKey, tuple[int, int | None]] = {}  # ids of series and label
        self._labels: dict[str, int] = {}
        self._labels_of_series: dict[int, set[int]] = {}
        self._groups: dict[Grouping, int] = {}

    def encode(self, contribution: Contribution) -> _Stored:
        """Return a contribution as it is stored."""
        amounts: dict[tuple[int, int], ScoreAmounts] = {}
        for series, each in contribution.amounts.items():
            place = self._places.get(series)
            if place is None:
                of_series = self._series_id(series._replace(label=""))
                place = self._places[series] = of_series, self._label_id(of_series, series.label)
            if place[1] is not None:
                # a trace with several values in the group of other values counts once
                amounts.setdefault((place[0], place[1]), each)
        session = None if contribution.cluster is None else hash_session(contribution.cluster)
        stored = sorted((*place, *each) for place, each in amounts.items())
        return _Stored(contribution.start_ns // GRAIN_NS, session, stored)

    def _series_id(self, series: SeriesKey) -> int:
        id = self._series.get(series)
        if id is None:
            columns = ", ".join(SeriesKey._fields)
            sql = f"SELECT id FROM score_series WHERE ({columns}) = (?, ?, ?, ?, ?, ?, ?)"
            row = self._db.execute(sql, series).fetchone()
            id = int(row[0]) if row else None
            if id is None and series.field and series.value != OTHER_GROUPS and self._is_full(series):
                id = self._series_id(series._replace(value=OTHER_GROUPS))
            if id is None:
                sql = f"INSERT INTO score_series ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)"
                id = int(self._db.execute(sql, series).lastrowid or 0)
            self._series[series] = id
        return id

    def _is_full(self, series: SeriesKey) -> bool:
        """Return whether the grouping of a new series has no place for its value."""
        of_grouping = "FROM score_series WHERE project = ? AND rule = ? AND field = ?"
        grouping = Grouping(series.project, series.rule, series.field)
        if grouping not in self._groups:
            [self._groups[grouping]] = self._db.execute(
                f"SELECT count(DISTINCT value) {of_grouping}", grouping
            ).fetchone()
        if self._db.execute(f"SELECT 1 {of_grouping} AND value = ? LIMIT 1", (*grouping, series.value)).fetchone():
            return False  # another key or version has it
        self._groups[grouping] += 1
        return self._groups[grouping] > MAX_GROUPS

    def delete_unused(self) -> None:
        """Delete the series without sums of groupings that are full."""
        unused = "NOT EXISTS (SELECT 1 FROM score_sums s WHERE s.series = score_series.id)"
        sql = f"DELETE FROM score_series WHERE project = ? AND rule = ? AND field = ? AND {unused}"
        self._db.executemany(sql, [grouping for grouping, count in self._groups.items() if count > MAX_GROUPS])

    def _label_id(self, series: int, label: str) -> int | None:
        """Return the id of a label; None if the series has too many of them."""
        if label in (SCORES, ALL_LABELS):
            return SCORES_ID if label == SCORES else ALL_LABELS_ID
        if len(label) > MAX_LABEL_CHARACTERS:
            return None
        known = self._labels_of_series.get(series)
        if known is None:
            sql = f"SELECT DISTINCT label FROM score_sums WHERE series = ? AND level = ? AND label >= {FIRST_LABEL_ID}"
            known = self._labels_of_series[series] = {
                row[0] for row in self._db.execute(sql, (series, len(WIDTHS_S) - 1))
            }
        id = self._labels.get(label)
        if id is None:
            text = label.removeprefix(LABEL_PREFIX)
            row = self._db.execute("SELECT id FROM score_labels WHERE label = ?", (text,)).fetchone()
            if row is None and len(known) >= MAX_LABELS:
                return None
            sql = "INSERT INTO score_labels (id, label) SELECT max(?, 1 + coalesce(max(id), 0)), ? FROM score_labels RETURNING id"
            row = row or self._db.execute(sql, (FIRST_LABEL_ID, text)).fetchone()
            id = self._labels[label] = int(row[0])
        if id not in known and len(known) >= MAX_LABELS:
            return None
        known.add(id)
        return id
