"""`spanwise import`: OpenAI Evals from files or the API, and Inspect logs."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from spanwise.cli.command_io import JsonOption, StoreOption, emit, open_store, print_line, print_note
from spanwise.collector.errors import Refused

if TYPE_CHECKING:
    from spanwise.evaluators.interop import ImportReport, OpenAIEval

app = typer.Typer(
    help="Import evaluations of other products: OpenAI Evals, Inspect logs.",
    no_args_is_help=True,
    epilog="Example: `spanwise import inspect logs/2026-11-26_capitals.eval`",
)

Sources = Annotated[
    list[str],
    typer.Argument(help="Id of an eval (`eval_…`), which is downloaded with OPENAI_API_KEY; or files, or a folder."),
]
Logs = Annotated[list[Path], typer.Argument(help="Log files of Inspect: .eval or .json.")]
DatasetName = Annotated[
    str | None, typer.Option("--name", help="Name of the dataset. Default: the name in the source.")
]
References = Annotated[
    list[str] | None,
    typer.Option(
        "--reference",
        help="Item field that is the reference. Default: those that graders compare with. May be repeated.",
    ),
]
ConfirmedCode = Annotated[
    list[str] | None,
    typer.Option("--confirm-code", help="Digest of a grader's Python code that may be executed; may be repeated."),
]
EvalFile = Annotated[
    Path | None, typer.Option("--eval-file", help="Also write a file for `spanwise eval`, with the graders and a task.")
]
Folder = Annotated[Path | None, typer.Option("--save", help="Folder for what is downloaded. Default: it is not kept.")]


@app.command("openai-evals")
def openai_evals(
    sources: Sources,
    name: DatasetName = None,
    references: References = None,
    confirmed: ConfirmedCode = None,
    eval_file: EvalFile = None,
    folder: Folder = None,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import an eval of OpenAI: its items as a dataset, its graders, and its past runs as experiments.

    Python code of graders is never executed unless --confirm-code names its digest.

    Example: `spanwise import openai-evals eval_68f1 --save openai-export --eval-file capitals.py`
    """
    from spanwise.evaluators.interop import fetch_openai_eval, import_openai_evals, write_eval_file

    if eval_file is not None and eval_file.exists():
        raise Refused(f"file {str(eval_file)!r} already exists: choose another name")
    with ExitStack() as stack:
        paths = [Path(source) for source in sources]
        if not any(path.exists() for path in paths):
            if len(sources) > 1 or not sources[0].startswith("eval"):
                raise Refused(f"there is no file or folder {sources[0]!r}, and the id of an eval begins with 'eval_'")
            target = folder or Path(stack.enter_context(TemporaryDirectory(prefix="spanwise-")))
            print_note(f"downloading {sources[0]}")
            paths = fetch_openai_eval(sources[0], target)
        elif folder is not None:
            raise Refused("--save is for evals that are downloaded; name the id of an eval")
        store = stack.enter_context(open_store(at, make=True))
        imported = import_openai_evals(
            store, *paths, name=name, reference_fields=references, confirm_code=confirmed or ()
        )
    _print_report(imported.report, as_json, imported)
    if eval_file is not None:
        write_eval_file(imported, eval_file)
        print_note(f"wrote {eval_file}; run it with: spanwise eval {eval_file}")


@app.command("inspect")
def inspect_(logs: Logs, name: DatasetName = None, at: StoreOption = None, as_json: JsonOption = False) -> None:
    """Import logs of Inspect: the samples as a dataset, every log as an experiment with its scores.

    Example: `spanwise import inspect logs/2026-11-26_capitals.eval`
    """
    from spanwise.evaluators.interop import import_inspect_log

    for log in logs:
        if not log.is_file():
            raise Refused(f"there is no file {str(log)!r}")
    with open_store(at, make=True) as store:
        for log in logs:
            _print_report(import_inspect_log(store, log, dataset=name), as_json)


def _print_report(report: ImportReport, as_json: bool, imported: OpenAIEval | None = None) -> None:
    if as_json:
        emit([{**report.to_dict(), **({} if imported is None else {"unconfirmed": imported.unconfirmed})}])
        return
    for line in str(report).splitlines():
        print_line(line)
    if report.dataset is not None:
        print_line(f"dataset: {report.dataset}")
    for id in report.experiments:
        print_line(f"experiment: {id[:8]}")
