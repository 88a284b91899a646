"""Copies of a file that is being written, and what comes of one that is killed."""

from __future__ import annotations

import os
import signal
import stat
import threading
from pathlib import Path

import pytest

from collector.conformance_traces import names
from collector.making import run
from collector.others import holding, python
from spanwise.collector.errors import Refused
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.maintenance import backup_and_recovery


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "spanwise.db"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "copy.db"


def fill(file: Path, runs: int) -> None:
    with SQLiteStore(file) as store:
        for _ in range(runs // 100):
            store.append([run("early", inputs=os.urandom(4000).hex()) for _ in range(100)])


@pytest.mark.process
def test_a_backup_is_the_file_as_it_was_when_it_began_though_the_writer_goes_on(file: Path, copy: Path) -> None:
    fill(file, 800)
    written, steps = list[str](), list[int]()
    with SQLiteStore(file) as store:

        def between(left: int, of: int) -> None:
            steps.append(left)
            store.append([run("late")])
            written.append("late")

        backup_and_recovery.backup(str(file), str(copy), between)
        assert len(steps) > 1
        assert store.count()["traces"] == 800 + len(written)
    with SQLiteStore(copy) as kept:
        assert kept.count()["traces"] == 800
        assert kept.check(deep=True) == []


@pytest.mark.process
def test_a_backup_of_another_process_file_holds_what_it_acknowledged(file: Path, copy: Path) -> None:
    with holding(file) as write:
        assert write("a") == "kept"
        backup_and_recovery.backup(str(file), str(copy))
        assert write("b") == "kept"
    with SQLiteStore(copy) as kept:
        assert names(kept.traces()) == ["a"]
    with SQLiteStore(file) as store:
        assert sorted(names(store.traces())) == ["a", "b"]


def test_a_backup_is_for_its_user_alone(file: Path, copy: Path) -> None:
    fill(file, 100)
    backup_and_recovery.backup(str(file), str(copy))
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert sorted(os.listdir(copy.parent)) == ["copy.db", "spanwise.db"]


KILLED = """
import os, signal, sys
from spanwise.collector.stores.sqlite.maintenance import backup_and_recovery
def die(left, of):
    assert left > 0
    os.kill(os.getpid(), signal.SIGKILL)
backup_and_recovery.backup(sys.argv[1], sys.argv[2], die)
"""


@pytest.mark.process
def test_a_backup_that_is_killed_leaves_no_file_under_its_name(file: Path, copy: Path) -> None:
    fill(file, 800)
    with python(KILLED, file, copy) as process:
        assert process.wait(60) == -signal.SIGKILL
    assert not copy.exists()
    backup_and_recovery.backup(str(file), str(copy))  # what was left is begun anew
    assert set(os.listdir(copy.parent)) - {"spanwise.db.reserve"} == {"spanwise.db", "copy.db"}
    with SQLiteStore(copy) as kept:
        assert kept.check(deep=True) == []


@pytest.mark.process
def test_two_backups_to_one_name_are_one_and_a_refusal(file: Path, copy: Path) -> None:
    fill(file, 800)
    inside, told = threading.Event(), list[str]()

    def second(left: int, of: int) -> None:
        if not inside.is_set():
            inside.set()
            with pytest.raises(Refused, match="another process is writing"):
                backup_and_recovery.backup(str(file), str(copy))
            told.append("refused")

    backup_and_recovery.backup(str(file), str(copy), second)
    assert told == ["refused"]
    with pytest.raises(Refused, match="already exists"):
        backup_and_recovery.backup(str(file), str(copy))


def test_a_damaged_file_is_not_backed_up(file: Path, copy: Path) -> None:
    fill(file, 100)
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size - 20 * 16384)
        opened.write(os.urandom(16384 * 10))
    with pytest.raises(Refused, match="is damaged"):
        backup_and_recovery.backup(str(file), str(copy))
    assert os.listdir(copy.parent) == ["spanwise.db"]


def test_a_backup_into_a_folder_that_is_not_there_is_refused(file: Path) -> None:
    fill(file, 100)
    with pytest.raises(Refused, match="No such file or directory"):
        backup_and_recovery.backup(str(file), str(file.parent / "none" / "copy.db"))


@pytest.mark.process
def test_a_backup_is_restored_as_the_documentation_says(file: Path, copy: Path, tmp_path: Path) -> None:
    with holding(file) as write:
        write("a")
        backup_and_recovery.backup(str(file), str(copy))
        write("b")
    replaced = backup_and_recovery.restore(str(copy), str(file)).replaced
    with SQLiteStore(file) as store:
        assert names(store.traces()) == ["a"]
    assert replaced is not None
    assert replaced.startswith(f"{file}.replaced-")
    with SQLiteStore(replaced) as store:
        assert sorted(names(store.traces())) == ["a", "b"]
