"""What claims said of their targets, in the place of what earlier claims had said."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from spanwise.collector.records import Feedback, Target
from spanwise.collector.stores._halves import Verdicts
from spanwise.collector.stores.sqlite import _feedback
from spanwise.collector.stores.sqlite._append import Appender
from spanwise.collector.stores.sqlite._claims import Ruled, stored
from spanwise.collector.stores.sqlite._sql import find_many

Whole: TypeAlias = tuple[str, str | None, str | None]  # rule, and the trace or session of its target


def put(db: sqlite3.Connection, appender: Appender, verdicts: Sequence[Verdicts]) -> list[bool]:
    """Put them in order; whether each stands (see `TraceHalf`)."""
    return [stands for together in _rounds(verdicts) for stands in _put(db, appender, together)]


def _rounds(verdicts: Sequence[Verdicts]) -> Iterator[list[Verdicts]]:
    """Those that can be put at once: none of them comes in the place of another."""
    together: dict[tuple[str, Target], Verdicts] = {}
    for one in verdicts:
        if (one.rule, one.target) in together:
            yield list(together.values())
            together = {}
        together[one.rule, one.target] = one
    if together:
        yield list(together.values())


def _whole(verdicts: Verdicts) -> Whole:
    return verdicts.rule, verdicts.target.trace_id, verdicts.target.session_id


def _put(db: sqlite3.Connection, appender: Appender, verdicts: Sequence[Verdicts]) -> list[bool]:
    keys = _here(db, verdicts)
    said = _said(db, verdicts, keys)
    stand: list[Feedback] = []
    gone: list[str] = []
    stands = []
    for one in verdicts:
        theirs = _before(one, said.get(_whole(one), ())) if one.target.trace_id in keys else None
        stands.append(theirs is not None)
        if theirs is None:
            _refuse(appender, one, keys)
        else:
            stand += (made := [_claimed(feedback, one) for feedback in one.feedback])
            gone += {row.id for row in theirs} - {feedback.id for feedback in made}
    _feedback.write(appender, _feedback.rows(stand))
    _feedback.delete(db, appender, gone)
    return stands


def _here(db: sqlite3.Connection, verdicts: Sequence[Verdicts]) -> Mapping[str | None, int | None]:
    """Keys of the targets' traces, of those that are here; a session needs none."""
    ids = {one.target.trace_id for one in verdicts} - {None}
    found = find_many(db, "SELECT trace_id, id FROM traces WHERE span_count > 0 AND trace_id IN (%s)", ids)
    return {None: None, **dict(found)}


def _said(
    db: sqlite3.Connection, verdicts: Sequence[Verdicts], keys: Mapping[str | None, int | None]
) -> dict[Whole, list[Ruled]]:
    sessions = {one.target.session_id for one in verdicts} - {None}
    said: dict[Whole, list[Ruled]] = {}
    for row in (*stored(db, "trace", set(keys.values()) - {None}), *stored(db, "session_id", sessions)):
        said.setdefault((row.rule, row.trace_id, row.session_id), []).append(row)
    return said


def _before(verdicts: Verdicts, said: Sequence[Ruled]) -> list[Ruled] | None:
    """In whose place a set comes; None where a higher claim has spoken."""
    theirs = [row for row in said if verdicts.anew or row.evaluator in verdicts.evaluators]
    theirs = [row for row in theirs if _is_on(row, verdicts.target)]
    return None if any(row.claim > verdicts.claim for row in theirs) else theirs


def _is_on(row: Ruled, target: Target) -> bool:
    """Whether a row, of the same trace or session, is about a target or what is below it."""
    return target.span_id in (None, row.span_id) and target.document in (None, row.document)


def _claimed(feedback: Feedback, verdicts: Verdicts) -> Feedback:
    if (feedback.rule, feedback.claim) == (verdicts.rule, verdicts.claim):
        return feedback
    return replace(feedback, rule=verdicts.rule, claim=verdicts.claim, id="")


def _refuse(appender: Appender, verdicts: Verdicts, keys: Mapping[str | None, int | None]) -> None:
    """Let go of the judgements that would have led to nothing."""
    judged = {feedback.judge_trace_id for feedback in verdicts.feedback if feedback.judge_trace_id is not None}
    _feedback.let_go(appender, judged, {keys.get(verdicts.target.trace_id)})
