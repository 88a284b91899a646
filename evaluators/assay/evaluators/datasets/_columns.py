"""Which column of a row means what: the names in use become the fields of an `Example`.

Databricks: request, response, expected_response, retrieved_context, expected_retrieved_context, guidelines, also under
MLflow's expectations. LangSmith: inputs, outputs (the reference). Langfuse: input, expectedOutput. Phoenix: input,
output (the reference), in CSV input_question and so on. DeepEval: context is what should have been retrieved,
retrieval_context what was. OpenAI's chat lines: messages, the last of which is the reference. Everything that is no
field becomes an input, unless there is a column `inputs`: then it becomes metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.collector.errors import AssayError
from assay.collector.records import JSON, Document, Example
from assay.evaluators.protocol import documents_of

Row = Mapping[str, JSON]

FIELDS: dict[str, tuple[str, ...]] = {
    "inputs": ("inputs", "input", "request"),
    "outputs": ("outputs", "output", "response", "actual", "actual_output", "prediction"),
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
    "metadata": ("metadata",),
    "split": ("split",),
    "id": ("id", "example_id", "request_id"),
}
_FIELD_OF = {name: field for field, names in FIELDS.items() for name in names}
_REFERENCE_IS_OUTPUT = frozenset({"dataset_id", "source_run_id", "datasetId"})  # columns that only such exports have
_INPUTS = frozenset(FIELDS["inputs"])
_PREFIXES = {"input": "inputs", "output": "reference_outputs", "metadata": "metadata"}
_WITH_PARTS = ("inputs", "outputs", "reference_outputs", "metadata")
_SCALARS = ("base_id", "split", "id")


class BadRow(AssayError, ValueError):
    """A row of a dataset that cannot become an example; says which, what, and the way out."""


def to_example(row: Row, *, where: str = "row", columns: Mapping[str, str] | None = None) -> Example:
    """The example in a row. `columns` renames columns first: {"gold": "reference_outputs", "q": "inputs.question"}.

    Raises `BadRow`.
    """
    if not columns and "inputs" in row and row.keys() <= FIELDS.keys():
        return _example(dict(row), where)  # our own names throughout: nothing has to be told
    draft, rest = _sorted_out(_laid_out(_renamed(row, columns or {})))
    _references(draft, rest, row)
    if "inputs" in draft:
        draft["metadata"] = {**rest, **_mapping(draft.get("metadata"), "metadata", where)}
    elif rest:
        draft["inputs"] = rest
    else:
        raise BadRow(f"{where} has no inputs, only {sorted(row)!r}: name them with columns={{'…': 'inputs'}}")
    return _example(draft, where)


def _renamed(row: Row, columns: Mapping[str, str]) -> dict[str, JSON]:
    return {columns.get(name, str(name)): value for name, value in row.items()}


def _laid_out(row: dict[str, JSON]) -> dict[str, JSON]:
    """Layouts that other names alone do not tell, brought to columns that do."""
    if isinstance(expected := row.get("expectations"), Mapping):
        row = {name: value for name, value in row.items() if name != "expectations"} | dict(expected)
    if "retrieval_context" in row and "context" in row:
        row = {"expected_documents" if name == "context" else name: value for name, value in row.items()}
    if "messages" in row and not (_INPUTS & row.keys()):
        return _of_conversation(row)
    return _of_prefixes(row) if "example_id" in row else row


def _of_conversation(row: dict[str, JSON]) -> dict[str, JSON]:
    """A line for fine-tuning: what the assistant says last is the reference, everything before is what it is given."""
    turns = row["messages"]
    if not isinstance(turns, list) or not turns or not isinstance(turns[-1], Mapping):
        return row
    rest = {name: value for name, value in row.items() if name != "messages"}
    if turns[-1].get("role") != "assistant":
        return {"inputs": {"input": turns}, **rest}
    return {"inputs": {"input": turns[:-1]}, "reference_outputs": {"output": turns[-1]}, **rest}


def _of_prefixes(row: dict[str, JSON]) -> dict[str, JSON]:
    """Phoenix's CSV, where every other column says by its beginning what it is."""
    split = {name: name.partition("_") for name in row if name != "example_id"}
    if not split or not {head for head, _, part in split.values() if part} <= _PREFIXES.keys():
        return row
    if not all(part for _, _, part in split.values()):
        return row
    named = {name: f"{_PREFIXES[head]}.{part}" for name, (head, _, part) in split.items()}
    return {named.get(name, name): value for name, value in row.items()}


def _sorted_out(row: Row) -> tuple[dict[str, JSON], dict[str, JSON]]:
    """The fields of an example that a row has, and its other columns; `inputs.question` is a part of a field.

    Of two columns for one field the first counts, the other stays a column of its own: nothing is lost.
    """
    draft: dict[str, JSON] = {}
    rest: dict[str, JSON] = {}
    for name, value in row.items():
        head, _, part = name.partition(".")
        field = _FIELD_OF.get(head, "")
        if part and field in _WITH_PARTS and isinstance(draft.setdefault(field, {}), dict):
            draft[field] = {**draft[field], part: value}
        elif not part and field and draft.get(field) is None:
            draft[field] = value
        else:
            rest[name] = value
    return draft, rest


def _references(draft: dict[str, JSON], rest: dict[str, JSON], row: Row) -> None:
    """Move outputs to where they belong, when an export calls the reference "outputs"."""
    if draft.get("reference_outputs") is None and _outputs_are_references(row):
        draft["reference_outputs"] = draft.pop("outputs", None)
    elif "answer" in rest and "inputs" not in draft:
        field = "outputs" if draft.get("reference_outputs") is not None else "reference_outputs"
        draft.setdefault(field, rest.pop("answer"))


def _outputs_are_references(row: Row) -> bool:
    both_spread = isinstance(row.get("input"), Mapping) and isinstance(row.get("output"), Mapping)
    return both_spread or any(name in row for name in _REFERENCE_IS_OUTPUT)


def _example(draft: dict[str, Any], where: str) -> Example:
    known = {name: value for name, value in draft.items() if value is not None}
    for name in ("documents", "expected_documents"):
        if name in known:
            known[name] = _documents(known[name], name, where)
    if "categories" in known:
        known["categories"] = _texts(known["categories"])
    if "metadata" in known:
        known["metadata"] = _mapping(known["metadata"], "metadata", where)
    _split_of_langsmith(known)
    for name in _SCALARS:
        if name in known:
            known[name] = _scalar(known[name])
    return Example(inputs=known.pop("inputs", None), **known)


def _scalar(value: JSON) -> str:
    """As text; 7.0 as "7", for a column of whole numbers with gaps comes as floats."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _split_of_langsmith(known: dict[str, Any]) -> None:
    split = known.get("metadata", {}).get("dataset_split")
    if split and "split" not in known:
        several = split if isinstance(split, list) else [split]  # LangSmith keeps splits in the metadata,
        known["split"] = next((split for split in several if split != "base"), several[0])  # and all examples in "base"


def _documents(value: JSON, name: str, where: str) -> tuple[Document, ...]:
    try:
        return documents_of([value] if isinstance(value, str | Mapping) else value)
    except (TypeError, ValueError) as error:
        raise BadRow(f"{where}, {name}: {error}") from None


def _texts(value: JSON) -> tuple[str, ...]:
    values = value.split(",") if isinstance(value, str) else value
    return tuple(str(text).strip() for text in (values if isinstance(values, list | tuple) else [values]))


def _mapping(value: JSON, name: str, where: str) -> dict[str, JSON]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadRow(f"{where}: {name} is {value!r:.120}, not an object")
    return dict(value)
