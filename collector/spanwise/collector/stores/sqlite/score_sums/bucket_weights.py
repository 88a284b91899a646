"""Weighted means of rules' scores in the buckets of an aggregate."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from spanwise.collector.filters import Filter
from spanwise.collector.records import Bucket, ScoreSums
from spanwise.collector.stores.sqlite.score_sums.contributions import read_contributions
from spanwise.collector.stores.sqlite.score_sums.session_clusters import WIDTHS_S
from spanwise.collector.stores.sqlite.score_sums.window_sums import (
    BlockWindow,
    choose_level,
    read_label_names,
    sum_blocks,
)
from spanwise.collector.stores.weighted_sums import GRAIN_NS, BucketPlace, ClusterSums, replace_bucket_means

_NS = 1_000_000_000
_UNBOUNDED = 2**62  # number of a block beyond all others
TRACES_PER_READ = 5_000

# Yields start of the bucket, group and key of each trace that an aggregate covers and that rules have scored
ListScoredTraces: TypeAlias = Callable[[], Iterable[tuple[int, str | None, int]]]


# Buckets count scores of traces. The scores of a rule that evaluates sessions are in none of them
_SELECT_SERIES = (
    "SELECT s.id, s.key FROM score_series s LEFT JOIN rules r ON (r.project, r.name, r.version) = (s.project, s.rule, s.version)"
    " WHERE s.field = '' AND (:project IS NULL OR s.project = :project)"
    " AND coalesce(json_extract(r.data, '$.target'), 'trace') <> 'session'"
)


def weigh_buckets(
    db: sqlite3.Connection,
    buckets: Sequence[Bucket],
    filter: Filter,
    bucket_ns: int | None,
    group_by: str | None,
    list_traces: ListScoredTraces,
    *,
    is_current: bool,
) -> list[Bucket]:
    """Return buckets in which the means of keys that rules have scored are weighted.

    An experiment runs all of its examples, so the scores of its runs are no sample, with or without a rule. Buckets of
    experiments therefore stay plain, and equal the summaries of the experiments.

    The sums of grains, hours and days answer where their blocks and the filter allow. Otherwise the scores of the
    traces are read one by one, as they are if the sums are not current.
    """
    if filter.experiment or filter.experiments is not None or filter.dataset is not None:
        return list(buckets)
    places: dict[int, str] = dict(db.execute(_SELECT_SERIES, {"project": filter.project}).fetchall())
    keys = set(places.values())
    if not any(stats.key in keys and stats.target == "trace" for bucket in buckets for stats in bucket.feedback):
        return list(buckets)
    window = _plan_window(db, filter, bucket_ns) if is_current and group_by is None else None
    if window is not None and not any(bucket.newest for bucket in buckets):
        sums = _read_tables(db, places, window, bucket_ns)
    else:
        sums = _sum_traces(db, list_traces, filter.project)
    return replace_bucket_means(buckets, sums, bucket_ns, group_by)


def _plan_window(db: sqlite3.Connection, filter: Filter, bucket_ns: int | None) -> BlockWindow | None:
    """Return the blocks of sums that cover exactly the traces of a filter; None if there are no such blocks."""
    if replace(filter, since_ns=None, until_ns=None, project=None, experiment=None) != Filter() or filter.experiment:
        return None
    since, until, width_ns = filter.since_ns, filter.until_ns, bucket_ns or GRAIN_NS
    if width_ns % GRAIN_NS or (since or 0) % GRAIN_NS:
        return None
    if until is not None and until % GRAIN_NS:  # the end may be moved if no trace has been scored in between
        later = -(-until // GRAIN_NS) * GRAIN_NS
        rules = [row[0] for row in db.execute("SELECT DISTINCT rule FROM score_series")]
        sql = "SELECT 1 FROM feedback WHERE rule = ? AND trace_start_ns >= ? AND trace_start_ns < ? LIMIT 1"
        if any(db.execute(sql, (rule, until, later)).fetchone() for rule in rules):
            return None
        until = later
    level = choose_level(*(bound for bound in (bucket_ns, since, until) if bound is not None))
    block_ns = WIDTHS_S[level] * _NS
    first = -_UNBOUNDED if since is None else since // block_ns
    last = _UNBOUNDED if until is None else until // block_ns
    return BlockWindow(level, first, last, 0, bucket_ns // block_ns if bucket_ns else 2 * _UNBOUNDED - 1)


def _read_tables(
    db: sqlite3.Connection, places: Mapping[int, str], window: BlockWindow, bucket_ns: int | None
) -> dict[BucketPlace, list[ScoreSums]]:
    found = sum_blocks(db, places, window, joined=False)
    names = read_label_names(db, found.values())
    sums: dict[BucketPlace, list[ScoreSums]] = defaultdict(list)
    for key, labelled in found.items():
        for record in labelled.records(key, None, names, lambda block: block * (bucket_ns or 0)):
            sums[record.start_ns, None].append(record)
    return sums


def _sum_traces(
    db: sqlite3.Connection, list_traces: ListScoredTraces, project: str | None
) -> dict[BucketPlace, list[ScoreSums]]:
    traces: dict[int, list[BucketPlace]] = defaultdict(list)
    for start_ns, group, trace in list_traces():
        traces[trace].append((start_ns, group))
    clusters = ClusterSums[tuple[BucketPlace, str]]()
    ids = list(traces)
    for at in range(0, len(ids), TRACES_PER_READ):
        for owner, contributions in read_contributions(db, ids[at : at + TRACES_PER_READ]).items():
            for each in contributions:
                for series, amounts in each.amounts.items():
                    for place in traces[int(owner)] if project in (None, series.project) else ():
                        clusters.add((place, series.key), 0, owner, each.cluster, series.label, amounts)
    sums: dict[BucketPlace, list[ScoreSums]] = defaultdict(list)
    for (of_bucket, key), labelled in clusters.add_up(joined=False).items():
        sums[of_bucket] += labelled.records(key, None, clusters.label_names, lambda _: 0)
    return sums
