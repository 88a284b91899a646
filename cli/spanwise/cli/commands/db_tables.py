"""`spanwise db analyze-copy`, `export --table`, `query`, `tables`, `schema` and `rows`: flat tables for analysis."""

from __future__ import annotations

import base64
import csv
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from spanwise.cli.command_io import (
    StoreOption,
    WhereOption,
    build_filter,
    error_console,
    open_store,
    print_line,
    print_note,
    print_table,
)
from spanwise.collector import check_database_path
from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter
from spanwise.collector.stores.sqlite.database.name_conversion import adopt_former_file
from spanwise.collector.stores.sqlite.maintenance import inspection

if TYPE_CHECKING:
    from sqlite_utils import Database

CopyFile = Annotated[str, typer.Argument(metavar="OUT.db", help="New SQLite file.")]
Project = Annotated[str | None, typer.Option(help="Only traces of this project.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing copy.")]
DatabaseFile = Annotated[str, typer.Argument(metavar="FILE", help="Copy for analysis, or a Spanwise file.")]
OutputFormat = Annotated[
    str, typer.Option("--format", "-f", help="table, csv, tsv, json, jsonl, or a format of tabulate such as github.")
]
TableName = Annotated[str, typer.Argument(help="Name of a table or view.")]
TableNames = Annotated[list[str] | None, typer.Argument(help="Only these tables and views.")]
Parameters = Annotated[
    list[str] | None, typer.Option("--param", "-p", help="NAME=VALUE for :NAME in the SQL; may be repeated.")
]
CONTENT_FORMATS = ("table", "csv", "tsv", "json", "jsonl")


def analyze_copy(
    out: CopyFile,
    where: WhereOption = None,
    project: Project = None,
    force: Force = False,
    store: StoreOption = None,
) -> None:
    """Copy a store to a new SQLite file with flat tables, for Datasette, DuckDB, pandas and SQL.

    A file is read directly, in one snapshot, even while a server writes it. Name a server with --store to copy
    through its API. An incomplete copy is called OUT.db.part.

    Example: `spanwise db analyze-copy analysis.db --where since=30d`
    """
    from spanwise.collector.import_export import write_analysis_copy

    wanted, target = build_filter(where, project=project), check_database_path(out)
    with open_for_reading(store) as opened, _progress() as report:
        counts = write_analysis_copy(opened, target, wanted, force=force, report=report)
    print_note(f"wrote {_list_counts(counts)} to {out}")


def export_tables(store: str | None, table: str, format: str, file: Path, wanted: Filter) -> None:
    """Write one flat table or all of them, for `spanwise db export`."""
    from spanwise.collector.import_export import write_stream, write_tables

    with open_store(store) as opened:
        if str(file) == "-":
            counts = {table: write_stream(opened, table, format, sys.stdout.buffer, wanted)}
            sys.stdout.buffer.flush()
        else:
            counts = write_tables(opened, table, format, file, wanted)
    print_note(f"wrote {_list_counts(counts)}")


@contextmanager
def open_for_reading(at: str | None) -> Iterator[Any]:
    """Open a snapshot of a database file, or the store of a server, and print its location on stderr."""
    from spanwise.collector.stores.sqlite import open_snapshot

    location = check_database_path(at if at is not None else os.environ.get("SPANWISE_URL") or "spanwise.db")
    if "://" in location:
        with open_store(location) as opened:
            yield opened
        return
    adopt_former_file(location)
    if not Path(location).exists():
        raise Refused(f"there is no file {location!r}; name another with --store")
    print_note(f"store: {location}")
    snapshot = open_snapshot(location)
    try:
        yield snapshot
    finally:
        snapshot.close()


@contextmanager
def _progress() -> Iterator[Callable[[str, int], None]]:
    """Yield a function that shows the number of rows: as a status line on a terminal, else not at all."""
    with error_console.status("reading") as status:

        def report(table: str, rows: int) -> None:
            status.update(f"{table}: {rows:,} rows")

        yield report


def _list_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} × {table}" for table, count in counts.items())


def query(
    file: DatabaseFile,
    sql: Annotated[str, typer.Argument(help="One SQL statement that reads.")],
    format: OutputFormat = "table",
    parameters: Parameters = None,
) -> None:
    """Print the result of an SQL query on a SQLite file, which cannot be changed this way.

    Example: `spanwise db query analysis.db "SELECT model, calls, cost FROM model_usage" --format csv`
    """
    values = {}
    for text in parameters or []:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise Refused(f"--param must be NAME=VALUE, got {text!r:.100}")
        values[name] = value
    with _open_file(file) as (inspector, _):
        names, rows = inspector.select(sql, values)
        write_rows(names, rows, format)


