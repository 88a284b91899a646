"""Deletion of traces and of what refers to them, tombstones, and retention.

A deletion first records tombstones, then removes rows. A collector that inserts rows of a trace looks for tombstones
before and after its insert, and removes what it inserted for a deleted trace. So no row of a deleted trace remains,
whichever comes first.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from spanwise.collector.errors import StoreError
from spanwise.collector.filters import Filter
from spanwise.collector.records import Retention
from spanwise.collector.stores import side_records
from spanwise.collector.stores.backends import DeletedTraces
from spanwise.collector.stores.clickhouse import schema
from spanwise.collector.stores.clickhouse.connection import DAY_NS, Database
from spanwise.collector.stores.clickhouse.record_lists import find_traces

BATCH_TRACES = 5_000  # traces per search
MAX_KEEP_DAYS = 60_000
# The engine deletes rows this much later than a retention rule says. Until then, `prune` has done so
KEEP_SLACK_DAYS = 2
RECENT_SECONDS = 600  # each collector looks for interrupted deletions of the last minutes; at its start, for all
_TABLES = ("traces", "spans", "feedback", "amendments", "open_runs")  # tables with rows of a trace, in order of removal


def find_deleted(db: Database, trace_ids: Iterable[str]) -> set[str]:
    """Return those of the traces that were deleted in the last eight days."""
    return find_deleted_and_present(db, trace_ids)[0]


def find_deleted_and_present(db: Database, trace_ids: Iterable[str], *tables: str) -> list[set[str]]:
    """Return those of the traces that were deleted in the last eight days, then for each table those with a row in it.

    One query for all: an answer costs the engine about a millisecond, and most traces are in no table.
    """
    ids = {"ids": list(trace_ids)}
    recent = f" AND deleted > now() - {schema.TOMBSTONE_DAYS * 86_400}"
    parts = [
        f"SELECT DISTINCT {number}, trace_id FROM {table} WHERE trace_id IN {{ids:Array(String)}}{'' if number else recent}"
        for number, table in enumerate(("tombstones", *tables))
    ]
    rows = db.query(" UNION ALL ".join(parts), ids) if ids["ids"] else []
    return [{trace_id for number, trace_id in rows if number == at} for at in range(len(parts))]


def find_deletable(
    db: Database, filter: Filter, after: str | None = None, upto: int | None = None
) -> DeletedTraces | None:
    """Return up to `BATCH_TRACES` of the latest traces that pass the filter, including evaluators' own; None if none
    passes.

    The result includes the sessions that lose their last trace. `after` is a position in the list, `upto` the highest
    number of a trace.
    """
    where = "t.trace_id NOT IN (SELECT trace_id FROM tombstones)" + (
        "" if upto is None else f" AND t.number <= {upto:d}"
    )
    columns = "t.trace_id, t.start_ns, t.session_id"
    rows, next = find_traces(db, filter, columns, BATCH_TRACES, after, where=where, judgements=True)
    if not rows:
        return None
    ids, sessions = [row[0] for row in rows], {row[2] for row in rows if row[2] is not None}
    left = {session for session, _ in _find_sessions(db, sessions, ids)}
    return DeletedTraces(ids, sorted(sessions - left), next)


def _find_sessions(db: Database, sessions: Collection[str], without: Sequence[str]) -> set[tuple[str, str]]:
    """Return those of the sessions that have traces other than these and deleted ones, with the traces' projects."""
    sql = (
        "SELECT DISTINCT session_id, project FROM traces FINAL WHERE session_id IN {sessions:Array(String)}"
        " AND trace_id NOT IN {ids:Array(String)} AND trace_id NOT IN (SELECT trace_id FROM tombstones)"
    )
    found = db.query(sql, {"sessions": list(sessions), "ids": list(without)}) if sessions else []
    return {(session, project) for session, project in found}


