"""Filters of monitoring rules compiled for single traces, and their explanation condition by condition.

Rules do not chain: conditions on feedback ignore feedback that a rule gave. Words are looked up only for the given
traces. If the full-text index has not reached a trace yet, the result of a text condition is unknown.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from spanwise.collector.errors import NotFound
from spanwise.collector.filters import EVALUATOR_KIND, Filter
from spanwise.collector.records import JSON, ConditionResult
from spanwise.collector.stores.sqlite.database.column_values import dumps, loads
from spanwise.collector.stores.sqlite.query.filter_sql import (
    COMPILERS,
    FEEDBACK_OF_TRACE,
    METADATA_TEXT_SQL,
    SQL_OPERATORS,
    VISIBLE_SQL,
    FilterPart,
    SQLCondition,
    compile_match,
    compile_parts,
    complete_sql,
    join_conditions,
)
from spanwise.collector.stores.sqlite.query.filter_sql import SQLCondition as Sql

ConditionCompiler: TypeAlias = Callable[[Any], list[SQLCondition]]

MAX_ID_GAP = 2_000  # up to this gap, scanning the ids between two traces is cheaper than a second search
AWAITS_INDEX_SQL = "EXISTS (SELECT 1 FROM unindexed u WHERE u.trace = t.id)"  # the trace waits for full-text indexing
FEEDBACK_WITHOUT_RULE = f"FROM feedback f {FEEDBACK_OF_TRACE} AND f.key = ? AND f.rule IS NULL"
# Newest feedback of the trace or its spans that no rule gave. `standing = 2` also considers feedback of rules
NEWEST_FEEDBACK_SQL = (
    f"(SELECT f.{{}} {FEEDBACK_WITHOUT_RULE} AND f.document IS NULL ORDER BY f.created_ns DESC, f.rowid DESC LIMIT 1)"
)


class RuleCondition(NamedTuple):
    """SQL on a row `t` that yields 1, 0 or NULL (not known yet), with its parameter values."""

    sql: str
    values: tuple[Any, ...]


def compile_rule_filter(filter: Filter, look_up: ConditionCompiler | None = None) -> RuleCondition:
    """Compile a filter to SQL that tests one trace.

    `look_up` compiles text conditions (see `make_text_lookup`). Without it, each trace queries the full-text index.
    """
    found = list(compile_rule_parts(filter, look_up))
    visible = SQLCondition(VISIBLE_SQL.format("t") if filter.leaves_out_judgements else "t.span_count > 0")
    others, values = join_conditions([visible, *(c for part in found if part.name != "text" for c in part.conditions)])
    words, more = join_conditions([condition for part in found if part.name == "text" for condition in part.conditions])
    then = f"CASE WHEN {AWAITS_INDEX_SQL} THEN NULL ELSE {words} END" if words else "1"
    return RuleCondition(f"CASE WHEN {others} THEN {then} ELSE 0 END", (*values, *more))


def compile_rule_parts(filter: Filter, look_up: ConditionCompiler | None = None) -> Iterator[FilterPart]:
    """Yield the compiled part of each field that differs from its default."""
    return compile_parts(filter, {**_RULE_COMPILERS, "text": look_up or _text})


def make_text_lookup(db: sqlite3.Connection, ids: Iterable[int]) -> ConditionCompiler:
    """Return a compiler of text conditions that searches the full-text index for a batch of traces.

    Traces with adjacent ids are searched together. One query per trace would walk part of the posting list of a
    frequent word each time.
    """
    wanted = sorted(ids)

    def look_up(text: str) -> list[SQLCondition]:
        match = compile_match(text)
        sql = "t.id IN (SELECT value FROM json_each(?))"
        if not match:
            return []
        search = "SELECT rowid FROM words WHERE words MATCH ? AND rowid BETWEEN ? AND ?"
        found = {row[0] for some in split_ranges(wanted) for row in db.execute(search, (match, some[0], some[-1]))}
        return [SQLCondition(sql, (dumps([id for id in wanted if id in found]),))]

    return look_up


def split_ranges(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Split ascending ids where the gap to the previous id is larger than `MAX_ID_GAP`."""
    begin = 0
    for place in range(1, len(ids) + 1):
        if place == len(ids) or ids[place] - ids[place - 1] > MAX_ID_GAP:
            yield ids[begin:place]
            begin = place


def _feedback(wanted: Any) -> list[SQLCondition]:
    return [
        SQLCondition(
            f"{NEWEST_FEEDBACK_SQL.format('label' if isinstance(value, str) else 'score')} {SQL_OPERATORS[operator]} ?",
            (key, value),
        )
        for key, operator, value in wanted
    ]


def _outcome(sql: str) -> ConditionCompiler:
    return lambda keys: [SQLCondition(f"{NEWEST_FEEDBACK_SQL.format('outcome')} {sql}", (key,)) for key in keys]


def _untried(keys: Any) -> list[SQLCondition]:
    return [SQLCondition(f"NOT EXISTS (SELECT 1 {FEEDBACK_WITHOUT_RULE})", (key,)) for key in keys]


