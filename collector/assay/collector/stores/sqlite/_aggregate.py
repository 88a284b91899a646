"""Counts, latency, tokens, cost and feedback over time.

SQL sums what is said per key and label; means and percentiles are those of `assay.collector.statistics`, as everywhere.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from assay.collector.errors import Refused
from assay.collector.filters import Filter
from assay.collector.records import Bucket, FeedbackStats
from assay.collector.statistics import Tally, percentile
from assay.collector.stores.sqlite._feedback import CHECKS
from assay.collector.stores.sqlite._plan import Plan, plan

_GROUPS = {
    "project": "t.project",
    "environment": "t.environment",
    "name": "t.name",
    "user": "t.user_id",
    "session": "t.session_id",
    "experiment": "t.experiment_id",
    "model": "m.key",
}

_TRACES = """
SELECT {bucket} AS b, {group} AS g, count(*), sum(t.status = 'error'), sum({tokens_in}), sum({tokens_out}),
  sum({cost}), min(t.start_ns), max(t.start_ns), group_concat(max(0, t.end_ns - t.start_ns))
FROM {source} WHERE {where} GROUP BY b, g ORDER BY b, g
"""

# Each label has a row of its own: a tally puts the parts of a key together
_FEEDBACK = """
SELECT {bucket} AS b, {group} AS g, f.key, f.label, sum(f.outcome = 'score'), count(f.score), sum(f.score),
  min(f.score), max(f.score), sum(f.outcome = 'error'), sum(f.outcome = 'skip')
FROM {source} CROSS JOIN feedback f ON f.trace = t.id WHERE {where} AND f.standing >= 1 AND NOT {checks}
GROUP BY b, g, f.key, f.label ORDER BY b, g, f.key, f.label
"""


def buckets(db: sqlite3.Connection, filter: Filter, bucket_ns: int | None, group_by: str | None) -> list[Bucket]:
    """Buckets in order of time, then group; those without traces are left out."""
    if bucket_ns is not None and bucket_ns <= 0:
        raise Refused(f"a bucket is some nanoseconds wide, not {bucket_ns!r}")
    chosen = plan(db, filter, in_order=False)
    parts = _parts(chosen, bucket_ns, group_by)
    rows = db.execute(_TRACES.format(**parts), chosen.values).fetchall()
    stats = _stats(db, chosen, parts)
    return [_bucket(row, filter, bucket_ns, stats.get(row[:2], ())) for row in rows]


def _parts(chosen: Plan, bucket_ns: int | None, group_by: str | None) -> dict[str, str]:
    if group_by is not None and group_by not in _GROUPS:
        raise Refused(f"cannot group by {group_by!r}; use one of {', '.join(_GROUPS)}")
    by_model = group_by == "model"
    return {
        "bucket": f"t.start_ns / {bucket_ns} * {bucket_ns}" if bucket_ns else "0",
        "group": _GROUPS[group_by] if group_by else "NULL",
        "source": f"{chosen.source} CROSS JOIN json_each(t.models) m" if by_model else chosen.source,
        "where": chosen.where,
        "checks": CHECKS,
        "tokens_in": "json_extract(m.value, '$[1]')" if by_model else "t.input_tokens",
        "tokens_out": "json_extract(m.value, '$[2]')" if by_model else "t.output_tokens",
        "cost": "json_extract(m.value, '$[3]')" if by_model else "t.cost",
    }


def _bucket(row: Any, filter: Filter, bucket_ns: int | None, stats: tuple[FeedbackStats, ...]) -> Bucket:
    start, width, latencies = row[0], bucket_ns, sorted(map(int, row[9].split(",")))
    if width is None:
        start = filter.since_ns if filter.since_ns is not None else row[7]
        width = (filter.until_ns if filter.until_ns is not None else row[8] + 1) - start
    return Bucket(
        start_ns=start,
        width_ns=width,
        group=row[1],
        traces=row[2],
        errors=row[3],
        p50_ms=percentile(latencies, 50) / 1e6,
        p95_ms=percentile(latencies, 95) / 1e6,
        input_tokens=row[4] or 0,
        output_tokens=row[5] or 0,
        cost=row[6] or 0.0,
        feedback=stats,
    )


def _stats(db: sqlite3.Connection, chosen: Plan, parts: dict[str, str]) -> dict[Any, tuple[FeedbackStats, ...]]:
    """By (bucket, group): its keys, by name."""
    tallies: dict[Any, dict[str, Tally]] = {}
    for bucket, group, key, *row in db.execute(_FEEDBACK.format(**parts), chosen.values):
        _count(tallies.setdefault((bucket, group), {}).setdefault(key, Tally()), row)
    return {place: tuple(tally.stats(key) for key, tally in keys.items()) for place, keys in tallies.items()}


def _count(tally: Tally, row: list[Any]) -> None:
    """Add the outcomes that share a label: a row of `_FEEDBACK`, from `f.label` on."""
    label, said, n, total, minimum, maximum, failed, skipped = row
    scores = {"total": total, "minimum": minimum, "maximum": maximum} if n else {}
    labels = {} if label is None else {label: said}
    tally.add_counts(n=n, **scores, labelled=said - n, labels=labels, failed=failed, skipped=skipped)
