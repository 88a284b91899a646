"""Counts of the traces that a rule filtered or sampled out, each trace once: two bits per trace and rule."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping

from spanwise.collector.errors import Refused
from spanwise.collector.stores.sqlite._rows import of_trace
from spanwise.collector.stores.sqlite._sql import insert_many

COMPUTED = ("filtered", "sampled_out")
TAKEN = "taken"  # counted by its rows
_CODES = {name: code for code, name in enumerate((None, *COMPUTED, TAKEN))}
_BLOCK = 4096  # traces of a row: 1 KiB
_HOUR = 3_600_000_000_000
_HAS_ROW = "SELECT 1 FROM decisions WHERE target >= ? AND target < ? AND rule = ? LIMIT 1"


def check(outcomes: Mapping[str, tuple[int, str]]) -> None:
    """Raise `Refused` for an unknown outcome or a number that no trace has."""
    for number, outcome in outcomes.values():
        if outcome not in _CODES or not 0 < number < 1 << 62:
            expected = ", ".join((*COMPUTED, TAKEN))
            raise Refused(f"unknown outcome {outcome!r} of trace number {number!r}; expected one of: {expected}")


def count(db: sqlite3.Connection, rule: int, outcomes: Mapping[str, tuple[int, str]], now: int) -> None:
    """Count each trace under its latest outcome, in place of an earlier one. Repeating the call changes nothing.

    A trace that is left out now and still has a row, as it was scored before, goes on being counted by that row.
    """
    blocks: dict[int, bytearray] = {}
    change: Counter[int] = Counter()
    for trace_id, (number, outcome) in outcomes.items():
        block, place = divmod(number, _BLOCK)
        data = blocks.get(block)
        if data is None:
            data = blocks[block] = _load(db, rule, block)
        byte, shift = place >> 2, (place & 3) * 2
        before, after = data[byte] >> shift & 3, _CODES[outcome]
        if before == after or (before == _CODES[TAKEN] and _has_row(db, rule, trace_id)):
            continue
        data[byte] ^= (before ^ after) << shift
        change[before] -= 1
        change[after] += 1
    rows = [(rule, block, bytes(data)) for block, data in blocks.items()]
    insert_many(db, "outcomes", ("rule", "block", "data"), rows, "ON CONFLICT DO UPDATE SET data = excluded.data")
    _add(db, rule, now // _HOUR * _HOUR, [change[_CODES[name]] for name in COMPUTED])


def _load(db: sqlite3.Connection, rule: int, block: int) -> bytearray:
    row = db.execute("SELECT data FROM outcomes WHERE rule = ? AND block = ?", (rule, block)).fetchone()
    return bytearray(_BLOCK // 4) if row is None else bytearray(row[0])


def _has_row(db: sqlite3.Connection, rule: int, trace_id: str) -> bool:
    return db.execute(_HAS_ROW, (*of_trace(trace_id), rule)).fetchone() is not None


def _add(db: sqlite3.Connection, rule: int, hour: int, changes: Iterable[int]) -> None:
    """Add to the counts of the hour of the decision; what moves to another outcome is subtracted there."""
    if any(changes := tuple(changes)):
        db.execute(
            "INSERT INTO counts VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET filtered = filtered + excluded.filtered,"
            " sampled_out = sampled_out + excluded.sampled_out",
            (rule, hour, *changes),
        )


def clear(db: sqlite3.Connection, rule: int) -> None:
    """Count from zero: the rule decides on everything again."""
    db.execute("DELETE FROM counts WHERE rule = ?", (rule,))
    db.execute("DELETE FROM outcomes WHERE rule = ?", (rule,))
