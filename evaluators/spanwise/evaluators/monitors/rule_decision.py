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
    """What became of a trace: `outside` is no rule's business and counted nowhere."""

    verdict: SamplingOutcome
    u: float | None = None
    rate: float | None = None
    stratum: int | None = None
    probability: float | None = None  # inclusion probability: head × rate; None where the head's is unknown


_DRAW_OUTSIDE, _DRAW_FILTERED = SamplingDraw("outside"), SamplingDraw("filtered")


class FilterQueries:
    """The filters of all rules and strata of a process: each, by its normal form, is asked once in a slice."""

    def __init__(self) -> None:
        self.filters: list[Filter] = []
        self._places: dict[bytes, int] = {}

    def place(self, filter: Filter) -> int | None:
        """Where the answer to a filter stands in `Head.passes`; None for one without conditions, which all pass."""
        form = filter_to_dict(filter)
        if not form:
            return None
        place = self._places.setdefault(canonical_json(form), len(self.filters))
        if place == len(self.filters):
            self.filters.append(filter)
        return place


class EffectiveRule(NamedTuple):
    """A rule under one of its settings, with the places of its filters."""

    rule: Rule
    settings: RuleSettings
    from_change: int
    places: tuple[int | None, ...]  # of its own filter, then of its strata


def apply_setting(rule: Rule, setting: SettingsVersion, questions: FilterQueries) -> EffectiveRule:
    """Raises `Refused` for a filter that no rule can have."""
    places = tuple(map(questions.place, build_rule_filters(rule, setting.settings)))
    return EffectiveRule(rule, setting.settings, setting.from_change, places)


def decide_trace(of: EffectiveRule, head: TraceHead) -> SamplingDraw:
    """What a rule makes of a head. An answer that is not told yet (`awaits`) counts as no."""
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
    """Whether it cannot be told yet what becomes of a trace: its text is not indexed."""
    return find_exclusion_reason(of.rule, head) is None and any(answer is None for answer in _filter_answers(of, head))


def inclusion_probability(rule: Rule, head: TraceHead, rate: float) -> float | None:
    """The chance that a target was looked at. Of a session whose turns were sampled one by one nobody knows it.

    0 for a trace that the head kept for its error alone: errors that it sampled stand for this one already.
    """
    if head.partial:
        return 0.0
    if head.probability is None or (rule.target == "session" and head.probability < 1):
        return None
    return head.probability * rate


def _filter_answers(of: EffectiveRule, head: TraceHead) -> Sequence[bool | None]:
    passes: Any = head.passes
    return [True if place is None else passes[place] for place in of.places]


sampling_position = lru_cache(maxsize=4096)(get_sampling_position)  # several rules ask of the same trace in turn


MAX_TARGETS = 100  # spans or documents of one trace


def trace_target(rule: Rule, head: TraceHead) -> Target:
    """The trace, or its session where that is the target."""
    if rule.target == "session" and head.session_id is not None:
        return Target(session_id=head.session_id)
    return Target(trace_id=head.trace_id)


def choose_targets(rule: Rule, trace: Trace, most: int = MAX_TARGETS) -> tuple[list[Target], float]:
    """The spans or documents of a trace that are targets, and the chance that each had of being among them.

    Where there are more, those count whose hashes are the lowest: the same ones whenever they are chosen.
    """
    targets = list(_candidates(rule, trace))
    if len(targets) <= most:
        return targets, 1.0
    return heapq.nsmallest(most, targets, key=_target_position), most / len(targets)


def make_target_case(target: Target, trace: Trace) -> Case | None:
    """What evaluators see of a target of a trace: of a span what is below it, of a document what was asked for and it
    alone. None where it is not there (any more).
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
    """A span and what is below it, in their order."""
    of: dict[str | None, list[Run]] = {}
    for run in runs:
        of.setdefault(run.parent_id, []).append(run)
    found, waiting = {span.span_id}, [span.span_id]
    while waiting:
        for run in of.pop(waiting.pop(), ()):
            found.add(run.span_id)
            waiting.append(run.span_id)
    return tuple(run for run in runs if run.span_id in found)


BATCH_BYTES = 32_000_000  # bytes that are read at once
ASSUMED_TRACE_BYTES = 2_000_000  # bytes that a trace is taken to have whose size is not known here
MAX_BATCH_TRACES = 500  # traces


def batch_by_size(sizes: Iterable[tuple[str, int | None]]) -> Iterator[list[str]]:
    """Ids by lots; one that is larger than a lot is one of its own."""
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
    """A target that is let in: `head` is that of its trace, of a session that of the turn that changed last."""

    head: TraceHead
    drawn: SamplingDraw
    incomplete: bool
    next_ns: int | None = None  # it waits until then, as there is no room for it in memory


def make_decision(rule: Rule, target: Target, let: AdmittedTarget, share: float = 1.0) -> Decision:
    """A row that is to be claimed. `share` is the chance that a span had of being among those that are scored."""
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


def make_empty_decision(rule: Rule, let: AdmittedTarget) -> Decision:
    """The row of a trace that has no span that would be a target."""
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
