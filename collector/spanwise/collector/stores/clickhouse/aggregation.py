"""Aggregates over time, sums of measures, and the scores of rules in the buckets of an aggregate.

Nothing is aggregated in advance. Summaries of all traces that pass are read in one pass: 50 ms for 400,000 traces.
Percentiles are exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, NamedTuple

from spanwise.collector.filters import Filter
from spanwise.collector.formatting import error_group
from spanwise.collector.records import Bucket, ScoreSums
from spanwise.collector.stores.backends import BucketScore, RuleScore
from spanwise.collector.stores.bucket_totals import (
    DOCUMENT_SUFFIX,
    MAX_BUCKETS,
    PERCENTS,
    TRACE_GROUPS,
    BucketKey,
    BucketTotals,
    TooManyBuckets,
    check_arguments,
    get_place_order,
)
from spanwise.collector.stores.clickhouse.connection import Connection, QueryParameters
from spanwise.collector.stores.clickhouse.feedback_rows import decode_feedback
from spanwise.collector.stores.clickhouse.filter_sql import ARRAYS, COMPILERS, SLOT_COLUMNS, TRACES, compile_filter
from spanwise.collector.stores.clickhouse.record_lists import current_feedback, group_values
from spanwise.collector.stores.queries.feedback_records import FeedbackRow
from spanwise.collector.stores.queries.measure_query import MeasureQuery

# SQL of the group of a trace; of groups in `_ARRAYS`, a trace may have several, and `group_value` is one of them
_GROUPS = {
    **TRACE_GROUPS,
    **dict.fromkeys(("model", "prompt_version", "agent", "finish_reason", "tag"), "group_value"),
    "error": "t.error",  # errors that have the same name are put together here (`error_group`)
    "prompt": "nullIf(group_value, '')",
    "version": "t.service_version",
}
# A trace whose array is empty is in no group
_ARRAYS = {
    **{name: ARRAYS[name] for name in ("model", "agent", "finish_reason", "tag")},
    "prompt": "{prompts}",
    "prompt_version": "arrayFlatten(arrayMap(prompt -> arrayMap(version -> concat(prompt, if(version = '', '', '@'), version),"
    " {versions}), {prompts}))",
}


class _RankedTotals(BucketTotals):
    """Totals of a bucket whose latencies are its percentiles already."""

    __slots__ = ()

    def percentiles_ms(self) -> tuple[float, float, float, float]:
        p50, p95, p99 = (ns / 1e6 for ns in self.latencies)
        return p50, p95, p99, 0.0


class _Chosen(NamedTuple):
    """Traces of an aggregate: `FROM source WHERE where`, with the SQL of bucket and group of a row `t`."""

    source: str
    where: str
    bucket: str
    group: str
    group_by: str | None

    def select(self, columns: str) -> str:
        """Return a statement with the bucket `b`, the group `g` and other columns of each trace."""
        return f"(SELECT {self.bucket} AS b, {self.group} AS g, {columns} FROM {self.source} WHERE {self.where})"

    @property
    def is_merged(self) -> bool:
        """Return whether several groups of SQL may have the same name, so that percentiles need all latencies."""
        return self.group_by == "error"

    def name_group(self, group: str | None) -> str | None:
        """Return the name of a group."""
        return error_group(group) if self.is_merged else group


def compute_buckets(
    db: Connection,
    filter: Filter,
    bucket_ns: int | None,
    group_by: str | None,
    newest: int | Literal["all"] | None = None,
) -> list[Bucket]:
    """Return buckets in order of time, then group, without those that have no traces. See `TraceStore.aggregate`.

    All traces are aggregated. Only if that gives more than `MAX_BUCKETS` buckets, and `newest` is a number, that many
    of the newest traces are. Raise `Refused` for an invalid argument, and for more buckets.
    """
    check_arguments(bucket_ns, group_by, _GROUPS, newest)
    try:
        return _aggregate(db, filter, bucket_ns, group_by, None)
    except TooManyBuckets:
        if newest is None or newest == "all":
            raise
        return [replace(bucket, newest=newest) for bucket in _aggregate(db, filter, bucket_ns, group_by, newest)]


def _aggregate(
    db: Connection, filter: Filter, bucket_ns: int | None, group_by: str | None, newest: int | None
) -> list[Bucket]:
    parameters = QueryParameters()
    chosen = _choose_traces(filter, bucket_ns, group_by, newest, parameters)
    totals = defaultdict[BucketKey, BucketTotals](BucketTotals if chosen.is_merged else _RankedTotals)
    for start, group, *counts, first, last, latencies in db.query(_make_totals_sql(chosen), parameters):
        total = totals[start, chosen.name_group(group)]
        total.add(*counts)
        total.starts += [first, last]
        total.latencies += latencies
    if len(totals) > MAX_BUCKETS:
        raise TooManyBuckets(MAX_BUCKETS)
    for start, group, *outcomes in db.query(_make_feedback_sql(chosen), parameters):
        totals[start, chosen.name_group(group)].add_feedback(*outcomes)
    # without buckets, the range of the newest traces starts with the first of them
    covered = filter if newest is None else replace(filter, since_ns=None)
    return [totals[place].bucket(place, covered, bucket_ns) for place in sorted(totals, key=get_place_order)]


def _choose_traces(
    filter: Filter, bucket_ns: int | None, group_by: str | None, newest: int | None, parameters: QueryParameters
) -> _Chosen:
    source, where = TRACES, compile_filter(filter, parameters)
    if newest is not None:
        source = f"(SELECT * FROM {TRACES} WHERE {where} ORDER BY t.start_ns DESC, t.trace_id DESC LIMIT {newest}) AS t"
        where = "1"
    if group_by in _ARRAYS:  # of prompts and versions, only those that the filter asks for
        prompts, versions = "mapKeys(t.prompts)", "t.prompts[prompt]"
        if filter.prompt is not None:
            prompts = f"arrayFilter(prompt -> prompt = {parameters.text(filter.prompt)}, {prompts})"
        if filter.prompt_version is not None:
            versions = f"arrayFilter(version -> version = {parameters.text(filter.prompt_version)}, {versions})"
        source += f" ARRAY JOIN {_ARRAYS[group_by].format(prompts=prompts, versions=versions)} AS group_value"
    bucket = "toInt64(0)"
    if bucket_ns:
        width = parameters.integer(bucket_ns)
        bucket = f"intDiv(t.start_ns, {width}) * {width}"
    return _Chosen(source, where, bucket, _GROUPS[group_by] if group_by else "NULL", group_by)


def _make_totals_sql(chosen: _Chosen) -> str:
    """Return a statement with the counts of each bucket and group, first and last start, and latencies."""
    amounts = "t.models[group_value]" if chosen.group_by == "model" else "t"
    rows = chosen.select(
        f"t.status = 'error' AS failed, {amounts}.input_tokens AS sent, {amounts}.output_tokens AS received,"
        f" ifNull({amounts}.cost, 0) AS price, t.start_ns AS start, greatest(0, t.end_ns - t.start_ns) AS latency"
    )
    ranks = [f"sorted[intDiv(length(sorted) * {percent} + 99, 100)]" for percent in PERCENTS]
    ranked = ", ".join(ranks).replace("sorted", "(arraySort(groupArray(latency)) AS sorted)", 1)
    latencies = "groupArray(latency)" if chosen.is_merged else f"[{ranked}]"
    limit = "" if chosen.is_merged else f" LIMIT {MAX_BUCKETS + 1}"
    return (
        "SELECT b, g, count(), countIf(failed), sum(sent), sum(received), sumKahan(price), min(start), max(start),"
        f" {latencies} FROM {rows} GROUP BY b, g{limit}"
    )


# The newest feedback of each slot counts, except that of people under a key that a judge has scored: it checks the judge
_COUNTED = (
    f"SELECT trace_id, key, concat(key, if(document IS NULL, '', '{DOCUMENT_SUFFIX}')) AS counted, source,"
    " argMax(tuple(outcome, score, label), tuple(created_ns, number)) AS newest FROM feedback FINAL"
    f" WHERE trace_id <> '' GROUP BY {SLOT_COLUMNS}"
)
_CHECKS_JUDGE = (
    "source = 'human' AND (trace_id, key) IN"
    " (SELECT trace_id, key FROM feedback FINAL WHERE source = 'model' AND trace_id <> ''"
    " AND trace_id IN (SELECT trace_id FROM feedback WHERE source = 'human'))"
)


def _make_feedback_sql(chosen: _Chosen) -> str:
    """Return a statement with bucket, group, and the arguments of `BucketTotals.add_feedback`."""
    outcomes = (
        "SELECT trace_id, counted, newest.1 AS outcome, newest.2 AS score, newest.3 AS label"
        f" FROM ({_COUNTED}) WHERE NOT ({_CHECKS_JUDGE})"
    )
    return (
        "SELECT b, g, counted, label, countIf(outcome = 'score'), count(score), ifNull(sumKahan(score), 0),"
        " countIf(score IN (0, 1)), min(score), max(score), countIf(outcome = 'error'), countIf(outcome = 'skip')"
        f" FROM {chosen.select('t.trace_id AS trace_id')} AS c INNER JOIN ({outcomes}) AS f USING trace_id"
        " GROUP BY b, g, counted, label"
    )


def list_bucket_scores(
    db: Connection, filter: Filter, bucket_ns: int | None, group_by: str | None, newest: int | None
) -> Iterator[BucketScore]:
    """Yield the scores, errors and skips of rules on the traces of an aggregate, also those with only a label.

    `newest` is that of the aggregate's buckets.
    """
    parameters = QueryParameters()
    chosen = _choose_traces(filter, bucket_ns, group_by, newest, parameters)
    traces = chosen.select(
        "t.trace_id AS trace_id, t.project AS of_project, t.session_id AS session, t.start_ns AS start"
    )
    scores = current_feedback("*", "rule <> '' AND trace_id <> ''")
    columns = ", ".join(f"f.{name}" for name in FeedbackRow._fields)
    sql = (
        f"SELECT b, g, of_project, session, start, {columns} FROM {traces} AS c INNER JOIN ({scores}) AS f USING trace_id"
        " WHERE f.outcome <> 'score' OR f.score IS NOT NULL OR f.label IS NOT NULL"
    )
    for bucket, group, project, session, start, *row in db.query(sql, parameters):
        yield BucketScore(bucket, chosen.name_group(group), project, RuleScore(decode_feedback(row), session, start))


def sum_measure(db: Connection, query: MeasureQuery) -> list[ScoreSums]:
    """Return the sums of a measure over the traces that pass a filter, as `TraceStore.measure_sums` does.

    First the sums of each cluster (a session, or a trace without one) are computed, then those of all clusters of a
    block and group.
    """
    comparison, filter = query.parse()
    parameters = QueryParameters()
    where = compile_filter(filter, parameters)
    [truth] = COMPILERS[comparison.field]((comparison.operator, comparison.number), parameters)
    source, group = TRACES, "NULL"
    if query.by is not None:
        source, group = f"{TRACES} ARRAY JOIN {group_values(query.by, parameters)} AS group_value", "group_value"
    block = f"intDiv(t.start_ns - {parameters.integer(query.since_ns)}, {parameters.integer(query.block_ns)})"
    clusters = (
        f"SELECT {block} AS block, {group} AS g, count() AS n, sumKahan(1 / ifNull(t.probability, 1)) AS w,"
        f" sumKahan(ifNull({truth}, 0) / ifNull(t.probability, 1)) AS y FROM {source} WHERE {where}"
        " GROUP BY block, g, ifNull(concat('s', t.session_id), t.trace_id)"
    )
    sums = "sum(n), sumKahan(w), sumKahan(y), sumKahan(w * w), sumKahan(w * y), sumKahan(y * y)"
    rows = db.query(f"SELECT block, g, {sums} FROM ({clusters}) GROUP BY block, g ORDER BY block, g", parameters)
    return [query.make_sums(query.since_ns + block * query.block_ns, *sums) for block, *sums in rows]
