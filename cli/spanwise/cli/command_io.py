"""Input and output shared by all commands: store and filter options, tables, JSON lines."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.table import Table
from rich.text import Text

from spanwise.collector import check_database_path, connect, default_location, describe
from spanwise.collector.errors import Refused
from spanwise.collector.filters import EVALUATOR_KIND, Filter, join_conditions, parse_item, parse_term
from spanwise.collector.stores import Store
from spanwise.collector.terminal_escaping import TerminalConsole, escape_line

_WHERE_HELP = "Filter condition; may be repeated: name=answer, latency_ms>=200, 'feedback=concise<0.5', tags=a, …"

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="SQLite file, server URL or clickhouse:// URL. Default: SPANWISE_URL, else a server on port 4318, else ./spanwise.db.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
WhereOption = Annotated[list[str] | None, typer.Option("--where", "-w", metavar="CONDITION", help=_WHERE_HELP)]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

ParametersOption = Annotated[
    list[str] | None, typer.Option("--set", help="Parameter as name=value; the value is JSON or text.")
]

DatasetArgument = Annotated[str, typer.Argument(help="Name of the dataset.")]
HostOption = Annotated[str, typer.Option(help="Address to bind to. Addresses other than loopback require API keys.")]
FileStoreOption = Annotated[str, typer.Option("--store", help="SQLite file to store everything in.")]
ServerStoreOption = Annotated[
    str,
    typer.Option(
        "--store", help="SQLite file to store everything in, or clickhouse:// URL of traces (with --control)."
    ),
]
CONTROL_HELP = (
    "With a clickhouse:// store: postgresql:// URL of its control records, or a SQLite file that only this process uses. "
    "Default: SPANWISE_CONTROL."
)


console = TerminalConsole()
error_console = TerminalConsole(stderr=True)
_wide_console = TerminalConsole(width=2000)
_SHORT_ID_LENGTH = 8  # number of digits that usually identify a recent trace
_ID_COLUMNS = ("trace", "id", "example")  # columns whose values users copy


def print_line(text: str) -> None:
    """Print a text on stdout, without markup and line breaks. Control characters are escaped."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def print_note(text: str, style: str = "") -> None:
    """Print a text on stderr, without markup and line breaks. Control characters are escaped."""
    error_console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def open_store(at: str | None, *, make: bool = False) -> Iterator[Store]:
    """Open the store of a command, print its location on stderr, and close it at the end. With `make`, a file that does
    not exist is created.
    """
    store = connect_store(at, make=make)
    print_note(f"store: {describe(store)}")
    try:
        yield store
    finally:
        store.close()


def connect_store(at: str | None, *, make: bool = False) -> Store:
    """Open the store of a command without a message. The caller closes it.

    Raises `Refused` if the file does not exist, so that a mistyped path does not open an empty store; with `make`, it
    is created.
    """
    location = default_location() if at is None else check_database_path(at)
    if not make and "://" not in location and not Path(location).exists():
        if at is None:
            raise Refused(f"there is no file {location!r} here and no server on port 4318; name one with --store")
        raise Refused(f"there is no file {location!r}; name another with --store")
    return connect(location)


def build_filter(where: Iterable[str] | None, **options: str | None) -> Filter:
    """Build a filter from `--where` and from options that are named like conditions. Raises `ValueError`."""
    named = [parse_item(name, text) for name, text in options.items() if text is not None]
    return join_conditions([*map(parse_term, where or ()), *named])


def resolve_trace_id(store: Store, prefix: str) -> str:
    """Return the id of the recent trace, possibly a judge trace, whose id begins with `prefix`.

    A complete id, or a text that matches no trace, is returned unchanged. Raises `Refused` if several traces match.
    """
    if len(prefix) >= 32:
        return prefix
    latest = [*store.traces(limit=1000), *store.traces(limit=1000, kind=EVALUATOR_KIND), *store.running()]
    ids = list({trace.trace_id: None for trace in latest if trace.trace_id.startswith(prefix.lower())})
    if len(ids) > 1:
        raise Refused(
            f"{prefix!r} matches the ids of {len(ids)} traces: {ids[0]!r}, {ids[1]!r}, …; give more characters"
        )
    return ids[0] if ids else prefix


def emit(rows: Iterable[Any]) -> None:
    """Write one JSON object per line to stdout."""
    for row in rows:
        sys.stdout.buffer.write(_dump_json(row) + b"\n")
    sys.stdout.buffer.flush()


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table on stdout, with control characters escaped. If stdout is not a terminal, the width is unlimited.

    In a narrow terminal, texts wrap but ids do not, so that users can copy them. If necessary, trace ids are
    shortened to their beginning.
    """
    out = console if console.is_terminal else _wide_console
    cells = [list(map(escape_line, row)) for row in rows]
    table = _make_table(head, cells)
    if "trace" in head and out.measure(table, options=out.options.update(width=10_000)).maximum > out.width:
        trace = head.index("trace")
        table = _make_table(head, [[*row[:trace], row[trace][:_SHORT_ID_LENGTH], *row[trace + 1 :]] for row in cells])
    out.print(table)


def _make_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table()
    for position, name in enumerate(head):
        is_id = name in _ID_COLUMNS
        width = max((len(row[position]) for row in rows), default=0) if is_id else None
        table.add_column(name, overflow="fold", no_wrap=is_id, min_width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def shorten(value: Any, width: int = 60) -> str:
    """Return a value on one line, truncated to `width` characters."""
    text = " ".join((value if isinstance(value, str) else _dump_json(value).decode()).split())
    return text if len(text) <= width else text[: width - 1] + "…"


def _dump_json(value: Any) -> bytes:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)
