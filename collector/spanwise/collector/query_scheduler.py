"""Query scheduler: concurrency limits, fair queueing and cancellation of queries from requests.

Queries that scan many traces have their own lane, so that they cannot block queries that read a few. Health checks
and OTLP requests use neither lane.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from spanwise.collector.errors import Unavailable
from spanwise.collector.request_context import CancellableQuery, query_context
from spanwise.collector.security import get_access

QUERY_TIMEOUT_S = 10.0  # time limit of one query
# both lanes together; one reader connection of the store stays free for other work of this process
MAX_CONCURRENT_QUERIES = 7
# Scans are limited by the CPU: more of them would only compete for the same cores
MAX_CONCURRENT_SCANS = max(2, min(MAX_CONCURRENT_QUERIES - 2, os.cpu_count() or 2))
MAX_QUEUED_QUERIES, QUEUE_TIMEOUT_S = 100, 10.0  # in each lane
# Time until the first check whether the client has disconnected, and between further checks
DISCONNECT_CHECK_DELAY_S, DISCONNECT_CHECK_INTERVAL_S = 0.05, 0.05
MAX_PENDING_RESPONSE_BYTES = 256 * 1024 * 1024  # total size of the responses that clients have not read yet
CLIENT_CLOSED_REQUEST = 499  # nginx's status for a request whose client has disconnected, so no client ever sees it


class QueryScheduler:
    """Scheduler of queries on one event loop. `seconds` is the time limit of one query; None means no limit."""

    def __init__(self, seconds: float | None = QUERY_TIMEOUT_S) -> None:
        self.seconds = seconds
        self._lookups = FairQueue(MAX_CONCURRENT_QUERIES - MAX_CONCURRENT_SCANS)
        self._scans = FairQueue(MAX_CONCURRENT_SCANS)
        self._pending_bytes = 0

    def hold(self, size: int) -> bool:
        """Reserve memory for a response that is being sent; return False if other responses use too much already."""
        if self._pending_bytes and self._pending_bytes + size > MAX_PENDING_RESPONSE_BYTES:
            return False
        self._pending_bytes += size
        return True

    def let_go(self, size: int) -> None:
        """Release the memory of a response that was sent or dropped."""
        self._pending_bytes -= size

    async def answer(
        self, request: Request, work: Callable[[], Response], *, wide: bool = False, endless: bool = False
    ) -> Response:
        """Run `work` in a thread as soon as its lane has a free slot, and return its response.

        With `wide`, the query scans many traces and uses the lane for scans. With `endless`, the scheduler sets no
        time limit, because the query limits its own run time. Raises the errors of `work`, and `Unavailable` if the
        queue is full or the wait too long.
        """
        caller, lane = _Caller(request), self._scans if wide else self._lookups
        try:
            if not await lane.enter(caller):
                return Response(status_code=CLIENT_CLOSED_REQUEST)
            try:
                query = CancellableQuery(f"{request.method} {request.scope['path']}", None if endless else self.seconds)
                return await _run_query(work, query, caller)
            finally:
                lane.leave()
        finally:
            caller.stop_watching()


class _Caller:
    """Client of a request. The connection is watched only from the first access to `disconnect`."""

    def __init__(self, request: Request) -> None:
        access = get_access(request.scope)
        self.name = access.key or access.address
        self._request, self._disconnect = request, None

    _disconnect: asyncio.Task[None] | None

    @property
    def disconnect(self) -> asyncio.Task[None]:
        """Return a task that is done when the client has disconnected."""
        if self._disconnect is None:
            self._disconnect = asyncio.ensure_future(wait_for_disconnect(self._request.receive))
        return self._disconnect

    def stop_watching(self) -> None:
        """Stop watching the connection."""
        if self._disconnect is not None:
            self._disconnect.cancel()


class FairQueue:
    """Semaphore that lets `size` queries run at once. Waiting clients take turns, regardless of their number of
    queries.
    """

    def __init__(self, size: int) -> None:
        self._free, self._waiting = size, 0
        self._turns: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def enter(self, caller: _Caller) -> bool:
        """Wait for a place; return False if the client disconnects first.

        Raises `Unavailable` if too many queries wait, or if this query waits longer than `QUEUE_TIMEOUT_S`.
        """
        if self._free:
            self._free -= 1
            return True
        if self._waiting >= MAX_QUEUED_QUERIES:
            raise Unavailable(f"{MAX_QUEUED_QUERIES} queries are waiting already; retry in a moment", 2.0)
        turn = asyncio.get_running_loop().create_future()
        self._turns.setdefault(caller.name, deque()).append(turn)
        self._waiting += 1
        try:
            await asyncio.wait({turn, caller.disconnect}, timeout=QUEUE_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if turn.done():  # the place was granted at the moment of the cancellation
                self.leave()
            raise
        finally:
            self._waiting -= 1
            turn.cancel()
        if turn.cancelled() and not caller.disconnect.done():
            raise Unavailable(
                f"the query has waited {QUEUE_TIMEOUT_S:g} seconds for other queries; retry in a moment", 2.0
            )
        return not turn.cancelled()

    def leave(self) -> None:
        """Release the place to the first waiting query of the client whose turn it is."""
        while self._turns:
            name, turns = self._turns.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._turns[name] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


async def _run_query(work: Callable[[], Response], query: CancellableQuery, caller: _Caller) -> Response:
    with query_context(query):
        # The lane has already limited the concurrency, so each query gets its own thread limiter, which never blocks.
        running = asyncio.ensure_future(to_thread.run_sync(work, limiter=CapacityLimiter(1)))
    running.add_done_callback(_retrieve_exception)
    try:
        await asyncio.wait({running}, timeout=DISCONNECT_CHECK_DELAY_S)
        while not running.done():
            if caller.disconnect.done():
                query.leave()
            if query.is_over:
                query.interrupt()
            awaited: list[asyncio.Future[Any]] = [running] if caller.disconnect.done() else [running, caller.disconnect]
            await asyncio.wait(awaited, timeout=DISCONNECT_CHECK_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:  # the server is shutting down
        query.leave()
        query.interrupt()
        raise
    return Response(status_code=CLIENT_CLOSED_REQUEST) if query.was_left else running.result()


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client of a request has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _retrieve_exception(done: asyncio.Future[Response]) -> None:
    """Mark the exception of an abandoned query as retrieved, so that asyncio does not log it."""
    with suppress(asyncio.CancelledError):
        done.exception()
