"""MCP server: registration of the tools, instructions for agents, tools on experiments and datasets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from pydantic import Field

from spanwise.cli.mcp.alert_tools import ALERT_TOOLS, ALERT_WRITE_TOOLS
from spanwise.cli.mcp.tool_results import (
    MAX_NAMES,
    NAME_CHARACTERS,
    NOTICE,
    READ_ANNOTATIONS,
    RESPONSE_CHARACTERS,
    TEXT_CHARACTERS,
    WRITE_ANNOTATIONS,
    StoreAccess,
    hex_id,
    limit_rows,
    make_result,
    make_tool,
    report_tool_errors,
    request_scope,
    shorten_name,
    untrusted_id,
    value_content,
)
from spanwise.cli.mcp.trace_tools import FEEDBACK_TOOLS, TRACE_TOOLS, Limit, add_feedback
from spanwise.collector import formatting
from spanwise.collector.errors import Refused, Unavailable
from spanwise.collector.records import Example, Experiment, RunScores, iterate_pages
from spanwise.collector.stores import KeyStatistics, Store, estimate_keys
from spanwise.collector.terminal_escaping import escape_text

# MCP tools on experiments and datasets, and the evaluation that an agent may run.
#
# The evaluation runs `spanwise eval FILE.py` in a separate process, so that its output cannot corrupt the protocol
# and a hang or crash does not affect the server.

OfDataset = Annotated[str | None, Field(description="Only experiments over this dataset.")]
Id = Annotated[str, Field(description="Id of an experiment, its first characters, or a name (its newest experiment).")]
OneKey = Annotated[str | None, Field(description="Only runs that have a score under this key, the lowest first.")]
Name = Annotated[str, Field(description="The dataset's name.")]
Version = Annotated[int | None, Field(ge=1, description="Version number. Default: the newest.")]
FirstExample = Annotated[int, Field(ge=0, description="Index of the first example; `next_first` of the previous page.")]
MaxChars = Annotated[int, Field(ge=0, le=RESPONSE_CHARACTERS, description="Maximum characters per value.")]
MAX_RUNS = 10_000  # maximum runs of an experiment that are read and sorted


def list_experiments(store: Store, dataset: OfDataset = None, limit: Limit = 20) -> dict[str, Any]:
    """List experiments, newest first."""
    return make_result(experiments=limit_rows(map(experiment_row, store.experiments(dataset=dataset, limit=limit))))


def read_experiment(store: Store, experiment_id: Id, key: OneKey = None, limit: Limit = 20) -> dict[str, Any]:
    """Show the results of an experiment per key (`interval` is the 95 % interval of the mean), and its worst runs:
    failed ones first, then the lowest scores under a key.
    """
    record = store.experiment(experiment_id)
    buckets = store.aggregate(experiment=record.id, newest="all")
    pages = iterate_pages(lambda cursor: store.scores(record.id, limit=1000, cursor=cursor))
    runs = list(islice(pages, MAX_RUNS))
    worst = sorted((run for run in runs if key is None or key in run.scores), key=lambda run: _worst_first(run, key))
    stats = buckets[0].feedback if buckets else ()
    estimates = estimate_keys(store, record, buckets[0]) if buckets else {}
    return make_result(
        experiment=experiment_row(record),
        runs=len(runs),
        failed=sum(run.status == "error" for run in runs),
        scores=[
            {"n": row.n, "mean": row.mean, "interval": estimates.get(row.key, KeyStatistics()).interval}
            | {"failed": row.failed, "skipped": row.skipped}
            | {"untrusted": {"key": shorten_name(row.key)}}
            for row in stats[:100]
        ],
        worst=limit_rows(map(_worst_run_row, worst[:limit])),
    )


def _worst_first(run: RunScores, key: str | None) -> tuple[bool, float]:
    """Return a sort key: failed runs first, then by the score under the key, or by the mean of all scores."""
    numbers = [float(value) for value in run.scores.values() if isinstance(value, float | int)]
    score = run.scores.get(key) if key is not None else (sum(numbers) / len(numbers) if numbers else None)
    return run.status != "error", float(score) if isinstance(score, float | int) else float("inf")


def _worst_run_row(run: RunScores) -> dict[str, Any]:
    return {
        "trace_id": hex_id(run.trace_id),
        "status": run.status,
        "repetition": run.repetition,
        "untrusted": {
            "example_id": shorten_name(run.example_id),
            "scores": {
                shorten_name(key): shorten_name(value) if isinstance(value, str) else value
                for key, value in list(run.scores.items())[:MAX_NAMES]
            },
        },
    }


def experiment_row(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment as a row of a list."""
    return {
        "id": hex_id(experiment.id),
        "status": experiment.status,
        "started": formatting.utc(experiment.started_ns),
        "dataset_version": experiment.dataset_version,
        "examples": experiment.example_count,
        "untrusted": {
            **untrusted_id(experiment.id),
            "name": shorten_name(experiment.name),
            "dataset": shorten_name(experiment.dataset),
            "evaluators": [shorten_name(str(evaluator.get("key"))) for evaluator in experiment.evaluators[:MAX_NAMES]],
            "metadata": value_content(dict(experiment.metadata), None, NAME_CHARACTERS * 2),
        },
    }


