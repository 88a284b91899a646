"""Large traces on their way out: the same bytes, in pieces, whoever reads them how slowly."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from collector.making import child, run
from spanwise.collector import record_encoding
from spanwise.collector.api.http_conversion import StreamedJSON
from spanwise.collector.client import HTTPStore
from spanwise.collector.errors import NotFound, StoreError, TooLarge
from spanwise.collector.operations import ProjectScopedStore
from spanwise.collector.query_scheduler import MAX_PENDING_RESPONSE_BYTES, QueryScheduler
from spanwise.collector.records import OpenRun, Run
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.collector.stores.sqlite.database.connections import MAX_READERS
from spanwise.collector.stores.store_interfaces import LARGE_ANSWER_BYTES, MAX_ANSWER_BYTES


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "spanwise.db") as made:
        yield made


@pytest.fixture
def server(store: SQLiteStore) -> Iterator[Server]:
    with Server(store) as made:
        yield made


def large(store: SQLiteStore, n: int = 400, **fields: Any) -> Run:
    """The root of a trace that is larger than an answer may be at once."""
    root = run("large", **fields)
    below = [
        child(root, f"c{i}", inputs=os.urandom(2 * LARGE_ANSWER_BYTES // n // 2).hex(), resource={"n": i % 3})
        for i in range(n)
    ]
    store.append([root, *below])
    store.feedback(root.trace_id, "k", 1.0)
    store.feedback(root.trace_id, "k", 0.5, span_id=below[3].span_id)
    store.add_running([OpenRun(trace_id=root.trace_id, span_id="e" * 16, name="open")])
    return root


def test_a_large_trace_is_the_same_in_pieces(store: SQLiteStore, server: Server) -> None:
    trace_id = large(store).trace_id
    answer = httpx.get(f"{server.url}/api/traces/{trace_id}", timeout=60)
    assert "content-length" not in answer.headers
    assert answer.content == record_encoding.encode(store.trace(trace_id))


def test_a_small_one_comes_at_once(store: SQLiteStore, server: Server) -> None:
    store.append([root := run()])
    answer = httpx.get(f"{server.url}/api/traces/{root.trace_id}")
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert answer.content == record_encoding.encode(store.trace(root.trace_id))


@pytest.mark.process
def test_several_come_in_the_order_asked(store: SQLiteStore, server: Server) -> None:
    first, second, small = large(store), large(store), run()
    store.append([small])
    asked = [second.trace_id, "f" * 32, small.trace_id, first.trace_id, second.trace_id]
    with HTTPStore(server.url) as client:
        assert client.many(asked) == store.many(asked)
        assert [trace.root.name for trace in client.many(asked)] == ["large", "answer", "large"]
        assert client.many(["f" * 32]) == []


def test_a_trace_that_is_not_there_is_not_found(server: Server) -> None:
    with HTTPStore(server.url) as client, pytest.raises(NotFound, match="there is no trace 'ff"):
        client.trace("f" * 32)


def test_another_projects_large_trace_is_not_there(store: SQLiteStore) -> None:
    mine, theirs = large(store, project="mine"), large(store, project="theirs")
    found = ProjectScopedStore(store, "mine").load_traces([mine.trace_id, theirs.trace_id])
    assert [trace.root.trace_id for trace in found] == [mine.trace_id]


def test_another_projects_trace_is_too_large_for_nobody(store: SQLiteStore) -> None:
    mine, theirs = large(store, project="mine"), large(store, project="theirs")
    store._file.write(
        lambda db: db.execute("UPDATE traces SET size = ? WHERE project = 'theirs'", (MAX_ANSWER_BYTES,)).rowcount
    )
    view = ProjectScopedStore(store, "mine")
    assert [trace.root.trace_id for trace in view.load_traces([mine.trace_id, theirs.trace_id])] == [mine.trace_id]
    store._file.write(lambda db: db.execute("UPDATE traces SET size = ?", (MAX_ANSWER_BYTES + 1,)).rowcount)
    assert view.load_traces([theirs.trace_id, "f" * 32]) == []
    with pytest.raises(TooLarge):
        view.load_traces([mine.trace_id])


@pytest.mark.process
def test_who_reads_slowly_holds_no_reader(store: SQLiteStore, server: Server) -> None:
    trace_id = large(store, 4_000, inputs="x" * 5_000_000).trace_id
    with socket.create_connection(("127.0.0.1", server.port)) as slow, ExitStack() as held:
        slow.sendall(f"GET /api/traces/{trace_id} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
        assert slow.recv(12) == b"HTTP/1.1 200"
        for _ in range(MAX_READERS):
            held.enter_context(store._file.read())


def test_what_is_too_much_for_one_answer_is_refused_and_its_pages_are_not(store: SQLiteStore, server: Server) -> None:
    trace_id = large(store).trace_id
    store._file.write(lambda db: db.execute("UPDATE traces SET size = ?", (MAX_ANSWER_BYTES + 1,)).rowcount)
    with HTTPStore(server.url) as client:
        with pytest.raises(TooLarge, match="page by page"):
            client.trace(trace_id)
        assert client.runs(trace_id, limit=10_000).items == store.trace(trace_id).runs


def test_damage_in_the_middle_of_an_answer_is_no_answer(store: SQLiteStore, server: Server) -> None:
    trace_id = large(store).trace_id
    store._file.write(lambda db: db.execute("UPDATE spans SET payload = x'00' WHERE name = 'c399'").rowcount)
    with HTTPStore(server.url) as client, pytest.raises(StoreError):
        client.trace(trace_id)


def sent(answer: StreamedJSON, *, leaves: bool) -> list[Any]:
    """What an answer sends to somebody who leaves at once, or never."""
    messages = list[Any]()

    async def receive() -> dict[str, str]:
        if not leaves:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        messages.append(message)
        await asyncio.sleep(0)

    asyncio.run(answer({"type": "http"}, receive, send))
    return messages


def test_nothing_more_is_written_for_somebody_who_has_left() -> None:
    lanes, pieces = QueryScheduler(), iter([b"x"] * 1_000)
    sent(StreamedJSON(pieces, lanes, MAX_PENDING_RESPONSE_BYTES), leaves=True)
    assert len(list(pieces)) > 900
    assert lanes.hold(1)


def test_when_too_much_waits_to_be_taken_more_is_refused() -> None:
    lanes = QueryScheduler()
    assert lanes.hold(MAX_PENDING_RESPONSE_BYTES)
    start, body = sent(StreamedJSON(iter([b"x"]), lanes, 1), leaves=False)
    assert (start["status"], b"try again" in body["body"]) == (503, True)
    lanes.let_go(MAX_PENDING_RESPONSE_BYTES)
    assert [message.get("body") for message in sent(StreamedJSON(iter([b"x"]), lanes, 1), leaves=False)] == [
        None,
        b"x",
        b"",
    ]
