"""Anything that holds examples, read one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from assay.collector.records import Example, Numbering, Trace, distinct
from assay.evaluators.datasets._columns import BadRow, to_example
from assay.evaluators.datasets._files import SUFFIXES, rows_of_file
from assay.evaluators.datasets._traces import example_of_trace


def read(source: Any, *, columns: Mapping[str, str] | None = None) -> list[Example]:
    """All examples of a file (JSONL, JSON, CSV, TSV, YAML), a DataFrame, or a list of dicts, examples or traces.

    Rows may be Assay's, or exports of Databricks, LangSmith, Langfuse or Phoenix; `columns` renames their columns
    first, as in {"gold": "reference_outputs", "q": "inputs.question"}. Two examples with the same contents get
    different ids. Raises `BadRow`, which names the file and line.
    """
    return distinct(_examples(source, columns))


def iterate(source: Any, *, columns: Mapping[str, str] | None = None) -> Iterator[Example]:
    """The same, one by one: JSON lines, CSV and generators are never held as a whole.

    An id that is given further down than a row without one whose inputs make the same id gets a number.
    """
    numbering = Numbering()
    return (numbering.of(example) for example in _examples(source, columns))


def is_file(source: Any) -> bool:
    """Whether a dataset is named by a path: a `Path`, or a text that ends like a file of examples."""
    return isinstance(source, Path) or (isinstance(source, str) and source.lower().endswith(SUFFIXES))


def _examples(source: Any, columns: Mapping[str, str] | None) -> Iterator[Example]:
    for where, row in _rows(source):
        example = _example(row, where, columns)
        if example is not None:
            yield example


def _rows(source: Any) -> Iterable[tuple[str, Any]]:
    if is_file(source):
        return rows_of_file(Path(source))
    if hasattr(source, "to_dict") and hasattr(source, "columns"):
        return _frame(source)
    if isinstance(source, Iterable) and not isinstance(source, str | bytes | Mapping):
        return ((f"example {number}", row) for number, row in enumerate(source, 1))
    raise ValueError(f"a dataset is a name, a path, a DataFrame or a list of examples, not {source!r:.120}")


def _frame(frame: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    names = [str(name) for name in frame.columns]
    for number, cells in enumerate(frame.itertuples(index=False, name=None), 1):
        row = {name: _python_value(value) for name, value in zip(names, cells, strict=True)}
        yield f"row {number}", {name: value for name, value in row.items() if value is not None}


def _python_value(value: Any) -> Any:
    """Python's own types for numpy's; missing values (NaN, NaT, NA) are None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple | dict | str):
        return value
    try:
        return None if value != value else value
    except TypeError:  # pandas.NA refuses to be true or false
        return None


def _example(row: Any, where: str, columns: Mapping[str, str] | None) -> Example | None:
    if isinstance(row, Example):
        return row
    if isinstance(row, Trace):
        return example_of_trace(row)
    if not isinstance(row, Mapping):
        row = _attributes(row, where)
    return None if row.get("status") == "ARCHIVED" else to_example(row, where=where, columns=columns)


def _attributes(item: Any, where: str) -> Mapping[str, Any]:
    """Rows that are objects: pydantic models, as SDKs of other products give them."""
    dump: Callable[[], Mapping[str, Any]] | None = getattr(item, "model_dump", None) or getattr(item, "dict", None)
    if dump is None:
        raise BadRow(f"{where} is {item!r:.120}, neither a dict nor an example")
    return dump()
