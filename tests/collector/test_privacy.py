"""What is kept is for its user alone, unless that one has said otherwise."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.making import run
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


def test_a_database_and_all_beside_it_is_its_users_alone(tmp_path: Path, umask: int) -> None:
    with SQLiteStore(tmp_path / "spanwise.db") as store, Server(store):
        store.append([run()])
        found = modes(tmp_path)
    assert {"spanwise.db", "spanwise.db-wal", "spanwise.db-shm", "spanwise.db.lock"} <= set(found)
    assert set(found.values()) == {0o600}


def test_a_file_that_was_opened_to_others_stays_so(tmp_path: Path) -> None:
    SQLiteStore(tmp_path / "spanwise.db").close()
    (tmp_path / "spanwise.db").chmod(0o640)
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        store.append([run()])
        assert modes(tmp_path)["spanwise.db"] == modes(tmp_path)["spanwise.db-wal"] == 0o640
