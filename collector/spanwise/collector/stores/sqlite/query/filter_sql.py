"""Filters compiled to SQL conditions, and the choice of the index that leads a query."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from spanwise.collector.filters import (
    EVALUATOR_KIND,
    OPERATORS,
    YES_AND_NO,
    Filter,
    metadata_text,
    refuse_dataset,
)
from spanwise.collector.stores.queries.filter_columns import (
    EQUAL_COLUMNS,
    NUMBERS,
    STATUSES,
    check_operator,
    get_compared_value,
    list_conditions,
)
from spanwise.collector.stores.search_terms import check_terms, compile_terms
from spanwise.collector.stores.sqlite.rollups.rollup_delta import HOUR_NS
from spanwise.collector.stores.sqlite.search.searchable_text import format_match
from spanwise.collector.stores.table_rows import INT_MAX, dumps
from spanwise.collector.stores.trace_summary import MAX_LISTED

# Filters compiled to SQL conditions.


class SQLCondition(NamedTuple):
    """SQL condition on a row `t`.

    `ids` is a statement that yields the ids of all rows for which the condition holds, if an index can provide them.
    """

    sql: str
    values: tuple[Any, ...] = ()
    ids: str | None = None
    ids_values: tuple[Any, ...] = ()


# Selects the same rows as `span_count > 0`, but the column is in every index that a query may walk. The `+` keeps
# SQLite from choosing an index because of this condition
HAS_SPANS = SQLCondition("+t.start_ns IS NOT NULL")


def compile_filter(filter: Filter) -> list[SQLCondition]:
    """Return the conditions that a trace must meet. Traces of which only feedback has arrived never pass."""
    compiled = (COMPILERS[name](value) for name, value in list_conditions(filter))
    return [HAS_SPANS, *(condition for conditions in compiled for condition in conditions)]


# Excludes evaluators' own traces (see `Filter`). The schema's partial indexes contain these two texts literally; any
# other wording would make SQLite ignore the indexes
VISIBLE_SQL = f"({{0}}.kind <> '{EVALUATOR_KIND}' OR {{0}}.experiment_id IS NOT NULL)"


EVALUATOR_SQL = f"t.kind = '{EVALUATOR_KIND}'"


def compile_visible_filter(filter: Filter) -> list[SQLCondition]:
    """Return the conditions of `compile_filter`, and exclude evaluators' own traces unless the filter asks for them."""
    conditions = compile_filter(filter)
    return [SQLCondition(VISIBLE_SQL.format("t")), *conditions] if filter.leaves_out_judgements else conditions


def join_conditions(conditions: Sequence[SQLCondition]) -> tuple[str, tuple[Any, ...]]:
    """Return the conjunction of the conditions, with the parameter values."""
    values = (value for condition in conditions for value in condition.values)
    return " AND ".join(condition.sql for condition in conditions), tuple(values)


def _equals(column: str) -> Callable[[Any], list[SQLCondition]]:
    return lambda value: [SQLCondition(f"t.{column} = ?", (value,))]


def _element(column: str, part: str = "value") -> Callable[[Any], list[SQLCondition]]:
    """Compile a condition that the JSON in a column has a value, or a key. The condition tests `instr` first, because
    it is cheap and nearly always right.
    """
    sql = f"(instr(t.{column}, ?) > 0 AND EXISTS (SELECT 1 FROM json_each(t.{column}) WHERE {part} = ?))"
    return lambda value: [SQLCondition(sql, (dumps(value), value))]


def _list_element(column: str, of_spans: str, part: str = "value") -> Callable[[Any], list[SQLCondition]]:
    """Compile a condition like `_element`. If the list has reached its maximum length, it may lack values, so the
    condition also searches the spans.
    """
    is_full = f"t.span_count >= {MAX_LISTED} AND (SELECT count(*) FROM json_each(t.{column})) >= {MAX_LISTED}"
    in_spans = f"({is_full} AND EXISTS (SELECT 1 FROM spans s WHERE s.trace = t.id AND s.{of_spans} = ?))"
    compile_element = _element(column, part)

    def compile_value(value: Any) -> list[SQLCondition]:
        [listed] = compile_element(value)
        return [SQLCondition(f"({listed.sql} OR {in_spans})", (*listed.values, value))]

    return compile_value


