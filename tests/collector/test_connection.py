"""Heads that never end, heads that are too large, and more connections than there may be."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from integration.serving import ROOT, environment
from polling import until
from spanwise.collector.server import (
    BODY_TIMEOUT_S,
    HEADER_TIMEOUT_S,
    MAX_HEADER_BYTES,
    MIN_BODY_RATE,
    UNREAD_RESPONSE_TIMEOUT_S,
    LimitedConnection,
    Server,
)
from spanwise.collector.stores.sqlite import SQLiteStore


@pytest.fixture
def server(tmp_path) -> Iterator[Server]:
    with SQLiteStore(tmp_path / "a.db") as store, Server(store) as made:
        yield made


def told(server: Server, wire: bytes) -> bytes:
    """What the server says to some bytes; nothing, if it ends the connection first."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as asked, suppress(ConnectionError):
        asked.sendall(wire)
        return asked.recv(1000)
    return b""


@pytest.mark.process
@pytest.mark.parametrize(
    "wire",
    [
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * MAX_HEADER_BYTES + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 10 * MAX_HEADER_BYTES,
        b"GET /" + b"y" * MAX_HEADER_BYTES + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * MAX_HEADER_BYTES,
    ],
)
def test_a_head_that_is_too_large_is_refused(server, wire):
    answer = told(server, wire)
    assert not answer or answer.startswith(b"HTTP/1.1 431 ")
    assert httpx.get(f"{server.url}/healthz").status_code == 200


def test_a_head_of_usual_size_is_taken(server):
    wide = {"x": "y" * (MAX_HEADER_BYTES // 2)}
    assert httpx.get(f"{server.url}/healthz", headers=wide).status_code == 200


def test_requests_in_a_row_are_answered_and_too_many_are_not_queued(server):
    one = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as asked:
        asked.sendall(one * 3)
        answers = b""
        while answers.count(b"HTTP/1.1 200 OK") < 3:
            answers += asked.recv(10_000)
    assert told(server, one * 1000)
    assert httpx.get(f"{server.url}/healthz").status_code == 200


def waiting(**fields: Any) -> Any:
    """A connection as it stands at second 100."""
    made = LimitedConnection.__new__(LimitedConnection)
    unread = fields.pop("unread_now", 0)
    made.transport = SimpleNamespace(get_write_buffer_size=lambda: unread)  # type: ignore[assignment]
    made.cycle = None  # type: ignore[assignment]
    for name, value in {"waits": "head", "since": 100.0, "taken": 0, **fields}.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({}, HEADER_TIMEOUT_S),
        ({"taken": 10}, HEADER_TIMEOUT_S),
        ({"taken": 10, "cycle": object()}, HEADER_TIMEOUT_S),
        ({"waits": "body", "taken": 0}, BODY_TIMEOUT_S),
        ({"waits": "body", "taken": 10 * MIN_BODY_RATE}, BODY_TIMEOUT_S + 10),
    ],
)
def test_how_long_is_waited(fields, seconds):
    one = waiting(**fields)
    assert not one.is_overdue(100 + seconds - 0.1)
    assert one.is_overdue(100 + seconds + 0.1)


@pytest.mark.parametrize("fields", [{"waits": None}, {"cycle": object()}])
def test_one_that_is_answered_or_idle_is_not_waited_for(fields):
    one = waiting(**fields)
    assert not any(one.is_overdue(100.0 + second) for second in range(10_000))


def test_an_answer_that_nobody_reads_is_given_up():
    one = waiting(waits=None, unread_now=5)
    assert not one.is_overdue(200.0)
    assert not one.is_overdue(200.0 + UNREAD_RESPONSE_TIMEOUT_S - 0.1)
    assert one.is_overdue(200.0 + UNREAD_RESPONSE_TIMEOUT_S + 0.1)


SERVE = """
import sys
from spanwise.collector.server import serve
from spanwise.collector.stores.sqlite import SQLiteStore
with SQLiteStore(sys.argv[1]) as store:
    serve(store, port=0, ready=lambda url: print(url, flush=True))
"""


def answers(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/healthz", timeout=10).status_code == 200
    return False


@pytest.mark.process
def test_as_many_half_heads_as_descriptors_keep_nobody_out(tmp_path):
    limited = ["sh", "-c", 'ulimit -n 128 && exec "$@"', "sh", sys.executable, "-c", SERVE, str(tmp_path / "a.db")]
    with subprocess.Popen(limited, env=environment(), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            port = int(url.rpartition(":")[2])
            with ExitStack() as held:
                for _ in range(300):
                    with suppress(OSError):
                        half = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
                        half.sendall(b"POST /v1/traces HTTP/1.1\r\nhost: localhost\r\n")
                until(lambda: answers(url))
        finally:
            process.terminate()
    assert process.returncode == 0
