"""Rate limiter per endpoint, model and key: concurrency, adaptive pace, and Retry-After headers.

All judges of this process with the same endpoint, model and key share one limiter. Retried questions take precedence
over new ones.

Calls start one interval apart. A refusal pauses all calls and multiplies the interval by 1.25; a success multiplies
it by 0.98. There is no interval before the first refusal. The first interval is derived from the rate of accepted
calls.

If calls that started before a refusal are refused too, all these refusals count as one. If no call was accepted
between two refusals, the pause was too short, so the interval does not change.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import itertools
import re
import time
from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from spanwise.evaluators.interface import get_http_status, get_response_headers, get_retry_after, is_transient
from spanwise.evaluators.judges.llm_client.judge_event_loop import get_loop_singleton
from spanwise.evaluators.judges.llm_client.openai_backend import ReplyTimeout, is_connection_failure, is_rate_limited

if TYPE_CHECKING:
    from spanwise.evaluators.judges.llm_client.judge_settings import JudgeSettings


MAX_LIMITERS = 256  # maximum number of limiters; above it, the idle limiter that was least recently used is dropped
CONNECTION_PATIENCE = 10.0  # seconds in which an endpoint without a recent answer must become reachable
REACHABLE_PERIOD = 600.0  # seconds for which an answer proves that the endpoint exists


class _QueuedCall(NamedTuple):
    place: tuple[int, int, int]  # priority: retried calls first, then by arrival; unique
    bound: int
    admitted: asyncio.Future[float]  # resolves to the start time of the call


class EndpointLimiter:
    """Limiter of one endpoint, model and key. Only the judges' loop uses it."""

    def __init__(self, of: object) -> None:
        self.of = of  # keeps the object alive, so that its id stays unique
        self.pace = AdaptiveRate()
        self.under_way = 0
        self._waiting: list[_QueuedCall] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._moved_at = 0.0  # time when a call last ended other than with a transient error
        self._answered_at: float | None = None
        self._unreachable_since: float | None = None
        self._gave_up = False

    @property
    def idle(self) -> bool:
        """Return whether no call is in progress or waiting."""
        return not self.under_way and not self._waiting

    @asynccontextmanager
    async def call(self, bound: int, *, again: bool = False, within: float) -> AsyncIterator[None]:
        """Wait until fewer than `bound` calls are in progress and the pace allows another. A retry (`again`) takes
        precedence over first attempts.

        Raises `TimeoutError` after `within` seconds. For a first attempt, the time starts anew whenever another call
        finishes, because a long queue may still be moving.
        """
        if again:
            async with asyncio.timeout(within):
                started = await self._admitted(bound, (0, next(self._numbers)))
        else:
            started = await self._while_it_moves(bound, within)
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
        """Record that the endpoint cannot be reached. Return the number of seconds for which calls are retried, or None
        if this was already recorded.
        """
        if self._unreachable_since is not None:
            return None
        self._unreachable_since = self._now
        return deadline if self._is_known else min(CONNECTION_PATIENCE, deadline)

    def gives_up(self, error: BaseException, pause: float) -> bool:
        """Return whether a call that got no connection is not retried after `pause` seconds.

        An endpoint that answered recently may be restarting, so its calls are retried. Any other endpoint probably
        does not exist, so the limiter gives up after `CONNECTION_PATIENCE` seconds. Later calls are then tried once,
        until the endpoint answers.
        """
        since = self._unreachable_since
        if not is_connection_failure(error) or since is None or self._is_known:
            return False
        self._gave_up = self._gave_up or self._now + pause - since >= CONNECTION_PATIENCE
        return self._gave_up

    @property
    def _is_known(self) -> bool:
        """Return whether the endpoint answered shortly before it became unreachable."""
        until = self._now if self._unreachable_since is None else self._unreachable_since
        return self._answered_at is not None and until - self._answered_at < REACHABLE_PERIOD

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _while_it_moves(self, bound: int, seconds: float) -> float:
        priority, since = (1, next(self._numbers)), self._now
        while (left := max(since, self._moved_at) + seconds - self._now) > 0:
            try:
                async with asyncio.timeout(left):
                    return await self._admitted(bound, priority)
            except TimeoutError:  # the queue may have moved in the meantime
                pass
        raise ReplyTimeout("it waited in the queue, and no call before it was answered")

    async def _admitted(self, bound: int, priority: tuple[int, int]) -> float:
        admitted: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, _QueuedCall((*priority, next(self._numbers)), bound, admitted))
        self._admit()
        try:
            return await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():  # the call was admitted and cancelled at the same time
                self._leave()
            raise

    def _admit(self) -> None:
        """Start waiting calls as far as bound and pace allow, and set a timer for the next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            first = self._waiting[0]
            if first.admitted.done():  # the caller was cancelled
                heapq.heappop(self._waiting)
                continue
            if self.under_way >= first.bound:
                return
            delay = self.pace.delay(self._now)
            if delay > 0:
                self._timer = asyncio.get_running_loop().call_later(delay, self._admit)
                return
            heapq.heappop(self._waiting)
            self.under_way += 1
            self.pace.start(self._now)
            first.admitted.set_result(self._now)

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
            self._answered_at, self._unreachable_since, self._gave_up = self._now, None, False


def get_limiter(judge: JudgeSettings) -> EndpointLimiter:
    """Return the limiter that a judge shares with all judges of the same endpoint, model and key."""
    limiters: dict[Hashable, EndpointLimiter] = get_loop_singleton(EndpointLimiter, dict)
    key: Hashable
    if judge.base_url is None and judge.api_key is None:  # each function or script is a separate endpoint
        key, backend = ("backend", id(judge.backend)), judge.backend
    else:
        key_digest = hashlib.sha256((judge.api_key or "").encode()).hexdigest()
        key, backend = (judge.base_url, judge.model, key_digest), None
    limiter = limiters.pop(key, None) or EndpointLimiter(backend)
    limiters[key] = limiter  # inserted again, so that the dict is in order of last use
    if len(limiters) > MAX_LIMITERS:
        idle = next((old for old, other in limiters.items() if other.idle and other is not limiter), None)
        limiters.pop(idle, None)
    return limiter


SLOWDOWN, SPEEDUP = 1.25, 0.98  # factors of the interval after a refusal and after a success
MAX_PAUSE = 60.0  # maximum pause in seconds, even if an endpoint asks for more
# pause in seconds if the endpoint requests none; doubles with each consecutive refusal
BACKOFF, MAX_BACKOFF = 0.25, 5.0
MAX_INTERVAL = 10.0  # maximum seconds between the starts of two calls
MIN_MEASURED_PERIOD = 1.0  # seconds; the rate over a shorter period is not reliable


class AdaptiveRate:
    """Pace of calls: computes the start time of the next call. Times are seconds of any monotonic clock."""

    def __init__(self) -> None:
        self.interval = 0.0
        self._next_start = 0.0
        self._paused_until = 0.0
        self._pause = 0.0  # length of the last pause in seconds
        self._began: float | None = None
        self._started = 0
        self._refused = 0
        self._refused_at = -1.0
        self._refusals = 0  # consecutive refusals without an accepted call
        # True during the first refusals, which derive the interval from the calls accepted so far
        self._is_measuring = False

    def delay(self, now: float) -> float:
        """Return the seconds until a call may start."""
        return max(0.0, self._next_start - now, self._paused_until - now)

    def start(self, now: float) -> None:
        """Record that a call starts. If it starts late, by less than one interval, this does not delay the next call."""
        self._began = now if self._began is None else self._began
        self._started += 1
        self._next_start = max(self._next_start, now - self.interval) + self.interval

    def accept(self) -> None:
        """Record that a call was accepted."""
        self.interval *= SPEEDUP
        self._refusals = 0

    def refuse(self, started: float, now: float, requested: float | None) -> None:
        """Record that a call was refused. `requested` is the pause in seconds that the endpoint requests, if any."""
        self._refused += 1
        if started > self._refused_at:
            self._is_measuring = self._refused == 1
            if not self._refusals:
                self.interval = min(self.interval * SLOWDOWN, MAX_INTERVAL)
            back_off = min(BACKOFF * 2.0 ** min(self._refusals, 10), MAX_BACKOFF)
            self._pause_for(max(back_off, self.interval) if requested is None else requested, now)
            self._refusals += 1
            self._refused_at = now
        elif requested is not None and requested > 2 * self._pause:
            # the endpoint reports another limit, such as a daily one
            self._pause_for(requested, now)
        if self._is_measuring and self._began is not None:
            accepted = max(1, self._started - self._refused)
            self.interval = min(max(now - self._began, MIN_MEASURED_PERIOD) / accepted, MAX_INTERVAL)

    def _pause_for(self, seconds: float, now: float) -> None:
        self._pause = seconds
        self._paused_until = max(self._paused_until, now + min(seconds, MAX_PAUSE))


_DURATION_PARTS = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MIN_TIMESTAMP = 1e9  # larger numbers are Unix timestamps


def parse_duration(text: str) -> float | None:
    """Parse a duration such as "6m0s", "20ms" or "1.5", or a Unix timestamp. Return the seconds from now, or None for
    any other text.
    """
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
    """Return the seconds that the headers of a refusal ask to wait, or None.

    They are those of `retry-after-ms`, else of `Retry-After`, else until an exhausted limit is reset.
    """
    in_ms = parse_duration(headers.get("retry-after-ms", ""))
    if in_ms is not None:
        return in_ms / 1000
    requested = get_retry_after(error)
    return requested if requested is not None else _compute_reset_delay(headers)


def _compute_reset_delay(headers: Mapping[str, str]) -> float | None:
    """Return the seconds until the last of the exhausted limits is reset, or None if the headers report none."""
    resets = []
    for suffix in ("-requests", "-tokens", ""):
        reset = parse_duration(headers.get(f"x-ratelimit-reset{suffix}", ""))
        try:
            remaining = float(headers.get(f"x-ratelimit-remaining{suffix}", "0"))
        except ValueError:
            remaining = 0.0  # an unknown limit counts as exhausted
        if reset is not None and remaining < 1:
            resets.append(reset)
    return max(resets, default=None)
