"""Query scheduler: concurrency limits, fair queueing and cancellation of queries from requests.

There are two lanes, so that what looks at many traces does not hold up what looks at few. Health and OTLP take neither.
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

from spanwise.collector.errors import Unavailable
from spanwise.collector.request_context import CancellableQuery, query_context
from spanwise.collector.security.authorization import get_access

QUERY_TIMEOUT_S = 10.0  # that a question may run
MAX_CONCURRENT_QUERIES = 7  # questions of both lanes: of the readers of a store one is left to this process itself
MAX_CONCURRENT_SCANS = max(
    2, min(MAX_CONCURRENT_QUERIES - 2, os.cpu_count() or 2)
)  # of them: more would only share the same cores
MAX_QUEUED_QUERIES, QUEUE_TIMEOUT_S = 100, 10.0  # questions that wait in a lane at most, and seconds that one waits
DISCONNECT_CHECK_DELAY_S, DISCONNECT_CHECK_INTERVAL_S = (
    0.05,
    0.05,
)  # seconds until somebody looks whether the caller is there still, and between two looks
MAX_PENDING_RESPONSE_BYTES = 256 * 1024 * 1024  # bytes of answers together that wait to be taken
CLIENT_CLOSED_REQUEST = 499  # nginx's status for a request that nobody waits for any more; nobody reads it


class QueryScheduler:
    """For one event loop. `seconds`: how long a question may run, None for any time."""

    def __init__(self, seconds: float | None = QUERY_TIMEOUT_S) -> None:
        self.seconds = seconds
        self._narrow, self._wide = (
            FairQueue(MAX_CONCURRENT_QUERIES - MAX_CONCURRENT_SCANS),
            FairQueue(MAX_CONCURRENT_SCANS),
        )
        self._held = 0

    def hold(self, size: int) -> bool:
        """Count the bytes of an answer that is being sent; False where others hold too many already."""
        if self._held and self._held + size > MAX_PENDING_RESPONSE_BYTES:
            return False
        self._held += size
        return True

    def let_go(self, size: int) -> None:
        """They have been sent, or never will be."""
        self._held -= size

    async def answer(
        self, request: Request, work: Callable[[], Response], *, wide: bool = False, endless: bool = False
    ) -> Response:
        """What `work` makes, in a thread, when it is this request's turn. `endless`: it bounds itself.

        Raises what it raises, and `Unavailable` where there are too many.
        """
        caller, lane = _Caller(request), self._wide if wide else self._narrow
        try:
            if not await lane.enter(caller):
                return Response(status_code=CLIENT_CLOSED_REQUEST)
            try:
                question = CancellableQuery(
                    f"{request.method} {request.scope['path']}", None if endless else self.seconds
                )
                return await _run_query(work, question, caller)
            finally:
                lane.leave()
        finally:
            caller.forget()


class _Caller:
    """Who asks, and whether they wait still, which is found out from the moment that somebody wants to know."""

    def __init__(self, request: Request) -> None:
        access = get_access(request.scope)
        self.name = access.key or access.address
        self._request, self._gone = request, None

    _gone: asyncio.Task[None] | None

    @property
    def gone(self) -> asyncio.Task[None]:
        """Done when the connection is."""
        if self._gone is None:
            self._gone = asyncio.ensure_future(self._leaves())
        return self._gone

    async def _leaves(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass

    def forget(self) -> None:
        """Nobody wants to know any more."""
        if self._gone is not None:
            self._gone.cancel()


class FairQueue:
    """At most `places` questions at once; those that wait come in turn, caller by caller, however many one asks."""

    def __init__(self, places: int) -> None:
        self._free, self._waiting = places, 0
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def enter(self, caller: _Caller) -> bool:
        """Wait for a place; False if the caller leaves before. Raises `Unavailable` where too many wait, or long."""
        if self._free:
            self._free -= 1
            return True
        if self._waiting >= MAX_QUEUED_QUERIES:
            raise Unavailable(f"{MAX_QUEUED_QUERIES} questions wait for their turn already; ask again in a moment", 2.0)
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(caller.name, deque()).append(turn)
        self._waiting += 1
        try:
            await asyncio.wait({turn, caller.gone}, timeout=QUEUE_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if turn.done():  # it was its turn just now
                self.leave()
            raise
        finally:
            self._waiting -= 1
            turn.cancel()
        if turn.cancelled() and not caller.gone.done():
            raise Unavailable(
                f"other questions took all places for {QUEUE_TIMEOUT_S:g} seconds; ask again in a moment", 2.0
            )
        return not turn.cancelled()

    def leave(self) -> None:
        """Give the place to the next caller's first question."""
        while self._lines:
            name, line = self._lines.popitem(last=False)
            turn = line.popleft()
            if line:
                self._lines[name] = line
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


async def _run_query(work: Callable[[], Response], question: CancellableQuery, caller: _Caller) -> Response:
    with query_context(question):
        # A limiter of its own, which never makes it wait: the lane has done that
        running = asyncio.ensure_future(to_thread.run_sync(work, limiter=CapacityLimiter(1)))
    running.add_done_callback(_retrieve_exception)
    try:
        await asyncio.wait({running}, timeout=DISCONNECT_CHECK_DELAY_S)
        while not running.done():
            if caller.gone.done():
                question.leave()
            if question.is_over:
                question.interrupt()
            await _wait_for_either(running, caller.gone)
    except asyncio.CancelledError:  # the server ends
        question.leave()
        question.interrupt()
        raise
    return Response(status_code=CLIENT_CLOSED_REQUEST) if question.was_left else running.result()


async def _wait_for_either(running: asyncio.Future[Response], gone: asyncio.Task[None]) -> None:
    both: list[asyncio.Future[Any]] = [running] if gone.done() else [running, gone]
    await asyncio.wait(both, timeout=DISCONNECT_CHECK_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED)


def _retrieve_exception(done: asyncio.Future[Response]) -> None:
    """Of what nobody waits for any more nobody looks why it failed."""
    with suppress(asyncio.CancelledError):
        done.exception()
