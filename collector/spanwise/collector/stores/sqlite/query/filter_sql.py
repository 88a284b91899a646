"""Filters compiled to SQL conditions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from spanwise.collector.errors import Refused
from spanwise.collector.filter_values import YES_AND_NO, metadata_text
from spanwise.collector.filters import (
    EVALUATOR_KIND,
    MAX_CONDITION_VALUES,
    MAX_PREFIXES,
    OPERATORS,
    Filter,
    refuse_dataset,
)
from spanwise.collector.stores.sqlite.database.column_values import dumps
from spanwise.collector.stores.sqlite.search.fulltext_tokens import compile_match
from spanwise.collector.stores.sqlite.write.trace_summary import MAX_LISTED


class SQLCondition(NamedTuple):
    """SQL condition on a row `t`.

    `ids` is a statement that yields the ids of all rows for which the condition holds, if an index can provide them.
    """

    sql: str
    values: tuple[Any, ...] = ()
    ids: str | None = None
    ids_values: tuple[Any, ...] = ()


_EMPTY_FILTER = Filter()
# Selects the same rows as `span_count > 0`, but the column is in every index that a query may walk. The `+` keeps
# SQLite from choosing an index because of this condition
HAS_SPANS = SQLCondition("+t.start_ns IS NOT NULL")


def compile_filter(filter: Filter) -> list[SQLCondition]:
    """Return the conditions that a trace must meet. Traces of which only feedback has arrived never pass."""
    conditions = [HAS_SPANS]
    for name in Filter.__slots__:
        value = getattr(filter, name)
        if value != getattr(_EMPTY_FILTER, name):
            conditions += _prompt_version(value, filter.prompt) if name == "prompt_version" else COMPILERS[name](value)
    return conditions


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


def _prompt_version(version: str, prompt: str | None) -> list[SQLCondition]:
    """Compile a condition that a run used a version of a prompt, or of any prompt if `prompt` is None."""
    sql = "SELECT 1 FROM json_each(t.prompts) p CROSS JOIN json_each(p.value) v WHERE v.value = ?"
    values: tuple[Any, ...] = (dumps(version), version)
    if prompt is not None:
        sql, values = f"{sql} AND p.key = ?", (*values, prompt)
    return [SQLCondition(f"(instr(t.prompts, ?) > 0 AND EXISTS ({sql}))", values)]


SQL_OPERATORS = {operator: "<>" if operator == "!=" else operator for operator in OPERATORS}


def _comparison(expression: str) -> Callable[[Any], list[SQLCondition]]:
    def compile_value(value: Any) -> list[SQLCondition]:
        operator, bound = value
        return [SQLCondition(f"{expression} {_operator(operator)} ?", (bound,))]

    return compile_value


def _operator(operator: str) -> str:
    if operator not in OPERATORS:
        raise Refused(f"unknown operator {operator!r}; expected one of: {', '.join(OPERATORS)}")
    return SQL_OPERATORS[operator]


_STATUSES = {
    # the first condition lets SQLite use the index of traces with errors
    "error": "t.error_count > 0 AND t.status = 'error'",
    "ok": "t.status NOT IN ('error', 'cancelled')",
    "cancelled": "t.status = 'cancelled'",
    "unset": "t.status = 'unset'",
}


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
    each = "".join(f" AND {_feedback_value(value)} {_operator(operator)} ?" for operator, value in comparisons)
    holds = f"f.key = ? AND f.standing = 2{each}"
    values = (key, *(value for _, value in comparisons))
    sql = f"EXISTS (SELECT 1 FROM feedback f {FEEDBACK_OF_TRACE} AND {holds})"
    if any(value in YES_AND_NO.values() for _, value in comparisons):  # no index has both labels and scores
        return SQLCondition(sql, values)
    ids = f"SELECT f.trace FROM feedback f INDEXED BY feedback_by_{column} WHERE {holds}"
    return SQLCondition(sql, values, ids, values)


def _feedback_value(wanted: float | str) -> str:
    """Return the SQL of the value that a condition compares: score or label. For the bounds "yes" and "no", a score of
    1 or 0 without a label is compared as "yes" or "no".
    """
    if wanted in YES_AND_NO.values():
        named = " ".join(f"WHEN {score} THEN '{name}'" for score, name in YES_AND_NO.items())
        return f"coalesce(f.label, CASE f.score {named} END)"
    return "f.label" if isinstance(wanted, str) else "f.score"


def _document_feedback(wanted: Any) -> list[SQLCondition]:
    """Compile one condition for each comparison, which may hold for different documents."""
    found = []
    for key, operator, value in wanted:
        compared = f"{_feedback_value(value)} {_operator(operator)} ?"
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
    match = compile_match(value)
    if not match:
        return []
    if match.count('"*') > MAX_PREFIXES:
        raise Refused(f"text has more than {MAX_PREFIXES} prefixes such as `pay*`; write some of the words out")
    if short := _SHORT_PREFIX.search(match):
        raise Refused(f"the prefix {short[1] + '*'!r} in text is too short; write at least three letters before `*`")
    if (count := match.count(" ") + 1) > MAX_CONDITION_VALUES:
        raise Refused(f"text has {count:,} words, more than the limit of {MAX_CONDITION_VALUES}")
    ids = "SELECT rowid FROM words WHERE words MATCH ?"
    return [SQLCondition(f"t.id IN ({ids})", (match,), ids, (match,))]


# Prefixes with too many matching words: FTS5 takes at least 0.1 s to merge the lists for 200,000 traces. From U+3000
# on, as in Chinese, a single character is as rare as a word
_SHORT_PREFIX = re.compile(r'["\s]([^"\s\u1100-\u11ff\u3000-\U0010ffff]{1,2})"\*')


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
    "project": _equals("project"),
    "environment": _equals("environment"),
    "since_ns": lambda value: [SQLCondition("t.start_ns >= ?", (value,))],
    "until_ns": lambda value: [SQLCondition("t.start_ns < ?", (value,))],
    "name": _equals("name"),
    "kind": lambda value: [SQLCondition(EVALUATOR_SQL)] if value == EVALUATOR_KIND else _equals("kind")(value),
    "any_name": _list_element("names", "name"),
    "any_kind": _list_element("kinds", "kind"),
    "status": lambda value: [SQLCondition(_STATUSES[value])],
    "error": _error,
    "model": _list_element("models", "model", "key"),
    "prompt": _element("prompts", "key"),
    "agent": _element("agents"),
    "finish_reason": _element("finish_reasons"),
    "version": lambda value: [SQLCondition(f"{VERSION_SQL} = ?", (value,))],
    "time_to_first_token_ms": _comparison("t.time_to_first_token_ms"),
    "latency_ms": _comparison("(t.end_ns - t.start_ns) / 1e6"),
    "tokens": _comparison("(t.input_tokens + t.output_tokens)"),
    "cost": _comparison("t.cost"),
    "tags": lambda tags: [condition for tag in tags for condition in _element("tags")(tag)],
    "metadata": _metadata,
    "session": _equals("session_id"),
    "user": _equals("user_id"),
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
    "example": _equals("example_id"),
    "complete": lambda value: [SQLCondition(complete_sql() if value else f"NOT {complete_sql()}")],
    "trace_ids": lambda ids: [SQLCondition(f"t.trace_id IN ({','.join('?' * len(ids))})", tuple(ids))],
    "excluded": lambda pairs: [  # conditions that must not hold; a trace without a value passes
        SQLCondition(f"({sql}) IS NOT TRUE", values)
        for name, value in pairs
        for sql, values in [join_conditions(COMPILERS[name]((value,) if name == "tags" else value))]
    ],
}
