"""Decision of a rule on a trace: filter, sampling probability, targets, readiness, decision record."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Literal, NamedTuple, TypeAlias

from spanwise.collector.filters import Filter, filter_to_dict
from spanwise.collector.records import (
    Case,
    ChangePage,
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
from spanwise.collector.stores import Store
from spanwise.evaluators.scoring import make_case

# Decision of a rule on a trace: filter, sampling probability, targets, decision record.

SamplingOutcome: TypeAlias = Literal["outside", "filtered", "sampled_out", "taken"]


SECOND_NS = 1_000_000_000


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
        self._indices: dict[bytes, int] = {}

    def get_index(self, filter: Filter) -> int | None:
        """Return the index of a filter's answer in `TraceHead.passes`. New filters are added.

        Return None for a filter without conditions, because every trace passes it.
        """
        conditions = filter_to_dict(filter)
        if not conditions:
            return None
        index = self._indices.setdefault(canonical_json(conditions), len(self.filters))
        if index == len(self.filters):
            self.filters.append(filter)
        return index


class EffectiveRule(NamedTuple):
    """Rule with one of its settings and the indices of its filters."""

    rule: Rule
    settings: RuleSettings
    from_change: int
    filter_indices: tuple[int | None, ...]  # of the rule's own filter, then of its strata

    def filter_answers(self, head: TraceHead) -> list[bool | None]:
        """Return the answers of the filters for a trace: of the rule's own filter, then of its strata."""
        return [True if index is None else head.passes[index] for index in self.filter_indices]


def apply_setting(rule: Rule, setting: SettingsVersion, queries: FilterQueries) -> EffectiveRule:
    """Return the rule with one of its settings and its filter indices. Raises `Refused` for a filter that rules must
    not have.
    """
    indices = tuple(map(queries.get_index, build_rule_filters(rule, setting.settings)))
    return EffectiveRule(rule, setting.settings, setting.from_change, indices)


def decide_trace(effective: EffectiveRule, head: TraceHead) -> SamplingDraw:
    """Return the sampling result of a rule for a trace head. A filter whose answer is not yet known
    (`awaits_text_index`) counts as not passed.
    """
    rule = effective.rule
    if find_exclusion_reason(rule, head) is not None:
        return _DRAW_OUTSIDE
    passes_rule, *passes_strata = effective.filter_answers(head)
    if not passes_rule or (rule.target == "session" and head.session_id is None):
        return _DRAW_FILTERED
    rate, stratum = get_sampling_rate(effective.settings, passes_strata)
    u = sampling_position(get_sampling_unit(rule, head))
    if u >= rate:
        return SamplingDraw("sampled_out", u, rate, stratum)
    return SamplingDraw("taken", u, rate, stratum, inclusion_probability(rule, head, rate))


def awaits_text_index(effective: EffectiveRule, head: TraceHead) -> bool:
    """Return whether the result is not yet known because the trace's text is not indexed."""
    return find_exclusion_reason(effective.rule, head) is None and None in effective.filter_answers(head)


def find_decidable(rules: Sequence[EffectiveRule], changes: ChangePage) -> Sequence[TraceHead]:
    """Return the trace heads before the first one whose full-text answer is not yet known.

    A trace that the index does not reach within `max_wait_s` counts as not matching.
    """
    if not any(None in head.passes for head in changes.heads):
        return changes.heads
    for place, head in enumerate(changes.heads):
        age = (changes.now_ns - head.changed_ns) / SECOND_NS
        if any(awaits_text_index(rule, head) and age < rule.settings.max_wait_s for rule in rules):
            return changes.heads[:place]
    return changes.heads


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


# cached, because several rules draw for the same trace in turn
sampling_position = lru_cache(maxsize=4096)(get_sampling_position)


MAX_TARGETS = 100  # maximum number of target spans or documents of one trace


def trace_target(rule: Rule, head: TraceHead) -> Target:
    """Return the trace, or its session if sessions are the target."""
    if rule.target == "session" and head.session_id is not None:
        return Target(session_id=head.session_id, project=head.project)
    return Target(trace_id=head.trace_id)


