"""Requests as clients send them by hand: in pieces, in a row, too short, too long, and left in the middle."""

from __future__ import annotations

import re
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
import pytest

from collector.otlp import request, span
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

LIMIT = 60.0  # seconds, for a machine with much else to do
CONNECTIONS = min(500, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 3)  # both ends of each are in this process


@pytest.fixture
def server(tmp_path) -> Iterator[Server]:
    with SQLiteStore(tmp_path / "a.db") as store, Server(store) as made:
        yield made


def body(number: int) -> bytes:
    return request(span(f"s{number}", trace_id=number.to_bytes(16, "big")))


def head(length: int | None, *more: str, version: str = "1.1") -> bytes:
    lines = [f"POST /v1/traces HTTP/{version}", "host: localhost", "content-type: application/x-protobuf", *more]
    if length is not None:
        lines.append(f"content-length: {length}")
    return "\r\n".join([*lines, "", ""]).encode()


def connected(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT)


def statuses(found: bytes) -> list[bytes]:
    return re.findall(rb"HTTP/1\.1 ([2-5]\d\d) ", found)


def heard(asked: socket.socket, answers: int = 1) -> bytes:
    """What comes until there are so many answers of a final status, or nothing more."""
    found = b""
    while len(statuses(found)) < answers and (piece := asked.recv(10_000)):
        found += piece
    return found


def until(found: Callable[[], bool]) -> bool:
    end = time.monotonic() + LIMIT
    while not found():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def names(server: Server) -> set[str | None]:
    return {one.name for one in server.store.traces(limit=1000)}


def number(server: Server, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics", timeout=LIMIT).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_a_chunked_body_is_kept(server):
    sent, pieces = body(1), 7
    with connected(server) as asked:
        asked.sendall(head(None, "transfer-encoding: chunked"))
        for start in range(0, len(sent), pieces):
            asked.sendall(b"%x\r\n%b\r\n" % (len(sent[start : start + pieces]), sent[start : start + pieces]))
        asked.sendall(b"0\r\n\r\n")
        assert heard(asked).startswith(b"HTTP/1.1 200 ")
    assert names(server) == {"s1"}


def test_a_client_of_http_1_0_is_answered_and_its_connection_ends(server):
    with connected(server) as asked:
        asked.sendall(head(len(body(1)), version="1.0") + body(1))
        answer = heard(asked)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in answer
        assert asked.recv(100) == b""
    assert names(server) == {"s1"}


def test_a_client_that_asks_first_is_told_to_go_on(server):
    with connected(server) as asked:
        asked.sendall(head(len(body(1)), "expect: 100-continue"))
        assert asked.recv(100).startswith(b"HTTP/1.1 100 ")
        asked.sendall(body(1))
        assert heard(asked).startswith(b"HTTP/1.1 200 ")
    assert names(server) == {"s1"}


def test_of_a_body_that_is_longer_than_was_said_the_rest_is_no_request(server):
    with connected(server) as asked:
        asked.sendall(head(len(body(1))) + body(1) + b"\x00and more\r\n\r\n")
        answers = heard(asked, answers=2)
        assert statuses(answers) in ([b"200", b"400"], [b"400"])
    assert until(lambda: names(server) <= {"s1"} and number(server, "spanwise_pending_bytes") == 0)


def test_who_leaves_in_the_middle_of_a_body_leaves_nothing_behind(server):
    with connected(server) as asked:
        asked.sendall(head(len(body(1))) + body(1)[:-3])
        assert until(lambda: number(server, "spanwise_pending_bytes") > 0)
    assert until(lambda: number(server, 'spanwise_requests_refused_total{signal="traces",reason="disconnected"}') == 1)
    assert number(server, "spanwise_pending_bytes") == 0
    assert names(server) == set()


def test_what_was_sent_whole_is_kept_although_its_sender_did_not_wait(server):
    for one in range(20):
        with connected(server) as asked:
            asked.sendall(head(len(body(one + 1))) + body(one + 1))
    assert until(lambda: names(server) == {f"s{one + 1}" for one in range(20)})
    assert until(lambda: number(server, "spanwise_pending_bytes") == 0)


def test_requests_in_a_row_are_each_answered_in_order(server):
    wrong = head(3) + b"\xff\xff\xff"
    with connected(server) as asked:
        asked.sendall(b"".join([head(len(body(1))) + body(1), wrong, head(len(body(2))) + body(2)]))
        answers = heard(asked, answers=3)
    assert statuses(answers) == [b"200", b"400", b"200"]
    assert names(server) == {"s1", "s2"}


@pytest.mark.process
def test_many_connections_are_all_answered_and_counted(server):
    with ExitStack() as stack:
        asked = []
        for one in range(CONNECTIONS):  # each sends at once: who keeps the server waiting for long is cut off
            asked.append(stack.enter_context(connected(server)))
            asked[-1].sendall(head(len(body(one + 1))) + body(one + 1))
        assert all(heard(each).startswith(b"HTTP/1.1 200 ") for each in asked)
    assert server.store.count()["traces"] == CONNECTIONS
    assert number(server, "spanwise_stored_total") == number(server, "spanwise_received_total") == CONNECTIONS
    assert number(server, "spanwise_acknowledgement_seconds_count") == CONNECTIONS
