"""Column mapping: names and layouts of other products to the fields of an example; splits.

- Databricks: request, response, expected_response, retrieved_context, expected_retrieved_context,
  guidelines, also below MLflow's expectations.
- LangSmith: inputs, outputs (the reference). Langfuse: input, expectedOutput. Phoenix: input, output (the
  reference).
- MLflow: expectations, and the results of a trace search with assessments.
- DeepEval: context holds the expected documents, retrieval_context the retrieved ones; conversations have
  turns.
- OpenAI's chat lines: messages, the last of which is the reference.
- Phoenix: input_question and so on in CSV; spans with attributes.input.value.

`normalize_layout` handles layouts that column names alone do not identify. Any other column becomes an
input. If the row has a column `inputs`, the other columns become metadata instead, unless they are empty.

An example may be in several splits. `metadata["dataset_split"]` holds all of them, as in LangSmith. `split` is the
first of them other than "base", which is LangSmith's split of all examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import orjson

from spanwise.collector.errors import SpanwiseError
from spanwise.collector.records import JSON, Example
from spanwise.evaluators.interface import to_documents, to_plain

Split: TypeAlias = str | Sequence[str] | None
SPLITS_KEY = "dataset_split"


def in_split(example: Example, split: Split) -> bool:
    """Return whether an example is in a split, or in one of several. None matches every example."""
    if split is None:
        return True
    wanted_splits = {split} if isinstance(split, str) else set(split)
    splits = example.metadata.get(SPLITS_KEY)
    of_it = splits if isinstance(splits, list | tuple) else [splits]
    return example.split in wanted_splits or any(isinstance(name, str) and name in wanted_splits for name in of_it)


def has_splits(source: Any) -> bool:
    """Return whether the source maps names to datasets, as Hugging Face's `DatasetDict` and `IterableDatasetDict` do."""
    return (
        isinstance(source, Mapping)
        and bool(source)
        and all(hasattr(split, "column_names") for split in source.values())
    )


def read_split_rows(source: Mapping[str, Any], split: Split) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the rows of the requested splits, each with its split's name. Raises `ValueError`, which lists the available
    splits.
    """
    for name in _choose_splits(source, split):
        for number, row in enumerate(source[name], 1):
            renamed = {"metadata.split" if column == "split" else column: value for column, value in row.items()}
            yield f"split {name!r}, example {number}", {**renamed, "split": name}


def _choose_splits(source: Mapping[str, Any], split: Split) -> Sequence[str]:
    sizes = {
        name: f" ({len(split_rows):,})" if hasattr(split_rows, "__len__") else "" for name, split_rows in source.items()
    }
    available = ", ".join(f"{name!r}{size}" for name, size in sizes.items())
    if split is None and len(source) > 1:
        first = next(iter(source))
        raise ValueError(
            f"a {type(source).__name__} has several splits: select one with split={first!r}, or pass a list; it has {available}"
        )
    names = list(source) if split is None else [split] if isinstance(split, str) else list(split)
    if absent := [name for name in names if name not in source]:
        raise ValueError(f"there is no split {absent[0]!r}: the {type(source).__name__} has {available}")
    return names


Columns: TypeAlias = dict[str, JSON]

# Columns that are kept even if empty, because their presence identifies the layout.
MARKER_COLUMNS = frozenset({"retrieval_context", "additional_metadata"})
_PHOENIX_PREFIXES = {"input": "inputs", "output": "reference_outputs", "metadata": "metadata"}
_DEEPEVAL_COLUMNS = frozenset({"context", *MARKER_COLUMNS})
_MLFLOW_TRACE_COLUMNS = frozenset({"trace_id", "request", "response", "assessments"})
_SPAN_PREFIX = "attributes."  # prefix of most columns in a DataFrame of Phoenix spans
_SPAN_INPUTS = "attributes.input.value"


def normalize_layout(row: Columns) -> Columns:
    """Return the row with the columns of its product's layout renamed to known names."""
    if row.keys() >= _MLFLOW_TRACE_COLUMNS:
        row = _from_mlflow_trace(row)
    if isinstance(expected := row.get("expectations"), Mapping):
        row = {name: value for name, value in row.items() if name != "expectations"} | dict(expected)
        row = {
            name: value for name, value in row.items() if name != "outputs" or value != {}
        }  # MLflow writes {} for missing outputs
    if "retrieval_context" in row and "context" in row:
        row = _from_deepeval(row)
    if _SPAN_INPUTS in row:
        return _from_span(row)
    if not (row.keys() & {"inputs", "input", "request"}):
        if "messages" in row:
            return _from_messages(row)
        if "scenario" in row or "turns" in row:
            return _from_turns(row)
    return _from_prefixes(row) if "example_id" in row else row


