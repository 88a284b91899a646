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
    """Caller for the audit log: id and name of its API key, and its client address."""

    key: str
    name: str
    address: str
    writes: bool = True  # False if the API key may only give feedback

    def __str__(self) -> str:
        """Return the key's name and the address, as "ann's key (10.0.0.3)"."""
        who = self.name or (f"key {self.key}" if self.key else "")
        return f"{who} ({self.address})" if who and self.address else who or f"{self.address} (without a key)"


CURRENT_ACTOR: ContextVar[Actor | None] = ContextVar("spanwise.acting", default=None)


def get_current_actor() -> Actor:
    """Return the caller of the current request; outside of requests, the operating system's user of this process."""
    if actor := CURRENT_ACTOR.get():
        return actor
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # the user of a container may have no passwd entry
        user = f"user {os.getuid()}"
    return Actor("", user, f"process {os.getpid()}")


class CancellableQuery:
    """Query to a store, described by `what`, that can be cancelled. It may run for `seconds` from its creation; None
    means no limit.
    """

    def __init__(self, what: str, seconds: float | None) -> None:
        self.what, self.seconds = what, seconds
        self.until = inf if seconds is None else time.monotonic() + seconds
        self._lock, self._interrupts, self.was_left = threading.Lock(), list[Callable[[], None]](), False

    @property
    def is_over(self) -> bool:
        """Return whether the caller has left, or the time limit has passed."""
        return self.was_left or time.monotonic() > self.until

    def check(self) -> None:
        """Raise `TooSlow` or `Closed` if the query is over. Loops that run no SQL call it, because nothing interrupts
        them.
        """
        if self.is_over:
            raise self.refusal()

    def refusal(self) -> StoreError:
        """Return the error that says why the query was stopped, and how to avoid that."""
        if self.was_left:
            return Closed(f"{self.what} was stopped, because the client has disconnected")
        return TooSlow(
            f"{self.what} took longer than {self.seconds:g} seconds and was stopped; narrow it by a shorter time range"
            " (`since`, `until`), a name, a project, a lower `limit` or, for aggregates, a lower `newest`;"
            " `spanwise serve --query-seconds` sets the limit"
        )

    def leave(self) -> None:
        """Mark the query as abandoned, because its caller has disconnected."""
        self.was_left = True

    def begin(self, interrupt: Callable[[], None]) -> None:
        """Register a connection that works on the query. `interrupt` stops it, from any thread."""
        with self._lock:
            self._interrupts.append(interrupt)

    def end(self, interrupt: Callable[[], None]) -> None:
        """Unregister a connection. After this returns, `interrupt` no longer affects the connection."""
        with self._lock:
            self._interrupts.remove(interrupt)

    def interrupt(self) -> None:
        """Interrupt the connections that work on the query.

        Call it repeatedly, because an interrupt between two SQL statements has no effect.
        """
        with self._lock:
            for interrupt in self._interrupts:
                interrupt()


CURRENT_QUERY: ContextVar[CancellableQuery | None] = ContextVar("spanwise.asked", default=None)


@contextmanager
def query_context(question: CancellableQuery) -> Iterator[CancellableQuery]:
    """Make `question` the current query of this thread or task within the block."""
    before = CURRENT_QUERY.set(question)
    try:
        yield question
    finally:
        CURRENT_QUERY.reset(before)
