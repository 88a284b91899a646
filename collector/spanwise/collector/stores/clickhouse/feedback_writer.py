"""Feedback writer: stores, replaces and deletes feedback, also that of rules, without transactions.

A row is its own entry in the change feed, and a deletion is a row, too. Of two rows with one id, that with the higher
lease number is kept, whichever arrives later. Feedback of an earlier lease under other keys is removed by the call
that replaces it, and, if that is interrupted, by `remove_outdated`.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from spanwise.collector.records import JSON, Feedback, Outlet
from spanwise.collector.stores.backends import RuleFeedback, TargetFeedback, compare_claims, find_highest_claims
from spanwise.collector.stores.clickhouse import deletion
from spanwise.collector.stores.clickhouse.connection import Database, Row
from spanwise.collector.stores.clickhouse.feedback_rows import (
    FEEDBACK_COLUMNS,
    decode_feedback,
    decode_row,
    encode_feedback,
    make_feedback_columns,
)
from spanwise.collector.stores.queries import feedback_records
from spanwise.collector.stores.queries.feedback_records import FeedbackRow
from spanwise.collector.stores.store_interfaces import OutgoingFeedback

_SELECT = f"SELECT {FEEDBACK_COLUMNS} FROM feedback FINAL"


class FeedbackWriter:
    """Writer of feedback. Any thread may use it."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.late = 0  # feedback on deleted traces that was not stored

    def write(self, feedback: Sequence[Feedback]) -> None:
        """Store feedback. The same id overwrites, unless its content is the same or has a higher lease number."""
        by_id = {one.id: (encode_feedback(one), one.id == replace(one, id="").id) for one in feedback}
        rows = {id: row for id, (row, _) in by_id.items()}
        gone = deletion.find_deleted(self._db, {row.trace_id for row in rows.values() if row.trace_id})
        outdated = {id for id, row in rows.items() if row.trace_id in gone}
        self.late += len(outdated)
        rule_rows = [row for id, row in rows.items() if row.rule and id not in outdated]
        before = self._read_of_rules(rule_rows) if rule_rows else []
        late, replaced = compare_claims(list(map(_get_rule_fields, rule_rows)), list(map(_get_rule_fields, before)))
        outdated |= late
        stored = self._read_stored(rows.values(), {id for id, (_, is_derived) in by_id.items() if not is_derived})
        new = [row for id, row in rows.items() if id not in outdated and stored.get(id) != row]
        # an id that was given to another target before is deleted there
        moved = [stored[row.id] for row in new if row.id in stored and _get_key(stored[row.id]) != _get_key(row)]
        removed = [
            row._replace(claim=highest) for row, highest in _find_outdated(before, rule_rows) if row.id in replaced
        ]
        self._insert(new, [*moved, *removed])
        judged = {rows[id].judge_trace_id for id in outdated}
        judged |= {row.judge_trace_id for row in (*removed, *moved)}
        judged |= {stored[row.id].judge_trace_id for row in new if row.id in stored and row.source == "model"}
        self._delete_judgements(judged, (*rows.values(), *removed), {row.judge_trace_id for row in new})
        deletion.remove_deleted(self._db, {row.trace_id for row in new if row.trace_id})

    def _insert(self, rows: Sequence[FeedbackRow], deleted: Sequence[FeedbackRow] = ()) -> None:
        if rows or deleted:
            columns = make_feedback_columns(rows, self._db.floor(), deleted)
            self._db.insert("feedback", columns, secrets.token_hex(8))

    def _delete_judgements(
        self,
        ids: Collection[str | None],
        rows: Iterable[FeedbackRow],
        kept: Collection[str | None] = (),
    ) -> None:
        """Delete evaluators' traces to which no feedback on the traces of these rows links any more."""
        judged = {id for id in ids if id is not None and id not in kept}
        deletion.delete_judgements(self._db, judged, {row.trace_id or "" for row in rows})

    def _read_stored(self, rows: Iterable[FeedbackRow], given: Collection[str]) -> dict[str, FeedbackRow]:
        """Return the stored feedback with the ids of rows. Ids in `given` may be stored for another target."""
        known = [row for row in rows if row.id not in given]
        keys = {_get_key(row) for row in known}
        where = "(trace_id, session_id, experiment_id) IN {keys:Array(Tuple(String, String, String))}"
        values = {"keys": list(keys), "ids": [row.id for row in known]}
        found = self._db.query(f"{_SELECT} WHERE {where} AND id IN {{ids:Array(String)}}", values) if known else []
        return {row.id: row for row in map(decode_row, [*found, *self._select_ids(given)])}

    def _select_ids(self, ids: Collection[str]) -> Sequence[Row]:
        return self._db.query(f"{_SELECT} WHERE id IN {{ids:Array(String)}}", {"ids": list(ids)}) if ids else ()

    def _read_of_rules(self, rows: Iterable[FeedbackRow]) -> list[FeedbackRow]:
        """Return the feedback of rules on the targets of rows, in any version."""
        keys = set(map(_get_key, rows))
        where = "(trace_id, session_id, experiment_id) IN {keys:Array(Tuple(String, String, String))} AND rule <> ''"
        return [decode_row(row) for row in self._db.query(f"{_SELECT} WHERE {where}", {"keys": list(keys)})]

    def change_feedback(self, changes: Mapping[str, Mapping[str, JSON]]) -> list[Feedback]:
        """Overwrite fields of feedback by id. Raise `NotFound` for an unknown id; then nothing is changed."""
        stored = {row[0]: decode_feedback(row) for row in self._select_ids(changes)}
        made = feedback_records.change_stored(stored, changes)
        self.write(made)
        return made

    def delete_feedback(self, ids: Sequence[str]) -> int:
        """Delete feedback by id, with the judgements that only it links to. Return the number of rows."""
        rows = list(map(decode_row, self._select_ids(ids)))
        self._insert([], rows)
        self._delete_judgements({row.judge_trace_id for row in rows}, rows)
        return len(rows)

    def replace_rule_feedback(self, verdicts: Sequence[TargetFeedback]) -> list[bool]:
        """Replace the feedback of earlier leases. Return for each entry whether it was stored (see `stores.backends`)."""
        return [is_accepted for group in feedback_records.split_sets(verdicts) for is_accepted in self._replace(group)]

    def _replace(self, verdicts: Sequence[TargetFeedback]) -> list[bool]:
        traces = [new.target.trace_id for new in verdicts if new.target.trace_id is not None]
        sql = "SELECT trace_id FROM traces FINAL WHERE trace_id IN {ids:Array(String)}"
        present = {None} | self._db.find(sql, traces)
        targets = [encode_feedback(Feedback(target=new.target, key="-", score=0.0)) for new in verdicts]
        stored = {row.id: row for row in self._read_of_rules(targets)}
        plan = feedback_records.plan_replacement(verdicts, map(_get_rule_fields, stored.values()), present)
        self.write(plan.written)
        replaced = [stored[id]._replace(claim=claim) for id, claim in plan.replaced.items()]
        self._insert([], replaced)
        # no feedback links to the judgements of a refused entry
        judged = {feedback.judge_trace_id for new in plan.refused for feedback in new.feedback}
        judged |= {row.judge_trace_id for row in replaced}
        self._delete_judgements(judged, (*targets, *replaced))
        return plan.accepted

    def remove_outdated(self, since_ns: int) -> int:
        """Delete feedback of rules that a later lease has replaced, on targets with feedback since a time. Return its
        number.

        It remains after a collector was killed between storing the feedback of a lease and deleting that of earlier
        ones, or if an earlier lease stored its feedback last.
        """
        recent = "(SELECT trace_id, session_id FROM feedback WHERE rule <> '' AND toInt64(number) > {since:Int64})"
        sql = f"{_SELECT} WHERE rule <> '' AND (trace_id, session_id) IN {recent}"
        rows = list(map(decode_row, self._db.query(sql, {"since": since_ns})))
        outdated = [row._replace(claim=highest) for row, highest in _find_outdated(rows)]
        self._insert([], outdated)
        self._delete_judgements({row.judge_trace_id for row in outdated}, outdated)
        return len(outdated)


