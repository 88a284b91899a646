"""Questions as requests ask them: how long they run, whose turn it is, and what becomes of them when nobody waits."""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request

from collector.endless import Slow
from collector.making import run
from polling import until
from spanwise.collector.client import HTTPStore
from spanwise.collector.errors import TooSlow
from spanwise.collector.query_scheduler import MAX_CONCURRENT_SCANS, FairQueue, _Caller
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Slow]:
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        yield Slow(store)


@contextmanager
def served(slow: Slow, seconds: float | None) -> Iterator[Server]:
    with Server(slow, query_seconds=seconds) as server:  # type: ignore[arg-type]
        yield server


def asking(server: Server, address: str = "/api/aggregate") -> socket.socket:
    """A connection on which a question has been asked."""
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(f"GET {address} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
    return connection


@pytest.mark.process
def test_a_question_that_takes_too_long_is_refused_and_says_how_to_narrow_it(slow: Slow) -> None:
    with served(slow, 0.2) as server, HTTPStore(server.url) as client:
        with pytest.raises(TooSlow, match=r"/api/aggregate took longer than 0.2 seconds.*`since`"):
            client.aggregate()
        assert slow.inside == 0
        assert httpx.get(f"{server.url}/api/aggregate").status_code == 422


@pytest.mark.process
def test_a_page_that_takes_too_long_says_so_as_a_page(slow: Slow) -> None:
    slow.append([run()])
    with served(slow, 0.2) as server:
        answer = httpx.get(f"{server.url}/charts?since=2025-01-01&until=2026-01-01")
        assert (answer.status_code, answer.headers["content-type"]) == (422, "text/html; charset=utf-8")
        assert "Query too slow" in answer.text


@pytest.mark.process
def test_a_question_ends_when_its_caller_hangs_up(slow: Slow) -> None:
    with served(slow, None) as server:
        connection = asking(server)
        until(lambda: slow.inside == 1)
        connection.close()
        until(lambda: slow.inside == 0)
        assert httpx.get(f"{server.url}/api/traces").json()["items"] == []


def test_a_caller_who_hangs_up_in_the_queue_is_not_asked_for(slow: Slow) -> None:
    with served(slow, None) as server, ExitStack() as open_:
        for _ in range(MAX_CONCURRENT_SCANS):
            open_.enter_context(asking(server))
        until(lambda: slow.inside == MAX_CONCURRENT_SCANS)
        asking(server).close()
        with open_.enter_context(asking(server)) as last:
            last.settimeout(0.1)
            with pytest.raises(TimeoutError):
                last.recv(1)
            assert slow.inside == MAX_CONCURRENT_SCANS
    assert slow.most == MAX_CONCURRENT_SCANS


def test_what_is_cheap_does_not_wait_for_ten_that_are_not(slow: Slow) -> None:
    one = run()
    slow.append([one])
    with served(slow, None) as server, ExitStack() as open_:
        for _ in range(10):
            open_.enter_context(asking(server))
        until(lambda: slow.inside == MAX_CONCURRENT_SCANS)
        for address in ("/readyz", "/metrics", "/api/traces", f"/api/traces/{one.trace_id}", f"/traces/{one.trace_id}"):
            assert httpx.get(server.url + address, timeout=60).status_code == 200
        assert slow.inside == MAX_CONCURRENT_SCANS


@pytest.mark.process
def test_of_a_hundred_at_once_each_is_answered_or_told_to_come_again(slow: Slow) -> None:
    slow.append([run("one")])
    with (
        served(slow, 10.0) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
        ThreadPoolExecutor(100) as threads,
    ):
        answers = list(threads.map(lambda _: client.get("/api/traces", params={"name": "one"}), range(100)))
    assert {answer.status_code for answer in answers} <= {200, 503}
    assert any(answer.status_code == 200 for answer in answers)
    assert all("retry-after" in answer.headers for answer in answers if answer.status_code == 503)


def test_stopping_the_server_leaves_no_question_behind(slow: Slow) -> None:
    with served(slow, None) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("GET", "/api/aggregate")
        until(lambda: slow.inside == 1)
        connection.close()
    until(lambda: slow.inside == 0)


def caller(name: str) -> _Caller:
    async def nothing() -> dict[str, str]:
        await asyncio.Event().wait()
        return {}

    return _Caller(Request({"type": "http", "client": (name, 1)}, nothing))


def test_callers_come_in_turn_however_much_one_asks() -> None:
    came = list[str]()

    async def ask(lane: FairQueue, name: str) -> None:
        one = caller(name)
        one.name = name
        assert await lane.enter(one)
        came.append(name)
        lane.leave()
        one.stop_watching()

    async def all_ask() -> None:
        lane = FairQueue(1)
        assert await lane.enter(caller("first"))
        asked = [asyncio.ensure_future(ask(lane, name)) for name in ("a", "a", "a", "b")]
        await asyncio.sleep(0)
        lane.leave()
        await asyncio.gather(*asked)

    asyncio.run(all_ask())
    assert came == ["a", "b", "a", "a"]


def test_a_place_is_not_lost_with_a_request_that_is_cancelled_in_its_turn() -> None:
    async def lost() -> bool:
        lane = FairQueue(1)
        assert await lane.enter(caller("first"))
        second = asyncio.ensure_future(lane.enter(caller("second")))
        await asyncio.sleep(0)
        lane.leave()
        second.cancel()
        await asyncio.wait({second})
        return await lane.enter(caller("third"))

    assert asyncio.run(asyncio.wait_for(lost(), 60))
