"""What somebody waits for: how long it may take, whether they still wait, and what of it is to be stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf

from spanwise.collector.errors import Closed, StoreError, TooSlow


class Question:
    """One question to a store, asked as `what`. `seconds` from now on it may run; None: as long as it takes."""

    def __init__(self, what: str, seconds: float | None) -> None:
        self.what, self.seconds = what, seconds
        self.until = inf if seconds is None else time.monotonic() + seconds
        self._lock, self._interrupts, self.was_left = threading.Lock(), list[Callable[[], None]](), False

    @property
    def is_over(self) -> bool:
        """Whether nobody waits any more, or it has taken too long."""
        return self.was_left or time.monotonic() > self.until

    def check(self) -> None:
        """For loops that ask no database. Raises `TooSlow`, and `Closed` when nobody waits any more."""
        if self.is_over:
            raise self.refusal()

    def refusal(self) -> StoreError:
        """Why it was stopped, and what may help."""
        if self.was_left:
            return Closed(f"{self.what} was stopped, since whoever asked has left")
        return TooSlow(
            f"{self.what} took longer than {self.seconds:g} seconds and was stopped: narrow it, by a shorter time"
            " (`since`, `until`), a name, a project, a lower `limit`, or sums by a lower `newest`;"
            " `spanwise serve --query-seconds` allows more"
        )

    def leave(self) -> None:
        """Nobody waits any more."""
        self.was_left = True

    def begin(self, interrupt: Callable[[], None]) -> None:
        """A connection works on it, and stops when `interrupt` is called, from any thread."""
        with self._lock:
            self._interrupts.append(interrupt)

    def end(self, interrupt: Callable[[], None]) -> None:
        """The connection is somebody else's now: once this returns nothing interrupts it any more."""
        with self._lock:
            self._interrupts.remove(interrupt)

    def interrupt(self) -> None:
        """Stop the connections that work on it. One that is between two statements goes on: to be called again."""
        with self._lock:
            for interrupt in self._interrupts:
                interrupt()


ASKED: ContextVar[Question | None] = ContextVar("spanwise.asked", default=None)


@contextmanager
def asked(question: Question) -> Iterator[Question]:
    """What is read from a store within, on this thread or by this task, belongs to a question."""
    before = ASKED.set(question)
    try:
        yield question
    finally:
        ASKED.reset(before)
