"""Trace backend on ClickHouse: the operations, each in terms of the modules that implement it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Literal

from spanwise.collector.errors import StoreError
from spanwise.collector.filters import Filter, extend_filter
from spanwise.collector.records import (
    JSON,
    Amendment,
    Bucket,
    ChangePage,
    ConditionResult,
    Feedback,
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
from spanwise.collector.stores.backends import BucketScore, DeletedTraces, RuleScore, ScoreQuery, TargetFeedback
from spanwise.collector.stores.clickhouse import (
    aggregation,
    amendments,
    change_feed,
    deletion,
    feedback_writer,
    filter_values,
    record_lists,
    senders,
    table_records,
    trace_queries,
)
from spanwise.collector.stores.clickhouse.connection import Database
from spanwise.collector.stores.clickhouse.feedback_writer import FeedbackWriter
from spanwise.collector.stores.clickhouse.inserter import Inserter, Job
from spanwise.collector.stores.clickhouse.schema import TABLES
from spanwise.collector.stores.clickhouse.span_rows import SpanBatch, encode_runs
from spanwise.collector.stores.clickhouse.span_writer import SpanWriter
from spanwise.collector.stores.clickhouse.trace_copy import ClickHouseTraceCopy
from spanwise.collector.stores.store_interfaces import LazyTrace, OutgoingFeedback, make_human_feedback

log = logging.getLogger("spanwise.collector")


class ClickHouseTraces:
    """Trace backend on the ClickHouse database at `clickhouse://user:password@host:port/database`.

    Any number of processes may use a database at once. The tables are created if they do not exist. Raise `Unavailable`
    if the server cannot be reached, and `Refused` for an invalid address or a database of a newer version.
    """

    def __init__(self, url: str) -> None:
        self._db = Database(url)
        self._feedback = FeedbackWriter(self._db)
        self._spans = SpanWriter(self._db, self._feedback.write)
        self._inserter, self._owner = Inserter(self._write), os.getpid()
        self._maintenance = _Maintenance(self._db, self._spans, self._feedback, self._inserter)

    def __repr__(self) -> str:
        return f"ClickHouseTraces({self.where!r})"

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

    def amend(self, trace_id: str, span_id: str, fields: Mapping[str, JSON]) -> bool:
        return self.add_amendments([Amendment(trace_id, span_id, fields)])[0]

    def add_amendments(self, amended: Sequence[Amendment]) -> list[bool]:
        return amendments.add_amendments(self._db, self._spans, amended)

    # feedback

    def add_feedback(self, feedback: Sequence[Feedback]) -> None:
        if feedback:
            self._put(encode_runs(()), list(map(normalize_feedback, feedback)), is_urgent=True).result()

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

    def change_feedback(self, changes: Mapping[str, Mapping[str, JSON]]) -> list[Feedback]:
        return self._feedback.change(changes)

    def delete_feedback(self, ids: Sequence[str]) -> int:
        return self._feedback.delete(ids)

    def replace_rule_feedback(self, verdicts: Sequence[TargetFeedback]) -> list[bool]:
        return self._feedback.replace_rule_feedback(verdicts)

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
        return trace_queries.list_traces(self._db, extend_filter(filter, conditions), limit, cursor, sort)

    def trace(self, trace_id: str) -> Trace:
        return trace_queries.read_trace(self._db, trace_id)

    def many(self, trace_ids: Sequence[str]) -> list[Trace]:
        return trace_queries.read_traces(self._db, trace_ids)

    def tree(self, trace_id: str, *, limit: int = 1000, cursor: str | None = None) -> Page[TreeNode]:
        return trace_queries.read_tree(self._db, trace_id, limit, cursor)

    def runs(self, trace_id: str, *, limit: int = 1000, cursor: str | None = None) -> Page[Run]:
        return trace_queries.read_runs(self._db, trace_id, limit, cursor)

    def run(self, trace_id: str, span_id: str | None = None) -> Run:
        return trace_queries.read_run(self._db, trace_id, span_id)

    def load_traces(self, trace_ids: Sequence[str]) -> Sequence[Trace | LazyTrace]:
        """Return traces as `StreamingStore.load_traces` does."""
        return trace_queries.read_lazily(self._db, trace_ids)

    def feedbacks(
        self,
        filter: Filter | None = None,
        *,
        key: str | None = None,
        source: Source | None = None,
        limit: int = 1000,
        cursor: str | None = None,
        target: Target | None = None,
        **conditions: object,
    ) -> Page[Feedback]:
        wanted = extend_filter(filter, conditions)
        return record_lists.list_feedback(self._db, wanted, key, source, target, limit, cursor)

    def list_table_records(self, table: str, filter: Filter, limit: int, cursor: str | None) -> Page[Any]:
        return table_records.read_records(self._db, table, filter, limit, cursor)

    def scores(self, experiment_id: str, *, limit: int = 1000, cursor: str | None = None) -> Page[RunScores]:
        return record_lists.list_experiment_scores(self._db, experiment_id, limit, cursor)

    def sessions(
        self,
        filter: Filter | None = None,
        *,
        sort: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        **conditions: object,
    ) -> Page[SessionSummary]:
        return record_lists.list_sessions(self._db, extend_filter(filter, conditions), limit, cursor, sort)

    def aggregate(
        self,
        filter: Filter | None = None,
        *,
        bucket_ns: int | None = None,
        group_by: str | None = None,
        newest: int | Literal["all"] | None = None,
        **conditions: object,
    ) -> list[Bucket]:
        return aggregation.compute_buckets(self._db, extend_filter(filter, conditions), bucket_ns, group_by, newest)

    def list_bucket_scores(
        self, filter: Filter, *, bucket_ns: int | None, group_by: str | None, newest: int | None
    ) -> Iterable[BucketScore]:
        return aggregation.list_bucket_scores(self._db, filter, bucket_ns, group_by, newest)

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
        return aggregation.sum_measure(
            self._db,
            measure,
            where or {},
            project=project,
            since_ns=since_ns,
            until_ns=until_ns,
            block_s=block_s,
            by=by,
        )

    def values(self, field: str, *, limit: int = 100, project: str | None = None) -> list[str]:
        return record_lists.list_values(self._db, field, limit, project)

    def list_rule_scores(self, asked: ScoreQuery) -> Page[RuleScore]:
        return record_lists.list_rule_scores(self._db, asked)

    def find_stored_traces(self, trace_ids: Collection[str]) -> set[str]:
        return record_lists.find_stored_traces(self._db, trace_ids)

    def find_stored_sessions(self, sessions: Collection[str]) -> set[str]:
        return record_lists.find_stored_sessions(self._db, sessions)

    def explain(self, trace_id: str, filter: Filter) -> list[ConditionResult]:
        return filter_values.explain_filter(self._db, self._db.now(), trace_id, filter)

    def count(self) -> Mapping[str, int]:
        return record_lists.count_rows(self._db)

    # change feed

    def changes(self, after: str | None = None, *, limit: int = 1000, filters: Sequence[Filter] = ()) -> ChangePage:
        return change_feed.read_changes(self._db, after, limit, filters)

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
        return change_feed.read_period(self._db, project, since_ns, until_ns, after, limit, filters)

    def count_changes_after(self, after: str | None) -> tuple[int, int | None]:
        return change_feed.count_later_changes(self._db, after)

    def latest_change(self) -> int:
        return change_feed.read_latest_change(self._db)

    def get_trace_head(self, trace_id: str, filters: Sequence[Filter] = ()) -> TraceHead:
        return change_feed.read_head(self._db, trace_id, filters)

    def is_after(self, change: str, cursor: str | None) -> bool:
        return change_feed.parse_change(self._db, change) > change_feed.parse_change(self._db, cursor)

    # open runs and senders

    def add_running(self, runs: Sequence[OpenRun]) -> None:
        deleted = deletion.find_deleted(self._db, {run.trace_id for run in runs})
        self._spans.late += sum(run.trace_id in deleted for run in runs)
        senders.add_open_runs(self._db, runs, deleted)

    def running(
        self,
        *,
        trace_id: str | None = None,
        project: str | None = None,
        environment: str | None = None,
        limit: int = 1000,
    ) -> list[OpenRun]:
        return senders.list_open_runs(self._db, trace_id, project, environment, limit)

    def add_reports(self, reports: Sequence[ProcessReport]) -> None:
        senders.add_reports(self._db, reports)

    def processes(self, *, since_ns: int | None = None, limit: int = 1000) -> list[Process]:
        return senders.list_processes(self._db, since_ns, limit)

    def traced_destinations(self, project: str) -> Sequence[str]:
        """Return the destinations that take part in tracing, see `DestinationStore`."""
        return self._spans.destinations.of(project)

    # forwarding

    def identity(self) -> str:
        return self._db.read_identity()

    def outlets(self) -> list[Outlet]:
        return feedback_writer.list_outlets(self._db)

    def open_outlet(self, name: str, url: str) -> Outlet:
        return feedback_writer.open_outlet(self._db, name, url)

    def move_outlet(self, name: str, cursor: int, sent: int, dropped: int, error: str | None = None) -> None:
        feedback_writer.move_outlet(self._db, name, cursor, sent, dropped, error)

    def feedback_after(self, cursor: int, limit: int) -> Sequence[OutgoingFeedback]:
        return feedback_writer.read_feedback_after(self._db, cursor, limit)

    def count_feedback_after(self, cursor: int) -> int:
        return feedback_writer.count_feedback_after(self._db, cursor)

    def find_stored_feedback(self, ids: Collection[str]) -> set[str]:
        return feedback_writer.find_stored_feedback(self._db, ids)

    # deletion

    def latest_trace_number(self) -> int:
        return self._db.now()

    def find_deletable_traces(
        self, filter: Filter, after: str | None = None, upto: int | None = None
    ) -> DeletedTraces | None:
        return deletion.find_deletable(self._db, filter, after, upto)

    def delete_traces(self, gone: Iterable[DeletedTraces]) -> int:
        return deletion.delete_traces(self._db, gone)

    def apply_retention(self, rules: Sequence[Retention]) -> None:
        """Let the engine delete rows some days after `prune` should have. For a project whose maximum age has changed,
        this rewrites one column of all its rows, in the background.
        """
        deletion.apply_retention(self._db, rules)
        self._spans.keep_days = deletion.read_keep_days(self._db)

    def prepare_pruning(self, rule: Retention) -> list[Filter]:
        return deletion.prepare_pruning(self._db, rule)

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
        while not self._stopped.is_set():
            try:
                self._spans.write_postponed()
                if time.monotonic() >= self._next_minute:
                    self._next_minute = time.monotonic() + self.MINUTE_SECONDS
                    self._spans.destinations.refresh()
                    self._spans.keep_days = deletion.read_keep_days(self._db)
                    senders.trim_open_runs(self._db)
                    deletion.complete_deletions(self._db)
                    self._feedback.remove_outdated(self._db.now() - int(10 * self.MINUTE_SECONDS * 1e9))
                self._inserter.trouble = None
            except StoreError as error:
                log.debug("maintenance of the ClickHouse database is postponed: %s", error)
            self._stopped.wait(self.TICK_SECONDS)
