"""File formats of datasets: reading and writing JSON Lines, JSON, CSV, YAML, Parquet; reading Arrow tables, Excel."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeAlias

import orjson

from spanwise.collector.errors import require_extra
from spanwise.collector.records import JSON, Document, Example
from spanwise.evaluators.datasets.column_mapping import FIELDS, MARKER_COLUMNS, BadRow
from spanwise.evaluators.interface import to_messages, unwrap_single_value
from spanwise.tracer.suggestions import find_nearest

if TYPE_CHECKING:
    import pandas


_PYTHON_CONSTANT = re.compile(r"NaN|Infinity")
_LONG_INTEGER = re.compile(r"\d{19}")  # possibly an integer beyond 64 bits, which orjson would read as a float
_LONG_INTEGER_BYTES = re.compile(_LONG_INTEGER.pattern.encode())


class _IntegerTooLarge(ValueError):
    """Integer that does not fit into 64 bits."""


def load_json(text: bytes | str, where: str) -> JSON:
    """Return the value of a JSON text. NaN, Infinity and -Infinity, which Python writes, become null, as in a store.

    Raises `BadRow` for invalid JSON and for an integer beyond 64 bits, and `UnicodeDecodeError` for invalid UTF-8.
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        decoded = text if isinstance(text, str) else text.decode()
        if _PYTHON_CONSTANT.search(decoded) or _LONG_INTEGER.search(decoded):
            return _load_python_json(decoded, where, error)
        raise BadRow(f"{where} is not JSON: {error}") from None
    if not (_LONG_INTEGER.search(text) if isinstance(text, str) else _LONG_INTEGER_BYTES.search(text)):
        return value
    return _load_python_json(text if isinstance(text, str) else text.decode(), where, None)


def _load_python_json(text: str, where: str, error: orjson.JSONDecodeError | None) -> JSON:
    try:
        return json.loads(text, parse_constant=lambda name: None, parse_int=_parse_integer)
    except _IntegerTooLarge as large:
        raise BadRow(
            f"{where} contains the integer {large}, which exceeds 64 bits: write it as a string, in quotes"
        ) from None
    except (ValueError, RecursionError) as another:
        raise BadRow(f"{where} is not JSON: {error or another}") from None


