"""Decisions of rules: recording, lists, sampling probabilities, progress; reports of monitor workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple, get_args

from spanwise.collector.errors import Refused
from spanwise.collector.records import Decision, DecisionBatch, Page, Rule, Target, Verdict, WorkerReport
from spanwise.collector.stores.backends import DecisionQuery, ScoreProbability
from spanwise.collector.stores.control import decision_rows
from spanwise.collector.stores.control.backfills import (
    find_drawn,
    find_sampled,
    record_step,
    settle_backfill,
    update_live_draws,
)
from spanwise.collector.stores.control.control_database import (
    ControlOperationsBase,
    WriteConnection,
    read_operation,
    write_operation,
)
from spanwise.collector.stores.control.decision_rows import (
    COUNTED_OUTCOMES,
    DECISION_COLUMNS,
    GIVEN_UP_REASON,
    LIVE_PROBABILITY,
    OPEN_OUTCOMES,
    SELECT_DECISIONS,
    SELECT_ROWS,
    DecisionRow,
    build_row,
    decision_from_row,
    encode_target,
    get_trace_range,
    list_containing_targets,
    update_rows,
)
from spanwise.collector.stores.control.rule_versions import NO_OTHER_DECIDES, find_active_rule
from spanwise.collector.stores.decision_explanation import VERDICT_PRIORITY
from spanwise.collector.stores.table_rows import (
    Connection,
    decode_record,
    encode_record,
    insert_many,
    parse_cursor,
    select_many,
)

# Stored verdict, and whether the row is open. Open rows of a version that is not in force are shown as superseded
ROW_KINDS = (
    *((word, True) for word in ("waiting", "throttled", "over_budget", "running")),
    *((word, False) for word in ("over_budget", "scored", "skipped", "failed")),
)


class RuleVersion(NamedTuple):
    """Id of a rule version, and whether it is in force."""

    id: int
    in_force: bool


def find_rule_versions(db: Connection, rule: str | None, version: str | None, project: str | None) -> list[RuleVersion]:
    """Return the rule versions with this rule name, version and project. None matches any."""
    sql = (
        "SELECT id, state = 'in force' FROM rules WHERE (:rule IS NULL OR name = :rule)"
        " AND (:version IS NULL OR version = :version) AND (:project IS NULL OR project = :project)"
    )
    values = {"rule": rule, "version": version, "project": project}
    return [RuleVersion(id, bool(in_force)) for id, in_force in db.execute(sql, values)]


def get_target_ranges(trace_id: str, session: tuple[str, str] | None) -> tuple[str, str, str]:
    """Return the bounds of the addresses of a trace, and the address of its session ("" if it has none)."""
    return (*get_trace_range(trace_id), "" if session is None else f"/{session[0]}/{session[1]}")


def list_trace_decisions(
    db: Connection,
    rules: Sequence[RuleVersion],
    ranges: tuple[str, str, str],
    verdict: str | None,
    limit: int,
    cursor: str | None,
) -> Page[Decision]:
    """Return one page of the decisions about one trace. A trace has few, so all are read and sorted."""
    sql = "SELECT id, rule, verdict, due_ns IS NOT NULL FROM decisions WHERE target >= ? AND target < ? OR target = ?"
    kinds = _wanted_kinds(rules, verdict)
    ids = [row[0] for row in db.execute(sql, ranges) if (row[1], row[2], bool(row[3])) in kinds]
    upper_bound = _parse_upper_bound(cursor)
    return _decision_page(db, sorted((id for id in ids if id < upper_bound), reverse=True), limit)


def list_newest_decisions(
    db: Connection, rules: Sequence[RuleVersion], verdict: str | None, limit: int, cursor: str | None
) -> Page[Decision]:
    """Return one page of the decisions of rule versions, newest first, optionally with one verdict.

    An index gives a sorted list of ids for each rule version and verdict. The lists are merged, so only the rows of
    the page are read.
    """
    upper_bound = _parse_upper_bound(cursor)
    kinds: dict[tuple[int, str], set[bool]] = {}
    for rule, stored_verdict, open in _wanted_kinds(rules, verdict):
        kinds.setdefault((rule, stored_verdict), set()).add(open)
    runs = []  # lists of ids in descending order, one for each rule version and verdict
    for (rule, stored_verdict), opens in kinds.items():
        sql = "SELECT id FROM decisions INDEXED BY decisions_by_rule WHERE rule = ? AND verdict = ? AND id < ?"
        if stored_verdict == "over_budget" and len(opens) == 1:
            sql += f" AND due_ns IS {'NOT ' if True in opens else ''}NULL"
        rows = db.execute(f"{sql} ORDER BY id DESC LIMIT ?", (rule, stored_verdict, upper_bound, limit + 1)).fetchall()
        runs.append([row[0] for row in rows])
    return _decision_page(db, list(islice(merge(*runs, reverse=True), limit + 1)), limit)


def _wanted_kinds(rules: Sequence[RuleVersion], verdict: str | None) -> set[tuple[int, str, bool]]:
    """Return the rule id and row kind (see `ROW_KINDS`) of all rows that are shown with this verdict."""
    if verdict is not None and verdict not in get_args(Verdict):
        raise Refused(f"unknown verdict {verdict!r}; expected one of: {', '.join(get_args(Verdict))}")
    return {
        (rule.id, stored_verdict, open)
        for rule in rules
        for stored_verdict, open in ROW_KINDS
        if verdict in (None, "superseded" if open and not rule.in_force else stored_verdict)
    }


def _decision_page(db: Connection, ids: Sequence[int], limit: int) -> Page[Decision]:
    rows = {row[0]: row for row in select_many(db, f"{SELECT_DECISIONS} WHERE d.id IN (%s)", ids[:limit])}
    shown = [rows[id] for id in ids[:limit]]
    return Page(
        items=tuple(map(decision_from_row, shown)), next=f"0.{shown[-1][0]}" if len(ids) > limit and shown else None
    )


def _parse_upper_bound(cursor: str | None) -> int:
    return (1 << 63) - 1 if cursor is None else parse_cursor(cursor)[1]


DECIDABLE = (*COUNTED_OUTCOMES, *OPEN_OUTCOMES, "skipped", "failed")
ROWS_PER_DELETE = 5_000  # decisions deleted per transaction
MAX_OVER_BUDGET = 10_000  # maximum number of rows over budget that a rule's workers are offered again
OVER_BUDGET_NS = 86_400 * 1_000_000_000  # maximum age of rows over budget that are offered again


class Decisions(ControlOperationsBase):
    """Decision operations of `ControlStore`."""

    @read_operation
    def cursor(self, db: Connection, /, rule: str, version: str, *, project: str = "default") -> str | None:
        sql = "SELECT cursor FROM rules WHERE project = ? AND name = ? AND version = ?"
        row = db.execute(sql, (project, rule, version)).fetchone()
        return row[0] if row else None

    @write_operation
    def record_decisions(self, db: WriteConnection, /, decided: Sequence[DecisionBatch]) -> list[bool]:
        """Record decisions as `ControlStore.decide` does. All targets must exist."""
        for batch in decided:
            _check_decided(batch)
        now = self._database.clock.keep(db)
        return [_record_decided(db, batch, now) for batch in decided]

    @read_operation
    def list_decisions(self, db: Connection, /, query: DecisionQuery) -> Page[Decision]:
        """Return one page of decisions, as `ControlStore.decisions` does."""
        rules = find_rule_versions(db, query.rule, query.version, query.project)
        page = query.verdict, query.limit, query.cursor
        if query.trace_id is not None:
            return list_trace_decisions(db, rules, get_target_ranges(query.trace_id, query.session), *page)
        return list_newest_decisions(db, rules, *page)

    @read_operation
    def find_probabilities(
        self,
        db: Connection,
        /,
        rule: str,
        project: str,
        version: str | None,
        scores: Sequence[tuple[Target, int]],
    ) -> list[ScoreProbability]:
        """Return the sampling probability of the decision for each target and lease number."""
        sql = (
            f"SELECT d.target, d.claim, d.probability, {LIVE_PROBABILITY}, r.version"
            " FROM decisions d JOIN rules r ON r.id = d.rule"
            " WHERE r.project = ? AND r.name = ? AND d.target IN (%s)"
        )
        addresses = {address for target, _ in scores for address in list_containing_targets(project, target)}
        rows_by_address: dict[str, list[_ProbabilityRow]] = {}
        for address, *row in select_many(db, sql, addresses, (project, rule)):
            rows_by_address.setdefault(address, []).append(_ProbabilityRow(*row))
        return [
            _find_probability(rows_by_address, list_containing_targets(project, target), claim, version)
            for target, claim in scores
        ]

    def delete_decisions(
        self, *, trace_id: str | None = None, rule: str | None = None, project: str | None = None
    ) -> int:
        if trace_id is None and rule is None:
            raise Refused(
                "pass the trace_id or the rule whose decisions to delete; to delete all decisions, delete those of each rule"
            )
        removed = 0
        # one transaction per batch, so that other writes run in between
        while count := self._database.write(partial(_delete_rows, trace_id, rule, project)):
            removed += count
        if trace_id is None and rule is not None:
            self._database.write(partial(_reset_rule, rule, project))
        return removed


def _delete_rows(trace_id: str | None, rule: str | None, project: str | None, db: WriteConnection) -> int:
    rule_ids = [rule_version.id for rule_version in find_rule_versions(db, rule, None, project)]
    within = () if trace_id is None else get_trace_range(trace_id)
    count = 0
    db.record_deleted_decisions()
    for rule_id in rule_ids:
        chosen = f"SELECT id FROM decisions WHERE rule = ? {'AND target >= ? AND target < ?' if within else ''} LIMIT ?"
        sql = f"DELETE FROM decisions WHERE id IN ({chosen})"
        count += db.execute(sql, (rule_id, *within, ROWS_PER_DELETE - count)).rowcount
    return count


def _reset_rule(rule: str, project: str | None, db: Connection) -> None:
    """Clear the cursor and the counts of a rule, so that it decides again on all changes since its activation."""
    for rule_version in find_rule_versions(db, rule, None, project):
        db.execute("UPDATE rules SET cursor = NULL WHERE id = ?", (rule_version.id,))
        decision_rows.clear_outcomes(db, rule_version.id)


def _check_decided(decided: DecisionBatch) -> None:
    """Raise `Refused` for verdicts, outcomes or probabilities that are out of range."""
    decision_rows.check_outcomes(decided.outcomes)
    for row in decided.rows:
        if row.verdict not in DECIDABLE:
            raise Refused(f"{row.verdict!r} is set only by finishing a claim; expected one of: {', '.join(DECIDABLE)}")
        for name in ("probability", "u", "rate"):
            value = getattr(row, name)
            if value is not None and not 0 <= value <= 1:
                raise Refused(f"{name} of a decision must be between 0 and 1, got {value!r}")


def _record_decided(db: WriteConnection, decided: DecisionBatch, now: int) -> bool:
    rule = find_active_rule(db, decided.project, decided.rule, decided.version, NO_OTHER_DECIDES)
    if rule is None or decided.token < rule.token:
        return False
    if decided.backfill is not None:
        recorded = record_step(db, rule.id, decided.backfill, decided.after, decided.upto, decided.rows, now)
        if recorded:
            decision_rows.count_outcomes(db, rule.id, decided.outcomes, now)
            db.execute("UPDATE rules SET token = ? WHERE id = ?", (decided.token, rule.id))
        return recorded is not False
    if rule.cursor == decided.upto and decided.after != decided.upto:
        return True
    if rule.cursor != decided.after:
        return False
    _write_decisions(db, rule.id, decided.project, decided.rows, now)
    decision_rows.count_outcomes(db, rule.id, decided.outcomes, now)
    sql = "UPDATE rules SET cursor = ?, token = ? WHERE id = ?"
    db.execute(sql, (decided.upto, decided.token, rule.id))
    return True


def _write_decisions(db: WriteConnection, rule: int, project: str, rows: Iterable[Decision], now: int) -> None:
    by_address = {encode_target(project, row.target): row for row in rows}
    sql = f"{SELECT_ROWS} WHERE rule = ? AND target IN (%s)/*pg ORDER BY id FOR NO KEY UPDATE*/"
    known = {row.target: row for row in (DecisionRow(*values) for values in select_many(db, sql, by_address, (rule,)))}
    new = [row for address, row in by_address.items() if address not in known and row.verdict not in COUNTED_OUTCOMES]
    insert_many(db, "decisions", DECISION_COLUMNS, [build_row(rule, row, now) for row in new])
    _update_decisions(db, [(row, by_address[address]) for address, row in known.items()], now)
    if any(row.verdict == "over_budget" for row in new):
        expire_over_budget(db, rule, now)


def _update_decisions(db: WriteConnection, pairs: Iterable[tuple[DecisionRow, Decision]], now: int) -> None:
    """Apply new decisions to targets that already have a row. Skip a decision on an earlier change than that of the
    row.
    """
    pairs = [(row, decided) for row, decided in pairs if decided.change >= row.change]
    # a target that live traffic leaves out may be in the sample of a backfill
    sampled = find_sampled(db, [row.id for row, decided in pairs if decided.verdict == "sampled_out"])
    updates: list[tuple[DecisionRow, DecisionRow | None]] = []
    for row, decided in pairs:
        if row.id in sampled:
            updates.append((row, decide_again(row, replace(decided, verdict="waiting", reason="ready"), now)))
        elif decided.verdict in COUNTED_OUTCOMES:
            updates.append((row, exclude_target(row, decided)))
        else:
            updates.append((row, decide_again(row._replace(backfill=None), decided, now)))
    update_rows(db, [row._replace(updated_ns=now) for old, row in updates if row is not None and row != old])
    db.record_decision_changes(
        [old.id for old, row in updates if row is not None and row.probability != old.probability]
    )
    db.executemany("DELETE FROM decisions WHERE id = ?", [(old.id,) for old, row in updates if row is None])
    drawn = find_drawn(db, [row.id for _, row in updates if row is not None])
    update_live_draws(db, [(row.id, row.rate, row.probability) for _, row in updates if row and row.id in drawn])
    left = {old.backfill for old, row in updates if row is None or row.backfill != old.backfill}
    for job in filter(None, left):
        settle_backfill(db, job, now)


def _with_draw(row: DecisionRow, decided: Decision) -> DecisionRow:
    return row._replace(
        probability=decided.probability,
        u=decided.u,
        rate=decided.rate,
        stratum=decided.stratum,
        change=decided.change,
        runs_change=decided.runs_change,
    )


def exclude_target(row: DecisionRow, decided: Decision) -> DecisionRow | None:
    """Return the row of a target that the rule no longer selects; None if the row can be deleted.

    The row gets the probability 0, so that estimates leave the target out. Its feedback stays.
    """
    drawn = _with_draw(row, decided)._replace(probability=0.0)
    if row.due_ns is None or row.verdict == "running":
        return drawn
    if row.outcome is None:
        return None
    return drawn._replace(verdict=row.outcome, next_ns=None, due_ns=None)


def decide_again(row: DecisionRow, decided: Decision, now: int) -> DecisionRow:
    """Return the row of a target that the rule still selects, or selects again.

    While a worker holds the row, only the result of the sampling draw is updated. `ControlStore.finish` then reopens
    the row if necessary.
    """
    drawn = _with_draw(row, decided)
    due = now if decided.next_ns is None else decided.next_ns
    waits: dict[str, Any] = {"verdict": "waiting", "reason": decided.reason, "incomplete": int(decided.incomplete)}
    if row.verdict == "waiting" and row.claim == 0 and decided.change > row.change:
        if decided.verdict in OPEN_OUTCOMES:
            return drawn._replace(**waits, next_ns=decided.next_ns, due_ns=due)
        closed = {**waits, "verdict": decided.verdict, "read_change": decided.runs_change}
        return drawn._replace(**closed, next_ns=None, due_ns=None)
    done = row.due_ns is None and row.verdict != "over_budget"
    if done and decided.runs_change > row.read_change and row.may_reopen(now):
        return drawn._replace(**waits, next_ns=decided.next_ns, due_ns=due, attempts=0)
    return drawn


def expire_over_budget(db: Connection, rule: int, now: int) -> None:
    """Close old rows over budget. Only the newest `MAX_OVER_BUDGET`, up to `OVER_BUDGET_NS` old, are offered again."""
    condition = "rule = ? AND verdict = 'over_budget' AND due_ns IS NOT NULL AND backfill IS NULL"
    last = f"SELECT created_ns, id FROM decisions WHERE {condition} ORDER BY created_ns DESC, id DESC LIMIT 1 OFFSET ?"
    bounds = [(now - OVER_BUDGET_NS, 0), db.execute(last, (rule, MAX_OVER_BUDGET - 1)).fetchone()]
    sql = f"UPDATE decisions SET due_ns = NULL, next_ns = NULL, reason = ?, updated_ns = ? WHERE {condition}"
    for bound in filter(None, bounds):
        db.execute(f"{sql} AND (created_ns, id) < (?, ?)", (GIVEN_UP_REASON, now, rule, *bound))


class _ProbabilityRow(NamedTuple):
    claim: int
    probability: float | None
    live: float | None
    version: str


def _find_probability(
    rows_by_address: Mapping[str, Sequence[_ProbabilityRow]],
    addresses: Sequence[str],
    claim: int,
    version: str | None,
) -> ScoreProbability:
    """Return whether the version matches, and the probability of the decision for which a lease was issued.

    A new lease on the same decision has a higher number. So the lease belongs to the decision with the lowest lease
    number that is not below `claim`.
    """
    rows = [row for address in addresses for row in rows_by_address.get(address, ()) if row.claim >= claim]
    if not rows:
        return ScoreProbability(version is None)
    first = min(rows, key=lambda row: row.claim)
    return ScoreProbability(version in (None, first.version), first.probability, first.live)


def delete_trace_decisions(db: Connection, trace_ids: Iterable[str]) -> None:
    """Delete the decisions about deleted traces, their spans and documents."""
    db.executemany("DELETE FROM decisions WHERE target >= ? AND target < ?", map(get_trace_range, trace_ids))


def delete_session_decisions(db: Connection, sessions: Iterable[str]) -> None:
    """Delete the decisions about sessions that have no traces left, in all projects."""
    projects = [row[0] for row in db.execute("SELECT DISTINCT project FROM rules")]
    places = [(f"/{project}/{session}",) for session in sessions for project in projects]
    db.executemany("DELETE FROM decisions WHERE target = ?", places)


REPORT_LIFETIME_NS = 86_400 * 1_000_000_000
SHOWN_FAILURES = 5  # number of decisions that `WorkerReports.failed` returns


_COUNT_BY_ROW = "SELECT verdict, count(*) FROM decisions WHERE rule = ? GROUP BY verdict"
_OUTCOME_RANKS = " ".join(f"WHEN '{verdict}' THEN {place}" for place, verdict in enumerate(VERDICT_PRIORITY))
_OUTCOME_NAMES = " ".join(f"WHEN {place} THEN '{verdict}'" for place, verdict in enumerate(VERDICT_PRIORITY))
_COUNT_BY_TRACE = (
    f"SELECT CASE worst {_OUTCOME_NAMES} END, count(*) FROM (SELECT min(CASE verdict {_OUTCOME_RANKS} END) AS worst FROM decisions"
    " WHERE rule = ? GROUP BY substr(target, 1, instr(target || '/', '/') - 1)) AS traces GROUP BY worst"
)


_SAVE_REPORT = (
    "INSERT INTO workers (holder, project, seen_ns, data) VALUES (?,?,?,?) ON CONFLICT (holder) DO UPDATE SET"
    " project = excluded.project, seen_ns = excluded.seen_ns, data = excluded.data"
)


class WorkerReports(ControlOperationsBase):
    """Operations of `ControlStore` on monitor workers and the progress of rules."""

    @write_operation
    def report(self, db: WriteConnection, /, worker: WorkerReport) -> None:
        now = self._database.clock.keep(db)
        # A worker sends one report per project
        row = (f"{worker.holder} {worker.project}", worker.project, now, encode_record(worker))
        db.execute(_SAVE_REPORT, row)
        sql = "SELECT holder FROM workers WHERE seen_ns < ?/*pg FOR UPDATE SKIP LOCKED*/"
        if old := db.execute(sql, (now - REPORT_LIFETIME_NS,)).fetchall():
            db.executemany("DELETE FROM workers WHERE holder = ?", old)

    @read_operation
    def workers(self, db: Connection, /) -> list[WorkerReport]:
        """Return the newest report of each worker within the last day."""
        sql = "SELECT data, seen_ns FROM workers WHERE seen_ns >= ? ORDER BY holder"
        rows = db.execute(sql, (self._database.clock.now() - REPORT_LIFETIME_NS,)).fetchall()
        return [replace(decode_record(WorkerReport, row[0]), seen_ns=row[1]) for row in rows]

    @read_operation
    def count_outcomes(self, db: Connection, /, rule: Rule) -> dict[str, int]:
        """Return the number of traces of a rule version by verdict. If a trace has several targets, the worst verdict
        counts.
        """
        id = _find_rule_id(db, rule)
        rows = db.execute(_COUNT_BY_TRACE if rule.target in ("span", "document") else _COUNT_BY_ROW, (id,)).fetchall()
        sums = db.execute(
            "SELECT coalesce(sum(filtered), 0), coalesce(sum(sampled_out), 0) FROM counts WHERE rule = ?", (id,)
        ).fetchone()
        return {**dict(zip(COUNTED_OUTCOMES, map(int, sums), strict=True)), **dict(rows)}

    @read_operation
    def count_open_decisions(self, db: Connection, /, rule: Rule, before_ns: int) -> int:
        """Return the number of decisions of a version, made before a time, whose target is not scored yet."""
        sql = (
            "SELECT count(*) FROM decisions WHERE rule = ? AND verdict IN ('waiting', 'throttled', 'running')"
            " AND created_ns < ? AND backfill IS NULL"
        )
        return int(db.execute(sql, (_find_rule_id(db, rule), before_ns)).fetchone()[0])

    @read_operation
    def list_failures(self, db: Connection, /, rule: Rule) -> Sequence[Decision]:
        """Return the latest failed decisions of a version, newest first."""
        sql = f"{SELECT_DECISIONS} WHERE d.rule = ? AND d.verdict = 'failed' ORDER BY d.id DESC LIMIT ?"
        return [decision_from_row(row) for row in db.execute(sql, (_find_rule_id(db, rule), SHOWN_FAILURES))]


def _find_rule_id(db: Connection, rule: Rule) -> int | None:
    sql = "SELECT id FROM rules WHERE project = ? AND name = ? AND version = ?"
    row = db.execute(sql, (rule.project, rule.name, rule.version)).fetchone()
    return int(row[0]) if row else None
