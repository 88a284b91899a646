"""Files that this user may not write: they can be looked at, and what cannot be done with them is told as it is."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from collector import former_file
from collector.making import run
from collector.others import outcome
from spanwise.collector.stores.sqlite import SQLiteStore

# Whoever is root may write everything, unless it gives that up
pytestmark = pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="needs setpriv for root")
PLAIN_USER = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--") if os.geteuid() == 0 else ()
COMMAND = """
import sys
from spanwise.cli import main
sys.argv[:1] = ["spanwise"]
main()
"""
LOOK = """
import sys
from typer.testing import CliRunner
from spanwise.cli.app import app
for command in (["traces", "list"], ["db", "stats"], ["db", "check"], ["db", "sql"]):
    found = CliRunner().invoke(app, [*command, "--store", sys.argv[1]])
    print(found.exit_code, found.exception)
"""
VERBS = """
import sys
from spanwise.collector import connect
from spanwise.collector.errors import StoreError
from collector.making import run
with connect(sys.argv[1]) as store:
    print([one.name for one in store.traces()], store.check(), store.health()["writable"])
    for verb in (lambda: store.append([run()]), lambda: store.delete(name="a"), store.vacuum, store.checkpoint):
        try:
            verb()
        except StoreError as error:
            print(type(error).__name__, "can only be read" in str(error))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for what is about to become unwritable."""
    folder = tmp_path / "copies"
    folder.mkdir()
    yield folder
    folder.chmod(0o755)


def shut(folder: Path) -> Path:
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    return folder / "spanwise.db"


@pytest.fixture
def copy(folder: Path) -> Path:
    with SQLiteStore(folder / "spanwise.db") as store:
        store.append([run("a", inputs="xylophone")])
    return shut(folder)


@pytest.mark.process
def test_a_copy_that_nobody_may_write_can_be_looked_at(copy: Path) -> None:
    assert outcome(LOOK, copy, before=PLAIN_USER).splitlines() == ["0 None"] * 4
    assert os.listdir(copy.parent) == ["spanwise.db"]


@pytest.mark.process
def test_what_would_write_it_is_refused_with_the_right_advice(copy: Path) -> None:
    said = outcome(VERBS, copy, before=PLAIN_USER).splitlines()
    assert said == ["['a'] [] 0", *["Refused True"] * 4]


@pytest.mark.process
def test_a_server_on_it_is_refused(copy: Path) -> None:
    said = outcome(COMMAND, "serve", "--port", "0", "--store", copy, before=PLAIN_USER)
    assert said == f"spanwise: cannot write {str(copy)!r}: Permission denied"


@pytest.mark.process
def test_a_copy_with_a_log_says_what_it_takes(folder: Path, tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        store.append([run()])
        for end in ("", "-wal"):
            (folder / f"spanwise.db{end}").write_bytes((tmp_path / f"spanwise.db{end}").read_bytes())
    said = outcome(COMMAND, "traces", "list", "--store", shut(folder), before=PLAIN_USER)
    assert "SQLite can read only in a folder where this user may write" in said


@pytest.mark.process
def test_an_older_copy_says_where_it_can_be_brought_up_to_date(folder: Path) -> None:
    former_file.build(folder / "spanwise.db")
    with closing(sqlite3.connect(folder / "spanwise.db")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    said = outcome(COMMAND, "traces", "list", "--store", shut(folder), before=PLAIN_USER)
    assert "file version 19" in said
    assert "copy it to a writable folder" in said
