"""Trace page: waterfall, selected run, feedback form, rule decisions."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from spanwise.collector.diagnostics import rule_report, trace_completeness
from spanwise.collector.dialects import CONTENT_REFERENCES
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.formatting import split_stack
from spanwise.collector.pages.components import feedback_display, rendering
from spanwise.collector.records import Example, Experiment, Feedback, Run, Target, Trace, TraceSummary, TreeNode
from spanwise.collector.stores import RunNode, Store, derived_fields, iterate_examples, make_branch, walk_tree

MAX_WHOLE_RUNS = 1_000  # larger traces are shown in pages
ROWS_PER_PAGE = 500  # rows per page of a larger trace


@dataclass(frozen=True, slots=True)
class WaterfallRow:
    """One run in the waterfall. `left` and `width` are percentages of the trace's duration."""

    run: TreeNode
    left: float
    width: float


def get_time_range(runs: Sequence[Run]) -> tuple[int, int]:
    """Return the earliest start and the latest end of the runs."""
    start = min((run.start_ns for run in runs), default=0)
    return start, max((max(run.end_ns, run.start_ns) for run in runs), default=start)


def build_rows(trace: Trace) -> list[WaterfallRow]:
    """Return all runs as rows: children below their parents, sorted by start time.

    A run whose parent is missing is shown as a root.
    """
    marks: dict[str, tuple[int, int]] = {}
    for item in trace.feedback:
        if item.target.span_id:
            n, failed = marks.get(item.target.span_id, (0, 0))
            marks[item.target.span_id] = n + 1, failed + (item.outcome == "error")
    known = {run.span_id for run in trace.runs}
    lines = [RunNode(*(getattr(run, name) for name in RunNode._fields)) for run in trace.runs]
    branches = (
        make_branch(position, depth, line, known, *marks.get(line.span_id, (0, 0)))
        for position, (depth, line) in enumerate(walk_tree(lines))
    )
    return place_rows(branches, *get_time_range(trace.runs))


def place_rows(branches: Iterable[TreeNode], start_ns: int, end_ns: int) -> list[WaterfallRow]:
    """Return rows with the position of each run within the time range of the trace."""
    length = max(1, end_ns - start_ns)
    return [
        WaterfallRow(run, round(100 * (run.start_ns - start_ns) / length, 2), round(100 * run.duration_ns / length, 2))
        for run in branches
    ]


