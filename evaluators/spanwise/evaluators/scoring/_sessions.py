"""The turns of a session, out of a store."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from os import PathLike

from spanwise.collector import connect
from spanwise.collector.errors import NotFound
from spanwise.collector.records import Trace
from spanwise.collector.stores import TraceStore

MOST_TURNS = 1_000  # of a longer session the latest
PAGE = 100


def turns_of(session: str, where: TraceStore | str | PathLike[str] | None, project: str | None = None) -> list[Trace]:
    """The traces of a session (of one project, or of all), first start first; of all but the last, which evaluators
    see whole, the root alone.

    Raises `NotFound` for a session that has none.
    """
    if where is None or isinstance(where, str | PathLike):
        with closing(connect(where)) as store:
            return turns_of(session, store, project)
    turns: list[Trace] = []
    cursor: str | None = None
    while len(turns) < MOST_TURNS:
        page = where.traces(session=session, project=project, limit=PAGE, cursor=cursor)
        traces = where.many([summary.trace_id for summary in page])
        turns += [trace if not turns and trace is traces[0] else _root_alone(trace) for trace in traces]
        if (cursor := page.next) is None:
            break
    if not turns:
        raise NotFound(f"session {session!r} has no traces in {where.where}")
    return turns[::-1]


def _root_alone(trace: Trace) -> Trace:
    return replace(trace, runs=(trace.root,), feedback=())
