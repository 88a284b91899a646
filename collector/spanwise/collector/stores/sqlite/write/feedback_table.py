"""Feedback table: rows, current and superseded feedback, replacement of scores, cursors of forwarding.

The column `standing` has three values:

- 2: the newest feedback of its key on the trace and its spans.
- 1: the newest feedback of its slot, which is (target, key, source, author, rule), see `spanwise.collector.statistics.select_latest`. Aggregates count rows with 1 or 2. Feedback on a document, a session or an experiment has at most 1.
- 0: an older version.

Human feedback under a key that a judge (source "model") has scored has a standing like any other, for lists and
filters. For aggregates, it is a check of the judge and not an additional score. Therefore their queries leave it out
(`rollup_delta.CHECKS_JUDGE_SQL`).
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from spanwise.collector.records import JSON, Feedback, Outlet, Target
from spanwise.collector.statistics import is_anonymous
from spanwise.collector.stores.backends import RuleFeedback, TargetFeedback, compare_claims
from spanwise.collector.stores.queries import feedback_records
from spanwise.collector.stores.queries.feedback_records import FeedbackRow
from spanwise.collector.stores.sqlite.database import score_sum_schema
from spanwise.collector.stores.sqlite.database.connections import Reader
from spanwise.collector.stores.sqlite.database.schema import INDEX_FEEDBACK_ORDER
from spanwise.collector.stores.sqlite.database.store_clock import StoreClock
from spanwise.collector.stores.sqlite.maintenance import deletion
from spanwise.collector.stores.sqlite.write.run_codec import Batch
from spanwise.collector.stores.sqlite.write.span_writer import Appender, WriteResult
from spanwise.collector.stores.store_interfaces import OutgoingFeedback
from spanwise.collector.stores.table_rows import (
    build_upsert_clause,
    delete_many,
    insert_many,
    select_many,
)

# Feedback table: rows, current and superseded feedback, replacement of a rule's earlier scores.

_RULE_FEEDBACK_COLUMNS = ",".join(RuleFeedback._fields).replace("claim", "coalesce(claim, 0)")


def read_rule_feedback(db: sqlite3.Connection, column: str, values: Iterable[Any]) -> list[RuleFeedback]:
    """Return the feedback of rules on traces (by key), sessions or experiments."""
    sql = f"SELECT {_RULE_FEEDBACK_COLUMNS} FROM feedback WHERE rule IS NOT NULL AND {column} IN (%s)"
    return [RuleFeedback(*row) for row in select_many(db, sql, values)]


# Key of the trace, columns of the content, and columns that only this store has
FEEDBACK_COLUMNS = ["id", "trace", *FeedbackRow._fields[1:], "standing", "trace_start_ns", "said"]
(
    _ID,
    _TRACE,
    _TRACE_ID,
    _DOCUMENT,
    _SESSION,
    _EXPERIMENT,
    _PROJECT,
    _KEY,
    _SOURCE,
    _RULE,
    _CLAIM,
    _JUDGE,
    _CREATED,
    _STANDING,
) = map(
    FEEDBACK_COLUMNS.index,
    "id trace trace_id document session_id experiment_id project key source rule claim judge_trace_id created_ns standing".split(),
)
_TRACE_START, _NUMBER = len(FEEDBACK_COLUMNS) - 2, len(FEEDBACK_COLUMNS) - 1
_RULE_FEEDBACK_PLACES = tuple(map(FEEDBACK_COLUMNS.index, RuleFeedback._fields))
_OTHER_KEY_COLUMNS = ("session_id", "experiment_id", "project", "key", "source", "author", "rule")
_OTHER_KEY_PLACES = tuple(map(FEEDBACK_COLUMNS.index, _OTHER_KEY_COLUMNS))
# Columns that are not forwarded. A row that is written again with all other columns unchanged keeps its sequence
# number.
_LOCAL_COLUMNS = ("id", "trace", "claim", "judge_trace_id", "standing", "trace_start_ns", "said")
_FORWARDED_COLUMNS = [name for name in FEEDBACK_COLUMNS if name not in _LOCAL_COLUMNS]
_KEEP_NUMBER = "said = CASE WHEN {} THEN feedback.said ELSE excluded.said END".format(
    " AND ".join(f"feedback.{name} IS excluded.{name}" for name in _FORWARDED_COLUMNS)
)
_OVERWRITE = f"{build_upsert_clause(FEEDBACK_COLUMNS[:_NUMBER])}, {_KEEP_NUMBER} WHERE " + " AND ".join(
    f"feedback.{name} IS excluded.{name}" for name in ("trace", *_OTHER_KEY_COLUMNS)
)
NUMBER_PLACE = _NUMBER
SELECT_FEEDBACK = "SELECT " + ",".join(f"f.{name}" for name in FEEDBACK_COLUMNS) + " FROM feedback f"


NOTHING_WRITTEN = WriteResult({}, set())


def append_batches(appender: Appender, batches: Sequence[Batch]) -> None:
    """Write batches on the writer's connection: their runs, then their feedback."""
    written = appender.write(batches) if any(batch.facts for batch in batches) else NOTHING_WRITTEN
    if rows := [*_take_due_rows(appender), *(row for batch in batches for row in batch.feedback)]:
        write_feedback(appender, rows, written)


