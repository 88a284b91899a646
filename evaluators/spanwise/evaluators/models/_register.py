"""Which models this user's processes hold: a file for each process, which it keeps locked as long as it lives."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson

from spanwise.evaluators.models._cache_file import of_user

_ENOUGH = 200  # characters of a command that tell which it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A model in the memory of a process."""

    pid: int
    command: str
    model: str
    use: str
    where: str
    device: str
    parameters_bytes: int
    seconds: float  # that loading took
    since: float  # seconds since the epoch


class Register:
    """This process's file. A process that cannot write it goes without."""

    def __init__(self) -> None:
        self._file: int | None = None

    def write(self, models: Iterable[Held]) -> None:
        """Say what this process holds now, instead of what it held."""
        with suppress(OSError):
            if self._file is None:
                self._file = _begun()
            text = orjson.dumps(list(models))
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, text, 0)

    def forget(self) -> None:
        """In a forked child: the file is the parent's."""
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)
            self._file = None


def folder() -> Path:
    """In the user's cache directory."""
    return of_user("models")


def held() -> list[Held]:
    """What the processes that live hold, oldest first; files of others are removed."""
    found = [one for path in folder().glob("*.json") for one in _read(path)]
    return sorted(found, key=lambda one: one.since)


def of_this_process(**model: object) -> Held:
    """A model of this process."""
    command = " ".join(sys.argv)[:_ENOUGH]
    return Held(pid=os.getpid(), command=command, **{"since": time.time(), **model})  # type: ignore[arg-type]


def _begun() -> int:
    """Locked before it has its name, so that no reader takes it for one that was left behind."""
    folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    name = folder() / f"{os.getpid()}.json"
    beside = name.with_suffix(".new")
    file = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.replace(beside, name)
    return file


def _read(path: Path) -> Iterator[Held]:
    with suppress(OSError, ValueError, TypeError), path.open("rb") as file:
        if _is_locked(file.fileno()):
            yield from [Held(**one) for one in orjson.loads(file.read())]
        else:
            path.unlink()


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
