"""Feedback of all trace backends: columns of a row, replacement of a rule's feedback, and feedback to forward."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from spanwise.collector.errors import NotFound
from spanwise.collector.records import (
    JSON,
    Feedback,
    Outcome,
    Outlet,
    Source,
    Target,
    apply_changes,
    restore_feedback,
)
from spanwise.collector.stores.backends import RuleFeedback, TargetFeedback, find_replaced
from spanwise.collector.stores.store_interfaces import OutgoingFeedback
from spanwise.collector.stores.table_rows import INT_MAX, clean, dumps, loads

# Rows.


class FeedbackRow(NamedTuple):
    """Columns with the content of feedback, in the order of its target and its fields."""

    id: str
    trace_id: str | None
    span_id: str | None
    document: int | None
    session_id: str | None
    experiment_id: str | None
    project: str | None
    key: str
    score: float | None
    is_bool: bool
    label: str | None
    comment: str | None
    outcome: Outcome
    error: str | None
    source: Source
    author: str | None
    evaluator: str | None
    version: str | None
    rule: str | None
    claim: int | None
    judge_trace_id: str | None
    metadata: str | None
    created_ns: int


def encode_feedback(feedback: Feedback) -> list[Any]:
    """Return the columns of `FeedbackRow`. Texts and numbers that a database cannot store are repaired."""
    target = feedback.target
    row = (
        feedback.id,
        target.trace_id,
        target.span_id,
        target.document,
        target.session_id,
        target.experiment_id,
        target.project,
        feedback.key,
        None if feedback.score is None else float(feedback.score),
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
    )
    return [clean(value) if isinstance(value, str) and not value.isascii() else value for value in row]


def decode_feedback(id: str, target: Target, content: Sequence[Any]) -> Feedback:
    """Return the feedback of a row. `content` has the columns of `FeedbackRow` after the target."""
    key, score, is_bool, label, comment, outcome, error, source, author, *others, metadata, created_ns = content
    evaluator, version, rule, claim, judge_trace_id = others
    return restore_feedback(
        target,
        id,
        key,
        bool(score) if is_bool and score is not None else score,
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
        judge_trace_id,
        loads(metadata) if metadata else {},
        created_ns,
    )


def decode_target(columns: Sequence[Any]) -> Target:
    """Return the target of the columns of `FeedbackRow` from the trace to the project."""
    trace_id, span_id, document, session_id, experiment_id, project = columns
    return Target(
        trace_id=trace_id,
        span_id=span_id,
        document=document,
        session_id=session_id,
        experiment_id=experiment_id,
        project=project,
    )


def change_stored(stored: Mapping[str, Feedback], changes: Mapping[str, Mapping[str, JSON]]) -> list[Feedback]:
    """Return stored feedback with changes by id. Raise `NotFound` for an id that is not stored, and `Refused` for
    invalid fields.
    """
    for id in changes:
        if id not in stored:
            raise NotFound(f"there is no feedback {id!r} in this store; none was changed")
    return [apply_changes(stored[id], fields) for id, fields in changes.items()]


# Replacement of a rule's feedback by that of a later lease.


class Replacement(NamedTuple):
    """Plan for storing sets of a rule's feedback.

    `accepted` tells for each set whether it is stored. `written` is the feedback to store, and `replaced` has the ids of
    the stored feedback to delete, each with the number of the later lease. Of the sets in `refused`, nothing is stored.
    """

    accepted: list[bool]
    written: list[Feedback]
    replaced: dict[str, int]
    refused: list[TargetFeedback]


def split_sets(sets: Iterable[TargetFeedback]) -> Iterator[list[TargetFeedback]]:
    """Yield the sets in groups, none of which has two sets of the same rule and target."""
    group: dict[tuple[str, Target], TargetFeedback] = {}
    for new in sets:
        if (new.rule, new.target) in group:
            yield list(group.values())
            group = {}
        group[new.rule, new.target] = new
    if group:
        yield list(group.values())


def plan_replacement(
    sets: Sequence[TargetFeedback], stored: Iterable[RuleFeedback], traces: Container[str | None]
) -> Replacement:
    """Return the plan for a group of sets. `stored` is the feedback of rules on their targets, `traces` are the stored
    traces and None.
    """
    plan, by_target = Replacement([], [], {}, []), dict[object, list[RuleFeedback]]()
    for row in stored:
        by_target.setdefault((row.rule, row.trace_id, row.session_id, row.project), []).append(row)
    for new in sets:
        target = new.rule, new.target.trace_id, new.target.session_id
        # a session without a project may be that of any, so feedback on it is replaced, too
        rows = [row for project in {new.target.project, None} for row in by_target.get((*target, project), ())]
        before = find_replaced(new, rows) if new.target.trace_id in traces else None
        plan.accepted.append(before is not None)
        if before is None:
            plan.refused.append(new)
            continue
        written = [
            feedback
            if (feedback.rule, feedback.claim) == (new.rule, new.claim)
            else replace(feedback, rule=new.rule, claim=new.claim, id="")
            for feedback in new.feedback
        ]
        plan.written.extend(written)
        kept = {feedback.id for feedback in written}
        plan.replaced.update((row.id, new.claim) for row in before if row.id not in kept)
    return plan


# Forwarding of feedback to other collectors.

MAX_READ_CHARACTERS = 1024 * 1024  # maximum number of characters of one read
OUTLET_COLUMNS = tuple(field.name for field in fields(Outlet) if field.name != "waiting")


def take_outgoing(
    rows: Iterable[Sequence[Any]], decode: Callable[[Sequence[Any]], OutgoingFeedback]
) -> list[OutgoingFeedback]:
    """Return the feedback of the first rows that have about `MAX_READ_CHARACTERS`, and of others with the last number."""
    found, size = list[OutgoingFeedback](), 0
    for row in rows:
        size += sum(len(value) for value in row if isinstance(value, str))
        outgoing = decode(row)
        if found and size > MAX_READ_CHARACTERS and outgoing.number != found[-1].number:
            break
        found.append(outgoing)
    return found


def make_outlet(row: Sequence[Any], waiting: int) -> Outlet:
    """Return the outlet of a row of `OUTLET_COLUMNS`, with the number of its waiting feedback."""
    return Outlet(**dict(zip(OUTLET_COLUMNS, row, strict=True)), waiting=waiting)
