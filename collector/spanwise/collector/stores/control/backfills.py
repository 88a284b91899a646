"""Backfills: jobs that score past traces by a rule, the draws of their samples, and when these count in estimates.

Live traffic and backfills draw with the same uniform number of a target, so that their samples together have the
highest of their rates. All draws of a target that a backfill samples are in `backfill_draws`; that of live traffic has
the number 0. Rate and probability of the decision are those of the highest rate.

The places of a backfill number its draws in the order of its range. A draw counts once every row of the backfill at an
earlier place is closed (`low`). Estimates therefore never mix a period that is complete with one that is not, also
after a backfill was paused or cancelled halfway.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.records import Backfill, BackfillStep, Decision, Rule, Target
from spanwise.collector.stores.control.control_database import (
    ControlOperationsBase,
    WriteConnection,
    read_operation,
    write_operation,
)
from spanwise.collector.stores.control.decision_rows import (
    DECISION_COLUMNS,
    GIVEN_UP_REASON,
    OPEN_OUTCOMES,
    SELECT_ROWS,
    DecisionRow,
    build_row,
    encode_target,
    get_trace_range,
    update_rows,
)
from spanwise.collector.stores.control.rule_versions import find_active_rule
from spanwise.collector.stores.table_rows import Connection, decode_record, encode_record, insert_many, select_many

CLAIMABLE_STATES = ("running", "done")  # a row of a backfill that is done may be open again, because its trace changed
_ENDED_STATES = ("cancelled", "done")
# Stored state while leased rows of a cancelled backfill are still being evaluated
_CANCELLING = "cancelling"
_KEEP_HIGHEST_RATE = (
    "ON CONFLICT (decision, backfill) DO UPDATE SET rate = excluded.rate, probability = excluded.probability"
    " WHERE excluded.rate > backfill_draws.rate"
)
_COLUMNS = "id, name, state, cursor, walked, read, matched, sampled, known, placed, low, created_ns, ended_ns, data"
TARGETS_PER_QUERY = 500
LIVE = 0  # number of the draws of live traffic
_DRAW_COLUMNS = ("decision", "backfill", "place", "rate", "probability")


class StoredBackfill(NamedTuple):
    """Row of a backfill."""

    id: int
    name: str
    state: str
    cursor: str | None
    walked: int
    read: int
    matched: int
    sampled: int
    known: int
    placed: int
    low: int
    created_ns: int
    ended_ns: int | None
    data: str

    @property
    def record(self) -> Backfill:
        """Return the record, without its counts."""
        return replace(
            decode_record(Backfill, self.data),
            id=self.name,
            state="cancelled" if self.state == _CANCELLING else self.state,  # type: ignore[arg-type]
            cursor=self.cursor,
            walked=bool(self.walked),
            read=self.read,
            matched=self.matched,
            sampled=self.sampled,
            known=self.known,
            created_ns=self.created_ns,
            ended_ns=self.ended_ns,
        )


class Backfills(ControlOperationsBase):
    """Operations of `ControlStore` on backfills."""

    @write_operation
    def create_backfill(self, db: WriteConnection, /, backfill: Backfill) -> Backfill:
        now = self._database.clock.keep(db)
        known = _find_backfill(db, backfill.id)
        if known is not None:
            return known.record
        rule = find_active_rule(db, backfill.project, backfill.rule, backfill.version)
        if rule is None:
            raise Refused(
                f"version {backfill.version!r} of rule {backfill.rule!r} in project {backfill.project!r} is not in force;"
                " start the backfill again, with the version that is"
            )
        backfill = replace(backfill, created_ns=now)
        db.execute(
            "INSERT INTO backfills (name, rule, state, created_ns, data) VALUES (?,?,'running',?,?)",
            (backfill.id, rule.id, now, encode_record(backfill)),
        )
        db.register_live_sums(backfill.project, backfill.rule)
        return backfill

    @read_operation
    def list_backfills(self, db: Connection, /, rule: str | None, project: str | None, active: bool) -> list[Backfill]:
        sql = (
            f"SELECT {', '.join(f'b.{name}' for name in _COLUMNS.split(', '))}, r.state, r.project, r.name"
            " FROM backfills b JOIN rules r ON r.id = b.rule"
            " WHERE (:rule IS NULL OR r.name = :rule) AND (:project IS NULL OR r.project = :project)"
            " AND (:active = 0 OR b.state IN ('running', 'paused', 'cancelling') OR EXISTS (SELECT 1 FROM decisions d"
            " INDEXED BY backfill_due WHERE d.backfill = b.id AND d.due_ns IS NOT NULL)) ORDER BY b.id DESC"
        )
        query = {"rule": rule, "project": project, "active": int(active)}
        jobs = []
        for *columns, state, of_project, name in db.execute(sql, query).fetchall():
            job = _with_counts(db, StoredBackfill(*columns))
            if job.state not in _ENDED_STATES and state != "in force":
                current = "SELECT version FROM rules WHERE project = ? AND name = ? AND state = 'in force'"
                newer = db.execute(current, (of_project, name)).fetchone()
                reason = (
                    f"version {job.version} was superseded by {newer[0]}"
                    if newer is not None
                    else "the rule was removed"
                )
                job = replace(job, blocked=f"{reason}; cancel this backfill and start another")
            jobs.append(job)
        return jobs

    @read_operation
    def find_results(self, db: Connection, /, rule: Rule, targets: Collection[Target]) -> set[Target]:
        sql = (
            "SELECT w.column1 FROM (VALUES {}) AS w WHERE EXISTS (SELECT 1 FROM decisions"
            " WHERE target >= w.column2 AND target < w.column3 AND rule ="
            " (SELECT id FROM rules WHERE project = ? AND name = ? AND version = ?)"
            " AND due_ns IS NULL AND verdict <> 'over_budget')"
        )
        version, wanted, found = (rule.project, rule.name, rule.version), list(targets), set()
        for start in range(0, len(wanted), TARGETS_PER_QUERY):
            chunk = wanted[start : start + TARGETS_PER_QUERY]
            values = [value for place, target in enumerate(chunk) for value in (place, *_get_bounds(rule, target))]
            rows = db.execute(sql.format(",".join(["(?,?,?)"] * len(chunk))), (*values, *version)).fetchall()
            found |= {chunk[place] for (place,) in rows}
        return found

    @write_operation
    def change_backfill(self, db: WriteConnection, /, id: str, state: str, *, project: str = "default") -> Backfill:
        if state not in ("running", "paused", "cancelled"):
            raise Refused(f"unknown state {state!r} of a backfill; expected one of: running, paused, cancelled")
        now = self._database.clock.keep(db)
        stored = _find_backfill(db, id, "/*pg FOR NO KEY UPDATE*/")
        if stored is None or stored.record.project != project:
            raise NotFound(f"there is no backfill {id!r} in project {project!r}")
        if stored.record.state == state:
            return _with_counts(db, stored)
        if stored.record.state in _ENDED_STATES:
            raise Refused(f"backfill {id!r} is {stored.record.state}, and cannot become {state}; start another")
        new = _CANCELLING if state == "cancelled" else state
        db.execute("UPDATE backfills SET state = ? WHERE id = ?", (new, stored.id))
        settle_backfill(db, stored.id, now)
        changed = _find_backfill(db, id)
        assert changed is not None
        return _with_counts(db, changed)


def _get_bounds(rule: Rule, target: Target) -> tuple[str, str]:
    """Return the bounds of the addresses of a trace or a session; those of a trace include its spans and documents."""
    if target.trace_id is not None:
        return get_trace_range(target.trace_id)
    address = encode_target(rule.project, target)
    return address, f"{address}\0"


def _find_backfill(db: Connection, name: str, lock: str = "") -> StoredBackfill | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM backfills WHERE name = ?{lock}", (name,)).fetchone()
    return StoredBackfill(*row) if row else None


def _with_counts(db: Connection, stored: StoredBackfill) -> Backfill:
    """Return the record with the number of its targets by verdict, and their cost."""
    sql = "SELECT verdict, count(*), coalesce(sum(cost), 0.0) FROM decisions WHERE backfill = ? GROUP BY verdict"
    rows = db.execute(sql, (stored.id,)).fetchall()
    return replace(stored.record, counts={row[0]: row[1] for row in rows}, cost=sum(row[2] for row in rows))


def find_claimable(db: Connection, rule: int, name: str) -> int | None:
    """Return the row id of a backfill of a rule version whose rows may be leased; None if there is none."""
    row = db.execute("SELECT id, state FROM backfills WHERE name = ? AND rule = ?", (name, rule)).fetchone()
    return int(row[0]) if row and row[1] in CLAIMABLE_STATES else None


def record_step(
    db: WriteConnection,
    rule: int,
    step: BackfillStep,
    after: str | None,
    upto: str,
    rows: Sequence[Decision],
    now: int,
) -> bool | None:
    """Record one step of a backfill, and return True.

    Return False if the backfill does not run or its cursor is not `after`, and None if the step was recorded before.
    """
    job = _find_backfill(db, step.id)
    if job is not None and job.cursor == upto and after != upto:
        return None
    if job is None or job.state != "running" or job.cursor != after:
        return False
    known = _write_rows(db, rule, job, rows, now)
    db.execute(
        "UPDATE backfills SET cursor = ?, walked = ?, read = read + ?, matched = matched + ?, sampled = sampled + ?,"
        " known = known + ?, placed = placed + ? WHERE id = ?",
        (upto, step.walked, step.read, step.matched, step.sampled, known, len(rows), job.id),
    )
    settle_backfill(db, job.id, now)
    return True


def _write_rows(db: WriteConnection, rule: int, job: StoredBackfill, rows: Sequence[Decision], now: int) -> int:
    """Store the decisions of a step with their draws, and return the number of targets that had a result.

    A target that waits as live traffic stays there. A target that live traffic has given up, because it was over
    budget, is evaluated by the backfill.
    """
    by_address = {encode_target(row.project, row.target): row for row in rows}
    select = f"{SELECT_ROWS} WHERE rule = ? AND target IN (%s)/*pg ORDER BY id FOR NO KEY UPDATE*/"

    def read_stored() -> dict[str, DecisionRow]:
        return {row.target: row for row in (DecisionRow(*it) for it in select_many(db, select, by_address, (rule,)))}

    stored = read_stored()
    # live traffic does not sample these targets, or has not decided on them yet
    new = [replace(row, rate=0.0, probability=0.0) for address, row in by_address.items() if address not in stored]
    insert_many(db, "decisions", DECISION_COLUMNS, [build_row(rule, row, now, job.id) for row in new])
    given_up = [row for row in stored.values() if row.due_ns is None and row.verdict == "over_budget"]
    reopened: dict[str, Any] = {
        "verdict": "waiting",
        "due_ns": now,
        "next_ns": None,
        "updated_ns": now,
        "backfill": job.id,
    }
    update_rows(db, [row._replace(reason=by_address[row.target].reason, **reopened) for row in given_up])
    db.record_decision_changes([row.id for row in given_up])
    ids = {address: row.id for address, row in {**stored, **read_stored()}.items()}
    live = [(row.id, LIVE, 0, row.rate, row.probability) for row in stored.values()]
    live += [(id, LIVE, 0, 0.0, 0.0) for address, id in ids.items() if address not in stored]
    draws = [
        (ids[address], job.id, job.placed + place, row.rate, row.probability)
        for place, (address, row) in enumerate(by_address.items())
    ]
    # an existing decision of an earlier backfill has its draw of live traffic already
    insert_many(db, "backfill_draws", _DRAW_COLUMNS, live, "ON CONFLICT DO NOTHING")
    # a session may be sampled by several of its traces: the highest of their rates is that of the session
    insert_many(db, "backfill_draws", _DRAW_COLUMNS, draws, _KEEP_HIGHEST_RATE)
    _apply_draws(db, [row.id for row in stored.values() if row.backfill == job.id])
    has_result = [row for row in stored.values() if row.due_ns is None and row.backfill != job.id]
    return len(has_result) - len(given_up)


def settle_backfill(db: WriteConnection, id: int, now: int) -> None:
    """Apply the draws of a backfill up to its first open row, remove what waits if it is cancelled, and end it if
    nothing is left.
    """
    sql = "SELECT state, walked, placed, low FROM backfills WHERE id = ?/*pg FOR NO KEY UPDATE*/"
    state, walked, placed, low = db.execute(sql, (id,)).fetchone()
    if state in _ENDED_STATES:
        return
    if state == _CANCELLING:
        _remove_waiting(db, id, now)
    else:
        first = db.execute(_FIRST_OPEN_PLACE, (id, low)).fetchone()[0]
        if (upto := placed if first is None else int(first)) > low:
            db.execute("UPDATE backfills SET low = ? WHERE id = ?", (upto, id))
            # `backfill > 0` is the condition of the index
            sql = "SELECT decision FROM backfill_draws WHERE backfill = ? AND backfill > 0 AND place >= ? AND place < ?"
            _apply_draws(db, [row[0] for row in db.execute(sql, (id, low, upto))])
    is_ending = state == _CANCELLING or (state == "running" and walked)
    has_open = "SELECT 1 FROM decisions WHERE backfill = ? AND due_ns IS NOT NULL LIMIT 1"
    if is_ending and db.execute(has_open, (id,)).fetchone() is None:
        ended = "cancelled" if state == _CANCELLING else "done"
        db.execute("UPDATE backfills SET state = ?, ended_ns = ? WHERE id = ?", (ended, now, id))


# A row before `low` that is open again keeps its draw: it has a score
_FIRST_OPEN_PLACE = (
    "SELECT min(w.place) FROM decisions d INDEXED BY backfill_due CROSS JOIN backfill_draws w WHERE w.decision = d.id"
    " AND w.backfill = d.backfill AND d.backfill = ? AND d.due_ns IS NOT NULL AND w.place >= ?"
)


def _apply_draws(db: WriteConnection, decisions: Iterable[int]) -> None:
    """Set rate and probability of decisions to those of the draw with the highest rate.

    Without a rate of live traffic, its draw counts: the trace does not pass the filter any more, or the rate is unknown.
    """
    best = (
        "SELECT w.rate, w.probability FROM backfill_draws w LEFT JOIN backfills f ON f.id = w.backfill"
        " WHERE w.decision = decisions.id AND (w.backfill = 0 OR w.place < f.low)"
        " ORDER BY w.rate IS NULL DESC, w.rate DESC, w.backfill LIMIT 1"
    )
    ids = list(decisions)
    select_many(db, f"UPDATE decisions SET (rate, probability) = ({best}) WHERE id IN (%s)", ids)
    db.record_decision_changes(ids)


def update_live_draws(db: WriteConnection, draws: Sequence[tuple[int, float | None, float | None]]) -> None:
    """Replace the draws of live traffic for decisions (id, rate, probability) that backfills have sampled."""
    sql = "UPDATE backfill_draws SET rate = ?, probability = ? WHERE decision = ? AND backfill = 0"
    db.executemany(sql, [(rate, probability, id) for id, rate, probability in draws])
    _apply_draws(db, [id for id, _, _ in draws])


def find_drawn(db: Connection, decisions: Iterable[int]) -> set[int]:
    """Return those of the decisions that a backfill has sampled."""
    sql = "SELECT decision FROM backfill_draws WHERE backfill = 0 AND decision IN (%s)"
    return {row[0] for row in select_many(db, sql, decisions)}


def settle_cancelled(db: WriteConnection, rule: int, now: int) -> None:
    """Settle the cancelled backfills of a rule version of which rows were leased, because a lease may have expired."""
    sql = "SELECT id FROM backfills WHERE rule = ? AND state = ?"
    for (id,) in db.execute(sql, (rule, _CANCELLING)).fetchall():
        settle_backfill(db, id, now)


def _remove_waiting(db: WriteConnection, id: int, now: int) -> None:
    """Remove the rows of a cancelled backfill that wait, or whose lease has expired.

    A row with an outcome is closed again with it. A row that live traffic has given up returns to that state.
    """
    # Rows that another transaction has locked are being finished or leased; it settles the backfill afterwards
    sql = (
        f"{SELECT_ROWS} WHERE backfill = ? AND due_ns IS NOT NULL AND (verdict IN (?, ?, ?) OR due_ns <= ?)"
        "/*pg FOR NO KEY UPDATE SKIP LOCKED*/"
    )
    rows = [DecisionRow(*row) for row in db.execute(sql, (id, *OPEN_OUTCOMES, now)).fetchall()]
    ended: dict[str, Any] = {"due_ns": None, "next_ns": None, "holder": None, "until_ns": None, "updated_ns": now}
    scored = [row._replace(verdict=row.outcome, **ended) for row in rows if row.outcome is not None]
    select = "SELECT decision FROM backfill_draws WHERE backfill = 0 AND (probability IS NULL OR probability <> 0.0) AND decision IN (%s)"
    live = {row[0] for row in select_many(db, select, [row.id for row in rows])}
    given_up = [
        row._replace(verdict="over_budget", reason=GIVEN_UP_REASON, backfill=None, **ended)
        for row in rows
        if row.outcome is None and row.id in live
    ]
    update_rows(db, [*scored, *given_up])
    db.record_decision_changes([row.id for row in given_up])
    kept = {row.id for row in (*scored, *given_up)}
    db.executemany("DELETE FROM decisions WHERE id = ?", [(row.id,) for row in rows if row.id not in kept])


def find_sampled(db: Connection, decisions: Iterable[int]) -> set[int]:
    """Return those of the decisions that are in the sample of a backfill, unless they belong to a cancelled one."""
    sql = (
        "SELECT w.decision FROM backfill_draws w JOIN decisions d ON d.id = w.decision"
        " LEFT JOIN backfills f ON f.id = d.backfill WHERE w.backfill = 0"
        " AND (f.state IS NULL OR f.state NOT IN ('cancelling', 'cancelled')) AND w.decision IN (%s)"
    )
    return {row[0] for row in select_many(db, sql, decisions)}
