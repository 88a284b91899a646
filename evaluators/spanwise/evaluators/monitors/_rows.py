"""What is decided, as records. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from spanwise.collector.records import Decision, Head, Rule, Target, Verdict
from spanwise.evaluators.monitors._decide import Drawn


class Let(NamedTuple):
    """A target that is let in: `head` is that of its trace, of a session that of the turn that changed last."""

    head: Head
    drawn: Drawn
    incomplete: bool
    next_ns: int | None = None  # it waits until then, as there is no room for it in memory


def row(rule: Rule, target: Target, let: Let, share: float = 1.0) -> Decision:
    """A row that is to be claimed. `share` is the chance that a span had of being among those that are scored."""
    head, drawn = let.head, let.drawn
    probability = None if drawn.probability is None else drawn.probability * share
    verdict, reason = _verdict(rule, let)
    return Decision(
        project=rule.project,
        rule=rule.name,
        version=rule.version,
        target=target,
        verdict=verdict,
        reason=reason,
        probability=probability,
        u=drawn.u,
        rate=drawn.rate,
        stratum=drawn.stratum,
        incomplete=let.incomplete,
        change=head.change,
        runs_change=head.runs_change,
        next_ns=let.next_ns,
    )


def out(rule: Rule, target: Target, head: Head, drawn: Drawn) -> Decision:
    """What tells a row that is there that its target is out by now."""
    verdict: Verdict = "sampled_out" if drawn.verdict == "sampled_out" else "filtered"
    return Decision(
        project=rule.project,
        rule=rule.name,
        version=rule.version,
        target=target,
        verdict=verdict,
        probability=0.0,
        u=drawn.u,
        rate=drawn.rate,
        stratum=drawn.stratum,
        change=head.change,
        runs_change=head.runs_change,
    )


def without(rule: Rule, let: Let) -> Decision:
    """The row of a trace that has no span that would be a target."""
    of_kind = f" of kind {rule.kind!r}" if rule.kind is not None else ""
    nothing = f"no span{of_kind}" if rule.target == "span" else f"no document in a span{of_kind}"
    made = row(rule, Target(trace_id=let.head.trace_id), let)
    return replace(made, verdict="skipped", reason=nothing) if made.verdict == "waiting" else made


def _verdict(rule: Rule, let: Let) -> tuple[Verdict, str]:
    settings = rule.settings
    if let.head.size > settings.max_bytes:
        return "skipped", f"{let.head.size:,} bytes, above max_bytes={settings.max_bytes:,}"
    if let.next_ns is not None:
        return "waiting", "waits until it is quiet"
    if rule.target == "session" and (let.head.probability or 0) < 1:
        return "waiting", "ready; head sampling has left out turns, so that the session is partial"
    if let.incomplete and let.head.settled is not True:
        return "waiting", f"taken as it was after {settings.max_wait_s:g} s: not all of its spans have arrived"
    return "waiting", "ready; spans were dropped" if let.incomplete else "ready"
