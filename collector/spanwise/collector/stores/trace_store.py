"""Trace store interface (spans, feedback, queries, deletion), with paging and traces in progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

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
    SessionSummary,
    Source,
    Target,
    Trace,
    TraceSummary,
    TreeNode,
    iterate_pages,
)


class TraceStore(Protocol):
    """Spans and feedback. Appending is idempotent on (trace_id, span_id) and on the feedback's id."""

    @property
    def where(self) -> str:
        """Where the store is, in words for people: its address or its path."""
        ...

    def append(self, runs: Sequence[Run], feedback: Sequence[Feedback] = ()) -> None:
        """Keep runs and feedback; returns only when they are durable. A fuller or later run replaces the same run, a
        feedback that of its id.

        Of one trace the root and the feedback are kept together or not at all, whatever happens meanwhile. Raises
        `Unavailable` when the store cannot keep them now; then none of them is acknowledged.
        """

    def amend(self, trace_id: str, span_id: str, fields: Mapping[str, JSON]) -> bool:
        """Fill in what is said of a run in another message than its span, as content that a log record brings; whether
        the run is here. If not, this waits for it.

        `fields` are inputs, outputs, documents, model, usage, cost, session_id, user_id or tags, which are set, and
        metadata and attributes, which are merged key by key; as records or as JSON. `input_messages` and
        `output_messages` are lists of messages under keys, merged key by key, too: all of them, in the order of their
        keys, are the inputs and outputs of a run that has none else. Durable when it returns; roll-up, text index,
        known values and filters follow. The run sent again as it was does not undo this; a later or fuller one keeps
        what was amended, but for the fields that it brings itself. Raises `Refused` for any other field, or a value
        that it cannot have.
        """
        ...

    def add_amendments(self, amendments: Sequence[Amendment]) -> list[bool]:
        """As `amend`, of many runs at once, in this order; whether each of them is here.

        What is said of a run that is not is kept until its span comes, and is in the run from the same commit on; the
        run is then as if it had come before. It goes with its trace. Kept is the latest of 10,000 runs, of 64 MiB
        together, for seven days: what is given up is counted. What a key of one project has said is for no other's.
        """
        ...

    def add_feedback(self, feedback: Sequence[Feedback]) -> None:
        """Keep feedback; returns only when it is durable. The same id overwrites. The target need not have arrived."""

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
        """Attach a person's feedback to a trace (its id) or any other target, and return what was kept."""

    def change_feedback(self, changes: Mapping[str, Mapping[str, JSON]]) -> list[Feedback]:
        """Change score, label, comment or metadata by id, `{id: {"score": 0.5}}`; returns what they are now.

        A score or label makes the outcome "score". What it is about and whose it is cannot change (`Refused`). All or
        nothing: an unknown id raises `NotFound`, which names it.
        """

    def delete_feedback(self, ids: Sequence[str]) -> int:
        """Remove feedback by id; returns how many there were."""

    def traces(
        self, filter: Filter | None = None, *, limit: int = 50, cursor: str | None = None, **conditions: object
    ) -> Page[TraceSummary]:
        """Traces that pass, latest start first.

        `conditions` are `Filter` fields, in the short forms of `filters.combined`: `feedback=("concise", "<", 0.5)`,
        `latency_ms=">200"`, `since="1h"`. One that no trace can pass is refused.
        """

    def each(self, filter: Filter | None = None, **conditions: object) -> Iterator[TraceSummary]:
        """All traces that pass, latest start first, read page by page as they are asked for.

        Each trace that is there from beginning to end, and passes all the while, comes once; what is deleted, or begins
        to pass, meanwhile may come or not. Nothing that starts after the first of them comes. A trace to which an
        earlier start arrives meanwhile may come again.
        """
        ...

    def trace(self, trace_id: str) -> Trace:
        """One trace with all its runs and feedback. Raises `NotFound`."""

    def many(self, trace_ids: Sequence[str]) -> list[Trace]:
        """Several traces at once, in the order asked; those that are not there are left out."""

    def tree(self, trace_id: str, *, limit: int = 1000, cursor: str | None = None) -> Page[TreeNode]:
        """The runs of a trace without what they hold, children below their parents, page by page.

        A cursor is a run's id: its page is the one of those of `limit` runs that holds it. Raises `NotFound`.
        """
        ...

    def runs(self, trace_id: str, *, limit: int = 1000, cursor: str | None = None) -> Page[Run]:
        """The runs of a trace by start time, page by page: what `trace` gives whole.

        A cursor is the id of the run that comes next. Raises `NotFound`.
        """
        ...

    def run(self, trace_id: str, span_id: str | None = None) -> Run:
        """One run of a trace, its root if no other is named. Raises `NotFound`."""
        ...

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
        """Feedback on traces that pass (or on one target), newest first; of people, models or code alone (`source`)."""

    def scores(self, experiment_id: str, *, limit: int = 1000, cursor: str | None = None) -> Page[RunScores]:
        """The runs of an experiment with their newest scores and nothing else, first start first: what compares them.

        An experiment that there is not has none.
        """
        ...

    def sessions(
        self, filter: Filter | None = None, *, limit: int = 50, cursor: str | None = None, **conditions: object
    ) -> Page[SessionSummary]:
        """Sessions of the traces that pass, latest first."""

    def aggregate(
        self,
        filter: Filter | None = None,
        *,
        bucket_ns: int | None = None,
        group_by: str | None = None,
        newest: int | Literal["all"] | None = None,
        **conditions: object,
    ) -> list[Bucket]:
        """Counts, error rate, latency, tokens, cost and feedback over time; one bucket in all if `bucket_ns` is None.

        `group_by` is one of project, environment, name, model, user, session, experiment, error (the first line of the
        root's error, without addresses and task numbers; None for traces without one). What the store keeps no sums of
        is counted trace by trace: of the newest 10,000 alone, or as many as `newest` says, and each `Bucket` tells;
        "all" counts all of them. Raises `Refused` for more than 10,000 buckets.
        """

    def values(self, field: str, *, limit: int = 100, project: str | None = None) -> list[str]:
        """Return known values of project, environment, name, kind, model, tag, session, user or feedback (keys).

        With `project`, the values are those of the project's newest traces (1,000). Raises `Refused`.
        """

    def changes(self, after: str | None = None, *, limit: int = 1000, filters: Sequence[Filter] = ()) -> ChangePage:
        """The feed: heads of all traces that changed after a position, in the order of their changes.

        New or replaced runs, amendments, runs that have started, and feedback without a rule are changes; the same run
        or feedback sent again and a rule's feedback are none. A trace stands where it last changed. Every change is
        seen at least once by whoever reads on from `cursor`, across restarts and beside any number of writers; None
        begins with the first trace. Numbers of changes rise, with gaps. `filters` are answered in `Head.passes` as
        rules read them: conditions on feedback see only what no rule gave. A filter whose answer changes with time
        alone is refused.
        """
        ...

    def explain(self, trace_id: str, filter: Filter) -> list[ConditionResult]:
        """Condition by condition with the value seen, why a trace passes a filter or not, as `changes` reads filters.

        Raises `NotFound`.
        """
        ...

    def count(self) -> Mapping[str, int]:
        """How many spans, traces and feedbacks are stored and visible; evaluators' own traces among them."""

    def add_running(self, runs: Sequence[OpenRun]) -> None:
        """Keep that runs have started: each until its span arrives, or its trace says that it was dropped.

        One whose span is here changes nothing, nor does one said twice. Kept are the latest 10,000, for seven days.
        """

    def running(
        self,
        *,
        trace_id: str | None = None,
        project: str | None = None,
        environment: str | None = None,
        limit: int = 1000,
    ) -> list[OpenRun]:
        """Runs that have started and not ended, latest start first."""

    def add_reports(self, reports: Sequence[ProcessReport]) -> None:
        """Keep what processes say of all their spans: the newest report of each of the latest 10,000."""

    def processes(self, *, since_ns: int | None = None, limit: int = 1000) -> list[Process]:
        """Processes of which something has come (since a time), the latest first."""

    def outlets(self) -> list[Outlet]:
        """Where feedback is sent on to, by name, how far that is, how much waits, and why the last try failed."""
        ...

    def delete(self, filter: Filter | None = None, **conditions: object) -> int:
        """Remove the traces that pass, with their spans, text index, feedback and decisions; returns how many traces.
        What comes after this was asked for stays.

        For eight days nothing brings them back: what is appended of them, or said about them, is acknowledged, counted
        and not kept.

        Evaluators' own traces pass as others do, and those that feedback leads to which goes are removed with it
        (uncounted). An empty filter is refused, and so is a text without a word.
        """

    def prune(self, rule: Retention) -> int:
        """Delete what is older, or takes more room, than a rule allows; returns how many traces that was."""

    def vacuum(self) -> int:
        """Give the space of what was deleted back to the disk; returns how many bytes. Writing waits meanwhile."""

    def close(self) -> None:
        """Write what is queued, then let go. Closing twice is harmless."""


