"""Text about rules: decisions and their reasons, funnel, budget, rate, lag and workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from spanwise.collector import formatting
from spanwise.collector.records import (
    JSON,
    Backfill,
    BudgetUsage,
    ConditionResult,
    Decision,
    DecisionExplanation,
    Rule,
    RuleStatus,
    WorkerReport,
)
from spanwise.collector.rule_policy import MIN_PACING_FACTOR, describe_pause
from spanwise.collector.stores.decision_explanation import WORKER_TIMEOUT_NS, find_blocking_reason, is_outdated

WORDS: Mapping[str, str] = {
    "filtered": "filtered",
    "sampled_out": "sampled out",
    "waiting": "waiting",
    "throttled": "throttled",
    "over_budget": "over budget",
    "running": "running",
    "scored": "scored",
    "skipped": "skipped",
    "failed": "failed",
    "superseded": "superseded",
}
STORED = tuple(WORDS)[2:]  # verdicts of stored decisions; the first two are never stored, but computed on demand
PACING_FLOOR_TEXT = "the lowest rate that pacing sets; scoring stops when the budget is used up"
QUEUED_VERDICTS = ("waiting", "throttled", "over_budget", "running")
_LONGEST = 200  # maximum length of a value or an error in characters


@dataclass(frozen=True, slots=True)
class FunnelStage:
    """One stage of a rule's funnel with the number of traces that reached it."""

    name: str
    count: int


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """Use of one of a rule's budgets in the present period."""

    name: str  # name of the limit, such as `usd_per_day` or `calls_per_minute`
    limit: float
    settled: float = 0.0
    reserved: float = 0.0
    unknown: float = 0.0

    @property
    def used(self) -> float:
        """Return the amount that counts against the limit."""
        return self.settled + self.reserved + self.unknown

    @property
    def share(self) -> float:
        """Return the used share of the limit, at most 1."""
        return min(1.0, self.used / self.limit) if self.limit else 1.0

    def __str__(self) -> str:
        """Format as "$1.20 of $5.00 per day, $0.40 of it reserved, $0.20 of it cost unknown"."""
        shown = formatting.cost if self.name.startswith("usd") else formatting.number
        unit, _, period = self.name.partition("_per_")
        text = f"{shown(self.used)} of {shown(self.limit)}"
        text += f" per {period}" if unit == "usd" else f" {unit} per {period}"
        text += f", {shown(self.reserved)} of it reserved" if self.reserved else ""
        return text + (f", {shown(self.unknown)} of it cost unknown" if self.unknown else "")


def funnel(status: RuleStatus) -> list[FunnelStage]:
    """Return the stages from arrived to scored traces."""
    counts = status.counts
    arrived = sum(counts.values())
    passed = arrived - counts.get("filtered", 0)
    sampled = passed - counts.get("sampled_out", 0)
    steps = {"arrived": arrived, "pass the filter": passed, "sampled": sampled, "scored": counts.get("scored", 0)}
    return [FunnelStage(name, count) for name, count in steps.items()]


def spending(rule: Rule, booked: tuple[BudgetUsage, ...]) -> list[BudgetUse]:
    """Return, for each limit of a rule, the amounts booked in its period."""
    newest: dict[str, BudgetUsage] = {}
    for usage in sorted(booked, key=lambda usage: usage.period_start_ns):
        newest[usage.budget.rpartition("/")[2]] = usage
    limits = rule.settings.budget.items()
    unused = BudgetUsage(budget="", period_start_ns=0)
    pairs = ((name, limit, newest.get(name, unused)) for name, limit in limits)
    return [BudgetUse(name, limit, usage.settled, usage.reserved, usage.unknown) for name, limit, usage in pairs]


def backfill_rate(job: Backfill) -> str:
    """Return the sample rate of a backfill, with those of its strata."""
    text = formatting.percent(job.sample_rate, 1)
    rates = ", ".join(formatting.percent(stratum.rate, 1) for stratum in job.strata)
    return f"{text}; strata: {rates}" if rates else text


