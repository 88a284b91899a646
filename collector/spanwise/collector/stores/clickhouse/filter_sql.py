"""Filters compiled to SQL conditions on the summaries of traces. Values become parameters, never part of the SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isnan
from typing import Any, TypeAlias

from spanwise.collector.filters import (
    EVALUATOR_KIND,
    FeedbackCondition,
    Filter,
    metadata_text,
    refuse_dataset,
)
from spanwise.collector.stores.clickhouse.connection import QueryParameters
from spanwise.collector.stores.clickhouse.text_search import compile_text
from spanwise.collector.stores.queries.filter_columns import (
    EQUAL_COLUMNS,
    NUMBERS,
    STATUSES,
    check_operator,
    get_compared_value,
    list_conditions,
)
from spanwise.collector.stores.trace_summary import MAX_LISTED

QUIET_NS = 5_000_000_000  # a trace whose spans cannot be counted is complete if no span has arrived for this long
NOW_SQL = "toInt64(toUnixTimestamp64Nano(now64(9)))"  # clock of the server, which also sets `change`

VISIBLE_SQL = f"(t.kind <> '{EVALUATOR_KIND}' OR t.experiment_id IS NOT NULL)"  # excludes evaluators' own traces
TRACES = "traces AS t FINAL"
ALL_VERSIONS = "traces AS t"  # also replaced rows
# True for complete traces: no span was dropped, no run is open, and all spans have arrived
COMPLETE_SQL = (
    "(t.dropped = 0 AND t.trace_id NOT IN (SELECT trace_id FROM open_runs FINAL)"
    f" AND if(t.complete IS NULL, toInt64(t.change) <= {NOW_SQL} - {QUIET_NS}, t.complete = 1))"
)

# Lists of values of a trace
ARRAYS: Mapping[str, str] = {
    "tag": "t.tags",
    "agent": "t.agents",
    "finish_reason": "t.finish_reasons",
    "kind": "t.kinds",
    "model": "mapKeys(t.models)",
    "prompt": "mapKeys(t.prompts)",
    "prompt_version": "arrayFlatten(mapValues(t.prompts))",
}


def current_rows(ids: str) -> str:
    """Return the source of the rows of the traces with these ids. For few traces it takes less time than `FINAL`."""
    newest = "ORDER BY version DESC, change DESC LIMIT 1 BY trace_id"
    return f"(SELECT * FROM traces WHERE trace_id IN {ids} {newest}) AS t"


Conditions: TypeAlias = list[str]
Compiler: TypeAlias = Callable[[Any, QueryParameters], Conditions]


def compile_filter(filter: Filter, parameters: QueryParameters, *, judgements: bool = False) -> str:
    """Return the SQL condition of a filter on a row `t` of `traces`, and add its values to the parameters.

    Evaluators' own traces pass if the filter asks for them, or with `judgements`. Raise `Refused` for an invalid
    filter.
    """
    conditions = ["t.span_count > 0"]
    if filter.leaves_out_judgements and not judgements:
        conditions.append(VISIBLE_SQL)
    for name, value in list_conditions(filter):
        conditions += COMPILERS[name](value, parameters)
    return " AND ".join(conditions)


def _equals(column: str) -> Compiler:
    return lambda value, parameters: [f"t.{column} = {parameters.text(value)}"]


def _has(column: str) -> Compiler:
    return lambda value, parameters: [f"has(t.{column}, {parameters.text(value)})"]


def _has_or_in_spans(column: str, of_spans: str) -> Compiler:
    """Compile a condition that a list has a value, or that a span has it if the list is full."""

    def compile_value(value: Any, parameters: QueryParameters) -> Conditions:
        text = parameters.text(value)
        full = f"SELECT trace_id FROM traces WHERE span_count >= {MAX_LISTED}"  # few, and older versions do not matter
        spans = parameters.rows_of("spans")
        in_spans = f"t.trace_id IN (SELECT trace_id FROM {spans} AND trace_id IN ({full}) AND {of_spans} = {text})"
        return [f"(has({column}, {text}) OR (length({column}) >= {MAX_LISTED} AND {in_spans}))"]

    return compile_value


def _prompt_version(wanted: tuple[str, str | None], parameters: QueryParameters) -> Conditions:
    """Compile a condition that a run used a version of a prompt, or of any prompt if `prompt` is None."""
    version, prompt = wanted
    text = parameters.text(version)
    if prompt is not None:
        return [f"has(t.prompts[{parameters.text(prompt)}], {text})"]
    return [f"arrayExists(versions -> has(versions, {text}), mapValues(t.prompts))"]


def _comparison(expression: str) -> Compiler:
    def compile_value(value: Any, parameters: QueryParameters) -> Conditions:
        operator, bound = value
        return [compare(expression, operator, bound, parameters)]

    return compile_value


def compare(expression: str, operator: str, bound: float | str, parameters: QueryParameters) -> str:
    """Return the SQL of a comparison. Nothing compares with NaN. Raise `Refused` for an unknown operator."""
    check_operator(operator)
    if isinstance(bound, str):
        return f"{expression} {operator} {parameters.text(bound)}"
    return "0" if isnan(bound) else f"{expression} {operator} {parameters.number(bound)}"


def _error(value: str, parameters: QueryParameters) -> Conditions:
    """Compile a condition that the error of one run contains all words. Only ASCII letters ignore case."""
    words = [f"positionCaseInsensitive(error, {parameters.text(word)}) > 0" for word in value.split()]
    where = " AND ".join(["error IS NOT NULL", *words])
    return ["t.error_count > 0", f"t.trace_id IN (SELECT trace_id FROM {parameters.rows_of('spans')} AND {where})"]


def _metadata(wanted: Mapping[str, Any], parameters: QueryParameters) -> Conditions:
    found = []
    for key, value in wanted.items():
        name = parameters.text(str(key))
        found.append(
            f"(mapContains(t.metadata, {name}) AND t.metadata[{name}] = {parameters.text(metadata_text(value))})"
        )
    return found


# Conditions on feedback
#
# The newest feedback of a key on a trace and its spans counts, whatever its outcome. Feedback on documents does not
# count, except for `untried`. Nothing is stored about which feedback is the newest: with several collectors, only the
# query can tell.


def newest_feedback(keys: Sequence[str], parameters: QueryParameters) -> str:
    """Return a statement with the newest feedback of keys: `trace_id`, `key`, `outcome`, `score`, `label`."""
    newest = "argMax(tuple(outcome, score, label), tuple(created_ns, number)) AS newest"
    return (
        "SELECT trace_id, key, newest.1 AS outcome, newest.2 AS score, newest.3 AS label"
        f" FROM (SELECT trace_id, key, {newest} FROM {_feedback_of_keys(keys, parameters)}"
        " AND document IS NULL GROUP BY trace_id, key)"
    )


def _feedback_of_keys(keys: Sequence[str], parameters: QueryParameters) -> str:
    one = f"key = {parameters.text(keys[0])}" if len(keys) == 1 else f"key IN {parameters.texts(keys)}"
    return f"{parameters.rows_of('feedback')} AND {one} AND trace_id <> ''"


def _feedback(wanted: Iterable[FeedbackCondition], parameters: QueryParameters) -> Conditions:
    """Compile one condition for all comparisons of a key, which apply to the same feedback."""
    by_key: dict[str, list[str]] = {}
    for key, operator, value in wanted:
        by_key.setdefault(key, []).append(compare(get_compared_value(value), operator, value, parameters))
    return [
        f"t.trace_id IN (SELECT trace_id FROM ({newest_feedback([key], parameters)}) WHERE {' AND '.join(comparisons)})"
        for key, comparisons in by_key.items()
    ]


# A slot of feedback: later feedback in the same slot replaces it (see `statistics.get_feedback_slot`)
SLOT_COLUMNS = (
    "trace_id, span_id, document, session_id, experiment_id, project, key, source, author, rule,"
    " if(source = 'human' AND ifNull(author, '') = '', id, '')"
)


def _document_feedback(wanted: Iterable[FeedbackCondition], parameters: QueryParameters) -> Conditions:
    """Compile one condition for each comparison, which may hold for different documents."""
    found = []
    for key, operator, value in wanted:
        newest = (
            "SELECT trace_id, argMax(tuple(score, label), tuple(created_ns, number)) AS newest"
            f" FROM {_feedback_of_keys([key], parameters)} AND document IS NOT NULL GROUP BY {SLOT_COLUMNS}"
        )
        newest = f"SELECT trace_id, newest.1 AS score, newest.2 AS label FROM ({newest})"
        compared = compare(get_compared_value(value), operator, value, parameters)
        found.append(f"t.trace_id IN (SELECT trace_id FROM ({newest}) WHERE {compared})")
    return found


def _outcome(outcome: str) -> Compiler:
    def compile_keys(keys: Sequence[str], parameters: QueryParameters) -> Conditions:
        having = f"uniqExact(key) = {len(set(keys))}"
        newest = f"({newest_feedback(keys, parameters)}) WHERE outcome = '{outcome}'"
        return [f"t.trace_id IN (SELECT trace_id FROM {newest} GROUP BY trace_id HAVING {having})"]

    return compile_keys


def _excluded(pairs: Iterable[tuple[str, str]], parameters: QueryParameters) -> Conditions:
    """Compile conditions that must not hold. A trace without a value passes."""
    is_loose, parameters.is_loose = parameters.is_loose, False  # what replaced spans have must not exclude a trace
    compiled = [COMPILERS[name]((value,) if name == "tags" else value, parameters) for name, value in pairs]
    parameters.is_loose = is_loose
    return [f"ifNull(({' AND '.join(conditions)}), 0) = 0" for conditions in compiled]


COMPILERS: Mapping[str, Compiler] = {
    **{name: _equals(column) for name, column in EQUAL_COLUMNS.items()},
    **{name: _comparison(expression) for name, expression in NUMBERS.items()},
    "since_ns": lambda value, parameters: [f"t.start_ns >= {parameters.integer(value)}"],
    "until_ns": lambda value, parameters: [f"t.start_ns < {parameters.integer(value)}"],
    "any_name": _has_or_in_spans("t.names", "name"),
    "any_kind": _has_or_in_spans("t.kinds", "kind"),
    "status": lambda value, parameters: [STATUSES[value]],
    "error": _error,
    "model": _has_or_in_spans("mapKeys(t.models)", "model"),
    "prompt": lambda value, parameters: [f"mapContains(t.prompts, {parameters.text(value)})"],
    "prompt_version": _prompt_version,
    "agent": _has("agents"),
    "finish_reason": _has("finish_reasons"),
    "version": _equals("service_version"),
    "tags": lambda tags, parameters: [condition for tag in tags for condition in _has("tags")(tag, parameters)],
    "metadata": _metadata,
    "feedback": _feedback,
    "document_feedback": _document_feedback,
    "missing": lambda keys, parameters: [
        f"t.trace_id NOT IN (SELECT trace_id FROM ({newest_feedback(keys, parameters)}) WHERE outcome = 'score')"
    ],
    "untried": lambda keys, parameters: [
        f"t.trace_id NOT IN (SELECT trace_id FROM {_feedback_of_keys(keys, parameters)})"
    ],
    "failed": _outcome("error"),
    "skipped": _outcome("skip"),
    "text": compile_text,
    "experiment": lambda id, parameters: (
        _equals("experiment_id")(id, parameters) if id else ["t.experiment_id IS NULL"]
    ),
    "experiments": lambda ids, parameters: [f"ifNull(t.experiment_id IN {parameters.texts(ids)}, 0)"],
    "dataset": lambda dataset, parameters: refuse_dataset(dataset),
    "complete": lambda value, parameters: [COMPLETE_SQL if value else f"NOT {COMPLETE_SQL}"],
    "trace_ids": lambda ids, parameters: [f"t.trace_id IN {parameters.texts(ids)}"],
    "excluded": _excluded,
}
