"""Trace store interface (spans, feedback, queries, deletion), with paging and traces in progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from spanwise.collector.filters import CONDITIONS, EVALUATOR_KIND, Filter
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
    TablePage,
    Target,
    Trace,
    TraceSummary,
    TreeNode,
    iterate_pages,
    normalize_target,
)

if TYPE_CHECKING:
    import pandas


class TraceStore(Protocol):
    """Store of spans and feedback. Appending is idempotent on (trace_id, span_id) and on the feedback's id."""

    @property
    def where(self) -> str:
        """Return the location, for display: an address or a path."""

    def append(self, runs: Sequence[Run], feedback: Sequence[Feedback] = ()) -> None:
        """Store runs and feedback, and return when they are durable.

        A fuller or later version of a run replaces the stored one. Feedback replaces that with the same id. The root
        of a trace and the feedback on it are stored together or not at all. Raise `Unavailable` if the store cannot
        write now; then nothing is acknowledged.
        """

    def amend(self, trace_id: str, span_id: str, fields: Mapping[str, JSON]) -> bool:
        """Fill in fields of a run that arrived outside its span, such as content of a log record.

        Return whether the run is stored. If not, the fields wait for it. `fields` are records or JSON:

        - inputs, outputs, documents, model, usage, cost, session_id, user_id, tags, prompt_name, prompt_version,
          agent_name, finish_reasons, time_to_first_token_ms and tools are set.
        - metadata and attributes are merged key by key.
        - `input_messages` and `output_messages` are lists of messages under keys, merged key by key. All messages, in
          the order of their keys, become the inputs and outputs of a run that has no others.
        - `feedback` has records of feedback under keys, without target and id. They become feedback on the run.

        The change is durable on return. Trace summary, full-text index, known values and filters follow. Sending the
        same run again does not undo it. A later or fuller version of the run keeps amended fields, except those that
        it sets itself. Raise `Refused` for any other field or an invalid value.
        """

    def add_amendments(self, amendments: Sequence[Amendment]) -> list[bool]:
        """Amend many runs in this order, as `amend` does. Return for each whether its run is stored.

        Fields of a missing run are kept until its span arrives, and are part of the run from that commit on. Deleting
        the trace deletes them. The store keeps those of the latest 10,000 runs, at most 64 MiB in total, for seven
        days. It counts the dropped ones. Amendments from an API key of one project do not apply to runs of another.
        """

    def add_feedback(self, feedback: Sequence[Feedback]) -> None:
        """Store feedback, and return when it is durable. The same id overwrites. The target need not have arrived."""

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
        """Attach human feedback to a trace (by id) or any other target, and return the stored record."""

    def change_feedback(self, changes: Mapping[str, Mapping[str, JSON]]) -> list[Feedback]:
        """Change score, label, comment or metadata by id, as in `{id: {"score": 0.5}}`. Return the new records.

        A score or label makes the outcome "score". Raise `Refused` for a change of target or author, and `NotFound`,
        with the id, for an unknown id. Either all changes are made or none.
        """

    def delete_feedback(self, ids: Sequence[str]) -> int:
        """Delete feedback by id, and return the number deleted."""

    def traces(
        self,
        filter: Filter | None = None,
        *,
        sort: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        **conditions: object,
    ) -> Page[TraceSummary]:
        """Return one page of the traces that pass, latest start first or sorted.

        `sort` is `start`, `latency_ms`, `time_to_first_token_ms`, `cost`, `tokens`, `errors` (most failed runs first),
        `runs` or `feedback.KEY`, with `-` before it for descending order. Ties are in the order of the trace id, and missing values come last.
        Later pages cover the traces that were stored when the first page was read. If more than 100,000 traces pass,
        the newest 100,000 are sorted, and `Page.newest` says so. A cursor is valid for one filter and order.

        `conditions` are `Filter` fields, in the short forms of `extend_filter`: `feedback=("concise", "<", 0.5)`,
        `latency_ms=">200"`, `since="1h"`. Raise `Refused` for a condition that no trace can pass, an unknown `sort`, and a
        cursor of another list.
        """

    def each(self, filter: Filter | None = None, **conditions: object) -> Iterator[TraceSummary]:
        """Yield all traces that pass, latest start first, reading pages on demand.

        A trace that exists and passes during the whole iteration is yielded once. A trace that is deleted, or begins
        to pass, meanwhile may or may not be yielded. Traces that start after the first one are not. A trace may be
        yielded again if an earlier start arrives for it meanwhile.
        """

    def trace(self, trace_id: str) -> Trace:
        """Return one trace with all its runs and feedback. Raise `NotFound` if it is unknown."""

    def many(self, trace_ids: Sequence[str]) -> list[Trace]:
        """Return several traces in the order requested, without those that are not stored."""

    def tree(self, trace_id: str, *, limit: int = 1000, cursor: str | None = None) -> Page[TreeNode]:
        """Return one page of the runs of a trace without their content, in depth-first order.

        A cursor is the id of a run, and selects the page of `limit` runs that contains it. Raise `NotFound` if it is
        unknown.
        """

    def runs(self, trace_id: str, *, limit: int = 1000, cursor: str | None = None) -> Page[Run]:
        """Return one page of the runs of a trace by start time; `trace` returns all of them at once.

        A cursor is the id of the next run. Raise `NotFound` if it is unknown.
        """

    def run(self, trace_id: str, span_id: str | None = None) -> Run:
        """Return one run of a trace, by default the root. Raise `NotFound` if it is unknown."""

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
        """Return feedback on the traces that pass (or on one target), newest first. `source` selects people, models or
        code.
        """

    def table_page(
        self,
        table: str,
        filter: Filter | None = None,
        *,
        limit: int = 1000,
        cursor: str | None = None,
        **conditions: object,
    ) -> TablePage:
        """Return one page of a flat table: traces, runs, documents, feedback, examples or experiment_results.

        `spanwise.collector.stores.flat_tables` describes the columns. Times are nanoseconds, and JSON columns hold
        text. The conditions select traces, latest start first; without any, all but evaluators' own traces pass.
        Feedback comes newest first. Of the conditions, only dataset, project, experiment and experiments apply to
        examples. A page may be shorter than `limit` before the end. Raise `Refused` for another table.
        """

    def to_pandas(self, table: str, filter: Filter | None = None, **conditions: object) -> pandas.DataFrame:
        """Return all rows of a flat table as a pandas DataFrame, for the conditions of `table_page`.

        Columns of text have pandas' string type, integers `Int64`, booleans `boolean`, times `datetime64[ns, UTC]`.
        Missing values are `NA`, `NaN` or `NaT`. JSON columns hold JSON text. Raise `Refused` for an unknown table,
        and `ModuleNotFoundError` without pandas.
        """

    def scores(self, experiment_id: str, *, limit: int = 1000, cursor: str | None = None) -> Page[RunScores]:
        """Return one page of an experiment's runs with only their newest scores, earliest start first, for comparisons.

        An unknown experiment has none.
        """

    def sessions(
        self,
        filter: Filter | None = None,
        *,
        sort: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        **conditions: object,
    ) -> Page[SessionSummary]:
        """Return one page of the sessions of the traces that pass, latest first or sorted.

        `sort` is `start`, `duration_ms`, `traces`, `errors` (most failed traces first), `tokens` or `cost`, as in
        `traces`.
        """

    def aggregate(
        self,
        filter: Filter | None = None,
        *,
        bucket_ns: int | None = None,
        group_by: str | None = None,
        newest: int | Literal["all"] | None = None,
        **conditions: object,
    ) -> list[Bucket]:
        """Return counts, error rate, latency, tokens, cost and feedback over time. Without `bucket_ns` there is one
        bucket.

        `group_by` is one of project, environment, name, model, user, session, experiment, error, prompt,
        prompt_version, agent, finish_reason, time_to_first_token_ms, tag, version. An error is the first line of the
        root's error, without addresses and task numbers; None for traces without one. A prompt version is written
        `name@version`, and of the prompts in `filter` only those count. Times to the first token are grouped in
        ranges. A trace counts in the group of each of its models, prompts, agents, finish reasons or tags, and in none
        if it has none. Queries that the rollups do not cover scan traces: the newest 10,000, or `newest` of them
        ("all": every trace). Each `Bucket` tells if it is partial. Raise `Refused` for more than 10,000 buckets.
        """

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
        """Return the sums of a measure of traces, in equal blocks of a window.

        The measure is a comparison such as `latency_ms > 8000`, with the fields latency_ms, time_to_first_token_ms,
        tokens and cost. A trace has the score 1 if it is true, else 0, and the inverse of its head sampling probability
        as weight (1 if that is unknown). `where` are conditions of a filter. Windows and groups are those of
        `ControlStore.score_sums`.
        """

    def values(self, field: str, *, limit: int = 100, project: str | None = None) -> list[str]:
        """Return known values of project, environment, name, kind, model, tag, session, user, prompt, prompt_version,
        agent, finish_reason, feedback (keys), metadata (keys) or metadata.KEY.

        With `project`, the values are those of the project's newest traces (1,000). Metadata is that of the newest
        traces in any case. Names, environments and models that only evaluators' own traces have are left out. Raise
        `Refused` for another field.
        """

    def changes(self, after: str | None = None, *, limit: int = 1000, filters: Sequence[Filter] = ()) -> ChangePage:
        """Return a page of the change feed: heads of traces that changed after a position, in the order of their
        changes.

        New or replaced runs, amendments, started runs, and feedback without a rule are changes. A run or feedback
        sent again unchanged, and a rule's feedback, are not. A trace appears at its last change. A reader that
        continues from `cursor` sees every change at least once, across restarts and with any number of writers. None
        starts at the first trace. Change numbers rise, with gaps.

        `TraceHead.passes` has the results of `filters`, as rules read them: conditions on feedback ignore feedback of
        rules. Raise `Refused` for a filter whose result changes with time alone.
        """

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
        """Return a page of the heads of the traces of a project that started in [`since_ns`, `until_ns`), latest first.

        `TraceHead.cursor` and `ChangePage.cursor` are positions in this list, and `after` is one of them. A page with
        fewer heads than `limit` is the last one. Traces of evaluators are left out. `filters` are as in `changes`.
        """

    def explain(self, trace_id: str, filter: Filter) -> list[ConditionResult]:
        """Return the result of each condition of a filter on a trace, with the trace's value.

        Conditions are evaluated as in `changes`. Raise `NotFound` for an unknown trace.
        """

    def count(self) -> Mapping[str, int]:
        """Return the numbers of spans, traces and feedback rows, including evaluators' own traces."""

    def add_running(self, runs: Sequence[OpenRun]) -> None:
        """Record started runs. Each is kept until its span arrives, or its trace reports that the span was dropped.

        A run that is stored or recorded already changes nothing. The latest 10,000 are kept, for seven days.
        """

    def running(
        self,
        *,
        trace_id: str | None = None,
        project: str | None = None,
        environment: str | None = None,
        limit: int = 1000,
    ) -> list[OpenRun]:
        """Return runs that have started and not ended, latest start first."""

    def add_reports(self, reports: Sequence[ProcessReport]) -> None:
        """Store reports of processes on all their spans: the newest report of each of the latest 10,000 processes."""

    def processes(self, *, since_ns: int | None = None, limit: int = 1000) -> list[Process]:
        """Return processes from which data has arrived (since a time), latest first."""

    def outlets(self) -> list[Outlet]:
        """Return the targets of feedback forwarding by name, with their position, waiting feedback and last error."""

    def delete(self, filter: Filter | None = None, **conditions: object) -> int:
        """Delete the traces that pass, with spans, full-text index entries, feedback and decisions. Return the
        number of traces. An empty filter is refused.

        Traces that arrive after the call are not deleted. For eight days, runs and feedback of deleted traces are
        acknowledged and counted, but not stored.

        Evaluators' own traces pass like others. Those that deleted feedback refers to are deleted with it, and not
        counted. Raise `Refused` for an empty filter, or a text without words.
        """

    def prune(self, rule: Retention) -> int:
        """Delete traces that are older, or take more space, than a retention rule allows. Return the number of
        traces.
        """

    def vacuum(self) -> int:
        """Release the space of deleted data to the file system. Return the number of bytes. Writes wait meanwhile."""

    def close(self) -> None:
        """Write queued data, then close the store. Repeated calls do nothing."""


