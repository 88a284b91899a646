"""A real store with a little in it, and the pages over it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from assay.collector.api import create_app
from assay.collector.stores import Store
from assay.collector.stores.sqlite import SQLiteStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with SQLiteStore(tmp_path / "assay.db") as made:
        yield made


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    with TestClient(create_app(store)) as made:
        yield made
