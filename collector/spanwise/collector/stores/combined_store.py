"""Combined store of a trace backend and a control backend: deletion, retention, rules and decisions."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from inspect import signature
from typing import Any

from spanwise.collector.errors import Refused, StoreError
from spanwise.collector.filters import EVALUATOR_KIND, Filter, extend_filter, validate_deletion_filter, validate_filter
from spanwise.collector.records import (
    JSON,
    AuditEvent,
    BudgetUsage,
    ChangePage,
    Claim,
    ClaimResult,
    ConditionResult,
    Decision,
    DecisionBatch,
    DecisionExplanation,
    Feedback,
    Page,
    Retention,
    Rule,
    RuleStatus,
    Target,
    TraceHead,
    TraceSummary,
    WeightedScore,
    WorkerReport,
)
from spanwise.collector.request_context import CURRENT_ACTOR, Actor
from spanwise.collector.rule_policy import build_rule_filters, get_budget_name, get_initial_cursor, get_sampling_rate
from spanwise.collector.stores import decision_explanation
from spanwise.collector.stores.audit_trail import AUDITED_OPERATIONS as AUDITED
from spanwise.collector.stores.audit_trail import audit_operation, log_audit_event, make_audit_event
from spanwise.collector.stores.backends import (
    ControlBackend,
    DecisionQuery,
    DeletedTraces,
    FinishPlan,
    RuleScore,
    ScoreQuery,
    TargetFeedback,
    TraceBackend,
)
from spanwise.collector.stores.decision_explanation import find_blocking_reason, find_load_error
from spanwise.collector.stores.trace_store import iterate_traces

MAX_WORKER_DEATHS = 3  # a target on which this many workers have died fails
TARGET_GONE = "refused: its target was deleted, or feedback of a later claim is there"


class MonitorOperations(ABC):
    """Operations of the combined store for monitoring rules. `CombinedStore` documents the order of steps across
    backends.
    """

    _traces: TraceBackend
    _control: ControlBackend

    @abstractmethod
    def _resolved(self, filter: Filter) -> Filter:
        """Return the filter with its dataset replaced by the experiments that ran on it."""

    def save_rule(self, *rules: Rule, owner: str | None = None, activate: bool = False) -> None:
        """Put rules in force. See `ControlStore.save_rule`."""
        self._control.keep_rules(rules, owner, activate, self._traces.position())

    def change_rule(self, name: str, *, project: str = "default", **fields: JSON) -> Rule:
        """Change fields that do not affect decisions. See `ControlStore.change_rule`."""
        return self._control.alter_rule(name, project, fields, self._traces.position())

    def decide(self, *decided: DecisionBatch) -> list[bool]:
        """Record decisions. See `ControlStore.decide`."""
        targets = [row.target for one in decided for row in one.rows]
        traces = {target.trace_id for target in targets if target.trace_id is not None}
        sessions = {target.session_id for target in targets if target.session_id is not None}
        there = {*(self._traces.there(traces) if traces else ()), None}
        going_on = {*(self._traces.going_on(sessions) if sessions else ()), None}
        return self._control.keep_decided([_without_missing_targets(there, going_on, one) for one in decided])

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
        """Return stored decisions. See `ControlStore.decisions`."""
        session = None if trace_id is None else self._session(trace_id)
        asked = DecisionQuery(trace_id, session, rule, version, project, verdict, limit, cursor)
        return self._control.decisions_on(asked)

    def _session(self, trace_id: str) -> tuple[str, str] | None:
        """Return project and id of a trace's session."""
        of = next(iter(self._traces.traces(trace_ids=(trace_id,), limit=1)), None)
        return None if of is None or of.session_id is None else (of.project, of.session_id)

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
    ) -> list[Decision]:
        """Lease due decisions. See `ControlStore.claim`."""
        while True:
            taken = self._control.take(rule, version, holder, seconds, project, limit, over_budget)
            if not any(decision.deaths >= MAX_WORKER_DEATHS for decision in taken):
                return taken
            running = {one.name: one for one in self._control.rules(project=project)}.get(rule)
            # `take` returns such a decision alone
            self.finish(*(_fail_target(decision, running) for decision in taken))

    def finish(self, *finishes: ClaimResult) -> list[str]:
        """Store the results of leases. See `ControlStore.finish`."""
        standings = self._control.examine(finishes)
        pairs = [pair for pair in zip(finishes, standings, strict=True) if pair[1].answer is None]
        kept = self._traces.put_verdicts([_collect_feedback(finish, standing) for finish, standing in pairs])
        stands = [finish for (finish, _), stands in zip(pairs, kept, strict=True) if stands]
        refused = [finish for (finish, _), stands in zip(pairs, kept, strict=True) if not stands]
        # Also delete decisions that were recorded while their trace was being deleted
        ids = {id for finish in refused if (id := finish.claim.target.trace_id) is not None}
        if gone := ids - self._traces.there(ids) if ids else ids:
            self._control.forget(DeletedTraces(sorted(gone)))
        answers = iter(self._control.conclude(stands))
        said = iter([next(answers) if stands else TARGET_GONE for stands in kept])
        return [next(said) if standing.answer is None else standing.answer for standing in standings]

    def why(self, trace_id: str) -> list[DecisionExplanation]:
        """Explain why each rule did or did not evaluate a trace. See `ControlStore.why`."""
        head = self._traces.head(trace_id)
        booked, now_ns, session = self._control.booked(), self._now_ns(), self._session(trace_id)
        workers = self._control.workers()
        rules = self._control.rules(project=head.project)
        found = [self._seen(rule, head, session, now_ns, workers) for rule in rules]
        return [
            replace(decision_explanation.explain_decision(seen), budget=_newest_bookings(seen.rule, booked))
            for seen in found
        ]

    def _seen(
        self,
        rule: Rule,
        head: TraceHead,
        session: tuple[str, str] | None,
        now_ns: int,
        workers: Sequence[WorkerReport],
    ) -> decision_explanation.DecisionContext:
        """Collect the data that explains a rule's decision on a trace."""
        setting = self._control.setting_at(rule, head.change)
        settings = rule.settings if setting is None else setting.settings
        filters = [self._resolved(filter) for filter in build_rule_filters(rule, settings)]
        cursor = self._control.cursor(rule.name, rule.version, project=rule.project) or get_initial_cursor(rule)
        behind = self._traces.behind(cursor)[0] if self._traces.is_after(head.cursor, cursor) else None
        return decision_explanation.DecisionContext(
            rule,
            settings,
            self._traces.head(head.trace_id, filters),
            self._traces.explain(head.trace_id, filters[0]),
            self._control.decisions_on(DecisionQuery(head.trace_id, session, rule.name, project=rule.project)).items,
            behind,
            now_ns,
            find_blocking_reason(rule, workers, now_ns),
        )

    def status(self, *, project: str | None = None) -> list[RuleStatus]:
        """Return the progress of each rule. See `ControlStore.status`."""
        booked, workers = self._control.booked(), self._control.workers()
        now_ns = self._now_ns()
        return [self._status(rule, booked, workers, now_ns) for rule in self._control.rules(project=project)]

    def _now_ns(self) -> int:
        """Return the time of the store's clock."""
        return self._traces.changes(str(self._traces.position()), limit=1).now_ns

    def _status(
        self, rule: Rule, booked: Sequence[BudgetUsage], workers: Sequence[WorkerReport], now_ns: int
    ) -> RuleStatus:
        cursor = self._control.cursor(rule.name, rule.version, project=rule.project)
        behind, oldest_ns = self._traces.behind(cursor or get_initial_cursor(rule))
        return RuleStatus(
            rule=rule,
            counts=self._control.funnel(rule),
            cursor=cursor,
            behind=behind,
            lag_s=0.0 if oldest_ns is None else max(0.0, (now_ns - oldest_ns) / 1e9),
            rate=get_sampling_rate(rule.settings, ())[0],
            booked=_newest_bookings(rule, booked),
            errors=tuple(dict.fromkeys(map(decision_explanation.describe_decision, self._control.failed(rule)))),
            workers=tuple(one for one in workers if _concerns_rule(one, rule)),
        )

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
        """Return a rule's scores with their probabilities. See `ControlStore.weighted`."""
        page = self._traces.scored_by(ScoreQuery(rule, project, key, since_ns, until_ns, limit, cursor))
        asked = [(one.feedback.target, one.feedback.claim or 0) for one in page]
        found = zip(page, self._control.probabilities(rule, project, version, asked), strict=True)
        scores = [_make_weighted_score(one, probability) for one, (theirs, probability) in found if theirs]
        return Page(items=tuple(scores), next=page.next)

    def changes(self, after: str | None = None, *, limit: int = 1000, filters: Sequence[Filter] = ()) -> ChangePage:
        """Return a page of the change feed. See `TraceStore.changes`."""
        return self._traces.changes(after, limit=limit, filters=[self._resolved(filter) for filter in filters])

    def explain(self, trace_id: str, filter: Filter) -> list[ConditionResult]:
        """Explain why a trace does or does not pass a filter. See `TraceStore.explain`."""
        return self._traces.explain(trace_id, self._resolved(filter))


