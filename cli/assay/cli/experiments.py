"""`assay experiments`: what was evaluated, how it came out, and what changed."""

from __future__ import annotations

from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Annotated, Any

import typer

from assay.cli._common import JsonOption, StoreOption, console, emit, opened, short, table
from assay.collector.errors import Refused
from assay.collector.records import Experiment as Record

app = typer.Typer(
    help="Experiments: a task over a dataset, scored.",
    no_args_is_help=True,
    epilog="Example: `assay experiments compare bm25-k3 embeddings`",
)

Id = Annotated[str, typer.Argument(help="An experiment's id, the beginning of it, or its name (the newest of it).")]


@app.command("list")
def list_(
    dataset: Annotated[str | None, typer.Option(help="Only experiments over this dataset.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many, newest first.")] = 50,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Experiments, newest first.

    Example: `assay experiments list --dataset parcels`
    """
    with opened(store) as found:
        rows = found.experiments(dataset=dataset, limit=limit)
    if json:
        emit(asdict(one) for one in rows)
    else:
        table(("id", "name", "dataset", "status", "runs", "failed", "evaluators"), [_cells(one) for one in rows])


@app.command()
def show(
    experiment: Id,
    rows: Annotated[int, typer.Option(help="Also show so many runs.")] = 0,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """How an experiment came out, per key; with --json every run.

    Example: `assay experiments show bm25-k3 --rows 5`
    """
    from itertools import islice

    from assay.evaluators import Experiment

    with opened(store) as found:
        loaded = Experiment.load(found, experiment)
        if json:
            emit(row.to_dict() for row in loaded.rows())
            return
        console.print(loaded)
        cells = [
            (short(row.inputs), short(row.error or row.outputs), short(dict(row.scores)))
            for row in islice(loaded.rows(), rows)
        ]
    if cells:
        table(("inputs", "outputs", "scores"), cells)


@app.command()
def errors(experiment: Id, store: StoreOption = None, json: JsonOption = False) -> None:
    """Every error of the task and of evaluators, with tracebacks.

    Example: `assay experiments errors bm25-k3`
    """
    from assay.evaluators import Experiment

    with opened(store) as found:
        failures = list(Experiment.load(found, experiment).errors())
    if json:
        emit(asdict(one) for one in failures)
        return
    for one in failures:
        console.print(str(one), markup=False, highlight=False, soft_wrap=True)
    console.print(f"{len(failures)} errors", markup=False)


@app.command()
def compare(
    experiments: Annotated[list[str], typer.Argument(help="Two or more: ids, beginnings of ids, or names.")],
    changes: Annotated[int, typer.Option(help="Also show so many examples whose score changed.")] = 0,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Experiments side by side; the first is what the others are compared with.

    Example: `assay experiments compare bm25-k3 embeddings --changes 10`
    """
    from itertools import islice

    from assay.evaluators import compare as side_by_side

    with opened(store) as found:
        both = side_by_side(*experiments, store=found)
        if json:
            emit(asdict(change) for other in range(1, len(experiments)) for change in both.changes(other))
            return
        console.print(both)
        for other in range(1, len(experiments)) if changes else ():
            rows = [
                (
                    one.example_id[:12],
                    one.key,
                    f"{one.before:.4g}",
                    f"{one.after:.4g}",
                    "better" if one.better else "worse",
                )
                for one in islice(both.changes(other), changes)
            ]
            table(("example", "key", experiments[0], experiments[other], ""), rows)


@app.command()
def score(
    experiment: Id,
    evaluator: Annotated[list[str], typer.Option(help="An evaluator's id; may be repeated.")],
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Let more evaluators look at the runs of an experiment; the task is not run again. With --json every run.

    Example: `assay experiments score bm25-k3 --evaluator rouge`
    """
    from assay.evaluators import Experiment

    with opened(store) as found:
        scored = Experiment.load(found, experiment).evaluate(evaluator)
        if json:
            emit(row.to_dict() for row in scored.rows())
        else:
            console.print(scored)


@app.command()
def export(
    experiment: Id,
    file: Annotated[Path, typer.Argument(help="Its ending decides: JSONL, CSV or HTML.")],
    store: StoreOption = None,
) -> None:
    """Write every run with its scores to a file, or the summary as HTML.

    Example: `assay experiments export bm25-k3 runs.csv`
    """
    from assay.evaluators import Experiment

    with opened(store) as found:
        loaded = Experiment.load(found, experiment)
        count = _write(loaded, file)
    console.print(f"{count} runs in {file}", markup=False)


@app.command()
def deliver(
    file: Annotated[Path, typer.Argument(help="What a failing store has left: assay-spool-….jsonl.")],
    store: StoreOption = None,
) -> None:
    """Store the runs that a store did not take when they were made, and remove their file.

    Example: `assay experiments deliver assay-spool-1a2b3c4d5e6f.jsonl`
    """
    from assay.evaluators.engine import deliver_spool

    if not file.exists():
        raise Refused(f"there is no file {str(file)!r}")
    with opened(store, make=True) as found:
        count = deliver_spool(file, found)
    console.print(f"stored {count} spans", markup=False)


@app.command()
def delete(
    experiment: Id,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    store: StoreOption = None,
) -> None:
    """Remove an experiment with its traces and feedback.

    Example: `assay experiments delete bm25-k3 --yes`
    """
    with opened(store) as found:
        record = found.experiment(experiment)
        if not yes:
            typer.confirm(f"Remove experiment {record.name} ({record.id[:8]}) with its traces?", abort=True)
        found.delete_experiment(record.id)
    console.print(f"removed {record.name} ({record.id[:8]})", markup=False)


def _cells(record: Record) -> tuple[str, ...]:
    totals: dict[str, Any] = record.metadata.get("totals") or {}
    keys = ", ".join(one["key"] for one in record.evaluators)
    dataset = record.dataset if record.dataset_version is None else f"{record.dataset}@{record.dataset_version}"
    runs, failed = str(totals.get("runs", "")), str(totals.get("failed", ""))
    return record.id[:8], record.name, dataset, record.status, runs, failed, short(keys)


def _write(experiment: Any, file: Path) -> int:
    """Write runs in the way that the file's ending says; returns how many there were."""
    from assay.evaluators.datasets import write_rows

    ending = file.suffix.lower()
    if ending == ".html":
        head = f'<!doctype html><meta charset="utf-8"><title>{escape(experiment.name)}</title>'
        file.write_text(head + experiment.to_html(), "utf-8")
        return int(experiment.summary().runs)
    if ending not in (".csv", ".jsonl"):
        raise Refused(f"cannot write {file.name!r}: known are .jsonl, .csv, .html")
    rows = [row.to_dict() for row in experiment.rows()]
    return write_rows(rows, file)
