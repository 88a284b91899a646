"""Hourly sums that follow the rows: whoever writes, changes or deletes traces or feedback says so here.

What stands in `sums` and `sums_said` for an hour is, after every transaction, what its rows add up to, unless
`sums_hours` says that the hour is to be counted anew (`STALE`, see `_recount`) or is never counted (`WILD`: too many
names, models, keys or labels): then it is read from rows. What is made ready of hours and days at rest (see `_rest`) is
so no more in the transaction that changes them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from spanwise.collector.stores.sqlite import _cells, _hours
from spanwise.collector.stores.sqlite._counted import (
    MOST_ROWS,
    Cell,
    Counted,
    Delta,
    TooMuch,
    all_under,
    of_traces,
    said_of,
)
from spanwise.collector.stores.sqlite._sql import find_many

GOOD, STALE, WILD = 0, 1, 2
STIRRED, READY, BARE = 0, 1, 2  # of an hour or a day: not ready, ready, at rest with nothing made of it
HOURS = 1_000  # remembered at most
MOST_SAID = 1_000  # of one trace, that moves to another cell at once


class Sums:
    """The sums on the writer's connection, in its transaction. Remembers rows, which nobody else writes."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._watched: dict[int, Delta] = {}  # what changes while somebody counts an hour anew, see `_recount`
        self._hours: dict[int, tuple[int, int]] = {}  # state, and rows
        self._stirred: set[int] = set()  # hours of which nothing is ready, nor of their days
        self.stirred: set[int] = set()  # hours that have changed since `_rest` has looked
        self._cells = _cells.Known()

    def forget(self) -> None:
        """After a rollback what was noted beside the file may not have happened: counting begins again."""
        self._watched.clear()
        self._read_again()

    def _read_again(self) -> None:
        self._hours.clear()
        self._cells.clear()
        self._stirred.clear()

    def watch(self, hour: int) -> None:
        """Note from now on what changes in an hour."""
        self._watched[hour] = Delta()

    def watched(self, hour: int) -> Delta | None:
        """What has changed since `watch`, no longer noted; None where that is not known."""
        return self._watched.pop(hour, None)

    @contextmanager
    def of_traces(self, keys: Collection[int], new: Mapping[int, Counted]) -> Iterator[None]:
        """Within, rows of `traces` may be written. Those that are new have none yet, and nothing is said of them: what
        they count for need not be read.
        """
        others = [key for key in keys if key not in new]
        before = of_traces(self._db, others)
        yield
        self._turn(before, of_traces(self._db, others), new)

    @contextmanager
    def of_feedback(
        self, pairs: Iterable[tuple[int | None, str]], new: Collection[int] = ()
    ) -> Iterator[set[tuple[int, str]]]:
        """Within, feedback under these keys of traces may be written, settled, and removed. Nothing is said of those
        that are new yet. Gives those under which there was none.
        """
        on_traces = {(trace, key) for trace, key in pairs if trace is not None}
        there = all_under(self._db, [pair for pair in on_traces if pair[0] not in new])
        yield on_traces.difference([row[:2] for row in there])
        before, after = _that_counts(there), _that_counts(all_under(self._db, on_traces))
        if before != after:
            counted = of_traces(self._db, {trace for trace, _ in on_traces})
            changes = _Changes()
            changes.said(counted, before, -1)
            changes.said(counted, after, 1)
            self._apply(changes)

    def gone(self, keys: Sequence[int]) -> None:
        """Traces are about to be deleted, with all that is said of them."""
        counted, changes = of_traces(self._db, keys), _Changes()
        for one in counted.values():
            changes.trace(one, -1)
        changes.said(counted, said_of(self._db, counted), -1)
        self._apply(changes)

    def _turn(self, before: Mapping[int, Counted], after: Mapping[int, Counted], new: Mapping[int, Counted]) -> None:
        changes, moved = _Changes(), []
        for now in new.values():
            changes.trace(now, 1)
        for key, now in after.items():
            was = before.get(key)
            if was != now:
                if was is not None:
                    changes.trace(was, -1)
                changes.trace(now, 1)
                if was is None or was.place != now.place:
                    moved.append(key)
            else:  # its runs may have other names
                self._stir(now.hour)
        self._move_said(changes, before, after, moved)
        self._apply(changes)

    def _move_said(
        self, changes: _Changes, before: Mapping[int, Counted], after: Mapping[int, Counted], moved: Sequence[int]
    ) -> None:
        """What is said of traces follows them into other cells; for one with very much of it hours are counted anew."""
        if not moved:
            return
        counts = dict(_said_counts(self._db, moved))
        few = [key for key in moved if counts.get(key, 0) and counts[key] <= MOST_SAID]
        for key in counts:
            if counts[key] > MOST_SAID:
                changes.unsure.update(one.hour for one in (before.get(key), after[key]) if one is not None)
        rows = said_of(self._db, few)
        changes.said(before, rows, -1)
        changes.said(after, rows, 1)

    def _apply(self, changes: _Changes) -> None:
        for hour in changes.deltas.keys() | changes.unsure | changes.wild:
            self._apply_to(hour, changes)

    def _apply_to(self, hour: int, changes: _Changes) -> None:
        state, rows = self._standing(hour)
        self._stir(hour)
        if hour in self._watched:
            self._note(hour, changes)
        if hour in changes.wild:
            self.mark(hour, WILD)
        elif hour in changes.unsure:
            self.mark(hour, STALE)
        elif state == GOOD:
            self._change(hour, rows, changes.deltas[hour])

    def _standing(self, hour: int) -> tuple[int, int]:
        """The state of an hour, and of how many rows its sums are."""
        if hour not in self._hours:
            found = self._db.execute("SELECT state, rows FROM sums_hours WHERE hour = ?", (hour,)).fetchone()
            if found is None:
                self._db.execute("INSERT INTO sums_hours (hour, rows, state) VALUES (?, 0, ?)", (hour, GOOD))
            self._note_hour(hour, *(found or (GOOD, 0)))
        return self._hours[hour]

    def _stir(self, hour: int) -> None:
        """An hour changes: nothing of it is ready from now on, nor of its day."""
        self.stirred.add(hour)
        if hour not in self._stirred:
            if len(self._stirred) >= HOURS:
                self._stirred.clear()
            self._stirred.add(hour)
            self._db.execute("UPDATE sums_hours SET rest = 0, named = 0 WHERE hour = ? AND rest > 0", (hour,))
            self._db.execute("UPDATE sums_days SET rest = 0 WHERE day = ? AND rest > 0", (hour // 24,))

    def rested(self) -> set[int]:
        """The hours that have changed since this was asked last."""
        stirred, self.stirred = self.stirred, set()
        return stirred

    def made_ready(self) -> None:
        """Hours and days have been made ready, in this transaction."""
        self._stirred.clear()

    def _note_hour(self, hour: int, state: int, rows: int) -> None:
        if len(self._hours) >= HOURS:
            self._hours.clear()
        self._hours[hour] = state, rows

    def _note(self, hour: int, changes: _Changes) -> None:
        if hour in changes.wild or hour in changes.unsure:
            del self._watched[hour]
        elif hour in changes.deltas:
            self._watched[hour].add(changes.deltas[hour])

    def _change(self, hour: int, rows: int, delta: Delta) -> None:
        try:
            grown = _cells.change(self._db, delta, self._cells)
        except _cells.Unsure:
            self.mark(hour, STALE)
        except TooMuch:
            self.mark(hour, WILD)
        else:
            if rows + grown > MOST_ROWS:
                self.mark(hour, WILD)
            elif rows + grown == 0:
                self._db.execute("DELETE FROM sums_hours WHERE hour = ?", (hour,))
                _hours.drop(self._db, hour)
                self._hours.pop(hour, None)
            elif grown:
                self._db.execute("UPDATE sums_hours SET rows = ? WHERE hour = ?", (rows + grown, hour))
                self._note_hour(hour, GOOD, rows + grown)

    def mark(self, hour: int, state: int) -> None:
        """An hour is to be read from rows, and its sums are of no use; one that is wild already stays so."""
        self._read_again()
        self._stir(hour)
        self._db.execute("UPDATE sums_hours SET state = max(state, ?), rows = -1 WHERE hour = ?", (state, hour))

    def empty(self, hour: int) -> None:
        """Drop the sums of an hour, which is read from rows."""
        self._read_again()
        self._stir(hour)
        _cells.drop(self._db, hour)
        self._db.execute("UPDATE sums_hours SET rows = 0 WHERE hour = ?", (hour,))

    def put(self, hour: int, counted: Delta | None, changed: Delta) -> None:
        """What was counted anew, and what has changed meanwhile; None: there is too much of it."""
        self._read_again()
        self._stir(hour)
        _cells.drop(self._db, hour)
        state = WILD if counted is None else GOOD
        self._db.execute("UPDATE sums_hours SET rows = 0, state = ? WHERE hour = ?", (state, hour))
        for delta in (counted, changed) if counted is not None else ():
            state, rows = self._standing(hour)
            if state == GOOD:
                self._change(hour, rows, delta)


class _Changes:
    """What one write changes, by hour."""

    def __init__(self) -> None:
        self.deltas: dict[int, Delta] = {}
        self.unsure: set[int] = set()
        self.wild: set[int] = set()

    def trace(self, one: Counted, sign: int) -> None:
        try:
            self._of(one.hour).add_trace(one, sign)
        except TooMuch:
            self.wild.add(one.hour)

    def said(self, counted: Mapping[int, Counted], rows: Iterable[Sequence[Any]], sign: int) -> None:
        """Count feedback with its trace, if that counts."""
        cells: dict[int, list[Cell]] = {}
        for trace, *row in rows:
            if (one := counted.get(trace)) is not None:
                try:
                    if trace not in cells:
                        cells[trace] = one.cells()
                    self._of(one.hour).add_said(cells[trace], row, sign)
                except TooMuch:
                    self.wild.add(one.hour)

    def _of(self, hour: int) -> Delta:
        return self.deltas.setdefault(hour, Delta())


def _that_counts(rows: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
    return [row[:5] for row in rows if row[5]]


def _said_counts(db: sqlite3.Connection, keys: Sequence[int]) -> Iterator[tuple[int, int]]:
    yield from find_many(db, "SELECT trace, count(*) FROM feedback WHERE trace IN (%s) GROUP BY trace", keys)
