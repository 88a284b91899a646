"""Rows of decisions, addresses of their targets, and per-rule counts of traces by outcome.

A row with `due_ns` is open: a worker must take it at that time or later. Queries report the open rows of a version
that is not in force as superseded. The rows are not updated, because there may be a million of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from spanwise.collector.errors import Refused
from spanwise.collector.records import Decision, Target
from spanwise.collector.stores.table_rows import Connection, dumps, insert_many, loads

DAY_NS = 86_400 * 1_000_000_000
# outcomes of decisions that wait for a worker: neither running nor final
# Probability of a decision `d` without backfills
LIVE_PROBABILITY = (
    "CASE WHEN d.backfill IS NOT NULL THEN 0.0"
    " WHEN EXISTS (SELECT 1 FROM backfill_draws w WHERE w.decision = d.id AND w.backfill = 0)"
    " THEN (SELECT w.probability FROM backfill_draws w WHERE w.decision = d.id AND w.backfill = 0)"
    " ELSE d.probability END"
)
OPEN_OUTCOMES = ("waiting", "throttled", "over_budget")
GIVEN_UP_REASON = "over budget, and too long ago, or behind too many, to be offered again"
# If the evaluators of one row have different outcomes, the first of these is the outcome of the row
OUTCOME_ORDER = (
    "failed",
    "scored",
    "skipped",
)


class DecisionRow(NamedTuple):
    """Row of the table `decisions`."""

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
    backfill: int | None = None  # backfill that evaluates the target; None: live traffic

    def may_reopen(self, now: int) -> bool:
        """Return whether the decision may be reopened because runs of its target changed.

        A decision may be reopened once per version. The decision on a session may be reopened once a day, because a
        session may receive turns for a long time.
        """
        days = (now - self.created_ns) // DAY_NS if self.target.startswith("/") else 0
        return self.reopened <= days

    @property
    def evaluator_states(self) -> dict[str, Any]:
        """Return the stored state of each evaluator."""
        return loads(self.states) if self.states else {}

    @property
    def outcome(self) -> str | None:
        """Return the combined outcome of the evaluators; None if no evaluator has one yet."""
        states = {state.get("state") for state in self.evaluator_states.values() if isinstance(state, dict)}
        return next((word for word in OUTCOME_ORDER if word in states), None)


DECISION_COLUMNS = DecisionRow._fields[1:]
_SUPERSEDED = "CASE WHEN d.due_ns IS NOT NULL AND r.state <> 'in force' THEN 'superseded' ELSE d.verdict END"
_SELECTED = [f"d.{name}" if name != "verdict" else _SUPERSEDED for name in DECISION_COLUMNS]
SELECT_DECISIONS = (
    f"SELECT d.id, {', '.join(_SELECTED)}, r.project, r.name, r.version,"
    " (SELECT f.name FROM backfills f WHERE f.id = d.backfill) FROM decisions d JOIN rules r ON r.id = d.rule"
)
SELECT_ROWS = f"SELECT id, {', '.join(DECISION_COLUMNS)} FROM decisions"


def update_rows(db: Connection, rows: Sequence[DecisionRow]) -> None:
    """Overwrite existing rows."""
    marks = ",".join(f"{name}=?" for name in DECISION_COLUMNS[2:])
    db.executemany(f"UPDATE decisions SET {marks} WHERE id = ?", [(*row[3:], row.id) for row in rows])


def encode_target(project: str, target: Target) -> str:
    """Return the address of a target: `trace`, `trace/span`, `trace/span/document`, or `/project/session`."""
    if target.session_id is not None:
        return f"/{project}/{target.session_id}"
    parts = [target.trace_id or "", target.span_id, None if target.document is None else str(target.document)]
    return "/".join([_encode_id(part) for part in parts if part is not None])


def list_containing_targets(project: str, target: Target) -> list[str]:
    """Return the addresses of a target, and of the span and the trace that contain it."""
    if target.session_id is not None:
        return [encode_target(project, target)]
    parts = [(target.span_id, target.document), (target.span_id, None), (None, None)]
    return [
        encode_target(project, replace(target, span_id=span, document=document))
        for span, document in dict.fromkeys(parts)
    ]


def get_trace_range(trace_id: str) -> tuple[str, str]:
    """Return the lower (inclusive) and upper (exclusive) bound of addresses of a trace, its spans and documents."""
    address = _encode_id(trace_id)
    return address, f"{address}0"  # "0" is the character after "/", so this bound is above all addresses in the trace


def decode_target(project: str, address: str) -> Target:
    """Return the target at an address."""
    if address.startswith("/"):
        return Target(session_id=address[len(project) + 2 :], project=project or None)
    trace, _, suffix = address.partition("/")
    span, _, document = suffix.partition("/")
    return Target(
        trace_id=_decode_id(trace),
        span_id=_decode_id(span) if suffix else None,
        document=int(_decode_id(document)) if document else None,
    )


def _encode_id(id: str) -> str:
    """Escape an id for an address: unless it is alphanumeric, replace it by `%` and its UTF-8 bytes in hex.

    An escaped id has no slash and, after the `%`, no character that sorts below the slash.
    """
    return id if id.isalnum() else f"%{id.encode('utf-8', 'surrogatepass').hex()}"


def _decode_id(text: str) -> str:
    return bytes.fromhex(text[1:]).decode("utf-8", "surrogatepass") if text.startswith("%") else text


def decision_from_row(row: Sequence[Any]) -> Decision:
    """Return the record of a row of `SELECT_DECISIONS`."""
    *values, project, rule, version, backfill = row
    return make_decision(DecisionRow(*values), project, rule, version, backfill)


def make_decision(row: DecisionRow, project: str, rule: str, version: str, backfill: str | None = None) -> Decision:
    """Return the record of a row of this rule version."""
    return Decision(
        project=project,
        rule=rule,
        version=version,
        target=decode_target(project, row.target),
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
        states=row.evaluator_states,
        inputs_hash=row.inputs_hash,
        cost=row.cost,
        created_ns=row.created_ns,
        updated_ns=row.updated_ns,
        backfill=backfill,
    )


def build_row(rule: int, decided: Decision, now: int, backfill: int | None = None) -> tuple[Any, ...]:
    """Return the column values of a new decision."""
    closed = decided.verdict not in OPEN_OUTCOMES
    due = None if closed else (now if decided.next_ns is None else decided.next_ns)
    return (
        rule,
        encode_target(decided.project, decided.target),
        decided.verdict,
        decided.reason,
        decided.probability,
        decided.u,
        decided.rate,
        decided.stratum,
        int(decided.incomplete),
        decided.change,
        decided.runs_change,
        decided.runs_change if closed else 0,  # a closed decision counts as having read the latest runs
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
        backfill,
    )


COUNTED_OUTCOMES = ("filtered", "sampled_out")
TAKEN = "taken"  # outcome of a trace that is counted through its rows in `decisions`
_OUTCOME_CODES = {name: code for code, name in enumerate((None, *COUNTED_OUTCOMES, TAKEN))}
_BLOCK_TRACES = 4096  # trace numbers per row of `outcomes`, which takes up to 1 KiB
_BLOCK_BYTES = _BLOCK_TRACES // 4
_HOUR_NS = 3_600_000_000_000
_HAS_ROW = "SELECT 1 FROM decisions WHERE target >= ? AND target < ? AND rule = ? LIMIT 1"


def check_outcomes(outcomes: Mapping[str, tuple[int, str]]) -> None:
    """Raise `Refused` for an unknown outcome or a trace number out of range."""
    for number, outcome in outcomes.values():
        if outcome not in _OUTCOME_CODES or not 0 < number < 1 << 62:
            expected = ", ".join((*COUNTED_OUTCOMES, TAKEN))
            raise Refused(f"unknown outcome {outcome!r} of trace number {number!r}; expected one of: {expected}")


def count_outcomes(db: Connection, rule: int, outcomes: Mapping[str, tuple[int, str]], now: int) -> None:
    """Count each trace under its latest outcome, in place of an earlier one. Repeating the call changes nothing.

    A trace that is excluded now may still have a row, because it was scored before. It stays counted through that
    row.
    """
    blocks: dict[int, bytearray] = {}
    change: Counter[int] = Counter()
    for trace_id, (number, outcome) in outcomes.items():
        block, offset = divmod(number, _BLOCK_TRACES)
        data = blocks.get(block)
        if data is None:
            row = db.execute("SELECT data FROM outcomes WHERE rule = ? AND block = ?", (rule, block)).fetchone()
            data = blocks[block] = bytearray(_BLOCK_BYTES) if row is None else _unpack_block(row[0])
        byte, shift = offset >> 2, (offset & 3) * 2
        before, after = data[byte] >> shift & 3, _OUTCOME_CODES[outcome]
        if before == after or (
            before == _OUTCOME_CODES[TAKEN]
            and db.execute(_HAS_ROW, (*get_trace_range(trace_id), rule)).fetchone() is not None
        ):
            continue
        data[byte] ^= (before ^ after) << shift
        change[before] -= 1
        change[after] += 1
    rows = [(rule, block, _pack_block(data)) for block, data in blocks.items()]
    replace_data = "ON CONFLICT (rule, block) DO UPDATE SET data = excluded.data"
    insert_many(db, "outcomes", ("rule", "block", "data"), rows, replace_data)
    _add_counts(db, rule, now // _HOUR_NS * _HOUR_NS, [change[_OUTCOME_CODES[name]] for name in COUNTED_OUTCOMES])


def _pack_block(data: bytearray) -> bytes:
    """Return the outcomes of a block for the table: the position of the first trace with an outcome, and the bytes from
    there to the last one. Where numbers of traces are far apart, as times are, these are a few.
    """
    begin = len(data) - len(data.lstrip(b"\0"))
    packed = begin.to_bytes(2, "big") + data[begin:].rstrip(b"\0")
    return packed if len(packed) < _BLOCK_BYTES else bytes(data)


def _unpack_block(packed: bytes) -> bytearray:
    if len(packed) == _BLOCK_BYTES:
        return bytearray(packed)
    data, begin = bytearray(_BLOCK_BYTES), int.from_bytes(packed[:2], "big")
    data[begin : begin + len(packed) - 2] = packed[2:]
    return data


def _add_counts(db: Connection, rule: int, hour: int, changes: Iterable[int]) -> None:
    """Add changes to the counts of an hour. If traces moved to another outcome, the change of the old outcome is
    negative.
    """
    if any(changes := tuple(changes)):
        db.execute(
            "INSERT INTO counts (rule, hour_ns, filtered, sampled_out) VALUES (?,?,?,?)"
            " ON CONFLICT (rule, hour_ns) DO UPDATE SET filtered = counts.filtered + excluded.filtered,"
            " sampled_out = counts.sampled_out + excluded.sampled_out",
            (rule, hour, *changes),
        )


def clear_outcomes(db: Connection, rule: int) -> None:
    """Reset the counts to zero, for a rule that decides on everything again."""
    db.execute("DELETE FROM counts WHERE rule = ?", (rule,))
    db.execute("DELETE FROM outcomes WHERE rule = ?", (rule,))