def _text(value: str) -> list[SQLCondition]:
    match = compile_match(value)
    return (
        [SQLCondition("EXISTS (SELECT 1 FROM words WHERE words MATCH ? AND rowid = t.id)", (match,))] if match else []
    )


_RULE_COMPILERS: dict[str, ConditionCompiler] = {
    **COMPILERS,
    "feedback": _feedback,
    "missing": _outcome("IS NOT 'score'"),
    "untried": _untried,
    "failed": _outcome("IS 'error'"),
    "skipped": _outcome("IS 'skip'"),
}


MAX_CONDITIONS = 200  # conditions in one statement; SQLite limits the number of columns
MAX_SHOWN_VALUES = 20  # list elements shown


class _ConditionQuery(NamedTuple):
    """One condition, with the SQL of its result and of the value found."""

    name: str
    wanted: JSON
    sql: Sql
    seen: str
    seen_values: tuple[Any, ...]


def explain_filter(db: sqlite3.Connection, trace_id: str, filter: Filter) -> list[ConditionResult]:
    """Return the result of each condition for one trace. Raise `NotFound` if the store has no runs of it."""
    asked = [query for part in compile_rule_parts(filter) for query in _part_queries(part)]
    # the implicit condition that excludes evaluators' own traces; shown only if it fails
    if filter.leaves_out_judgements:
        visible = Sql(VISIBLE_SQL.format("t"))
        asked.insert(0, _ConditionQuery("judgement", False, visible, f"(t.kind = '{EVALUATOR_KIND}')", ()))
    told = [
        one
        for start in range(0, len(asked) or 1, MAX_CONDITIONS)
        for one in _evaluate_conditions(db, trace_id, asked[start : start + MAX_CONDITIONS])
    ]
    return [one for one in told if one.name != "judgement" or not one.passes]


def _evaluate_conditions(
    db: sqlite3.Connection, trace_id: str, asked: Sequence[_ConditionQuery]
) -> list[ConditionResult]:
    columns = "".join(f", ({one.sql.sql}), {one.seen}" for one in asked)
    values = [value for one in asked for value in (*one.sql.values, *one.seen_values)]
    sql = f"SELECT {AWAITS_INDEX_SQL}{columns} FROM traces t WHERE t.trace_id = ? AND t.span_count > 0"
    row = db.execute(sql, (*values, trace_id)).fetchone()
    if row is None:
        raise NotFound(f"there is no trace {trace_id!r} in this store")
    return [_make_condition(one, bool(row[0]), *row[1 + 2 * n : 3 + 2 * n]) for n, one in enumerate(asked)]


def _make_condition(asked: _ConditionQuery, waits: bool, passes: int | None, seen: Any) -> ConditionResult:
    if asked.name == "text" and waits:
        return ConditionResult(name=asked.name, wanted=asked.wanted, seen="not in the text index yet", passes=None)
    if asked.name in _LIST_CONDITIONS:
        seen = loads(seen)[:MAX_SHOWN_VALUES] if seen else []
    elif asked.name in ("complete", "judgement") and seen is not None:
        seen = bool(seen)
    return ConditionResult(name=asked.name, wanted=asked.wanted, seen=seen, passes=bool(passes))


def _part_queries(part: FilterPart) -> Iterator[_ConditionQuery]:
    """Yield one query per condition of a part."""
    wanted_values: list[JSON]
    if not part.conditions:
        wanted_values = []
    elif part.name == "metadata":
        wanted_values = [{key: value} for key, value in part.value.items()]
    elif part.name in ("tags", *_KEYED_CONDITIONS):
        wanted_values = list(part.value)
    else:
        wanted_values = [part.value]
    for wanted, sql in zip(wanted_values, part.conditions, strict=True):
        values: tuple[str, ...] = ()  # the value of the parameter in `VALUE_SQL`, if there is one
        if part.name in ("metadata", *_KEYED_CONDITIONS):
            values = (wanted if isinstance(wanted, str) else next(iter(wanted)),)
        column = "label" if part.name == "feedback" and isinstance(wanted[2], str) else "score"
        yield _ConditionQuery(part.name, wanted, sql, VALUE_SQL[part.name].format(column), values)


_KEYED_CONDITIONS = ("feedback", "missing", "untried", "failed", "skipped")
_LIST_CONDITIONS = ("any_name", "any_kind", "model", "tags")
VALUE_SQL: Mapping[str, str] = {
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
    "metadata": f"(SELECT {METADATA_TEXT_SQL} FROM json_each(t.metadata) m WHERE m.key = ?)",
    "session": "t.session_id",
    "user": "t.user_id",
    "feedback": NEWEST_FEEDBACK_SQL,
    "missing": NEWEST_FEEDBACK_SQL.replace("{}", "outcome"),
    "untried": f"(SELECT count(*) {FEEDBACK_WITHOUT_RULE})",
    "failed": NEWEST_FEEDBACK_SQL.replace("{}", "outcome"),
    "skipped": NEWEST_FEEDBACK_SQL.replace("{}", "outcome"),
    "text": "NULL",
    "experiment": "t.experiment_id",
    "experiments": "t.experiment_id",
    "example": "t.example_id",
    "complete": complete_sql(),
    "trace_ids": "t.trace_id",
}
