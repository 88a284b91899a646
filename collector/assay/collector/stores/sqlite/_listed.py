"""Lists of decisions, newest first: of what a trace has, or of all, as the index by rule and verdict has them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import NamedTuple, get_args

from assay.collector.errors import Refused
from assay.collector.records import Decision, Page, Verdict
from assay.collector.stores.sqlite._rows import SELECT, decision, of_trace
from assay.collector.stores.sqlite._sql import find_many, position

STORED = tuple(word for word in get_args(Verdict) if word not in ("filtered", "sampled_out", "superseded"))
OPEN = ("waiting", "throttled", "over_budget", "running")  # in a version that is not in force: superseded


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
    found = [(row[0]) for row in db.execute(sql, places) if (row[1], row[2], bool(row[3])) in wanted]
    below = _below(cursor)
    return _page(db, sorted((id for id in found if id < below), reverse=True), limit)


def newest(
    db: sqlite3.Connection, rules: Sequence[Rule], verdict: str | None, limit: int, cursor: str | None
) -> Page[Decision]:
    """What has one of some versions and a verdict: index entries are merged, and only what is shown is read."""
    below = _below(cursor)
    runs = [_run(db, *one, below, limit + 1) for one in sorted(_wanted(rules, verdict))]
    return _page(db, list(islice(merge(*runs, reverse=True), limit + 1)), limit)


def _wanted(rules: Sequence[Rule], verdict: str | None) -> set[tuple[int, str, bool]]:
    """Number of the rule, verdict as it lies in the table, and whether it is open: all that are told as this verdict."""
    if verdict is not None and verdict not in get_args(Verdict):
        raise Refused(f"there is no verdict {verdict!r}; use one of {', '.join(get_args(Verdict))}")
    every = ((rule, word, open) for rule in rules for word in STORED for open in (False, True))
    return {
        (rule.id, word, open)
        for rule, word, open in every
        if verdict in (None, "superseded" if open and not rule.in_force else word)
    }


def _run(db: sqlite3.Connection, rule: int, verdict: str, open: bool, below: int, limit: int) -> Iterator[int]:
    """Ids of one kind, falling."""
    state = "IS NOT NULL" if open else "IS NULL"
    sql = (
        "SELECT id FROM decisions INDEXED BY decisions_by_rule WHERE rule = ? AND verdict = ? AND id < ?"
        f" AND due_ns {state} ORDER BY id DESC LIMIT ?"
    )
    return (row[0] for row in db.execute(sql, (rule, verdict, below, limit)).fetchall())


def _page(db: sqlite3.Connection, ids: Sequence[int], limit: int) -> Page[Decision]:
    rows = {row[0]: row for row in find_many(db, f"{SELECT} WHERE d.id IN (%s)", ids[:limit])}
    shown = [rows[id] for id in ids[:limit]]
    return Page(items=tuple(map(decision, shown)), next=f"0.{shown[-1][0]}" if len(ids) > limit and shown else None)


def _below(cursor: str | None) -> int:
    return (1 << 63) - 1 if cursor is None else position(cursor)[1]
