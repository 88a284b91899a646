"""Trace backend and control backend: the two interfaces that the combined store is made of, and that of copies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from spanwise.collector.filters import Filter
from spanwise.collector.records import (
    JSON,
    AlertResult,
    AuditEvent,
    Backfill,
    Bucket,
    BudgetUsage,
    ChangePage,
    Claim,
    ClaimResult,
    ConditionResult,
    Decision,
    DecisionBatch,
    Experiment,
    Feedback,
    Key,
    Lease,
    Notification,
    Page,
    Retention,
    Rule,
    Run,
    SettingsVersion,
    Source,
    Target,
    TraceHead,
    TraceSummary,
    WorkerReport,
)
from spanwise.collector.stores.flat_tables import ExampleRecord


class DeletedTraces(NamedTuple):
    """Batch of traces to delete, and the sessions that lose their last trace with it.

    `next` is the position of the next batch; None if there is no other.
    """

    traces: Sequence[str]
    sessions: Sequence[str] = ()
    next: str | None = None


class TargetFeedback(NamedTuple):
    """Feedback from one lease on a rule's target. It replaces all earlier feedback of the evaluators in `evaluators`.

    Feedback on the spans of a trace, and on the documents of a span, counts as feedback on the target. Lease numbers
    (`claim`) of a rule and target rise over all versions of the rule. If `anew` is set, feedback of the rule's other
    evaluators on the target is deleted, too.
    """

    rule: str
    target: Target
    claim: int
    evaluators: Sequence[str]
    feedback: Sequence[Feedback] = ()
    anew: bool = False


# Replacement of a rule's feedback by that of later leases.

ClaimKey: TypeAlias = tuple[Any, ...]  # scope of a lease number: target, rule, evaluator


class RuleFeedback(NamedTuple):
    """Fields of a rule's feedback that decide which score replaces which.

    `claim` is the number of the lease under which the feedback was written, 0 for none.
    """

    id: str
    claim: int
    trace_id: str | None
    span_id: str | None
    document: int | None
    session_id: str | None
    experiment_id: str | None
    project: str | None
    rule: str
    evaluator: str | None

    @property
    def claim_key(self) -> ClaimKey:
        """Return target, rule and evaluator."""
        return self[2:]


def find_highest_claims(rows: Iterable[RuleFeedback]) -> dict[ClaimKey, int]:
    """Return the highest lease number of each target, rule and evaluator."""
    highest: dict[ClaimKey, int] = {}
    for row in rows:
        highest[row.claim_key] = max(row.claim, highest.get(row.claim_key, 0))
    return highest


def compare_claims(rows: Sequence[RuleFeedback], stored: Sequence[RuleFeedback]) -> tuple[set[str], set[str]]:
    """Return the ids of new rows that are outdated, and of stored rows to be deleted.

    A row is outdated if the same target, rule and evaluator has feedback with a higher lease number. Stored rows that
    a new row overwrites are not deleted.
    """
    highest = find_highest_claims((*stored, *rows))
    late = {row.id for row in rows if row.claim < highest[row.claim_key]}
    replaced = {row.id for row in stored if row.claim < highest[row.claim_key]}
    return late, replaced - {row.id for row in rows if row.id not in late}


def find_replaced(new: TargetFeedback, stored: Sequence[RuleFeedback]) -> list[RuleFeedback] | None:
    """Return the stored feedback that a set replaces; None if some of it has a higher lease number."""
    target = new.target  # feedback on a part of the target is replaced, too
    replaced = [
        row
        for row in stored
        if (new.anew or row.evaluator in new.evaluators)
        and target.span_id in (None, row.span_id)
        and target.document in (None, row.document)
    ]
    return None if any(row.claim > new.claim for row in replaced) else replaced


class FinishPlan(NamedTuple):
    """Plan for storing the result of a lease. If `answer` is set, it is the status to return, and nothing is stored."""

    answer: str | None
    # True: replace all feedback of the rule on the target; False: only that of the evaluators that report
    whole: bool = True


class ScoreQuery(NamedTuple):
    """Query for one page of a rule's scores: one key or all keys, traces that started in [since_ns, until_ns).

    `labelled` includes scores that have only a label. `by` is a field whose values each score returns in `groups`.
    """

    rule: str
    project: str
    key: str | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    limit: int = 1000
    cursor: str | None = None
    labelled: bool = False
    by: str | None = None


class RuleScore(NamedTuple):
    """Score, error or skip of a rule, with the session of its trace (if any) and the start time of the trace.

    For a session as target, these are that session and the start of its first trace.
    """

    feedback: Feedback
    session_id: str | None
    start_ns: int
    groups: Sequence[str] = ()  # values of the field `ScoreQuery.by` of the trace, or of all traces of the session


class BucketScore(NamedTuple):
    """Score, error or skip of a rule on a trace in a bucket of an aggregate, with the project of the trace.

    `start_ns` is the start of the bucket (0 without buckets), and `group` the value by which it is grouped.
    """

    start_ns: int
    group: str | None
    project: str
    score: RuleScore


class ScoreProbability(NamedTuple):
    """Inclusion probability of a scored target: with backfills, and by live traffic alone.

    `is_own` is False for a target on which the rule, or the version asked for, has not decided.
    """

    is_own: bool
    probability: float | None = None
    live: float | None = None


class DecisionQuery(NamedTuple):
    """Query for one page of decisions: about one trace and its session (given as project and id), or about any
    target.
    """

    trace_id: str | None = None
    session: tuple[str, str] | None = None
    rule: str | None = None
    version: str | None = None
    project: str | None = None
    verdict: str | None = None
    limit: int = 1000
    cursor: str | None = None


class TraceBackend(Protocol):
    """Trace backend: what the combined store needs besides the operations of `TraceStore` other than `delete` and
    `prune`.

    Methods without a docstring are those of `TraceStore`.
    """

    @property
    def where(self) -> str:
        """Return the location, for display."""

    def latest_trace_number(self) -> int:
        """Return the number of the trace that arrived last. Later traces have higher numbers."""

    def find_deletable_traces(
        self, filter: Filter, after: str | None = None, upto: int | None = None
    ) -> DeletedTraces | None:
        """Return a batch of the traces that pass and have at most the number `upto`; None if there are none.

        `after` is the position at which the previous batch ended.
        """

    def delete_traces(self, gone: Iterable[DeletedTraces]) -> int:
        """Delete traces with spans, full-text index entries and feedback, batch by batch. Return the number of
        traces.
        """

    def apply_retention(self, rules: Sequence[Retention]) -> None:
        """Let the engine delete old data by all retention rules, if it can do so by itself, some days after `prune`."""

    def prepare_pruning(self, rule: Retention) -> Sequence[Filter]:
        """Return filters for the traces that a retention rule expires now.

        Also delete feedback that the rule expires and whose trace never arrived.
        """

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
    ) -> Page[Feedback]: ...

    def delete_feedback(self, ids: Sequence[str]) -> int: ...

    def changes(self, after: str | None = None, *, limit: int = 1000, filters: Sequence[Filter] = ()) -> ChangePage:
        """Return a page of the change feed, as `TraceStore.changes` does. The filters have no dataset."""

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
        """Return a page of heads, as `TraceStore.heads` does. The filters have no dataset."""

    def explain(self, trace_id: str, filter: Filter) -> list[ConditionResult]:
        """Return the result of each condition, as `TraceStore.explain` does. The filter has no dataset."""

    def replace_rule_feedback(self, verdicts: Sequence[TargetFeedback]) -> list[bool]:
        """Replace the feedback of earlier leases in one transaction. Return for each entry whether it was stored.

        - Feedback is stored with the rule and the lease number.
        - Nothing is stored (False) if the trace does not exist, or has feedback of a later lease.
        - Repeating the call changes nothing.
        - Evaluators' traces that no feedback refers to any more are deleted.
        """

    def count_changes_after(self, after: str | None) -> tuple[int, int | None]:
        """Return the number of changed traces in the feed after a position, and the time of the first change (store's
        clock).
        """

    def latest_change(self) -> int:
        """Return the highest change number so far. As text, it is the cursor of all later changes."""

    def get_trace_head(self, trace_id: str, filters: Sequence[Filter] = ()) -> TraceHead:
        """Return the current entry of a trace in the change feed. The filters have no dataset.

        Raise `NotFound` for an unknown trace.
        """

    def is_after(self, change: str, cursor: str | None) -> bool:
        """Return whether one position in the feed comes after another."""

    def list_rule_scores(self, asked: ScoreQuery) -> Page[RuleScore]:
        """Return current scores, errors and skips of a rule, ordered by start of the trace, latest first.

        Scores of sessions are included for any project.
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
        """Return buckets as `TraceStore.aggregate` does, with plain means. The filter has no dataset."""

    def list_bucket_scores(
        self, filter: Filter, *, bucket_ns: int | None, group_by: str | None, newest: int | None
    ) -> Iterable[BucketScore]:
        """Yield the current scores, errors and skips of rules on the traces of an aggregate, also those with only a label.

        `newest` is that of the aggregate's buckets. A trace in several groups is yielded for each.
        """

    def find_stored_traces(self, trace_ids: Collection[str]) -> set[str]:
        """Return those of the traces that are stored with at least one run."""

    def find_stored_sessions(self, sessions: Collection[str]) -> set[str]:
        """Return those of the sessions that have at least one stored trace."""

    def list_table_records(self, table: str, filter: Filter, limit: int, cursor: str | None) -> Page[Any]:
        """Return one page of the source records of a flat table other than `examples`. The filter has no dataset."""

    def traces(
        self,
        filter: Filter | None = None,
        *,
        sort: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        **conditions: object,
    ) -> Page[TraceSummary]: ...

    def close(self) -> None: ...


