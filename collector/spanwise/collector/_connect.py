"""Where things go: an address, a file, or what the environment and this machine offer."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from spanwise.collector._names import named
from spanwise.collector._ports import spanwise_at
from spanwise.collector.errors import Closed, Refused
from spanwise.collector.stores import Store

if TYPE_CHECKING:
    from spanwise.collector.client import HTTPStore
    from spanwise.collector.stores.sqlite import SQLiteStore

DEFAULT_URL = "http://127.0.0.1:4318"
DEFAULT_FILE = "spanwise.db"
FORMER_FILE = "assay.db"


def connect(where: str | os.PathLike[str] | None = None) -> Store:
    """The store at `where`: `http://…` or `https://…` is a collector's address, anything else a SQLite file.

    Without `where`: SPANWISE_URL, else a collector that answers on port 4318 of this machine, else `./spanwise.db`. A
    file that another process is writing is reached through that process, if it serves. Raises `Refused`.
    """
    place = os.fspath(where) if where is not None else default_place()
    scheme, divided, _ = place.partition("://")
    if not divided:
        return _file(Path(named(place)))
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise Refused(f"{place!r}: only {known} and paths of SQLite files are known")
    return SCHEMES[scheme](place)


def default_place() -> str:
    """Where things go when nobody says: SPANWISE_URL, else a live collector on port 4318, else `spanwise.db` here."""
    if given := os.environ.get("SPANWISE_URL"):
        return given
    return DEFAULT_URL if spanwise_at(DEFAULT_URL) else default_file()


def default_file() -> str:
    """Return `spanwise.db`; a file with the product's former name gets this one. Raises `Refused`."""
    if os.path.exists(FORMER_FILE):
        from spanwise.collector.stores.sqlite.name_conversion import adopt_former_file

        adopt_former_file(DEFAULT_FILE)
    return DEFAULT_FILE


def describe(store: Store) -> str:
    """Where a store is, in words for people: its address or its path."""
    return store.where


def _client(url: str) -> HTTPStore:
    from spanwise.collector.client import HTTPStore

    return HTTPStore(url, os.environ.get("SPANWISE_API_KEY"))


# What opens an address, by the scheme before `://`; each imports its store only when it is asked
SCHEMES: Mapping[str, Callable[[str], Store]] = {"http": _client, "https": _client}


def _file(path: Path) -> Store:
    from spanwise.collector.stores.sqlite import holder

    with _lock:
        if shared := _open.get(path.resolve()):
            return cast(Store, shared.handle())
        process = holder(path)
        if process and process.get("url"):
            return _client(process["url"])
        shared = _open[path.resolve()] = _Shared(path)
        return cast(Store, shared.handle())


class _Shared:
    """A file that this process has open: opened once, however often it is asked for, and closed by its last user."""

    def __init__(self, path: Path) -> None:
        from spanwise.collector.stores.sqlite import opened

        self.key, self.store, self.users = path.resolve(), opened(path), 0

    def handle(self) -> _Handle:
        self.users += 1
        return _Handle(self)

    def release(self) -> None:
        with _lock:
            self.users -= 1
            if self.users or _open.get(self.key) is not self:  # not in a fork, where it is the parent's
                return
            del _open[self.key]
            self.store.close()


class _Handle:
    """One user's hold on a shared store: every verb is the store's, closing is its own."""

    def __init__(self, shared: _Shared) -> None:
        self._shared, self._closed = shared, False

    @property
    def _store(self) -> SQLiteStore:
        if self._closed:
            raise Closed(f"this connection to {self.where!r} is closed")
        return self._shared.store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    # What `Serving` and `SendsOn` ask for stands here, because Python 3.12 looks for it past `__getattr__`

    @property
    def where(self) -> str:
        """The path of the file."""
        return self._shared.store.where

    def announce(self, url: str | None) -> None:
        """Say where this process can be reached."""
        self._store.announce(url)

    def health(self) -> Mapping[str, float]:
        """Numbers for whoever watches."""
        return self._store.health()

    def trouble(self) -> str | None:
        """Why nothing can be kept now."""
        return self._store.trouble()

    @property
    def append_async(self) -> Callable[..., Future[None]]:
        """The store's own, so that spans take no further step."""
        return self._store.append_async

    identity, open_outlet, said_after, waiting_after, move_outlet, feedback_there = (
        property(attrgetter(f"_store.{name}"))
        for name in "identity open_outlet said_after waiting_after move_outlet feedback_there".split()
    )

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


def _close_all() -> None:
    """Close the files that nobody has closed, so that their logs are empty once the process has ended."""
    with _lock:
        for shared in list(_open.values()):
            shared.store.close()
        _open.clear()


def _forked() -> None:
    """What the parent has open is not open here."""
    global _lock
    _lock = threading.Lock()
    _open.clear()


_lock = threading.Lock()
_open: dict[Path, _Shared] = {}
os.register_at_fork(after_in_child=_forked)
atexit.register(_close_all)
