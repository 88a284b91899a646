"""Background job that applies recorded changes to the sums."""

from __future__ import annotations

import threading
import time
from functools import partial

from spanwise.collector.stores.sqlite.database_file import DatabaseFile
from spanwise.collector.stores.sqlite.score_sums.sum_tables import apply_changes, count_changes

INTERVAL_SECONDS = 2.0  # seconds between rounds; each round costs a commit, and larger batches cost less per trace
CHANGES_PER_TRANSACTION = 500
REST_FACTOR = 1.0  # pause after a transaction while many changes wait, as a multiple of its duration


class ScoreSummer:
    """Application of recorded changes, a few hundred per transaction. Queries apply the others before they read."""

    def __init__(self, file: DatabaseFile, stop: threading.Event) -> None:
        self._file, self._stop = file, stop
        self._next = 0.0

    def round(self) -> bool:
        """Apply some changes if it is time, and return whether there are more."""
        began = time.monotonic()
        if began < self._next:
            return False
        with self._file.read() as reader:
            count = count_changes(reader.db, CHANGES_PER_TRANSACTION + 1)
        if count:
            self._file.write(partial(apply_changes, limit=CHANGES_PER_TRANSACTION), patient=True)
        if count > CHANGES_PER_TRANSACTION:
            self._stop.wait(REST_FACTOR * (time.monotonic() - began))
            return True
        self._next = time.monotonic() + INTERVAL_SECONDS
        return False
