"""Rate limiter per endpoint, model and key: concurrency, adaptive pace, and Retry-After headers.

All judges of this process that mean the same share one limit. Questions that were refused go before those that wait for
the first time.

Calls start one interval apart. A refusal pauses all calls and makes the interval 1.25 times as long, a success makes it
0.98 times as long. Before the first refusal there is no interval; after it the interval is what the endpoint took.

Refusals of calls that had started before one is known are one refusal: those calls could not know better. Where nothing
was taken between two refusals, the pause was too short, and the interval stays.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import itertools
import re
import time
from collections.abc import AsyncIterator, Hashable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from spanwise.evaluators.interface import get_http_status, get_response_headers, get_retry_after, is_transient
from spanwise.evaluators.judges.llm_client.judge_event_loop import get_loop_singleton
from spanwise.evaluators.judges.llm_client.judge_retry import ReplyTimeout, is_connection_failure, is_rate_limited

if TYPE_CHECKING:
    from spanwise.evaluators.judges.llm_client.judge_settings import Judge


MAX_LIMITERS = 256  # limits that are held at once; those that nobody uses go first
CONNECTION_PATIENCE = 10.0  # seconds in which an endpoint that has not answered of late has to be reached
REACHABLE_PERIOD = 600.0  # seconds in which an answer shows that an endpoint was there


class _QueuedCall(NamedTuple):
    place: tuple[int, int, int]  # those that were refused first, then in the order in which they came; all different
    bound: int
    admitted: asyncio.Future[float]  # when the call starts


class EndpointLimiter:
    """Of one endpoint, model and key. Lives on the judges' loop."""

    def __init__(self, of: object) -> None:
        self.of = of  # held, so that its id stays its own
        self.pace = AdaptiveRate()
        self.under_way = 0
        self._waiting: list[_QueuedCall] = []
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
        return deadline if self._is_known else min(CONNECTION_PATIENCE, deadline)

    def gives_up(self, error: BaseException, pause: float) -> bool:
        """Return whether a call without a connection is not tried again after a pause.

        A server that has answered may be restarting; one that never has is probably not there.
        """
        since = self._unreachable_since
        return (
            is_connection_failure(error)
            and since is not None
            and not self._is_known
            and self._now + pause - since >= CONNECTION_PATIENCE
        )

    @property
    def _is_known(self) -> bool:
        """Whether the endpoint has answered not long before it could not be reached."""
        until = self._now if self._unreachable_since is None else self._unreachable_since
        return self._answered_at is not None and until - self._answered_at < REACHABLE_PERIOD

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
        raise ReplyTimeout("it waited for its turn, and nobody before it was answered")

    async def _admitted(self, bound: int, place: tuple[int, int]) -> float:
        admitted: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, _QueuedCall((*place, next(self._numbers)), bound, admitted))
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

    def _next(self) -> Iterator[_QueuedCall]:
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
        if error is not None and is_rate_limited(error):
            self.pace.refuse(started, self._now, get_requested_wait(error, get_response_headers(error)))
        elif error is None or get_http_status(error) is not None:
            self.pace.accept()
        if error is None or not is_transient(error):
            self._moved_at = self._now
        if error is None or get_http_status(error) is not None:
            self._answered_at, self._unreachable_since = self._now, None


def get_limiter(judge: Judge) -> EndpointLimiter:
    """The limiter that a judge shares with all that ask the same model, at the same place, with the same key."""
    limiters: dict[Hashable, EndpointLimiter] = get_loop_singleton(EndpointLimiter, dict)
    key, of = _make_limiter_key(judge)
    limiter = limiters.pop(key, None) or EndpointLimiter(of)
    limiters[key] = limiter  # the last one used stands last
    if len(limiters) > MAX_LIMITERS:
        idle = next((old for old, held in limiters.items() if held.idle and held is not limiter), None)
        limiters.pop(idle, None)
    return limiter


def _make_limiter_key(judge: Judge) -> tuple[Hashable, object]:
    if judge.base_url is None and judge.api_key is None:  # a function or a script: each is an endpoint of its own
        return ("backend", id(judge.backend)), judge.backend
    return (judge.base_url, judge.model, hashlib.sha256((judge.api_key or "").encode()).hexdigest()), None