def _prompt_version(wanted: tuple[str, str | None]) -> list[SQLCondition]:
    """Compile a condition that a run used a version of a prompt, or of any prompt if `prompt` is None."""
    version, prompt = wanted
    sql = "SELECT 1 FROM json_each(t.prompts) p CROSS JOIN json_each(p.value) v WHERE v.value = ?"
    values: tuple[Any, ...] = (dumps(version), version)
    if prompt is not None:
        sql, values = f"{sql} AND p.key = ?", (*values, prompt)
    return [SQLCondition(f"(instr(t.prompts, ?) > 0 AND EXISTS ({sql}))", values)]


SQL_OPERATORS: Mapping[str, str] = {operator: "<>" if operator == "!=" else operator for operator in OPERATORS}


def _comparison(expression: str) -> Callable[[Any], list[SQLCondition]]:
    def compile_value(value: Any) -> list[SQLCondition]:
        operator, bound = value
        return [SQLCondition(f"{expression} {_operator(operator)} ?", (bound,))]

    return compile_value


def _operator(operator: str) -> str:
    check_operator(operator)
    return SQL_OPERATORS[operator]


# the first condition lets SQLite use the index of traces with errors
_STATUSES = {**STATUSES, "error": f"t.error_count > 0 AND {STATUSES['error']}"}


def _error(value: str) -> list[SQLCondition]:
    """Compile a condition that the error of one run contains all words."""
    words = value.split()
    like = " AND ".join(["s.error LIKE ? ESCAPE '\\'"] * len(words)) or "1"
    sql = f"t.error_count > 0 AND EXISTS (SELECT 1 FROM spans s WHERE s.trace = t.id AND {like})"
    patterns = (word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") for word in words)
    return [SQLCondition(sql, tuple(f"%{word}%" for word in patterns))]


# Text of a JSON value `m`
METADATA_TEXT_SQL = "CASE m.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE CAST(m.value AS TEXT) END"


def _metadata(wanted: Any) -> list[SQLCondition]:
    """Compile conditions on metadata. The substring search in the JSON comes first because it is cheap."""
    sql = (
        "(instr(t.metadata, ?) > 0 OR instr(t.metadata, ?) > 0)"
        f" AND EXISTS (SELECT 1 FROM json_each(t.metadata) m WHERE m.key = ? AND {METADATA_TEXT_SQL} = ?)"
    )
    texts = [(str(key), metadata_text(value)) for key, value in wanted.items()]
    return [SQLCondition(sql, (*_in_json(key, text), key, text)) for key, text in texts]


def _in_json(key: str, text: str) -> tuple[str, str]:
    """Return how a key with its value may begin in JSON text: with the value as a string, and as another type.

    For a number with a fraction, both texts have only the key, because such numbers have several notations.
    """
    prefix = dumps(key) + ":"
    if text in ("true", "false") or _INTEGER.fullmatch(text):
        return prefix + dumps(text), prefix + text
    try:
        float(text or "0")
    except ValueError:
        return prefix + dumps(text), prefix + dumps(text)
    return prefix, prefix


_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,14}")


# The index is forced. Otherwise SQLite would choose the index of scores and scan the scores of all traces for every
# single trace.
FEEDBACK_OF_TRACE = "INDEXED BY feedback_by_trace WHERE f.trace = t.id"


def _feedback(wanted: Any) -> list[SQLCondition]:
    """Compile one condition for all comparisons of a key with the same column. Only the newest feedback of a key counts,
    so all these comparisons apply to one row.
    """
    by_column: dict[tuple[str, str], list[tuple[str, float | str]]] = {}
    for key, operator, value in wanted:
        by_column.setdefault((key, "label" if isinstance(value, str) else "score"), []).append((operator, value))
    return [_feedback_condition(key, column, comparisons) for (key, column), comparisons in by_column.items()]


def _feedback_condition(key: str, column: str, comparisons: Sequence[tuple[str, float | str]]) -> SQLCondition:
    each = "".join(f" AND {get_compared_value(value, 'f.')} {_operator(operator)} ?" for operator, value in comparisons)
    holds = f"f.key = ? AND f.standing = 2{each}"
    values = (key, *(value for _, value in comparisons))
    sql = f"EXISTS (SELECT 1 FROM feedback f {FEEDBACK_OF_TRACE} AND {holds})"
    if any(value in YES_AND_NO.values() for _, value in comparisons):  # no index has both labels and scores
        return SQLCondition(sql, values)
    ids = f"SELECT f.trace FROM feedback f INDEXED BY feedback_by_{column} WHERE {holds}"
    return SQLCondition(sql, values, ids, values)


