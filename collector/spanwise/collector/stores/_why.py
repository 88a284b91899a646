"""Why a rule did, or did not, evaluate a trace: what is stored about it, or what follows from rule and settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from spanwise.collector.records import Condition, Decision, Head, Rule, RuleSettings, Verdict, Why
from spanwise.collector.rules import outside, rate_of, unit_of
from spanwise.collector.statistics import u

SECOND = 1_000_000_000
# Of several targets of one trace the first of these tells what became of it
WORST: Sequence[Verdict] = (
    "failed",
    "running",
    "waiting",
    "throttled",
    "over_budget",
    "superseded",
    "scored",
    "skipped",
)
_ASKED = {"latency_ms": "the latency is {} ms", "tokens": "it has {} tokens", "cost": "it cost {}"}


class Seen(NamedTuple):
    """What is known of a rule and a trace. `settings` are those in force at the trace's change."""

    rule: Rule
    settings: RuleSettings
    head: Head  # with what the rule's filter and its strata's say of it
    conditions: Sequence[Condition]
    decisions: Sequence[Decision]  # stored ones, of any version, newest first
    behind: int | None  # how many changes wait to be decided, where this is one of them
    now_ns: int
    blocked: str | None  # why no worker runs this rule now


def why(seen: Seen) -> Why:
    """The answer, in one sentence and with what it was made of."""
    stored = [one for one in seen.decisions if one.version == seen.rule.version] or list(seen.decisions)
    return from_stored(seen, stored) if stored else computed(seen)


def from_stored(seen: Seen, stored: Sequence[Decision]) -> Why:
    """What was decided, of each of its targets."""
    verdict = next(word for word in WORST if any(one.verdict == word for one in stored))
    first = next(one for one in stored if one.verdict == verdict)
    said = told(first, seen.now_ns)
    if len(stored) > 1:
        counts = Counter(one.verdict for one in stored)
        listed = ", ".join(f"{counts[word]} {_words(word)}" for word in WORST if word in counts)
        said = f"{len(stored)} targets: {listed}; {said}"
    if first.version != seen.rule.version:
        said = f"by version {first.version!r} of the rule: {said}"
    return Why(
        rule=seen.rule,
        verdict=verdict,
        reason=said,
        conditions=tuple(seen.conditions),
        u=first.u,
        rate=first.rate,
        stratum=first.stratum,
        decisions=tuple(stored),
    )


def told(decision: Decision, now_ns: int = 0) -> str:
    """A decision as a sentence: what became of it, why, what went wrong, and when it is tried next."""
    word = _words(decision.verdict)
    parts = [word if decision.reason in ("", word) else f"{word}: {decision.reason}"]
    if decision.verdict == "running":
        parts.append(_held_by(decision, now_ns))
    parts += [f"{key}: {error}" for key, error in errors(decision.states) if error not in decision.reason]
    if decision.attempts > 1 or decision.deaths:
        died = f", of which {decision.deaths} ended their worker" if decision.deaths else ""
        parts.append(f"attempts: {decision.attempts}{died}")
    if decision.next_ns is not None and decision.verdict != "running":
        parts.append(f"tried next at {_moment(decision.next_ns)}")
    if is_outdated(decision):
        parts.append("this is older than the last change of its trace")
    if decision.probability == 0 and decision.rate is not None:
        parts.append(f"it no longer counts: {_drawn(decision.u, decision.rate)}")
    return "; ".join(parts)


def is_outdated(decision: Decision) -> bool:
    """Return whether a target has changed after it was scored."""
    return decision.verdict in ("scored", "skipped", "failed") and decision.runs_change > decision.read_change


def _held_by(decision: Decision, now_ns: int) -> str:
    if decision.until_ns is not None and decision.until_ns < now_ns:
        return (
            f"its worker {decision.holder!r} has not answered since {_moment(decision.until_ns)}; another takes it over"
        )
    return f"lease {decision.claim} of {decision.holder!r}, until {_moment(decision.until_ns)}"


