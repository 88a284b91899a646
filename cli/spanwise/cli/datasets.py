"""`spanwise datasets`: what is kept, in and out, and what changed between versions."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from spanwise.cli import _dataset_sources as sources
from spanwise.cli._common import console, emit, opened, short, table
from spanwise.cli._options import DatasetName, JsonOption, StoreOption, YesOption
from spanwise.collector.errors import Refused
from spanwise.collector.records import Dataset

app = typer.Typer(
    help="Datasets: versioned lists of examples.",
    no_args_is_help=True,
    epilog="Example: `spanwise datasets import parcels parcels.jsonl`",
)

Version = Annotated[int | None, typer.Option("--version", help="A version; else the newest.")]
Split = Annotated[str | None, typer.Option("--split", help="Only examples of this split.")]
Limit = Annotated[int, typer.Option(help="At most so many examples.")]
To = Annotated[Path, typer.Argument(help="Its ending decides: JSONL, JSON, CSV, TSV or YAML.")]
Format = Annotated[str, typer.Option(help="spanwise, openai (chat fine-tuning lines) or databricks.")]
Older = Annotated[int, typer.Argument(help="The older version.")]
Newer = Annotated[int | None, typer.Argument(help="The newer version; else the newest.")]
HEAD = ("name", "version", "kind", "examples")


@app.command("list")
def list_(at: StoreOption = None, as_json: JsonOption = False) -> None:
    """All datasets at their newest version.

    Example: `spanwise datasets list --json`
    """
    with opened(at) as store:
        datasets = store.datasets()
    if as_json:
        emit(map(asdict, datasets))
    else:
        table(HEAD, map(_cells, datasets))


@app.command()
def show(
    name: DatasetName,
    version: Version = None,
    split: Split = None,
    limit: Limit = 20,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """The examples of a dataset.

    Example: `spanwise datasets show parcels --limit 5`
    """
    from spanwise.evaluators import datasets

    with opened(at) as store:
        dataset = store.dataset(name, version)
        examples = store.examples(name, version, split=split, limit=limit)
    if as_json:
        emit(map(datasets.to_row, examples))
        return
    cells = [(it.id[:12], it.split or "", short(it.inputs), short(it.reference_outputs)) for it in examples]
    table(("id", "split", "inputs", "reference outputs"), cells)
    console.print(f"{name} version {dataset.version} ({dataset.kind}): {dataset.example_count} examples", markup=False)


@app.command()
def versions(name: DatasetName, at: StoreOption = None, as_json: JsonOption = False) -> None:
    """Every version of a dataset, newest first.

    Example: `spanwise datasets versions parcels`
    """
    with opened(at) as store:
        datasets = store.versions(name)
    if as_json:
        emit(map(asdict, datasets))
    else:
        table(HEAD, map(_cells, datasets))


@app.command()
def export(
    name: DatasetName,
    file: To,
    format: Format = "spanwise",
    version: Version = None,
    split: Split = None,
    at: StoreOption = None,
) -> None:
    """Write the examples of a dataset to a file.

    Example: `spanwise datasets export parcels train.jsonl --format openai --split train`
    """
    from spanwise.evaluators import datasets

    if format not in ("spanwise", "openai", "databricks"):
        raise Refused(f"--format {format!r}: known are spanwise, openai, databricks")
    with opened(at) as store:
        count = datasets.write(store.examples(name, version, split=split), file, format=cast(Any, format))
    console.print(f"{count} examples in {file}", markup=False)


@app.command()
def diff(
    name: DatasetName, before: Older, after: Newer = None, at: StoreOption = None, as_json: JsonOption = False
) -> None:
    """What changed from one version of a dataset to another.

    Example: `spanwise datasets diff parcels 1 2`
    """
    from spanwise.evaluators import datasets

    with opened(at) as store:
        changes = datasets.diff(store.examples(name, before), store.examples(name, after))
    rows = [("added", example.id, short(example.inputs)) for example in changes.added]
    rows += [("removed", example.id, short(example.inputs)) for example in changes.removed]
    rows += [("changed", id, ", ".join(fields)) for id, fields in changes.changed.items()]
    if as_json:
        emit({"change": change, "id": id, "what": what} for change, id, what in rows)
    else:
        table(("change", "id", "what"), [(change, id[:12], what) for change, id, what in rows])


@app.command()
def delete(name: DatasetName, yes: YesOption = False, at: StoreOption = None) -> None:
    """Remove a dataset with all its versions; experiments over it stay.

    Example: `spanwise datasets delete parcels --yes`
    """
    with opened(at) as store:
        dataset = store.dataset(name)
        if not yes:
            typer.confirm(f"Remove {name} ({dataset.example_count} examples) with all its versions?", abort=True)
        store.delete_dataset(name)
    console.print(f"removed {name}", markup=False)


def _cells(dataset: Dataset) -> tuple[str, ...]:
    return dataset.name, str(dataset.version), dataset.kind, str(dataset.example_count)


app.command("import")(sources.import_)
app.command("from-traces")(sources.from_traces)
app.command("generate")(sources.generate)
