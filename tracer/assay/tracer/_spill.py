"""Request bodies on disk while the collector is away: a bounded directory per address, read by the next process too.

A file is `<time>-<pid>-<serial>-n<count>.<traces|logs>`. Whoever sends one first renames it; the claim of a dead
process is taken over. Sending a body twice is harmless: the collector keeps a span once.
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
from assay.tracer._settings import Settings

_SUFFIX = {TRACES: ".traces", LOGS: ".logs"}
_PATH = {suffix: path for path, suffix in _SUFFIX.items()}
_STALE_S = 600.0
_serial = itertools.count()


class Spill:
    """The directory for one collector address."""

    def __init__(self, settings: Settings) -> None:
        self._limit = settings.spill_bytes
        self._folder: Path | None = None
        if settings.spill_dir is not None:
            self._folder = Path(settings.spill_dir, sha256(settings.url.encode()).hexdigest()[:16])

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
        name = f"{time.time_ns():020d}-{os.getpid()}-{next(_serial)}-n{count}{_SUFFIX[path]}"
        part = folder / f"{name}.part"
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
        part.rename(folder / name)

    def _trim(self, folder: Path) -> Mapping[str, int]:
        """Remove the oldest files until the directory is within its bound."""
        lost: Counter[str] = Counter()
        files = [(file, file.stat().st_size) for file in _waiting(folder)]
        excess = sum(size for _, size in files) - self._limit
        for file, size in files:
            if excess <= 0:
                break
            file.unlink(missing_ok=True)
            lost["disk_full"] += _count(file)
            excess -= size
        return lost

    def replay(self, send: Callable[[str, bytes, int], str]) -> None:
        """Send what waits, oldest first, until a send says `later`."""
        if self._folder is None or not self._folder.is_dir():
            return
        for file in _waiting(self._folder):
            claim = _claim(file)
            if claim is not None and self._one(file, claim, send) == "later":
                return

    def _one(self, file: Path, claim: Path, send: Callable[[str, bytes, int], str]) -> str:
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
    return sorted(_free(folder), key=lambda file: file.name)


def _free(folder: Path) -> Iterator[Path]:
    for file in folder.iterdir():
        if file.suffix in _PATH:
            yield file
        elif file.suffix == ".claim" and _abandoned(file):
            original = file.with_name(file.name.rsplit(".", 2)[0])
            file.rename(original)
            yield original


def _abandoned(claim: Path) -> bool:
    try:
        os.kill(int(claim.name.rsplit(".", 2)[1]), 0)
        return time.time() - claim.stat().st_mtime > _STALE_S
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        return False


def _claim(file: Path) -> Path | None:
    claim = file.with_name(f"{file.name}.{os.getpid()}.claim")
    try:
        file.rename(claim)
        return claim
    except FileNotFoundError:  # another process was faster
        return None


def _count(file: Path) -> int:
    return int(file.stem.rpartition("-n")[2])
