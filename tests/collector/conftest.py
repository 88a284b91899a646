"""Stores for the conformance suites: one fixture, every implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from assay.collector.client import HTTPStore
from assay.collector.server import Server
from assay.collector.stores import Store
from assay.collector.stores.sqlite import SQLiteStore


@contextmanager
def over_http(folder: Path) -> Iterator[Store]:
    with SQLiteStore(folder / "assay.db") as kept, Server(kept) as server, HTTPStore(server.url) as client:
        yield client


# name of an implementation: from a folder to a context that gives its store
IMPLEMENTATIONS: dict[str, Callable[[Path], AbstractContextManager[Store]]] = {
    "http": over_http,
    "sqlite": lambda folder: SQLiteStore(folder / "assay.db"),
}


@pytest.fixture(params=sorted(IMPLEMENTATIONS))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with IMPLEMENTATIONS[request.param](tmp_path) as made:
        yield made
