"""What is acknowledged is on the disk, though the writer goes on while the disk takes it."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from collector.conformance_traces import eventually
from collector.making import run
from spanwise.collector.errors import Halted
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.database import group_commit

MANY = 250  # runs, which are worth a commit of their own


class Disk:
    """Takes what is written as often as it is let; `failing` it keeps nothing."""

    def __init__(self, log: Path) -> None:
        self.failing, self.waiting, self._turns, self._log = False, 0, threading.Semaphore(0), log

    def let(self, turns: int = 1000) -> None:
        """Let it take so much."""
        self._turns.release(turns)

    def __call__(self, descriptor: int) -> None:
        if not os.path.samestat(os.fstat(descriptor), self._log.stat()):
            os.fsync(descriptor)  # the log of a store that an earlier test in this process left open
            return
        self.waiting += 1
        assert self._turns.acquire(timeout=30)
        self.waiting -= 1
        if self.failing:
            raise OSError(5, "Input/output error")
        os.fsync(descriptor)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk(tmp_path / "spanwise.db-wal")
    monkeypatch.setattr(group_commit, "_fsync", made)
    return made


@pytest.fixture
def store(tmp_path: Path, disk: Disk) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "spanwise.db") as opened:
        yield opened
        disk.let()


def sent(store: SQLiteStore) -> Future[None]:
    return store.append_async([run() for _ in range(MANY)])


def test_nothing_is_acknowledged_before_the_disk_has_taken_it(store: SQLiteStore, disk: Disk) -> None:
    future = sent(store)
    assert eventually(lambda: store.count()["traces"], MANY)  # committed, and seen
    assert not future.done()
    disk.let()
    future.result(30)


def test_the_writer_goes_on_while_the_disk_takes_what_it_has_committed(store: SQLiteStore, disk: Disk) -> None:
    first = sent(store)
    assert eventually(lambda: disk.waiting, 1)
    others = [sent(store) for _ in range(3)]
    disk.let(1)
    first.result(30)
    assert eventually(lambda: store.count()["traces"], 4 * MANY)
    assert not any(future.done() for future in others)
    disk.let()
    assert [future.result(30) for future in others] == [None] * 3


def test_a_disk_that_keeps_nothing_ends_it_and_nothing_is_acknowledged(store: SQLiteStore, disk: Disk) -> None:
    disk.let()
    disk.failing = True
    with pytest.raises(Halted, match=r"failed to store data: .Errno 5. Input/output error; check the disk"):
        sent(store).result(30)
    disk.failing = False
    with pytest.raises(Halted, match="check the disk, restart, then run"):
        sent(store).result(30)
    assert "failed to store data" in (store.trouble() or "")


@pytest.mark.process
def test_what_was_acknowledged_is_what_the_disk_had_by_then(
    tmp_path: Path, store: SQLiteStore, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power fails after any acknowledgement: the files are as they were when they were synced last."""
    taken: list[Path] = []
    log = os.open(tmp_path / "spanwise.db-wal", os.O_RDONLY)

    def sync(descriptor: int) -> None:
        if not os.path.sameopenfile(descriptor, log):  # of a store that was opened on what was left
            return
        copy = tmp_path / f"sync {len(taken)}"
        copy.mkdir()
        for name in ("spanwise.db", "spanwise.db-wal"):
            shutil.copy(tmp_path / name, copy)
        taken.append(copy)

    monkeypatch.setattr(group_commit, "_fsync", sync)
    acknowledged = 0
    for _ in range(4):
        for future in [sent(store) for _ in range(4)]:
            future.result(30)
            acknowledged += MANY
            with SQLiteStore(taken[-1] / "spanwise.db") as found:
                assert found.count()["traces"] >= acknowledged
    os.close(log)


def test_without_a_thread_the_writer_waits_for_the_disk_itself(
    store: SQLiteStore, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the end of a process, which may start none any more."""

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread at interpreter shutdown")

    first = sent(store)
    assert eventually(lambda: disk.waiting, 1)
    monkeypatch.setattr(threading.Thread, "start", start)
    others = [sent(store) for _ in range(3)]
    disk.let()
    assert [future.result(30) for future in [first, *others]] == [None] * 4


def test_an_end_waits_for_the_disk(tmp_path: Path, disk: Disk) -> None:
    store = SQLiteStore(tmp_path / "spanwise.db")
    futures = [sent(store) for _ in range(3)]
    closing = threading.Thread(target=store.close)
    closing.start()
    assert eventually(lambda: disk.waiting, 1)
    disk.let()
    closing.join(30)
    assert [future.done() and future.exception() for future in futures] == [None, None, None]
