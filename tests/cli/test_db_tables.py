"""`spanwise db analyze-copy`, `export --table`, `query`, `tables`, `schema` and `rows`, run as people run them."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pandas
import pytest
from typer.testing import CliRunner, Result

from collector.making import run
from collector.odd_records import fill
from spanwise.cli.app import app, report_errors
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore


def spanwise(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["db", *arguments])


def refusal(*arguments: str) -> str:
    """Return the line that a failed command prints."""
    with pytest.raises(SystemExit) as told, report_errors():
        app(["db", *arguments])
    return str(told.value)


@pytest.fixture
def file(tmp_path: Path) -> str:
    fill(tmp_path / "spanwise.db")
    return str(tmp_path / "spanwise.db")


@pytest.fixture
def copy(file: str, tmp_path: Path) -> str:
    out = str(tmp_path / "copy.db")
    done = spanwise("analyze-copy", out, "--store", file)
    assert done.exit_code == 0, done.output
    assert "wrote 5 × traces, 6 × runs, 3 × documents" in done.stderr
    return out


def test_a_copy_of_some_traces(file: str, tmp_path: Path) -> None:
    out = str(tmp_path / "some.db")
    assert "2 × traces" in spanwise("analyze-copy", out, "--store", file, "--project", "p").stderr
    assert "already exists" in refusal("analyze-copy", out, "--store", file)
    chosen = spanwise("analyze-copy", out, "--store", file, "-w", "status=error", "--force")
    assert "1 × traces, 2 × runs" in chosen.stderr
    assert "there is no file" in refusal("analyze-copy", out, "--store", str(tmp_path / "none.db"), "--force")


def test_a_file_that_a_server_writes_is_read_directly_and_a_server_through_its_api(file: str, tmp_path: Path) -> None:
    with SQLiteStore(file) as store, Server(store) as server:
        for name, location in (("a.db", file), ("b.db", server.url)):
            assert "5 × traces" in spanwise("analyze-copy", str(tmp_path / name), "--store", location).stderr
    contents = []
    for name in ("a.db", "b.db"):
        with closing(sqlite3.connect(tmp_path / name)) as db:
            contents.append(list(db.iterdump()))
    assert contents[0] == contents[1]


@pytest.mark.parametrize("format", ["csv", "tsv", "json", "jsonl"])
def test_formats_for_programs_keep_values(copy: str, format: str) -> None:
    sql = "SELECT trace_id, error, cost FROM traces WHERE status = :status"
    done = spanwise("query", copy, sql, "--format", format, "--param", "status=error")
    assert done.exit_code == 0
    if format in ("csv", "tsv"):
        delimiter = "," if format == "csv" else "\t"
        rows = list(csv.DictReader(io.StringIO(done.stdout, newline=""), delimiter=delimiter))
    else:
        rows = json.loads(done.stdout) if format == "json" else [json.loads(line) for line in done.stdout.splitlines()]
    [row] = rows
    assert (row["trace_id"], row["error"], float(row["cost"])) == (
        "2" * 32,
        '=HYPERLINK("http://evil.example","total")',
        0.5,
    )


@pytest.mark.parametrize("format", ["table", "github", "html", "plain"])
def test_formats_for_people_escape_control_characters(copy: str, format: str) -> None:
    done = spanwise("query", copy, "SELECT name, char(27) || '[2J' AS code FROM traces", "-f", format)
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout
    assert "\x00" not in done.stdout
    assert "plain" in done.stdout


@pytest.mark.parametrize(("format", "shown"), [("json", "[]\n"), ("jsonl", ""), ("csv", "key\n")])
def test_no_rows(copy: str, format: str, shown: str) -> None:
    assert spanwise("query", copy, "SELECT key FROM feedback WHERE 0", "-f", format).stdout.replace("\r", "") == shown


def test_nothing_can_be_written(copy: str, file: str, tmp_path: Path) -> None:
    for path in (copy, file):
        before = Path(path).read_bytes()
        for sql in ("DELETE FROM traces", "DROP TABLE traces", "PRAGMA user_version = 7", "CREATE TABLE t (a)"):
            spanwise("query", path, sql)
        spanwise("query", path, "PRAGMA query_only = OFF")
        assert "invalid SQL" in refusal("query", path, f"ATTACH '{tmp_path}/new.db' AS new")
        assert Path(path).read_bytes() == before
    assert not (tmp_path / "new.db").exists()
    assert "invalid SQL" in refusal("query", copy, "SELECT nothing FROM nowhere")
    assert "unknown format 'xml'; expected one of: table, csv" in refusal("query", copy, "SELECT 1", "-f", "xml")
    assert "--param must be NAME=VALUE" in refusal("query", copy, "SELECT 1", "-p", "x")
    assert "make a copy with" in refusal("query", str(tmp_path / "none.db"), "SELECT 1")


def test_tables_and_schema(copy: str, file: str) -> None:
    rows = json.loads(spanwise("tables", copy, "--counts", "-f", "json").stdout)
    counts = {row["name"]: (row["kind"], row["rows"]) for row in rows}
    assert counts["runs"] == ("table", 6)
    assert counts["experiment_summary"] == ("view", 3)
    assert not any("_fts" in name for name in counts)
    assert 'REFERENCES "traces"("trace_id")' in spanwise("schema", copy, "runs").stdout
    assert "CREATE VIEW" in spanwise("schema", copy).stdout
    assert "did you mean 'runs'" in refusal("schema", copy, "run")
    assert "spans" in spanwise("tables", file).stdout


def test_rows(copy: str) -> None:
    chosen = (
        "--where",
        "score IS NOT NULL",
        "--order",
        "key",
        "-c",
        "key",
        "-c",
        "score",
        "--limit",
        "2",
        "--offset",
        "1",
    )
    done = spanwise("rows", copy, "feedback", *chosen, "-f", "jsonl")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"key": "group", "score": 0.25},
        {"key": "mean", "score": 1.0},
    ]
    assert "has no column 'keys'" in refusal("rows", copy, "feedback", "-c", "keys")
    assert "there is no table 'x\"; DROP'" in refusal("rows", copy, 'x"; DROP')
    assert "daily" not in spanwise("rows", copy, "daily_traces", "-f", "csv").stdout


def test_export_of_a_table(file: str, tmp_path: Path) -> None:
    out = tmp_path / "runs.parquet"
    assert "wrote 6 × runs" in spanwise("export", str(out), "--table", "runs", "--store", file).stderr
    assert len(pandas.read_parquet(out)) == 6
    printed = spanwise("export", "-", "--table", "documents", "--format", "csv", "--store", file).stdout
    assert printed.startswith("trace_id,span_id,position,document_id")
    lines = spanwise("export", "-", "--table", "examples", "--format", "jsonl", "--store", file).stdout.splitlines()
    assert json.loads(lines[0])["inputs"] == {"q": 2}
    assert "choose a format" in refusal("export", str(tmp_path / "x.txt"), "--table", "runs", "--store", file)
    assert "unknown table 'x'" in refusal("export", str(tmp_path / "x.csv"), "--table", "x", "--store", file)


def test_export_of_all_tables_is_a_folder(file: str, tmp_path: Path) -> None:
    out = tmp_path / "tables"
    assert spanwise("export", str(out), "--format", "parquet", "--store", file, "-w", "project=p").exit_code == 0
    assert len(list(out.iterdir())) == 6
    assert set(pandas.read_parquet(out / "traces.parquet")["project"]) == {"p"}
    assert "already exists" in refusal("export", str(out), "--format", "csv", "--store", file)


def test_export_without_a_table_is_as_before(file: str, tmp_path: Path) -> None:
    spanwise("export", str(tmp_path / "a"), "--store", file)
    assert b"resourceSpans" in (tmp_path / "a").read_bytes()
    spanwise("export", str(tmp_path / "b.jsonl"), "--format", "jsonl", "--store", file)
    assert b'"record":"run"' in (tmp_path / "b.jsonl").read_bytes()


def test_a_copy_of_an_empty_store(tmp_path: Path) -> None:
    with SQLiteStore(tmp_path / "empty.db") as store:
        store.append([run("gone")])
        store.delete(name="gone")
    done = spanwise("analyze-copy", str(tmp_path / "copy.db"), "--store", str(tmp_path / "empty.db"))
    assert "0 × traces, 0 × runs" in done.stderr
    assert spanwise("rows", str(tmp_path / "copy.db"), "model_usage", "-f", "json").stdout == "[]\n"
