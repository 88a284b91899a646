"""Searchable text of runs: extraction, buffer until it is indexed, tokens of the full-text index.

The buffer stores text in blocks, in order of arrival. A block is reused once all of its text has been taken. Under
load, text waits in the buffer so that the writer has time for spans; see `maintenance.background_jobs`.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from io import FileIO
from itertools import chain, takewhile
from typing import NamedTuple

from spanwise.collector.stores.search_terms import IndexTerm, compile_terms, split_cjk

# Searchable text of runs: extraction, and a buffer (memory, then a spill file) until it is indexed.

MAX_TRACE_CHARACTERS = 200_000  # indexed characters of a trace, counted from its first span
# Separates the texts of a trace, so that no phrase matches the end of one text and the beginning of the next
LEAF_SEPARATOR = "\x1f"


def join_leaves(found: dict[str, None]) -> str:
    """Join the leaves of a trace to its text, and cut it to `MAX_TRACE_CHARACTERS` + 1 characters. The extra character
    shows that the text is longer than the limit.
    """
    return LEAF_SEPARATOR.join(found)[: MAX_TRACE_CHARACTERS + 1]


BLOCK_BYTES = 1024 * 1024  # bytes of a block, and of the largest text that the buffer accepts
MEMORY_BLOCKS = 8  # blocks in memory, besides the one being filled and the one read last
MAX_BLOCKS = 256
SPARE_DISK_BYTES = 1024 * 1024 * 1024  # free disk space that the spill file never uses


class SpillPosition(NamedTuple):
    """Position of a text in the spill buffer: a block and a byte range in it."""

    block: int
    begin: int
    end: int


class SpillFile:
    """Buffer of bytes in memory blocks and a temporary file. Each entry is taken or dropped once.

    For one thread. The file disappears with the process.
    """

    def __init__(self, folder: str) -> None:
        """Create an empty buffer; its file, if one is needed, is created in `folder`."""
        self._folder = folder
        self._clear()

    def _clear(self) -> None:
        self._file: FileIO | None = None
        self._refused = False  # set when the disk is full; the file is not used again until the buffer is empty
        self._memory: dict[int, bytearray] = {}
        self._live: dict[int, int] = {}  # block -> number of entries not yet taken
        self._free: list[int] = []
        self._count = 1  # blocks allocated
        self._open, self._filled = 0, bytearray()
        self._read: tuple[int, bytes] = (-1, b"")

    def put(self, data: bytes) -> SpillPosition | None:
        """Store data and return its position; None if the buffer is full."""
        if len(data) > BLOCK_BYTES or (len(self._filled) + len(data) > BLOCK_BYTES and not self._begin_another()):
            return None
        begin = len(self._filled)
        self._filled += data
        self._live[self._open] = self._live.get(self._open, 0) + 1
        return SpillPosition(self._open, begin, len(self._filled))

    def take(self, place: SpillPosition) -> bytes | None:
        """Remove an entry and return its data; None if the file cannot be read."""
        block = self._memory.get(place.block) if place.block != self._open else self._filled
        data = (self._from_file(place.block) if block is None else block)[place.begin : place.end]
        self.drop(place)
        return bytes(data) if len(data) == place.end - place.begin else None

    def drop(self, place: SpillPosition) -> None:
        """Remove an entry without reading it."""
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
        """Remove all entries and the file."""
        if self._file is not None:
            self._file.close()
        self._clear()

    def _begin_another(self) -> bool:
        """Move the full block to memory or to the file, and begin another; return False if there is no space."""
        if not self._free and self._count >= MAX_BLOCKS:
            return False
        if len(self._memory) < MEMORY_BLOCKS:
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
            if disk.f_bavail * disk.f_frsize > SPARE_DISK_BYTES:
                written = os.pwrite(self._file.fileno(), self._filled, self._open * BLOCK_BYTES)
                self._refused = written < len(self._filled)
            else:
                self._refused = True
        except OSError:
            self._refused = True
        return not self._refused

    def _from_file(self, block: int) -> bytes:
        """Return a block from the file. The last block is cached, because its next entries are usually read next."""
        if self._read[0] != block and self._file is not None:
            self._read = (-1, b"")
            with suppress(OSError):
                self._read = (block, os.pread(self._file.fileno(), BLOCK_BYTES, block * BLOCK_BYTES))
        return self._read[1] if self._read[0] == block else b""


MAX_BUFFER_BYTES = MAX_BLOCKS * BLOCK_BYTES
# Bytes of memory for the metadata of a trace and of each of its texts; the text itself is in the spill buffer
TRACE_OVERHEAD, TEXT_OVERHEAD = 600, 150
MAX_BUFFER_MEMORY = 32 * 1024 * 1024  # limit of the memory for the metadata


class BufferedText(NamedTuple):
    """Text of a trace, the row id of its last span, and the size of its payloads in bytes."""

    text: str
    upto: int
    size: int


class TraceTexts:
    """Positions of the buffered texts of one trace: UTF-8, to be joined by `LEAF_SEPARATOR`."""

    __slots__ = ("arrived", "characters", "parts", "size", "upto")

    def __init__(self, now: float) -> None:
        self.arrived = now
        self.parts: list[SpillPosition] = []
        self.characters = self.upto = self.size = 0

    @property
    def bytes(self) -> int:
        return sum(place.end - place.begin for place in self.parts)

    @property
    def memory(self) -> int:
        return TRACE_OVERHEAD + TEXT_OVERHEAD * len(self.parts)


class TextBuffer:
    """Buffer of the text of new traces until they are indexed, at most `most` bytes.

    It holds only traces all of whose spans arrived since the buffer started. A trace is dropped if it does not fit,
    is changed, or may have been rolled back; its text is then read from the database. Only the writer's thread
    changes the buffer; other threads may read the counters.
    """

    def __init__(self, folder: str, most: int = MAX_BUFFER_BYTES, memory: int = MAX_BUFFER_MEMORY) -> None:
        """Create an empty buffer; text beyond the memory limit goes to a file in `folder`."""
        self._most, self._most_memory = most, memory
        self._spill = SpillFile(folder)
        self.bytes = self.memory = 0  # bytes of the texts; bytes of their metadata
        self._texts: dict[int, TraceTexts] = {}  # in order of arrival
        self._touched: dict[int, float] = {}  # in order of the last addition
        # traces whose text was changed by a transaction that may still be rolled back
        self._unsettled: set[int] = set()

    def __contains__(self, key: object) -> bool:
        return key in self._texts

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def is_filling(self) -> bool:
        """Return whether the buffer is three quarters full, so that the index should take text soon."""
        return self.bytes > self._most // 4 * 3 or self.memory > self._most_memory // 4 * 3

    def add(self, key: int, text: str | None, upto: int, size: int, *, new: bool) -> None:
        """Add the text of a trace in a batch.

        `text` is None if a span was changed while it was stored; the trace is dropped then. `new` tells whether the trace has
        no text in the buffer yet.
        """
        now = time.monotonic()
        if new:
            self._texts[key] = TraceTexts(now)
            self.memory += TRACE_OVERHEAD
        elif key not in self._texts:
            return
        trace = self._texts[key]
        if text is None or trace.characters + len(text) > MAX_TRACE_CHARACTERS:
            self.drop(key)
            return
        data = text.encode("utf-8", "surrogatepass")
        has_room = self.bytes + len(data) <= self._most and self.memory + TEXT_OVERHEAD <= self._most_memory
        place = self._spill.put(data) if has_room else None
        if place is None:
            self.drop(key)
            return
        self.bytes += len(data)
        self.memory += TEXT_OVERHEAD
        trace.parts.append(place)
        trace.characters, trace.upto, trace.size = trace.characters + len(text) + 1, upto, trace.size + size
        self._touched.pop(key, None)
        self._touched[key] = now
        self._unsettled.add(key)

    def due(self, characters: int, settled: float, overdue: float) -> list[int]:
        """Return the sorted keys of traces that should be indexed now.

        These are traces without additions since `settled`, and traces that arrived before `overdue` (both are
        monotonic times). While the buffer is filling, the traces that have been unchanged for longest are due as
        well. The texts of the traces have at most `characters` characters together, but at least one trace is
        returned.
        """
        full = self.is_filling
        quiet = takewhile(lambda key: full or self._touched[key] < settled, self._touched)
        waiting = takewhile(lambda key: self._texts[key].arrived < overdue, self._texts)
        found: dict[int, None] = {}
        for key in chain(quiet, waiting):
            characters -= 0 if key in found else self._texts[key].characters
            if found and characters < 0:
                break
            found[key] = None
        return sorted(found)

    def drop(self, key: int) -> None:
        """Drop the text of a trace; it will be read from the database."""
        if (trace := self._forget(key)) is not None:
            for place in trace.parts:
                self._spill.drop(place)

    def take(self, key: int) -> BufferedText | None:
        """Remove a trace and return its text; None if it is not buffered or cannot be read."""
        trace = self._forget(key)
        if trace is None:
            return None
        taken = [self._spill.take(place) for place in trace.parts]
        data = [part for part in taken if part is not None]
        if len(data) < len(taken):
            return None
        return BufferedText(LEAF_SEPARATOR.encode().join(data).decode("utf-8", "surrogatepass"), trace.upto, trace.size)

    def _forget(self, key: int) -> TraceTexts | None:
        self._unsettled.discard(key)
        self._touched.pop(key, None)
        trace = self._texts.pop(key, None)
        if trace is not None:
            self.bytes -= trace.bytes
            self.memory -= trace.memory
        return trace

    def close(self) -> None:
        """Drop all text and the spill file."""
        self._spill.close()

    def settle(self) -> None:
        """Mark all buffered text as durable."""
        self._unsettled.clear()

    def undo(self) -> None:
        """Drop all text that is not marked as durable, after a rollback."""
        for key in list(self._unsettled):
            self.drop(key)


# Tokens of the full-text index: text for FTS5's tokenizer, and FTS5 expressions for searches (see `search_terms`).

# A token between two texts of a trace. A search never contains it, because it is neither a letter nor a digit
_BOUNDARY = " \ue000 "


def split_text(text: str) -> str:
    """Return the text of a trace in the form in which FTS5 indexes it."""
    return split_cjk(text).replace(LEAF_SEPARATOR, _BOUNDARY)


def compile_match(text: str) -> str:
    """Return the FTS5 expression for "all of these terms"."""
    return format_match(compile_terms(text))


def format_match(terms: Sequence[IndexTerm]) -> str:
    """Return the FTS5 expression for all of several terms."""
    return " ".join(f'"{" ".join(term.tokens)}"{"*" if term.is_prefix else ""}' for term in terms)
