"""A progress bar: in a terminal or notebook, and nowhere else."""

from __future__ import annotations

import os
from contextvars import ContextVar
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

notes = Console(stderr=True, highlight=False, soft_wrap=True)


# How whoever calls `evaluate()` for a person goes on with an interrupted experiment: a command, say
go_on: ContextVar[str | None] = ContextVar("assay_go_on", default=None)


class Bar(Protocol):
    """What shows how far an experiment is."""

    def __enter__(self) -> Bar: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def advance(self, runs: int, failed: int) -> None:
        """So many more runs are done; so many failed in all."""


class Quiet:
    """Shows nothing."""

    def __enter__(self) -> Quiet:
        return self

    def __exit__(self, *_: object) -> None: ...

    def advance(self, runs: int, failed: int) -> None:
        """Nothing to show."""


class RichBar:
    """rich's bar, which also works in notebooks."""

    def __init__(self, title: str, total: int | None, console: Console) -> None:
        failed = TextColumn("{task.fields[failed]}", style="red")
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), failed)
        self._progress = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
        self._task = self._progress.add_task(title, total=total, failed="")

    def __enter__(self) -> RichBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, runs: int, failed: int) -> None:
        """So many more runs are done; so many failed in all."""
        self._progress.update(self._task, advance=runs, failed=f"{failed} failed" if failed else "")


def bar(title: str, total: int | None, wanted: bool | None, console: Console = notes) -> Bar:
    """A bar where somebody can see it move; `wanted` True or False decides otherwise."""
    if wanted is None:
        wanted = (console.is_terminal or console.is_jupyter) and not os.environ.get("CI")
    return RichBar(title, total, console) if wanted else Quiet()


def say(text: str) -> None:
    """One line for people, on stderr."""
    notes.print(text, markup=False)


def resuming(experiment_id: str) -> str:
    """What to type to go on with an experiment."""
    return go_on.get() or f"evaluate(…, resume={experiment_id[:8]!r})"
