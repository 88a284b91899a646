"""Values of traces that filters compare: SQL of the columns, and of values of spans and feedback."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from spanwise.collector.filter_evaluation import KeyFeedback, TraceValues
from spanwise.collector.filters import Filter
from spanwise.collector.stores.clickhouse.connection import Connection, QueryParameters
from spanwise.collector.stores.clickhouse.filter_sql import COMPLETE_SQL, TRACES
from spanwise.collector.stores.clickhouse.text_search import compile_text
from spanwise.collector.stores.queries.filter_reader import FilterReader, Results
from spanwise.collector.stores.table_rows import loads

BATCH_TRACES = 1_000  # traces that are evaluated together
# A text condition is unknown to rules until no span has arrived for this long. Lists do not wait
SETTLE_NS = 1_000_000_000

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


class ValueReader(FilterReader):
    """Reader of the values that some filters require. `now_ns` is the server's time."""

    loaded = ("metadata", "prompts")

    def __init__(self, db: Connection, now_ns: int, filters: Sequence[Filter]) -> None:
        super().__init__(filters)
        self._db, self._now_ns = db, now_ns
        wanted = [name for name in _COLUMNS if name in self._required]
        self.positions, self.key_column = {name: place for place, name in enumerate(wanted)}, len(wanted)

    def read(self, trace_ids: Sequence[str]) -> Iterator[list[Any]]:
        """Yield rows of values, in batches. The last value of a row is the id of the trace."""
        columns = ", ".join([*(_COLUMNS[name] for name in self.positions), "t.trace_id"])
        sql = f"SELECT {columns} FROM {TRACES} WHERE t.trace_id IN {{ids:Array(String)}} AND t.span_count > 0"
        for start in range(0, len(trace_ids), BATCH_TRACES):
            yield self._db.query(sql, {"ids": list(trace_ids[start : start + BATCH_TRACES])})

    def evaluate_traces(self, trace_ids: Sequence[str]) -> dict[str, Results]:
        """Return the result of each filter for each of the traces that are stored."""
        return {
            row[-1]: results
            for rows in self.read(trace_ids)
            for row, results in zip(rows, self.evaluate(rows), strict=False)
        }

    def load(self, name: str, value: Any) -> Any:
        if name == "metadata":
            return loads(value) if value else {}
        return {prompt: [version or None for version in versions] for prompt, versions in value.items()}

    def find_listed(self, keys: Sequence[str], column: str, wanted: Collection[str]) -> Mapping[str, Sequence[str]]:
        parameters = QueryParameters()
        return self._collect(column, keys, f"{column} IN {parameters.texts(wanted)}", parameters)

    def read_errors(self, keys: Sequence[str]) -> Mapping[str, Sequence[str]]:
        where = "(error IS NOT NULL OR status = 'error')"
        return self._collect("ifNull(error, '')", keys, where, QueryParameters()) if keys else {}

    def _collect(
        self, column: str, trace_ids: Sequence[str], where: str, parameters: QueryParameters
    ) -> dict[str, Sequence[str]]:
        """Return the distinct values of a column of spans by trace."""
        of_traces = f"trace_id IN {parameters.texts(trace_ids)}"
        sql = f"SELECT trace_id, groupUniqArray({column}) FROM spans FINAL WHERE {of_traces} AND {where} GROUP BY trace_id"
        return dict(self._db.query(sql, parameters))

    def read_feedback(self, keys: Sequence[str], names: Collection[str]) -> Mapping[str, Mapping[str, KeyFeedback]]:
        newest = "argMaxIf(tuple(outcome, score, label), tuple(created_ns, number), document IS NULL)"
        sql = (
            f"SELECT trace_id, key, {newest}, countIf(document IS NULL), count() FROM feedback FINAL"
            " WHERE trace_id IN {ids:Array(String)} AND key IN {names:Array(String)} AND rule = '' GROUP BY trace_id, key"
        )
        found: dict[str, dict[str, KeyFeedback]] = {}
        parameters = {"ids": keys, "names": list(names)}
        for trace_id, key, (outcome, score, label), own, total in self._db.query(sql, parameters):
            feedback = KeyFeedback(outcome, score, label, total) if own else KeyFeedback(total=total)
            found.setdefault(trace_id, {})[key] = feedback
        return found

    def find_text(self, text: str, keys: Sequence[str]) -> set[str]:
        parameters = QueryParameters()
        within = parameters.limit_to(keys)
        conditions = compile_text(text, parameters)
        if not conditions:
            return set(keys)
        sql = f"SELECT trace_id FROM traces AS t FINAL WHERE t.trace_id IN {within} AND {' AND '.join(conditions)}"
        return {trace_id for (trace_id,) in self._db.query(sql, parameters)}

    def is_indexed(self, value: Any) -> bool:
        return bool(value <= self._now_ns - SETTLE_NS)
