"""Two traces side by side: totals, question, answer, documents, scores, and runs aligned by name and order."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from spanwise.collector import formatting
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.pages.components import feedback_display, preferences, rendering
from spanwise.collector.pages.components.feedback_display import FeedbackChip, MetricInfo, TraceFeedback
from spanwise.collector.pages.traces.trace_detail import TraceView, load_summary, load_view
from spanwise.collector.pages.traces.trace_overview import DocumentRow, TraceOverview, build_overview
from spanwise.collector.records import TraceSummary, TreeNode
from spanwise.collector.stores import Store

MAX_RUN_ROWS = 500
_MAX_CANDIDATES = 12  # traces that are offered for a comparison
_SECONDS, _DOLLARS, _PLAIN = MetricInfo(unit="s"), MetricInfo(unit="$"), MetricInfo()


@dataclass(frozen=True, slots=True)
class ComparedTrace:
    """One of the two traces."""

    view: TraceView
    summary: TraceSummary
    overview: TraceOverview
    feedback: TraceFeedback

    @property
    def trace_id(self) -> str:
        """Return the id of the trace."""
        return self.summary.trace_id

    @property
    def failed(self) -> bool:
        """Return whether the root has failed."""
        return self.view.root.status == "error"


class Comparison(NamedTuple):
    """One fact about both traces, as text. `difference` is "" if it is not a number or unknown for one of them."""

    name: str
    left: str
    right: str
    difference: str = ""


class DocumentPair(NamedTuple):
    """One document in the results of both traces; None if a trace did not retrieve it."""

    left: DocumentRow | None
    right: DocumentRow | None


class ScorePair(NamedTuple):
    """The latest feedback under a key on both traces."""

    key: str
    left: FeedbackChip | None
    right: FeedbackChip | None
    difference: str


class RunPair(NamedTuple):
    """One run in both traces; None if a trace has no such run. `difference` is that of the durations."""

    depth: int
    left: TreeNode | None
    right: TreeNode | None

    @property
    def run(self) -> TreeNode:
        """Return the run of the first trace, or else that of the second."""
        run = self.left or self.right
        assert run is not None
        return run

    @property
    def difference(self) -> str:
        """Return the difference of the durations; "" if a trace has no such run."""
        if self.left is None or self.right is None:
            return ""
        return _SECONDS.signed((self.right.duration_ns - self.left.duration_ns) / 1e9)


def compare_traces(store: Store, request: Request) -> Response:
    """Render two traces side by side: `GET /traces/compare?ids={trace_id},{trace_id}`.

    `ids` may be repeated instead. With one id, the page offers traces of the same name. Each may also be the address
    of a trace's page.
    """
    given = [text for part in request.query_params.getlist("ids") for text in part.split(",") if text.strip()]
    if not 1 <= len(given) <= 2:
        raise Refused(f"select two traces to compare, such as /traces/compare?ids=A,B; got {len(given)}")
    ids = [read_trace_id(text) for text in given]
    first = load_summary(store, ids[0])
    if first is None:
        raise NotFound(f"there is no trace {ids[0]!r} in this store")
    second = load_summary(store, ids[1]) if len(ids) > 1 else None
    if second is None:
        problem = f"There is no trace {ids[1]!r} in this store." if len(ids) > 1 else ""
        return rendering.render_page(
            request,
            "compare_choice.html",
            status=404 if problem else 200,
            trace=first,
            typed=given[1].strip() if problem else "",
            problem=problem,
            candidates=list_candidates(store, first),
        )
    raw = preferences.is_raw(request)
    feedback = feedback_display.load_feedback(store, (first, second))
    sides = [
        load_side(store, summary, feedback.get(summary.trace_id, TraceFeedback({}, ())), raw=raw)
        for summary in (first, second)
    ]
    left, right = sides
    runs = align_runs(left.view.nodes, right.view.nodes)
    response = rendering.render_page(
        request,
        "compare_traces.html",
        sides=sides,
        address_of_pair=f"/traces/compare?ids={','.join(map(rendering.quote_segment, ids))}",
        raw=raw,
        totals=compare_totals(left, right),
        same_question=left.view.root.inputs == right.view.root.inputs,
        same_answer=left.view.root.outputs == right.view.root.outputs,
        documents=align_documents(left.overview.documents, right.overview.documents),
        scores=compare_scores(left.feedback, right.feedback),
        runs=runs[:MAX_RUN_ROWS],
        run_count=len(runs),
    )
    return preferences.remember_view(request, response)


def read_trace_id(text: str) -> str:
    """Return the trace id of a text: the id itself, or the address of the trace's page."""
    found = re.search(r"/traces/([^/?#]+)", text)
    return unquote(found[1]) if found else text.strip()


def list_candidates(store: Store, trace: TraceSummary) -> list[TraceSummary]:
    """Return traces to compare with: those of the same example, then the latest of the same name and project."""
    found = list(store.traces(example=trace.example_id, limit=_MAX_CANDIDATES)) if trace.example_id else []
    found += store.traces(project=trace.project, name=trace.name, limit=_MAX_CANDIDATES)
    others = {item.trace_id: item for item in found if item.trace_id != trace.trace_id}
    return list(others.values())[:_MAX_CANDIDATES]


def load_side(store: Store, summary: TraceSummary, feedback: TraceFeedback, *, raw: bool) -> ComparedTrace:
    """Load what the comparison shows of one trace. Raises `NotFound` if none of its runs has ended."""
    view = load_view(store, summary.trace_id, summary)
    overview = build_overview(view.root, view.ended, view.load_run, view.feedback, raw=raw)
    return ComparedTrace(view, summary, overview, feedback)


