"""Finished runs into the store, on a thread of its own: neither tasks nor the loop ever wait for it.

What the store refuses or cannot take is kept in a spool file and offered again; no task is run a second time for it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spanwise.collector.errors import Unavailable
from spanwise.collector.stores import TraceStore
from spanwise.evaluators.engine._plan import Done
from spanwise.evaluators.engine._spool import Parcel, Spool, parcel_of
from spanwise.evaluators.protocol import Judgements
from spanwise.tracer.backoff import pause

BATCH = 500  # runs at once
LINGER = 0.06  # seconds that a batch waits for more
LULL = 0.005  # seconds without a finished run, for which it waits then,
LULLS = 8  # so often at most; all together it is what a kill may cost
FULL = 5_000  # finished runs that wait for the store before new ones are held back
ATTEMPTS = 3
LONGEST_PAUSE = 2.0  # seconds


@dataclass(frozen=True, slots=True)
class Unstored:
    """What a store did not take: how many runs, in which files they are kept, and why. No file: in memory alone."""

    runs: int
    paths: tuple[Path, ...]
    why: str

    @property
    def path(self) -> Path | None:
        """The first of the files."""
        return self.paths[0] if self.paths else None


class Writer:
    """Takes finished runs, stores them in batches, and tells `on_stored` about each batch, in their order.

    With each batch go the `judgements` that have ended by then: those that its feedback leads to, and maybe others.
    """

    def __init__(
        self,
        store: TraceStore,
        spool: Spool,
        on_stored: Callable[[Sequence[Done]], None],
        judgements: Judgements | None = None,
    ) -> None:
        self._store = store
        self._judgements = Judgements() if judgements is None else judgements
        self._spool = spool
        self._on_stored = on_stored
        self._queue: queue.SimpleQueue[Done | None] = queue.SimpleQueue()
        self._spooled = 0
        self._why = ""
        self._error: BaseException | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="spanwise-write", daemon=True)
        self._thread.start()

    def put(self, done: Done) -> None:
        """Hand over a finished run; returns at once."""
        self._queue.put(done)

    @property
    def is_full(self) -> bool:
        """Whether new runs should wait, for the sake of memory."""
        return self._queue.qsize() > FULL and self._error is None

    def close(self) -> Unstored | None:
        """Store what is queued, offer what was spooled once more; returns what is left over."""
        self._closing.set()
        self._queue.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error
        if self._spooled and self._offer(self._spool.deliver):
            self._spooled = 0
        self._spool.close()
        return Unstored(self._spooled, tuple(self._spool.paths), self._why) if self._spooled else None

    def _work(self) -> None:
        try:
            while batch := self._batch():
                self._keep(batch)
                self._on_stored(batch)
            self._keep_rest()
        except BaseException as error:
            self._error = error

    def _batch(self) -> list[Done]:
        """The next runs, in the order of their arrival; empty at the end."""
        first = self._queue.get()
        if first is None:
            return []
        batch = [first]
        self._linger()
        while len(batch) < BATCH:
            try:
                done = self._queue.get_nowait()
            except queue.Empty:
                break
            if done is None:
                self._queue.put(None)
                break
            batch.append(done)
        return batch

    def _linger(self) -> None:
        """Wait for more, and then for a lull: tasks that wait for a model at the same time also end at the same time.

        It sleeps, rather than being woken for each run: a wake-up costs the threads that run tasks more than the run.
        """
        self._closing.wait(LINGER)
        for _ in range(LULLS):
            before = self._queue.qsize()
            if self._closing.wait(LULL) or self._queue.qsize() == before:
                return

    def _keep(self, batch: Sequence[Done]) -> None:
        parcel = parcel_of(batch, self._judgements.take())
        if self._offer(parcel.deliver):
            return
        self._spool.add(parcel)
        self._spooled += len(batch)

    def _keep_rest(self) -> None:
        """Judgements of evaluators that were let go."""
        rest = self._judgements.take()
        if rest and not self._offer(lambda store: store.append(rest)):
            self._spool.add(Parcel(rest, []))
            self._spooled += 1

    def _offer(self, give: Callable[[TraceStore], Any]) -> bool:
        """Whether the store took it; several attempts while nothing else waits, unless it has failed already."""
        for attempt in range(1 if self._spooled else ATTEMPTS):
            try:
                give(self._store)
                return True
            except Exception as error:  # whatever a store raises, the runs must be kept
                self._why = f"{type(error).__name__}: {error}"
                if not isinstance(error, Unavailable) or self.is_full:
                    return False
                time.sleep(pause(attempt, error.retry_after, LONGEST_PAUSE))
        return False
