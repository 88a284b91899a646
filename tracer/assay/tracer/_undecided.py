"""Errors are kept, whatever head sampling says: spans of an unsampled trace wait in memory until its local root ends.

They are delivered if it or any span below it had an error, and forgotten if none had. What waits is bounded in bytes,
for all traces together: beyond it the oldest trace loses its oldest spans first, those with errors last.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any, Protocol

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from assay.tracer import _sampling
from assay.tracer import attributes as names
from assay.tracer._account import Account
from assay.tracer._queue import Item, weight_of
from assay.tracer._settings import MIB
from assay.tracer._span import Local, book

MAX_BYTES = 32 * MIB  # of spans and feedback, about

_lock = threading.RLock()  # as the queue's: a signal handler may come in between
_waiting: dict[Undecided, None] = {}  # in the order in which they began to wait
_bytes = 0


def _after_fork() -> None:
    global _bytes
    _lock.release()
    _waiting.clear()  # they are the parent's
    _bytes = 0


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_after_fork)


class Outlet(Protocol):
    """Where ended spans and feedback go; a `Delivery`."""

    @property
    def account(self) -> Account:
        """The count of spans that go there."""

    def begin(self) -> None:
        """Be ready: a trace has begun that goes there."""

    def put(self, item: Any) -> None:
        """Take an ended span or a feedback."""

    def lose(self, reason: str, count: int) -> None:
        """Count spans that were dropped before they came here."""


class Undecided:
    """Takes the spans and the feedback of this process's part of one unsampled trace."""

    def __init__(self, local: Local, outlet: Outlet) -> None:
        self._local, self._outlet = local, outlet
        self._others: deque[tuple[Item, int]] = deque()
        self._failed: deque[tuple[Item, int]] = deque()
        self._has_failed = False
        self._forgotten = 0
        self._kept: bool | None = None  # None: the local root is open

    def put(self, item: Any) -> None:
        """Keep an ended span or a feedback until it is decided; afterwards deliver it, or forget it."""
        if self._kept is None and getattr(item, "span_id", 0) == self._local.root_id and _is_span(item):
            self._decide(item)
        elif not self._wait(item) and self._kept:
            self._outlet.put(item)

    def _wait(self, item: Any) -> bool:
        global _bytes
        failed, weight = _has_failed(item), weight_of(item)
        with _lock:
            if self._kept is not None:
                return False
            self._has_failed |= failed
            (self._failed if failed else self._others).append((item, weight))
            _waiting[self] = None
            _bytes += weight
            while _bytes > MAX_BYTES:
                next(iter(_waiting))._forget()
        return True

    def _forget(self) -> None:
        global _bytes
        _, weight = (self._others or self._failed).popleft()
        _bytes -= weight
        self._forgotten += 1
        if not (self._others or self._failed):
            del _waiting[self]

    def _decide(self, root: Any) -> None:
        items = self._taken(_has_failed(root))
        if not self._kept:
            return
        self._local.ot, self._local.account = _sampling.kept(self._local.ot), self._outlet.account
        book(self._local)
        root._attributes[names.PARTIAL] = True
        if self._forgotten:
            self._local.dropped += self._forgotten
            self._outlet.lose("unsampled_full", self._forgotten)
        for item in (*items, root):
            self._outlet.put(item)

    def _taken(self, failed: bool) -> list[Any]:
        global _bytes
        with _lock:
            waited = [*self._others, *self._failed]
            self._others.clear()
            self._failed.clear()
            _waiting.pop(self, None)
            _bytes -= sum(weight for _, weight in waited)
            self._kept = self._has_failed or failed
        return [item for item, _ in waited]


def _is_span(item: Any) -> bool:
    return isinstance(item, ReadableSpan)


def _has_failed(item: Any) -> bool:
    return _is_span(item) and item.status.status_code is StatusCode.ERROR
