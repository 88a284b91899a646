"""What the two halves of the store share: one file, and verbs that read it or write it in one go."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import update_wrapper
from typing import Concatenate, ParamSpec, TypeVar

from spanwise.collector.stores.sqlite._file import File

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound="Half")
Verb = Callable[Concatenate[H, sqlite3.Connection, P], T]  # is given a connection of the file


class Half:
    """Verbs over one file."""

    def __init__(self, file: File) -> None:
        self._file = file

    @property
    def where(self) -> str:
        """The path of the file, as it was given."""
        return self._file.name

    def close(self) -> None:
        """Write what is queued, then let go of the file. Closing twice is harmless."""
        self._file.close()


def reads(verb: Verb[H, P, T]) -> Callable[Concatenate[H, P], T]:
    """A verb that reads: its connection is in one consistent snapshot of the file."""

    def read(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._file.read() as reader:
            return verb(self, reader.db, *args, **kwargs)

    update_wrapper(read, verb)
    return read


def writes(verb: Verb[H, P, T]) -> Callable[Concatenate[H, P], T]:
    """A verb that writes: durable, all of it, when it returns; nothing of it stays when it raises."""

    def write(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._file.write(lambda db: verb(self, db, *args, **kwargs))

    update_wrapper(write, verb)
    return write
