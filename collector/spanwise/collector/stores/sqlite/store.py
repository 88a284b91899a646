"""SQLite store: operations on runs, feedback and queries, and the combined store over one database file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from spanwise.collector.errors import Refused, Unavailable
from spanwise.collector.filters import Filter, extend_filter, validate_filter
from spanwise.collector.records import (
    JSON,
    AlertResult,
    Amendment,
    Bucket,
    ChangePage,
    ConditionResult,
    Feedback,
    Lease,
    OpenRun,
    Outlet,
    Page,
    Process,
    ProcessReport,
    Retention,
    Run,
    RunScores,
    ScoreSums,
    SessionSummary,
    Source,
    Target,
    Trace,
    TraceHead,
    TraceSummary,
    TreeNode,
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
from spanwise.collector.stores.side_records import AmendmentTarget, get_amendment_target
from spanwise.collector.stores.sqlite.control_backend import SQLiteControl
from spanwise.collector.stores.sqlite.database.connections import can_write
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
from spanwise.collector.stores.sqlite.query import change_feed, record_lists, table_records, trace_queries
from spanwise.collector.stores.sqlite.rollups import aggregation
from spanwise.collector.stores.sqlite.score_sums import listed_scores
from spanwise.collector.stores.sqlite.score_sums.bucket_weights import weigh_buckets
from spanwise.collector.stores.sqlite.score_sums.sum_queries import apply_some_changes, read_measure_sums, read_sums
from spanwise.collector.stores.sqlite.score_sums.trace_measures import MeasureQuery
from spanwise.collector.stores.sqlite.write import feedback_table, side_tables
from spanwise.collector.stores.sqlite.write.run_codec import Batch, encode
from spanwise.collector.stores.store_interfaces import LazyTrace, OutgoingFeedback, make_human_feedback
from spanwise.collector.stores.table_rows import select_many
from spanwise.collector.stores.trace_assembly import encode_fields, merge_fields
from spanwise.collector.stores.weighted_sums import SumsQuery

# Trace backend: operations on runs, feedback and queries over the database file.


class SQLiteTraces(Backend):
    """Trace backend on a database file: `TraceStore` without `delete` and `prune`, and what the combined store
    needs.
    """

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

    def amend(self, trace_id: str, span_id: str, fields: Mapping[str, JSON]) -> bool:
        return self.add_amendments([Amendment(trace_id, span_id, fields)])[0]

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

    def feedback(
        self,
        target: str | Target,
        key: str,
        score: float | bool | None = None,
        *,
        label: str | None = None,
        comment: str | None = None,
        author: str | None = None,
        span_id: str | None = None,
    ) -> Feedback:
        fields = {"label": label, "comment": comment, "author": author, "span_id": span_id}
        stored = make_human_feedback(target, key, score, **fields)
        self.add_feedback([stored])
        return stored

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

    def traces(
        self,
        filter: Filter | None = None,
        *,
        sort: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        **conditions: object,
    ) -> Page[TraceSummary]:
        with self._file.read() as reader:
            return trace_queries.list_traces(reader, extend_filter(filter, conditions), limit, cursor, sort)

    def trace(self, trace_id: str) -> Trace:
        with self._file.read() as reader:
            return trace_queries.read_trace(reader, trace_id)

    def many(self, trace_ids: Sequence[str]) -> list[Trace]:
        with self._file.read() as reader:
            return trace_queries.read_traces(reader, trace_ids)

    def tree(self, trace_id: str, *, limit: int = 1000, cursor: str | None = None) -> Page[TreeNode]:
        with self._file.read() as reader:
            return trace_queries.read_tree(reader, trace_id, limit, cursor)

    def runs(self, trace_id: str, *, limit: int = 1000, cursor: str | None = None) -> Page[Run]:
        with self._file.read() as reader:
            return trace_queries.read_runs(reader, trace_id, limit, cursor)

    def run(self, trace_id: str, span_id: str | None = None) -> Run:
        with self._file.read() as reader:
            return trace_queries.read_run(reader, trace_id, span_id)

    def load_traces(self, trace_ids: Sequence[str]) -> Sequence[Trace | LazyTrace]:
        """Return traces as `StreamingStore.load_traces` does."""
        with self._file.read() as reader:
            return trace_queries.read_lazily(reader, trace_ids)

    @read_operation
    def feedbacks(
        self,
        db: sqlite3.Connection,
        /,
        filter: Filter | None = None,
        *,
        key: str | None = None,
        source: Source | None = None,
        limit: int = 1000,
        cursor: str | None = None,
        target: Target | None = None,
        **conditions: object,
    ) -> Page[Feedback]:
        return record_lists.list_feedback(db, extend_filter(filter, conditions), key, source, target, limit, cursor)

    def list_table_records(self, table: str, filter: Filter, limit: int, cursor: str | None) -> Page[Any]:
        with self._file.read() as reader:
            return table_records.read_records(reader, table, filter, limit, cursor)

    @read_operation
    def scores(
        self, db: sqlite3.Connection, /, experiment_id: str, *, limit: int = 1000, cursor: str | None = None
    ) -> Page[RunScores]:
        return record_lists.list_experiment_scores(db, experiment_id, limit, cursor)

    @read_operation
    def sessions(
        self,
        db: sqlite3.Connection,
        /,
        filter: Filter | None = None,
        *,
        sort: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        **conditions: object,
    ) -> Page[SessionSummary]:
        return record_lists.list_sessions(db, extend_filter(filter, conditions), limit, cursor, sort)

    def aggregate(
        self,
        filter: Filter | None = None,
        *,
        bucket_ns: int | None = None,
        group_by: str | None = None,
        newest: int | Literal["all"] | None = None,
        **conditions: object,
    ) -> list[Bucket]:
        with self._file.read() as reader:
            return aggregation.compute_buckets(
                reader.db, extend_filter(filter, conditions), bucket_ns, group_by, newest
            )

    def list_bucket_scores(
        self, filter: Filter, *, bucket_ns: int | None, group_by: str | None, newest: int | None
    ) -> Iterator[BucketScore]:
        with self._file.read() as reader:
            list_traces = partial(aggregation.list_scored_traces, reader.db, filter, bucket_ns, group_by, newest)
            yield from listed_scores.list_bucket_scores(reader.db, list_traces)

    def measure_sums(
        self,
        measure: str,
        where: Mapping[str, JSON] | None = None,
        *,
        project: str = "default",
        since_ns: int,
        until_ns: int,
        block_s: int = 150,
        by: str | None = None,
    ) -> list[ScoreSums]:
        query = MeasureQuery(measure, where or {}, project, since_ns, until_ns, block_s, by)
        return read_measure_sums(self._file, query)

    @read_operation
    def values(
        self, db: sqlite3.Connection, /, field: str, *, limit: int = 100, project: str | None = None
    ) -> list[str]:
        return record_lists.list_values(db, field, limit, project)

    def changes(self, after: str | None = None, *, limit: int = 1000, filters: Sequence[Filter] = ()) -> ChangePage:
        # taken before reading, so that a change that the result lacks is later than this time
        now_ns = self._file.clock.now()
        with self._file.read() as reader:
            return change_feed.read_changes(reader, after, limit, filters, now_ns)

    def heads(
        self,
        *,
        project: str = "default",
        since_ns: int,
        until_ns: int,
        after: str | None = None,
        limit: int = 1000,
        filters: Sequence[Filter] = (),
    ) -> ChangePage:
        now_ns = self._file.clock.now()
        with self._file.read() as reader:
            return change_feed.read_period(reader, project, since_ns, until_ns, after, limit, filters, now_ns)

    @read_operation
    def count_changes_after(self, db: sqlite3.Connection, /, after: str | None) -> tuple[int, int | None]:
        return change_feed.count_later_changes(db, after)

    @read_operation
    def latest_change(self, db: sqlite3.Connection, /) -> int:
        return change_feed.read_latest_change(db)

    def get_trace_head(self, trace_id: str, filters: Sequence[Filter] = ()) -> TraceHead:
        with self._file.read() as reader:
            return change_feed.read_head(reader, trace_id, filters)

    @read_operation
    def is_after(self, db: sqlite3.Connection, /, change: str, cursor: str | None) -> bool:
        return change_feed.parse_change(db, change) > change_feed.parse_change(db, cursor)

    @read_operation
    def list_rule_scores(self, db: sqlite3.Connection, /, asked: ScoreQuery) -> Page[RuleScore]:
        return listed_scores.list_rule_scores(db, asked)

    @read_operation
    def find_stored_traces(self, db: sqlite3.Connection, /, trace_ids: Collection[str]) -> set[str]:
        sql = "SELECT trace_id FROM traces WHERE span_count > 0 AND trace_id IN (%s)"
        return {row[0] for row in select_many(db, sql, trace_ids)}

    @read_operation
    def find_stored_sessions(self, db: sqlite3.Connection, /, sessions: Collection[str]) -> set[str]:
        sql = "SELECT DISTINCT session_id FROM traces WHERE span_count > 0 AND session_id IN (%s)"
        return {row[0] for row in select_many(db, sql, sessions)}

    def explain(self, trace_id: str, filter: Filter) -> list[ConditionResult]:
        with self._file.read() as reader:
            return change_feed.explain_filter(reader, trace_id, filter)

    @read_operation
    def count(self, db: sqlite3.Connection, /) -> Mapping[str, int]:
        return record_lists.count_rows(db)

    # open runs and senders

    @write_operation
    def add_running(self, _: sqlite3.Connection, /, runs: Sequence[OpenRun]) -> None:
        self._file.appender.start(runs)

    @read_operation
    def running(
        self,
        db: sqlite3.Connection,
        /,
        *,
        trace_id: str | None = None,
        project: str | None = None,
        environment: str | None = None,
        limit: int = 1000,
    ) -> list[OpenRun]:
        return side_tables.list_open_runs(db, trace_id, project, environment, limit)

    @write_operation
    def add_reports(self, _: sqlite3.Connection, /, reports: Sequence[ProcessReport]) -> None:
        self._file.appender.processes.report(reports)

    @read_operation
    def processes(self, db: sqlite3.Connection, /, *, since_ns: int | None = None, limit: int = 1000) -> list[Process]:
        return side_tables.list_processes(db, since_ns, limit)

    # forwarding

    @read_operation
    def outlets(self, db: sqlite3.Connection, /) -> list[Outlet]:
        return feedback_table.list_outlets(db)

    @write_operation
    def open_outlet(self, db: sqlite3.Connection, /, name: str, url: str) -> Outlet:
        return feedback_table.open_outlet(db, self._file.clock, name, url)

    @write_operation
    def move_outlet(
        self, db: sqlite3.Connection, /, name: str, cursor: int, sent: int, dropped: int, error: str | None = None
    ) -> None:
        feedback_table.move_outlet(db, self._file.clock, name, cursor, sent, dropped, error)

    @read_operation
    def feedback_after(self, db: sqlite3.Connection, /, cursor: int, limit: int) -> Sequence[OutgoingFeedback]:
        return feedback_table.read_feedback_after(db, cursor, limit)

    @read_operation
    def count_feedback_after(self, db: sqlite3.Connection, /, cursor: int) -> int:
        return feedback_table.count_feedback_after(db, cursor)

    @read_operation
    def identity(self, db: sqlite3.Connection, /) -> str:
        return feedback_table.read_file_identity(db)

    @read_operation
    def find_stored_feedback(self, db: sqlite3.Connection, /, ids: Collection[str]) -> set[str]:
        return feedback_table.find_stored_feedback(db, ids)

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
