"""Explanation of why a rule did or did not evaluate a trace, and why a rule cannot run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from spanwise.collector.records import (
    ConditionResult,
    Decision,
    DecisionExplanation,
    Rule,
    RuleSettings,
    TraceHead,
    Verdict,
    WorkerReport,
)
from spanwise.collector.rule_policy import describe_pause, find_exclusion_reason, get_sampling_rate, get_sampling_unit
from spanwise.collector.statistics import get_sampling_position

SECOND = 1_000_000_000
# If a trace has several targets, the first of these verdicts represents it
VERDICT_PRIORITY: Sequence[Verdict] = (
    "failed",
    "running",
    "waiting",
    "throttled",
    "over_budget",
    "superseded",
    "scored",
    "skipped",
)
_CONDITION_TEXTS = {"latency_ms": "the latency is {} ms", "tokens": "it has {} tokens", "cost": "it cost {}"}


class DecisionContext(NamedTuple):
    """Data that explains a rule's decision on a trace. `settings` are those in force at the trace's change."""

    rule: Rule
    settings: RuleSettings
    head: TraceHead  # with the results of the rule's filter and of its strata
    conditions: Sequence[ConditionResult]
    decisions: Sequence[Decision]  # stored decisions of any version, newest first
    # number of changes that the rule has not decided on yet; None if it has decided on this trace's change
    behind: int | None
    now_ns: int
    blocked: str | None  # reason why no worker runs this rule now


def explain_decision(context: DecisionContext) -> DecisionExplanation:
    """Explain a decision in one sentence, with the data that led to it."""
    of_version = [decision for decision in context.decisions if decision.version == context.rule.version]
    stored = of_version or context.decisions
    return explain_stored(context, stored) if stored else explain_computed(context)


def explain_stored(context: DecisionContext, stored: Sequence[Decision]) -> DecisionExplanation:
    """Explain the stored decisions on the targets of a trace."""
    verdict = next(
        candidate for candidate in VERDICT_PRIORITY if any(decision.verdict == candidate for decision in stored)
    )
    first = next(decision for decision in stored if decision.verdict == verdict)
    reason = describe_decision(first, context.now_ns)
    if len(stored) > 1:
        counts = Counter(decision.verdict for decision in stored)
        summary = ", ".join(
            f"{counts[candidate]} {_format_verdict(candidate)}" for candidate in VERDICT_PRIORITY if candidate in counts
        )
        reason = f"{len(stored)} targets: {summary}; {reason}"
    if first.version != context.rule.version:
        reason = f"by version {first.version!r} of the rule: {reason}"
    return DecisionExplanation(
        rule=context.rule,
        verdict=verdict,
        reason=reason,
        conditions=tuple(context.conditions),
        u=first.u,
        rate=first.rate,
        stratum=first.stratum,
        decisions=tuple(stored),
    )


def describe_decision(decision: Decision, now_ns: int = 0) -> str:
    """Describe a decision in one sentence: outcome, reason, errors, and time of the next attempt."""
    verdict = _format_verdict(decision.verdict)
    parts = [verdict if decision.reason in ("", verdict) else f"{verdict}: {decision.reason}"]
    if decision.verdict == "running":
        holder, until = f"{decision.holder!r}", _format_time(decision.until_ns)
        if decision.until_ns is not None and decision.until_ns < now_ns:
            parts.append(f"its worker {holder} has not responded since {until}; another worker takes over")
        else:
            parts.append(f"lease {decision.claim} of {holder}, until {until}")
    parts += [f"{key}: {error}" for key, error in list_errors(decision.states) if error not in decision.reason]
    if decision.attempts > 1 or decision.deaths:
        died = f", of which {decision.deaths} ended their worker" if decision.deaths else ""
        parts.append(f"attempts: {decision.attempts}{died}")
    if decision.next_ns is not None and decision.verdict != "running":
        parts.append(f"tried next at {_format_time(decision.next_ns)}")
    if is_outdated(decision):
        parts.append("this is older than the last change of its trace")
    if decision.backfill is not None:
        parts.append(f"by backfill {decision.backfill}")
    if decision.backfill is not None and decision.rate == 0:
        parts.append("it does not count, because the backfill is not complete up to this trace")
    elif decision.probability == 0 and decision.rate is not None:
        parts.append(f"it no longer counts: {_describe_draw(decision.u, decision.rate)}")
    return "; ".join(parts)


def is_outdated(decision: Decision) -> bool:
    """Return whether a target has changed after it was scored."""
    return decision.verdict in ("scored", "skipped", "failed") and decision.runs_change > decision.read_change


def list_errors(states: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return pairs of an evaluator and its error, for the evaluators that have one."""
    return [
        (key, str(state["error"])) for key, state in states.items() if isinstance(state, dict) and state.get("error")
    ]


