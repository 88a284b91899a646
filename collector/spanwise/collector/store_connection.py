"""Opening a store by URL or path, on demand, or as an async store; default location, store arguments."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from http.client import HTTPException
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from spanwise.collector.address_parsing import build_server_url, check_database_path, hide_password
from spanwise.collector.errors import Closed, Refused
from spanwise.collector.records import TraceSummary
from spanwise.collector.stores import Store
from spanwise.tracer.http_connections import suppress_instrumentation

if TYPE_CHECKING:
    from spanwise.collector.client import HTTPStore
    from spanwise.collector.stores.sqlite import SQLiteStore


# Opening a store by URL or path, on demand, or as an async store; default location and server probe.

DEFAULT_URL = "http://127.0.0.1:4318"
DEFAULT_FILE = "spanwise.db"
FORMER_FILE = "assay.db"


def connect(where: str | os.PathLike[str] | None = None, *, control: str | os.PathLike[str] | None = None) -> Store:
    """Open the store at `where`: an `http://…` or `https://…` URL of a collector, or the path of a SQLite file.

    Without `where`: SPANWISE_URL, else a collector that answers on port 4318 of this machine, else `./spanwise.db`.
    If another process has the file open for writing and serves it, the store connects to that process.

    A `clickhouse://…` URL opens traces in ClickHouse, with the control records at `control` (else SPANWISE_CONTROL):
    a `postgresql://…` URL, or the path of a SQLite file, which only one process can use. Raises `Refused`.
    """
    location = os.fspath(where) if where is not None else default_location()
    scheme, divided, _ = location.partition("://")
    if divided and scheme == CLUSTER_SCHEME:
        return _open_cluster(location, control)
    if control is not None:
        raise Refused(
            f"control records of their own belong to a clickhouse:// store; {hide_password(location)!r} holds both"
        )
    if not divided:
        return _open_file(Path(check_database_path(location)))
    if scheme in CONTROL_SCHEMES:
        raise Refused(
            f"{hide_password(location)!r} can hold control records, but no traces; name a store of traces, with this "
            "URL for its control records: connect('clickhouse://…', control='postgresql://…'), or --store and --control"
        )
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in (*SCHEMES, CLUSTER_SCHEME))
        raise Refused(
            f"unknown URL scheme in {hide_password(location)!r}; expected {known} or the path of a SQLite file"
        )
    return SCHEMES[scheme](location)


def default_location() -> str:
    """Return the default store: SPANWISE_URL, else a running collector on port 4318, else `spanwise.db` here."""
    if url := os.environ.get("SPANWISE_URL"):
        return url
    return DEFAULT_URL if probe_server(DEFAULT_URL) else default_file()


def default_file() -> str:
    """Return `spanwise.db`, after renaming a file with the product's former name to it. Raises `Refused`."""
    if os.path.exists(FORMER_FILE):
        from spanwise.collector.stores.sqlite.database.name_conversion import adopt_former_file

        adopt_former_file(DEFAULT_FILE)
    return DEFAULT_FILE


def describe(store: Store) -> str:
    """Return the URL or path of a store, for messages, without passwords."""
    return store.where


def _open_url(url: str) -> HTTPStore:
    from spanwise.collector.client import HTTPStore

    return HTTPStore(url, os.environ.get("SPANWISE_API_KEY"))


# URL scheme → function that opens the store; each imports its store only when called
SCHEMES: Mapping[str, Callable[[str], Store]] = {"http": _open_url, "https": _open_url}
CLUSTER_SCHEME, CONTROL_SCHEMES = "clickhouse", ("postgresql", "postgres")


def find_control(url: str, control: str | os.PathLike[str] | None) -> str:
    """Return the URL or path of the control records of a ClickHouse store: `control`, else SPANWISE_CONTROL.

    Raises `Refused` if neither is set.
    """
    found = os.fspath(control) if control is not None else os.environ.get("SPANWISE_CONTROL")
    if not found:
        raise Refused(
            f"{hide_password(url)!r} holds traces only; its control records (rules, decisions, datasets, keys) need a"
            " database of their own: --control postgresql://…, control=… or SPANWISE_CONTROL"
        )
    return found if "://" in found else check_database_path(found)


def _open_cluster(url: str, control: str | os.PathLike[str] | None) -> Store:
    """Open a cluster store, once per process. Control records in a file of a running collector are used through it."""
    from spanwise.collector.stores import open_backends

    place = find_control(url, control)
    with _lock:
        key = f"{url} {place if '://' in place else Path(place).resolve()}"
        if shared := _open_stores.get(key):
            return cast(Store, shared.handle())
        if "://" not in place:
            from spanwise.collector.stores.sqlite import holder

            process = holder(Path(place))
            if process and process.get("url"):
                return _open_url(process["url"])
        shared = _open_stores[key] = _SharedStore(key, cast("SQLiteStore", open_backends(url, place)))
        return cast(Store, shared.handle())


def _open_file(path: Path) -> Store:
    from spanwise.collector.stores.sqlite import holder, open_store

    with _lock:
        if shared := _open_stores.get(path.resolve()):
            return cast(Store, shared.handle())
        process = holder(path)
        if process and process.get("url"):
            return _open_url(process["url"])
        shared = _open_stores[path.resolve()] = _SharedStore(path.resolve(), open_store(path))
        return cast(Store, shared.handle())


class _SharedStore:
    """Reference-counted store of a file or cluster: opened once per process, and closed by its last user."""

    def __init__(self, key: Path | str, store: SQLiteStore) -> None:
        self.key, self.store, self.users = key, store, 0

    def handle(self) -> _StoreHandle:
        self.users += 1
        return _StoreHandle(self)

    def release(self) -> None:
        with _lock:
            self.users -= 1
            # after a fork, the file belongs to the parent process
            if self.users or _open_stores.get(self.key) is not self:
                return
            del _open_stores[self.key]
            self.store.close()


