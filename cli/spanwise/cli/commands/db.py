"""`spanwise db`: sizes, retention, deletion, export, import, check, recovery, backup, SQL, flat tables."""

from __future__ import annotations

import base64
import csv
import io
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.table import Table
from rich.text import Text

from spanwise.cli.command_io import (
    JsonOption,
    StoreOption,
    WhereOption,
    build_filter,
    console,
    emit,
    error_console,
    open_store,
    print_line,
    print_note,
    print_table,
)
from spanwise.collector import check_database_path
from spanwise.collector.address_parsing import hide_password
from spanwise.collector.errors import Refused
from spanwise.collector.filters import Filter, parse, parse_duration
from spanwise.collector.records import Retention
from spanwise.collector.stores.sqlite.database.name_conversion import adopt_former_file
from spanwise.collector.stores.sqlite.maintenance import backup_and_recovery
from spanwise.collector.terminal_escaping import MAX_MESSAGE_LENGTH, escape_line

if TYPE_CHECKING:
    from sqlite_utils import Database


# `spanwise db analyze-copy`, `export --table`, `query`, `tables`, `schema` and `rows`: flat tables for analysis.

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
    print_note(f"wrote {_list_table_counts(counts)} to {out}")


def export_tables(store: str | None, table: str, format: str, file: Path, wanted: Filter) -> None:
    """Write one flat table or all of them, for `spanwise db export`."""
    from spanwise.collector.import_export import write_stream, write_tables

    with open_store(store) as opened:
        if str(file) == "-":
            counts = {table: write_stream(opened, table, format, sys.stdout.buffer, wanted)}
            sys.stdout.buffer.flush()
        else:
            counts = write_tables(opened, table, format, file, wanted)
    print_note(f"wrote {_list_table_counts(counts)}")


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


def _list_table_counts(counts: dict[str, int]) -> str:
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
def _open_file(file: str) -> Iterator[tuple[backup_and_recovery.DatabaseInspector, Database]]:
    """Open any SQLite file for reading, also as a database of sqlite-utils. Raise `Refused`."""
    from sqlite_utils import Database

    path = check_database_path(file)
    if not Path(path).is_file():
        raise Refused(f"there is no file {path!r}; make a copy with `spanwise db analyze-copy`")
    with backup_and_recovery.open_any_database(path) as inspector:
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


# `spanwise db`: sizes, retention, deletion, export, import, check, recovery, backup, SQL.

app = typer.Typer(
    no_args_is_help=True,
    help="Database maintenance: sizes, retention, deletion, export, import, integrity checks, SQL.",
    epilog="Example: `spanwise db stats`",
)

FileOption = Annotated[str | None, typer.Option("--store", help="SQLite file. Default: ./spanwise.db.")]
Terms = Annotated[list[str], typer.Argument(help="Filter conditions, such as project=demo session=s-1 since=7d.")]
Target = Annotated[str, typer.Argument(metavar="FILE", help="New file; it must not exist.")]
SIZE_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@app.command()
def stats(store: FileOption = None, json: JsonOption = False) -> None:
    """Show sizes, counts and each project's share.

    Example: `spanwise db stats --store spanwise.db`
    """
    path = _require_file(store)
    with backup_and_recovery.open_inspector(path) as file:
        numbers = file.stats()
    if json:
        emit([numbers])
        return
    projects = numbers.pop("projects")
    rows = [
        {"what": name, "value": _format_size(value) if name.endswith("_bytes") else value}
        for name, value in numbers.items()
    ]
    console.print(_make_table(rows))
    console.print(_make_table([{**project, "bytes": _format_size(project["bytes"])} for project in projects]))


