"""Data frames: rows of flat tables as Arrow batches, and as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from spanwise.collector.errors import require_extra
from spanwise.collector.filters import Filter
from spanwise.collector.records import JSON
from spanwise.collector.stores.flat_tables import ColumnType, Table, TableSource, find_table, iterate_pages

if TYPE_CHECKING:
    import pandas

# types of pandas columns; each has a missing value
_PANDAS_TYPES: dict[ColumnType, str] = {
    "text": "string",
    "json": "string",
    "integer": "Int64",
    "real": "float64",
    "boolean": "boolean",
}


def build_frame(store: TableSource, table: str, filter: Filter) -> pandas.DataFrame:
    """Return all rows of a table as a DataFrame; see `TraceStore.to_pandas`."""
    definition = find_table(table)
    return make_frame(definition, iterate_pages(store, definition, filter))


def make_frame(table: Table, pages: Iterable[Sequence[Sequence[JSON]]]) -> pandas.DataFrame:
    """Return a DataFrame of the columns in `pages`, with the types of the table also if there are no rows."""
    with require_extra("frames", "to_pandas"):
        import pandas
    empty: Sequence[Sequence[JSON]] = [()] * len(table.columns)
    frames = []
    # Python objects of only one page exist at a time
    for page in chain([empty], pages):
        columns = {}
        for column, values in zip(table.columns, page, strict=True):
            if column.type == "time":
                columns[column.name] = pandas.Series(pandas.array(values, dtype="Int64")).astype("datetime64[ns, UTC]")
            else:
                columns[column.name] = pandas.Series(values, dtype=_PANDAS_TYPES[column.type])
        frames.append(pandas.DataFrame(columns))
    return pandas.concat(frames, ignore_index=True)


def make_schema(table: Table) -> Any:
    """Return the Arrow schema of a table. The description of each column is its metadata."""
    with require_extra("files", "writing Parquet"):
        import pyarrow
    types: dict[ColumnType, Any] = {
        "text": pyarrow.string(),
        "json": pyarrow.string(),
        "integer": pyarrow.int64(),
        "real": pyarrow.float64(),
        "boolean": pyarrow.bool_(),
        "time": pyarrow.timestamp("ns", tz="UTC"),
    }
    fields = [
        pyarrow.field(column.name, types[column.type], metadata={"description": column.description})
        for column in table.columns
    ]
    return pyarrow.schema(fields, metadata={"description": table.description})


def make_batches(table: Table, pages: Iterable[Sequence[Sequence[JSON]]]) -> Iterator[Any]:
    """Yield an Arrow record batch for each page of columns."""
    import pyarrow

    schema = make_schema(table)
    for page in pages:
        arrays = [pyarrow.array(values, field.type) for values, field in zip(page, schema, strict=True)]
        yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)
