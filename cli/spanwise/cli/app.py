"""Root application of the `spanwise` command: finds and imports command groups, shows migration progress."""

from __future__ import annotations

import gc
import logging
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from copy import copy
from importlib import import_module, metadata
from typing import Annotated, Any, cast
from urllib.parse import unquote

import typer
from typer.core import TyperCommand, TyperGroup

from spanwise.collector.errors import Refused, StoreError, require_extra
from spanwise.collector.terminal_escaping import escape_message

# Name of each command, the function or Typer application in `spanwise.cli.commands`, and the line in `spanwise --help`.
COMMANDS = {
    "demo": (
        "demo:demo",
        "Trace and evaluate a small RAG application on the Python reference. It needs no API key and no download.",
    ),
    "serve": (
        "serve:serve",
        "Receive traces and serve the API and the pages, until Ctrl-C; with `--monitor` also evaluate incoming traces.",
    ),
    "doctor": (
        "doctor:doctor",
        "Show per sender how many spans have inputs, outputs, documents, model, tokens and session, to find why evaluators skip.",
    ),
    "eval": (
        "eval_file:eval_",
        "Run the evaluation defined in a file, or all evaluations of a folder, and check a quality gate.",
    ),
    "mcp": (
        "mcp:mcp",
        "Serve traces and scoring decisions to coding agents over the Model Context Protocol (MCP).",
    ),
    "models": (
        "models_and_caches:models",
        "List model presets, and where they are on this machine.",
    ),
    "alerts": (
        "alerts:app",
        "Alerts on live traffic: list, show, check on past traffic, test, acknowledge, snooze.",
    ),
    "cache": (
        "models_and_caches:app",
        "Caches of judge answers and embedding vectors: statistics and removal.",
    ),
    "datasets": (
        "datasets:app",
        "Datasets: versioned lists of examples.",
    ),
    "db": (
        "db:app",
        "Database maintenance: sizes, retention, deletion, export, import, integrity checks, SQL.",
    ),
    "evaluators": (
        "evaluators:app",
        "Evaluators: list them, describe one, run one by hand.",
    ),
    "experiments": (
        "experiments:app",
        "Experiments: list, show, compare, analyze, export, score again, delete.",
    ),
    "feedback": (
        "feedback:app",
        "Feedback on traces: add, list, delete; state of the destinations it is forwarded to.",
    ),
    "import": (
        "imports:app",
        "Import evaluations of other products: OpenAI Evals, Inspect logs.",
    ),
    "judges": (
        "judges:app",
        "Judges: collect human labels, and measure how well judges agree with them.",
    ),
    "keys": (
        "keys:app",
        "API keys: create, list and revoke them; show the audit log.",
    ),
    "monitor": (
        "monitor:app",
        "Rules that evaluate live traffic: `spanwise monitor rules.py` runs them.",
    ),
    "spool": (
        "spool:app",
        "Spool of unsent spans: list, send or remove spans that no collector has received.",
    ),
    "traces": (
        "traces:app",
        "List, aggregate, show, follow, reconcile and delete traces.",
    ),
}


class LazyGroup(TyperGroup):
    """Command group that imports the module of a command only when the command is looked up.

    The group's own help imports no command.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast(MutableMapping[str, Any], LazyCommands(COMMANDS))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the group's help. The line of each command is taken from `COMMANDS`, without importing the command."""
        outline = copy(self)
        outline.commands = {name: TyperCommand(name, help=text) for name, (_, text) in COMMANDS.items()}
        super(LazyGroup, outline).format_help(ctx, formatter)