def errors(states: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What went wrong, by evaluator."""
    return [
        (key, str(state["error"])) for key, state in states.items() if isinstance(state, dict) and state.get("error")
    ]


def computed(seen: Seen) -> Why:
    """What is not stored, as it follows."""
    rule, head = seen.rule, seen.head
    made = Why(rule=rule, verdict="filtered", reason="", conditions=tuple(seen.conditions))
    if reason := _kept_out(seen):
        return replace(made, reason=f"filtered: {reason}")
    if any(one.passes is None for one in seen.conditions) or None in head.passes:
        return replace(made, verdict="waiting", reason="waiting: its text is not in the index yet")
    rate, stratum = rate_of(seen.settings, head.passes[1:])
    drawn = replace(made, u=u(unit_of(rule, head)), rate=rate, stratum=stratum)
    if (drawn.u or 0.0) >= rate:
        reason = f"sampled out: {_drawn(drawn.u, rate)}{_of(seen.settings, stratum)}"
        return replace(drawn, verdict="sampled_out", reason=reason)
    return replace(drawn, verdict="waiting", reason=f"waiting: {_waits(seen)}")


def _kept_out(seen: Seen) -> str | None:
    if not seen.rule.enabled:
        return "the rule is paused"
    if reason := outside(seen.rule, seen.head):
        return reason
    if failed := [_failed(one) for one in seen.conditions if one.passes is False]:
        return "; ".join(failed)
    if seen.rule.target == "session" and seen.head.session_id is None:
        return "it belongs to no session, and sessions are what the rule scores"
    return None


def _failed(condition: Condition) -> str:
    wanted = condition.wanted
    if condition.name == "judgement":
        return "it is an evaluator's own trace"
    if condition.name == "feedback":
        key, operator, value = wanted
        seen = "has no value from outside of rules" if condition.seen is None else f"is {condition.seen!r}"
        return f"feedback {key!r} {seen}, the rule wants {operator} {value!r}"
    if condition.name in _ASKED:
        return f"{_ASKED[condition.name].format(condition.seen)}, the rule wants {wanted[0]} {wanted[1]:g}"
    seen = "not given" if condition.seen is None else repr(condition.seen)
    return f"{condition.name} is {seen}, the rule wants {wanted!r}"


def _drawn(at: float | None, rate: float) -> str:
    return f"u {at:.3f} is not below the rate {rate:g}" if at is not None else f"the rate is {rate:g}"


def _of(settings: RuleSettings, stratum: int | None) -> str:
    """Where a rate is from."""
    parts = [] if stratum is None else [f"of stratum {stratum + 1}, {dict(settings.strata[stratum].filter)}"]
    if settings.paced is not None:
        parts.append(f"paced: × {settings.paced:g}")
    return f" ({'; '.join(parts)})" if parts else ""


def _waits(seen: Seen) -> str:
    """What a target that is taken waits for, as it has no row yet."""
    head, settings = seen.head, seen.settings
    quiet = settings.session_quiet_s if seen.rule.target == "session" else settings.quiet_s
    age = max(0.0, (seen.now_ns - head.changed_ns) / SECOND)
    if seen.behind is None:
        return "its decision was removed; it is decided anew when it changes"
    if seen.blocked is not None:
        return seen.blocked
    if head.settled is False and age < settings.max_wait_s:
        return f"not all of its spans have arrived; it is taken as it is after {settings.max_wait_s:g} s"
    if not head.rooted and age < settings.max_wait_s:
        return f"its first span has not arrived; it is taken as it is after {settings.max_wait_s:g} s"
    if (head.settled is None or seen.rule.target == "session") and age < quiet:
        return f"it shall be quiet for {quiet:g} s, and last changed {age:.1f} s ago"
    return f"not decided yet, the rule is {seen.behind} change{'s' * (seen.behind != 1)} behind"


def _words(verdict: str) -> str:
    return verdict.replace("_", " ")


def _moment(time_ns: int | None) -> str:
    return "?" if time_ns is None else datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