def _parse_integer(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= (value := int(digits)) < 2**64:
        raise _IntegerTooLarge(digits if len(digits) <= 40 else f"{digits[:40]}…")
    return value


_BYTE_ORDER_MARKS = (  # longer marks first: that of UTF-32 begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
UTF_8 = "utf-8-sig"  # accepts a byte order mark, but does not require one


def detect_encoding(path: Path, given: str | None) -> str:
    """Return the encoding of a file: the given one, else that of its byte order mark, else UTF-8. Raises
    `ValueError` for an unknown encoding and `BadRow` for UTF-16 without a mark.
    """
    if given is not None:
        return _check_encoding(given)
    with path.open("rb") as file:
        head = file.read(4)
    marked = next((name for mark, name in _BYTE_ORDER_MARKS if head.startswith(mark)), None)
    if marked is None and b"\0" in head:
        raise BadRow(f"{path.name} looks like UTF-16: pass encoding='utf-16-le' or 'utf-16-be'")
    return marked or UTF_8


@contextmanager
def open_text(path: Path, encoding: str, newline: str | None = None) -> Iterator[TextIO]:
    """Open a text file. Text in another encoding raises `BadRow`, which suggests encodings."""
    try:
        with path.open(encoding=encoding, newline=newline) as text:
            yield text
    except UnicodeError as error:
        raise encoding_error(path.name, encoding, error) from None


def encoding_error(where: str, encoding: str, error: UnicodeError) -> BadRow:
    """Return the error for a file in another encoding than expected, with encodings to try."""
    name = "UTF-8" if encoding == UTF_8 else encoding
    bad = f" (byte {error.object[error.start]:#04x})" if isinstance(error, UnicodeDecodeError) else ""
    others = " or ".join(repr(other) for other in ("cp1252", "latin-1", "utf-16") if other != encoding)
    return BadRow(f"{where} is not {name}{bad}: pass its encoding, such as encoding={others}")


def _check_encoding(given: str) -> str:
    try:
        name = codecs.lookup(given).name
        "".encode(name)
    except LookupError:
        raise ValueError(
            f"encoding {given!r} is unknown: use 'utf-8', 'utf-16', 'cp1252' or another encoding that Python supports"
        ) from None
    return UTF_8 if name == "utf-8" else name


PARQUET_BATCH_ROWS = 1000  # maximum number of rows of a Parquet file in memory


def read_frame(table: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a pandas DataFrame. An index named like an id column supplies the ids."""
    names = [str(name) for name in table.columns]
    check_distinct_names(names, "the DataFrame")
    named = str(table.index.name)
    integer_columns = {column for column, name in enumerate(names) if _holds_integers(table.iloc[:, column])}
    ids = table.index if named in FIELDS["id"] and named not in names else None
    for number, cells in enumerate(table.itertuples(index=False, name=None), 1):
        if integer_columns:
            cells = [
                int(cell) if column in integer_columns and cell == cell else cell for column, cell in enumerate(cells)
            ]
        row = _table_row(names, cells)
        yield f"row {number}", row if ids is None else {named: to_python_value(ids[number - 1]), **row}


def read_parquet(path: Path) -> Iterator[tuple[str, Mapping[str, JSON]]]:
    """Yield the rows of a Parquet file, reading one batch at a time."""
    with require_extra("files", f"reading {path.name!r}"):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    try:
        with ParquetFile(path) as file:
            names = [str(name) for name in file.schema_arrow.names]
            check_distinct_names(names, path.name)
            for number, row in enumerate(_iterate_batch_rows(file.iter_batches(PARQUET_BATCH_ROWS)), 1):
                yield f"{path.name}, row {number}", row
    except (ArrowException, OSError) as error:
        raise BadRow(f"{path.name} is not Parquet: {' '.join(str(error).split())}") from None


def read_arrow(table: Any) -> Iterator[tuple[str, Mapping[str, JSON]]]:
    """Yield the rows of an Arrow table, a batch, a reader of batches, or another object with Arrow's stream interface."""
    with require_extra("files", "reading Arrow data"):
        from pyarrow import RecordBatch, RecordBatchReader, record_batch
    is_batch = isinstance(table, RecordBatch) or not hasattr(table, "__arrow_c_stream__")
    batches = [record_batch(table)] if is_batch else RecordBatchReader.from_stream(table)
    names = [str(name) for name in (batches[0] if isinstance(batches, list) else batches).schema.names]
    check_distinct_names(names, "the table")
    for number, row in enumerate(_iterate_batch_rows(batches), 1):
        yield f"row {number}", row


def _iterate_batch_rows(batches: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of Arrow batches, with columns of Arrow's JSON type parsed and without pandas' index."""
    for batch in batches:
        json_columns = [field.name for field in batch.schema if str(field.type) == "extension<arrow.json>"]
        for start in range(0, batch.num_rows, PARQUET_BATCH_ROWS):
            for row in batch.slice(start, PARQUET_BATCH_ROWS).to_pylist():
                columns = {name: value for name, value in row.items() if not name.startswith("__index_level_")}
                for name in json_columns:
                    if columns[name] is not None:
                        columns[name] = load_json(columns[name], f"column {name!r}")
                yield _table_row(columns, columns.values())


def read_xlsx(path: Path, cell: Callable[[str], JSON]) -> Iterator[tuple[str, Mapping[str, JSON]]]:
    """Yield the rows of the first sheet of an Excel file. Its first row holds the column names. Texts are parsed as in
    CSV.
    """
    with require_extra("files", f"reading {path.name!r}"):
        from openpyxl import load_workbook
    try:
        book = load_workbook(path, read_only=True, data_only=True)
    except Exception as error:  # a broken archive raises errors of zipfile, zlib, XML, or KeyError
        raise BadRow(f"{path.name} is not an Excel file: {error!r:.200}") from None
    try:
        rows = iter(book.worksheets[0].iter_rows(values_only=True))
        names = ["" if name is None else str(name) for name in next(rows, ())]
        while names and not names[-1]:
            names.pop()
        check_distinct_names(names, path.name)
        for number, cells in enumerate(rows, 2):
            where = f"{path.name}:{number}"
            if more := [value for value in cells[len(names) :] if value is not None]:
                raise BadRow(f"{where} has more cells than the header has columns: {more!r:.120}")
            row = _table_row(names, cells[: len(names)])
            for name, value in row.items():
                if isinstance(value, str):
                    row[name] = cell(value)
                elif hasattr(value, "isoformat"):
                    row[name] = value.isoformat()
            if row:
                yield where, row
    finally:
        book.close()


def to_python_value(value: Any) -> Any:
    """Convert numpy types to Python's. Missing values (NaN, NaT, NA) become None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple | dict | str):
        return value
    # an object of another product
    if callable(to_dict := getattr(value, "to_dict", None)) and not isinstance(value, type):
        return to_dict()
    try:
        return None if value != value else value
    except TypeError:  # pandas.NA has no truth value
        return None


def _holds_integers(column: Any) -> bool:
    """Return whether a float column holds only integers and gaps: pandas converts integers to floats if there are
    gaps.
    """
    if getattr(column.dtype, "kind", "") != "f":
        return False
    values = column.dropna()
    return 0 < len(values) < len(column) and bool((values % 1 == 0).all())


def _table_row(names: Any, cells: Any) -> dict[str, Any]:
    """Return the cells of a row by column name. Empty cells are left out, except in `MARKER_COLUMNS`."""
    values = zip(names, map(to_python_value, cells), strict=False)
    return {name: value for name, value in values if value is not None or name in MARKER_COLUMNS}


def check_distinct_names(names: Sequence[str], where: str) -> None:
    """Raise `BadRow` for two columns with the same name, as one of them would be lost."""
    double = next((name for name, count in Counter(names).items() if count > 1), None)
    if double is not None:
        raise BadRow(f"{where} has two columns named {double!r}")


Rows: TypeAlias = Iterator[tuple[str, Mapping[str, JSON]]]
_LIST_KEYS = ("examples", "items", "rows", "data")  # keys of the list of rows in exports


def read_file_rows(path: Path, encoding: str | None = None) -> Rows:
    """Yield (location, row) pairs of a file. Raises `BadRow` with file and line, and `ValueError` for an unknown
    suffix.
    """
    if not path.exists():
        siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
        nearest = find_nearest(path.name, siblings)
        hint = "".join(f"; did you mean {str(path.with_name(name))!r}?" for name in nearest)
        raise FileNotFoundError(f"there is no file {str(path)!r}{hint}")
    suffix = path.suffix.lower()
    if suffix in _TABLE_READERS:
        if encoding is not None:
            raise ValueError(f"{path.name!r} is not a text file: remove encoding={encoding!r}")
        return _TABLE_READERS[suffix](path)
    if suffix in _TEXT_READERS:
        return _TEXT_READERS[suffix](path, detect_encoding(path, encoding))
    raise ValueError(f"cannot read {path.name!r}: supported suffixes are {', '.join(READABLE_SUFFIXES)}")


def _read_json_lines(path: Path, encoding: str) -> Rows:
    if encoding == UTF_8:  # reading bytes is faster
        with path.open("rb") as lines:
            yield from _parse_lines(path.name, (line.removeprefix(b"\xef\xbb\xbf") for line in lines))
    else:
        with open_text(path, encoding) as text:
            yield from _parse_lines(path.name, text)


def _parse_lines(name: str, lines: Iterable[bytes | str]) -> Rows:
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{name}:{number}"
            try:
                value = load_json(line, where)
            except UnicodeError as error:
                raise encoding_error(where, UTF_8, error) from None
            yield where, _require_object(value, where)


def _read_csv(path: Path, encoding: str, delimiter: str = ",") -> Rows:
    csv.field_size_limit(2**31 - 1)  # documents in cells exceed the csv module's limit of 128 KiB
    with path.open(newline="", encoding=encoding) as lines:
        reader = csv.reader(lines, delimiter=_detect_delimiter(lines, delimiter), strict=True)
        try:
            head = next(reader, [])
            check_distinct_names(head, path.name)
            for cells in reader:
                if len(cells) > len(head):
                    more = cells[len(head) :]
                    raise BadRow(
                        f"{path.name}:{reader.line_num} has more cells than the header has columns: {more!r:.120}"
                    )
                if any(text.strip() for text in cells):
                    pairs = zip(head, cells, strict=False)
                    yield (
                        f"{path.name}:{reader.line_num}",
                        {
                            name: parse_cell(text) if text else None
                            for name, text in pairs
                            if text or name in MARKER_COLUMNS
                        },
                    )
        except csv.Error as error:
            raise BadRow(f"{path.name}, after line {reader.line_num}: {error}") from None
        except UnicodeError as error:
            raise encoding_error(f"{path.name}, after line {reader.line_num},", encoding, error) from None


def _detect_delimiter(lines: TextIO, default: str) -> str:
    """Return the usual delimiter, or a semicolon or tab if the header contains only that: spreadsheets in some locales
    write semicolons.
    """
    try:
        head = lines.readline()
    except UnicodeDecodeError:  # the error is reported when the rows are read
        head = ""
    lines.seek(0)
    return next((mark for mark in (default, ";", "\t") if mark in head), default)


def parse_cell(text: str) -> JSON:
    """Parse JSON objects, lists and quoted texts in a cell. Return any other text unchanged."""
    if text[:1] not in ("{", "[", '"'):
        return text
    try:
        return load_json(text, "the cell")
    except BadRow:
        return text


def _read_json(path: Path, encoding: str) -> Rows:
    with open_text(path, encoding) as text:
        return _iterate_list(path, load_json(text.read(), path.name))


def _read_yaml(path: Path, encoding: str) -> Rows:
    import yaml

    from spanwise.evaluators.datasets import yaml_format

    try:
        with open_text(path, encoding) as text:
            return _iterate_list(path, yaml_format.load(text.read()))
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise BadRow(f"{path.name}{line} is not YAML: {error.problem or error.context}") from None
    except BadRow:
        raise
    except (yaml.YAMLError, ValueError) as error:  # ValueError for an invalid date
        raise BadRow(f"{path.name} is not YAML: {' '.join(str(error).split())}") from None


def _iterate_list(path: Path, content: Any) -> Iterator[tuple[str, Mapping[str, JSON]]]:
    if isinstance(content, Mapping):
        content = next((content[key] for key in _LIST_KEYS if isinstance(content.get(key), list)), content)
    if not isinstance(content, list):
        raise BadRow(
            f"{path.name} contains no list of examples, at the top level or under one of: {', '.join(_LIST_KEYS)}"
        )
    for number, row in enumerate(content, 1):
        where = f"{path.name}, example {number}"
        yield where, _require_object(row, where)


def _require_object(value: JSON, where: str) -> Mapping[str, JSON]:
    if not isinstance(value, Mapping):
        raise BadRow(f"{where} is {value!r:.80}, not an object")
    return value


_TEXT_READERS: Mapping[str, Callable[[Path, str], Rows]] = {
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": lambda path, encoding: _read_csv(path, encoding, "\t"),
    ".yaml": _read_yaml,
    ".yml": _read_yaml,
}
_TABLE_READERS: Mapping[str, Callable[[Path], Rows]] = {
    ".parquet": read_parquet,
    ".xlsx": lambda path: read_xlsx(path, parse_cell),
}
READABLE_SUFFIXES = (*_TEXT_READERS, *_TABLE_READERS)


ExampleFormat = Literal["spanwise", "openai", "databricks"]
_FIELD_ORDER = (
    "id inputs reference_outputs outputs documents expected_documents conditions guidelines categories history base_id "
    "evaluators split metadata"
).split()
_OPTIONAL_FIELDS = ("categories", "evaluators", "metadata")


def write(examples: Iterable[Example], path: str | Path, *, format: ExampleFormat = "spanwise") -> int:
    """Write examples to a file in the format of its suffix (JSONL, JSON, CSV, TSV, YAML, Parquet), and return their
    number.

    `format="openai"` is chat JSONL for fine-tuning, and `format="databricks"` uses the columns of Databricks
    evaluation sets. CSV keeps only texts: numbers and booleans are read back as texts, lists and objects are
    restored.
    """
    path = Path(path)
    if format not in ROW_FORMATS:
        raise ValueError(f"unknown format {format!r}; expected one of: {', '.join(ROW_FORMATS)}")
    return write_rows([ROW_FORMATS[format](example) for example in examples], path)


def write_rows(rows: list[dict[str, JSON]], path: Path) -> int:
    """Write plain dicts to a file in the format of its suffix, and return their number. In CSV, values other than texts
    are JSON.
    """
    writer = _WRITERS.get(path.suffix.lower())
    if writer is None:
        raise ValueError(f"cannot write {path.name!r}: supported suffixes are {', '.join(_WRITERS)}")
    path.write_bytes(writer(rows))
    return len(rows)


def to_row(example: Example) -> dict[str, JSON]:
    """Return an example as a plain dict without its empty fields. `read` accepts the result."""
    filled = {
        name: getattr(example, name) for name in _FIELD_ORDER if name not in _OPTIONAL_FIELDS or getattr(example, name)
    }
    row = {name: value for name, value in filled.items() if value is not None or name == "inputs"}
    for name, value in row.items():
        if isinstance(value, tuple):
            row[name] = [
                {name: field for name, field in asdict(item).items() if field not in (None, {}) or name == "content"}
                if isinstance(item, Document)
                else item
                for item in value
            ]
    return row


def to_openai(example: Example) -> dict[str, JSON]:
    """Return one line of OpenAI's chat fine-tuning format: the conversation, then the reference as the assistant's
    message.

    Raises `ValueError` if there is no reference, or if inputs are neither a text nor messages.
    """
    if example.reference_outputs is None:
        raise ValueError(f"example {example.id[:12]} has no reference outputs to train on")
    messages = to_messages(example.history)
    question = unwrap_single_value(example.inputs)
    if isinstance(question, str):
        messages.append({"role": "user", "content": question})
    elif turns := to_messages(question):
        messages += turns
    else:
        raise ValueError(f"example {example.id[:12]}: inputs {example.inputs!r:.120} are neither a string nor messages")
    reference = unwrap_single_value(example.reference_outputs)
    if turns := to_messages(reference):
        messages += turns
    else:
        text = reference if isinstance(reference, str) else orjson.dumps(reference).decode()
        messages.append({"role": "assistant", "content": text})
    return {"messages": messages}


def to_databricks(example: Example) -> dict[str, JSON]:
    """Return one row of a Databricks evaluation set."""
    row = {
        "request_id": example.id,
        "request": example.inputs,
        "response": example.outputs,
        "expected_response": example.reference_outputs,
        "retrieved_context": _document_uris(example.documents),
        "expected_retrieved_context": _document_uris(example.expected_documents),
        "guidelines": example.guidelines,
    }
    return {name: value for name, value in row.items() if value is not None}


def to_pandas(examples: Iterable[Example]) -> pandas.DataFrame:
    """Return a DataFrame with one row per example. Cells may hold dicts and lists."""
    import pandas

    return pandas.DataFrame([to_row(example) for example in examples])


ROW_FORMATS: Mapping[str, Callable[[Example], dict[str, JSON]]] = {
    "spanwise": to_row,
    "openai": to_openai,
    "databricks": to_databricks,
}


def _document_uris(documents: tuple[Document, ...] | None) -> list[dict[str, JSON]] | None:
    if documents is None:
        return None
    return [
        {"content": document.content, **({"doc_uri": document.id} if document.id else {})} for document in documents
    ]


def _encode_json_lines(rows: list[dict[str, JSON]]) -> bytes:
    return b"".join(_dump_json(row) + b"\n" for row in rows)


def _encode_json(rows: list[dict[str, JSON]]) -> bytes:
    return orjson.dumps(rows, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS) + b"\n"


def _encode_yaml(rows: list[dict[str, JSON]]) -> bytes:
    from spanwise.evaluators.datasets import yaml_format

    return yaml_format.dump(orjson.loads(_encode_json(rows))).encode()


def _encode_csv(rows: list[dict[str, JSON]], delimiter: str = ",") -> bytes:
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names, delimiter=delimiter)
    writer.writeheader()
    writer.writerows({name: _encode_cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue().encode()


def _encode_parquet(rows: list[dict[str, JSON]]) -> bytes:
    """Return rows as Parquet. A column of texts, integers, floats or booleans has that type. Any other column has the
    type JSON, because the fields of its objects may differ from row to row.
    """
    with require_extra("files", "writing Parquet"):
        import pyarrow
        from pyarrow import parquet
    kinds = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        types = {type(value) for value in values if value is not None}
        if (
            len(types) == 1
            and (kind := kinds.get(types.pop())) is not None
            and all(-(2**63) <= value < 2**63 for value in values if isinstance(value, int))
        ):
            columns[name] = pyarrow.array(values, kind)
        else:
            texts = [None if value is None else _dump_json(value).decode() for value in values]
            columns[name] = pyarrow.array(texts, pyarrow.string()).cast(pyarrow.json_())
    data = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), data, compression="zstd")
    return data.getvalue()


def _encode_cell(value: JSON) -> str:
    """Return a value as the text of a cell: a text unchanged, None as an empty cell, all other values as JSON. A text
    that the reader would parse is also written as JSON.
    """
    if value is None:
        return ""
    if isinstance(value, str) and value[:1] not in ("{", "[", '"') and value:
        return value
    return _dump_json(value).decode()


def _dump_json(value: JSON) -> bytes:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)


_WRITERS: Mapping[str, Callable[[list[dict[str, JSON]]], bytes]] = {
    ".jsonl": _encode_json_lines,
    ".ndjson": _encode_json_lines,
    ".json": _encode_json,
    ".csv": _encode_csv,
    ".tsv": lambda rows: _encode_csv(rows, "\t"),
    ".yaml": _encode_yaml,
    ".yml": _encode_yaml,
    ".parquet": _encode_parquet,
}
