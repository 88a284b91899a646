"""Data frames: rows of flat tables as Arrow batches, and as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from spanwise.collector.errors import require_extra
from spanwise.collector.records import JSON
from spanwise.collector.stores.flat_tables import ColumnType, Table

if TYPE_CHECKING:
    import pandas

BATCH_ROWS = 5_000  # rows that are held as Python objects
# types of pandas columns; each has a missing value
_PANDAS_TYPES: dict[ColumnType, str] = {
    "text": "string",
    "json": "string",
    "integer": "Int64",
    "real": "float64",
    "boolean": "boolean",
}


def make_frame(table: Table, rows: Iterable[dict[str, JSON]]) -> pandas.DataFrame:
    """Return rows of a table as a DataFrame with the types of its columns, also if there are no rows."""
    with require_extra("frames", "to_pandas"):
        import pandas
    frames = []
    source = iter(rows)
    # The columns of a batch replace its rows before the next batch is read, so that Python objects of only one exist
    while (batch := list(islice(source, BATCH_ROWS))) or not frames:
        columns = {}
        for column in table.columns:
            values = [row.get(column.name) for row in batch]
            if column.type == "time":
                columns[column.name] = pandas.Series(pandas.array(values, dtype="Int64")).astype("datetime64[ns, UTC]")
            else:
                columns[column.name] = pandas.Series(values, dtype=_PANDAS_TYPES[column.type])
        frames.append(pandas.DataFrame(columns))
    return pandas.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]


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


def make_batches(table: Table, rows: Iterable[dict[str, JSON]]) -> Iterator[Any]:
    """Yield rows of a table as Arrow record batches."""
    import pyarrow

    schema, source = make_schema(table), iter(rows)
    while batch := list(islice(source, BATCH_ROWS)):
        arrays = [pyarrow.array([row.get(field.name) for row in batch], field.type) for field in schema]
        yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)
