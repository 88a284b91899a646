"""Runs of a tree that a page has read, kept for the request of its script that follows, so that they are read once."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")
MAX_TREES = 8
MAX_SECONDS = 10.0


class Pickup(Generic[T]):
    """Values that are picked up once, by ticket. Those that nobody picks up in time are dropped."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, tuple[float, str, T]] = OrderedDict()
        self._lock = Lock()

    def leave(self, owner: str, value: T) -> str:
        """Keep a value for one request with the same owner, and return its ticket."""
        ticket = secrets.token_urlsafe(9)
        with self._lock:
            self._values[ticket] = (time.monotonic(), owner, value)
            while (
                len(self._values) > MAX_TREES or next(iter(self._values.values()))[0] < time.monotonic() - MAX_SECONDS
            ):
                self._values.popitem(last=False)
        return ticket

    def take(self, owner: str, ticket: str) -> T | None:
        """Return the value of a ticket, once; None if it is not there, too old, or left for another owner."""
        with self._lock:
            left, kept_for, value = self._values.pop(ticket, (0.0, "", None))
        return value if kept_for == owner and left >= time.monotonic() - MAX_SECONDS else None
