"""A user's Python file, as a module."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

import typer

from spanwise.cli._common import notes
from spanwise.collector.errors import Refused


def loaded(file: Path) -> ModuleType:
    """The file as a module of its own name, with its folder importable as for `python FILE`."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if not file.exists():
        raise Refused(f"there is no file {str(file)!r}")
    if spec is None or spec.loader is None:
        raise Refused(f"{str(file)!r} is not a Python file")
    sys.path.insert(0, str(file.parent.resolve()))
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        show(error, file)
        raise typer.Exit(1) from None
    return module


def show(error: BaseException, file: Path) -> None:
    """What went wrong in a user's file, from its first line on: how it came to be run is of no interest."""
    lines = traceback.TracebackException.from_exception(error)
    first = next((i for i, frame in enumerate(lines.stack) if Path(frame.filename).name == file.name), len(lines.stack))
    del lines.stack[:first]
    notes.print("".join(lines.format()), end="", markup=False, highlight=False, soft_wrap=True)
