"""Input and output shared by all commands: store and filter options, tables, JSON lines."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.table import Column, Table
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
        help="SQLite file or server URL. Default: SPANWISE_URL, else a server on port 4318, else ./spanwise.db.",
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


console = TerminalConsole()
error_console = TerminalConsole(stderr=True)
_wide_console = TerminalConsole(width=2000)
_SHORT_ID_LENGTH = 8  # number of digits that usually identify a recent trace
_ID_COLUMNS = ("trace", "id", "example")  # columns whose values users copy


@contextmanager
def open_store(at: str | None, *, make: bool = False) -> Iterator[Store]:
    """Open the store of a command, print its location on stderr, and close it at the end. With `make`, a file that does
    not exist is created.
    """
    store = connect_store(at, make=make)
    error_console.print(f"store: {describe(store)}", markup=False, highlight=False, soft_wrap=True)
    try:
        yield store
    finally:
        store.close()


def connect_store(at: str | None, *, make: bool = False) -> Store:
    """Open the store of a command without a message. The caller closes it. Raises `Refused`."""
    place = default_location() if at is None else check_database_path(at)
    if not make:
        _check_store_exists(place, given=at is not None)
    return connect(place)


def _check_store_exists(place: str, *, given: bool) -> None:
    """Raise `Refused` if the file does not exist, so that a mistyped path does not open an empty store."""
    if "://" in place or Path(place).exists():
        return
    way_out = "; name another with --store" if given else " here and no server on port 4318; name one with --store"
    raise Refused(f"there is no file {place!r}{way_out}")


def build_filter(where: Iterable[str] | None, **options: str | None) -> Filter:
    """Build a filter from `--where` and from options that are named like conditions. Raises `ValueError`."""
    named = [parse_item(name, text) for name, text in options.items() if text is not None]
    return join_conditions([*map(parse_term, where or ()), *named])


def resolve_trace_id(store: Store, given: str) -> str:
    """Return the id of the recent trace, possibly a judge trace, whose id begins with the given text.

    A complete id, or a text that matches no trace, is returned unchanged. Raises `Refused` if several traces match.
    """
    if len(given) >= 32:
        return given
    latest = [*store.traces(limit=1000), *store.traces(limit=1000, kind=EVALUATOR_KIND), *store.running()]
    ids = list({trace.trace_id: None for trace in latest if trace.trace_id.startswith(given.lower())})
    if len(ids) > 1:
        raise Refused(
            f"{given!r} matches the ids of {len(ids)} traces: {ids[0]!r}, {ids[1]!r}, …; give more characters"
        )
    return ids[0] if ids else given


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
    made = _make_table(head, cells)
    if "trace" in head and out.measure(made, options=out.options.update(width=10_000)).maximum > out.width:
        place = head.index("trace")
        made = _make_table(head, [[*row[:place], row[place][:_SHORT_ID_LENGTH], *row[place + 1 :]] for row in cells])
    out.print(made)


def _make_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    made = Table(*(_make_column(name, [row[place] for row in rows]) for place, name in enumerate(head)))
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def _make_column(name: str, texts: Sequence[str]) -> Column:
    if name not in _ID_COLUMNS:
        return Column(name, overflow="fold")
    return Column(name, overflow="fold", no_wrap=True, min_width=max(map(len, texts), default=0))


def shorten(value: Any, width: int = 60) -> str:
    """Return a value on one line, truncated to `width` characters."""
    text = " ".join((value if isinstance(value, str) else _dump_json(value).decode()).split())
    return text if len(text) <= width else text[: width - 1] + "…"


def _dump_json(value: Any) -> bytes:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)
