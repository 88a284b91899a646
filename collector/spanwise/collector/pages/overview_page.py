"""Overview page: totals of live traffic over a time range."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from spanwise.collector.pages.components import filter_form, preferences, rendering
from spanwise.collector.pages.traces import load_overview
from spanwise.collector.stores import Store

_PARAMETERS = frozenset(("project", "environment", "since", "until"))
_DEFAULT_RANGE = "24h"


def overview(store: Store, request: Request) -> Response:
    """Render the overview: `GET /`.

    The trace list had this address before. A query that has other conditions redirects there.
    """
    params = request.query_params.multi_items()
    if any(name not in _PARAMETERS for name, _ in params):
        return RedirectResponse(f"{filter_form.TRACE_LIST}?{request.url.query}", headers=rendering.SECURITY_HEADERS)
    if not any(name == "since" and text for name, text in params):
        params.append(("since", _DEFAULT_RANGE))
    query = filter_form.read_query(params, zone=preferences.read_preferences(request).time_zone)
    until_ns = query.filter.until_ns or time.time_ns()
    found = load_overview(store, query.filter, query.filter.since_ns or until_ns - 86_400 * 10**9, until_ns)
    return rendering.render_page(
        request,
        "overview.html",
        status=422 if query.problems else 200,
        query=query,
        overview=found,
        trust={},
        empty=found is None and not store.traces(limit=1).items,
    )