def tables(
    file: DatabaseFile,
    counts: Annotated[bool, typer.Option("--counts", help="Also count the rows, which reads the file.")] = False,
    format: OutputFormat = "table",
) -> None:
    """List the tables and views of a SQLite file with their columns.

    Example: `spanwise db tables analysis.db --counts`
    """
    with _open_file(file) as (_, db):
        names = [*db.table_names(), *db.view_names()]
        rows: list[list[Any]] = []
        for name in names:
            if any(name.startswith(f"{other}_fts") for other in names) or name.startswith("sqlite_"):
                continue  # internal tables of a full-text index
            columns = ", ".join(column.name for column in db[name].columns)
            kind = "view" if name in db.view_names() else "table"
            rows.append([name, kind, *([db[name].count] if counts else []), columns])
        write_rows(["name", "kind", *(["rows"] if counts else []), "columns"], rows, format)


def schema(file: DatabaseFile, names: TableNames = None) -> None:
    """Print the SQL that creates the tables of a SQLite file.

    Example: `spanwise db schema analysis.db runs`
    """
    with _open_file(file) as (_, db):
        if names:
            for name in names:
                print_line(_find_table(db, name).schema)
        else:
            print_line(db.schema)


def rows(
    file: DatabaseFile,
    table: TableName,
    where: Annotated[str | None, typer.Option(help="SQL condition.")] = None,
    order: Annotated[str | None, typer.Option(help="Column or SQL expression to sort by.")] = None,
    columns: Annotated[
        list[str] | None, typer.Option("--column", "-c", help="Only this column; may be repeated.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Maximum number of rows.")] = None,
    offset: Annotated[int | None, typer.Option(help="Number of rows to skip.")] = None,
    format: OutputFormat = "table",
) -> None:
    """Print rows of a table or view of a SQLite file.

    Example: `spanwise db rows analysis.db runs --where "kind = 'llm'" --column model --column cost --limit 20`
    """
    with _open_file(file) as (inspector, db):
        found = _find_table(db, table)
        known = [column.name for column in found.columns]
        if unknown := [name for name in columns or [] if name not in known]:
            raise Refused(f"{table!r} has no column {unknown[0]!r}; it has {', '.join(known)}")
        sql = f"SELECT {', '.join(map(_quote, columns or known))} FROM {_quote(table)}"
        sql += f" WHERE {where}" if where else ""
        sql += f" ORDER BY {_quote(order) if order in known else order}" if order else ""
        sql += f" LIMIT {-1 if limit is None else limit} OFFSET {offset or 0}"
        write_rows(*inspector.select(sql), format)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _find_table(db: Database, name: str) -> Any:
    names = [*db.table_names(), *db.view_names()]
    if name not in names:
        from spanwise.tracer.suggestions import did_you_mean

        raise Refused(f"there is no table {name!r} in this file{did_you_mean(name, names)}")
    return db[name]


@contextmanager
def _open_file(file: str) -> Iterator[tuple[inspection.DatabaseInspector, Database]]:
    """Open any SQLite file for reading, also as a database of sqlite-utils. Raise `Refused`."""
    from sqlite_utils import Database

    path = check_database_path(file)
    if not Path(path).is_file():
        raise Refused(f"there is no file {path!r}; make a copy with `spanwise db analyze-copy`")
    with inspection.open_any_database(path) as inspector:
        yield inspector, Database(inspector.connection, execute_plugins=False, recursive_triggers=False)


def write_rows(names: Sequence[str], rows: Iterable[Sequence[Any]], format: str) -> None:
    """Write rows to stdout in a format of sqlite-utils: table, csv, tsv, json, jsonl, or a format of tabulate.

    Control characters are escaped in formats for people. Raise `Refused` for an unknown format.
    """
    if format == "table":
        print_table(names, ([_format_cell(value) for value in row] for row in rows))
    elif format in ("csv", "tsv"):
        out = io.TextIOWrapper(sys.stdout.buffer, "utf-8", newline="", write_through=True)
        writer = csv.writer(out, delimiter="," if format == "csv" else "\t")
        writer.writerow(names)
        writer.writerows([_plain(value) for value in row] for row in rows)
        out.detach()
    elif format in ("json", "jsonl"):
        start, end = (b"[", b"\n]\n") if format == "json" else (b"", b"\n")
        first = True
        for row in rows:
            line = orjson.dumps({name: _plain(value) for name, value in zip(names, row, strict=True)})
            sys.stdout.buffer.write((start if first else b",\n" if format == "json" else b"\n") + line)
            first = False
        sys.stdout.buffer.write((b"[]\n" if format == "json" else b"") if first else end)
        sys.stdout.buffer.flush()
    else:
        from tabulate import tabulate, tabulate_formats

        if format not in tabulate_formats:
            known = ", ".join([*CONTENT_FORMATS, *tabulate_formats])
            raise Refused(f"unknown format {format!r}; expected one of: {known}")
        cells = [[_format_cell(value) for value in row] for row in rows]
        print_line(tabulate(cells, list(names), tablefmt=format, disable_numparse=True))


def _plain(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _format_cell(value: Any) -> str:
    if isinstance(value, bytes):
        return f"<{len(value):,} bytes>"
    return "" if value is None else str(value)
