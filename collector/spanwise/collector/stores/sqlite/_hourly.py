"""Retention, in a thread of its own: it may take minutes, and neither words nor sums shall wait for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from spanwise.collector.errors import Unavailable
from spanwise.collector.stores.sqlite import _responses
from spanwise.collector.stores.sqlite._file import File

log = logging.getLogger("spanwise.collector")

AFTER, EVERY = 60.0, 3600.0  # seconds after the start, then between


class Hourly:
    """Calls `prune` about hourly until `stop` is set, and clears away what is kept for some days."""

    def __init__(self, file: File, prune: Callable[[], object], stop: threading.Event) -> None:
        self._file, self._prune, self._stop = file, prune, stop
        self._thread = threading.Thread(target=self._run, name="spanwise-hourly", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for the round that runs; `stop` has been set."""
        self._thread.join()

    def _run(self) -> None:
        wait = AFTER
        with self._file.aside():
            while not self._stop.wait(wait):
                wait = EVERY
                try:
                    self.round()
                except Unavailable:
                    pass
                except Exception:
                    log.exception("what is due hourly failed; it is tried again in an hour")

    def round(self) -> None:
        """All that is due hourly."""
        appender, call = self._file.appender, self._file.writer.call
        self._prune()
        while not self._stop.is_set() and call(lambda _: appender.tombstones.prune()):
            pass
        call(lambda _: appender.waiting.trim())
        call(_responses.prune)
