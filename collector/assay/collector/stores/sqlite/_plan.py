"""Which way into the table of traces: SQLite keeps no statistics here that would let it choose well.

A condition that has an index of its own (a score, words) is tried: if it holds for few traces, they are fetched by
their ids; if for many, the traces are walked, latest first, and the condition is asked of each.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace
from typing import Any

from assay.collector.filters import EVALUATOR, Filter
from assay.collector.stores.sqlite._where import HERE, Condition, conditions, joined, visible

FEW = 3000
BY_START = "INDEXED BY traces_by_start"
SHOWN = "INDEXED BY traces_shown"


@dataclass(frozen=True, slots=True)
class Plan:
    """`FROM source WHERE where`, with `values` for its marks; the row is called `t`."""

    source: str
    where: str
    values: tuple[Any, ...]

    def after(self, start_ns: int, key: int) -> Plan:
        """The same, from a position on in the order latest first."""
        sql = f"{self.where} AND t.start_ns <= ? AND (t.start_ns < ? OR t.id < ?)"
        return replace(self, where=sql, values=(*self.values, start_ns, start_ns, key))


def plan(db: sqlite3.Connection, filter: Filter, *, in_order: bool = True, judgements: bool = False) -> Plan:
    """How to find the traces that pass. `in_order`: a list wants the latest of them, not all of them. `judgements`:
    evaluators' own traces pass like all others.
    """
    wanted = conditions(filter) if judgements else visible(filter)
    fewest = _fewest(db, wanted)
    if fewest is None:
        index = _index(filter, shown=not judgements and filter.leaves_out_judgements)
        whole = not in_order and index in (BY_START, SHOWN) and filter.since_ns is None and filter.until_ns is None
        return Plan("traces t NOT INDEXED" if whole else f"traces t {index}", *joined(wanted))
    assert fewest.ids is not None
    driven = Condition(f"t.id IN ({fewest.ids})", fewest.ids_values)
    others = (condition for condition in wanted if condition is not fewest)
    return Plan("traces t NOT INDEXED", *joined([driven, *others]))


def lean(filter: Filter) -> Plan:
    """How to find the latencies of traces that pass a filter of columns alone: by the index that has most of them."""
    shown = filter.leaves_out_judgements
    wanted = [condition for condition in visible(filter) if condition is not HERE]  # no other has a start
    index = _index(filter, shown=shown)
    where, values = joined([Condition("t.start_ns IS NOT NULL"), *wanted])
    return Plan(f"traces t {index}", where, values)


def _fewest(db: sqlite3.Connection, wanted: list[Condition]) -> Condition | None:
    counted = []
    for condition in wanted:
        if condition.ids is not None:
            sql = f"SELECT count(*) FROM (SELECT 1 FROM ({condition.ids}) LIMIT {FEW + 1})"
            counted.append((int(db.execute(sql, condition.ids_values).fetchone()[0]), condition))
    few = [pair for pair in counted if pair[0] <= FEW]
    return min(few, key=lambda pair: pair[0])[1] if few else None


def _index(filter: Filter, *, shown: bool) -> str:
    """The index that narrows most and has the order of the list; they are all small ones."""
    if filter.trace_ids is not None:
        return ""
    for value, index in (
        (filter.session, "traces_by_session"),
        (filter.user, "traces_by_user"),
        (filter.experiment or filter.experiments is not None, "traces_by_experiment"),
        (filter.error or filter.status == "error", "traces_with_errors"),
        (filter.name, "traces_by_name"),
        (filter.kind == EVALUATOR, "traces_of_evaluators"),
        (filter.project, "traces_shown_by_project" if shown else "traces_by_project"),
    ):
        if value:
            return f"INDEXED BY {index}"
    return SHOWN if shown else BY_START