@app.command()
def prune(
    older_than: Annotated[str | None, typer.Option(help="Delete traces older than this, such as 30d.")] = None,
    max_size: Annotated[
        str | None, typer.Option(help="Delete the oldest traces until the database has at most this size, such as 2GB.")
    ] = None,
    project: Annotated[
        str | None, typer.Option(help="Only traces of this project. Default: all projects together.")
    ] = None,
    always: Annotated[
        bool, typer.Option("--always", help="Store the limit as a rule that runs about once an hour.")
    ] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Delete old traces with all their data. If a server serves the file, the deletion goes through the server.

    Example: `spanwise db prune --older-than 30d --project demo --always`
    """
    rule = Retention(
        project=project,
        max_age_ns=parse_duration(older_than) if older_than else None,
        max_bytes=_parse_size(max_size) if max_size else None,
    )
    if rule.max_age_ns is None and rule.max_bytes is None and not always:
        raise Refused("set a limit: --older-than 30d or --max-size 2GB (--always alone removes the stored rule)")
    with open_store(store) as opened:
        if always:
            opened.set_retention(rule)
        _print_count("deleted", opened.prune(rule), json)


@app.command()
def delete(
    terms: Terms,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Delete the traces that meet all conditions, with their index entries, feedback and decisions.

    Example: `spanwise db delete user=u-42 --yes`
    """
    wanted = parse(terms)
    with open_store(store) as opened:
        if not yes:
            first = opened.traces(wanted, limit=1000)
            count = f"{len(first)}{'+' if first.next else ''}"
            typer.confirm(f"Permanently delete {count} traces?", abort=True, err=True)
        _print_count("deleted", opened.delete(wanted), json)


@app.command()
def vacuum(store: StoreOption = None, json: JsonOption = False) -> None:
    """Return the space of deleted data to the disk. A server that serves the file accepts no data meanwhile.

    Example: `spanwise db vacuum --store spanwise.db`
    """
    with open_store(store) as opened:
        freed = opened.vacuum()
    if json:
        emit([{"freed_bytes": freed}])
    else:
        print_note(f"freed {_format_size(freed)}")


@app.command()
def export(
    file: Annotated[Path, typer.Argument(help="New file; - for stdout. With all tables, a new folder.")],
    format: Annotated[
        str | None,
        typer.Option(
            help="otlp: runs and feedback, for any tool; jsonl: every record, or the rows of a --table; parquet or csv:"
            " flat tables. Default: otlp; with --table, the suffix of the file."
        ),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            help="Export a flat table: traces, runs, documents, feedback, examples, experiment_results or all."
        ),
    ] = None,
    where: WhereOption = None,
    store: StoreOption = None,
) -> None:
    """Export a store as lines of JSON, in the format of OpenTelemetry's file exporter or with every record; or export
    its flat tables.

    Example: `spanwise db export runs.parquet --table runs --where since=7d`
    """
    from spanwise.collector.import_export import ALL_TABLES, TABLE_FORMATS, export_lines, write_file

    if table is not None or format in ("parquet", "csv"):
        suffix = file.suffix.lower().removeprefix(".")
        if format is None and suffix not in TABLE_FORMATS:
            raise Refused(f"choose a format with --format: {', '.join(TABLE_FORMATS)}")
        export_tables(store, table or ALL_TABLES, format or suffix, file, build_filter(where))
        return
    format = format or "otlp"
    with open_store(store) as opened:
        lines = export_lines(opened, format, build_filter(where))
        if str(file) == "-":
            counts = Counter[str]()
            for line, records in lines:
                sys.stdout.buffer.write(line + b"\n")
                counts += records
            sys.stdout.buffer.flush()
        else:
            counts = write_file(lines, file)
    print_note(f"wrote {_list_counts(counts)}")


