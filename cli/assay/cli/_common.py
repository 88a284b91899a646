"""What every command shares: the store it speaks to, output for people or pipes, errors in one line."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console

from assay.collector.protocols import StoreError

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
