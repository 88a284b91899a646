"""Under which id a model has given the answer that a run holds: what comes without a span is matched by it.

Ids are random, and an index over all of them would cost each a page. So they stand in parts of some `PART` that came
one after the other, a part named by the lowest row in it: what comes is written to the pages of the last part, and who
looks for an id asks one part after the other.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from spanwise.collector.stores.sqlite._numbers import number_of
from spanwise.collector.stores.sqlite._reader import Reader
from spanwise.collector.stores.sqlite._sql import VALUES, find_many, insert_many

MOST = 200_000  # some 20 bytes each; of the latest spans, as what belongs to them comes within minutes
PART = 1_000
CANDIDATES = 8  # of one id: a call that several instrumentations have seen
_PARTS = (  # the last first; two steps into the table for each
    "WITH RECURSIVE parts (part) AS (SELECT max(part) FROM responses UNION ALL"
    " SELECT (SELECT max(r.part) FROM responses r WHERE r.part < parts.part) FROM parts WHERE part IS NOT NULL)"
)
_WITH = (
    f"{_PARTS} SELECT part FROM parts"
    " WHERE EXISTS (SELECT 1 FROM responses r WHERE r.part = parts.part AND r.answer = ?) LIMIT ?"
)
_LATEST = (
    "SELECT t.trace_id, s.id FROM responses r CROSS JOIN spans s ON s.id = r.span JOIN traces t ON t.id = s.trace"
    " WHERE r.part = ? AND r.answer = ? ORDER BY r.span DESC LIMIT ?"
)


class Responses:
    """Puts them into the file, on the writer's connection."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db, self.size = db, PART
        # Whatever is rolled back or deleted, the last part is above all before it and below all that comes
        self._part = self._of(2**63 - 1)
        sql = "SELECT count(*) FROM responses WHERE part = ?"
        self._count = int(db.execute(sql, (self._part,)).fetchone()[0])

    def put(self, rows: Sequence[tuple[int, str]], new: int) -> None:
        """Keep that spans (their rows) bear responses' ids. From `new` on they have come for the first time."""
        first = min([row for row, _ in rows if row >= new], default=None)
        if first is not None and (not self._part or self._count >= self.size):
            self._part, self._count = first, 0
        answers = [(self._part if row >= new else self._of(row), number_of(id), row) for row, id in rows]
        insert_many(self._db, "responses", ("part", "answer", "span"), answers, "ON CONFLICT DO NOTHING")
        self._count += len(answers)

    def _of(self, row: int) -> int:
        """The part in which a row stands: that of 0 if it is from before all others, and has borne no id till now."""
        sql = "SELECT coalesce(max(part), 0) FROM responses WHERE part <= ?"
        return int(self._db.execute(sql, (row,)).fetchone()[0])


def find(reader: Reader, response_id: str) -> list[tuple[str, str]]:
    """Trace and span of those that bear an id, the latest first. Of another id with the same number none is given."""
    number, rows = number_of(response_id), list[tuple[str, int]]()
    for (part,) in reader.db.execute(_WITH, (number, CANDIDATES)).fetchall():
        rows += reader.db.execute(_LATEST, (part, number, CANDIDATES - len(rows))).fetchall()
    facts = [(trace_id, reader.stored(trace_id, row).fact) for trace_id, row in rows]
    return [(trace_id, fact.span_id) for trace_id, fact in facts if fact.response_id == response_id]


def remove(db: sqlite3.Connection, traces: Iterable[int]) -> None:
    """Remove those of traces (their keys) that go, before their spans do."""
    spans = sorted(row[0] for row in find_many(db, "SELECT id FROM spans WHERE trace IN (%s)", traces))
    parts = sorted(row[0] for row in db.execute(f"{_PARTS} SELECT part FROM parts WHERE part IS NOT NULL"))
    for start in range(0, len(spans) if parts else 0, VALUES):
        some = spans[start : start + VALUES]
        among = {parts[at - 1] for at in (bisect_right(parts, span) for span in some) if at}
        marks = ",".join("?" * len(some))
        for part in among:
            db.execute(f"DELETE FROM responses WHERE part = ? AND span IN ({marks})", (part, *some))


def prune(db: sqlite3.Connection, most: int = MOST) -> None:
    """Forget the parts before those of the latest spans that bear one."""
    keep = f"{_PARTS} SELECT part FROM parts WHERE part IS NOT NULL LIMIT {most // PART + 1}"
    db.execute(f"DELETE FROM responses WHERE part < (SELECT min(part) FROM ({keep}))")
