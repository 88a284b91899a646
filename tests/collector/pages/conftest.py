"""A real store with a little in it, and the pages over it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from assay.collector.pages import router
from assay.collector.protocols import Store
from assay.collector.sqlite import SQLiteStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with SQLiteStore(tmp_path / "assay.db") as made:
        yield made


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    app = FastAPI()
    app.include_router(router(store))
    with TestClient(app) as made:
        yield made
