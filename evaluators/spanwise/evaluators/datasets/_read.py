"""Anything that holds examples, read one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spanwise.collector.records import Example, Numbering, Trace, distinct
from spanwise.evaluators.datasets._columns import as_kept, to_example
from spanwise.evaluators.datasets._files import SUFFIXES, rows_of_file
from spanwise.evaluators.datasets._objects import fields_of, held_by
from spanwise.evaluators.datasets._splits import Split, has_splits, in_split, rows_of_splits
from spanwise.evaluators.datasets._tables import frame
from spanwise.evaluators.datasets._traces import example_of_trace


def read(
    source: Any,
    *,
    columns: Mapping[str, str] | None = None,
    split: Split = None,
    encoding: str | None = None,
    outputs_are_references: bool = False,
) -> list[Example]:
    """All examples of a file (by its ending), a DataFrame, another product's dataset, or a list of rows.

    A row is a dict, an `Example`, a trace, or an object of another product. `columns` renames columns first, as in
    {"gold": "reference_outputs", "q": "inputs.question"}. `split` takes the examples of one split or several, and is
    needed where a source has several, such as a Hugging Face `DatasetDict`. `encoding` is that of a text file, where
    neither UTF-8 nor a mark at its beginning tells it. With `outputs_are_references` the outputs of a row that
    has no reference are its reference, as in LangSmith's rows. Ids: see `distinct`. Raises
    `BadRow`, which names file and line.
    """
    return distinct(_examples(source, columns, split, encoding, outputs_are_references))


def iterate(
    source: Any,
    *,
    columns: Mapping[str, str] | None = None,
    split: Split = None,
    encoding: str | None = None,
    outputs_are_references: bool = False,
) -> Iterator[Example]:
    """The same, one by one: JSON lines, CSV, Parquet and generators are never held as a whole.

    An id that is given further down than a row without one whose inputs make the same id gets a number.
    """
    numbering = Numbering()
    examples = _examples(source, columns, split, encoding, outputs_are_references)
    return (numbering.of(example) for example in examples)


def is_file(source: Any) -> bool:
    """Whether a dataset is named by a path: a `Path`, a text that ends like a file of examples, or names a file."""
    if not isinstance(source, str):
        return isinstance(source, Path)
    return source.lower().endswith(SUFFIXES) or ("." in source and "\0" not in source and Path(source).is_file())


def _examples(
    source: Any, columns: Mapping[str, str] | None, split: Split, encoding: str | None, outputs_are_references: bool
) -> Iterator[Example]:
    if encoding is not None and not is_file(source):
        raise ValueError(f"encoding={encoding!r} is of text files, not of {source!r:.80}")
    for where, row in _rows(source, split, encoding):
        example = _example(row, where, columns)
        if outputs_are_references and example is not None and not isinstance(row, Example | Trace):
            example = with_reference(example)
        if example is not None and in_split(example, split):
            yield example


def _rows(source: Any, split: Split, encoding: str | None) -> Iterable[tuple[str, Any]]:
    if is_file(source):
        return rows_of_file(Path(source), encoding)
    if has_splits(source):
        return rows_of_splits(source, split)
    source = held_by(source)
    if hasattr(source, "itertuples") and hasattr(source, "columns"):
        return frame(source)
    if hasattr(source, "iter_rows") and hasattr(source, "columns"):  # polars
        source = source.iter_rows(named=True)
    if isinstance(source, Iterable) and not isinstance(source, str | bytes | Mapping):
        return ((f"example {number}", row) for number, row in enumerate(source, 1))
    raise ValueError(
        f"a dataset is a name, a path ({', '.join(SUFFIXES)}), a DataFrame or a list of examples, not {source!r:.120}"
    )


def with_reference(example: Example) -> Example:
    """Return the example with its outputs as its reference, if it has none."""
    if example.reference_outputs is not None or example.outputs is None:
        return example
    return replace(example, reference_outputs=example.outputs, outputs=None)


def _example(row: Any, where: str, columns: Mapping[str, str] | None) -> Example | None:
    if isinstance(row, Example):
        return as_kept(row)
    if isinstance(row, Trace):
        return example_of_trace(row)
    if not isinstance(row, Mapping):
        row = fields_of(row, where)
    return None if row.get("status") == "ARCHIVED" else to_example(row, where=where, columns=columns)
