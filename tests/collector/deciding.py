"""What a monitor does to a store, in few words: rules, traces as the feed tells of them, decisions."""

from __future__ import annotations

from typing import Any

from collector.making import run
from spanwise.collector.records import Decision, DecisionBatch, Rule, Target, TraceHead
from spanwise.collector.stores import Store

HOUR = 3_600_000_000_000


def ruled(store: Store, version: str = "1", name: str = "r", **fields: Any) -> None:
    store.save_rule(Rule(name=name, version=version, evaluators=({"key": "concise"},), **fields))


def traced(store: Store, count: int = 1, **fields: Any) -> list[TraceHead]:
    """As many new traces, as the feed tells of them."""
    before = store.changes(limit=1_000).cursor
    store.append([run(**fields) for _ in range(count)])
    return list(store.changes(before).heads)


def on(head: TraceHead, **fields: Any) -> Decision:
    known: dict[str, Any] = {
        "change": head.change,
        "runs_change": head.runs_change,
        "target": Target(trace_id=head.trace_id),
    }
    return Decision(**{"rule": "r", "version": "1", "verdict": "waiting", **known, **fields})


def outcomes(*heads: TraceHead, **named: int) -> dict[str, tuple[int, str]]:
    """Outcomes of these heads in turn: so many of each name."""
    names = [name for name, count in named.items() for _ in range(count)]
    return {head.trace_id: (head.number, name) for head, name in zip(heads, names, strict=True)}


def slice(
    *rows: Decision, after: str | None = None, upto: str = "", version: str = "1", **fields: Any
) -> DecisionBatch:
    return DecisionBatch(project="default", rule="r", version=version, after=after, upto=upto, rows=rows, **fields)


def verdicts(store: Store, **named: Any) -> list[str]:
    return [one.verdict for one in store.decisions(**named)]
