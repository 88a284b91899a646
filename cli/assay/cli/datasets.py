"""`assay datasets`: what is kept, in and out, and what changed between versions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from assay.cli._common import (
    JsonOption,
    StoreOption,
    WhereOption,
    conditions,
    console,
    emit,
    notes,
    opened,
    short,
    table,
    whole_id,
)
from assay.collector.errors import Refused
from assay.collector.records import Dataset, DatasetKind

app = typer.Typer(
    help="Datasets: versioned lists of examples.",
    no_args_is_help=True,
    epilog="Example: `assay datasets import parcels parcels.jsonl`",
)

Name = Annotated[str, typer.Argument(help="The dataset's name.")]
Version = Annotated[int | None, typer.Option("--version", help="A version; else the newest.")]
Split = Annotated[str | None, typer.Option("--split", help="Only examples of this split.")]


@app.command("list")
def list_(store: StoreOption = None, json: JsonOption = False) -> None:
    """All datasets at their newest version.

    Example: `assay datasets list --json`
    """
    with opened(store) as found:
        rows = found.datasets()
    if json:
        emit(_plain(one) for one in rows)
    else:
        table(("name", "version", "kind", "examples"), [_cells(one) for one in rows])


@app.command()
def show(
    name: Name,
    version: Version = None,
    split: Split = None,
    limit: Annotated[int, typer.Option(help="At most so many examples.")] = 20,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """The examples of a dataset.

    Example: `assay datasets show parcels --limit 5`
    """
    from assay.evaluators import datasets

    with opened(store) as found:
        known = found.dataset(name, version)
        examples = found.examples(name, version, split=split, limit=limit)
    if json:
        emit(datasets.to_row(one) for one in examples)
        return
    rows = [(one.id[:12], one.split or "", short(one.inputs), short(one.reference_outputs)) for one in examples]
    table(("id", "split", "inputs", "reference outputs"), rows)
    console.print(f"{name} version {known.version} ({known.kind}): {known.example_count} examples", markup=False)


@app.command()
def versions(name: Name, store: StoreOption = None, json: JsonOption = False) -> None:
    """Every version of a dataset, newest first.

    Example: `assay datasets versions parcels`
    """
    with opened(store) as found:
        rows = found.versions(name)
    if json:
        emit(_plain(one) for one in rows)
    else:
        table(("name", "version", "kind", "examples"), [_cells(one) for one in rows])


@app.command("import")
def import_(
    name: Name,
    file: Annotated[Path, typer.Argument(help="JSONL, JSON, CSV, TSV or YAML; also exports of other products.")],
    column: Annotated[
        list[str] | None, typer.Option(help="Rename a column, as in gold=reference_outputs or q=inputs.question.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="kv, llm or chat; else told by the first example.")] = None,
    schema: Annotated[
        str | None, typer.Option(help="A JSON file with schemas under inputs and reference_outputs, or 'infer'.")
    ] = None,
    replace: Annotated[bool, typer.Option(help="Take out what is not in the file.")] = False,
    deduplicate: Annotated[bool, typer.Option(help="Leave out examples whose inputs are there already.")] = False,
    description: Annotated[str | None, typer.Option(help="What the dataset is for.")] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Put the examples of a file into a dataset: a new version, if anything changed.

    Example: `assay datasets import parcels questions.csv --column gold=reference_outputs --schema infer`
    """
    from assay.evaluators import datasets

    examples = datasets.read(file, columns=_columns(column or []))
    if deduplicate:
        examples = datasets.deduplicate(examples)
    with opened(store, make=True) as found:
        saved = datasets.save(
            found, name, examples, kind=_kind(kind), schema=_schema(schema), replace=replace, description=description
        )
    _say(saved, json)


@app.command()
def export(
    name: Name,
    file: Annotated[Path, typer.Argument(help="Its ending decides: JSONL, JSON, CSV, TSV or YAML.")],
    format: Annotated[str, typer.Option(help="assay, openai (chat fine-tuning lines) or databricks.")] = "assay",
    version: Version = None,
    split: Split = None,
    store: StoreOption = None,
) -> None:
    """Write the examples of a dataset to a file.

    Example: `assay datasets export parcels train.jsonl --format openai --split train`
    """
    from assay.evaluators import datasets

    if format not in ("assay", "openai", "databricks"):
        raise Refused(f"--format {format!r}: known are assay, openai, databricks")
    with opened(store) as found:
        count = datasets.write(found.examples(name, version, split=split), file, format=cast(Any, format))
    console.print(f"{count} examples in {file}", markup=False)


