"""Leases with expiry and fencing token: on a rule's feed, and on decisions that a worker executes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import TypeAlias

from spanwise.collector.errors import Refused
from spanwise.collector.records import Claim, ClaimResult, Decision, Lease
from spanwise.collector.stores.backends import FinishPlan
from spanwise.collector.stores.control.backfills import find_claimable, settle_backfill, settle_cancelled
from spanwise.collector.stores.control.control_database import (
    ControlOperationsBase,
    WriteConnection,
    read_operation,
    write_operation,
)
from spanwise.collector.stores.control.decision_rows import (
    OPEN_OUTCOMES,
    SELECT_ROWS,
    DecisionRow,
    decode_target,
    encode_target,
    make_decision,
    update_rows,
)
from spanwise.collector.stores.control.decisions import expire_over_budget
from spanwise.collector.stores.control.rule_versions import find_active_rule
from spanwise.collector.stores.table_rows import Connection, dumps, select_many

MAX_LEASE_SECONDS = 10 * 365 * 86_400.0


class Leases(ControlOperationsBase):
    """Lease operations of `ControlStore`."""

    @write_operation
    def acquire(self, db: WriteConnection, /, name: str, holder: str, seconds: float) -> Lease | None:
        db.lock("lease", name)
        now = self._database.clock.keep(db)
        row = db.execute("SELECT holder, token FROM leases WHERE name = ? AND expires_ns > ?", (name, now)).fetchone()
        if row and row[0] != holder:
            return None
        token = row[1] if row else db.issue_numbers(1)[0]
        lease = Lease(name=name, holder=holder, expires_ns=compute_expiry(now, seconds), token=token)
        sql = "SELECT name FROM leases WHERE expires_ns <= ?/*pg FOR UPDATE SKIP LOCKED*/"
        if expired := db.execute(sql, (now,)).fetchall():
            db.executemany("DELETE FROM leases WHERE name = ?", expired)
        db.execute(_SAVE_LEASE, (name, holder, lease.expires_ns, token))
        return lease

    @write_operation
    def release(self, db: WriteConnection, /, name: str, holder: str) -> bool:
        sql = "DELETE FROM leases WHERE name = ? AND holder = ? RETURNING expires_ns"
        return self._was_held(db.execute(sql, (name, holder)).fetchone())

    @read_operation
    def leases(self, db: Connection, /) -> list[Lease]:
        sql = "SELECT name, holder, expires_ns, token FROM leases WHERE expires_ns > ? ORDER BY name"
        rows = db.execute(sql, (self._database.clock.now(),))
        return [Lease(name=row[0], holder=row[1], expires_ns=row[2], token=row[3]) for row in rows]

    @write_operation
    def delete_lease(self, db: WriteConnection, /, name: str) -> bool:
        return self._was_held(db.execute("DELETE FROM leases WHERE name = ? RETURNING expires_ns", (name,)).fetchone())

    def _was_held(self, row: tuple[int] | None) -> bool:
        return row is not None and row[0] > self._database.clock.now()  # an expired lease has no holder


def compute_expiry(now: int, seconds: float) -> int:
    """Return the time `seconds` after `now`. Raise `Refused` if `seconds` is not finite or exceeds
    `MAX_LEASE_SECONDS`.
    """
    if not isfinite(seconds) or abs(seconds) > MAX_LEASE_SECONDS:
        raise Refused(f"the duration of a lease must be at most {MAX_LEASE_SECONDS:.0f} seconds, got {seconds!r}")
    return now + int(seconds * 1e9)


_SAVE_LEASE = (
    "INSERT INTO leases (name, holder, expires_ns, token) VALUES (?,?,?,?) ON CONFLICT (name) DO UPDATE SET"
    " holder = excluded.holder, expires_ns = excluded.expires_ns, token = excluded.token"
)


DecisionKey: TypeAlias = tuple[str, str, str, str]  # project, rule, version, address of the target

FINAL_OUTCOMES = ("scored", "skipped", "failed")
_OVER_BUDGET = "due_ns <= ? AND verdict = 'over_budget' ORDER BY created_ns DESC, id DESC"
_DUE = "due_ns <= ? AND verdict <> 'over_budget' ORDER BY due_ns, id"
_LEASABLE = "LIMIT ?/*pg FOR NO KEY UPDATE SKIP LOCKED*/"  # without rows that another transaction leases or finishes
SELECT_OVER_BUDGET = f"{SELECT_ROWS} WHERE rule = ? AND backfill IS NULL AND {_OVER_BUDGET} {_LEASABLE}"
SELECT_DUE = f"{SELECT_ROWS} WHERE rule = ? AND backfill IS NULL AND {_DUE} {_LEASABLE}"
SELECT_BACKFILL_OVER_BUDGET = f"{SELECT_ROWS} WHERE backfill = ? AND {_OVER_BUDGET} {_LEASABLE}"
SELECT_BACKFILL_DUE = f"{SELECT_ROWS} WHERE backfill = ? AND {_DUE} {_LEASABLE}"


class DecisionLeases(ControlOperationsBase):
    """Operations of `ControlStore` that lease decisions to workers."""

    @write_operation
    def lease_decisions(
        self,
        db: WriteConnection,
        /,
        rule: str,
        version: str,
        holder: str,
        seconds: float,
        project: str,
        limit: int,
        over_budget: int | None = None,
        backfill: str | None = None,
    ) -> list[Decision]:
        """Lease due decisions as `ControlStore.claim` does.

        Unlike that method, it also returns a row on which three workers have died. Such a row is returned alone.
        """
        # No other version comes into force meanwhile, so that its leases have higher numbers than these
        db.lock("rule", project, rule, shared=True)
        active = find_active_rule(db, project, rule, version)
        if active is None:
            raise Refused(_superseded_message(project, rule, version))
        now = self._database.clock.keep(db)
        until = compute_expiry(now, seconds)
        if not active.enabled:
            return []
        if active.has_cancelled:
            settle_cancelled(db, active.id, now)
        if backfill is None:
            due = _find_due(db, SELECT_DUE, SELECT_OVER_BUDGET, active.id, now, max(0, limit), over_budget)
        else:
            job = find_claimable(db, active.id, backfill)
            if job is None:
                return []
            selects = SELECT_BACKFILL_DUE, SELECT_BACKFILL_OVER_BUDGET
            due = _find_due(db, *selects, job, now, max(0, limit), over_budget)
            if not due:  # rows may have been deleted with their traces
                settle_backfill(db, job, now)
        numbers = db.issue_numbers(len(due))
        rows = [_leased_row(row, number, holder, until, now) for row, number in zip(due, numbers, strict=True)]
        update_rows(db, rows)
        db.record_leases([(row.id, row.claim) for row in due])
        return [make_decision(row, project, rule, version, backfill) for row in rows]

    @write_operation
    def renew(self, db: WriteConnection, /, claims: Sequence[Claim], holder: str, seconds: float) -> list[bool]:
        now = self._database.clock.keep(db)
        until = compute_expiry(now, seconds)
        rows_by_key = _find_rows(db, claims, LOCKED_ROWS)
        rows = [(claim, rows_by_key.get(_decision_key(claim))) for claim in claims]
        is_held = [
            row is not None and row.verdict == "running" and row.claim == claim.number and row.holder == holder
            for claim, row in rows
        ]
        sql = "UPDATE decisions SET until_ns = ?, due_ns = ? WHERE id = ?"
        db.executemany(
            sql, [(until, until, row.id) for (_, row), is_own in zip(rows, is_held, strict=True) if row and is_own]
        )
        return is_held

    @read_operation
    def plan_finish(self, db: Connection, /, finishes: Sequence[ClaimResult]) -> list[FinishPlan]:
        """Return how to handle the feedback of each finished lease. Called before `finish_leases`. Raise `Refused` for an
        invalid verdict.
        """
        rows = _find_rows(db, [finish.claim for finish in finishes])
        return [_check_finish(db, finish, rows.get(_decision_key(finish.claim))) for finish in finishes]

    @write_operation
    def finish_leases(self, db: WriteConnection, /, finishes: Sequence[ClaimResult]) -> list[str]:
        """Finish leases as `ControlStore.finish` does, once the feedback is stored."""
        rows = _find_rows(db, [finish.claim for finish in finishes], LOCKED_ROWS)
        now = self._database.clock.keep(db)
        changed: dict[DecisionKey, DecisionRow] = {}
        answers = [_finish_decision(db, finish, rows, changed, now) for finish in finishes]
        update_rows(db, list(changed.values()))
        for rule in {row.rule for row in changed.values() if row.verdict == "over_budget"}:
            expire_over_budget(db, rule, now)
        for job in filter(None, {row.backfill for row in changed.values()}):
            settle_backfill(db, job, now)
        return answers

    @read_operation
    def list_abandoned_leases(self, db: Connection, /, expired_s: float, limit: int = 1000) -> list[Claim]:
        """Return leases that expired some seconds ago and can no longer be finished.

        Their rule versions are not in force, and their targets have no earlier result.
        """
        expired_ns = self._database.clock.now() - int(expired_s * 1e9)
        found: list[Claim] = []
        sql = "SELECT id, project, name, version FROM rules WHERE state <> 'in force' ORDER BY id DESC"
        for rule, project, name, version in db.execute(sql).fetchall():
            where = "WHERE rule = ? AND verdict = 'running' AND until_ns < ? LIMIT ?"
            rows = db.execute(f"{SELECT_ROWS} {where}", (rule, expired_ns, limit - len(found))).fetchall()
            found += [
                Claim(
                    project=project,
                    rule=name,
                    version=version,
                    target=decode_target(project, row.target),
                    number=row.claim,
                )
                for row in (DecisionRow(*values) for values in rows)
                if row.outcome is None
            ]
            if len(found) >= limit:
                break
        return found

    @write_operation
    def end_abandoned_leases(self, db: WriteConnection, /, leases: Sequence[Claim]) -> None:
        """End leases of `list_abandoned_leases`. The rows are waiting again, and remain superseded."""
        sql = (
            "UPDATE decisions SET verdict = 'waiting', holder = NULL, until_ns = NULL WHERE verdict = 'running'"
            " AND target = ? AND claim = ? AND rule = (SELECT id FROM rules WHERE project = ? AND name = ?"
            " AND version = ? AND state <> 'in force')"
        )
        db.executemany(
            sql,
            [
                (encode_target(one.project, one.target), one.number, one.project, one.rule, one.version)
                for one in leases
            ],
        )


def _superseded_message(project: str, rule: str, version: str) -> str:
    return f"version {version!r} of rule {rule!r} in project {project!r} is not in force"


def _find_due(
    db: Connection,
    select_due: str,
    select_over_budget: str,
    of: int,
    now: int,
    limit: int,
    over_budget: int | None,
) -> list[DecisionRow]:
    """Return the next rows of a rule's live traffic or of a backfill to lease.

    If a worker died on the first due row, return that row alone. Otherwise return rows without deaths: newly due rows
    first, then rows over budget.
    """
    rows = [DecisionRow(*row) for row in db.execute(select_due, (of, now, limit))]
    if rows and _count_deaths(rows[0]):
        return rows[:1]
    healthy = [row for row in rows if not _count_deaths(row)]
    left = limit - len(rows) if over_budget is None else min(limit - len(rows), over_budget)
    if left > 0:
        offered = [DecisionRow(*row) for row in db.execute(select_over_budget, (of, now, left))]
        if offered and select_over_budget is SELECT_OVER_BUDGET:
            expire_over_budget(db, of, now)
            offered = [DecisionRow(*row) for row in db.execute(select_over_budget, (of, now, left))]
        healthy += [row for row in offered if not row.deaths]
    return healthy


def _count_deaths(row: DecisionRow) -> int:
    """Return the number of workers that died on this row. If the row is still marked as running, its last worker counts,
    too.
    """
    return row.deaths + (row.verdict == "running")


def _leased_row(row: DecisionRow, number: int, holder: str, until: int, now: int) -> DecisionRow:
    return row._replace(
        verdict="running",
        deaths=_count_deaths(row),
        claim=number,
        holder=holder,
        until_ns=until,
        due_ns=until,
        next_ns=None,
        updated_ns=now,
    )


def _decision_key(claim: Claim) -> DecisionKey:
    return claim.project, claim.rule, claim.version, encode_target(claim.project, claim.target)


LOCKED_ROWS = "/*pg ORDER BY id FOR NO KEY UPDATE*/"


def _find_rows(db: Connection, claims: Iterable[Claim], lock: str = "") -> dict[DecisionKey, DecisionRow]:
    """Return the decision rows of these leases. Leave out those that do not exist or whose rule version is not in
    force.
    """
    by_rule: dict[tuple[str, str, str], set[str]] = {}
    for *named, target in map(_decision_key, claims):
        by_rule.setdefault((named[0], named[1], named[2]), set()).add(target)
    rule = "SELECT id FROM rules WHERE project = ? AND name = ? AND version = ? AND state = 'in force'"
    sql = f"{SELECT_ROWS} WHERE rule = ({rule}) AND target IN (%s){lock}"
    rows: dict[DecisionKey, DecisionRow] = {}
    for of, targets in by_rule.items():
        found = [DecisionRow(*row) for row in select_many(db, sql, sorted(targets), of)]
        rows |= {(*of, row.target): row for row in found}
    return rows


def _check_finish(db: Connection, finish: ClaimResult, row: DecisionRow | None) -> FinishPlan:
    if finish.verdict not in (*FINAL_OUTCOMES, *OPEN_OUTCOMES):
        raise Refused(
            f"invalid verdict {finish.verdict!r} of a finished claim; expected one of: {', '.join((*FINAL_OUTCOMES, *OPEN_OUTCOMES))}"
        )
    answer = _finish_answer(db, finish, row)
    if answer is not None or row is None:
        return FinishPlan(answer)
    return FinishPlan(None, row.outcome is None or row.inputs_hash != finish.inputs_hash)


def _finish_answer(db: Connection, finish: ClaimResult, row: DecisionRow | None) -> str | None:
    """Return why a finish is refused, or the answer to an earlier finish; None while the lease is valid."""
    claim = finish.claim
    if row is None:
        if find_active_rule(db, claim.project, claim.rule, claim.version) is None:
            return f"refused: {_superseded_message(claim.project, claim.rule, claim.version)}"
        return "refused: there is no such decision; its target was deleted, or its decisions were"
    if row.claim != claim.number:
        return f"refused: claim {claim.number} was taken over by claim {row.claim}"
    if row.verdict == "running":
        return None
    return "waiting" if row.verdict == "waiting" and finish.verdict in FINAL_OUTCOMES else "finished"


def _finish_decision(
    db: Connection,
    finish: ClaimResult,
    rows: Mapping[DecisionKey, DecisionRow],
    ended: dict[DecisionKey, DecisionRow],
    now: int,
) -> str:
    """Return the answer to a finish, and put the changed row into `ended`."""
    key = _decision_key(finish.claim)
    row = ended.get(key) or rows.get(key)
    answer = _finish_answer(db, finish, row)
    if answer is not None or row is None:
        return answer or ""
    changed = row.outcome is None or row.inputs_hash != finish.inputs_hash
    updated = ended[key] = _released_row(_with_outcome(row, finish, changed), finish, now)
    return "waiting" if updated.verdict == "waiting" and finish.verdict in FINAL_OUTCOMES else "finished"


def _with_outcome(row: DecisionRow, finish: ClaimResult, changed: bool) -> DecisionRow:
    """Return the row with the states of its evaluators and the input that they read.

    If the worker returned the lease without a result, the recorded input stays unchanged.
    """
    tried = row._replace(
        attempts=row.attempts + finish.attempts,
        cost=row.cost if finish.cost is None else (row.cost or 0.0) + finish.cost,
    )
    if not finish.reported and finish.verdict not in FINAL_OUTCOMES:
        states = {**row.evaluator_states, **finish.states}
        return tried._replace(states=dumps(states) if states else None)
    states = {**({} if changed else row.evaluator_states), **finish.states}
    return tried._replace(
        states=dumps(states) if states else None,
        inputs_hash=finish.inputs_hash,
        read_change=finish.read_change,
        reopened=row.reopened + (changed and row.outcome is not None),
    )


def _released_row(row: DecisionRow, finish: ClaimResult, now: int) -> DecisionRow:
    """Return the row without its lease: open again, final, or reopened because the runs changed meanwhile."""
    ended = row._replace(reason=finish.reason, holder=None, until_ns=None, next_ns=None, updated_ns=now)
    if finish.verdict in OPEN_OUTCOMES:
        due = compute_expiry(now, finish.again_s or 0.0)
        return ended._replace(verdict=finish.verdict, due_ns=due, next_ns=due)
    is_sampled = row.probability != 0.0 or row.backfill is not None
    if row.runs_change > finish.read_change and is_sampled and row.may_reopen(now):
        return ended._replace(verdict="waiting", reason=f"{finish.reason}; changed meanwhile", due_ns=now)
    return ended._replace(verdict=finish.verdict, due_ns=None)
