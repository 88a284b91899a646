"""Aggregates over time, sums of measures, and the scores of rules in the buckets of an aggregate.

Nothing is aggregated in advance. Summaries of all traces that pass are read in one pass: 50 ms for 400,000 traces.
Percentiles are exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf
from typing import Any, Literal, NamedTuple, TypeAlias

from spanwise.collector.alert_policy import parse_measure
from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter, extend_filter, validate_filter
from spanwise.collector.formatting import error_group
from spanwise.collector.records import JSON, Bucket, ScoreSums
from spanwise.collector.statistics import Tally, percentile
from spanwise.collector.stores.backends import BucketScore, RuleScore
from spanwise.collector.stores.clickhouse.connection import Connection, QueryParameters
from spanwise.collector.stores.clickhouse.feedback_rows import FeedbackRow, decode_feedback
from spanwise.collector.stores.clickhouse.filter_sql import COMPILERS, SLOT_COLUMNS, TRACES, compile_filter
from spanwise.collector.stores.clickhouse.record_lists import current_feedback, group_values
from spanwise.collector.stores.table_rows import INT_MAX

MAX_BUCKETS = 10_000  # limit of an answer (2 KB per bucket); with narrow buckets, there could be one for each trace
MAX_NEWEST = 100_000
PERCENTS = (50, 95, 99)

# Limits of the groups by time to the first token, in milliseconds
FIRST_TOKEN_RANGES_MS = (100, 200, 500, 1_000, 2_000, 5_000, 10_000)


def _make_range_sql(column: str, limits: Sequence[int]) -> str:
    """Return SQL for the range of a number, such as `100 to 200`; NULL if the column is NULL."""
    names = [f"< {limits[0]}", *(f"{low} to {high}" for low, high in pairwise(limits)), f">= {limits[-1]}"]
    cases = [f"WHEN {column} < {limit} THEN '{name}'" for limit, name in zip(limits, names, strict=False)]
    return f"CASE WHEN {column} IS NULL THEN NULL {' '.join(cases)} ELSE '{names[-1]}' END"


# SQL of the group of a trace; of groups in `_ARRAYS`, a trace may have several, and `group_value` is one of them
_GROUPS = {
    "project": "t.project",
    "environment": "t.environment",
    "name": "t.name",
    "user": "t.user_id",
    "session": "t.session_id",
    "experiment": "t.experiment_id",
    "model": "group_value",
    "error": "t.error",  # errors that have the same name are put together here (`error_group`)
    "prompt": "nullIf(group_value, '')",
    "prompt_version": "group_value",
    "agent": "group_value",
    "finish_reason": "group_value",
    "tag": "group_value",
    "version": "t.service_version",
    "time_to_first_token_ms": _make_range_sql("t.time_to_first_token_ms", FIRST_TOKEN_RANGES_MS),
}
# A trace whose array is empty is in no group
_ARRAYS = {
    "model": "mapKeys(t.models)",
    "prompt": "{prompts}",
    "prompt_version": "arrayFlatten(arrayMap(prompt -> arrayMap(version -> concat(prompt, if(version = '', '', '@'), version),"
    " {versions}), {prompts}))",
    "agent": "t.agents",
    "finish_reason": "t.finish_reasons",
    "tag": "t.tags",
}

BucketKey: TypeAlias = tuple[int, str | None]  # start of a bucket, group


class _BucketTotals:
    """Counts and latencies of a bucket, and the tallies of its feedback by key and whether it is on documents."""

    def __init__(self, *, is_ranked: bool) -> None:
        """Begin with nothing. `is_ranked`: the latencies to be added are percentiles of all traces of the bucket."""
        self._is_ranked = is_ranked
        self.traces = self.errors = self.input_tokens = self.output_tokens = 0
        self.cost, self.first, self.last = 0.0, INT_MAX, -INT_MAX
        self.latencies: list[int] = []
        self.tallies: defaultdict[tuple[str, bool], Tally] = defaultdict(Tally)

    def add(self, row: Sequence[Any]) -> None:
        """Add a row of `_make_totals_sql`."""
        traces, errors, input_tokens, output_tokens, cost, first, last, latencies = row
        self.traces += traces
        self.errors += errors
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        self.cost += cost
        self.first, self.last = min(first, self.first), max(last, self.last)
        self.latencies += latencies

    def add_feedback(self, row: Sequence[Any]) -> None:
        """Add a row of `_make_feedback_sql`: outcomes with the same key and label."""
        key, is_document, label, said, n, total, binary, minimum, maximum, failed, skipped = row
        self.tallies[key, bool(is_document)].add_counts(
            n=n,
            total=total or 0.0,
            binary=binary,
            minimum=inf if minimum is None else minimum,
            maximum=-inf if maximum is None else maximum,
            labelled=said - n,
            labels={} if label is None else {label: said},
            failed=failed,
            skipped=skipped,
        )

    def percentiles_ms(self) -> Sequence[float]:
        """Return the 50th, 95th and 99th percentile of the latencies."""
        if not self._is_ranked:
            self.latencies.sort()
            self.latencies = [percentile(self.latencies, percent) for percent in PERCENTS]
        return [ns / 1e6 for ns in self.latencies]


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
    if bucket_ns is not None and bucket_ns <= 0:
        raise Refused(f"bucket_ns must be a positive number of nanoseconds, got {bucket_ns!r}")
    if group_by is not None and group_by not in _GROUPS:
        raise Refused(f"cannot group by {group_by!r}; use one of {', '.join(_GROUPS)}")
    most = None if newest == "all" else newest
    if most is not None and not 1 <= most <= MAX_NEWEST:
        raise Refused(f"newest must be 1 to {MAX_NEWEST:,} or 'all', got {newest!r}")
    try:
        return _aggregate(db, filter, bucket_ns, group_by, None)
    except _TooManyBuckets:
        if most is None:
            raise
        return [replace(bucket, newest=most) for bucket in _aggregate(db, filter, bucket_ns, group_by, most)]


class _TooManyBuckets(Refused):
    """More buckets than one answer may have."""


def _aggregate(
    db: Connection, filter: Filter, bucket_ns: int | None, group_by: str | None, newest: int | None
) -> list[Bucket]:
    parameters = QueryParameters()
    chosen = _choose_traces(filter, bucket_ns, group_by, newest, parameters)
    totals = defaultdict[BucketKey, _BucketTotals](partial(_BucketTotals, is_ranked=not chosen.is_merged))
    for start, group, *row in db.query(_make_totals_sql(chosen), parameters):
        totals[start, chosen.name_group(group)].add(row)
    if len(totals) > MAX_BUCKETS:
        remedy = "use wider buckets, a shorter time range, no groups, or only the `newest` traces"
        raise _TooManyBuckets(f"more than {MAX_BUCKETS:,} buckets in one answer: {remedy}")
    for start, group, *row in db.query(_make_feedback_sql(chosen), parameters):
        totals[start, chosen.name_group(group)].add_feedback(row)
    # without buckets, the range of the newest traces starts with the first of them
    since = filter.since_ns if newest is None else None
    places = sorted(totals, key=lambda place: (place[0], place[1] is not None, place[1] or ""))
    return [_make_bucket(place, totals[place], replace(filter, since_ns=since), bucket_ns) for place in places]


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
    """Return a statement with the columns of `_BucketTotals.add`."""
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
    "SELECT trace_id, key, document IS NOT NULL AS is_document, source,"
    " argMax(tuple(outcome, score, label), tuple(created_ns, number)) AS newest FROM feedback FINAL"
    f" WHERE trace_id <> '' GROUP BY {SLOT_COLUMNS}"
)
_CHECKS_JUDGE = (
    "source = 'human' AND (trace_id, key) IN"
    " (SELECT trace_id, key FROM feedback FINAL WHERE source = 'model' AND trace_id <> '')"
)


def _make_feedback_sql(chosen: _Chosen) -> str:
    """Return a statement with the columns of `_BucketTotals.add_feedback`."""
    outcomes = (
        "SELECT trace_id, key, is_document, newest.1 AS outcome, newest.2 AS score, newest.3 AS label"
        f" FROM ({_COUNTED}) WHERE NOT ({_CHECKS_JUDGE})"
    )
    return (
        "SELECT b, g, key, is_document, label, countIf(outcome = 'score'), count(score), sumKahan(score),"
        " countIf(score IN (0, 1)), min(score), max(score), countIf(outcome = 'error'), countIf(outcome = 'skip')"
        f" FROM {chosen.select('t.trace_id AS trace_id')} AS c INNER JOIN ({outcomes}) AS f USING trace_id"
        " GROUP BY b, g, key, is_document, label"
    )


def _make_bucket(place: BucketKey, total: _BucketTotals, filter: Filter, bucket_ns: int | None) -> Bucket:
    start, width = place[0], bucket_ns
    if width is None:
        start = filter.since_ns if filter.since_ns is not None else total.first
        width = (filter.until_ns if filter.until_ns is not None else total.last + 1) - start
    p50_ms, p95_ms, p99_ms = total.percentiles_ms()
    return Bucket(
        start_ns=start,
        width_ns=width,
        group=place[1],
        traces=total.traces,
        errors=total.errors,
        p50_ms=p50_ms,
        p95_ms=p95_ms,
        p99_ms=p99_ms,
        input_tokens=total.input_tokens,
        output_tokens=total.output_tokens,
        cost=total.cost,
        feedback=tuple(
            replace(tally.stats(key), target="document" if is_document else "trace")
            for (key, is_document), tally in sorted(total.tallies.items())
        ),
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


def sum_measure(
    db: Connection,
    measure: str,
    conditions: Mapping[str, JSON],
    *,
    project: str,
    since_ns: int,
    until_ns: int,
    block_s: int,
    by: str | None,
) -> list[ScoreSums]:
    """Return the sums of a measure over the traces that pass a filter, as `TraceStore.measure_sums` does.

    First the sums of each cluster (a session, or a trace without one) are computed, then those of all clusters of a
    block and group.
    """
    comparison = parse_measure(measure)
    limits = {"project": project, "since_ns": since_ns, "until_ns": until_ns}
    filter = validate_filter(extend_filter(None, {**conditions, **limits}))
    parameters, block_ns = QueryParameters(), block_s * 1_000_000_000
    where = compile_filter(filter, parameters)
    [truth] = COMPILERS[comparison.field]((comparison.operator, comparison.number), parameters)
    source, group = TRACES, "NULL"
    if by is not None:
        source, group = f"{TRACES} ARRAY JOIN {group_values(by, parameters)} AS group_value", "group_value"
    block = f"intDiv(t.start_ns - {parameters.integer(since_ns)}, {parameters.integer(block_ns)})"
    clusters = (
        f"SELECT {block} AS block, {group} AS g, count() AS n, sumKahan(1 / ifNull(t.probability, 1)) AS w,"
        f" sumKahan(ifNull({truth}, 0) / ifNull(t.probability, 1)) AS y FROM {source} WHERE {where}"
        " GROUP BY block, g, ifNull(concat('s', t.session_id), t.trace_id)"
    )
    sums = "sum(n), sumKahan(w), sumKahan(y), sumKahan(w * w), sumKahan(w * y), sumKahan(y * y)"
    rows = db.query(f"SELECT block, g, {sums} FROM ({clusters}) GROUP BY block, g ORDER BY block, g", parameters)
    return [
        ScoreSums(
            key=measure,
            group=group,
            start_ns=since_ns + block * block_ns,
            n=n,
            weight=weight,
            total=total,
            weight_squares=weight_squares,
            products=products,
            total_squares=total_squares,
        )
        for block, group, n, weight, total, weight_squares, products, total_squares in rows
    ]