def _document_feedback(wanted: Any) -> list[SQLCondition]:
    """Compile one condition for each comparison, which may hold for different documents."""
    found = []
    for key, operator, value in wanted:
        compared = f"{get_compared_value(value, 'f.')} {_operator(operator)} ?"
        holds = f"f.key = ? AND f.document IS NOT NULL AND f.standing >= 1 AND {compared}"
        found.append(SQLCondition(f"EXISTS (SELECT 1 FROM feedback f {FEEDBACK_OF_TRACE} AND {holds})", (key, value)))
    return found


def _missing(keys: Any) -> list[SQLCondition]:
    # Must equal the expression in the index literally; otherwise SQLite reads the feedback rows
    scored = "(f.standing = 2 AND f.outcome = 'score') = 1"
    sql = f"NOT EXISTS (SELECT 1 FROM feedback f {FEEDBACK_OF_TRACE} AND f.key = ? AND {scored})"
    return [SQLCondition(sql, (key,)) for key in keys]


_UNTRIED_SQL = f"NOT EXISTS (SELECT 1 FROM feedback f {FEEDBACK_OF_TRACE} AND f.key = ?)"


def _outcome(outcome: str) -> Callable[[Any], list[SQLCondition]]:
    holds = f"f.key = ? AND f.standing = 2 AND f.outcome = '{outcome}'"
    sql = f"EXISTS (SELECT 1 FROM feedback f {FEEDBACK_OF_TRACE} AND {holds})"
    ids = f"SELECT f.trace FROM feedback f INDEXED BY feedback_without_score WHERE {holds} AND f.outcome <> 'score'"
    return lambda keys: [SQLCondition(sql, (key,), ids, (key,)) for key in keys]


def _text(value: str) -> list[SQLCondition]:
    terms = compile_terms(value)
    if not terms:
        return []
    check_terms(terms)
    ids, match = "SELECT rowid FROM words WHERE words MATCH ?", format_match(terms)
    return [SQLCondition(f"t.id IN ({ids})", (match,), ids, (match,))]


QUIET_NS = 5_000_000_000  # a trace whose spans cannot be counted is complete if no span has arrived for this long


def complete_sql() -> str:
    """Return SQL that is true for complete traces: no span was dropped, and all spans have arrived. If their number is
    unknown, no span must have arrived for `QUIET_NS`.
    """
    quiet = f"t.updated_ns <= (SELECT store_now()) - {QUIET_NS}"  # as a subquery, it is evaluated once per statement
    settled = f"(t.complete IS 1 OR (t.complete IS NULL AND {quiet}))"
    # must not be NULL: filters also negate it, and `NOT NULL` is NULL, which would drop the row
    return f"(t.dropped = 0 AND {settled})"


# Version of the service that sent the root run of a trace `t`
VERSION_SQL = (
    "(SELECT CAST(json_extract(r.data, '$.\"service.version\"') AS TEXT)"
    " FROM spans s JOIN resources r ON r.id = s.resource WHERE s.id = t.root)"
)


