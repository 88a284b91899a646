"""A filter as SQL: conditions on the row `t` of `traces`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from spanwise.collector.errors import Refused
from spanwise.collector.filters import EVALUATOR, OPERATORS, Filter, words
from spanwise.collector.readings import as_text
from spanwise.collector.stores.sqlite._rollup import LISTED
from spanwise.collector.stores.sqlite._values import dumps


class Condition(NamedTuple):
    """SQL that holds for a row `t`; `ids` is a statement that yields the ids of all such rows, where an index can."""

    sql: str
    values: tuple[Any, ...] = ()
    ids: str | None = None
    ids_values: tuple[Any, ...] = ()


_NOTHING = Filter()
# True of the same ones as `span_count > 0`, and every index that is walked has it. With the `+` it chooses none
HERE = Condition("+t.start_ns IS NOT NULL")


def conditions(filter: Filter) -> list[Condition]:
    """What must hold, all of it. Traces of which only feedback has arrived never pass."""
    return [HERE, *(condition for part in parts(filter, WRITERS) for condition in part.conditions)]


class Part(NamedTuple):
    """What a filter says under one name, and what of it must hold, one by one."""

    name: str
    value: Any
    conditions: list[Condition]


def parts(filter: Filter, writers: Mapping[str, Callable[[Any], list[Condition]]]) -> Iterator[Part]:
    """What the filter says, name by name."""
    for name in Filter.__slots__:
        value = getattr(filter, name)
        if value != getattr(_NOTHING, name):
            yield Part(name, value, writers[name](value))


# No evaluator's own trace (see `Filter`). Literally so stand these two in the schema, else no index would serve them
SHOWN = f"({{0}}.kind <> '{EVALUATOR}' OR {{0}}.experiment_id IS NOT NULL)"


OF_EVALUATORS = f"t.kind = '{EVALUATOR}'"


def visible(filter: Filter) -> list[Condition]:
    """As `conditions`, and without evaluators' own traces, unless they are asked for."""
    wanted = conditions(filter)
    return [Condition(SHOWN.format("t")), *wanted] if filter.leaves_out_judgements else wanted


def joined(wanted: Sequence[Condition]) -> tuple[str, tuple[Any, ...]]:
    """All of the conditions as one, with the values for its marks."""
    values = (value for condition in wanted for value in condition.values)
    return " AND ".join(condition.sql for condition in wanted), tuple(values)


def _equals(column: str) -> Callable[[Any], list[Condition]]:
    return lambda value: [Condition(f"t.{column} = ?", (value,))]


def _element(column: str) -> Callable[[Any], list[Condition]]:
    """The JSON array in a column has the value; `instr` first, because it is cheap and nearly always right."""
    sql = f"(instr(t.{column}, ?) > 0 AND EXISTS (SELECT 1 FROM json_each(t.{column}) WHERE value = ?))"
    return lambda value: [Condition(sql, (dumps(value), value))]


def _listed(column: str, of_spans: str) -> Callable[[Any], list[Condition]]:
    """As `_element`; where the list is full, the spans are asked."""
    full = f"t.span_count >= {LISTED} AND (SELECT count(*) FROM json_each(t.{column})) >= {LISTED}"
    more = f"({full} AND EXISTS (SELECT 1 FROM spans s WHERE s.trace = t.id AND s.{of_spans} = ?))"

    def write(value: Any) -> list[Condition]:
        [listed] = _element(column)(value)
        return [Condition(f"({listed.sql} OR {more})", (*listed.values, value))]

    return write


COMPARED = {operator: "<>" if operator == "!=" else operator for operator in OPERATORS}


def _compared(expression: str) -> Callable[[Any], list[Condition]]:
    def write(value: Any) -> list[Condition]:
        operator, bound = value
        return [Condition(f"{expression} {_operator(operator)} ?", (bound,))]

    return write


def _operator(operator: str) -> str:
    if operator not in OPERATORS:
        raise Refused(f"unknown comparison {operator!r}; use one of {', '.join(OPERATORS)}")
    return COMPARED[operator]


_STATUSES = {
    "error": "t.error_count > 0 AND t.status = 'error'",  # the first half lets SQLite use the index over such traces
    "ok": "t.status NOT IN ('error', 'cancelled')",
    "cancelled": "t.status = 'cancelled'",
    "unset": "t.status = 'unset'",
}


