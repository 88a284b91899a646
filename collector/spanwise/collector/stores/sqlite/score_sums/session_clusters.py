"""Sums of sessions, each a cluster, and their products in the sums of blocks.

`score_clusters` has the sums of each session in each grain and hour. Those in wider blocks are computed from its hours,
which are few, so that a turn of a session changes two rows. The column `spans` of an hour says how far the session
reaches: 1 if it may have other hours in the same quarter of a day, 2 in the same day, 3 on other days, 0 if in none.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from math import fsum
from typing import Any, TypeAlias

from spanwise.collector.statistics import GRAIN_S
from spanwise.collector.stores.sqlite.score_sums.exact_rows import (
    change_parts,
    encode_parts,
    read_parts,
    replace_rows,
    select_places,
)

WIDTHS_S = (GRAIN_S, 3_600, 21_600, 86_400)  # widths of blocks by level
HOURS = 1  # the widest level at which the sums of sessions are stored
_HOURS_PER_BLOCK = tuple(width // WIDTHS_S[HOURS] for width in WIDTHS_S)  # 0 for grains
_GRAINS_PER_HOUR = WIDTHS_S[HOURS] // GRAIN_S
_HOURS_PER_DAY = _HOURS_PER_BLOCK[-1]
_OTHER_DAYS = len(WIDTHS_S) - 1  # value of `spans`

_COLUMNS = ("series", "level", "block", "session", "label", "weight", "total", "exact", "spans")
ClusterSums: TypeAlias = Mapping[int, tuple[float, float, bytes | None]]  # weight, total and exact parts by label
_Added: TypeAlias = dict[int, tuple[list[float], list[float]]]  # numbers added to weight and total, by label
_SeriesSession: TypeAlias = tuple[int, int]
# Takes series, level and number of a block, and the sums of a session in it before and after
ReplaceProducts: TypeAlias = Callable[[tuple[int, int, int], ClusterSums, ClusterSums], None]
_NO_SUMS: ClusterSums = {}

_SELECT_HOURS = (
    "SELECT s.series, s.session, s.block, s.label, s.weight, s.total, s.exact, s.spans FROM (VALUES {}) p"
    " CROSS JOIN score_clusters s INDEXED BY score_clusters_by_session"
    f" ON s.level = {HOURS} AND s.session = p.column2 AND s.series = p.column1"
    " AND s.block >= p.column3 AND s.block < p.column4"
)
_HAS_HOUR = (
    f"EXISTS (SELECT 1 FROM score_clusters s INDEXED BY score_clusters_by_session WHERE s.level = {HOURS}"
    " AND s.session = p.column2 AND s.series = p.column1 AND s.block {})"
)
_SELECT_OTHER_DAYS = (
    "SELECT p.column1, p.column2 FROM (VALUES {}) p"
    f" WHERE {_HAS_HOUR.format('< p.column3')} OR {_HAS_HOUR.format('>= p.column4')}"
)
_RAISE_SPANS = "UPDATE score_clusters SET spans = ? WHERE (series, level, block, session) = (?, ?, ?, ?) AND spans < ?"
_RAISE_ALL_SPANS = (
    f"UPDATE score_clusters INDEXED BY score_clusters_by_session SET spans = {_OTHER_DAYS}"
    f" WHERE level = {HOURS} AND session = ? AND series = ? AND spans < {_OTHER_DAYS}"
)
PAIRS_PER_SELECT = 100


class _SessionHours:
    """Hours of a session in one series: what is added to them, and the stored hours of the changed days."""

    __slots__ = ("added", "spans", "stored")

    def __init__(self) -> None:
        self.added: dict[int, _Added] = {}
        self.stored: dict[int, dict[int, tuple[float, float, bytes | None]]] = {}
        self.spans: dict[int, int] = {}

    def list_days(self) -> tuple[int, int]:
        """Return first and last (exclusive) hour of the changed days."""
        first, last = min(self.added), max(self.added)
        return first // _HOURS_PER_DAY * _HOURS_PER_DAY, (last // _HOURS_PER_DAY + 1) * _HOURS_PER_DAY


class SessionClusters:
    """Changes of the sums of sessions, for one update."""

    def __init__(self, db: sqlite3.Connection, replace_products: ReplaceProducts) -> None:
        self._db, self._replace_products = db, replace_products
        self._grains: dict[tuple[int, int, int, int], _Added] = {}  # by series, level 0, grain and session
        self._hours: dict[_SeriesSession, _SessionHours] = {}
        self._written: list[Sequence[Any]] = []
        self._removed: list[Sequence[int]] = []
        self._raised: list[Sequence[int]] = []

    def add(self, series: int, grain: int, session: int, label: int, weight: float, total: float) -> None:
        """Add numbers to the sums of a session in a grain; negative ones subtract."""
        place = series, 0, grain, session
        grains = self._grains.get(place)
        if grains is None:
            grains = self._grains[place] = {}
        numbers = grains.get(label)
        if numbers is None:
            grains[label] = [weight], [total]
        else:
            numbers[0].append(weight)
            numbers[1].append(total)

    def apply(self) -> None:
        """Write the changes, and replace the products of the sessions in all blocks."""
        if not self._grains:
            return
        self._change_grains()
        for series, session, hour, label, weight, total, exact, spans in self._select(_SELECT_HOURS, self._hours):
            stored_hours = self._hours[series, session]
            stored_hours.stored.setdefault(hour, {})[label] = weight, total, exact
            stored_hours.spans[hour] = min(spans, stored_hours.spans.get(hour, spans))
        new_hours = [pair for pair, hours in self._hours.items() if not hours.added.keys() <= hours.stored.keys()]
        on_other_days = set(self._select(_SELECT_OTHER_DAYS, new_hours))
        for pair, hours in self._hours.items():
            self._change_hours(pair, hours, on_other_days=pair in on_other_days)
        replace_rows(self._db, "score_clusters", _COLUMNS, self._written)
        sql = "DELETE FROM score_clusters WHERE (series, level, block, session, label) = (?, ?, ?, ?, ?)"
        self._db.executemany(sql, self._removed)
        self._db.executemany(_RAISE_SPANS, self._raised)
        self._db.executemany(_RAISE_ALL_SPANS, [(session, series) for series, session in on_other_days])

    def _change_grains(self) -> None:
        stored: dict[tuple[int, int, int, int], dict[int, tuple[float, float, bytes | None]]] = {}
        for row in select_places(self._db, "score_clusters", _COLUMNS, self._grains):
            stored.setdefault(row[:4], {})[row[4]] = row[5:8]
        for place, added in self._grains.items():
            series, level, grain, session = place
            old = stored.get(place, _NO_SUMS)
            self._replace_products((series, level, grain), old, self._change(place, old, added, 0))
            hours = self._hours.get((series, session))
            if hours is None:
                hours = self._hours[series, session] = _SessionHours()
            of_hour = hours.added.setdefault(grain // _GRAINS_PER_HOUR, {})
            for label, (weights, totals) in added.items():
                before = of_hour.get(label)
                of_hour[label] = (weights, totals) if before is None else (before[0] + weights, before[1] + totals)

    def _change(self, place: Sequence[int], old: ClusterSums, added: _Added, spans: int) -> ClusterSums:
        """Return the sums of a session in a block after numbers were added, and list the rows to be written."""
        new = dict(old)
        for label, numbers in added.items():
            parts = change_parts(old.get(label), numbers)
            weights, totals = parts
            weight, total = weights[0] if weights else 0.0, totals[0] if totals else 0.0
            if weight or total:
                new[label] = weight, total, encode_parts(parts) if len(weights) > 1 or len(totals) > 1 else None
                self._written.append((*place, label, *new[label], spans))
            elif new.pop(label, None) is not None:
                self._removed.append((*place, label))
        return new

    def _select(self, sql: str, pairs: Iterable[_SeriesSession]) -> Iterator[Any]:
        bounds = [(*pair, *self._hours[pair].list_days()) for pair in pairs]
        for at in range(0, len(bounds), PAIRS_PER_SELECT):
            chunk = bounds[at : at + PAIRS_PER_SELECT]
            yield from self._db.execute(sql.format(",".join(["(?,?,?,?)"] * len(chunk))), [*chain.from_iterable(chunk)])

    def _change_hours(self, pair: _SeriesSession, hours: _SessionHours, *, on_other_days: bool) -> None:
        series, session = pair
        old: Mapping[int, ClusterSums] = hours.stored
        spans = _find_spans(old.keys() | hours.added.keys(), on_other_days=on_other_days)
        new = dict(old)
        for hour, added in hours.added.items():
            before = old.get(hour, _NO_SUMS)
            reach = max(spans[hour], hours.spans.get(hour, 0))
            new[hour] = self._change((series, HOURS, hour, session), before, added, reach)
            self._replace_products((series, HOURS, hour), before, new[hour])
        combined: list[int] = []
        for level in range(HOURS + 1, len(WIDTHS_S)):
            width = _HOURS_PER_BLOCK[level]
            for block in {hour // width for hour in hours.added}:
                inside = [hour for hour in new if hour // width == block]
                if inside != combined:  # most sessions have the same hours in a block of six hours and in a day
                    combined = inside
                    before, after = (_combine([sums[hour] for hour in inside if hour in sums]) for sums in (old, new))
                self._replace_products((series, level, block), before, after)
        for hour, stored in hours.spans.items():
            if stored < spans[hour]:
                self._raised.append((spans[hour], series, HOURS, hour, session, spans[hour]))


def _find_spans(hours: Set[int], *, on_other_days: bool) -> dict[int, int]:
    """Return the value of `spans` of each hour of a session."""
    if on_other_days:
        return dict.fromkeys(hours, _OTHER_DAYS)
    if len(hours) == 1:
        return dict.fromkeys(hours, 0)
    found = dict.fromkeys(hours, HOURS)
    for level in range(HOURS + 1, len(WIDTHS_S)):
        if len({hour // _HOURS_PER_BLOCK[level] for hour in hours}) > 1:
            found = dict.fromkeys(hours, level)
    return found


def _combine(hours: Sequence[ClusterSums]) -> ClusterSums:
    """Return the sums of a session in a block of several hours."""
    if len(hours) <= 1:
        return hours[0] if hours else _NO_SUMS
    parts: dict[int, tuple[list[float], list[float]]] = {}
    for hour in hours:
        for label, (*rounded, exact) in hour.items():
            weights, totals = read_parts(rounded, exact)
            before = parts.get(label)
            parts[label] = (weights, totals) if before is None else (before[0] + weights, before[1] + totals)
    sums = {label: (fsum(weights), fsum(totals)) for label, (weights, totals) in parts.items()}
    return {label: (weight, total, None) for label, (weight, total) in sums.items() if weight or total}
