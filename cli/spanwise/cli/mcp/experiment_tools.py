"""MCP tools on experiments and datasets, and the evaluation that an agent may run.

The evaluation runs `spanwise eval FILE.py` in a separate process, so that its output cannot corrupt the protocol and
a hang or crash does not affect the server.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Annotated, Any

import anyio
from mcp.server.mcpserver import Context
from pydantic import Field

from spanwise.cli.mcp import tool_results
from spanwise.cli.mcp.store_access import StoreAccess, report_tool_errors, request_scope
from spanwise.cli.mcp.tool_results import RESPONSE_CHARACTERS, TEXT_CHARACTERS
from spanwise.cli.mcp.trace_tools import Limit
from spanwise.collector import formatting
from spanwise.collector.errors import Refused, Unavailable
from spanwise.collector.records import Example, Experiment, RunScores, iterate_pages
from spanwise.collector.stores import Store
from spanwise.collector.terminal_escaping import escape_text

OfDataset = Annotated[str | None, Field(description="Only experiments over this dataset.")]
Id = Annotated[str, Field(description="Id of an experiment, its first characters, or a name (its newest experiment).")]
OneKey = Annotated[str | None, Field(description="Only runs that have a score under this key, the lowest first.")]
Name = Annotated[str, Field(description="The dataset's name.")]
Version = Annotated[int | None, Field(ge=1, description="None: the newest.")]
FirstExample = Annotated[int, Field(ge=0, description="The first example to show; `next_first` of the page before.")]
MaxChars = Annotated[int, Field(ge=0, le=RESPONSE_CHARACTERS, description="Characters of each value.")]
MAX_RUNS = 10_000  # maximum runs of an experiment that are read and sorted


def list_experiments(store: Store, dataset: OfDataset = None, limit: Limit = 20) -> dict[str, Any]:
    """List experiments, newest first."""
    return tool_results.make_result(
        experiments=tool_results.limit_rows(map(experiment_row, store.experiments(dataset=dataset, limit=limit)))
    )


def read_experiment(store: Store, experiment_id: Id, key: OneKey = None, limit: Limit = 20) -> dict[str, Any]:
    """Show the results of an experiment per key, and its worst runs: failed ones first, then the lowest scores under a
    key.
    """
    record = store.experiment(experiment_id)
    buckets = store.aggregate(experiment=record.id, newest="all")
    runs = _take_runs(iterate_pages(lambda cursor: store.scores(record.id, limit=1000, cursor=cursor)))
    worst = sorted((one for one in runs if key is None or key in one.scores), key=lambda one: _badness(one, key))
    stats = buckets[0].feedback if buckets else ()
    return tool_results.make_result(
        experiment=experiment_row(record),
        runs=len(runs),
        failed=sum(one.status == "error" for one in runs),
        scores=[
            {"n": one.n, "mean": one.mean, "failed": one.failed, "skipped": one.skipped}
            | {"untrusted": {"key": tool_results.shorten_name(one.key)}}
            for one in stats[:100]
        ],
        worst=tool_results.limit_rows(map(_worst_run_row, worst[:limit])),
    )


def _take_runs(runs: Iterable[RunScores]) -> list[RunScores]:
    found = []
    for one in runs:
        found.append(one)
        if len(found) == MAX_RUNS:
            break
    return found


def _badness(one: RunScores, key: str | None) -> tuple[bool, float]:
    """Return a sort key: failed runs first, then by the score under the key, or by the mean of all scores."""
    numbers = [float(value) for value in one.scores.values() if isinstance(value, float | int)]
    given = one.scores.get(key) if key is not None else (sum(numbers) / len(numbers) if numbers else None)
    return one.status != "error", float(given) if isinstance(given, float | int) else float("inf")


def _worst_run_row(one: RunScores) -> dict[str, Any]:
    return {
        "trace_id": tool_results.hex_id(one.trace_id),
        "status": one.status,
        "repetition": one.repetition,
        "untrusted": {
            "example_id": tool_results.shorten_name(one.example_id),
            "scores": {
                tool_results.shorten_name(key): tool_results.shorten_name(value) if isinstance(value, str) else value
                for key, value in list(one.scores.items())[: tool_results.MAX_NAMES]
            },
        },
    }


def experiment_row(one: Experiment) -> dict[str, Any]:
    """Return an experiment as a row of a list."""
    return {
        "id": tool_results.hex_id(one.id),
        "status": one.status,
        "started": formatting.utc(one.started_ns),
        "dataset_version": one.dataset_version,
        "examples": one.example_count,
        "untrusted": {
            **tool_results.untrusted_id(one.id),
            "name": tool_results.shorten_name(one.name),
            "dataset": tool_results.shorten_name(one.dataset),
            "evaluators": [
                tool_results.shorten_name(str(evaluator.get("key")))
                for evaluator in one.evaluators[: tool_results.MAX_NAMES]
            ],
            "metadata": tool_results.value_content(dict(one.metadata), None, tool_results.NAME_CHARACTERS * 2),
        },
    }


def list_datasets(store: Store) -> dict[str, Any]:
    """List all datasets with their newest version."""
    found = [
        {
            "version": one.version,
            "kind": one.kind,
            "examples": one.example_count,
            "untrusted": {
                "name": tool_results.shorten_name(one.name),
                "description": tool_results.shorten_name(one.description),
            },
        }
        for one in store.datasets()[:200]
    ]
    return tool_results.make_result(datasets=tool_results.limit_rows(found))


def read_dataset(
    store: Store,
    name: Name,
    version: Version = None,
    first: FirstExample = 0,
    limit: Limit = 20,
    max_chars: MaxChars = TEXT_CHARACTERS,
) -> dict[str, Any]:
    """Return examples of a dataset in their order, as many as fit in the response."""
    record = store.dataset(name, version)
    examples: list[dict[str, Any]] = []
    left = RESPONSE_CHARACTERS
    for one in store.examples(name, record.version, limit=limit, offset=first):
        made = _example_row(one, max_chars)
        left -= len(json.dumps(made))
        if examples and left < 0:
            break
        examples.append(made)
    upto = first + len(examples)
    return tool_results.make_result(
        version=record.version,
        example_count=record.example_count,
        next_first=upto if examples and upto < record.example_count else None,
        examples=examples,
    )


def _example_row(one: Example, most: int) -> dict[str, Any]:
    said = {"inputs": one.inputs, "reference_outputs": one.reference_outputs, "metadata": dict(one.metadata) or None}
    contents = {
        field: tool_results.value_content(value, None, most) for field, value in said.items() if value is not None
    }
    return {
        "untrusted": {
            "id": tool_results.shorten_name(one.id),
            "split": tool_results.shorten_name(one.split),
            **contents,
        }
    }


EXPERIMENT_TOOLS: Sequence[Any] = (list_experiments, read_experiment, list_datasets, read_dataset)


Examples = Annotated[int | None, Field(ge=1, description="Only so many examples.")]
Only = Annotated[
    list[str] | None, Field(max_length=100, description="Only these examples: ids, or beginnings of them.")
]
TAIL_CHARACTERS = 20_000  # characters at the end of the evaluation's output that are returned
EVAL_COMMAND = (sys.executable, "-c", "from spanwise.cli import main; main()", "eval")


class EvaluationRunner:
    """Runner of one evaluation file, one run at a time."""

    def __init__(self, file: Path, places: StoreAccess) -> None:
        if not file.is_file():
            raise Refused(f"there is no file {str(file)!r}")
        self.file, self._places, self._one = file.resolve(), places, asyncio.Lock()

    def tool(self) -> Callable[..., Awaitable[dict[str, Any]]]:
        """Return the tool function for the MCP server."""

        async def run_evaluation(context: Context, limit: Examples = None, only: Only = None) -> dict[str, Any]:
            with report_tool_errors():
                access = self._places.access(request_scope(context))
                access.require("write")
                access.require_all_projects("an evaluation")
                return await self.run(limit, only)

        run_evaluation.__doc__ = (
            f"Run the evaluation in {self.file.name} as `spanwise eval` does, and report the result. It may take long,"
            " and its task and judges may cost money. Nothing else can be run."
        )
        return run_evaluation

    async def run(self, limit: int | None = None, only: list[str] | None = None) -> dict[str, Any]:
        """Run the evaluation and wait for it. Cancelling the call kills the process."""
        if self._one.locked():
            raise Unavailable("an evaluation is already running; wait until it ends")
        arguments = [str(self.file)]
        arguments += [] if self._places.at is None else [f"--store={self._places.at}"]
        arguments += [] if limit is None else [f"--limit={limit}"]
        arguments += [f"--only={id}" for id in only or ()]
        async with self._one:
            since = time.time_ns()
            with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as notes:
                status = await self._status(arguments, output, notes)
                texts = {"output": _read_tail(output), "notes": _read_tail(notes)}
        found = await asyncio.to_thread(self._find_experiment, since)
        return tool_results.make_result(exit_status=status, passed=status == 0, experiment=found, untrusted=texts)

    async def _status(self, arguments: list[str], output: IO[bytes], notes: IO[bytes]) -> int:
        process = await asyncio.create_subprocess_exec(
            *EVAL_COMMAND,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=notes,
            start_new_session=True,
        )
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # kills the process group, so child processes end too
                with anyio.CancelScope(shield=True):
                    await process.wait()

    def _find_experiment(self, since: int) -> dict[str, Any] | None:
        """Return the experiment that the run has created, read from the store."""
        names = (self.file.stem, f"{self.file.stem}-only")  # `-only` marks a run on a few of the examples
        with self._places.opened() as store:
            made = [one for one in store.experiments(limit=20) if one.started_ns >= since and one.name in names]
        return experiment_row(made[0]) if made else None


def _read_tail(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 4 * TAIL_CHARACTERS))
    return escape_text(file.read().decode("utf-8", "replace")[-TAIL_CHARACTERS:])
