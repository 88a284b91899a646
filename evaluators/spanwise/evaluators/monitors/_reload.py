"""Whether a file of rules has changed, or what it imports from its own folder."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

_Stamp: TypeAlias = dict[str, tuple[int, int, int]]
MOST = 500  # files that are looked at
_FRESH = 2 * 10**9  # ns; clocks of file systems may be as coarse


def sources(file: Path) -> list[str]:
    """The file, then the modules of this process that come from its folder, as paths."""
    folder, own = file.parent.resolve(), str(file.resolve())
    named = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    found = {path for path in named if path and Path(path).is_relative_to(folder) and "site-packages" not in path}
    return [own, *sorted(found - {own})[: MOST - 1]]


def content(files: Iterable[str]) -> str:
    """A digest of what stands in the files; those that cannot be read are left out."""
    digest = hashlib.sha256()
    for file in sorted(files):
        with suppress(OSError):
            digest.update(file.encode() + b"\0" + hashlib.sha256(Path(file).read_bytes()).digest())
    return digest.hexdigest()


class Watch:
    """Looks at files whenever `changed` is asked.

    A change counts once two looks in a row see the same: editors write in pieces, or put a new file in the old one's
    place. While the file itself is away nothing has changed.
    """

    def __init__(self, file: Path) -> None:
        self._file = str(file.resolve())
        self.follow([self._file], content([self._file]))

    @property
    def away(self) -> bool:
        """Whether there is no such file now."""
        return not os.path.exists(self._file)

    def follow(self, files: Iterable[str], known: str) -> None:
        """From now on these are the files, and `known` is their content of which everybody knows."""
        self._files = sorted({self._file, *files})
        self._stamp: _Stamp = {}  # as it was last seen
        self._digested: _Stamp = {}  # whose content is known
        self.known = known

    def follow_folder(self) -> None:
        """All Python files beside the file, too: one of them may be what it lacks."""
        beside = sorted(map(str, Path(self._file).parent.glob("*.py")))
        files = [*self._files, *beside][:MOST]
        self.follow(files, content(files))

    def changed(self) -> bool:
        """Whether there is other content than what is known, which is known from now on."""
        stamp = {file: found for file in self._files if (found := _of(file))}
        before, self._stamp = self._stamp, stamp
        if self._file not in stamp or stamp != before or (stamp == self._digested and not _is_fresh(stamp)):
            return False
        self._digested = stamp
        if (now := content(self._files)) == self.known:
            return False
        self.known = now
        return True


def _is_fresh(stamp: _Stamp) -> bool:
    return max(changed for changed, _, _ in stamp.values()) > time.time_ns() - _FRESH


def _of(file: str) -> tuple[int, int, int] | None:
    with suppress(OSError):
        told = os.stat(file)
        return told.st_mtime_ns, told.st_size, told.st_ino
    return None
