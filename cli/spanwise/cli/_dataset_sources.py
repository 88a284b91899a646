"""Where examples come from: `spanwise datasets import` (a file), `from-traces` (what was kept), `generate` (a
model)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import orjson
import typer

from spanwise.cli._common import conditions, console, emit, notes, opened, whole_id
from spanwise.cli._options import DatasetName, JsonOption, StoreOption, WhereOption
from spanwise.collector.errors import Refused
from spanwise.collector.records import Dataset, DatasetKind, Example

From = Annotated[Path, typer.Argument(help="By its ending: JSONL, JSON, CSV, YAML, Parquet, xlsx; exports too.")]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", help="Rename a column, as in gold=reference_outputs or q=inputs.question."),
]
Kind = Annotated[str | None, typer.Option(help="kv, llm or chat; else told by the first example.")]
Schema = Annotated[
    str | None, typer.Option(help="A JSON file with schemas under inputs and reference_outputs, or 'infer'.")
]
Replace = Annotated[bool, typer.Option(help="Take out what is not in the file.")]
Deduplicate = Annotated[bool, typer.Option(help="Leave out rows whose inputs an earlier row of the file has.")]
Encoding = Annotated[str | None, typer.Option(help="Of a text file that is not UTF-8, as in cp1252 or utf-16.")]
Split = Annotated[list[str] | None, typer.Option("--split", help="Only examples of this split; may be repeated.")]
Description = Annotated[str | None, typer.Option(help="What the dataset is for.")]

Traces = Annotated[
    list[str] | None, typer.Option("--trace", help="A trace's id, or the beginning of it; may be repeated.")
]
Corrections = Annotated[
    list[str] | None,
    typer.Option("--correction", help="TRACE=REFERENCE: pick a trace, and say what the answer should have been."),
]
RootName = Annotated[str | None, typer.Option("--name", help="Only traces whose root has this name.")]
Project = Annotated[str | None, typer.Option(help="Only traces of this project.")]
Status = Annotated[str | None, typer.Option(help="ok or error.")]
MostTraces = Annotated[int, typer.Option(help="At most so many traces, latest first.")]
AreReferences = Annotated[bool, typer.Option(help="What was answered is the reference.")]

Model = Annotated[str, typer.Option(help="A model's name at the endpoint.")]
Documents = Annotated[
    list[Path] | None, typer.Argument(help="Documents: each text file is one, each line of a JSONL file is one.")
]
Like = Annotated[str | None, typer.Option(help="Instead of documents: vary the examples of this dataset.")]
PerSource = Annotated[int, typer.Option(help="Examples per document or seed.")]
BaseUrl = Annotated[
    str | None, typer.Option(help="An OpenAI-compatible endpoint; else SPANWISE_JUDGE_URL or OPENAI_BASE_URL.")
]


def import_(
    name: DatasetName,
    file: From,
    columns: Columns = None,
    kind: Kind = None,
    schema: Schema = None,
    replace: Replace = False,
    deduplicate: Deduplicate = False,
    encoding: Encoding = None,
    split: Split = None,
    description: Description = None,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put the examples of a file into a dataset: a new version, if anything changed.

    Example: `spanwise datasets import parcels questions.csv --column gold=reference_outputs --schema infer`
    """
    from spanwise.evaluators import datasets

    examples = datasets.read(file, columns=_renamed(columns or []), split=split, encoding=encoding)
    if deduplicate:
        examples = _once(examples)
    settings: dict[str, Any] = {"kind": _kind(kind), "schema": _schema(schema), "description": description}
    with opened(at, make=True) as store:
        saved = datasets.save(store, name, examples, replace=replace, **settings)
    _say(saved, as_json)


