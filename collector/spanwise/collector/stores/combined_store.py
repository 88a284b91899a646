"""Combined store of a trace backend and a control backend: deletion, retention, rules, decisions, audit trail."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial, wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from spanwise.collector.errors import NotFound, Refused, StoreError
from spanwise.collector.filters import EVALUATOR_KIND, Filter, extend_filter, validate_deletion_filter, validate_filter
from spanwise.collector.records import (
    JSON,
    AuditEvent,
    Backfill,
    BackfillPreview,
    Bucket,
    BudgetUsage,
    ChangePage,
    Claim,
    ClaimResult,
    ConditionResult,
    Decision,
    DecisionBatch,
    DecisionExplanation,
    Feedback,
    Key,
    Page,
    Retention,
    Rule,
    RuleStatus,
    ScoreSums,
    TablePage,
    Target,
    TraceHead,
    TraceSummary,
    WeightedScore,
    WorkerReport,
    assign_session_project,
    iterate_pages,
)
from spanwise.collector.request_context import CURRENT_ACTOR, Actor, get_current_actor
from spanwise.collector.rule_policy import (
    build_rule_filters,
    find_period,
    get_budget_name,
    get_budget_period,
    get_initial_cursor,
    get_sampling_rate,
    make_backfill,
)
from spanwise.collector.statistics import GRAIN_S
from spanwise.collector.stores import decision_explanation
from spanwise.collector.stores.backends import (
    ControlBackend,
    DecisionQuery,
    DeletedTraces,
    FinishPlan,
    ScoreQuery,
    TargetFeedback,
    TraceBackend,
)
from spanwise.collector.stores.backfill_preview import preview_backfill
from spanwise.collector.stores.decision_explanation import find_blocking_reason, find_load_error
from spanwise.collector.stores.flat_tables import EXAMPLES, EXPERIMENT_RESULTS, build_frame, find_table
from spanwise.collector.stores.store_interfaces import FILTERED_OPERATIONS, iterate_traces
from spanwise.collector.stores.weighted_sums import SumsQuery, count_groups, sum_scores, weigh_buckets

if TYPE_CHECKING:
    import pandas


# Audit trail: which operations are recorded, with which arguments and actor.

MAX_CHARS = 1000  # maximum length of the arguments and of a name
# Audited operations of the backends; the combined store audits its own deletions
AUDITED_OPERATIONS = frozenset(
    "save_key delete_dataset delete_rule delete_decisions delete_feedback delete_lease delete_budget set_retention".split()
)
audit_log = logging.getLogger("spanwise.audit")


def audit_operation(operation: Callable[..., Any], record: Callable[[AuditEvent], None]) -> Callable[..., Any]:
    """Wrap an operation so that it is audited after it has changed something."""
    # Positional-only parameters, which are `self` and the connection, are left out
    full = signature(operation)
    parameters = [
        parameter for parameter in full.parameters.values() if parameter.kind is not parameter.POSITIONAL_ONLY
    ]
    audited = full.replace(parameters=parameters)

    @wraps(operation)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = operation(*args, **kwargs)
        if result or result is None:
            about = audited.bind(*args, **kwargs).arguments
            record(make_audit_event(operation.__name__, about, 1 if result is None else int(result)))
        return result

    return call


def make_audit_event(action: str, about: Mapping[str, Any], count: int) -> AuditEvent:
    """Return the audit event of an operation, with its significant arguments as JSON. A key's hash is left out."""
    actor = get_current_actor()
    arguments = {name: _describe_value(value) for name, value in about.items()}
    return AuditEvent(
        action=action,
        about=json.dumps(arguments, ensure_ascii=False, default=repr)[:MAX_CHARS],
        count=count,
        key=actor.key,
        name=actor.name[:MAX_CHARS],
        address=actor.address,
    )


def log_audit_event(event: AuditEvent) -> None:
    """Log the event as one line of JSON. ASCII escapes keep client data from ending the line or controlling a
    terminal.
    """
    audit_log.info("%s", json.dumps({"audit": event.action, **msgspec.to_builtins(event)}, ensure_ascii=True))


def _describe_value(value: Any) -> Any:
    """Return the fields of a record that differ from their defaults. Other values are returned unchanged."""
    if isinstance(value, Key):
        return {name: getattr(value, name) for name in ("id", "name", "scopes", "project", "expires_ns")}
    if not is_dataclass(value):
        return value
    values = {field.name: (getattr(value, field.name), field.default) for field in fields(value)}
    return {name: item for name, (item, default) in values.items() if item not in (default, {})}


