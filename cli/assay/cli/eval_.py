"""`assay eval FILE.py`: an evaluation written down in a file."""

from __future__ import annotations

import importlib.util
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from assay.cli._common import console, emit, notes, opened
from assay.cli._options import JsonOption, StoreOption
from assay.collector.errors import Refused

File = Annotated[Path, typer.Argument(help="A Python file that defines dataset, task and evaluators.")]
Name = Annotated[str | None, typer.Option(help="The experiment's name; else the file's.")]
Concurrency = Annotated[int, typer.Option(help="Runs at the same time.")]
Repetitions = Annotated[int, typer.Option(help="Runs of every example.")]
Limit = Annotated[int | None, typer.Option(help="Only so many examples.")]
Resume = Annotated[bool, typer.Option(help="Go on with the newest experiment of this name.")]
FailUnder = Annotated[
    list[str] | None, typer.Option(help="Exit with 1 if a key's mean is below, as in exact=0.8; may be repeated.")
]
_SETTINGS = ("summary_evaluators", "metadata", "split", "timeout", "retries", "seed")


def eval_(
    file: File,
    name: Name = None,
    concurrency: Concurrency = 8,
    repetitions: Repetitions = 1,
    limit: Limit = None,
    resume: Resume = False,
    fail_under: FailUnder = None,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run an evaluation that a file describes, print how it came out, and fail if it came out badly.

    The file defines `dataset`, `evaluators` and `task` (None or missing: score what is there), and may define
    `summary_evaluators`, `metadata`, `split`, `timeout`, `retries`, `seed`, as `evaluate()` takes them.

    Example: `assay eval evals/parcels.py --limit 20 --fail-under exact=0.8`
    """
    from assay.evaluators import evaluate
    from assay.evaluators.engine import go_on

    bounds = dict(map(_bound, fail_under or []))
    module = _loaded(file)
    settings = {key: getattr(module, key) for key in _SETTINGS if hasattr(module, key)}
    go_on.set(_resuming(sys.argv[1:]))
    with opened(at, make=True) as store:
        experiment = evaluate(
            _defined(module, "dataset"),
            getattr(module, "task", None),
            _defined(module, "evaluators"),
            name=name or file.stem,
            concurrency=concurrency,
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
    complaints = _below(experiment, bounds) + _all_failed(experiment)
    for complaint in complaints:
        notes.print(complaint, style="red", markup=False)
    if complaints:
        raise typer.Exit(1)


def _resuming(arguments: Sequence[str]) -> str:
    """The command that goes on where this one was interrupted."""
    return shlex.join(["assay", *arguments, *(["--resume"] if "--resume" not in arguments else [])])


def _loaded(file: Path) -> ModuleType:
    """The file as a module of its own name, with its folder importable as for `python FILE`."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if not file.exists():
        raise Refused(f"there is no file {str(file)!r}")
    if spec is None or spec.loader is None:
        raise Refused(f"{str(file)!r} is not a Python file")
    sys.path.insert(0, str(file.parent.resolve()))
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        _show(error, file)
        raise typer.Exit(1) from None
    return module


def _show(error: Exception, file: Path) -> None:
    """What went wrong in a user's file, from its first line on: how it came to be run is of no interest."""
    lines = traceback.TracebackException.from_exception(error)
    first = next((i for i, frame in enumerate(lines.stack) if Path(frame.filename).name == file.name), len(lines.stack))
    del lines.stack[:first]
    notes.print("".join(lines.format()), end="", markup=False, highlight=False, soft_wrap=True)


def _defined(module: ModuleType, name: str) -> Any:
    if not hasattr(module, name):
        raise Refused(f"{module.__file__} defines no {name!r}: it has to define dataset, evaluators and task")
    return getattr(module, name)


def _bound(text: str) -> tuple[str, float]:
    key, _, bound = text.rpartition("=")
    try:
        return key, float(bound)
    except ValueError:
        raise Refused(f"--fail-under {text!r}: say a key and a number, as in exact=0.8") from None


def _all_failed(experiment: Any) -> list[str]:
    """A word on an evaluation in which no run succeeded: it has said nothing about the task."""
    summary = experiment.summary()
    return [f"all {summary.runs} runs failed"] if summary.runs and summary.failed == summary.runs else []


def _below(experiment: Any, bounds: dict[str, float]) -> list[str]:
    """What is below its bound, in words; a key without any score is below every bound."""
    summary = experiment.summary()
    means = {key: summary[key].mean if key in summary else None for key in bounds}
    means |= {key: feedback.score for key, feedback in summary.overall.items() if key in bounds}
    return [
        f"{key} is {'not there' if mean is None else format(mean, '.4g')}, below {bounds[key]:.4g}"
        for key, mean in means.items()
        if mean is None or mean < bounds[key]
    ]
