"""Validation of write operations: batch size, ids, amounts, clock skew; operations the API adds."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from spanwise.collector import alerts
from spanwise.collector.clock_skew import correct_feedback_time, correct_open_run_time, correct_run_times
from spanwise.collector.errors import Forbidden, NotFound, Refused, TooLarge
from spanwise.collector.filters import Filter
from spanwise.collector.ingest import (
    MAX_COST,
    MAX_TOKENS,
    check_amendment,
    check_feedback_names,
    check_ids,
    truncate_fields,
)
from spanwise.collector.operations import MAX_LIST_SIZE, MAX_PAGE_SIZE
from spanwise.collector.records import (
    JSON,
    Alert,
    AlertCheck,
    Amendment,
    Booking,
    Dataset,
    DatasetKind,
    Feedback,
    OpenRun,
    Run,
    feedback_id,
    normalize_feedback,
)
from spanwise.collector.request_context import CURRENT_ACTOR
from spanwise.collector.stores import ControlStore, Store, TraceStore


def check_limit(limit: Any, most: int) -> None:
    """Raise `Refused` for a `limit` above the maximum number of items in one response."""
    if isinstance(limit, int) and limit > most:
        remedy = "use the cursor in `next`" if most == MAX_PAGE_SIZE else "request fewer items, or add conditions"
        raise Refused(f"limit must be at most {most:,}, got {limit:,}; {remedy}")


def check_count(count: int, most: int = MAX_LIST_SIZE) -> None:
    """Raise `TooLarge` for more records than one request may hold."""
    if count > most:
        raise TooLarge(f"a request may hold at most {most:,} records, got {count:,}; send several requests")


MAX_CHECKED_DAYS = 90  # past days of one check of an alert
R = TypeVar("R", Run, OpenRun)
_HEX = re.compile(r"[0-9a-f]*")


def validate_run(run: Run) -> Run:
    """Return the run with ids in lower case. Raises `ItemRefused` or `Refused` for invalid ids or numbers."""
    lowered = _lowercase_run_ids(run)
    if run.usage is not None:
        usage = run.usage
        counts = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
        for name, tokens in (*counts.items(), *usage.details.items()):
            if not 0 <= tokens <= MAX_TOKENS:
                raise Refused(f"{name} of run {run.span_id!r} must be between 0 and 2^53, got {tokens!r}")
    if run.cost is not None:
        validate_amount(f"the cost of run {run.span_id!r}", run.cost)
    return lowered


def validate_amendment(amendment: Amendment) -> Amendment:
    """Return the amendment with ids in lower case. Raises `ItemRefused` for invalid ids."""
    if amendment.response_id:
        return amendment
    trace_id, span_id, _ = _validate_ids(amendment.trace_id, amendment.span_id)
    return replace(amendment, trace_id=trace_id, span_id=span_id)


def _lowercase_run_ids(run: R) -> R:
    """Return the run with ids in lower case. Raises `ItemRefused` for invalid ids."""
    ids = (run.trace_id, run.span_id, run.parent_id or "")
    lower = _validate_ids(*ids)
    if lower == ids:
        return run
    return replace(run, trace_id=lower[0], span_id=lower[1], parent_id=lower[2] or None)


def _validate_ids(trace_id: str, span_id: str, parent_id: str = "") -> tuple[str, str, str]:
    ids = (trace_id, span_id, parent_id)
    lower = (trace_id.lower(), span_id.lower(), parent_id.lower())
    check_ids(*lower)
    if not all(map(_HEX.fullmatch, lower)):
        raise Refused(f"an id must be hexadecimal, got {next(id for id in ids if not _HEX.fullmatch(id.lower()))!r}")
    return lower


def validate_feedback(feedback: Feedback) -> Feedback:
    """Return the feedback with a normalized target.

    Raises `ItemRefused` for names that are too long, and `Refused` for an invalid target.
    """
    check_feedback_names(feedback)
    return normalize_feedback(feedback)


def validate_amount(what: str, amount: float) -> None:
    """Raise `Refused` for an amount out of range."""
    if not (math.isfinite(amount) and 0 <= amount <= MAX_COST):
        raise Refused(f"{what} must be between 0 and {MAX_COST:,.0f}, got {amount!r}")


class DatasetChange(msgspec.Struct, forbid_unknown_fields=True):
    """Fields of a dataset that may change."""

    kind: DatasetKind | None = None
    schema: dict[str, JSON] | None = None
    description: str | None = None
    metadata: dict[str, JSON] | None = None


def append(store: TraceStore, runs: Sequence[Run], feedback: Sequence[Feedback] = ()) -> dict[str, int]:
    """Store runs and their feedback together or not at all. The response is sent once they are durable."""
    check_count(len(runs) + len(feedback))
    store.append(
        [truncate_fields(correct_run_times(validate_run(run))) for run in runs], _validate_feedback_list(feedback)
    )
    return {"runs": len(runs), "feedback": len(feedback)}


def amend(store: TraceStore, trace_id: str, span_id: str, fields: Mapping[str, JSON]) -> bool:
    """Change fields of a run that is stored or will arrive; return whether it is stored."""
    check_amendment(fields)
    return store.amend(trace_id, span_id, fields)


def add_amendments(store: TraceStore, amendments: Sequence[Amendment]) -> list[bool]:
    """Change fields of runs that are stored or will arrive; return for each whether it is stored."""
    for amendment in amendments:
        check_amendment(amendment.fields)
    return store.add_amendments(list(map(validate_amendment, amendments)))


def append_runs(store: TraceStore, runs: Sequence[Run]) -> None:
    """Store runs. The response is sent once they are durable."""
    append(store, runs)


def add_feedback(store: TraceStore, feedback: Sequence[Feedback]) -> list[str]:
    """Store feedback. The response with the ids is sent once the feedback is durable. Feedback with an existing id
    replaces the earlier one. With a key that may only give feedback, only human feedback is accepted. Its ids are
    derived from target, key and author.
    """
    rows = _validate_feedback_list(feedback)
    actor = CURRENT_ACTOR.get()
    if actor is not None and not actor.writes:
        rows = list(map(_restrict_to_human_feedback, rows))
    store.add_feedback(rows)
    return [row.id for row in rows]


def _restrict_to_human_feedback(row: Feedback) -> Feedback:
    """Return the feedback with an id derived from its author, so that it overwrites only the author's own feedback.

    Raises `Forbidden` for feedback of a judge or a rule.
    """
    if row.source != "human" or any((row.rule, row.claim, row.evaluator, row.version, row.judge_trace_id)):
        raise Forbidden(
            "the API key has only the scope 'feedback', which permits human feedback: source 'human', no rule or evaluator"
        )
    return replace(row, id=feedback_id(row))


def _validate_feedback_list(feedback: Sequence[Feedback]) -> list[Feedback]:
    return [correct_feedback_time(validate_feedback(row)) for row in feedback]


def add_running(store: TraceStore, runs: Sequence[OpenRun]) -> None:
    """Record runs that have started. A run counts as open until its span arrives or its trace reports it as dropped."""
    store.add_running([correct_open_run_time(_lowercase_run_ids(run)) for run in runs])


def book(store: ControlStore, *bookings: Booking) -> list[bool]:
    """Reserve amounts. An amount that would exceed its limit is not reserved. Returns for each amount whether it is
    reserved. Each booking id is counted only once.
    """
    for booking in bookings:
        validate_amount(f"the amount of booking {booking.id!r}", booking.amount)
    return store.book(*bookings)


def settle(store: ControlStore, actual: Mapping[str, float]) -> None:
    """Replace reserved amounts by the actual ones, given by booking id."""
    for id, amount in actual.items():
        validate_amount(f"the actual amount of booking {id!r}", amount)
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
    """Change the description of a dataset; creates a new version if anything changed. Raises `NotFound`."""
    store.dataset(name)  # raises `NotFound`, so that a mistyped name creates no dataset
    return store.save_examples(name, [], **msgspec.structs.asdict(change))


def check_alert(store: Store, alert: Alert, days: float = alerts.CHECKED_DAYS) -> AlertCheck:
    """Run an alert over the last days, 90 at most: when it would have fired, and how long it had no data.

    Nothing is stored. Raises `Refused` for an invalid definition.
    """
    if not 0 < days <= MAX_CHECKED_DAYS:
        raise Refused(f"days must be above 0 and at most {MAX_CHECKED_DAYS}, got {days!r}")
    return alerts.check_alert(store, alert, until_ns=time.time_ns(), days=days)
