"""What a collector keeps of what an SDK sent once."""

from __future__ import annotations

from pathlib import Path

from fixtures.dialects.capture import replay
from spanwise.collector.dialects import RawSpan, read_run
from spanwise.collector.records import Run
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

SENT = Path(__file__).parents[2] / "fixtures" / "dialects"
QUESTION = "Where is my parcel?"
ANSWER = "Parcels arrive within three days [1]."


class Kept(list[Run]):
    """Runs by start time."""

    def one(self, name: str) -> Run:
        (run,) = self.all(name)
        return run

    def all(self, name: str) -> list[Run]:
        return [run for run in self if run.name == name]

    def below(self, run: Run) -> list[Run]:
        return [child for child in self if child.parent_id == run.span_id and child.trace_id == run.trace_id]


def kept(folder: Path, sent: str) -> Kept:
    """The runs that a real server makes of a file of requests, all of which it takes."""
    with SQLiteStore(folder / "spanwise.db") as store, Server(store) as server:
        statuses = [status for status, _ in replay(SENT / sent, server.url)]
        traces = [store.trace(summary.trace_id) for summary in store.traces(limit=100)]
    assert statuses[0] == 200
    return Kept(sorted((run for trace in traces if trace for run in trace.runs), key=lambda run: run.start_ns))


def strict(dialect: str, error: Exception) -> None:
    """What in production is counted and logged fails a test."""
    raise error


def run(scope: str = "", parent: str | None = None, name: str = "s", version: str = "", **attributes: object) -> Run:
    """The run that one span is, read by every dialect; `_` in a name stands for itself, `__` for a dot."""
    named = {name.replace("__", "."): value for name, value in attributes.items()}
    span = RawSpan(
        trace_id="1" * 32,
        span_id="2" * 16,
        parent_id=parent,
        name=name,
        scope=scope,
        scope_version=version,
        attributes=named,
    )
    return read_run(span, strict)
