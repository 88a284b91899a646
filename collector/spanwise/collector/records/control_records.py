"""Control records: rules, decisions, leases, budgets, keys, queues, retention; changeable fields."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from spanwise.collector.errors import Refused
from spanwise.collector.records.dataset_records import Experiment
from spanwise.collector.records.json_values import JSON, Outcome, Period, QueueStatus, RuleTarget, Scope, Verdict
from spanwise.collector.records.trace_records import Feedback, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """API key as stored: never the secret, only its SHA-256."""

    id: str
    name: str
    sha256: str
    project: str | None = None  # None: all projects
    scopes: tuple[str, ...] = ("read", "write")
    created_ns: int = field(default_factory=time.time_ns)
    expires_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """Audit event: a deletion, or the creation or revocation of a key.

    `action` is the name of the store's operation. `key` and `name` are the id and name of the caller's key. Without a
    key, `name` is the user of the process that holds the store, or empty if unknown. `address` is a network address,
    or "process" and its number.
    """

    action: str
    about: str = "{}"  # arguments of the operation as JSON; long ones are truncated
    count: int = 0  # number of affected records
    key: str = ""
    name: str = ""
    address: str = ""
    at_ns: int = field(default_factory=time.time_ns)
    id: str = ""  # assigned by the store, increasing


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueItem:
    """Target that waits in an annotation queue for human feedback."""

    queue: str
    target: Target
    status: QueueStatus = "waiting"
    assignee: str | None = None
    note: str = ""
    created_ns: int = field(default_factory=time.time_ns)
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Limits of age and size on disk for the traces of a project. None means all projects together."""

    project: str | None = None
    max_age_ns: int | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_age_ns", "max_bytes"):
            if (value := getattr(self, name)) is not None and value < 0:  # would delete future traces
                raise ValueError(f"{name} of a retention is {value!r}; it cannot be below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """Destination to which feedback is forwarded, and its state.

    `cursor` is the number of the last record sent or given up.
    """

    name: str
    url: str
    cursor: int
    sent: int = 0
    dropped: int = 0  # permanently refused by the destination
    waiting: int = 0
    error: str | None = None  # of the last attempt; None: it succeeded
    updated_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """Traces that pass a filter (in the store's grammar) and have their own sample rate."""

    filter: Mapping[str, JSON]
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSettings:
    """Frequency, speed and cost limits of a rule. A change creates no new version of the rule; the history is kept.

    The rate of a target is that of the first stratum whose filter it passes, or else `sample_rate`. `paced`, if set,
    is a factor in (0, 1] on every rate that spreads a day's budget over the day.
    """

    sample_rate: float = 1.0
    strata: tuple[Stratum, ...] = ()
    budget: Mapping[str, float] = field(default_factory=dict)  # limits: usd_per_day, calls_per_day, *_per_minute
    pace: bool = True  # True: the budget in US dollars is spread over the day
    paced: float | None = None
    concurrency: int = 8
    timeout_s: float = 60.0
    retries: int = 3
    priority: float = 1.0  # weight among rules
    quiet_s: float = 10.0  # seconds without changes, for traces whose counts do not show completion
    max_wait_s: float = 600.0
    session_quiet_s: float = 600.0
    max_bytes: int = 10_000_000  # limit for a target


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Monitoring rule: the evaluators to run, their targets, and how often and at what cost they run.

    A rule belongs to a project, and its name is unique there. `version` hashes the selection and the evaluators
    (filter, target, kind, scope, evaluators); all other options are in `settings`. `owner` is the source that may
    change the rule: a rules file, or "api".
    """

    name: str
    version: str
    # {"id", "parameters"} for registry ids, {"function", "source"} for others
    evaluators: tuple[Mapping[str, JSON], ...]
    project: str = "default"
    filter: Mapping[str, JSON] = field(default_factory=dict)
    target: RuleTarget = "trace"
    kind: str | None = None  # kind of the target spans
    scope: Scope = "live"
    settings: RuleSettings = field(default_factory=RuleSettings)
    owner: str = "api"
    shadow_of: str | None = None  # name of the rule of which it is a trial version
    since_ns: int | None = None  # also traces that began since then; None: only changes after the activation
    active_from: int = 0  # last change before the activation, set by the store: the rule processes later ones
    enabled: bool = True
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    created_ns: int = field(default_factory=time.time_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsVersion:
    """Settings of a rule that apply to decisions from a given change on."""

    version: str
    from_change: int
    settings: RuleSettings
    created_ns: int = field(default_factory=time.time_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Decision of a rule about a target, with the reason. A later decision replaces an earlier one.

    There is one per (project, rule, version, target). `probability` is the inclusion probability, head × rule or
    stratum, and None if that of the head is unknown. `states` has for each evaluator `{"state": "waiting" | "scored"
    | "skipped" | "failed", "error": …, "attempts": …}`.

    `change` is the trace's change that was decided on, `runs_change` the last change of its runs, and `read_change`
    the change whose runs were evaluated. `claim` is the lease number: it increases each time that a worker takes the
    target, and each number is used only once.
    """

    project: str = "default"
    rule: str
    version: str
    target: Target
    verdict: Verdict
    reason: str = ""
    probability: float | None = None
    u: float | None = None  # the target's uniform number in [0, 1): sampled if it is below the rate
    rate: float | None = None
    stratum: int | None = None  # position in the settings that apply
    incomplete: bool = False  # evaluated after the longest wait, or known to be incomplete
    change: int = 0
    runs_change: int = 0
    read_change: int = 0
    claim: int = 0
    holder: str | None = None
    until_ns: int | None = None
    attempts: int = 0
    deaths: int = 0  # workers that died while they ran it
    reopened: int = 0
    next_ns: int | None = None  # time of the next attempt
    states: Mapping[str, JSON] = field(default_factory=dict)
    inputs_hash: str | None = None
    cost: float | None = None
    created_ns: int = field(default_factory=time.time_ns)
    updated_ns: int = field(default_factory=time.time_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionBatch:
    """Decisions of one version of a rule about all traces that changed between two positions of the change feed.

    `rows` are the decisions whose outcome is stored. `outcomes` are those of all traces, by id: the number of the
    trace (`TraceHead.number`) and "filtered", "sampled_out" or "taken". The store counts each trace under its latest
    outcome. Both may therefore contain traces beyond `upto`, and may be repeated.
    """

    project: str
    rule: str
    version: str
    after: str | None  # the rule's current cursor
    upto: str
    rows: tuple[Decision, ...] = ()
    outcomes: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    token: int = 0  # token of the lease on the rule's feed


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Lease on a target, as the operation `claim` returned it. A lease with a lower number is no longer valid."""

    project: str
    rule: str
    version: str
    target: Target
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimResult:
    """Outcome of a leased target.

    `feedback` is the complete feedback on this target of each evaluator in `reported`. The outcomes waiting and
    throttled return the lease, and the target is taken again after `again_s` seconds.
    """

    claim: Claim
    verdict: Verdict
    reason: str = ""
    states: Mapping[str, JSON] = field(default_factory=dict)
    reported: tuple[str, ...] = ()  # evaluators, as in the keys of `states`
    feedback: tuple[Feedback, ...] = ()
    inputs_hash: str | None = None
    read_change: int = 0
    attempts: int = 0  # attempts made under this lease
    again_s: float | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Named exclusive right of one process until `expires_ns`. A later holder has a higher token."""

    name: str
    holder: str
    expires_ns: int
    token: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """Amount to be reserved on a budget, within its limit, in the current period of the store's clock (UTC)."""

    id: str
    budget: str
    amount: float
    limit: float
    period: Period = "day"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUsage:
    """Usage of a budget in one period. The limit applies to the sum of the three amounts."""

    budget: str
    period_start_ns: int
    settled: float = 0.0
    reserved: float = 0.0  # by calls of the last minute
    unknown: float = 0.0  # booked for calls of unknown cost, which were not settled within a minute


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceHead:
    """Change feed entry of a trace. Reading after `cursor` returns the later entries.

    - `settled` is True if all started spans have arrived or were reported dropped and none is open. It is None if
      counts are not sufficient: spans of other SDKs, or outgoing calls whose remote part is missing.
    - `probability` is that of the local root under head sampling, and None if it is unknown.
    - `passes` has the results of the requested filters, in their order. None: not known yet (text that is not indexed).
    """

    trace_id: str
    cursor: str
    change: int
    runs_change: int
    changed_ns: int  # time of the change by the store's clock
    start_ns: int
    settled: bool | None
    whole: bool  # nothing was dropped
    rooted: bool  # a span without parent has arrived
    size: int  # bytes of its payloads
    span_count: int
    probability: float | None
    partial: bool  # not sampled, and kept only because of an error
    judgement: bool  # marked as an evaluator's own trace: no rule applies
    project: str
    environment: str
    experiment_id: str | None
    session_id: str | None
    passes: tuple[bool | None, ...] = ()
    number: int = 0  # number of the trace in order of first arrival; never reused


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePage:
    """Slice of the change feed. `cursor` is the position of the next slice, even if there are no changes."""

    heads: tuple[TraceHead, ...]
    cursor: str
    now_ns: int  # the store's clock, which never goes back


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionResult:
    """Result of one condition of a filter on one trace: the wanted and the actual value.

    `passes` None: not known yet.
    """

    name: str
    wanted: JSON
    seen: JSON
    passes: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionExplanation:
    """Explanation why a rule did or did not evaluate a trace.

    It is the stored decision, or follows from rule, settings and trace.
    """

    rule: Rule
    verdict: Verdict
    reason: str  # one sentence for users, with the actual values
    conditions: tuple[ConditionResult, ...] = ()
    u: float | None = None
    rate: float | None = None
    stratum: int | None = None
    decisions: tuple[Decision, ...] = ()  # stored decisions: several if spans, documents or a session are the targets
    budget: tuple[BudgetUsage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """Report of a monitor's worker about one project that it serves.

    The store keeps the newest per holder and project. `data` contains, as far as known, `finished_per_s` and
    `decided_per_s` of all rules. By the name of a rule it also contains: `evaluators`, by key `{"looked": …,
    "failed": …, "p95_s": …}`; `idle`, the reason that nothing runs; and `paused`, by key the reason that an evaluator
    is not called.
    """

    holder: str
    project: str
    rules: Mapping[str, str]  # rule name: version that runs
    # throughput, errors and p95 of evaluators, reasons for idling
    data: Mapping[str, JSON] = field(default_factory=dict)
    seen_ns: int = field(default_factory=time.time_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStatus:
    """Status of one rule: counts of traces by outcome (of sessions if these are scored), and its lag.

    A trace with several decisions counts once. Of several targets of a trace, the worst outcome counts.
    """

    rule: Rule
    counts: Mapping[str, int]
    cursor: str | None
    behind: int  # changes without a decision
    lag_s: float  # seconds since the oldest of them
    rate: float  # current rate
    booked: tuple[BudgetUsage, ...] = ()
    errors: tuple[str, ...] = ()  # last errors, newest first
    workers: tuple[WorkerReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedScore:
    """Score of a rule with its inclusion probability (None: unknown; 0: no longer counts).

    `session_id` is that of the trace, or the session that was scored. `start_ns` is the start of the trace, or of the
    session's first trace. `score` is None for errors and skips, which are counted in addition to a mean, and for a
    label without a score.
    """

    trace_id: str | None
    session_id: str | None
    key: str
    score: float | bool | None
    probability: float | None
    created_ns: int
    start_ns: int = 0
    outcome: Outcome = "score"


R = TypeVar("R", Feedback, Experiment, Rule)

CHANGEABLE_FIELDS: Mapping[type, tuple[str, ...]] = {
    Feedback: ("score", "label", "comment", "metadata"),
    Experiment: ("name", "status", "metadata", "ended_ns", "example_count", "seen_ns"),
    Rule: ("enabled", "settings", "metadata"),
}


def apply_changes(record: R, fields: Mapping[str, JSON]) -> R:
    """Return a copy of a record with new values of some of its `CHANGEABLE_FIELDS`.

    Raises `Refused` for any other field or an invalid value.
    """
    allowed, kind = CHANGEABLE_FIELDS[type(record)], type(record).__name__.lower()
    if fixed := sorted(set(fields) - set(allowed)):
        raise Refused(f"{fixed[0]!r} of a {kind} cannot change, only {', '.join(allowed)}; save another {kind}")
    new: dict[str, Any] = dict(fields)
    if isinstance(record, Feedback) and {"score", "label"} & set(fields):
        new |= {"outcome": "score", "error": None}
    try:
        return replace(record, **new)
    except ValueError as error:
        raise Refused(str(error)) from error
