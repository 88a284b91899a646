"""Trace backend and control backend: the two interfaces that the combined store is made of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from spanwise.collector.filters import Filter
from spanwise.collector.records import (
    JSON,
    AuditEvent,
    BudgetUsage,
    ChangePage,
    ClaimResult,
    ConditionResult,
    Decision,
    DecisionBatch,
    Experiment,
    Feedback,
    Key,
    Page,
    Retention,
    Rule,
    SettingsVersion,
    Target,
    TraceHead,
    TraceSummary,
    WorkerReport,
)


class DeletedTraces(NamedTuple):
    """Traces that go, the sessions of which none is left then, and where to look for more, if there may be any."""

    traces: Sequence[str]
    sessions: Sequence[str] = ()
    next: str | None = None


class TargetFeedback(NamedTuple):
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


class FinishPlan(NamedTuple):
    """What is to be done with a finish: nothing, where there is an answer already."""

    answer: str | None
    whole: bool = True  # whether all feedback of the rule on the target goes, or that of those who report alone


class ScoreQuery(NamedTuple):
    """Which of a rule's scores: under one key or all, of traces that started in [since_ns, until_ns), one page."""

    rule: str
    project: str
    key: str | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    limit: int = 1000
    cursor: str | None = None


class RuleScore(NamedTuple):
    """A rule's outcome, with the session of its trace, if it has one, and the time at which the trace started.

    Of a session as target it is that session, and the start of its first trace.
    """

    feedback: Feedback
    session_id: str | None
    start_ns: int


class DecisionQuery(NamedTuple):
    """Which decisions: on a trace and its session (project and id), or on anything; so many after a cursor."""

    trace_id: str | None = None
    session: tuple[str, str] | None = None
    rule: str | None = None
    version: str | None = None
    project: str | None = None
    verdict: str | None = None
    limit: int = 1000
    cursor: str | None = None


class TraceBackend(Protocol):
    """What `Both` asks of a half that keeps traces, beside the verbs of `TraceStore` but `delete` and `prune`."""

    @property
    def where(self) -> str:
        """Where it is, in words for people."""
        ...

    def newest(self) -> int:
        """The number of the latest trace that has come; those that come later have higher ones."""
        ...

    def passing(self, filter: Filter, after: str | None = None, upto: int | None = None) -> DeletedTraces | None:
        """Some of the traces that pass, from where an earlier look ended, up to a number; None if there are none."""

    def remove(self, gone: Iterable[DeletedTraces]) -> int:
        """Remove traces with spans, text index and feedback, each lot as it comes; returns how many traces."""
        ...

    def expire(self, rule: Retention) -> Sequence[Filter]:
        """The traces that a rule gives up now, if any; feedback of that age whose trace never came is removed here."""

    def feedbacks(self, *, limit: int, target: Target) -> Page[Feedback]:
        """As of `TraceStore`."""
        ...

    def delete_feedback(self, ids: Sequence[str]) -> int:
        """As of `TraceStore`."""
        ...

    def changes(self, after: str | None = None, *, limit: int = 1000, filters: Sequence[Filter] = ()) -> ChangePage:
        """As of `TraceStore`; the filters name no dataset."""
        ...

    def explain(self, trace_id: str, filter: Filter) -> list[ConditionResult]:
        """As of `TraceStore`; the filter names no dataset."""
        ...

    def put_verdicts(self, verdicts: Sequence[TargetFeedback]) -> list[bool]:
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

    def head(self, trace_id: str, filters: Sequence[Filter] = ()) -> TraceHead:
        """The head of one trace; the filters name no dataset. Raises `NotFound`."""
        ...

    def is_after(self, change: str, cursor: str | None) -> bool:
        """Whether a position in the feed comes after another."""
        ...

    def scored_by(self, asked: ScoreQuery) -> Page[RuleScore]:
        """The current scores, errors and skips of a rule, those of the traces that started last first; of sessions
        those of any project.
        """
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


class ControlBackend(Protocol):
    """What `Both` asks of a half that keeps control records, beside the verbs of `ControlStore`."""

    @property
    def where(self) -> str:
        """Where it is, in words for people."""
        ...

    def keys(self) -> list[Key]:
        """As of `ControlStore`."""
        ...

    def delete_key(self, id: str) -> bool:
        """As of `ControlStore`."""
        ...

    def note(self, event: AuditEvent) -> None:
        """Keep what was done, for `ControlStore.audit`."""

    def forget(self, gone: DeletedTraces) -> None:
        """Remove decisions and items of queues about traces and sessions that go."""

    def keep_rules(self, rules: Sequence[Rule], owner: str | None, activate: bool, change: int) -> None:
        """As `ControlStore.save_rule`; `change` is the last that has happened."""

    def alter_rule(self, name: str, project: str, fields: Mapping[str, JSON], change: int) -> Rule:
        """As `ControlStore.change_rule`; `change` is the last that has happened."""
        ...

    def rules(self, *, project: str | None = None) -> list[Rule]:
        """As of `ControlStore`."""
        ...

    def setting_at(self, rule: Rule, change: int) -> SettingsVersion | None:
        """The setting of a version in force for a change, the oldest before the first of them; None if it has none."""
        ...

    def cursor(self, rule: str, version: str, *, project: str) -> str | None:
        """As of `ControlStore`."""
        ...

    def keep_decided(self, decided: Sequence[DecisionBatch]) -> list[bool]:
        """As `ControlStore.decide`; all targets are there."""
        ...

    def decisions_on(self, asked: DecisionQuery) -> Page[Decision]:
        """As `ControlStore.decisions`."""
        ...

    def take(
        self,
        rule: str,
        version: str,
        holder: str,
        seconds: float,
        project: str,
        limit: int,
        over_budget: int | None = None,
    ) -> list[Decision]:
        """As `ControlStore.claim`, but that a row which has ended its third worker is given out, too, alone."""
        ...

    def examine(self, finishes: Sequence[ClaimResult]) -> list[FinishPlan]:
        """What is to be done with the feedback of finishes, before `conclude`. Raises `Refused` for a bad verdict."""
        ...

    def conclude(self, finishes: Sequence[ClaimResult]) -> list[str]:
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

    def booked(self, budget: str | None = None) -> list[BudgetUsage]:
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
