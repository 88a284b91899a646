"""What stands below a directory, read without leaving it: an answer may name any path, plant links and swap folders.

Links are resolved first, and what they lead to must lie below the directory. Then every step of that path is opened
from the one before it, following no link: whatever is exchanged in the meantime cannot lead out. What was opened is
looked at before it is read, so that a FIFO, a device or a socket is never read from.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

_STEP = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LAST = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC  # a FIFO would wait for a writer


@dataclass(slots=True)
class Below:
    """A directory if there is one, how many of its entries are looked at, and how many bytes may still be read."""

    directory: str | None
    most: int
    left: int

    def files(self) -> list[str]:
        """Names of all files and links below the directory, sorted, and of folders that cannot be listed.

        Raises `ValueError` when there are more than `most` entries, or no such directory.
        """
        names: list[str] = []
        waiting, seen = [""] if self.directory is not None else [], 0
        while waiting:
            folder = waiting.pop()
            for entry in self._entries(folder, names):
                seen += 1
                self._check_count(seen)
                name = os.path.join(folder, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(name)
                elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
                    names.append(name)
        return sorted(names)

    def normal(self, name: str) -> str:
        """One name for what may be named in several ways: relative to the directory, without `./`."""
        whole = os.path.abspath(os.path.join(self.directory or ".", name))
        return os.path.relpath(whole, os.path.abspath(self.directory or "."))

    def read(self, name: str) -> bytes | frozenset[str]:
        """The bytes of a file, or the names in a folder. Raises `OSError`, or `ValueError` for too much."""
        if self.directory is None:
            raise _refused("it is not handed over, and there is no directory to look in")
        with _opened(self.directory, name) as (descriptor, found):
            if stat.S_ISDIR(found.st_mode):
                return self._listed(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise _refused("it is no regular file")
            self.take(found.st_size, name)
            return _bytes(descriptor, found.st_size)

    def take(self, size: int, name: str) -> None:
        """Counts bytes that are to be looked at. Raises `ValueError` when they are more than may be read."""
        if size > self.left:
            raise ValueError(
                f"artifact {name!r:.200} has {size:,} bytes, and of all artifacts together no more than max_bytes are "
                f"read, of which {self.left:,} are left: give a larger max_bytes"
            )
        self.left -= size

    def _entries(self, folder: str, unlisted: list[str]) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(os.path.join(self.directory or ".", folder)) as entries:
                yield from entries
        except OSError as error:
            if not folder:
                raise ValueError(f"directory {self.directory!r} cannot be listed: {error.strerror}") from error
            unlisted.append(folder)

    def _listed(self, descriptor: int) -> frozenset[str]:
        with os.scandir(descriptor) as entries:
            names = frozenset(entry.name for entry in islice(entries, self.most + 1))
        self._check_count(len(names))
        return names

    def _check_count(self, count: int) -> None:
        if count > self.most:
            raise ValueError(
                f"directory {self.directory!r} holds more than {self.most:,} entries: give a larger max_artifacts"
            )


def _refused(why: str) -> PermissionError:
    return PermissionError(errno.EACCES, why)


@contextmanager
def _opened(directory: str, name: str) -> Iterator[tuple[int, os.stat_result]]:
    """A descriptor of what stands at a name below a directory, and what it is. Raises `OSError`."""
    root = os.path.realpath(directory)
    *steps, last = os.path.relpath(_resolved(directory, root, name), root).split(os.sep)
    descriptor = os.open(root, _STEP)
    try:
        for step in steps:
            descriptor = _next(descriptor, step, _STEP)
        descriptor = _next(descriptor, last, _LAST)
        yield descriptor, os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _next(descriptor: int, step: str, flags: int) -> int:
    """The descriptor one step further on, in place of the one before it."""
    further = os.open(step, flags, dir_fd=descriptor)
    os.close(descriptor)
    return further


def _resolved(directory: str, root: str, name: str) -> str:
    """The path at which a name ends. One that leads out in so many words is not even looked for on the disk."""
    if "\0" in name:
        raise _refused("no file can have a NUL in its name")
    whole = os.path.abspath(os.path.join(directory, name))
    if not _is_below(whole, os.path.abspath(directory)) and not _is_below(whole, root):
        raise _refused("it lies outside of the directory")
    try:
        real = os.path.realpath(whole)
    except UnicodeEncodeError:
        raise _refused("no file can have its name") from None
    if not _is_below(real, root):
        raise _refused("it leads outside of the directory")
    return real


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(os.path.join(directory, ""))


def _bytes(descriptor: int, size: int) -> bytes:
    """As many bytes as the file had when it was opened: one that grows is not followed."""
    chunks = []
    while size and (chunk := os.read(descriptor, min(size, 1 << 20))):
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)
