"""What is kept of hours and days at rest (see `_rest`): latencies in order, and the sums of a day."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import isclose
from typing import Any, NamedTuple, TypeAlias

from msgspec import msgpack

from spanwise.collector.stores.sqlite import _hours
from spanwise.collector.stores.sqlite._counted import AT_ONCE, WHOLE, TooMuch, bounds, keys_of, of_traces
from spanwise.collector.stores.sqlite._latencies import EXACT, all_of, bin_of, ordered, packed, together, unpacked
from spanwise.collector.stores.sqlite._rollup import LISTED
from spanwise.collector.stores.sqlite._sql import insert_many
from spanwise.collector.stores.sqlite._values import loads

MOST_TRACES = 100_000  # of an hour, whose latencies are read to be put in order
MOST_NAMES = 1_000  # of runs of an hour
_NAMES = (
    "SELECT DISTINCT names FROM traces INDEXED BY traces_by_start"
    " WHERE start_ns BETWEEN ? AND ? AND span_count > 0 AND names IS NOT NULL"
)
# Project, environment, name, shown, model
Kind: TypeAlias = tuple[str, str, str, int, str]
_KIND = "s.project, s.environment, s.name, s.shown, s.model"
_OF_DAY = (
    *("id", "day", "project", "environment", "name", "shown", "model"),
    *("n", "errors", "input_tokens", "output_tokens", "cost", "first", "last", "latencies", "ordered"),
)
_SAID_OF_DAY = ("cell", "key", "label", "said", "n", "total", "minimum", "maximum", "failed", "skipped")
_COUNTS = (
    f"SELECT {_KIND}, sum(s.n), sum(s.errors), total(s.input_tokens), total(s.output_tokens), total(s.cost),"
    " min(s.hour), max(s.hour) FROM sums s WHERE s.hour BETWEEN ? AND ? GROUP BY 1, 2, 3, 4, 5"
)
_LATENCIES = (
    f"SELECT {_KIND}, s.latencies, l.data FROM sums s LEFT JOIN sums_latencies l ON l.cell = s.id"
    " WHERE s.hour BETWEEN ? AND ?"
)
_SAID = (
    f"SELECT {_KIND}, f.key, f.label, sum(f.said), sum(f.n), total(f.total), min(f.minimum), max(f.maximum),"
    " sum(f.failed), sum(f.skipped) FROM sums s CROSS JOIN sums_said f ON f.cell = s.id"
    " WHERE s.hour BETWEEN ? AND ? GROUP BY 1, 2, 3, 4, 5, 6, 7"
)


class Day(NamedTuple):
    """What the hours of a day add up to: rows as `_OF_DAY` and `_SAID_OF_DAY` have them, without id and day, and
    without the cell, in whose place is its kind.
    """

    rows: dict[Kind, tuple[Any, ...]]
    said: list[tuple[Kind, tuple[Any, ...]]]


def insert(db: sqlite3.Connection, day: int, found: Day) -> None:
    first = db.execute("SELECT coalesce(max(id), 0) + 1 FROM sums_of_days").fetchone()[0]
    ids = {kind: id for id, kind in enumerate(found.rows, first)}
    rows = [(ids[kind], day, *kind, *row) for kind, row in found.rows.items()]
    insert_many(db, "sums_of_days", _OF_DAY, rows)
    insert_many(db, "sums_said_of_days", _SAID_OF_DAY, [(ids[kind], *row) for kind, row in found.said])


def in_order(db: sqlite3.Connection, hour: int, rest: Callable[[], object] = lambda: None) -> dict[int, bytes] | None:
    """The latencies of an hour by cell, in order, but for those of more than `EXACT`; None where it has too many, or
    where its rows are not what its sums say. Rests now and then.
    """
    cells = db.execute(f"SELECT s.hour, {_KIND}, s.id, s.n FROM sums s WHERE s.hour = ?", (hour,)).fetchall()
    if sum(row[7] for row in cells if row[5] == WHOLE) > MOST_TRACES:
        return None
    asked: dict[Any, list[int]] = {row[:6]: [] for row in cells if row[7] <= EXACT}
    try:
        for keys in keys_of(db, hour, AT_ONCE):
            for one in of_traces(db, keys).values():
                for cell in one.cells():
                    if cell in asked:
                        asked[cell].append(one.latency_ns)
            rest()
    except TooMuch:  # a row is damaged
        return None
    if any(len(asked.get(row[:6], ())) != row[7] for row in cells if row[7] <= EXACT):
        return None
    return {row[6]: ordered(asked[row[:6]]) for row in cells if row[:6] in asked}


def names(db: sqlite3.Connection, hour: int) -> list[str] | None:
    """Which names the runs of an hour have; None where these are too many, or not all listed."""
    found = set[str]()
    for (listed,) in db.execute(_NAMES, bounds(hour)):
        try:
            some = loads(listed)
            found.update(some)
        except (ValueError, TypeError):  # it is damaged
            return None
        if len(some) >= LISTED or len(found) > MOST_NAMES:
            return None
    return sorted(found)


def added_up(db: sqlite3.Connection, day: int) -> Day:
    """What the sums of the hours of a day add up to."""
    hours = (24 * day, 24 * day + 23)
    bins: dict[Kind, list[bytes]] = {}
    parts: dict[Kind, list[bytes | None]] = {}
    for *kind, latencies, data in db.execute(_LATENCIES, hours):
        bins.setdefault(tuple(kind), []).append(latencies)
        parts.setdefault(tuple(kind), []).append(data)
    rows = {}
    for *kind, n, errors, tokens_in, tokens_out, cost, first, last in db.execute(_COUNTS, hours):
        key: Kind = tuple(kind)
        together = packed(unpacked(bins[key]))
        rows[key] = (n, errors, tokens_in, tokens_out, cost, first, last, together, _together(n, parts[key]))
    said = [(tuple(row[:5]), tuple(row[5:])) for row in db.execute(_SAID, hours)]
    return Day(rows, said)


def _together(n: int, parts: Sequence[bytes | None]) -> bytes | None:
    if n > EXACT or None in parts:
        return None
    try:
        return together([part for part in parts if part is not None])
    except ValueError:  # one is damaged
        return None


def wrong(db: sqlite3.Connection) -> int:
    """Of how many hours and days what is ready is not what it stands for."""
    hours = [row[0] for row in db.execute("SELECT hour FROM sums_hours WHERE rest = 1")]
    days = [row[0] for row in db.execute("SELECT day FROM sums_days WHERE rest = 1")]
    bad_hours = sum(not (all(_as_counted(db, hour)) and _is_added_up(db, hour)) for hour in hours)
    return bad_hours + sum(not _alike(_stored(db, day), added_up(db, day)) for day in days)


def _alike(one: object, other: object) -> bool:
    """Whether two are the same but for the order in which amounts were added."""
    if isinstance(one, float) and isinstance(other, float):
        return isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(one, dict) and isinstance(other, dict):
        return _alike(sorted(one.items()), sorted(other.items()))
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_alike, one, other))
    return one == other


def _as_counted(db: sqlite3.Connection, hour: int) -> Iterator[bool]:
    sql = "SELECT s.latencies, l.data FROM sums s LEFT JOIN sums_latencies l ON l.cell = s.id WHERE s.hour = ?"
    for bins, data in db.execute(f"{sql} AND s.n <= {EXACT}", (hour,)):
        try:
            yield data is not None and Counter(map(bin_of, all_of(data))) == unpacked([bins])
        except ValueError:
            yield False


def _is_added_up(db: sqlite3.Connection, hour: int) -> bool:
    latencies = "SELECT l.cell, l.data FROM sums s CROSS JOIN sums_latencies l ON l.cell = s.id WHERE s.hour = ?"
    expected = _hours.added_up(db, hour, dict(db.execute(latencies, (hour,)).fetchall()))
    rows = db.execute("SELECT hour, side, project, data FROM sums_of_hours WHERE hour = ?", (hour,)).fetchall()
    try:
        return expected is not None and _alike(_plain(rows), _plain(expected))
    except ValueError:  # one is damaged
        return False


def _plain(rows: Sequence[_hours.Row]) -> list[Any]:
    return sorted((*row[:3], msgpack.decode(row[3])) for row in rows)


def _stored(db: sqlite3.Connection, day: int) -> Day:
    rows, kinds = {}, {}
    for id, _, *row in db.execute(f"SELECT {', '.join(_OF_DAY)} FROM sums_of_days WHERE day = ?", (day,)):
        kinds[id] = tuple(row[:5])
        rows[kinds[id]] = tuple(row[5:])
    sql = (
        f"SELECT {_KIND}, {', '.join('f.' + name for name in _SAID_OF_DAY[1:])} FROM sums_of_days s"
        " CROSS JOIN sums_said_of_days f ON f.cell = s.id WHERE s.day = ? ORDER BY 1, 2, 3, 4, 5, 6, 7"
    )
    return Day(rows, [(tuple(row[:5]), tuple(row[5:])) for row in db.execute(sql, (day,))])