def choose_targets(rule: Rule, trace: Trace, most: int = MAX_TARGETS) -> tuple[list[Target], float]:
    """Return the target spans or documents of a trace, and the probability with which each was chosen.

    If there are more than `most`, those with the lowest hashes are chosen, so that the same ones are chosen each
    time.
    """
    targets = list(_candidates(rule, trace))
    if len(targets) <= most:
        return targets, 1.0
    chosen = heapq.nsmallest(
        most, targets, key=lambda it: get_sampling_position(f"{it.trace_id}/{it.span_id}/{it.document}")
    )
    return chosen, most / len(targets)


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
    case = make_case(replace(trace, root=span, runs=_subtree_runs(span, trace.runs), feedback=()))
    if target.document is None:
        return case
    if target.document >= len(span.documents):
        return None
    return replace(case, documents=(span.documents[target.document],))


def _candidates(rule: Rule, trace: Trace) -> Iterator[Target]:
    for run in trace.runs:
        if rule.kind is not None and run.kind != rule.kind:
            continue
        span = Target(trace_id=run.trace_id, span_id=run.span_id)
        if rule.target == "span":
            yield span
        else:
            yield from (replace(span, document=number) for number in range(len(run.documents)))


def _subtree_runs(span: Run, runs: Sequence[Run]) -> tuple[Run, ...]:
    """Return a span and its descendants, in the order of `runs`."""
    children: dict[str | None, list[Run]] = {}
    for run in runs:
        children.setdefault(run.parent_id, []).append(run)
    subtree, unvisited = {span.span_id}, [span.span_id]
    while unvisited:
        for run in children.pop(unvisited.pop(), ()):
            subtree.add(run.span_id)
            unvisited.append(run.span_id)
    return tuple(run for run in runs if run.span_id in subtree)


BATCH_BYTES = 32_000_000  # maximum bytes that are read at once
ASSUMED_TRACE_BYTES = 2_000_000  # assumed bytes of a trace whose size is unknown here
MAX_BATCH_TRACES = 500  # maximum traces that are read at once


def batch_by_size(sizes: Iterable[tuple[str, int | None]]) -> Iterator[list[str]]:
    """Group ids into batches of limited size. An id that exceeds the limit is a batch by itself."""
    batch: list[str] = []
    total = 0
    for id, size in sizes:
        size = ASSUMED_TRACE_BYTES if size is None else size
        if batch and (total + size > BATCH_BYTES or len(batch) >= MAX_BATCH_TRACES):
            yield batch
            batch, total = [], 0
        batch.append(id)
        total += size
    if batch:
        yield batch


class AdmittedTarget(NamedTuple):
    """Target that a rule has sampled. `head` is the head of its trace; for a session, the head of the turn that changed
    last.
    """

    head: TraceHead
    drawn: SamplingDraw
    incomplete: bool
    # time until which the target waits in the store, because the limit for targets in memory is reached
    next_ns: int | None = None


def make_decision(rule: Rule, target: Target, admitted: AdmittedTarget, share: float = 1.0) -> Decision:
    """Return the decision record that workers can claim. `share` is the probability with which the target was chosen
    among those of its trace.
    """
    head, drawn = admitted.head, admitted.drawn
    probability = None if drawn.probability is None else drawn.probability * share
    verdict, reason = _initial_outcome(rule, admitted)
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
        incomplete=admitted.incomplete,
        change=head.change,
        runs_change=head.runs_change,
        next_ns=admitted.next_ns,
    )


def make_exclusion(
    rule: Rule, target: Target, head: TraceHead, drawn: SamplingDraw, next_ns: int | None = None
) -> Decision:
    """Return the decision record that marks an already decided target as no longer sampled.

    If the target is in the sample of a backfill, it is evaluated again at `next_ns` (None: now).
    """
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
        next_ns=next_ns,
    )


