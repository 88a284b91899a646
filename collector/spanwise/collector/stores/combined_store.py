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

MAX_WORKER_DEATHS = 3  # workers that a target may end
TARGET_GONE = "refused: its target was deleted, or feedback of a later claim is there"


class MonitorOperations(ABC):
    """The part of `Both` that monitors use; `Both` says in which order what crosses is done."""

    _traces: TraceBackend
    _control: ControlBackend

    @abstractmethod
    def _resolved(self, filter: Filter) -> Filter:
        """The same filter, with its dataset as the experiments over it."""

    def save_rule(self, *rules: Rule, owner: str | None = None, activate: bool = False) -> None:
        """Put rules in force: see `ControlStore`."""
        self._control.keep_rules(rules, owner, activate, self._traces.position())

    def change_rule(self, name: str, *, project: str = "default", **fields: JSON) -> Rule:
        """Change what decides nothing: see `ControlStore`."""
        return self._control.alter_rule(name, project, fields, self._traces.position())

    def decide(self, *decided: DecisionBatch) -> list[bool]:
        """Keep what was decided: see `ControlStore`."""
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
        """Stored decisions: see `ControlStore`."""
        session = None if trace_id is None else self._session(trace_id)
        asked = DecisionQuery(trace_id, session, rule, version, project, verdict, limit, cursor)
        return self._control.decisions_on(asked)

    def _session(self, trace_id: str) -> tuple[str, str] | None:
        """Project and id of a trace's session."""
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
        """Take what is due: see `ControlStore`."""
        while True:
            taken = self._control.take(rule, version, holder, seconds, project, limit, over_budget)
            if not any(decision.deaths >= MAX_WORKER_DEATHS for decision in taken):
                return taken
            running = {one.name: one for one in self._control.rules(project=project)}.get(rule)
            self.finish(*(_fail_target(decision, running) for decision in taken))  # it is alone

    def finish(self, *finishes: ClaimResult) -> list[str]:
        """Keep what came of claims: see `ControlStore`."""
        standings = self._control.examine(finishes)
        pairs = [pair for pair in zip(finishes, standings, strict=True) if pair[1].answer is None]
        kept = self._traces.put_verdicts([_collect_feedback(finish, standing) for finish, standing in pairs])
        stands = [finish for (finish, _), stands in zip(pairs, kept, strict=True) if stands]
        self._forget_deleted([finish for (finish, _), stands in zip(pairs, kept, strict=True) if not stands])
        answers = iter(self._control.conclude(stands))
        said = iter([next(answers) if stands else TARGET_GONE for stands in kept])
        return [next(said) if standing.answer is None else standing.answer for standing in standings]

    def _forget_deleted(self, finishes: Sequence[ClaimResult]) -> None:
        """Decisions that were kept while their trace was being deleted."""
        ids = {id for finish in finishes if (id := finish.claim.target.trace_id) is not None}
        if gone := ids - self._traces.there(ids) if ids else ids:
            self._control.forget(DeletedTraces(sorted(gone)))

    def why(self, trace_id: str) -> list[DecisionExplanation]:
        """Why each rule did or did not evaluate a trace: see `ControlStore`."""
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
        """What is known of a rule and a trace."""
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
        """How each rule is doing: see `ControlStore`."""
        booked, workers = self._control.booked(), self._control.workers()
        now_ns = self._now_ns()
        return [self._status(rule, booked, workers, now_ns) for rule in self._control.rules(project=project)]

    def _now_ns(self) -> int:
        """The store's clock."""
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
        """A rule's scores with their probabilities: see `ControlStore`."""
        page = self._traces.scored_by(ScoreQuery(rule, project, key, since_ns, until_ns, limit, cursor))
        asked = [(one.feedback.target, one.feedback.claim or 0) for one in page]
        found = zip(page, self._control.probabilities(rule, project, version, asked), strict=True)
        scores = [_make_weighted_score(one, probability) for one, (theirs, probability) in found if theirs]
        return Page(items=tuple(scores), next=page.next)

    def changes(self, after: str | None = None, *, limit: int = 1000, filters: Sequence[Filter] = ()) -> ChangePage:
        """The feed: see `TraceStore`."""
        return self._traces.changes(after, limit=limit, filters=[self._resolved(filter) for filter in filters])

    def explain(self, trace_id: str, filter: Filter) -> list[ConditionResult]:
        """Why a trace passes a filter or not: see `TraceStore`."""
        return self._traces.explain(trace_id, self._resolved(filter))