def write_due_feedback(appender: Appender) -> None:
    """Write the feedback of amendments that have been applied."""
    if rows := _take_due_rows(appender):
        write_feedback(appender, rows)


def _take_due_rows(appender: Appender) -> Sequence[list[Any]]:
    due, appender.due_feedback = appender.due_feedback, []
    return encode_feedback(due)


def encode_feedback(feedback: Sequence[Feedback]) -> Sequence[list[Any]]:
    """Encode feedback as rows without the key of their trace, which the writer adds. Needs no database."""
    rows = list(map(feedback_records.encode_feedback, feedback))
    for row in rows:
        row.insert(_TRACE, None)
        # The most likely standing, so that usually no update is needed
        row += (2 if row[_TRACE_ID] is not None and row[_DOCUMENT] is None else 1, None, None)
    return rows


def write_feedback(appender: Appender, rows: Sequence[list[Any]], written: WriteResult = NOTHING_WRITTEN) -> None:
    """Insert or overwrite rows, then update the standing of all feedback with the same target and key.

    Feedback on a deleted trace, or with a lower lease number than stored feedback, is left out. A row that is the
    only one under its key on its trace keeps the standing that it was encoded with.
    """
    db, new = appender.db, written.new
    by_id = _resolve_traces(appender, {row[_ID]: row for row in rows}, new)
    overtaken = _drop_overtaken(appender, by_id, set(new.values()))
    _set_trace_start(db, [row for row in by_id.values() if row[_RULE] is not None])
    stored = {row[_ID]: row for row in select_many(db, SELECT_FEEDBACK + " WHERE f.id IN (%s)", by_id)}
    moved = _changed_traces(by_id, stored) - written.changed
    replaced = {row[_JUDGE] for id, row in stored.items() if by_id[id][_SOURCE] == "model"} - {None}
    numbers, now = appender.numbers(len(by_id) + len(moved))
    for number, row in zip(numbers, by_id.values(), strict=False):
        row[_NUMBER] = number
    pairs = {(row[_TRACE], row[_KEY]) for row in (*by_id.values(), *stored.values())}
    with appender.sums.update_feedback(pairs, set(new.values())) as first:
        if not _upsert_rows(db, by_id.values()):
            # Some ids had another target or key before. Remove them first, so that superseded feedback there becomes
            # current.
            _remove_rows(db, list(by_id))
            _upsert_rows(db, by_id.values())
        # Rows that may share their trace and key with another row, so that their standing must be computed
        count = Counter([(row[_TRACE], row[_KEY]) for row in by_id.values()])
        places = ((row, (row[_TRACE], row[_KEY])) for row in by_id.values())
        _update_standing(db, [row for row, place in places if count[place] > 1 or place not in first])
    appender.put_at(sorted(moved), numbers[len(by_id) :], now)
    if ruled := [row for row in (*by_id.values(), *stored.values()) if row[_RULE] is not None]:
        # for the weighted sums; triggers record the scores that are deleted
        traces, sessions = {row[_TRACE] for row in ruled}, {row[_SESSION] for row in ruled if row[_TRACE] is None}
        score_sum_schema.record_scores(db, traces - {None}, sessions - {None})
    if overtaken:
        delete_feedback(db, appender, list(overtaken))
    if replaced:
        remove_unlinked_judgements(
            appender, replaced, {row[_TRACE] for row in by_id.values()}, {row[_JUDGE] for row in by_id.values()}
        )


