"""Rows out of files: JSON lines, CSV, Parquet and Excel's one by one, JSON and YAML whole."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from spanwise.collector.records import JSON
from spanwise.evaluators.datasets._columns import BadRow
from spanwise.evaluators.datasets._json import loads
from spanwise.evaluators.datasets._layouts import TELLING
from spanwise.evaluators.datasets._tables import distinct_names, parquet, xlsx
from spanwise.evaluators.datasets._texts import UTF_8, encoding_of, not_so_encoded, text_of
from spanwise.tracer.hints import nearest

Rows: TypeAlias = Iterator[tuple[str, Mapping[str, JSON]]]
_LISTS = ("examples", "items", "rows", "data")  # keys under which exports keep their rows


def rows_of_file(path: Path, encoding: str | None = None) -> Rows:
    """(where, row) pairs of a file. Raises `BadRow` with file and line, `ValueError` for an unknown kind of file."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file {str(path)!r}{_near(path)}")
    suffix = path.suffix.lower()
    if suffix in _TABLES:
        if encoding is not None:
            raise ValueError(f"{path.name!r} is no text file: leave encoding={encoding!r} away")
        return _TABLES[suffix](path)
    if suffix in _TEXTS:
        return _TEXTS[suffix](path, encoding_of(path, encoding))
    raise ValueError(f"cannot read {path.name!r}: known endings are {', '.join(SUFFIXES)}")


def _near(path: Path) -> str:
    """A hint at a file beside it that is called alike, with its folder: so that it can be copied."""
    beside = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    return "".join(f"; did you mean {str(path.with_name(name))!r}?" for name in nearest(path.name, beside))


def _json_lines(path: Path, encoding: str) -> Rows:
    if encoding == UTF_8:  # read as bytes, which is faster
        with path.open("rb") as lines:
            yield from _rows_of_lines(path.name, (line.removeprefix(b"\xef\xbb\xbf") for line in lines))
    else:
        with text_of(path, encoding) as text:
            yield from _rows_of_lines(path.name, text)


def _rows_of_lines(name: str, lines: Iterable[bytes | str]) -> Rows:
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{name}:{number}"
            yield where, _row(_loads(line, where), where)


def _csv(path: Path, encoding: str, delimiter: str = ",") -> Rows:
    csv.field_size_limit(2**31 - 1)  # documents in cells pass the module's 128 KiB
    with path.open(newline="", encoding=encoding) as lines:
        reader = csv.reader(lines, delimiter=_delimiter(lines, delimiter), strict=True)
        try:
            head = next(reader, [])
            distinct_names(head, path.name)
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
                        {name: cell(text) if text else None for name, text in pairs if text or name in TELLING},
                    )
        except csv.Error as error:
            raise BadRow(f"{path.name}, after line {reader.line_num}: {error}") from None
        except UnicodeError as error:
            raise not_so_encoded(f"{path.name}, after line {reader.line_num},", encoding, error) from None


def _tsv(path: Path, encoding: str) -> Rows:
    return _csv(path, encoding, "\t")


def _delimiter(lines: TextIO, usual: str) -> str:
    """The usual one, unless the header has none of it: spreadsheets of some countries write semicolons."""
    try:
        head = lines.readline()
    except UnicodeDecodeError:  # told when the rows are read
        head = ""
    lines.seek(0)
    return next((mark for mark in (usual, ";", "\t") if mark in head), usual)


def cell(text: str) -> JSON:
    """JSON objects, lists and quoted texts in a cell are read; everything else is the text that it is."""
    if text[:1] not in ("{", "[", '"'):
        return text
    try:
        return loads(text, "the cell")
    except BadRow:
        return text


def _json(path: Path, encoding: str) -> Rows:
    if encoding == UTF_8:
        return _listed(path, _loads(path.read_bytes().removeprefix(b"\xef\xbb\xbf"), path.name))
    with text_of(path, encoding) as text:
        return _listed(path, _loads(text.read(), path.name))


def _yaml(path: Path, encoding: str) -> Rows:
    import yaml

    from spanwise.evaluators.datasets import yaml_format

    try:
        with text_of(path, encoding) as text:
            return _listed(path, yaml_format.load(text.read()))
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise BadRow(f"{path.name}{line} is not YAML: {error.problem or error.context}") from None
    except BadRow:
        raise
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that is none
        raise BadRow(f"{path.name} is not YAML: {' '.join(str(error).split())}") from None


def _listed(path: Path, content: Any) -> Iterator[tuple[str, Mapping[str, JSON]]]:
    if isinstance(content, Mapping):
        content = next((content[key] for key in _LISTS if isinstance(content.get(key), list)), content)
    if not isinstance(content, list):
        raise BadRow(f"{path.name} holds no list of examples (nor one under any of {', '.join(_LISTS)})")
    for number, row in enumerate(content, 1):
        where = f"{path.name}, example {number}"
        yield where, _row(row, where)


def _row(value: JSON, where: str) -> Mapping[str, JSON]:
    if not isinstance(value, Mapping):
        raise BadRow(f"{where} is {value!r:.80}, not an object")
    return value


def _loads(text: bytes | str, where: str) -> JSON:
    try:
        return loads(text, where)
    except UnicodeError as error:
        raise not_so_encoded(where, UTF_8, error) from None


_TEXTS: Mapping[str, Callable[[Path, str], Rows]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".tsv": _tsv,
    ".yaml": _yaml,
    ".yml": _yaml,
}
_TABLES: Mapping[str, Callable[[Path], Rows]] = {
    ".parquet": parquet,
    ".xlsx": lambda path: xlsx(path, cell),
}
SUFFIXES = (*_TEXTS, *_TABLES)
