"""Neighbours of a trace in the list from which it was opened.

The URL of a trace has the list's own query in the parameter `from`, so that its page leads to the previous and the next
trace of that list, and back to its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import cast
from urllib.parse import parse_qsl

from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter
from spanwise.collector.pages.components import filter_form
from spanwise.collector.records import TraceSummary
from spanwise.collector.sorting import TRACE_COLUMNS
from spanwise.collector.stores import Store

MAX_SORTED = 500  # traces at the beginning of a sorted list that have neighbours
MAX_TIES = 50  # traces with the same start that are put in order


@dataclass(frozen=True, slots=True)
class Neighbours:
    """URLs of the list at the row of a trace, and of the previous and next trace in it; "" if there is none."""

    back: str
    previous: str = ""
    next: str = ""


def find_neighbours(store: Store, origin: str, trace: TraceSummary, zone: tzinfo) -> Neighbours:
    """Return the neighbours of a trace. `origin` is the query string of the list."""
    query = filter_form.read_query(parse_qsl(origin, keep_blank_values=True), zone=zone)
    sort, query = filter_form.read_sort(query, TRACE_COLUMNS, feedback=True)
    back = f"{query.address(cursor=query.fields.get('cursor'))}#t-{trace.trace_id}"
    rows: Sequence[TraceSummary] = ()
    with suppress(Refused):  # the list itself is refused
        if sort in (None, "start", "-start"):
            rows = list_by_start(store, query.filter, trace.start_ns, sort)
        else:
            rows = store.traces(query.filter, sort=sort, limit=MAX_SORTED).items
    ids = [row.trace_id for row in rows]
    if trace.trace_id not in ids:
        return Neighbours(back)
    place = ids.index(trace.trace_id)
    return Neighbours(
        back,
        query.trace_address(ids[place - 1]) if place else "",
        query.trace_address(ids[place + 1]) if place + 1 < len(ids) else "",
    )


def list_by_start(store: Store, filter: Filter, start_ns: int, sort: str | None) -> list[TraceSummary]:
    """Return the part of a list by start around a time: the trace before, those that start then, and the trace after."""

    def list_between(times: tuple[int | None, int | None], sort: str | None, limit: int) -> Sequence[TraceSummary]:
        first, end = times
        if filter.since_ns is not None:
            first = max(filter.since_ns, first or filter.since_ns)
        if filter.until_ns is not None:
            end = min(filter.until_ns, end or filter.until_ns)
        if None not in (first, end) and cast(int, first) >= cast(int, end):
            return ()
        return store.traces(replace(filter, since_ns=first, until_ns=end), sort=sort, limit=limit).items

    earlier: tuple[int | None, int | None] = (None, start_ns)
    later: tuple[int | None, int | None] = (start_ns + 1, None)
    before, after = (earlier, later) if sort == "start" else (later, earlier)
    same = list_between((start_ns, start_ns + 1), sort, MAX_TIES)
    nearest = list_between(before, "-start" if sort == "start" else "start", 1)
    # of the traces that start at the same time, the last in the order of the list
    closest = list_between((nearest[0].start_ns, nearest[0].start_ns + 1), sort, MAX_TIES)[-1:] if nearest else ()
    return [*closest, *same, *list_between(after, sort, 1)]
