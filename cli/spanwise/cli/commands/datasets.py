"""`spanwise datasets`: list, show, import, export, compare, make from traces, generate, perturb."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import orjson
import typer

from spanwise.cli.command_io import (
    DatasetArgument,
    JsonOption,
    StoreOption,
    WhereOption,
    YesOption,
    build_filter,
    emit,
    open_store,
    print_line,
    print_note,
    print_table,
    resolve_trace_id,
    shorten,
)
from spanwise.collector.errors import Refused
from spanwise.collector.records import Dataset

SourceFile = Annotated[
    str,
    typer.Argument(
        help="Input file; its extension sets the format: JSONL, JSON, CSV, YAML, Parquet or xlsx. Exports are read too. Or a dataset of the Hugging Face hub: hf://openai/gsm8k."
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column", help="Rename a column, such as gold=reference_outputs or q=inputs.question; may be repeated."
    ),
]
Kind = Annotated[str | None, typer.Option(help="kv, llm or chat. Default: derived from the first example.")]
Schema = Annotated[
    str | None, typer.Option(help="JSON file with schemas under `inputs` and `reference_outputs`, or 'infer'.")
]
Replace = Annotated[bool, typer.Option(help="Remove examples that are not in the file.")]
Deduplicate = Annotated[bool, typer.Option(help="Skip rows whose inputs occur in an earlier row of the file.")]
Encoding = Annotated[
    str | None, typer.Option(help="Encoding of a text file that is not UTF-8, such as cp1252 or utf-16.")
]
SplitNames = Annotated[list[str] | None, typer.Option("--split", help="Only examples of this split; may be repeated.")]
Description = Annotated[str | None, typer.Option(help="Description of the dataset.")]

Traces = Annotated[list[str] | None, typer.Option("--trace", help="Trace id or its first characters; may be repeated.")]
Corrections = Annotated[
    list[str] | None,
    typer.Option("--correction", help="TRACE=REFERENCE: select a trace and set its correct output; may be repeated."),
]
RootName = Annotated[str | None, typer.Option("--name", help="Only traces whose root has this name.")]
Project = Annotated[str | None, typer.Option(help="Only traces of this project.")]
Status = Annotated[str | None, typer.Option(help="Only traces with this status: ok or error.")]
MostTraces = Annotated[int, typer.Option(help="Maximum number of traces, newest first.")]
AreReferences = Annotated[bool, typer.Option(help="Use the recorded output as the reference.")]

Model = Annotated[str, typer.Option(help="Name of a model of the endpoint.")]
Documents = Annotated[
    list[Path] | None, typer.Argument(help="Documents: a text file is one document; each line of a JSONL file is one.")
]
Like = Annotated[
    str | None, typer.Option(help="Instead of documents: generate variations of the examples of this dataset.")
]
PerSource = Annotated[int, typer.Option(help="Examples per document or seed.")]
BaseUrl = Annotated[
    str | None, typer.Option(help="OpenAI-compatible endpoint. Default: SPANWISE_JUDGE_URL or OPENAI_BASE_URL.")
]

PerturbationKinds = Annotated[
    list[str],
    typer.Option(
        "--kind",
        help="typos, casing, punctuation, contractions, word_order, noise, synonyms, base64 or base16; may be repeated.",
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of the random changes. Equal seeds give equal texts.")]
Share = Annotated[float, typer.Option(help="Share of the examples that each kind perturbs, from 0 to 1.")]
NewName = Annotated[
    str | None, typer.Option("--to", help="Save to this dataset. Default: a new version of the same dataset.")
]
Fields = Annotated[
    list[str] | None, typer.Option("--field", help="Change only this field of the inputs; may be repeated.")
]
Unprotected = Annotated[
    bool, typer.Option(help="Also change code, URLs, e-mail addresses, placeholders, numbers and JSON.")
]
Chain = Annotated[bool, typer.Option(help="Also perturb examples that are perturbations themselves.")]


def import_(
    name: DatasetArgument,
    file: SourceFile,
    columns: Columns = None,
    kind: Kind = None,
    schema: Schema = None,
    replace: Replace = False,
    deduplicate: Deduplicate = False,
    encoding: Encoding = None,
    split: SplitNames = None,
    description: Description = None,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import the examples of a file into a dataset. Creates a new version if anything changed.

    Example: `spanwise datasets import parcels questions.csv --column gold=reference_outputs --schema infer`
    """
    from spanwise.evaluators import datasets

    pairs = [column.partition("=") for column in columns or []]
    for old, equals, new in pairs:
        if not (old and equals and new):
            raise Refused(f"--column {old!r} must be OLD=NEW, such as gold=reference_outputs")
    source = file if datasets.is_hub_id(file) else Path(file)
    examples = datasets.read(source, columns={old: new for old, _, new in pairs}, split=split, encoding=encoding)
    if deduplicate:
        unique = datasets.deduplicate(examples)
        if dropped := len(examples) - len(unique):  # a dropped row may be a correction
            print_note(f"skipped {dropped} rows with the same inputs as an earlier row")
        examples = unique
    if kind not in (None, "kv", "llm", "chat"):
        raise Refused(f"unknown --kind {kind!r}; expected one of: kv, llm, chat")
    settings: dict[str, Any] = {"kind": kind, "schema": _load_schema(schema), "description": description}
    with open_store(at, make=True) as store:
        saved = datasets.save(store, name, examples, replace=replace, **settings)
    _print_saved(saved, as_json)


