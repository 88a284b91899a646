"""Copies for analysis: keys, search and views; what remains after crashes, full disks and concurrent writers."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from collector.making import run
from collector.odd_records import fill
from collector.others import holding
from spanwise.collector import connect
from spanwise.collector.errors import Refused
from spanwise.collector.import_export import write_analysis_copy
from spanwise.collector.records import Feedback, Run, Target
from spanwise.collector.stores.flat_tables import TABLES
from spanwise.collector.stores.sqlite import SQLiteStore, open_snapshot


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "spanwise.db"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "copy.db"


def copy(file: Path, out: Path, **options: Any) -> dict[str, int]:
    snapshot = open_snapshot(file)
    try:
        return write_analysis_copy(snapshot, str(out), **options)
    finally:
        snapshot.close()


def ask(out: Path, sql: str, *values: Any) -> list[Any]:
    with closing(sqlite3.connect(out)) as db:
        return db.execute(sql, values).fetchall()


def test_keys_hold_and_every_table_has_one(file: Path, out: Path) -> None:
    fill(file)
    counts = copy(file, out)
    assert counts == {"traces": 5, "runs": 6, "documents": 3, "feedback": 7, "examples": 3, "experiment_results": 3}
    assert ask(out, "PRAGMA foreign_key_check") == []
    assert ask(out, "PRAGMA integrity_check") == [("ok",)]
    for table in TABLES.values():
        keys = {row[2] for row in ask(out, f"PRAGMA foreign_key_list({table.name})")}
        assert keys == {key.table for key in table.foreign_keys}
    assert ask(out, "SELECT f.key FROM feedback f JOIN traces t USING (trace_id) WHERE t.name = 'task'") == [
        ("tone",),
        ("exact",),
    ]


def test_columns_are_described_in_a_table(file: Path, out: Path) -> None:
    fill(file)
    copy(file, out)
    described = ask(out, 'SELECT "table", "column", type, description FROM table_columns')
    assert described == [
        (table.name, column.name, column.type, column.description)
        for table in TABLES.values()
        for column in table.columns
    ]


@pytest.mark.parametrize(
    ("table", "words", "found"),
    [
        ("runs", "quagga", 1),  # the second word of JSON text with an escaped line break
        ("runs", "nquagga", 0),
        ("traces", "name:plain", 1),
        ("traces", "zebra", 0),
        ("documents", "1", 2),
        ("feedback", "evil", 1),
        ("examples", "2", 1),
    ],
)
def test_full_text_search(file: Path, out: Path, table: str, words: str, found: int) -> None:
    fill(file)
    copy(file, out)
    sql = f"SELECT t.* FROM {table} t JOIN {table}_fts f ON f.rowid = t.rowid WHERE {table}_fts MATCH ?"
    assert len(ask(out, sql, words)) == found


def test_views_summarise_the_tables(file: Path, out: Path) -> None:
    fill(file)
    copy(file, out)
    assert ask(out, "SELECT experiment, key, runs, mean_score FROM experiment_summary ORDER BY 1, 2") == [
        (None, None, 1, None),
        ("first", "exact", 1, 1.0),
        ("first", "tone", 1, None),
    ]
    assert ask(out, "SELECT sum(traces), sum(errors) FROM daily_traces") == [(5, 1)]
    assert ("order", "code", 1, 1.0) in ask(out, "SELECT key, source, scores, mean_score FROM feedback_summary")
    assert ask(out, "SELECT model, calls FROM model_usage") == [("", 1)]


def test_conditions_select_what_is_copied(file: Path, out: Path) -> None:
    fill(file)
    from spanwise.collector.filters import Filter

    counts = copy(file, out, filter=Filter(project="p"))
    assert (counts["traces"], counts["runs"], counts["examples"]) == (2, 3, 2)
    assert ask(out, "PRAGMA foreign_key_check") == []


def test_an_existing_copy_is_replaced_only_on_request_and_a_store_never(file: Path, out: Path) -> None:
    fill(file)
    copy(file, out)
    before = out.read_bytes()
    with pytest.raises(Refused, match="already exists; replace it with --force"):
        copy(file, out)
    assert out.read_bytes() == before
    assert copy(file, out, force=True)["traces"] == 5
    with pytest.raises(Refused, match="is a Spanwise store"):
        copy(file, file, force=True)
    with pytest.raises(Refused, match="is not a file"):
        copy(file, file.parent, force=True)
    with pytest.raises(Refused, match="cannot write"):
        copy(file, file.parent / "missing" / "copy.db")
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    with pytest.raises(Refused):  # a copy is no store
        SQLiteStore(out)


def test_a_hostile_name_is_a_name(file: Path, tmp_path: Path) -> None:
    fill(file)
    for name in ("a'b\"c;DROP TABLE runs.db", "?mode=memory.db", "é\n.db", "%2e.db", "-x.db"):
        assert copy(file, tmp_path / name)["traces"] == 5
        assert ask(tmp_path / name, "SELECT count(*) FROM traces") == [(5,)]


def test_a_copy_is_the_store_as_it_was_when_it_was_opened(file: Path, out: Path) -> None:
    with SQLiteStore(file) as store:
        store.append([run("early") for _ in range(30)])
        snapshot = open_snapshot(file)
        written = list[str]()

        def meanwhile(table: str, rows: int) -> None:
            late = run("late")
            store.append([late], [Feedback(target=Target(trace_id=late.trace_id), key="k", score=1)])
            written.append(late.trace_id)

        counts = write_analysis_copy(snapshot, str(out), report=meanwhile)
        snapshot.close()
        assert written
        assert (counts["traces"], counts["runs"], counts["feedback"]) == (30, 30, 0)
        assert ask(out, "PRAGMA foreign_key_check") == []
        assert len(store.to_pandas("traces")) == 30 + len(written)


@pytest.mark.process
def test_a_file_that_nobody_has_open_may_get_a_writer_during_the_copy(file: Path, out: Path) -> None:
    fill(file)
    snapshot = open_snapshot(file)
    with SQLiteStore(file) as store:
        for _ in range(20):
            store.append([run("late", inputs=os.urandom(2000).hex())])
        store.checkpoint()
        assert write_analysis_copy(snapshot, str(out))["traces"] == 5
    snapshot.close()


@pytest.mark.process
def test_a_copy_of_another_process_file_holds_what_it_acknowledged(file: Path, out: Path) -> None:
    with holding(file) as write:
        assert write("a") == "kept"
        assert copy(file, out)["traces"] == 1


def test_two_copies_to_one_file_at_once(file: Path, out: Path) -> None:
    fill(file)
    refused = list[str]()

    def other(table: str, rows: int) -> None:
        with pytest.raises(Refused, match="another process is writing") as error:
            copy(file, out)
        refused.append(str(error.value))

    assert copy(file, out, report=other)["traces"] == 5
    assert refused
    assert ask(out, "SELECT count(*) FROM runs") == [(6,)]


def test_a_file_that_was_created_meanwhile_is_kept(file: Path, out: Path) -> None:
    fill(file)
    with pytest.raises(Refused, match="exists"):
        copy(file, out, report=lambda table, rows: out.write_text("mine"))
    assert out.read_text() == "mine"
    assert not list(file.parent.glob("*.part"))


KILLED = """
import sys
from spanwise.collector.import_export import write_analysis_copy
from spanwise.collector.stores.sqlite import open_snapshot

