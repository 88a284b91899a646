"""`spanwise eval FILE.py`: an evaluation written down in a file."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spanwise.cli import _gate
from spanwise.cli._common import console, emit, notes, opened
from spanwise.cli._gate import Failed
from spanwise.cli._judges import tell
from spanwise.cli._module import loaded, show
from spanwise.cli._options import JsonOption, StoreOption
from spanwise.collector.errors import Refused, SpanwiseError

if TYPE_CHECKING:
    from spanwise.evaluators import Evaluator

File = Annotated[Path, typer.Argument(help="A Python file that defines dataset, task and evaluators.")]
Name = Annotated[str | None, typer.Option(help="The experiment's name; else the file's.")]
Concurrency = Annotated[int, typer.Option(help="Runs at the same time.")]
Repetitions = Annotated[int, typer.Option(help="Runs of every example.")]
Limit = Annotated[int | None, typer.Option(help="Only so many examples.")]
Resume = Annotated[bool, typer.Option(help="Go on with the newest experiment of this name.")]
FailUnder = Annotated[
    list[str] | None,
    typer.Option(help="Exit with 1 if a key's mean is below, as in exact=0.8 or task_ok=0.95; may be repeated."),
]
FailOver = Annotated[
    list[str] | None,
    typer.Option(help="Exit with 1 if the mean of a key of which lower is better is above, as in toxicity=0.1."),
]
AllowFailed = Annotated[
    str, typer.Option(help="How many runs may fail, by their task or an evaluator: 2, or 5% of them. Else exit with 1.")
]
Only = Annotated[
    list[str] | None, typer.Option(help="Only this example: its id, or the beginning of it; may be repeated.")
]
Pdb = Annotated[bool, typer.Option("--pdb", help="Open the debugger where the task or an evaluator raises.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what judges would be asked, and at what cost.")]
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
    """Run an evaluation that a file describes, print how it came out, and fail if it came out badly.

    The file defines `dataset`, `evaluators` and `task` (None or missing: score what is there), and may define
    `summary_evaluators`, `metadata`, `split`, `timeout`, `retries`, `retry_on`, `seed`, `fail_fast`, `max_failures`,
    `max_usd`, as `evaluate()` takes them.

    It came out badly if a run failed, by its task or an evaluator, unless that is allowed, or if a mean is too low (or
    too high, where lower is better).

    Example: `spanwise eval evals/parcels.py --limit 20 --fail-under exact=0.8 --allow-failed 5%`
    """
    from spanwise.cli._postmortem import watched
    from spanwise.evaluators import evaluate
    from spanwise.evaluators.engine import go_on, run_again

    allow, wanted = _gate.allowed(allow_failed), _gate.bounds(fail_under or [], fail_over or [])
    module = loaded(file)
    evaluators, of_the_set = (_evaluators(module, name) for name in ("evaluators", "summary_evaluators"))
    text = file.read_text("utf-8", "replace")
    tell([*evaluators, *of_the_set])
    for remark in _gate.check_keys(wanted, [*evaluators, *of_the_set], text, str(file)):
        _say(remark)
    settings = {key: getattr(module, key) for key in _SETTINGS if hasattr(module, key)}
    again = ["spanwise", "eval", str(file), *(["--store", at] if at else [])]
    go_on.set(_resuming(sys.argv[1:]))
    run_again.set(shlex.join(again))
    if dry_run:
        _rehearse(module, evaluators, at, repetitions=repetitions, limit=limit, only=only, as_json=as_json)
        return
    with opened(at, make=True) as store:
        with _looking(file) if pdb else nullcontext():
            experiment = evaluate(
                _defined(module, "dataset"),
                getattr(module, "task", None),
                [watched(judge) for judge in evaluators] if pdb else evaluators,
                summary_evaluators=of_the_set,
                name=name or file.stem,
                concurrency=1 if pdb else concurrency,
                repetitions=repetitions,
                limit=limit,
                resume=resume,
                store=store,
                **settings,
                **_of_one(only, pdb=pdb),
            )
        if as_json:
            emit(row.to_dict() for row in experiment.rows())
        else:
            console.print(experiment)
        failed = _gate.failed_in(experiment)
    _tell_failed(
        failed, again, ["spanwise", "experiments", "errors", experiment.id[:8], *(["--store", at] if at else [])]
    )
    complaints = _gate.complaints(experiment, failed, allow, wanted)
    for remark in _gate.few_scores(experiment, wanted):
        _say(remark)
    for complaint in complaints:
        _say(complaint, "red")
    if complaints:
        raise typer.Exit(1)


def _rehearse(module: ModuleType, evaluators: list[Evaluator], at: str | None, *, as_json: bool, **chosen: Any) -> None:
    """Print what judges would be asked."""
    from spanwise.evaluators.engine import dry_run

    settings = {key: getattr(module, key) for key in ("split", "seed") if hasattr(module, key)}
    with opened(at, make=True) as store:
        estimate = dry_run(_defined(module, "dataset"), evaluators, store=store, **settings, **chosen)
    if as_json:
        emit([asdict(estimate)])
    else:
        console.print(str(estimate), markup=False, highlight=False, soft_wrap=True)


def _evaluators(module: ModuleType, name: str) -> list[Evaluator]:
    """What the file lists under a name, as evaluators; the set-level ones may be missing."""
    from spanwise.evaluators import as_evaluator

    given = _defined(module, name) if name == "evaluators" else getattr(module, name, ())
    return [as_evaluator(one) for one in ([given] if isinstance(given, str) else given)]


def _of_one(only: list[str] | None, *, pdb: bool) -> dict[str, Any]:
    """The options of `evaluate()` with which a few examples are looked at closely."""
    return {**({"only": only} if only else {}), **({"raise_errors": True, "progress": False} if pdb else {})}


@contextmanager
def _looking(file: Path) -> Iterator[None]:
    """Open the debugger where the task raised; what we refuse ourselves needs none."""
    from spanwise.cli._postmortem import look

    try:
        yield
    except (SpanwiseError, typer.Exit, KeyboardInterrupt):
        raise
    except BaseException as error:  # also a SystemExit of the task's, which would end us without a word
        show(error, file)
        look(error)
        raise typer.Exit(1) from None


def _tell_failed(failed: Failed, again: Sequence[str], errors: Sequence[str]) -> None:
    """A line per failed run, with the command that runs it alone; beyond a few the command that shows them all."""
    for example_id, why in islice(failed.runs.values(), _gate.SHOWN):
        _say(f"{why}\n  again: {shlex.join([*again, f'--only={example_id}', '--pdb'])}")
    if (more := len(failed.runs) - _gate.SHOWN) > 0:
        _say(f"… and {more} more runs failed: `{shlex.join(errors)}` shows them all")


def _say(text: str, style: str = "") -> None:
    notes.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _resuming(arguments: Sequence[str]) -> str:
    """The command that goes on where this one was interrupted."""
    return shlex.join(["spanwise", *arguments, *(["--resume"] if "--resume" not in arguments else [])])


def _defined(module: ModuleType, name: str) -> Any:
    if not hasattr(module, name):
        raise Refused(f"{module.__file__} defines no {name!r}: it has to define dataset, evaluators and task")
    return getattr(module, name)
