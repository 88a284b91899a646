"""Stores for the conformance suites: one fixture, every implementation."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from collector.clickhouse_server import VARIABLE, ClickHouseServer
from collector.postgres_server import FAST, PostgresServer, running_server
from spanwise.collector.client import HTTPStore
from spanwise.collector.server import Server
from spanwise.collector.stores import CombinedStore, Store
from spanwise.collector.stores.backends import ControlBackend, TraceBackend
from spanwise.collector.stores.clickhouse import ClickHouseTraces, filter_values
from spanwise.collector.stores.postgres import PostgresControl
from spanwise.collector.stores.sqlite import DatabaseFile, SQLiteControl, SQLiteStore, SQLiteTraces
from spanwise.collector.stores.sqlite.maintenance import background_jobs
from spanwise.collector.stores.sqlite.search import fulltext_index


class Current:
    """What the one server of a session serves: the store of the test that runs. Starting a server for each of some
    hundred tests would take longer than the tests.
    """

    store: SQLiteStore

    def __getattr__(self, name: str) -> Any:
        if name == "store":  # between two tests there is none
            raise AttributeError(name)
        return getattr(self.store, name)


@pytest.fixture(scope="session")
def shared() -> Iterator[tuple[Current, str]]:
    current = Current()
    with Server(current) as server:  # type: ignore[arg-type]
        yield current, server.url
        vars(current).clear()  # its store is closed by now


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with running_server(**FAST) as server:
        yield server


@pytest.fixture(scope="session")
def reused_database(postgres: PostgresServer) -> str:
    return postgres.create_database()


@pytest.fixture
def empty_database(postgres: PostgresServer, reused_database: str) -> str:
    """The URL of a database without records. Emptying one takes a tenth of the time of creating one."""
    postgres.empty_database(reused_database)
    return reused_database


@contextmanager
def over_http(folder: Path, current: Current, url: str) -> Iterator[Store]:
    with SQLiteStore(folder / "spanwise.db") as current.store, HTTPStore(url) as client:
        yield client


@contextmanager
def on_sqlite(request: pytest.FixtureRequest, folder: Path) -> Iterator[TraceBackend]:
    traces = SQLiteTraces(file := DatabaseFile(folder / "traces.db"))
    worker = background_jobs.BackgroundWorker(file, lambda: None)
    try:
        yield traces
    finally:
        worker.close()
        traces.close()


# name of a trace backend: from the request of a test and a folder to a context that gives it
TRACE_BACKENDS: dict[str, Callable[[pytest.FixtureRequest, Path], AbstractContextManager[TraceBackend]]] = {
    "sqlite": on_sqlite,
    "clickhouse": lambda request, folder: closing(ClickHouseTraces(request.getfixturevalue("empty_clickhouse"))),
}


@contextmanager
def on_postgres(request: pytest.FixtureRequest) -> Iterator[ControlBackend]:

    with closing(PostgresControl(request.getfixturevalue("empty_database"))) as control:
        yield control


# name of a control backend: from the request of a test and a folder to a context that gives it
CONTROL_BACKENDS: dict[str, Callable[[pytest.FixtureRequest, Path], AbstractContextManager[ControlBackend]]] = {
    "postgres": lambda request, folder: on_postgres(request),
    "sqlite": lambda request, folder: closing(SQLiteControl(DatabaseFile(folder / "control.db"))),
}


@contextmanager
def combined(request: pytest.FixtureRequest, folder: Path, traces: str, control: str) -> Iterator[Store]:
    with TRACE_BACKENDS[traces](request, folder) as traces_, CONTROL_BACKENDS[control](request, folder) as control_:
        yield cast(Store, CombinedStore(traces_, control_))


def made(name: str, request: pytest.FixtureRequest, folder: Path, shared: tuple[Current, str]) -> Any:
    """A context that gives the store of an implementation: `http`, `sqlite`, or a trace and a control backend."""
    if name == "http":
        return over_http(folder, *shared)
    if name == "sqlite":
        return SQLiteStore(folder / "spanwise.db")
    return combined(request, folder, *name.split("+"))


IMPLEMENTATIONS = ["http", "sqlite", "sqlite+postgres", "clickhouse+sqlite", "clickhouse+postgres"]
# Modules that ask nothing of a control backend
OF_TRACES = {f"collector.conformance_{name}" for name in ("feed", "judgements", "sorting", "traces")}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out cases of two backends that another pair covers, and mark those that need a server."""
    kept = []
    for item in items:
        is_of_traces = getattr(item, "function", item).__module__ in OF_TRACES
        if "+postgres" in item.name and is_of_traces:
            continue
        if "clickhouse+sqlite" in item.name and not is_of_traces:
            continue
        if "clickhouse+" in item.name or "+postgres" in item.name:
            item.add_marker(pytest.mark.process)
        kept.append(item)
    items[:] = kept


@pytest.fixture(params=IMPLEMENTATIONS)
def store(
    request: pytest.FixtureRequest, tmp_path: Path, shared: tuple[Current, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    monkeypatch.setattr(fulltext_index, "SETTLE_NS", 100_000_000)  # words are found ten times as soon
    monkeypatch.setattr(filter_values, "SETTLE_NS", 3_000_000_000)  # a busy machine may need seconds
    monkeypatch.setattr(background_jobs, "WRITE_INTERVAL_SECONDS", 0.1)
    with made(request.param, request, tmp_path, shared) as store:
        yield store


@pytest.fixture(scope="session")
def clickhouse_server() -> Iterator[ClickHouseServer]:
    """Yield the ClickHouse server of the session. A test that kills it starts it again."""
    if not os.environ.get(VARIABLE) and importlib.util.find_spec("chdb") is None:
        pytest.skip("chdb does not exist for this platform")
    server = ClickHouseServer()
    yield server
    server.stop()


@pytest.fixture
def clickhouse_url(clickhouse_server: ClickHouseServer) -> Iterator[str]:
    """Yield the address of a new ClickHouse database, which is dropped after the test."""
    with clickhouse_server.database() as url:
        yield url


@pytest.fixture(scope="session")
def reused_clickhouse(clickhouse_server: ClickHouseServer) -> Iterator[str]:
    with clickhouse_server.database() as url:
        yield url


@pytest.fixture
def empty_clickhouse(clickhouse_server: ClickHouseServer, reused_clickhouse: str) -> str:
    """Return the address of a database whose tables have no rows. Creating new tables takes five times as long."""
    clickhouse_server.empty_database(reused_clickhouse)
    return reused_clickhouse
