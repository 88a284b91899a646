"""Trying again: what may pass, with pauses between, under one deadline for a whole question."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from spanwise.collector.errors import SpanwiseError
from spanwise.collector.format import first_line
from spanwise.evaluators.judges._faults import causes
from spanwise.evaluators.protocol import Unjudged, may_pass, status_of, wait_before

if TYPE_CHECKING:
    from tenacity import RetryCallState

T = TypeVar("T")

_NOT_CONNECTED = ("ConnectError", "ConnectTimeout", "ConnectionRefusedError", "gaierror")
SHARE = 0.5  # of the deadline that one attempt may take, so that a hang leaves room for another


class Deadline:
    """Seconds for one question with all its attempts, from when its first call starts: waiting in line is none."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._until: float | None = None

    def start(self) -> None:
        """The first call starts; later ones change nothing."""
        if self._until is None:
            self._until = asyncio.get_running_loop().time() + self.seconds

    @property
    def left(self) -> float | None:
        """Seconds, 0 at least; None before the start."""
        return None if self._until is None else max(0.0, self._until - asyncio.get_running_loop().time())

    @property
    def of_attempt(self) -> float:
        """Seconds that the next attempt may take."""
        whole = self.seconds * SHARE
        return whole if self.left is None else min(whole, self.left)


class NoReply(TimeoutError):
    """An attempt has taken as long as it may."""


async def persistent(
    call: Callable[[], Coroutine[Any, Any, T]],
    deadline: Deadline,
    gives_up: Callable[[BaseException, float], bool] = lambda error, pause: False,
) -> T:
    """What `call` gives in the end. Raises its last error, when that cannot pass, the deadline leaves no room, or
    `gives_up`, given the error and the seconds until the next try, says so.
    """
    from tenacity import AsyncRetrying, retry_if_exception

    def has_no_room(state: RetryCallState) -> bool:
        if deadline.left is None or state.upcoming_sleep >= deadline.left:  # None: it got no turn in all that time
            return True
        error = state.outcome.exception() if state.outcome is not None else None
        return error is not None and gives_up(error, state.upcoming_sleep)

    trying = AsyncRetrying(
        retry=retry_if_exception(may_pass), wait=_pause, stop=has_no_room, sleep=asyncio.sleep, reraise=True
    )

    async def attempt() -> T:  # tenacity awaits what it knows for a coroutine function
        return await call()

    return await trying(attempt)


def _pause(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome is not None else None
    if error is None or is_refusal(error):  # the limiter holds everybody back, as long as the server asks for
        return 0.0
    return wait_before(state.attempt_number - 1, error)


def is_refusal(error: BaseException) -> bool:
    """Whether a server says that it gets too much: 429, or 503 and 529 that may pass."""
    return status_of(error) in (429, 503, 529) and may_pass(error)


def was_sent(error: BaseException) -> bool:
    """Whether a call that failed like this may have been answered, and billed: not one that the server refused."""
    return not (isinstance(error, Unjudged) or status_of(error) is not None or is_unconnected(error))


def is_unconnected(error: BaseException) -> bool:
    """Return whether there was no connection, so that no server has seen the question."""
    return any(type(cause).__name__ in _NOT_CONNECTED for cause in causes(error, 5))


def unjudged(error: Exception, where: str, tries: int, deadline: Deadline, key: str | None) -> Exception:
    """What is said of a question without an answer: of a network or a server in trouble; any other error as it is."""
    if isinstance(error, SpanwiseError) or not may_pass(error):
        return error
    attempts = f"{tries} attempt{'s' if tries != 1 else ''}"
    if is_unconnected(error):
        return Unjudged(f"{where} cannot be reached, after {attempts}: {told(error, key)}")
    return Unjudged(f"{where} gave no answer within {deadline.seconds:g} s after {attempts}: {told(error, key)}")


def told(error: BaseException, key: str | None) -> str:
    """An error in one line: its status and what the server said, else its kind and its cause; never the key."""
    body = getattr(error, "body", None)
    words = body.get("message") if isinstance(body, dict) else None
    words = words if isinstance(words, str) and words else _words(error)
    status = status_of(error)
    words = words.replace(key, "…") if key and len(key) >= 4 else words
    return first_line(f"{status} {words}" if status is not None and str(status) not in words else words, 300)


def _words(error: BaseException) -> str:
    if isinstance(error, NoReply):
        return str(error)
    if is_unconnected(error):
        for cause in causes(error):
            if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
                return os.strerror(cause.errno).lower()
    cause = error.__cause__ if str(error) in ("", "Connection error.") and error.__cause__ is not None else error
    words = str(cause)
    return f"{type(cause).__name__}: {words}" if words else type(cause).__name__