SLOWDOWN, SPEEDUP = 1.25, 0.98  # times the interval, after a refusal and after a success
MAX_PAUSE = 60.0  # seconds of a pause, whatever an endpoint asks for
BACKOFF, MAX_BACKOFF = 0.25, 5.0  # seconds where it does not say: twice as long with each refusal in a row
MAX_INTERVAL = 10.0  # seconds
MIN_MEASURED_PERIOD = 1.0  # seconds: what was taken in less than that says nothing of what is taken in one


class AdaptiveRate:
    """When the next call may start. Times are seconds of any clock, in order."""

    def __init__(self) -> None:
        self.interval = 0.0
        self._next_start = 0.0
        self._paused_until = 0.0
        self._pause = 0.0  # seconds of the last one
        self._began: float | None = None
        self._started = 0
        self._refused = 0
        self._refused_at = -1.0
        self._refusals = 0  # with nothing taken between them
        self._is_measuring = False  # during the first refusals: how many calls of the first burst were taken

    def delay(self, now: float) -> float:
        """Return the seconds until a call may start."""
        return max(0.0, self._next_start - now, self._paused_until - now)

    def start(self, now: float) -> None:
        """Record that a call starts. One that starts late does not hold up the next one."""
        self._began = now if self._began is None else self._began
        self._started += 1
        self._next_start = max(self._next_start, now - self.interval) + self.interval

    def accept(self) -> None:
        """Record that a call was taken."""
        self.interval *= SPEEDUP
        self._refusals = 0

    def refuse(self, started: float, now: float, asked: float | None) -> None:
        """Record that a call was refused; `asked` is how long the endpoint wants to be left alone, if it says so."""
        self._refused += 1
        if started > self._refused_at:
            self._is_measuring = self._refused == 1
            if not self._refusals:
                self.interval = min(self.interval * SLOWDOWN, MAX_INTERVAL)
            back_off = min(BACKOFF * 2.0 ** min(self._refusals, 10), MAX_BACKOFF)
            self._pause_for(max(back_off, self.interval) if asked is None else asked, now)
            self._refusals += 1
            self._refused_at = now
        elif asked is not None and asked > 2 * self._pause:  # of another limit, such as that of a day
            self._pause_for(asked, now)
        if self._is_measuring and self._began is not None:
            taken = max(1, self._started - self._refused)
            self.interval = min(max(now - self._began, MIN_MEASURED_PERIOD) / taken, MAX_INTERVAL)

    def _pause_for(self, seconds: float, now: float) -> None:
        self._pause = seconds
        self._paused_until = max(self._paused_until, now + min(seconds, MAX_PAUSE))


_DURATION_PARTS = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MIN_TIMESTAMP = 1e9  # above that a number of seconds is a date


def parse_duration(text: str) -> float | None:
    """Seconds of "6m0s", "20ms", "1.5", or of a date since 1970; None for anything else."""
    text = text.strip().lower()
    try:
        number = float(text)
    except ValueError:
        parts = _DURATION_PARTS.findall(text)
        if not parts or "".join(map("".join, parts)) != text:
            return None
        return sum(float(amount) * _UNITS[unit] for amount, unit in parts)
    if number != number or number < 0:
        return None
    return max(0.0, number - time.time()) if number > _MIN_TIMESTAMP else number


def get_requested_wait(error: BaseException, headers: Mapping[str, str]) -> float | None:
    """Seconds that a refusal asks to wait: `retry-after-ms`, `Retry-After`, else the reset of what is used up."""
    in_ms = parse_duration(headers.get("retry-after-ms", ""))
    if in_ms is not None:
        return in_ms / 1000
    asked = get_retry_after(error)
    return asked if asked is not None else _compute_reset_delay(headers)


def _compute_reset_delay(headers: Mapping[str, str]) -> float | None:
    """Return when the last of the limits that are used up is reset."""
    resets = []
    for suffix in ("-requests", "-tokens", ""):
        reset = parse_duration(headers.get(f"x-ratelimit-reset{suffix}", ""))
        left = _parse_number(headers.get(f"x-ratelimit-remaining{suffix}"))
        if reset is not None and (left is None or left < 1):
            resets.append(reset)
    return max(resets, default=None)


def _parse_number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
