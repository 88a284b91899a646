"""`spanwise db`: sizes, retention, deletion, export, import, check, recovery, backup, SQL.

The commands for flat tables are in `db_tables`.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

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
    open_store,
    print_line,
    print_note,
)
from spanwise.cli.commands import db_tables
from spanwise.collector import check_database_path
from spanwise.collector.errors import Refused
from spanwise.collector.filter_values import parse_duration
from spanwise.collector.filters import parse
from spanwise.collector.records import Retention
from spanwise.collector.stores.sqlite.database.name_conversion import adopt_former_file
from spanwise.collector.stores.sqlite.maintenance import inspection
from spanwise.collector.terminal_escaping import MAX_MESSAGE_LENGTH, escape_line

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
    with inspection.open_inspector(path) as file:
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
        db_tables.export_tables(store, table or ALL_TABLES, format or suffix, file, build_filter(where))
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
def check(
    deep: Annotated[bool, typer.Option("--deep", help="Also decode every payload.")] = False,
    store: FileOption = None,
    json: JsonOption = False,
) -> None:
    """Check the integrity of the file and the consistency of its tables. Exit status 1 if there are problems.

    Example: `spanwise db check --deep`
    """
    problems = inspection.check_file(_require_file(store), deep=deep)
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
    report = inspection.recover(_require_file(store), check_database_path(target))
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
    size = inspection.backup(_require_file(store), check_database_path(target))
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
    restored = inspection.restore(check_database_path(file), target)
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
    with inspection.open_inspector(_require_file(store)) as file:
        rows = file.sql(query or inspection.LIST_TABLES_SQL)
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
        raise Refused(f"{path!r} is a server, but this command needs its database file; name the file with --store")
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


app.command("analyze-copy")(db_tables.analyze_copy)
app.command("query")(db_tables.query)
app.command("tables")(db_tables.tables)
app.command("schema")(db_tables.schema)
app.command("rows")(db_tables.rows)