COMPILERS: dict[str, Callable[[Any], list[SQLCondition]]] = {
    **{name: _equals(column) for name, column in EQUAL_COLUMNS.items()},
    **{name: _comparison(expression) for name, expression in NUMBERS.items()},
    "since_ns": lambda value: [SQLCondition("t.start_ns >= ?", (value,))],
    "until_ns": lambda value: [SQLCondition("t.start_ns < ?", (value,))],
    "kind": lambda value: [SQLCondition(EVALUATOR_SQL)] if value == EVALUATOR_KIND else _equals("kind")(value),
    "any_name": _list_element("names", "name"),
    "any_kind": _list_element("kinds", "kind"),
    "status": lambda value: [SQLCondition(_STATUSES[value])],
    "error": _error,
    "model": _list_element("models", "model", "key"),
    "prompt": _element("prompts", "key"),
    "prompt_version": _prompt_version,
    "agent": _element("agents"),
    "finish_reason": _element("finish_reasons"),
    "version": lambda value: [SQLCondition(f"{VERSION_SQL} = ?", (value,))],
    "tags": lambda tags: [condition for tag in tags for condition in _element("tags")(tag)],
    "metadata": _metadata,
    "feedback": _feedback,
    "document_feedback": _document_feedback,
    "missing": _missing,
    "untried": lambda keys: [SQLCondition(_UNTRIED_SQL, (key,)) for key in keys],
    "failed": _outcome("error"),
    "skipped": _outcome("skip"),
    "text": _text,
    "experiment": lambda id: _equals("experiment_id")(id) if id else [SQLCondition("t.experiment_id IS NULL")],
    "experiments": lambda ids: [SQLCondition("t.experiment_id IN (SELECT value FROM json_each(?))", (dumps(ids),))],
    "dataset": refuse_dataset,
    "complete": lambda value: [SQLCondition(complete_sql() if value else f"NOT {complete_sql()}")],
    "trace_ids": lambda ids: [SQLCondition(f"t.trace_id IN ({','.join('?' * len(ids))})", tuple(ids))],
    "excluded": lambda pairs: [  # conditions that must not hold; a trace without a value passes
        SQLCondition(f"({sql}) IS NOT TRUE", values)
        for name, value in pairs
        for sql, values in [join_conditions(COMPILERS[name]((value,) if name == "tags" else value))]
    ],
}


# Query plans: choice of the index that leads a query over traces.
#
# - A condition with its own index (a score, words) is probed first. If it holds for few traces, they are fetched by id.
# - If it holds for many traces, the query walks the traces, latest first, and tests the condition on each.
# - If several conditions each hold for many traces but together for hardly any of the latest, that walk would be long.
#   The query then intersects their indexes.
# - A value that no run ever had needs no search.

FEW_TRACES = 3000
PROBE_TRACES, PROBE_PAGE = 5000, 50  # traces that a probe walks to see if they fill a page, and the length of that page
# Excludes sealed hours whose set of run names is complete and lacks this name
_MAY_HAVE_NAME = (
    f"t.start_ns / {HOUR_NS} NOT IN (SELECT hour FROM sums_hours WHERE named = 1"
    " EXCEPT SELECT hour FROM sums_names WHERE name = ?)"
)
INDEX_BY_START = "INDEXED BY traces_by_start"
INDEX_VISIBLE = "INDEXED BY traces_shown"


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """`FROM source WHERE where`, with `values` for its parameters. The row is named `t`."""

    source: str
    where: str
    values: tuple[Any, ...]

    def after(self, start_ns: int, key: int) -> QueryPlan:
        """Return the plan restricted to rows after a position, in the order latest first."""
        sql = f"{self.where} AND t.start_ns <= ? AND (t.start_ns < ? OR t.id < ?)"
        return replace(self, where=sql, values=(*self.values, start_ns, start_ns, key))


def plan_query(db: sqlite3.Connection, filter: Filter, *, in_order: bool = True, judgements: bool = False) -> QueryPlan:
    """Return the plan for a filter.

    `in_order`: the query reads the latest matching traces, not all of them. `judgements`: evaluators' own traces pass
    like all others.
    """
    if has_unknown_value(db, filter):
        return QueryPlan("traces t NOT INDEXED", "0", ())
    conditions = compile_filter(filter) if judgements else compile_visible_filter(filter)
    if filter.any_name is not None:
        conditions.append(SQLCondition(_MAY_HAVE_NAME, (filter.any_name,)))
    indexed = [(_count_matches(db, condition), condition) for condition in conditions if condition.ids is not None]
    matches, leading = min(indexed, key=lambda pair: pair[0], default=(FEW_TRACES + 1, None))
    if leading is not None and matches <= FEW_TRACES:
        return _plan_by_ids(conditions, [leading])
    index = _choose_index(filter, shown=not judgements and filter.leaves_out_judgements)
    reads_all = (
        not in_order
        and index in (INDEX_BY_START, INDEX_VISIBLE)
        and filter.since_ns is None
        and filter.until_ns is None
    )
    walk = QueryPlan("traces t NOT INDEXED" if reads_all else f"traces t {index}", *join_conditions(conditions))
    if len(indexed) > 1 and not (in_order and _fills_page(db, walk, filter)):
        return _plan_by_ids(conditions, [condition for _, condition in indexed])
    return walk


