"""Decisions as rows: columns, where a target is, and what is read back.

A row whose `due_ns` is set is open: somebody has to take it, at that time or later. Open rows of a version that is not
in force are superseded; nobody writes that into them, as there may be a million.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from spanwise.collector.records import Decision, Target
from spanwise.collector.stores.sqlite._values import dumps, loads

COLUMNS = (
    "rule target verdict reason probability u rate stratum incomplete change runs_change read_change claim holder"
    " until_ns attempts deaths reopened next_ns states inputs_hash cost created_ns updated_ns due_ns"
).split()
DAY = 86_400 * 1_000_000_000
OPEN = ("waiting", "throttled", "over_budget")  # not running, and not done
WEIGHTS = ("failed", "scored", "skipped")  # of a row with outcomes of several kinds the verdict is the first of these
_SUPERSEDED = "CASE WHEN d.due_ns IS NOT NULL AND r.state <> 'in force' THEN 'superseded' ELSE d.verdict END"
_SELECTED = [f"d.{name}" if name != "verdict" else _SUPERSEDED for name in COLUMNS]
SELECT = (
    f"SELECT d.id, {', '.join(_SELECTED)}, r.project, r.name, r.version FROM decisions d JOIN rules r ON r.id = d.rule"
)


class Row(NamedTuple):
    """A decision as it lies in the table."""

    id: int
    rule: int
    target: str
    verdict: str
    reason: str
    probability: float | None
    u: float | None
    rate: float | None
    stratum: int | None
    incomplete: int
    change: int
    runs_change: int
    read_change: int
    claim: int
    holder: str | None
    until_ns: int | None
    attempts: int
    deaths: int
    reopened: int
    next_ns: int | None
    states: str | None
    inputs_hash: str | None
    cost: float | None
    created_ns: int
    updated_ns: int
    due_ns: int | None

    def may_reopen(self, now: int) -> bool:
        """Whether a change of its runs opens it anew: once for a version; a session, to which later turns may come for
        long, once a day.
        """
        days = (now - self.created_ns) // DAY if self.target.startswith("/") else 0
        return self.reopened <= days

    @property
    def said(self) -> dict[str, Any]:
        """The state of each evaluator."""
        return loads(self.states) if self.states else {}

    @property
    def outcome(self) -> str | None:
        """What its evaluators have come to, as one verdict; None if none has come to anything yet."""
        states = {state.get("state") for state in self.said.values() if isinstance(state, dict)}
        return next((word for word in WEIGHTS if word in states), None)


PLAIN = f"SELECT id, {', '.join(COLUMNS)} FROM decisions"


def write(db: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """Put rows that are there anew."""
    marks = ",".join(f"{name}=?" for name in COLUMNS[2:])
    db.executemany(f"UPDATE decisions SET {marks} WHERE id = ?", [(*row[3:], row.id) for row in rows])


def address(project: str, target: Target) -> str:
    """Where a target is, in one text: `trace`, `trace/span`, `trace/span/document`, or `/project/session`."""
    if target.session_id is not None:
        return f"/{project}/{target.session_id}"
    parts = [target.trace_id or "", target.span_id, None if target.document is None else str(target.document)]
    return "/".join([_part(part) for part in parts if part is not None])


def above(project: str, target: Target) -> list[str]:
    """The addresses of a target and of all that it is a part of."""
    if target.session_id is not None:
        return [address(project, target)]
    parts = [(target.span_id, target.document), (target.span_id, None), (None, None)]
    return [
        address(project, replace(target, span_id=span, document=document)) for span, document in dict.fromkeys(parts)
    ]


def of_trace(trace_id: str) -> tuple[str, str]:
    """Addresses of a trace, its spans and documents are from the first of these on, and before the second."""
    part = _part(trace_id)
    return part, f"{part}0"  # the sign after the slash


def target_of(project: str, address: str) -> Target:
    """The target at an address."""
    if address.startswith("/"):
        return Target(session_id=address[len(project) + 2 :])
    trace, _, rest = address.partition("/")
    span, _, document = rest.partition("/")
    return Target(
        trace_id=_whole(trace),
        span_id=_whole(span) if rest else None,
        document=int(_whole(document)) if document else None,
    )


def _part(id: str) -> str:
    """An id without a slash, or any sign below one but a percent sign in front."""
    return id if id.isalnum() else f"%{id.encode('utf-8', 'surrogatepass').hex()}"


def _whole(part: str) -> str:
    return bytes.fromhex(part[1:]).decode("utf-8", "surrogatepass") if part.startswith("%") else part


def decision(row: Sequence[Any]) -> Decision:
    """The record of a row of `SELECT`."""
    *values, project, rule, version = row
    return record(Row(*values), project, rule, version)


def record(row: Row, project: str, rule: str, version: str) -> Decision:
    """The record of a row of a rule's."""
    return Decision(
        project=project,
        rule=rule,
        version=version,
        target=target_of(project, row.target),
        verdict=row.verdict,  # type: ignore[arg-type]
        reason=row.reason,
        probability=row.probability,
        u=row.u,
        rate=row.rate,
        stratum=row.stratum,
        incomplete=bool(row.incomplete),
        change=row.change,
        runs_change=row.runs_change,
        read_change=row.read_change,
        claim=row.claim,
        holder=row.holder,
        until_ns=row.until_ns,
        attempts=row.attempts,
        deaths=row.deaths,
        reopened=row.reopened,
        next_ns=row.next_ns,
        states=row.said,
        inputs_hash=row.inputs_hash,
        cost=row.cost,
        created_ns=row.created_ns,
        updated_ns=row.updated_ns,
    )


def fresh(rule: int, decided: Decision, now: int) -> tuple[Any, ...]:
    """The columns of a decision that was not there before."""
    closed = decided.verdict not in OPEN
    due = None if closed else (now if decided.next_ns is None else decided.next_ns)
    return (
        rule,
        address(decided.project, decided.target),
        decided.verdict,
        decided.reason,
        decided.probability,
        decided.u,
        decided.rate,
        decided.stratum,
        decided.incomplete,
        decided.change,
        decided.runs_change,
        decided.runs_change if closed else 0,  # nothing shall be read but what was
        0,
        None,
        None,
        0,
        0,
        0,
        decided.next_ns,
        dumps(decided.states) if decided.states else None,
        decided.inputs_hash,
        decided.cost,
        now,
        now,
        due,
    )
