"""Store interfaces: traces, control records, both in one, and optional capabilities."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from spanwise.collector.errors import TooLarge
from spanwise.collector.filters import CONDITIONS, EVALUATOR_KIND, Filter
from spanwise.collector.records import (
    JSON,
    Alert,
    AlertEvent,
    AlertGroup,
    AlertResult,
    Amendment,
    AuditEvent,
    Backfill,
    BackfillPreview,
    Booking,
    Bucket,
    BudgetUsage,
    ChangePage,
    Claim,
    ClaimResult,
    ConditionResult,
    Dataset,
    Decision,
    DecisionBatch,
    DecisionExplanation,
    DeliveryOutcome,
    Example,
    Experiment,
    Feedback,
    Key,
    Lease,
    NotificationStatus,
    OpenRun,
    Outlet,
    Page,
    Process,
    ProcessReport,
    QueueItem,
    Retention,
    Rule,
    RuleStatus,
    Run,
    RunScores,
    ScoreSums,
    SessionSummary,
    SettingsVersion,
    Source,
    Spend,
    SpendGroup,
    TablePage,
    Target,
    Trace,
    TraceSummary,
    TreeNode,
    WeightedScore,
    WorkerReport,
    iterate_pages,
    normalize_target,
)

if TYPE_CHECKING:
    import pandas


# Trace store interface (spans, feedback, queries, deletion), with paging and traces in progress.


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


# Control store interface (datasets, experiments, rules, leases, keys), and `Store`, both in one.


class ControlStore(Protocol):
    """Store of datasets, experiments, rules, decisions, leases, budgets, notifications, keys and annotation queues.

    Its data is small, and all operations are transactional.
    """

    @property
    def where(self) -> str:
        """Return the location, for display: an address or a path."""

    def save_examples(
        self,
        dataset: str,
        examples: Sequence[Example],
        *,
        replace: bool = False,
        remove: Sequence[str] = (),
        kind: str | None = None,
        schema: Mapping[str, JSON] | None = None,
        description: str | None = None,
        metadata: Mapping[str, JSON] | None = None,
    ) -> Dataset:
        """Add or overwrite examples by id, and delete those in `remove`. `replace` also deletes all that are not given.

        Creates the dataset if it is new. Makes a new version if anything changed, else returns the current one.
        Examples with the same id in one call are all kept: the second gets the id `<id>-2`, and so on (see
        `number_duplicates`).
        """

    def dataset(self, name: str, version: int | None = None) -> Dataset:
        """Return a dataset at a version (None: the newest). Raise `NotFound`, with the closest names."""

    def datasets(self, *, sort: str | None = None) -> list[Dataset]:
        """Return all datasets at their newest version, by name or sorted.

        `sort` is `created`, `version` or `examples`, with `-` before it for descending order. Raise `Refused` for
        another.
        """

    def versions(self, name: str) -> list[Dataset]:
        """Return every version of a dataset, newest first."""

    def examples(
        self,
        dataset: str,
        version: int | None = None,
        *,
        split: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[Example]:
        """Return the examples of a version in their order.

        `split` selects examples with this `split`, or with it in the list `dataset_split` of their metadata.
        """

    def delete_dataset(self, name: str) -> bool:
        """Delete a dataset with all its versions. Return False if there was none. Experiments on it remain."""

    def save_experiment(self, *experiments: Experiment) -> None:
        """Create or overwrite experiments by id, all of them or none."""

    def experiment(self, id_or_name: str) -> Experiment:
        """Return the experiment with this id or id prefix, or the newest with this name. Raise `NotFound` if there is
        none.
        """

    def experiments(
        self, *, dataset: str | None = None, project: str | None = None, sort: str | None = None, limit: int = 100
    ) -> list[Experiment]:
        """Return experiments, newest first or sorted.

        `sort` is `start`, `duration_ms` (last for running experiments) or `examples`, with `-` before it for descending
        order. Raise `Refused` for another.
        """

    def change_experiment(self, id: str, **fields: JSON) -> Experiment:
        """Change name, status, metadata, ended_ns, example_count or seen_ns. Other fields keep their values.

        Raise `NotFound` for an unknown experiment.
        """

    def delete_experiment(self, id: str) -> bool:
        """Delete an experiment with its traces and feedback."""

    def save_rule(self, *rules: Rule, owner: str | None = None, activate: bool = False) -> None:
        """Create or change rules, by project and name, all of them or none.

        - A new version replaces the previous one from the present change on (`active_from`). Waiting decisions of the
          previous version become superseded.
        - The same version with other settings keeps its decisions, and the settings are added to the history.
        - With `owner` (a rules file), all other rules of that owner are removed.

        Raise `Refused` for a rule of another owner, for a filter relative to the present time, and for a version that
        was superseded before, unless `activate` is set.
        """

    def rules(self, *, project: str | None = None, all_versions: bool = False) -> list[Rule]:
        """Return the rules in force, by project and name. `all_versions` includes the other versions."""

    def settings(self, name: str, *, project: str = "default") -> list[SettingsVersion]:
        """Return the history of a rule's settings, newest first. The newest settings apply to decisions made now."""

    def change_rule(self, name: str, *, project: str = "default", **fields: JSON) -> Rule:
        """Change `enabled`, `settings` (all or some, by name) or `metadata` of a rule.

        Other fields affect decisions and need a new version. A rule paused with `enabled=False` stays paused,
        whatever its file contains, until it is resumed in the same way. Raise `NotFound` for an unknown rule.
        """

    def delete_rule(self, name: str, *, project: str = "default") -> bool:
        """Delete a rule. Its feedback and decisions remain."""

    def cursor(self, rule: str, version: str, *, project: str = "default") -> str | None:
        """Return the position up to which a version of a rule has decided; None before its first decision.

        A version starts at `Rule.active_from`.
        """

    def decide(self, *decided: DecisionBatch) -> list[bool]:
        """Record decisions, each batch in one transaction with the rule's cursor. Return for each batch whether it is
        recorded.

        - A batch is not recorded, and changes nothing, if the cursor is neither `after` nor `upto`. The same applies
          if the version is not in force, or a worker with a higher token has decided.
        - With the cursor at `upto`, the batch was recorded before: the result is True, and nothing changes.
        - In an existing row u, rate, stratum, probability and change are overwritten. Its verdict returns to waiting
          if its runs changed since they were read and it was not reopened before. For a running row, `finish` does
          that.
        - With the verdict sampled_out or filtered, an existing row gets the probability 0 and keeps its other values.
          A waiting row is deleted.
        - Rows of deleted targets are left out.

        A step of a backfill (`DecisionBatch.backfill`) moves the cursor of the backfill instead of the rule's. It is
        not recorded while the backfill is paused, or after its end. Targets that have a result, or wait as live
        traffic, are not evaluated again. They get the probability of both samples together.
        """

    def decisions(
        self,
        *,
        trace_id: str | None = None,
        rule: str | None = None,
        version: str | None = None,
        project: str | None = None,
        verdict: str | None = None,
        limit: int = 1000,
        cursor: str | None = None,
    ) -> Page[Decision]:
        """Return stored decisions, newest first. Those of a trace include its spans, documents and session."""

    def delete_decisions(
        self, *, trace_id: str | None = None, rule: str | None = None, project: str | None = None
    ) -> int:
        """Delete decisions, and return their number. Raise `Refused` without a trace and a rule.

        If only a rule is given, the rule starts again: it decides on all traces that changed since it was put in force.
        """

    def claim(
        self,
        rule: str,
        version: str,
        holder: str,
        seconds: float,
        *,
        project: str = "default",
        limit: int = 1,
        over_budget: int | None = None,
        backfill: str | None = None,
    ) -> list[Decision]:
        """Lease due decisions of a rule, oldest first, for a few seconds (see `renew`). Durable on return.

        - Due are waiting and throttled rows whose `next_ns` has passed, and rows whose lease has expired.
        - After them follow rows over budget, newest first, at most `over_budget` of them.
        - If a lease expires, `deaths` of the row rises. A row with `deaths` above 0 is leased alone.
        - At three deaths the row fails with "ended the worker", and each evaluator without outcome gets an error.
        - A paused rule yields nothing.
        - With the id of a backfill, its rows are leased instead of those of live traffic. A paused backfill yields
          nothing.

        Raise `Refused` if the version is no longer in force.
        """

    def renew(self, claims: Sequence[Claim], holder: str, seconds: float) -> list[bool]:
        """Extend leases by a few seconds. Return False for leases that another worker has now, or whose target is
        deleted.
        """

    def finish(self, *finishes: ClaimResult) -> list[str]:
        """Store the results of leases: first the feedback, then the decision. Return a status for each: "finished",
        "waiting" or "refused: …".

        - "finished": stored.
        - "waiting": stored, and to be evaluated again because the trace changed meanwhile.
        - "refused: …": nothing stored, because the lease is not the newest, the version is not in force, or the
          target is deleted.

        Finishing the same lease again changes nothing. For each evaluator in `reported`, its complete set of feedback
        on the target is replaced. All feedback of the rule on the target is replaced if the hash of the inputs or the
        version differs from the decision's. For one rule, target and evaluator, only the set of the highest lease
        number counts.

        Of the rows over budget, the newest 10,000 of a rule are offered again, for 24 hours. All others stay over
        budget.
        """

    def why(self, trace_id: str, *, rule: str | None = None) -> list[DecisionExplanation]:
        """Explain for each rule of the trace's project, or for one, why it did or did not evaluate the trace.

        Raise `NotFound` for an unknown trace.
        """

    def status(self, *, project: str | None = None) -> list[RuleStatus]:
        """Return, for each rule, its counts by outcome, lag, spending, last errors and workers."""

    def start_backfill(
        self,
        rule: str,
        *,
        project: str = "default",
        since_ns: int,
        until_ns: int | None = None,
        sample_rate: float | None = None,
        budget: Mapping[str, float] | None = None,
        version: str | None = None,
        id: str | None = None,
    ) -> Backfill:
        """Start a job that scores the traces that started in [`since_ns`, `until_ns`) by the version of a rule that is
        in force.

        `until_ns` is the present by default. With `sample_rate`, every trace has this rate. By default, the job has
        the rates of the rule and its strata, without pacing. `budget` has limits for this job, such as
        `{"usd_per_day": 5}`. By default the job shares the budget of its rule, and spends at most half of each period's.
        With an id that is already in use, the existing job is returned.

        Raise `NotFound` for an unknown rule, and `Refused` if `version` is not in force or a value is out of range.
        """

    def preview_backfill(
        self,
        rule: str,
        *,
        project: str = "default",
        since_ns: int,
        until_ns: int | None = None,
        sample_rate: float | None = None,
    ) -> BackfillPreview:
        """Return how many traces a backfill with these options would read and score, its cost and its duration.

        Nothing is stored. Raise `NotFound` and `Refused` as `start_backfill` does.
        """

    def backfills(self, *, rule: str | None = None, project: str | None = None, active: bool = False) -> list[Backfill]:
        """Return the backfills of all rules or one, newest first; with `active`, only those that have not ended."""

    def change_backfill(self, id: str, state: str, *, project: str = "default") -> Backfill:
        """Pause a backfill ("paused"), resume it ("running"), or cancel it ("cancelled"), and return it.

        Targets that are being evaluated are finished. Cancelling removes the targets that wait. Scores remain. Raise
        `NotFound` for an unknown id, and `Refused` for a backfill that has ended.
        """

    def report(self, worker: WorkerReport) -> None:
        """Store a worker's report. The newest per holder and project is kept for a day."""

    def weighted(
        self,
        rule: str,
        *,
        key: str | None = None,
        version: str | None = None,
        project: str = "default",
        since_ns: int | None = None,
        until_ns: int | None = None,
        limit: int = 1000,
        cursor: str | None = None,
    ) -> Page[WeightedScore]:
        """Return a rule's scores, errors and skips with the probabilities of its decisions, as the input of estimates.

        A score belongs to the time at which its trace started (a session: its first trace), not to the time of
        evaluation. `since_ns` and `until_ns` select by that time, and the scores of the latest traces come first.
        """

    def score_sums(
        self,
        rule: str,
        *,
        project: str = "default",
        key: str | None = None,
        version: str | None = None,
        since_ns: int,
        until_ns: int,
        block_s: int = 150,
        by: str | None = None,
        groups: Sequence[str] = (),
        joined: bool = True,
        live: bool = False,
    ) -> list[ScoreSums]:
        """Return the sums of a rule's weighted scores, labels, errors and skips, in equal blocks of a window.

        A score belongs to the block in which its trace started (a session: its first trace). `since_ns`, `until_ns`
        and `block_s` are multiples of 150 seconds; the first block starts at `since_ns`. Blocks without any of them
        are left out. `version` selects the scores of one version of the rule. With `by`, the sums are grouped by the
        values of a field of the traces: tag, model, environment, prompt_version, agent, name, user or metadata.KEY.
        `groups` selects some of these values (empty: all). `joined` makes a session in several blocks one cluster of
        the window, so that the sums of all blocks can be added. Otherwise it is one cluster in each block. With `live`,
        scores that a backfill added do not count, and the others have the probabilities of live traffic.
        """

    def score_groups(
        self,
        rule: str,
        *,
        by: str,
        project: str = "default",
        key: str | None = None,
        version: str | None = None,
        since_ns: int,
        until_ns: int,
        live: bool = False,
    ) -> Mapping[str, int]:
        """Return the number of a rule's weighted scores per value of a field of the traces, the highest number first.

        The arguments are those of `score_sums`.
        """

    def acquire(self, name: str, holder: str, seconds: float) -> Lease | None:
        """Acquire or renew a lease. Return None while another holder has it.

        Each acquisition that is not a renewal gets a higher token, also after a release or a deletion.
        """

    def release(self, name: str, holder: str) -> bool:
        """Release a lease. Return False if this holder does not have it."""

    def leases(self) -> list[Lease]:
        """Return the leases in force, by name."""

    def delete_lease(self, name: str) -> bool:
        """Delete a lease from any holder, such as a process that hangs. Return False if there is none."""

    def book(self, *bookings: Booking) -> list[bool]:
        """Reserve amounts, each unless its budget would exceed the limit. Return for each whether it is reserved.

        The same id books only once within two days, even if it was settled.
        """

    def settle(self, actual: Mapping[str, float]) -> None:
        """Replace reserved amounts, by id, by the actual amounts. 0 returns the whole amount.

        Unknown ids and ids already settled change nothing.
        """

    def booked(self, budget: str | None = None) -> list[BudgetUsage]:
        """Return the settled and reserved amounts of one budget or all, newest period first."""

    def spend(
        self,
        *,
        by: Sequence[SpendGroup] = (),
        bucket_ns: int | None = None,
        project: str | None = None,
        rule: str | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
    ) -> list[Spend]:
        """Return the US dollars that rules have booked for judge calls, earliest first, and then the largest amount.

        A call counts in the hour in which it began; hours are kept for 400 days. `bucket_ns` is a multiple of an hour;
        without it, there is one bucket. `by` lists the fields to group by. Raise `Refused` for invalid arguments.
        """

    def delete_budget(self, budget: str, *, before_ns: int | None = None) -> int:
        """Delete the bookings of all periods, or of those that start before a time. Return the number of periods."""

    def undecided(self, rule: str, *, project: str = "default", before_ns: int) -> int:
        """Return the number of a rule's targets that changed before a time and are not decided or not scored yet.

        A rule that is paused, or not in force, has none.
        """

    def save_alert(self, *alerts: Alert, owner: str | None = None) -> None:
        """Create or change alerts, by project and name, all of them or none. The store computes their versions.

        - A new version starts without data. Groups that fire are closed, with the reason.
        - The same version with other targets or times keeps its state.
        - With `owner` (a rules file), all other alerts of that owner are deleted.

        Raise `Refused` for an invalid definition and for an alert of another owner.
        """

    def alerts(self, *, project: str | None = None) -> list[Alert]:
        """Return the alerts, by project and name."""

    def alert_groups(self, name: str | None = None, *, project: str | None = None) -> list[AlertGroup]:
        """Return the states of the groups of one alert or of all, by project, alert and group.

        An alert without `by` has one group, whose name is None. There are none before the first look.
        """

    def change_alert(self, name: str, *, project: str = "default", **fields: JSON) -> Alert:
        """Change `enabled`, `to`, `no_data_s` or `repeat_s` of an alert. Other fields need a new version.

        An alert paused with `enabled=False` stays paused, whatever its file contains, until it is resumed in the same
        way. Raise `NotFound` for an unknown alert.
        """

    def delete_alert(self, name: str, *, project: str = "default") -> bool:
        """Delete an alert. Groups that fire are closed; the history remains. Return False if there was none."""

    def acknowledge_alert(self, name: str, *, project: str = "default", group: str | None = None) -> list[AlertGroup]:
        """Acknowledge a firing alert: one group, or all that fire. Return them. It is not notified again.

        Raise `NotFound` for an unknown alert or group, and `Refused` if none fires.
        """

    def snooze_alert(
        self, name: str, *, project: str = "default", group: str | None = None, until_ns: int | None = None
    ) -> Alert:
        """Send no notifications of an alert, or of one group, until a time; None ends the snooze.

        Looks continue. What still fires after the snooze is notified then. Raise `NotFound` for an unknown alert or
        group.
        """

    def alert_events(
        self, *, project: str | None = None, alert: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[AlertEvent]:
        """Return changes of status, newest first. The store keeps the newest 50,000."""

    def record_look(self, result: AlertResult) -> bool:
        """Store a look with its changes of status and notifications, in one transaction.

        Return False, and store nothing, if the alert was edited or deleted, a runner with a newer lease has looked, or
        this look or a later one is stored.
        """

    def test_alert(self, name: str, *, project: str = "default") -> str:
        """Send a notification that says it is a test to the targets of an alert, and return its id.

        Raise `NotFound` for an unknown alert, and `Refused` for one without targets.
        """

    def notifications(
        self, *, project: str | None = None, alert: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[NotificationStatus]:
        """Return notifications of alerts with the states of their deliveries, newest first.

        The store keeps the newest 10,000, and older ones while a delivery is open.
        """

    def count_due_deliveries(self) -> Mapping[str, int]:
        """Return the number of deliveries whose next attempt is due, by name of the target."""

    def due_deliveries(self, target: str, *, limit: int = 100) -> list[NotificationStatus]:
        """Return notifications whose delivery to a target is due, earliest first, each with this delivery only.

        A notification waits while an earlier one of its alert and group is open, but only in the first hour after the
        first attempt to deliver that one.
        """

    def record_delivery(
        self,
        notification: str,
        target: str,
        outcome: DeliveryOutcome,
        *,
        error: str | None = None,
        retry_s: float = 0.0,
    ) -> None:
        """Record an attempt to deliver a notification, by id, to a target.

        With the outcome "retry" the next attempt is due in `retry_s` seconds. A delivery that is no longer open is left
        unchanged. Raise `NotFound` if there is no such delivery.
        """

    def save_key(self, key: Key) -> None:
        """Create or overwrite the record of an API key."""

    def keys(self) -> list[Key]:
        """Return the records of all API keys, newest first."""

    def delete_key(self, id: str) -> bool:
        """Revoke an API key."""

    def audit(self, *, limit: int = 100, cursor: str | None = None) -> Page[AuditEvent]:
        """Return the log of deletions and key changes with their actors, newest first.

        It holds the last 10,000 events on keys, and the last 40,000 of all others.
        """

    def enqueue(self, items: Sequence[QueueItem]) -> None:
        """Add targets to an annotation queue. A target that already waits there is left unchanged."""

    def queue(self, name: str, *, status: str | None = "waiting", limit: int = 100) -> list[QueueItem]:
        """Return the items of a queue, oldest first. `status` None (empty in a query string) selects all items."""

    def queues(self) -> Mapping[str, int]:
        """Return the number of waiting items by queue name."""

    def resolve(self, item_id: str, status: str, assignee: str | None = None) -> bool:
        """Mark an item of a queue as done or skipped."""

    def is_full(self) -> bool:
        """Return whether the disk of the store is full, or was when something was written in the last five minutes."""

    def set_retention(self, rule: Retention) -> None:
        """Store a project's retention rule, which is applied about once an hour. A rule without limits deletes it."""

    def retention(self) -> list[Retention]:
        """Return the stored retention rules."""

    def close(self) -> None:
        """Write queued data, then close the store. Repeated calls do nothing."""


class Store(TraceStore, ControlStore, Protocol):
    """Interface of the object that `connect()` returns: trace store and control store in one."""


# Optional capabilities of a store: async append, encoded rows, feedback cursor, lazy traces.


@runtime_checkable
class LocalStore(Protocol):
    """Store that this process opens itself, not through a server. Test with `isinstance(store, LocalStore)`."""

    @property
    def where(self) -> str:
        """Return the location, for display: an address or a path."""

    @property
    def is_exclusive(self) -> bool:
        """Return whether only this process can use the store. Processes that share a store divide work by leases."""

    def announce(self, url: str | None) -> None:
        """Publish the URL of this process for `connect()` in other processes; None withdraws it."""

    def health(self) -> Mapping[str, float]:
        """Return metrics by name. `writable` is 0 while nothing can be stored."""

    def trouble(self) -> str | None:
        """Return the reason why nothing can be stored now, without paths; None if writing works."""

    def append_async(self, runs: Sequence[Run], feedback: Sequence[Feedback] = ()) -> Future[None]:
        """Append without waiting. The future resolves when the runs are durable. Raise `Unavailable` if the queue is
        full.
        """


@runtime_checkable
class FeedStore(Protocol):
    """Store with a change feed that can be read from now on."""

    def latest_change(self) -> int:
        """Return the highest change number so far. As text, it is the cursor of all later changes."""

    def changes(self, after: str | None = None, *, limit: int = 1000, filters: Sequence[Filter] = ()) -> ChangePage:
        """Return a page of the change feed. See `TraceStore.changes`."""


@runtime_checkable
class RowStore(Protocol):
    """Store that accepts runs encoded elsewhere, for example in another process."""

    def encoder(self) -> Callable[[Sequence[Run]], Any]:
        """Return a function that encodes runs to rows. It needs no store, accepts an empty list, and can be pickled.

        The store may return a better encoder later. It still accepts rows of earlier ones.
        """

    def write(self, rows: Any, feedback: Sequence[Feedback] = ()) -> Future[None]:
        """Append rows from the encoder, as `append_async` appends runs."""


class OutgoingFeedback(NamedTuple):
    """Feedback to forward: its number, and the project and environment of its trace, if that is stored."""

    number: int
    feedback: Feedback
    project: str | None
    environment: str | None


@runtime_checkable
class DestinationStore(Protocol):
    """Store that records which destinations of calls take part in tracing."""

    def traced_destinations(self, project: str) -> Sequence[str]:
        """Return the destinations whose spans have continued calls of a project, see
        `spanwise.tracer.http_connections`.
        """


@runtime_checkable
class FeedbackSource(Protocol):
    """Store from which feedback can be forwarded.

    Numbers of feedback rise, with gaps. Changed feedback gets a new number.
    """

    def identity(self) -> str:
        """Return the unique id of this store."""

    def open_outlet(self, name: str, url: str) -> Outlet:
        """Return the state of forwarding to a target. A target that is new to the store gets only feedback from now
        on.
        """

    def feedback_after(self, cursor: int, limit: int) -> Sequence[OutgoingFeedback]:
        """Return feedback that was added or changed after a cursor, in order."""

    def count_feedback_after(self, cursor: int) -> int:
        """Return the number of feedback rows after a cursor."""

    def move_outlet(self, name: str, cursor: int, sent: int, dropped: int, error: str | None = None) -> None:
        """Store durably how far forwarding has got.

        All feedback up to the number `cursor` has been sent or dropped. `sent` and `dropped` are added to the counts, and
        `error` is the last error.
        """

    def find_stored_feedback(self, ids: Collection[str]) -> set[str]:
        """Return those of the ids under which feedback is stored."""


# bytes of payloads before compression: size above which traces are lazy, and maximum size of an answer
LARGE_ANSWER_BYTES, MAX_ANSWER_BYTES = 1024 * 1024, 512 * 1024 * 1024
ROW_BYTES = 500  # bytes of a row without its payload


def is_large_answer(size: int) -> bool:
    """Return whether traces of this size are returned as `LazyTrace`. Raise `TooLarge` beyond `MAX_ANSWER_BYTES`."""
    if size > MAX_ANSWER_BYTES:
        raise TooLarge(
            f"the traces have {size:,} bytes of runs, and a response at most {MAX_ANSWER_BYTES:,}; request fewer traces"
            " at once, or the runs of one trace page by page"
        )
    return size > LARGE_ANSWER_BYTES


# maximum number of runs in a batch, and number of stored bytes at which a batch ends
BATCH, BATCH_BYTES = 100, 16 * 1024


@dataclass(frozen=True, slots=True)
class LazyTrace:
    """Trace whose runs are decoded in batches on each iteration. Decoding does not access the database file."""

    root: Run
    rows: Sequence[Any]
    sizes: Sequence[int]  # size of each row in bytes
    read: Callable[[Any], Run]
    feedback: tuple[Feedback, ...]
    complete: bool
    dropped: int
    calls_sent: int
    running: tuple[OpenRun, ...]

    @property
    def size(self) -> int:
        """Return the total size of the rows in bytes."""
        return sum(self.sizes)

    def batches(self) -> Iterator[list[Run]]:
        """Yield all runs by start time, in batches. Raise `StoreError` for a damaged run."""
        batch, size = list[Run](), 0
        for row, bytes_ in zip(self.rows, self.sizes, strict=True):
            batch.append(self.read(row))
            size += bytes_
            if len(batch) >= BATCH or size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch


@runtime_checkable
class StreamingStore(Protocol):
    """Store that returns large traces so that they can be written out in batches."""

    def load_traces(self, trace_ids: Sequence[str]) -> Sequence[Trace | LazyTrace]:
        """Return traces as `TraceStore.many` does, all complete if they are small, else all lazy.

        Raise `TooLarge` if they exceed the limit of a response.
        """