def _error(value: str) -> list[Condition]:
    """All words somewhere in the error of one run."""
    asked = value.split()
    like = " AND ".join(["s.error LIKE ? ESCAPE '\\'"] * len(asked)) or "1"
    sql = f"t.error_count > 0 AND EXISTS (SELECT 1 FROM spans s WHERE s.trace = t.id AND {like})"
    return [Condition(sql, tuple(f"%{_escaped(word)}%" for word in asked))]


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _model(value: str) -> list[Condition]:
    sql = "(instr(t.models, ?) > 0 AND EXISTS (SELECT 1 FROM json_each(t.models) WHERE key = ?))"
    full = f"t.span_count >= {LISTED} AND (SELECT count(*) FROM json_each(t.models)) >= {LISTED}"
    more = f"({full} AND EXISTS (SELECT 1 FROM spans s WHERE s.trace = t.id AND s.model = ?))"
    return [Condition(f"({sql} OR {more})", (dumps(value), value, value))]


# Of a value `m` out of JSON
AS_TEXT = "CASE m.type WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE CAST(m.value AS TEXT) END"


def _metadata(wanted: Any) -> list[Condition]:
    """What stands in the JSON of every trace that has it first, because to look for that is cheap."""
    sql = (
        "(instr(t.metadata, ?) > 0 OR instr(t.metadata, ?) > 0)"
        f" AND EXISTS (SELECT 1 FROM json_each(t.metadata) m WHERE m.key = ? AND {AS_TEXT} = ?)"
    )
    asked = [(str(key), as_text(value)) for key, value in wanted.items()]
    return [Condition(sql, (*_in_json(key, text), key, text)) for key, text in asked]


def _in_json(key: str, text: str) -> tuple[str, str]:
    """How a key with its value begins, as a text and as anything else; alone where that is a number with a fraction,
    which is written in more than one way.
    """
    begun = dumps(key) + ":"
    if text in ("true", "false") or _WHOLE.fullmatch(text):
        return begun + dumps(text), begun + text
    try:
        float(text or "0")
    except ValueError:
        return begun + dumps(text), begun + dumps(text)
    return begun, begun


_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,14}")


# Named, because SQLite would take the index over scores and look through all traces' scores for every single trace.
OF_TRACE = "INDEXED BY feedback_by_trace WHERE f.trace = t.id"


def _feedback(wanted: Any) -> list[Condition]:
    """One for each key and column: of a key only the newest counts, so what is asked of it is asked of one row."""
    asked: dict[tuple[str, str], list[tuple[str, float | str]]] = {}
    for key, operator, value in wanted:
        asked.setdefault((key, "label" if isinstance(value, str) else "score"), []).append((operator, value))
    return [_scored(key, column, compared) for (key, column), compared in asked.items()]


def _scored(key: str, column: str, compared: Sequence[tuple[str, float | str]]) -> Condition:
    each = "".join(f" AND f.{column} {_operator(operator)} ?" for operator, _ in compared)
    holds = f"f.key = ? AND f.standing = 2{each}"
    values = (key, *(value for _, value in compared))
    return Condition(
        f"EXISTS (SELECT 1 FROM feedback f {OF_TRACE} AND {holds})",
        values,
        f"SELECT f.trace FROM feedback f INDEXED BY feedback_by_{column} WHERE {holds}",
        values,
    )


def _missing(keys: Any) -> list[Condition]:
    # Literally so stands it in the index, else the feedback would be looked at
    scored = "(f.standing = 2 AND f.outcome = 'score') = 1"
    sql = f"NOT EXISTS (SELECT 1 FROM feedback f {OF_TRACE} AND f.key = ? AND {scored})"
    return [Condition(sql, (key,)) for key in keys]


def _untried(keys: Any) -> list[Condition]:
    return [Condition(f"NOT EXISTS (SELECT 1 FROM feedback f {OF_TRACE} AND f.key = ?)", (key,)) for key in keys]


def _outcome(outcome: str) -> Callable[[Any], list[Condition]]:
    holds = f"f.key = ? AND f.standing = 2 AND f.outcome = '{outcome}'"
    sql = f"EXISTS (SELECT 1 FROM feedback f {OF_TRACE} AND {holds})"
    ids = f"SELECT f.trace FROM feedback f INDEXED BY feedback_without_score WHERE {holds} AND f.outcome <> 'score'"
    return lambda keys: [Condition(sql, (key,), ids, (key,)) for key in keys]


