"""Request bodies on disk while the collector is away: a bounded directory per address, for the next process too.

A file is `<time>-<pid>-<serial>-n<count>.<traces|logs>`. Whoever sends one first renames it to `<file>.<pid>.claim`;
the claim of a dead process is given back. Sending a body twice is harmless: the collector keeps a span once.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path

from assay.tracer import _errors
from assay.tracer._encode import LOGS, TRACES
from assay.tracer._settings import MIB, Settings

MAX_BYTES = 256 * MIB  # per address
_SUFFIX = {TRACES: ".traces", LOGS: ".logs"}
_PATH = {suffix: path for path, suffix in _SUFFIX.items()}
_STALE_S = 600.0
_serial = itertools.count()


def folder_of(settings: Settings) -> Path | None:
    """The directory of the settings' collector, None where nothing is to be kept on disk."""
    if settings.spill_dir is None:
        return None
    return Path(settings.spill_dir, sha256(settings.url.encode()).hexdigest()[:16])


class Spool:
    """One process's hand on the directory of a collector. `pid` signs its claims; only tests play several processes."""

    def __init__(self, folder: Path | None, max_bytes: int = MAX_BYTES, pid: int | None = None) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._pid = os.getpid() if pid is None else pid

    def keep(self, path: str, body: bytes, count: int) -> tuple[int, Mapping[str, int]]:
        """Write a body; returns how many items were kept, and how many were lost, by reason."""
        if self._folder is None:
            return 0, {"collector_away": count}
        try:
            self._write(self._folder, path, body, count)
            return count, self._trim(self._folder)
        except OSError as error:
            _errors.note("spill", error)
            return 0, {"disk": count}

    def _write(self, folder: Path, path: str, body: bytes, count: int) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = f"{time.time_ns():020d}-{self._pid}-{next(_serial)}-n{count}{_SUFFIX[path]}"
        part = folder / f"{name}.part"
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
        part.rename(folder / name)

    def _trim(self, folder: Path) -> Mapping[str, int]:
        """Remove the oldest files until the directory is within its bound; returns the items lost, by reason."""
        lost: Counter[str] = Counter()
        sizes = {file: file.stat().st_size for file in _waiting(folder)}
        excess = sum(sizes.values()) - self._max_bytes
        for file, size in sizes.items():
            if excess <= 0:
                break
            file.unlink(missing_ok=True)
            lost["disk_full"] += _count(file)
            excess -= size
        return lost

    def replay(self, send: Callable[[str, bytes, int], str]) -> None:
        """Send what waits, oldest first, until a send says `later`: `send(path, body, count)` returns a verdict."""
        if self._folder is None or not self._folder.is_dir():
            return
        for file in _waiting(self._folder):
            claim = self._claim(file)
            if claim is not None and _send(claim, file, send) == "later":
                return

    def _claim(self, file: Path) -> Path | None:
        claim = file.with_name(f"{file.name}.{self._pid}.claim")
        try:
            file.rename(claim)
            return claim
        except FileNotFoundError:  # another process was faster
            return None


def _send(claim: Path, file: Path, send: Callable[[str, bytes, int], str]) -> str:
    """Send a claimed file; it goes unless it is to be sent again, under its own name."""
    try:
        verdict = send(_PATH[file.suffix], claim.read_bytes(), _count(file))
    except BaseException:
        claim.rename(file)
        raise
    if verdict == "later":
        claim.rename(file)
    else:
        claim.unlink(missing_ok=True)
    return verdict


def _waiting(folder: Path) -> list[Path]:
    """Unclaimed files, oldest first; claims of dead processes are given back on the way."""
    return sorted(_unclaimed(folder), key=lambda file: file.name)


def _unclaimed(folder: Path) -> Iterator[Path]:
    for file in folder.iterdir():
        if file.suffix in _PATH:
            yield file
        elif file.suffix == ".claim" and _is_abandoned(file):
            original = file.with_name(file.name.rsplit(".", 2)[0])
            file.rename(original)
            yield original


def _is_abandoned(claim: Path) -> bool:
    try:
        os.kill(int(claim.name.rsplit(".", 2)[1]), 0)
        return time.time() - claim.stat().st_mtime > _STALE_S
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        return False


def _count(file: Path) -> int:
    return int(file.stem.rpartition("-n")[2])
