"""Side panel of the trace list: question, answer and scores of one trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from spanwise.collector.errors import NotFound
from spanwise.collector.pages.components.content_view import BlockView, ContentView, ValueView
from spanwise.collector.pages.components.feedback_display import (
    DocumentFeedback,
    FeedbackChip,
    get_author_chips,
    summarize_documents,
)
from spanwise.collector.pages.traces.trace_overview import find_exchange
from spanwise.collector.records import Run, TraceSummary
from spanwise.collector.stores import Store

MAX_CHARACTERS = 6_000  # of question and answer together
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
    found, view = find_exchange(root, nodes, partial(store.run, trace_id)), ContentView(limit=MAX_CHARACTERS, raw=raw)
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
