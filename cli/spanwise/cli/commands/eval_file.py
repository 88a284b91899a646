"""`spanwise eval PATH`: evaluations defined in Python files, with a quality gate for CI."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from spanwise.cli import quality_gate
from spanwise.cli.baselines import Baseline, compare_with_baseline, resolve_baseline
from spanwise.cli.command_io import JsonOption, StoreOption, console, emit, open_store, print_line, print_note
from spanwise.cli.evaluation_files import (
    EvaluationFile,
    check_shared_imports,
    find_evaluation_files,
    load_evaluation_file,
    print_judge_endpoints,
    print_user_traceback,
)
from spanwise.cli.quality_gate import (
    EXIT_CODES,
    EvaluationResult,
    Gate,
    prepare_report,
    render_comparison,
    render_junit,
    render_markdown,
)
from spanwise.collector.address_parsing import hide_password
from spanwise.collector.errors import Refused, SpanwiseError
from spanwise.collector.stores import Store

if TYPE_CHECKING:
    from spanwise.evaluators import Experiment


PathArgument = Annotated[
    Path,
    typer.Argument(
        help="Python file that defines `dataset`, `task` and `evaluators`, or a folder: all such files below it."
    ),
]
Name = Annotated[str | None, typer.Option(help="Name of the experiment. Default: name of the file.")]
Concurrency = Annotated[int, typer.Option(help="Number of concurrent runs.")]
Repetitions = Annotated[int, typer.Option(help="Number of runs per example.")]
Limit = Annotated[int | None, typer.Option(help="Maximum number of examples.")]
Resume = Annotated[bool, typer.Option(help="Continue the newest experiment of this name.")]
BaselineOption = Annotated[
    str | None,
    typer.Option(
        "--baseline",
        help="Compare with an earlier experiment: its id or name, `latest` (the newest finished one of the same name), or "
        "git:REVISION (the newest finished one at that commit).",
    ),
]
FailIf = Annotated[
    list[str] | None,
    typer.Option(
        metavar="EXPRESSION",
        help="Fail if this is true, such as 'exact.mean < 0.8', 'latency.p95 > 2s', or with --baseline 'exact worse'; may "
        "be repeated.",
    ),
]
Inconclusive = Annotated[
    str | None,
    typer.Option(metavar="pass|fail", help="Outcome of expressions that cannot be decided, instead of exit code 2."),
]
Margin = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=NUMBER",
        help="Largest difference of a key from the baseline that does not matter; may be repeated.",
    ),
]
Primary = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY", help="Key that decides in the comparison with the baseline; may be repeated."),
]
FailUnder = Annotated[
    list[str] | None,
    typer.Option(
        help="Fail if the mean of a key is below a limit, such as exact=0.8 or task_ok=0.95; may be repeated."
    ),
]
FailOver = Annotated[
    list[str] | None,
    typer.Option(
        help="Fail if the mean of a key for which lower is better is above a limit, such as toxicity=0.1; may be repeated."
    ),
]
AllowFailed = Annotated[
    str,
    typer.Option(
        help="Fail if more runs fail than this, by their task or an evaluator: a number such as 2, or a share such as 5%."
    ),
]
JUnit = Annotated[Path | None, typer.Option("--junit", help="Write the results of the gate as JUnit XML to this file.")]
Markdown = Annotated[
    Path | None,
    typer.Option("--markdown", help="Write results and comparison as Markdown, for a pull request, to this file."),
]
Only = Annotated[
    list[str] | None, typer.Option(help="Only this example: its id or its first characters; may be repeated.")
]
Pdb = Annotated[bool, typer.Option("--pdb", help="Open the debugger when the task or an evaluator raises.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the number and cost of judge calls without making them.")
]
_USAGE_ERROR = 2  # exit code of typer


class Command(TyperCommand):
    """Command whose usage errors exit with the code of a broken set-up; 2 has another meaning here."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Parse the arguments."""
        try:
            return super().make_context(*args, **options)
        except Exception as error:
            if getattr(error, "exit_code", None) == _USAGE_ERROR:
                error.exit_code = EXIT_CODES["broken"]  # type: ignore[attr-defined]
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions:
    """Options of the command that concern the runs."""

    name: str | None
    concurrency: int
    repetitions: int
    limit: int | None
    resume: bool
    baseline: str | None
    only: Sequence[str] | None
    pdb: bool
    dry_run: bool
    at: str | None
    as_json: bool
    has_markdown: bool

    @property
    def store_option(self) -> list[str]:
        """Return the arguments that name the store in printed commands."""
        return ["--store", hide_password(self.at)] if self.at else []

    def get_name(self, file: Path) -> str:
        """Return the name of a file's experiment."""
        return self.name or file.stem