def backfill_state(job: Backfill) -> str:
    """Return the state of a backfill, with the reason why it does not continue."""
    return f"{job.state}: {job.blocked}" if job.blocked else job.state


def backfill_progress(job: Backfill) -> str:
    """Describe the progress of a backfill: how much of its period was read, and the outcomes of its targets."""
    parts = [
        f"{formatting.percent(job.share, 1)} of the period read",
        f"{formatting.count(job.read)} traces, {formatting.count(job.matched)} match, {formatting.count(job.sampled)} sampled",
    ]
    if job.known:
        parts.append(f"{formatting.count(job.known)} had a result before")
    parts += [f"{formatting.count(job.counts[name])} {WORDS[name]}" for name in STORED if job.counts.get(name)]
    if job.cost:
        parts.append(formatting.cost(job.cost))
    return "; ".join(parts)


def explain_no_rules(project: str, rules: Iterable[Rule]) -> str:
    """Explain that no rule applies to a trace because its project has none. List the projects that have rules."""
    others = sorted({rule.project for rule in rules} - {project})
    if not others:
        return f"project {project!r} of the trace has no rules; `spanwise monitor rules.py` runs some"
    named = ", ".join(map(repr, others))
    return f"project {project!r} of the trace has no rules; the rules of this store are in project {named}"


def reason(why: DecisionExplanation) -> str:
    """Return the reason without the verdict that it begins with, because pages show the verdict separately."""
    return why.reason.removeprefix(why.verdict.replace("_", " ")).removeprefix(": ")


def sentence(why: DecisionExplanation) -> str:
    """Explain the decision in one sentence without technical terms, such as "Sampled out: 30 % of traces are sampled,
    this one was not."
    """
    text = reason(why)
    if why.verdict == "sampled_out" and why.rate is not None:
        noun = "session" if why.rule.target == "session" else "trace"
        alike = f"{noun}s" if why.stratum is None else f"{noun}s like this"
        text = f"{formatting.percent(why.rate, 1)} of {alike} are sampled, this one was not"
    word = _SENTENCE_WORDS.get(why.verdict) or WORDS[why.verdict].capitalize()
    return f"{word}: {text.removesuffix('.')}." if text else f"{word}."


_SENTENCE_WORDS = {"filtered": "Not for this rule", "throttled": "Delayed", "scored": "Evaluated"}


def look_on(why: DecisionExplanation) -> str:
    """Return the command that shows why evaluators skipped a trace for lack of data; "" if none did."""
    skipped = sorted(
        {
            trace_id
            for decision in why.decisions
            if decision.verdict == "skipped" and (trace_id := decision.target.trace_id)
        }
    )
    return f"spanwise doctor --where trace_ids={skipped[0]}" if skipped else ""


def sampling(why: DecisionExplanation) -> str:
    """Describe the sampling draw and the rate of a trace; "" if the trace was not sampled."""
    if why.u is None or why.rate is None:
        return ""
    source = "the rule's rate" if why.stratum is None else f"the rate of stratum {why.stratum + 1}"
    if why.rule.settings.paced is not None:
        source += " as the budget paces it"
    if why.verdict == "sampled_out" or why.u >= why.rate:
        return f"u {why.u:.4f} is not below {why.rate:.4g}, {source}"
    return f"u {why.u:.4f} is below {why.rate:.4g}, {source}"


def describe_condition(condition: ConditionResult) -> str:
    """Format a condition as "latency_ms: expected > 200, got 120"."""
    return f"{condition.name}: expected {value(condition.wanted)}, got {value(condition.seen)}"


def value(operand: JSON) -> str:
    """Format an expected or actual value of a condition on one line; missing values are "nothing"."""
    if operand is None or operand == [] or operand == ():
        return "nothing"
    if isinstance(operand, str):
        return formatting.first_line(repr(operand), _LONGEST)
    if isinstance(operand, list | tuple):
        is_flat = all(isinstance(item, str | int | float) for item in operand)
        separator = " " if is_flat and any(item in _COMPARISON_OPERATORS for item in operand) else ", "
        return formatting.first_line(
            separator.join((item if isinstance(item, str) else value(item)) for item in operand), _LONGEST
        )
    if isinstance(operand, Mapping):
        return formatting.first_line(", ".join(f"{name} {value(item)}" for name, item in operand.items()), _LONGEST)
    return (
        formatting.number(operand)
        if isinstance(operand, int | float)
        else formatting.first_line(str(operand), _LONGEST)
    )


