"""The write-ahead log: that it stays small, who keeps it from it, and what happens when they have gone."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from collector import former_file
from collector.conformance_traces import eventually
from collector.making import run
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.database.connections import WAL_SIZE_LIMIT
from spanwise.collector.stores.sqlite.database.group_commit import DUE_BYTES
from spanwise.collector.stores.sqlite.database.schema import PAGE_SIZE

MUCH = 400_000  # bytes of a span


def size(file: Path) -> int:
    return os.path.getsize(f"{file}-wal")


def write(store: SQLiteStore, total: int) -> None:
    for _ in range(total // MUCH // 10):
        store.append([run(attributes={"x": os.urandom(MUCH // 2).hex()}) for _ in range(20)])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "spanwise.db"


@contextmanager
def looking(file: Path) -> Iterator[None]:
    """A reader of another program that stays in one snapshot."""
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("BEGIN")
        db.execute("SELECT count(*) FROM traces").fetchone()
        yield


@pytest.mark.process
def test_what_is_written_is_copied_by_its_bytes(file: Path) -> None:
    with SQLiteStore(file) as store:
        write(store, 2 * DUE_BYTES)  # by few jobs, of little weight
        assert eventually(lambda: store.health()["log_waiting_bytes"] <= DUE_BYTES)


@pytest.mark.process
def test_a_reader_that_stays_is_seen_and_when_it_goes_the_log_shrinks(file: Path) -> None:
    with SQLiteStore(file) as store:
        store.append([run()])
        with looking(file):
            write(store, WAL_SIZE_LIMIT + DUE_BYTES)
            assert store.health()["log_waiting_bytes"] > WAL_SIZE_LIMIT
            assert store.health()["log_bytes"] == size(file) > WAL_SIZE_LIMIT

        def shrunk() -> bool:
            store.append([run()])
            return size(file) <= WAL_SIZE_LIMIT

        assert eventually(shrunk)
        assert store.health()["log_waiting_bytes"] <= WAL_SIZE_LIMIT


@pytest.mark.process
def test_readers_that_stay_keep_nobody_from_writing(file: Path) -> None:
    with SQLiteStore(file) as store, looking(file):
        write(store, 2 * DUE_BYTES)
        before = store.health()["commits"]
        store.append([run()])
        assert store.health()["commits"] > before


def test_a_new_file_has_pages_as_measured_and_an_older_one_keeps_its_own(file: Path, tmp_path: Path) -> None:
    former_file.build(older := tmp_path / "older.db")
    for path, pages in ((file, PAGE_SIZE), (older, former_file.PAGES)):
        with SQLiteStore(path) as store:
            store.append([run()])
            assert store.stats()["page_bytes"] == pages
            assert store.vacuum() >= 0
            assert store.stats()["page_bytes"] == pages
            assert store.check() == []


@pytest.mark.process
@pytest.mark.parametrize(("seconds", "total"), [(0.005, 2 * DUE_BYTES), (0.08, 3 * DUE_BYTES)])
def test_readers_that_come_and_go_all_the_time_do_not_keep_the_log_from_beginning_anew(
    file: Path, seconds: float, total: int
) -> None:
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            with looking(file):
                done.wait(seconds)

    with SQLiteStore(file) as store, ThreadPoolExecutor(3) as pool:
        store.append([run()])
        for _ in range(3):
            pool.submit(look)
        try:
            write(store, total)

            def small() -> bool:
                store.append([run()])
                return store._file.watch.log().bytes < DUE_BYTES

            assert eventually(small)
        finally:
            done.set()


def test_closing_empties_the_log_although_another_process_has_the_file_open(file: Path) -> None:
    with SQLiteStore(file) as store:
        other = sqlite3.connect(file)
        other.execute("SELECT count(*) FROM traces").fetchone()
        store.append([run()])
    assert file.with_name(f"{file.name}-wal").stat().st_size == 0
    other.close()
