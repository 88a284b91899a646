"""Progress display: bar of an experiment in terminal and notebook, status of slow steps, and messages on stderr."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from html import escape
from importlib import import_module
from typing import Any, Self, TypeVar

from rich.console import Console

from spanwise.collector.terminal_escaping import TerminalConsole, escape_line

SHOW_AFTER = 1.0  # seconds of work before the progress of a slow step is shown
REDRAW_INTERVAL = 0.1  # seconds between two updates in a notebook
stderr_console = TerminalConsole(stderr=True, highlight=False, soft_wrap=True)

Batch = TypeVar("Batch", bound=Sequence[Any])
_status_listeners: list[Callable[[str], object]] = []  # active callbacks that show a status, the newest last


def print_message(text: str) -> None:
    """Print one line on stderr."""
    stderr_console.print(text, markup=False)


class ProgressBar:
    """Progress bar that shows nothing; subclasses draw it."""

    is_visible = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def advance(self, runs: int, failed: int) -> None:
        """Add finished runs; `failed` is the total of failed runs."""

    def show_status(self, text: str) -> None:
        """Show what the experiment waits for; "" clears the text."""


class TerminalBar(ProgressBar):
    """Progress bar for terminals, drawn by rich."""

    is_visible = True

    def __init__(self, title: str, total: int | None, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        failed = TextColumn("{task.fields[failed]}", style="red")
        status = TextColumn("{task.fields[status]}", style="yellow", markup=False)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), failed)
        self._progress = Progress(*columns, TimeRemainingColumn(), status, console=console, transient=True)
        self._task = self._progress.add_task(escape_line(title, 100), total=total, failed="", status="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, runs: int, failed: int) -> None:
        """Add finished runs; `failed` is the total of failed runs."""
        self._progress.update(self._task, advance=runs, failed=f"{failed} failed" if failed else "")

    def show_status(self, text: str) -> None:
        """Show what the experiment waits for; "" clears the text."""
        self._progress.update(self._task, status=text)


class NotebookBar(ProgressBar):
    """Progress bar of plain HTML, redrawn by IPython.

    It is used because the notebook bar of rich needs ipywidgets, which may be missing.
    """

    is_visible = True

    def __init__(self, title: str, total: int | None) -> None:
        self._title, self._total = title, total
        self._runs = self._failed = 0
        self._status = ""
        self._started = self._drawn = time.monotonic()

    def __enter__(self) -> Self:
        ipython = import_module("IPython.display")  # a notebook always has IPython
        self._html: Callable[[str], object] = ipython.HTML
        self._handle = ipython.display(self._html(self.html()), display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        seconds = time.monotonic() - self._started
        self._handle.update(self._html(f"<p>{escape(self._title)}: {self._counts()} in {seconds:,.1f} s</p>"))

    def advance(self, runs: int, failed: int) -> None:
        """Add finished runs; `failed` is the total of failed runs."""
        self._runs, self._failed = self._runs + runs, failed
        if (now := time.monotonic()) - self._drawn > REDRAW_INTERVAL:
            self._drawn = now
            self._handle.update(self._html(self.html()))

    def show_status(self, text: str) -> None:
        """Show what the experiment waits for; "" clears the text."""
        self._status = text
        self._handle.update(self._html(self.html()))

    def html(self) -> str:
        """Return the HTML of the bar; without a total it shows only a count."""
        value = f' value="{self._runs}" max="{self._total}"' if self._total else ""
        total = f" of {self._total:,}" if self._total else ""
        status = f", {escape(self._status)}" if self._status else ""
        return f"<p>{escape(self._title)} <progress{value}></progress> {self._counts(total)}{status}</p>"

    def _counts(self, total: str = "") -> str:
        return f"{self._runs:,}{total} runs" + (f", {self._failed:,} failed" if self._failed else "")


def make_progress_bar(
    title: str, total: int | None, visible: bool | None, console: Console = stderr_console
) -> ProgressBar:
    """Return a progress bar that draws if stderr is a terminal or a notebook; `visible` True or False overrides this."""
    if visible is None:
        visible = (console.is_terminal or console.is_jupyter) and not os.environ.get("CI")
    if not visible:
        return ProgressBar()
    return NotebookBar(title, total) if console.is_jupyter else TerminalBar(title, total, console)


@contextmanager
def redirect_status(show: Callable[[str], object]) -> Iterator[None]:
    """Send the status of slow steps to a callback during the block. The text "" means that there is none."""
    _status_listeners.append(show)
    try:
        yield
    finally:
        _status_listeners.remove(show)


@contextmanager
def show_status(text: str) -> Iterator[None]:
    """Show a status text during the block.

    Progress bars of transformers are disabled meanwhile, because they would overwrite it.
    """
    with _status_display() as show:
        show(text)
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


def track_progress(batches: Sequence[Batch], unit: str) -> Iterator[Batch]:
    """Yield the batches one after the other, and show progress if it takes longer than a second.

    `unit` describes the processed items, such as "texts embedded".
    """
    started, done, total = time.monotonic(), 0, sum(map(len, batches))
    if len(batches) < 2:
        yield from batches
        return
    with _status_display() as show:
        for batch in batches:
            yield batch
            done += len(batch)
            if time.monotonic() - started > SHOW_AFTER:
                show(f"{done:,} of {total:,} {unit}")


@contextmanager
def _status_display() -> Iterator[Callable[[str], object]]:
    """Yield a function that shows a text until the block ends: in the progress bar of an experiment, else in the
    terminal.

    In notebooks nothing is shown, because they would append each update.
    """
    if _status_listeners:
        listener = _status_listeners[-1]
        try:
            yield listener
        finally:
            listener("")
    elif stderr_console.is_terminal and not stderr_console.is_jupyter:
        from rich.errors import LiveError
        from rich.text import Text

        status = stderr_console.status("")

        def show(text: str) -> None:
            status.update(Text(text))  # `Text` is not parsed as markup, which a model's name may contain
            with suppress(LiveError):  # rich before version 14.1 shows one status at a time
                status.start()  # only the first call has an effect

        try:
            yield show
        finally:
            status.stop()
    else:
        yield lambda text: None
