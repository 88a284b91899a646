"""What a person sees while a model loads or has many texts to read: a line in a terminal, and nowhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

PATIENCE = 1.0  # seconds of work before anything is shown

Parts = TypeVar("Parts", bound=Sequence[Any])
Say = Callable[[str], object]
_others: list[Say] = []  # who draws in the terminal already, the newest last


@contextmanager
def told_to(say: Say) -> Iterator[None]:
    """Meanwhile what is to be told goes there; "" when there is nothing more to tell."""
    _others.append(say)
    try:
        yield
    finally:
        _others.remove(say)


@contextmanager
def telling(text: str) -> Iterator[None]:
    """Tell what goes on in the block. The libraries' own bars, which draw over ours, are off meanwhile."""
    with _shown(text), _without_bars():
        yield


def tracked(parts: Sequence[Parts], what: str) -> Iterator[Parts]:
    """These parts, one after the other; how far one is, in `what` such as "texts embedded", if it takes a while."""
    began, done, total = time.monotonic(), 0, sum(map(len, parts))
    if len(parts) < 2:
        yield from parts
        return
    with _counting(total, what) as show:
        for part in parts:
            yield part
            done += len(part)
            if time.monotonic() - began > PATIENCE:
                show(done)


@contextmanager
def _shown(text: str) -> Iterator[None]:
    if say := _listener():
        say(text)
        try:
            yield
        finally:
            say("")
        return
    if (console := _terminal()) is None:
        yield
        return
    from rich.text import Text

    with console.status(Text(text)):  # a name may look like markup
        yield


@contextmanager
def _counting(total: int, what: str) -> Iterator[Callable[[int], object]]:
    if say := _listener():
        try:
            yield lambda done: say(f"{done:,} of {total:,} {what}")
        finally:
            say("")
        return
    if (console := _terminal()) is None:
        yield lambda done: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    progress = Progress(*columns, console=console, transient=True)
    task = progress.add_task(what, total=total)

    def show(done: int) -> None:
        progress.start()  # once; more often does nothing
        progress.update(task, completed=done)

    try:
        yield show
    finally:
        progress.stop()


def _listener() -> Say | None:
    return _others[-1] if _others else None


def _terminal() -> Console | None:
    """Where a person looks at stderr; not in a notebook, which would show things below each other."""
    from spanwise.collector.terminal import TerminalConsole

    console = TerminalConsole(stderr=True, highlight=False)
    return console if console.is_terminal and not console.is_jupyter else None


@contextmanager
def _without_bars() -> Iterator[None]:
    logging = None
    with suppress(ImportError):
        logging = import_module("transformers.utils.logging")
    if logging is None or not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()
