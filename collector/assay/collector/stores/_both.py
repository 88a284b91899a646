"""Two halves as one store, and everything that crosses from one into the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, NamedTuple, Protocol

from assay.collector.errors import Refused
from assay.collector.filters import CONDITIONS, EVALUATOR, Filter, combined, deletable
from assay.collector.records import (
    JSON,
    Booked,
    Changes,
    Claim,
    Condition,
    Decided,
    Decision,
    Experiment,
    Feedback,
    Finish,
    Head,
    Page,
    Retention,
    Rule,
    RuleStatus,
    Setting,
    Target,
    TraceSummary,
    WeightedScore,
    Why,
    WorkerReport,
)
from assay.collector.rules import begin_of, budget_of, filters_of, rate_of, setting_at
from assay.collector.stores import _why

OVER_TRACES = ("traces", "feedbacks", "sessions", "aggregate")  # verbs that take a filter
EXPERIMENTS = 1_000_000  # of one dataset, at most
DEATHS = 3  # workers that a target may end
NOT_THERE = "refused: its target was deleted, or feedback of a later claim is there"
SILENT_NS = 60_000_000_000  # a worker that has said nothing for so long is taken for gone


class Gone(NamedTuple):
    """Traces that go, and the sessions of which none is left then."""

    traces: Sequence[str]
    sessions: Sequence[str] = ()


class Verdicts(NamedTuple):
    """What one claim said of a rule's target: for each of `evaluators`, its whole set of feedback on the target.

    Feedback on the spans of a trace, and on the documents of a span, is among that on the target. Claims of a rule and
    a target rise over all versions of the rule. `anew`: what other evaluators had said of it for the rule goes, too.
    """

    rule: str
    target: Target
    claim: int
    evaluators: Sequence[str]
    feedback: Sequence[Feedback] = ()
    anew: bool = False


class Standing(NamedTuple):
    """What is to be done with a finish: nothing, where there is an answer already."""

    answer: str | None
    whole: bool = True  # whether all feedback of the rule on the target goes, or that of those who report alone


class TraceHalf(Protocol):
    """What `Both` asks of a half that keeps traces, beside the verbs of `TraceStore` but `delete` and `prune`."""

    @property
    def where(self) -> str:
        """Where it is, in words for people."""
        ...

    def passing(self, filter: Filter) -> Gone | None:
        """Some of the traces that pass, a transaction's worth; None if there are none."""

    def remove(self, gone: Iterable[Gone]) -> int:
        """Remove traces with spans, text index and feedback, each lot as it comes; returns how many traces."""
        ...

    def expire(self, rule: Retention) -> Filter | None:
        """The traces that a rule gives up now, if any; feedback of that age whose trace never came is removed here."""

    def feedbacks(self, *, limit: int, target: Target) -> Page[Feedback]:
        """As of `TraceStore`."""
        ...

    def delete_feedback(self, ids: Sequence[str]) -> int:
        """As of `TraceStore`."""
        ...

    def changes(self, after: str | None = None, *, limit: int = 1000, filters: Sequence[Filter] = ()) -> Changes:
        """As of `TraceStore`; the filters name no dataset."""
        ...

    def explain(self, trace_id: str, filter: Filter) -> list[Condition]:
        """As of `TraceStore`; the filter names no dataset."""
        ...

    def put_verdicts(self, verdicts: Sequence[Verdicts]) -> list[bool]:
        """Put what claims said in the place of what earlier ones had said, all in one transaction; whether it stands.

        Feedback is kept as the rule's and of the claim. False, and nothing of it is kept, where feedback of a higher
        claim is there, or the trace is not. The same again changes nothing. Judgements to which nothing leads then go.
        """
        ...

    def behind(self, after: str | None) -> tuple[int, int | None]:
        """How many traces stand in the feed after a position, and when the first of them changed (store's clock)."""
        ...

    def position(self) -> int:
        """The highest number of a change so far; as text it is the cursor of all that comes after it."""
        ...

    def head(self, trace_id: str, filters: Sequence[Filter] = ()) -> Head:
        """The head of one trace; the filters name no dataset. Raises `NotFound`."""
        ...

    def is_after(self, change: str, cursor: str | None) -> bool:
        """Whether a position in the feed comes after another."""
        ...

    def scored_by(
        self,
        rule: str,
        *,
        project: str,
        key: str | None,
        since_ns: int | None,
        until_ns: int | None,
        limit: int,
        cursor: str | None,
    ) -> Page[Feedback]:
        """The scores that stand of those that a rule gave, newest first; of sessions those of any project."""
        ...

    def there(self, trace_ids: Collection[str]) -> set[str]:
        """Those of the traces that are here, with a run at least."""
        ...

    def going_on(self, sessions: Collection[str]) -> set[str]:
        """Those of the sessions of which a trace is here."""
        ...

    def traces(
        self, filter: Filter | None = None, *, limit: int = 50, cursor: str | None = None, **conditions: object
    ) -> Page[TraceSummary]:
        """As of `TraceStore`."""
        ...

    def close(self) -> None:
        """Let go."""


