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
    """An API key as it is kept: never the secret, only its SHA-256."""

    id: str
    name: str
    sha256: str
    project: str | None = None  # None: all projects
    scopes: tuple[str, ...] = ("read", "write")
    created_ns: int = field(default_factory=time.time_ns)
    expires_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """Something that was deleted, or a key that was made or revoked. `action` is the verb of the store.

    Who: the id and the name of a key; without one the user of the process that holds the store, or nobody who is known.
    From where: a network address, or "process" and its number.
    """

    action: str
    about: str = "{}"  # what was asked for, as JSON; a long one is cut off
    count: int = 0  # how many it took
    key: str = ""
    name: str = ""
    address: str = ""
    at_ns: int = field(default_factory=time.time_ns)
    id: str = ""  # the store's, rising


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueItem:
    """A target that waits in an annotation queue for a person's feedback."""

    queue: str
    target: Target
    status: QueueStatus = "waiting"
    assignee: str | None = None
    note: str = ""
    created_ns: int = field(default_factory=time.time_ns)
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long, and up to which size on disk, the traces of a project are kept (None: of every project, together)."""

    project: str | None = None
    max_age_ns: int | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_age_ns", "max_bytes"):
            if (value := getattr(self, name)) is not None and value < 0:  # would give up what is yet to come
                raise ValueError(f"{name} of a retention is {value!r}; it cannot be below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlet:
    """Where feedback is sent on to, and how far that is. `cursor` numbers the last that was sent or given up."""

    name: str
    url: str
    cursor: int
    sent: int = 0
    dropped: int = 0  # refused there, for good
    waiting: int = 0
    error: str | None = None  # of the last try; None: it went well
    updated_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """Traces that pass a filter (in the store's grammar) and that are sampled at a rate of their own."""

    filter: Mapping[str, JSON]
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSettings:
    """How often, how fast and at what cost a rule runs. Changes of these make no version; they are kept as a history.

    The rate of a target is that of the first stratum whose filter it passes, else `sample_rate`. `paced`, where it is
    set, is a factor in (0, 1] on every rate, which makes a day's money last the day.
    """

    sample_rate: float = 1.0
    strata: tuple[Stratum, ...] = ()
    budget: Mapping[str, float] = field(default_factory=dict)  # usd_per_day, calls_per_day, *_per_minute: limits
    pace: bool = True  # whether money is paced over the day
    paced: float | None = None
    concurrency: int = 8
    timeout_s: float = 60.0
    retries: int = 3
    priority: float = 1.0  # weight among rules
    quiet_s: float = 10.0  # of traces whose counts tell nothing
    max_wait_s: float = 600.0
    session_quiet_s: float = 600.0
    max_bytes: int = 10_000_000  # of a target


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a monitor evaluates: which evaluators, on which targets, how often, at what cost.

    Belongs to a project and has one name there. `version` hashes what is scored and with what (filter, target, kind,
    scope, evaluators); `settings` are the rest. `owner` is who may change it: a rules file, or "api".
    """

    name: str
    version: str
    evaluators: tuple[Mapping[str, JSON], ...]  # {"id", "parameters"} of registry ids, {"function", "source"} of others
    project: str = "default"
    filter: Mapping[str, JSON] = field(default_factory=dict)
    target: RuleTarget = "trace"
    kind: str | None = None  # of the spans that are targets
    scope: Scope = "live"
    settings: RuleSettings = field(default_factory=RuleSettings)
    owner: str = "api"
    shadow_of: str | None = None  # name of the rule beside which it is tried
    since_ns: int | None = None  # also traces that began since then; None: what changes after the activation
    active_from: int = 0  # the change after which it takes what comes; given by the store when it is put in force
    enabled: bool = True
    metadata: Mapping[str, JSON] = field(default_factory=dict)
    created_ns: int = field(default_factory=time.time_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsVersion:
    """A rule's settings, in force for what was decided from a change on."""

    version: str
    from_change: int
    settings: RuleSettings
    created_ns: int = field(default_factory=time.time_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a rule did with a target, and why. One per (project, rule, version, target): later ones go into its place.

    `probability` is the inclusion probability, head × rule or stratum; None where the head's is unknown. `states` says
    of each evaluator `{"state": "waiting" | "scored" | "skipped" | "failed", "error": …, "attempts": …}`.
    `change` is the change of the trace that was decided on, `runs_change` that in which its runs last changed,
    `read_change` that whose runs were evaluated. Each time that it is taken to be run `claim` rises, to a number that
    is given out once only.
    """

    project: str = "default"
    rule: str
    version: str
    target: Target
    verdict: Verdict
    reason: str = ""
    probability: float | None = None
    u: float | None = None  # where the target lies in [0, 1): taken if below the rate
    rate: float | None = None
    stratum: int | None = None  # position in the settings in force
    incomplete: bool = False  # taken after the longest wait, or known to lack something
    change: int = 0
    runs_change: int = 0
    read_change: int = 0
    claim: int = 0
    holder: str | None = None
    until_ns: int | None = None
    attempts: int = 0
    deaths: int = 0  # workers that ended while they ran it
    reopened: int = 0
    next_ns: int | None = None  # when it is tried next
    states: Mapping[str, JSON] = field(default_factory=dict)
    inputs_hash: str | None = None
    cost: float | None = None
    created_ns: int = field(default_factory=time.time_ns)
    updated_ns: int = field(default_factory=time.time_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionBatch:
    """What was decided about all that changed between two positions of the feed, for one version of a rule.

    Rows are those with a verdict that is stored. `outcomes` are those of all traces, by id: the number of the trace
    (`Head.number`) and "filtered", "sampled_out" or "taken". The store counts each trace under its latest outcome, so
    both may lie beyond `upto`, and be repeated.
    """

    project: str
    rule: str
    version: str
    after: str | None  # the rule's cursor, as it is now
    upto: str
    rows: tuple[Decision, ...] = ()
    outcomes: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    token: int = 0  # of the lease on deciding


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to finish a target, as `claim` gave it: nobody has it any more who holds a lower number."""

    project: str
    rule: str
    version: str
    target: Target
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimResult:
    """What came of a claim. `feedback` is, for each evaluator in `reported`, its whole set on this target.

    A verdict of waiting or throttled gives the claim back, to be taken again after `again_s` seconds.
    """

    claim: Claim
    verdict: Verdict
    reason: str = ""
    states: Mapping[str, JSON] = field(default_factory=dict)
    reported: tuple[str, ...] = ()  # keys of `states`
    feedback: tuple[Feedback, ...] = ()
    inputs_hash: str | None = None
    read_change: int = 0
    attempts: int = 0  # used up by this claim
    again_s: float | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A named right to do something, held by one process until `expires_ns`; a later holder has a higher token."""

    name: str
    holder: str
    expires_ns: int
    token: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """An amount to be reserved on a budget, below its limit, in the period that is now by the store's clock (UTC)."""

    id: str
    budget: str
    amount: float
    limit: float
    period: Period = "day"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUsage:
    """What a budget has seen in one period. Its limit holds for the sum of the three amounts."""

    budget: str
    period_start_ns: int
    settled: float = 0.0
    reserved: float = 0.0  # by calls of the last minute
    unknown: float = 0.0  # booked for calls whose cost is unknown: nobody has settled them within a minute


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceHead:
    """What the feed says of a trace that changed. Reading after `cursor` gives what comes after it.

    `settled`: True when all started spans have arrived or were reported dropped and nothing is open, None where counts
    do not tell (another's spans, calls sent out whose remote half is missing). `probability` is that of the local root
    under head sampling, None where it is unknown. `passes` answers the filters that were asked, in their order; None
    where it cannot be told yet (text that is not indexed).
    """

    trace_id: str
    cursor: str
    change: int
    runs_change: int
    changed_ns: int  # when, by the store's clock
    start_ns: int
    settled: bool | None
    whole: bool  # nothing was dropped
    rooted: bool  # a span without parent is here
    size: int  # bytes of its payloads
    span_count: int
    probability: float | None
    partial: bool  # kept by the head for its error alone
    judgement: bool  # an evaluator's own, by mark: no rule's
    project: str
    environment: str
    experiment_id: str | None
    session_id: str | None
    passes: tuple[bool | None, ...] = ()
    number: int = 0  # of the trace, in the order in which traces first arrived; never used twice


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePage:
    """A slice of the feed; `cursor` is where the next one begins, also when there is nothing new."""

    heads: tuple[TraceHead, ...]
    cursor: str
    now_ns: int  # the store's clock, which never falls


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionResult:
    """One condition of a filter on one trace: what it wants, what was seen, if that passes (None: not yet told)."""

    name: str
    wanted: JSON
    seen: JSON
    passes: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionExplanation:
    """Why a rule did (not) evaluate a trace: the stored decision, or what follows from rule, settings and trace."""

    rule: Rule
    verdict: Verdict
    reason: str  # one sentence for people, with the values seen
    conditions: tuple[ConditionResult, ...] = ()
    u: float | None = None
    rate: float | None = None
    stratum: int | None = None
    decisions: tuple[Decision, ...] = ()  # stored ones: several where spans, documents or a session are the targets
    budget: tuple[BudgetUsage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What a monitor's worker says of itself for one project that it serves, the newest of each holder and project.

    `data` has, as far as it is known: `finished_per_s` and `decided_per_s` of all rules; and by a rule's name
    `evaluators`, which are by key `{"looked": …, "failed": …, "p95_s": …}`, `idle`, why it does nothing for it, and
    `paused`, why it does not ask some evaluators, by key.
    """

    holder: str
    project: str
    rules: Mapping[str, str]  # name: version that it runs
    data: Mapping[str, JSON] = field(default_factory=dict)  # throughput, evaluators' errors and p95, what idles and why
    seen_ns: int = field(default_factory=time.time_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStatus:
    """One rule's funnel: counts of traces by verdict (of sessions, where these are scored), and how far it is behind.

    A trace that was decided on twice counts once; of several targets of a trace the worst verdict counts.
    """

    rule: Rule
    counts: Mapping[str, int]
    cursor: str | None
    behind: int  # changes that are not decided yet
    lag_s: float  # age of the oldest of them
    rate: float  # in force
    booked: tuple[BudgetUsage, ...] = ()
    errors: tuple[str, ...] = ()  # the last ones, newest first
    workers: tuple[WorkerReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedScore:
    """An outcome that a rule gave, with the probability of having been looked at (None: unknown; 0: no longer counts).

    `session_id` is that of the trace, or the session that was scored. `start_ns` is when the trace started, or the
    first trace of the session. `score` is None for errors and skips, which are counted beside a mean, and for a label
    without a score.
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
    """A record with some of its `CHANGEABLE` fields anew. Raises `Refused` for any other field, or a bad value."""
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
