"""What monitors ask of a store as a whole: verbs for which traces and control records are looked at together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace

from spanwise.collector.filters import Filter
from spanwise.collector.records import (
    JSON,
    Booked,
    Changes,
    Claim,
    Condition,
    Decided,
    Decision,
    Feedback,
    Finish,
    Head,
    Page,
    Rule,
    RuleStatus,
    WeightedScore,
    Why,
    WorkerReport,
)
from spanwise.collector.rules import begin_of, budget_of, filters_of, rate_of
from spanwise.collector.stores import _why
from spanwise.collector.stores._halves import (
    ControlHalf,
    DecisionsOf,
    Gone,
    Scored,
    ScoresOf,
    Standing,
    TraceHalf,
    Verdicts,
)
from spanwise.collector.stores._rule_health import blocked, broken_file

DEATHS = 3  # workers that a target may end
NOT_THERE = "refused: its target was deleted, or feedback of a later claim is there"


class Watched(ABC):
    """The part of `Both` that monitors use; `Both` says in which order what crosses is done."""

    _traces: TraceHalf
    _control: ControlHalf

    @abstractmethod
    def _resolved(self, filter: Filter) -> Filter:
        """The same filter, with its dataset as the experiments over it."""

    def save_rule(self, *rules: Rule, owner: str | None = None, activate: bool = False) -> None:
        """Put rules in force: see `ControlStore`."""
        self._control.keep_rules(rules, owner, activate, self._traces.position())

    def change_rule(self, name: str, *, project: str = "default", **fields: JSON) -> Rule:
        """Change what decides nothing: see `ControlStore`."""
        return self._control.alter_rule(name, project, fields, self._traces.position())

    def decide(self, *decided: Decided) -> list[bool]:
        """Keep what was decided: see `ControlStore`."""
        targets = [row.target for one in decided for row in one.rows]
        traces = {target.trace_id for target in targets if target.trace_id is not None}
        sessions = {target.session_id for target in targets if target.session_id is not None}
        there = {*(self._traces.there(traces) if traces else ()), None}
        going_on = {*(self._traces.going_on(sessions) if sessions else ()), None}
        return self._control.keep_decided([_about(there, going_on, one) for one in decided])

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
        asked = DecisionsOf(trace_id, session, rule, version, project, verdict, limit, cursor)
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
            if not any(decision.deaths >= DEATHS for decision in taken):
                return taken
            running = {one.name: one for one in self._control.rules(project=project)}.get(rule)
            self.finish(*(_ended_workers(decision, running) for decision in taken))  # it is alone

    def finish(self, *finishes: Finish) -> list[str]:
        """Keep what came of claims: see `ControlStore`."""
        standings = self._control.examine(finishes)
        pairs = [pair for pair in zip(finishes, standings, strict=True) if pair[1].answer is None]
        kept = self._traces.put_verdicts([_verdicts(finish, standing) for finish, standing in pairs])
        stands = [finish for (finish, _), stands in zip(pairs, kept, strict=True) if stands]
        self._forget_deleted([finish for (finish, _), stands in zip(pairs, kept, strict=True) if not stands])
        answers = iter(self._control.conclude(stands))
        said = iter([next(answers) if stands else NOT_THERE for stands in kept])
        return [next(said) if standing.answer is None else standing.answer for standing in standings]

    def _forget_deleted(self, finishes: Sequence[Finish]) -> None:
        """Decisions that were kept while their trace was being deleted."""
        ids = {id for finish in finishes if (id := finish.claim.target.trace_id) is not None}
        if gone := ids - self._traces.there(ids) if ids else ids:
            self._control.forget(Gone(sorted(gone)))

    def why(self, trace_id: str) -> list[Why]:
        """Why each rule did or did not evaluate a trace: see `ControlStore`."""
        head = self._traces.head(trace_id)
        booked, now_ns, session = self._control.booked(), self._now_ns(), self._session(trace_id)
        workers = self._control.workers()
        rules = self._control.rules(project=head.project)
        found = [self._seen(rule, head, session, now_ns, workers) for rule in rules]
        return [replace(_why.why(seen), budget=_of_rule(seen.rule, booked)) for seen in found]

    def _seen(
        self,
        rule: Rule,
        head: Head,
        session: tuple[str, str] | None,
        now_ns: int,
        workers: Sequence[WorkerReport],
    ) -> _why.Seen:
        """What is known of a rule and a trace."""
        setting = self._control.setting_at(rule, head.change)
        settings = rule.settings if setting is None else setting.settings
        filters = [self._resolved(filter) for filter in filters_of(rule, settings)]
        cursor = self._control.cursor(rule.name, rule.version, project=rule.project) or begin_of(rule)
        behind = self._traces.behind(cursor)[0] if self._traces.is_after(head.cursor, cursor) else None
        return _why.Seen(
            rule,
            settings,
            self._traces.head(head.trace_id, filters),
            self._traces.explain(head.trace_id, filters[0]),
            self._control.decisions_on(DecisionsOf(head.trace_id, session, rule.name, project=rule.project)).items,
            behind,
            now_ns,
            blocked(rule, workers, now_ns),
        )

    def status(self, *, project: str | None = None) -> list[RuleStatus]:
        """How each rule is doing: see `ControlStore`."""
        booked, workers = self._control.booked(), self._control.workers()
        now_ns = self._now_ns()
        return [self._status(rule, booked, workers, now_ns) for rule in self._control.rules(project=project)]

    def _now_ns(self) -> int:
        """The store's clock."""
        return self._traces.changes(str(self._traces.position()), limit=1).now_ns

    def _status(self, rule: Rule, booked: Sequence[Booked], workers: Sequence[WorkerReport], now_ns: int) -> RuleStatus:
        cursor = self._control.cursor(rule.name, rule.version, project=rule.project)
        behind, oldest_ns = self._traces.behind(cursor or begin_of(rule))
        return RuleStatus(
            rule=rule,
            counts=self._control.funnel(rule),
            cursor=cursor,
            behind=behind,
            lag_s=0.0 if oldest_ns is None else max(0.0, (now_ns - oldest_ns) / 1e9),
            rate=rate_of(rule.settings, ())[0],
            booked=_of_rule(rule, booked),
            errors=tuple(dict.fromkeys(map(_why.told, self._control.failed(rule)))),
            workers=tuple(one for one in workers if _is_about(one, rule)),
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
        page = self._traces.scored_by(ScoresOf(rule, project, key, since_ns, until_ns, limit, cursor))
        asked = [(one.feedback.target, one.feedback.claim or 0) for one in page]
        found = zip(page, self._control.probabilities(rule, project, version, asked), strict=True)
        scores = [_weighted(one, probability) for one, (theirs, probability) in found if theirs]
        return Page(items=tuple(scores), next=page.next)

    def changes(self, after: str | None = None, *, limit: int = 1000, filters: Sequence[Filter] = ()) -> Changes:
        """The feed: see `TraceStore`."""
        return self._traces.changes(after, limit=limit, filters=[self._resolved(filter) for filter in filters])

    def explain(self, trace_id: str, filter: Filter) -> list[Condition]:
        """Why a trace passes a filter or not: see `TraceStore`."""
        return self._traces.explain(trace_id, self._resolved(filter))


def _about(traces: Collection[str | None], sessions: Collection[str | None], decided: Decided) -> Decided:
    """The same without rows about what is not there."""
    rows = tuple(row for row in decided.rows if row.target.trace_id in traces and row.target.session_id in sessions)
    return decided if len(rows) == len(decided.rows) else replace(decided, rows=rows)


def _verdicts(finish: Finish, standing: Standing) -> Verdicts:
    """The feedback of a finish, as that of all evaluators that it tells of."""
    names = dict.fromkeys([*finish.reported, *(one.evaluator for one in finish.feedback if one.evaluator is not None)])
    claim = finish.claim
    anew = standing.whole and bool(names)  # a claim that is given back as it was says nothing of what was there
    return Verdicts(claim.rule, claim.target, claim.number, tuple(names), finish.feedback, anew)


def _ended_workers(decision: Decision, rule: Rule | None) -> Finish:
    """What a claim comes to whose target ends every worker: an error of each evaluator without outcome."""
    said = f"ended the worker {decision.deaths} times"
    keys = [str(entry.get("key") or entry.get("id")) for entry in rule.evaluators] if rule is not None else []
    done = {key for key, state in decision.states.items() if state.get("state") != "waiting"}
    left = [key for key in dict.fromkeys([*keys, *decision.states]) if key not in done]
    failed = {"state": "failed", "error": said}
    return Finish(
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


def _is_about(worker: WorkerReport, rule: Rule) -> bool:
    """Whether a report is of a worker that has the rule, or says that its file does not load."""
    return (worker.project == rule.project and rule.name in worker.rules) or broken_file(rule, worker) is not None


def _of_rule(rule: Rule, booked: Sequence[Booked]) -> tuple[Booked, ...]:
    """The newest period of each of a rule's budgets."""
    own = {one.budget: one for one in reversed(booked) if one.budget.startswith(budget_of(rule))}
    return tuple(own[budget] for budget in sorted(own))


def _weighted(scored: Scored, probability: float | None) -> WeightedScore:
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