class ControlHalf(Protocol):
    """What `Both` asks of a half that keeps control records, beside the verbs of `ControlStore`."""

    @property
    def where(self) -> str:
        """Where it is, in words for people."""
        ...

    def forget(self, gone: Gone) -> None:
        """Remove decisions and items of queues about traces and sessions that go."""

    def keep_rules(self, rules: Sequence[Rule], owner: str | None, activate: bool, change: int) -> None:
        """As `ControlStore.save_rule`; `change` is the last that has happened."""

    def alter_rule(self, name: str, project: str, fields: Mapping[str, JSON], change: int) -> Rule:
        """As `ControlStore.change_rule`; `change` is the last that has happened."""
        ...

    def rules(self, *, project: str | None = None) -> list[Rule]:
        """As of `ControlStore`."""
        ...

    def settings(self, name: str, *, project: str) -> list[Setting]:
        """As of `ControlStore`."""
        ...

    def cursor(self, rule: str, version: str, *, project: str) -> str | None:
        """As of `ControlStore`."""
        ...

    def keep_decided(self, decided: Sequence[Decided]) -> list[bool]:
        """As `ControlStore.decide`; all targets are there."""
        ...

    def decisions_on(
        self,
        trace_id: str | None,
        session: tuple[str, str] | None,
        *,
        rule: str | None,
        version: str | None,
        project: str | None,
        verdict: str | None,
        limit: int,
        cursor: str | None,
    ) -> Page[Decision]:
        """As `ControlStore.decisions`; `session` is the trace's, (project, id)."""
        ...

    def take(self, rule: str, version: str, holder: str, seconds: float, project: str, limit: int) -> list[Decision]:
        """As `ControlStore.claim`, but that a row which has ended its third worker is given out, too, alone."""
        ...

    def examine(self, finishes: Sequence[Finish]) -> list[Standing]:
        """What is to be done with the feedback of finishes, before `conclude`. Raises `Refused` for a bad verdict."""
        ...

    def conclude(self, finishes: Sequence[Finish]) -> list[str]:
        """As `ControlStore.finish`, once the feedback is kept."""
        ...

    def probabilities(
        self, rule: str, project: str, version: str | None, scores: Sequence[tuple[Target, int]]
    ) -> list[tuple[bool, float | None]]:
        """Of targets and claims: whether (that version of) the rule decided on it, and with which probability."""
        ...

    def funnel(self, rule: Rule) -> Mapping[str, int]:
        """How many targets of a version have come to each verdict."""
        ...

    def failed(self, rule: Rule) -> Sequence[Decision]:
        """The last decisions of a version that failed, newest first."""
        ...

    def booked(self, budget: str | None = None) -> list[Booked]:
        """As of `ControlStore`."""
        ...

    def workers(self) -> list[WorkerReport]:
        """What workers said of themselves, the newest of each."""
        ...

    def experiments(self, *, dataset: str | None, limit: int) -> list[Experiment]:
        """As of `ControlStore`."""
        ...

    def delete_experiment(self, id: str) -> bool:
        """Remove an experiment's record; False if there was none."""
        ...

    def retention(self) -> list[Retention]:
        """As of `ControlStore`."""
        ...

    def close(self) -> None:
        """Let go."""


