"""Trace page: overview, tree of runs, selected run, feedback form, rule decisions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from spanwise.collector import content
from spanwise.collector.diagnostics import rule_report, trace_completeness
from spanwise.collector.dialects import CONTENT_REFERENCES
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.formatting import split_stack
from spanwise.collector.pages.components import feedback_display, preferences, rendering
from spanwise.collector.pages.components.content_view import ContentView, ToolRun, format_json, mark_invisible
from spanwise.collector.pages.traces.trace_overview import build_overview, find_neighbours
from spanwise.collector.pages.traces.tree_rows import (
    MAX_WHOLE_ROWS,
    Pickup,
    TreeQuery,
    build_tree,
    encode_tree,
    find_origins,
)
from spanwise.collector.records import (
    Example,
    Experiment,
    Feedback,
    OpenRun,
    Run,
    Target,
    Trace,
    TraceSummary,
    TreeNode,
)
from spanwise.collector.stores import RunNode, Store, derived_fields, iterate_examples, make_branch, walk_tree

MAX_TREE_RUNS = 20_000  # runs of the tree that are read at once; a larger trace is read in parts of this size
MAX_SCRIPT_RUNS = 200_000  # runs that the script of the tree gets; of a larger trace, the part with the selected run
PART_HEADER = "spanwise-part"  # names the part of the page that a script replaces
ORIGIN_HEADER = "spanwise-origin"  # id of the run where the selected run's error began, "" if it is that run
_CALL_ID_ATTRIBUTES = ("gen_ai.tool.call.id", "ai.toolCall.id", "tool_call.id", "tool.call.id", "tool_call_id")
_TOOL_NAME_ATTRIBUTES = ("gen_ai.tool.name", "tool.name", "ai.toolCall.name")


def get_time_range(trace: Trace) -> tuple[int, int]:
    """Return the earliest start and the latest end of the runs; the end is now while a run is open."""
    starts = [run.start_ns for run in trace.runs] + [run.start_ns for run in trace.running]
    start = min(starts, default=0)
    end = max((max(run.end_ns, run.start_ns) for run in trace.runs), default=start)
    return start, max(end, time.time_ns()) if trace.running else end


def list_nodes(trace: Trace) -> list[TreeNode]:
    """Return all runs, also those that are open, in depth-first order, sorted by start time.

    A run whose parent is missing is a root. An open run ends now.
    """
    marks: dict[str, tuple[int, int]] = {}
    for item in trace.feedback:
        if item.target.span_id:
            n, failed = marks.get(item.target.span_id, (0, 0))
            marks[item.target.span_id] = n + 1, failed + (item.outcome == "error")
    lines = [
        RunNode(
            run.span_id,
            run.parent_id,
            run.name,
            run.kind,
            run.status,
            run.start_ns,
            run.end_ns,
            run.usage.input_tokens if run.usage else None,
            run.usage.output_tokens if run.usage else None,
            run.cost,
        )
        for run in trace.runs
    ]
    return _order_nodes(lines, trace.running, marks)


def add_open_runs(nodes: Sequence[TreeNode], running: Iterable[OpenRun]) -> Sequence[TreeNode]:
    """Return all runs of a trace, given those that have ended and those that are open, as `list_nodes` does."""
    marks = {node.span_id: (node.feedback, node.failed) for node in nodes if node.feedback}
    fields = RunNode._fields
    lines = [RunNode(*(getattr(node, name) for name in fields)) for node in nodes]
    return _order_nodes(lines, running, marks)


def _order_nodes(
    ended: Iterable[RunNode], running: Iterable[OpenRun], marks: Mapping[str, tuple[int, int]]
) -> list[TreeNode]:
    """Return runs in depth-first order. `marks` has the number of feedback records and of failed ones by run."""
    now, lines = time.time_ns(), list(ended)
    for run in running:
        end_ns = max(now, run.start_ns)
        lines.append(
            RunNode(run.span_id, run.parent_id, run.name, run.kind, "unset", run.start_ns, end_ns, None, None, None)
        )
    known = {line.span_id for line in lines}
    return [
        make_branch(position, depth, line, known, *marks.get(line.span_id, (0, 0)))
        for position, (depth, line) in enumerate(walk_tree(lines))
    ]


_EXCEPTION_FIELDS = ("type", "message", "stacktrace")
MAX_TOOL_RUNS = 50  # runs of tools that are read to find those of the selected run's calls
MAX_CALL_MESSAGES = 130  # messages at either end of a chat that are searched for calls
_MEDIA_FIELDS = ("inputs", "outputs")
_VALUE_FIELDS = ("inputs", "outputs", "documents", "attributes", "metadata", "resource", "events", "tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceView:
    """Data of a trace page. `load_nodes` returns all runs, or a part of those of a very large trace."""

    root: Run
    run: Run  # the selected run
    load_nodes: Callable[[], Sequence[TreeNode]]
    start_ns: int
    duration_ns: int
    feedback: Sequence[Feedback]  # on the trace, and on at least the selected run and its documents
    missing: Sequence[str]
    complete: bool
    running: int
    dropped: int
    load_run: Callable[[str], Run]
    open_ids: frozenset[str] = frozenset()  # those of `nodes` that have not ended
    open_root: OpenRun | None = None  # root of the trace, if it has not ended

    @property
    def nodes(self) -> Sequence[TreeNode]:
        """Return the runs as the tree shows them. Those of a large trace are read when they are first needed."""
        return self.load_nodes()

    @property
    def ended(self) -> list[TreeNode]:
        """Return the nodes whose run has ended, which `load_run` can load."""
        return [node for node in self.nodes if node.span_id not in self.open_ids]

    @property
    def name(self) -> str:
        """Return the name of the trace: that of its root, even if the root has not ended."""
        return self.open_root.name if self.open_root else self.root.name

    @property
    def kind(self) -> str:
        """Return the kind of the root, even if the root has not ended."""
        return self.open_root.kind if self.open_root else self.root.kind

    @property
    def of_trace(self) -> list[Feedback]:
        """Return the feedback on the trace as a whole."""
        return [feedback for feedback in self.feedback if feedback.target.span_id is None]

    @property
    def of_run(self) -> list[Feedback]:
        """Return the feedback on the selected run and its documents."""
        return [feedback for feedback in self.feedback if feedback.target.span_id == self.run.span_id]


_read_trees = Pickup[tuple[Sequence[TreeNode], int, int, frozenset[str]]]()


def trace(store: Store, request: Request) -> Response:
    """Render a trace: `GET /traces/{trace_id}?run={span_id}`.

    By default the root is selected. If no run has ended yet, the page lists the open runs. With `view=raw`, values
    are shown as they were sent; a cookie remembers the choice. A request with the header `Spanwise-Part: run` gets
    only what changes with the selected run.
    """
    trace_id, query = request.path_params["trace_id"], TreeQuery.read(request.query_params)
    only_run = request.headers.get(PART_HEADER) == "run"
    summary = load_summary(store, trace_id)
    try:
        view = load_view(store, trace_id, summary, query.run, whole=not only_run)
    except NotFound:
        if summary is not None:
            raise
        return render_open_trace(store, request)
    run, root = view.run, view.root
    raw = preferences.is_raw(request)
    experiment = find_experiment(store, root)
    origin = find_origin(request, view, run if run.status == "error" else root)
    address = f"/traces/{rendering.quote_segment(trace_id)}/runs/{rendering.quote_segment(run.span_id)}/"
    shown = {
        "trace_id": trace_id,
        "root": root,
        "run": run,
        "query": query,
        "content": ContentView(address, raw=raw, tool_runs=index_tool_runs(view, query)),
        "raw": raw,
        "address": address,
        "derived": derived_fields(run),
        "origin": origin,
        "stacks": list_stack_traces(run) or (list_stack_traces(view.load_run(origin.span_id)) if origin else []),
        "own": feedback_display.get_author_chips(view.of_trace),
        "of_run": feedback_display.get_author_chips(view.of_run),
        "example": find_example(store, root, experiment),
        "links": [link for link in run.links if link.trace_id != trace_id],
        "references": CONTENT_REFERENCES,
    }
    if only_run:
        return rendering.render_page(request, "run_part.html", switcher=False, **shown)
    ticket = ""
    if rendering.has_scripts() and (summary is None or summary.span_count <= MAX_TREE_RUNS):
        ticket = _read_trees.leave(trace_id, (view.nodes, view.start_ns, view.duration_ns, view.open_ids))
    why = store.why(trace_id)
    rules = [] if why else store.rules()
    response = rendering.render_page(
        request,
        "trace.html",
        **shown,
        view=view,
        root_derived=derived_fields(root),
        ticket=ticket,
        tree=build_tree(
            view.nodes,
            query,
            query.run or run.span_id,
            view.start_ns,
            view.start_ns + view.duration_ns,
            view.open_ids,
            with_scripts=rendering.has_scripts() and preferences.ZONE_COOKIE in request.cookies,
        ),
        neighbours=None
        if query.origin is None or summary is None
        else find_neighbours(store, query.origin, summary, preferences.read_preferences(request).time_zone),
        overview=build_overview(root, view.ended, view.load_run, view.feedback, raw=raw),
        first_failed=next((node for node in view.nodes if node.status == "error"), None),
        summary=summary,
        count=summary.span_count if summary else len(view.nodes),
        experiment=experiment,
        why=why,
        without_rules=rule_report.explain_no_rules(root.project, rules) if rules else None,
        verdicts=rule_report,
        now=time.time_ns(),
    )
    return preferences.remember_view(request, response)


def load_view(
    store: Store, trace_id: str, summary: TraceSummary | None, span_id: str | None = None, *, whole: bool = True
) -> TraceView:
    """Load the view of a trace, with a run selected. Raises `NotFound`, also if no run of the trace has ended.

    Without `whole`, only the root and the selected run are read, even if the trace is small.
    """
    if summary is not None and (summary.span_count > MAX_WHOLE_ROWS or not whole):
        return view_large_trace(store, summary, span_id)
    return view_whole_trace(store.trace(trace_id), span_id)


def find_origin(request: Request, view: TraceView, run: Run) -> TreeNode | Run | None:
    """Return the run where the error of a failed run began, if that is another. The script of the tree knows its id."""
    if run.status != "error":
        return None
    known = request.headers.get(ORIGIN_HEADER)
    if known is None:
        return find_origins(view.nodes).get(run.span_id)
    return view.load_run(known) if known else None


def tree(store: Store, request: Request) -> Response:
    """Return the runs of a trace for the script of the tree, as JSON: `GET /traces/{trace_id}/tree?run={span_id}`.

    Of a trace with more than `MAX_SCRIPT_RUNS` runs, it returns the part that contains the selected run.
    """
    trace_id, span_id = request.path_params["trace_id"], request.query_params.get("run")
    summary = load_summary(store, trace_id)
    if summary is None:
        raise NotFound(f"there is no trace {trace_id!r} in this store, or none of its runs has ended")
    left = _read_trees.take(trace_id, request.query_params.get("ticket", ""))
    if left is not None:
        nodes, start_ns, duration_ns, open_ids = left
    else:
        view = load_view(store, trace_id, summary, span_id, whole=summary.running > 0)
        start_ns, duration_ns, open_ids = view.start_ns, view.duration_ns, view.open_ids
        nodes = view.nodes if summary.span_count <= MAX_TREE_RUNS else load_nodes(store, summary, span_id)
    total = max(summary.span_count, len(nodes))
    body = encode_tree(
        nodes, total, start_ns, duration_ns, open_ids, lambda name: str(mark_invisible(rendering.format_name(name)))
    )
    return rendering.compress(
        request, Response(body, headers=rendering.SECURITY_HEADERS, media_type="application/json")
    )


def view_whole_trace(trace: Trace, span_id: str | None) -> TraceView:
    """Return the view of a complete trace. Raises `NotFound` for an unknown run. For an open run, the root is selected."""
    start, end = get_time_range(trace)
    open_ids = frozenset(run.span_id for run in trace.running)
    return TraceView(
        root=trace.root,
        run=choose_run(trace, None if span_id in open_ids else span_id),
        load_nodes=cache(partial(list_nodes, trace)),
        start_ns=start,
        duration_ns=end - start,
        feedback=trace.feedback,
        missing=trace_completeness.find_gaps(trace),
        complete=trace.complete,
        running=len(trace.running),
        dropped=trace.dropped,
        load_run={run.span_id: run for run in trace.runs}.__getitem__,
        open_ids=open_ids,
        open_root=find_open_root(trace.root, trace.running),
    )


def find_open_root(root: Run, runs: Iterable[OpenRun]) -> OpenRun | None:
    """Return the open run without a parent, if the `root` that is stored has a parent that has not arrived."""
    return next((run for run in runs if run.parent_id is None), None) if root.parent_id is not None else None


def load_nodes(
    store: Store,
    trace: TraceSummary,
    span_id: str | None,
    running: Sequence[OpenRun] = (),
    limit: int = MAX_SCRIPT_RUNS,
) -> Sequence[TreeNode]:
    """Return the runs of a trace, or the part of `limit` runs that contains the selected one.

    Open runs are among them if the whole tree is read, which alone tells their places.
    """
    nodes = store.tree(trace.trace_id, limit=limit, cursor=span_id).items
    return add_open_runs(nodes, running) if running and trace.span_count <= limit else nodes


def view_large_trace(store: Store, trace: TraceSummary, span_id: str | None) -> TraceView:
    """Return the view of a trace whose runs are read one by one. Raises `NotFound` for an unknown run."""
    running = store.running(trace_id=trace.trace_id)
    open_ids = frozenset(run.span_id for run in running)
    span_id = None if span_id in open_ids else span_id
    root, run = store.run(trace.trace_id), store.run(trace.trace_id, span_id)
    start_ns, end_ns = trace.start_ns, trace.start_ns + trace.duration_ns
    if running:
        start_ns, end_ns = min(start_ns, *(item.start_ns for item in running)), max(end_ns, time.time_ns())
    targets = (Target(trace_id=run.trace_id), Target(trace_id=run.trace_id, span_id=run.span_id))
    feedback = [item for target in targets for item in store.feedbacks(target=target)]
    latest = store.feedbacks(trace_ids=(run.trace_id,)) if run.documents else ()
    feedback += [item for item in latest if item.target.span_id == run.span_id and item.target.document is not None]
    return TraceView(
        root=root,
        run=run,
        load_nodes=cache(partial(load_nodes, store, trace, span_id, running, MAX_TREE_RUNS)),
        start_ns=start_ns,
        duration_ns=end_ns - start_ns,
        feedback=sorted(feedback, key=lambda item: item.created_ns),
        missing=trace_completeness.describe_known_gaps(trace.dropped, running, complete=trace.complete),
        complete=trace.complete,
        running=trace.running,
        dropped=trace.dropped,
        load_run=partial(store.run, trace.trace_id),
        open_ids=open_ids,
        open_root=find_open_root(root, running),
    )


def index_tool_runs(view: TraceView, query: TreeQuery) -> dict[str, ToolRun]:
    """Return the run of each tool call by the call's id, for the calls of the selected run.

    A run has the id of its call in an attribute or in its result. Of senders that do not send it, a tool's run
    belongs to a call of its name, or of the name of its tool, in the order of time.
    """
    calls = find_tool_calls(view.run)
    runs: dict[str, TreeNode] = {}
    unnamed: list[tuple[TreeNode, list[str]]] = []  # with the names of the tool
    tools = [node for node in view.ended if node.kind == "tool"][:MAX_TOOL_RUNS] if calls else []
    for node in tools:
        run = view.load_run(node.span_id)
        identity = next((str(run.attributes[name]) for name in _CALL_ID_ATTRIBUTES if run.attributes.get(name)), None)
        results = [block for message in content.read_content(run.outputs).messages for block in message.blocks]
        identity = identity or next((block.call_id for block in results if block.call_id), None)
        if identity in calls:
            runs.setdefault(identity, node)
        elif identity is None:
            unnamed.append((node, [str(run.attributes.get(name)) for name in _TOOL_NAME_ATTRIBUTES]))
    for identity, name in calls.items():
        matching = (tool for tool in unnamed if name and (name in tool[0].name or name in tool[1]))
        if identity not in runs and (found := next(matching, None)):
            runs[identity] = found[0]
            unnamed.remove(found)
    return {
        identity: ToolRun(query.address(run=node.span_id), node.status == "error") for identity, node in runs.items()
    }


def find_tool_calls(run: Run) -> dict[str, str]:
    """Return the names of the tools that the messages of a run call, by the ids of the calls."""
    chats = [content.read_content(value).messages for value in (run.inputs, run.outputs)]
    shown = [message for chat in chats for message in (*chat[:MAX_CALL_MESSAGES], *chat[-MAX_CALL_MESSAGES:])]
    blocks = [block for message in shown for block in message.blocks if block.kind == "tool_call"]
    return {block.call_id: block.name for block in blocks if block.call_id}


def render_open_trace(store: Store, request: Request) -> Response:
    """Render a trace of which no run has ended. Raises `NotFound` if it has no open run either."""
    trace_id = request.path_params["trace_id"]
    runs = store.running(trace_id=trace_id)[::-1]
    if not runs:
        raise NotFound(f"there is no trace {trace_id!r} in this store")
    names = {run.span_id: run.name for run in runs}
    return rendering.render_page(request, "running.html", trace_id=trace_id, runs=runs, names=names)


def value_page(store: Store, request: Request) -> Response:
    """Return one complete value as plain text: `GET /traces/{trace_id}/runs/{span_id}/{part}`.

    The part `case` is a test case for a dataset, and `curl` is the model call as a command.
    """
    name = request.path_params["part"]
    if name not in (*_VALUE_FIELDS, "case", "curl"):
        raise NotFound(f"unknown field {name!r} of a run; expected one of: {', '.join(_VALUE_FIELDS)}, case, curl")
    run = store.run(request.path_params["trace_id"], request.path_params["span_id"])
    if name == "curl":
        return _plain_text(content.format_curl(run.inputs, run.model))
    if name == "case":
        origin = {"trace_id": run.trace_id, "span_id": run.span_id}
        case = {"inputs": run.inputs, "reference_outputs": run.outputs, "metadata": origin}
        return _plain_text(json.dumps(case, ensure_ascii=False, default=str))
    value = getattr(run, name)
    if isinstance(value, tuple) and name != "tools":  # documents or events
        value = [{field: getattr(item, field) for field in item.__dataclass_fields__} for item in value]
    return _plain_text(value if isinstance(value, str) else format_json(value))


def _plain_text(text: str) -> Response:
    return PlainTextResponse(text.encode("utf-8", "replace"), headers=rendering.SECURITY_HEADERS)


def media_page(store: Store, request: Request) -> Response:
    """Return an embedded image or recording: `GET /traces/{trace_id}/runs/{span_id}/media/{part}?at={place}`.

    The type is that of the bytes. Raises `NotFound` for other types and for data over the size limit.
    """
    part, place = request.path_params["part"], request.query_params.get("at", "")
    if part not in _MEDIA_FIELDS:
        raise NotFound(f"{part!r} has no images or recordings; expected one of: {', '.join(_MEDIA_FIELDS)}")
    run = store.run(request.path_params["trace_id"], request.path_params["span_id"])
    block = content.find_medium(getattr(run, part), place)
    media = content.decode_media(block) if block else None
    if media is None:
        most = content.MAX_MEDIA_BYTES // 2**20
        raise NotFound(
            f"there is no image or recording of a known type and at most {most} MiB at {place!r} of the {part}"
        )
    headers = {**rendering.SECURITY_HEADERS, "Content-Security-Policy": "default-src 'none'; sandbox"}
    headers |= {"Content-Disposition": "inline", "Cache-Control": "private, max-age=3600"}
    return Response(media.content, headers=headers, media_type=media.media_type)


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

    Returns the URL of the trace with the run that was shown, and with the list that led to it.
    """
    trace_id = request.path_params["trace_id"]
    store.add_feedback([build_human_feedback(trace_id, fields)])
    state = TreeQuery(fields.get("run") or None, origin=fields.get("from")).address().removesuffix("?")
    return f"/traces/{rendering.quote_segment(trace_id)}{state}#feedback"


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
    """Parse a form value as (score, label): numbers, and yes or no (true or false), are scores, other texts labels."""
    if (word := text.lower()) in ("true", "false", "yes", "no"):
        return word in ("true", "yes"), None
    try:
        return float(text), None
    except ValueError:
        return None, text