def _resolve_traces(appender: Appender, by_id: dict[str, list[Any]], new: Mapping[str, int]) -> dict[str, list[Any]]:
    """Set the keys of the rows' traces, and remove rows on deleted traces."""
    stored_ids = {row[_TRACE_ID] for row in by_id.values()} - new.keys() - {None}
    keys = {**(appender.keys(stored_ids) if stored_ids else {}), **new}
    late = [id for id, row in by_id.items() if row[_TRACE_ID] is not None and row[_TRACE_ID] not in keys]
    appender.tombstones.late += len(late)
    _discard_rows(appender, by_id, late)
    for row in by_id.values():
        if row[_TRACE_ID] is not None:
            row[_TRACE] = keys[row[_TRACE_ID]]
    return by_id


def _discard_rows(appender: Appender, by_id: dict[str, list[Any]], ids: Iterable[str]) -> None:
    """Remove rows, and the judgements that only they link to."""
    out = [by_id.pop(id) for id in ids]
    if judged := {row[_JUDGE] for row in out} - {None}:
        remove_unlinked_judgements(
            appender, judged, {row[_TRACE] for row in out}, {row[_JUDGE] for row in by_id.values()}
        )


def _drop_overtaken(appender: Appender, by_id: dict[str, list[Any]], new: Collection[int]) -> set[str]:
    """Remove rows with a lower lease number than stored ones; return the ids of stored rows that are outdated now."""
    ruled = [row for row in by_id.values() if row[_RULE] is not None]
    if not ruled:
        return set()
    # stored feedback of rules on the same traces, sessions and experiments
    before: list[RuleFeedback] = []
    for name, column in (("trace", _TRACE), ("session_id", _SESSION), ("experiment_id", _EXPERIMENT)):
        if values := {row[column] for row in ruled if row[_TRACE] not in new} - {None}:
            before += read_rule_feedback(appender.db, name, values)
    new_rows = [RuleFeedback(*(row[column] for column in _RULE_FEEDBACK_PLACES)) for row in ruled]
    late, overtaken = compare_claims([row._replace(claim=row.claim or 0) for row in new_rows], before)
    _discard_rows(appender, by_id, late)
    return overtaken


def _set_trace_start(db: sqlite3.Connection, rows: Sequence[list[Any]]) -> None:
    """Set the start time of the trace of each row: the time to which a rule's score belongs.

    A score of a session belongs to the start of its first trace, within the project if the target names one. If no
    trace is stored, it belongs to the time at which it was created.
    """
    starts = "SELECT id, start_ns FROM traces WHERE start_ns IS NOT NULL AND id IN (%s)"
    of_trace = dict(select_many(db, starts, {row[_TRACE] for row in rows} - {None}))
    firsts = (
        "SELECT session_id, project, min(start_ns) FROM traces WHERE session_id IN (%s) AND start_ns IS NOT NULL"
        " GROUP BY session_id, project"
    )
    of_session: dict[tuple[str, str | None], int] = {}
    for session, project, first in select_many(db, firsts, {row[_SESSION] for row in rows} - {None}):
        of_session[session, project] = first
        of_session[session, None] = min(first, of_session.get((session, None), first))
    for row in rows:
        session = row[_SESSION], row[_PROJECT]
        start = of_session.get(session) if row[_TRACE] is None else of_trace.get(row[_TRACE])
        row[_TRACE_START] = row[_CREATED] if start is None else start