def explain_computed(context: DecisionContext) -> DecisionExplanation:
    """Explain what the rule decides on a trace for which no decision is stored."""
    rule, head = context.rule, context.head
    explanation = DecisionExplanation(rule=rule, verdict="filtered", reason="", conditions=tuple(context.conditions))
    if reason := _find_exclusion(context):
        return replace(explanation, reason=f"filtered: {reason}")
    if any(condition.passes is None for condition in context.conditions) or None in head.passes:
        return replace(explanation, verdict="waiting", reason="waiting: its text is not in the index yet")
    rate, stratum = get_sampling_rate(context.settings, head.passes[1:])
    sampled = replace(explanation, u=get_sampling_position(get_sampling_unit(rule, head)), rate=rate, stratum=stratum)
    if (sampled.u or 0.0) >= rate:
        strata, paced = context.settings.strata, context.settings.paced
        origin = [] if stratum is None else [f"of stratum {stratum + 1}, {dict(strata[stratum].filter)}"]
        if paced is not None:
            origin.append(f"paced: × {paced:g}")
        reason = f"sampled out: {_describe_draw(sampled.u, rate)}" + (f" ({'; '.join(origin)})" if origin else "")
        return replace(sampled, verdict="sampled_out", reason=reason)
    return replace(sampled, verdict="waiting", reason=f"waiting: {_describe_wait(context)}")


def _find_exclusion(context: DecisionContext) -> str | None:
    if not context.rule.enabled:
        return describe_pause(context.rule)
    if reason := find_exclusion_reason(context.rule, context.head):
        return reason
    if failed := [_describe_condition(condition) for condition in context.conditions if condition.passes is False]:
        return "; ".join(failed)
    if context.rule.target == "session" and context.head.session_id is None:
        return "it belongs to no session, and the rule scores sessions"
    return None


def _describe_condition(condition: ConditionResult) -> str:
    wanted = condition.wanted
    if condition.name == "judgement":
        return "it is a trace of an evaluator"
    if condition.name == "feedback":
        key, operator, value = wanted
        seen = "has no value except from rules" if condition.seen is None else f"is {condition.seen!r}"
        return f"feedback {key!r} {seen}, the rule wants {operator} {value!r}"
    if condition.name in _CONDITION_TEXTS:
        return f"{_CONDITION_TEXTS[condition.name].format(condition.seen)}, the rule wants {wanted[0]} {wanted[1]:g}"
    seen = "not given" if condition.seen is None else repr(condition.seen)
    return f"{condition.name} is {seen}, the rule wants {wanted!r}"


def _describe_draw(u: float | None, rate: float) -> str:
    return f"u {u:.3f} is not below the rate {rate:g}" if u is not None else f"the rate is {rate:g}"


def _describe_wait(context: DecisionContext) -> str:
    """Return the reason why no decision is stored yet for a target that the rule selects."""
    head, settings = context.head, context.settings
    quiet = settings.session_quiet_s if context.rule.target == "session" else settings.quiet_s
    age = max(0.0, (context.now_ns - head.changed_ns) / SECOND)
    if context.behind is None:
        return "its decision was removed; the rule decides again when the trace changes"
    if context.blocked is not None:
        return context.blocked
    if head.settled is False and age < settings.max_wait_s:
        return f"not all of its spans have arrived; it is scored anyway after {settings.max_wait_s:g} s"
    if not head.rooted and age < settings.max_wait_s:
        return f"its first span has not arrived; it is scored anyway after {settings.max_wait_s:g} s"
    if (head.settled is None or context.rule.target == "session") and age < quiet:
        return f"it must be unchanged for {quiet:g} s, and last changed {age:.1f} s ago"
    return f"not decided yet, the rule is {context.behind} change{'s' * (context.behind != 1)} behind"


def _format_verdict(verdict: str) -> str:
    return verdict.replace("_", " ")


def _format_time(time_ns: int | None) -> str:
    return "?" if time_ns is None else datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


WORKER_TIMEOUT_NS = 60_000_000_000  # without a report for this long, a worker counts as stopped


def find_blocking_reason(rule: Rule, workers: Iterable[WorkerReport], now_ns: int) -> str | None:
    """Return why a rule cannot run; None if some worker runs it."""
    if not rule.enabled:
        return describe_pause(rule)
    living = [worker for worker in workers if now_ns - worker.seen_ns < WORKER_TIMEOUT_NS]
    serving = [worker for worker in living if worker.project == rule.project and rule.name in worker.rules]
    running = [worker for worker in serving if worker.rules[rule.name] == rule.version]
    if not running:
        broken = next((reason for worker in living if (reason := find_load_error(rule, worker))), None)
        other = "running workers have another version of this rule" if serving else "no worker runs this rule"
        return broken or other
    reasons = [find_idle_reason(worker, rule.name) for worker in running]
    return reasons[0] if all(reasons) else None


def find_load_error(rule: Rule, worker: WorkerReport) -> str | None:
    """Return why the rule's file does not load, if the worker has reported that; else None."""
    error = worker.data.get("broken")
    return f"its file does not load: {error}" if error and worker.data.get("file") == rule.owner else None


def find_idle_reason(worker: WorkerReport, rule: str) -> str | None:
    """Return the reason that a worker has reported for not running a rule; None if it has reported none."""
    reasons = worker.data.get("idle")
    return str(reasons[rule]) if isinstance(reasons, dict) and reasons.get(rule) else None