@app.command()
def diff(
    name: Name,
    before: Annotated[int, typer.Argument(help="The older version.")],
    after: Annotated[int | None, typer.Argument(help="The newer version; else the newest.")] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """What changed from one version of a dataset to another.

    Example: `assay datasets diff parcels 1 2`
    """
    from assay.evaluators import datasets

    with opened(store) as found:
        change = datasets.diff(found.examples(name, before), found.examples(name, after))
    rows = [("added", one.id, short(one.inputs)) for one in change.added]
    rows += [("removed", one.id, short(one.inputs)) for one in change.removed]
    rows += [("changed", id, ", ".join(fields)) for id, fields in change.changed.items()]
    if json:
        emit({"change": what, "id": id, "what": more} for what, id, more in rows)
    else:
        table(("change", "id", "what"), [(what, id[:12], more) for what, id, more in rows])


@app.command("from-traces")
def from_traces(
    name: Name,
    trace: Annotated[
        list[str] | None, typer.Option(help="A trace's id, or the beginning of it; may be repeated.")
    ] = None,
    correction: Annotated[
        list[str] | None, typer.Option(help="TRACE=REFERENCE: pick a trace, and say what the answer should have been.")
    ] = None,
    of: Annotated[str | None, typer.Option("--name", help="Only traces whose root has this name.")] = None,
    project: Annotated[str | None, typer.Option(help="Only traces of this project.")] = None,
    status: Annotated[str | None, typer.Option(help="ok or error.")] = None,
    where: WhereOption = None,
    limit: Annotated[int, typer.Option(help="At most so many traces, latest first.")] = 1000,
    outputs_are_references: Annotated[bool, typer.Option(help="What was answered is the reference.")] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Make examples of stored traces, picked by id or by filter.

    Example: `assay datasets from-traces hard --correction 'ab12cd34=Within 3 days' --trace 0f1e2d3c`
    """
    from assay.evaluators import datasets

    wanted = conditions(where, name=of, project=project, status=status)
    with opened(store) as found:
        corrections = {whole_id(found, id): reference for id, reference in map(_correction, correction or [])}
        picked = dict.fromkeys([*(whole_id(found, one) for one in trace or []), *corrections])
        examples = datasets.from_traces(
            found,
            list(picked) or None,
            corrections=corrections,
            limit=limit,
            outputs_are_references=outputs_are_references,
            filter=wanted,
        )
        if absent := picked.keys() - {one.id for one in examples}:
            raise Refused(f"there is no trace {min(absent)!r}: see `assay traces list`")
        if not examples:
            raise Refused("no trace passes: see `assay traces list`")
        saved = datasets.save(found, name, examples)
    _say(saved, json)


@app.command()
def generate(
    name: Name,
    model: Annotated[str, typer.Option(help="A model's name at the endpoint.")],
    file: Annotated[
        list[Path] | None, typer.Argument(help="Documents: each text file is one, each line of a JSONL file is one.")
    ] = None,
    like: Annotated[str | None, typer.Option(help="Instead of documents: vary the examples of this dataset.")] = None,
    per_source: Annotated[int, typer.Option(help="Examples per document or seed.")] = 3,
    base_url: Annotated[str | None, typer.Option(help="An OpenAI-compatible endpoint; else OPENAI_BASE_URL.")] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Let a model write examples, about documents or like those of another dataset. The key is OPENAI_API_KEY.

    Example: `assay datasets generate faq-questions docs/faq.md --model gpt-4o-mini --per-source 5`
    """
    from openai import OpenAI, OpenAIError

    from assay.evaluators import datasets

    if bool(file) == bool(like):
        raise Refused("name files with documents, or a dataset with --like: one of the two")
    with opened(store, make=like is None) as found:
        source = found.examples(like) if like else _documents(file or [])
        try:
            written = datasets.generate(
                source,
                model,
                client=OpenAI(base_url=base_url),
                per_source=per_source,
                on_error=lambda error: notes.print(f"left out: {error}", markup=False),
            )
        except OpenAIError as error:
            raise Refused(f"the model's endpoint: {' '.join(str(error).split())}") from None
        if not written:
            raise Refused(f"{model!r} has written nothing that can be read")
        _say(datasets.save(found, name, written), json)


@app.command()
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    store: StoreOption = None,
) -> None:
    """Remove a dataset with all its versions; experiments over it stay.

    Example: `assay datasets delete parcels --yes`
    """
    with opened(store) as found:
        known = found.dataset(name)
        if not yes:
            typer.confirm(f"Remove {name} ({known.example_count} examples) with all its versions?", abort=True)
        found.delete_dataset(name)
    console.print(f"removed {name}", markup=False)


def _correction(given: str) -> tuple[str, Any]:
    """(trace, reference); the reference is read as JSON if it is an object, a list or a quoted text."""
    from assay.evaluators.datasets import cell

    id, equals, reference = given.partition("=")
    if not (id and equals):
        raise Refused(f"--correction {given!r}: say which trace and what it should have answered, as in ab12cd34=Paris")
    return id, cell(reference)


def _say(saved: Dataset, json: bool) -> None:
    if json:
        emit([_plain(saved)])
    else:
        console.print(f"{saved.name} version {saved.version}: {saved.example_count} examples", markup=False)


def _plain(dataset: Dataset) -> dict[str, Any]:
    return asdict(dataset)


def _cells(dataset: Dataset) -> tuple[str, ...]:
    return dataset.name, str(dataset.version), dataset.kind, str(dataset.example_count)


def _documents(files: Iterable[Path]) -> list[Any]:
    """One document per text file, known by its path, or per line of a JSONL file."""
    import orjson

    found: list[Any] = []
    for file in files:
        if file.suffix.lower() in (".jsonl", ".ndjson"):
            found += [orjson.loads(line) for line in file.read_bytes().splitlines() if line.strip()]
        else:
            found.append({"id": str(file), "content": file.read_text("utf-8")})
    return found


def _columns(given: Iterable[str]) -> dict[str, str]:
    pairs = [one.partition("=") for one in given]
    wrong = [name for name, equals, field in pairs if not (name and equals and field)]
    if wrong:
        raise Refused(f"--column {wrong[0]!r}: say which becomes what, as in gold=reference_outputs")
    return {name: field for name, _, field in pairs}


def _kind(given: str | None) -> DatasetKind | None:
    if given not in (None, "kv", "llm", "chat"):
        raise Refused(f"--kind {given!r}: known are kv, llm, chat")
    return cast("DatasetKind | None", given)


def _schema(given: str | None) -> Any:
    import orjson

    if given is None or given == "infer":
        return given
    try:
        return orjson.loads(Path(given).read_bytes())
    except orjson.JSONDecodeError as error:
        raise Refused(f"--schema {given!r} is not JSON: {error}") from None
