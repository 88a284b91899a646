"""Rows out of files: JSON lines and CSV one by one, JSON and YAML whole."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import orjson

from assay.collector.records import JSON
from assay.evaluators.datasets._columns import BadRow
from assay.tracer.hints import nearest

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".yaml", ".yml")
_LISTS = ("examples", "items", "rows", "data")  # keys under which exports keep their rows


def rows_of_file(path: Path) -> Iterator[tuple[str, Mapping[str, JSON]]]:
    """(where, row) pairs of a file. Raises `BadRow` with file and line, `ValueError` for an unknown kind of file."""
    suffix = path.suffix.lower()
    if not path.exists():
        raise FileNotFoundError(f"there is no file {str(path)!r}{_near(path)}")
    if suffix in (".jsonl", ".ndjson"):
        return _json_lines(path)
    if suffix in (".csv", ".tsv"):
        return _csv(path, "\t" if suffix == ".tsv" else ",")
    if suffix == ".json":
        return _listed(path, _loads(path.read_bytes(), str(path)))
    if suffix in (".yaml", ".yml"):
        return _listed(path, _yaml(path))
    raise ValueError(f"cannot read {path.name!r}: known are {', '.join(SUFFIXES)}")


def _near(path: Path) -> str:
    """A hint at a file beside it that is called alike, with its folder: so that it can be copied."""
    beside = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    return "".join(f"; did you mean {str(path.with_name(name))!r}?" for name in nearest(path.name, beside))


def _json_lines(path: Path) -> Iterator[tuple[str, Mapping[str, JSON]]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                where = f"{path.name}:{number}"
                yield where, _row(_loads(line.removeprefix(b"\xef\xbb\xbf"), where), where)


def _csv(path: Path, delimiter: str) -> Iterator[tuple[str, Mapping[str, JSON]]]:
    csv.field_size_limit(2**31 - 1)  # documents in cells pass the module's 128 KiB
    with path.open(newline="", encoding="utf-8-sig") as lines:
        reader = csv.reader(lines, delimiter=_delimiter(lines, delimiter), strict=True)
        try:
            head = next(reader, [])
            if doubles := sorted({name for name in head if head.count(name) > 1}):
                raise BadRow(f"{path.name} has two columns named {doubles[0]!r}")
            for cells in reader:
                if len(cells) > len(head):
                    more = cells[len(head) :]
                    raise BadRow(
                        f"{path.name}:{reader.line_num} has more cells than the header has columns: {more!r:.120}"
                    )
                if cells:
                    pairs = zip(head, cells, strict=False)
                    yield f"{path.name}:{reader.line_num}", {name: cell(text) for name, text in pairs if text}
        except (csv.Error, UnicodeDecodeError) as error:
            raise BadRow(f"{path.name}, after line {reader.line_num}: {error}") from None


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
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


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


def _loads(text: bytes, where: str) -> JSON:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadRow(f"{where} is not JSON: {error}") from None


def _yaml(path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(path.read_text("utf-8"))
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise BadRow(f"{path.name}{line} is not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no UTF-8, or a date that is none
        raise BadRow(f"{path.name} is not YAML: {' '.join(str(error).split())}") from None