def delete_traces(db: Database, gone: Iterable[DeletedTraces]) -> int:
    """Delete traces, the feedback on sessions that have no other traces, and the traces of evaluators that gave the
    deleted feedback. Return the number of traces without those of evaluators.

    Rows are removed once, after the last batch: whole parts of a month where all traces are deleted, others by one
    mutation per table.
    """
    batch, total = secrets.token_hex(8), 0
    for lot in gone:
        ids = {"ids": list(lot.traces)}
        rows = db.query("SELECT session_id FROM traces FINAL WHERE trace_id IN {ids:Array(String)}", ids)
        linked = _find_judgements(db, "trace_id", lot.traces)
        _put_tombstones(db, lot.traces, batch)
        linked |= _delete_session_feedback(db, {row[0] for row in rows if row[0] is not None}, lot.traces)
        _put_tombstones(db, find_removable_judgements(db, linked), batch)
        total += len(rows)
    tombstones = "tombstones_local" if db.cluster else "tombstones"
    for table in _TABLES if total else ():
        deleted = f"trace_id IN (SELECT trace_id FROM {tombstones} WHERE batch = {{batch:String}})"
        if table in ("traces", "spans") and db.cluster is None:
            _drop_parts(db, table, deleted, {"batch": batch})
        _delete(db, table, deleted, {"batch": batch})
    return total


def _delete_session_feedback(db: Database, sessions: Collection[str], deleted: Sequence[str]) -> set[str]:
    """Delete the feedback on sessions without other traces, in the project if it names one. Return its judgements."""
    left = _find_sessions(db, sessions, deleted)
    of_any_project = {session for session, _ in left}
    sql = "SELECT id, session_id, project FROM feedback FINAL WHERE session_id IN {sessions:Array(String)}"
    rows = db.query(sql, {"sessions": list(sessions)}) if sessions else []
    ended = [
        id
        for id, session, project in rows
        if (session not in of_any_project if project is None else (session, project) not in left)
    ]
    linked = _find_judgements(db, "id", ended)
    if ended:
        _delete(db, "feedback", "id IN {ids:Array(String)}", {"ids": ended})
    return linked


def _put_tombstones(db: Database, trace_ids: Collection[str], batch: str) -> None:
    db.insert("tombstones", {"trace_id": list(trace_ids), "batch": [batch] * len(trace_ids)})


def _find_judgements(db: Database, column: str, values: Collection[str]) -> set[str]:
    """Return the traces that feedback names as those of its evaluators. A person may name any trace, so only stored
    traces count for human feedback.
    """
    sql = (
        f"SELECT DISTINCT judge_trace_id FROM feedback FINAL WHERE {column} IN {{ids:Array(String)}}"
        " AND judge_trace_id IS NOT NULL AND (source <> 'human' OR judge_trace_id IN (SELECT trace_id FROM traces))"
    )
    return db.find(sql, values)


def find_removable_judgements(db: Database, ids: Collection[str]) -> list[str]:
    """Return those of the traces that are evaluators' own or have not arrived."""
    sql = "SELECT trace_id FROM traces FINAL WHERE trace_id IN {ids:Array(String)} AND NOT judgement"
    return sorted(set(ids) - db.find(sql, ids))


def delete_judgements(
    db: Database, ids: Collection[str], traces: Collection[str], kept: Collection[str | None] = ()
) -> None:
    """Delete evaluators' own traces to which no feedback on these traces links any more, and those that have not
    arrived. Judgements in `kept` stay.
    """
    if not ids:
        return
    sql = "SELECT DISTINCT judge_trace_id FROM feedback FINAL WHERE trace_id IN {traces:Array(String)} AND judge_trace_id IN {ids:Array(String)}"
    linked = db.find(sql, ids, traces=list(traces))
    if removed := find_removable_judgements(db, set(ids) - linked - set(kept)):
        _put_tombstones(db, removed, secrets.token_hex(8))
        remove_rows(db, removed)


def remove_rows(db: Database, trace_ids: Collection[str]) -> None:
    """Remove all rows of a few traces."""
    for table in _TABLES:
        _delete(db, table, "trace_id IN {ids:Array(String)}", {"ids": list(trace_ids)})


def remove_deleted(db: Database, trace_ids: Iterable[str]) -> set[str]:
    """Remove the rows of those of the traces that were deleted while rows of them were inserted. Return their ids."""
    if gone := find_deleted(db, trace_ids):
        remove_rows(db, gone)
    return gone


