"""The roll-up of a trace, kept so that spans which are new cost what they are, however many are there before them.

`_rollup.roll_up` over all facts is the definition. Who carries tokens (or a cost) marks the spans above it, up to the
first that is marked; these marks are columns of `spans`, and what must reach a parent that is not here waits with the
trace's orphans. A run that takes the place of another is taken in where that changes sums alone; else `replace` says
that the trace must be summed up anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from spanwise.collector.filters import EVALUATOR
from spanwise.collector.stores.sqlite._codec import Counts, Fact
from spanwise.collector.stores.sqlite._ledger import WHOLE, Ledger, LocalRoot, Orphans
from spanwise.collector.stores.sqlite._nodes import COST, TOKENS, Adrift, Node, Spans, node
from spanwise.collector.stores.sqlite._rollup import LISTED, RollUp, lateness, pico
from spanwise.collector.stores.sqlite._totals import FIRSTS, Carrier, Totals
from spanwise.collector.stores.sqlite._values import dumps

LONG = 2_000  # characters that weigh as much as a span


def characters(fact: Fact) -> int:
    """Of what may be long in a fact."""
    count = len(fact.name) + len(fact.kind) + len(fact.project) + len(fact.environment)
    for text in (fact.error, fact.model, fact.session_id, fact.user_id, fact.metadata):
        if text is not None:
            count += len(text)
    if fact.experiment_id is not None:
        count += len(fact.experiment_id) + len(fact.example_id or "")
    return count + sum(map(len, fact.tags)) if fact.tags else count


class Due(NamedTuple):
    """Spans, and local roots of other processes, that are to count for the local root of a span."""

    span_id: str
    members: int
    calls: int


class State:
    """What a trace of this key sums up to, so far."""

    __slots__ = ("facts", "kept", "key", "local_roots", "orphans", "totals")

    def __init__(self, key: int, totals: Totals | None = None, whole: int = WHOLE) -> None:
        self.key, self.totals = key, totals or Totals()
        self.orphans, self.local_roots = Ledger(Orphans, whole), Ledger(LocalRoot, whole)
        self.kept = False  # in the file

    @property
    def weight(self) -> int:
        """Memory that it takes, in spans."""
        totals = self.totals
        listed = len(totals.names) + len(totals.tags) + len(totals.models) + len(self.orphans) + len(self.local_roots)
        size = sum(len(text) for _, text in totals.firsts.values()) + (characters(totals.root) if totals.root else 0)
        for texts in (totals.names, totals.tags, totals.models):
            size += sum(map(len, texts))
        return 2 + listed // 4 + size // LONG

    def advance(self, new: Sequence[tuple[int, Fact]], spans: Spans) -> None:
        """Take in spans, and their rows, that come after all before. Raises `Adrift`; it is of no use then."""
        named = {fact.local_root: None for _, fact in new if fact.local_root is not None}
        for root in named:
            if self.local_roots.get(root) is None and (self.totals.unwalked or spans.get(root) is not None):
                raise Adrift  # below a local root that is new there may be spans already
        self.settle(self.gather(new, spans), spans)

    def gather(self, new: Sequence[tuple[int, Fact]], spans: Spans) -> list[Due]:
        """Take in spans but for their local roots: what `settle` does, once all that come together are here."""
        for root in {fact.local_root: None for _, fact in new if fact.local_root is not None}:
            if self.local_roots.get(root) is None:
                self._settle(root, None, LocalRoot(0, None, 0, 0, 0, 0))
        return [due for row, fact in new for due in self._add(row, fact, spans)]

    def settle(self, due: Iterable[Due], spans: Spans) -> None:
        """Count spans, and calls that were answered, for the local roots that they are below."""
        for one in due:
            self._belong(one, spans)

    def _add(self, row: int, fact: Fact, spans: Spans) -> Iterator[Due]:
        spans.facts[row] = fact
        one = spans.known[fact.span_id] = node(row, fact)
        self._sum(row, fact)
        if fact.local_root is not None:
            self._member(fact.local_root, fact.counts)
        below, callers, members = self._adopt(fact.span_id)
        one.below = below
        self._count(one, one.carries & ~below, 1)
        self._place(row, fact, below | one.carries, spans)
        if callers or members or fact.local_root is None:
            yield Due(fact.span_id, members + (fact.local_root is None), callers)
        if fact.local_root == fact.span_id and fact.parent_id is not None:
            yield Due(fact.parent_id, 0, 1)

    def _sum(self, row: int, fact: Fact) -> None:
        totals = self.totals
        totals.count += 1
        totals.errors += fact.status == "error"
        totals.size += fact.size
        totals.start_ns = min(totals.start_ns, fact.start_ns)
        totals.end_ns = max(totals.end_ns, fact.end_ns)
        totals.marked = totals.marked or fact.said.judgement
        for known, value in ((totals.names, fact.name), (totals.kinds, fact.kind)):
            if value not in known and len(known) < LISTED:
                known[value] = 1
        self._tag(fact)
        if fact.model is not None:
            self._call(fact.model)
        for name in FIRSTS:
            self._first(name, row, getattr(fact, name))
        if totals.first is None or (fact.start_ns, fact.span_id) < totals.first:
            totals.first = (fact.start_ns, fact.span_id, row)
        if fact.input_tokens is not None and totals.first_tokens is None:
            totals.first_tokens = Carrier(row, fact.model, (fact.input_tokens, fact.output_tokens or 0))
        if fact.cost is not None and totals.first_cost is None:
            totals.first_cost = Carrier(row, fact.model, (pico(fact.cost),))

    def _tag(self, fact: Fact) -> None:
        for tag in fact.tags:
            if tag not in self.totals.tags and len(self.totals.tags) < LISTED:
                self.totals.tags[tag] = 1

    def _call(self, model: str) -> None:
        models = self.totals.models
        if model in models:
            models[model][0] += 1
        elif len(models) < LISTED:
            models[model] = [1, 0, 0, 0]

    def _first(self, name: str, row: int, value: str | None) -> None:
        firsts = self.totals.firsts
        if value and (name not in firsts or row < firsts[name][0]):
            firsts[name] = (row, value)

    def _adopt(self, span_id: str) -> tuple[int, int, int]:
        """Of what is below a span that has come: flags, and how many calls and spans wait for a local root."""
        totals = self.totals
        if not totals.missing or (children := self.orphans.get(span_id)) is None:
            return 0, 0, 0
        self.orphans.put(span_id, None)
        totals.missing -= 1
        if totals.orphan is not None and totals.orphan[3] == span_id:
            totals.orphan = None
        return children.below, children.callers, children.members

    def _place(self, row: int, fact: Fact, flags: int, spans: Spans) -> None:
        totals, parent_id = self.totals, fact.parent_id
        if parent_id is None:
            if totals.top is None or (fact.start_ns, fact.span_id) < totals.top:
                totals.top = (fact.start_ns, fact.span_id, row)
            return
        parent = spans.get(parent_id)
        if parent is None:
            self._orphan(parent_id, Orphans(fact.start_ns, fact.span_id, row, flags, 0, 0))
        else:
            self._mark(parent, flags, spans)

    def _belong(self, due: Due, spans: Spans) -> None:
        span_id, members, calls = due
        root, missing = self._local_root(span_id, spans)
        if root is not None and (known := self.local_roots.get(root)) is not None:
            now = known._replace(members=known.members + members, answered=known.answered + calls)
            self._settle(root, known, now)
        elif missing is not None and (waiting := self.orphans.get(missing)) is not None:
            now_waiting = waiting._replace(members=waiting.members + members, callers=waiting.callers + calls)
            self.orphans.put(missing, now_waiting)
        else:
            self.totals.untold += members

    def _local_root(self, span_id: str, spans: Spans) -> tuple[str | None, str | None]:
        """The nearest local root from a span on upwards; else the parent that is missing on the way, if one is."""
        current, path, seen = span_id, dict[str, Node](), set[str]()
        found: tuple[str | None, str | None] = (None, None)
        while current not in seen:
            seen.add(current)
            if (one := spans.get(current)) is None:
                found = (None, current)
                break
            if self.local_roots.get(current) is not None:
                found = (current, None)
                break
            above = one.further or one.parent_id
            if above is None:
                break
            if not self.totals.local_roots and spans.get(above) is not None:
                self.totals.unwalked = True
                break
            path[current] = one
            current = above
            spans.step()
        highest = found[0] or next(reversed(path), None)
        for id, one in path.items():
            one.further = highest if id != highest else None
        return found

    def _orphan(self, parent_id: str, child: Orphans) -> None:
        totals, known = self.totals, self.orphans.get(parent_id)
        if known is not None:
            first = min(known, child)
            child = Orphans(*first[:3], known.below | child.below, known.callers, known.members)
        elif not totals.missing:
            totals.orphan = (*child[:3], parent_id)
        self.orphans.put(parent_id, child)
        totals.missing += known is None
        if totals.orphan is not None and child[:2] < totals.orphan[:2]:
            totals.orphan = (*child[:3], parent_id)

    def _mark(self, one: Node, flags: int, spans: Spans) -> None:
        """Mark a span, and all above it, as having something below them."""
        while flags := flags & ~one.below:
            spans.mark(one, flags)
            self._count(one, one.carries & flags, -1)
            if one.parent_id is None:
                return
            parent = spans.get(one.parent_id)
            if parent is None:
                children = self.orphans.get(one.parent_id)
                assert children is not None
                self.orphans.put(one.parent_id, children._replace(below=children.below | flags))
                return
            one = parent

    def _count(self, one: Node, flags: int, times: int) -> None:
        """Count what a span carries, or no longer."""
        totals, model = self.totals, self.totals.models.get(one.model or "") if one.model is not None else None
        if flags & TOKENS:
            sent, got = times * (one.input_tokens or 0), times * (one.output_tokens or 0)
            totals.with_tokens += times
            totals.tokens = (totals.tokens[0] + sent, totals.tokens[1] + got)
            if model is not None:
                model[1] += sent
                model[2] += got
        if flags & COST:
            cost = times * pico(one.cost or 0.0)
            totals.with_cost += times
            totals.cost += cost
            if model is not None:
                model[3] += cost

    def _member(self, root: str, counts: Counts | None) -> None:
        known = self.local_roots.get(root)
        now = LocalRoot(1, None, 0, 0, 0, 0) if known is None else known._replace(members=known.members + 1)
        self._settle(root, known, _told(now, counts))

    def _settle(self, root: str, known: LocalRoot | None, now: LocalRoot) -> None:
        totals = self.totals
        if known is None:
            totals.local_roots += 1
        for one, times in ((known, -1), (now, 1)):
            if one is not None:
                totals.not_arrived += times * (not one.has_arrived)
                totals.waiting += times * one.waits
                totals.dropped += times * one.dropped
                totals.calls_sent += times * one.calls_sent
        self.local_roots.put(root, now)

    def replace(self, row: int, old: Fact, new: Fact, spans: Spans) -> bool:
        """Take in a span in place of what it was; False where that takes summing up anew, with nothing done."""
        one = spans.get(new.span_id)
        assert one is not None
        if not self._can_replace(old, new):
            return False
        if new.local_root is not None and new.counts is not None and new.counts != old.counts:
            known = self.local_roots.get(new.local_root)
            assert known is not None
            self._settle(new.local_root, known, _told(known, new.counts))
        counted = one.carries & ~one.below
        self._count(one, counted, -1)
        self._amounts(one, row, old, new)
        gained = one.carries & ~(node(row, old).carries)
        self._count(one, counted | (gained & ~one.below), 1)
        self._sums_again(row, old, new)
        if gained := gained & ~one.below:
            self._carry(one, gained, spans)
        spans.facts[row] = new
        if self.totals.root_row == row:
            self.totals.root = new
        return True

    def _can_replace(self, old: Fact, new: Fact) -> bool:
        totals = self.totals
        if any(getattr(old, name) != getattr(new, name) for name in _FIXED) or old.said.judgement > new.said.judgement:
            return False
        if any(getattr(old, name) not in (None, getattr(new, name)) for name in (*FIRSTS, "model")):
            return False
        if any(getattr(old, name) is not None and getattr(new, name) is None for name in ("input_tokens", "cost")):
            return False
        if old.counts is not None and (new.counts is None or lateness(new.counts) < lateness(old.counts)):
            return False
        listed = max(len(totals.tags) + len(new.tags), len(totals.models) + 1)
        return set(old.tags) <= set(new.tags) and listed < LISTED and new.end_ns >= old.end_ns

    def _amounts(self, one: Node, row: int, old: Fact, new: Fact) -> None:
        """Have the span's node, and who is first of those that carry, say what the new one does."""
        totals = self.totals
        one.model, one.cost = new.model, new.cost
        one.input_tokens, one.output_tokens = new.input_tokens, new.output_tokens
        if old.model is None and new.model is not None:
            self._call(new.model)
        if new.input_tokens is not None and (totals.first_tokens is None or row <= totals.first_tokens.row):
            totals.first_tokens = Carrier(row, new.model, (new.input_tokens, new.output_tokens or 0))
        if new.cost is not None and (totals.first_cost is None or row <= totals.first_cost.row):
            totals.first_cost = Carrier(row, new.model, (pico(new.cost),))

    def _sums_again(self, row: int, old: Fact, new: Fact) -> None:
        totals = self.totals
        totals.errors += (new.status == "error") - (old.status == "error")
        totals.size += new.size - old.size
        totals.end_ns = max(totals.end_ns, new.end_ns)
        totals.marked = totals.marked or new.said.judgement
        self._tag(new)
        for name in FIRSTS:
            self._first(name, row, getattr(new, name))

    def _carry(self, one: Node, flags: int, spans: Spans) -> None:
        """Tell those above a span that is here what it has got."""
        if one.parent_id is None:
            return
        parent = spans.get(one.parent_id)
        if parent is not None:
            self._mark(parent, flags, spans)
        elif children := self.orphans.get(one.parent_id):
            self.orphans.put(one.parent_id, children._replace(below=children.below | flags))

    def root_row(self) -> int:
        """The row of the root: the earliest without a parent, else whose parent is not here, else of all."""
        totals = self.totals
        if totals.top is None and totals.missing and totals.orphan is None:
            totals.orphan = self.orphans.earliest()
        found = totals.top or (totals.orphan if totals.missing else totals.first)
        assert found is not None
        return found[2]

    def rolled(self, spans: Spans) -> RollUp:
        """What a list shows of the trace."""
        totals, row = self.totals, self.root_row()
        if totals.root is None or totals.root_row != row:
            totals.root, totals.root_row = spans.fact(row), row
        root = totals.root
        experiment_id = self._root_or_first("experiment_id", root)
        tokens, cost = totals.shown_tokens(), totals.shown_cost()
        return RollUp(
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
            probability=root.said.probability,
            partial=root.said.partial,
            rooted=root.parent_id is None,
            judgement=totals.marked or (root.kind == EVALUATOR and experiment_id is None),
            dropped=totals.dropped,
            calls_sent=totals.calls_sent,
        )

    def _root_or_first(self, name: str, root: Fact) -> str | None:
        first = self.totals.firsts.get(name)
        found: str | None = getattr(root, name) or (first[1] if first else None)
        return found


_FIXED = ("parent_id", "name", "kind", "start_ns", "local_root")


def _told(known: LocalRoot, counts: Counts | None) -> LocalRoot:
    """With the later of two counts."""
    if counts is None:
        return known
    before = Counts(known.started or 0, known.open, known.dropped, known.calls_sent)
    if known.started is not None and lateness(counts) <= lateness(before):
        return known
    return LocalRoot(known.members, *counts, known.answered)


def summed(key: int, facts: Sequence[tuple[int, Fact]]) -> tuple[State, Spans]:
    """The state of a trace from all of its spans, with their rows, in order of arrival; and these, with their flags."""
    state, spans = State(key), Spans()
    state.settle(state.gather(facts, spans), spans)
    return state, spans