PAGE_SIZE = 500  # summaries in memory at once


def iterate_traces(traces: Callable[..., Page[TraceSummary]], filter: Filter) -> Iterator[TraceSummary]:
    """The traces that pass, with one filter for all pages: `since="1h"` was an hour before the first of them."""
    return iterate_pages(lambda cursor: traces(filter, limit=PAGE_SIZE, cursor=cursor))


_SUPPORTED_CONDITIONS = ("project", "environment", "since_ns", "until_ns", "name", "kind", "experiment")
_UNSUPPORTED_CONDITIONS = tuple(name for name in CONDITIONS if name not in _SUPPORTED_CONDITIONS)
_EMPTY_FILTER = Filter()
MAX_OPEN_RUNS = 1_000  # open runs that are read, latest first


def list_open_traces(store: TraceStore, filter: Filter) -> list[OpenRun]:
    """The root of each trace whose root is open, latest first; evaluators' own left out.

    None where the filter asks for what only a run that has ended can tell. Runs further down may have ended, so that
    the trace is listed, under the name of one of them.
    """
    if filter.experiment or any(
        getattr(filter, name) != getattr(_EMPTY_FILTER, name) for name in _UNSUPPORTED_CONDITIONS
    ):
        return []
    roots: dict[str, OpenRun] = {}
    for run in store.running(project=filter.project, environment=filter.environment, limit=MAX_OPEN_RUNS):
        if run.parent_id is None or (run.local_root == run.span_id and run.trace_id not in roots):
            roots[run.trace_id] = run
    return [run for run in roots.values() if _passes(filter, run)]


def _passes(filter: Filter, run: OpenRun) -> bool:
    begun = filter.since_ns is None or run.start_ns >= filter.since_ns
    begun = begun and (filter.until_ns is None or run.start_ns < filter.until_ns)
    return begun and filter.name in (None, run.name) and (filter.kind or run.kind) == run.kind != EVALUATOR_KIND
