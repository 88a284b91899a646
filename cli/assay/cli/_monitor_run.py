"""`assay monitor rules.py`: the rules of a file, carried out until Ctrl-C."""

from __future__ import annotations

from typing import Annotated

import typer

from assay.cli._options import StoreOption
from assay.collector.errors import Refused

File = Annotated[str, typer.Argument(metavar="RULES.PY", help="A Python file that calls assay.evaluators.monitor(…).")]


def run(file: File, at: StoreOption = None) -> None:
    """Evaluate live traffic by the rules of a file, until Ctrl-C.

    Example: `assay monitor rules.py --store http://127.0.0.1:4318`
    """
    raise Refused(f"the rules of {file!r} cannot be carried out yet")
