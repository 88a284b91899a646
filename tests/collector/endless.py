"""A store of which some questions never end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spanwise.collector.records import Bucket
from spanwise.collector.stores.sqlite import SQLiteStore

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT sum(x) FROM n"


class Slow:
    """A real store whose aggregates never end; `inside` is how many run."""

    def __init__(self, store: SQLiteStore) -> None:
        self._store, self._lock, self.inside, self.most = store, threading.Lock(), 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def aggregate(self, *_: Any, **__: Any) -> list[Bucket]:
        with self._store._file.read() as reader, self._running():
            reader.db.execute(ENDLESS).fetchall()
        return []

    @contextmanager
    def _running(self) -> Iterator[None]:
        self._add(1)
        try:
            yield
        finally:
            self._add(-1)

    def _add(self, n: int) -> None:
        with self._lock:
            self.inside += n
            self.most = max(self.most, self.inside)
