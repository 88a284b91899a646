"""Operations that all trace backends implement alike, in terms of the query functions of a backend.

A backend has a module of functions for each of the protocols below. Their first argument is a connection,
or a reader of a snapshot. The operations of `TraceOperations` complete the filter, open a reader,
and call one of the functions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, Literal, Protocol, TypeVar

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
)
from spanwise.collector.stores.queries.measure_query import MeasureQuery
from spanwise.collector.stores.queries.table_reader import TableReader
from spanwise.collector.stores.queries.trace_reader import TraceReader
from spanwise.collector.stores.store_interfaces import LazyTrace, OutgoingFeedback, make_human_feedback

R = TypeVar("R")
C = TypeVar("C", contravariant=True)


class RecordLists(Protocol[C]):
    """Functions that return lists of other records than traces."""

    def list_feedback(
        self,
        reader: C,
        /,
        filter: Filter,
        key: str | None,
        source: Source | None,
        target: Target | None,
        limit: int,
        cursor: str | None,
    ) -> Page[Feedback]: ...

    def list_experiment_scores(
        self, reader: C, /, experiment_id: str, limit: int, cursor: str | None
    ) -> Page[RunScores]: ...

    def list_sessions(
        self, reader: C, /, filter: Filter, limit: int, cursor: str | None, sort: str | None
    ) -> Page[SessionSummary]: ...

    def list_values(self, reader: C, /, field: str, limit: int, project: str | None) -> list[str]: ...

    def count_rows(self, reader: C, /) -> Mapping[str, int]: ...

    def find_stored_traces(self, reader: C, /, trace_ids: Collection[str]) -> set[str]: ...

    def find_stored_sessions(self, reader: C, /, sessions: Collection[str]) -> set[str]: ...


class ChangeFeed(Protocol[C]):
    """Functions that return heads of traces, with the results of filters."""

    def read_changes(self, reader: C, /, after: str | None, limit: int, filters: Sequence[Filter]) -> ChangePage: ...

    def read_period(
        self,
        reader: C,
        /,
        project: str,
        since_ns: int,
        until_ns: int,
        after: str | None,
        limit: int,
        filters: Sequence[Filter],
    ) -> ChangePage: ...

    def read_head(self, reader: C, /, trace_id: str, filters: Sequence[Filter]) -> TraceHead: ...

    def explain_filter(self, reader: C, /, trace_id: str, filter: Filter) -> list[ConditionResult]: ...

    def count_later_changes(self, reader: C, /, after: str | None) -> tuple[int, int | None]: ...

    def read_latest_change(self, reader: C, /) -> int: ...

    def parse_change(self, reader: C, /, cursor: str | None) -> int: ...


class SenderRecords(Protocol[C]):
    """Functions that return open runs and processes."""

    def list_open_runs(
        self, reader: C, /, trace_id: str | None, project: str | None, environment: str | None, limit: int
    ) -> list[OpenRun]: ...

    def list_processes(self, reader: C, /, since_ns: int | None, limit: int) -> list[Process]: ...


class OutgoingQueue(Protocol[C]):
    """Functions that return the state of forwarding, and the feedback to forward."""

    def list_outlets(self, reader: C, /) -> list[Outlet]: ...

    def read_feedback_after(self, reader: C, /, cursor: int, limit: int) -> Sequence[OutgoingFeedback]: ...

    def count_feedback_after(self, reader: C, /, cursor: int) -> int: ...

    def find_stored_feedback(self, reader: C, /, ids: Collection[str]) -> set[str]: ...


class TraceOperations(ABC, Generic[R]):
    """Base class of trace backends. Methods without a docstring are those of `TraceStore` and `TraceBackend`."""

    _queries: TraceReader[R]
    _lists: RecordLists[R]
    _tables: TableReader[R]
    _feed: ChangeFeed[R]
    _senders: SenderRecords[R]
    _outgoing: OutgoingQueue[R]
    _compute_buckets: Callable[[Filter, int | None, str | None, int | Literal["all"] | None], list[Bucket]]
    _sum_measure: Callable[[MeasureQuery], list[ScoreSums]]
    add_amendments: Callable[[Sequence[Amendment]], list[bool]]

    @abstractmethod
    def _read(self) -> AbstractContextManager[R]:
        """Return the connection, or the snapshot, from which the query functions of the backend read."""

    @abstractmethod
    def add_feedback(self, feedback: Sequence[Feedback]) -> None: ...

    # runs and feedback

    def amend(self, trace_id: str, span_id: str, fields: Mapping[str, JSON]) -> bool:
        return self.add_amendments([Amendment(trace_id, span_id, fields)])[0]

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
        with self._read() as reader:
            return self._queries.list_traces(reader, extend_filter(filter, conditions), limit, cursor, sort)

    def trace(self, trace_id: str) -> Trace:
        with self._read() as reader:
            return self._queries.read_trace(reader, trace_id)

    def many(self, trace_ids: Sequence[str]) -> list[Trace]:
        with self._read() as reader:
            return self._queries.read_traces(reader, trace_ids)

    def tree(self, trace_id: str, *, limit: int = 1000, cursor: str | None = None) -> Page[TreeNode]:
        with self._read() as reader:
            return self._queries.read_tree(reader, trace_id, limit, cursor)

    def runs(self, trace_id: str, *, limit: int = 1000, cursor: str | None = None) -> Page[Run]:
        with self._read() as reader:
            return self._queries.read_runs(reader, trace_id, limit, cursor)

    def run(self, trace_id: str, span_id: str | None = None) -> Run:
        with self._read() as reader:
            return self._queries.read_run(reader, trace_id, span_id)

    def load_traces(self, trace_ids: Sequence[str]) -> Sequence[Trace | LazyTrace]:
        """Return traces as `StreamingStore.load_traces` does."""
        with self._read() as reader:
            return self._queries.read_lazily(reader, trace_ids)

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
        with self._read() as reader:
            return self._lists.list_feedback(reader, wanted, key, source, target, limit, cursor)

    def list_table_records(self, table: str, filter: Filter, limit: int, cursor: str | None) -> Page[Any]:
        with self._read() as reader:
            return self._tables.read_records(reader, table, filter, limit, cursor)

    def scores(self, experiment_id: str, *, limit: int = 1000, cursor: str | None = None) -> Page[RunScores]:
        with self._read() as reader:
            return self._lists.list_experiment_scores(reader, experiment_id, limit, cursor)

    def sessions(
        self,
        filter: Filter | None = None,
        *,
        sort: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        **conditions: object,
    ) -> Page[SessionSummary]:
        with self._read() as reader:
            return self._lists.list_sessions(reader, extend_filter(filter, conditions), limit, cursor, sort)

    def aggregate(
        self,
        filter: Filter | None = None,
        *,
        bucket_ns: int | None = None,
        group_by: str | None = None,
        newest: int | Literal["all"] | None = None,
        **conditions: object,
    ) -> list[Bucket]:
        return self._compute_buckets(extend_filter(filter, conditions), bucket_ns, group_by, newest)

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
        return self._sum_measure(MeasureQuery(measure, where or {}, project, since_ns, until_ns, block_s, by))

    def values(self, field: str, *, limit: int = 100, project: str | None = None) -> list[str]:
        with self._read() as reader:
            return self._lists.list_values(reader, field, limit, project)

    def count(self) -> Mapping[str, int]:
        with self._read() as reader:
            return self._lists.count_rows(reader)

    def find_stored_traces(self, trace_ids: Collection[str]) -> set[str]:
        with self._read() as reader:
            return self._lists.find_stored_traces(reader, trace_ids)

    def find_stored_sessions(self, sessions: Collection[str]) -> set[str]:
        with self._read() as reader:
            return self._lists.find_stored_sessions(reader, sessions)

    # change feed

    def changes(self, after: str | None = None, *, limit: int = 1000, filters: Sequence[Filter] = ()) -> ChangePage:
        with self._read() as reader:
            return self._feed.read_changes(reader, after, limit, filters)

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
        with self._read() as reader:
            return self._feed.read_period(reader, project, since_ns, until_ns, after, limit, filters)

    def get_trace_head(self, trace_id: str, filters: Sequence[Filter] = ()) -> TraceHead:
        with self._read() as reader:
            return self._feed.read_head(reader, trace_id, filters)

    def explain(self, trace_id: str, filter: Filter) -> list[ConditionResult]:
        with self._read() as reader:
            return self._feed.explain_filter(reader, trace_id, filter)

    def count_changes_after(self, after: str | None) -> tuple[int, int | None]:
        with self._read() as reader:
            return self._feed.count_later_changes(reader, after)

    def latest_change(self) -> int:
        with self._read() as reader:
            return self._feed.read_latest_change(reader)

    def is_after(self, change: str, cursor: str | None) -> bool:
        with self._read() as reader:
            return self._feed.parse_change(reader, change) > self._feed.parse_change(reader, cursor)

    # senders and forwarding

    def running(
        self,
        *,
        trace_id: str | None = None,
        project: str | None = None,
        environment: str | None = None,
        limit: int = 1000,
    ) -> list[OpenRun]:
        with self._read() as reader:
            return self._senders.list_open_runs(reader, trace_id, project, environment, limit)

    def processes(self, *, since_ns: int | None = None, limit: int = 1000) -> list[Process]:
        with self._read() as reader:
            return self._senders.list_processes(reader, since_ns, limit)

    def outlets(self) -> list[Outlet]:
        with self._read() as reader:
            return self._outgoing.list_outlets(reader)

    def feedback_after(self, cursor: int, limit: int) -> Sequence[OutgoingFeedback]:
        with self._read() as reader:
            return self._outgoing.read_feedback_after(reader, cursor, limit)

    def count_feedback_after(self, cursor: int) -> int:
        with self._read() as reader:
            return self._outgoing.count_feedback_after(reader, cursor)

    def find_stored_feedback(self, ids: Collection[str]) -> set[str]:
        with self._read() as reader:
            return self._outgoing.find_stored_feedback(reader, ids)
