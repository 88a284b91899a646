"""Root application of the `spanwise` command: registers the command groups, shows migration progress."""

from __future__ import annotations

import logging
import sys
import time
from importlib import metadata
from typing import Annotated

import typer

from spanwise.cli.command_io import report_errors
from spanwise.cli.commands import (
    cache,
    datasets,
    db,
    demo,
    doctor,
    eval_file,
    evaluators,
    experiments,
    feedback,
    judges,
    keys,
    models,
    monitor,
    serve,
    spool,
    traces,
)
from spanwise.cli.commands.mcp import mcp

app = typer.Typer(
    name="spanwise",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    epilog="Example: `spanwise demo`, or `spanwise serve` and what each command's own --help shows.",
)
app.command()(demo.demo)
app.command()(serve.serve)
app.command()(doctor.doctor)
app.command("eval")(eval_file.eval_)
app.command()(mcp)
app.command()(models.models)
app.add_typer(cache.app, name="cache")
app.add_typer(datasets.app, name="datasets")
app.add_typer(db.app, name="db")
app.add_typer(evaluators.app, name="evaluators")
app.add_typer(experiments.app, name="experiments")
app.add_typer(feedback.app, name="feedback")
app.add_typer(judges.app, name="judges")
app.add_typer(keys.app, name="keys")
app.add_typer(monitor.app, name="monitor")
app.add_typer(spool.app, name="spool")
app.add_typer(traces.app, name="traces")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spanwise {metadata.version('spanwise')}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
]


@app.callback()
def spanwise(version: Version = False) -> None:
    """Trace LLM applications, evaluate them against datasets, monitor live traffic."""
    show_migration_progress()


def run() -> None:
    """Run the command named on the command line."""
    with report_errors():
        app()


LOG_INTERVAL_S = 10.0  # seconds


class _ProgressHandler(logging.Handler):
    """Logging handler that shows each record with the percentage in its `done`."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._last = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        whole = getattr(record, "done", 100) >= 100
        try:
            if sys.stderr.isatty():
                sys.stderr.write(f"\r\x1b[K{record.getMessage()}{chr(10) if whole else ''}")
            elif whole or time.monotonic() - self._last >= LOG_INTERVAL_S:
                self._last = time.monotonic()
                sys.stderr.write(record.getMessage() + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):  # stderr is closed: the migration continues
            pass


def show_migration_progress() -> None:
    """Show the progress of a file's migration on stderr."""
    log = logging.getLogger("spanwise.collector.migration")
    log.setLevel(logging.INFO)
    log.propagate = False
    if not any(isinstance(handler, _ProgressHandler) for handler in log.handlers):
        log.addHandler(_ProgressHandler())
