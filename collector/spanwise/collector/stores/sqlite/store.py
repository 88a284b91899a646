"""SQLite store: operations on runs, feedback and queries, and the combined store over one database file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from spanwise.collector.errors import Refused, Unavailable
from spanwise.collector.filters import Filter, extend_filter, validate_filter
from spanwise.collector.records import (
    JSON,
    AlertResult,
    Amendment,
    Bucket,
    Feedback,
    Lease,
    OpenRun,
    Outlet,
    Page,
    ProcessReport,
    Retention,
    Run,
    ScoreSums,
    normalize_feedback,
)
from spanwise.collector.stores.backends import (
    BucketScore,
    DeletedTraces,
    RuleScore,
    ScoreQuery,
    TargetFeedback,
)
from spanwise.collector.stores.combined_store import CombinedStore
from spanwise.collector.stores.queries.measure_query import MeasureQuery
from spanwise.collector.stores.queries.trace_operations import TraceOperations
from spanwise.collector.stores.side_records import AmendmentTarget, get_amendment_target
from spanwise.collector.stores.sqlite.control_backend import SQLiteControl
from spanwise.collector.stores.sqlite.database.connections import Reader, can_write
from spanwise.collector.stores.sqlite.database.file_lock import real_path
from spanwise.collector.stores.sqlite.database.group_commit import HEAVY_WEIGHT, WriteJob
from spanwise.collector.stores.sqlite.database.schema import APPLICATION_IDS
from spanwise.collector.stores.sqlite.database_file import (
    Backend,
    DatabaseFile,
    ReadOnlyFile,
    SnapshotFile,
    read_operation,
    write_operation,
)
from spanwise.collector.stores.sqlite.maintenance import background_jobs, deletion
from spanwise.collector.stores.sqlite.maintenance.background_jobs import BackgroundWorker
from spanwise.collector.stores.sqlite.query import change_feed, record_lists
from spanwise.collector.stores.sqlite.query.table_records import TableRecords
from spanwise.collector.stores.sqlite.query.trace_queries import TraceQueries
from spanwise.collector.stores.sqlite.rollups import aggregation
from spanwise.collector.stores.sqlite.score_sums import listed_scores
from spanwise.collector.stores.sqlite.score_sums.bucket_weights import weigh_buckets
from spanwise.collector.stores.sqlite.score_sums.sum_queries import apply_some_changes, read_measure_sums, read_sums
from spanwise.collector.stores.sqlite.write import feedback_table, side_tables
from spanwise.collector.stores.sqlite.write.run_codec import Batch, encode
from spanwise.collector.stores.trace_assembly import encode_fields, merge_fields
from spanwise.collector.stores.weighted_sums import SumsQuery

# Trace backend: operations on runs, feedback and queries over the database file.


class SQLiteTraces(Backend, TraceOperations[Reader]):
    """Trace backend on a database file: `TraceStore` without `delete` and `prune`, and what the combined store
    needs.
    """

    _queries = TraceQueries()
    _tables, _lists, _feed = TableRecords(_queries), record_lists, change_feed
    _senders, _outgoing = side_tables, feedback_table

    def _read(self) -> AbstractContextManager[Reader]:
        return self._file.read()

    def _compute_buckets(
        self, filter: Filter, bucket_ns: int | None, group_by: str | None, newest: int | Literal["all"] | None
    ) -> list[Bucket]:
        with self._file.read() as reader:
            return aggregation.compute_buckets(reader.db, filter, bucket_ns, group_by, newest)

    def _sum_measure(self, query: MeasureQuery) -> list[ScoreSums]:
        return read_measure_sums(self._file, query)

    def trace_copy(self) -> TraceCopy:
        """Return the export and import of everything that this backend stores."""
        from spanwise.collector.stores.sqlite.file_copy import SQLiteTraceCopy  # only copies need it

        return SQLiteTraceCopy(self._file)

    # runs

    def encoder(self) -> Callable[[Sequence[Run]], Batch]:
        return self._file.appender.encoder

    def write(self, batch: Batch, feedback: Sequence[Feedback] = ()) -> Future[None]:
        """Queue a batch from an encoder. The future resolves when it is durable. May raise `Unavailable`."""
        if feedback:
            batch = batch._replace(feedback=feedback_table.encode_feedback(feedback))
        return self._file.put(WriteJob(weight=len(batch.facts) + len(batch.feedback), batch=batch))

    def append_async(self, runs: Sequence[Run], feedback: Sequence[Feedback] = ()) -> Future[None]:
        """Append without waiting. Raise `Unavailable` if the queue is full."""
        return self.write(encode(runs), feedback)

    def append(self, runs: Sequence[Run], feedback: Sequence[Feedback] = ()) -> None:
        if runs or feedback:
            self.append_async(runs, list(map(normalize_feedback, feedback))).result()

    def add_amendments(self, amendments: Sequence[Amendment]) -> list[bool]:
        fields: dict[AmendmentTarget, list[Mapping[str, JSON]]] = {}
        targets = [get_amendment_target(amendment) for amendment in amendments]
        for target, amendment in zip(targets, amendments, strict=True):
            fields.setdefault(target, []).append(encode_fields(amendment.fields))
        # merge the amendments of each run, so that the run is read and written only once
        merged = {target: merge_fields(*some) for target, some in fields.items()}
        appender = self._file.appender

        def apply(_: sqlite3.Connection) -> dict[AmendmentTarget, bool]:
            applied = {target: appender.amend(target, merged[target]) for target in merged}
            feedback_table.write_due_feedback(appender)
            return applied

        applied = self._file.write(apply)
        return [applied[target] for target in targets]

    # feedback

    def add_feedback(self, feedback: Sequence[Feedback]) -> None:
        feedback = list(map(normalize_feedback, feedback))
        # All feedback is accepted or none. A long list is split into several transactions, so that others can run in
        # between
        parts = [feedback[start : start + HEAVY_WEIGHT] for start in range(0, len(feedback), HEAVY_WEIGHT)]
        nothing = encode(())
        jobs = [
            WriteJob(weight=len(part), batch=nothing._replace(feedback=feedback_table.encode_feedback(part)))
            for part in parts
        ]
        # Waits for every job, even after a failure
        failed = [error for one in self._file.put_all(jobs) if (error := one.exception()) is not None]
        if failed:
            raise failed[0]

    @write_operation
    def change_feedback(self, db: sqlite3.Connection, /, changes: Mapping[str, Mapping[str, JSON]]) -> list[Feedback]:
        return feedback_table.change_feedback(db, self._file.appender, changes)

    @write_operation
    def delete_feedback(self, db: sqlite3.Connection, /, ids: Sequence[str]) -> int:
        return feedback_table.delete_feedback(db, self._file.appender, ids)

    @write_operation
    def replace_rule_feedback(self, db: sqlite3.Connection, /, verdicts: Sequence[TargetFeedback]) -> list[bool]:
        return feedback_table.put_rule_feedback(db, self._file.appender, verdicts)

    # queries

    def list_bucket_scores(
        self, filter: Filter, *, bucket_ns: int | None, group_by: str | None, newest: int | None
    ) -> Iterator[BucketScore]:
        with self._file.read() as reader:
            list_traces = partial(aggregation.list_scored_traces, reader.db, filter, bucket_ns, group_by, newest)
            yield from listed_scores.list_bucket_scores(reader.db, list_traces)

    @read_operation
    def list_rule_scores(self, db: sqlite3.Connection, /, asked: ScoreQuery) -> Page[RuleScore]:
        return listed_scores.list_rule_scores(db, asked)

    # open runs and senders

    @write_operation
    def add_running(self, _: sqlite3.Connection, /, runs: Sequence[OpenRun]) -> None:
        self._file.appender.start(runs)

    @write_operation
    def add_reports(self, _: sqlite3.Connection, /, reports: Sequence[ProcessReport]) -> None:
        self._file.appender.processes.report(reports)

    # forwarding

    @write_operation
    def open_outlet(self, db: sqlite3.Connection, /, name: str, url: str) -> Outlet:
        return feedback_table.open_outlet(db, self._file.clock, name, url)

    @write_operation
    def move_outlet(
        self, db: sqlite3.Connection, /, name: str, cursor: int, sent: int, dropped: int, error: str | None = None
    ) -> None:
        feedback_table.move_outlet(db, self._file.clock, name, cursor, sent, dropped, error)

    @read_operation
    def identity(self, db: sqlite3.Connection, /) -> str:
        return feedback_table.read_file_identity(db)

    # deletion

    @read_operation
    def latest_trace_number(self, db: sqlite3.Connection, /) -> int:
        return int(db.execute("SELECT coalesce(max(id), 0) FROM traces").fetchone()[0])

    @read_operation
    def find_deletable_traces(
        self, db: sqlite3.Connection, /, filter: Filter, after: str | None = None, upto: int | None = None
    ) -> DeletedTraces | None:
        return deletion.find_deletable(db, filter, after, upto)

    def delete_traces(self, gone: Iterable[DeletedTraces]) -> int:
        total, tags, pace = 0, set[str](), deletion.DeletionPace()
        for lot in gone:
            for piece in self._pieces(lot, pace):
                count, theirs = self._taken_out(piece, pace)
                total, tags = total + count, tags | theirs
        if tags:
            with self._file.read() as reader:
                unused = deletion.find_unused_tags(reader.db, tags)
            self._file.write(lambda _: deletion.delete_tags(self._file.appender, unused))
        return total

    def _pieces(self, lot: DeletedTraces, pace: deletion.DeletionPace) -> list[DeletedTraces]:
        with self._file.read() as reader:
            return [DeletedTraces(piece, lot.sessions) for piece in pace.pieces(reader.db, lot.traces)]

    def _taken_out(self, piece: DeletedTraces, pace: deletion.DeletionPace) -> tuple[int, set[str]]:
        """Delete a batch, and return the number of traces and their tags. On a full disk, split it into smaller
        batches.
        """
        try:
            return self._file.write(partial(deletion.delete_traces, self._file.appender, piece, pace), patient=True)
        except Unavailable:
            if len(piece.traces) <= deletion.FULL_DISK_TRACES or not self._file.is_full:
                raise
        total, tags = 0, set[str]()
        for start in range(0, len(piece.traces), deletion.FULL_DISK_TRACES):
            few = DeletedTraces(piece.traces[start : start + deletion.FULL_DISK_TRACES], piece.sessions)
            count, theirs = self._taken_out(few, pace)
            total, tags = total + count, tags | theirs
        return total, tags

    def apply_retention(self, rules: Sequence[Retention]) -> None:
        """Do nothing: SQLite deletes nothing by itself."""

    def prepare_pruning(self, rule: Retention) -> list[Filter]:
        with self._file.read() as reader:
            expired, ahead = (
                background_jobs.find_expired(reader.db, rule),
                background_jobs.find_future_traces(reader.db, rule),
            )
        if expired is not None:
            before = expired.until_ns or 0
            self._file.write(lambda _: self._file.appender.running.expire(before, rule.project))
            self._file.write(lambda _: self._file.appender.waiting.expire(before, rule.project))
            if rule.project is None:
                with self._file.read() as reader:
                    keys = deletion.find_orphaned_feedback(reader.db, before)
                for start in range(0, len(keys), deletion.BATCH_TRACES):
                    some = keys[start : start + deletion.BATCH_TRACES]
                    self._file.write(
                        partial(deletion.delete_orphaned_feedback, keys=some, before_ns=before), patient=True
                    )
        return [filter for filter in (expired, ahead) if filter is not None]

    def vacuum(self) -> int:
        return self._file.vacuum()


# SQLite store: trace backend and control backend over one database file, read-only where it is not writable.

if TYPE_CHECKING:
    from spanwise.collector.stores.backends import TraceCopy
    from spanwise.collector.stores.store_interfaces import LocalStore, Store

    class _Store(CombinedStore, SQLiteTraces, SQLiteControl):
        """Type of the combined store for type checkers: it takes its operations from these two backends."""

    def _keeps(store: SQLiteStore) -> tuple[Store, LocalStore]:
        return store, store

else:
    _Store = CombinedStore


class SQLiteStore(_Store):
    """Store on the SQLite file at `path`, created if it does not exist.

    Implements `spanwise.collector.stores.Store` and `LocalStore`. Raises `Refused` if another process (or another
    store in this one) has the file open for writing. It also does so if the file is damaged, newer than this
    Spanwise, or not a Spanwise file.
    """

    is_exclusive = True  # one process at a time has the file open for writing

    def __init__(self, path: str | Path) -> None:
        self._over(DatabaseFile(path))
        self._behind = BackgroundWorker(self._file, self.run_hourly_jobs)

    def _over(self, file: DatabaseFile) -> None:
        self.path, self._file, self._origin = file.name, file, file.origin
        self.announce, self.health, self.trouble = file.announce, file.health, file.trouble
        self.stats, self.check, self.checkpoint = file.stats, file.check, file.checkpoint
        CombinedStore.__init__(self, SQLiteTraces(file), SQLiteControl(file))

    def __repr__(self) -> str:
        return f"SQLiteStore({self.path!r})"

    def __enter__(self) -> SQLiteStore:
        return self

    def traced_destinations(self, project: str) -> Sequence[str]:
        return self._file.appender.destinations.of(project)

    # Sums of scores are kept in the file

    def _sum_scores(self, query: SumsQuery) -> list[ScoreSums]:
        return read_sums(self._file, query)

    def aggregate(
        self,
        filter: Filter | None = None,
        *,
        bucket_ns: int | None = None,
        group_by: str | None = None,
        newest: int | Literal["all"] | None = None,
        **conditions: object,
    ) -> list[Bucket]:
        wanted = self._resolve_dataset(validate_filter(extend_filter(filter, conditions)))
        is_current = apply_some_changes(self._file)
        with self._file.read() as reader:
            buckets = aggregation.compute_buckets(reader.db, wanted, bucket_ns, group_by, newest)
            counted = next((bucket.newest for bucket in buckets if bucket.newest), None)
            list_traces = partial(aggregation.list_scored_traces, reader.db, wanted, bucket_ns, group_by, counted)
            return weigh_buckets(reader.db, buckets, wanted, bucket_ns, group_by, list_traces, is_current=is_current)

    # These operations free space, so they may use the disk reserve

    def delete(self, filter: Filter | None = None, **conditions: object) -> int:
        with self._file.making_room():
            return CombinedStore.delete(self, filter, **conditions)

    def prune(self, rule: Retention) -> int:
        with self._file.making_room():
            return CombinedStore.prune(self, rule)

    def delete_experiment(self, id: str) -> bool:
        with self._file.making_room():
            return CombinedStore.delete_experiment(self, id)

    # A look at an alert is small, and may find that the disk is full

    def acquire(self, name: str, holder: str, seconds: float) -> Lease | None:
        with self._file.making_room():
            return self._control.acquire(name, holder, seconds)

    def record_look(self, result: AlertResult) -> bool:
        with self._file.making_room():
            return self._control.record_look(result)

    def __exit__(self, *failed: object) -> None:
        if any(isinstance(error, Refused) for error in failed):  # for example, a port in use or a missing key
            self._file.was_in_vain()
        self.close()

    def close(self) -> None:
        """Write queued jobs, then close the file. Repeated calls do nothing."""
        if self._origin.is_here:
            self._behind.close()
            CombinedStore.close(self)


class ReadOnlySQLiteStore(SQLiteStore):
    """Store on a file that this user may not write. Operations that write raise `Refused`."""

    def __init__(self, path: str | Path) -> None:
        self._over(ReadOnlyFile(path))

    def close(self) -> None:
        CombinedStore.close(self)


class SnapshotSQLiteStore(ReadOnlySQLiteStore):
    """Store on one snapshot of a file: what the file held when it was opened. For one thread."""

    def __init__(self, path: str | Path) -> None:
        self._over(SnapshotFile(path))


def open_snapshot(path: str | Path) -> SQLiteStore:
    """Return the store at a path as it is now, for reading, even while another process writes the file.

    The file's write-ahead log grows until the snapshot is closed. Raise `Refused` as for a read-only store.
    """
    return SnapshotSQLiteStore(path)


def is_store_file(path: str) -> bool:
    """Return whether the file at a path is a Spanwise store, by its header."""
    with open(path, "rb") as file:
        header = file.read(72)
    return header.startswith(b"SQLite format 3\0") and int.from_bytes(header[68:72]) in APPLICATION_IDS


def open_store(path: str | Path) -> SQLiteStore:
    """Return the store at a path. It is read-only if this user may not write the existing file."""
    place = real_path(path)
    return ReadOnlySQLiteStore(path) if os.path.exists(place) and not can_write(place) else SQLiteStore(path)