def _from_mlflow_trace(row: Columns) -> Columns:
    """Return request, response and expectations of a row of `mlflow.search_traces()`."""
    assessments = row["assessments"] if isinstance(row["assessments"], list) else []
    expected = {}
    for assessment in assessments:
        if isinstance(assessment, Mapping) and "expectation" in assessment:
            value = assessment["expectation"]
            name = str(assessment.get("assessment_name"))
            expected[name] = value.get("value") if isinstance(value, Mapping) else value
    columns = {name: row[name] for name in ("request", "response")}
    return {**columns, "expectations": expected, "metadata": {"trace_id": row["trace_id"]}}


def _from_deepeval(row: Columns) -> Columns:
    """Rename the context columns, and split contexts at "|", the separator with which DeepEval joins texts in saved
    goldens.
    """
    named = {"expected_documents" if name == "context" else name: value for name, value in row.items()}
    for name in ("expected_documents", "retrieval_context") if row.keys() >= _DEEPEVAL_COLUMNS else ():
        if isinstance(joined := named[name], str):
            named[name] = joined.split("|")
    return named


def _from_turns(row: Columns) -> Columns:
    """Convert a conversation of DeepEval: the assistant's last turn is the output. A row without turns is a scenario."""
    turns = row.get("turns")
    others = {"reference_outputs" if name == "expected_outcome" else name: value for name, value in row.items()}
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, Mapping) for turn in turns):
        return {"inputs.scenario" if name == "scenario" else name: value for name, value in others.items()}
    del others["turns"]
    messages = [{"role": turn.get("role"), "content": turn.get("content")} for turn in turns]
    if messages[-1]["role"] != "assistant":
        return {"inputs": {"input": messages}, **others}
    return {"inputs": {"input": messages[:-1]}, "outputs": {"output": messages[-1]}, **others}


def _from_span(row: Columns) -> Columns:
    """Convert a span of Phoenix or Arize with OpenInference attributes."""
    retrieved = row.get("attributes.retrieval.documents")
    fields: Columns = {"inputs": _parse_mime_value(row, "input"), "outputs": _parse_mime_value(row, "output")}
    if isinstance(retrieved, list):
        fields["documents"] = [
            {name.removeprefix("document."): value for name, value in document.items()}
            for document in retrieved
            if isinstance(document, Mapping)
        ]
    others = {name: value for name, value in row.items() if not name.startswith(_SPAN_PREFIX) and name != "parent_id"}
    return {**others, **fields}


def _parse_mime_value(row: Columns, side: str) -> JSON:
    value = row.get(f"{_SPAN_PREFIX}{side}.value")
    if isinstance(value, str) and row.get(f"{_SPAN_PREFIX}{side}.mime_type") == "application/json":
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def _from_messages(row: Columns) -> Columns:
    """Convert a fine-tuning line: the assistant's last message is the reference, the messages before it are the
    input.
    """
    turns = row["messages"]
    if not isinstance(turns, list) or not turns or not isinstance(turns[-1], Mapping):
        return row
    others = {name: value for name, value in row.items() if name != "messages"}
    if turns[-1].get("role") != "assistant":
        return {"inputs": {"input": turns}, **others}
    return {"inputs": {"input": turns[:-1]}, "reference_outputs": {"output": turns[-1]}, **others}


def _from_prefixes(row: Columns) -> Columns:
    """Convert a row of Phoenix's CSV, in which the prefix of a column names its field."""
    split = {name: name.partition("_") for name in row if name != "example_id"}
    if not split or not all(key and prefix in _PHOENIX_PREFIXES for prefix, _, key in split.values()):
        return row
    renamed = {name: f"{_PHOENIX_PREFIXES[prefix]}.{key}" for name, (prefix, _, key) in split.items()}
    return {renamed.get(name, name): value for name, value in row.items()}