BEGINNINGS = 8  # of words, in one question


def _text(value: str) -> list[Condition]:
    match = matching(value)
    if not match:
        return []
    if match.count('"*') > BEGINNINGS:
        raise Refused(f"text asks for more than {BEGINNINGS} beginnings of words; write some words out, without `*`")
    if short := _SHORT.search(match):
        way = "write three letters or more, or a word out, without `*`"
        raise Refused(f"text asks for all words that begin with {short[1]!r}; {way}")
    ids = "SELECT rowid FROM words WHERE words MATCH ?"
    return [Condition(f"t.id IN ({ids})", (match,), ids, (match,))]


# A beginning that so many words have that FTS5 takes 0.1 s to gather those of 200,000 traces, and longer for more; from
# U+3000 on, as in Chinese, a character is as rare as a word
_SHORT = re.compile(r'"([\x00-\u2fff]{1,2})"\*')


def matching(text: str) -> str:
    """FTS5's form of "all of these words"; a word that ends in `*` stands for every word that begins so.

    What FTS5 would split has to come split, since the index knows no phrases: `e-mail` is `e` and `mail`. A beginning
    that another word has is left out: for each, FTS5 puts together the list of all traces with any such word.
    """
    asked = dict.fromkeys(words(text))
    begun = {one for one, next in pairwise(sorted({word for word, _ in asked})) if next.startswith(one)}
    begun.update(word for word, star in asked if not star)
    return " ".join(f'"{word}"{star}' for word, star in asked if not (star and word in begun))


def _experiment(value: str) -> list[Condition]:
    return [Condition("t.experiment_id = ?", (value,)) if value else Condition("t.experiment_id IS NULL")]


def _dataset(name: str) -> list[Condition]:
    raise Refused(f"which experiments ran over dataset {name!r} is known to the control records: see `Both`")


def _complete(value: bool) -> list[Condition]:
    return [Condition(complete_sql() if value else f"NOT {complete_sql()}")]


QUIET_NS = 5_000_000_000  # a trace whose spans cannot be counted is complete when nothing has come for this long


def complete_sql() -> str:
    """Whether the trace is complete: nothing of it was dropped, and it was counted, or quiet for long enough."""
    quiet = f"t.updated_ns <= (SELECT store_now()) - {QUIET_NS}"  # as a subquery, it is called once a statement
    settled = f"(t.complete IS 1 OR (t.complete IS NULL AND {quiet}))"
    return f"(t.dropped = 0 AND {settled})"  # never NULL: it is negated, too


def _one_of(column: str) -> Callable[[Any], list[Condition]]:
    return lambda values: [Condition(f"t.{column} IN ({','.join('?' * len(values))})", tuple(values))]


WRITERS: dict[str, Callable[[Any], list[Condition]]] = {
    "project": _equals("project"),
    "environment": _equals("environment"),
    "since_ns": lambda value: [Condition("t.start_ns >= ?", (value,))],
    "until_ns": lambda value: [Condition("t.start_ns < ?", (value,))],
    "name": _equals("name"),
    "kind": lambda value: [Condition(OF_EVALUATORS)] if value == EVALUATOR else _equals("kind")(value),
    "any_name": _listed("names", "name"),
    "any_kind": _listed("kinds", "kind"),
    "status": lambda value: [Condition(_STATUSES[value])],
    "error": _error,
    "model": _model,
    "latency_ms": _compared("(t.end_ns - t.start_ns) / 1e6"),
    "tokens": _compared("(t.input_tokens + t.output_tokens)"),
    "cost": _compared("t.cost"),
    "tags": lambda tags: [condition for tag in tags for condition in _element("tags")(tag)],
    "metadata": _metadata,
    "session": _equals("session_id"),
    "user": _equals("user_id"),
    "feedback": _feedback,
    "missing": _missing,
    "untried": _untried,
    "failed": _outcome("error"),
    "skipped": _outcome("skip"),
    "text": _text,
    "experiment": _experiment,
    "experiments": lambda ids: [Condition("t.experiment_id IN (SELECT value FROM json_each(?))", (dumps(ids),))],
    "dataset": _dataset,
    "example": _equals("example_id"),
    "complete": _complete,
    "trace_ids": _one_of("trace_id"),
}