def compare_totals(left: ComparedTrace, right: ComparedTrace) -> list[Comparison]:
    """Return the totals of both traces with their differences. Those that both lack are left out."""
    numbers: Sequence[tuple[str, Callable[[TraceSummary], float | None], Callable[[float], str], MetricInfo]] = (
        ("Latency", lambda trace: trace.duration_ns / 1e9, _SECONDS.number, _SECONDS),
        ("First token", lambda trace: (trace.time_to_first_token_ms or 0) / 1000 or None, _SECONDS.number, _SECONDS),
        ("Input tokens", lambda trace: trace.input_tokens or None, _format_count, _PLAIN),
        ("Output tokens", lambda trace: trace.output_tokens or None, _format_count, _PLAIN),
        ("Cost", lambda trace: trace.cost, formatting.cost, _DOLLARS),
        ("Spans", lambda trace: trace.span_count, _format_count, _PLAIN),
        ("Failed spans", lambda trace: trace.error_count, _format_count, _PLAIN),
    )
    rows = []
    for name, read, show, unit in numbers:
        before, after = read(left.summary), read(right.summary)
        if before or after:
            first, second = (show(value) if value is not None else "–" for value in (before, after))
            rows.append(Comparison(name, first, second, describe_difference(before, after, unit)))
    texts_of: Sequence[tuple[str, Callable[[TraceSummary], str]]] = (
        ("Prompts", lambda trace: ", ".join(formatting.prompts(trace.prompts))),
        ("Agents", lambda trace: ", ".join(trace.agents)),
        ("Finish reasons", lambda trace: ", ".join(trace.finish_reasons)),
        ("Environment", lambda trace: trace.environment),
    )
    for name, describe in texts_of:
        first, second = (describe(side.summary)[:300] for side in (left, right))
        if first != second:
            rows.append(Comparison(name, first or "–", second or "–"))
    return rows


def _format_count(value: float) -> str:
    return formatting.count(int(value))


def describe_difference(before: float | None, after: float | None, unit: MetricInfo) -> str:
    """Return the difference in its unit, and in per cent of the first value; "" if a value is unknown."""
    if before is None or after is None:
        return ""
    share = f" ({formatting.signed(round(100 * (after - before) / before))} %)" if before and after != before else ""
    return unit.signed(after - before) + share


def align_documents(left: Sequence[DocumentRow], right: Sequence[DocumentRow]) -> list[DocumentPair]:
    """Pair documents of the same id, or of the same content if they have none. The order is that of the first trace."""
    others: dict[str, list[DocumentRow]] = {}
    for row in right:
        others.setdefault(row.document.id or row.document.content, []).append(row)
    pairs = []
    for row in left:
        same = others.get(row.document.id or row.document.content)
        pairs.append(DocumentPair(row, same.pop(0) if same else None))
    paired = {id(pair.right) for pair in pairs}
    return pairs + [DocumentPair(None, row) for row in right if id(row) not in paired]


def compare_scores(left: TraceFeedback, right: TraceFeedback) -> list[ScorePair]:
    """Return the latest feedback on both traces by key, with the difference of the scores."""
    pairs = []
    for key in sorted({*left.chips, *right.chips}):
        before, after = left.chips.get(key), right.chips.get(key)
        scores = [chip.feedback.score if chip else None for chip in (before, after)]
        known = [float(score) for score in scores if score is not None and not isinstance(score, bool)]
        pairs.append(ScorePair(key, before, after, formatting.signed(known[1] - known[0]) if len(known) == 2 else ""))
    return pairs


def align_runs(left: Sequence[TreeNode], right: Sequence[TreeNode]) -> list[RunPair]:
    """Pair the runs of two traces in depth-first order.

    Roots are paired by their order, whatever their names are. Runs below a pair are paired by name and kind: the
    first "search" with the first "search", and so on. A run that only the second trace has comes after the runs of
    the first trace below the same pair.
    """
    children_of = [_list_children(left), _list_children(right)]
    pairs: list[RunPair] = []
    roots = zip_longest(*(children.get(None, []) for children in children_of))
    stack = [RunPair(0, before, after) for before, after in roots][::-1]
    while stack:
        pair = stack.pop()
        pairs.append(pair)
        below = [
            children.get(run.position, []) if run else []
            for children, run in zip(children_of, (pair.left, pair.right), strict=True)
        ]
        stack += _pair_by_name(pair.depth + 1, *below)[::-1]
    return pairs


def _list_children(nodes: Sequence[TreeNode]) -> dict[int | None, list[TreeNode]]:
    """Return the runs right below each run by its position; those without a run above have the key None."""
    children: dict[int | None, list[TreeNode]] = {}
    above: list[TreeNode] = []
    for node in nodes:
        while above and above[-1].depth >= node.depth:
            above.pop()
        children.setdefault(above[-1].position if above else None, []).append(node)
        above.append(node)
    return children


def _pair_by_name(depth: int, left: Sequence[TreeNode], right: Sequence[TreeNode]) -> list[RunPair]:
    others: dict[tuple[str, str], list[TreeNode]] = {}
    for node in reversed(right):
        others.setdefault((node.name, node.kind), []).append(node)
    pairs = []
    for node in left:
        same = others.get((node.name, node.kind))
        pairs.append(RunPair(depth, node, same.pop() if same else None))
    remaining = {node.position for nodes in others.values() for node in nodes}
    return pairs + [RunPair(depth, None, node) for node in right if node.position in remaining]
