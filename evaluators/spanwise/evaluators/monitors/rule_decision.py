"""Decision of a rule on a trace: filter, sampling probability, targets, decision record."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

from spanwise.collector.filters import Filter, filter_to_dict
from spanwise.collector.records import (
    Case,
    Decision,
    Rule,
    RuleSettings,
    Run,
    SettingsVersion,
    Target,
    Trace,
    TraceHead,
    Verdict,
    canonical_json,
)
from spanwise.collector.rule_policy import (
    build_rule_filters,
    find_exclusion_reason,
    get_sampling_rate,
    get_sampling_unit,
)
from spanwise.collector.statistics import get_sampling_position
from spanwise.evaluators.scoring import make_case

SamplingOutcome: TypeAlias = Literal["outside", "filtered", "sampled_out", "taken"]


class SamplingDraw(NamedTuple):
    """Sampling result for a trace. The outcome `outside` means outside the rule's scope; such traces are not
    counted.
    """

    verdict: SamplingOutcome
    u: float | None = None
    rate: float | None = None
    stratum: int | None = None
    # inclusion probability: probability of head sampling × rate; None if the former is unknown
    probability: float | None = None


_DRAW_OUTSIDE, _DRAW_FILTERED = SamplingDraw("outside"), SamplingDraw("filtered")


class FilterQueries:
    """Distinct filters of all rules and strata of a process. The store evaluates each distinct filter once per
    slice.
    """

    def __init__(self) -> None:
        self.filters: list[Filter] = []
        self._places: dict[bytes, int] = {}

    def place(self, filter: Filter) -> int | None:
        """Return the index of a filter's answer in `TraceHead.passes`.

        Return None for a filter without conditions, because every trace passes it.
        """
        form = filter_to_dict(filter)
        if not form:
            return None
        place = self._places.setdefault(canonical_json(form), len(self.filters))
        if place == len(self.filters):
            self.filters.append(filter)
        return place


class EffectiveRule(NamedTuple):
    """Rule with one of its settings and the indices of its filters."""

    rule: Rule
    settings: RuleSettings
    from_change: int
    places: tuple[int | None, ...]  # filter indices: of the rule's own filter, then of its strata


def apply_setting(rule: Rule, setting: SettingsVersion, questions: FilterQueries) -> EffectiveRule:
    """Return the rule with one of its settings and its filter indices. Raises `Refused` for a filter that rules must
    not have.
    """
    places = tuple(map(questions.place, build_rule_filters(rule, setting.settings)))
    return EffectiveRule(rule, setting.settings, setting.from_change, places)


def decide_trace(of: EffectiveRule, head: TraceHead) -> SamplingDraw:
    """Return the sampling result of a rule for a trace head. A filter whose answer is not yet known
    (`awaits_text_index`) counts as not passed.
    """
    if find_exclusion_reason(of.rule, head) is not None:
        return _DRAW_OUTSIDE
    passes = _filter_answers(of, head)
    if not passes[0] or (of.rule.target == "session" and head.session_id is None):
        return _DRAW_FILTERED
    rate, stratum = get_sampling_rate(of.settings, passes[1:])
    at = sampling_position(get_sampling_unit(of.rule, head))
    if at >= rate:
        return SamplingDraw("sampled_out", at, rate, stratum)
    return SamplingDraw("taken", at, rate, stratum, inclusion_probability(of.rule, head, rate))


def awaits_text_index(of: EffectiveRule, head: TraceHead) -> bool:
    """Return whether the result is not yet known because the trace's text is not indexed."""
    return find_exclusion_reason(of.rule, head) is None and any(answer is None for answer in _filter_answers(of, head))


def inclusion_probability(rule: Rule, head: TraceHead, rate: float) -> float | None:
    """Return the probability that a target was sampled; None for a session whose turns were sampled one by one.

    Return 0 for a trace that head sampling excluded but kept because of its error: the sampled traces with errors
    already represent it.
    """
    if head.partial:
        return 0.0
    if head.probability is None or (rule.target == "session" and head.probability < 1):
        return None
    return head.probability * rate


def _filter_answers(of: EffectiveRule, head: TraceHead) -> Sequence[bool | None]:
    passes: Any = head.passes
    return [True if place is None else passes[place] for place in of.places]


# cached, because several rules draw for the same trace in turn
sampling_position = lru_cache(maxsize=4096)(get_sampling_position)


MAX_TARGETS = 100  # maximum number of target spans or documents of one trace


def trace_target(rule: Rule, head: TraceHead) -> Target:
    """Return the trace, or its session if sessions are the target."""
    if rule.target == "session" and head.session_id is not None:
        return Target(session_id=head.session_id)
    return Target(trace_id=head.trace_id)