Row = Mapping[str, JSON]

FIELDS: dict[str, tuple[str, ...]] = {
    "inputs": ("inputs", "input", "request"),
    "outputs": ("outputs", "output", "response", "actual", "actual_output", "actual_answer", "prediction"),
    "reference_outputs": (
        "reference_outputs",
        "reference",
        "reference_output",
        "expected",
        "expected_output",
        "expected_outputs",
        "expected_response",
        "expected_answer",
        "expectedOutput",
        "ground_truth",
        "target",
    ),
    "documents": ("documents", "retrieved_context", "retrieved_contexts", "retrieval_context", "contexts", "context"),
    "expected_documents": ("expected_documents", "expected_retrieved_context", "reference_contexts"),
    "conditions": ("conditions", "condition"),
    "guidelines": ("guidelines",),
    "categories": ("categories", "category"),
    "history": ("history",),
    "base_id": ("base_id",),
    "evaluators": ("evaluators",),
    "metadata": ("metadata", "additional_metadata"),
    "split": ("split", "splits"),
    "id": ("id", "example_id", "request_id", "dataset_record_id"),
}
_FIELD_OF = {name: field for field, names in FIELDS.items() for name in names}
# columns of exports whose outputs are references
_REFERENCE_IS_OUTPUT = frozenset({"dataset_id", "source_run_id", "datasetId"})
_WITH_PARTS = ("inputs", "outputs", "reference_outputs", "metadata")
_SCALARS = ("base_id", "split", "id")
_PLAIN_FIELDS = ("reference_outputs", "outputs", "conditions", "guidelines", "history", "metadata")
_UNCONVERTED_FIELDS = frozenset(
    {"inputs", "documents", "expected_documents"}
)  # tasks get inputs unchanged; `to_documents` converts documents
_MISSING_TYPES = frozenset({"NAType", "NaTType"})  # types of pandas' missing values


class BadRow(SpanwiseError, ValueError):
    """Error for a row of a dataset that cannot become an example. The message names the row, the problem and the
    remedy.
    """


def to_example(row: Row, *, where: str = "row", columns: Mapping[str, str] | None = None) -> Example:
    """Return the example in a row. `columns` renames columns first: {"gold": "reference_outputs", "q":
    "inputs.question"}.

    Missing values (NaN, `pandas.NA`) are left out. All fields become plain values, as a store would keep them. Only
    inputs are not converted, because a task may need the original objects. Raises `BadRow`.
    """
    row = {name: value for name, value in row.items() if not _is_missing(value) or name in MARKER_COLUMNS}
    if not columns and "inputs" in row and row.keys() <= FIELDS.keys():
        return _build_example(row, where)  # all names are field names, so no mapping is needed
    renamed = {(columns or {}).get(name, str(name)): value for name, value in row.items()}
    draft, others = _split_fields(normalize_layout(renamed))
    _assign_references(draft, others, row)
    if "inputs" in draft:
        known = {name: value for name, value in others.items() if value is not None}
        draft["metadata"] = {**known, **_require_mapping(draft.get("metadata"), "metadata", where)}
    elif others:
        draft["inputs"] = others
    else:
        raise BadRow(f"{where} has no inputs, only {sorted(row)!r}: name them with columns={{'…': 'inputs'}}")
    return _build_example(draft, where)


def normalize_example(example: Example) -> Example:
    """Convert the fields of a hand-made example to plain values, but not its inputs and documents. An example with plain
    values is returned unchanged.
    """
    changed = {}
    for name in _PLAIN_FIELDS:
        value = getattr(example, name)
        is_empty = value is None or (type(value) is dict and not value)
        if not is_empty and (plain := to_plain(value)) is not value:
            changed[name] = plain
    if example.evaluators and type(example.evaluators) is not tuple:
        changed["evaluators"] = _read_evaluator_names(example.evaluators, f"example {example.id[:12]}")
    return replace(example, **changed) if changed else example


