"""Retention thread: prunes by the retention rules every hour."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from spanwise.collector.errors import Unavailable
from spanwise.collector.stores.sqlite.database_file import DatabaseFile
from spanwise.collector.stores.sqlite.write import pending_amendments

log = logging.getLogger("spanwise.collector")

FIRST_RUN_SECONDS, INTERVAL_SECONDS = 60.0, 3600.0  # seconds from the start to the first round, then between rounds


class RetentionThread:
    """Thread that calls `prune` about hourly until `stop` is set, and deletes expired tombstones and pending data."""

    def __init__(self, file: DatabaseFile, prune: Callable[[], object], stop: threading.Event) -> None:
        self._file, self._prune, self._stop = file, prune, stop
        self._thread = threading.Thread(target=self._run, name="spanwise-hourly", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for the current round. The caller has set `stop`."""
        self._thread.join()

    def _run(self) -> None:
        wait = FIRST_RUN_SECONDS
        with self._file.aside():
            while not self._stop.wait(wait):
                wait = INTERVAL_SECONDS
                try:
                    self.round()
                except Unavailable:
                    pass
                except Exception:
                    log.exception("hourly maintenance failed; retrying in an hour")

    def round(self) -> None:
        """Run all hourly jobs."""
        appender, call = self._file.appender, self._file.writer.call
        self._prune()
        while not self._stop.is_set() and call(lambda _: appender.tombstones.prune()):
            pass
        call(lambda _: appender.waiting.trim())
        call(pending_amendments.prune_response_ids)
