"""The lock beside a database file: held for as long as a process writes it, and bearing that process's address."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

from assay.collector.errors import Refused


class Lock:
    """Holds `<path>.lock` from the moment it is made until `release`. Raises `Refused`, naming who holds it."""

    def __init__(self, path: str) -> None:
        self.path = path + ".lock"
        self._made = not os.path.exists(self.path)
        try:
            self._file = open(self.path, "a+", encoding="utf-8")  # noqa: SIM115  held for life
        except OSError as error:
            raise Refused(f"cannot write {path!r}: {error.strerror}") from error
        if not _take(self._file.fileno()) or not _still(self._file.fileno(), self.path):
            self._file.close()
            raise Refused(_taken(path))
        self.announce(None)

    def announce(self, url: str | None) -> None:
        """Say where the process that holds this lock can be reached."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(json.dumps({"pid": os.getpid(), "url": url}))
        self._file.flush()

    def release(self) -> None:
        """Let go. The file stays, empty: taking it away would let two processes hold two locks of one name."""
        if not self._file.closed:
            self._file.truncate(0)
            self._file.close()

    def undo(self) -> None:
        """Let go of a path that turned out to hold no database; nothing of ours stays beside it."""
        if self._made:
            os.unlink(self.path)
        self.release()


def _still(descriptor: int, path: str) -> bool:
    """Whether what is locked is what stands there now: another process may have undone it in between."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _take(descriptor: int) -> bool:
    """Try for a moment: who only looks for the holder has the lock for an instant, too."""
    for _ in range(5):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            time.sleep(0.02)
    return False


def holder(path: str | Path) -> dict[str, Any] | None:
    """`{"pid": …, "url": … or None}` of the process that holds the database file at `path`, or None."""
    try:
        with open(str(path) + ".lock", encoding="utf-8") as file:
            return _read(file.fileno(), file.read())
    except FileNotFoundError:
        return None


def _read(descriptor: int, text: str) -> dict[str, Any] | None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        process: dict[str, Any] = json.loads(text) if text else {"pid": None, "url": None}
        return process
    return None


def _taken(path: str) -> str:
    process = holder(path) or {}
    held = f"{path!r} is being written by process {process.get('pid')}"
    if process.get("url"):
        return f"{held}, which answers at {process['url']}; speak to its address, or use connect(), which finds it"
    return f"{held}, which does not serve it; wait for its end, or let both speak to `assay serve --store {path}`"
