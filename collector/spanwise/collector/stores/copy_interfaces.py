"""Export and import of everything that a trace backend stores, for copies of whole stores: interface and records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from spanwise.collector.records import JSON, Feedback, Run


class TracePosition(NamedTuple):
    """Numbers of a trace: its own, and those of its last changes in the change feed (`change`, `runs_change`).

    `span_count` is 0 for a trace of which only feedback is stored. The change numbers are None for a trace that was
    never in the feed.
    """

    number: int
    trace_id: str
    span_count: int
    start_ns: int
    change: int | None
    runs_change: int | None
    changed_ns: int | None


class ExportedRun(NamedTuple):
    """Run with the fields that amendments have set, and its size in bytes without them (None: never amended)."""

    run: Run
    amended: Mapping[str, JSON]
    sent: int | None


class NumberedFeedback(NamedTuple):
    """Feedback with its number in the order of writing; 0 if it has none.

    `change` is the last change of its trace, if it has one. A store that orders the feed by feedback, too, must not give
    the feedback a later position.
    """

    number: int
    feedback: Feedback
    change: int | None = None


class SideRecord(NamedTuple):
    """Record that is neither a run nor feedback: kind (open_run, process, amendment, tombstone, outlet), and fields."""

    kind: str
    fields: Mapping[str, Any]


class TraceCopy(Protocol):
    """Export and import of everything that a trace backend stores, with all numbers, for copies between databases.

    During an import, nothing else uses the store: `begin_import`, then traces, feedback, positions and side records in
    this order, then `finish_import`. Each import replaces what is stored of the same trace or feedback.
    """

    def list_positions(self, after: int, limit: int) -> list[TracePosition]:
        """Return the positions of traces with higher numbers than `after`, in the order of numbers."""

    def read_runs(self, positions: Sequence[TracePosition]) -> Iterator[list[ExportedRun]]:
        """Yield all runs of traces, in batches, trace by trace."""

    def list_feedback(self, after: str | None, limit: int) -> tuple[list[NumberedFeedback], str | None]:
        """Return feedback after a cursor, in the order of writing, and the next cursor."""

    def list_side_records(self) -> Iterator[SideRecord]:
        """Yield all side records, kind by kind."""

    def read_identity(self) -> str:
        """Return the id of the store by which collectors that forward to each other know it."""

    def begin_import(self) -> None:
        """Prepare the store for an import. Repeated calls change nothing."""

    def import_traces(self, positions: Sequence[TracePosition], runs: Iterable[Sequence[ExportedRun]]) -> None:
        """Store runs, whose traces get the numbers of the positions. Raise `Refused` if a trace has another number."""

    def import_feedback(self, rows: Sequence[NumberedFeedback]) -> None:
        """Store feedback with its numbers."""

    def import_positions(self, positions: Sequence[TracePosition]) -> None:
        """Restore the change numbers of traces."""

    def import_side_records(self, records: Sequence[SideRecord], *, first: bool) -> None:
        """Store side records. The first call of an import replaces all that are stored."""

    def finish_import(self, latest_change: int, identity: str) -> None:
        """Continue the change feed after `latest_change`, and take over the id of the source."""
