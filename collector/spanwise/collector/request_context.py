"""Context variables of the current request: its caller for the audit log, its query's deadline."""

from __future__ import annotations

import getpass
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from typing import NamedTuple

from spanwise.collector.errors import Closed, StoreError, TooSlow


class Actor(NamedTuple):
    """Who does something: a key's id and name, and from where it came."""

    key: str
    name: str
    address: str
    writes: bool = True  # or gives feedback alone


CURRENT_ACTOR: ContextVar[Actor | None] = ContextVar("spanwise.acting", default=None)


def get_current_actor() -> Actor:
    """Who sent the request that is being answered; outside of requests the user of this process."""
    return CURRENT_ACTOR.get() or Actor("", _local_user_name(), f"process {os.getpid()}")


def _local_user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user without a name
        return f"user {os.getuid()}"


class CancellableQuery:
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


CURRENT_QUERY: ContextVar[CancellableQuery | None] = ContextVar("spanwise.asked", default=None)


@contextmanager
def query_context(question: CancellableQuery) -> Iterator[CancellableQuery]:
    """What is read from a store within, on this thread or by this task, belongs to a question."""
    before = CURRENT_QUERY.set(question)
    try:
        yield question
    finally:
        CURRENT_QUERY.reset(before)