_EXCEPTION_FIELDS = ("type", "message", "stacktrace")
_VALUE_FIELDS = ("inputs", "outputs", "documents", "attributes", "metadata", "resource", "events", "tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceView:
    """Data of a trace page: all runs as rows, or one page of a large trace."""

    root: Run
    run: Run  # the selected run
    rows: Sequence[WaterfallRow]
    duration_ns: int
    feedback: Sequence[Feedback]  # on the trace, on the selected run, and on its documents
    missing: Sequence[str]
    complete: bool
    running: int
    dropped: int
    next: str | None = None  # first run of the next page

    @property
    def of_trace(self) -> list[Feedback]:
        """Return the feedback on the trace as a whole."""
        return [feedback for feedback in self.feedback if feedback.target.span_id is None]

    @property
    def of_run(self) -> list[Feedback]:
        """Return the feedback on the selected run and its documents."""
        return [feedback for feedback in self.feedback if feedback.target.span_id == self.run.span_id]


def trace(store: Store, request: Request) -> Response:
    """Render a trace: `GET /traces/{trace_id}?run={span_id}`.

    By default the root is selected. If no run has ended yet, the page lists the open runs.
    """
    trace_id, span_id = request.path_params["trace_id"], request.query_params.get("run")
    summary = load_summary(store, trace_id)
    try:
        if summary is not None and summary.span_count > MAX_WHOLE_RUNS:
            view = view_trace_page(store, summary, span_id)
        else:
            view = view_whole_trace(store.trace(trace_id), span_id)
    except NotFound:
        if summary is not None:
            raise
        return render_open_trace(store, request)
    experiment = find_experiment(store, view.root)
    why = store.why(trace_id)
    rules = [] if why else store.rules()
    return rendering.render_page(
        request,
        "trace.html",
        trace_id=trace_id,
        view=view,
        root=view.root,
        run=view.run,
        derived=derived_fields(view.run),
        references=CONTENT_REFERENCES,
        stacks=list_stack_traces(view.run),
        summary=summary,
        count=summary.span_count if summary else len(view.rows),
        own=feedback_display.get_author_chips(view.of_trace),
        of_run=feedback_display.get_author_chips(view.of_run),
        experiment=experiment,
        example=find_example(store, view.root, experiment),
        why=why,
        without_rules=rule_report.explain_no_rules(view.root.project, rules) if rules else None,
        verdicts=rule_report,
        now=time.time_ns(),
        links=[link for link in view.run.links if link.trace_id != trace_id],
    )


def view_whole_trace(trace: Trace, span_id: str | None) -> TraceView:
    """Return the view of a complete trace. Raises `NotFound` for an unknown run."""
    start, end = get_time_range(trace.runs)
    return TraceView(
        root=trace.root,
        run=choose_run(trace, span_id),
        rows=build_rows(trace),
        duration_ns=end - start,
        feedback=trace.feedback,
        missing=trace_completeness.find_gaps(trace),
        complete=trace.complete,
        running=len(trace.running),
        dropped=trace.dropped,
    )


def view_trace_page(store: Store, trace: TraceSummary, span_id: str | None) -> TraceView:
    """Return the page of a large trace that contains the selected run. Raises `NotFound` for an unknown run."""
    page = store.tree(trace.trace_id, limit=ROWS_PER_PAGE, cursor=span_id)
    root, run = store.run(trace.trace_id), store.run(trace.trace_id, span_id)
    targets = (Target(trace_id=run.trace_id), Target(trace_id=run.trace_id, span_id=run.span_id))
    feedback = [item for target in targets for item in store.feedbacks(target=target)]
    latest = store.feedbacks(trace_ids=(run.trace_id,)) if run.documents else ()
    feedback += [item for item in latest if item.target.span_id == run.span_id and item.target.document is not None]
    return TraceView(
        root=root,
        run=run,
        rows=place_rows(page.items, trace.start_ns, trace.start_ns + trace.duration_ns),
        duration_ns=trace.duration_ns,
        feedback=sorted(feedback, key=lambda item: item.created_ns),
        missing=trace_completeness.describe_known_gaps(
            trace.dropped, store.running(trace_id=trace.trace_id), complete=trace.complete
        ),
        complete=trace.complete,
        running=trace.running,
        dropped=trace.dropped,
        next=page.next,
    )


def render_open_trace(store: Store, request: Request) -> Response:
    """Render a trace of which no run has ended. Raises `NotFound` if it has no open run either."""
    trace_id = request.path_params["trace_id"]
    runs = store.running(trace_id=trace_id)[::-1]
    if not runs:
        raise NotFound(f"there is no trace {trace_id!r} in this store")
    names = {run.span_id: run.name for run in runs}
    return rendering.render_page(request, "running.html", trace_id=trace_id, runs=runs, names=names)


def value_page(store: Store, request: Request) -> Response:
    """Return one complete value as plain text: `GET /traces/{trace_id}/runs/{span_id}/{part}`."""
    name = request.path_params["part"]
    if name not in _VALUE_FIELDS:
        raise NotFound(f"unknown field {name!r} of a run; expected one of: {', '.join(_VALUE_FIELDS)}")
    run = store.run(request.path_params["trace_id"], request.path_params["span_id"])
    value = getattr(run, name)
    if isinstance(value, tuple) and name != "tools":  # documents or events
        value = [{field: getattr(item, field) for field in item.__dataclass_fields__} for item in value]
    text = value if isinstance(value, str) else rendering.format_json(value)
    return PlainTextResponse(text.encode("utf-8", "replace"), headers=rendering.SECURITY_HEADERS)


def find_experiment(store: Store, root: Run) -> Experiment | None:
    """Return the trace's experiment; None for live traffic, or if the experiment no longer exists."""
    try:
        return store.experiment(root.experiment_id) if root.experiment_id else None
    except NotFound:
        return None


def find_example(store: Store, root: Run, experiment: Experiment | None) -> Example | None:
    """Return the trace's example from the experiment's dataset version."""
    examples = iterate_examples(store, experiment) if experiment else ()
    return next((example for example in examples if example.id == root.example_id), None)


def choose_run(trace: Trace, span_id: str | None) -> Run:
    """Return the named run, by default the root. Raises `NotFound`."""
    if span_id is None:
        return trace.root
    run = next((run for run in trace.runs if run.span_id == span_id), None)
    if run is None:
        raise NotFound(f"trace {trace.trace_id!r} has no run {span_id!r}")
    return run


def load_summary(store: Store, trace_id: str) -> TraceSummary | None:
    """Return the trace's summary, as the trace list shows it; None if the trace does not exist."""
    return next(iter(store.traces(trace_ids=(trace_id,), limit=1)), None)


def list_stack_traces(run: Run) -> list[str]:
    """Return the stack traces of a run's exceptions; for an exception that was recorded repeatedly, the longest."""
    stacks: dict[tuple[str, str], str] = {}
    for event in run.events:
        if event.name != "exception":
            continue
        kind, text, recorded = (str(event.attributes.get(f"exception.{name}") or "") for name in _EXCEPTION_FIELDS)
        message, stack = split_stack(text)
        stacks[kind, message] = max(stacks.get((kind, message), ""), recorded or stack, key=len)
    return [stack for stack in stacks.values() if stack]


def add_feedback(store: Store, request: Request, fields: Mapping[str, str]) -> str:
    """Store human feedback: `POST /traces/{trace_id}/feedback`.

    Returns the URL of the trace with the run that was shown.
    """
    trace_id = request.path_params["trace_id"]
    store.add_feedback([build_human_feedback(trace_id, fields)])
    run = f"?run={rendering.quote_segment(fields['run'])}" if fields.get("run") else ""
    return f"/traces/{rendering.quote_segment(trace_id)}{run}#feedback"


def build_human_feedback(trace_id: str, fields: Mapping[str, str]) -> Feedback:
    """Return the feedback from form fields: a key, and a score or a label.

    Raises `Refused` that names the invalid field.
    """
    key, value = fields.get("key", "").strip(), fields.get("value", "").strip()
    if not key or not value:
        raise Refused("feedback needs a key and a value: a number, true or false, or a label such as good")
    score, label = parse_score_or_label(value)
    try:
        return Feedback(
            target=Target(trace_id=trace_id, span_id=fields.get("span") or None),
            key=key,
            score=score,
            label=label,
            comment=fields.get("comment", "").strip() or None,
            source="human",
            author=fields.get("author", "").strip() or None,
        )
    except ValueError as error:
        raise Refused(str(error)) from None


def parse_score_or_label(text: str) -> tuple[float | bool | None, str | None]:
    """Parse a form value as (score, label): numbers and booleans are scores, other texts labels."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true", None
    try:
        return float(text), None
    except ValueError:
        return None, text
