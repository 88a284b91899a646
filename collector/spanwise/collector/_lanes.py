"""Questions to the store as requests ask them: so many at once, everybody in turn, and none that nobody waits for.

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

from spanwise.collector._access import access_of
from spanwise.collector._asking import Question, asked
from spanwise.collector.errors import Unavailable

SECONDS = 10.0  # that a question may run
AT_ONCE = 7  # questions of both lanes: of the readers of a store one is left to this process itself
WIDE = max(2, min(AT_ONCE - 2, os.cpu_count() or 2))  # of them: more would only share the same cores
WAITING, WAIT = 100, 10.0  # questions that wait in a lane at most, and seconds that one waits
SOON, TICK = 0.05, 0.05  # seconds until somebody looks whether the caller is there still, and between two looks
HELD = 256 * 1024 * 1024  # bytes of answers together that wait to be taken
LEFT = 499  # nginx's status for a request that nobody waits for any more; nobody reads it


class Lanes:
    """For one event loop. `seconds`: how long a question may run, None for any time."""

    def __init__(self, seconds: float | None = SECONDS) -> None:
        self.seconds = seconds
        self._narrow, self._wide = Lane(AT_ONCE - WIDE), Lane(WIDE)
        self._held = 0

    def hold(self, size: int) -> bool:
        """Count the bytes of an answer that is being sent; False where others hold too many already."""
        if self._held and self._held + size > HELD:
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
                return Response(status_code=LEFT)
            try:
                question = Question(f"{request.method} {request.scope['path']}", None if endless else self.seconds)
                return await _run(work, question, caller)
            finally:
                lane.leave()
        finally:
            caller.forget()


class _Caller:
    """Who asks, and whether they wait still, which is found out from the moment that somebody wants to know."""

    def __init__(self, request: Request) -> None:
        access = access_of(request.scope)
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


class Lane:
    """At most `places` questions at once; those that wait come in turn, caller by caller, however many one asks."""

    def __init__(self, places: int) -> None:
        self._free, self._waiting = places, 0
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def enter(self, caller: _Caller) -> bool:
        """Wait for a place; False if the caller leaves before. Raises `Unavailable` where too many wait, or long."""
        if self._free:
            self._free -= 1
            return True
        if self._waiting >= WAITING:
            raise Unavailable(f"{WAITING} questions wait for their turn already; ask again in a moment", 2.0)
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(caller.name, deque()).append(turn)
        self._waiting += 1
        try:
            await asyncio.wait({turn, caller.gone}, timeout=WAIT, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if turn.done():  # it was its turn just now
                self.leave()
            raise
        finally:
            self._waiting -= 1
            turn.cancel()
        if turn.cancelled() and not caller.gone.done():
            raise Unavailable(f"other questions took all places for {WAIT:g} seconds; ask again in a moment", 2.0)
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


async def _run(work: Callable[[], Response], question: Question, caller: _Caller) -> Response:
    with asked(question):
        # A limiter of its own, which never makes it wait: the lane has done that
        running = asyncio.ensure_future(to_thread.run_sync(work, limiter=CapacityLimiter(1)))
    running.add_done_callback(_look_at)
    try:
        await asyncio.wait({running}, timeout=SOON)
        while not running.done():
            if caller.gone.done():
                question.leave()
            if question.is_over:
                question.interrupt()
            await _either(running, caller.gone)
    except asyncio.CancelledError:  # the server ends
        question.leave()
        question.interrupt()
        raise
    return Response(status_code=LEFT) if question.was_left else running.result()


async def _either(running: asyncio.Future[Response], gone: asyncio.Task[None]) -> None:
    both: list[asyncio.Future[Any]] = [running] if gone.done() else [running, gone]
    await asyncio.wait(both, timeout=TICK, return_when=asyncio.FIRST_COMPLETED)


def _look_at(done: asyncio.Future[Response]) -> None:
    """Of what nobody waits for any more nobody looks why it failed."""
    with suppress(asyncio.CancelledError):
        done.exception()
