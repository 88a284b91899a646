"""Trace summary: definition of a trace's totals (root, tokens, cost, completeness) over all of its spans.

- Root: the earliest span without a parent, else the earliest whose parent has not arrived.
- Tokens and cost are counted once: those of a span count unless a descendant has its own. A chain that repeats the total of its model calls adds nothing, nor does a framework's span around a client's span of the same call.
- Start and end cover the whole trace. Session, user and metadata are those of the root, else the first of any span.
- Completeness is `1`, `0`, or None where only a quiet period can tell: see `_check_completeness`. Dropped spans count as arrived: such a trace is settled, but no list shows it as complete.
- Names, kinds, models, tags and labels (`RunLabels`) are listed in order of arrival, the first `MAX_LISTED` of each.

This module is the definition. SQLite's `incremental_summary.IncrementalSummary` computes the same from new spans alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from spanwise.collector.filters import EVALUATOR_KIND
from spanwise.collector.stores.run_codec import ALWAYS_SAMPLED, Fact, RunLabels, SpanCounts
from spanwise.collector.stores.table_rows import dumps

MAX_LISTED = 256  # limit of each list, because the lists are written with every batch
PICO = 10**12  # costs are added as integers in trillionths, so that the total does not depend on the order
MAX_COST = 1e12  # limit for one run; a larger cost, or NaN, counts as 0


class SummaryRow(NamedTuple):
    """Columns of `traces`, by name."""

    span_count: int
    error_count: int
    project: str
    environment: str
    name: str
    kind: str
    status: str
    error: str | None
    start_ns: int
    end_ns: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    session_id: str | None
    user_id: str | None
    experiment_id: str | None
    example_id: str | None
    repetition: int
    complete: int | None
    names: str
    kinds: str
    models: str | None
    tags: str | None
    metadata: str | None
    size: int  # bytes of all payloads before compression
    probability: float | None  # head sampling probability, according to the root
    partial: bool
    rooted: bool  # a span without a parent has arrived
    judgement: bool  # evaluator's own trace, or any span is marked as a monitor's
    dropped: int  # spans that the sender reports as dropped
    calls_sent: int  # outgoing calls that carried the trace context
    prompts: str | None = None  # JSON: names of prompts with the list of their versions
    agents: str | None = None  # JSON list
    finish_reasons: str | None = None  # JSON list
    time_to_first_token_ms: float | None = None  # the longest of all runs
    running: int = 0  # number of open runs, which have a table of their own and are not facts


class LabelTotals(msgspec.Struct, array_like=True):
    """Labels of all runs of a trace: ordered sets, in order of arrival, and the longest time to the first token."""

    prompts: dict[str, dict[str, int]] = {}  # version "" is no version
    agents: dict[str, int] = {}
    finish_reasons: dict[str, int] = {}
    time_to_first_token_ms: float | None = None

    def add(self, labels: Iterable[RunLabels]) -> LabelTotals:
        """Add the labels of runs, and return the totals."""
        for name, version, agent, reasons, time_ms in labels:
            if name is not None or version is not None:
                versions = self.prompts.get(name or "")
                if versions is None and len(self.prompts) < MAX_LISTED:
                    versions = self.prompts[name or ""] = {}
                if versions is not None and len(versions) < MAX_LISTED:
                    versions[version or ""] = 1
            if agent is not None and len(self.agents) < MAX_LISTED:
                self.agents[agent] = 1
            for reason in reasons if len(self.finish_reasons) < MAX_LISTED else ():
                self.finish_reasons[reason] = 1
            if time_ms is not None:
                self.time_to_first_token_ms = max(time_ms, self.time_to_first_token_ms or 0.0)
        return self

    def columns(self) -> dict[str, Any]:
        """Return the columns of `SummaryRow` for the labels."""
        prompts = {name: [version or None for version in versions] for name, versions in self.prompts.items()}
        return {
            "prompts": dumps(prompts) if prompts else None,
            "agents": dumps(list(self.agents)) if self.agents else None,
            "finish_reasons": dumps(list(self.finish_reasons)) if self.finish_reasons else None,
            "time_to_first_token_ms": self.time_to_first_token_ms,
        }

    @property
    def characters(self) -> int:
        """Return the number of characters of all labels."""
        versions = [version for of_prompt in self.prompts.values() for version in of_prompt]
        return sum(map(len, (*self.prompts, *versions, *self.agents, *self.finish_reasons)))


class AncestorIds(NamedTuple):
    """Ids of spans that have descendants with tokens, or with a cost."""

    tokens: set[str]
    cost: set[str]


def to_pico(cost: float) -> int:
    """Convert a cost to trillionths."""
    return round(cost * PICO) if -MAX_COST < cost < MAX_COST else 0


def summarize_trace(facts: Sequence[Fact]) -> tuple[SummaryRow, int, AncestorIds]:
    """Return the summary of a trace, the position of its root in `facts`, and the spans whose tokens or cost do not
    count.

    `facts` has at least one fact, in order of arrival. Runs once per trace and request, hence one loop over the facts, which skips work for fields that no fact has.
    """
    by_id: dict[str, Fact] = {}
    names: dict[str, None] = {}
    kinds: dict[str, None] = {}
    with_tokens: list[Fact] = []
    with_cost: list[Fact] = []
    with_model: list[Fact] = []
    labels: list[RunLabels] = []
    errors = size = 0
    start_ns, end_ns = facts[0].start_ns, facts[0].end_ns
    tagged = counted = marked = has_example = False
    for fact in facts:
        by_id[fact.span_id] = fact
        names[fact.name] = kinds[fact.kind] = None
        size += fact.size
        if fact.status == "error":
            errors += 1
        if fact.start_ns < start_ns:  # `min` takes three times as long
            start_ns = fact.start_ns
        if fact.end_ns > end_ns:
            end_ns = fact.end_ns
        if fact.input_tokens is not None:
            with_tokens.append(fact)
        if fact.cost is not None:
            with_cost.append(fact)
        if fact.model is not None:
            with_model.append(fact)
        if fact.labels is not None:
            labels.append(fact.labels)
        if fact.tags:
            tagged = True
        if fact.local_root is not None:
            counted = True
        if fact.experiment_id or fact.example_id:
            has_example = True
        if fact.sampling is not ALWAYS_SAMPLED and fact.sampling.judgement:
            marked = True
    position = _find_root(facts, by_id)
    root = facts[position]
    experiment_id, example_id = root.experiment_id, root.example_id
    if has_example:
        experiment_id = experiment_id or next((fact.experiment_id for fact in facts if fact.experiment_id), None)
        example_id = example_id or next((fact.example_id for fact in facts if fact.example_id), None)
    above = AncestorIds(_ancestor_ids(with_tokens, by_id), _ancestor_ids(with_cost, by_id))
    tokens, costs = _without_ancestors(with_tokens, above.tokens), _without_ancestors(with_cost, above.cost)
    complete, dropped, calls_sent = _check_completeness(facts, by_id) if counted else (None, 0, 0)
    rolled = SummaryRow(
        span_count=len(facts),
        error_count=errors,
        project=root.project,
        environment=root.environment,
        name=root.name,
        kind=root.kind,
        status=root.status,
        error=root.error,
        start_ns=start_ns,
        end_ns=end_ns,
        input_tokens=sum([fact.input_tokens or 0 for fact in tokens]),
        output_tokens=sum([fact.output_tokens or 0 for fact in tokens]),
        cost=sum([to_pico(fact.cost or 0.0) for fact in costs]) / PICO if costs else None,
        session_id=root.session_id or next((fact.session_id for fact in facts if fact.session_id), None),
        user_id=root.user_id or next((fact.user_id for fact in facts if fact.user_id), None),
        experiment_id=experiment_id,
        example_id=example_id,
        repetition=root.repetition,
        complete=complete,
        names=dumps(list(names)[:MAX_LISTED]),
        kinds=dumps(list(kinds)[:MAX_LISTED]),
        models=_sum_models(with_model, tokens, costs) if with_model else None,
        tags=dumps(list(dict.fromkeys(tag for fact in facts for tag in fact.tags))[:MAX_LISTED]) if tagged else None,
        metadata=root.metadata or next((fact.metadata for fact in facts if fact.metadata), None),
        size=size,
        probability=root.sampling.probability,
        partial=root.sampling.partial,
        rooted=root.parent_id is None,  # if any span has no parent, the root is such a span
        judgement=marked or (root.kind == EVALUATOR_KIND and experiment_id is None),
        dropped=dropped,
        calls_sent=calls_sent,
        **(LabelTotals().add(labels).columns() if labels else {}),
    )
    return rolled, position, above


def _find_root(facts: Sequence[Fact], by_id: Mapping[str, Fact]) -> int:
    tops = [i for i, fact in enumerate(facts) if fact.parent_id is None]
    if len(tops) == 1:
        return tops[0]
    tops = tops or [i for i, fact in enumerate(facts) if fact.parent_id not in by_id]
    return min(tops or range(len(facts)), key=lambda i: (facts[i].start_ns, facts[i].span_id))


def _ancestor_ids(facts: Sequence[Fact], by_id: Mapping[str, Fact]) -> set[str]:
    """Return the ids of all ancestors of these spans."""
    above: set[str] = set()
    for fact in facts:
        parent = fact.parent_id
        while parent is not None and parent not in above and parent in by_id:
            above.add(parent)
            parent = by_id[parent].parent_id
    return above


def _without_ancestors(facts: list[Fact], above: set[str]) -> list[Fact]:
    """Return the facts that are not ancestors of others, or only the first fact if parents form a cycle."""
    return ([fact for fact in facts if fact.span_id not in above] or facts[:1]) if above else facts


def _sum_models(facts: Sequence[Fact], tokens: Sequence[Fact], costs: Sequence[Fact]) -> str:
    """Return `{model: [calls, input tokens, output tokens, cost]}` as JSON, with the tokens and cost that count."""
    by_model: dict[str | None, list[int]] = {}
    for fact in facts:
        if fact.model in by_model or len(by_model) < MAX_LISTED:
            by_model.setdefault(fact.model, [0, 0, 0, 0])[0] += 1
    for fact in tokens:
        if fact.model in by_model:
            by_model[fact.model][1] += fact.input_tokens or 0
            by_model[fact.model][2] += fact.output_tokens or 0
    for fact in costs:
        if fact.model in by_model:
            by_model[fact.model][3] += to_pico(fact.cost or 0.0)
    return encode_models(by_model)


def encode_models(by_model: Mapping[str | None, Sequence[int]]) -> str:
    """Return the column `models`; converts costs from trillionths."""
    return dumps({model: [calls, sent, got, cost / PICO] for model, (calls, sent, got, cost) in by_model.items()})


def _check_completeness(facts: Sequence[Fact], by_id: Mapping[str, Fact]) -> tuple[int | None, int, int]:
    """Return completeness, number of dropped spans, and number of outgoing calls.

    Each local root reports how many spans were started below it and are still open. A span that ends after its local
    root reports the counts again and names the local root.

    - 1: for each local root the latest counts have arrived, nothing is open, and enough spans have arrived that name it, or that name none and are below it.
    - 0: spans are known to be missing.
    - None: unknown until a quiet period has passed. This applies to traces without counts, to spans below a missing parent, and to outgoing calls without a span from the called service (not traced, or not yet arrived).
    """
    named: dict[str, list[Fact]] = {}
    for fact in facts:
        if fact.local_root is not None:
            named.setdefault(fact.local_root, []).append(fact)
    nearest = _nearest_local_roots(facts, by_id, named)
    members = Counter([fact.local_root or nearest[fact.span_id] for fact in facts])
    latest = {root: _latest_counts(those) for root, those in named.items()}
    dropped = sum([counts.dropped for counts in latest.values()])
    calls_sent = sum([counts.calls_sent for counts in latest.values()])
    if any(counts.open or members[root] + counts.dropped < counts.started for root, counts in latest.items()):
        return 0, dropped, calls_sent
    is_unknown = None in members or any(f.parent_id is not None and f.parent_id not in by_id for f in facts)
    is_unknown = is_unknown or (calls_sent > 0 and _has_unanswered_calls(facts, nearest, latest))
    return None if is_unknown else 1, dropped, calls_sent


def _nearest_local_roots(
    facts: Sequence[Fact], by_id: Mapping[str, Fact], named: Collection[str]
) -> dict[str | None, str | None]:
    """Return for each span the nearest local root among itself and its ancestors, or None."""
    found: dict[str | None, str | None] = {root: root for root in named if root in by_id}
    for fact in facts:
        path: list[str] = []
        current: str | None = fact.span_id
        while current is not None and current in by_id and current not in found:
            path.append(current)
            found[current] = None
            current = by_id[current].parent_id
        found.update(dict.fromkeys(path, found.get(current)))
    return found


UNKNOWN_COUNTS = SpanCounts(started=0, open=1)


def _latest_counts(members: Sequence[Fact]) -> SpanCounts:
    """Return the latest counts. Counts never decrease, except that of open spans."""
    counts = [fact.counts for fact in members if fact.counts is not None]
    if len(counts) == 1:
        return counts[0]
    return max(counts, key=counts_sort_key) if counts else UNKNOWN_COUNTS


def counts_sort_key(counts: SpanCounts) -> tuple[int, int, int, int]:
    """Return the sort key by which the later of two counts is found."""
    return counts.started, -counts.open, counts.dropped, counts.calls_sent


def _has_unanswered_calls(
    facts: Sequence[Fact], nearest: Mapping[str | None, str | None], latest: Mapping[str, SpanCounts]
) -> bool:
    """Return whether a local root sent more calls than local roots of other processes have arrived below it."""
    callers = [fact.parent_id for fact in facts if fact.local_root == fact.span_id and fact.parent_id is not None]
    answered = Counter([nearest.get(caller) for caller in callers])
    return any(answered[root] < counts.calls_sent for root, counts in latest.items())
