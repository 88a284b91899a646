"""What is kept is for its user alone, unless that one has said otherwise."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.collector.server import Server
from assay.collector.stores.sqlite import SQLiteStore
from collector.making import run


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


def test_a_database_and_all_beside_it_is_its_users_alone(tmp_path: Path, umask: int) -> None:
    with SQLiteStore(tmp_path / "assay.db") as store, Server(store):
        store.append([run()])
        found = modes(tmp_path)
    assert {"assay.db", "assay.db-wal", "assay.db-shm", "assay.db.lock"} <= set(found)
    assert set(found.values()) == {0o600}


def test_a_file_that_was_opened_to_others_stays_so(tmp_path: Path) -> None:
    SQLiteStore(tmp_path / "assay.db").close()
    (tmp_path / "assay.db").chmod(0o640)
    with SQLiteStore(tmp_path / "assay.db") as store:
        store.append([run()])
        assert modes(tmp_path)["assay.db"] == modes(tmp_path)["assay.db-wal"] == 0o640
