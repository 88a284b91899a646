"""Sessions, and one session as the conversation that it was."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from assay.collector.errors import NotFound
from assay.collector.pages import _feedback, _query, _render, _traces
from assay.collector.records import Target
from assay.collector.stores import Store

_TURNS = 20


def sessions(store: Store, request: Request) -> Response:
    """`GET /sessions`."""
    query = _query.read(request.query_params, live=False)
    page = store.sessions(query.filter, limit=_traces.PAGE, cursor=query.fields.get("cursor"))
    known = store.values("project"), store.values("environment")
    return _render.html(request, "sessions.html", query=query, page=page, projects=known[0], environments=known[1])


def session(store: Store, request: Request) -> Response:
    """`GET /sessions/{session_id}`: its turns, oldest first, the newest twenty unless older ones are asked for."""
    session_id = request.path_params["session_id"]
    cursor = request.query_params.get("cursor")
    page = store.traces(session=session_id, limit=_TURNS, cursor=cursor)
    if not page.items and not cursor:
        raise NotFound(f"there is no session {session_id!r}")
    turns = list(reversed(page.items))
    whole = {trace.trace_id: trace for trace in store.many([turn.trace_id for turn in turns])}
    chips = _feedback.by_trace(store, turns)
    return _render.html(
        request,
        "session.html",
        session_id=session_id,
        turns=turns,
        whole=whole,
        chips=chips,
        older=page.next,
        own=_feedback.voices(store.feedbacks(target=Target(session_id=session_id))),
        summary=next(iter(store.sessions(session=session_id, limit=1)), None),
        paged=cursor is not None,
    )
