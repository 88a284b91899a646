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

from collector import version_1
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.database.connections import open_writable
from spanwise.collector.stores.sqlite.database.schema import MIGRATIONS, MigrationProgress, _clear_tiny_probabilities

NEWEST = len(MIGRATIONS)

KILLED_AT = """
import functools, os, signal, sqlite3, sys

class Connection(sqlite3.Connection):
    def execute(self, sql, *rest):
        if sys.argv[2] in sql:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(sql, *rest)

sqlite3.connect = functools.partial(sqlite3.connect, factory=Connection)
from spanwise.collector.stores.sqlite import SQLiteStore
SQLiteStore(sys.argv[1])
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "spanwise.db"


def version(file: Path) -> int:
    with closing(sqlite3.connect(file)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


@pytest.mark.parametrize(
    ("statement", "left_at"),
    [("INSERT OR IGNORE INTO known", 1), ("user_version = 2", 1), ("traces_by_change", 4), ("amendments_by_span", 6)],
)
def test_a_migration_that_is_killed_leaves_the_last_whole_version_and_goes_on(
    file: Path, statement: str, left_at: int
) -> None:
    version_1.build(file)
    killed = subprocess.run([sys.executable, "-c", KILLED_AT, str(file), statement], check=False)
    assert (killed.returncode, version(file)) == (-9, left_at)
    with SQLiteStore(file) as store:
        assert store.trace(version_1.TRACE).root is not None
        assert store.check(deep=True) == []
    assert version(file) == NEWEST


@pytest.mark.parametrize("older", range(1, NEWEST))
def test_a_file_of_every_older_version_is_brought_up_to_date(file: Path, older: int) -> None:
    version_1.build(file)
    open_writable(str(file), older).close()
    assert version(file) == older
    with SQLiteStore(file) as store:
        assert store.trace(version_1.TRACE).trace_id == version_1.TRACE
        assert store.check(deep=True) == []


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


def test_scores_of_an_older_file_belong_to_the_start_of_their_trace(file: Path) -> None:
    version_1.build(file)
    with closing(sqlite3.connect(file)) as db, db:
        [[key, trace_id, start]] = db.execute("SELECT id, trace_id, start_ns FROM traces LIMIT 1").fetchall()
        columns = "id, trace, trace_id, key, score, outcome, source, rule, created_ns, standing"
        values = ("score", key, trace_id, "k", 1.0, "score", "code", "r", start + 10**12, 2)
        db.execute(f"INSERT INTO feedback ({columns}) VALUES ({','.join('?' * len(values))})", values)
    with SQLiteStore(file):
        pass
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("SELECT trace_start_ns FROM feedback WHERE id = 'score'").fetchone() == (start,)


def test_stated_probabilities_below_one_in_ten_thousand_are_unknown_in_an_older_file(file: Path) -> None:
    version_1.build(file)
    before = MIGRATIONS.index(_clear_tiny_probabilities)
    columns = "rule, target, verdict, reason, incomplete, change, runs_change, read_change, claim, attempts, deaths,"
    columns += " reopened, created_ns, updated_ns, rate, probability"
    with closing(open_writable(str(file), before)) as db:
        db.execute("UPDATE traces SET probability = 2e-16")
        for target, probability in (("a", 2e-16), ("b", 0.05), ("c", 0.0)):
            values = (1, target, "scored", "", *[0] * 10, 0.1, probability)
            db.execute(f"INSERT INTO decisions ({columns}) VALUES ({','.join('?' * len(values))})", values)
    with SQLiteStore(file):
        pass
    with closing(sqlite3.connect(file)) as db:
        assert {row[0] for row in db.execute("SELECT probability FROM traces")} == {None}
        rows = db.execute("SELECT target, probability FROM decisions ORDER BY target").fetchall()
    assert rows == [("a", None), ("b", 0.05), ("c", 0.0)]