def _changed_traces(by_id: Mapping[str, Sequence[Any]], stored: Mapping[str, Sequence[Any]]) -> set[int]:
    """Return the traces on which feedback that no rule gave changes. A row that is stored with the same content is no
    change.
    """
    changed = [
        row
        for id, new in by_id.items()
        if (old := stored.get(id)) is None or list(old[:_STANDING]) != new[:_STANDING]
        for row in (old, new)
    ]
    return _traces_without_rule(row for row in changed if row is not None)


def _traces_without_rule(rows: Iterable[Sequence[Any]]) -> set[int]:
    """Return the traces of those rows that no rule gave."""
    return {row[_TRACE] for row in rows if row[_RULE] is None and row[_TRACE] is not None}


def remove_unlinked_judgements(
    appender: Appender, ids: set[str], traces: Iterable[int | None], kept: Collection[str | None] = ()
) -> None:
    """Remove judgements to which no feedback on these traces links any more.

    Judgements in `kept` stay, because rows that are yet to be written link to them. Judgements quote the judged
    content, so a deletion must be able to find them by a link.
    """
    sql = "SELECT judge_trace_id FROM feedback WHERE trace IN (%s) AND judge_trace_id IS NOT NULL"
    linked = {row[0] for row in select_many(appender.db, sql, set(traces) - {None})}
    deletion.delete_judgements(appender, appender.db, ids.difference(linked, kept))


def _upsert_rows(db: sqlite3.Connection, rows: Collection[Sequence[Any]]) -> bool:
    """Insert or overwrite rows; return whether each overwritten row had the same target and key."""
    return insert_many(db, "feedback", FEEDBACK_COLUMNS, list(rows), _OVERWRITE) == len(rows)


def _update_standing(db: sqlite3.Connection, rows: Iterable[Sequence[Any]]) -> None:
    """Update the standing of all feedback with the same target and key as these rows, which may be deleted already."""
    rows = list(rows)
    update_trace_standing(db, {(row[_TRACE], row[_KEY]) for row in rows if row[_TRACE] is not None})
    # Feedback on sessions and experiments: the newest of each slot counts
    kinds = {tuple(row[i] for i in _OTHER_KEY_PLACES) for row in rows if row[_TRACE] is None}
    where = " AND ".join(f"{name} IS ?" for name in _OTHER_KEY_COLUMNS)
    newest = f"(SELECT rowid FROM feedback WHERE {where} ORDER BY created_ns DESC, rowid DESC LIMIT 1)"
    for kind in kinds:
        # anonymous feedback counts as that of different people, so none of it supersedes another
        if not is_anonymous(*kind[4:6]):
            db.execute(f"UPDATE feedback SET standing = (rowid = {newest}) WHERE {where}", (*kind, *kind))


def update_trace_standing(db: sqlite3.Connection, pairs: Iterable[tuple[int, str]]) -> None:
    """Update the standing of all feedback of these pairs of trace and key."""
    rows = _rows_sharing_key(db, pairs)
    rows.sort(key=lambda row: row[2:4], reverse=True)
    changes: list[tuple[int, int]] = []
    kinds: set[Any] = set()
    latest: set[Any] = set()
    for row in rows:
        standing = _compute_standing(row, kinds, latest)
        if standing != row[4]:
            changes.append((standing, row[3]))
    if changes:
        db.executemany("UPDATE feedback SET standing = ? WHERE rowid = ?", changes)


def _rows_sharing_key(db: sqlite3.Connection, pairs: Iterable[tuple[int, str]]) -> list[Any]:
    """Return all feedback of these pairs of trace and key, without reading other keys, which may have many rows."""
    by_key: dict[str, list[int]] = {}
    for trace, key in dict.fromkeys(pairs):
        by_key.setdefault(key, []).append(trace)
    sql = (
        "SELECT trace, key, created_ns, rowid, standing, document, span_id, source, author, rule, id FROM feedback"
        " WHERE key = ? AND trace IN (%s)"
    )
    return [row for key, traces in by_key.items() for row in select_many(db, sql, traces, (key,))]