def build_part_rows(store: Store, rule: Rule, admitted: Mapping[str, AdmittedTarget]) -> Iterator[Decision]:
    """Yield the decision records of the spans or documents of traces, given by trace id. The traces are read from the
    store to find them.
    """
    for batch in batch_by_size((id, target.head.size) for id, target in admitted.items()):
        small = [id for id in batch if admitted[id].head.size <= rule.settings.max_bytes]
        yield from (make_decision(rule, Target(trace_id=id), admitted[id]) for id in batch if id not in set(small))
        for trace in store.many(small):
            chosen, share = choose_targets(rule, trace)
            if not chosen:
                yield make_empty_decision(rule, admitted[trace.trace_id])
            yield from (make_decision(rule, target, admitted[trace.trace_id], share) for target in chosen)


def make_empty_decision(rule: Rule, admitted: AdmittedTarget) -> Decision:
    """Return the decision record for a trace that contains no target."""
    decision = make_decision(rule, Target(trace_id=admitted.head.trace_id), admitted)
    if decision.verdict != "waiting":
        return decision
    of_kind = f" of kind {rule.kind!r}" if rule.kind is not None else ""
    reason = f"no span{of_kind}" if rule.target == "span" else f"no document in a span{of_kind}"
    return replace(decision, verdict="skipped", reason=reason)


def _initial_outcome(rule: Rule, admitted: AdmittedTarget) -> tuple[Verdict, str]:
    head, settings = admitted.head, rule.settings
    if head.size > settings.max_bytes:
        return "skipped", f"{head.size:,} bytes, above max_bytes={settings.max_bytes:,}"
    if admitted.next_ns is not None:
        return "waiting", "waits until it is quiet"
    if rule.target == "session" and (head.probability or 0) < 1:
        return "waiting", "ready; head sampling has left out turns, so that the session is partial"
    if admitted.incomplete and head.settled is not True:
        return "waiting", f"taken as it was after {settings.max_wait_s:g} s: not all of its spans have arrived"
    return "waiting", "ready; spans were dropped" if admitted.incomplete else "ready"


# Readiness of traces and sessions: quiet periods, maximum wait, waiting targets, low-water mark.
#
# A limited number of targets waits in memory. The low-water mark of a rule is the position before the oldest waiting
# change.

MAX_WAITING_TARGETS = 10_000  # maximum targets of one rule that wait in memory
MAX_INCOMPLETE_KEYS = 20_000  # maximum number of remembered ids of targets that were admitted while incomplete


class Readiness(NamedTuple):
    """Time when a target is ready. `at` is in seconds of the caller's clock. `incomplete` means that spans are still
    missing at that time.
    """

    at: float
    incomplete: bool


def trace_readiness(head: TraceHead, settings: RuleSettings, first: float, changed: float, *, again: bool) -> Readiness:
    """Return the readiness of a trace whose first known change was at `first` and whose last was at `changed`.

    The flag `again` means that the trace was evaluated before, while it was incomplete. It is evaluated again only
    when it is complete, or after a long time without changes.
    """
    if head.settled:
        return Readiness(changed, not head.whole)
    longest = (changed if again else first) + settings.max_wait_s
    if head.settled is None and head.rooted and changed + settings.quiet_s <= longest:
        return Readiness(changed + settings.quiet_s, not head.whole)
    return Readiness(longest, True)


def compute_due_time(rule: Rule, head: TraceHead, settings: RuleSettings, now_ns: int) -> tuple[int | None, bool]:
    """Return the store's time at which the target of a trace is ready (None: now), and whether spans are missing then."""
    changed = head.changed_ns / SECOND_NS
    if rule.target == "session":
        ready = Readiness(changed + settings.session_quiet_s, not head.whole)
    else:
        ready = trace_readiness(head, settings, changed, changed, again=False)
    due_ns = int(ready.at * SECOND_NS)
    return due_ns if due_ns > now_ns else None, ready.incomplete


@dataclass(frozen=True, slots=True)
class WaitingTarget:
    """Target that waits until it is ready. `head` is the trace head at its last change, and `before` the feed position
    before that change.
    """

    key: str
    head: TraceHead
    drawn: SamplingDraw
    first: float
    ready: Readiness
    before: str


