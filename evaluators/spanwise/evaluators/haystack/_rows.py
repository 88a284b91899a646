"""Rows that are judged at the same time, a bounded number of them, and a bar that shows how far it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def each(judge: Callable[[R], Awaitable[T]], rows: Sequence[R], *, at_once: int, bar: bool) -> list[T]:
    """What comes of every row, in order; `at_once` 1 goes from row to row. Raises what the first failure raises."""
    gate = asyncio.Semaphore(at_once)
    with _progress(len(rows), bar) as advance:

        async def one(row: R) -> T:
            async with gate:
                judged = await judge(row)
            advance()
            return judged

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(row)) for row in rows]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed.exceptions[0].__cause__
    return [task.result() for task in tasks]


@contextmanager
def _progress(total: int, shown: bool) -> Iterator[Callable[[], None]]:
    """A bar on stderr, where somebody looks at it."""
    from rich.progress import Progress

    from spanwise.collector.terminal import TerminalConsole

    console = TerminalConsole(stderr=True)
    visible = shown and (console.is_terminal or console.is_jupyter)
    with Progress(console=console, transient=True, disable=not visible) as progress:
        task = progress.add_task("judging", total=total)
        yield lambda: progress.advance(task)
