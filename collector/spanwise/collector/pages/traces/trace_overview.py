"""Overview of a trace: question, answer, and the documents between them.

It is shown above the tree, and answers what was asked, what was answered, and from which documents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spanwise.collector import content
from spanwise.collector.pages.components.content_view import BlockView, ContentView, ValueView
from spanwise.collector.pages.components.feedback_display import FeedbackChip, get_author_chips
from spanwise.collector.records import Document, Feedback, Run, TreeNode

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