def plan_experiments(filter: Filter) -> QueryPlan:
    """Return the plan that finds traces of any experiment."""
    conditions = [SQLCondition("t.experiment_id IS NOT NULL"), *compile_visible_filter(filter)]
    return QueryPlan("traces t INDEXED BY traces_by_experiment", *join_conditions(conditions))


def _plan_by_ids(conditions: Sequence[SQLCondition], leading: Sequence[SQLCondition]) -> QueryPlan:
    """Return the plan that intersects the indexes of the leading conditions and tests the others on each trace."""
    common = " INTERSECT ".join(str(condition.ids) for condition in leading)
    driven = SQLCondition(
        f"t.id IN ({common})", tuple(value for condition in leading for value in condition.ids_values)
    )
    others = (condition for condition in conditions if not any(condition is other for other in leading))
    return QueryPlan("traces t NOT INDEXED", *join_conditions([driven, *others]))


def plan_latencies(filter: Filter) -> QueryPlan:
    """Return the plan for reading latencies, led by the most selective index. The filter must only have conditions on
    columns.
    """
    index = _choose_index(filter, shown=filter.leaves_out_judgements)
    return QueryPlan(f"traces t {index}", *join_conditions(compile_visible_filter(filter)))


def _count_matches(db: sqlite3.Connection, condition: SQLCondition) -> int:
    """Return the number of traces for which the condition holds, at most `FEW_TRACES` + 1."""
    sql = f"SELECT count(*) FROM (SELECT 1 FROM ({condition.ids}) LIMIT {FEW_TRACES + 1})"
    return int(db.execute(sql, condition.ids_values).fetchone()[0])


def _fills_page(db: sqlite3.Connection, walk: QueryPlan, filter: Filter) -> bool:
    """Return whether the matches among the latest `PROBE_TRACES` traces fill a page, or a walk would visit no other
    traces.
    """
    sql = "SELECT start_ns FROM traces WHERE start_ns < ? ORDER BY start_ns DESC LIMIT 1 OFFSET ?"
    last = db.execute(sql, (INT_MAX if filter.until_ns is None else filter.until_ns, PROBE_TRACES)).fetchone()
    if last is None or (filter.since_ns is not None and filter.since_ns >= last[0]):
        return True
    among = f"SELECT 1 FROM {walk.source} WHERE {walk.where} AND t.start_ns > ? LIMIT {PROBE_PAGE}"
    return bool(db.execute(f"SELECT count(*) FROM ({among})", (*walk.values, *last)).fetchone()[0] == PROBE_PAGE)


def has_unknown_value(db: sqlite3.Connection, filter: Filter) -> bool:
    """Return whether a condition asks for a value that no run has had.

    The table `known` holds all values of stored runs, and some of deleted ones.
    """
    values = (
        ("environment", filter.environment),
        ("kind", filter.kind),
        ("kind", filter.any_kind),
        ("model", filter.model),
        ("prompt", filter.prompt),
        ("prompt_version", filter.prompt_version),
        ("agent", filter.agent),
        ("finish_reason", filter.finish_reason),
        *(("tag", tag) for tag in filter.tags),
    )
    sql = "SELECT 1 FROM known WHERE field = ? AND value = ?"
    return any(value is not None and not db.execute(sql, (field, value)).fetchone() for field, value in values)


def _choose_index(filter: Filter, *, shown: bool) -> str:
    """Return the most selective index that has the order of the list. All of them are small."""
    if filter.trace_ids is not None:
        return ""
    for value, index in (
        (filter.session, "traces_by_session"),
        (filter.user, "traces_by_user"),
        (filter.experiment or filter.experiments is not None, "traces_by_experiment"),
        (filter.error or filter.status == "error", "traces_with_errors"),
        (filter.name, "traces_by_name"),
        (filter.kind == EVALUATOR_KIND, "traces_of_evaluators"),
        (filter.project and shown, "traces_shown_by_project"),  # no index by project includes evaluators' own traces
    ):
        if value:
            return f"INDEXED BY {index}"
    return INDEX_VISIBLE if shown else INDEX_BY_START
