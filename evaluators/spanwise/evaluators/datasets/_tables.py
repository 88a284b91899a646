"""Rows out of tables that are no text: DataFrames, Parquet, Excel's sheets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spanwise.collector.extras import needing
from spanwise.collector.records import JSON
from spanwise.evaluators.datasets._columns import FIELDS, BadRow
from spanwise.evaluators.datasets._layouts import TELLING

BATCH = 1000  # rows of a Parquet file in memory at once


def frame(table: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of a pandas DataFrame; an index that is named like an id is one."""
    names = [str(name) for name in table.columns]
    distinct_names(names, "the DataFrame")
    named = str(table.index.name)
    whole = {place for place, name in enumerate(names) if _has_whole_numbers(table.iloc[:, place])}
    ids = table.index if named in FIELDS["id"] and named not in names else None
    for number, cells in enumerate(table.itertuples(index=False, name=None), 1):
        if whole:
            cells = [_whole(cell) if place in whole else cell for place, cell in enumerate(cells)]
        row = _row(names, cells)
        yield f"row {number}", row if ids is None else {named: python_value(ids[number - 1]), **row}


def parquet(path: Path) -> Iterator[tuple[str, Mapping[str, JSON]]]:
    """Rows of a Parquet file, a batch at a time."""
    with needing("files", f"reading {path.name!r}"):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    try:
        with ParquetFile(path) as file:
            names = [str(name) for name in file.schema_arrow.names]
            distinct_names(names, path.name)
            rows = (row for batch in file.iter_batches(BATCH) for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                kept = {name: value for name, value in row.items() if not name.startswith("__index_level_")}
                yield f"{path.name}, row {number}", _row(kept, kept.values())
    except (ArrowException, OSError) as error:
        raise BadRow(f"{path.name} is not Parquet: {' '.join(str(error).split())}") from None


def xlsx(path: Path, cell: Callable[[str], JSON]) -> Iterator[tuple[str, Mapping[str, JSON]]]:
    """Rows of the first sheet of an Excel file, whose first row names the columns; texts are read as those of CSV."""
    with needing("files", f"reading {path.name!r}"):
        from openpyxl import load_workbook
    try:
        book = load_workbook(path, read_only=True, data_only=True)
    except Exception as error:  # of a broken archive: zipfile's, zlib's, XML's, KeyError
        raise BadRow(f"{path.name} is not an Excel file: {error!r:.200}") from None
    try:
        rows = iter(book.worksheets[0].iter_rows(values_only=True))
        names = _names(next(rows, ()), path.name)
        for number, cells in enumerate(rows, 2):
            where = f"{path.name}:{number}"
            if more := [value for value in cells[len(names) :] if value is not None]:
                raise BadRow(f"{where} has more cells than the header has columns: {more!r:.120}")
            row = {name: _cell(value, cell) for name, value in _row(names, cells[: len(names)]).items()}
            if row:
                yield where, row
    finally:
        book.close()


def python_value(value: Any) -> Any:
    """Python's own types for numpy's; missing values (NaN, NaT, NA) are None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple | dict | str):
        return value
    if callable(to_dict := getattr(value, "to_dict", None)) and not isinstance(value, type):  # a product's object
        return to_dict()
    try:
        return None if value != value else value
    except TypeError:  # pandas.NA refuses to be true or false
        return None


def _has_whole_numbers(column: Any) -> bool:
    """Whether a column of floats has whole numbers and gaps alone: pandas made floats of them for the gaps."""
    if getattr(column.dtype, "kind", "") != "f":
        return False
    there = column.dropna()
    return 0 < len(there) < len(column) and bool((there % 1 == 0).all())


def _whole(cell: Any) -> Any:
    return int(cell) if cell == cell else cell


def _row(names: Any, cells: Any) -> dict[str, Any]:
    """What a row has."""
    values = zip(names, map(python_value, cells), strict=False)
    return {name: value for name, value in values if value is not None or name in TELLING}


def _names(head: Sequence[object], where: str) -> list[str]:
    names = ["" if name is None else str(name) for name in head]
    while names and not names[-1]:
        names.pop()
    distinct_names(names, where)
    return names


def _cell(value: Any, cell: Callable[[str], JSON]) -> JSON:
    if isinstance(value, str):
        return cell(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


def distinct_names(names: Sequence[str], where: str) -> None:
    """Raise `BadRow` for two columns of one name, of which one would be lost."""
    double = next((name for name, count in Counter(names).items() if count > 1), None)
    if double is not None:
        raise BadRow(f"{where} has two columns named {double!r}")
