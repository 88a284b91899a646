"""Traces that are under way, read from a store: what lists of traces, which show what has ended, cannot tell."""

from __future__ import annotations

from spanwise.collector.filters import CONDITIONS, EVALUATOR, Filter
from spanwise.collector.records import OpenRun
from spanwise.collector.stores._traces import TraceStore

_TOLD = ("project", "environment", "since_ns", "until_ns", "name", "kind", "experiment")
_UNTOLD = tuple(name for name in CONDITIONS if name not in _TOLD)
_NOTHING = Filter()
MOST = 1_000  # open runs that are read, latest first


def under_way(store: TraceStore, filter: Filter) -> list[OpenRun]:
    """The root of each trace whose root is open, latest first; evaluators' own left out.

    None where the filter asks for what only a run that has ended can tell. Runs further down may have ended, so that
    the trace is listed, under the name of one of them.
    """
    if filter.experiment or any(getattr(filter, name) != getattr(_NOTHING, name) for name in _UNTOLD):
        return []
    roots: dict[str, OpenRun] = {}
    for run in store.running(project=filter.project, environment=filter.environment, limit=MOST):
        if run.parent_id is None or (run.local_root == run.span_id and run.trace_id not in roots):
            roots[run.trace_id] = run
    return [run for run in roots.values() if _passes(filter, run)]


def _passes(filter: Filter, run: OpenRun) -> bool:
    begun = filter.since_ns is None or run.start_ns >= filter.since_ns
    begun = begun and (filter.until_ns is None or run.start_ns < filter.until_ns)
    return begun and filter.name in (None, run.name) and (filter.kind or run.kind) == run.kind != EVALUATOR
