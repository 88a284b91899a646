"""Session list, and a session shown as a conversation."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from spanwise.collector.errors import NotFound
from spanwise.collector.pages.components import feedback_display, filter_form, rendering
from spanwise.collector.pages.traces import TRACES_PER_PAGE
from spanwise.collector.records import Target
from spanwise.collector.sorting import SESSION_COLUMNS
from spanwise.collector.stores import Store

_MAX_TURNS = 20


def sessions(store: Store, request: Request) -> Response:
    """Render the session list: `GET /sessions`."""
    query = filter_form.read_query(request.query_params.multi_items(), live=False)
    sort, query = filter_form.read_sort(query, SESSION_COLUMNS)
    return rendering.render_page(
        request,
        "sessions.html",
        status=422 if query.problems else 200,
        query=query,
        page=store.sessions(query.filter, sort=sort, limit=TRACES_PER_PAGE, cursor=query.fields.get("cursor")),
        projects=store.values("project"),
        environments=store.values("environment"),
    )


def session(store: Store, request: Request) -> Response:
    """Render one session as a conversation, oldest turn first: `GET /sessions/{session_id}`.

    A page shows the newest twenty turns; its cursor leads to older ones.
    """
    session_id = request.path_params["session_id"]
    cursor = request.query_params.get("cursor")
    page = store.traces(session=session_id, limit=_MAX_TURNS, cursor=cursor)
    if not page.items and not cursor:
        raise NotFound(f"there is no session {session_id!r}")
    turns = list(reversed(page.items))
    return rendering.render_page(
        request,
        "session.html",
        session_id=session_id,
        turns=turns,
        whole={trace.trace_id: trace for trace in store.many([turn.trace_id for turn in turns])},
        chips=feedback_display.load_chips(store, turns),
        older=page.next,
        own=feedback_display.get_author_chips(store.feedbacks(target=Target(session_id=session_id))),
        summary=next(iter(store.sessions(session=session_id, limit=1)), None),
        paged=cursor is not None,
    )