class LazyCommands(Mapping[str, Any]):
    """Mapping of command names to commands. Looking up a command imports it."""

    def __init__(self, table: Mapping[str, tuple[str, str]]) -> None:
        self._table = table

    def __getitem__(self, name: str) -> Any:
        module, _, attribute = self._table[name][0].partition(":")
        try:
            with require_extra("server", "the command line"):
                imported = import_module(f"spanwise.cli.commands.{module}")
                found = getattr(imported, attribute)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("spanwise"):
                raise
            raise Refused(str(error)) from None
        gc.enable()  # `main` disabled garbage collection during the imports
        parent = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode="markdown")
        if isinstance(found, typer.Typer):
            parent.add_typer(found, name=name)
        else:
            parent.command(name, cls=getattr(imported, "Command", None))(found)
        command = typer.main.get_group(parent).commands[name]
        _add_control_options(command)
        return command

    def get(self, name: str, default: Any = None) -> Any:
        """Return the command. A `KeyError` in its module is raised: it does not mean that there is no such command."""
        return self[name] if name in self._table else default

    def __contains__(self, name: object) -> bool:
        return name in self._table

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


def _add_control_options(command: Any) -> None:
    """Add the option `--control` to a command, or to the commands of a group, whose `--store` accepts a cluster.

    The option sets SPANWISE_CONTROL, from which `connect` takes the location of the control records.
    """
    for member in getattr(command, "commands", {}).values():
        _add_control_options(member)
    stores = [parameter for parameter in command.params if "--store" in parameter.opts]
    if any("clickhouse://" in (parameter.help or "") for parameter in stores):
        command.params += [parameter for parameter in _control_command().params if "--control" in parameter.opts]


def _control_command() -> Any:
    """Return a command that has only the option `--control`, because Typer makes options only from functions."""
    from spanwise.cli.command_io import CONTROL_HELP

    def set_control(context: typer.Context, url: str | None) -> None:
        if url is not None:
            before = {"SPANWISE_CONTROL": given} if (given := os.environ.get("SPANWISE_CONTROL")) is not None else {}
            context.call_on_close(lambda: os.environ.update(before))
            context.call_on_close(lambda: os.environ.pop("SPANWISE_CONTROL", None))  # called first
            os.environ["SPANWISE_CONTROL"] = url

    option = typer.Option(None, "--control", help=CONTROL_HELP, metavar="URL", callback=set_control, expose_value=False)

    def command(control: str | None = option) -> None:
        """Do nothing."""

    parent = typer.Typer(add_completion=False)
    parent.command()(command)
    return typer.main.get_command(parent)


app = typer.Typer(
    cls=LazyGroup,
    name="spanwise",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    epilog="Example: `spanwise demo`, or `spanwise serve`. `spanwise COMMAND --help` describes a command.",
)


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


# Address of a database with a password that is not `${NAME}`: all before it, the password, and the rest
PASSWORD_PATTERN = re.compile(r"(.*\b(?:clickhouse|postgres|postgresql)://[^:@]*:)(?!\$\{)(.+)(@[^@]*)", re.DOTALL)


def hide_passwords() -> None:
    """Start this process again if its command line has a password of a database, so that other users do not see it.

    The new command line refers to an environment variable (see `expand_environment`).
    """
    arguments, environment = list(sys.orig_argv), dict(os.environ)
    for place, argument in enumerate(arguments):
        if found := PASSWORD_PATTERN.fullmatch(argument):
            name = f"SPANWISE_PASSWORD_{place}"
            environment[name] = unquote(found[2])
            arguments[place] = f"{found[1]}${{{name}}}{found[3]}"
    if arguments != sys.orig_argv:
        os.execve(sys.executable, arguments, environment)


@contextmanager
def report_errors() -> Iterator[None]:
    """Convert errors that the user can fix into one line on stderr and exit status 1."""
    try:
        yield
    except (StoreError, OSError, ValueError) as error:
        sys.exit(escape_message(f"spanwise: {error}"))


def run() -> None:
    """Run the command named on the command line."""
    hide_passwords()
    with report_errors():
        app()


LOG_INTERVAL_S = 10.0  # seconds between two progress lines


class _ProgressHandler(logging.Handler):
    """Logging handler that prints each record with its progress, the percentage in the record's attribute `done`."""

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
