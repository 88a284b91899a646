"""One trace: the waterfall of its runs, one run in full, all feedback, and what each rule did with it."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from assay.collector import verdicts
from assay.collector.errors import NotFound
from assay.collector.pages._experiments import known_examples
from assay.collector.pages.kit import chips, payload, render
from assay.collector.pages.traces import _tree
from assay.collector.records import JSON, Example, Experiment, Run, Trace, TraceSummary
from assay.collector.stores import Store

_PARTS = ("inputs", "outputs", "documents", "attributes", "metadata", "resource", "events")


def trace(store: Store, request: Request) -> Response:
    """`GET /traces/{trace_id}?run={span_id}`; the root is shown if no run is named, open runs if none has ended."""
    try:
        asked = store.trace(request.path_params["trace_id"])
    except NotFound:
        return under_way(store, request)
    run = chosen(asked, request.query_params.get("run"))
    rows = _tree.rows(asked)
    start, end = _tree.span_of(asked.runs)
    experiment = experiment_of(store, asked)
    return render.html(
        request,
        "trace.html",
        trace=asked,
        run=run,
        rows=rows[: _tree.SHOWN],
        hidden=max(0, len(rows) - _tree.SHOWN),
        summary=summary(store, asked),
        duration_ns=end - start,
        own=chips.voices(feedback for feedback in asked.feedback if feedback.target.span_id is None),
        of_run=chips.voices(feedback for feedback in asked.feedback if feedback.target.span_id == run.span_id),
        experiment=experiment,
        example=example_of(store, asked, experiment),
        why=store.why(asked.trace_id),
        verdicts=verdicts,
        now=time.time_ns(),
        links=[link for link in run.links if link.trace_id != asked.trace_id],
    )


def under_way(store: Store, request: Request) -> Response:
    """A trace of which nothing has ended. Raises `NotFound` if nothing has begun."""
    trace_id = request.path_params["trace_id"]
    runs = store.running(trace_id=trace_id)[::-1]
    if not runs:
        raise NotFound(f"there is no trace {trace_id!r} in this store")
    names = {run.span_id: run.name for run in runs}
    return render.html(request, "running.html", trace_id=trace_id, runs=runs, names=names)


def part(store: Store, request: Request) -> Response:
    """`GET /traces/{trace_id}/runs/{span_id}/{part}`: one whole value, as plain text."""
    name = request.path_params["part"]
    if name not in _PARTS:
        raise NotFound(f"a run has no part {name!r}; there are {', '.join(_PARTS)}")
    run = chosen(store.trace(request.path_params["trace_id"]), request.path_params["span_id"])
    value = _json(getattr(run, name))
    text = value if isinstance(value, str) else payload.as_json(value)
    return PlainTextResponse(text.encode("utf-8", "replace"), headers=render.HEADERS)


def experiment_of(store: Store, trace: Trace) -> Experiment | None:
    """The experiment that the trace belongs to; None for live traffic, and when it is no longer there."""
    try:
        return store.experiment(trace.root.experiment_id) if trace.root.experiment_id else None
    except NotFound:
        return None


def example_of(store: Store, trace: Trace, experiment: Experiment | None) -> Example | None:
    """The example that the trace answers, as the experiment saw it."""
    examples = known_examples(store, experiment) if experiment else {}
    return examples.get(trace.root.example_id or "", (None, 0))[0]


def chosen(trace: Trace, span_id: str | None) -> Run:
    """The run named, else the root. Raises `NotFound`."""
    if span_id is None:
        return trace.root
    run = next((run for run in trace.runs if run.span_id == span_id), None)
    if run is None:
        raise NotFound(f"trace {trace.trace_id!r} has no run {span_id!r}")
    return run


def summary(store: Store, trace: Trace) -> TraceSummary | None:
    """The same sums as in the list of traces; None while the trace is being deleted."""
    return next(iter(store.traces(trace_ids=(trace.trace_id,), limit=1)), None)


def _json(value: object) -> JSON:
    """Documents and events as objects; anything else is JSON already."""
    if isinstance(value, tuple):
        return [{name: getattr(item, name) for name in item.__dataclass_fields__} for item in value]
    return value
