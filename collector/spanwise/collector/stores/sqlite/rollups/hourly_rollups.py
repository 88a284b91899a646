"""Hourly rollups, updated in the transaction that changes traces or feedback.

After every transaction, `sums` and `sums_said` equal the totals of the rows of each hour, with two exceptions.
`sums_hours` marks an hour `STALE` if it must be recounted (see `maintenance.background_jobs`), and `TOO_LARGE` if it has
too many names, models, keys or labels. Queries read such hours from rows. A transaction that changes a sealed hour or
day (see `sealed_rollups`) also marks it as no longer sealed.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from spanwise.collector.stores.sqlite.rollups import sealed_rollups
from spanwise.collector.stores.sqlite.rollups.rollup_delta import (
    HOUR_NS,
    MAX_HOUR_ROWS,
    FeedbackAmounts,
    RollupChanges,
    RollupDelta,
    RollupKey,
    RollupTooLarge,
    TraceAmounts,
    TraceContribution,
    add_to_bins,
    from_units,
    read_contributions,
    read_counted_feedback,
    read_feedback_under,
    sum_hour,
    unpack_bins,
)
from spanwise.collector.stores.table_rows import select_many

_INT_MAX = 2**63 - 1
_MAX_CACHED_ROWS = 200  # maximum number of rows in each of the two caches
_FIND_CELL = (
    "SELECT id, n, errors, exact, latencies FROM sums"
    " WHERE hour = ? AND project = ? AND environment = ? AND name = ? AND shown = ? AND model = ?"
)
_INSERT_CELL = (
    "INSERT INTO sums (hour, project, environment, name, shown, model, n, errors, input_tokens, output_tokens, cost,"
    " exact, latencies) VALUES (?, ?, ?, ?, ?, ?, 0, 0, 0, 0, 0.0, '0 0 0', x'')"
)
_UPDATE_CELL = (
    "UPDATE sums SET n = ?, errors = ?, input_tokens = ?, output_tokens = ?, cost = ?, exact = ?, latencies = ?"
    " WHERE id = ?"
)
_FEEDBACK_COLUMNS = "said, n, exact, minimum, minimum_n, maximum, maximum_n, failed, skipped"
_FIND_FEEDBACK = f"SELECT {_FEEDBACK_COLUMNS} FROM sums_said WHERE cell = ? AND key = ? AND label = ?"
_PUT_FEEDBACK = (
    "INSERT OR REPLACE INTO sums_said (said, n, total, exact, minimum, minimum_n, maximum, maximum_n, failed, skipped,"
    " cell, key, label) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class RecountNeeded(Exception):
    """A delta cannot be applied: the row to subtract from is missing, or the new minimum or maximum score is unknown.
    The hour must be recounted.
    """


class RowCache:
    """Cache of rollup rows. Valid because only the writer changes them."""

    def __init__(self) -> None:
        # rows of `_FIND_CELL`, and of `_FIND_FEEDBACK` by cell, key and label
        self.cells: dict[RollupKey, tuple[int, int, int, str, bytes]] = {}
        self.feedback: dict[tuple[int, str, str], tuple[Any, ...]] = {}

    def clear(self) -> None:
        self.cells.clear()
        self.feedback.clear()

    def trim(self) -> None:
        """Clear the cache if it exceeds its limit."""
        if len(self.cells) > _MAX_CACHED_ROWS or len(self.feedback) > _MAX_CACHED_ROWS:
            self.clear()


def apply_delta(db: sqlite3.Connection, delta: RollupDelta, cache: RowCache) -> int:
    """Apply the delta of one hour; return by how many rows the hour has grown.

    Reads rows from the `cache` and keeps written rows in it. Raises `RecountNeeded` or `RollupTooLarge`; some
    of the hour's rows may have been changed then.
    """
    ids: dict[RollupKey, int] = {}
    empty: list[RollupKey] = []
    grown = 0
    for cell, part in delta.cells.items():
        ids[cell], n, is_new = _change_cell(db, cell, part, cache)
        grown += is_new
        if n == 0:
            empty.append(cell)
    for (cell, key, label), said in delta.feedback.items():
        if cell not in ids:
            row = cache.cells.get(cell) or db.execute(_FIND_CELL, cell).fetchone()
            if row is None:
                raise RecountNeeded
            cache.cells[cell] = row
            ids[cell] = int(row[0])
        grown += _change_feedback(db, (ids[cell], key, label), said, cache)
    if empty:
        cache.clear()
    for cell in empty:  # deleted last, because feedback of this delta may still refer to the cell
        grown -= db.execute("DELETE FROM sums_said WHERE cell = ?", (ids[cell],)).rowcount
        grown -= db.execute("DELETE FROM sums WHERE id = ?", (ids[cell],)).rowcount
    cache.trim()
    return grown


def delete_hour(db: sqlite3.Connection, hour: int) -> None:
    """Delete the rollup of an hour."""
    db.execute("DELETE FROM sums_said WHERE cell IN (SELECT id FROM sums WHERE hour = ?)", (hour,))
    db.execute("DELETE FROM sums WHERE hour = ?", (hour,))
    sealed_rollups.put_rows(db, sealed_rollups.HOURS, hour, ())


def read_hour(db: sqlite3.Connection, hour: int) -> dict[Any, Any]:
    """Return the stored rollup of an hour, in the form of `compute_expected_hour`. Raises `ValueError` if it is
    damaged.
    """
    rows = db.execute("SELECT * FROM sums WHERE hour = ?", (hour,)).fetchall()
    cells = {row[0]: row[1:7] for row in rows}
    sql = f"SELECT cell, key, label, {_FEEDBACK_COLUMNS} FROM sums_said WHERE cell IN (SELECT id FROM sums WHERE hour = ?)"
    return {
        **{row[1:7]: (row[7], row[8], row[12], unpack_bins([row[13]])) for row in rows},
        **{(cells[row[0]], *row[1:3]): row[3:] for row in db.execute(sql, (hour,))},
    }


def compute_expected_hour(delta: RollupDelta) -> dict[Any, Any]:
    """Return the cells and feedback that the rollup of an hour must have if `delta` covers all of its traces."""
    expected: dict[Any, Any] = {}
    for cell, amounts in delta.cells.items():
        exact = f"{amounts.input_tokens} {amounts.output_tokens} {amounts.cost}"
        expected[cell] = (amounts.n, amounts.errors, exact, +amounts.bins)
    for place, said in delta.feedback.items():
        least, most = (_update_extreme(None, 0, said.scores, said.n, sign) for sign in (-1.0, 1.0))
        expected[place] = (said.said, said.n, str(said.total), *least, *most, said.failed, said.skipped)
    return expected


def _change_cell(db: sqlite3.Connection, cell: RollupKey, part: TraceAmounts, cache: RowCache) -> tuple[int, int, bool]:
    """Apply a change to a cell; return its row id, its number of traces, and whether the row is new."""
    row = cache.cells.get(cell) or db.execute(_FIND_CELL, cell).fetchone()
    id, n, errors, exact, blob = row or (db.execute(_INSERT_CELL, cell).lastrowid or 0, 0, 0, "0 0 0", b"")
    n, errors = n + part.n, errors + part.errors
    parts = zip(map(int, exact.split()), (part.input_tokens, part.output_tokens, part.cost), strict=True)
    sums = [old + new for old, new in parts]
    try:
        latencies = add_to_bins(blob, part.bins)
    except ValueError:  # the bins come from a machine whose logarithm differs at the border of two bins
        raise RecountNeeded from None
    if n < 0 or errors < 0:
        raise RecountNeeded
    tokens = [value if value <= _INT_MAX else float(value) for value in sums[:2]]
    exact = " ".join(map(str, sums))
    db.execute(_UPDATE_CELL, (n, errors, *tokens, from_units(sums[2]), exact, latencies, id))
    cache.cells[cell] = int(id), n, errors, exact, latencies
    return int(id), n, row is None


def _change_feedback(
    db: sqlite3.Connection, place: tuple[int, str, str], more: FeedbackAmounts, cache: RowCache
) -> int:
    row = cache.feedback.get(place) or db.execute(_FIND_FEEDBACK, place).fetchone()
    said, n, exact, minimum, minimum_n, maximum, maximum_n, failed, skipped = row or (0, 0, "0", None, 0, None, 0, 0, 0)
    n, total = n + more.n, int(exact) + more.total
    counts = (said + more.said, failed + more.failed, skipped + more.skipped)
    if n < 0 or min(counts) < 0:
        raise RecountNeeded
    if not any(counts):
        cache.feedback.pop(place, None)
        db.execute("DELETE FROM sums_said WHERE cell = ? AND key = ? AND label = ?", place)
        return -1 if row else 0
    least = _update_extreme(minimum, minimum_n, more.scores, n, -1.0)
    most = _update_extreme(maximum, maximum_n, more.scores, n, 1.0)
    now: tuple[Any, ...] = (counts[0], n, str(total), *least, *most, *counts[1:])
    db.execute(_PUT_FEEDBACK, (*now[:2], from_units(total), *now[2:], *place))
    cache.feedback[place] = now
    return 0 if row else 1


def _update_extreme(
    old: float | None, count: int, changes: Counter[float], n: int, sign: float
) -> tuple[float | None, int]:
    """Return the new maximum score (with `sign` -1: minimum) and its number of occurrences, after scores were added and
    removed.

    Raises `RecountNeeded` if no score of the old maximum is left, because the next one is unknown.
    """
    if n == 0:
        return None, 0
    here = {score: times for score, times in changes.items() if times}
    beyond = {score: times for score, times in here.items() if old is None or sign * score > sign * old}
    if any(times < 0 for times in beyond.values()):
        raise RecountNeeded
    if beyond:
        best = max(beyond, key=lambda score: sign * score)
        return best, beyond[best]
    left = count + (here.get(old, 0) if old is not None else 0)
    if left <= 0:
        raise RecountNeeded
    return old, left


def count_wrong_hours(db: sqlite3.Connection) -> int:
    """Return how many hours have a rollup that differs from the totals of their rows."""
    hours = [row[0] for row in db.execute("SELECT hour FROM sums_hours WHERE state = 0")]
    bad = 0
    for hour in hours:
        counted = sum_hour(db, hour)
        try:
            bad += counted is None or compute_expected_hour(counted) != read_hour(db, hour)
        except ValueError:
            bad += 1
    left_out = f"start_ns / {HOUR_NS} NOT IN (SELECT hour FROM sums_hours)"
    return bad + int(db.execute(f"SELECT count(*) FROM traces WHERE span_count > 0 AND {left_out}").fetchone()[0])


VALID, STALE, TOO_LARGE = 0, 1, 2
CHANGED, SEALED, SEALED_EMPTY = 0, 1, 2  # `rest` of an hour or a day: not sealed, sealed, sealed without totals
MAX_CACHED_HOURS = 1_000  # maximum number of hours in a cache
# maximum feedback of a trace that moves to another cell; if there is more, the hour is recounted
MAX_MOVED_FEEDBACK = 1_000


class HourlyRollups:
    """Rollups on the writer's connection, updated within its transactions. Caches rows, because no other connection
    writes them.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        # Changes of hours that are being recounted, see `maintenance.background_jobs`
        self._recorded: dict[int, RollupDelta] = {}
        self._hours: dict[int, tuple[int, int]] = {}  # state, and number of rows
        self._unsealed_hours: set[int] = set()  # hours already marked as changed, with their days
        self.changed_hours: set[int] = set()  # hours changed since the last call of `take_changed_hours`
        self._cells = RowCache()

    def forget(self) -> None:
        """Drop caches and recorded changes after a rollback; recounts of hours start again."""
        self._recorded.clear()
        self._clear_caches()

    def _clear_caches(self) -> None:
        self._hours.clear()
        self._cells.clear()
        self._unsealed_hours.clear()

    def start_recording(self, hour: int) -> None:
        """Start recording the changes of an hour."""
        self._recorded[hour] = RollupDelta()

    def stop_recording(self, hour: int) -> RollupDelta | None:
        """Return the changes since `start_recording` and stop recording; None if they are unknown."""
        return self._recorded.pop(hour, None)

    @contextmanager
    def update_traces(self, keys: Collection[int], new: Mapping[int, TraceContribution]) -> Iterator[None]:
        """Update the rollups for the rows of `traces` that the `with` block writes.

        `new` has the contributions of new traces. They had no row and no feedback before, so nothing is read for them.
        """
        others = [key for key in keys if key not in new]
        before = read_contributions(self._db, others) if others else {}
        yield
        self._apply_traces(before, read_contributions(self._db, others) if others else {}, new)

    @contextmanager
    def update_feedback(
        self, pairs: Iterable[tuple[int | None, str]], new: Collection[int] = ()
    ) -> Iterator[set[tuple[int, str]]]:
        """Update the rollups for feedback that the `with` block writes or removes under these pairs of trace and key.

        Yields the pairs that have no feedback before the block. Traces in `new` have none, so they are not looked up.
        """
        on_traces = {(trace, key) for trace, key in pairs if trace is not None}
        there = read_feedback_under(self._db, [pair for pair in on_traces if pair[0] not in new])
        yield on_traces.difference([row[:2] for row in there])
        before, after = _only_counted(there), _only_counted(read_feedback_under(self._db, on_traces))
        if before != after:
            counted = read_contributions(self._db, {trace for trace, _ in on_traces})
            changes = RollupChanges()
            changes.add_feedback(counted, before, -1)
            changes.add_feedback(counted, after, 1)
            self._apply(changes)

    def subtract_traces(self, keys: Sequence[int]) -> None:
        """Subtract traces and their feedback. Must be called before they are deleted."""
        counted, changes = read_contributions(self._db, keys), RollupChanges()
        changes.add_traces(counted.values(), -1)
        changes.add_feedback(counted, read_counted_feedback(self._db, counted), -1)
        self._apply(changes)

    def _apply_traces(
        self,
        before: Mapping[int, TraceContribution],
        after: Mapping[int, TraceContribution],
        new: Mapping[int, TraceContribution],
    ) -> None:
        changes = RollupChanges()
        changes.add_traces(new.values(), 1)
        changed = [key for key, now in after.items() if before.get(key) != now]
        changes.add_traces([before[key] for key in changed if key in before], -1)
        changes.add_traces([after[key] for key in changed], 1)
        for key, now in after.items():
            if before.get(key) == now:  # the contribution is the same, but the names of runs may have changed
                self._unseal(now.hour)
        moved = [key for key in changed if key not in before or before[key].place != after[key].place]
        self._move_feedback(changes, before, after, moved)
        self._apply(changes)

    def _move_feedback(
        self,
        changes: RollupChanges,
        before: Mapping[int, TraceContribution],
        after: Mapping[int, TraceContribution],
        moved: Sequence[int],
    ) -> None:
        """Move the feedback of traces to their new cells. If a trace has more than `MAX_MOVED_FEEDBACK` rows, mark its
        hours for a recount instead.
        """
        if not moved:
            return
        sql = "SELECT trace, count(*) FROM feedback WHERE trace IN (%s) GROUP BY trace"
        counts = dict(select_many(self._db, sql, moved))
        few = [key for key in moved if counts.get(key, 0) and counts[key] <= MAX_MOVED_FEEDBACK]
        for key in counts:
            if counts[key] > MAX_MOVED_FEEDBACK:
                changes.stale.update(one.hour for one in (before.get(key), after[key]) if one is not None)
        rows = read_counted_feedback(self._db, few)
        changes.add_feedback(before, rows, -1)
        changes.add_feedback(after, rows, 1)

    def _apply(self, changes: RollupChanges) -> None:
        for hour in changes.deltas.keys() | changes.stale | changes.too_large:
            self._apply_hour(hour, changes)

    def _apply_hour(self, hour: int, changes: RollupChanges) -> None:
        state, rows = self._hour_state(hour)
        self._unseal(hour)
        if hour in self._recorded:
            if hour in changes.too_large or hour in changes.stale:
                del self._recorded[hour]
            elif hour in changes.deltas:
                self._recorded[hour].add(changes.deltas[hour])
        if hour in changes.too_large:
            self.mark(hour, TOO_LARGE)
        elif hour in changes.stale:
            self.mark(hour, STALE)
        elif state == VALID:
            self._change(hour, rows, changes.deltas[hour])

    def _hour_state(self, hour: int) -> tuple[int, int]:
        """Return the state of an hour and the number of its rollup rows."""
        if hour not in self._hours:
            found = self._db.execute("SELECT state, rows FROM sums_hours WHERE hour = ?", (hour,)).fetchone()
            if found is None:
                self._db.execute("INSERT INTO sums_hours (hour, rows, state) VALUES (?, 0, ?)", (hour, VALID))
            self._cache_hour(hour, *(found or (VALID, 0)))
        return self._hours[hour]

    def _unseal(self, hour: int) -> None:
        """Mark an hour and its day as changed, so no longer sealed."""
        self.changed_hours.add(hour)
        if hour not in self._unsealed_hours:
            if len(self._unsealed_hours) >= MAX_CACHED_HOURS:
                self._unsealed_hours.clear()
            self._unsealed_hours.add(hour)
            self._db.execute("UPDATE sums_hours SET rest = 0, named = 0 WHERE hour = ? AND rest > 0", (hour,))
            self._db.execute("UPDATE sums_days SET rest = 0 WHERE day = ? AND rest > 0", (hour // 24,))

    def take_changed_hours(self) -> set[int]:
        """Return the hours that have changed since the last call."""
        changed_hours, self.changed_hours = self.changed_hours, set()
        return changed_hours

    def clear_unsealed(self) -> None:
        """Forget which hours are marked as changed, because this transaction has sealed hours or days."""
        self._unsealed_hours.clear()

    def _cache_hour(self, hour: int, state: int, rows: int) -> None:
        if len(self._hours) >= MAX_CACHED_HOURS:
            self._hours.clear()
        self._hours[hour] = state, rows

    def _change(self, hour: int, rows: int, delta: RollupDelta) -> None:
        try:
            grown = apply_delta(self._db, delta, self._cells)
        except RecountNeeded:
            self.mark(hour, STALE)
        except RollupTooLarge:
            self.mark(hour, TOO_LARGE)
        else:
            if rows + grown > MAX_HOUR_ROWS:
                self.mark(hour, TOO_LARGE)
            elif rows + grown == 0:
                self._db.execute("DELETE FROM sums_hours WHERE hour = ?", (hour,))
                sealed_rollups.put_rows(self._db, sealed_rollups.HOURS, hour, ())
                self._hours.pop(hour, None)
            elif grown:
                self._db.execute("UPDATE sums_hours SET rows = ? WHERE hour = ?", (rows + grown, hour))
                self._cache_hour(hour, VALID, rows + grown)

    def mark(self, hour: int, state: int) -> None:
        """Mark an hour `STALE` or `TOO_LARGE`, so that it is read from rows. `TOO_LARGE` is never reset to `STALE`."""
        self._clear_caches()
        self._unseal(hour)
        self._db.execute("UPDATE sums_hours SET state = max(state, ?), rows = -1 WHERE hour = ?", (state, hour))

    def clear_hour(self, hour: int) -> None:
        """Delete the rollup rows of an hour that is read from rows."""
        self._clear_caches()
        self._unseal(hour)
        delete_hour(self._db, hour)
        self._db.execute("UPDATE sums_hours SET rows = 0 WHERE hour = ?", (hour,))

    def store_recount(self, hour: int, counted: RollupDelta | None, changed: RollupDelta) -> None:
        """Store a recounted hour and apply the changes made meanwhile. `counted` None: the hour is too large."""
        self._clear_caches()
        self._unseal(hour)
        delete_hour(self._db, hour)
        state = TOO_LARGE if counted is None else VALID
        self._db.execute("UPDATE sums_hours SET rows = 0, state = ? WHERE hour = ?", (state, hour))
        for delta in (counted, changed) if counted is not None else ():
            state, rows = self._hour_state(hour)
            if state == VALID:
                self._change(hour, rows, delta)


def _only_counted(rows: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
    return [row[:5] for row in rows if row[5]]
