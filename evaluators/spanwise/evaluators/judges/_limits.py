"""How many questions are under way at once, and how fast they follow one another: per endpoint, model and key.

All judges of this process that mean the same share one limit. Questions that were refused go before those that wait for
the first time.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import itertools
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from spanwise.evaluators.judges._headers import wait_asked
from spanwise.evaluators.judges._loop import kept
from spanwise.evaluators.judges._pace import Pace
from spanwise.evaluators.judges._retry import NoReply, is_refusal, is_unconnected
from spanwise.evaluators.protocol import headers_of, may_pass, status_of

if TYPE_CHECKING:
    from spanwise.evaluators.judges._judge import Judge

MOST = 256  # limits that are held at once; those that nobody uses go first
PATIENCE = 10.0  # seconds in which an endpoint that has not answered of late has to be reached
RECENT = 600.0  # seconds in which an answer shows that an endpoint was there


class _Waiting(NamedTuple):
    place: tuple[int, int, int]  # those that were refused first, then in the order in which they came; all different
    bound: int
    admitted: asyncio.Future[float]  # when the call starts


class Limiter:
    """Of one endpoint, model and key. Lives on the judges' loop."""

    def __init__(self, of: object) -> None:
        self.of = of  # held, so that its id stays its own
        self.pace = Pace()
        self.under_way = 0
        self._waiting: list[_Waiting] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._moved_at = 0.0  # when a call last ended otherwise than with what may pass
        self._answered_at: float | None = None
        self._unreachable_since: float | None = None

    @property
    def idle(self) -> bool:
        """Whether nobody is inside or waits."""
        return not self.under_way and not self._waiting

    @asynccontextmanager
    async def call(self, bound: int, *, again: bool = False, within: float) -> AsyncIterator[None]:
        """Wait until fewer than `bound` calls are under way and the pace allows one more; `again`: before the others.

        Raises `TimeoutError` after so many seconds, but of who waits for the first time only when for so long nobody
        was answered: a line may be as long as it likes while it moves.
        """
        started = await (self._in_time if again else self._while_it_moves)(bound, within)
        try:
            yield
        except Exception as error:
            self._learn(started, error)
            raise
        else:
            self._learn(started, None)
        finally:
            self._leave()

    def unreachable(self, deadline: float) -> float | None:
        """Record that there is no connection. Return for how many seconds it is tried; None where that is known."""
        if self._unreachable_since is not None:
            return None
        self._unreachable_since = self._now
        return deadline if self._is_known else min(PATIENCE, deadline)

    def gives_up(self, error: BaseException, pause: float) -> bool:
        """Return whether a call without a connection is not tried again after a pause.

        A server that has answered may be restarting; one that never has is probably not there.
        """
        since = self._unreachable_since
        return (
            is_unconnected(error) and since is not None and not self._is_known and self._now + pause - since >= PATIENCE
        )

    @property
    def _is_known(self) -> bool:
        """Whether the endpoint has answered not long before it could not be reached."""
        until = self._now if self._unreachable_since is None else self._unreachable_since
        return self._answered_at is not None and until - self._answered_at < RECENT

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _in_time(self, bound: int, seconds: float) -> float:
        async with asyncio.timeout(seconds):
            return await self._admitted(bound, (0, next(self._numbers)))

    async def _while_it_moves(self, bound: int, seconds: float) -> float:
        place, since = (1, next(self._numbers)), self._now
        while (left := max(since, self._moved_at) + seconds - self._now) > 0:
            try:
                async with asyncio.timeout(left):
                    return await self._admitted(bound, place)
            except TimeoutError:  # the line may have moved meanwhile
                pass
        raise NoReply("it waited for its turn, and nobody before it was answered")

    async def _admitted(self, bound: int, place: tuple[int, int]) -> float:
        admitted: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, _Waiting((*place, next(self._numbers)), bound, admitted))
        self._admit()
        try:
            return await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():  # admitted and cancelled in the same moment
                self._leave()
            raise

    def _admit(self) -> None:
        """Let in whom bound and pace allow, and come back when the pace allows the next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiting in self._next():
            delay = self.pace.delay(self._now)
            if delay > 0:
                self._timer = asyncio.get_running_loop().call_later(delay, self._admit)
                return
            heapq.heappop(self._waiting)
            self.under_way += 1
            self.pace.start(self._now)
            waiting.admitted.set_result(self._now)

    def _next(self) -> Iterator[_Waiting]:
        while self._waiting:
            if self._waiting[0].admitted.done():  # cancelled
                heapq.heappop(self._waiting)
            elif self.under_way < self._waiting[0].bound:
                yield self._waiting[0]
            else:
                return

    def _leave(self) -> None:
        self.under_way -= 1
        self._admit()

    def _learn(self, started: float, error: Exception | None) -> None:
        if error is not None and is_refusal(error):
            self.pace.refuse(started, self._now, wait_asked(error, headers_of(error)))
        elif error is None or status_of(error) is not None:
            self.pace.accept()
        if error is None or not may_pass(error):
            self._moved_at = self._now
        if error is None or status_of(error) is not None:
            self._answered_at, self._unreachable_since = self._now, None


def limiter_of(judge: Judge) -> Limiter:
    """The limiter that a judge shares with all that ask the same model, at the same place, with the same key."""
    limiters: dict[Hashable, Limiter] = kept(Limiter, dict)
    key, of = _identity(judge)
    limiter = limiters.pop(key, None) or Limiter(of)
    limiters[key] = limiter  # the last one used stands last
    if len(limiters) > MOST:
        idle = next((old for old, held in limiters.items() if held.idle and held is not limiter), None)
        limiters.pop(idle, None)
    return limiter


def _identity(judge: Judge) -> tuple[Hashable, object]:
    if judge.base_url is None and judge.api_key is None:  # a function or a script: each is an endpoint of its own
        return ("backend", id(judge.backend)), judge.backend
    return (judge.base_url, judge.model, hashlib.sha256((judge.api_key or "").encode()).hexdigest()), None