def _split_fields(row: Row) -> tuple[dict[str, JSON], dict[str, JSON]]:
    """Split a row into the fields of an example and its other columns. A column `inputs.question` becomes the key
    `question` of the field `inputs`.

    If two columns map to one field, the first wins. The other remains a separate column, so no data is lost.
    """
    draft: dict[str, JSON] = {}
    others: dict[str, JSON] = {}

    def is_part(column: tuple[str, JSON]) -> bool:
        head, dot, _ = column[0].partition(".")
        return bool(dot) and _FIELD_OF.get(head) in _WITH_PARTS

    for name, value in sorted(row.items(), key=is_part):  # fields precede their parts
        head, _, inner = name.partition(".")
        field = _FIELD_OF.get(head, "")
        if inner and field in _WITH_PARTS and isinstance(draft.get(field) or {}, Mapping):
            draft[field] = {**(draft.get(field) or {}), inner: value}
        elif not inner and field and draft.get(field) is None:
            draft[field] = value
        else:
            others[name] = value
    return draft, others


def _assign_references(draft: dict[str, JSON], others: dict[str, JSON], row: Row) -> None:
    """Move outputs to the reference if the export calls the reference "outputs". A column `answer` becomes the
    reference, or the outputs if there is a reference.
    """
    both_are_objects = isinstance(row.get("input"), Mapping) and isinstance(row.get("output"), Mapping)
    of_phoenix = "node_id" in row and row["node_id"] == row.get("id")  # Phoenix's CSV, with input.question and so on
    output_is_reference = both_are_objects or of_phoenix or any(name in row for name in _REFERENCE_IS_OUTPUT)
    if draft.get("reference_outputs") is None and output_is_reference:
        draft["reference_outputs"] = draft.pop("outputs", None)
    elif "answer" in others and "inputs" not in draft:
        field = "outputs" if draft.get("reference_outputs") is not None else "reference_outputs"
        draft.setdefault(field, others.pop("answer"))


def _build_example(draft: dict[str, Any], where: str) -> Example:
    plain = {name: value if name in _UNCONVERTED_FIELDS else to_plain(value) for name, value in draft.items()}
    known: dict[str, Any] = {name: value for name, value in plain.items() if value is not None}
    for name in ("documents", "expected_documents"):
        if name in known:
            value = known[name]
            try:
                known[name] = to_documents([value] if isinstance(value, str | Mapping) else value)
            except (TypeError, ValueError) as error:
                raise BadRow(f"{where}, {name}: {error}") from None
    if "categories" in known:
        value = known["categories"]
        names = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
        known["categories"] = tuple(str(name).strip() for name in names)
    if "evaluators" in known:
        known["evaluators"] = _read_evaluator_names(known["evaluators"], where)
    if "metadata" in known:
        known["metadata"] = _require_mapping(known["metadata"], "metadata", where)
    _assign_split(known)
    for name in _SCALARS:
        if name in known:
            value = known[name]
            # 7.0 becomes "7", because an integer column with gaps arrives as floats
            text = str(int(value) if isinstance(value, float) and value.is_integer() else value)
            # a store cannot hold lone surrogates
            known[name] = text if text.isascii() else text.encode("utf-8", "replace").decode()
    return Example(inputs=known.pop("inputs", None), **known)


def _read_evaluator_names(value: Any, where: str) -> tuple[str, ...]:
    """Return the names in a list or in a comma-separated text, without empty ones."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise BadRow(
            f"{where}: evaluators must be a list of keys or ids, or a comma-separated text, got {value!r:.120}"
        )
    return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))


def _is_missing(value: Any) -> bool:
    if isinstance(value, float):
        return value != value
    return type(value).__name__ in _MISSING_TYPES and type(value).__module__.startswith("pandas.")


def _assign_split(known: dict[str, Any]) -> None:
    """Keep all splits of an example in its metadata (see `SPLITS_KEY`), and set one of them as its split."""
    split, metadata = known.get("split"), known.get("metadata", {})
    if isinstance(split, list | tuple):
        known["metadata"] = metadata = {SPLITS_KEY: list(split), **metadata}
        known.pop("split")
    splits = metadata.get(SPLITS_KEY)
    names = splits if isinstance(splits, list) else [splits] if splits else []
    if names and "split" not in known:
        known["split"] = next((name for name in names if name != "base"), names[0])


def _require_mapping(value: JSON, name: str, where: str) -> dict[str, JSON]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadRow(f"{where}: {name} is {value!r:.120}, not an object")
    return dict(value)
