"""Requests that wait for their answer: what is looked after meanwhile, so that nothing is in memory alone for long."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from assay.tracer._spool import Copy

LONG = 1.0  # seconds after which what a request holds up goes to the disk
_TICK = 0.25  # seconds between two looks


@dataclass(slots=True, eq=False)
class Flight:
    """A request under way. `body` is None if it comes from the disk."""

    path: str
    body: bytes | None
    count: int
    began: float = field(default_factory=time.monotonic)
    answered: bool = False
    copy: Copy | None = None  # on disk, until the answer is known

    def is_late(self, after: float) -> bool:
        """Whether it has been waiting for longer than `after` seconds."""
        return not self.answered and time.monotonic() - self.began >= after

    def landed(self) -> None:
        """It was answered, for good: the copy is of no more use."""
        copy, self.copy = self.copy, None
        if copy is not None:
            copy.remove()


class Watch:
    """A thread that looks, every quarter of a second, while requests are under way; it sleeps while none is."""

    def __init__(self, is_under_way: Callable[[], bool], look: Callable[[], object]) -> None:
        self._is_under_way, self._look = is_under_way, look
        self._begun: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._awake = self._ended = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """A request is under way. Called by one thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="assay-watch", daemon=True)
            with suppress(RuntimeError):  # no more threads, or the process ends: it goes without
                self._thread.start()
        if not self._awake:
            self._awake = True
            self._begun.put(True)

    def end(self) -> None:
        """There will be no more requests."""
        self._ended = True
        self._begun.put(False)

    def _run(self) -> None:
        while self._begun.get() and not self._ended:
            while self._goes_on():
                time.sleep(_TICK)
                self._look()

    def _goes_on(self) -> bool:
        self._awake = False
        self._awake = not self._ended and self._is_under_way()
        return self._awake