class Both:
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

    def __init__(self, traces: TraceHalf, control: ControlHalf) -> None:
        self._traces, self._control = traces, control
        for half in (control, traces):
            for name in dir(half):
                if not name.startswith("_") and not hasattr(type(self), name):
                    verb = getattr(half, name)  # once, so that a verb costs nothing more
                    setattr(self, name, self._over_datasets(verb) if name in OVER_TRACES else verb)

    @property
    def where(self) -> str:
        """Where the halves are."""
        return " and ".join(dict.fromkeys((self._traces.where, self._control.where)))

    def __enter__(self) -> Both:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is queued, then let go. Closing twice is harmless."""
        self._traces.close()
        self._control.close()

    def delete(self, filter: Filter | None = None, **conditions: object) -> int:
        """Remove the traces that pass, with all that speaks of them; returns how many traces."""
        wanted = self._resolved(deletable(combined(filter, conditions)))
        return self._traces.remove(self._forgotten(wanted))

    def _forgotten(self, filter: Filter) -> Iterator[Gone]:
        """What passes, lot by lot, each forgotten by the control half before it is given out to be removed."""
        while gone := self._traces.passing(filter):
            self._control.forget(gone)
            yield gone

    def prune(self, rule: Retention) -> int:
        """Delete what is older, or takes more room, than a rule allows; returns how many traces that was."""
        expired = self._traces.expire(rule)
        return 0 if expired is None else self.delete(expired)

    def prune_by_rules(self) -> None:
        """Do what the rules say that are kept."""
        for rule in self._control.retention():
            self.prune(rule)

    def delete_experiment(self, id: str) -> bool:
        """Remove an experiment with its traces and the feedback on it; False if there was none."""
        if not id:  # as a condition it would mean all traces that belong to none
            raise Refused("an experiment is deleted by its id, and an id is not empty")
        self.delete(experiment=id)
        while page := self._traces.feedbacks(target=Target(experiment_id=id), limit=1000):
            judgements = tuple({feedback.judge_trace_id for feedback in page if feedback.judge_trace_id})
            if judgements:
                self.delete(trace_ids=judgements, kind=EVALUATOR, experiment="")
            self._traces.delete_feedback([feedback.id for feedback in page])
        return self._control.delete_experiment(id)

    # monitors

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
        return self._control.decisions_on(
            trace_id,
            session,
            rule=rule,
            version=version,
            project=project,
            verdict=verdict,
            limit=limit,
            cursor=cursor,
        )

    def _session(self, trace_id: str) -> tuple[str, str] | None:
        """Project and id of a trace's session."""
        of = next(iter(self._traces.traces(trace_ids=(trace_id,), limit=1)), None)
        return None if of is None or of.session_id is None else (of.project, of.session_id)

    def claim(
        self, rule: str, version: str, holder: str, seconds: float, *, project: str = "default", limit: int = 1
    ) -> list[Decision]:
        """Take what is due: see `ControlStore`."""
        while True:
            taken = self._control.take(rule, version, holder, seconds, project, limit)
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
        booked, now_ns = self._control.booked(), self._traces.changes(head.cursor, limit=1).now_ns
        watched = {(one.project, name) for one in self._control.workers() for name in one.rules if _lately(one, now_ns)}
        found = [self._seen(rule, head, now_ns, watched) for rule in self._control.rules(project=head.project)]
        return [replace(_why.why(seen), budget=_of_rule(seen.rule, booked)) for seen in found]

    def _seen(self, rule: Rule, head: Head, now_ns: int, watched: Collection[tuple[str, str]]) -> _why.Seen:
        """What is known of a rule and a trace."""
        history = self._control.settings(rule.name, project=rule.project)
        setting = setting_at([one for one in history if one.version == rule.version], head.change)
        settings = rule.settings if setting is None else setting.settings
        filters = [self._resolved(filter) for filter in filters_of(rule, settings)]
        cursor = self._control.cursor(rule.name, rule.version, project=rule.project) or begin_of(rule)
        behind = self._traces.behind(cursor)[0] if self._traces.is_after(head.cursor, cursor) else None
        return _why.Seen(
            rule,
            settings,
            self._traces.head(head.trace_id, filters),
            self._traces.explain(head.trace_id, filters[0]),
            self.decisions(trace_id=head.trace_id, rule=rule.name, project=rule.project).items,
            behind,
            now_ns,
            (rule.project, rule.name) in watched,
        )

    def status(self, *, project: str | None = None) -> list[RuleStatus]:
        """How each rule is doing: see `ControlStore`."""
        booked, workers = self._control.booked(), self._control.workers()
        return [self._status(rule, booked, workers) for rule in self._control.rules(project=project)]

    def _status(self, rule: Rule, booked: Sequence[Booked], workers: Sequence[WorkerReport]) -> RuleStatus:
        cursor = self._control.cursor(rule.name, rule.version, project=rule.project)
        begin = cursor or begin_of(rule)
        behind, oldest_ns = self._traces.behind(begin)
        now_ns = self._traces.changes(begin, limit=1).now_ns
        return RuleStatus(
            rule=rule,
            counts=self._control.funnel(rule),
            cursor=cursor,
            behind=behind,
            lag_s=0.0 if oldest_ns is None else max(0.0, (now_ns - oldest_ns) / 1e9),
            rate=rate_of(rule.settings, ())[0],
            booked=_of_rule(rule, booked),
            errors=tuple(map(_why.told, self._control.failed(rule))),
            workers=tuple(one for one in workers if one.project == rule.project and rule.name in one.rules),
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
        given = {"key": key, "since_ns": since_ns, "until_ns": until_ns, "limit": limit, "cursor": cursor}
        page: Page[Feedback] = self._traces.scored_by(rule, project=project, **given)  # type: ignore[arg-type]
        asked = [(one.target, one.claim or 0) for one in page]
        found = zip(page, self._control.probabilities(rule, project, version, asked), strict=True)
        scores = [_weighted(one, probability) for one, (theirs, probability) in found if theirs]
        return Page(items=tuple(scores), next=page.next)

    def changes(self, after: str | None = None, *, limit: int = 1000, filters: Sequence[Filter] = ()) -> Changes:
        """The feed: see `TraceStore`."""
        return self._traces.changes(after, limit=limit, filters=[self._resolved(filter) for filter in filters])

    def explain(self, trace_id: str, filter: Filter) -> list[Condition]:
        """Why a trace passes a filter or not: see `TraceStore`."""
        return self._traces.explain(trace_id, self._resolved(filter))

    def _over_datasets(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        """A verb over the traces that pass, which may also be asked for those of a dataset."""

        @wraps(verb)
        def over(filter: Filter | None = None, **named: Any) -> Any:
            conditions = {name: named.pop(name) for name in CONDITIONS if name in named}
            return verb(self._resolved(combined(filter, conditions)), **named)

        return over

    def _resolved(self, filter: Filter) -> Filter:
        """The same filter, with its dataset as the experiments over it."""
        if filter.dataset is None:
            return filter
        ids = tuple(
            experiment.id for experiment in self._control.experiments(dataset=filter.dataset, limit=EXPERIMENTS)
        )
        if filter.experiments is not None:
            ids = tuple(id for id in ids if id in filter.experiments)
        return replace(filter, dataset=None, experiments=ids)


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


def _lately(worker: WorkerReport, now_ns: int) -> bool:
    return now_ns - worker.seen_ns < SILENT_NS


def _of_rule(rule: Rule, booked: Sequence[Booked]) -> tuple[Booked, ...]:
    """The newest period of each of a rule's budgets."""
    own = {one.budget: one for one in reversed(booked) if one.budget.startswith(budget_of(rule))}
    return tuple(own[budget] for budget in sorted(own))


def _weighted(feedback: Feedback, probability: float | None) -> WeightedScore:
    return WeightedScore(
        trace_id=feedback.target.trace_id,
        session_id=feedback.target.session_id,
        key=feedback.key,
        score=feedback.score,
        probability=probability,
        created_ns=feedback.created_ns,
        outcome=feedback.outcome,
    )
