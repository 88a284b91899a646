"""Why a trace passes a filter or not: each condition asked by itself, and beside it the value that it was asked of."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from spanwise.collector.errors import NotFound
from spanwise.collector.filters import EVALUATOR, Filter
from spanwise.collector.records import JSON, Condition
from spanwise.collector.stores.sqlite._for_rules import NEWEST, OF_NO_RULE, WAITS, of_rules
from spanwise.collector.stores.sqlite._values import loads
from spanwise.collector.stores.sqlite._where import AS_TEXT, SHOWN, Part, complete_sql
from spanwise.collector.stores.sqlite._where import Condition as Sql

ASKED = 200  # conditions at once; SQLite has a bound on columns
LISTED = 20  # values of a list that are shown


class _Asked(NamedTuple):
    """One condition, as it is asked."""

    name: str
    wanted: JSON
    sql: Sql
    seen: str
    seen_values: tuple[Any, ...]


def explain(db: sqlite3.Connection, trace_id: str, filter: Filter) -> list[Condition]:
    """Condition by condition. Raises `NotFound`."""
    asked = [*_judgement(filter), *(one for part in of_rules(filter) for one in _asked(part))]
    told = [
        one for start in range(0, len(asked) or 1, ASKED) for one in _ask(db, trace_id, asked[start : start + ASKED])
    ]
    return [one for one in told if one.name != "judgement" or not one.passes]


def _ask(db: sqlite3.Connection, trace_id: str, asked: Sequence[_Asked]) -> list[Condition]:
    columns = "".join(f", ({one.sql.sql}), {one.seen}" for one in asked)
    values = [value for one in asked for value in (*one.sql.values, *one.seen_values)]
    sql = f"SELECT {WAITS}{columns} FROM traces t WHERE t.trace_id = ? AND t.span_count > 0"
    row = db.execute(sql, (*values, trace_id)).fetchone()
    if row is None:
        raise NotFound(f"there is no trace {trace_id!r} in this store")
    return [_told(one, bool(row[0]), *row[1 + 2 * n : 3 + 2 * n]) for n, one in enumerate(asked)]


def _told(asked: _Asked, waits: bool, passes: int | None, seen: Any) -> Condition:
    if asked.name == "text" and waits:
        return Condition(name=asked.name, wanted=asked.wanted, seen="not in the text index yet", passes=None)
    return Condition(name=asked.name, wanted=asked.wanted, seen=_shown(asked.name, seen), passes=bool(passes))


def _judgement(filter: Filter) -> list[_Asked]:
    """What a filter leaves out without a word; told only where it does."""
    if not filter.leaves_out_judgements:
        return []
    return [_Asked("judgement", False, Sql(SHOWN.format("t")), f"(t.kind = '{EVALUATOR}')", ())]


def _asked(part: Part) -> Iterator[_Asked]:
    for wanted, sql in zip(_elements(part) if part.conditions else (), part.conditions, strict=True):
        key = _key(part.name, wanted)
        column = "label" if part.name == "feedback" and isinstance(wanted[2], str) else "score"
        yield _Asked(part.name, wanted, sql, SEEN[part.name].format(column), () if key is None else (key,))


def _elements(part: Part) -> list[JSON]:
    """What is wanted by each condition of a part."""
    if part.name == "metadata":
        return [{key: value} for key, value in part.value.items()]
    return list(part.value) if part.name in ("tags", *_KEYED) else [part.value]


def _key(name: str, wanted: JSON) -> str | None:
    """What `SEEN` has a mark for."""
    if name not in ("metadata", *_KEYED):
        return None
    key: str = wanted if isinstance(wanted, str) else next(iter(wanted))
    return key


def _shown(name: str, seen: Any) -> JSON:
    if name in _LISTS:
        return loads(seen)[:LISTED] if seen else []
    return bool(seen) if name in ("complete", "judgement") and seen is not None else seen


_KEYED = ("feedback", "missing", "untried", "failed", "skipped")
_LISTS = ("any_name", "any_kind", "model", "tags")
SEEN: Mapping[str, str] = {
    "project": "t.project",
    "environment": "t.environment",
    "since_ns": "t.start_ns",
    "until_ns": "t.start_ns",
    "name": "t.name",
    "kind": "t.kind",
    "any_name": "t.names",
    "any_kind": "t.kinds",
    "status": "t.status",
    "error": "(SELECT s.error FROM spans s WHERE s.trace = t.id AND t.error_count > 0 AND s.error IS NOT NULL LIMIT 1)",
    "model": "(SELECT json_group_array(key) FROM json_each(t.models))",
    "latency_ms": "(t.end_ns - t.start_ns) / 1e6",
    "tokens": "(t.input_tokens + t.output_tokens)",
    "cost": "t.cost",
    "tags": "t.tags",
    "metadata": f"(SELECT {AS_TEXT} FROM json_each(t.metadata) m WHERE m.key = ?)",
    "session": "t.session_id",
    "user": "t.user_id",
    "feedback": NEWEST,
    "missing": NEWEST.replace("{}", "outcome"),
    "untried": f"(SELECT count(*) {OF_NO_RULE})",
    "failed": NEWEST.replace("{}", "outcome"),
    "skipped": NEWEST.replace("{}", "outcome"),
    "text": "NULL",
    "experiment": "t.experiment_id",
    "experiments": "t.experiment_id",
    "example": "t.example_id",
    "complete": complete_sql(),
    "trace_ids": "t.trace_id",
}
