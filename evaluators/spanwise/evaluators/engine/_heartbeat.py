"""Signs of life of an experiment, in its record: what tells one that runs from one that was killed."""

from __future__ import annotations

import contextlib
import threading
import time
from types import TracebackType

from spanwise.collector.stores import Store

EVERY = 5.0  # seconds


class Heartbeat:
    """Notes every few seconds, on a thread of its own, that an experiment is being worked on: also while tasks, the
    store or set-level evaluators take long. What the store says to that is nobody's concern.
    """

    def __init__(self, store: Store, experiment_id: str, every: float = EVERY) -> None:
        self._store, self._id, self._every = store, experiment_id, every
        self._over = threading.Event()

    def __enter__(self) -> Heartbeat:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._beat, name="spanwise-heartbeat", daemon=True).start()

    def stop(self) -> None:
        """No more signs; does not wait for one that is under way."""
        self._over.set()

    def _beat(self) -> None:
        while not self._over.wait(self._every):
            with contextlib.suppress(Exception):
                self._store.change_experiment(self._id, seen_ns=time.time_ns())