def list_datasets(store: Store) -> dict[str, Any]:
    """List all datasets with their newest version."""
    rows = [
        {
            "version": dataset.version,
            "kind": dataset.kind,
            "examples": dataset.example_count,
            "untrusted": {
                "name": shorten_name(dataset.name),
                "description": shorten_name(dataset.description),
            },
        }
        for dataset in store.datasets()[:200]
    ]
    return make_result(datasets=limit_rows(rows))


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
    for example in store.examples(name, record.version, limit=limit, offset=first):
        row = _example_row(example, max_chars)
        left -= len(json.dumps(row))
        if examples and left < 0:
            break
        examples.append(row)
    end = first + len(examples)
    return make_result(
        version=record.version,
        example_count=record.example_count,
        next_first=end if examples and end < record.example_count else None,
        examples=examples,
    )


def _example_row(example: Example, most: int) -> dict[str, Any]:
    fields = {
        "inputs": example.inputs,
        "reference_outputs": example.reference_outputs,
        "metadata": dict(example.metadata) or None,
    }
    contents = {name: value_content(value, None, most) for name, value in fields.items() if value is not None}
    ids = {"id": shorten_name(example.id), "split": shorten_name(example.split)}
    return {"untrusted": {**ids, **contents}}


EXPERIMENT_TOOLS: Sequence[Any] = (list_experiments, read_experiment, list_datasets, read_dataset)


Examples = Annotated[int | None, Field(ge=1, description="Maximum number of examples.")]
Only = Annotated[
    list[str] | None, Field(max_length=100, description="Only these examples: ids, or their first characters.")
]
TAIL_CHARACTERS = 20_000  # characters at the end of the evaluation's output that are returned
EVAL_COMMAND = (sys.executable, "-c", "from spanwise.cli import main; main()", "eval")


class EvaluationRunner:
    """Runner of one evaluation file, one run at a time."""

    def __init__(self, file: Path, store_access: StoreAccess) -> None:
        if not file.is_file():
            raise Refused(f"there is no file {str(file)!r}")
        self.file, self._store_access, self._lock = file.resolve(), store_access, asyncio.Lock()

    def tool(self) -> Callable[..., Awaitable[dict[str, Any]]]:
        """Return the tool function for the MCP server."""

        async def run_evaluation(context: Context, limit: Examples = None, only: Only = None) -> dict[str, Any]:
            with report_tool_errors():
                rights = self._store_access.access(request_scope(context))
                rights.require("write")
                rights.require_all_projects("an evaluation")
                return await self.run(limit, only)

        run_evaluation.__doc__ = (
            f"Run the evaluation in {self.file.name} as `spanwise eval` does, and report the result. It may take long,"
            " and its task and judges may cost money. No other file can be run."
        )
        return run_evaluation

    async def run(self, limit: int | None = None, only: list[str] | None = None) -> dict[str, Any]:
        """Run the evaluation and wait for it. Cancelling the call kills the process."""
        if self._lock.locked():
            raise Unavailable("an evaluation is already running; wait until it ends")
        arguments = [str(self.file)]
        arguments += [] if self._store_access.at is None else [f"--store={self._store_access.at}"]
        arguments += [] if limit is None else [f"--limit={limit}"]
        arguments += [f"--only={id}" for id in only or ()]
        async with self._lock:
            since = time.time_ns()
            with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as notes:
                status = await self._status(arguments, output, notes)
                texts = {"output": _read_tail(output), "notes": _read_tail(notes)}
        experiment = await asyncio.to_thread(self._find_experiment, since)
        return make_result(exit_status=status, passed=status == 0, experiment=experiment, untrusted=texts)

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
        with self._store_access.opened() as store:
            created = [
                experiment
                for experiment in store.experiments(limit=20)
                if experiment.started_ns >= since and experiment.name in names
            ]
        return experiment_row(created[0]) if created else None


def _read_tail(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 4 * TAIL_CHARACTERS))
    return escape_text(file.read().decode("utf-8", "replace")[-TAIL_CHARACTERS:])


# MCP server: registration of the tools and instructions for agents.

SERVER_INSTRUCTIONS = (
    "Traces of LLM applications, with feedback of evaluators and people. Start with `overview`. Find traces by"
    " conditions with `find_traces`, and the worst traces under a key with `list_feedback` and order `lowest`. Read a"
    " trace with `read_trace`. `why_scored` explains why rules did or did not score it. `diagnose_senders` lists the"
    " fields that its sender does not set. "
) + NOTICE


def make_server(store_access: StoreAccess, *, write: bool = False, file: Path | None = None) -> MCPServer:
    """Return an MCP server with the read tools.

    `write` adds the tools that add feedback and acknowledge, snooze and test alerts, and `file` the tool that runs the evaluation in this file.
    """
    server = MCPServer(
        "spanwise",
        title="Spanwise",
        version=metadata.version("spanwise"),
        instructions=SERVER_INSTRUCTIONS,
        log_level="WARNING",
        subscriptions=False,
    )
    for tool in (*TRACE_TOOLS, *FEEDBACK_TOOLS, *EXPERIMENT_TOOLS, *ALERT_TOOLS):
        server.add_tool(make_tool(store_access, tool), annotations=READ_ANNOTATIONS, structured_output=True)
    if write:
        for tool in (add_feedback, *ALERT_WRITE_TOOLS):
            server.add_tool(
                make_tool(store_access, tool, "write"), annotations=WRITE_ANNOTATIONS, structured_output=True
            )
    if file is not None:
        server.add_tool(
            EvaluationRunner(file, store_access).tool(), annotations=WRITE_ANNOTATIONS, structured_output=True
        )
    return server