# Combined store of a trace backend and a control backend: deletion, retention, rules and decisions.

log = logging.getLogger("spanwise.collector")
MAX_EXPERIMENTS = 1_000_000  # maximum number of experiments on a dataset
MAX_WORKER_DEATHS = 3  # a target on which this many workers have died fails
TARGET_GONE = "refused: its target was deleted, or feedback of a later claim is there"


class CombinedStore:
    """Combined store of a trace backend and a control backend.

    Each operation belongs to one backend, except those that concern both. Across backends the store guarantees order
    and idempotence, not one transaction. Repeating an operation after a crash completes it:

    - Deletion and pruning: the control backend first deletes decisions and queue items about a batch of traces. Then
      the trace backend deletes the traces. After a crash in between, the traces still pass, and the next attempt
      deletes them. Traces that pass in the first step are deleted, even if they are scored before the second.
    - Deletion of an experiment: its traces, then the feedback on it, last its record, through which a retry finds it.
      The traces of the evaluators that gave the feedback are deleted with it.
    - Finish of a lease: first its feedback, with the lease number, then the decision. After a crash in between, the
      lease is still valid, and the same finish again, or that of the next lease, corrects both.
      A rule that is changed in between refuses the finish, and no other follows. `remove_abandoned_feedback` deletes
      the feedback of such leases.
    - Decisions: those about deleted traces are left out beforehand. A trace that is deleted in between leaves a row,
      which is deleted when its lease is finished.
    - A condition on a dataset is first replaced by the ids of its experiments. Experiments saved meanwhile are not
      seen.
    """

    def __init__(self, traces: TraceBackend, control: ControlBackend) -> None:
        self._traces, self._control = traces, control
        for backend in (control, traces):
            for name in dir(backend):
                if not name.startswith("_") and not hasattr(type(self), name):
                    operation = getattr(backend, name)  # looked up once, so that calls have no overhead
                    if name in AUDITED_OPERATIONS:
                        operation = audit_operation(operation, self._record_audit_event)
                    if name in FILTERED_OPERATIONS:
                        operation = self._with_datasets(operation)
                    setattr(self, name, operation)

    @property
    def where(self) -> str:
        """Return the locations of the backends."""
        return " and ".join(dict.fromkeys((self._traces.where, self._control.where)))

    def __enter__(self) -> CombinedStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write queued jobs, then close both backends. Repeated calls do nothing."""
        self._traces.close()
        self._control.close()

    def delete(self, filter: Filter | None = None, **conditions: object) -> int:
        """Delete the traces that pass, with all data about them. Return the number of traces."""
        wanted = extend_filter(filter, conditions)
        return self._delete("delete", {"filter": wanted}, self._resolve_dataset(validate_deletion_filter(wanted)))

    def _delete(self, action: str, about: Mapping[str, Any], filter: Filter) -> int:
        """Delete the traces that pass. Audit the deletion even if it fails halfway."""
        sizes: list[int] = []
        try:
            return self._traces.delete_traces(self._delete_references(filter, sizes))
        finally:
            if sizes:
                self._record_audit_event(make_audit_event(action, about, sum(sizes)))

    def _delete_references(self, filter: Filter, sizes: list[int]) -> Iterator[DeletedTraces]:
        """Yield the traces that pass in batches, each after the control backend has deleted its data about them.

        The size of each batch is appended to `sizes`. Each search starts at the end of the previous batch. At the end
        the search starts over until no trace passes, because traces before the position may have begun to pass. Traces
        that arrive meanwhile are not deleted, so that the loop ends.
        """
        upto = self._traces.latest_trace_number()
        while batch := self._traces.find_deletable_traces(filter, upto=upto):
            while batch:
                self._control.delete_references(batch)
                sizes.append(len(batch.traces))
                yield batch
                after = batch.next
                batch = None if after is None else self._traces.find_deletable_traces(filter, after, upto)

    def _record_audit_event(self, event: AuditEvent) -> None:
        """Log and store an audit event. If storing fails, log the failure: the audited operation is already done."""
        log_audit_event(event)
        try:
            self._control.record_audit_event(event)
        except StoreError as error:
            log.error("the audit event is only in the log, because it could not be stored: %s", error)

    def each(self, filter: Filter | None = None, **conditions: object) -> Iterator[TraceSummary]:
        """Yield all traces that pass, page by page. See `TraceStore.each`."""
        return iterate_traces(
            self._traces.traces, self._resolve_dataset(validate_filter(extend_filter(filter, conditions)))
        )

    def table_page(
        self,
        table: str,
        filter: Filter | None = None,
        *,
        limit: int = 1000,
        cursor: str | None = None,
        **conditions: object,
    ) -> TablePage:
        """Return one page of a flat table. See `TraceStore.table_page`."""
        definition = find_table(table)
        wanted = validate_filter(extend_filter(filter, conditions))
        if definition is EXAMPLES:
            examples = self._control.list_example_records(self._find_datasets(wanted), limit, cursor)
            return TablePage(columns=definition.make_columns(examples.items), next=examples.next)
        page = self._traces.list_table_records(table, self._resolve_dataset(wanted), limit, cursor)
        if definition is EXPERIMENT_RESULTS and page.items:
            by_id = {one.id: one for one in self._control.experiments(limit=MAX_EXPERIMENTS)}
            page = replace(
                page, items=tuple(record._replace(experiment=by_id.get(record.experiment_id)) for record in page)
            )
        return TablePage(columns=definition.make_columns(page.items), next=page.next)

    def to_pandas(self, table: str, filter: Filter | None = None, **conditions: object) -> pandas.DataFrame:
        """Return the rows of a flat table as a DataFrame. See `TraceStore.to_pandas`."""
        return build_frame(self, table, extend_filter(filter, conditions))

    def _find_datasets(self, filter: Filter) -> set[str] | None:
        """Return the dataset that a filter names, or those of the project or experiments that it names. None: all."""
        if filter.dataset is not None:
            return {filter.dataset}
        ids = filter.experiments if filter.experiment is None else (filter.experiment,)
        if filter.project is None and ids is None:
            return None
        experiments = self._control.experiments(project=filter.project, limit=MAX_EXPERIMENTS)
        return {one.dataset for one in experiments if ids is None or one.id in ids}

    def prune(self, rule: Retention) -> int:
        """Delete traces that are older, or take more space, than a retention rule allows. Return the number of
        traces.
        """
        return sum(self._delete("prune", {"rule": rule}, expired) for expired in self._traces.prepare_pruning(rule))

    def run_hourly_jobs(self) -> None:
        """Prune by all stored retention rules, and delete feedback of abandoned leases."""
        before = CURRENT_ACTOR.set(Actor("", "retention", f"process {os.getpid()}"))
        try:
            rules = self._control.retention()
            self._traces.apply_retention(rules)
            for rule in rules:
                self.prune(rule)
            self.remove_abandoned_feedback()
        finally:
            CURRENT_ACTOR.reset(before)

    def remove_abandoned_feedback(self, expired_s: float = 3600) -> int:
        """Delete the feedback of leases that expired some time ago and can never be finished. Return its number.

        A worker stores feedback before it finishes its lease. If it dies in between, and its rule is changed or removed
        before another worker takes over, the trace has scores that its decision does not know.
        """
        count = 0
        while leases := self._control.list_abandoned_leases(expired_s):
            for lease in leases:
                trace_id = lease.target.trace_id
                about = Filter() if trace_id is None else Filter(trace_ids=(trace_id,))
                target = lease.target if trace_id is None else None
                left = [
                    each.id
                    for each in iterate_pages(partial(self._traces.feedbacks, about, target=target))
                    if (each.rule, each.claim) == (lease.rule, lease.number)
                ]
                count += self._traces.delete_feedback(left)
            self._control.end_abandoned_leases(leases)
        return count

    def delete_experiment(self, id: str) -> bool:
        """Delete an experiment with its traces and the feedback on it. Return False if there was none."""
        if not id:  # in a filter, "" matches traces without an experiment
            raise Refused("the id of the experiment to delete must not be empty")
        self.delete(experiment=id)
        while page := self._traces.feedbacks(target=Target(experiment_id=id), limit=1000):
            judgements = tuple({feedback.judge_trace_id for feedback in page if feedback.judge_trace_id})
            if judgements:
                self.delete(trace_ids=judgements, kind=EVALUATOR_KIND, experiment="")
            self._traces.delete_feedback([feedback.id for feedback in page])
        deleted = self._control.delete_experiment(id)
        if deleted:
            self._record_audit_event(make_audit_event("delete_experiment", {"id": id}, 1))
        return deleted

    def delete_key(self, id: str) -> bool:
        """Revoke a key. The audit event includes its name, which cannot be looked up afterwards."""
        keys = self._control.keys()
        names = {key.id: key.name for key in keys}
        deleted = self._control.delete_key(id)
        if deleted:
            self._record_audit_event(make_audit_event("delete_key", {"id": id, "name": names.get(id)}, 1))
        return deleted

    def _with_datasets(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap an operation with a filter, so that the filter may name a dataset."""
        options = [name for name, one in signature(operation).parameters.items() if one.kind is one.KEYWORD_ONLY]

        @wraps(operation)
        def call(filter: Filter | None = None, **kwargs: Any) -> Any:
            conditions = {name: kwargs.pop(name) for name in list(kwargs) if name not in options}
            return operation(self._resolve_dataset(validate_filter(extend_filter(filter, conditions))), **kwargs)

        return call

    def _resolve_dataset(self, filter: Filter) -> Filter:
        """Return the filter with its dataset replaced by the experiments that ran on it."""
        if filter.dataset is None:
            return filter
        experiments = self._control.experiments(dataset=filter.dataset, limit=MAX_EXPERIMENTS)
        ids = tuple(one.id for one in experiments if filter.experiments is None or one.id in filter.experiments)
        return replace(filter, dataset=None, experiments=ids)

    # Operations on monitoring rules

    def save_rule(self, *rules: Rule, owner: str | None = None, activate: bool = False) -> None:
        """Put rules in force. See `ControlStore.save_rule`."""
        self._control.save_rules(rules, owner, activate, self._traces.latest_change())

    def change_rule(self, name: str, *, project: str = "default", **fields: JSON) -> Rule:
        """Change fields that do not affect decisions. See `ControlStore.change_rule`."""
        actor = str(get_current_actor())
        rule = self._control.update_rule(name, project, fields, self._traces.latest_change(), actor)
        if "enabled" in fields:  # other fields are not audited: pacing changes settings every minute
            about = {"name": name, "project": project, "enabled": fields["enabled"]}
            self._record_audit_event(make_audit_event("change_rule", about, 1))
        return rule

    def decide(self, *decided: DecisionBatch) -> list[bool]:
        """Record decisions, without those about targets that are not stored. See `ControlStore.decide`."""
        targets = [row.target for batch in decided for row in batch.rows]
        traces = {target.trace_id for target in targets if target.trace_id is not None}
        sessions = {target.session_id for target in targets if target.session_id is not None}
        stored_traces = {*(self._traces.find_stored_traces(traces) if traces else ()), None}
        stored_sessions = {*(self._traces.find_stored_sessions(sessions) if sessions else ()), None}
        batches = []
        for batch in decided:
            rows = tuple(
                row
                for row in batch.rows
                if row.target.trace_id in stored_traces and row.target.session_id in stored_sessions
            )
            batches.append(batch if len(rows) == len(batch.rows) else replace(batch, rows=rows))
        return self._control.record_decisions(batches)

    def decisions(self, *, trace_id: str | None = None, **query: Any) -> Page[Decision]:
        """Return stored decisions. See `ControlStore.decisions`."""
        traces = self._traces.traces(trace_ids=(trace_id,), limit=1) if trace_id is not None else ()
        session = next(((trace.project, trace.session_id) for trace in traces if trace.session_id is not None), None)
        return self._control.list_decisions(DecisionQuery(trace_id, session, **query))

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
        """Lease due decisions. See `ControlStore.claim`."""
        while True:
            leased = self._control.lease_decisions(
                rule, version, holder, seconds, project, limit, over_budget, backfill
            )
            if not any(decision.deaths >= MAX_WORKER_DEATHS for decision in leased):
                return leased
            active = {one.name: one for one in self._control.rules(project=project)}.get(rule)
            # `lease_decisions` returns such a decision alone
            self.finish(*(_fail_target(decision, active) for decision in leased))

    def finish(self, *finishes: ClaimResult) -> list[str]:
        """Store the results of leases. See `ControlStore.finish`."""
        plans = self._control.plan_finish(finishes)
        pairs = [pair for pair in zip(finishes, plans, strict=True) if pair[1].answer is None]
        stored = self._traces.replace_rule_feedback([_collect_feedback(finish, plan) for finish, plan in pairs])
        accepted = [finish for (finish, _), is_stored in zip(pairs, stored, strict=True) if is_stored]
        refused = [finish for (finish, _), is_stored in zip(pairs, stored, strict=True) if not is_stored]
        # Also delete decisions that were recorded while their trace was being deleted
        ids = {id for finish in refused if (id := finish.claim.target.trace_id) is not None}
        if deleted := ids - self._traces.find_stored_traces(ids) if ids else ids:
            self._control.delete_references(DeletedTraces(sorted(deleted)))
        statuses = iter(self._control.finish_leases(accepted))
        answers = iter([next(statuses) if is_stored else TARGET_GONE for is_stored in stored])
        return [next(answers) if plan.answer is None else plan.answer for plan in plans]

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
        """Start a backfill. See `ControlStore.start_backfill`."""
        until_ns = self._now_ns() if until_ns is None else until_ns
        job = make_backfill(self._find_rule(rule, project), since_ns, until_ns, sample_rate, budget or {}, id)
        return self._control.create_backfill(job if version is None else replace(job, version=version))

    def preview_backfill(
        self,
        rule: str,
        *,
        project: str = "default",
        since_ns: int,
        until_ns: int | None = None,
        sample_rate: float | None = None,
    ) -> BackfillPreview:
        """Return the dry run of a backfill. See `ControlStore.preview_backfill`."""
        active, now_ns = self._find_rule(rule, project), self._now_ns()
        job = make_backfill(active, since_ns, now_ns if until_ns is None else until_ns, sample_rate)
        return preview_backfill(self.heads, self._control, active, job, now_ns)

    def _find_rule(self, name: str, project: str) -> Rule:
        for rule in self._control.rules(project=project):
            if rule.name == name:
                return rule
        raise NotFound(f"there is no rule {name!r} in project {project!r}")

    def backfills(self, *, rule: str | None = None, project: str | None = None, active: bool = False) -> list[Backfill]:
        """Return backfills. See `ControlStore.backfills`."""
        jobs = self._control.list_backfills(rule, project, active)
        if not any(job.state == "running" and job.blocked is None for job in jobs):
            return jobs
        rules = {(one.project, one.name): one for one in self._control.rules(project=project)}
        workers, now_ns = self._control.workers(), self._now_ns()
        barred = {
            id: str(why) for worker in workers for id, why in dict(worker.data.get("barred_backfills", {})).items()
        }
        return [
            replace(
                job,
                blocked=find_blocking_reason(rules[job.project, job.rule], workers, now_ns) or barred.get(job.id),
            )
            if job.state == "running" and job.blocked is None and (job.project, job.rule) in rules
            else job
            for job in jobs
        ]

    def why(self, trace_id: str, *, rule: str | None = None) -> list[DecisionExplanation]:
        """Explain why each rule, or one, did or did not evaluate a trace. See `ControlStore.why`."""
        head = self._traces.get_trace_head(trace_id)
        booked, now_ns = self._control.booked(), self._now_ns()
        session = None if head.session_id is None else (head.project, head.session_id)
        workers = self._control.workers()
        explanations = []
        for each in self._control.rules(project=head.project):
            if rule in (None, each.name):
                context = self._make_context(each, head, session, now_ns, workers)
                explanation = decision_explanation.explain_decision(context)
                explanations.append(replace(explanation, budget=_present_bookings(each, booked, now_ns)))
        return explanations

    def _make_context(
        self,
        rule: Rule,
        head: TraceHead,
        session: tuple[str, str] | None,
        now_ns: int,
        workers: Sequence[WorkerReport],
    ) -> decision_explanation.DecisionContext:
        """Collect the data that explains a rule's decision on a trace."""
        setting = self._control.find_settings(rule, head.change)
        settings = rule.settings if setting is None else setting.settings
        filters = [self._resolve_dataset(filter) for filter in build_rule_filters(rule, settings)]
        cursor = self._control.cursor(rule.name, rule.version, project=rule.project) or get_initial_cursor(rule)
        is_undecided = self._traces.is_after(head.cursor, cursor)
        query = DecisionQuery(head.trace_id, session, rule.name, project=rule.project)
        return decision_explanation.DecisionContext(
            rule=rule,
            settings=settings,
            head=self._traces.get_trace_head(head.trace_id, filters),
            conditions=self._traces.explain(head.trace_id, filters[0]),
            decisions=self._control.list_decisions(query).items,
            behind=self._traces.count_changes_after(cursor)[0] if is_undecided else None,
            now_ns=now_ns,
            blocked=find_blocking_reason(rule, workers, now_ns),
        )

    def status(self, *, project: str | None = None) -> list[RuleStatus]:
        """Return the progress of each rule. See `ControlStore.status`."""
        booked, workers = self._control.booked(), self._control.workers()
        now_ns = self._now_ns()
        return [self._status(rule, booked, workers, now_ns) for rule in self._control.rules(project=project)]

    def _now_ns(self) -> int:
        """Return the time of the store's clock."""
        return self._traces.changes(str(self._traces.latest_change()), limit=1).now_ns

    def _status(
        self, rule: Rule, booked: Sequence[BudgetUsage], workers: Sequence[WorkerReport], now_ns: int
    ) -> RuleStatus:
        cursor = self._control.cursor(rule.name, rule.version, project=rule.project)
        behind, oldest_ns = self._traces.count_changes_after(cursor or get_initial_cursor(rule))
        return RuleStatus(
            rule=rule,
            counts=self._control.count_outcomes(rule),
            cursor=cursor,
            behind=behind,
            lag_s=0.0 if oldest_ns is None else max(0.0, (now_ns - oldest_ns) / 1e9),
            rate=get_sampling_rate(rule.settings, ())[0],
            booked=_present_bookings(rule, booked, now_ns),
            errors=tuple(dict.fromkeys(map(decision_explanation.describe_decision, self._control.list_failures(rule)))),
            workers=tuple(
                worker
                for worker in workers
                if (worker.project == rule.project and rule.name in worker.rules) or find_load_error(rule, worker)
            ),
        )

    def undecided(self, rule: str, *, project: str = "default", before_ns: int) -> int:
        """Return the number of a rule's targets that are not decided or scored yet. See `ControlStore.undecided`."""
        active = {one.name: one for one in self._control.rules(project=project)}.get(rule)
        if active is None or not active.enabled:
            return 0
        cursor = self._control.cursor(active.name, active.version, project=project)
        behind, oldest_ns = self._traces.count_changes_after(cursor or get_initial_cursor(active))
        late = behind if oldest_ns is not None and oldest_ns < before_ns else 0
        return late + self._control.count_open_decisions(active, before_ns)

    def weighted(
        self, rule: str, *, version: str | None = None, project: str = "default", **query: Any
    ) -> Page[WeightedScore]:
        """Return a rule's scores with their probabilities. See `ControlStore.weighted`."""
        page = self._traces.list_rule_scores(ScoreQuery(rule, project, **query))
        targets = [(score.feedback.target, score.feedback.claim or 0) for score in page]
        found = zip(page, self._control.find_probabilities(rule, project, version, targets), strict=True)
        scores = [
            WeightedScore(
                trace_id=score.feedback.target.trace_id,
                session_id=score.session_id,
                start_ns=score.start_ns,
                key=score.feedback.key,
                score=score.feedback.score,
                probability=decided.probability,
                live_probability=decided.live,
                created_ns=score.feedback.created_ns,
                outcome=score.feedback.outcome,
            )
            for score, decided in found
            if decided.is_own
        ]
        return Page(items=tuple(scores), next=page.next)

    def score_sums(
        self,
        rule: str,
        *,
        project: str = "default",
        key: str | None = None,
        version: str | None = None,
        since_ns: int,
        until_ns: int,
        block_s: int = GRAIN_S,
        by: str | None = None,
        groups: Sequence[str] = (),
        joined: bool = True,
        live: bool = False,
    ) -> list[ScoreSums]:
        """Return the sums of a rule's weighted scores. See `ControlStore.score_sums`."""
        query = SumsQuery(rule, project, since_ns, until_ns, block_s, key, version, by, groups, joined, live)
        return self._sum_scores(query)

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
        """Return the number of a rule's weighted scores by group. See `ControlStore.score_groups`."""
        whole_s = max(GRAIN_S, (until_ns - since_ns) // 10**9)
        query = SumsQuery(rule, project, since_ns, until_ns, whole_s, key, version, by, live=live, joined=False)
        return count_groups(self._sum_scores(query))

    def _sum_scores(self, query: SumsQuery) -> list[ScoreSums]:
        """Return the sums of a query, computed from the scores in its window."""
        return sum_scores(self._traces, self._control, query)

    def aggregate(
        self,
        filter: Filter | None = None,
        *,
        bucket_ns: int | None = None,
        group_by: str | None = None,
        newest: int | Literal["all"] | None = None,
        **conditions: object,
    ) -> list[Bucket]:
        """Return buckets with weighted means of rules' scores. See `TraceStore.aggregate`.

        An experiment runs all of its examples, so the scores of its runs are no sample. Buckets of experiments
        therefore stay plain.
        """
        resolved = self._resolve_dataset(validate_filter(extend_filter(filter, conditions)))
        buckets = self._traces.aggregate(resolved, bucket_ns=bucket_ns, group_by=group_by, newest=newest)
        is_experiment = resolved.experiment or resolved.experiments is not None
        if is_experiment or not any(bucket.feedback for bucket in buckets):
            return buckets
        counted = next((bucket.newest for bucket in buckets if bucket.newest), None)
        scores = self._traces.list_bucket_scores(resolved, bucket_ns=bucket_ns, group_by=group_by, newest=counted)
        return weigh_buckets(buckets, scores, self._control, bucket_ns, group_by)

    def changes(self, after: str | None = None, *, limit: int = 1000, filters: Sequence[Filter] = ()) -> ChangePage:
        """Return a page of the change feed. See `TraceStore.changes`."""
        return self._traces.changes(after, limit=limit, filters=[self._resolve_dataset(filter) for filter in filters])

    def heads(self, *, filters: Sequence[Filter] = (), **options: Any) -> ChangePage:
        """Return heads of the traces of a period. See `TraceStore.heads`."""
        return self._traces.heads(filters=[self._resolve_dataset(filter) for filter in filters], **options)

    def latest_change(self) -> int:
        """Return the highest change number so far. See `FeedStore`."""
        return self._traces.latest_change()

    def explain(self, trace_id: str, filter: Filter) -> list[ConditionResult]:
        """Explain why a trace does or does not pass a filter. See `TraceStore.explain`."""
        return self._traces.explain(trace_id, self._resolve_dataset(filter))


def _collect_feedback(finish: ClaimResult, plan: FinishPlan) -> TargetFeedback:
    """Return the feedback of a finish, for all evaluators that it mentions. Sessions get the project of the rule."""
    evaluators = [one.evaluator for one in finish.feedback if one.evaluator is not None]
    names, claim = tuple(dict.fromkeys([*finish.reported, *evaluators])), finish.claim
    replace_all = plan.whole and bool(names)  # without a result, the lease leaves existing feedback unchanged
    target, feedback = claim.target, finish.feedback
    if target.session_id is not None and claim.project:
        target = replace(target, project=claim.project)
        feedback = tuple(assign_session_project(row, claim.project) for row in feedback)
    return TargetFeedback(claim.rule, target, claim.number, names, feedback, replace_all)


def _fail_target(decision: Decision, rule: Rule | None) -> ClaimResult:
    """Return the result for a target on which every worker dies: an error for each evaluator without outcome."""
    reason = f"ended the worker {decision.deaths} times"
    keys = [str(entry.get("key") or entry.get("id")) for entry in rule.evaluators] if rule is not None else []
    done = {key for key, state in decision.states.items() if state.get("state") != "waiting"}
    failed = tuple(key for key in dict.fromkeys([*keys, *decision.states]) if key not in done)
    return ClaimResult(
        claim=Claim(
            project=decision.project,
            rule=decision.rule,
            version=decision.version,
            target=decision.target,
            number=decision.claim,
        ),
        verdict="failed",
        reason=reason,
        states={key: {**decision.states.get(key, {}), "state": "failed", "error": reason} for key in failed},
        reported=failed,
        feedback=tuple(
            Feedback(target=decision.target, key=key, outcome="error", error=reason, evaluator=key) for key in failed
        ),
        inputs_hash=decision.inputs_hash,
        read_change=decision.runs_change,
    )


def _present_bookings(rule: Rule, booked: Sequence[BudgetUsage], now_ns: int) -> tuple[BudgetUsage, ...]:
    """Return the present period of each of a rule's budgets."""
    starts = {
        get_budget_name(rule, limit): find_period(get_budget_period(limit), now_ns)[0] for limit in rule.settings.budget
    }
    own = (one for one in booked if starts.get(one.budget) == one.period_start_ns)
    return tuple(sorted(own, key=lambda one: one.budget))