def _without_missing_targets(
    traces: Collection[str | None], sessions: Collection[str | None], decided: DecisionBatch
) -> DecisionBatch:
    """The same without rows about what is not there."""
    rows = tuple(row for row in decided.rows if row.target.trace_id in traces and row.target.session_id in sessions)
    return decided if len(rows) == len(decided.rows) else replace(decided, rows=rows)


def _collect_feedback(finish: ClaimResult, standing: FinishPlan) -> TargetFeedback:
    """The feedback of a finish, as that of all evaluators that it tells of."""
    names = dict.fromkeys([*finish.reported, *(one.evaluator for one in finish.feedback if one.evaluator is not None)])
    claim = finish.claim
    anew = standing.whole and bool(names)  # a claim that is given back as it was says nothing of what was there
    return TargetFeedback(claim.rule, claim.target, claim.number, tuple(names), finish.feedback, anew)


def _fail_target(decision: Decision, rule: Rule | None) -> ClaimResult:
    """What a claim comes to whose target ends every worker: an error of each evaluator without outcome."""
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
    """Whether a report is of a worker that has the rule, or says that its file does not load."""
    return (worker.project == rule.project and rule.name in worker.rules) or find_load_error(rule, worker) is not None


def _newest_bookings(rule: Rule, booked: Sequence[BudgetUsage]) -> tuple[BudgetUsage, ...]:
    """The newest period of each of a rule's budgets."""
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
FILTERED_OPERATIONS = ("traces", "feedbacks", "sessions", "aggregate")  # verbs that take a filter
MAX_EXPERIMENTS = 1_000_000  # of one dataset, at most


