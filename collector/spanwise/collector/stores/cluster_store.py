"""Cluster store: traces in ClickHouse and control records in PostgreSQL, shared by any number of processes."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from spanwise.collector.address_parsing import expand_environment, hide_password, remove_secrets
from spanwise.collector.errors import Refused, StoreError, Unavailable
from spanwise.collector.stores.backends import ControlBackend, TraceBackend
from spanwise.collector.stores.combined_store import CombinedStore

if TYPE_CHECKING:
    from spanwise.collector.stores.sqlite import DatabaseFile

MAINTENANCE_LEASE = "maintenance"  # name of the lease; one collector at a time deletes what retention rules expire
MAINTENANCE_INTERVAL_S = 3600.0
RETRY_S = 60.0  # seconds until maintenance that the store did not allow is tried again
WATCH_INTERVAL_S, MAX_ANSWER_AGE_S = 2.0, 15.0
STOP_SECONDS = 5.0
CLICKHOUSE, POSTGRESQL = "clickhouse", ("postgresql", "postgres")  # schemes of URLs
_log = logging.getLogger("spanwise.collector")


class ClusterStore(CombinedStore):
    """Store whose backends are separate databases. Collectors and monitors on any number of machines share it.

    Implements `spanwise.collector.stores.Store` and `LocalStore`. With `file`, the control records are in that SQLite
    file, so that only this process can use the store.
    """

    def __init__(
        self,
        traces: TraceBackend,
        control: ControlBackend,
        file: DatabaseFile | None = None,
        *,
        maintenance_s: float = MAINTENANCE_INTERVAL_S,
        retry_s: float = RETRY_S,
    ) -> None:
        """Combine the backends. Maintenance runs every `maintenance_s` seconds, first after `retry_s`."""
        super().__init__(traces, control)
        self._file, self._times = file, (maintenance_s, retry_s)
        self._maintenance: _Maintenance | None = None
        self._watch: _Watch | None = None

    @property
    def is_exclusive(self) -> bool:
        """Return whether only this process can use the store."""
        return self._file is not None

    def shared_secret(self) -> bytes | None:
        """Return a random secret that all processes with this store share, for browser sessions; None if the store is
        exclusive.
        """
        return None if self.is_exclusive else cast(Any, self._control).shared_secret()

    def announce(self, url: str | None) -> None:
        """Publish the URL of this collector, and start hourly maintenance; None withdraws it and stops maintenance."""
        if self._file is not None:
            self._file.announce(url)
        self._stop_threads()
        if url is not None:
            self._maintenance, self._watch = _Maintenance(self, *self._times), _Watch(self._check)

    def health(self) -> Mapping[str, float]:
        """Return metrics of both backends by name. `writable` is 0 while nothing can be stored."""
        of_control = {f"control_{name}": value for name, value in _ask(self._control, "health", {}).items()}
        return {**_ask(self._traces, "health", {}), **of_control, "writable": int(self.trouble() is None)}

    def trouble(self) -> str | None:
        """Return the reason why nothing can be stored now, without addresses; None if writing works.

        While this store is served, a thread asks the databases, and the answer takes no time.
        """
        return self._check() if self._watch is None else self._watch.trouble()

    def _check(self) -> str | None:
        reason: str | None = _ask(self._traces, "trouble", None)
        if reason is not None:
            return reason
        try:
            self._traces.latest_trace_number()
        except StoreError as error:
            return f"the database of traces does not answer: {type(error).__name__}"
        return self._file.trouble() if self._file is not None else _ask(self._control, "trouble", None)

    def close(self) -> None:
        """Write queued jobs, then close both backends. Repeated calls do nothing."""
        self._stop_threads()
        super().close()

    def _stop_threads(self) -> None:
        for thread in (self._maintenance, self._watch):
            if thread is not None:
                thread.stop()
        self._maintenance = self._watch = None

    def __repr__(self) -> str:
        return f"ClusterStore({self.where!r})"


def _ask(backend: object, name: str, default: Any) -> Any:
    """Return the result of an operation that not every backend has."""
    operation = getattr(backend, name, None)
    return default if operation is None else operation()


class _Watch:
    """Thread that asks the databases every `WATCH_INTERVAL_S` seconds whether something can be stored."""

    def __init__(self, check: Callable[[], str | None]) -> None:
        self._check, self._stopped = check, threading.Event()
        self._found, self._at = self._check(), time.monotonic()
        self._thread = threading.Thread(target=self._run, name="spanwise-health", daemon=True)
        self._thread.start()

    def trouble(self) -> str | None:
        """Return the latest answer; a reason if there is no recent one."""
        is_recent = time.monotonic() - self._at < MAX_ANSWER_AGE_S
        return self._found if is_recent or self._found is not None else "the databases do not answer"

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(STOP_SECONDS)  # a database that hangs must not hold up the end of the process

    def _run(self) -> None:
        while not self._stopped.wait(WATCH_INTERVAL_S):
            try:
                self._found = self._check()
            except Exception as error:  # the thread must survive whatever a driver raises
                self._found = f"the databases do not answer: {type(error).__name__}"
            self._at = time.monotonic()


class _Maintenance:
    """Thread of a collector that runs the hourly jobs, such as retention rules, on one collector at a time."""

    def __init__(self, store: ClusterStore, interval_s: float, retry_s: float) -> None:
        self._store, self._interval_s, self._retry_s = store, interval_s, retry_s
        self._holder = f"{socket.gethostname()}/{os.getpid()}/maintenance/{secrets.token_hex(4)}"
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spanwise-maintenance", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(STOP_SECONDS)  # a database that hangs must not hold up the end of the process

    def _run(self) -> None:
        pause = self._retry_s  # not at the start: collectors that restart repeatedly must not delete each time
        while not self._stopped.wait(pause):
            try:
                # the lease is kept for the interval, so that the collectors together do this once an hour
                leased = self._store.acquire(MAINTENANCE_LEASE, self._holder, self._interval_s)  # type: ignore[attr-defined]
                pause = self._retry_s
                if leased is not None:
                    self._store.run_hourly_jobs()
                    pause = self._interval_s
            except Exception as error:  # the thread must survive whatever a database answers
                if not isinstance(error, Unavailable):
                    _log.warning("the hourly jobs failed: %s", error)
                pause = self._retry_s


def open_backends(traces: str, control: str) -> ClusterStore:
    """Open both backends by URL or path, and return the store made of them.

    `control` is the URL of a PostgreSQL database, or the path of a SQLite file, which one process can use at a time.
    `traces` is the URL of a ClickHouse database, or, for tests, the path of a SQLite file. `${NAME}` in a URL is replaced
    by an environment variable. Raises `Refused` or `Unavailable`, without passwords.
    """
    trace_backend = _without_secrets(traces, _open_traces)
    try:
        control_backend, file = _without_secrets(control, _open_control)
    except BaseException:
        trace_backend.close()
        raise
    return ClusterStore(trace_backend, control_backend, file)


T = TypeVar("T")


def _without_secrets(url: str, open_backend: Callable[[str], T]) -> T:
    """Open a backend. Errors mention neither the password nor the address that contains it."""
    expanded = expand_environment(url)
    try:
        return open_backend(expanded)
    except StoreError as error:
        text = remove_secrets(str(error), expanded)
        if text == str(error):
            raise
        raise Unavailable(text, error.retry_after) if isinstance(error, Unavailable) else Refused(text) from None
    except ModuleNotFoundError as error:  # the extra of the engine is not installed; the message says so
        raise Refused(str(error)) from None


def _open_traces(url: str) -> TraceBackend:
    scheme, divided, _ = url.partition("://")
    if scheme == CLICKHOUSE:
        from spanwise.collector.stores.clickhouse import ClickHouseTraces

        return ClickHouseTraces(url)
    if divided:
        raise Refused(f"{hide_password(url)!r} is no trace store; expected clickhouse://…")
    from spanwise.collector.stores.sqlite import DatabaseFile, SQLiteTraces

    return cast(TraceBackend, SQLiteTraces(DatabaseFile(url)))


def _open_control(url: str) -> tuple[ControlBackend, DatabaseFile | None]:
    scheme, divided, _ = url.partition("://")
    if scheme in POSTGRESQL:
        from spanwise.collector.stores.postgres import PostgresControl

        return PostgresControl(url), None
    if divided:
        raise Refused(
            f"{hide_password(url)!r} is no control store; expected postgresql://… or, for one machine, the path of a"
            " SQLite file"
        )
    from spanwise.collector.stores.sqlite import DatabaseFile, SQLiteControl

    file = DatabaseFile(url)
    return SQLiteControl(file), file
