"""What every command shares: the store it speaks to, output for people or pipes, errors in one line."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from assay.collector import connect, describe
from assay.collector._connect import default
from assay.collector.errors import Refused, StoreError
from assay.collector.filters import Filter
from assay.collector.querystring import condition, gathered, term
from assay.collector.stores import Store

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", help="A file or a server's address; else ASSAY_URL, else a server on 4318, else ./assay.db."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object per line, for pipes.")]

WhereOption = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        "-w",
        metavar="CONDITION",
        help="A condition, any number of times: name=answer, latency_ms>=200, 'feedback=concise<0.5', tags=a, …",
    ),
]

console = Console()
notes = Console(stderr=True)
_endless = Console(width=2000)
_ENOUGH = 8  # digits of a trace's id that still find it


@contextmanager
def failing_in_one_line() -> Iterator[None]:
    """Turn the errors that a user can mend into one line on stderr and exit status 1."""
    try:
        yield
    except (StoreError, OSError, ValueError) as error:
        sys.exit(f"assay: {error}")


@contextmanager
def opened(where: str | None, *, make: bool = False) -> Iterator[Store]:
    """The store that a command speaks to; says on stderr which, and closes it. Only with `make` a new file is begun."""
    place = where or default()
    if not make:
        _refuse_absent(place, given=where is not None)
    store = connect(place)
    notes.print(f"store: {describe(store)}", markup=False, highlight=False, soft_wrap=True)
    try:
        yield store
    finally:
        store.close()


def _refuse_absent(place: str, *, given: bool) -> None:
    """A mistyped path is no empty store."""
    if "://" in place or Path(place).exists():
        return
    known = "; name another with --store" if given else " here and no server on port 4318; name one with --store"
    raise Refused(f"there is no file {place!r}{known}")


def conditions(where: Iterable[str] | None, **further: str | None) -> Filter:
    """The filter that `--where` and options of the same names as conditions say. Raises `ValueError`."""
    options = [condition(name, value) for name, value in further.items() if value is not None]
    return gathered([*map(term, where or ()), *options])


def whole_id(store: Store, given: str) -> str:
    """An id as it is; the beginning of one is looked for among the latest traces."""
    if len(given) >= 32:
        return given
    found = [one.trace_id for one in store.traces(limit=1000) if one.trace_id.startswith(given.lower())]
    if len(found) > 1:
        raise Refused(
            f"{given!r} begins the ids of {len(found)} traces: {found[0]!r}, {found[1]!r}, …; give more of it"
        )
    return found[0] if found else given


def emit(rows: Iterable[Any]) -> None:
    """One JSON object per line on stdout."""
    for row in rows:
        sys.stdout.buffer.write(orjson.dumps(row, default=str, option=orjson.OPT_NON_STR_KEYS) + b"\n")
    sys.stdout.buffer.flush()


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on stdout; texts are shown as they are, whatever brackets they hold, and whole where no terminal ends.

    In a narrow terminal texts fold, ids do not: they are there to be copied. Of a trace's id the beginning is enough.
    """
    out = console if console.is_terminal else _endless
    cells = [list(row) for row in rows]
    shown = _table(head, cells)
    if "trace" in head and out.measure(shown, options=out.options.update(width=10_000)).maximum > out.width:
        place = head.index("trace")
        shown = _table(head, [[*row[:place], row[place][:_ENOUGH], *row[place + 1 :]] for row in cells])
    out.print(shown)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    columns = [Column(name, overflow="fold") for name in head]
    for place, name in enumerate(head):
        if name in ("trace", "id", "example"):
            columns[place].no_wrap = True
            columns[place].min_width = max((len(row[place]) for row in rows), default=0)
    shown = Table(*columns)
    for row in rows:
        shown.add_row(*map(Text, row))
    return shown


def short(value: Any, width: int = 60) -> str:
    """A value on one line, cut off where it gets long."""
    text = (
        value if isinstance(value, str) else orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    )
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"
