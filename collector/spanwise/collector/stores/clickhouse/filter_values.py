"""Values of traces that filters compare, for the filters of rules and for `explain` (see `filter_evaluation`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from spanwise.collector.filter_evaluation import (
    KeyFeedback,
    TraceCondition,
    TraceValues,
    evaluate,
    required_values,
    trace_conditions,
)
from spanwise.collector.filters import Filter
from spanwise.collector.stores.clickhouse.connection import Connection, QueryParameters
from spanwise.collector.stores.clickhouse.filter_sql import COMPLETE_SQL, MAX_LISTED, TRACES
from spanwise.collector.stores.clickhouse.text_search import compile_text
from spanwise.collector.stores.table_rows import loads

BATCH_TRACES = 1_000  # traces that are evaluated together
# A text condition is unknown to rules until no span has arrived for this long. Lists do not wait
SETTLE_NS = 1_000_000_000

Rows: TypeAlias = list[list[Any]]
Results: TypeAlias = tuple[bool | None, ...]

# SQL of the values of a trace. `ValueReader` completes some of the results
_COLUMNS: Mapping[str, str] = {
    **{name: f"t.{name}" for name in TraceValues.__annotations__},
    "complete": COMPLETE_SQL,
    "metadata": "t.metadata_json",
    "models": "mapKeys(t.models)",
    "version": "t.service_version",
    "errors": "t.error_count",
    "feedback": "NULL",
    "texts": "toInt64(t.change)",
}
# Lists of the distinct values of all runs: the condition on them, and their column in `spans`
_LISTS = {"names": ("any_name", "name"), "kinds": ("any_kind", "kind"), "models": ("model", "model")}
_NO_KEYS: Mapping[str, KeyFeedback] = {}


def evaluate_filters(
    db: Connection, now_ns: int, filters: Sequence[Filter], trace_ids: Sequence[str]
) -> dict[str, Results]:
    """Return the result of each filter for each of the traces that are stored. `now_ns` is the server's time.

    Raise `Refused` for an invalid filter.
    """
    if not filters:
        return dict.fromkeys(trace_ids, ())
    found: dict[str, Results] = {}
    reader = ValueReader(db, now_ns, filters)
    for rows in reader.read(trace_ids):
        by_filter = [evaluate(conditions, rows, reader.positions) for conditions in reader.conditions]
        found |= {row[-1]: results for row, results in zip(rows, zip(*by_filter, strict=True), strict=True)}
    return found


class ValueReader:
    """Reader of the values that some filters require."""

    def __init__(self, db: Connection, now_ns: int, filters: Sequence[Filter]) -> None:
        """Compile the filters. Raise `Refused` for an invalid filter."""
        self._db, self._now_ns, self._filters = db, now_ns, filters
        self.conditions: list[list[TraceCondition]] = [trace_conditions(filter) for filter in filters]
        required = set[str]().union(*map(required_values, self.conditions))
        self._wanted = [name for name in _COLUMNS if name in required]
        self.positions = {name: place for place, name in enumerate(self._wanted)}

    def read(self, trace_ids: Sequence[str]) -> Iterator[Rows]:
        """Yield rows of values, in batches. The last value of a row is the id of the trace."""
        columns = ", ".join([*(_COLUMNS[name] for name in self._wanted), "t.trace_id"])
        for start in range(0, len(trace_ids), BATCH_TRACES):
            parameters = QueryParameters()
            where = f"t.trace_id IN {parameters.texts(trace_ids[start : start + BATCH_TRACES])} AND t.span_count > 0"
            rows = list(map(list, self._db.query(f"SELECT {columns} FROM {TRACES} WHERE {where}", parameters)))
            for name, place in self.positions.items():
                self._complete(rows, name, place)
            yield rows

    def _complete(self, rows: Rows, name: str, at: int) -> None:
        """Replace the values of a column by those that conditions expect."""
        if name in _LISTS:
            self._add_list(rows, at, *_LISTS[name])
        elif name == "metadata":
            for row in rows:
                row[at] = loads(row[at]) if row[at] else {}
        elif name == "prompts":
            for row in rows:
                row[at] = {prompt: [version or None for version in versions] for prompt, versions in row[at].items()}
        elif name == "errors":
            is_failed = "(error IS NOT NULL OR status = 'error')"
            failed = [row[-1] for row in rows if row[at]]
            errors = self._collect("ifNull(error, '')", failed, is_failed, QueryParameters())
            for row in rows:
                row[at] = errors.get(row[-1], ())
        elif name == "feedback":
            self._add_feedback(rows, at)
        elif name == "texts":
            self._add_texts(rows, at)

    def _add_list(self, rows: Rows, at: int, condition: str, column: str) -> None:
        """Add the wanted values that only the spans have to lists that have reached their maximum length."""
        wanted = {value for filter in self._filters if (value := getattr(filter, condition)) is not None}
        full = [row[-1] for row in rows if len(row[at]) >= MAX_LISTED and not wanted.issubset(row[at])]
        parameters = QueryParameters()
        of_spans = f"{column} IN {parameters.texts(wanted)}"
        found = self._collect(column, full, of_spans, parameters) if full else {}
        for row in rows:
            row[at] = [*row[at], *found.get(row[-1], ())]

    def _collect(
        self, column: str, trace_ids: Collection[str], where: str, parameters: QueryParameters
    ) -> dict[str, Sequence[str]]:
        """Return the distinct values of a column of spans by trace."""
        of_traces = f"trace_id IN {parameters.texts(trace_ids)}"
        sql = f"SELECT trace_id, groupUniqArray({column}) FROM spans FINAL WHERE {of_traces} AND {where} GROUP BY trace_id"
        return dict(self._db.query(sql, parameters)) if trace_ids else {}

    def _add_feedback(self, rows: Rows, at: int) -> None:
        keys = set[str]()
        for filter in self._filters:
            keys.update((key for key, _, _ in filter.feedback), filter.missing, filter.untried)
            keys.update(filter.failed, filter.skipped)
        parameters = QueryParameters()
        newest = "argMaxIf(tuple(outcome, score, label), tuple(created_ns, number), document IS NULL)"
        sql = (
            f"SELECT trace_id, key, {newest}, countIf(document IS NULL), count() FROM feedback FINAL"
            f" WHERE trace_id IN {parameters.texts(row[-1] for row in rows)} AND key IN {parameters.texts(keys)}"
            " AND rule = '' GROUP BY trace_id, key"
        )
        found: dict[str, dict[str, KeyFeedback]] = {}
        for trace_id, key, (outcome, score, label), own, total in self._db.query(sql, parameters):
            feedback = KeyFeedback(outcome, score, label, total) if own else KeyFeedback(total=total)
            found.setdefault(trace_id, {})[key] = feedback
        for row in rows:
            row[at] = found.get(row[-1], _NO_KEYS)

    def _add_texts(self, rows: Rows, at: int) -> None:
        texts = {filter.text for filter in self._filters if filter.text is not None}
        found = {text: self._find_text(text, [row[-1] for row in rows]) for text in texts}
        for row in rows:
            is_settled = row[at] <= self._now_ns - SETTLE_NS
            row[at] = [text for text, traces in found.items() if row[-1] in traces] if is_settled else None

    def _find_text(self, text: str, trace_ids: Sequence[str]) -> set[str]:
        """Return which of some traces contain all terms of a text."""
        parameters = QueryParameters()
        within = parameters.texts(trace_ids)
        conditions = compile_text(text, parameters, within)
        if not conditions:
            return set(trace_ids)
        sql = f"SELECT trace_id FROM traces AS t FINAL WHERE t.trace_id IN {within} AND {' AND '.join(conditions)}"
        return {trace_id for (trace_id,) in self._db.query(sql, parameters)}