class ControlBackend(Protocol):
    """Control backend: what the combined store needs besides the operations of `ControlStore`.

    Methods without a docstring are those of `ControlStore`.
    """

    @property
    def where(self) -> str:
        """Return the location, for display."""

    def keys(self) -> list[Key]: ...

    def delete_key(self, id: str) -> bool: ...

    def record_audit_event(self, event: AuditEvent) -> None:
        """Store an audit event, for `ControlStore.audit`."""

    def delete_references(self, gone: DeletedTraces) -> None:
        """Delete decisions and queue items about deleted traces and sessions."""

    def save_rules(self, rules: Sequence[Rule], owner: str | None, activate: bool, change: int) -> None:
        """Store rules as `ControlStore.save_rule` does. `change` is the latest change number."""

    def update_rule(self, name: str, project: str, fields: Mapping[str, JSON], change: int, actor: str) -> Rule:
        """Change fields of a rule as `ControlStore.change_rule` does. `change` is the latest change number, and `actor`
        who makes the change.
        """

    def rules(self, *, project: str | None = None) -> list[Rule]: ...

    def find_settings(self, rule: Rule, change: int) -> SettingsVersion | None:
        """Return the settings of a rule's version that were in force at a change; None if the version has no settings.

        For a change before the first settings, return the first ones.
        """

    def cursor(self, rule: str, version: str, *, project: str) -> str | None: ...

    def record_decisions(self, decided: Sequence[DecisionBatch]) -> list[bool]:
        """Record decisions as `ControlStore.decide` does. All targets exist."""

    def list_decisions(self, asked: DecisionQuery) -> Page[Decision]:
        """Return one page of decisions, as `ControlStore.decisions` does."""

    def lease_decisions(
        self,
        rule: str,
        version: str,
        holder: str,
        seconds: float,
        project: str,
        limit: int,
        over_budget: int | None = None,
        backfill: str | None = None,
    ) -> list[Decision]:
        """Lease due decisions as `ControlStore.claim` does.

        Unlike `claim`, it also returns a decision on which a third worker has died. It returns such a decision alone.
        """

    def plan_finish(self, finishes: Sequence[ClaimResult]) -> list[FinishPlan]:
        """Return, for each finished lease, a plan for its feedback. `finish_leases` is called after the feedback is stored.

        Raise `Refused` for an invalid verdict.
        """

    def finish_leases(self, finishes: Sequence[ClaimResult]) -> list[str]:
        """Finish leases as `ControlStore.finish` does, once the feedback is stored."""

    def list_abandoned_leases(self, expired_s: float, limit: int = 1000) -> list[Claim]:
        """Return leases that expired some seconds ago, before their first result, and whose version is not in force."""

    def end_abandoned_leases(self, leases: Sequence[Claim]) -> None:
        """End leases of `list_abandoned_leases`, so that it returns others."""

    def find_probabilities(
        self, rule: str, project: str, version: str | None, scores: Sequence[tuple[Target, int]]
    ) -> list[ScoreProbability]:
        """Return, for each target and lease number, the sampling probability of the decision to which it belongs."""

    def create_backfill(self, backfill: Backfill) -> Backfill:
        """Store a new backfill, or return the stored one of this id.

        Raise `Refused` if its version is not in force.
        """

    def list_backfills(self, rule: str | None, project: str | None, active: bool) -> list[Backfill]:
        """Return backfills, newest first; only `active` ones if it is set. `blocked` says only what the record of the rule shows."""

    def find_results(self, rule: Rule, targets: Collection[Target]) -> set[Target]:
        """Return those of the traces or sessions of which the version has a result."""

    def change_backfill(self, id: str, state: str, *, project: str = "default") -> Backfill: ...

    def count_outcomes(self, rule: Rule) -> Mapping[str, int]:
        """Return the number of traces of a version by verdict."""

    def count_open_decisions(self, rule: Rule, before_ns: int) -> int:
        """Return the number of decisions of a version, made before a time, whose target is not scored yet."""

    def list_failures(self, rule: Rule) -> Sequence[Decision]:
        """Return the latest failed decisions of a version, newest first."""

    def booked(self, budget: str | None = None) -> list[BudgetUsage]: ...

    def add_notifications(self, notifications: Sequence[Notification]) -> None:
        """Store notifications, each with one open delivery per target. A notification whose id is stored changes
        nothing.
        """

    def is_full(self) -> bool: ...

    def acquire(self, name: str, holder: str, seconds: float) -> Lease | None: ...

    def record_look(self, result: AlertResult) -> bool: ...

    def workers(self) -> list[WorkerReport]:
        """Return the newest report of each worker."""

    def experiments(
        self, *, dataset: str | None = None, project: str | None = None, limit: int
    ) -> list[Experiment]: ...

    def list_example_records(
        self, datasets: Collection[str] | None, limit: int, cursor: str | None
    ) -> Page[ExampleRecord]:
        """Return one page of the examples of the newest versions of datasets, or of all (None), in order."""

    def delete_experiment(self, id: str) -> bool:
        """Delete an experiment's record. Return False if there was none."""

    def retention(self) -> list[Retention]: ...

    def close(self) -> None: ...


