"""Progress display in the terminal while a model loads or reads many texts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import Console


SHOW_AFTER = 1.0  # seconds of work before progress is shown

Parts = TypeVar("Parts", bound=Sequence[Any])
ProgressCallback = Callable[[str], object]
_listeners: list[ProgressCallback] = []  # active callbacks that draw in the terminal, the newest last


@contextmanager
def redirect_progress(say: ProgressCallback) -> Iterator[None]:
    """Send progress messages to a callback during the block. The message "" means that there is nothing to show."""
    _listeners.append(say)
    try:
        yield
    finally:
        _listeners.remove(say)


@contextmanager
def show_status(text: str) -> Iterator[None]:
    """Show a status text during the block.

    Progress bars of libraries are disabled meanwhile, because they would overwrite it.
    """
    with _status_line(text), _disable_library_bars():
        yield


def track_progress(parts: Sequence[Parts], what: str) -> Iterator[Parts]:
    """Yield the parts one after the other, and show progress if it takes longer than a second.

    `what` names the unit, such as "texts embedded".
    """
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

    with console.status(Text(text)):  # `Text` is not parsed as markup, which a model's name may contain
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
        progress.start()  # only the first call has an effect
        progress.update(task, completed=done)

    try:
        yield show
    finally:
        progress.stop()


def _get_listener() -> ProgressCallback | None:
    return _listeners[-1] if _listeners else None


def _get_terminal() -> Console | None:
    """Return the console if stderr is a terminal.

    Notebooks are excluded, because they would append each update.
    """
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
