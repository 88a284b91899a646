"""Progress display in the terminal while a model loads or reads many texts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import Console


SHOW_AFTER = 1.0  # seconds of work before anything is shown

Parts = TypeVar("Parts", bound=Sequence[Any])
ProgressCallback = Callable[[str], object]
_listeners: list[ProgressCallback] = []  # who draws in the terminal already, the newest last


@contextmanager
def redirect_progress(say: ProgressCallback) -> Iterator[None]:
    """Meanwhile what is to be told goes there; "" when there is nothing more to tell."""
    _listeners.append(say)
    try:
        yield
    finally:
        _listeners.remove(say)


@contextmanager
def show_status(text: str) -> Iterator[None]:
    """Tell what goes on in the block. The libraries' own bars, which draw over ours, are off meanwhile."""
    with _status_line(text), _disable_library_bars():
        yield


def track_progress(parts: Sequence[Parts], what: str) -> Iterator[Parts]:
    """These parts, one after the other; how far one is, in `what` such as "texts embedded", if it takes a while."""
    began, done, total = time.monotonic(), 0, sum(map(len, parts))
    if len(parts) < 2:
        yield from parts
        return
    with _progress_counter(total, what) as show:
        for part in parts:
            yield part
            done += len(part)
            if time.monotonic() - began > SHOW_AFTER:
                show(done)


@contextmanager
def _status_line(text: str) -> Iterator[None]:
    if say := _get_listener():
        say(text)
        try:
            yield
        finally:
            say("")
        return
    if (console := _get_terminal()) is None:
        yield
        return
    from rich.text import Text

    with console.status(Text(text)):  # a name may look like markup
        yield


@contextmanager
def _progress_counter(total: int, what: str) -> Iterator[Callable[[int], object]]:
    if say := _get_listener():
        try:
            yield lambda done: say(f"{done:,} of {total:,} {what}")
        finally:
            say("")
        return
    if (console := _get_terminal()) is None:
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


def _get_listener() -> ProgressCallback | None:
    return _listeners[-1] if _listeners else None


def _get_terminal() -> Console | None:
    """Where a person looks at stderr; not in a notebook, which would show things below each other."""
    from spanwise.collector.terminal_escaping import TerminalConsole

    console = TerminalConsole(stderr=True, highlight=False)
    return console if console.is_terminal and not console.is_jupyter else None


@contextmanager
def _disable_library_bars() -> Iterator[None]:
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
