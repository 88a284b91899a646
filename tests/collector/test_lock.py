"""One process writes a file, by whatever name it knows it; what others do to it meanwhile is noticed."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from collector.conformance_traces import eventually, names
from collector.making import run
from collector.others import HOLDER, holding, outcome
from spanwise.collector import connect
from spanwise.collector.errors import Halted, Refused
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore, holder
from spanwise.collector.stores.sqlite.database.file_lock import _lock_byte
from spanwise.collector.stores.sqlite.database.schema import FILE_VERSION

SAME_VERSION = f"PRAGMA user_version = {FILE_VERSION}"  # a write that changes nothing


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "spanwise.db"


def kept(file: Path) -> list[str]:
    with SQLiteStore(file) as store:
        assert store.check(deep=True) == []
        return sorted(names(store.traces(limit=100)))


@pytest.mark.process
def test_a_second_process_is_refused_through_a_symbolic_link(file: Path) -> None:
    link = file.with_name("link.db")
    link.symlink_to(file)
    with holding(file) as write:
        assert "is being written by process" in outcome(HOLDER, link)
        assert write("a") == "kept"
    assert kept(link) == ["a"]


@pytest.mark.process
def test_a_second_process_is_refused_through_a_hard_link(file: Path) -> None:
    with holding(file) as write:
        assert write("a") == "kept"
        file.with_name("hard.db").hardlink_to(file)
        assert "is being written by another process" in outcome(HOLDER, file.with_name("hard.db"))
        assert write("b") == "kept"


def test_a_file_with_two_names_is_refused_for_its_log_has_one(file: Path) -> None:
    SQLiteStore(file).close()
    file.with_name("hard.db").hardlink_to(file)
    with pytest.raises(Refused, match=r"one of 2 names .*hard links"):
        SQLiteStore(file)
    file.with_name("hard.db").unlink()
    assert kept(file) == []


@pytest.mark.process
def test_a_second_process_is_refused_after_the_lock_file_was_removed(file: Path) -> None:
    lock = file.with_name("spanwise.db.lock")
    with holding(file) as write:
        lock.unlink()
        assert "is being written by" in outcome(HOLDER, file)
        assert write("a") == "kept"
        assert eventually(lambda: bool(holder(file)), True)  # it says again who holds the file
        lock.write_text("stale")
        assert "is being written by" in outcome(HOLDER, file)
        assert write("b") == "kept"
    assert kept(file) == ["a", "b"]


@pytest.mark.process
def test_a_copy_opens_beside_its_original_even_with_the_lock_file(file: Path, tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    with holding(file) as write:
        assert write("a") == "kept"
        for name in ("spanwise.db", "spanwise.db-wal", "spanwise.db.lock"):
            shutil.copy(tmp_path / name, copies / name)
        assert holder(copies / "spanwise.db") is None
        assert kept(copies / "spanwise.db") == ["a"]
        assert write("b") == "kept"


@pytest.mark.process
def test_a_copy_opens_though_its_lock_file_is_a_link_to_that_of_a_live_process(file: Path, tmp_path: Path) -> None:
    SQLiteStore(file).close()
    shutil.copy(file, tmp_path / "copy.db")
    with holding(file) as write:
        (tmp_path / "copy.db.lock").hardlink_to(tmp_path / "spanwise.db.lock")
        assert kept(tmp_path / "copy.db") == []
        assert write("a") == "kept"


def test_a_lock_file_that_leads_elsewhere_is_not_followed(file: Path) -> None:
    other = file.with_name("other")
    other.write_text("precious")
    file.with_name("spanwise.db.lock").symlink_to(other)
    with SQLiteStore(file) as store:
        store.append([run("a")])
        assert holder(file) == {"pid": os.getpid(), "url": None}
    assert (other.read_text(), kept(file)) == ("precious", ["a"])


def test_what_cannot_be_locked_is_not_held_by_another(file: Path) -> None:
    file.touch()
    with file.open("rb") as unlockable, pytest.raises(OSError, match="descriptor"):
        _lock_byte(unlockable.fileno())


@pytest.mark.process
@pytest.mark.parametrize("moved", ["spanwise.db", "spanwise.db-wal"])
def test_a_file_that_is_taken_away_stops_acknowledging(file: Path, moved: str) -> None:
    with holding(file) as write:
        assert write("a") == "kept"
        file.with_name(moved).rename(file.with_name("gone"))
        assert "removed or replaced" in write("b")
        assert write("c").startswith("Halted: ")


@pytest.mark.process
def test_a_database_that_is_replaced_stops_acknowledging(file: Path, tmp_path: Path) -> None:
    SQLiteStore(tmp_path / "other.db").close()
    with holding(file) as write:
        assert write("a") == "kept"
        (tmp_path / "other.db").replace(file)
        assert "removed or replaced" in write("b")


def test_what_another_program_writes_stops_acknowledging(file: Path) -> None:
    with SQLiteStore(file) as store:
        store.append([run("a")])
        outcome(f"import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('{SAME_VERSION}')", file)
        with pytest.raises(Halted, match="another program has written"):
            store.append([run("b")])
        assert names(store.traces()) == ["a"]
        assert store.health()["halted"] == 1


def test_reading_and_checkpoints_of_others_are_nobodys_writing(file: Path) -> None:
    with SQLiteStore(file) as store, closing(sqlite3.connect(file)) as other:
        for number in range(3):
            store.append([run(str(number))])
            assert other.execute("SELECT count(*) FROM spans").fetchone() == (number + 1,)
            other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        store.checkpoint()
        store.vacuum()
        store.append([run()])


def test_emptying_the_log_is_nobodys_writing_unless_it_was_written_to(file: Path) -> None:
    with SQLiteStore(file) as store, closing(sqlite3.connect(file, isolation_level=None)) as other:
        for name in ("a", "b"):
            store.append([run(name)])
            assert eventually(lambda: other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0))
        store.append([run("c")])
        other.execute(SAME_VERSION)
        assert eventually(lambda: other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0))
        with pytest.raises(Halted, match="another program has written"):
            store.append([run("d")])
    assert kept(file) == ["a", "b", "c"]


def test_a_server_whose_file_was_taken_says_so_everywhere(file: Path) -> None:
    with SQLiteStore(file) as store, Server(store) as server, httpx.Client(base_url=server.url) as client:
        assert client.post("/api/traces", json={"runs": []}).status_code < 300
        store.append([run()])
        file.unlink()
        answer = client.post("/api/leases/acquire", json={"name": "a", "holder": "b", "seconds": 1})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "30")
        ready = client.get("/readyz")
        assert (ready.status_code, "removed or replaced" in ready.json()["why"]) == (503, True)
        assert "spanwise_store_halted 1" in client.get("/metrics").text


def test_connect_finds_the_server_through_a_symbolic_link(file: Path) -> None:
    file.with_name("link.db").symlink_to(file)
    with SQLiteStore(file) as store, Server(store) as server:
        found = connect(file.with_name("link.db"))
        assert found.where == server.url
        found.close()


def test_what_is_beside_a_file_goes_with_its_holder(file: Path, tmp_path: Path) -> None:
    SQLiteStore(file).close()
    assert os.listdir(tmp_path) == ["spanwise.db"]
    (tmp_path / "notes.txt").write_text("no database, but a text of mine")
    with pytest.raises(Refused, match="is damaged"):
        SQLiteStore(tmp_path / "notes.txt")
    assert sorted(os.listdir(tmp_path)) == ["notes.txt", "spanwise.db"]


@pytest.mark.parametrize("name", ["", ":memory:", "file:x.db", "file::memory:?cache=shared"])
def test_names_that_are_no_files_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPANWISE_URL", name or " ")
    for opening in (lambda: SQLiteStore(name), lambda: connect(name)):
        with pytest.raises(Refused, match=r"pass (the path of a file|a path such as)"):
            opening()
    if name:
        with pytest.raises(Refused, match=r"pass (the path of a file|a path such as)"):
            connect()
    assert os.listdir(tmp_path) == []


def test_a_path_goes_on_leading_to_its_file_wherever_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with SQLiteStore("spanwise.db") as store:
        monkeypatch.chdir("elsewhere")
        store.append([run("a")])
        assert (store.where, names(store.traces())) == ("spanwise.db", ["a"])
    assert os.listdir() == []


SERVE = "import sys; from spanwise.cli import main; sys.argv[:1] = ['spanwise', 'serve']; main()"


@pytest.mark.process
@pytest.mark.parametrize("there", [True, False])
def test_a_start_that_is_refused_leaves_nothing_behind_and_takes_nothing_away(file: Path, there: bool) -> None:
    if there:
        SQLiteStore(file).close()
    before = os.listdir(file.parent)
    assert "API key" in outcome(SERVE, "--host", "0.0.0.0", "--port", "0", "--store", file)
    assert os.listdir(file.parent) == before


@pytest.mark.process
def test_a_start_on_a_port_that_is_taken_leaves_nothing_behind(file: Path, tmp_path: Path) -> None:
    with SQLiteStore(file) as store, Server(store) as server:
        other = tmp_path / "other.db"
        assert "is in use by" in outcome(SERVE, "--port", str(server.port), "--store", other)
        assert not list(tmp_path.glob("other*"))


def test_a_store_whose_folder_was_removed_can_be_closed(tmp_path: Path) -> None:
    folder = tmp_path / "removed"
    folder.mkdir()
    store = SQLiteStore(folder / "spanwise.db")
    shutil.rmtree(folder)
    store._file._lock.announce_again()  # the background jobs do so after a while
    store.close()
    folder.mkdir()
    with SQLiteStore(folder / "spanwise.db") as again:
        again.append([run()])
        assert again.count()["traces"] == 1
