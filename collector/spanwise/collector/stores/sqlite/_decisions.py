"""What rules decided: kept slice by slice of the feed, listed, removed, counted."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from spanwise.collector.errors import Refused
from spanwise.collector.records import Decided, Decision, Page, Target
from spanwise.collector.stores._halves import DecisionsOf
from spanwise.collector.stores.sqlite import _listed, _outcomes
from spanwise.collector.stores.sqlite._half import Half, reads, writes
from spanwise.collector.stores.sqlite._outcomes import COMPUTED
from spanwise.collector.stores.sqlite._rows import (
    COLUMNS,
    OPEN,
    PLAIN,
    Row,
    above,
    address,
    fresh,
    of_trace,
    write,
)
from spanwise.collector.stores.sqlite._rules import in_force
from spanwise.collector.stores.sqlite._sql import find_many, insert_many

DECIDABLE = (*COMPUTED, *OPEN, "skipped", "failed")
CHUNK = 5_000  # decisions that are removed in one transaction
TOP = "\U0010ffff"  # above all addresses
OFFERED = 10_000  # rows over budget that a rule offers again
OFFERED_NS = 86_400 * 1_000_000_000  # and for so long
GIVEN_UP = "over budget, and too long ago, or behind too many, to be offered again"


class Decisions(Half):
    """A part of `ControlStore`."""

    @reads
    def cursor(self, db: sqlite3.Connection, /, rule: str, version: str, *, project: str = "default") -> str | None:
        sql = "SELECT cursor FROM rules WHERE project = ? AND name = ? AND version = ?"
        row = db.execute(sql, (project, rule, version)).fetchone()
        return row[0] if row else None

    @writes
    def keep_decided(self, db: sqlite3.Connection, /, decided: Sequence[Decided]) -> list[bool]:
        """As `ControlStore.decide`; all targets are there."""
        for one in decided:
            _check(one)
        now = self._file.clock.keep(db)
        return [_decide(db, one, now) for one in decided]

    @reads
    def decisions_on(self, db: sqlite3.Connection, /, asked: DecisionsOf) -> Page[Decision]:
        """As `ControlStore.decisions`."""
        rules = _listed.rules(db, asked.rule, asked.version, asked.project)
        slice = asked.verdict, asked.limit, asked.cursor
        if asked.trace_id is not None:
            return _listed.about(db, rules, _listed.places(asked.trace_id, asked.session), *slice)
        return _listed.newest(db, rules, *slice)

    @reads
    def probabilities(
        self,
        db: sqlite3.Connection,
        /,
        rule: str,
        project: str,
        version: str | None,
        scores: Sequence[tuple[Target, int]],
    ) -> list[tuple[bool, float | None]]:
        """Of targets and claims: whether (that version of) the rule decided on it, and with which probability."""
        sql = (
            "SELECT d.target, d.claim, d.probability, r.version FROM decisions d JOIN rules r ON r.id = d.rule"
            " WHERE r.project = ? AND r.name = ? AND d.target IN (%s)"
        )
        places = {place for target, _ in scores for place in above(project, target)}
        found: dict[str, list[tuple[int, float | None, str]]] = {}
        for place, *row in find_many(db, sql, places, (project, rule)):
            found.setdefault(place, []).append((row[0], row[1], row[2]))
        return [_weight(found, above(project, target), claim, version) for target, claim in scores]

    def delete_decisions(
        self, *, trace_id: str | None = None, rule: str | None = None, project: str | None = None
    ) -> int:
        if trace_id is None and rule is None:
            raise Refused("name the trace or the rule whose decisions shall go; to remove all of them, go rule by rule")
        removed = 0
        while count := self._file.write(partial(_remove_some, trace_id, rule, project)):  # others write in between
            removed += count
        if trace_id is None and rule is not None:
            self._file.write(partial(_begin_anew, rule, project))
        return removed


def _remove_some(trace_id: str | None, rule: str | None, project: str | None, db: sqlite3.Connection) -> int:
    numbers = [one.id for one in _listed.rules(db, rule, None, project)]
    first, end = ("", TOP) if trace_id is None else of_trace(trace_id)
    within = "target >= ? AND target < ?" if trace_id is not None else "+target >= ? AND +target < ?"
    count = 0
    for number in numbers:
        chosen = f"SELECT id FROM decisions WHERE rule = ? AND {within} LIMIT ?"
        sql = f"DELETE FROM decisions WHERE id IN ({chosen})"
        count += db.execute(sql, (number, first, end, CHUNK - count)).rowcount
    return count


def _begin_anew(rule: str, project: str | None, db: sqlite3.Connection) -> None:
    """It decides on all that has changed since it was put in force."""
    for one in _listed.rules(db, rule, None, project):
        db.execute("UPDATE rules SET cursor = NULL WHERE id = ?", (one.id,))
        _outcomes.clear(db, one.id)


def _check(decided: Decided) -> None:
    """Raises `Refused` for what could not be told again."""
    _outcomes.check(decided.outcomes)
    for row in decided.rows:
        if row.verdict not in DECIDABLE:
            raise Refused(f"{row.verdict!r} is not decided, but comes of a claim; use one of {', '.join(DECIDABLE)}")
        for name in ("probability", "u", "rate"):
            value = getattr(row, name)
            if value is not None and not 0 <= value <= 1:
                raise Refused(f"{name} of a decision is a number from 0 to 1, not {value!r}")


def _decide(db: sqlite3.Connection, decided: Decided, now: int) -> bool:
    rule = in_force(db, decided.project, decided.rule, decided.version)
    if rule is None or decided.token < rule.token:
        return False
    if rule.cursor == decided.upto and decided.after != decided.upto:
        return True
    if rule.cursor != decided.after:
        return False
    _keep(db, rule.id, decided.project, decided.rows, now)
    _outcomes.count(db, rule.id, decided.outcomes, now)
    sql = "UPDATE rules SET cursor = ?, token = ? WHERE id = ?"
    db.execute(sql, (decided.upto, decided.token, rule.id))
    return True


def _keep(db: sqlite3.Connection, rule: int, project: str, rows: Iterable[Decision], now: int) -> None:
    by_address = {address(project, row.target): row for row in rows}
    sql = f"{PLAIN} WHERE rule = ? AND target IN (%s)"
    known = {row.target: row for row in (Row(*found) for found in find_many(db, sql, by_address, (rule,)))}
    new = [row for place, row in by_address.items() if place not in known and row.verdict not in COMPUTED]
    insert_many(db, "decisions", COLUMNS, [fresh(rule, row, now) for row in new])
    _again(db, [(row, by_address[place]) for place, row in known.items()], now)
    if any(row.verdict == "over_budget" for row in new):
        give_up(db, rule, now)


def _again(db: sqlite3.Connection, pairs: Iterable[tuple[Row, Decision]], now: int) -> None:
    """Decide anew on what was decided before; what is known from a later change stays as it is."""
    pairs = [(row, decided) for row, decided in pairs if decided.change >= row.change]
    made = [(row, left_out(row, one) if one.verdict in COMPUTED else decided_anew(row, one, now)) for row, one in pairs]
    write(db, [row._replace(updated_ns=now) for old, row in made if row is not None and row != old])
    db.executemany("DELETE FROM decisions WHERE id = ?", [(old.id,) for old, row in made if row is None])


def _drawn(row: Row, decided: Decision) -> Row:
    return row._replace(
        probability=decided.probability,
        u=decided.u,
        rate=decided.rate,
        stratum=decided.stratum,
        change=decided.change,
        runs_change=decided.runs_change,
    )


def left_out(row: Row, decided: Decision) -> Row | None:
    """A target that is not taken any more: it leaves the estimates, and its feedback stays. None: it can go."""
    drawn = _drawn(row, decided)._replace(probability=0.0)
    if row.due_ns is None or row.verdict == "running":
        return drawn
    if row.outcome is None:
        return None
    return drawn._replace(verdict=row.outcome, next_ns=None, due_ns=None)


def decided_anew(row: Row, decided: Decision, now: int) -> Row:
    """A target that is taken, still or again. While it runs `finish` does what follows."""
    drawn = _drawn(row, decided)
    due = now if decided.next_ns is None else decided.next_ns
    waits: dict[str, Any] = {"verdict": "waiting", "reason": decided.reason, "incomplete": int(decided.incomplete)}
    if row.verdict == "waiting" and row.claim == 0 and decided.change > row.change:
        if decided.verdict in OPEN:
            return drawn._replace(**waits, next_ns=decided.next_ns, due_ns=due)
        closed = {**waits, "verdict": decided.verdict, "read_change": decided.runs_change}
        return drawn._replace(**closed, next_ns=None, due_ns=None)
    done = row.due_ns is None and row.verdict != "over_budget"
    if done and decided.runs_change > row.read_change and row.may_reopen(now):
        return drawn._replace(**waits, next_ns=decided.next_ns, due_ns=due, attempts=0)
    return drawn


def give_up(db: sqlite3.Connection, rule: int, now: int) -> None:
    """Of the rows over budget, the newest are offered again, for a day: what falls out is final."""
    over = "rule = ? AND verdict = 'over_budget' AND due_ns IS NOT NULL"
    last = f"SELECT created_ns, id FROM decisions WHERE {over} ORDER BY created_ns DESC, id DESC LIMIT 1 OFFSET ?"
    places = [(now - OFFERED_NS, 0), db.execute(last, (rule, OFFERED - 1)).fetchone()]
    sql = f"UPDATE decisions SET due_ns = NULL, next_ns = NULL, reason = ?, updated_ns = ? WHERE {over}"
    for place in filter(None, places):
        db.execute(f"{sql} AND (created_ns, id) < (?, ?)", (GIVEN_UP, now, rule, *place))


def _weight(
    found: Mapping[str, Sequence[tuple[int, float | None, str]]], places: Sequence[str], claim: int, version: str | None
) -> tuple[bool, float | None]:
    """Of the decision that a claim was on: claims rise, so that it is the lowest that is not below."""
    rows = [row for place in places for row in found.get(place, ()) if row[0] >= claim]
    if not rows:
        return version is None, None
    _, probability, theirs = min(rows, key=lambda row: row[0])
    return version in (None, theirs), probability


def forget_traces(db: sqlite3.Connection, trace_ids: Iterable[str]) -> None:
    """Remove what was decided about traces that go, their spans and documents."""
    db.executemany("DELETE FROM decisions WHERE target >= ? AND target < ?", map(of_trace, trace_ids))


def forget_sessions(db: sqlite3.Connection, sessions: Iterable[str]) -> None:
    """Remove what was decided about sessions of which no trace is left, in any project."""
    projects = [row[0] for row in db.execute("SELECT DISTINCT project FROM rules")]
    places = [(f"/{project}/{session}",) for session in sessions for project in projects]
    db.executemany("DELETE FROM decisions WHERE target = ?", places)