def from_traces(
    name: DatasetName,
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
    """Make examples of stored traces, picked by id or by filter.

    Example: `spanwise datasets from-traces hard --correction 'ab12cd34=Within 3 days' --trace 0f1e2d3c`
    """
    from spanwise.evaluators import datasets

    wanted = conditions(where, name=root_name, project=project, status=status)
    with opened(at) as store:
        corrected = {whole_id(store, id): reference for id, reference in map(_correction, corrections or [])}
        picked = list(dict.fromkeys([*(whole_id(store, id) for id in traces or []), *corrected]))
        if absent := set(picked) - {trace.trace_id for trace in datasets.stored_traces(store, picked)}:
            raise Refused(f"there is no trace {min(absent)!r}: see `spanwise traces list`")
        if any((root_name, project, status, where)) or not picked:  # with filters, what passes them comes, too
            passing = datasets.stored_traces(store, limit=limit, filter=wanted)
            picked = list(dict.fromkeys([*picked, *(trace.trace_id for trace in passing)]))
        examples = datasets.from_traces(
            store, picked, corrections=corrected, outputs_are_references=outputs_are_references
        )
        if not examples:
            raise Refused("no trace passes: see `spanwise traces list`")
        saved = datasets.save(store, name, examples)
    _say(saved, as_json)


def generate(
    name: DatasetName,
    model: Model,
    files: Documents = None,
    like: Like = None,
    per_source: PerSource = 3,
    base_url: BaseUrl = None,
    at: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a model write examples, about documents or like those of another dataset.

    The key is SPANWISE_JUDGE_KEY, else OPENAI_API_KEY.

    Example: `spanwise datasets generate faq-questions docs/faq.md --model gpt-4o-mini --per-source 5`
    """
    from spanwise.evaluators import datasets

    if bool(files) == bool(like):
        raise Refused("name files with documents, or a dataset with --like: one of the two")
    with opened(at, make=like is None) as store:
        source = store.examples(like) if like else _documents(files or [])
        written = _written(source, model, per_source, base_url)
        if not written:
            raise Refused(f"{model!r} has written nothing that can be read")
        _say(datasets.save(store, name, written), as_json)


def _written(source: list[Any], model: str, per_source: int, base_url: str | None) -> list[Any]:
    """What the model has written; of a document about which it could not, a note says why. Raises `Refused`."""
    from spanwise.cli._judges import tell_where
    from spanwise.evaluators import Judge, datasets
    from spanwise.evaluators.protocol import Unjudged

    judge = Judge(model=model, base_url=base_url, temperature=None, seed=None, cache=False)
    tell_where([judge.where])

    def left_out(error: Exception) -> None:
        notes.print(f"left out: {error}", markup=False)

    try:
        return datasets.generate(source, judge, per_source=per_source, on_error=left_out)
    except Unjudged as error:
        raise Refused(f"the model's endpoint: {error}") from None


def _once(examples: list[Example]) -> list[Example]:
    """Those whose inputs no earlier one has; says how many were left out, as a correction may be among them."""
    from spanwise.evaluators import datasets

    kept = datasets.deduplicate(examples)
    if left_out := len(examples) - len(kept):
        notes.print(f"left out {left_out} rows that ask what an earlier one asks: the first counts", markup=False)
    return kept


def _correction(given: str) -> tuple[str, Any]:
    """(trace, reference); the reference is read as JSON if it is an object, a list or a quoted text."""
    from spanwise.evaluators.datasets import cell

    id, equals, reference = given.partition("=")
    if not (id and equals):
        raise Refused(f"--correction {given!r}: say which trace and what it should have answered, as in ab12cd34=Paris")
    return id, cell(reference)


def _say(saved: Dataset, as_json: bool) -> None:
    if as_json:
        emit([asdict(saved)])
    else:
        console.print(f"{saved.name} version {saved.version}: {saved.example_count} examples", markup=False)


def _documents(files: Iterable[Path]) -> list[Any]:
    """One document per text file, known by its path, or per line of a JSONL file."""
    documents: list[Any] = []
    for file in files:
        if file.suffix.lower() in (".jsonl", ".ndjson"):
            documents += [orjson.loads(line) for line in file.read_bytes().splitlines() if line.strip()]
        else:
            documents.append({"id": str(file), "content": file.read_text("utf-8")})
    return documents


def _renamed(columns: Iterable[str]) -> dict[str, str]:
    """Columns of the file and the fields that they become."""
    pairs = [column.partition("=") for column in columns]
    wrong = [name for name, equals, field in pairs if not (name and equals and field)]
    if wrong:
        raise Refused(f"--column {wrong[0]!r}: say which becomes what, as in gold=reference_outputs")
    return {name: field for name, _, field in pairs}


def _kind(given: str | None) -> DatasetKind | None:
    if given not in (None, "kv", "llm", "chat"):
        raise Refused(f"--kind {given!r}: known are kv, llm, chat")
    return cast("DatasetKind | None", given)


def _schema(given: str | None) -> Any:
    if given is None or given == "infer":
        return given
    try:
        return orjson.loads(Path(given).read_bytes())
    except orjson.JSONDecodeError as error:
        raise Refused(f"--schema {given!r} is not JSON: {error}") from None