def choose_targets(rule: Rule, trace: Trace, most: int = MAX_TARGETS) -> tuple[list[Target], float]:
    """Return the target spans or documents of a trace, and the probability with which each was chosen.

    If there are more than `most`, those with the lowest hashes are chosen, so that the same ones are chosen each
    time.
    """
    targets = list(_candidates(rule, trace))
    if len(targets) <= most:
        return targets, 1.0
    return heapq.nsmallest(most, targets, key=_target_position), most / len(targets)


def make_target_case(target: Target, trace: Trace) -> Case | None:
    """Return the case that evaluators receive for a target.

    For a span it contains the span's subtree, for a document the document alone and the request that retrieved it.
    Returns None if the target no longer exists.
    """
    if target.span_id is None:
        return make_case(trace)
    span = next((run for run in trace.runs if run.span_id == target.span_id), None)
    if span is None:
        return None
    part = make_case(replace(trace, root=span, runs=_subtree_runs(span, trace.runs), feedback=()))
    if target.document is None:
        return part
    if target.document >= len(span.documents):
        return None
    return replace(part, documents=(span.documents[target.document],))


def _candidates(rule: Rule, trace: Trace) -> Iterator[Target]:
    for run in trace.runs:
        if rule.kind is not None and run.kind != rule.kind:
            continue
        of_span = Target(trace_id=run.trace_id, span_id=run.span_id)
        if rule.target == "span":
            yield of_span
        else:
            yield from (replace(of_span, document=place) for place in range(len(run.documents)))


def _target_position(target: Target) -> float:
    return get_sampling_position(f"{target.trace_id}/{target.span_id}/{target.document}")


def _subtree_runs(span: Run, runs: Sequence[Run]) -> tuple[Run, ...]:
    """Return a span and its descendants, in the order of `runs`."""
    of: dict[str | None, list[Run]] = {}
    for run in runs:
        of.setdefault(run.parent_id, []).append(run)
    found, waiting = {span.span_id}, [span.span_id]
    while waiting:
        for run in of.pop(waiting.pop(), ()):
            found.add(run.span_id)
            waiting.append(run.span_id)
    return tuple(run for run in runs if run.span_id in found)


BATCH_BYTES = 32_000_000  # maximum bytes that are read at once
ASSUMED_TRACE_BYTES = 2_000_000  # assumed bytes of a trace whose size is unknown here
MAX_BATCH_TRACES = 500  # maximum traces that are read at once


def batch_by_size(sizes: Iterable[tuple[str, int | None]]) -> Iterator[list[str]]:
    """Group ids into batches of limited size. An id that exceeds the limit is a batch by itself."""
    lot: list[str] = []
    room = BATCH_BYTES
    for id, size in sizes:
        weight = ASSUMED_TRACE_BYTES if size is None else size
        if lot and (weight > room or len(lot) >= MAX_BATCH_TRACES):
            yield lot
            lot, room = [], BATCH_BYTES
        lot.append(id)
        room -= weight
    if lot:
        yield lot


class AdmittedTarget(NamedTuple):
    """Target that a rule has sampled. `head` is the head of its trace; for a session, the head of the turn that changed
    last.
    """

    head: TraceHead
    drawn: SamplingDraw
    incomplete: bool
    # time until which the target waits in the store, because the limit for targets in memory is reached
    next_ns: int | None = None


def make_decision(rule: Rule, target: Target, let: AdmittedTarget, share: float = 1.0) -> Decision:
    """Return the decision record that workers can claim. `share` is the probability with which the target was chosen
    among those of its trace.
    """
    head, drawn = let.head, let.drawn
    probability = None if drawn.probability is None else drawn.probability * share
    verdict, reason = _initial_outcome(rule, let)
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


def make_exclusion(rule: Rule, target: Target, head: TraceHead, drawn: SamplingDraw) -> Decision:
    """Return the decision record that marks an already decided target as no longer sampled."""
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


def make_empty_decision(rule: Rule, let: AdmittedTarget) -> Decision:
    """Return the decision record for a trace that contains no target."""
    of_kind = f" of kind {rule.kind!r}" if rule.kind is not None else ""
    nothing = f"no span{of_kind}" if rule.target == "span" else f"no document in a span{of_kind}"
    made = make_decision(rule, Target(trace_id=let.head.trace_id), let)
    return replace(made, verdict="skipped", reason=nothing) if made.verdict == "waiting" else made


def _initial_outcome(rule: Rule, let: AdmittedTarget) -> tuple[Verdict, str]:
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
