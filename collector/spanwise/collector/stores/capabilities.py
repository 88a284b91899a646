"""Optional capabilities of a store: async append, encoded rows, feedback cursor, lazy traces."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from spanwise.collector.filters import Filter
from spanwise.collector.records import ChangePage, Feedback, OpenRun, Outlet, Run, Trace


@runtime_checkable
class LocalStore(Protocol):
    """Store that this process opens itself, not through a server. Test with `isinstance(store, LocalStore)`."""

    @property
    def where(self) -> str:
        """Return the location, for display: an address or a path."""

    def announce(self, url: str | None) -> None:
        """Publish the URL of this process for `connect()` in other processes; None withdraws it."""

    def health(self) -> Mapping[str, float]:
        """Return metrics by name. `writable` is 0 while nothing can be stored."""

    def trouble(self) -> str | None:
        """Return the reason why nothing can be stored now, without paths; None if writing works."""

    def append_async(self, runs: Sequence[Run], feedback: Sequence[Feedback] = ()) -> Future[None]:
        """Append without waiting. The future resolves when the runs are durable. Raise `Unavailable` if the queue is
        full.
        """


@runtime_checkable
class FeedStore(Protocol):
    """Store with a change feed that can be read from now on."""

    def latest_change(self) -> int:
        """Return the highest change number so far. As text, it is the cursor of all later changes."""

    def changes(self, after: str | None = None, *, limit: int = 1000, filters: Sequence[Filter] = ()) -> ChangePage:
        """Return a page of the change feed. See `TraceStore.changes`."""


@runtime_checkable
class RowStore(Protocol):
    """Store that accepts runs encoded elsewhere, for example in another process."""

    def encoder(self) -> Callable[[Sequence[Run]], Any]:
        """Return a function that encodes runs to rows. It needs no store, accepts an empty list, and can be pickled.

        The store may return a better encoder later. It still accepts rows of earlier ones.
        """

    def write(self, rows: Any, feedback: Sequence[Feedback] = ()) -> Future[None]:
        """Append rows from the encoder, as `append_async` appends runs."""


class OutgoingFeedback(NamedTuple):
    """Feedback to forward: its number, and the project and environment of its trace, if that is stored."""

    number: int
    feedback: Feedback
    project: str | None
    environment: str | None


@runtime_checkable
class DestinationStore(Protocol):
    """Store that records which destinations of calls take part in tracing."""

    def traced_destinations(self, project: str) -> Sequence[str]:
        """Return the destinations whose spans have continued calls of a project, see
        `spanwise.tracer.propagation_targets`.
        """


@runtime_checkable
class FeedbackSource(Protocol):
    """Store from which feedback can be forwarded.

    Numbers of feedback rise, with gaps. Changed feedback gets a new number.
    """

    def identity(self) -> str:
        """Return the unique id of this store."""

    def open_outlet(self, name: str, url: str) -> Outlet:
        """Return the state of forwarding to a target. A target that is new to the store gets only feedback from now
        on.
        """

    def feedback_after(self, cursor: int, limit: int) -> Sequence[OutgoingFeedback]:
        """Return feedback that was added or changed after a cursor, in order."""

    def count_feedback_after(self, cursor: int) -> int:
        """Return the number of feedback rows after a cursor."""

    def move_outlet(self, name: str, cursor: int, sent: int, dropped: int, error: str | None = None) -> None:
        """Store durably how far forwarding has got.

        All feedback up to the number `cursor` has been sent or dropped. `sent` and `dropped` are added to the counts, and
        `error` is the last error.
        """

    def find_stored_feedback(self, ids: Collection[str]) -> set[str]:
        """Return those of the ids under which feedback is stored."""


# maximum number of runs in a batch, and number of stored bytes at which a batch ends
BATCH, BATCH_BYTES = 100, 16 * 1024


@dataclass(frozen=True, slots=True)
class LazyTrace:
    """Trace whose runs are decoded in batches on each iteration. Decoding does not access the database file."""

    root: Run
    rows: Sequence[Any]
    sizes: Sequence[int]  # size of each row in bytes
    read: Callable[[Any], Run]
    feedback: tuple[Feedback, ...]
    complete: bool
    dropped: int
    calls_sent: int
    running: tuple[OpenRun, ...]

    @property
    def size(self) -> int:
        """Return the total size of the rows in bytes."""
        return sum(self.sizes)

    def batches(self) -> Iterator[list[Run]]:
        """Yield all runs by start time, in batches. Raise `StoreError` for a damaged run."""
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
    """Store that returns large traces so that they can be written out in batches."""

    def load_traces(self, trace_ids: Sequence[str]) -> Sequence[Trace | LazyTrace]:
        """Return traces as `TraceStore.many` does, all complete if they are small, else all lazy.

        Raise `TooLarge` if they exceed the limit of a response.
        """
