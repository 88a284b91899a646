"""What a store that this process holds offers beside its verbs: to the server over it, and to whoever watches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol, runtime_checkable

from assay.collector.records import Feedback, Run


@runtime_checkable
class Serving(Protocol):
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
