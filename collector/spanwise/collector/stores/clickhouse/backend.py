"""Trace backend on ClickHouse: the operations, each in terms of the modules that implement it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from spanwise.collector.errors import StoreError
from spanwise.collector.records import (
    Feedback,
    OpenRun,
    Retention,
    Run,
    normalize_feedback,
)
from spanwise.collector.stores.clickhouse import (
    aggregation,
    amendments,
    change_feed,
    deletion,
    feedback_writer,
    record_lists,
    senders,
)
from spanwise.collector.stores.clickhouse.connection import Database
from spanwise.collector.stores.clickhouse.feedback_writer import FeedbackWriter
from spanwise.collector.stores.clickhouse.inserter import Inserter, Job
from spanwise.collector.stores.clickhouse.schema import TABLES, TOMBSTONE_DAYS
from spanwise.collector.stores.clickhouse.span_rows import SpanBatch, encode_runs
from spanwise.collector.stores.clickhouse.span_writer import SpanWriter
from spanwise.collector.stores.clickhouse.table_records import TableRecords
from spanwise.collector.stores.clickhouse.trace_copy import ClickHouseTraceCopy
from spanwise.collector.stores.clickhouse.trace_queries import TraceQueries
from spanwise.collector.stores.queries.trace_operations import TraceOperations

log = logging.getLogger("spanwise.collector")


class ClickHouseTraces(TraceOperations[Database]):
    """Trace backend on the ClickHouse database at `clickhouse://user:password@host:port/database`.

    Any number of processes may use a database at once. The tables are created if they do not exist. Raise `Unavailable`
    if the server cannot be reached, and `Refused` for an invalid address or a database of a newer version.
    """

    _queries = TraceQueries()
    _tables, _lists, _feed = TableRecords(_queries), record_lists, change_feed
    _senders, _outgoing = senders, feedback_writer

    def __init__(self, url: str) -> None:
        self._db = Database(url)
        self._feedback = FeedbackWriter(self._db)
        self._spans = SpanWriter(self._db, self._feedback.write)
        self._inserter, self._owner = Inserter(self._write), os.getpid()
        self._maintenance = _Maintenance(self._db, self._spans, self._feedback, self._inserter)
        self.change_feedback, self.delete_feedback = self._feedback.change_feedback, self._feedback.delete_feedback
        self.replace_rule_feedback = self._feedback.replace_rule_feedback
        self.add_amendments = partial(amendments.add_amendments, self._db, self._spans)
        self._compute_buckets = partial(aggregation.compute_buckets, self._db)
        self._sum_measure = partial(aggregation.sum_measure, self._db)
        self.list_bucket_scores = partial(aggregation.list_bucket_scores, self._db)
        self.list_rule_scores = partial(record_lists.list_rule_scores, self._db)
        self.add_reports, self.traced_destinations = partial(senders.add_reports, self._db), self._spans.destinations.of
        self.identity, self.latest_trace_number = self._db.read_identity, self._db.now
        self.open_outlet = partial(feedback_writer.open_outlet, self._db)
        self.move_outlet = partial(feedback_writer.move_outlet, self._db)
        self.find_deletable_traces = partial(deletion.find_deletable, self._db)
        self.delete_traces = partial(deletion.delete_traces, self._db)
        self.prepare_pruning = partial(deletion.prepare_pruning, self._db)

    def __repr__(self) -> str:
        return f"ClickHouseTraces({self.where!r})"

    def _read(self) -> AbstractContextManager[Database]:
        return nullcontext(self._db)

    @property
    def where(self) -> str:
        """Return the location, for display, without the password."""
        return self._db.where

    def close(self) -> None:
        """Write queued jobs, then close the connections. Repeated calls do nothing."""
        if self._owner == os.getpid():
            self._inserter.close()
            self._maintenance.close()
        self._db.close()

    def announce(self, url: str | None) -> None:
        """Do nothing: other processes open the database themselves."""

    def trouble(self) -> str | None:
        """Return the reason why nothing can be stored now, without addresses; None if writing works."""
        return "ClickHouse cannot be reached, or refuses to store data" if self._inserter.trouble else None

    def health(self) -> Mapping[str, float]:
        """Return metrics by name. `writable` is 0 while nothing can be stored."""
        return {
            "queued_spans": self._inserter.depth,
            "writes": self._inserter.writes,
            "last_write_seconds": self._inserter.last_write_seconds,
            "writable": int(self._inserter.trouble is None),
            "came_after_deletion_total": self._spans.late + self._feedback.late,
        }

    def trace_copy(self) -> ClickHouseTraceCopy:
        """Return the export and import of everything that this backend stores."""
        return ClickHouseTraceCopy(self._db, self._spans)

    # runs

    def encoder(self) -> Callable[[Sequence[Run]], SpanBatch]:
        return encode_runs

    def write(self, rows: SpanBatch, feedback: Sequence[Feedback] = ()) -> Future[None]:
        """Append rows from the encoder without waiting. Raise `Unavailable` if the queue is full."""
        return self._put(rows, feedback, is_urgent=False)

    def append_async(self, runs: Sequence[Run], feedback: Sequence[Feedback] = ()) -> Future[None]:
        """Append without waiting. Raise `Unavailable` if the queue is full."""
        return self._put(encode_runs(runs), feedback, is_urgent=False)

    def append(self, runs: Sequence[Run], feedback: Sequence[Feedback] = ()) -> None:
        if runs or feedback:
            self._put(encode_runs(runs), list(map(normalize_feedback, feedback)), is_urgent=True).result()

    def _put(self, batch: SpanBatch, feedback: Sequence[Feedback], *, is_urgent: bool) -> Future[None]:
        if self._owner != os.getpid():  # the threads did not survive a fork
            self._inserter, self._owner = Inserter(self._write), os.getpid()
            self._maintenance = _Maintenance(self._db, self._spans, self._feedback, self._inserter)
        return self._inserter.put(batch, feedback, is_urgent=is_urgent)

    def _write(self, jobs: Sequence[Job]) -> None:
        """Write the feedback of jobs, then their runs, so that readers of a summary find its feedback, too."""
        feedback = [one for job in jobs for one in job.feedback]
        if feedback:
            self._feedback.write(feedback)
        if any(job.batch.rows for job in jobs):
            self._spans.write([job.batch for job in jobs])

    def add_feedback(self, feedback: Sequence[Feedback]) -> None:
        self.append((), feedback)

    # open runs and senders

    def add_running(self, runs: Sequence[OpenRun]) -> None:
        trace_ids = {run.trace_id for run in runs}
        deleted = deletion.find_deleted(self._db, trace_ids)
        self._spans.late += sum(run.trace_id in deleted for run in runs)
        senders.add_open_runs(self._db, runs, deleted)
        deletion.remove_deleted(self._db, trace_ids - deleted)

    def apply_retention(self, rules: Sequence[Retention]) -> None:
        """Let the engine delete rows some days after `prune` should have. For a project whose maximum age has changed,
        this rewrites one column of all its rows, in the background.
        """
        deletion.apply_retention(self._db, rules)
        self._spans.keep_days = deletion.read_keep_days(self._db)

    def vacuum(self) -> int:
        """Merge all parts of all tables, which removes deleted and replaced rows. Return the bytes freed."""
        before = self._db.count_bytes()
        for table in TABLES:
            self._db.optimize(table.name)
        return max(0, before - self._db.count_bytes())


class _Maintenance:
    """Thread that does what any collector may do for all: summaries of large traces, limits, what a killed collector left."""

    TICK_SECONDS, MINUTE_SECONDS = 1.0, 60.0

    def __init__(self, db: Database, spans: SpanWriter, feedback: FeedbackWriter, inserter: Inserter) -> None:
        self._db, self._spans, self._feedback, self._inserter = db, spans, feedback, inserter
        self._stopped = threading.Event()
        self._next_minute = 0.0
        self._thread = threading.Thread(target=self._run, name="spanwise-clickhouse-maintenance", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        deletions_s = TOMBSTONE_DAYS * 86_400
        while not self._stopped.is_set():
            try:
                self._spans.write_postponed()
                if time.monotonic() >= self._next_minute:
                    self._next_minute = time.monotonic() + self.MINUTE_SECONDS
                    self._spans.destinations.refresh()
                    self._spans.keep_days = deletion.read_keep_days(self._db)
                    senders.trim_open_runs(self._db)
                    deletion.trim_side_tables(self._db)
                    deletion.complete_deletions(self._db, deletions_s)
                    deletions_s = deletion.RECENT_SECONDS
                    self._feedback.remove_outdated(self._db.now() - int(10 * self.MINUTE_SECONDS * 1e9))
                self._inserter.trouble = None
            except StoreError as error:
                log.debug("maintenance of the ClickHouse database is postponed: %s", error)
            self._stopped.wait(self.TICK_SECONDS)