@app.command("import")
def import_(
    file: Annotated[
        Path, typer.Argument(help="File written by `export` or by OpenTelemetry's file exporter; - for stdin.")
    ],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Import the lines of a file. A repeated import changes nothing. Exit status 1 if some lines could not be imported.

    Example: `spanwise db import backup.jsonl --store new.db`
    """
    from spanwise.collector.import_export import import_file

    with open_store(store, make=True) as opened:
        if str(file) == "-":
            imported = import_file(opened, sys.stdin.buffer)
        else:
            with file.open("rb") as lines:
                imported = import_file(opened, lines)
    if json:
        emit([{"kept": imported.kept, "left_out": imported.left_out, "bad": imported.bad, "reasons": imported.reasons}])
    for reason in imported.reasons if not json else ():
        print_note(escape_line(reason, MAX_MESSAGE_LENGTH))
    left_out = f", skipped {_list_counts(imported.left_out)}" if imported.left_out else ""
    print_note(f"stored {_list_counts(imported.kept)}{left_out}, bad: {imported.bad:,}")
    if imported.bad:
        raise typer.Exit(1)


def _list_counts(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} × {kind}" for kind, count in counts.items()) or "nothing"


@app.command()
def copy(
    source: Annotated[str, typer.Argument(help="SQLite file or clickhouse:// URL to copy from.")],
    target: Annotated[str, typer.Argument(help="SQLite file or clickhouse:// URL to copy to; it must be empty.")],
    control: Annotated[
        str | None,
        typer.Option(
            help="postgresql:// URL of the control records of the target (or of the source, if that is the "
            "only clickhouse:// store). Default: SPANWISE_CONTROL."
        ),
    ] = None,
    source_control: Annotated[
        str | None, typer.Option(help="URL of the control records of the source, if both stores are databases.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be copied.")] = False,
    json: JsonOption = False,
) -> None:
    """Copy all records of a store into another one, with all ids and numbers, and compare both. Repeat an interrupted
    command to continue it.

    A SQLite file may be served meanwhile: one snapshot of it is copied. Nothing else may use the target.

    Example: `spanwise db copy spanwise.db clickhouse://spanwise@clickhouse/spanwise --control postgresql://spanwise@db/spanwise`
    """
    from spanwise.collector.import_export import copy_store, find_state_file, open_source, open_target, summarize

    control = control or os.environ.get("SPANWISE_CONTROL")
    with open_source(source, source_control or control) as opened, _progress() as report:
        if dry_run:
            contents = summarize(opened, report)
        else:
            with open_target(target, control) as empty:
                contents = copy_store(opened, empty, find_state_file(source, target), report)
    rows = [
        {"day": day, **{name: getattr(totals, name) for name in DAY_COUNTS}}
        for day, totals in sorted(contents.days.items())
    ]
    tables = {name: totals.rows for name, totals in contents.tables.items() if totals.rows}
    if json:
        emit([*rows, {"tables": tables}])
        return
    console.print(_make_table(rows))
    what = ", ".join(f"{count:,} × {name.replace('_', ' ')}" for name, count in tables.items())
    print_note(f"control records: {what or 'none'}")
    counts = ", ".join(f"{sum(row[name] for row in rows):,} {name}" for name in DAY_COUNTS)
    done = "would copy" if dry_run else "copied and compared"
    print_note(f"{done}: {counts}")


DAY_COUNTS = ("traces", "runs", "feedback")


@app.command()
def check(
    deep: Annotated[bool, typer.Option("--deep", help="Also decode every payload.")] = False,
    store: FileOption = None,
    json: JsonOption = False,
) -> None:
    """Check the integrity of the file and the consistency of its tables. Exit status 1 if there are problems.

    Example: `spanwise db check --deep`
    """
    problems = backup_and_recovery.check_file(_require_file(store), deep=deep)
    if json:
        emit([{"sound": not problems, "problems": problems}])
    for problem in problems if not json else ():
        print_line(problem)
    if problems:
        print_note("to save the readable data, run: spanwise db recover NEW.db")
        raise typer.Exit(1)
    print_note("sound")


@app.command()
def recover(target: Target, store: FileOption = None, json: JsonOption = False) -> None:
    """Recover the readable data of a damaged file into a new file. The damaged file is not changed.

    Example: `spanwise db recover saved.db --store spanwise.db`
    """
    report = backup_and_recovery.recover(_require_file(store), check_database_path(target))
    if json:
        emit([asdict(report)])
        return
    rows = [
        {"table": table.table, "saved": table.saved, "lost": "an unknown number" if table.lost is None else table.lost}
        for table in report.tables
        if table.saved or table.lost != 0
    ]
    console.print(_make_table(rows))
    for line in (*report.notes, *report.problems):
        print_line(line)
    print_note(f"saved into {target}; check it, then replace the damaged file with it")


@app.command()
def backup(target: Target, store: FileOption = None, json: JsonOption = False) -> None:
    """Copy a consistent snapshot of the file, even while a server writes it. An incomplete copy is called FILE.part.

    Example: `spanwise db backup spanwise-monday.db --store spanwise.db`
    """
    size = backup_and_recovery.backup(_require_file(store), check_database_path(target))
    if json:
        emit([{"bytes": size}])
    else:
        print_note(f"copied {_format_size(size)} to {target}")


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="Backup made by `spanwise db backup`.")],
    store: FileOption = None,
    json: JsonOption = False,
) -> None:
    """Restore a backup: check it, move the present file away, copy the backup, check the result.

    No process may have the file open, so stop the server first.

    Example: `spanwise db restore spanwise-monday.db --store spanwise.db`
    """
    target = _store_path(store)
    print_note(f"store: {target}")
    if not file.exists():
        raise Refused(f"there is no file {str(file)!r}; name a backup file")
    restored = backup_and_recovery.restore(check_database_path(file), target)
    if json:
        emit([asdict(restored)])
        return
    if restored.replaced:
        print_note(f"moved the current file to {restored.replaced}")
    print_note(f"restored {_format_size(restored.bytes)} from {file}; integrity check passed")


@app.command()
def sql(
    query: Annotated[
        str | None, typer.Argument(help="SQL statement. Without it, the command lists the tables.")
    ] = None,
    store: FileOption = None,
    json: JsonOption = False,
) -> None:
    """Read the file with SQL. It cannot be changed this way.

    `payload(x)` is the JSON of a span's payload, by its id or its blob; `iso(ns)` is a time as text.

    Example: `spanwise db sql "SELECT name, iso(start_ns), payload(id) ->> '$.inputs' FROM spans ORDER BY id LIMIT 5"`
    """
    with backup_and_recovery.open_inspector(_require_file(store)) as file:
        rows = file.sql(query or backup_and_recovery.LIST_TABLES_SQL)
        if json:
            emit(rows)
        else:
            console.print(_make_table(rows))


def _require_file(store: str | None) -> str:
    """Return the path of an existing database file, for commands that do not work through a server."""
    path = _store_path(store)
    if not Path(path).exists():
        raise Refused(f"there is no file {path!r}; name another with --store")
    print_note(f"store: {path}")
    return path


def _store_path(store: str | None) -> str:
    """Return the path of a database file, which need not exist. Raises `Refused` for the URL of a server."""
    path = check_database_path(store if store is not None else os.environ.get("SPANWISE_URL") or "spanwise.db")
    if "://" in path:
        what = "is a server, but this command needs its database file"
        if not path.startswith(("http://", "https://")):
            what = "is no SQLite file, but this command needs one"
        raise Refused(f"{hide_password(path)!r} {what}; name the file with --store")
    adopt_former_file(path)
    return path


def _print_count(what: str, traces: int, json: bool) -> None:
    if json:
        emit([{what: traces}])
    else:
        print_note(f"{what} {traces} traces")


def _parse_size(text: str) -> int:
    number, unit = text[:-2].strip(), text[-2:].upper()
    if unit not in SIZE_UNITS or not number.replace(".", "", 1).isdigit():
        raise Refused(f"{text!r} is not a size; expected a number and a unit, such as 500MB or 2GB")
    return int(float(number) * SIZE_UNITS[unit])


def _format_size(count: int) -> str:
    unit = next((name for name in ("TB", "GB", "MB") if count >= SIZE_UNITS[name]), "KB")
    return f"{count / SIZE_UNITS[unit]:.1f} {unit}"


def _make_table(rows: Iterable[dict[str, Any]]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for position, row in enumerate(rows):
        if position == 0:
            for name in row:
                table.add_column(Text(escape_line(name)), overflow="fold")
        table.add_row(*(Text(escape_line(str(value))) for value in row.values()))
    return table


app.command("analyze-copy")(analyze_copy)
app.command("query")(query)
app.command("tables")(tables)
app.command("schema")(schema)
app.command("rows")(rows)