def _compute_standing(row: Sequence[Any], kinds: set[Any], latest: set[Any]) -> int:
    """Return the standing of a row. Rows must come newest first.

    The first row of each slot counts. The first row of each pair of trace and key is the newest (2).
    """
    kind = (row[0], row[1], *row[5 : 11 if is_anonymous(row[7], row[8]) else 10])
    if kind in kinds:
        return 0
    kinds.add(kind)
    if row[5] is not None or row[:2] in latest:
        return 1
    latest.add(row[:2])
    return 2


def change_feedback(
    db: sqlite3.Connection, appender: Appender, changes: Mapping[str, Mapping[str, JSON]]
) -> list[Feedback]:
    """Overwrite fields of feedback by id. Raises `NotFound` for an unknown id, and `Refused` for invalid fields."""
    stored = {
        row[0]: feedback_from_row(row) for row in select_many(db, SELECT_FEEDBACK + " WHERE f.id IN (%s)", changes)
    }
    made = feedback_records.change_stored(stored, changes)
    write_feedback(appender, encode_feedback(made))
    return made


def delete_feedback(db: sqlite3.Connection, appender: Appender, ids: Sequence[str]) -> int:
    """Delete feedback by id with the judgements that only it links to; superseded feedback becomes current. Returns the
    number of rows.
    """
    with appender.sums.update_feedback(select_many(db, "SELECT trace, key FROM feedback WHERE id IN (%s)", ids)):
        removed = _remove_rows(db, ids)
    appender.move(_traces_without_rule(removed))
    if judged := {row[_JUDGE] for row in removed} - {None}:
        remove_unlinked_judgements(appender, judged, {row[_TRACE] for row in removed})
    return len(removed)


def _remove_rows(db: sqlite3.Connection, ids: Sequence[str]) -> list[Any]:
    removed = select_many(db, SELECT_FEEDBACK + " WHERE f.id IN (%s)", ids)
    delete_many(db, "feedback", "id", ids)
    _update_standing(db, removed)
    return removed


def feedback_from_row(row: Sequence[Any]) -> Feedback:
    """Decode a row of `SELECT_FEEDBACK`."""
    return feedback_records.decode_feedback(row[0], feedback_records.decode_target(row[2:8]), row[8:_STANDING])


def read_feedback_rows(rows: Iterable[Sequence[Any]]) -> Iterator[tuple[int, Feedback]]:
    """Yield the trace key and the feedback of rows of `SELECT_FEEDBACK`. Feedback on the same target shares the `Target`
    object.
    """
    targets: dict[Sequence[Any], Target] = {}
    for row in rows:
        about = row[2:8]
        target = targets.get(about)
        if target is None:
            target = targets[about] = feedback_records.decode_target(about)
        yield row[1], feedback_records.decode_feedback(row[0], target, row[8:_STANDING])


def put_rule_feedback(db: sqlite3.Connection, appender: Appender, sets: Sequence[TargetFeedback]) -> list[bool]:
    """Write sets of a rule's feedback in order; return for each set whether it was accepted (see `stores.backends`)."""
    return [
        is_accepted for group in feedback_records.split_sets(sets) for is_accepted in _put_sets(db, appender, group)
    ]


def _put_sets(db: sqlite3.Connection, appender: Appender, sets: Sequence[TargetFeedback]) -> list[bool]:
    ids = {new.target.trace_id for new in sets} - {None}
    found = select_many(db, "SELECT trace_id, id FROM traces WHERE span_count > 0 AND trace_id IN (%s)", ids)
    keys: dict[str | None, int | None] = {None: None, **dict(found)}  # a session needs no stored trace
    stored = (
        *read_rule_feedback(db, "trace", set(keys.values()) - {None}),
        *read_rule_feedback(db, "session_id", {new.target.session_id for new in sets} - {None}),
    )
    plan = feedback_records.plan_replacement(sets, stored, keys)
    for new in plan.refused:  # no feedback links to the judgements of a refused set
        judged = {feedback.judge_trace_id for feedback in new.feedback if feedback.judge_trace_id is not None}
        remove_unlinked_judgements(appender, judged, {keys.get(new.target.trace_id)})
    write_feedback(appender, encode_feedback(plan.written))
    delete_feedback(db, appender, list(plan.replaced))
    return plan.accepted