def from_traces(
    name: DatasetArgument,
    traces: Traces = None,
    corrections: Corrections = None,
    root_name: RootName = None,
    project: Project = None,
    status: Status = None,
    where: WhereOption = None,
    limit: MostTraces = 1000,
    outputs_are_references: AreReferences = False,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create examples from stored traces, selected by id or by filter.

    Example: `spanwise datasets from-traces hard --correction 'ab12cd34=Within 3 days' --trace 0f1e2d3c`
    """
    from spanwise.evaluators import datasets

    wanted = build_filter(where, name=root_name, project=project, status=status)
    with open_store(at) as store:
        corrected = {
            resolve_trace_id(store, id): reference for id, reference in map(_parse_correction, corrections or [])
        }
        ids = list(dict.fromkeys([*(resolve_trace_id(store, id) for id in traces or []), *corrected]))
        if absent := set(ids) - {trace.trace_id for trace in datasets.read_traces(store, ids)}:
            raise Refused(f"there is no trace {min(absent)!r}; list traces with `spanwise traces list`")
        # if filters are given, or no traces by id, add the traces that pass the filters
        if any((root_name, project, status, where)) or not ids:
            passing = datasets.read_traces(store, limit=limit, filter=wanted)
            ids = list(dict.fromkeys([*ids, *(trace.trace_id for trace in passing)]))
        examples = datasets.from_traces(
            store, ids, corrections=corrected, outputs_are_references=outputs_are_references
        )
        if not examples:
            raise Refused("no trace matches; list traces with `spanwise traces list`")
        saved = datasets.save(store, name, examples)
    _print_saved(saved, as_json)


def generate(
    name: DatasetArgument,
    model: Model,
    files: Documents = None,
    like: Like = None,
    per_source: PerSource = 3,
    base_url: BaseUrl = None,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Generate examples with a model, about documents or similar to those of another dataset.

    The API key is SPANWISE_JUDGE_KEY, else OPENAI_API_KEY.

    Example: `spanwise datasets generate faq-questions docs/faq.md --model gpt-4o-mini --per-source 5`
    """
    from spanwise.evaluators import datasets

    if bool(files) == bool(like):
        raise Refused("name either files with documents or, with --like, a dataset")
    with open_store(at, make=like is None) as store:
        source = store.examples(like) if like else _read_documents(files or [])
        examples = _generate_examples(source, model, per_source, base_url)
        if not examples:
            raise Refused(f"{model!r} wrote no readable example")
        _print_saved(datasets.save(store, name, examples), as_json)


def _generate_examples(source: list[Any], model: str, per_source: int, base_url: str | None) -> list[Any]:
    """Return the generated examples. If generation fails for a document, print the reason on stderr. Raises
    `Refused`.
    """
    from spanwise.cli.evaluation_files import print_endpoints
    from spanwise.evaluators import Judge, datasets
    from spanwise.evaluators.interface import Unjudged

    judge = Judge(model=model, base_url=base_url, temperature=None, seed=None, cache=False)
    print_endpoints([judge.where])

    def print_skipped(error: Exception) -> None:
        print_note(f"skipped: {error}")

    try:
        return datasets.generate(source, judge, per_source=per_source, on_error=print_skipped)
    except Unjudged as error:
        raise Refused(f"the model's endpoint: {error}") from None


def perturb(
    name: DatasetArgument,
    kinds: PerturbationKinds,
    seed: Seed = 0,
    share: Share = 1.0,
    to: NewName = None,
    fields: Fields = None,
    unprotected: Unprotected = False,
    chain: Chain = False,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add perturbed examples to a dataset, each linked to its base case.

    Example: `spanwise datasets perturb parcels --kind typos --kind casing --seed 1 --to parcels-perturbed`
    """
    from spanwise.evaluators import datasets

    with open_store(at) as store:
        source = store.dataset(name)
        examples = list(datasets.stored_examples(store, name, source.version))
        protect = {"protect": ()} if unprotected else {}
        try:
            result = datasets.perturb(examples, kinds, seed=seed, share=share, fields=fields, chain=chain, **protect)
        except ValueError as error:
            raise Refused(str(error)) from None
        settings: dict[str, Any] = {} if to in (None, name) else {"kind": source.kind, "schema": source.schema}
        saved = datasets.save(store, to or name, result, **settings)
    if as_json:
        counts = {field: getattr(result, field) for field in ("perturbed", "unchangeable", "existing")}
        emit([{**asdict(saved), **counts}])
        return
    rows = [
        (kind, str(count), str(result.unchangeable[kind]), str(result.existing[kind]))
        for kind, count in result.perturbed.items()
    ]
    print_table(("kind", "perturbed", "unchangeable", "existing"), rows)
    _print_saved(saved, as_json)


def _parse_correction(text: str) -> tuple[str, Any]:
    """Parse `TRACE=REFERENCE` into (trace, reference). A reference that is an object, a list or a quoted text is parsed
    as JSON.
    """
    from spanwise.evaluators.datasets import parse_cell

    id, equals, reference = text.partition("=")
    if not (id and equals):
        raise Refused(f"--correction {text!r} must be TRACE=REFERENCE, such as ab12cd34=Paris")
    return id, parse_cell(reference)


def _print_saved(saved: Dataset, as_json: bool) -> None:
    if as_json:
        emit([asdict(saved)])
    else:
        print_line(f"{saved.name} version {saved.version}: {saved.example_count} examples")


def _read_documents(files: Iterable[Path]) -> list[Any]:
    """Read one document per text file, with its path as the id, or one per line of a JSONL file."""
    documents: list[Any] = []
    for file in files:
        if file.suffix.lower() in (".jsonl", ".ndjson"):
            documents += [orjson.loads(line) for line in file.read_bytes().splitlines() if line.strip()]
        else:
            documents.append({"id": str(file), "content": file.read_text("utf-8")})
    return documents


def _load_schema(schema: str | None) -> Any:
    if schema is None or schema == "infer":
        return schema
    try:
        return orjson.loads(Path(schema).read_bytes())
    except orjson.JSONDecodeError as error:
        raise Refused(f"--schema {schema!r} is not JSON: {error}") from None


app = typer.Typer(
    help="Datasets: versioned lists of examples.",
    no_args_is_help=True,
    epilog="Example: `spanwise datasets import parcels parcels.jsonl`",
)

Version = Annotated[int | None, typer.Option("--version", help="Version number. Default: the newest.")]
Split = Annotated[str | None, typer.Option("--split", help="Only examples of this split.")]
Limit = Annotated[int, typer.Option(help="Maximum number of examples.")]
To = Annotated[
    Path, typer.Argument(help="Output file; its extension sets the format: JSONL, JSON, CSV, TSV, YAML or Parquet.")
]
Format = Annotated[str, typer.Option(help="spanwise, openai (chat fine-tuning lines) or databricks.")]
Older = Annotated[int, typer.Argument(help="The older version.")]
Newer = Annotated[int | None, typer.Argument(help="The newer version. Default: the newest.")]
DATASET_COLUMNS = ("name", "version", "kind", "examples")

Sort = Annotated[
    str | None, typer.Option(help="created, version or examples; for descending order, such as --sort=-examples.")
]


@app.command("list")
def list_(sort: Sort = None, at: StoreOption = None, as_json: JsonOption = False) -> None:
    """List all datasets with their newest version.

    Example: `spanwise datasets list --sort=-examples`
    """
    with open_store(at) as store:
        datasets = store.datasets(sort=sort)
    if as_json:
        emit(map(asdict, datasets))
    else:
        print_table(DATASET_COLUMNS, map(_dataset_cells, datasets))


@app.command()
def show(
    name: DatasetArgument,
    version: Version = None,
    split: Split = None,
    limit: Limit = 20,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the examples of a dataset.

    Example: `spanwise datasets show parcels --limit 5`
    """
    from spanwise.evaluators import datasets

    with open_store(at) as store:
        dataset = store.dataset(name, version)
        examples = store.examples(name, version, split=split, limit=limit)
    if as_json:
        emit(map(datasets.to_row, examples))
        return
    rows = [
        (example.id[:12], example.split or "", shorten(example.inputs), shorten(example.reference_outputs))
        for example in examples
    ]
    print_table(("id", "split", "inputs", "reference outputs"), rows)
    print_line(f"{name} version {dataset.version} ({dataset.kind}): {dataset.example_count} examples")


@app.command()
def versions(name: DatasetArgument, at: StoreOption = None, as_json: JsonOption = False) -> None:
    """List every version of a dataset, newest first.

    Example: `spanwise datasets versions parcels`
    """
    with open_store(at) as store:
        datasets = store.versions(name)
    if as_json:
        emit(map(asdict, datasets))
    else:
        print_table(DATASET_COLUMNS, map(_dataset_cells, datasets))


@app.command()
def export(
    name: DatasetArgument,
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
        raise Refused(f"unknown --format {format!r}; expected one of: spanwise, openai, databricks")
    with open_store(at) as store:
        count = datasets.write(store.examples(name, version, split=split), file, format=cast(Any, format))
    print_line(f"{count} examples in {file}")


@app.command()
def diff(
    name: DatasetArgument, before: Older, after: Newer = None, at: StoreOption = None, as_json: JsonOption = False
) -> None:
    """Show the differences between two versions of a dataset.

    Example: `spanwise datasets diff parcels 1 2`
    """
    from spanwise.evaluators import datasets

    with open_store(at) as store:
        changes = datasets.diff(store.examples(name, before), store.examples(name, after))
    rows = [("added", example.id, shorten(example.inputs)) for example in changes.added]
    rows += [("removed", example.id, shorten(example.inputs)) for example in changes.removed]
    rows += [("changed", id, ", ".join(fields)) for id, fields in changes.changed.items()]
    if as_json:
        emit({"change": change, "id": id, "what": what} for change, id, what in rows)
    else:
        print_table(("change", "id", "what"), [(change, id[:12], what) for change, id, what in rows])


@app.command()
def delete(name: DatasetArgument, yes: YesOption = False, at: StoreOption = None) -> None:
    """Delete a dataset with all its versions. Experiments on it stay.

    Example: `spanwise datasets delete parcels --yes`
    """
    with open_store(at) as store:
        dataset = store.dataset(name)
        if not yes:
            typer.confirm(f"Remove {name} ({dataset.example_count} examples) with all its versions?", abort=True)
        store.delete_dataset(name)
    print_line(f"removed {name}")


def _dataset_cells(dataset: Dataset) -> tuple[str, ...]:
    return dataset.name, str(dataset.version), dataset.kind, str(dataset.example_count)


app.command("import")(import_)
app.command("from-traces")(from_traces)
app.command("generate")(generate)
app.command("perturb")(perturb)
