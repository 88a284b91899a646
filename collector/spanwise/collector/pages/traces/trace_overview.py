"""Overview of a trace: question, answer and documents, the side panel, and its neighbours in the list.

It is shown above the tree, and answers what was asked, what was answered, and from which documents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import tzinfo
from functools import partial
from typing import cast
from urllib.parse import parse_qsl

from spanwise.collector import content
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.filters import TRACE_COLUMNS, Filter
from spanwise.collector.pages.components import filter_form
from spanwise.collector.pages.components.content_view import BlockView, ContentView, ValueView
from spanwise.collector.pages.components.feedback_display import (
    DocumentFeedback,
    FeedbackChip,
    get_author_chips,
    summarize_documents,
)
from spanwise.collector.records import Document, Feedback, Run, TraceSummary, TreeNode
from spanwise.collector.stores import Store

# Overview of a trace: question, answer, and the documents between them.

MAX_DOCUMENTS = 12
MAX_CHARACTERS = 16_000  # of all texts in the overview
_MAX_EXCERPT = 280  # characters of a document
_MAX_HOLDERS = 8  # runs with documents that are read
_MAX_MODEL_CALLS = 2  # model calls that are read for a question or answer that the root lacks


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """One retrieved document. `use` is "cited", "quoted" or ""."""

    rank: int
    document: Document
    excerpt: str
    use: str
    run: str  # span id of the run that returned it
    chips: Sequence[FeedbackChip]


@dataclass(frozen=True, slots=True)
class TraceOverview:
    """Question, answer and documents of a trace.

    Inputs or outputs without a text are shown as values. `question_run` and `answer_run` are the span ids of the runs
    from which they come.
    """

    question: BlockView | ValueView
    answer: BlockView | ValueView
    question_run: str
    answer_run: str
    documents: Sequence[DocumentRow]
    document_count: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """Question and answer of a trace, "" if unknown, with the runs that contain them."""

    question: str
    asked_in: Run
    answer: str
    answered_in: Run


def find_exchange(root: Run, nodes: Sequence[TreeNode | Run], load_run: Callable[[str], Run]) -> Exchange:
    """Return the question and the answer of a trace: those of the root, else those of its first and last model call."""
    question, asking = content.find_question(root.inputs), root
    answer, answering = content.find_answer(root.outputs), root
    calls = [node.span_id for node in nodes if node.kind == "llm"]
    # an agent of LlamaIndex, for example, has Python objects that say neither
    for span_id in calls[:_MAX_MODEL_CALLS] if not question else ():
        if question := content.find_question((asking := load_run(span_id)).inputs):
            break
    opaque = not answer and root.status != "error" and content.is_opaque(root.outputs)
    for span_id in calls[: -_MAX_MODEL_CALLS - 1 : -1] if opaque else ():
        if answer := content.find_answer((answering := load_run(span_id)).outputs):
            break
    return Exchange(question, asking if question else root, answer, answering if answer else root)


def build_overview(
    root: Run, nodes: Sequence[TreeNode], load_run: Callable[[str], Run], feedback: Sequence[Feedback], *, raw: bool
) -> TraceOverview:
    """Return the overview of a trace. `nodes` are its runs without content, and `load_run` returns one by its id."""
    view = ContentView(limit=MAX_CHARACTERS, raw=raw)
    found = find_exchange(root, nodes, load_run)
    question, answer = found.question, found.answer
    rows = list_documents(nodes, load_run, root, answer, feedback)
    return TraceOverview(
        question=view.text(question) if question and not raw else view.value(found.asked_in.inputs, ""),
        answer=view.text(answer) if answer and not raw else view.value(found.answered_in.outputs, ""),
        question_run=found.asked_in.span_id,
        answer_run=found.answered_in.span_id,
        documents=rows[:MAX_DOCUMENTS],
        document_count=len(rows),
    )


def list_documents(
    nodes: Sequence[TreeNode], load_run: Callable[[str], Run], root: Run, answer: str, feedback: Sequence[Feedback]
) -> list[DocumentRow]:
    """Return the retrieved documents with their use: those of the last reranker, else of the outermost retrievers.

    Without an `answer`, their use in the outputs of the root is shown.
    """
    rerankers = [node for node in nodes if node.kind == "reranker"]
    retrievers = [node for node in nodes if node.kind == "retriever"]
    outer = {node.span_id for node in retrievers}
    candidates = rerankers[::-1] + [node for node in retrievers if node.parent_id not in outer]
    candidates += [node for node in nodes if node.kind not in ("reranker", "retriever", "llm", "embedding")]
    holders: list[Run] = []
    for node in candidates[: _MAX_HOLDERS * 2]:
        run = load_run(node.span_id)
        if run.documents and (not holders or node.kind == "retriever" == holders[0].kind):
            holders.append(run)
        if holders and (holders[0].kind != "retriever" or len(holders) == _MAX_HOLDERS):
            break
    found = [(run, place, document) for run in holders for place, document in enumerate(run.documents)]
    if not found:
        return []
    answer = answer or content.summarize(root.outputs)
    uses = content.find_used_documents(answer, [document for _, _, document in found[:100]])
    by_document: dict[tuple[str, int], list[Feedback]] = {}
    for item in feedback:
        if item.target.span_id is not None and item.target.document is not None:
            by_document.setdefault((item.target.span_id, item.target.document), []).append(item)
    return [
        DocumentRow(
            rank=rank,
            document=document,
            excerpt=document.content[:_MAX_EXCERPT] + "…" * (len(document.content) > _MAX_EXCERPT),
            use=uses[rank - 1] if rank <= len(uses) else "",
            run=run.span_id,
            chips=get_author_chips(by_document.get((run.span_id, place), ())),
        )
        for rank, (run, place, document) in enumerate(found, 1)
    ]


# Side panel of the trace list: question, answer and scores of one trace.

MAX_PANEL_CHARACTERS = 6_000  # of question and answer together
MAX_SCORES = 40
_MAX_NODES = 200  # runs of the tree among which a question or answer that the root lacks is searched


@dataclass(frozen=True, slots=True)
class TracePanel:
    """Content of the panel. `summary` is None if the trace does not exist or no run of it has ended."""

    trace_id: str
    summary: TraceSummary | None = None
    root: Run | None = None
    question: BlockView | ValueView | None = None
    answer: BlockView | ValueView | None = None
    chips: Sequence[FeedbackChip] = ()
    documents: Sequence[DocumentFeedback] = ()
    score_count: int = 0


def load_panel(store: Store, trace_id: str, *, raw: bool) -> TracePanel:
    """Load the panel of a trace."""
    summary = next(iter(store.traces(trace_ids=(trace_id,), limit=1)), None)
    try:
        root = store.run(trace_id)
        nodes = store.tree(trace_id, limit=_MAX_NODES).items
    except NotFound:
        return TracePanel(trace_id)
    found, view = (
        find_exchange(root, nodes, partial(store.run, trace_id)),
        ContentView(limit=MAX_PANEL_CHARACTERS, raw=raw),
    )
    asked, answered = found.asked_in.inputs, found.answered_in.outputs
    feedback = store.feedbacks(trace_ids=(trace_id,)).items
    chips = get_author_chips(item for item in feedback if item.target.document is None)
    return TracePanel(
        trace_id,
        summary,
        root,
        None if asked is None else view.text(found.question) if found.question and not raw else view.value(asked, ""),
        None if answered is None else view.text(found.answer) if found.answer and not raw else view.value(answered, ""),
        chips[:MAX_SCORES],
        summarize_documents(feedback),
        len(chips),
    )


# Neighbours of a trace in the list from which it was opened.
#
# The URL of a trace has the list's own query in the parameter `from`, so that its page leads to the previous and the
# next trace of that list, and back to its row.

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
