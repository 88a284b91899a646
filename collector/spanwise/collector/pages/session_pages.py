"""Session list, a session shown as a conversation, and the page of a user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from spanwise.collector import content
from spanwise.collector.errors import NotFound
from spanwise.collector.filters import SESSION_COLUMNS
from spanwise.collector.pages.components import feedback_display, filter_form, preferences, rendering
from spanwise.collector.pages.components.content_view import BlockView, ContentView, ValueView
from spanwise.collector.pages.components.feedback_display import TraceFeedback
from spanwise.collector.pages.traces import TRACES_PER_PAGE, find_exchange, find_open_root
from spanwise.collector.records import OpenRun, Run, Target, Trace, TraceSummary
from spanwise.collector.stores import Store

_MAX_TURNS = 20
_STEP_KINDS = frozenset(("tool", "retriever"))  # kinds of runs that a conversation shows between question and answer
MAX_TURN_RUNS = 1_000  # runs of a trace that is read whole; of a larger one, only the root is read
MAX_TURN_CHARACTERS = 16_000  # of question and answer of one turn
_LISTED = 10  # sessions and traces on the page of a user


@dataclass(frozen=True, slots=True)
class Turn:
    """One trace of a session: the question, the tools that ran, and the answer with its feedback.

    `steps` are the tool calls and retrievals below the root, by start time; None if the trace is too large to read.
    """

    summary: TraceSummary
    feedback: TraceFeedback | None
    question: BlockView | ValueView
    answer: BlockView | ValueView
    steps: Sequence[Run] | None = ()
    open_root: OpenRun | None = None  # root of the trace, if it has not ended: its question is not known yet


def build_turn(
    store: Store, summary: TraceSummary, trace: Trace | None, feedback: TraceFeedback | None, *, raw: bool
) -> Turn:
    """Return a turn with the question and the answer of its trace; with `raw`, as they were sent.

    `trace` is None if it is too large, so that only its root is read, or was deleted meanwhile, so that the beginnings
    of its values remain.
    """
    view = ContentView(limit=MAX_TURN_CHARACTERS, raw=raw)
    is_large = summary.span_count > MAX_TURN_RUNS
    question: BlockView | ValueView
    answer: BlockView | ValueView
    try:
        root = trace.root if trace else store.run(summary.trace_id)
    except NotFound:
        question, answer = (view.text(rendering.shorten_preview(text)) for text in (summary.inputs, summary.outputs))
        return Turn(summary, feedback, question, answer)
    runs = trace.runs if trace else ()
    found = find_exchange(root, runs, {run.span_id: run for run in runs}.__getitem__)
    inputs, outputs = found.asked_in.inputs, found.answered_in.outputs
    if raw:
        question, answer = view.value(inputs), view.value(outputs)
    else:
        question = view.text(found.question or content.summarize(inputs))
        answer = view.text(found.answer or content.summarize(outputs))
    steps = [run for run in runs if run.kind in _STEP_KINDS and run.span_id != root.span_id]
    running = trace.running if trace else store.running(trace_id=summary.trace_id) if summary.running else ()
    return Turn(summary, feedback, question, answer, None if is_large else steps, find_open_root(root, running))


def sessions(store: Store, request: Request) -> Response:
    """Render the session list: `GET /sessions`."""
    zone = preferences.read_preferences(request).time_zone
    query = filter_form.read_query(request.query_params.multi_items(), live=False, zone=zone)
    sort, query = filter_form.read_sort(query, SESSION_COLUMNS)
    return rendering.render_page(
        request,
        "sessions.html",
        status=422 if query.problems else 200,
        query=query,
        sort_links=filter_form.SortLinks(sort or "-start", lambda order: query.address("/sessions", sort=order)),
        page=store.sessions(query.filter, sort=sort, limit=TRACES_PER_PAGE, cursor=query.fields.get("cursor")),
        sorts=filter_form.SESSION_SORT_LABELS,
        environments=store.values("environment"),
    )


def session(store: Store, request: Request) -> Response:
    """Render one session as a conversation: `GET /sessions/{session_id}`.

    A page shows twenty turns from the start of the conversation, or from its end with `order=latest`. Its cursor leads
    to the next ones. With `view=raw`, inputs and outputs are shown as they were sent; a cookie remembers the choice.
    """
    session_id = request.path_params["session_id"]
    cursor = request.query_params.get("cursor")
    order = "latest" if request.query_params.get("order") == "latest" else "oldest"
    sort = "start" if order == "oldest" else None
    page = store.traces(session=session_id, limit=_MAX_TURNS, cursor=cursor, sort=sort)
    if not page.items and not cursor:
        raise NotFound(f"there is no session {session_id!r}")
    small = [summary.trace_id for summary in page if summary.span_count <= MAX_TURN_RUNS]
    by_id = {trace.trace_id: trace for trace in store.many(small)}
    feedback = feedback_display.load_feedback(store, page.items)
    raw = preferences.is_raw(request)
    turns = [
        build_turn(store, summary, by_id.get(summary.trace_id), feedback.get(summary.trace_id), raw=raw)
        for summary in page
    ]
    response = rendering.render_page(
        request,
        "session.html",
        session_id=session_id,
        turns=turns,
        order=order,
        further=page.next,
        own=feedback_display.get_author_chips(store.feedbacks(target=Target(session_id=session_id))),
        summary=next(iter(store.sessions(session=session_id, limit=1)), None),
        cursor=cursor,
        raw=raw,
    )
    return preferences.remember_view(request, response)


def user(store: Store, request: Request) -> Response:
    """Render a user: totals, feedback, sessions and traces: `GET /users/{user_id}?sort=&sort_sessions=`."""
    user_id = request.path_params["user_id"]
    total = next(iter(store.aggregate(user=user_id)), None)
    if total is None:
        raise NotFound(f"there is no trace of user {user_id!r}")
    orders = {name: order for name in ("sort", "sort_sessions") if (order := request.query_params.get(name))}

    def address(**changed: str) -> str:
        return f"?{urlencode({**orders, **changed}, errors='replace')}"

    return rendering.render_page(
        request,
        "user.html",
        user_id=user_id,
        total=total,
        orders=orders,
        session_links=filter_form.SortLinks(
            orders.get("sort_sessions", "-start"), lambda order: address(sort_sessions=order)
        ),
        trace_links=filter_form.SortLinks(orders.get("sort", "-start"), lambda order: address(sort=order)),
        sessions=store.sessions(user=user_id, sort=orders.get("sort_sessions"), limit=_LISTED),
        traces=store.traces(user=user_id, sort=orders.get("sort"), limit=_LISTED),
    )
