"""After a vacuum no id means something else."""

from __future__ import annotations

import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from collector import former_file
from collector.making import run
from spanwise.collector.filters import Filter
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.database.schema import PAGE_SIZE
from spanwise.collector.stores.sqlite.maintenance import backup_and_recovery

A, B, C = ({"service.name": name} for name in "ABC")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "spanwise.db"


@pytest.fixture
def store(file: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(file) as made:
        yield made


def resources(store: SQLiteStore) -> dict[str, object]:
    found = store.many([one.trace_id for one in store.traces(limit=100)])
    return {trace.root.name: trace.root.resource["service.name"] for trace in found}


def test_spans_keep_their_own_resource_after_a_vacuum(store: SQLiteStore, file: Path) -> None:
    store.append([run("first", resource=A, environment="prod", tags=("t",))])
    store.delete(name="first")
    store.vacuum()
    store.append([run("a", resource=A, environment="prod", tags=("t",))])
    store.append([run("b", resource=B)])
    assert resources(store) == {"a": "A", "b": "B"}
    assert store.values("tag") == ["t"]
    assert "prod" in store.values("environment")
    assert store.check(deep=True) == []
    store.close()
    with SQLiteStore(file) as again:
        assert resources(again) == {"a": "A", "b": "B"}


def test_no_id_of_a_resource_is_given_out_again_to_who_reads_beside(store: SQLiteStore, file: Path) -> None:
    store.append([run("gone", resource=A), run("gone", resource=B)])
    with closing(backup_and_recovery.DatabaseInspector(str(file))) as beside:
        used = {row["id"] for row in beside.sql("SELECT id FROM resources")}
        store.delete(name="gone")
        store.vacuum()
        store.append([run("c", resource=C)])
        [row] = beside.sql("SELECT resource FROM spans")
    assert row["resource"] not in used


def test_no_id_of_a_trace_or_span_is_given_out_again_to_a_cursor(store: SQLiteStore, file: Path) -> None:
    def last() -> tuple[int, int]:
        with closing(sqlite3.connect(file)) as db:
            found: tuple[int, int] = db.execute("SELECT max(trace), max(id) FROM spans").fetchone()
            return found

    store.append([run("gone", tags=("t",))])
    before = last()
    store.delete(name="gone")
    store.vacuum()
    store.append([run()])
    assert min(after - early for after, early in zip(last(), before, strict=True)) > 0


def test_check_finds_spans_whose_resource_is_missing(store: SQLiteStore, file: Path) -> None:
    store.append([run(resource=A)])
    store.close()
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("DELETE FROM resources")
    with SQLiteStore(file) as again:
        assert again.check() == ["1 spans whose resource is missing"]


KILLED = """
import os, signal, sqlite3, sys
from spanwise.collector.stores.sqlite import database_file
from spanwise.collector.stores.sqlite.write_connection import SQLiteWriteConnection

class Connection(SQLiteWriteConnection):
    def execute(self, sql, *rest):
        if sql == "VACUUM":
            self.set_progress_handler(lambda: os.kill(os.getpid(), signal.SIGKILL), int(sys.argv[2]))
        return super().execute(sql, *rest)

database_file.SQLiteWriteConnection = Connection
from spanwise.collector.stores.sqlite import SQLiteStore
SQLiteStore(sys.argv[1]).vacuum()
"""


@pytest.mark.process
@pytest.mark.parametrize("steps", [1, 2000])
def test_a_vacuum_that_is_killed_changes_nothing(store: SQLiteStore, file: Path, steps: int) -> None:
    store.append([run("stays", inputs=str(n)) for n in range(300)])
    store.close()
    killed = subprocess.run([sys.executable, "-c", KILLED, str(file), str(steps)], check=False)
    assert killed.returncode == -9
    with SQLiteStore(file) as again:
        assert again.check(deep=True) == []
        assert again.count()["traces"] == 300
        assert again.vacuum() >= 0


def test_an_older_files_pages_are_made_anew_as_the_docs_say(tmp_path: Path) -> None:
    former_file.build(file := tmp_path / "older.db")
    docs = (Path(__file__).parents[2] / "docs/store.md").read_text()
    [statements] = re.findall(r'sqlite3 spanwise.db "(PRAGMA [^"]*VACUUM)"', docs)
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        for statement in statements.split("; "):
            db.execute(statement).fetchall()
    with SQLiteStore(file) as store:
        assert store.stats()["page_bytes"] == PAGE_SIZE
        assert (store.trace(former_file.TRACE).trace_id, store.check(deep=True)) == (former_file.TRACE, [])


@pytest.mark.process
def test_a_vacuum_says_what_it_freed_although_somebody_reads(store: SQLiteStore, file: Path) -> None:
    store.append([run(inputs=random.Random(n).randbytes(20_000).hex()) for n in range(50)])
    store.delete(Filter(name="answer"))
    with closing(sqlite3.connect(file)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM traces").fetchone()
        store._file.write(lambda db: db.execute("PRAGMA busy_timeout = 100").fetchall())  # else it waits 20 s for it
        assert store.vacuum() > 500_000
