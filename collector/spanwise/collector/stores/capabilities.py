"""Optional capabilities of a store: async append, encoded rows, feedback cursor, lazy traces."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from spanwise.collector.records import Feedback, OpenRun, Outlet, Run, Trace


@runtime_checkable
class LocalStore(Protocol):
    """A store that is held here. One that is reached through a server holds nothing and is none of these.

    To be asked for with `isinstance(store, Serving)`.
    """

    @property
    def where(self) -> str:
        """Where the store is, in words for people: its address or its path."""
        ...

    def announce(self, url: str | None) -> None:
        """Say where this process can be reached, or no more (None); `connect()` in other processes finds it."""

    def health(self) -> Mapping[str, float]:
        """Numbers for whoever watches, by name; `writable` is 0 while nothing can be kept."""
        ...

    def trouble(self) -> str | None:
        """Why nothing can be kept now, in words that name no path; None while all is well."""
        ...

    def append_async(self, runs: Sequence[Run], feedback: Sequence[Feedback] = ()) -> Future[None]:
        """As `append`, without waiting: the future resolves when the runs are durable. Raises `Unavailable`."""
        ...


@runtime_checkable
class RowStore(Protocol):
    """A store whose rows of runs may be made elsewhere than it is, in another process too."""

    def encoder(self) -> Callable[[Sequence[Run]], Any]:
        """What makes rows of runs, or of no runs: it needs no store, and pickles. Another one as soon as rows are
        better made otherwise; those of earlier ones are taken, too.
        """
        ...

    def write(self, rows: Any, feedback: Sequence[Feedback] = ()) -> Future[None]:
        """As `append_async`, of runs as the encoder made rows of them."""
        ...


class OutgoingFeedback(NamedTuple):
    """A feedback as it is sent on: its number, and whose its trace is, if that is here."""

    number: int
    feedback: Feedback
    project: str | None
    environment: str | None


@runtime_checkable
class DestinationStore(Protocol):
    """A store that knows which destinations of calls take part in tracing."""

    def traced_destinations(self, project: str) -> Sequence[str]:
        """Return the destinations whose spans have continued calls of a project, see `spanwise.tracer.propagation_targets`."""
        ...


@runtime_checkable
class FeedbackSource(Protocol):
    """A store from which feedback can be sent on. Numbers of feedback rise, with gaps; what changes gets a new one."""

    def identity(self) -> str:
        """What tells this store from all others."""
        ...

    def open_outlet(self, name: str, url: str) -> Outlet:
        """Where sending to an address goes on; one that is new begins with what is said from now on."""
        ...

    def said_after(self, cursor: int, limit: int) -> Sequence[OutgoingFeedback]:
        """Feedback that was said, or said anew, after a cursor, in order."""
        ...

    def waiting_after(self, cursor: int) -> int:
        """How much that is."""
        ...

    def move_outlet(self, name: str, cursor: int, sent: int, dropped: int, error: str | None = None) -> None:
        """Note, durably, up to which number all is sent or given up, how much more that is, and why a try failed."""

    def feedback_there(self, ids: Collection[str]) -> set[str]:
        """Those of the feedbacks that are here, by id."""
        ...


BATCH, BATCH_BYTES = 100, 16 * 1024  # runs that are read together at most, and bytes of them as they are kept


@dataclass(frozen=True, slots=True)
class LazyTrace:
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
class StreamingStore(Protocol):
    """A store that gives large traces so that they can be written out piece by piece."""

    def unread(self, trace_ids: Sequence[str]) -> Sequence[Trace | LazyTrace]:
        """As `TraceStore.many`: all whole if small. Raises `TooLarge` beyond what an answer holds."""
        ...
