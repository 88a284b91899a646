"""Which column of a row means what: the names in use become the fields of an `Example`.

Databricks: request, response, expected_response, retrieved_context, expected_retrieved_context, guidelines, also under
MLflow's expectations. LangSmith: inputs, outputs (the reference). Langfuse: input, expectedOutput. Phoenix: input,
output (the reference). What names alone do not tell is in `_layouts`. Everything that is no field becomes an input,
unless there is a column `inputs`: then what has a value becomes metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spanwise.collector.errors import SpanwiseError
from spanwise.collector.records import JSON, Document, Example
from spanwise.evaluators.datasets._layouts import TELLING, laid_out
from spanwise.evaluators.datasets._splits import SEVERAL
from spanwise.evaluators.protocol import documents_of, plain

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
    "metadata": ("metadata", "additional_metadata"),
    "split": ("split", "splits"),
    "id": ("id", "example_id", "request_id", "dataset_record_id"),
}
_FIELD_OF = {name: field for field, names in FIELDS.items() for name in names}
_REFERENCE_IS_OUTPUT = frozenset({"dataset_id", "source_run_id", "datasetId"})  # columns that only such exports have
_WITH_PARTS = ("inputs", "outputs", "reference_outputs", "metadata")
_SCALARS = ("base_id", "split", "id")
_SAID = ("reference_outputs", "outputs", "conditions", "guidelines", "history", "metadata")
_AS_GIVEN = frozenset({"inputs", "documents", "expected_documents"})  # what a task takes; what `documents_of` reads
_NOTHING = frozenset({"NAType", "NaTType"})  # pandas' words for it


class BadRow(SpanwiseError, ValueError):
    """A row of a dataset that cannot become an example; says which, what, and the way out."""


def to_example(row: Row, *, where: str = "row", columns: Mapping[str, str] | None = None) -> Example:
    """The example in a row. `columns` renames columns first: {"gold": "reference_outputs", "q": "inputs.question"}.

    What is missing (NaN, `pandas.NA`) is left out. All but the inputs, which a task may want as they are, becomes plain
    values: evaluators see what a store would keep. Raises `BadRow`.
    """
    row = {name: value for name, value in row.items() if not _is_missing(value) or name in TELLING}
    if not columns and "inputs" in row and row.keys() <= FIELDS.keys():
        return _example(row, where)  # our own names throughout: nothing has to be told
    draft, rest = _sorted_out(laid_out(_renamed(row, columns or {})))
    _references(draft, rest, row)
    if "inputs" in draft:
        known = {name: value for name, value in rest.items() if value is not None}
        draft["metadata"] = {**known, **_mapping(draft.get("metadata"), "metadata", where)}
    elif rest:
        draft["inputs"] = rest
    else:
        raise BadRow(f"{where} has no inputs, only {sorted(row)!r}: name them with columns={{'…': 'inputs'}}")
    return _example(draft, where)


def as_kept(example: Example) -> Example:
    """An example made by hand with its reference and so on as plain values; the same one where they are."""
    values = ((name, getattr(example, name)) for name in _SAID)
    changed = {name: seen for name, value in values if not _is_empty(value) and (seen := plain(value)) is not value}
    return replace(example, **changed) if changed else example


def _is_empty(value: Any) -> bool:
    return value is None or (type(value) is dict and not value)


def _renamed(row: Row, columns: Mapping[str, str]) -> dict[str, JSON]:
    return {columns.get(name, str(name)): value for name, value in row.items()}


def _sorted_out(row: Row) -> tuple[dict[str, JSON], dict[str, JSON]]:
    """The fields of an example that a row has, and its other columns; `inputs.question` is a part of a field.

    Of two columns for one field the first counts, the other stays a column of its own: nothing is lost.
    """
    draft: dict[str, JSON] = {}
    rest: dict[str, JSON] = {}
    for name, value in sorted(row.items(), key=_is_part):  # a field before its parts
        head, _, part = name.partition(".")
        field = _FIELD_OF.get(head, "")
        if part and field in _WITH_PARTS and isinstance(draft.get(field) or {}, Mapping):
            draft[field] = {**(draft.get(field) or {}), part: value}
        elif not part and field and draft.get(field) is None:
            draft[field] = value
        else:
            rest[name] = value
    return draft, rest


def _is_part(column: tuple[str, JSON]) -> bool:
    head, dot, _ = column[0].partition(".")
    return bool(dot) and _FIELD_OF.get(head) in _WITH_PARTS


def _references(draft: dict[str, JSON], rest: dict[str, JSON], row: Row) -> None:
    """Move outputs to where they belong, when an export calls the reference "outputs"."""
    if draft.get("reference_outputs") is None and _outputs_are_references(row):
        draft["reference_outputs"] = draft.pop("outputs", None)
    elif "answer" in rest and "inputs" not in draft:
        field = "outputs" if draft.get("reference_outputs") is not None else "reference_outputs"
        draft.setdefault(field, rest.pop("answer"))


def _outputs_are_references(row: Row) -> bool:
    both_spread = isinstance(row.get("input"), Mapping) and isinstance(row.get("output"), Mapping)
    of_phoenix = "node_id" in row and row["node_id"] == row.get("id")  # in its CSV, with input.question and so on
    return both_spread or of_phoenix or any(name in row for name in _REFERENCE_IS_OUTPUT)


def _example(draft: dict[str, Any], where: str) -> Example:
    seen = {name: value if name in _AS_GIVEN else plain(value) for name, value in draft.items()}
    known: dict[str, Any] = {name: value for name, value in seen.items() if value is not None}
    for name in ("documents", "expected_documents"):
        if name in known:
            known[name] = _documents(known[name], name, where)
    if "categories" in known:
        known["categories"] = _texts(known["categories"])
    if "metadata" in known:
        known["metadata"] = _mapping(known["metadata"], "metadata", where)
    _splits(known)
    for name in _SCALARS:
        if name in known:
            known[name] = _scalar(known[name])
    return Example(inputs=known.pop("inputs", None), **known)


def _is_missing(value: Any) -> bool:
    if isinstance(value, float):
        return value != value
    return type(value).__name__ in _NOTHING and type(value).__module__.startswith("pandas.")


def _scalar(value: JSON) -> str:
    """As text that a store can hold; 7.0 as "7", for a column of whole numbers with gaps comes as floats."""
    text = str(int(value) if isinstance(value, float) and value.is_integer() else value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _splits(known: dict[str, Any]) -> None:
    """An example in several splits has them all in its metadata (see `_splits`), and one of them as its split."""
    split, metadata = known.get("split"), known.get("metadata", {})
    if isinstance(split, list | tuple):
        known["metadata"] = metadata = {SEVERAL: list(split), **metadata}
        known.pop("split")
    several = metadata.get(SEVERAL)
    names = several if isinstance(several, list) else [several] if several else []
    if names and "split" not in known:
        known["split"] = next((name for name in names if name != "base"), names[0])


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