def _without_missing_targets(
    traces: Collection[str | None], sessions: Collection[str | None], decided: DecisionBatch
) -> DecisionBatch:
    """Return the batch without rows about targets that are not stored."""
    rows = tuple(row for row in decided.rows if row.target.trace_id in traces and row.target.session_id in sessions)
    return decided if len(rows) == len(decided.rows) else replace(decided, rows=rows)


def _collect_feedback(finish: ClaimResult, standing: FinishPlan) -> TargetFeedback:
    """Return the feedback of a finish, for all evaluators that it mentions."""
    names = dict.fromkeys([*finish.reported, *(one.evaluator for one in finish.feedback if one.evaluator is not None)])
    claim = finish.claim
    anew = standing.whole and bool(names)  # without a result, the lease leaves existing feedback unchanged
    return TargetFeedback(claim.rule, claim.target, claim.number, tuple(names), finish.feedback, anew)


def _fail_target(decision: Decision, rule: Rule | None) -> ClaimResult:
    """Return the result for a target on which every worker dies: an error for each evaluator without outcome."""
    said = f"ended the worker {decision.deaths} times"
    keys = [str(entry.get("key") or entry.get("id")) for entry in rule.evaluators] if rule is not None else []
    done = {key for key, state in decision.states.items() if state.get("state") != "waiting"}
    left = [key for key in dict.fromkeys([*keys, *decision.states]) if key not in done]
    failed = {"state": "failed", "error": said}
    return ClaimResult(
        claim=Claim(
            project=decision.project,
            rule=decision.rule,
            version=decision.version,
            target=decision.target,
            number=decision.claim,
        ),
        verdict="failed",
        reason=said,
        states={key: {**decision.states.get(key, {}), **failed} for key in left},
        reported=tuple(left),
        feedback=tuple(
            Feedback(target=decision.target, key=key, outcome="error", error=said, evaluator=key) for key in left
        ),
        inputs_hash=decision.inputs_hash,
        read_change=decision.runs_change,
    )


