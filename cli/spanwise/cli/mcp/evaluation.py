"""The one evaluation that an agent may run: that of the file named when the server was started, nothing else.

It runs as `spanwise eval FILE.py` does, in a process of its own: what it prints meets no protocol, and one that hangs
or dies takes nothing with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Annotated, Any

import anyio
from mcp.server.mcpserver import Context
from pydantic import Field

from spanwise.cli.mcp import shown
from spanwise.cli.mcp.lists import experiment
from spanwise.cli.mcp.places import Places
from spanwise.cli.mcp.tools import in_a_line, scope_of
from spanwise.collector.errors import Forbidden, Refused, Unavailable
from spanwise.collector.terminal import harmless

Examples = Annotated[int | None, Field(ge=1, description="Only so many examples.")]
Only = Annotated[
    list[str] | None, Field(max_length=100, description="Only these examples: ids, or beginnings of them.")
]
TAIL = 20_000  # characters of what it printed, its end
COMMAND = (sys.executable, "-c", "from spanwise.cli import main; main()", "eval")


class Evaluation:
    """Runs one file, one run at a time."""

    def __init__(self, file: Path, places: Places) -> None:
        if not file.is_file():
            raise Refused(f"there is no file {str(file)!r}")
        self.file, self._places, self._one = file.resolve(), places, asyncio.Lock()

    def tool(self) -> Callable[..., Awaitable[dict[str, Any]]]:
        """The function that the package offers."""

        async def run_evaluation(context: Context, limit: Examples = None, only: Only = None) -> dict[str, Any]:
            with in_a_line():
                self._check(context)
                return await self.run(limit, only)

        run_evaluation.__doc__ = (
            f"Run the evaluation in {self.file.name} as `spanwise eval` does, and report the result. It may take long,"
            " and its task and judges may cost money. Nothing else can be run."
        )
        return run_evaluation

    def _check(self, context: Context) -> None:
        access = self._places.access(scope_of(context))
        if not access.may("write"):
            raise Forbidden("the API key may not write, which an evaluation does")
        if access.project is not None:
            raise Forbidden(f"the API key is of project {access.project!r}, and an evaluation may concern others")

    async def run(self, limit: int | None = None, only: list[str] | None = None) -> dict[str, Any]:
        """Run it and wait; whoever does not wait any more ends it."""
        if self._one.locked():
            raise Unavailable("an evaluation is running: wait for it")
        async with self._one:
            since = time.time_ns()
            with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as notes:
                status = await self._status([*self._arguments(limit, only)], output, notes)
                said = {"output": _end(output), "notes": _end(notes)}
        found = await asyncio.to_thread(self._made, since)
        return shown.answer(exit_status=status, passed=status == 0, experiment=found, untrusted=said)

    def _arguments(self, limit: int | None, only: list[str] | None) -> list[str]:
        at = [] if self._places.at is None else [f"--store={self._places.at}"]
        some = [] if limit is None else [f"--limit={limit}"]
        return [str(self.file), *at, *some, *(f"--only={id}" for id in only or ())]

    async def _status(self, arguments: list[str], output: IO[bytes], notes: IO[bytes]) -> int:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=notes, start_new_session=True
        )
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with whatever it has started
                with anyio.CancelScope(shield=True):
                    await process.wait()

    def _is_ours(self, name: str) -> bool:
        return name in (self.file.stem, f"{self.file.stem}-only")  # the name that a few of its examples get

    def _made(self, since: int) -> dict[str, Any] | None:
        """The experiment that it has made, as the store has it."""
        with self._places.opened() as store:
            made = [one for one in store.experiments(limit=20) if one.started_ns >= since and self._is_ours(one.name)]
        return experiment(made[0]) if made else None


def _end(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 4 * TAIL))
    return harmless(file.read().decode("utf-8", "replace")[-TAIL:])