# Forwarding state: cursor of each outlet over the feedback table.
#
# The rows of `feedback` are the queue: they are durable, and retention limits their number. A row that changes
# several times before it is sent is sent once. A row gets a new sequence number (column `said`) when its content
# changes.

_SELECT_AFTER = (
    SELECT_FEEDBACK.replace(" FROM", ", coalesce(t.project, f.project), t.environment FROM")
    + " LEFT JOIN traces t ON t.id = f.trace WHERE f.said > ? ORDER BY f.said LIMIT ?"
)
_FIELDS = ", ".join(feedback_records.OUTLET_COLUMNS)
_COUNT_WAITING = "(SELECT count(*) FROM feedback f WHERE f.said > o.cursor)"


def list_outlets(reader: Reader) -> list[Outlet]:
    """Return all present and former outlets, by name."""
    rows = reader.db.execute(f"SELECT {_FIELDS}, {_COUNT_WAITING} FROM outlets o ORDER BY name").fetchall()
    return [feedback_records.make_outlet(row[:-1], row[-1]) for row in rows]


def open_outlet(db: sqlite3.Connection, clock: StoreClock, name: str, url: str) -> Outlet:
    """Return an outlet with its cursor. A new outlet, or one with another URL, starts after all present feedback."""
    now = clock.keep(db)
    db.execute(INDEX_FEEDBACK_ORDER)
    last = db.execute("SELECT coalesce(max(said), 0) FROM feedback").fetchone()[0]
    db.execute("DELETE FROM outlets WHERE name = ? AND url <> ?", (name, url))
    db.execute("INSERT OR IGNORE INTO outlets VALUES (?, ?, ?, 0, 0, NULL, ?)", (name, url, last, now))
    row = db.execute(f"SELECT {_FIELDS}, {_COUNT_WAITING} FROM outlets o WHERE name = ?", (name,)).fetchone()
    return feedback_records.make_outlet(row[:-1], row[-1])


def move_outlet(
    db: sqlite3.Connection, clock: StoreClock, name: str, cursor: int, sent: int, dropped: int, error: str | None
) -> None:
    """Record the cursor of an outlet, how many more rows were sent and dropped, and the error of the last attempt."""
    db.execute(
        "UPDATE outlets SET cursor = max(cursor, ?), sent = sent + ?, dropped = dropped + ?, error = ?, updated_ns = ?"
        " WHERE name = ?",
        (cursor, sent, dropped, error, clock.keep(db), name),
    )


def read_feedback_after(reader: Reader, cursor: int, limit: int) -> Sequence[OutgoingFeedback]:
    """Return feedback written after a cursor, in order: at most `limit` rows and about `MAX_READ_CHARACTERS`."""
    rows = reader.db.execute(_SELECT_AFTER, (cursor, limit))
    return feedback_records.take_outgoing(
        rows, lambda row: OutgoingFeedback(row[NUMBER_PLACE], feedback_from_row(row), row[-2], row[-1])
    )


def count_feedback_after(reader: Reader, cursor: int) -> int:
    """Return the number of feedback rows written after a cursor."""
    return int(reader.db.execute("SELECT count(*) FROM feedback WHERE said > ?", (cursor,)).fetchone()[0])


def read_file_identity(db: sqlite3.Connection) -> str:
    """Return the random identity of the file."""
    return str(db.execute("SELECT identity FROM feed").fetchone()[0])


def find_stored_feedback(reader: Reader, ids: Collection[str]) -> set[str]:
    """Return those of the feedback ids that are stored."""
    return {row[0] for row in select_many(reader.db, "SELECT id FROM feedback WHERE id IN (%s)", ids)}