def _get_rule_fields(row: FeedbackRow) -> RuleFeedback:
    values = (getattr(row, name) for name in RuleFeedback._fields)
    return RuleFeedback._make(value or None if isinstance(value, str) else value for value in values)._replace(
        claim=row.claim or 0
    )


def _find_outdated(rows: Sequence[FeedbackRow], others: Sequence[FeedbackRow] = ()) -> list[tuple[FeedbackRow, int]]:
    """Return those of the rows of which a later lease has rows, too, with the number of that lease.

    A marker of a deletion gets this number, so that a slow insert of the earlier lease does not undo the deletion.
    """
    highest = find_highest_claims(map(_get_rule_fields, (*rows, *others)))
    found = ((row, highest[_get_rule_fields(row).claim_key]) for row in rows)
    return [(row, claim) for row, claim in found if (row.claim or 0) < claim]


def _get_key(row: FeedbackRow) -> tuple[str, str, str]:
    return row.trace_id or "", row.session_id or "", row.experiment_id or ""


# Forwarding of feedback to other collectors. The rows of `feedback` are the queue, in the order of `number`.

_SELECT_OUTLETS = (
    "SELECT name, argMax(url, opened_ns), argMax(cursor, opened_ns), argMax(sent, opened_ns), argMax(dropped, opened_ns),"
    " argMax(tupleElement(status, 'error'), opened_ns), argMax(tupleElement(status, 'updated_ns'), opened_ns)"
    " FROM outlets FINAL GROUP BY name ORDER BY name"
)


