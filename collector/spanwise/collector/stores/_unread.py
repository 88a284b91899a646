"""Traces of which the runs have been fetched and not yet read: large ones, on their way to whoever asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from spanwise.collector.records import Feedback, OpenRun, Run, Trace

BATCH, BATCH_BYTES = 100, 16 * 1024  # runs that are read together at most, and bytes of them as they are kept


@dataclass(frozen=True, slots=True)
class Unread:
    """A trace; its runs are read some at a time, each time anew, without the file. `size` is what it holds in bytes."""

    root: Run
    rows: Sequence[Any]
    sizes: Sequence[int]  # of each row
    read: Callable[[Any], Run]
    feedback: tuple[Feedback, ...]
    complete: bool
    dropped: int
    calls_sent: int
    running: tuple[OpenRun, ...]

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        return sum(self.sizes)

    def batches(self) -> Iterator[list[Run]]:
        """All runs by start time. Raises `StoreError` for one that is damaged."""
        batch, size = list[Run](), 0
        for row, bytes_ in zip(self.rows, self.sizes, strict=True):
            batch.append(self.read(row))
            size += bytes_
            if len(batch) >= BATCH or size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch


@runtime_checkable
class Streams(Protocol):
    """A store that gives large traces so that they can be written out piece by piece."""

    def unread(self, trace_ids: Sequence[str]) -> Sequence[Trace | Unread]:
        """As `TraceStore.many`: all whole if small. Raises `TooLarge` beyond what an answer holds."""
        ...
