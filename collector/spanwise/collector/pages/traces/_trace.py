"""One trace: the waterfall of its runs, one run in full, all feedback, and what each rule did with it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from spanwise.collector import gaps, verdicts
from spanwise.collector.errors import NotFound
from spanwise.collector.format import split_stack
from spanwise.collector.pages._experiments import known_examples
from spanwise.collector.pages.kit import chips, payload, render
from spanwise.collector.pages.traces import _tree
from spanwise.collector.records import JSON, Example, Experiment, Feedback, Run, Target, Trace, TraceSummary
from spanwise.collector.stores import Store, derived_fields

_EXCEPTION = ("type", "message", "stacktrace")
_PARTS = ("inputs", "outputs", "documents", "attributes", "metadata", "resource", "events")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a page says of a trace: all of its runs as rows, or so many of a long one."""

    root: Run
    run: Run  # the chosen one
    rows: Sequence[_tree.Row]
    duration_ns: int
    feedback: Sequence[Feedback]  # on the trace as a whole, and on the chosen run and its documents
    missing: Sequence[str]
    complete: bool
    running: int
    dropped: int
    next: str | None = None  # the run with which the next rows begin

    @property
    def of_trace(self) -> list[Feedback]:
        """What is said of the trace as a whole."""
        return [feedback for feedback in self.feedback if feedback.target.span_id is None]

    @property
    def of_run(self) -> list[Feedback]:
        """What is said of the chosen run, and of its documents."""
        return [feedback for feedback in self.feedback if feedback.target.span_id == self.run.span_id]


def trace(store: Store, request: Request) -> Response:
    """`GET /traces/{trace_id}?run={span_id}`; the root is shown if no run is named, open runs if none has ended."""
    trace_id, span_id = request.path_params["trace_id"], request.query_params.get("run")
    summed = summary(store, trace_id)
    try:
        long = summed is not None and summed.span_count > _tree.WHOLE
        shown = in_parts(store, summed, span_id) if summed and long else whole(store.trace(trace_id), span_id)
    except NotFound:
        if summed is not None:
            raise
        return under_way(store, request)
    experiment = experiment_of(store, shown.root)
    why = store.why(trace_id)
    rules = [] if why else store.rules()
    return render.html(
        request,
        "trace.html",
        trace_id=trace_id,
        shown=shown,
        root=shown.root,
        run=shown.run,
        derived=derived_fields(shown.run),
        stacks=stack_traces(shown.run),
        summary=summed,
        count=summed.span_count if summed else len(shown.rows),
        own=chips.voices(shown.of_trace),
        of_run=chips.voices(shown.of_run),
        experiment=experiment,
        example=example_of(store, shown.root, experiment),
        why=why,
        without_rules=verdicts.without_rules(shown.root.project, rules) if rules else None,
        verdicts=verdicts,
        now=time.time_ns(),
        links=[link for link in shown.run.links if link.trace_id != trace_id],
    )


def whole(trace: Trace, span_id: str | None) -> Shown:
    """All of a trace, from one reading. Raises `NotFound` for a run that is not there."""
    start, end = _tree.span_of(trace.runs)
    return Shown(
        root=trace.root,
        run=chosen(trace, span_id),
        rows=_tree.rows(trace),
        duration_ns=end - start,
        feedback=trace.feedback,
        missing=gaps.gaps(trace),
        complete=trace.complete,
        running=len(trace.running),
        dropped=trace.dropped,
    )


def in_parts(store: Store, trace: TraceSummary, span_id: str | None) -> Shown:
    """Those rows of a long trace among which the chosen run stands. Raises `NotFound` for a run that is not there."""
    page = store.tree(trace.trace_id, limit=_tree.SHOWN, cursor=span_id)
    root, run = store.run(trace.trace_id), store.run(trace.trace_id, span_id)
    return Shown(
        root=root,
        run=run,
        rows=_tree.on_clock(page.items, trace.start_ns, trace.start_ns + trace.duration_ns),
        duration_ns=trace.duration_ns,
        feedback=_said(store, run),
        missing=gaps.known(trace.dropped, store.running(trace_id=trace.trace_id), complete=trace.complete),
        complete=trace.complete,
        running=trace.running,
        dropped=trace.dropped,
        next=page.next,
    )


def _said(store: Store, run: Run) -> list[Feedback]:
    """Feedback on a run's trace, on the run, and on its documents as far as it is among the latest of the trace."""
    aims = (Target(trace_id=run.trace_id), Target(trace_id=run.trace_id, span_id=run.span_id))
    said = [feedback for aim in aims for feedback in store.feedbacks(target=aim)]
    latest = store.feedbacks(trace_ids=(run.trace_id,)) if run.documents else ()
    said += [one for one in latest if one.target.span_id == run.span_id and one.target.document is not None]
    return sorted(said, key=lambda feedback: feedback.created_ns)


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
    run = store.run(request.path_params["trace_id"], request.path_params["span_id"])
    value = _json(getattr(run, name))
    text = value if isinstance(value, str) else payload.as_json(value)
    return PlainTextResponse(text.encode("utf-8", "replace"), headers=render.HEADERS)


def experiment_of(store: Store, root: Run) -> Experiment | None:
    """The experiment that the trace belongs to; None for live traffic, and when it is no longer there."""
    try:
        return store.experiment(root.experiment_id) if root.experiment_id else None
    except NotFound:
        return None


def example_of(store: Store, root: Run, experiment: Experiment | None) -> Example | None:
    """The example that the trace answers, as the experiment saw it."""
    examples = known_examples(store, experiment) if experiment else {}
    return examples.get(root.example_id or "", (None, 0))[0]


def chosen(trace: Trace, span_id: str | None) -> Run:
    """The run named, else the root. Raises `NotFound`."""
    if span_id is None:
        return trace.root
    run = next((run for run in trace.runs if run.span_id == span_id), None)
    if run is None:
        raise NotFound(f"trace {trace.trace_id!r} has no run {span_id!r}")
    return run


def summary(store: Store, trace_id: str) -> TraceSummary | None:
    """The same sums as in the list of traces; None where the trace is not there."""
    return next(iter(store.traces(trace_ids=(trace_id,), limit=1)), None)


def stack_traces(run: Run) -> list[str]:
    """The stack traces of a run's exceptions; of one that was recorded several times the longest."""
    stacks: dict[tuple[str, str], str] = {}
    for event in run.events:
        if event.name != "exception":
            continue
        kind, said, recorded = (str(event.attributes.get(f"exception.{name}") or "") for name in _EXCEPTION)
        message, within = split_stack(said)
        stacks[kind, message] = max(stacks.get((kind, message), ""), recorded or within, key=len)
    return [stack for stack in stacks.values() if stack]


def _json(value: object) -> JSON:
    """Documents and events as objects; anything else is JSON already."""
    if isinstance(value, tuple):
        return [{name: getattr(item, name) for name in item.__dataclass_fields__} for item in value]
    return value
