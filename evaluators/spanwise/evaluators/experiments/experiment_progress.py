"""Progress bar of an experiment in terminal and notebook, and messages on stderr."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextvars import ContextVar
from html import escape
from importlib import import_module
from types import TracebackType
from typing import Protocol

from rich.console import Console

from spanwise.collector.terminal_escaping import TerminalConsole, escape_line

REDRAW_INTERVAL = 0.1  # seconds between two updates in a notebook
stderr_console = TerminalConsole(stderr=True, highlight=False, soft_wrap=True)


# Command that resumes an interrupted experiment, set by callers such as the command line interface
resume_command: ContextVar[str | None] = ContextVar("spanwise_go_on", default=None)
# Start of the command that runs one example alone; `--only ID --pdb` is appended to it
rerun_command: ContextVar[str | None] = ContextVar("spanwise_run_again", default=None)


class ProgressBar(Protocol):
    """Interface of a progress display."""

    def __enter__(self) -> ProgressBar: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def advance(self, runs: int, failed: int) -> None:
        """Add finished runs; `failed` is the total of failed runs."""

    def waiting(self, text: str) -> None:
        """Show what the experiment waits for; "" clears the text."""


class HiddenBar:
    """Progress display that shows nothing."""

    def __enter__(self) -> HiddenBar:
        return self

    def __exit__(self, *_: object) -> None: ...

    def advance(self, runs: int, failed: int) -> None: ...

    def waiting(self, text: str) -> None: ...


class TerminalBar:
    """Progress bar for terminals, drawn by rich."""

    def __init__(self, title: str, total: int | None, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        failed = TextColumn("{task.fields[failed]}", style="red")
        waiting = TextColumn("{task.fields[waiting]}", style="yellow", markup=False)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), failed)
        self._progress = Progress(*columns, TimeRemainingColumn(), waiting, console=console, transient=True)
        self._task = self._progress.add_task(escape_line(title, 100), total=total, failed="", waiting="")

    def __enter__(self) -> TerminalBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, runs: int, failed: int) -> None:
        """Add finished runs; `failed` is the total of failed runs."""
        self._progress.update(self._task, advance=runs, failed=f"{failed} failed" if failed else "")

    def waiting(self, text: str) -> None:
        """Show what the experiment waits for; "" clears the text."""
        self._progress.update(self._task, waiting=text)


class NotebookBar:
    """Progress bar of plain HTML, redrawn by IPython.

    It is used because the notebook bar of rich needs ipywidgets, which may be missing.
    """

    def __init__(self, title: str, total: int | None) -> None:
        self._title, self._total = title, total
        self._runs = self._failed = 0
        self._waiting = ""
        self._began = self._drawn = time.monotonic()

    def __enter__(self) -> NotebookBar:
        ipython = import_module("IPython.display")  # a notebook always has IPython
        self._html: Callable[[str], object] = ipython.HTML
        self._handle = ipython.display(self._html(self.html()), display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        seconds = time.monotonic() - self._began
        self._handle.update(self._html(f"<p>{escape(self._title)}: {self._counts()} in {seconds:,.1f} s</p>"))

    def advance(self, runs: int, failed: int) -> None:
        """Add finished runs; `failed` is the total of failed runs."""
        self._runs, self._failed = self._runs + runs, failed
        if (now := time.monotonic()) - self._drawn > REDRAW_INTERVAL:
            self._drawn = now
            self._handle.update(self._html(self.html()))

    def waiting(self, text: str) -> None:
        """Show what the experiment waits for; "" clears the text."""
        self._waiting = text
        self._handle.update(self._html(self.html()))

    def html(self) -> str:
        """Return the HTML of the bar; without a total it shows only a count."""
        known = f' value="{self._runs}" max="{self._total}"' if self._total else ""
        of = f" of {self._total:,}" if self._total else ""
        waiting = f", {escape(self._waiting)}" if self._waiting else ""
        return f"<p>{escape(self._title)} <progress{known}></progress> {self._counts(of)}{waiting}</p>"

    def _counts(self, of: str = "") -> str:
        return f"{self._runs:,}{of} runs" + (f", {self._failed:,} failed" if self._failed else "")


def make_progress_bar(
    title: str, total: int | None, wanted: bool | None, console: Console = stderr_console
) -> ProgressBar:
    """Return a progress bar if stderr is a terminal or a notebook; `wanted` True or False overrides this."""
    if wanted is None:
        wanted = (console.is_terminal or console.is_jupyter) and not os.environ.get("CI")
    if not wanted:
        return HiddenBar()
    return NotebookBar(title, total) if console.is_jupyter else TerminalBar(title, total, console)


def print_message(text: str) -> None:
    """Print one line on stderr."""
    stderr_console.print(text, markup=False)


def format_resume_command(experiment_id: str) -> str:
    """Return the command or call that resumes an experiment."""
    return resume_command.get() or f"evaluate(…, resume={experiment_id[:8]!r})"


def format_rerun_command(example_id: str) -> str:
    """Return the command or call that runs the task on one example and raises its error."""
    command = rerun_command.get()
    return f"{command} --only {example_id} --pdb" if command else f"evaluate(…, only={example_id!r}, raise_errors=True)"
