"""Lists of decisions, newest first: of what a trace has, or of all, as the index by rule and verdict has them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import NamedTuple, get_args

from spanwise.collector.errors import Refused
from spanwise.collector.records import Decision, Page, Verdict
from spanwise.collector.stores.sqlite._rows import SELECT, decision, of_trace
from spanwise.collector.stores.sqlite._sql import find_many, position

# A verdict as it lies in the table, and whether such a row is open: in a version that is not in force it is superseded
KINDS = (
    *((word, True) for word in ("waiting", "throttled", "over_budget", "running")),
    *((word, False) for word in ("over_budget", "scored", "skipped", "failed")),
)


class Rule(NamedTuple):
    """A version of a rule by its number."""

    id: int
    in_force: bool


def rules(db: sqlite3.Connection, rule: str | None, version: str | None, project: str | None) -> list[Rule]:
    """The versions of rules that bear these names; None: any."""
    sql = (
        "SELECT id, state = 'in force' FROM rules WHERE (:rule IS NULL OR name = :rule)"
        " AND (:version IS NULL OR version = :version) AND (:project IS NULL OR project = :project)"
    )
    given = {"rule": rule, "version": version, "project": project}
    return [Rule(id, bool(in_force)) for id, in_force in db.execute(sql, given)]


def places(trace_id: str, session: tuple[str, str] | None) -> tuple[str, str, str]:
    """From where and up to where addresses are a trace's own, and that of its session."""
    return (*of_trace(trace_id), "" if session is None else f"/{session[0]}/{session[1]}")


def about(
    db: sqlite3.Connection,
    rules: Sequence[Rule],
    places: tuple[str, str, str],
    verdict: str | None,
    limit: int,
    cursor: str | None,
) -> Page[Decision]:
    """What is about one trace, of which there is little."""
    sql = "SELECT id, rule, verdict, due_ns IS NOT NULL FROM decisions WHERE target >= ? AND target < ? OR target = ?"
    wanted = _wanted(rules, verdict)
    found = [row[0] for row in db.execute(sql, places) if (row[1], row[2], bool(row[3])) in wanted]
    below = _below(cursor)
    return _page(db, sorted((id for id in found if id < below), reverse=True), limit)


def newest(
    db: sqlite3.Connection, rules: Sequence[Rule], verdict: str | None, limit: int, cursor: str | None
) -> Page[Decision]:
    """What has one of some versions and a verdict: index entries are merged, and only what is shown is read."""
    below = _below(cursor)
    kinds: dict[tuple[int, str], set[bool]] = {}
    for rule, word, open in _wanted(rules, verdict):
        kinds.setdefault((rule, word), set()).add(open)
    runs = [_run(db, *of, opens, below, limit + 1) for of, opens in kinds.items()]
    return _page(db, list(islice(merge(*runs, reverse=True), limit + 1)), limit)


def _wanted(rules: Sequence[Rule], verdict: str | None) -> set[tuple[int, str, bool]]:
    """Number of the rule, and one of `KINDS`: all that are told as this verdict."""
    if verdict is not None and verdict not in get_args(Verdict):
        raise Refused(f"there is no verdict {verdict!r}; use one of {', '.join(get_args(Verdict))}")
    return {
        (rule.id, word, open)
        for rule in rules
        for word, open in KINDS
        if verdict in (None, "superseded" if open and not rule.in_force else word)
    }


def _run(db: sqlite3.Connection, rule: int, verdict: str, opens: set[bool], below: int, limit: int) -> Iterator[int]:
    """Ids of one kind, falling."""
    sql = "SELECT id FROM decisions INDEXED BY decisions_by_rule WHERE rule = ? AND verdict = ? AND id < ?"
    if verdict == "over_budget" and len(opens) == 1:
        sql += f" AND due_ns IS {'NOT ' if True in opens else ''}NULL"
    return (row[0] for row in db.execute(f"{sql} ORDER BY id DESC LIMIT ?", (rule, verdict, below, limit)).fetchall())


def _page(db: sqlite3.Connection, ids: Sequence[int], limit: int) -> Page[Decision]:
    rows = {row[0]: row for row in find_many(db, f"{SELECT} WHERE d.id IN (%s)", ids[:limit])}
    shown = [rows[id] for id in ids[:limit]]
    return Page(items=tuple(map(decision, shown)), next=f"0.{shown[-1][0]}" if len(ids) > limit and shown else None)


def _below(cursor: str | None) -> int:
    return (1 << 63) - 1 if cursor is None else position(cursor)[1]
