"""What every command shares: the store it speaks to, output for people or pipes, errors in one line."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from assay.collector import connect, describe
from assay.collector.protocols import Store, StoreError

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", help="A file or a server's address; else ASSAY_URL, else a server on 4318, else ./assay.db."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object per line, for pipes.")]

console = Console()
notes = Console(stderr=True)


@contextmanager
def failing_in_one_line() -> Iterator[None]:
    """Turn the errors that a user can mend into one line on stderr and exit status 1."""
    try:
        yield
    except (StoreError, OSError, ValueError) as error:
        sys.exit(f"assay: {error}")


@contextmanager
def opened(where: str | None) -> Iterator[Store]:
    """The store that a command speaks to; says on stderr which, and closes it."""
    store = connect(where)
    notes.print(f"store: {describe(store)}", markup=False, highlight=False, soft_wrap=True)
    try:
        yield store
    finally:
        store.close()


def emit(rows: Iterable[Any]) -> None:
    """One JSON object per line on stdout."""
    for row in rows:
        sys.stdout.buffer.write(orjson.dumps(row, default=str, option=orjson.OPT_NON_STR_KEYS) + b"\n")
    sys.stdout.buffer.flush()


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on stdout; texts are shown as they are, whatever brackets they hold."""
    shown = Table(*head)
    for row in rows:
        shown.add_row(*map(Text, row))
    console.print(shown)


def short(value: Any, width: int = 60) -> str:
    """A value on one line, cut off where it gets long."""
    text = (
        value if isinstance(value, str) else orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    )
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"
