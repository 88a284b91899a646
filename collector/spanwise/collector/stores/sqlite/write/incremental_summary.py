"""Incremental trace summary. Adding a span costs O(1), independent of the size of the trace.

The result equals that of `trace_summary.summarize_trace` over all facts. A span with tokens (or a cost) marks its
ancestors, up to the first one that has a mark. The marks are columns of `spans`. Marks for a parent that has not
arrived wait in the trace's orphaned spans. A new version of a run is applied if it only changes totals. Otherwise
`replace` returns False and the trace must be summarized from scratch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from spanwise.collector.filters import EVALUATOR_KIND
from spanwise.collector.stores.run_codec import Fact, SpanCounts
from spanwise.collector.stores.sqlite.write.span_tree import (
    COST_FLAG,
    MAX_RECORDS_IN_MEMORY,
    TOKENS_FLAG,
    LocalRoot,
    OrphanedSpans,
    RecordTable,
    SpanNode,
    StepLimitExceeded,
    TraceNodes,
    make_node,
)
from spanwise.collector.stores.table_rows import dumps
from spanwise.collector.stores.trace_summary import (
    MAX_LISTED,
    PICO,
    LabelTotals,
    SummaryRow,
    counts_sort_key,
    encode_models,
    to_pico,
)

FIRST_VALUE_FIELDS = ("session_id", "user_id", "experiment_id", "example_id", "metadata")


class FirstAmount(msgspec.Struct, array_like=True):
    """First span with tokens, or with a cost. Its amount is used if parents form a cycle: then each such span is an
    ancestor of another, and none would count.
    """

    row: int
    model: str | None
    amounts: tuple[int, ...]


class SummaryTotals(msgspec.Struct, array_like=True):
    """Totals of a trace: the part of the summary state that does not grow with the trace."""

    count: int = 0
    errors: int = 0
    size: int = 0
    start_ns: int = 2**63 - 1
    end_ns: int = 0
    names: dict[str, int] = {}  # an ordered set, in order of arrival
    kinds: dict[str, int] = {}
    tags: dict[str, int] = {}
    models: dict[str, list[int]] = {}  # calls, input tokens, output tokens, cost in trillionths
    firsts: dict[str, tuple[int, str]] = {}  # by name in `FIRST_VALUE_FIELDS`: row and value
    top: tuple[int, str, int] | None = None  # start, span id and row of the earliest span without a parent
    first: tuple[int, str, int] | None = None  # the earliest span of all
    # The earliest orphaned span, with its parent; None if there is none or it must be searched for
    orphan: tuple[int, str, int, str] | None = None
    missing: int = 0  # number of missing parents
    root: Fact | None = None
    root_row: int = 0
    marked: bool = False  # a span is marked as a monitor's
    with_tokens: int = 0  # spans whose tokens count
    tokens: tuple[int, int] = (0, 0)
    with_cost: int = 0
    cost: int = 0
    first_tokens: FirstAmount | None = None
    first_cost: FirstAmount | None = None
    untold: int = 0  # spans that belong to no local root although no ancestor is missing
    # spans were added without a search for their local root, because the trace had no local root
    unwalked: bool = False
    local_roots: int = 0
    not_arrived: int = 0  # local roots with missing spans
    waiting: int = 0  # local roots with unanswered calls
    dropped: int = 0
    calls_sent: int = 0
    labels: LabelTotals | None = None  # None until a run has labels

    def shown_tokens(self) -> Sequence[int]:
        """Return input and output tokens; those of the first span with tokens if parents form a cycle."""
        first = self.first_tokens
        return first.amounts if first is not None and not self.with_tokens else self.tokens

    def shown_cost(self) -> float | None:
        """Return the cost, or that of the first span with a cost if parents form a cycle; None if no span has a cost."""
        first = self.first_cost
        if first is None:
            return None
        return (self.cost if self.with_cost else first.amounts[0]) / PICO

    def shown_models(self) -> str:
        """Return the column `models`, with the amounts of the first span if parents form a cycle."""
        models: dict[str | None, Sequence[int]] = dict(self.models.items())
        for first, counted, place in (
            (self.first_tokens, self.with_tokens, 1),
            (self.first_cost, self.with_cost, 3),
        ):
            if first is not None and not counted and first.model in models:
                found = [*models[first.model]]
                found[place : place + len(first.amounts)] = first.amounts
                models[first.model] = found
        return encode_models(models)

    def complete(self) -> int | None:
        """Return 1 if all started spans have arrived, 0 if some have not, None if unknown."""
        if not self.local_roots:
            return None
        if self.not_arrived:
            return 0
        return None if self.missing or self.untold or self.waiting else 1


_encoder = msgspec.json.Encoder()  # encodes integers of any size, which totals of costs require
_decoder = msgspec.json.Decoder(SummaryTotals)


def pack_totals(totals: SummaryTotals) -> bytes:
    """Encode totals for the column."""
    return _encoder.encode(totals)


def unpack_totals(data: bytes) -> SummaryTotals:
    """Decode totals. Raises `msgspec.DecodeError`, also for data of another version."""
    return _decoder.decode(data)


CHARACTERS_PER_SPAN = 2_000  # characters that take as much memory as a span


def count_characters(fact: Fact) -> int:
    """Return the number of characters in the fields of a fact that may be long."""
    count = len(fact.name) + len(fact.kind) + len(fact.project) + len(fact.environment)
    for text in (fact.error, fact.model, fact.session_id, fact.user_id, fact.metadata):
        if text is not None:
            count += len(text)
    if fact.labels is not None:
        prompt_name, prompt_version, agent_name, finish_reasons, _ = fact.labels
        count += sum(map(len, filter(None, (prompt_name, prompt_version, agent_name, *finish_reasons))))
    if fact.experiment_id is not None:
        count += len(fact.experiment_id) + len(fact.example_id or "")
    return count + sum(map(len, fact.tags)) if fact.tags else count


class LocalRootUpdate(NamedTuple):
    """Spans and answered calls to be counted for the nearest local root of a span."""

    span_id: str
    members: int
    calls: int


class IncrementalSummary:
    """Summary state of a trace, updated span by span."""

    __slots__ = ("facts", "is_stored", "key", "local_roots", "orphans", "totals")

    def __init__(self, key: int, totals: SummaryTotals | None = None, max_records: int = MAX_RECORDS_IN_MEMORY) -> None:
        self.key, self.totals = key, totals or SummaryTotals()
        self.orphans, self.local_roots = RecordTable(OrphanedSpans, max_records), RecordTable(LocalRoot, max_records)
        self.is_stored = False  # whether the state is stored in `states`

    @property
    def weight(self) -> int:
        """Return the memory in use, as a number of spans."""
        totals = self.totals
        listed = len(totals.names) + len(totals.tags) + len(totals.models) + len(self.orphans) + len(self.local_roots)
        size = sum(len(text) for _, text in totals.firsts.values()) + (
            count_characters(totals.root) if totals.root else 0
        )
        for texts in (totals.names, totals.tags, totals.models):
            size += sum(map(len, texts))
        size += totals.labels.characters if totals.labels is not None else 0
        return 2 + listed // 4 + size // CHARACTERS_PER_SPAN

    def advance(self, new: Sequence[tuple[int, Fact]], spans: TraceNodes) -> None:
        """Add new spans with their rows.

        Raises `StepLimitExceeded`; the state must not be used afterwards.
        """
        named = {fact.local_root: None for _, fact in new if fact.local_root is not None}
        for root in named:
            if self.local_roots.get(root) is None and (self.totals.unwalked or spans.get(root) is not None):
                raise StepLimitExceeded  # spans below a new local root may be stored already
        self.settle(self.gather(new, spans), spans)

    def gather(self, new: Sequence[tuple[int, Fact]], spans: TraceNodes) -> list[LocalRootUpdate]:
        """Add spans without counting them for local roots; return the updates that `settle` applies after all spans of
        the batch.
        """
        for root in {fact.local_root: None for _, fact in new if fact.local_root is not None}:
            if self.local_roots.get(root) is None:
                self._put_local_root(root, None, LocalRoot(0, None, 0, 0, 0, 0))
        return [due for row, fact in new for due in self._add(row, fact, spans)]

    def settle(self, due: Iterable[LocalRootUpdate], spans: TraceNodes) -> None:
        """Count spans and answered calls for their local roots."""
        for one in due:
            self._count_for_local_root(one, spans)

    def _add(self, row: int, fact: Fact, spans: TraceNodes) -> Iterator[LocalRootUpdate]:
        spans.facts[row] = fact
        node = spans.known[fact.span_id] = make_node(row, fact)
        self._add_to_totals(row, fact)
        if fact.local_root is not None:
            old = self.local_roots.get(fact.local_root)
            new = LocalRoot(1, None, 0, 0, 0, 0) if old is None else old._replace(members=old.members + 1)
            self._put_local_root(fact.local_root, old, _merge_counts(new, fact.counts))
        below, callers, members = self._take_orphans(fact.span_id)
        node.below = below
        self._add_amounts(node, node.carries & ~below, 1)
        self._link_to_parent(row, fact, below | node.carries, spans)
        if callers or members or fact.local_root is None:
            yield LocalRootUpdate(fact.span_id, members + (fact.local_root is None), callers)
        if fact.local_root == fact.span_id and fact.parent_id is not None:
            yield LocalRootUpdate(fact.parent_id, 0, 1)

    def _add_to_totals(self, row: int, fact: Fact) -> None:
        totals = self.totals
        totals.count += 1
        totals.errors += fact.status == "error"
        totals.size += fact.size
        totals.start_ns = min(totals.start_ns, fact.start_ns)
        totals.end_ns = max(totals.end_ns, fact.end_ns)
        totals.marked = totals.marked or fact.sampling.judgement
        for known, value in ((totals.names, fact.name), (totals.kinds, fact.kind)):
            if value not in known and len(known) < MAX_LISTED:
                known[value] = 1
        self._add_tags_and_labels(fact)
        if fact.model is not None:
            self._count_call(fact.model)
        for name in FIRST_VALUE_FIELDS:
            self._keep_first(name, row, getattr(fact, name))
        if totals.first is None or (fact.start_ns, fact.span_id) < totals.first:
            totals.first = (fact.start_ns, fact.span_id, row)
        if fact.input_tokens is not None and totals.first_tokens is None:
            totals.first_tokens = FirstAmount(row, fact.model, (fact.input_tokens, fact.output_tokens or 0))
        if fact.cost is not None and totals.first_cost is None:
            totals.first_cost = FirstAmount(row, fact.model, (to_pico(fact.cost),))

    def _add_tags_and_labels(self, fact: Fact) -> None:
        if fact.labels is not None:
            self.totals.labels = (self.totals.labels or LabelTotals()).add([fact.labels])
        for tag in fact.tags:
            if tag not in self.totals.tags and len(self.totals.tags) < MAX_LISTED:
                self.totals.tags[tag] = 1

    def _count_call(self, model: str) -> None:
        models = self.totals.models
        if model in models:
            models[model][0] += 1
        elif len(models) < MAX_LISTED:
            models[model] = [1, 0, 0, 0]

    def _keep_first(self, name: str, row: int, value: str | None) -> None:
        firsts = self.totals.firsts
        if value and (name not in firsts or row < firsts[name][0]):
            firsts[name] = (row, value)

    def _take_orphans(self, span_id: str) -> tuple[int, int, int]:
        """Remove the orphaned spans that waited for a new span.

        Return the flags of these descendants, and the number of calls and of spans among them that wait for a local
        root.
        """
        totals = self.totals
        if not totals.missing or (children := self.orphans.get(span_id)) is None:
            return 0, 0, 0
        self.orphans.put(span_id, None)
        totals.missing -= 1
        if totals.orphan is not None and totals.orphan[3] == span_id:
            totals.orphan = None
        return children.below, children.callers, children.members

    def _link_to_parent(self, row: int, fact: Fact, flags: int, spans: TraceNodes) -> None:
        totals, parent_id = self.totals, fact.parent_id
        if parent_id is None:
            if totals.top is None or (fact.start_ns, fact.span_id) < totals.top:
                totals.top = (fact.start_ns, fact.span_id, row)
            return
        parent = spans.get(parent_id)
        if parent is None:
            self._add_orphan(parent_id, OrphanedSpans(fact.start_ns, fact.span_id, row, flags, 0, 0))
        else:
            self._mark_ancestors(parent, flags, spans)

    def _count_for_local_root(self, due: LocalRootUpdate, spans: TraceNodes) -> None:
        span_id, members, calls = due
        root, missing = self._find_local_root(span_id, spans)
        if root is not None and (local_root := self.local_roots.get(root)) is not None:
            updated = local_root._replace(members=local_root.members + members, answered=local_root.answered + calls)
            self._put_local_root(root, local_root, updated)
        elif missing is not None and (orphans := self.orphans.get(missing)) is not None:
            updated_orphans = orphans._replace(members=orphans.members + members, callers=orphans.callers + calls)
            self.orphans.put(missing, updated_orphans)
        else:
            self.totals.untold += members

    def _find_local_root(self, span_id: str, spans: TraceNodes) -> tuple[str | None, str | None]:
        """Return the nearest local root among a span and its ancestors, or else the id of the missing ancestor, if one
        is missing.
        """
        current, path, visited = span_id, dict[str, SpanNode](), set[str]()
        found: tuple[str | None, str | None] = (None, None)
        while current not in visited:
            visited.add(current)
            if (node := spans.get(current)) is None:
                found = (None, current)
                break
            if self.local_roots.get(current) is not None:
                found = (current, None)
                break
            ancestor = node.further or node.parent_id
            if ancestor is None:
                break
            if not self.totals.local_roots and spans.get(ancestor) is not None:
                self.totals.unwalked = True
                break
            path[current] = node
            current = ancestor
            spans.step()
        highest = found[0] or next(reversed(path), None)
        for id, node in path.items():
            node.further = highest if id != highest else None
        return found

    def _add_orphan(self, parent_id: str, child: OrphanedSpans) -> None:
        totals, earlier = self.totals, self.orphans.get(parent_id)
        if earlier is not None:
            first = min(earlier, child)
            child = OrphanedSpans(*first[:3], earlier.below | child.below, earlier.callers, earlier.members)
        elif not totals.missing:
            totals.orphan = (*child[:3], parent_id)
        self.orphans.put(parent_id, child)
        totals.missing += earlier is None
        if totals.orphan is not None and child[:2] < totals.orphan[:2]:
            totals.orphan = (*child[:3], parent_id)

    def _mark_ancestors(self, node: SpanNode, flags: int, spans: TraceNodes) -> None:
        """Set flags of a span and its ancestors, up to the first one that has them."""
        while flags := flags & ~node.below:
            spans.mark(node, flags)
            self._add_amounts(node, node.carries & flags, -1)
            if node.parent_id is None:
                return
            parent = spans.get(node.parent_id)
            if parent is None:
                children = self.orphans.get(node.parent_id)
                assert children is not None
                self.orphans.put(node.parent_id, children._replace(below=children.below | flags))
                return
            node = parent

    def _add_amounts(self, node: SpanNode, flags: int, times: int) -> None:
        """Add (`times` 1) or subtract (-1) the tokens and cost of a span."""
        totals, model = self.totals, self.totals.models.get(node.model or "") if node.model is not None else None
        if flags & TOKENS_FLAG:
            input_tokens, output_tokens = times * (node.input_tokens or 0), times * (node.output_tokens or 0)
            totals.with_tokens += times
            totals.tokens = (totals.tokens[0] + input_tokens, totals.tokens[1] + output_tokens)
            if model is not None:
                model[1] += input_tokens
                model[2] += output_tokens
        if flags & COST_FLAG:
            cost = times * to_pico(node.cost or 0.0)
            totals.with_cost += times
            totals.cost += cost
            if model is not None:
                model[3] += cost

    def _put_local_root(self, root: str, old: LocalRoot | None, new: LocalRoot) -> None:
        totals = self.totals
        if old is None:
            totals.local_roots += 1
        for counts, times in ((old, -1), (new, 1)):
            if counts is not None:
                totals.not_arrived += times * (not counts.has_arrived)
                totals.waiting += times * counts.waits
                totals.dropped += times * counts.dropped
                totals.calls_sent += times * counts.calls_sent
        self.local_roots.put(root, new)

    def replace(self, row: int, old: Fact, new: Fact, spans: TraceNodes) -> bool:
        """Replace a span by its newer version; return False, without changes, if the trace must be summarized from
        scratch.
        """
        node = spans.get(new.span_id)
        assert node is not None
        if not self._can_replace(old, new):
            return False
        if new.local_root is not None and new.counts is not None and new.counts != old.counts:
            local_root = self.local_roots.get(new.local_root)
            assert local_root is not None
            self._put_local_root(new.local_root, local_root, _merge_counts(local_root, new.counts))
        counted = node.carries & ~node.below
        self._add_amounts(node, counted, -1)
        self._update_node(node, row, old, new)
        gained = node.carries & ~(make_node(row, old).carries)
        self._add_amounts(node, counted | (gained & ~node.below), 1)
        self._update_totals(row, old, new)
        if gained := gained & ~node.below:
            self._carry_to_ancestors(node, gained, spans)
        spans.facts[row] = new
        if self.totals.root_row == row:
            self.totals.root = new
        return True

    def _can_replace(self, old: Fact, new: Fact) -> bool:
        totals = self.totals
        if (
            any(getattr(old, name) != getattr(new, name) for name in _UNCHANGEABLE_FIELDS)
            or old.sampling.judgement > new.sampling.judgement
        ):
            return False
        if any(getattr(old, name) not in (None, getattr(new, name)) for name in (*FIRST_VALUE_FIELDS, "model")):
            return False
        if any(getattr(old, name) is not None and getattr(new, name) is None for name in ("input_tokens", "cost")):
            return False
        if old.labels not in (None, new.labels):
            return False
        if old.counts is not None and (new.counts is None or counts_sort_key(new.counts) < counts_sort_key(old.counts)):
            return False
        listed = max(len(totals.tags) + len(new.tags), len(totals.models) + 1)
        return set(old.tags) <= set(new.tags) and listed < MAX_LISTED and new.end_ns >= old.end_ns

    def _update_node(self, node: SpanNode, row: int, old: Fact, new: Fact) -> None:
        """Update the span's node, and the first spans with tokens and cost, to the new version."""
        totals = self.totals
        node.model, node.cost = new.model, new.cost
        node.input_tokens, node.output_tokens = new.input_tokens, new.output_tokens
        if old.model is None and new.model is not None:
            self._count_call(new.model)
        if new.input_tokens is not None and (totals.first_tokens is None or row <= totals.first_tokens.row):
            totals.first_tokens = FirstAmount(row, new.model, (new.input_tokens, new.output_tokens or 0))
        if new.cost is not None and (totals.first_cost is None or row <= totals.first_cost.row):
            totals.first_cost = FirstAmount(row, new.model, (to_pico(new.cost),))

    def _update_totals(self, row: int, old: Fact, new: Fact) -> None:
        totals = self.totals
        totals.errors += (new.status == "error") - (old.status == "error")
        totals.size += new.size - old.size
        totals.end_ns = max(totals.end_ns, new.end_ns)
        totals.marked = totals.marked or new.sampling.judgement
        self._add_tags_and_labels(new)
        for name in FIRST_VALUE_FIELDS:
            self._keep_first(name, row, getattr(new, name))

    def _carry_to_ancestors(self, node: SpanNode, flags: int, spans: TraceNodes) -> None:
        """Set the flags that a stored span has gained in all of its ancestors."""
        if node.parent_id is None:
            return
        parent = spans.get(node.parent_id)
        if parent is not None:
            self._mark_ancestors(parent, flags, spans)
        elif children := self.orphans.get(node.parent_id):
            self.orphans.put(node.parent_id, children._replace(below=children.below | flags))

    def root_row(self) -> int:
        """Return the row of the root: the earliest span without a parent, else the earliest orphan, else the earliest
        span.
        """
        totals = self.totals
        if totals.top is None and totals.missing and totals.orphan is None:
            totals.orphan = self.orphans.earliest()
        found = totals.top or (totals.orphan if totals.missing else totals.first)
        assert found is not None
        return found[2]

    def rolled(self, spans: TraceNodes) -> SummaryRow:
        """Return the summary row of the trace."""
        totals, row = self.totals, self.root_row()
        if totals.root is None or totals.root_row != row:
            totals.root, totals.root_row = spans.fact(row), row
        root = totals.root
        experiment_id = self._root_or_first("experiment_id", root)
        tokens, cost = totals.shown_tokens(), totals.shown_cost()
        return SummaryRow(
            span_count=totals.count,
            error_count=totals.errors,
            project=root.project,
            environment=root.environment,
            name=root.name,
            kind=root.kind,
            status=root.status,
            error=root.error,
            start_ns=totals.start_ns,
            end_ns=totals.end_ns,
            input_tokens=tokens[0],
            output_tokens=tokens[1],
            cost=cost,
            session_id=self._root_or_first("session_id", root),
            user_id=self._root_or_first("user_id", root),
            experiment_id=experiment_id,
            example_id=self._root_or_first("example_id", root),
            repetition=root.repetition,
            complete=totals.complete(),
            names=dumps(list(totals.names)),
            kinds=dumps(list(totals.kinds)),
            models=totals.shown_models() if totals.models else None,
            tags=dumps(list(totals.tags)) if totals.tags else None,
            metadata=self._root_or_first("metadata", root),
            size=totals.size,
            probability=root.sampling.probability,
            partial=root.sampling.partial,
            rooted=root.parent_id is None,
            judgement=totals.marked or (root.kind == EVALUATOR_KIND and experiment_id is None),
            dropped=totals.dropped,
            calls_sent=totals.calls_sent,
            **(totals.labels.columns() if totals.labels is not None else {}),
        )

    def _root_or_first(self, name: str, root: Fact) -> str | None:
        first = self.totals.firsts.get(name)
        found: str | None = getattr(root, name) or (first[1] if first else None)
        return found


_UNCHANGEABLE_FIELDS = ("parent_id", "name", "kind", "start_ns", "local_root")


def _merge_counts(local_root: LocalRoot, counts: SpanCounts | None) -> LocalRoot:
    """Return the local root with its own counts or the given ones, whichever are later."""
    if counts is None:
        return local_root
    before = SpanCounts(local_root.started or 0, local_root.open, local_root.dropped, local_root.calls_sent)
    if local_root.started is not None and counts_sort_key(counts) <= counts_sort_key(before):
        return local_root
    return LocalRoot(local_root.members, *counts, local_root.answered)


def summarize_from_scratch(key: int, facts: Sequence[tuple[int, Fact]]) -> tuple[IncrementalSummary, TraceNodes]:
    """Return the state of a trace, and its span tree, from all of its spans with their rows, in order of arrival."""
    state, spans = IncrementalSummary(key), TraceNodes()
    state.settle(state.gather(facts, spans), spans)
    return state, spans
