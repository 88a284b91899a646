"""Puts the commands together. Each command group is a module of its own with a typer `app` or plain functions."""

from importlib import metadata
from typing import Annotated

import typer

from spanwise.cli import (
    cache,
    datasets,
    db,
    doctor,
    eval_,
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
from spanwise.cli._common import failing_in_one_line
from spanwise.cli._progress import show_migrations
from spanwise.cli.demo import command
from spanwise.cli.mcp.command import mcp

app = typer.Typer(
    name="spanwise",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    epilog="Example: `spanwise demo`, or `spanwise serve` and what each command's own --help shows.",
)
app.command()(command.demo)
app.command()(serve.serve)
app.command()(doctor.doctor)
app.command("eval")(eval_.eval_)
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


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spanwise {metadata.version('spanwise')}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
]


@app.callback()
def spanwise(version: Version = False) -> None:
    """Trace LLM applications, evaluate them against datasets, monitor live traffic."""
    show_migrations()


def run() -> None:
    """Run the command named on the command line."""
    with failing_in_one_line():
        app()
