"""Control records: rules, decisions, leases, budgets, keys, queues, retention; changeable fields."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from spanwise.collector.errors import Refused
from spanwise.collector.records.alert_records import Alert
from spanwise.collector.records.data_records import Experiment, Feedback, Target
from spanwise.collector.records.json_values import JSON, Outcome, Period, QueueStatus, RuleTarget, Scope, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """API key as the store keeps it: with the SHA-256 of the secret, never the secret itself."""

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

    The `action` is the name of the store's operation. `key` and `name` are the id and name of the caller's API key.
    If the caller has no key, `name` is the user of the process that holds the store, or empty if unknown. `address`
    is the caller's network address, or "process" and a process id.
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
    """Entry of an annotation queue: a target for which human feedback is requested."""

    queue: str
    target: Target
    status: QueueStatus = "waiting"
    assignee: str | None = None
    note: str = ""
    created_ns: int = field(default_factory=time.time_ns)
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Retention limits for the traces of a project: maximum age, and maximum size on disk.

    If `project` is None, the limits apply to all projects together.
    """

    project: str | None = None
    max_age_ns: int | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_age_ns", "max_bytes"):
            if (value := getattr(self, name)) is not None and value < 0:  # a negative limit would delete future traces
                raise ValueError(f"{name} of a retention rule must be >= 0, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """Destination to which feedback is forwarded, and its state.

    The `cursor` is the number of the last feedback record that was sent or given up.
    """

    name: str
    url: str
    cursor: int
    sent: int = 0
    dropped: int = 0  # permanently refused by the destination
    waiting: int = 0
    error: str | None = None  # error of the last attempt; None: it succeeded
    updated_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """Traces that pass a filter (in the store's filter grammar) and are sampled at a rate of their own."""

    filter: Mapping[str, JSON]
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSettings:
    """Frequency, speed and cost limits of a rule.

    Changing them creates no new version of the rule. The store keeps the earlier settings.

    A target is sampled at the rate of the first stratum whose filter it passes, or else at `sample_rate`. If `paced`
    is set, every rate is multiplied by it: a factor in (0, 1] that spreads a budget over its day or month.
    """

    sample_rate: float = 1.0
    strata: tuple[Stratum, ...] = ()
    budget: Mapping[str, float] = field(default_factory=dict)  # limits: usd_per_month, calls_per_day, …
    pace: bool = True  # True: budgets in US dollars are spread over the day and the month
    paced: float | None = None
    concurrency: int = 8
    timeout_s: float = 60.0
    retries: int = 3
    priority: float = 1.0  # weight by which the rules share a worker's capacity
    # seconds without changes after which a trace counts as complete, if its span counts do not show that
    quiet_s: float = 10.0
    max_wait_s: float = 600.0
    session_quiet_s: float = 600.0
    max_bytes: int = 10_000_000  # larger targets are skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Monitoring rule: the evaluators to run, their targets, and how often and at what cost they run.

    A rule belongs to a project, and its name is unique there. `version` is a hash of the fields that select targets
    and evaluators (filter, target, kind, scope, evaluators). All other options are in `settings`. `owner` is the
    source that may change the rule: a rules file, or "api".
    """

    name: str
    version: str
    # {"id", "parameters"} for registry ids, {"function", "source"} for others
    evaluators: tuple[Mapping[str, JSON], ...]
    # metrics of the evaluators by key, as experiments record them: range, higher_is_better, threshold, …
    metrics: tuple[Mapping[str, JSON], ...] = ()
    project: str = "default"
    filter: Mapping[str, JSON] = field(default_factory=dict)
    target: RuleTarget = "trace"
    kind: str | None = None  # kind of the target spans
    scope: Scope = "live"
    settings: RuleSettings = field(default_factory=RuleSettings)
    owner: str = "api"
    shadow_of: str | None = None  # name of the rule of which this rule is a trial version
    since_ns: int | None = None  # also process traces that began since then; None: only changes after the activation
    # number of the last change before the activation, set by the store: the rule processes later changes
    active_from: int = 0
    enabled: bool = True
    # actor that paused the rule, and the time; set by the store, and empty for rules that are not paused
    paused_by: str = ""
    paused_ns: int | None = None
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    created_ns: int = field(default_factory=time.time_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsVersion:
    """Settings of a rule, and the number of the change (`from_change`) from which on they apply to decisions."""

    version: str
    from_change: int
    settings: RuleSettings
    created_ns: int = field(default_factory=time.time_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Decision of a rule about a target, with the reason. A later decision replaces an earlier one.

    There is one decision per (project, rule, version, target). `probability` is the inclusion probability: the
    probability of head sampling times the rate of the rule or stratum. It is None if the former is unknown. `states`
    maps the key of each evaluator to `{"state": "waiting" | "scored" | "skipped" | "failed", "error": …, "attempts":
    …}`.

    All changes are numbers from the change feed: `change` is the change of the trace that the decision is about,
    `runs_change` the last change of the trace's runs, and `read_change` that of the runs that were evaluated. `claim`
    is the lease number: it increases each time that a worker takes the target, and each number is used only once.
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
    stratum: int | None = None  # index of the stratum in the settings that apply
    incomplete: bool = False  # evaluated because the longest wait was over, or known to be incomplete
    change: int = 0
    runs_change: int = 0
    read_change: int = 0
    claim: int = 0
    holder: str | None = None
    until_ns: int | None = None
    attempts: int = 0
    deaths: int = 0  # workers that died while they evaluated the target
    reopened: int = 0
    next_ns: int | None = None  # time of the next attempt
    states: Mapping[str, JSON] = field(default_factory=dict)
    inputs_hash: str | None = None
    cost: float | None = None
    created_ns: int = field(default_factory=time.time_ns)
    updated_ns: int = field(default_factory=time.time_ns)
    backfill: str | None = None  # id of the backfill that made the decision; None: live traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillStep:
    """Progress of a backfill with one batch of decisions: the numbers of traces read, passing the filter and sampled.

    `walked` is True at the end of the backfill's range.
    """

    id: str
    read: int
    matched: int
    sampled: int
    walked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionBatch:
    """Decisions of one version of a rule about all traces that changed between two positions of the change feed.

    The decisions to be stored are in `rows`. `outcomes` covers all traces: it maps the trace id to the number of the
    trace (`TraceHead.number`) and "filtered", "sampled_out" or "taken". The store counts each trace only under its
    latest outcome. Therefore both fields may contain traces beyond `upto`, and a batch may be sent again.

    With `backfill`, the batch is a step of that backfill: `after` and `upto` are positions in its range, the rows are
    in the order of the range, and `outcomes` covers the sampled traces only.
    """

    project: str
    rule: str
    version: str
    after: str | None  # the rule's current cursor
    upto: str
    rows: tuple[Decision, ...] = ()
    outcomes: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    token: int = 0  # token of the lease on the rule's feed
    backfill: BackfillStep | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Lease on a target, as the operation `claim` returned it. A later lease on the target has a higher `number` and
    makes earlier ones invalid.
    """

    project: str
    rule: str
    version: str
    target: Target
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimResult:
    """Outcome of a leased target.

    All feedback on this target of the evaluators in `reported` is in `feedback`. With the outcomes "waiting" and
    "throttled", the worker returns the lease, and the target may be taken again after `again_s` seconds.
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
    """Named exclusive right of one process, valid until `expires_ns`. Each new holder gets a higher token."""

    name: str
    holder: str
    expires_ns: int
    token: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spender:
    """The rule, evaluator and model that a judge call is made for. `priced` is False if the model's price is unknown."""

    project: str
    rule: str
    evaluator: str
    model: str
    priced: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """Amount to be reserved on a budget, within its limit, in the current period of the store's clock (UTC).

    A booking with a `spender` is an amount of US dollars that `ControlStore.spend` reports, too. Of the bookings of one
    call, only one has a spender.
    """

    id: str
    budget: str
    amount: float
    limit: float
    period: Period = "day"
    spender: Spender | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUsage:
    """Usage of a budget in one period. The limit applies to the sum of `settled`, `reserved` and `unknown`."""

    budget: str
    period_start_ns: int
    settled: float = 0.0
    reserved: float = 0.0  # reserved by calls of the last minute
    unknown: float = 0.0  # reserved by calls whose cost was not known within a minute


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """US dollars booked for judge calls that began in one time bucket. Fields that are not grouped by are None.

    `unpriced` counts calls of models whose price is unknown. Their amounts are 0.
    """

    start_ns: int
    project: str | None = None
    rule: str | None = None
    evaluator: str | None = None
    model: str | None = None
    settled: float = 0.0
    reserved: float = 0.0  # reserved by calls of the last minute
    unknown: float = 0.0  # reserved by calls whose cost was not known within a minute
    unpriced: int = 0

    @property
    def total(self) -> float:
        """Return the sum of all amounts."""
        return self.settled + self.reserved + self.unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceHead:
    """Change feed entry of a trace. Reading the feed after `cursor` returns the later entries.

    - `settled` is True if every started span has arrived or was reported as dropped, and no span is open. It is None if
      the span counts cannot tell: for spans of other SDKs, or outgoing calls whose remote part is missing.
    - `probability` is the probability with which head sampling kept the local root, and None if it is unknown.
    - `passes` has one result per requested filter, in the order of the request. None means that the result is not known
      yet, because the text of the trace is not indexed.
    """

    trace_id: str
    cursor: str
    change: int
    runs_change: int
    changed_ns: int  # time of the change by the store's clock
    start_ns: int
    settled: bool | None
    whole: bool  # True if no span was dropped
    rooted: bool  # True if a span without parent has arrived
    size: int  # bytes of the trace's payloads
    span_count: int
    probability: float | None
    partial: bool  # True if the trace was not sampled, and kept only because of an error
    judgement: bool  # True for a trace that is marked as an evaluator's: no rule applies to it
    project: str
    environment: str
    experiment_id: str | None
    session_id: str | None
    passes: tuple[bool | None, ...] = ()
    number: int = 0  # number of the trace in order of first arrival; never reused


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePage:
    """Slice of the change feed. `cursor` is the position of the next slice, also if this slice is empty."""

    heads: tuple[TraceHead, ...]
    cursor: str
    now_ns: int  # the store's clock, which never goes back


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionResult:
    """Result of one condition of a filter on one trace: the wanted and the actual value.

    If `passes` is None, the result is not known yet.
    """

    name: str
    wanted: JSON
    seen: JSON
    passes: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionExplanation:
    """Explanation of why a rule did or did not evaluate a trace.

    It is based on the stored decision or, without one, on the rule, its settings and the trace.
    """

    rule: Rule
    verdict: Verdict
    reason: str  # one sentence for users, with the actual values
    conditions: tuple[ConditionResult, ...] = ()
    u: float | None = None
    rate: float | None = None
    stratum: int | None = None
    # stored decisions; several if the rule's targets are spans, documents or sessions
    decisions: tuple[Decision, ...] = ()
    budget: tuple[BudgetUsage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """Report of a monitor's worker about one project that it serves. The store keeps the newest one per holder and
    project.

    The mapping `data` contains, as far as known:

    - `finished_per_s` and `decided_per_s`: targets finished, and decisions made, per second over all rules.
    - `evaluators`: rule name → key of the evaluator → `{"looked": …, "failed": …, "p95_s": …, "mean_s": …}`.
    - `idle`: rule name → the reason why nothing runs.
    - `paused`: rule name → key of an evaluator that is not called → the reason.
    - `barred_backfills`: id of a backfill that cannot run → the reason.
    """

    holder: str
    project: str
    rules: Mapping[str, str]  # rule name → the version that runs
    # throughput; errors and 95th percentile of the duration of evaluators; reasons why nothing runs
    data: Mapping[str, JSON] = field(default_factory=dict)
    seen_ns: int = field(default_factory=time.time_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStatus:
    """Status of one rule: counts of traces by outcome (or of sessions, if the rule scores sessions), and its lag.

    A trace counts once, even with several decisions. If it has several targets, the worst outcome counts.
    """

    rule: Rule
    counts: Mapping[str, int]
    cursor: str | None
    behind: int  # changes without a decision
    lag_s: float  # age of the oldest such change in seconds
    rate: float  # current sample rate
    booked: tuple[BudgetUsage, ...] = ()
    errors: tuple[str, ...] = ()  # last errors, newest first
    workers: tuple[WorkerReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedScore:
    """Score of a rule with its inclusion probability (None: unknown; 0: no longer counts).

    A score on a session has the `session_id` of that session, any other score that of its trace. `start_ns` is the
    start of the trace, or of the session's first trace. `score` is None for a label without a score, and for errors
    and skips, which are counted separately.

    `live_probability` is the probability with which live traffic alone would have included the target: 0 for a score
    that a backfill made. Alerts weight by it, so that a backfill fires none.
    """

    trace_id: str | None
    session_id: str | None
    key: str
    score: float | bool | None
    probability: float | None
    created_ns: int
    start_ns: int = 0
    outcome: Outcome = "score"
    live_probability: float | None = None


R = TypeVar("R", Alert, Feedback, Experiment, Rule)

CHANGEABLE_FIELDS: Mapping[type, tuple[str, ...]] = {
    Feedback: ("score", "label", "comment", "metadata"),
    Experiment: ("name", "status", "metadata", "ended_ns", "example_count", "seen_ns"),
    Rule: ("enabled", "settings", "metadata"),
    Alert: ("enabled", "to", "no_data_s", "repeat_s"),
}


def apply_changes(record: R, fields: Mapping[str, JSON]) -> R:
    """Return a copy of a record with new values of some of its `CHANGEABLE_FIELDS`.

    Raises `Refused` for any other field or an invalid value.
    """
    allowed, kind = CHANGEABLE_FIELDS[type(record)], type(record).__name__.lower()
    if fixed := sorted(set(fields) - set(allowed)):
        raise Refused(f"{fixed[0]!r} of a {kind} cannot be changed; these fields can: {', '.join(allowed)}")
    new: dict[str, Any] = dict(fields)
    if isinstance(record, Feedback) and {"score", "label"} & set(fields):
        new |= {"outcome": "score", "error": None}
    try:
        return replace(record, **new)
    except ValueError as error:
        raise Refused(str(error)) from error
