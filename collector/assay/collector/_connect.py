"""Where things go: an address, a file, or what the environment and this machine offer."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from assay.collector._ports import assay_at
from assay.collector.errors import Refused
from assay.collector.stores import Store

if TYPE_CHECKING:
    from assay.collector.client import HTTPStore

DEFAULT_URL = "http://127.0.0.1:4318"
DEFAULT_FILE = "assay.db"


def connect(where: str | os.PathLike[str] | None = None) -> Store:
    """The store at `where`: `http://…` or `https://…` is a collector's address, anything else a SQLite file.

    Without `where`: ASSAY_URL, else a collector that answers on port 4318 of this machine, else `./assay.db`. A file
    that another process is writing is reached through that process, if it serves. Raises `Refused`.
    """
    place = os.fspath(where) if where is not None else default()
    if place.startswith(("http://", "https://")):
        return _client(place)
    if "://" in place:
        raise Refused(f"{place!r}: only http://, https:// and paths of SQLite files are known")
    return _file(Path(place))


def default() -> str:
    """Where things go when nobody says: ASSAY_URL, else a live collector on port 4318, else `assay.db` here."""
    if given := os.environ.get("ASSAY_URL"):
        return given
    return DEFAULT_URL if assay_at(DEFAULT_URL) else DEFAULT_FILE


def describe(store: Store) -> str:
    """Where a store is, in words for people: its address or its path."""
    return str(getattr(store, "url", None) or getattr(store, "path", None) or store)


def _client(url: str) -> HTTPStore:
    from assay.collector.client import HTTPStore

    return HTTPStore(url, os.environ.get("ASSAY_API_KEY"))


def _file(path: Path) -> Store:
    from assay.collector.stores.sqlite import holder

    with _lock:
        if shared := _open.get(path.resolve()):
            return cast(Store, shared.handle())
        found = holder(path)
        if found and found.get("url"):
            return _client(found["url"])
        shared = _open[path.resolve()] = _Shared(path)
        return cast(Store, shared.handle())


class _Shared:
    """A file that this process has open: opened once, however often it is asked for, and closed by its last user."""

    def __init__(self, path: Path) -> None:
        from assay.collector.stores.sqlite import SQLiteStore

        self.key, self.store, self.users = path.resolve(), SQLiteStore(path), 0

    def handle(self) -> _Handle:
        self.users += 1
        return _Handle(self)

    def release(self) -> None:
        with _lock:
            self.users -= 1
            if self.users:
                return
            del _open[self.key]
            self.store.close()


class _Handle:
    """One user's hold on a shared store: every verb is the store's, closing is its own."""

    def __init__(self, shared: _Shared) -> None:
        self._shared, self._closed = shared, False

    def __getattr__(self, name: str) -> Any:
        if self._closed:
            raise Refused(f"this connection to {self._shared.store.path!r} is closed")
        return getattr(self._shared.store, name)

    def __repr__(self) -> str:
        return repr(self._shared.store)

    def __enter__(self) -> _Handle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the hold back. Closing twice is harmless."""
        if not self._closed:
            self._closed = True
            self._shared.release()


_lock = threading.Lock()
_open: dict[Path, _Shared] = {}
