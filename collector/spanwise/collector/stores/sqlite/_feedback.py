"""Feedback: kept with its standing, so that lists, filters and aggregates need not search for the newest.

Standing 2: the newest of its key on the trace and its spans. 1: the newest of its place, which is (target, key, source,
author, rule), as `spanwise.collector.statistics.newest` says: what aggregates count. 0: an older version. Feedback on a
document, a session or an experiment has 1 at most.

A vote of people on what a judge (source "model") has said stands as all feedback does, for lists and filters. It checks
the judge, though, and is no score beside the judge's: what counts scores leaves it out when it reads (`CHECKS`).
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from spanwise.collector.errors import NotFound
from spanwise.collector.records import JSON, Feedback, Target, changed, restored
from spanwise.collector.statistics import nameless
from spanwise.collector.stores.sqlite import _delete
from spanwise.collector.stores.sqlite._append import Appender, Written
from spanwise.collector.stores.sqlite._claims import Ruled, stored, weighed
from spanwise.collector.stores.sqlite._codec import Batch
from spanwise.collector.stores.sqlite._sql import delete_many, find_many, insert_many, overwrite
from spanwise.collector.stores.sqlite._values import INT_MAX, clean, dumps, loads

COLUMNS = (
    "id trace trace_id span_id document session_id experiment_id key score is_bool label comment outcome error source"
    " author evaluator version rule claim judge_trace_id metadata created_ns standing trace_start_ns said"
).split()
_ID, _TRACE, _TRACE_ID, _SESSION, _EXPERIMENT, _KEY, _SOURCE, _RULE, _CLAIM, _JUDGE, _CREATED, _STANDING = map(
    COLUMNS.index,
    "id trace trace_id session_id experiment_id key source rule claim judge_trace_id created_ns standing".split(),
)
_TRACE_START, _SAID = len(COLUMNS) - 2, len(COLUMNS) - 1
_RULED = tuple(map(COLUMNS.index, Ruled._fields))
_OTHERS = ("session_id", "experiment_id", "key", "source", "author", "rule")
_KIND_OF_OTHERS = tuple(map(COLUMNS.index, _OTHERS))
# What is said of it elsewhere, too: a row that comes again with these as they were keeps its number
_UNTOLD = ("id", "trace", "claim", "judge_trace_id", "standing", "trace_start_ns", "said")
_TOLD = [name for name in COLUMNS if name not in _UNTOLD]
_SAID_AGAIN = "said = CASE WHEN {} THEN feedback.said ELSE excluded.said END".format(
    " AND ".join(f"feedback.{name} IS excluded.{name}" for name in _TOLD)
)
_OVERWRITE = f"{overwrite(COLUMNS[:_SAID])}, {_SAID_AGAIN} WHERE " + " AND ".join(
    f"feedback.{name} IS excluded.{name}" for name in ("trace", *_OTHERS)
)
SAID = _SAID
SELECT = "SELECT " + ",".join(f"f.{name}" for name in COLUMNS) + " FROM feedback f"


NOTHING_WRITTEN = Written({}, set())


def append(appender: Appender, batches: Sequence[Batch]) -> None:
    """Write batches for the one writer: their runs, then their feedback."""
    written = appender.write(batches) if any(batch.facts for batch in batches) else NOTHING_WRITTEN
    if rows := [row for batch in batches for row in batch.feedback]:
        write(appender, rows, written)


def rows(feedback: Sequence[Feedback]) -> Sequence[list[Any]]:
    """Feedback as rows that lack only the key of their trace, which the writer knows. Needs no database."""
    return [_row(outcome) for outcome in feedback]


def write(appender: Appender, rows: Sequence[list[Any]], written: Written = NOTHING_WRITTEN) -> None:
    """Insert or overwrite, then settle the standing of all that share a trace or target and a key with these.

    What is about a deleted trace, or of an older claim than what is there, is left out. A row that is the only one
    under its key on its trace stands as it is.
    """
    db, new = appender.db, written.new
    by_id = _placed(appender, {row[_ID]: row for row in rows}, new)
    overtaken = _yield_to_claims(appender, by_id, set(new.values()))
    _add_trace_start(db, [row for row in by_id.values() if row[_RULE] is not None])
    stored = {row[_ID]: row for row in find_many(db, SELECT + " WHERE f.id IN (%s)", by_id)}
    moved = _moved(by_id, stored) - written.changed
    replaced = {row[_JUDGE] for id, row in stored.items() if by_id[id][_SOURCE] == "model"} - {None}
    numbers, now = appender.numbers(len(by_id) + len(moved))
    for number, row in zip(numbers, by_id.values(), strict=False):
        row[_SAID] = number
    with appender.sums.of_feedback(_under(by_id.values(), stored.values()), set(new.values())) as first:
        if not _insert(db, by_id.values()):
            _remove(db, list(by_id))  # under their id some have moved: what they stood in front of takes their place
            _insert(db, by_id.values())
        _settle_all(db, list(_unsettled(by_id.values(), first)))
    appender.put_at(sorted(moved), numbers[len(by_id) :], now)
    if overtaken:
        delete(db, appender, list(overtaken))
    if replaced:
        let_go(appender, replaced, {row[_TRACE] for row in by_id.values()}, {row[_JUDGE] for row in by_id.values()})


def _placed(appender: Appender, by_id: dict[str, list[Any]], new: Mapping[str, int]) -> dict[str, list[Any]]:
    """The rows with the keys of their traces, without those about a trace that was deleted."""
    known = {row[_TRACE_ID] for row in by_id.values()} - new.keys() - {None}
    keys = {**(appender.keys(known) if known else {}), **new}
    late = [id for id, row in by_id.items() if row[_TRACE_ID] is not None and row[_TRACE_ID] not in keys]
    appender.tombstones.late += len(late)
    _leave_out(appender, by_id, late)
    for row in by_id.values():
        if row[_TRACE_ID] is not None:
            row[_TRACE] = keys[row[_TRACE_ID]]
    return by_id


def _leave_out(appender: Appender, by_id: dict[str, list[Any]], ids: Iterable[str]) -> None:
    """Drop rows, and the judgements that would have led to nothing."""
    out = [by_id.pop(id) for id in ids]
    if judged := {row[_JUDGE] for row in out} - {None}:
        let_go(appender, judged, {row[_TRACE] for row in out}, {row[_JUDGE] for row in by_id.values()})


def _yield_to_claims(appender: Appender, by_id: dict[str, list[Any]], new: Collection[int]) -> set[str]:
    """Take out the rows of claims that higher ones have overtaken; the ids of stored ones that these overtake."""
    ruled = [row for row in by_id.values() if row[_RULE] is not None]
    if not ruled:
        return set()
    before = _ruled(appender.db, [row for row in ruled if row[_TRACE] not in new])
    late, overtaken = weighed([_as_ruled(row) for row in ruled], before)
    _leave_out(appender, by_id, late)
    return overtaken


def _add_trace_start(db: sqlite3.Connection, rows: Sequence[list[Any]]) -> None:
    """Set when the trace of each row started: the time to which a rule's score belongs. A score of a session belongs to
    the start of its first trace, and one without any trace here to the time at which it was given.
    """
    starts = "SELECT id, start_ns FROM traces WHERE start_ns IS NOT NULL AND id IN (%s)"
    of_trace = dict(find_many(db, starts, {row[_TRACE] for row in rows} - {None}))
    firsts = "SELECT session_id, min(start_ns) FROM traces WHERE session_id IN (%s) GROUP BY session_id"
    of_session = dict(find_many(db, firsts, {row[_SESSION] for row in rows} - {None}))
    for row in rows:
        known = of_session if row[_TRACE] is None else of_trace
        start = known.get(row[_SESSION] if row[_TRACE] is None else row[_TRACE])
        row[_TRACE_START] = row[_CREATED] if start is None else start


def _ruled(db: sqlite3.Connection, rows: Collection[Sequence[Any]]) -> list[Ruled]:
    """What rules have said on the traces, sessions and experiments of rows."""
    columns = {"trace": _TRACE, "session_id": _SESSION, "experiment_id": _EXPERIMENT}
    values = {name: {row[place] for row in rows} - {None} for name, place in columns.items()}
    return [row for name, some in values.items() if some for row in stored(db, name, some)]


def _as_ruled(row: Sequence[Any]) -> Ruled:
    made = Ruled(*(row[place] for place in _RULED))
    return made._replace(claim=made.claim or 0)


def _moved(by_id: Mapping[str, Sequence[Any]], stored: Mapping[str, Sequence[Any]]) -> set[int]:
    """Traces of which feedback without a rule changes by these rows; what is there already, word for word, changes
    nothing.
    """
    changed = [
        row
        for id, new in by_id.items()
        if (old := stored.get(id)) is None or list(old[:_STANDING]) != new[:_STANDING]
        for row in (old, new)
    ]
    return _of_traces(row for row in changed if row is not None)


def _of_traces(rows: Iterable[Sequence[Any]]) -> set[int]:
    """Traces on which some of the feedback has no rule."""
    return {row[_TRACE] for row in rows if row[_RULE] is None and row[_TRACE] is not None}


def let_go(appender: Appender, ids: set[str], traces: Iterable[int | None], kept: Collection[str | None] = ()) -> None:
    """Remove judgements to which no feedback on these traces leads any more: they quote what was judged, and who
    deletes that would not find them. Those that are kept are led to by what is yet to be written.
    """
    sql = "SELECT judge_trace_id FROM feedback WHERE trace IN (%s) AND judge_trace_id IS NOT NULL"
    linked = {row[0] for row in find_many(appender.db, sql, set(traces) - {None})}
    _delete.judgements(appender, appender.db, ids.difference(linked, kept))


def _unsettled(rows: Collection[Sequence[Any]], first: Collection[tuple[int, str]]) -> Iterator[Sequence[Any]]:
    """Rows beside which there may be another one, whose standing is to be weighed against theirs."""
    together = Counter([(row[_TRACE], row[_KEY]) for row in rows])
    for row in rows:
        if together[row[_TRACE], row[_KEY]] > 1 or (row[_TRACE], row[_KEY]) not in first:
            yield row


def _insert(db: sqlite3.Connection, rows: Collection[Sequence[Any]]) -> bool:
    """Insert or overwrite; whether each row that was there before was about the same under the same key."""
    before = db.total_changes
    insert_many(db, "feedback", COLUMNS, list(rows), _OVERWRITE)
    return db.total_changes - before == len(rows)


def _settle_all(db: sqlite3.Connection, rows: Iterable[Sequence[Any]]) -> None:
    """Settle the standing of all that share a trace or target and a key with rows, which may be gone by now."""
    rows = list(rows)
    settle(db, {(row[_TRACE], row[_KEY]) for row in rows if row[_TRACE] is not None})
    _settle_others(db, {tuple(row[i] for i in _KIND_OF_OTHERS) for row in rows if row[_TRACE] is None})


def _row(feedback: Feedback) -> list[Any]:
    target = feedback.target
    score = float(feedback.score) if feedback.score is not None else None
    row = (
        feedback.id,
        None,
        target.trace_id,
        target.span_id,
        target.document,
        target.session_id,
        target.experiment_id,
        feedback.key,
        score,
        isinstance(feedback.score, bool),
        feedback.label,
        feedback.comment,
        feedback.outcome,
        feedback.error,
        feedback.source,
        feedback.author,
        feedback.evaluator,
        feedback.version,
        feedback.rule,
        None if feedback.claim is None else max(0, min(feedback.claim, INT_MAX)),
        feedback.judge_trace_id,
        dumps(feedback.metadata) if feedback.metadata else None,
        feedback.created_ns,
        # the most likely: `settle` then changes nothing
        2 if target.trace_id is not None and target.document is None else 1,
        None,
        None,
    )
    return [clean(value) if isinstance(value, str) and not value.isascii() else value for value in row]


def settle(db: sqlite3.Connection, pairs: Iterable[tuple[int, str]]) -> None:
    """Give every feedback of these (trace, key) its standing."""
    rows = _sharing(db, pairs)
    rows.sort(key=lambda row: row[2:4], reverse=True)
    changes: list[tuple[int, int]] = []
    kinds: set[Any] = set()
    latest: set[Any] = set()
    for row in rows:
        standing = _standing(row, kinds, latest)
        if standing != row[4]:
            changes.append((standing, row[3]))
    if changes:
        db.executemany("UPDATE feedback SET standing = ? WHERE rowid = ?", changes)


def _sharing(db: sqlite3.Connection, pairs: Iterable[tuple[int, str]]) -> list[Any]:
    """All feedback of these (trace, key), and none of what else such a trace may have a lot of."""
    by_key: dict[str, list[int]] = {}
    for trace, key in dict.fromkeys(pairs):
        by_key.setdefault(key, []).append(trace)
    sql = (
        "SELECT trace, key, created_ns, rowid, standing, document, span_id, source, author, rule, id FROM feedback"
        " WHERE key = ? AND trace IN (%s)"
    )
    return [row for key, traces in by_key.items() for row in find_many(db, sql, traces, (key,))]


def _standing(row: Sequence[Any], kinds: set[Any], latest: set[Any]) -> int:
    """Rows come newest first: the first of each place counts, and the first of each (trace, key) stands for it."""
    kind = (row[0], row[1], *row[5 : 11 if nameless(row[7], row[8]) else 10])
    if kind in kinds:
        return 0
    kinds.add(kind)
    if row[5] is not None or row[:2] in latest:
        return 1
    latest.add(row[:2])
    return 2


def _settle_others(db: sqlite3.Connection, kinds: Iterable[Sequence[Any]]) -> None:
    """Sessions and experiments: of each kind only the newest counts."""
    where = " AND ".join(f"{name} IS ?" for name in _OTHERS)
    newest = f"(SELECT rowid FROM feedback WHERE {where} ORDER BY created_ns DESC, rowid DESC LIMIT 1)"
    for kind in kinds:
        if not nameless(*kind[3:5]):  # people without a name are not the same person
            db.execute(f"UPDATE feedback SET standing = (rowid = {newest}) WHERE {where}", (*kind, *kind))


def change(db: sqlite3.Connection, appender: Appender, changes: Mapping[str, Mapping[str, JSON]]) -> list[Feedback]:
    """Overwrite some fields by id. Raises `NotFound`, `Refused`."""
    stored = {row[0]: read(row) for row in find_many(db, SELECT + " WHERE f.id IN (%s)", changes)}
    for id in changes:
        if id not in stored:
            raise NotFound(f"there is no feedback {id!r} in this store; none was changed")
    made = [changed(stored[id], fields) for id, fields in changes.items()]
    write(appender, rows(made))
    return made


def delete(db: sqlite3.Connection, appender: Appender, ids: Sequence[str]) -> int:
    """Remove by id, and judgements that nothing leads to then; what they stood in front of takes their place."""
    with appender.sums.of_feedback(_stored_under(db, ids)):
        gone = _remove(db, ids)
    appender.move(_of_traces(gone))
    if judged := {row[_JUDGE] for row in gone} - {None}:
        let_go(appender, judged, {row[_TRACE] for row in gone})
    return len(gone)


def _under(*rows: Iterable[Sequence[Any]]) -> set[tuple[int | None, str]]:
    """The traces and keys of rows."""
    return {(row[_TRACE], row[_KEY]) for some in rows for row in some}


def _stored_under(db: sqlite3.Connection, ids: Iterable[str]) -> list[tuple[int | None, str]]:
    return find_many(db, "SELECT trace, key FROM feedback WHERE id IN (%s)", ids)


def _remove(db: sqlite3.Connection, ids: Sequence[str]) -> list[Any]:
    gone = find_many(db, SELECT + " WHERE f.id IN (%s)", ids)
    delete_many(db, "feedback", "id", ids)
    _settle_all(db, gone)
    return gone


def read(row: Sequence[Any]) -> Feedback:
    """The feedback of a row of `SELECT`."""
    return _read(row, _target(row[2:7]))


def read_all(rows: Iterable[Sequence[Any]]) -> Iterator[tuple[int, Feedback]]:
    """The feedback of rows of `SELECT`, each after the key of its trace; what is about the same shares its target."""
    targets: dict[Sequence[Any], Target] = {}
    for row in rows:
        about = row[2:7]
        target = targets.get(about)
        if target is None:
            target = targets[about] = _target(about)
        yield row[1], _read(row, target)


def _target(about: Sequence[Any]) -> Target:
    trace_id, span_id, document, session_id, experiment_id = about
    return Target(
        trace_id=trace_id, span_id=span_id, document=document, session_id=session_id, experiment_id=experiment_id
    )


def _read(row: Sequence[Any], target: Target) -> Feedback:
    score = bool(row[8]) if row[9] and row[8] is not None else row[8]
    metadata = loads(row[21]) if row[21] else {}
    label, comment, outcome, error, source, author, evaluator, version, rule, claim, judge = row[10:21]
    return restored(
        target,
        row[0],
        row[7],
        score,
        label,
        comment,
        outcome,
        error,
        source,
        author,
        evaluator,
        version,
        rule,
        claim,
        judge,
        metadata,
        row[22],
    )
