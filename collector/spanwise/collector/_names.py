"""Names that are no files, though SQLite would take them for some: what is kept under them would be kept nowhere."""

from __future__ import annotations

import os

from spanwise.collector.errors import Refused


def named(path: str | os.PathLike[str]) -> str:
    """The path of a database file as text. Raises `Refused` for an empty name, memory, and SQLite's addresses."""
    name = os.fspath(path)
    if not name:
        raise Refused("the store's name is empty, as if a variable were not set; name a file, such as spanwise.db")
    if name.startswith(":memory:"):
        raise Refused(f"{name!r} would be kept in memory alone and be gone with this process; name a file")
    if name.startswith("file:"):
        raise Refused(f"{name!r} is an address of SQLite's, not a file; name its path (./{name} if it is called so)")
    return name
