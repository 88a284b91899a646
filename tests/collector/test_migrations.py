"""Bringing an older file up to date: killed in the middle, on a full disk, and how far it says that it is."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from collector import former_file
from collector.conformance_traces import eventually
from collector.making import run
from spanwise.collector.errors import Refused
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.database.schema import FILE_VERSION, MIGRATIONS, OLDEST_VERSION, MigrationProgress
from spanwise.collector.stores.sqlite.maintenance import backup_and_recovery

KILLED_AT = """
import os, signal, sqlite3, sys
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.write_connection import SQLiteWriteConnection

def execute(self, sql, *rest):
    if sys.argv[2] in sql:
        os.kill(os.getpid(), signal.SIGKILL)
    return sqlite3.Connection.execute(self, sql, *rest)

SQLiteWriteConnection.execute = execute
SQLiteStore(sys.argv[1])
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "spanwise.db"


def version(file: Path) -> int:
    with closing(sqlite3.connect(file)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


def test_a_file_of_the_oldest_version_is_brought_up_to_date(file: Path) -> None:
    former_file.build(file)
    assert version(file) == OLDEST_VERSION
    with SQLiteStore(file) as store:
        assert store.trace(former_file.TRACE).root.attributes == {"spanwise.partial": True}
        assert store.check(deep=True) == []
    assert version(file) == FILE_VERSION


def tables(file: Path) -> set[tuple[object, ...]]:
    """Columns of all tables, and indexes and triggers with their SQL."""
    with closing(sqlite3.connect(file)) as db:
        named = "SELECT m.name, c.name, c.type, c.dflt_value, c.pk FROM sqlite_schema m, pragma_table_xinfo(m.name) c"
        others = "SELECT name, sql FROM sqlite_schema WHERE type <> 'table'"
        return {*db.execute(f"{named} WHERE m.type = 'table'"), *db.execute(others)}


@pytest.mark.parametrize("older", MIGRATIONS)
def test_a_file_of_any_version_gets_the_tables_of_a_new_one(file: Path, tmp_path: Path, older: int) -> None:
    for path in (file, tmp_path / "new.db"):
        SQLiteStore(path).close()
    with closing(sqlite3.connect(file)) as db:
        former_file.lower_version(db, older)
    assert version(file) == older
    SQLiteStore(file).close()
    assert tables(file) == tables(tmp_path / "new.db")


INDEX_WITHOUT_POSITIONS = (
    "INSERT INTO words (rowid, text) SELECT id, 'the parcel' FROM traces",
    "INSERT OR IGNORE INTO indexed SELECT id, 1, 99 FROM traces",
    "DELETE FROM unindexed",
)


def make_file_without_positions(file: Path, traces: int = 1) -> None:
    with SQLiteStore(file) as store:
        store.append([run(f"trace{number}", outputs="the parcel") for number in range(traces)])
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        former_file.lower_version(db, 22)
        for statement in INDEX_WITHOUT_POSITIONS:
            db.execute(statement)


@pytest.mark.process
def test_text_of_an_older_file_is_indexed_again_and_found_by_phrases(file: Path) -> None:
    make_file_without_positions(file)
    with SQLiteStore(file) as store:
        assert eventually(lambda: len(store.traces(text='"the parcel"')), 1)
        assert len(store.traces(text='"parcel the"')) == 0
        assert store.check(deep=True) == []
        store.delete(text="parcel")
        assert store.check(deep=True) == []


@pytest.mark.process
def test_new_traces_are_found_while_an_older_file_is_indexed_again(file: Path) -> None:
    make_file_without_positions(file, traces=2_000)
    with SQLiteStore(file) as store:
        store.append([run(outputs="a new parcel")])
        assert eventually(lambda: len(store.traces(text='"new parcel"')), 1)
        assert eventually(lambda: store.traces(text="parcel").unindexed, 0)
        assert sum(1 for _ in store.each(text="parcel")) == 2_001


@pytest.mark.process
def test_a_file_whose_migration_is_killed_between_two_steps_is_brought_up_to_date(file: Path) -> None:
    former_file.build(file)
    killed = subprocess.run([sys.executable, "-c", KILLED_AT, str(file), "DROP TABLE IF EXISTS words"])
    assert (killed.returncode, version(file)) == (-9, 22)  # the step to version 23 indexes the texts again
    with SQLiteStore(file) as store:
        assert store.trace(former_file.TRACE).root.attributes == {"spanwise.partial": True}
        assert store.check(deep=True) == []
    assert version(file) == FILE_VERSION


@pytest.mark.parametrize("older", [1, OLDEST_VERSION - 1])
def test_a_file_of_an_earlier_development_version_is_refused_with_a_remedy(file: Path, older: int) -> None:
    former_file.build(file)
    former_file.mark(file, older)
    before = file.read_bytes()
    for use in (SQLiteStore, lambda path: backup_and_recovery.recover(str(path), f"{path}.saved")):
        with pytest.raises(Refused, match=rf"file version {older}, .*oldest .* {OLDEST_VERSION}; export it"):
            use(file)
    assert (version(file), file.read_bytes()) == (older, before)


def test_every_version_from_the_oldest_on_has_a_step() -> None:
    assert list(MIGRATIONS) == list(range(OLDEST_VERSION, FILE_VERSION))


def test_nothing_is_said_of_what_takes_a_moment(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spanwise.collector.migration")
    began = time.monotonic()
    with MigrationProgress("/data/spanwise.db", 4, 8) as progress:
        progress.of(5)(1, 2)
    assert not caplog.records or time.monotonic() - began > 1.0


def test_what_takes_longer_says_how_far_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spanwise.collector.migration")
    with MigrationProgress("/data/spanwise.db", 4, 8, quiet=0.0) as progress:
        progress.begin(5)
        progress.begin(6)  # too soon after the last word
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"bringing 'spanwise.db' from version 4 to 8: {done} %" for done in (25, 100)]


def test_what_fails_says_where(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spanwise.collector.migration")
    with pytest.raises(OSError), MigrationProgress("spanwise.db", 4, 8, quiet=0.0) as progress:
        progress.of(6)(1, 2)
        raise OSError
    assert caplog.records[-1].getMessage() == "bringing 'spanwise.db' from version 4 to 8: stopped at 62 %"
