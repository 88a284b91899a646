"""Pages of lists: traces and sessions sorted by a number, records of sessions, and of the runs of experiments.

Pages of sorted traces and sessions:

- Ties are in the order of the trace id (or session id). Missing values come last in both directions.
- The first page fixes the set of traces: those that are stored at that moment and pass. Later pages cover the same
  set, so that traces that arrive meanwhile shift nothing. A cursor is the last value and id, and the bounds of the set.
- If more than `MAX_SORTED` traces pass, the set is the newest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from spanwise.collector.errors import Refused
from spanwise.collector.filters import (
    SESSION_COLUMNS,
    TRACE_COLUMNS,
    Filter,
    SortOrder,
    fingerprint,
    make_cursor,
    parse_sort,
    read_cursor,
)
from spanwise.collector.records import RunScores, SessionSummary
from spanwise.collector.stores.queries.trace_reader import Key

# SQL of the numbers by which a row `t` of `traces`, or the traces of a session, can be sorted
TRACE_VALUES = {
    "start": "t.start_ns",
    "latency_ms": "(t.end_ns - t.start_ns)",
    "time_to_first_token_ms": "t.time_to_first_token_ms",
    "cost": "t.cost",
    "tokens": "(t.input_tokens + t.output_tokens)",
    "errors": "-t.error_count",
    "runs": "t.span_count",
}
SESSION_VALUES = {
    "start": "min(t.start_ns)",
    "duration_ms": "max(t.end_ns) - min(t.start_ns)",
    "traces": "count(*)",
    "errors": "-sum(t.status = 'error')",
    "tokens": "sum(t.input_tokens + t.output_tokens)",
    "cost": "sum(t.cost)",
}
assert (tuple(TRACE_VALUES), tuple(SESSION_VALUES)) == (TRACE_COLUMNS, SESSION_COLUMNS)
_NUMBER = int | float | None


class SortedPage(NamedTuple):
    """Keys of one page in order, the cursor of the next page, and `Page.newest`."""

    keys: list[Key]
    next: str | None
    newest: int | None


class SortedSet(NamedTuple):
    """Bounds of the traces that all pages of a list sort."""

    upto: int  # highest number of a trace when the first page was read
    since_ns: int | None = None  # earliest start, if there are more traces than can be sorted
    size: int = 0
    lowest: int = 0  # lowest number in the set, if the backend reads the index of scores

    @property
    def newest(self) -> int | None:
        """Return the number of newest traces in the set; None if it has all traces that pass."""
        return None if self.since_ns is None else self.size


class SortedQuery(NamedTuple):
    """Query for one page of a sorted list. `last` has the last value and id of the previous page, if any."""

    filter: Filter
    order: SortOrder
    last: Sequence[Any]
    limit: int

    @property
    def place(self) -> tuple[Any, str] | None:
        """Return the last value and id; None for the first page."""
        return (self.last[0], self.last[1]) if self.last else None


def list_sorted(
    sort: str,
    filter: Filter,
    limit: int,
    cursor: str | None,
    find_set: Callable[[SortOrder], SortedSet],
    select: Callable[[SortedQuery, SortedSet], Sequence[Any]],
    *,
    sessions: bool = False,
) -> tuple[SortedPage, SortedSet]:
    """Return one page of traces, or of sessions, and the set that it covers.

    `select` returns key, value and id of the rows of the page, and of one more. Raise `Refused` for an unknown order or
    another list's cursor.
    """
    order = parse_sort(sort, SESSION_COLUMNS) if sessions else parse_sort(sort, TRACE_COLUMNS, feedback=True)
    mark, last = fingerprint(sort, filter), tuple[Any, ...]()
    if cursor is None:
        bounds = find_set(order)
    else:
        value, id, *rest = read_cursor(cursor, mark, (_NUMBER, str, int, int | None, int, int))
        last, bounds = (value, id), SortedSet(*rest)
    rows = select(SortedQuery(filter, order, last, limit), bounds)
    next = make_cursor(mark, (*rows[limit - 1][1:], *bounds)) if len(rows) > limit else None
    return SortedPage([key for key, _, _ in rows[:limit]], next, bounds.newest), bounds


# Columns of a session, after its id and its project
SESSION_SUMS = (
    "max(t.user_id), count(*), sum(t.status = 'error'), min(t.start_ns), max(t.end_ns), sum(t.input_tokens),"
    " sum(t.output_tokens), sum(t.cost), max(t.start_ns) AS latest"
)


def make_session(row: Sequence[Any]) -> SessionSummary:
    """Return the summary of a row of id, project and `SESSION_SUMS`."""
    return SessionSummary(**dict(zip(SessionSummary.__slots__, row, strict=False)))


# Columns of a run of an experiment; its models follow
EXPERIMENT_COLUMNS = (
    "t.trace_id, t.example_id, t.repetition, t.status, t.start_ns, t.end_ns, t.input_tokens, t.output_tokens, t.cost"
)


def make_run_scores(
    row: Sequence[Any], tags: Sequence[str], models: Sequence[str], scores: Mapping[str, float | str | None]
) -> RunScores:
    """Return the scores of a run in a row of `EXPERIMENT_COLUMNS`."""
    trace_id, example_id, repetition, status, start_ns, end_ns, input_tokens, output_tokens, cost = row
    return RunScores(
        trace_id=trace_id,
        example_id=example_id,
        repetition=repetition,
        status=status,
        scores=scores,
        duration_ns=max(0, end_ns - start_ns),
        input_tokens=input_tokens or 0,
        output_tokens=output_tokens or 0,
        cost=cost,
        tags=tuple(tags),
        models=tuple(models),
    )


def group_scores(rows: Iterable[Sequence[Any]]) -> dict[Key, dict[str, float | str | None]]:
    """Return the last score, else label, by trace and key. `rows` have trace, key, score and label."""
    scores: dict[Key, dict[str, float | str | None]] = {}
    for trace, key, score, label in rows:
        scores.setdefault(trace, {})[key] = label if score is None else score
    return scores


METADATA_FIELD = "metadata"


def check_field(field: str, fields: Collection[str]) -> None:
    """Raise `Refused` for a field without a list of values."""
    if field not in fields:
        raise Refused(f"unknown field {field!r}; expected one of: {', '.join((*fields, METADATA_FIELD))}")
