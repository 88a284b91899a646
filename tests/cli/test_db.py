"""`spanwise db`, run as people run it, on real files."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from collector.making import SECOND, child, run
from spanwise.cli.app import app, report_errors
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore


def spanwise(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["db", *arguments])


def refusal(*arguments: str) -> str:
    """What is told in one line when a command cannot be done."""
    with pytest.raises(SystemExit) as told, report_errors():
        app(["db", *arguments])
    return str(told.value)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = str(tmp_path / "spanwise.db")
    with SQLiteStore(path) as store:
        root = run("new", project="p", inputs={"question": "where?"}, start_ns=4 * 10**9 * SECOND, user_id="u")
        store.append([root, child(root), run("old", project="p", inputs=os.urandom(3000).hex())])
    return path


def left(file: str) -> list[str]:
    with SQLiteStore(file) as store:
        return [one.name for one in store.traces()]


def test_stats(file: str) -> None:
    shown = spanwise("stats", "--store", file)
    assert shown.exit_code == 0
    assert "waiting_for_text_index" in shown.stdout
    found = json.loads(spanwise("stats", "--store", file, "--json").stdout)
    assert (found["spans"], found["projects"][0]["project"], found["projects"][0]["traces"]) == (3, "p", 2)


def test_prune_by_age(file: str) -> None:
    assert "deleted 1 traces" in spanwise("prune", "--older-than", "1d", "--store", file).stderr
    assert left(file) == ["new"]


def test_prune_by_size_as_a_rule(file: str) -> None:
    assert spanwise("prune", "--max-size", "1KB", "--project", "p", "--always", "--store", file).exit_code == 0
    with SQLiteStore(file) as store:
        assert store.retention()[0].max_bytes == 1000


def test_delete_by_conditions(file: str) -> None:
    assert "deleted 1 traces" in spanwise("delete", "user=u", "--yes", "--store", file).stderr
    assert left(file) == ["old"]


def test_delete_asks_first(file: str) -> None:
    asked = CliRunner().invoke(app, ["db", "delete", "project=p", "--store", file], input="n\n")
    assert asked.exit_code == 1
    assert "Permanently delete 2 traces" in asked.stderr
    assert left(file) == ["new", "old"]


def test_vacuum_and_check(file: str) -> None:
    assert spanwise("vacuum", "--store", file).exit_code == 0
    assert spanwise("check", "--deep", "--store", file).exit_code == 0


def test_sql_reads_payloads_and_times(file: str) -> None:
    query = (
        "SELECT name, iso(start_ns) AS at, payload(id) ->> '$.inputs.question' AS q, payload(payload) AS p FROM spans"
    )
    first = json.loads(spanwise("sql", query, "--store", file, "--json").stdout.splitlines()[0])
    assert (first["name"], first["q"], first["at"]) == ("new", "where?", "2096-10-02T07:06:40.000000000Z")
    assert json.loads(first["p"])["inputs"] == {"question": "where?"}


def test_sql_lists_the_tables(file: str) -> None:
    assert "trace_id" in spanwise("sql", "--store", file).stdout


def test_sql_cannot_write(file: str) -> None:
    assert "readonly" in refusal("sql", "DELETE FROM spans", "--store", file)
    assert "too many attached" in refusal("sql", f"ATTACH '{file}.other' AS other", "--store", file)
    assert left(file) == ["new", "old"]


def test_reading_goes_on_while_another_process_holds_the_file(file: str) -> None:
    with SQLiteStore(file):
        assert spanwise("stats", "--store", file).exit_code == 0
        assert spanwise("check", "--store", file).exit_code == 0
        assert f"being written by process {os.getpid()}" in refusal("vacuum", "--store", file)


def test_what_a_server_holds_is_looked_after_through_it(file: str) -> None:
    with SQLiteStore(file) as store, Server(store) as server:
        assert json.loads(spanwise("prune", "--older-than", "1d", "--always", "--store", file, "--json").stdout) == {
            "deleted": 1
        }
        assert store.retention()[0].max_age_ns == 86_400 * SECOND
        assert json.loads(spanwise("vacuum", "--store", server.url, "--json").stdout)["freed_bytes"] >= 0
        assert json.loads(spanwise("delete", "user=u", "--yes", "--store", file, "--json").stdout) == {"deleted": 1}
        assert store.count()["traces"] == 0


def test_checks_for_pipes(file: str) -> None:
    assert json.loads(spanwise("check", "--store", file, "--json").stdout) == {"sound": True, "problems": []}
    with closing(sqlite3.connect(file)) as db:
        db.execute("DELETE FROM spans WHERE parent_id IS NOT NULL")
        db.commit()
    found = spanwise("check", "--store", file, "--json")
    assert found.exit_code == 1
    assert "number of spans" in json.loads(found.stdout)["problems"][0]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("stats", "--store", "missing.db"), "no file 'missing.db'"),
        (("prune", "--store", "missing.db"), "--older-than 30d"),
        (("prune", "--max-size", "big"), "'big' is not a size"),
        (("prune", "--older-than", "soon"), "invalid duration 'soon'"),
        (("stats", "--store", "http://localhost:1"), "is a server"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(arguments: tuple[str, ...], told: str) -> None:
    assert told in refusal(*arguments)


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "bad.db").write_bytes(b"nonsense" * 4000)
    shown = spanwise("check", "--store", str(tmp_path / "bad.db"))
    assert (shown.exit_code, "is damaged" in shown.stdout, "spanwise db recover" in shown.stderr) == (1, True, True)


def test_backup_of_a_served_file(file: str, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy.db")
    with SQLiteStore(file) as store, Server(store):
        shown = spanwise("backup", copy, "--store", file, "--json")
    assert json.loads(shown.stdout)["bytes"] == os.path.getsize(copy)
    assert left(copy) == ["new", "old"]
    assert "already exists" in refusal("backup", copy, "--store", file)


def test_backup_of_a_server_is_told_where_it_works() -> None:
    assert "needs its database file" in refusal("backup", "copy.db", "--store", "http://127.0.0.1:9")


def test_recover_says_what_is_saved_and_what_is_lost(file: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("DELETE FROM resources")
    saved = str(tmp_path / "saved.db")
    shown = spanwise("recover", saved, "--store", file)
    assert (shown.exit_code, "3 spans have lost their resource" in shown.stdout) == (0, True)
    assert left(saved) == ["new", "old"]
    found = json.loads(spanwise("recover", saved + "2", "--store", file, "--json").stdout)
    assert {"table": "spans", "saved": 3, "lost": 0} in found["tables"]


@pytest.mark.parametrize("command", ["stats", "check", "vacuum", "sql"])
def test_an_empty_name_is_no_file_of_anybodys(command: str) -> None:
    assert "the path of the store is empty" in refusal(command, "--store", "")


def test_restore_moves_the_present_file_away(file: str, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy.db")
    spanwise("backup", copy, "--store", file)
    with SQLiteStore(file) as store:
        store.append([run("after")])
    shown = spanwise("restore", copy, "--store", file, "--json")
    replaced = json.loads(shown.stdout)["replaced"]
    assert (sorted(left(file)), sorted(left(replaced))) == (["new", "old"], ["after", "new", "old"])
    assert left(copy) == ["new", "old"]
    assert not (tmp_path / "spanwise.db.restoring").exists()


def test_restore_makes_a_file_that_is_not_there(file: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other.db")
    assert "integrity check passed" in spanwise("restore", file, "--store", other).stderr
    assert left(other) == ["new", "old"]


def test_restore_replaces_a_damaged_file(file: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.db"
    bad.write_bytes(b"nonsense" * 4000)
    assert spanwise("restore", file, "--store", str(bad)).exit_code == 0
    assert left(str(bad)) == ["new", "old"]
    assert [one.read_bytes()[:8] for one in tmp_path.glob("bad.db.replaced-*Z")] == [b"nonsense"]


def test_restore_leaves_the_present_file_where_the_backup_is_not_sound(file: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    spanwise("backup", str(copy), "--store", file)
    with closing(sqlite3.connect(copy)) as db, db:
        db.execute("DELETE FROM spans WHERE parent_id IS NOT NULL")
    assert "is damaged: 1 traces whose number of spans is wrong" in refusal("restore", str(copy), "--store", file)
    copy.write_bytes(b"nonsense" * 4000)
    assert "copy.db" in refusal("restore", str(copy), "--store", file)
    assert "name a backup of it" in refusal("restore", file, "--store", file)
    assert "there is no file" in refusal("restore", str(tmp_path / "none.db"), "--store", file)
    assert left(file) == ["new", "old"]
    assert sorted(path.name for path in tmp_path.glob("spanwise.db.re*")) == []


def test_restore_of_a_file_that_is_open_is_refused(file: str, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy.db")
    spanwise("backup", copy, "--store", file)
    with SQLiteStore(file):
        assert "is being written by process" in refusal("restore", copy, "--store", file)


# Copies of whole stores


def test_a_copy_has_everything_and_says_what(file: str, tmp_path: Path) -> None:
    shown = spanwise("copy", file, str(tmp_path / "copy.db"))
    assert (shown.exit_code, "copied and compared: 2 traces, 3 runs, 0 feedback" in shown.stderr) == (0, True)
    assert "2096-10-02" in shown.stdout
    assert left(str(tmp_path / "copy.db")) == left(file)


def test_a_dry_run_of_a_copy_only_counts(file: str, tmp_path: Path) -> None:
    shown = spanwise("copy", file, str(tmp_path / "copy.db"), "--dry-run", "--json")
    *days, tables = map(json.loads, shown.stdout.splitlines())
    assert (sum(day["runs"] for day in days), tables) == (3, {"tables": {}})
    assert not list(tmp_path.glob("copy*"))
    assert not list(tmp_path.glob("*.copy"))


def test_a_copy_while_the_file_is_served(file: str, tmp_path: Path) -> None:
    with SQLiteStore(file) as store, Server(store):
        assert spanwise("copy", file, str(tmp_path / "copy.db")).exit_code == 0
    assert left(str(tmp_path / "copy.db")) == left(file)


def test_a_copy_into_a_store_with_records_is_refused(file: str, tmp_path: Path) -> None:
    assert spanwise("copy", file, str(tmp_path / "copy.db")).exit_code == 0
    assert "already holds records; copy into a new, empty store" in refusal("copy", file, str(tmp_path / "copy.db"))


def test_a_copy_to_clickhouse_needs_a_place_for_control_records(file: str) -> None:
    told = refusal("copy", file, "clickhouse://ann:geheim@127.0.0.1:1/spans")
    assert "'clickhouse://ann@127.0.0.1:1/spans' needs the URL of its control records: --control" in told


def test_commands_for_a_file_do_not_show_the_password_of_a_database() -> None:
    told = refusal("stats", "--store", "clickhouse://ann:geheim@127.0.0.1:1/spans")
    assert told == (
        "spanwise: 'clickhouse://ann@127.0.0.1:1/spans' is no SQLite file, but this command needs one; name the file"
        " with --store"
    )
