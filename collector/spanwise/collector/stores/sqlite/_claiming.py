"""Claims: who runs what was decided, until when, and what came of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from spanwise.collector.errors import Refused
from spanwise.collector.records import Claim, Decision, Finish
from spanwise.collector.stores._halves import Standing
from spanwise.collector.stores.sqlite._decisions import give_up
from spanwise.collector.stores.sqlite._half import Half, reads, writes
from spanwise.collector.stores.sqlite._leases import later, rising
from spanwise.collector.stores.sqlite._rows import OPEN, PLAIN, Row, address, record, write
from spanwise.collector.stores.sqlite._rules import in_force
from spanwise.collector.stores.sqlite._sql import find_many
from spanwise.collector.stores.sqlite._values import dumps

Place: TypeAlias = tuple[str, str, str, str]  # project, rule, version, address of the target

DONE = ("scored", "skipped", "failed")
OVER_BUDGET = f"{PLAIN} WHERE rule = ? AND due_ns <= ? AND verdict = 'over_budget' ORDER BY created_ns DESC, id DESC"
DUE = f"{PLAIN} WHERE rule = ? AND due_ns <= ? AND verdict <> 'over_budget' ORDER BY due_ns, id"


class Claims(Half):
    """A part of `ControlStore`."""

    @writes
    def take(
        self,
        db: sqlite3.Connection,
        /,
        rule: str,
        version: str,
        holder: str,
        seconds: float,
        project: str,
        limit: int,
        over_budget: int | None = None,
    ) -> list[Decision]:
        """As `ControlStore.claim`, but that a row which ends its third worker is given out, too, alone."""
        kept = in_force(db, project, rule, version)
        if kept is None:
            raise Refused(_superseded(project, rule, version))
        now = self._file.clock.keep(db)
        until = later(now, seconds)
        if not kept.enabled:
            return []
        give_up(db, kept.id, now)
        due = _due(db, kept.id, now, max(0, limit), over_budget)
        numbers = rising(db, len(due))
        rows = [_taken(row, number, holder, until, now) for row, number in zip(due, numbers, strict=True)]
        write(db, rows)
        return [record(row, project, rule, version) for row in rows]

    @writes
    def renew(self, db: sqlite3.Connection, /, claims: Sequence[Claim], holder: str, seconds: float) -> list[bool]:
        now = self._file.clock.keep(db)
        until = later(now, seconds)
        found = _rows(db, claims)
        rows = [(claim, found.get(_place(claim))) for claim in claims]
        held = [row is not None and _holds(row, claim) and row.holder == holder for claim, row in rows]
        sql = "UPDATE decisions SET until_ns = ?, due_ns = ? WHERE id = ?"
        db.executemany(sql, [(until, until, row.id) for (_, row), mine in zip(rows, held, strict=True) if row and mine])
        return held

    @reads
    def examine(self, db: sqlite3.Connection, /, finishes: Sequence[Finish]) -> list[Standing]:
        """What is to be done with the feedback of finishes, before `conclude`. Raises `Refused` for a bad verdict."""
        rows = _rows(db, [finish.claim for finish in finishes])
        return [_standing(db, finish, rows.get(_place(finish.claim))) for finish in finishes]

    @writes
    def conclude(self, db: sqlite3.Connection, /, finishes: Sequence[Finish]) -> list[str]:
        """As `ControlStore.finish`, once the feedback is kept."""
        now, rows = self._file.clock.keep(db), _rows(db, [finish.claim for finish in finishes])
        made: dict[Place, Row] = {}
        answers = [_conclude(db, finish, rows, made, now) for finish in finishes]
        write(db, list(made.values()))
        for rule in {row.rule for row in made.values() if row.verdict == "over_budget"}:
            give_up(db, rule, now)
        return answers


def _superseded(project: str, rule: str, version: str) -> str:
    return f"version {version!r} of rule {rule!r} in project {project!r} is not in force"


def _due(db: sqlite3.Connection, rule: int, now: int, limit: int, over_budget: int | None) -> list[Row]:
    """What is next: one that has ended a worker alone, with no other; else those that have not, fresh ones first."""
    rows = [Row(*row) for row in db.execute(f"{DUE} LIMIT ?", (rule, now, limit))]
    if rows and _deaths(rows[0]):
        return rows[:1]
    healthy = [row for row in rows if not _deaths(row)]
    left = limit - len(rows) if over_budget is None else min(limit - len(rows), over_budget)
    if left > 0:
        offered = [Row(*row) for row in db.execute(f"{OVER_BUDGET} LIMIT ?", (rule, now, left))]
        healthy += [row for row in offered if not row.deaths]
    return healthy


def _deaths(row: Row) -> int:
    """With the one that just happened, where it still runs and its time is over."""
    return row.deaths + (row.verdict == "running")


def _taken(row: Row, number: int, holder: str, until: int, now: int) -> Row:
    return row._replace(
        verdict="running",
        deaths=_deaths(row),
        claim=number,
        holder=holder,
        until_ns=until,
        due_ns=until,
        next_ns=None,
        updated_ns=now,
    )


def _place(claim: Claim) -> Place:
    return claim.project, claim.rule, claim.version, address(claim.project, claim.target)


def _rows(db: sqlite3.Connection, claims: Iterable[Claim]) -> dict[Place, Row]:
    """The rows of claims, of those that are there and whose version is in force."""
    by_rule: dict[tuple[str, str, str], set[str]] = {}
    for *named, target in map(_place, claims):
        by_rule.setdefault((named[0], named[1], named[2]), set()).add(target)
    sql = f"{PLAIN} WHERE rule = ? AND target IN (%s)"
    rows: dict[Place, Row] = {}
    for of, targets in by_rule.items():
        if (rule := in_force(db, *of)) is not None:
            found = [Row(*row) for row in find_many(db, sql, targets, (rule.id,))]
            rows |= {(*of, row.target): row for row in found}
    return rows


def _holds(row: Row, claim: Claim) -> bool:
    return row.verdict == "running" and row.claim == claim.number


def _standing(db: sqlite3.Connection, finish: Finish, row: Row | None) -> Standing:
    if finish.verdict not in (*DONE, *OPEN):
        raise Refused(f"a claim does not end with {finish.verdict!r}; use one of {', '.join((*DONE, *OPEN))}")
    answer = _answer(db, finish, row)
    if answer is not None or row is None:
        return Standing(answer)
    return Standing(None, row.outcome is None or row.inputs_hash != finish.inputs_hash)


def _answer(db: sqlite3.Connection, finish: Finish, row: Row | None) -> str | None:
    """Why nothing is to be done, or what was answered when it was; None while the claim stands."""
    claim = finish.claim
    if row is None:
        if in_force(db, claim.project, claim.rule, claim.version) is None:
            return f"refused: {_superseded(claim.project, claim.rule, claim.version)}"
        return "refused: there is no such decision; its target was deleted, or its decisions were"
    if row.claim != claim.number:
        return f"refused: claim {claim.number} was taken over by claim {row.claim}"
    if row.verdict == "running":
        return None
    return "waiting" if row.verdict == "waiting" and finish.verdict in DONE else "finished"


def _conclude(
    db: sqlite3.Connection, finish: Finish, rows: Mapping[Place, Row], ended: dict[Place, Row], now: int
) -> str:
    """The answer to a finish; what its row becomes goes to `ended`."""
    place = _place(finish.claim)
    row = ended.get(place) or rows.get(place)
    answer = _answer(db, finish, row)
    if answer is not None or row is None:
        return answer or ""
    changed = row.outcome is None or row.inputs_hash != finish.inputs_hash
    made = ended[place] = _ended(_with_outcome(row, finish, changed), finish, now)
    return "waiting" if made.verdict == "waiting" and finish.verdict in DONE else "finished"


def _with_outcome(row: Row, finish: Finish, changed: bool) -> Row:
    """What is said of its evaluators, and of what they have seen. A claim given back as it was has seen nothing."""
    tried = row._replace(
        attempts=row.attempts + finish.attempts,
        cost=row.cost if finish.cost is None else (row.cost or 0.0) + finish.cost,
    )
    if not finish.reported and finish.verdict not in DONE:
        states = {**row.said, **finish.states}
        return tried._replace(states=dumps(states) if states else None)
    states = {**({} if changed else row.said), **finish.states}
    return tried._replace(
        states=dumps(states) if states else None,
        inputs_hash=finish.inputs_hash,
        read_change=finish.read_change,
        reopened=row.reopened + (changed and row.outcome is not None),
    )


def _ended(row: Row, finish: Finish, now: int) -> Row:
    """The claim given back, or done with, but where the runs have changed meanwhile."""
    ended = row._replace(reason=finish.reason, holder=None, until_ns=None, next_ns=None, updated_ns=now)
    if finish.verdict in OPEN:
        due = later(now, finish.again_s or 0.0)
        return ended._replace(verdict=finish.verdict, due_ns=due, next_ns=due)
    if row.runs_change > finish.read_change and row.probability != 0.0 and row.may_reopen(now):
        return ended._replace(verdict="waiting", reason=f"{finish.reason}; changed meanwhile", due_ns=now)
    return ended._replace(verdict=finish.verdict, due_ns=None)
