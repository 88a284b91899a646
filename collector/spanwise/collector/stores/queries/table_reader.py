"""Reader of the source records of flat tables (see `spanwise.collector.stores.flat_tables`), in pages of limited size.

Traces come in the order of lists, latest start first, and the runs of each trace by start time. A page has fewer
records than requested if they are large, so that its size does not depend on what was stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate, takewhile
from typing import Any, Generic, NamedTuple, TypeVar

from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter
from spanwise.collector.records import Feedback, Page, Run
from spanwise.collector.stores.flat_tables import DocumentRecord, ResultRecord, TraceRecord
from spanwise.collector.stores.queries.trace_reader import (
    Key,
    Place,
    Position,
    RootRow,
    StoredTrace,
    TraceReader,
    group_by_trace,
)
from spanwise.collector.stores.table_rows import loads
from spanwise.collector.stores.trace_assembly import complete_root

R = TypeVar("R", contravariant=True)
PAGE_BYTES = 8_000_000  # payloads of a page before compression
MAX_TRACES = 1_000  # traces of a page of runs

# Columns that all backends have, of a row `t` of `traces`
TRACE_COLUMNS = (
    "t.tags, t.trace_id, t.project, t.environment, t.name, t.kind, t.status, t.error, t.start_ns, t.end_ns, t.span_count,"
    " t.error_count, t.input_tokens, t.output_tokens, t.cost, t.session_id, t.user_id, t.experiment_id, t.example_id,"
    " t.repetition, t.dropped"
)
RESULT_COLUMNS = "t.trace_id, t.project, t.experiment_id, t.example_id, t.repetition, t.status, t.start_ns, t.end_ns"


class RunsOfTrace(NamedTuple):
    """Position of a trace in a page of runs: key, start, trace id, span id of the root, number of runs, and bytes of
    all payloads.
    """

    key: Key
    start_ns: int
    trace_id: str
    root: str
    runs: int
    size: int


class TableReader(ABC, Generic[R]):
    """Reader of the source records of a backend. Rows of traces begin with the key of the trace and its start."""

    def __init__(self, traces: TraceReader[R]) -> None:
        self._traces = traces

    @abstractmethod
    def select_traces(
        self, reader: R, filter: Filter, table: str, limit: int, cursor: str | None
    ) -> tuple[Sequence[Any], str | None]:
        """Return rows of the traces that pass, latest start first, and the cursor of the next page.

        - "traces": key, start, key of the root, completeness, metadata as JSON, models, then `TRACE_COLUMNS`.
        - "runs": fields of `RunsOfTrace`.
        - "experiment_results": key, start, then `RESULT_COLUMNS`. Only traces of experiments.
        """

    @abstractmethod
    def load_lists(self, models: Any, tags: Any) -> tuple[Sequence[str], Sequence[str]]:
        """Return the models and tags of a row of the table "traces"."""

    @abstractmethod
    def find_trace(self, reader: R, cursor: str) -> Sequence[Any] | None:
        """Return the row of a trace, for the table "runs"."""

    @abstractmethod
    def describe_roots(self, reader: R, places: Sequence[Place]) -> Mapping[Place, tuple[str, int]]:
        """Return span id and size of roots."""

    @abstractmethod
    def list_feedback(self, reader: R, filter: Filter, limit: int, cursor: str | None) -> Page[Feedback]: ...

    @abstractmethod
    def select_results(self, reader: R, keys: Collection[Key]) -> Iterable[tuple[Key, Feedback]]:
        """Return the newest feedback of each key on traces."""

    def read_records(self, reader: R, table: str, filter: Filter, limit: int, cursor: str | None) -> Page[Any]:
        """Return one page of the source records of a table. Raise `Refused` for an invalid cursor."""
        if table == "traces":
            return self._list_traces(reader, filter, limit, cursor)
        if table == "runs":
            return self._list_runs(reader, filter, limit, cursor, only_documents=False)
        if table == "documents":
            page = self._list_runs(reader, filter, limit, cursor, only_documents=True)
            return Page(
                items=tuple(
                    DocumentRecord(run, place, each) for run in page for place, each in enumerate(run.documents)
                ),
                next=page.next,
            )
        if table == "feedback":
            return self.list_feedback(reader, filter, limit, cursor)
        return self._list_results(reader, filter, limit, cursor)

    def _list_traces(self, reader: R, filter: Filter, limit: int, cursor: str | None) -> Page[TraceRecord]:
        fetched, next = self.select_traces(reader, filter, "traces", limit, cursor)
        of_roots = self.describe_roots(reader, [(row[0], row[2]) for row in fetched])
        sizes = [of_roots.get((row[0], row[2]), ("", 0))[1] for row in fetched]
        rows, next = _cut(fetched, _count_fitting(sizes, PAGE_BYTES), next)
        roots = [RootRow((row[0], row[2]), row[12], row[16]) for row in rows]
        contents = self._traces.read_roots(reader, roots, lambda value: value)
        newest = self._traces.read_newest_feedback(reader, [row[0] for row in rows])
        records = []
        for key, _, root, complete, metadata, models, tags, *fields, dropped in rows:
            inputs, outputs, _ = contents.get(key, (None, None, ()))
            scores = {name: one.value for name, one in newest.get(key, {}).items()}
            lists = *self.load_lists(models, tags), loads(metadata) if metadata else {}
            span_id = of_roots.get((key, root), ("", 0))[0]
            records.append(
                TraceRecord._make((*fields, bool(complete), dropped, *lists, span_id, inputs, outputs, scores))
            )
        return Page(items=tuple(records), next=next)

    def _list_runs(
        self, reader: R, filter: Filter, limit: int, cursor: str | None, *, only_documents: bool
    ) -> Page[Run]:
        """Return one page of runs, with `only_documents` of those that have documents.

        A cursor is the position of a trace, of which all runs were read, or of the next run in a trace.
        """
        after, inside = _parse_run_cursor(cursor)
        if after is not None and inside is not None and (row := self.find_trace(reader, after)):
            return self._read_large_trace(reader, RunsOfTrace(*row), limit, inside, only_documents)
        fetched, next = self.select_traces(reader, filter, "runs", min(limit, MAX_TRACES), after)
        traces = [RunsOfTrace(*row) for row in fetched]
        if traces and (traces[0].runs > limit or traces[0].size > PAGE_BYTES):
            return self._read_large_trace(reader, traces[0], limit, None, only_documents)
        by_count = _count_fitting([trace.runs for trace in traces], limit)
        fitting = min(by_count, _count_fitting([trace.size for trace in traces], PAGE_BYTES))
        shown, next = _cut(traces, fitting, next)
        stored = self._traces.read_rows(reader, [trace.key for trace in shown])
        decode, runs = self._traces.decoder(reader, (), detached=False), list[Run]()
        for trace in shown:
            rows = [row for row in stored[trace.key] if not only_documents or self._has_documents(reader, row)]
            of_trace = [decode(trace.trace_id, row) for row in rows]
            if not only_documents:
                of_trace = [complete_root(run, of_trace) if run.span_id == trace.root else run for run in of_trace]
            runs += of_trace
        return Page(items=tuple(runs), next=next)

    def _has_documents(self, reader: R, row: Any) -> bool:
        payload = self._traces.decode_payload(reader, row[self._traces.payload_column])
        return bool(payload.get("documents"))

    def _read_large_trace(
        self, reader: R, trace: RunsOfTrace, limit: int, inside: Position | None, only_documents: bool
    ) -> Page[Run]:
        """Return a page of the runs of one trace, from a position in it on."""
        later = self._traces.list_later(reader, trace.key, inside, limit + 1)
        taken = min(limit, _count_fitting([row[0] for row in later], PAGE_BYTES))
        next = f"{trace.start_ns}.{trace.key}"
        if len(later) > taken:
            next = ".".join(map(str, (next, *later[taken][1:])))
        located = StoredTrace(trace.key, "" if only_documents else trace.root, trace.runs)
        runs = self._traces.read_in_order(reader, trace.trace_id, located, [row[3] for row in later[:taken]])
        return Page(items=tuple(run for run in runs if run.documents or not only_documents), next=next)

    def _list_results(self, reader: R, filter: Filter, limit: int, cursor: str | None) -> Page[ResultRecord]:
        """Return the results of a tenth of `limit` traces, because a trace may have several keys."""
        rows, next = self.select_traces(reader, filter, "experiment_results", max(1, limit // 10), cursor)
        newest = group_by_trace(self.select_results(reader, [row[0] for row in rows])) if rows else {}
        items = (
            ResultRecord._make((*row[2:], feedback, None)) for row in rows for feedback in newest.get(row[0]) or (None,)
        )
        return Page(items=tuple(items), next=next)


def _count_fitting(sizes: Sequence[int], limit: int) -> int:
    """Return the number of leading items that fit into the limit together, at least 1."""
    return max(1, sum(1 for _ in takewhile(lambda total: total <= limit, accumulate(sizes))))


def _cut(rows: Sequence[Any], count: int, next: str | None) -> tuple[Sequence[Any], str | None]:
    """Return the first rows of a page, which begin with key and start, and the cursor of the next page."""
    return (rows, next) if len(rows) <= count else (rows[:count], f"{rows[count - 1][1]}.{rows[count - 1][0]}")


def _parse_run_cursor(cursor: str | None) -> tuple[str | None, Position | None]:
    """Return the cursor of the trace, None at the beginning, and the position in the trace, None after its end."""
    parts = [] if cursor is None else cursor.split(".")
    if len(parts) != 5:
        return cursor, None
    try:
        return ".".join(parts[:2]), (int(parts[2]), int(parts[3]), parts[4])
    except ValueError:
        raise Refused(f"invalid cursor {cursor!r}; use `next` of the previous page") from None
