"""`spanwise eval FILE.py`: evaluation defined in a Python file."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spanwise.cli import quality_gate
from spanwise.cli.command_io import JsonOption, StoreOption, console, emit, open_store, print_line, print_note
from spanwise.cli.evaluator_resolution import load_module, print_judge_endpoints, print_user_traceback
from spanwise.collector.errors import Refused, SpanwiseError

if TYPE_CHECKING:
    from spanwise.evaluators import Evaluator


File = Annotated[Path, typer.Argument(help="Python file that defines `dataset`, `task` and `evaluators`.")]
Name = Annotated[str | None, typer.Option(help="Name of the experiment. Default: name of the file.")]
Concurrency = Annotated[int, typer.Option(help="Number of concurrent runs.")]
Repetitions = Annotated[int, typer.Option(help="Number of runs per example.")]
Limit = Annotated[int | None, typer.Option(help="Maximum number of examples.")]
Resume = Annotated[bool, typer.Option(help="Continue the newest experiment of this name.")]
FailUnder = Annotated[
    list[str] | None,
    typer.Option(
        help="Exit with 1 if the mean of a key is below a limit, such as exact=0.8 or task_ok=0.95; may be repeated."
    ),
]
FailOver = Annotated[
    list[str] | None,
    typer.Option(
        help="Exit with 1 if the mean of a key for which lower is better is above a limit, such as toxicity=0.1; may be repeated."
    ),
]
AllowFailed = Annotated[
    str,
    typer.Option(
        help="Exit with 1 if more runs fail than this, by their task or an evaluator: a number such as 2, or a share such as 5%."
    ),
]
Only = Annotated[
    list[str] | None, typer.Option(help="Only this example: its id or its first characters; may be repeated.")
]
Pdb = Annotated[bool, typer.Option("--pdb", help="Open the debugger when the task or an evaluator raises.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the number and cost of judge calls without making them.")
]
_SETTINGS = ("metadata", "split", "timeout", "retries", "retry_on", "seed", "fail_fast", "max_failures", "max_usd")


def eval_(
    file: File,
    name: Name = None,
    concurrency: Concurrency = 8,
    repetitions: Repetitions = 1,
    limit: Limit = None,
    resume: Resume = False,
    fail_under: FailUnder = None,
    fail_over: FailOver = None,
    allow_failed: AllowFailed = "0",
    only: Only = None,
    pdb: Pdb = False,
    dry_run: DryRun = False,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the evaluation defined in a file, print the results, and exit with 1 if the quality gate fails.

    The file defines `dataset`, `evaluators` and `task` (None or missing: score existing outputs). It may define
    `summary_evaluators`, `metadata`, `split`, `timeout`, `retries`, `retry_on`, `seed`, `fail_fast`, `max_failures`,
    `max_usd`, as `evaluate()` takes them.

    The gate fails if a run fails, in its task or an evaluator, unless that is allowed. It also fails if a mean is too
    low (or too high, if lower is better).

    Example: `spanwise eval evals/parcels.py --limit 20 --fail-under exact=0.8 --allow-failed 5%`
    """
    from spanwise.cli.post_mortem import wrap_evaluator
    from spanwise.evaluators import evaluate
    from spanwise.evaluators.experiments import rerun_command, resume_command

    allow, wanted = (
        quality_gate.parse_allowance(allow_failed),
        quality_gate.parse_bounds(fail_under or [], fail_over or []),
    )
    module = load_module(file)
    evaluators = _as_evaluators(_require_definition(module, "evaluators"))
    summary_evaluators = _as_evaluators(getattr(module, "summary_evaluators", ()))
    text = file.read_text("utf-8", "replace")
    print_judge_endpoints([*evaluators, *summary_evaluators])
    for remark in quality_gate.check_bound_keys(wanted, [*evaluators, *summary_evaluators], text, str(file)):
        print_note(remark)
    settings = {key: getattr(module, key) for key in _SETTINGS if hasattr(module, key)}
    if only:
        settings["only"] = only
    if pdb:
        settings |= {"raise_errors": True, "progress": False}
    store_option = ["--store", at] if at else []
    rerun = ["spanwise", "eval", str(file), *store_option]
    resume_command.set(shlex.join(["spanwise", *sys.argv[1:], *([] if "--resume" in sys.argv[1:] else ["--resume"])]))
    rerun_command.set(shlex.join(rerun))
    if dry_run:
        _print_estimate(module, evaluators, at, repetitions=repetitions, limit=limit, only=only, as_json=as_json)
        return
    with open_store(at, make=True) as store:
        with _debugger_on_error(file) if pdb else nullcontext():
            experiment = evaluate(
                _require_definition(module, "dataset"),
                getattr(module, "task", None),
                [wrap_evaluator(judge) for judge in evaluators] if pdb else evaluators,
                summary_evaluators=summary_evaluators,
                name=name or file.stem,
                concurrency=1 if pdb else concurrency,
                repetitions=repetitions,
                limit=limit,
                resume=resume,
                store=store,
                **settings,
            )
        if as_json:
            emit(row.to_dict() for row in experiment.rows())
        else:
            console.print(experiment)
        failed = quality_gate.collect_failures(experiment)
    for example_id, error in islice(failed.runs.values(), quality_gate.MAX_SHOWN_RUNS):
        print_note(f"{error}\n  again: {shlex.join([*rerun, f'--only={example_id}', '--pdb'])}")
    if (more := len(failed.runs) - quality_gate.MAX_SHOWN_RUNS) > 0:
        list_errors = shlex.join(["spanwise", "experiments", "errors", experiment.id[:8], *store_option])
        print_note(f"… and {more} more runs failed: `{list_errors}` shows them all")
    complaints = quality_gate.list_complaints(experiment, failed, allow, wanted)
    for remark in quality_gate.list_partial_means(experiment, wanted):
        print_note(remark)
    for complaint in complaints:
        print_note(complaint, "red")
    if complaints:
        raise typer.Exit(1)


def _print_estimate(
    module: ModuleType, evaluators: list[Evaluator], at: str | None, *, as_json: bool, **chosen: Any
) -> None:
    """Print the estimated number and cost of judge calls."""
    from spanwise.evaluators.experiments import dry_run

    settings = {key: getattr(module, key) for key in ("split", "seed") if hasattr(module, key)}
    with open_store(at, make=True) as store:
        estimate = dry_run(_require_definition(module, "dataset"), evaluators, store=store, **settings, **chosen)
    if as_json:
        emit([asdict(estimate)])
    else:
        print_line(str(estimate))


def _as_evaluators(listed: Any) -> list[Evaluator]:
    """Return the evaluators that the file lists. A single id is a list of one evaluator."""
    from spanwise.evaluators import as_evaluator

    return [as_evaluator(value) for value in ([listed] if isinstance(listed, str) else listed)]


@contextmanager
def _debugger_on_error(file: Path) -> Iterator[None]:
    """Open the debugger where the task raises. Errors of Spanwise itself are raised without the debugger."""
    from spanwise.cli.post_mortem import debug_exception

    try:
        yield
    except (SpanwiseError, typer.Exit, KeyboardInterrupt):
        raise
    # also catches `SystemExit` from the task, which would otherwise end the command silently
    except BaseException as error:
        print_user_traceback(error, file)
        debug_exception(error)
        raise typer.Exit(1) from None


def _require_definition(module: ModuleType, name: str) -> Any:
    if not hasattr(module, name):
        raise Refused(f"{module.__file__} does not define {name!r}; it must define dataset, evaluators and task")
    return getattr(module, name)