def make_human_feedback(
    target: str | Target, key: str, score: float | bool | None, *, span_id: str | None = None, **fields: Any
) -> Feedback:
    """Return human feedback on a trace (by id) or any other target. `fields` are label, comment and author."""
    about = Target(trace_id=target, span_id=span_id) if isinstance(target, str) else target
    return Feedback(target=normalize_target(about), key=key, score=score, source="human", **fields)


# operations whose other keyword arguments are conditions of a filter
FILTERED_OPERATIONS = frozenset(
    name
    for name, method in vars(TraceStore).items()
    if isinstance(method, FunctionType) and "conditions" in method.__code__.co_varnames
)
PAGE_SIZE = 500  # summaries per page; one page is in memory at a time


def iterate_traces(traces: Callable[..., Page[TraceSummary]], filter: Filter) -> Iterator[TraceSummary]:
    """Yield the traces that pass. All pages use one filter, so `since="1h"` refers to the time of the first page."""
    return iterate_pages(lambda cursor: traces(filter, limit=PAGE_SIZE, cursor=cursor))


_SUPPORTED_CONDITIONS = ("project", "environment", "since_ns", "until_ns", "name", "kind", "experiment")
_UNSUPPORTED_CONDITIONS = tuple(name for name in CONDITIONS if name not in _SUPPORTED_CONDITIONS)
_EMPTY_FILTER = Filter()
MAX_OPEN_RUNS = 1_000  # maximum number of open runs that are read, latest first


def list_open_traces(store: TraceStore, filter: Filter) -> list[OpenRun]:
    """Return the root of each trace whose root is still running, latest first, without evaluators' own traces.

    Return nothing if the filter has conditions that only ended runs can meet. If runs below have ended, a trace is
    also listed in the trace list, under the name of one of them.
    """
    if filter.experiment or any(
        getattr(filter, name) != getattr(_EMPTY_FILTER, name) for name in _UNSUPPORTED_CONDITIONS
    ):
        return []
    roots: dict[str, OpenRun] = {}
    for run in store.running(project=filter.project, environment=filter.environment, limit=MAX_OPEN_RUNS):
        if run.parent_id is None or (run.local_root == run.span_id and run.trace_id not in roots):
            roots[run.trace_id] = run
    return [
        run
        for run in roots.values()
        if (filter.since_ns is None or run.start_ns >= filter.since_ns)
        and (filter.until_ns is None or run.start_ns < filter.until_ns)
        and filter.name in (None, run.name)
        and (filter.kind or run.kind) == run.kind != EVALUATOR_KIND
    ]
