"""A store that is open only while it is used: a file of SQLite is free for other processes between two uses."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from spanwise.collector._connect import connect, default_place
from spanwise.collector.records import TraceSummary
from spanwise.collector.stores import Store


class OnDemandStore:
    """The store at a place, opened by `hold` and closed by the last `release`.

    An operation in between opens the store for itself alone. Raises what `connect` raises.
    """

    def __init__(self, where: str | os.PathLike[str] | None = None) -> None:
        place = os.fspath(where) if where is not None else default_place()
        self._place = place if "://" in place else os.path.abspath(place)
        self._lock, self._holders = threading.Lock(), 0
        self._store: Store | None = None
        with self.held():
            self.where: str = self._opened.where

    @property
    def _opened(self) -> Store:
        assert self._store is not None
        return self._store

    def hold(self) -> None:
        """Open the store, or keep it open, until `release`."""
        with self._lock:
            if self._store is None:
                self._store = connect(self._place)
            self._holders += 1

    def release(self) -> None:
        """Undo one `hold`; the last one closes the store."""
        with self._lock:
            self._holders -= 1
            if not self._holders and self._store is not None:
                self._store.close()
                self._store = None

    @contextmanager
    def held(self) -> Iterator[Store]:
        """The store, open within a `with` block."""
        self.hold()
        try:
            yield self._opened
        finally:
            self.release()

    def each(self, *args: Any, **given: Any) -> Iterator[TraceSummary]:
        """All traces that pass, page by page: see `TraceStore`."""
        with self.held() as store:
            yield from store.each(*args, **given)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        store = self._store
        return cast(Callable[..., Any], getattr(store, name)) if store else partial(self._call, name)

    def _call(self, name: str, *args: Any, **given: Any) -> Any:
        with self.held() as store:
            return getattr(store, name)(*args, **given)

    def __enter__(self) -> OnDemandStore:
        self.hold()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def close(self) -> None:
        """Do nothing: whoever holds the store releases it."""

    def __repr__(self) -> str:
        return f"OnDemandStore({self._place!r})"
