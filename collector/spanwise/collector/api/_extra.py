"""What the API does beside the stores' verbs, and where it does more than they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from spanwise.collector._acting import ACTING
from spanwise.collector.api._bounds import few
from spanwise.collector.api._sane import sane_amendment, sane_booking, sane_feedback, sane_money, sane_open, sane_run
from spanwise.collector.clocks import bounded_feedback, bounded_open, bounded_run
from spanwise.collector.errors import Forbidden, NotFound
from spanwise.collector.filters import Filter
from spanwise.collector.intake import bounded_texts, check_amended
from spanwise.collector.records import (
    JSON,
    Amendment,
    Booking,
    Dataset,
    DatasetKind,
    Feedback,
    OpenRun,
    Run,
    feedback_id,
)
from spanwise.collector.stores import ControlStore, TraceStore


class DatasetChange(msgspec.Struct, forbid_unknown_fields=True):
    """What is said of a dataset beside its examples."""

    kind: DatasetKind | None = None
    schema: dict[str, JSON] | None = None
    description: str | None = None
    metadata: dict[str, JSON] | None = None


def append(store: TraceStore, runs: Sequence[Run], feedback: Sequence[Feedback] = ()) -> dict[str, int]:
    """Keep runs, and feedback on them, together or not at all; answered when they are durable."""
    few(len(runs) + len(feedback))
    store.append([bounded_texts(bounded_run(sane_run(run))) for run in runs], _sane(feedback))
    return {"runs": len(runs), "feedback": len(feedback)}


def amend(store: TraceStore, trace_id: str, span_id: str, fields: Mapping[str, JSON]) -> bool:
    """Say more of a run that is there, or on its way; whether it is there."""
    check_amended(fields)
    return store.amend(trace_id, span_id, fields)


def add_amendments(store: TraceStore, amendments: Sequence[Amendment]) -> list[bool]:
    """Say more of runs that are there, or on their way; which of them are there."""
    for amendment in amendments:
        check_amended(amendment.fields)
    return store.add_amendments(list(map(sane_amendment, amendments)))


def append_runs(store: TraceStore, runs: Sequence[Run]) -> None:
    """Keep runs; answered when they are durable."""
    append(store, runs)


def add_feedback(store: TraceStore, feedback: Sequence[Feedback]) -> list[str]:
    """Keep feedback; answered with the ids when it is durable. The same id overwrites. A key that may do nothing else
    gives people's alone, under ids that follow from what it is about and who gives it.
    """
    rows = _sane(feedback)
    actor = ACTING.get()
    if actor is not None and not actor.writes:
        rows = list(map(_vote, rows))
    store.add_feedback(rows)
    return [row.id for row in rows]


def _vote(row: Feedback) -> Feedback:
    """The feedback as a person's, who overwrites nobody else's. Raises `Forbidden` for a judge's or a rule's."""
    if row.source != "human" or any((row.rule, row.claim, row.evaluator, row.version, row.judge_trace_id)):
        raise Forbidden("the API key may give people's feedback alone: source 'human', of no rule, judge or evaluator")
    return replace(row, id=feedback_id(row))


def _sane(feedback: Sequence[Feedback]) -> list[Feedback]:
    return [bounded_feedback(sane_feedback(row)) for row in feedback]


def add_running(store: TraceStore, runs: Sequence[OpenRun]) -> None:
    """Keep that runs have started: each until its span arrives, or its trace says that it was dropped."""
    store.add_running([bounded_open(sane_open(run)) for run in runs])


def book(store: ControlStore, *bookings: Booking) -> list[bool]:
    """Reserve amounts, each unless it would pass its limit; whether it is reserved. An id books once."""
    return store.book(*map(sane_booking, bookings))


def settle(store: ControlStore, actual: Mapping[str, float]) -> None:
    """Put in the place of what was reserved, by id, what it came to."""
    for id, amount in actual.items():
        sane_money(f"what booking {id!r} came to", amount)
    store.settle(actual)


def delete_trace(store: TraceStore, trace_id: str) -> int:
    """Remove one trace. Raises `NotFound`."""
    deleted = store.delete(Filter(trace_ids=(trace_id,)))
    if not deleted:
        raise NotFound(f"there is no trace {trace_id!r}")
    return deleted


def delete_experiment(store: ControlStore, id: str) -> bool:
    """Remove an experiment with its traces and feedback. Raises `NotFound`."""
    if not store.delete_experiment(id):
        raise NotFound(f"there is no experiment {id!r}")
    return True


def describe_dataset(store: ControlStore, name: str, change: DatasetChange) -> Dataset:
    """Say something else of a dataset; makes a new version if anything changed. Raises `NotFound`."""
    store.dataset(name)  # no dataset comes of a mistyped name
    return store.save_examples(name, [], **msgspec.structs.asdict(change))