def eval_(
    path: PathArgument,
    name: Name = None,
    concurrency: Concurrency = 8,
    repetitions: Repetitions = 1,
    limit: Limit = None,
    resume: Resume = False,
    baseline: BaselineOption = None,
    fail_if: FailIf = None,
    inconclusive: Inconclusive = None,
    margin: Margin = None,
    primary: Primary = None,
    fail_under: FailUnder = None,
    fail_over: FailOver = None,
    allow_failed: AllowFailed = "0",
    junit: JUnit = None,
    markdown: Markdown = None,
    only: Only = None,
    pdb: Pdb = False,
    dry_run: DryRun = False,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the evaluation defined in a file, or all evaluations of a folder, and check a quality gate.

    A file defines `dataset`, `evaluators` and `task` (None or missing: score existing outputs). It may define
    `summary_evaluators`, `metadata`, `split`, `timeout`, `retries`, `retry_on`, `fixture`, `seed`, `fail_fast`,
    `max_failures`, `max_usd`, as `evaluate()` takes them, and `margin` and `primary`, as `compare()` takes them.

    The gate fails if a run fails, in its task or an evaluator, unless that is allowed. It also fails if a mean is too
    low (or too high, if lower is better), or if a `--fail-if` expression is true.

    Exit codes: 0 the gate passed, 1 it failed, 2 it could not be decided, 3 the set-up is broken. Of several
    evaluations, the worst counts: 3, 1, 2, 0 in this order.

    Example: `spanwise eval evals/ --baseline git:main --fail-if 'exact worse' --fail-if 'latency.p95 > 2s'`
    """
    options = EvalOptions(
        name=name,
        concurrency=concurrency,
        repetitions=repetitions,
        limit=limit,
        resume=resume,
        baseline=baseline,
        only=only,
        pdb=pdb,
        dry_run=dry_run,
        at=at,
        as_json=as_json,
        has_markdown=markdown is not None,
    )
    results: list[EvaluationResult] = []
    reports: list[Path] = []
    with _record_errors(results, options.get_name(path), path):
        for report in filter(None, (junit, markdown)):
            prepare_report(report)
            reports.append(report)
        gate = quality_gate.parse_gate(
            allow_failed=allow_failed,
            fail_under=fail_under or [],
            fail_over=fail_over or [],
            fail_if=fail_if or [],
            margin=margin or [],
            primary=primary or [],
            inconclusive=inconclusive,
            has_baseline=baseline is not None,
        )
        _run_evaluations(path, gate, options, results)
    with _record_errors(results, options.get_name(path), path):
        if junit in reports:
            junit.write_bytes(render_junit(results))
        if markdown in reports:
            markdown.write_text(render_markdown(results), "utf-8", "replace")
    if code := EXIT_CODES[quality_gate.find_worst(results)]:
        raise typer.Exit(code)


@contextmanager
def _record_errors(results: list[EvaluationResult], name: str, file: Path) -> Iterator[None]:
    """Convert an error into the result of a broken set-up, and print it. An unexpected error has its traceback."""
    try:
        yield
    except typer.Exit:
        raise
    # `SystemExit` of a user's code, such as a generator of examples, would end the command with its own code
    except (Exception, SystemExit) as error:
        text = str(error)
        if not isinstance(error, SpanwiseError | OSError | ValueError):
            print_user_traceback(error, file)
            text = f"{type(error).__name__}: {error}"
        print_note(f"spanwise: {text}", "red")
        results.append(EvaluationResult(name=name, error=text))


def _run_evaluations(path: Path, gate: Gate, options: EvalOptions, results: list[EvaluationResult]) -> None:
    """Load and check all evaluations, then run them, and append their results.

    Raises an error that concerns all of them, before the first run.
    """
    paths = find_evaluation_files(path)
    if len(paths) > 1 and options.name:
        raise Refused(f"--name {options.name!r} names one experiment, but {str(path)!r} has {len(paths)} evaluations")
    files: list[EvaluationFile] = []
    for file in paths:
        with _record_errors(results, options.get_name(file), file):
            files.append(load_evaluation_file(file))
    check_shared_imports(files)
    remarks = quality_gate.check_keys(gate, files, path, complete=not results)
    print_judge_endpoints(evaluator for file in files for evaluator in file.all_evaluators)
    for remark in remarks:
        print_note(remark)
    is_folder = path.is_dir()
    if files:
        _run_files(files, gate, options, results, lenient=is_folder)
    order = {options.get_name(file): position for position, file in enumerate(paths)}
    results.sort(key=lambda result: order[result.name])
    for complaint in quality_gate.fail_keys_without_report(results):
        print_note(complaint, "red")
    for result in results if is_folder else ():
        print_note(str(result), _STYLES[result.outcome])


_STYLES = {"passed": "green", "failed": "red", "undecided": "yellow", "broken": "red"}


def _run_files(
    files: Sequence[EvaluationFile],
    gate: Gate,
    options: EvalOptions,
    results: list[EvaluationResult],
    *,
    lenient: bool,
) -> None:
    """Resolve the baselines of all evaluations, then run those that have one."""
    with open_store(options.at, make=True) as store:
        baselines: list[tuple[EvaluationFile, Baseline | None]] = []
        for loaded in files:
            with _record_errors(results, options.get_name(loaded.path), loaded.path):
                baseline = None
                if options.baseline is not None:
                    name = options.get_name(loaded.path)
                    baseline = resolve_baseline(store, options.baseline, name, resume=options.resume)
                    print_note(str(baseline))
                baselines.append((loaded, baseline))
        for loaded, baseline in baselines:
            with _record_errors(results, options.get_name(loaded.path), loaded.path):
                if options.dry_run:
                    _print_estimate(loaded, store, options)
                else:
                    results.append(_run_evaluation(loaded, baseline, gate, options, store, lenient=lenient))


def _run_evaluation(
    file: EvaluationFile,
    baseline: Baseline | None,
    gate: Gate,
    options: EvalOptions,
    store: Store,
    *,
    lenient: bool,
) -> EvaluationResult:
    """Run an evaluation, print its summary and its comparison, and apply the gate."""
    started = time.monotonic()
    rerun = ["spanwise", "eval", str(file.path), *options.store_option]
    experiment = _run_experiment(file, options, store, rerun)
    result = EvaluationResult(name=options.get_name(file.path), experiment=experiment, baseline=baseline)
    comparison = None
    if baseline is not None:
        result.dataset_note = baseline.describe_dataset(experiment.record)
        if experiment.unstored is None:
            comparison = compare_with_baseline(
                baseline, experiment, margin=gate.get_margin(file), primary=gate.get_primary(file)
            )
            result.comparison = render_comparison(comparison, store) if options.has_markdown else ""
    if options.as_json:
        emit(row.to_dict() for row in experiment.rows())
    else:
        console.print(experiment)
        if comparison is not None:
            console.print(comparison)
    if result.dataset_note:
        print_note(result.dataset_note)
    failed = quality_gate.collect_failures(experiment)
    result.gate = quality_gate.apply_gate(gate, experiment, failed, comparison, file, lenient=lenient)
    _print_failed_runs(failed, experiment, rerun, options)
    for remark in quality_gate.list_partial_means(experiment, gate.bounds):
        print_note(remark)
    for outcome in ("undecided", "failed"):
        for each in result.gate:
            if each.outcome == outcome:
                print_note(each.reason, _STYLES[outcome])
    result.seconds = time.monotonic() - started
    return result


def _run_experiment(file: EvaluationFile, options: EvalOptions, store: Store, rerun: Sequence[str]) -> Experiment:
    from spanwise.cli.post_mortem import wrap_evaluator
    from spanwise.evaluators import evaluate
    from spanwise.evaluators.experiments import rerun_command, resume_command

    settings = dict(file.settings)
    if options.only:
        settings["only"] = options.only
    if options.pdb:
        settings |= {"raise_errors": True, "progress": False}
    resumed = [] if "--resume" in sys.argv[1:] else ["--resume"]
    resume_command.set(shlex.join(["spanwise", *sys.argv[1:], *resumed]))
    rerun_command.set(shlex.join(rerun))
    with _debugger_on_error(file.path) if options.pdb else nullcontext():
        return evaluate(
            file.module.dataset,
            getattr(file.module, "task", None),
            [wrap_evaluator(judge) for judge in file.evaluators] if options.pdb else file.evaluators,
            summary_evaluators=file.summary_evaluators,
            name=options.get_name(file.path),
            concurrency=1 if options.pdb else options.concurrency,
            repetitions=options.repetitions,
            limit=options.limit,
            resume=options.resume,
            store=store,
            **settings,
        )


def _print_failed_runs(
    failed: quality_gate.FailureSummary, experiment: Experiment, rerun: Sequence[str], options: EvalOptions
) -> None:
    """Print some failed runs, each with the command that runs it alone."""
    for example_id, error in islice(failed.runs.values(), quality_gate.MAX_SHOWN_RUNS):
        print_note(f"{error}\n  again: {shlex.join([*rerun, f'--only={example_id}', '--pdb'])}")
    if (more := len(failed.runs) - quality_gate.MAX_SHOWN_RUNS) > 0:
        list_errors = shlex.join(["spanwise", "experiments", "errors", experiment.id[:8], *options.store_option])
        print_note(f"… and {more} more runs failed: `{list_errors}` shows them all")


def _print_estimate(file: EvaluationFile, store: Store, options: EvalOptions) -> None:
    """Print the estimated number and cost of judge calls."""
    from spanwise.evaluators.experiments import dry_run

    settings = {key: value for key, value in file.settings.items() if key in ("split", "seed")}
    estimate = dry_run(
        file.module.dataset,
        file.evaluators,
        store=store,
        repetitions=options.repetitions,
        limit=options.limit,
        only=options.only,
        **settings,
    )
    if options.as_json:
        emit([asdict(estimate)])
    else:
        print_line(str(estimate))


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
