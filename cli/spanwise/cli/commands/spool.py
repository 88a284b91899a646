"""`spanwise spool`: list, send and clear what tracers spooled on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from spanwise.cli.command_io import JsonOption, YesOption, emit, error_console, print_note, print_table
from spanwise.collector import formatting
from spanwise.collector.errors import Refused
from spanwise.tracer.export import disk_spool
from spanwise.tracer.export.disk_spool import SpoolFolder

app = typer.Typer(
    help="Spool of unsent spans: list, send or remove spans that no collector has received.",
    no_args_is_help=True,
    epilog="Example: `spanwise spool list`",
)

For = Annotated[str | None, typer.Option("--for", metavar="URL", help="Only items for this collector.")]
To = Annotated[str | None, typer.Option("--to", metavar="URL", help="Send to this address instead.")]
SPOOL_COLUMNS = ("folder", "for", "project", "items", "bytes", "since")


@app.command("list")
def list_(address: For = None, as_json: JsonOption = False) -> None:
    """List spooled data by collector, project and key, including data that a process is sending now.

    Example: `spanwise spool list --for http://127.0.0.1:4318`
    """
    folders = _find_folders(address)
    if as_json:
        emit({**asdict(folder), "folder": str(folder.folder)} for folder in folders)
    elif folders:
        rows = []
        for folder in folders:
            since = f"{formatting.date_and_time(folder.oldest_ns)} ({formatting.ago(folder.oldest_ns)})"
            counts = (f"{folder.items:,}", f"{folder.bytes:,}")
            rows.append((folder.folder.name, folder.url, folder.project, *counts, since))
        print_table(SPOOL_COLUMNS, rows)


@app.command()
def send(address: For = None, to: To = None, as_json: JsonOption = False) -> None:
    """Send spooled data to the collectors that it is addressed to, or all of it to another one.

    The key of the environment (SPANWISE_API_KEY) goes to the collector of the environment, and to one named here.
    Exit status 1 if data is left.

    Example: `spanwise spool send --for http://old:4318 --to http://new:4318`
    """
    rows = []
    for folder in _find_folders(address):
        sent = disk_spool.send_spool_folder(folder, to, with_key=bool(address or to))
        rows.append({"for": folder.url, "to": to or folder.url, "project": folder.project, **asdict(sent)})
        if not as_json:
            print_note(_describe_sent(to or folder.url, sent))
    if as_json:
        emit(rows)
    if any(row["left"] for row in rows):
        raise typer.Exit(1)


@app.command()
def clear(address: For = None, yes: YesOption = False, as_json: JsonOption = False) -> None:
    """Delete spooled data permanently. Data that a process is sending now stays.

    Example: `spanwise spool clear --for http://127.0.0.1:4318`
    """
    folders = _find_folders(address)
    if folders and not yes:
        count = sum(folder.items for folder in folders)
        typer.confirm(f"Remove {count:,} items that no collector has received? This cannot be undone", abort=True)
    removed = sum(map(disk_spool.clear_spool_folder, folders))
    if as_json:
        emit([{"removed": removed}])
    else:
        error_console.print(f"removed {removed} items")


def _find_folders(address: str | None) -> Sequence[SpoolFolder]:
    """Return the spool's folders, or those for one collector. Print a line if there are none."""
    directory = disk_spool.get_spool_directory()
    if directory is None:
        raise Refused("the spool is disabled by SPANWISE_SPILL_DIR")
    folders = [
        folder
        for folder in disk_spool.list_spool_folders(directory)
        if address is None or disk_spool.is_same_address(folder.url, address)
    ]
    if not folders:
        destination = f" for {address}" if address else ""
        text = f"no unsent items in {directory}{destination}"
        print_note(text)
    return folders


def _describe_sent(to: str, sent: disk_spool.SendResult) -> str:
    parts = [f"{sent.kept:,} sent to {to}"]
    parts += [f"{count:,} lost ({reason})" for reason, count in sent.lost.items()]
    if sent.left:
        reason = f" ({sent.why})" if sent.why else ": another process is sending them"
        if sent.why.startswith(("HTTP 401", "HTTP 403")):
            reason = f" ({sent.why}: set SPANWISE_API_KEY to its key, and select it with --for)"
        parts.append(f"{sent.left:,} left{reason}")
    return ", ".join(parts)
