"""The writer's work on traces, and what is done behind it, on one connection: what it says of a trace, and what is true."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from spanwise.collector.records import JSON, Run
from spanwise.collector.stores.side_records import ANY_PROJECT, AmendmentTarget
from spanwise.collector.stores.sqlite.database.connections import Reader
from spanwise.collector.stores.sqlite.database.store_clock import StoreClock
from spanwise.collector.stores.sqlite.maintenance.background_jobs import SummaryRebuilder
from spanwise.collector.stores.sqlite.write.run_codec import encode
from spanwise.collector.stores.sqlite.write.span_writer import Appender
from spanwise.collector.stores.table_rows import loads
from spanwise.collector.stores.trace_summary import SummaryRow, summarize_trace

T = TypeVar("T")
TRACE = "a" * 32


class Traces:
    """What writes, and what sums up behind it, on one connection, as one thread would have it."""

    def __init__(self, db: sqlite3.Connection, small: int = 64, steps: int = 1000, whole: int = 512) -> None:
        self.db, self.appender = db, Appender(Reader(db), StoreClock(db))
        keeper = self.appender.summaries
        keeper.small, keeper.steps, keeper.max_records = small, steps, whole
        self.resummer = SummaryRebuilder(self.appender, self.read, self.do, threading.Event())

    @contextmanager
    def read(self) -> Iterator[Reader]:
        yield self.appender.reader

    def do(self, action: Callable[[sqlite3.Connection], T]) -> T:
        self.db.execute("BEGIN IMMEDIATE")
        result = action(self.db)
        self.db.execute("COMMIT")
        return result

    def append(self, *runs: Run) -> None:
        self.do(lambda _: self.appender.write([encode(runs)]))

    def amend(self, span_id: str, fields: dict[str, JSON]) -> None:
        self.do(lambda _: self.appender.amend(AmendmentTarget(TRACE, span_id, ANY_PROJECT), fields))

    def forget(self) -> None:
        self.appender.forget()

    def due(self) -> int:
        found: int = self.db.execute("SELECT count(*) FROM states WHERE data IS NULL").fetchone()[0]
        return found

    def settle(self) -> None:
        """Have all summed up that is left to be."""
        for (key,) in self.db.execute("SELECT trace FROM states WHERE data IS NULL").fetchall():
            assert self.resummer.sum_up(key, self.trace_id(key))

    def trace_id(self, key: int) -> str:
        return str(self.db.execute("SELECT trace_id FROM traces WHERE id = ?", (key,)).fetchone()[0])

    def said(self, trace_id: str = TRACE) -> tuple[dict[str, Any], int, dict[str, int]]:
        """What the file says of a trace: its roll-up, its root, and what spans have below them."""
        row = self.db.execute(
            f"SELECT id, root, {','.join(SummaryRow._fields)} FROM traces WHERE trace_id = ?", (trace_id,)
        )
        key, root, *values = row.fetchone()
        flags = "SELECT span_id, tokens_below + 2 * cost_below FROM spans WHERE trace = ?"
        return plain(SummaryRow(*values)), root, dict(self.db.execute(flags, (key,)).fetchall())

    def true(self, trace_id: str = TRACE) -> tuple[dict[str, Any], int, dict[str, int]]:
        """The same from all of its spans."""
        [key] = self.db.execute("SELECT id FROM traces WHERE trace_id = ?", (trace_id,)).fetchone()
        stored = self.appender.reader.in_order(trace_id, key)
        rolled, root, (tokens, cost) = summarize_trace([one.fact for one in stored])
        flags = {one.run.span_id: (one.run.span_id in tokens) + 2 * (one.run.span_id in cost) for one in stored}
        return plain(rolled), stored[root].row, flags


def plain(rolled: SummaryRow) -> dict[str, Any]:
    """With JSON as what it says; what was told of a run later may stand at the end of a list."""
    columns = {name: loads(value) for name in ("models", "metadata") if (value := getattr(rolled, name))}
    listed = ("names", "kinds", "tags", "agents", "finish_reasons")
    lists = {name: sorted(loads(value)) for name in listed if (value := getattr(rolled, name))}
    prompts = {name: sorted(versions, key=str) for name, versions in loads(rolled.prompts or "{}").items()}
    return {**rolled._asdict(), **columns, **lists, "prompts": prompts}
