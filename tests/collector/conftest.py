"""Stores for the conformance suites: one fixture, every implementation."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from collector.clickhouse_server import VARIABLE, ClickHouseServer
from spanwise.collector.client import HTTPStore
from spanwise.collector.server import Server
from spanwise.collector.stores import Store
from spanwise.collector.stores.sqlite import SQLiteStore
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


@contextmanager
def over_http(folder: Path, current: Current, url: str) -> Iterator[Store]:
    with SQLiteStore(folder / "spanwise.db") as current.store, HTTPStore(url) as client:
        yield client


# name of an implementation: from a folder, and the session's server, to a context that gives its store
IMPLEMENTATIONS: dict[str, Callable[[Path, Current, str], AbstractContextManager[Store]]] = {
    "http": over_http,
    "sqlite": lambda folder, current, url: SQLiteStore(folder / "spanwise.db"),
}


@pytest.fixture(params=sorted(IMPLEMENTATIONS))
def store(
    request: pytest.FixtureRequest, tmp_path: Path, shared: tuple[Current, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    monkeypatch.setattr(fulltext_index, "SETTLE_NS", 100_000_000)  # words are found ten times as soon
    monkeypatch.setattr(background_jobs, "WRITE_INTERVAL_SECONDS", 0.1)
    with IMPLEMENTATIONS[request.param](tmp_path, *shared) as made:
        yield made


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