def _concerns_rule(worker: WorkerReport, rule: Rule) -> bool:
    """Return whether a report is from a worker that has the rule, or that failed to load the rule's file."""
    return (worker.project == rule.project and rule.name in worker.rules) or find_load_error(rule, worker) is not None


def _newest_bookings(rule: Rule, booked: Sequence[BudgetUsage]) -> tuple[BudgetUsage, ...]:
    """Return the newest period of each of a rule's budgets."""
    own = {one.budget: one for one in reversed(booked) if one.budget.startswith(get_budget_name(rule))}
    return tuple(own[budget] for budget in sorted(own))


def _make_weighted_score(scored: RuleScore, probability: float | None) -> WeightedScore:
    feedback = scored.feedback
    return WeightedScore(
        trace_id=feedback.target.trace_id,
        session_id=scored.session_id,
        start_ns=scored.start_ns,
        key=feedback.key,
        score=feedback.score,
        probability=probability,
        created_ns=feedback.created_ns,
        outcome=feedback.outcome,
    )


log = logging.getLogger("spanwise.collector")
FILTERED_OPERATIONS = ("traces", "feedbacks", "sessions", "aggregate")  # operations that take a filter
MAX_EXPERIMENTS = 1_000_000  # maximum number of experiments on a dataset


class CombinedStore(MonitorOperations):
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
    - Decisions: those about deleted traces are left out beforehand. A trace that is deleted in between leaves a row,
      which is deleted when its lease is finished.
    - A condition on a dataset is first replaced by the ids of its experiments. Experiments saved meanwhile are not
      seen.
    """

    def __init__(self, traces: TraceBackend, control: ControlBackend) -> None:
        self._traces, self._control = traces, control
        for half in (control, traces):
            for name in dir(half):
                if not name.startswith("_") and not hasattr(type(self), name):
                    verb = getattr(half, name)  # looked up once, so that calls have no overhead
                    verb = audit_operation(verb, self._note) if name in AUDITED else verb
                    setattr(self, name, self._over_datasets(verb) if name in FILTERED_OPERATIONS else verb)

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
        asked = extend_filter(filter, conditions)
        wanted = self._resolved(validate_deletion_filter(asked))
        return self._removed("delete", {"filter": asked}, wanted)

    def _removed(self, action: str, about: Mapping[str, Any], filter: Filter) -> int:
        """Delete the traces that pass. Audit the deletion even if it fails halfway."""
        going: list[int] = []
        try:
            return self._traces.remove(self._forgotten(filter, going))
        finally:
            if going:
                self._note(make_audit_event(action, about, sum(going)))

    def _note(self, event: AuditEvent) -> None:
        """Log and store an audit event. If storing fails, log the failure: the audited operation is already done."""
        log_audit_event(event)
        try:
            self._control.note(event)
        except StoreError as error:
            log.error("what was done is in the log alone, for it could not be kept: %s", error)

    def each(self, filter: Filter | None = None, **conditions: object) -> Iterator[TraceSummary]:
        """Yield all traces that pass, page by page. See `TraceStore.each`."""
        return iterate_traces(self._traces.traces, self._resolved(validate_filter(extend_filter(filter, conditions))))

    def _forgotten(self, filter: Filter, going: list[int]) -> Iterator[DeletedTraces]:
        """Yield the traces that pass in batches, each after the control backend has deleted its data about them.

        `going` collects the sizes of these batches. Each search starts at the end of the previous batch. At the end the search
        starts over until no trace passes, because traces before the position may have begun to pass. Traces that arrive
        meanwhile are not deleted, so that the loop ends.
        """
        upto = self._traces.newest()
        while gone := self._traces.passing(filter, upto=upto):
            while gone:
                self._control.forget(gone)
                going.append(len(gone.traces))
                yield gone
                gone = self._traces.passing(filter, gone.next, upto) if gone.next is not None else None

    def prune(self, rule: Retention) -> int:
        """Delete traces that are older, or take more space, than a retention rule allows. Return the number of
        traces.
        """
        return sum(self._removed("prune", {"rule": rule}, expired) for expired in self._traces.expire(rule))

    def prune_by_rules(self) -> None:
        """Prune by all stored retention rules."""
        before = CURRENT_ACTOR.set(Actor("", "retention", f"process {os.getpid()}"))
        try:
            for rule in self._control.retention():
                self.prune(rule)
        finally:
            CURRENT_ACTOR.reset(before)

    def delete_experiment(self, id: str) -> bool:
        """Delete an experiment with its traces and the feedback on it. Return False if there was none."""
        if not id:  # in a filter, "" matches traces without an experiment
            raise Refused("an experiment is deleted by its id, and an id is not empty")
        self.delete(experiment=id)
        while page := self._traces.feedbacks(target=Target(experiment_id=id), limit=1000):
            judgements = tuple({feedback.judge_trace_id for feedback in page if feedback.judge_trace_id})
            if judgements:
                self.delete(trace_ids=judgements, kind=EVALUATOR_KIND, experiment="")
            self._traces.delete_feedback([feedback.id for feedback in page])
        deleted = self._control.delete_experiment(id)
        if deleted:
            self._note(make_audit_event("delete_experiment", {"id": id}, 1))
        return deleted

    def delete_key(self, id: str) -> bool:
        """Revoke a key. The audit event includes its name, which cannot be looked up afterwards."""
        keys = self._control.keys()
        named = {key.id: key.name for key in keys}
        deleted = self._control.delete_key(id)
        if deleted:
            self._note(make_audit_event("delete_key", {"id": id, "name": named.get(id)}, 1))
        return deleted

    def _over_datasets(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap an operation with a filter, so that the filter may name a dataset."""
        others = [name for name, one in signature(verb).parameters.items() if one.kind is one.KEYWORD_ONLY]

        @wraps(verb)
        def over(filter: Filter | None = None, **named: Any) -> Any:
            conditions = {name: named.pop(name) for name in list(named) if name not in others}
            return verb(self._resolved(validate_filter(extend_filter(filter, conditions))), **named)

        return over

    def _resolved(self, filter: Filter) -> Filter:
        if filter.dataset is None:
            return filter
        ids = tuple(
            experiment.id for experiment in self._control.experiments(dataset=filter.dataset, limit=MAX_EXPERIMENTS)
        )
        if filter.experiments is not None:
            ids = tuple(id for id in ids if id in filter.experiments)
        return replace(filter, dataset=None, experiments=ids)
