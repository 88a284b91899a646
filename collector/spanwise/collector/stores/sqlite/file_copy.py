"""Copies of all records out of and into a SQLite file, with their numbers: traces, feedback, senders, control tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from spanwise.collector.errors import Refused
from spanwise.collector.records import Alert, normalize_feedback
from spanwise.collector.stores.backends import ExportedRun, NumberedFeedback, SideRecord, TracePosition
from spanwise.collector.stores.control.control_database import WriteConnection
from spanwise.collector.stores.control.control_tables import ControlTables
from spanwise.collector.stores.side_records import SIDE_RECORD_FIELDS, make_side_record
from spanwise.collector.stores.sqlite.database.group_commit import WriteJob
from spanwise.collector.stores.sqlite.database.score_sum_schema import mark_score_sums_stale
from spanwise.collector.stores.sqlite.database_file import DatabaseFile
from spanwise.collector.stores.sqlite.score_sums.sum_tables import register_grouping
from spanwise.collector.stores.sqlite.write.feedback_table import (
    NUMBER_PLACE,
    SELECT_FEEDBACK,
    encode_feedback,
    feedback_from_row,
)
from spanwise.collector.stores.sqlite.write.run_codec import encode
from spanwise.collector.stores.sqlite.write.span_writer import Appender
from spanwise.collector.stores.table_rows import Connection, decode_record, select_many

# An import assigns change numbers from here on, until it restores the original ones, which are all lower
TEMPORARY_CHANGES = 2**62
RUNS_PER_BATCH = 500

_SELECT_POSITIONS = (
    "SELECT id, trace_id, span_count, coalesce(start_ns, 0), change, runs_change, changed_ns FROM traces"
    " WHERE id > ? ORDER BY id LIMIT ?"
)
# Tables of records that are neither runs nor feedback, by kind
_SIDE_TABLES = {
    "open_run": "open_runs",
    "process": "processes",
    "amendment": "amendments",
    "tombstone": "tombstones",
    "outlet": "outlets",
}


class SQLiteTraceCopy:
    """`TraceCopy` of a SQLite file. An import needs the file open for writing, and no other writer."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file

    # export

    def list_positions(self, after: int, limit: int) -> list[TracePosition]:
        with self._file.read() as reader:
            return [TracePosition(*row) for row in reader.db.execute(_SELECT_POSITIONS, (after, limit)).fetchall()]

    def read_runs(self, positions: Sequence[TracePosition]) -> Iterator[list[ExportedRun]]:
        batch = list[ExportedRun]()
        with self._file.read() as reader:
            for position in positions:
                sql = "SELECT id FROM spans WHERE trace = ? ORDER BY id"
                rows = [row for (row,) in reader.db.execute(sql, (position.number,)).fetchall()]
                for start in range(0, len(rows), RUNS_PER_BATCH):
                    for stored in reader.in_rows(position.trace_id, rows[start : start + RUNS_PER_BATCH]):
                        batch.append(ExportedRun(stored.run, stored.amended, stored.fact.sent))
                        if len(batch) == RUNS_PER_BATCH:
                            yield batch
                            batch = []
        if batch:
            yield batch

    def list_feedback(self, after: str | None, limit: int) -> tuple[list[NumberedFeedback], str | None]:
        sql = (
            f"{SELECT_FEEDBACK.replace('SELECT ', 'SELECT f.rowid, t.change, ')} LEFT JOIN traces t ON t.id = f.trace"
            " WHERE f.rowid > ? ORDER BY f.rowid LIMIT ?"
        )
        with self._file.read() as reader:
            rows = reader.db.execute(sql, (int(after or 0), limit)).fetchall()
        numbered = [
            NumberedFeedback(stored[NUMBER_PLACE] or 0, feedback_from_row(stored), change)
            for _, change, *stored in rows
        ]
        return numbered, str(rows[-1][0]) if rows else after

    def list_side_records(self) -> Iterator[SideRecord]:
        for kind, table in _SIDE_TABLES.items():
            columns = ", ".join(SIDE_RECORD_FIELDS[kind])
            with self._file.read() as reader:
                for row in reader.db.execute(f"SELECT {columns} FROM {table} ORDER BY 1, 2"):
                    yield make_side_record(kind, row)

    def read_identity(self) -> str:
        with self._file.read() as reader:
            return str(reader.db.execute("SELECT identity FROM feed").fetchone()[0])

    # import

    def begin_import(self) -> None:
        self._file.write(lambda db: self._file.clock.skip_to(db, TEMPORARY_CHANGES))

    def import_traces(self, positions: Sequence[TracePosition], runs: Iterable[Sequence[ExportedRun]]) -> None:
        self._file.write(lambda db: _reserve(db, self._file.appender, positions))
        for batch in runs:
            append = WriteJob(weight=len(batch), batch=encode([exported.run for exported in batch]))
            self._file.put(append).result()
            if amended := [exported for exported in batch if exported.sent is not None]:
                self._file.write(partial(self._mark_amended, amended))

    def _mark_amended(self, amended: Sequence[ExportedRun], _: sqlite3.Connection) -> None:
        for run, fields, sent in amended:
            self._file.appender.mark_amended(run, fields, sent or 0)

    def import_feedback(self, rows: Sequence[NumberedFeedback]) -> None:
        batch = encode(())._replace(feedback=encode_feedback([normalize_feedback(row.feedback) for row in rows]))
        self._file.put(WriteJob(weight=len(rows), batch=batch)).result()
        numbers = [(row.number, row.feedback.id) for row in rows if row.number]
        self._file.write(lambda db: db.executemany("UPDATE feedback SET said = ? WHERE id = ?", numbers))

    def import_positions(self, positions: Sequence[TracePosition]) -> None:
        rows = [(one.change, one.runs_change, one.changed_ns, one.number, one.trace_id) for one in positions]
        sql = "UPDATE traces SET change = ?, runs_change = ?, changed_ns = ? WHERE id = ? AND trace_id = ?"
        self._file.write(lambda db: db.executemany(sql, rows))

    def import_side_records(self, records: Sequence[SideRecord], *, first: bool) -> None:
        def put(db: sqlite3.Connection) -> None:
            for table in _SIDE_TABLES.values() if first else ():
                db.execute(f"DELETE FROM {table}")
            for kind, fields in records:
                marks = ", ".join(f":{name}" for name in fields)
                db.execute(f"INSERT INTO {_SIDE_TABLES[kind]} ({', '.join(fields)}) VALUES ({marks})", fields)
            self._file.appender.forget()

        self._file.write(put)

    def finish_import(self, latest_change: int, identity: str) -> None:
        def finish(db: sqlite3.Connection) -> None:
            db.execute("UPDATE feed SET identity = ?", (identity,))
            for (data,) in db.execute("SELECT data FROM alerts").fetchall():
                alert = decode_record(Alert, data)
                if alert.rule is not None and alert.by is not None:
                    register_grouping(db, alert.project, alert.rule, alert.by)
            mark_score_sums_stale(db)
            self._file.clock.return_to(db, latest_change)
            self._file.appender.forget()

        self._file.write(finish)


def _reserve(db: sqlite3.Connection, appender: Appender, positions: Sequence[TracePosition]) -> None:
    """Insert a row without spans for each trace, under its number. Raise `Refused` if it has another number here."""
    stored = dict(
        select_many(db, "SELECT trace_id, id FROM traces WHERE trace_id IN (%s)", [p.trace_id for p in positions])
    )
    for position in positions:
        number = stored.get(position.trace_id, position.number)
        if number != position.number:
            raise Refused(
                f"trace {position.trace_id!r} has number {number} in the target and {position.number} in the source; copy"
                " into a new, empty store"
            )
    new = [(one.number, one.trace_id) for one in positions if one.trace_id not in stored]
    db.executemany("INSERT INTO traces (id, trace_id) VALUES (?, ?)", new)
    appender.forget()


class SQLiteTables(ControlTables):
    """Control tables of a database file."""

    def _list_columns(self, db: Connection, table: str) -> Sequence[str]:
        return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]

    def _read_lease_number(self, db: Connection) -> int:
        return int(db.execute("SELECT last FROM numbers").fetchone()[0])

    def _restore_numbers(self, db: WriteConnection, lease_number: int) -> None:
        db.execute("UPDATE numbers SET last = ?", (lease_number,))
