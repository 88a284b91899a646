"""What SDKs have sent, in a real collector."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fixtures.dialects.capture import replay
from spanwise.collector.records import Run, Trace
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

FIXTURES = Path(__file__).parents[2] / "fixtures" / "dialects"


@contextmanager
def stored(*files: str) -> Iterator[SQLiteStore]:
    """A store that has taken in the requests of files, such as "vercel/ai6"; none of them was refused anything."""
    with tempfile.TemporaryDirectory() as folder, SQLiteStore(Path(folder) / "a.db") as store, Server(store) as server:
        for file in files:
            assert set(replay(FIXTURES / f"{file}.jsonl.gz", server.url)) <= {(200, b""), (200, b"{}")}
        yield store


def traces(store: SQLiteStore) -> list[Trace]:
    """All traces, first start first, as their senders have sent them."""
    return [store.trace(each.trace_id) for each in store.each()][::-1]


def runs(trace: Trace, *kinds: str) -> list[Run]:
    """The runs of some kinds, by start."""
    return [run for run in trace.runs if run.kind in kinds]


def tokens(trace: Trace) -> list[tuple[int, int]]:
    """What is counted of a trace."""
    return [(run.usage.input_tokens, run.usage.output_tokens) for run in trace.runs if run.usage]
