"""Streaming reader of large JSON and JSON Lines files, in bounded memory.

Python's decoder needs a complete document. The reader here decodes one line, or one element of a list, at a time. Only
values longer than `MAX_VALUE_CHARACTERS` are refused. NaN and infinities, which JSON does not have but Python writes,
are read as null. Integers beyond 64 bits, which a store cannot hold, are read as texts.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from spanwise.collector.records import JSON

CHUNK_CHARACTERS = 1 << 20
MAX_VALUE_CHARACTERS = 64 << 20
LINE_FORMATS = (".jsonl", ".ndjson")
_WHITE_SPACE = " \t\r\n"


def _parse_integer(text: str) -> int | str:
    return int(text) if len(text) < 19 or (len(text) < 21 and -(2**63) <= int(text) < 2**64) else text


_DECODER = json.JSONDecoder(parse_constant=lambda name: None, parse_int=_parse_integer)


def decode_json(data: bytes, where: str) -> JSON:
    """Return one JSON value. Raises `ValueError` in one line, with `where` as the place."""
    try:
        return _DECODER.decode(data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON or is truncated: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError(f"{where} is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 text: {error.reason} at byte {error.start + 1}") from None


def iterate_file(path: Path, refuse: Callable[[str], None]) -> Iterator[JSON]:
    """Yield the objects of a file: the lines of JSON Lines, the elements of a list, the elements of `data` in a page of
    a list endpoint, or the one object of a JSON file.

    Lines that are not JSON are passed to `refuse` as a reason, and the others are read. Raises `ValueError` for any
    other file that is not JSON or is truncated, and `OSError`.
    """
    with path.open("rb") as file:
        if path.suffix.lower() in LINE_FORMATS:
            yield from _iterate_lines(file, path.name, refuse)
            return
        single: dict[str, JSON] = {}
        for key, value, is_element in iterate_members(file, path.name):
            if is_element and key in ("", "data"):
                yield value
            elif is_element:
                single.setdefault(key, []).append(value)
            else:
                single[key] = value
        if single and single.get("object") != "list":
            yield single


def _iterate_lines(file: BinaryIO, where: str, refuse: Callable[[str], None]) -> Iterator[JSON]:
    number = 0
    while line := file.readline(MAX_VALUE_CHARACTERS + 1):
        number += 1
        if len(line) > MAX_VALUE_CHARACTERS:
            refuse(f"line {number} of {where} is longer than {MAX_VALUE_CHARACTERS:,} bytes")
            while line and not line.endswith(b"\n"):
                line = file.readline(CHUNK_CHARACTERS)
        elif line.strip():
            try:
                yield decode_json(line, f"line {number} of {where}")
            except ValueError as error:
                refuse(str(error))


def iterate_members(file: BinaryIO, where: str) -> Iterator[tuple[str, JSON, bool]]:
    """Yield the members of a JSON object as (key, value, False). The elements of a member that is a list are yielded one
    by one, as (key, element, True). The elements of a top-level list have the key "".

    Raises `ValueError` in one line if the text is not JSON, is truncated, or has a value that is too long.
    """
    text = _JSONText(file, where)
    first = text.peek()
    if first == "[":
        yield from (("", element, True) for element in text.elements())
    elif first == "{":
        text.skip("{")
        while text.peek() != "}":
            key = text.value()
            if not isinstance(key, str):
                raise ValueError(f"{where} is not JSON: a key must be a text, got {key!r:.100}")
            text.skip(":")
            if text.peek() == "[":
                for element in text.elements():
                    yield key, element, True
            else:
                yield key, text.value(), False
            if text.peek() == ",":
                text.skip(",")
        text.skip("}")
    else:
        raise ValueError(f"{where} must be a JSON object or list, got {first!r}")
    if text.peek():
        raise ValueError(f"{where} has more than one JSON value; if it is JSON Lines, name it .jsonl")


class _JSONText:
    """Text of a file that is read forward, with the part in memory that is not yet decoded."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._where = where
        self._text, self._position, self._is_complete = "", 0, False

    def peek(self) -> str:
        """Return the next character that is no white space, without consuming it; "" at the end."""
        while True:
            while self._position < len(self._text) and self._text[self._position] in _WHITE_SPACE:
                self._position += 1
            if self._position < len(self._text) or self._is_complete:
                return self._text[self._position : self._position + 1]
            self._read(CHUNK_CHARACTERS)

    def skip(self, expected: str) -> None:
        """Consume the next character. Raises `ValueError` for another one."""
        found = self.peek()
        if found != expected:
            raise ValueError(f"{self._where} is not JSON or is truncated: expected {expected!r}, got {found!r}")
        self._position += 1

    def elements(self) -> Iterator[JSON]:
        """Consume a list, and yield its elements."""
        self.skip("[")
        while self.peek() != "]":
            yield self.value()
            if self.peek() == ",":
                self.skip(",")
        self.skip("]")

    def value(self) -> JSON:
        """Consume the next value. The text in memory is doubled until it contains the complete value."""
        self.peek()
        while True:
            failure = "it is incomplete"
            try:
                value, end = _DECODER.raw_decode(self._text, self._position)
                if end < len(self._text) or self._is_complete:  # else a number may continue
                    self._position = end
                    return value
            except json.JSONDecodeError as error:
                failure = error.msg
            except RecursionError:
                raise ValueError(f"{self._where} is nested too deeply") from None
            pending = len(self._text) - self._position
            if self._is_complete:
                raise ValueError(f"{self._where} is not JSON or is truncated: {failure}")
            if pending > MAX_VALUE_CHARACTERS:
                raise ValueError(
                    f"{self._where} is not JSON, or has a value longer than {MAX_VALUE_CHARACTERS:,} characters: {failure}"
                )
            self._read(max(CHUNK_CHARACTERS, pending))

    def _read(self, size: int) -> None:
        data = self._file.read(size)
        self._is_complete = not data
        try:
            more = self._decoder.decode(data, final=self._is_complete)
        except UnicodeDecodeError as error:
            raise ValueError(f"{self._where} is not UTF-8 text: {error.reason}") from None
        self._text, self._position = self._text[self._position :] + more, 0
