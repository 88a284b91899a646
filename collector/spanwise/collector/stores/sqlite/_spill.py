"""Bytes that wait to be taken: a few megabytes in memory, more in a file beside the database that has no name.

They stand in blocks, in the order in which they came. A block of which all has been taken is used again.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from io import FileIO
from typing import NamedTuple

BLOCK = 1024 * 1024  # bytes; there is no room for more in one piece
IN_MEMORY = 8  # blocks, besides the one that is filled and the one that was read last
BLOCKS = 256
SPARE = 1024 * 1024 * 1024  # bytes of the disk that are left to others


class Place(NamedTuple):
    """Where something stands: a block, and bytes of it."""

    block: int
    begin: int
    end: int


class Spill:
    """Keeps bytes until they are taken or dropped, each once. For one thread. Nothing of it outlives the process."""

    def __init__(self, folder: str) -> None:
        """The file, if it comes to that, is made in `folder`."""
        self._folder = folder
        self._clear()

    def _clear(self) -> None:
        self._file: FileIO | None = None
        self._refused = False  # by the disk: not asked for again before all has been taken
        self._memory: dict[int, bytearray] = {}
        self._live: dict[int, int] = {}  # by block: pieces that are still to be taken
        self._free: list[int] = []
        self._count = 1  # blocks so far
        self._open, self._filled = 0, bytearray()
        self._read: tuple[int, bytes] = (-1, b"")

    def put(self, data: bytes) -> Place | None:
        """Keep this; None where there is no room."""
        if len(data) > BLOCK or (len(self._filled) + len(data) > BLOCK and not self._begin_another()):
            return None
        begin = len(self._filled)
        self._filled += data
        self._live[self._open] = self._live.get(self._open, 0) + 1
        return Place(self._open, begin, len(self._filled))

    def take(self, place: Place) -> bytes | None:
        """What was put there, which is gone then; None if the disk does not give it back."""
        block = self._memory.get(place.block) if place.block != self._open else self._filled
        data = (self._from_file(place.block) if block is None else block)[place.begin : place.end]
        self.drop(place)
        return bytes(data) if len(data) == place.end - place.begin else None

    def drop(self, place: Place) -> None:
        """Let go of what was put there."""
        block = place.block
        self._live[block] -= 1
        if self._live[block]:
            return
        del self._live[block]
        if not self._live:
            self.close()
        elif block == self._open:
            self._filled = bytearray()
        else:
            self._memory.pop(block, None)
            self._free.append(block)
            if block == self._read[0]:
                self._read = (-1, b"")

    def close(self) -> None:
        """Let go of all."""
        if self._file is not None:
            self._file.close()
        self._clear()

    def _begin_another(self) -> bool:
        """Put the block that is full by, and begin one."""
        if not self._free and self._count >= BLOCKS:
            return False
        if len(self._memory) < IN_MEMORY:
            self._memory[self._open] = self._filled
        elif not self._to_file():
            return False
        if not self._free:
            self._free.append(self._count)
            self._count += 1
        self._open, self._filled = self._free.pop(), bytearray()
        return True

    def _to_file(self) -> bool:
        if self._refused:
            return False
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            disk = os.fstatvfs(self._file.fileno())
            if disk.f_bavail * disk.f_frsize > SPARE:
                written = os.pwrite(self._file.fileno(), self._filled, self._open * BLOCK)
                self._refused = written < len(self._filled)
            else:
                self._refused = True
        except OSError:
            self._refused = True
        return not self._refused

    def _from_file(self, block: int) -> bytes:
        """A block as it was written, of which the next pieces are wanted next."""
        if self._read[0] != block and self._file is not None:
            self._read = (-1, b"")
            with suppress(OSError):
                self._read = (block, os.pread(self._file.fileno(), BLOCK, block * BLOCK))
        return self._read[1] if self._read[0] == block else b""
