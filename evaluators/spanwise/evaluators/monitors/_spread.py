"""From what is let in to rows: a trace's or session's one, or one for each of its spans or documents."""

from __future__ import annotations

from collections.abc import Iterator

from spanwise.collector.records import Decision, Rule, Target, Trace
from spanwise.collector.stores import Store
from spanwise.evaluators.monitors._following import Following
from spanwise.evaluators.monitors._load import lots
from spanwise.evaluators.monitors._rows import Let, out, row, without
from spanwise.evaluators.monitors._targets import chosen, target_of


class Spread:
    """Spans and documents are looked for in their traces, which are read for that."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def rows(self, one: Following) -> None:
        """Turn what is let in, and what is out by now, into rows."""
        if one.rule.target in ("trace", "session"):
            one.rows += [row(one.rule, target_of(one.rule, let.head), let) for let in one.let_in]
        else:
            one.rows += [made for lot in self._lots(one) for made in self._within(one.rule, lot)]
        one.let_in = []
        while one.left_out:
            head, drawn = one.left_out[-1]
            one.rows += [out(one.rule, target, head, drawn) for target in self._known(one.rule, head.trace_id)]
            one.left_out.pop()

    def _lots(self, one: Following) -> Iterator[list[Let]]:
        lets = {let.head.trace_id: let for let in one.let_in}
        for lot in lots([(id, let.head.size) for id, let in lets.items()]):
            yield [lets[id] for id in lot]

    def _within(self, rule: Rule, lot: list[Let]) -> Iterator[Decision]:
        lets = {let.head.trace_id: let for let in lot}
        small = [id for id, let in lets.items() if let.head.size <= rule.settings.max_bytes]
        for id in lets.keys() - set(small):
            yield row(rule, Target(trace_id=id), lets[id])
        for trace in self._store.many(small):
            yield from _rows_in(rule, trace, lets[trace.trace_id])

    def _known(self, rule: Rule, trace_id: str) -> list[Target]:
        page = self._store.decisions(
            trace_id=trace_id, rule=rule.name, version=rule.version, project=rule.project, limit=1_000
        )
        return [decision.target for decision in page if decision.target.trace_id == trace_id]


def _rows_in(rule: Rule, trace: Trace, let: Let) -> Iterator[Decision]:
    targets, share = chosen(rule, trace)
    if not targets:
        yield without(rule, let)
    for target in targets:
        yield row(rule, target, let, share)