def read_outlets(db: Database) -> list[tuple[Any, ...]]:
    """Return rows of `OUTLET_COLUMNS` of all present and former outlets, by name."""
    return db.query(_SELECT_OUTLETS)


def list_outlets(db: Database) -> list[Outlet]:
    """Return all present and former outlets, by name."""
    return [feedback_records.make_outlet(row, count_feedback_after(db, row[2])) for row in read_outlets(db)]


def open_outlet(db: Database, name: str, url: str) -> Outlet:
    """Return an outlet with its cursor. A new outlet, or one with another URL, starts after all present feedback."""
    if (name, url) not in [row[:2] for row in read_outlets(db)]:
        now = db.now()
        _add_to_outlet(db, name, url, opened_ns=now, cursor=now, status=(now, None))
    return next(outlet for outlet in list_outlets(db) if outlet.name == name)


def move_outlet(db: Database, name: str, cursor: int, sent: int, dropped: int, error: str | None = None) -> None:
    """Record the cursor of an outlet, how many more rows were sent and dropped, and the error of the last attempt."""
    for url in [row[1] for row in read_outlets(db) if row[0] == name]:
        _add_to_outlet(db, name, url, cursor=cursor, sent=sent, dropped=dropped, status=(db.now(), error))


def _add_to_outlet(db: Database, name: str, url: str, **values: object) -> None:
    """Insert a row, which the engine adds to those of the outlet: the highest position, and sums of counts."""
    row = {"name": name, "url": url, **values}
    db.insert("outlets", {column: [value] for column, value in row.items()}, secrets.token_hex(8))


def read_feedback_after(db: Database, cursor: int, limit: int) -> list[OutgoingFeedback]:
    """Return feedback written after a cursor, in order: `limit` rows, and about `MAX_READ_CHARACTERS`.

    All rows with one number are returned together: two inserts may assign the same numbers.
    """
    sql = (
        f"SELECT f.*, t.project, t.environment FROM (SELECT {FEEDBACK_COLUMNS}, number FROM feedback FINAL"
        " WHERE number > {cursor:UInt64} AND number <= {horizon:UInt64} ORDER BY number LIMIT {limit:UInt32} WITH TIES) AS f"
        " LEFT JOIN (SELECT trace_id, toNullable(project) AS project, toNullable(environment) AS environment FROM traces FINAL"
        " WHERE trace_id IN (SELECT trace_id FROM feedback WHERE number > {cursor:UInt64})) AS t ON t.trace_id = f.trace_id"
        " ORDER BY f.number"
    )
    rows = db.query(sql, {"cursor": cursor, "horizon": db.horizon(), "limit": limit})

    def decode(row: Sequence[Any]) -> OutgoingFeedback:
        feedback, (number, project, environment) = decode_feedback(row), row[-3:]
        return OutgoingFeedback(number, feedback, project or feedback.target.project, environment)

    return feedback_records.take_outgoing(rows, decode)


def count_feedback_after(db: Database, cursor: int) -> int:
    """Return the number of feedback rows written after a cursor."""
    [(count,)] = db.query("SELECT count() FROM feedback FINAL WHERE number > {cursor:UInt64}", {"cursor": cursor})
    return int(count)


def find_stored_feedback(db: Database, ids: Collection[str]) -> set[str]:
    """Return those of the feedback ids that are stored."""
    sql = "SELECT id FROM feedback FINAL WHERE id IN {ids:Array(String)}"
    return db.find(sql, ids)