def complete_deletions(db: Database, since_s: int = RECENT_SECONDS, age_s: int = 60) -> int:
    """Remove the rows of traces that were deleted in the last `since_s` seconds, but not just now. Return the number of
    traces.

    They remain if a collector was killed after it had inserted the tombstones.
    """
    deleted = (
        "SELECT trace_id FROM tombstones WHERE deleted > now() - {since:UInt32} AND deleted <= now() - {age:UInt32}"
    )
    rows = " UNION ALL ".join(f"SELECT trace_id FROM {table} WHERE trace_id IN ({deleted})" for table in _TABLES)
    sql = f"SELECT DISTINCT trace_id FROM ({rows}) LIMIT {BATCH_TRACES}"
    count = 0
    while ids := [row[0] for row in db.query(sql, {"since": since_s, "age": age_s})]:
        remove_rows(db, ids)
        count += len(ids)
    return count


def _delete(db: Database, table: str, where: str, parameters: Mapping[str, Any]) -> None:
    """Delete rows. They are invisible on return. Nothing is written if there are none."""
    if db.query(f"SELECT 1 FROM {table} WHERE {where} LIMIT 1", parameters):
        db.command(f"DELETE FROM {schema.get_mutation_target(table, db.cluster)} WHERE {where}", parameters)


def trim_side_tables(db: Database) -> None:
    """Delete the oldest waiting amendments beyond their limits, and the processes that were seen least recently."""
    waiting = (
        "SELECT max(number) FROM (SELECT number, row_number() OVER latest AS position, sum(length(fields)) OVER latest AS bytes"
        " FROM amendments FINAL WHERE applied = 0 WINDOW latest AS (ORDER BY number DESC))"
        " WHERE position > {rows:UInt64} OR bytes > {bytes:UInt64}"
    )
    [(last,)] = db.query(waiting, {"rows": side_records.MAX_AMENDMENTS, "bytes": side_records.MAX_AMENDMENT_BYTES})
    if last:
        _delete(db, "amendments", "applied = 0 AND number <= {last:UInt64}", {"last": last})
    seen = "SELECT seen_ns FROM processes FINAL ORDER BY seen_ns DESC LIMIT 1 OFFSET {last:UInt64}"
    if rows := db.query(seen, {"last": side_records.MAX_PROCESSES - 1}):
        least_recent = "instance IN (SELECT instance FROM processes FINAL WHERE seen_ns < {seen:Int64})"
        _delete(db, "processes", least_recent, {"seen": rows[0][0]})


def _drop_parts(db: Database, table: str, deleted: str, parameters: Mapping[str, Any]) -> None:
    """Drop the parts in which all rows are deleted, which needs no mutation.

    A part that was merged with a newer one meanwhile is no longer there, and its rows are deleted by a mutation.
    """
    sql = f"SELECT _part FROM {table} GROUP BY _part HAVING count() = countIf({deleted})"
    for (part,) in db.query(sql, parameters):
        try:
            db.command(f"ALTER TABLE {table} DROP PART {{part:String}}", {"part": part})
        except StoreError as error:
            if "NO_SUCH_DATA_PART" not in str(error):
                raise


def delete_orphaned_feedback(db: Database, before_ns: int) -> None:
    """Delete feedback on traces that have not arrived, if all of it on a trace is older than a time."""
    orphaned = (
        "trace_id IN (SELECT trace_id FROM feedback WHERE trace_id <> '' GROUP BY trace_id"
        " HAVING max(created_ns) < {before:Int64}) AND trace_id NOT IN (SELECT trace_id FROM traces)"
    )
    _delete(db, "feedback", orphaned, {"before": before_ns})


# Retention: which traces expire now, and after how many days the engine deletes rows by itself.