class CombinedStore(MonitorOperations):
    """A store of two halves: each verb is that of the half that has it, but for those that concern both.

    Across its halves a store promises order and idempotence, never one transaction. The order is such that whatever
    a crash leaves behind is found by doing the same again:

    - Deleting (and pruning): first the control half forgets decisions and queues' items about some traces, then the
      trace half removes these traces. After a crash in between the traces still pass, and are deleted next time. What
      passes at the first step goes, even if it is scored before the second.
    - Deleting an experiment: its traces, then the feedback on it, last its record, by which it is found again. With
      feedback go the traces of the evaluators that gave it.
    - Finishing a claim: first its feedback, which bears the claim's number, then the decision. After a crash in between
      the claim still stands, and the same finish again, or that of the next claim, puts both right.
    - Deciding: what is about deleted traces is left out before. One that is deleted between leaves a row, which goes
      when its claim is finished.
    - A condition on a dataset is looked up first, as the ids of its experiments: what is saved meanwhile is not seen.
    """

    def __init__(self, traces: TraceBackend, control: ControlBackend) -> None:
        self._traces, self._control = traces, control
        for half in (control, traces):
            for name in dir(half):
                if not name.startswith("_") and not hasattr(type(self), name):
                    verb = getattr(half, name)  # once, so that a verb costs nothing more
                    verb = audit_operation(verb, self._note) if name in AUDITED else verb
                    setattr(self, name, self._over_datasets(verb) if name in FILTERED_OPERATIONS else verb)

    @property
    def where(self) -> str:
        """Where the halves are."""
        return " and ".join(dict.fromkeys((self._traces.where, self._control.where)))

    def __enter__(self) -> CombinedStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is queued, then let go. Closing twice is harmless."""
        self._traces.close()
        self._control.close()

    def delete(self, filter: Filter | None = None, **conditions: object) -> int:
        """Remove the traces that pass, with all that speaks of them; returns how many traces."""
        asked = extend_filter(filter, conditions)
        wanted = self._resolved(validate_deletion_filter(asked))
        return self._removed("delete", {"filter": asked}, wanted)

    def _removed(self, action: str, about: Mapping[str, Any], filter: Filter) -> int:
        """Remove what passes, and write down that this was done: also where it ended halfway."""
        going: list[int] = []
        try:
            return self._traces.remove(self._forgotten(filter, going))
        finally:
            if going:
                self._note(make_audit_event(action, about, sum(going)))

    def _note(self, event: AuditEvent) -> None:
        """Write down what was done. It has been done: that this cannot be kept undoes nothing, and is said."""
        log_audit_event(event)
        try:
            self._control.note(event)
        except StoreError as error:
            log.error("what was done is in the log alone, for it could not be kept: %s", error)

    def each(self, filter: Filter | None = None, **conditions: object) -> Iterator[TraceSummary]:
        """All traces that pass, page by page: see `TraceStore`."""
        return iterate_traces(self._traces.traces, self._resolved(validate_filter(extend_filter(filter, conditions))))

    def _forgotten(self, filter: Filter, going: list[int]) -> Iterator[DeletedTraces]:
        """What passes, lot by lot, each forgotten by the control half before it is given out to be removed. `going`
        takes how many traces each lot is that has been forgotten.

        Each lot is looked for where the one before ended, and once all are through, from the beginning again, until
        nothing passes: some may have begun to behind the look. What comes meanwhile stays, or it might never end.
        """
        upto = self._traces.newest()
        while gone := self._traces.passing(filter, upto=upto):
            while gone:
                self._control.forget(gone)
                going.append(len(gone.traces))
                yield gone
                gone = self._traces.passing(filter, gone.next, upto) if gone.next is not None else None

    def prune(self, rule: Retention) -> int:
        """Delete what is older, or takes more room, than a rule allows; returns how many traces that was."""
        return sum(self._removed("prune", {"rule": rule}, expired) for expired in self._traces.expire(rule))

    def prune_by_rules(self) -> None:
        """Do what the rules say that are kept."""
        before = CURRENT_ACTOR.set(Actor("", "retention", f"process {os.getpid()}"))
        try:
            for rule in self._control.retention():
                self.prune(rule)
        finally:
            CURRENT_ACTOR.reset(before)

    def delete_experiment(self, id: str) -> bool:
        """Remove an experiment with its traces and the feedback on it; False if there was none."""
        if not id:  # as a condition it would mean all traces that belong to none
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
        """Revoke a key; its name is written down, which nobody could look up any more."""
        keys = self._control.keys()
        named = {key.id: key.name for key in keys}
        deleted = self._control.delete_key(id)
        if deleted:
            self._note(make_audit_event("delete_key", {"id": id, "name": named.get(id)}, 1))
        return deleted

    def _over_datasets(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        """A verb over the traces that pass, which may also be asked for those of a dataset."""
        others = [name for name, one in signature(verb).parameters.items() if one.kind is one.KEYWORD_ONLY]

        @wraps(verb)
        def over(filter: Filter | None = None, **named: Any) -> Any:
            conditions = {name: named.pop(name) for name in list(named) if name not in others}
            return verb(self._resolved(validate_filter(extend_filter(filter, conditions))), **named)

        return over

    def _resolved(self, filter: Filter) -> Filter:
        """The same filter, with its dataset as the experiments over it."""
        if filter.dataset is None:
            return filter
        ids = tuple(
            experiment.id for experiment in self._control.experiments(dataset=filter.dataset, limit=MAX_EXPERIMENTS)
        )
        if filter.experiments is not None:
            ids = tuple(id for id in ids if id in filter.experiments)
        return replace(filter, dataset=None, experiments=ids)
