"""Summing traces up anew behind the writer: what a batch could not, and large traces of older files.

What comes for such a trace while it is read is noted, and taken in at the end. If that is too much, or takes the place
of what was read, it is tried again. The mark (`states.data` is None) stays until then, also when the process dies.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple, TypeVar

from spanwise.collector.errors import StoreError, Unavailable
from spanwise.collector.stores.sqlite._append import Appender
from spanwise.collector.stores.sqlite._known import MOST, flags_of
from spanwise.collector.stores.sqlite._nodes import COST, TOKENS, Spans
from spanwise.collector.stores.sqlite._reader import Reader
from spanwise.collector.stores.sqlite._state import Due, State

log = logging.getLogger("spanwise.collector")

T = TypeVar("T")
Read = Callable[[], AbstractContextManager[Reader]]
Do = Callable[[Callable[[sqlite3.Connection], bool]], bool]

PIECE = 500  # spans, flags or records that are read, or written, at once
AFTER_FAILURE = 30  # seconds
REST = 4  # times as long as it took nothing is summed up then
_DUE = (
    "SELECT s.trace, t.trace_id FROM states s JOIN traces t ON t.id = s.trace"
    " WHERE s.data IS NULL AND s.trace > ? AND t.span_count <= ? ORDER BY s.trace LIMIT 1"
)


class Whole(NamedTuple):
    """A trace as it was read: its state, its spans, and the flags that these have had in the file, by row."""

    state: State
    spans: Spans
    flags: dict[int, int]
    last: int  # row


class Overtaken(Exception):
    """The store is closed meanwhile."""


class Resummer:
    """Sums up one trace a round, if one is due. For the thread behind the writer.

    `read` gives a reader in a snapshot of the file, `do` has the writer do something and waits until it is durable.
    """

    def __init__(self, appender: Appender, read: Read, do: Do, stop: threading.Event) -> None:
        self._appender, self._read_file, self._do, self._stop = appender, read, do, stop
        self._next, self._last = 0.0, 0

    def round(self) -> bool:
        """Whether there was one."""
        if time.monotonic() < self._next:
            return False
        due = self._due()
        if due is None:
            self._last = 0
            return False
        began = time.monotonic()
        self._last = due[0]
        try:
            self.sum_up(*due)
        except Unavailable:
            raise
        except StoreError as error:
            log.warning("trace %s cannot be summed up anew: %s; it is tried again", due[1], error)
            began -= AFTER_FAILURE / REST
        self._next = time.monotonic() + REST * (time.monotonic() - began)
        return True

    def _due(self) -> tuple[int, str] | None:
        with self._read_file() as reader:
            found: tuple[int, str] | None = reader.db.execute(_DUE, (self._last, MOST)).fetchone()
        return found

    def sum_up(self, key: int, trace_id: str) -> bool:
        """Sum up a trace; whether that is written now."""
        noted = self._appender.noted
        self._do(partial(self._note, trace_id))
        try:
            with self._read_file() as reader:
                read = self._read(reader, key)
            steps = (partial(self._unless_overtaken, trace_id, step) for step in self._steps(key, read))
            return all(map(self._do, steps)) and self._do(partial(self._install, trace_id, read))
        except Overtaken:
            return False
        finally:
            noted.pop(trace_id, None)

    def _note(self, trace_id: str, _: sqlite3.Connection) -> bool:
        """Have it noted what comes to a trace from now on."""
        self._appender.noted[trace_id] = set()
        return True

    def _unless_overtaken(
        self, trace_id: str, step: Callable[[sqlite3.Connection], object], db: sqlite3.Connection
    ) -> bool:
        if self._appender.noted.get(trace_id) is None or self._stop.is_set():
            return False
        step(db)
        return True

    def _read(self, reader: Reader, key: int) -> Whole:
        rows = [row[0] for row in reader.db.execute("SELECT id FROM spans WHERE trace = ? ORDER BY id", (key,))]
        read = Whole(State(key), Spans(), {}, rows[-1] if rows else 0)
        due: list[Due] = []
        for some in _pieces(rows):
            began = time.monotonic()
            due += read.state.gather([(one.row, one.fact) for one in reader.in_rows("", some)], read.spans)
            read.flags.update(flags_of(reader.db, some))
            read.spans.facts.clear()
            if self._stop.wait(min(time.monotonic() - began, 0.1)):  # the writer's turn
                raise Overtaken
        read.state.settle(due, read.spans)
        return read

    def _steps(self, key: int, read: Whole) -> Iterator[Callable[[sqlite3.Connection], object]]:
        nodes = [one for one in read.spans.known.values() if one is not None]
        changed = [(one.row, one.below) for one in nodes if one.below != read.flags[one.row]]
        for flags in _pieces(changed):
            yield partial(_mark, flags)
        for ledger in (read.state.orphans, read.state.local_roots):
            yield ledger.clear(key)
            yield from ledger.writes(key, PIECE)

    def _install(self, trace_id: str, read: Whole, _: sqlite3.Connection) -> bool:
        noted = self._appender.noted.get(trace_id)
        if noted is None or any(-row <= read.last for row in noted if row < 0):
            return False
        rows = sorted({abs(row) for row in noted if abs(row) > read.last})
        return self._appender.install(trace_id, read.state, rows)


def _pieces(some: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(some), PIECE):
        yield some[start : start + PIECE]


def _mark(flags: Sequence[tuple[int, int]], db: sqlite3.Connection) -> None:
    rows = [(below & TOKENS, below // COST, row) for row, below in flags]
    db.executemany("UPDATE spans SET tokens_below = ?, cost_below = ? WHERE id = ?", rows)
