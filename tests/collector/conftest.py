"""Stores for the conformance suites: one fixture, every implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from assay.collector.protocols import Store
from assay.collector.sqlite import SQLiteStore

# name of an implementation: from a folder to a context that gives its store
IMPLEMENTATIONS: dict[str, Callable[[Path], AbstractContextManager[Store]]] = {
    "sqlite": lambda folder: SQLiteStore(folder / "assay.db"),
}


@pytest.fixture(params=sorted(IMPLEMENTATIONS))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with IMPLEMENTATIONS[request.param](tmp_path) as made:
        yield made
