"""The hourly sums as the file has them: rows of `sums` and `sums_said`, changed by what a `Delta` adds and takes."""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import Any

from spanwise.collector.stores.sqlite import _hours
from spanwise.collector.stores.sqlite._counted import HOUR_NS, Cell, Delta, Part, Said, amount, count
from spanwise.collector.stores.sqlite._latencies import added, unpacked

_INT_MAX = 2**63 - 1
_REMEMBERED = 200  # rows of either kind, at most
_FIND = (
    "SELECT id, n, errors, exact, latencies FROM sums"
    " WHERE hour = ? AND project = ? AND environment = ? AND name = ? AND shown = ? AND model = ?"
)
_MAKE = (
    "INSERT INTO sums (hour, project, environment, name, shown, model, n, errors, input_tokens, output_tokens, cost,"
    " exact, latencies) VALUES (?, ?, ?, ?, ?, ?, 0, 0, 0, 0, 0.0, '0 0 0', x'')"
)
_CHANGE = (
    "UPDATE sums SET n = ?, errors = ?, input_tokens = ?, output_tokens = ?, cost = ?, exact = ?, latencies = ?"
    " WHERE id = ?"
)
_SAID = "said, n, exact, minimum, minimum_n, maximum, maximum_n, failed, skipped"
_FIND_SAID = f"SELECT {_SAID} FROM sums_said WHERE cell = ? AND key = ? AND label = ?"
_PUT_SAID = (
    "INSERT OR REPLACE INTO sums_said (said, n, total, exact, minimum, minimum_n, maximum, maximum_n, failed, skipped,"
    " cell, key, label) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class Unsure(Exception):
    """What is to be taken away does not stand there, or nobody knows what comes after it: count the hour anew."""


class Known:
    """Rows as they stand, for as long as nobody else writes any."""

    def __init__(self) -> None:
        self.cells: dict[Cell, tuple[int, int, int, str, bytes]] = {}  # as of `_FIND`
        self.said: dict[tuple[int, str, str], tuple[Any, ...]] = {}  # by cell, key and label, as of `_FIND_SAID`

    def clear(self) -> None:
        """Whatever stands there is to be read."""
        self.cells.clear()
        self.said.clear()

    def trim(self) -> None:
        """Keep within bounds."""
        if len(self.cells) > _REMEMBERED or len(self.said) > _REMEMBERED:
            self.clear()


def change(db: sqlite3.Connection, delta: Delta, known: Known) -> int:
    """Add what a delta of one hour adds, take what it takes; by how many rows the hour has grown. What is written is
    known then, and what is known is not read.

    Raises `Unsure` or `TooMuch`; some of the hour's rows have been changed then.
    """
    ids: dict[Cell, int] = {}
    empty: list[Cell] = []
    grown = 0
    for cell, part in delta.parts.items():
        ids[cell], n, is_new = _change(db, cell, part, known)
        grown += is_new
        if n == 0:
            empty.append(cell)
    for (cell, key, label), said in delta.said.items():
        if cell not in ids:
            ids[cell] = _found(db, cell, known)
        grown += _change_said(db, (ids[cell], key, label), said, known)
    if empty:
        known.clear()
    for cell in empty:  # last: nothing may be said in a cell that is not there
        grown -= db.execute("DELETE FROM sums_said WHERE cell = ?", (ids[cell],)).rowcount
        db.execute("DELETE FROM sums_latencies WHERE cell = ?", (ids[cell],))
        grown -= db.execute("DELETE FROM sums WHERE id = ?", (ids[cell],)).rowcount
    known.trim()
    return grown


def drop(db: sqlite3.Connection, hour: int) -> None:
    """Forget the sums of an hour."""
    for table in ("sums_said", "sums_latencies"):
        db.execute(f"DELETE FROM {table} WHERE cell IN (SELECT id FROM sums WHERE hour = ?)", (hour,))
    db.execute("DELETE FROM sums WHERE hour = ?", (hour,))
    _hours.drop(db, hour)


def stored(db: sqlite3.Connection, hour: int) -> dict[Any, Any]:
    """All that stands for an hour, as `expected` has it."""
    rows = db.execute("SELECT * FROM sums WHERE hour = ?", (hour,)).fetchall()
    cells = {row[0]: row[1:7] for row in rows}
    sql = f"SELECT cell, key, label, {_SAID} FROM sums_said WHERE cell IN (SELECT id FROM sums WHERE hour = ?)"
    said = db.execute(sql, (hour,)).fetchall()
    return {
        **{row[1:7]: (row[7], row[8], row[12], _bins(row[13])) for row in rows},
        **{(cells[row[0]], *row[1:3]): row[3:] for row in said},
    }


def _bins(blob: bytes) -> Counter[int] | None:
    try:
        return unpacked([blob])
    except ValueError:  # damaged: it is like nothing that is expected
        return None


def expected(delta: Delta) -> dict[Any, Any]:
    """What stands for an hour of which this is all: cells, and what is said in them."""
    parts = {
        cell: (one.n, one.errors, f"{one.input_tokens} {one.output_tokens} {one.cost}", +one.bins)
        for cell, one in delta.parts.items()
    }
    said = {place: _whole(one) for place, one in delta.said.items()}
    return {**parts, **said}


def _whole(one: Said) -> tuple[Any, ...]:
    least, most = _extreme(None, 0, one.scores, one.n, -1.0), _extreme(None, 0, one.scores, one.n, 1.0)
    return (one.said, one.n, str(one.total), *least, *most, one.failed, one.skipped)


def _found(db: sqlite3.Connection, cell: Cell, known: Known) -> int:
    row = known.cells.get(cell) or db.execute(_FIND, cell).fetchone()
    if row is None:
        raise Unsure
    known.cells[cell] = row
    return int(row[0])


def _change(db: sqlite3.Connection, cell: Cell, part: Part, known: Known) -> tuple[int, int, bool]:
    """The id of a cell's row, how many traces stand there now, and whether the row is new."""
    row = known.cells.get(cell) or db.execute(_FIND, cell).fetchone()
    id, n, errors, exact, blob = row or (db.execute(_MAKE, cell).lastrowid or 0, 0, 0, "0 0 0", b"")
    n, errors = n + part.n, errors + part.errors
    parts = zip(map(int, exact.split()), (part.input_tokens, part.output_tokens, part.cost), strict=True)
    sums = [old + new for old, new in parts]
    latencies = _added(blob, part.bins)
    if n < 0 or errors < 0:
        raise Unsure
    tokens = [value if value <= _INT_MAX else float(value) for value in sums[:2]]
    exact = " ".join(map(str, sums))
    db.execute(_CHANGE, (n, errors, *tokens, amount(sums[2]), exact, latencies, id))
    known.cells[cell] = int(id), n, errors, exact, latencies
    return int(id), n, row is None


def _added(blob: bytes, more: Counter[int]) -> bytes:
    try:
        return added(blob, more)
    except ValueError:  # of another machine's logarithm, at the border of two bins
        raise Unsure from None


def _change_said(db: sqlite3.Connection, place: tuple[int, str, str], more: Said, known: Known) -> int:
    row = known.said.get(place) or db.execute(_FIND_SAID, place).fetchone()
    said, n, exact, minimum, minimum_n, maximum, maximum_n, failed, skipped = row or (0, 0, "0", None, 0, None, 0, 0, 0)
    n, total = n + more.n, int(exact) + more.total
    counts = (said + more.said, failed + more.failed, skipped + more.skipped)
    if n < 0 or min(counts) < 0:
        raise Unsure
    if not any(counts):
        known.said.pop(place, None)
        db.execute("DELETE FROM sums_said WHERE cell = ? AND key = ? AND label = ?", place)
        return -1 if row else 0
    least = _extreme(minimum, minimum_n, more.scores, n, -1.0)
    most = _extreme(maximum, maximum_n, more.scores, n, 1.0)
    now: tuple[Any, ...] = (counts[0], n, str(total), *least, *most, *counts[1:])
    db.execute(_PUT_SAID, (*now[:2], amount(total), *now[2:], *place))
    known.said[place] = now
    return 0 if row else 1


def _extreme(old: float | None, count: int, changes: Counter[float], n: int, sign: float) -> tuple[float | None, int]:
    """The greatest score (the least, with the sign turned) and how many there are of it, after some came and went.

    Raises `Unsure` where the last of them went: what stands below is not known.
    """
    if n == 0:
        return None, 0
    here = {score: times for score, times in changes.items() if times}
    beyond = {score: times for score, times in here.items() if old is None or sign * score > sign * old}
    if any(times < 0 for times in beyond.values()):
        raise Unsure
    if beyond:
        best = max(beyond, key=lambda score: sign * score)
        return best, beyond[best]
    left = count + (here.get(old, 0) if old is not None else 0)
    if left <= 0:
        raise Unsure
    return old, left


def wrong(db: sqlite3.Connection) -> int:
    """Of how many hours the sums are not those of their rows."""
    hours = [row[0] for row in db.execute("SELECT hour FROM sums_hours WHERE state = 0")]
    left_out = f"start_ns / {HOUR_NS} NOT IN (SELECT hour FROM sums_hours)"
    bad = 0
    for hour in hours:
        counted = count(db, hour)
        bad += counted is None or expected(counted) != stored(db, hour)
    return bad + int(db.execute(f"SELECT count(*) FROM traces WHERE span_count > 0 AND {left_out}").fetchone()[0])