def wait(table, rows):
    print(table, flush=True)
    if table == "runs":
        sys.stdin.read()

write_analysis_copy(open_snapshot(sys.argv[1]), sys.argv[2], force=True, report=wait)
"""


@pytest.mark.process
def test_a_killed_copy_leaves_the_old_one_and_can_be_repeated(file: Path, out: Path) -> None:
    fill(file)
    copy(file, out)
    before = out.read_bytes()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(file), str(out)], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert b"runs\n" in iter(process.stdout.readline, b"")
        process.send_signal(signal.SIGKILL)
    assert out.read_bytes() == before
    assert out.with_name("copy.db.part").exists()
    assert copy(file, out, force=True)["traces"] == 5
    assert not out.with_name("copy.db.part").exists()


@pytest.fixture
def small_files() -> Iterator[None]:
    """Limit the size of files, as a full disk does, to 256 KB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.process
def test_a_full_disk_leaves_the_old_copy_and_no_other_file(
    file: Path, out: Path, request: pytest.FixtureRequest
) -> None:
    fill(file)
    copy(file, out)
    before = out.read_bytes()
    with SQLiteStore(file) as store:
        store.append([run("large", inputs=os.urandom(5000).hex()) for _ in range(100)])
    request.getfixturevalue("small_files")
    with pytest.raises(Refused, match=r"cannot write '.*copy.db': .*(full|I/O).*; free space on its disk"):
        copy(file, out, force=True)
    assert out.read_bytes() == before
    assert not list(file.parent.glob("*.part"))


def test_a_table_whose_columns_are_keywords_is_quoted(file: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from spanwise.collector.stores import flat_tables
    from spanwise.collector.stores.flat_tables import Column

    def name(run: Run) -> str:
        return run.name

    words = ("select", "from", "order", "group", "table", "index", 'a"b', "values", "rowid_")
    odd = replace(
        TABLES["runs"],
        columns=(*TABLES["runs"].columns, *(Column(word, "text", "", name) for word in words)),
        searchable=(*TABLES["runs"].searchable, "select"),
        indexes=(("order",), ("group", "from")),
    )
    for module in (flat_tables, sys.modules[write_analysis_copy.__module__]):
        monkeypatch.setattr(module, "TABLES", {**TABLES, "runs": odd})
    fill(file)
    copy(file, out)
    assert ask(out, 'SELECT "select", "order", "a""b" FROM runs WHERE "from" = ?', "plain") == [("plain",) * 3]
    assert ask(out, "SELECT count(*) FROM runs_fts WHERE runs_fts MATCH 'select:plain'") == [(1,)]


def test_a_file_that_needs_a_migration_says_so(file: Path, out: Path) -> None:
    from spanwise.collector.stores.sqlite.database.connections import open_writable

    open_writable(str(file), 20).close()
    with pytest.raises(Refused, match="needs a migration"):
        copy(file, out)


def test_a_shared_store_can_be_copied(file: Path, out: Path) -> None:
    fill(file)
    with connect(file) as store:
        assert write_analysis_copy(store, str(out))["traces"] == 5
