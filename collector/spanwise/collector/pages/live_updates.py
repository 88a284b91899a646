"""Live updates: server-sent events that say how many traces of a reader's list have changed.

One reader of the change feed serves all viewers. It evaluates their filters together, and only while somebody watches.
A quiet list costs a viewer three bytes every 20 seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from spanwise.collector.errors import Refused, StoreError, Unavailable
from spanwise.collector.filters import Filter, validate_rule_filter
from spanwise.collector.pages.components import filter_form, preferences, rendering
from spanwise.collector.records import ChangePage
from spanwise.collector.security import get_access
from spanwise.collector.stores import FeedStore

POLL_S = 2.0  # time between two readings of the change feed
CHECK_S = 0.5  # time after which a stream notices that the server stops
KEEPALIVE_S = 20.0  # a stream without events sends a comment, so that silently closed connections end
MAX_STREAM_S = 900.0  # the browser connects again, and its permissions are checked again
MAX_VIEWERS = 1_000
MAX_FILTERS = 400  # viewers with further filters hear of every change in their project
MAX_COUNTED = 1_000  # changed traces that are counted for one event
_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Viewer:
    """Open stream of a reader: the filter (None: all traces), the project of the key, and the traces to report."""

    filter: Filter | None
    project: str | None
    changed: set[str] = field(default_factory=set)
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class LiveFeed:
    """Viewers of a server, and the task that reads the change feed for them. Use it on one event loop."""

    def __init__(self, store: FeedStore, is_running: Callable[[], bool]) -> None:
        self._store, self._is_running = store, is_running
        self._viewers: set[Viewer] = set()
        self._cursor = ""  # position in the change feed
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the change feed from now on, unless it is being read. Raises `StoreError`."""
        if not self._viewers:
            self._cursor = str(await run_in_threadpool(self._store.latest_change))

    async def stream(self, filter: Filter | None, project: str | None) -> AsyncIterator[str]:
        """Yield server-sent events with the number of traces that have changed since the last event."""
        viewer = Viewer(filter, project)
        self._viewers.add(viewer)
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch())
        try:
            yield "retry: 3000\n\n"
            begin = sent = time.monotonic()
            while self._is_running() and (now := time.monotonic()) < begin + MAX_STREAM_S:
                if viewer.changed:
                    yield f"data: {len(viewer.changed)}\n\n"
                    viewer.changed.clear()
                    sent = now
                elif now > sent + KEEPALIVE_S:
                    yield ":\n\n"
                    sent = now
                viewer.wake.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(viewer.wake.wait(), CHECK_S)
        finally:
            self._viewers.discard(viewer)

    @property
    def is_full(self) -> bool:
        """Return whether no further viewer is accepted."""
        return len(self._viewers) >= MAX_VIEWERS

    async def _watch(self) -> None:
        """Read the change feed while somebody watches."""
        while self._viewers and self._is_running():
            filters = {repr(viewer.filter): viewer.filter for viewer in self._viewers if viewer.filter}
            evaluated = dict(islice(filters.items(), MAX_FILTERS))
            read = partial(self._store.changes, limit=MAX_COUNTED, filters=list(evaluated.values()))
            try:
                page = await run_in_threadpool(read, self._cursor)
                self._cursor = page.cursor
                self._report(page, {text: place for place, text in enumerate(evaluated)})
            except StoreError as error:
                _log.debug("live updates could not read the change feed: %s", error)
            await asyncio.sleep(POLL_S)

    def _report(self, page: ChangePage, places: Mapping[str, int]) -> None:
        """Wake the viewers whose filter a changed trace passes. `places` are those of the filters in the results."""
        for viewer in self._viewers:
            place = places.get(repr(viewer.filter))
            for head in page.heads:
                if viewer.project not in (None, head.project) or len(viewer.changed) >= MAX_COUNTED:
                    continue
                if place is None or head.passes[place] is not False:
                    viewer.changed.add(head.trace_id)
            if viewer.changed:
                viewer.wake.set()


async def live(request: Request) -> Response:
    """Stream the number of changed traces that pass the filter of the address: `GET /live`. Raises `Refused`."""
    feed: LiveFeed | None = getattr(request.app.state, "live_feed", None)
    if feed is None:
        store = request.app.state.store
        if not isinstance(store, FeedStore):
            raise Refused("this store has no change feed; reload the page to see what is new")
        feed = request.app.state.live_feed = LiveFeed(store, lambda: request.app.state.ready())
    if feed.is_full:
        raise Unavailable(f"{MAX_VIEWERS} readers watch this server already; retry later", 60.0)
    await feed.start()
    zone = preferences.read_preferences(request).time_zone
    asked = filter_form.read_query(request.query_params.multi_items(), zone=zone).filter
    try:
        filter: Filter | None = validate_rule_filter(asked)
    except Refused:  # the feed cannot evaluate it: every change is reported
        filter = None
    headers = {**rendering.SECURITY_HEADERS, "X-Accel-Buffering": "no"}
    stream = feed.stream(filter, get_access(request.scope).project)
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)