class _StoreHandle:
    """One user's handle of a shared store: forwards all operations, and closes only itself."""

    def __init__(self, shared: _SharedStore) -> None:
        self._shared, self._closed = shared, False

    @property
    def _store(self) -> SQLiteStore:
        if self._closed:
            raise Closed(f"this connection to {self.where!r} is closed")
        return self._shared.store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    # Members of the runtime-checkable protocols must be defined here, because Python 3.12 ignores `__getattr__` when
    # it checks a protocol.

    @property
    def where(self) -> str:
        """Return the path of the file, or the locations of both backends."""
        return self._shared.store.where

    # These return the store's own methods, so that appending spans costs no extra call.
    announce, health, trouble, append_async = (
        property(attrgetter(f"_store.{name}")) for name in "announce health trouble append_async".split()
    )
    is_exclusive = property(attrgetter("_store.is_exclusive"))
    identity, open_outlet, feedback_after, count_feedback_after, move_outlet, find_stored_feedback = (
        property(attrgetter(f"_store.{name}"))
        for name in "identity open_outlet feedback_after count_feedback_after move_outlet find_stored_feedback".split()
    )

    def __repr__(self) -> str:
        return repr(self._shared.store)

    def __enter__(self) -> _StoreHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the handle. Closing twice has no effect."""
        if not self._closed:
            self._closed = True
            self._shared.release()


@atexit.register
def _close_open_stores() -> None:
    """Close all files that are still open, so that their write-ahead logs are empty when the process ends."""
    with _lock:
        for shared in list(_open_stores.values()):
            shared.store.close()
        _open_stores.clear()


def _reset_after_fork() -> None:
    """Forget the parent's open files in the child process."""
    global _lock
    _lock = threading.Lock()
    _open_stores.clear()


_lock = threading.Lock()
_open_stores: dict[Path | str, _SharedStore] = {}  # by resolved path, or by the URLs of both backends
os.register_at_fork(after_in_child=_reset_after_fork)


class OnDemandStore:
    """Store that `hold` opens and the last `release` closes.

    An operation without `hold` opens the store for itself and closes it afterwards. Raises the errors of `connect`.
    """

    def __init__(self, where: str | os.PathLike[str] | None = None) -> None:
        location = os.fspath(where) if where is not None else default_location()
        self._place = location if "://" in location else os.path.abspath(location)
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
        """Keep the store open within a `with` block, and yield it."""
        self.hold()
        try:
            yield self._opened
        finally:
            self.release()

    def each(self, *args: Any, **given: Any) -> Iterator[TraceSummary]:
        """Yield all traces that pass a filter, page by page: see `TraceStore`."""
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
        """Do nothing: the callers of `hold` release the store."""

    def __repr__(self) -> str:
        return f"OnDemandStore({hide_password(self._place)!r})"


class AsyncStore:
    """Store whose operations are coroutines that run in threads; stores are thread-safe."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.store, name)
        return partial(asyncio.to_thread, member) if callable(member) else member

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.store.close)


def aio(store: Store) -> AsyncStore:
    """Return the store with its operations as coroutines: `await aio(store).traces(limit=5)`."""
    return AsyncStore(store)


PROBE_TIMEOUT_S = 0.5
TCP_LISTEN_STATE = "0A"


def probe_server(url: str, timeout: float = PROBE_TIMEOUT_S) -> dict[str, Any] | None:
    """Return the health response of a Spanwise server at `url`; None if none answers.

    The response holds `pid`, `store` and other fields; callers without a key get fewer.
    """
    # Use urllib without proxies rather than httpx: programs probe when they start, and may never talk to a server.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    # `HTTPException`: the program on this port speaks another protocol
    failures = OSError, ValueError, urllib.error.URLError, HTTPException
    with suppress(*failures), suppress_instrumentation(), opener.open(f"{url}/healthz", timeout=timeout) as response:
        content = json.load(response)
        return content if isinstance(content, dict) and content.get("service") == "spanwise" else None
    return None


def describe_port_holder(host: str, port: int) -> str:
    """Describe the program that uses a port.

    It is a Spanwise server with its store, a process by name and id, or another program.
    """
    server = probe_server(build_server_url(host, port))
    if server and "store" in server:
        return f"a Spanwise server (process {server.get('pid')}, store {server['store']!r})"
    pid = _find_listening_process(port)
    program = "another program"
    if pid:
        name = "of another user"
        with suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        program = f"process {pid} ({name})"
    return f"a Spanwise server, {program}" if server else program


def _find_listening_process(port: int) -> int | None:
    """Return the id of a process that listens on a port, if Linux shows it to this user."""
    sockets = set[str]()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == TCP_LISTEN_STATE and int(fields[1].rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{fields[9]}]")
    for link in Path("/proc").glob("[0-9]*/fd/*") if sockets else ():
        with suppress(OSError):
            if os.readlink(link) in sockets:
                return int(link.parts[2])
    return None


# Store arguments: an open store, or the path or URL of one.

StoreLocation: TypeAlias = "Store | str | PathLike[str]"


@contextmanager
def open_store_location(store: StoreLocation) -> Iterator[Store]:
    """Yield the given open store, or open the store at a path or URL and close it after the block."""
    if not isinstance(store, str | PathLike):
        yield store
        return
    with closing(connect(store)) as opened:
        yield opened


def resolve_store(store: StoreLocation) -> Store:
    """Return an open store unchanged, or open the store at a path or URL. That store stays open for later reads."""
    return connect(store) if isinstance(store, str | PathLike) else store