# Copies of whole stores: export and import of everything that a trace backend stores


class TracePosition(NamedTuple):
    """Numbers of a trace: its own, and those of its last changes in the change feed (`change`, `runs_change`).

    `span_count` is 0 for a trace of which only feedback is stored. The change numbers are None for a trace that was
    never in the feed.
    """

    number: int
    trace_id: str
    span_count: int
    start_ns: int
    change: int | None
    runs_change: int | None
    changed_ns: int | None


class ExportedRun(NamedTuple):
    """Run with the fields that amendments have set, and its size in bytes without them (None: never amended)."""

    run: Run
    amended: Mapping[str, JSON]
    sent: int | None


class NumberedFeedback(NamedTuple):
    """Feedback with its number in the order of writing; 0 if it has none.

    `change` is the last change of its trace, if it has one. A store that orders the feed by feedback, too, must not give
    the feedback a later position.
    """

    number: int
    feedback: Feedback
    change: int | None = None


class SideRecord(NamedTuple):
    """Record that is neither a run nor feedback: kind (open_run, process, amendment, tombstone, outlet), and fields."""

    kind: str
    fields: Mapping[str, Any]


class TraceCopy(Protocol):
    """Export and import of everything that a trace backend stores, with all numbers, for copies between databases.

    During an import, nothing else uses the store: `begin_import`, then traces, feedback, positions and side records in
    this order, then `finish_import`. Each import replaces what is stored of the same trace or feedback.
    """

    def list_positions(self, after: int, limit: int) -> list[TracePosition]:
        """Return the positions of traces with higher numbers than `after`, in the order of numbers."""

    def read_runs(self, positions: Sequence[TracePosition]) -> Iterator[list[ExportedRun]]:
        """Yield all runs of traces, in batches, trace by trace."""

    def list_feedback(self, after: str | None, limit: int) -> tuple[list[NumberedFeedback], str | None]:
        """Return feedback after a cursor, in the order of writing, and the next cursor."""

    def list_side_records(self) -> Iterator[SideRecord]:
        """Yield all side records, kind by kind."""

    def read_identity(self) -> str:
        """Return the id of the store by which collectors that forward to each other know it."""

    def begin_import(self) -> None:
        """Prepare the store for an import. Repeated calls change nothing."""

    def import_traces(self, positions: Sequence[TracePosition], runs: Iterable[Sequence[ExportedRun]]) -> None:
        """Store runs, whose traces get the numbers of the positions. Raise `Refused` if a trace has another number."""

    def import_feedback(self, rows: Sequence[NumberedFeedback]) -> None:
        """Store feedback with its numbers."""

    def import_positions(self, positions: Sequence[TracePosition]) -> None:
        """Restore the change numbers of traces."""

    def import_side_records(self, records: Sequence[SideRecord], *, first: bool) -> None:
        """Store side records. The first call of an import replaces all that are stored."""

    def finish_import(self, latest_change: int, identity: str) -> None:
        """Continue the change feed after `latest_change`, and take over the id of the source."""