_COMPARISON_OPERATORS = ("<", "<=", "=", "!=", ">=", ">")


def target(decision: Decision) -> str:
    """Name the target of a decision: "the trace", "span 0af7…", "document 2 of span 0af7…", "session talk"."""
    about = decision.target
    if about.span_id is not None:
        span = f"span {about.span_id}"
        return span if about.document is None else f"document {about.document + 1} of {span}"
    return "the trace" if about.trace_id is not None else f"session {about.session_id}"


def facts(decision: Decision, now_ns: int) -> Iterator[str]:
    """Yield further facts of a decision: attempts, worker deaths, the worker that holds it, next attempt, sampling
    weight, cost.
    """
    if decision.backfill is not None:
        yield f"by backfill {decision.backfill}"
    if decision.incomplete:
        yield "evaluated although parts of the trace are missing"
    if decision.attempts:
        yield _count_noun(decision.attempts, "attempt")
    if decision.deaths:
        yield f"ended {_count_noun(decision.deaths, 'worker')}"
    if decision.reopened:
        yield "scored again after the trace had changed"
    if is_outdated(decision):
        yield "older than the last change of the trace"
    if decision.verdict == "running" and decision.holder is not None:
        yield f"leased by {decision.holder}"
    if decision.next_ns is not None and decision.verdict in QUEUED_VERDICTS:
        left = decision.next_ns - now_ns
        yield f"next attempt in {formatting.duration(left)}" if left > 0 else "next attempt now"
    if decision.verdict in ("scored", "skipped", "failed"):
        if decision.backfill is not None and decision.rate == 0:
            yield "not in weighted means, because the backfill is not complete up to this trace"
        elif decision.probability is None:
            yield "sampling probability unknown, not in weighted means"
        elif decision.probability == 0:
            yield "excluded by the present filter or rate, not in weighted means"
        elif decision.probability < 1:
            yield f"counts as {formatting.number(1 / decision.probability)} traces in weighted means"
    if decision.cost is not None:
        yield f"cost {formatting.cost(decision.cost)}"


def states(decision: Decision) -> list[tuple[str, str, str]]:
    """Return key, state and error of each evaluator; the error is "" if there is none."""
    rows = []
    for key, state in decision.states.items():
        details = state if isinstance(state, Mapping) else {"state": str(state)}
        error = details.get("error")
        rows.append((key, str(details.get("state", "")), formatting.first_line(str(error), _LONGEST) if error else ""))
    return rows


def rate(status: RuleStatus) -> str:
    """Describe the sampling rate in force and its components."""
    settings = status.rule.settings
    text = formatting.percent(status.rate, 1)
    if settings.paced is not None:
        text += f", paced by the budget to {settings.paced:.3g} of {formatting.percent(settings.sample_rate, 1)}"
        text += f", {PACING_FLOOR_TEXT}" if settings.paced <= MIN_PACING_FACTOR else ""
    if settings.strata:
        text += f"; {len(settings.strata)} strat{'um' if len(settings.strata) == 1 else 'a'} of other rates"
    return text


def behind(status: RuleStatus) -> str:
    """Describe how far the rule lags behind the change feed: "up to date" or "312 changes behind, the oldest from 4.20 s
    ago".
    """
    if not status.behind:
        return "up to date"
    return (
        f"{_count_noun(status.behind, 'change')} behind, the oldest from {formatting.duration(status.lag_s * 1e9)} ago"
    )


def alive(worker: WorkerReport, now_ns: int) -> bool:
    """Return whether a worker has sent a heartbeat recently."""
    return now_ns - worker.seen_ns < WORKER_TIMEOUT_NS