class WaitingTargets:
    """Waiting targets of one rule. It also remembers which targets were admitted while they were incomplete."""

    def __init__(self, most: int = MAX_WAITING_TARGETS) -> None:
        self._most = most
        self._by_key: dict[str, WaitingTarget] = {}  # in the order of their last changes
        self._queue: list[tuple[float, int, WaitingTarget]] = []  # heap, by time; includes targets that were dropped
        self._numbers = count()
        self._incomplete: OrderedDict[str, None] = OrderedDict()  # keys of targets that were admitted while incomplete

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def full(self) -> bool:
        """Return whether the limit of waiting targets is reached."""
        return len(self._by_key) >= self._most

    @property
    def next(self) -> float | None:
        """Return the time when the next target is ready."""
        while self._queue and self._by_key.get(self._queue[0][2].key) is not self._queue[0][2]:
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else None

    def low_water(self, position: str) -> str:
        """Return the feed position before the oldest change that waits; `position` if none waits."""
        return next((waiting.before for waiting in self._by_key.values()), position)

    def put(self, waiting: WaitingTarget) -> None:
        """Add a waiting target. It replaces an earlier change of the same target."""
        self.drop(waiting.key)  # so that the target moves to the end of the order
        self._push(waiting)

    def postpone(self, key: str, at: float) -> None:
        """Postpone a waiting session, because one of its turns has changed that is not sampled."""
        waiting = self._by_key.get(key)
        if waiting is not None and at > waiting.ready.at:
            self._push(replace(waiting, ready=waiting.ready._replace(at=at)))

    def drop(self, key: str) -> WaitingTarget | None:
        """Remove a waiting target, because it has changed again or is decided."""
        return self._by_key.pop(key, None)

    def take_due(self, now: float) -> Iterator[WaitingTarget]:
        """Remove and yield the targets that are ready."""
        while (at := self.next) is not None and at <= now:
            waiting = heapq.heappop(self._queue)[2]
            self.drop(waiting.key)
            yield waiting

    def record_admitted(self, key: str, *, incomplete: bool) -> None:
        """Record that a target was admitted, and whether it was incomplete then."""
        if incomplete:
            self._incomplete[key] = None
            if len(self._incomplete) > MAX_INCOMPLETE_KEYS:
                self._incomplete.popitem(last=False)

    def was_incomplete(self, key: str) -> bool:
        """Return whether the target was admitted earlier, while it was incomplete."""
        return key in self._incomplete

    def _push(self, waiting: WaitingTarget) -> None:
        self._by_key[waiting.key] = waiting
        heapq.heappush(self._queue, (waiting.ready.at, next(self._numbers), waiting))


MAX_DECIDED_TARGETS = 50_000
CLOCK_MARGIN_NS = 60_000_000_000  # maximum assumed difference between the clocks of senders and the store


class DecidedTargets:
    """Filter for targets that may have a decision in the store. Such a decision must be updated if its target is no
    longer sampled.

    The targets that this process has admitted are remembered, up to a limit. Of targets that started before this
    process began to decide (`before_ns`, 0 if no process decided before), a decision is assumed. For most traffic the
    answer is no, which saves a write for each trace that is not sampled.
    """

    def __init__(self, before_ns: int) -> None:
        self._before_ns = before_ns + CLOCK_MARGIN_NS if before_ns else 0
        self._ids: OrderedDict[str, None] = OrderedDict()

    def add(self, key: str, head: TraceHead) -> None:
        """Record that a target gets a decision."""
        self._ids[key] = None
        self._ids.move_to_end(key)
        if len(self._ids) > MAX_DECIDED_TARGETS:
            self._ids.popitem(last=False)
            self._before_ns = max(self._before_ns, head.start_ns)

    def may_have_row(self, key: str, head: TraceHead) -> bool:
        """Return whether the target may have a decision. False means that it certainly has none."""
        return key in self._ids or head.start_ns <= self._before_ns or head.change != head.runs_change
