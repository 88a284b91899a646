"""Text files of any encoding: told by the mark at their beginning, or said; UTF-8 otherwise."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from spanwise.evaluators.datasets._columns import BadRow

_MARKS = (  # the longer first: UTF-32's begins with UTF-16's
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
UTF_8 = "utf-8-sig"  # with or without its mark


def encoding_of(path: Path, said: str | None) -> str:
    """What to read a file with: what is said, else what its mark says, else UTF-8. Raises `ValueError`, `BadRow`."""
    if said is not None:
        return _known(said)
    with path.open("rb") as file:
        head = file.read(4)
    marked = next((name for mark, name in _MARKS if head.startswith(mark)), None)
    if marked is None and b"\0" in head:
        raise BadRow(f"{path.name} looks like UTF-16: say encoding='utf-16-le' or 'utf-16-be'")
    return marked or UTF_8


@contextmanager
def text_of(path: Path, encoding: str, newline: str | None = None) -> Iterator[TextIO]:
    """An open text file. What is not of its encoding raises `BadRow`, which says what to say instead."""
    try:
        with path.open(encoding=encoding, newline=newline) as text:
            yield text
    except UnicodeError as error:
        raise not_so_encoded(path.name, encoding, error) from None


def not_so_encoded(where: str, encoding: str, error: UnicodeError) -> BadRow:
    """That a file is of another encoding than it was read with, and the way out."""
    name = "UTF-8" if encoding == UTF_8 else encoding
    bad = f" (byte {error.object[error.start]:#04x})" if isinstance(error, UnicodeDecodeError) else ""
    others = " or ".join(repr(other) for other in ("cp1252", "latin-1", "utf-16") if other != encoding)
    return BadRow(f"{where} is not {name}{bad}: say which it is, as in encoding={others}")


def _known(said: str) -> str:
    try:
        name = codecs.lookup(said).name
        "".encode(name)
    except LookupError:
        raise ValueError(
            f"encoding {said!r} is unknown: say 'utf-8', 'utf-16', 'cp1252' or another of Python's"
        ) from None
    return UTF_8 if name == "utf-8" else name
