"""Contribution of a trace's scores to the weighted sums of its rules, computed from feedback and decisions."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from spanwise.collector.records import Target
from spanwise.collector.stores.control import decision_rows
from spanwise.collector.stores.sqlite.query.filter_sql import METADATA_TEXT_SQL, VISIBLE_SQL
from spanwise.collector.stores.table_rows import select_many
from spanwise.collector.stores.weighted_sums import (
    LIVE,
    LIVE_PREFIX,
    METADATA_PREFIX,
    ScoreAmounts,
    check_grouping,
    score_amounts,
)


class SeriesKey(NamedTuple):
    """Series of sums: scores of one rule version under one key, or one of their labels, for one value of a field.

    `version` is "" for scores without a decision. `field` and `value` are "" for the sums over all traces.
    """

    project: str
    rule: str
    version: str
    key: str
    label: str
    field: str
    value: str


class Contribution(NamedTuple):
    """Scores of one trace, or of one session as target, in all series.

    `cluster` is the session, or None for a trace without one. `start_ns` is the time to which the scores belong.
    """

    start_ns: int
    cluster: str | None
    amounts: Mapping[SeriesKey, ScoreAmounts]


class Grouping(NamedTuple):
    """Field by whose values the sums of a rule are kept."""

    project: str
    rule: str
    field: str


# Values of the fields by which sums can be grouped: SQL of a value, and what it joins to `traces t`
_GROUP_SQL = {
    "tag": ("m.value", "CROSS JOIN json_each(t.tags) m"),
    "model": ("m.key", "CROSS JOIN json_each(t.models) m ON m.key <> 'null'"),
    "environment": ("t.environment", ""),
    "prompt_version": ("v.value", "CROSS JOIN json_each(t.prompts) p CROSS JOIN json_each(p.value) v"),
    "agent": ("m.value", "CROSS JOIN json_each(t.agents) m"),
    "name": ("t.name", ""),
    "user": ("t.user_id", ""),
}
_METADATA_SQL = (METADATA_TEXT_SQL, "CROSS JOIN json_each(t.metadata) m ON m.key = ?")


def get_group_sql(by: str) -> tuple[str, str, tuple[str, ...]]:
    """Return the SQL of a grouping: the value, what it joins to `traces t`, and the parameters of the join.

    Raises `Refused` for a field by which sums cannot be grouped.
    """
    if check_grouping(by) in _GROUP_SQL:
        return *_GROUP_SQL[by], ()
    return *_METADATA_SQL, (by.removeprefix(METADATA_PREFIX),)


_COLUMNS = "f.rule, f.key, f.score, f.label, f.outcome, coalesce(f.claim, 0), f.span_id, f.document, f.trace_start_ns"
_COUNTS = "f.standing >= 1 AND (f.outcome <> 'score' OR f.score IS NOT NULL OR f.label IS NOT NULL)"
_OF_TRACES = (
    f"SELECT {_COLUMNS}, f.trace, t.trace_id, t.project, t.session_id FROM feedback f INDEXED BY feedback_by_trace"
    f" CROSS JOIN traces t ON t.id = f.trace WHERE f.rule IS NOT NULL AND {_COUNTS} AND t.project IS NOT NULL"
    " AND f.trace IN (%s)"
)
_OF_SESSIONS = (
    f"SELECT {_COLUMNS}, f.session_id, NULL, f.project, f.session_id FROM feedback f INDEXED BY feedback_by_session"
    f" WHERE f.rule IS NOT NULL AND {_COUNTS} AND f.trace IS NULL AND f.session_id IN (%s)"
)
_DECISIONS = (
    "SELECT d.target, d.claim, d.probability, {live}, r.project, r.name, r.version FROM decisions d"
    " CROSS JOIN rules r ON r.id = d.rule WHERE d.target IN (%s)"
)
# lease number, sampling probability, that of live traffic alone, version of the rule
_Decision: TypeAlias = tuple[int, float | None, float | None, str]


def read_contributions(
    db: sqlite3.Connection,
    traces: Iterable[int] = (),
    sessions: Iterable[str] = (),
    groupings: Collection[Grouping] = (),
) -> dict[int | str, list[Contribution]]:
    """Return the contributions of traces, by key, and of sessions that are targets, by id. Both may have none.

    Only the scores of a session may belong to several times. Each score has the sampling probability that
    `ControlStore.weighted` returns for it.
    """
    rows = [*select_many(db, _OF_TRACES, traces), *_session_rows(db, sessions)]
    addresses = [list_addresses(row) for row in rows]
    decisions: dict[tuple[str, str, str], list[_Decision]] = defaultdict(list)  # by address, project and rule
    has_live = any(grouping.field.startswith(LIVE) for grouping in groupings)
    sql = _DECISIONS.format(live=decision_rows.LIVE_PROBABILITY if has_live else "NULL")
    decided = select_many(db, sql, {address for each in addresses for address in each})
    for address, claim, probability, live, project, rule, version in decided:
        decisions[address, project, rule].append((claim, probability, live, version))
    values = _read_group_values(db, rows, groupings)
    found: dict[int | str, list[Contribution]] = defaultdict(list)
    amounts: dict[tuple[int | str, int], dict[SeriesKey, ScoreAmounts]] = {}
    for row, of_row in zip(rows, addresses, strict=True):
        rule, key, score, label, outcome, claim, _, _, start_ns, owner, _, project, session = row
        version, probability, live = _find_decision(decisions, (project, rule), of_row, claim)
        into = amounts.get((owner, start_ns))
        if into is None:
            into = amounts[owner, start_ns] = {}
            found[owner].append(Contribution(start_ns, session, into))
        for by, value in (("", ""), *values.get((owner, project, rule), ())):
            of_field = live if by.startswith(LIVE) else probability
            if of_field == 0 and by.startswith(LIVE):
                continue  # a backfill added this score, error or skip
            for code, added in score_amounts(outcome, score, label, of_field):
                series = SeriesKey(project, rule, version, key, code, by, value)
                before = into.get(series)
                into[series] = added if before is None else before.plus(added)
    return found


def _session_rows(db: sqlite3.Connection, sessions: Iterable[str]) -> list[Any]:
    """Return the feedback on sessions. Feedback without a project appears once for each project that has decided on the
    session.
    """
    found = select_many(db, _OF_SESSIONS, sessions)
    own = [row for row in found if row[11] is not None]
    rows = [row for row in found if row[11] is None]
    if not rows:
        return own
    projects = [project for (project,) in db.execute("SELECT DISTINCT project FROM rules")]
    places = {(project, row[9]): f"/{project}/{row[9]}" for row in rows for project in projects}
    stored = {row[0] for row in select_many(db, "SELECT target FROM decisions WHERE target IN (%s)", places.values())}
    decided = [(row, project) for row in rows for project in projects if places[project, row[9]] in stored]
    return [*own, *((*row[:11], project, row[12]) for row, project in decided)]


def list_addresses(row: Sequence[Any]) -> list[str]:
    """Return the addresses of the targets that contain the target of a row of feedback."""
    span_id, document, trace_id, project, session = row[6], row[7], row[10], row[11], row[12]
    if trace_id is None:
        return [f"/{project}/{session}"]
    if span_id is None and trace_id.isalnum():
        return [trace_id]
    target = Target(trace_id=trace_id, span_id=span_id, document=document)
    return decision_rows.list_containing_targets(project, target)


def _find_decision(
    decisions: Mapping[tuple[str, str, str], Sequence[_Decision]],
    rule: tuple[str, str],
    addresses: Sequence[str],
    claim: int,
) -> tuple[str, float | None, float | None]:
    """Return version and probabilities of the decision whose lease gave a score, as `find_probabilities` does."""
    found = decisions.get((addresses[0], *rule), ())
    if len(addresses) == 1 and len(found) == 1 and found[0][0] >= claim:
        return found[0][3], found[0][1], found[0][2]
    rows = [row for address in addresses for row in decisions.get((address, *rule), ()) if row[0] >= claim]
    if not rows:
        return "", None, None
    _, probability, live, version = min(rows, key=lambda row: row[0])
    return version, probability, live


_ScoredOwner: TypeAlias = tuple[int | str, str, str]  # key of a trace or id of a session, project, rule
_TRACE_VALUES = "SELECT DISTINCT t.id, {} FROM traces t {} WHERE t.id IN (%s)"
# a session has the values of all its traces in the project
_SESSION_VALUES = (
    "SELECT DISTINCT t.session_id, {} FROM traces t INDEXED BY traces_by_session {} WHERE t.project = ?"
    f" AND {VISIBLE_SQL.format('t')} AND t.session_id IN (%s)"
)


def _read_group_values(
    db: sqlite3.Connection, rows: Sequence[Sequence[Any]], groupings: Collection[Grouping]
) -> dict[_ScoredOwner, list[tuple[str, str]]]:
    """Return fields and values of each trace or session, by owner, project and rule, for the groupings of the rule."""
    owners: dict[tuple[str, str], tuple[set[int], set[str]]] = defaultdict(lambda: (set(), set()))
    for row in rows:
        traces, sessions = owners[row[11], row[0]]
        if row[10] is not None:
            traces.add(row[9])
        else:
            sessions.add(row[9])
    found: dict[_ScoredOwner, list[tuple[str, str]]] = defaultdict(list)
    by_field: dict[str, list[Grouping]] = defaultdict(list)
    for grouping in groupings:
        if grouping[:2] in owners:
            by_field[grouping.field].append(grouping)
    for by, of_field in by_field.items():
        if by == LIVE:
            for project, rule, _ in of_field:
                for of_kind in owners[project, rule]:
                    for owner in of_kind:
                        found[owner, project, rule].append((LIVE, ""))
            continue
        named = by.removeprefix(LIVE_PREFIX)
        of_traces = read_trace_values(db, named, {trace for each in of_field for trace in owners[each[:2]][0]})
        for project, rule, _ in of_field:
            traces, sessions = owners[project, rule]
            of_sessions = read_session_values(db, named, project, sessions)
            for values, of_kind in ((of_traces, traces), (of_sessions, sessions)):
                for owner in of_kind:
                    found[owner, project, rule] += [(by, value) for value in values.get(owner, ())]
    return found


def read_trace_values(db: sqlite3.Connection, by: str, traces: Collection[int]) -> dict[int | str, list[str]]:
    """Return the distinct values of a field by which sums can be grouped, by key of the trace."""
    value_sql, join, before = get_group_sql(by)
    return _list_values(select_many(db, _TRACE_VALUES.format(value_sql, join), traces, before))


def read_session_values(
    db: sqlite3.Connection, by: str, project: str, sessions: Collection[str]
) -> dict[int | str, list[str]]:
    """Return the distinct values of a field over all traces of each session of a project, by id of the session."""
    value_sql, join, before = get_group_sql(by)
    return _list_values(select_many(db, _SESSION_VALUES.format(value_sql, join), sessions, (*before, project)))


def _list_values(rows: Iterable[Sequence[Any]]) -> dict[int | str, list[str]]:
    """Return the values of each owner."""
    found: dict[int | str, list[str]] = defaultdict(list)
    for owner, value in rows:
        if value is not None:
            found[owner].append(str(value))
    return found
