"""A real store with a little in it, and the pages over it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from page_scripts import require_scripts
from spanwise.collector.api import create_app
from spanwise.collector.security import make_form_token
from spanwise.collector.stores import Store
from spanwise.collector.stores.sqlite import SQLiteStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with SQLiteStore(tmp_path / "spanwise.db") as made:
        yield made


@pytest.fixture
def scripts() -> None:
    require_scripts()


class Reader(TestClient):
    """Sends forms as a page does, with the token that stands in it; `data` may say another."""

    def post(self, url: Any, *, data: Any = None, **given: Any) -> Any:
        return super().post(url, data={"token": make_form_token(b"")} | (data or {}), **given)


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    with Reader(create_app(store)) as made:
        yield made