def prepare_pruning(db: Database, rule: Retention) -> list[Filter]:
    """Return filters for the traces that a rule expires now: those before a time, oldest last, and those that start in the
    future and have not changed for as long.

    Also delete what belongs to traces that never arrived.
    """
    now_ns, cutoffs, filters = db.now(), list[int](), list[Filter]()
    if rule.max_age_ns is not None:
        cutoffs.append(now_ns - rule.max_age_ns)
        sql = (
            "SELECT trace_id FROM traces FINAL WHERE start_ns > {tomorrow:Int64} AND toInt64(change) < {before:Int64}"
            " AND {project:String} IN ('', project) LIMIT 5000"
        )
        values = {"tomorrow": now_ns + DAY_NS, "before": now_ns - rule.max_age_ns, "project": rule.project or ""}
        if future := db.query(sql, values):
            filters.append(Filter(trace_ids=tuple(row[0] for row in future)))
    if rule.max_bytes is not None:
        cutoffs.append(_find_cutoff_by_size(db, rule.project, rule.max_bytes))
    if not cutoffs:
        return []
    before = max(cutoffs)
    if rule.project is None:
        delete_orphaned_feedback(db, before)
    expired = {"before": before, "project": rule.project or ""}
    of_project = "{project:String} IN ('', project) AND trace_id NOT IN (SELECT trace_id FROM traces)"
    _delete(db, "open_runs", f"start_ns < {{before:Int64}} AND {of_project}", expired)
    _delete(db, "amendments", f"toInt64(number) < {{before:Int64}} AND applied = 0 AND {of_project}", expired)
    return [Filter(project=rule.project, until_ns=before), *filters]


def _find_cutoff_by_size(db: Database, project: str | None, max_bytes: int) -> int:
    """Return the start time before which traces expire so that a project uses at most `max_bytes` on disk.

    The bytes that a project uses are estimated from its share of all payloads.
    """
    own = {"project": project or ""}
    where = "{project:String} IN ('', project)"
    used = db.count_bytes()
    [(total, of_project)] = db.query(f"SELECT sum(size), sumIf(size, {where}) FROM traces FINAL", own)
    share = used * of_project // max(total, 1)
    excess = of_project * max(0, share - max_bytes) // max(share, 1)
    sql = (
        f"SELECT max(start_ns) FROM (SELECT start_ns, sum(size) OVER (ORDER BY start_ns, trace_id) - size AS older"
        f" FROM traces FINAL WHERE {where}) WHERE older < {{excess:Int64}}"
    )
    return int(db.query(sql, {**own, "excess": excess})[0][0]) + 1 if excess > 0 else 0


def find_keep_days(limits: Mapping[str, int], project: str) -> int:
    """Return the number of days after which the engine deletes rows of a project; 0: never. `limits` are as
    `read_keep_days` returns them.
    """
    return min((days for name in ("", project) if (days := limits.get(name, 0))), default=0)


def read_keep_days(db: Database) -> dict[str, int]:
    """Return the number of days after which the engine deletes rows, by project; "" for all projects."""
    return dict(db.query("SELECT project, keep_days FROM retention FINAL WHERE keep_days > 0"))


def apply_retention(db: Database, rules: Iterable[Retention]) -> None:
    """Let the engine delete rows by the ages in the stored retention rules, some days after `prune` should have.

    In the rows of a project whose rule has changed, this rewrites one column, also in those that a collector has written
    which did not know the change, and in those that an interrupted call has left.
    """
    wanted = {
        rule.project or "": min(-(-rule.max_age_ns // DAY_NS) + KEEP_SLACK_DAYS, MAX_KEEP_DAYS)
        for rule in rules
        if rule.max_age_ns is not None
    }
    stored = read_keep_days(db)
    changed = sorted(name for name in wanted.keys() | stored.keys() if wanted.get(name) != stored.get(name))
    days, now = [wanted.get(name, 0) for name in changed], db.now()
    db.insert("retention", {"project": changed, "keep_days": days, "version": [now] * len(changed)})
    for table in ("traces", "spans"):
        target = schema.get_mutation_target(table, db.cluster)
        found = db.query(f"SELECT DISTINCT project, keep_days FROM {table}")
        limits = {project: find_keep_days(wanted, project) for project, _ in found}
        for project in sorted({project for project, days in found if days != limits[project]}):
            db.command(
                f"ALTER TABLE {target} UPDATE keep_days = {{days:UInt16}}"
                " WHERE project = {project:String} AND keep_days <> {days:UInt16}"
                " SETTINGS mutations_sync = 0",  # it may take longer than a request
                {"days": limits[project], "project": project},
            )
