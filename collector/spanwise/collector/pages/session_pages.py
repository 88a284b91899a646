"""Session list, a session shown as a conversation, and the page of a user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from spanwise.collector.errors import NotFound
from spanwise.collector.pages.components import feedback_display, filter_form, preferences, rendering
from spanwise.collector.pages.components.feedback_display import TraceFeedback
from spanwise.collector.pages.traces import TRACES_PER_PAGE
from spanwise.collector.records import JSON, Run, Target, Trace, TraceSummary
from spanwise.collector.sorting import SESSION_COLUMNS
from spanwise.collector.stores import Store

_MAX_TURNS = 20
_STEP_KINDS = frozenset(("tool", "retriever"))  # kinds of runs that a conversation shows between question and answer
_LISTED = 10  # sessions and traces on the page of a user


@dataclass(frozen=True, slots=True)
class Turn:
    """One trace of a session: what the user said, the tools that ran, and the answer with its feedback."""

    summary: TraceSummary
    trace: Trace | None  # None if it was deleted meanwhile
    feedback: TraceFeedback | None

    @property
    def inputs(self) -> JSON:
        """Return the complete inputs; their beginning if the trace no longer exists."""
        return self.trace.root.inputs if self.trace else rendering.shorten_preview(self.summary.inputs)

    @property
    def outputs(self) -> JSON:
        """Return the complete outputs; their beginning if the trace no longer exists."""
        return self.trace.root.outputs if self.trace else rendering.shorten_preview(self.summary.outputs)

    @property
    def steps(self) -> Sequence[Run]:
        """Return the tool calls and retrievals below the root, by start time."""
        if self.trace is None:
            return []
        root = self.trace.root.span_id
        return [run for run in self.trace.runs if run.kind in _STEP_KINDS and run.span_id != root]


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

    A page shows the newest twenty turns, oldest first, or latest first with `order=latest`. Its cursor leads to older
    turns.
    """
    session_id = request.path_params["session_id"]
    cursor = request.query_params.get("cursor")
    order = "latest" if request.query_params.get("order") == "latest" else "oldest"
    page = store.traces(session=session_id, limit=_MAX_TURNS, cursor=cursor)
    if not page.items and not cursor:
        raise NotFound(f"there is no session {session_id!r}")
    by_id = {trace.trace_id: trace for trace in store.many([summary.trace_id for summary in page])}
    feedback = feedback_display.load_feedback(store, page.items)
    turns = [Turn(summary, by_id.get(summary.trace_id), feedback.get(summary.trace_id)) for summary in page]
    return rendering.render_page(
        request,
        "session.html",
        session_id=session_id,
        turns=turns if order == "latest" else turns[::-1],
        order=order,
        further=page.next,
        own=feedback_display.get_author_chips(store.feedbacks(target=Target(session_id=session_id))),
        summary=next(iter(store.sessions(session=session_id, limit=1)), None),
        paged=cursor is not None,
    )


def user(store: Store, request: Request) -> Response:
    """Render the page of a user: totals, feedback, sessions and latest traces: `GET /users/{user_id}`."""
    user_id = request.path_params["user_id"]
    total = next(iter(store.aggregate(user=user_id)), None)
    if total is None:
        raise NotFound(f"there is no trace of user {user_id!r}")
    return rendering.render_page(
        request,
        "user.html",
        user_id=user_id,
        total=total,
        sessions=store.sessions(user=user_id, limit=_LISTED),
        traces=store.traces(user=user_id, limit=_LISTED),
    )
