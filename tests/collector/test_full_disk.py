"""A disk that is full: what was acknowledged stays, and there is a way to make room."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from collector.conformance_traces import eventually
from collector.making import run
from collector.receivers import HTTPReceiver, notification
from spanwise.cli.app import app
from spanwise.collector.alerts import AlertRunner
from spanwise.collector.errors import Unavailable
from spanwise.collector.notifications import HTTPTarget, NotificationConfig, Notifier, parse_allowed
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.records import Alert
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.database.group_commit import MIN_RESERVE_BYTES, DiskReserve


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 32 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=32m", "none", str(place)]
    if os.geteuid() != 0 or subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("only who may mount a disk can fill one")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def until_full(store: SQLiteStore, name: str = "early") -> int:
    """Write until there is no room; returns how many traces were acknowledged."""
    kept, disk = 0, os.path.dirname(store.path)
    try:
        while True:
            store.append([run(name, attributes={"x": os.urandom(10_000).hex()}) for _ in range(10)])
            kept += 10
            if os.statvfs(disk).f_bavail * 4096 > 5 * 2**20:
                store.checkpoint()  # as time would do it: no disk fills in a second
    except Unavailable:
        return kept


def fill(store: SQLiteStore, disk: Path) -> int:
    """As much as there is, once the store has set room aside."""
    for _ in range(8):
        store.append([run("early", attributes={"x": os.urandom(10_000).hex()}) for _ in range(50)])
        store.checkpoint()
    assert eventually((disk / "spanwise.db.reserve").exists, True)
    return 400 + until_full(store)


def others_fill(disk: Path) -> None:
    """What is left of the disk goes to somebody else."""
    with suppress(OSError), (disk / "others").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def works(write: Callable[[], object]) -> bool:
    try:
        write()
    except Unavailable:
        return False
    return True


@pytest.mark.process
def test_deleting_makes_room_on_a_full_disk(disk: Path) -> None:
    with (
        SQLiteStore(disk / "spanwise.db") as store,
        Server(store) as server,
        httpx.Client(base_url=server.url) as client,
    ):
        kept = fill(store, disk)
        others_fill(disk)
        kept += until_full(store)
        assert client.get("/api/count").json()["traces"] == kept
        gone = store.delete(name="early")
        assert gone == kept
        assert eventually(lambda: client.get("/readyz").status_code, 200)
        assert eventually(lambda: works(lambda: store.append([run("late")])), True)
        assert store.check(deep=True) == []


@pytest.mark.process
def test_what_was_acknowledged_before_the_disk_was_full_is_there_and_can_be_deleted_by_a_command(disk: Path) -> None:
    with SQLiteStore(disk / "spanwise.db") as store:
        kept = fill(store, disk)
    others_fill(disk)
    shown = CliRunner().invoke(app, ["db", "delete", "name=early", "--yes", "--store", str(disk / "spanwise.db")])
    assert f"deleted {kept} traces" in shown.stderr
    with SQLiteStore(disk / "spanwise.db") as store:
        assert eventually(lambda: works(lambda: store.append([run("late")])), True)
        assert store.check(deep=True) == []


@pytest.mark.process
def test_a_log_that_finds_no_room_in_the_database_is_copied_when_there_is_some(disk: Path) -> None:
    with SQLiteStore(disk / "spanwise.db") as store:
        with closing(sqlite3.connect(disk / "spanwise.db", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM traces").fetchone()
            for _ in range(8):  # which the reader keeps in the log
                store.append([run(attributes={"x": os.urandom(10_000).hex()}) for _ in range(100)])
            others_fill(disk)
        assert not works(store.checkpoint)
        assert (store.count()["traces"], store.check(deep=True)) == (800, [])
        (disk / "others").unlink()
        assert eventually(lambda: works(store.checkpoint), True)
        assert eventually(lambda: works(store.checkpoint) and store.health()["log_waiting_bytes"] == 0)
        assert store.check(deep=True) == []


@pytest.mark.process
def test_a_reserve_grows_after_the_log_is_copied_if_the_disk_has_no_room_for_both(disk: Path) -> None:
    (disk / "spanwise.db-wal").write_bytes(bytes(12 * 2**20))
    reserve, file = DiskReserve(str(disk / "spanwise.db")), disk / "spanwise.db.reserve"
    assert reserve.keep(database=12 * 2**20)
    assert file.stat().st_size == MIN_RESERVE_BYTES
    assert reserve.keep(database=0)
    assert file.stat().st_size == 12 * 2**20


@pytest.mark.process
def test_a_reserve_grows_while_the_log_cannot_be_copied(disk: Path) -> None:
    (disk / "spanwise.db-wal").write_bytes(bytes(17 * 2**20))
    assert not DiskReserve(str(disk / "spanwise.db")).keep(database=17 * 2**20)
    (disk / "spanwise.db-wal").write_bytes(bytes(12 * 2**20))
    (disk / "others").write_bytes(bytes(7 * 2**20))
    assert DiskReserve(str(disk / "spanwise.db")).keep(database=14 * 2**20)
    assert (disk / "spanwise.db.reserve").stat().st_size == 12 * 2**20


@pytest.mark.process
def test_while_the_reserve_is_given_up_a_notification_is_sent_once_and_recorded_later(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "spanwise.db") as store, HTTPReceiver() as receiver:
        store.add_notifications([notification(headline="The store is full.")])
        store._file.writer.reserve.keep(database=0)
        (tmp_path / "spanwise.db.reserve").mkdir()  # so that there is no room for it
        store._file.writer.reserve.is_available = False
        hook = HTTPTarget(name="ops", kind="webhook", url=receiver.url, allowed=parse_allowed(["127.0.0.1"]))
        notifier = Notifier(NotificationConfig({"ops": hook}), poll_s=0.02)
        notifier.begin(store, Metrics(), "http://127.0.0.1:4318")
        try:
            assert eventually(lambda: receiver.ids, ["n1"])
            assert store.count_due_deliveries() == {"ops": 1}
            (tmp_path / "spanwise.db.reserve").rmdir()
            assert eventually(store.count_due_deliveries, {})
            assert receiver.ids == ["n1"]
        finally:
            notifier.close()


@pytest.mark.process
def test_while_the_reserve_is_given_up_only_what_makes_room_is_written(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        store.append([run("a"), run("b")])
        reserve = store._file.writer.reserve
        reserve.keep(database=0)
        (tmp_path / "spanwise.db.reserve").mkdir()  # so that there is no room for it
        reserve.is_available = False
        with pytest.raises(Unavailable, match="delete something"):
            store.append([run()])
        assert "delete something" in (store.trouble() or "")
        assert store.delete(name="a") == 1
        (tmp_path / "spanwise.db.reserve").rmdir()
        assert eventually(lambda: works(lambda: store.append([run()])), True)


def test_a_reserve_is_kept_while_everything_is_in_the_log(tmp_path: Path) -> None:
    file, log, kept = (tmp_path / f"spanwise.db{end}" for end in ("", "-wal", ".reserve"))
    file.write_bytes(bytes(4096))
    with log.open("wb") as made:
        made.truncate(100 * 2**20)
    reserve = DiskReserve(str(file))
    assert reserve.keep(database=0)
    assert kept.stat().st_size >= 100 * 2**20  # the database grows by as much when the log is emptied


def test_a_reserve_grows_with_its_database_and_is_private(tmp_path: Path) -> None:
    file, kept = tmp_path / "spanwise.db", tmp_path / "spanwise.db.reserve"
    file.write_bytes(b"")
    reserve = DiskReserve(str(file))
    assert (reserve.keep(database=0), kept.exists()) == (True, False)
    for size, expected in (
        (8 * 2**20, MIN_RESERVE_BYTES),
        (64 * 2**20, 2 * MIN_RESERVE_BYTES),
        (2**30, 16 * MIN_RESERVE_BYTES),
    ):
        os.truncate(file, size)
        assert reserve.keep(database=0)
        assert (kept.stat().st_size, kept.stat().st_mode & 0o777) == (expected, 0o600)
    assert (reserve.give_up(), reserve.is_available, kept.exists()) == (True, False, False)
    assert (reserve.keep(database=0), kept.stat().st_size) == (True, 16 * MIN_RESERVE_BYTES)


def test_an_alert_about_a_full_disk_fires_and_is_notified(disk):
    full = Alert(name="full", measure="store_full", fire_after=1, to=("ops",))
    with HTTPReceiver() as ops, SQLiteStore(disk / "spanwise.db") as store:
        store.save_alert(full)
        until_full(store, "early")
        assert store.is_full()
        target = HTTPTarget(name="ops", kind="webhook", url=ops.url, allowed=parse_allowed(["127.0.0.1"]))
        notifier = Notifier(NotificationConfig({"ops": target}), poll_s=0.02)
        notifier.begin(store, Metrics(), "http://127.0.0.1:4318")
        try:
            assert AlertRunner(store).step() == 1
            assert eventually(lambda: len(ops.requests), 1)
        finally:
            notifier.close()
        assert store.alert_groups("full")[0].status == "firing"