def find_active_workers(status: RuleStatus, now_ns: int) -> list[WorkerReport]:
    """Return the living workers that run this version of the rule."""
    rule = status.rule
    return [
        worker for worker in status.workers if alive(worker, now_ns) and worker.rules.get(rule.name) == rule.version
    ]


def standing(status: RuleStatus, now_ns: int) -> tuple[str, bool]:
    """Describe which workers run the rule. Also return whether this is normal."""
    if not status.rule.enabled:
        return describe_pause(status.rule).removeprefix("the rule is "), True
    if active := find_active_workers(status, now_ns):
        # a worker is idle if it does not run the rule, or some of its evaluators
        idles = all(idle(worker, status.rule.name) for worker in active)
        return _count_noun(len(active), "worker") + (", idle" if idles else ""), not idles
    last_seen_ns = max((worker.seen_ns for worker in status.workers if worker.rules), default=None)
    since = (
        ""
        if last_seen_ns is None or now_ns - last_seen_ns < WORKER_TIMEOUT_NS
        else f" since {formatting.when(last_seen_ns)}"
    )
    return f"{find_blocking_reason(status.rule, status.workers, now_ns) or ''}{since}", False


def comes_back(rule: Rule) -> str:
    """Describe when a removed rule returns because a file still defines it; "" for a rule of the API."""
    return (
        "" if rule.owner == "api" else f"; it returns when {rule.owner!r} is loaded again, unless you remove it there"
    )


@dataclass(frozen=True, slots=True)
class EvaluatorWork:
    """Statistics of one evaluator of a rule, over all workers."""

    key: str
    looked: int
    failed: int
    p95_s: float | None  # p95 latency of the slowest worker

    def __str__(self) -> str:
        """Format as "2 % of 412 evaluations by the running workers failed, p95 1.20 s"."""
        evaluations = f"{_count_noun(self.looked, 'evaluation')} by the running workers"
        text = f"{formatting.percent(self.failed, self.looked)} of {evaluations} failed"
        return text if self.p95_s is None else f"{text}, p95 {formatting.duration(self.p95_s * 1e9)}"


def work(status: RuleStatus, now_ns: int) -> list[EvaluatorWork]:
    """Return the statistics of a rule's evaluators over its living workers, by key."""
    reports_by_key: dict[str, list[Mapping[str, JSON]]] = {}
    for worker in status.workers:
        if alive(worker, now_ns):
            for key, report in _get_worker_data(worker, "evaluators", status.rule.name).items():
                reports_by_key.setdefault(key, []).append(report)
    merged = []
    for key, reports in sorted(reports_by_key.items()):
        looked, failed = (sum(int(report.get(name, 0)) for report in reports) for name in ("looked", "failed"))
        p95 = max((float(report["p95_s"]) for report in reports if report.get("p95_s") is not None), default=None)
        merged.append(EvaluatorWork(key, looked, failed, p95))
    return merged


def sum_throughput(workers: Iterable[WorkerReport], now_ns: int) -> tuple[float, float]:
    """Return finished targets and decided traces per second, summed over living workers and all rules."""
    living = {worker.holder: worker for worker in workers if alive(worker, now_ns)}.values()
    finished, decided = (
        sum(float(worker.data.get(name) or 0) for worker in living) for name in ("finished_per_s", "decided_per_s")
    )
    return finished, decided


def idle(worker: WorkerReport, rule: str) -> list[str]:
    """Return the reasons why a worker does not run a rule, or some of its evaluators."""
    reasons = worker.data.get("idle")
    why = reasons.get(rule) if isinstance(reasons, Mapping) else None
    paused = _get_worker_data(worker, "paused", rule)
    return [*([str(why)] if why else []), *(f"{key} is paused: {reason}" for key, reason in paused.items())]


def _get_worker_data(worker: WorkerReport, field: str, rule: str) -> Mapping[str, JSON]:
    """Return a worker's report about one rule."""
    rules = worker.data.get(field)
    found = rules.get(rule) if isinstance(rules, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _count_noun(count: int, noun: str) -> str:
    return f"{formatting.count(count)} {noun}{'s' * (count != 1)}"
