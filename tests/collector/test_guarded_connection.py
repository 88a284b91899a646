"""Addresses to which notifications may go, and what a hostile receiver can do to a sender."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import trustme

from collector.receivers import HTTPReceiver, notification, reply
from spanwise.collector.notifications import AllowedAddresses, HTTPTarget, parse_allowed, sign_body
from spanwise.collector.notifications.guarded_connection import MAX_REPLY_BYTES, find_address_problem

LOOPBACK = parse_allowed(["127.0.0.0/8"])
BASE = "https://spanwise.example.com"
PRIVATE = [
    "127.0.0.1",
    "10.0.0.1",
    "192.168.1.1",
    "172.16.0.1",
    "::1",
    "fc00::1",
    "::ffff:10.0.0.1",
    "::ffff:127.0.0.1",
]
SPECIAL = [
    *("169.254.169.254", "0.0.0.0", "224.0.0.1", "240.0.0.1", "255.255.255.255", "100.64.0.1", "::", "fe80::1"),
    *("ff02::1", "fec0::1", "::ffff:169.254.169.254", "2002:a00:1::", "64:ff9b::a9fe:a9fe", "2001:0:a00:1::"),
]


@pytest.mark.parametrize("address", [*PRIVATE, *SPECIAL])
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    problem = find_address_problem(address, "hooks.example.com", AllowedAddresses())
    assert problem is not None
    assert "to allow it, add" in problem


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "::ffff:8.8.8.8"])
def test_public_addresses_are_allowed(address: str) -> None:
    assert find_address_problem(address, "hooks.example.com", AllowedAddresses()) is None


def test_a_host_name_allows_private_addresses_but_no_link_local_ones() -> None:
    allowed = parse_allowed(["Hooks.Internal"])
    assert [find_address_problem(one, "hooks.internal", allowed) for one in PRIVATE] == [None] * len(PRIVATE)
    assert all(find_address_problem(one, "hooks.internal", allowed) for one in SPECIAL)
    assert find_address_problem("10.0.0.1", "other.internal", allowed)


def test_a_network_allows_its_addresses_only() -> None:
    allowed = parse_allowed(["10.1.0.0/16", "fe80::/10"])
    assert [find_address_problem(one, "h", allowed) is None for one in ("10.1.2.3", "10.2.0.1", "fe80::9", "::1")] == [
        *(True, False, True, False)
    ]


def send(url: str, **fields: Any) -> Any:
    return HTTPTarget(name="ops", kind="webhook", url=url, **{"allowed": LOOPBACK, **fields}).send(notification(), BASE)


def test_a_webhook_gets_the_notification_with_its_id_and_a_signature_that_can_be_verified() -> None:
    with HTTPReceiver() as receiver:
        sent = notification(facts={"n": 3, "bound": 0.79}, links={"Chart": "/rules/polite?at=5"}, created_ns=10**18)
        target = HTTPTarget(name="ops", kind="webhook", url=receiver.url, secret="s3cret", allowed=LOOPBACK)
        assert target.send(sent, BASE).is_delivered
        [got] = receiver.requests
    signed = got.headers["Spanwise-Timestamp"].encode() + b"." + got.body
    expected = "v1=" + hmac.new(b"s3cret", signed, hashlib.sha256).hexdigest()
    assert hmac.compare_digest(got.headers["Spanwise-Signature"], expected)
    assert sign_body("s3cret", got.headers["Spanwise-Timestamp"], got.body) == expected
    assert abs(int(got.headers["Spanwise-Timestamp"]) - time.time()) < 60
    assert (got.id, got.path, got.headers["Host"]) == ("n1", "/hook", f"127.0.0.1:{receiver.port}")
    body = json.loads(got.body)
    assert body["links"] == {"Chart": f"{BASE}/rules/polite?at=5"}
    assert (body["id"], list(body["facts"]), body["created_at"]) == ("n1", ["n", "bound"], "2001-09-09T01:46:40.000Z")


def test_a_private_address_is_not_even_connected_to() -> None:
    with HTTPReceiver() as receiver:
        result = send(receiver.url, allowed=AllowedAddresses())
        assert (result.is_delivered, receiver.requests) == (False, [])
        assert (
            result.error
            == "host '127.0.0.1' has the loopback address 127.0.0.1; to allow it, add '127.0.0.1' to `allow` of this target"
        )


def resolver(*answers: list[str]) -> Callable[..., Any]:
    """A resolver that gives one answer after the other."""
    left = iter(answers)

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in next(left)]

    return getaddrinfo


def test_a_name_is_resolved_once_so_that_a_second_answer_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    with HTTPReceiver() as receiver:
        monkeypatch.setattr(socket, "getaddrinfo", resolver(["127.0.0.1"]))  # a second call would raise StopIteration
        assert send(f"http://hooks.test:{receiver.port}/a?b=1").is_delivered
        [got] = receiver.requests
        assert (got.headers["Host"], got.path) == (f"hooks.test:{receiver.port}", "/a?b=1")


@pytest.mark.parametrize("answer", [["169.254.169.254"], ["127.0.0.1", "169.254.169.254"], ["127.0.0.1", "10.0.0.1"]])
def test_a_name_with_one_address_that_is_not_allowed_is_refused(
    monkeypatch: pytest.MonkeyPatch, answer: list[str]
) -> None:
    with HTTPReceiver() as receiver:
        monkeypatch.setattr(socket, "getaddrinfo", resolver(answer))
        result = send(f"http://hooks.test:{receiver.port}/")
        assert (result.is_delivered, receiver.requests) == (False, [])
        assert f"address {answer[-1]}" in result.error


def test_a_redirect_is_a_failure_and_is_not_followed() -> None:
    with (
        HTTPReceiver() as other,
        HTTPReceiver(reply(302, Location="http://169.254.169.254/latest/meta-data")) as receiver,
    ):
        assert send(receiver.url).error == "http 302: redirects are not followed; configure the final URL"
        receiver.answer = reply(307, Location=other.url)
        assert not send(receiver.url).is_delivered
        assert (len(receiver.requests), other.requests) == (2, [])


def flood(status: bytes, sent: list[int]) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(status)
        for _ in range(1024):
            handler.wfile.write(b"x" * 2**20)
            sent.append(2**20)

    return answer


@pytest.mark.parametrize("status", [200, 500])
def test_of_a_reply_of_a_gigabyte_only_the_beginning_is_read(status: int) -> None:
    sent = list[int]()
    with HTTPReceiver(flood(f"HTTP/1.1 {status} x\r\nContent-Length: 1073741824\r\n\r\n".encode(), sent)) as receiver:
        result = send(receiver.url)
        assert result.is_delivered == (status == 200)
        assert len(result.error or "") < 300
    assert sum(sent) < 64 * 2**20  # what fits into the buffers of the two sockets


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 ", b""])
def test_an_endless_head_is_cut_off(head: bytes) -> None:
    sent = list[int]()
    with HTTPReceiver(flood(head, sent)) as receiver:
        assert not send(receiver.url).is_delivered
    assert sum(sent) < 64 * 2**20


def test_many_headers_are_cut_off_at_64_kilobytes() -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(
            b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: %s\r\n" % (n, b"y" * 1000) for n in range(90)) + b"\r\n"
        )

    with HTTPReceiver(answer) as receiver:
        assert send(receiver.url).error == f"the reply is longer than {MAX_REPLY_BYTES // 1024} KB"


def drip(handler: BaseHTTPRequestHandler) -> None:
    while True:  # until the sender has left
        handler.wfile.write(b"H")
        handler.wfile.flush()
        time.sleep(0.02)


def hang(handler: BaseHTTPRequestHandler) -> None:
    handler.rfile.read(1)  # until the sender has left


@pytest.mark.parametrize("answer", [hang, drip])
def test_a_receiver_that_hangs_or_answers_slowly_is_left_after_the_time_limit(answer: Any) -> None:
    with HTTPReceiver(answer) as receiver:
        begun = time.monotonic()
        assert send(receiver.url, timeout_s=0.3).error == "no complete reply within 0.3 s"
        assert time.monotonic() - begun < 10


def test_a_receiver_that_accepts_no_connection_says_so() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    assert send(f"http://127.0.0.1:{port}/").error == "cannot connect to '127.0.0.1': Connection refused"


def test_the_text_of_a_refusing_reply_is_quoted_in_one_line() -> None:
    with HTTPReceiver(reply(400, b"invalid\r\n\x1b[31mpayload")) as receiver:
        assert send(receiver.url).error == "http 400: invalid\\r\\n\\x1b[31mpayload"


def test_a_receiver_may_ask_for_a_later_attempt() -> None:
    with HTTPReceiver(reply(429, Retry_After="120")) as receiver:
        assert send(receiver.url).retry_s == 120
        receiver.answer = reply(503, Retry_After="999999999")
        assert send(receiver.url).retry_s == 3600


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    made = trustme.CA()
    made.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name in ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return made


@pytest.fixture
def encrypted(authority: trustme.CA) -> Iterator[HTTPReceiver]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("hooks.test").configure_cert(context)
    with HTTPReceiver(tls=context) as receiver:
        yield receiver


def test_over_tls_the_certificate_is_checked_for_the_name_and_not_for_the_address(
    encrypted: HTTPReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolver(["127.0.0.1"], ["127.0.0.1"]))
    assert send(f"https://hooks.test:{encrypted.port}/").is_delivered
    result = send(f"https://other.test:{encrypted.port}/")
    assert result.error.startswith("the certificate is not trusted: Hostname mismatch")
    assert len(encrypted.requests) == 1


def test_an_unknown_authority_is_refused(encrypted: HTTPReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    monkeypatch.setattr(socket, "getaddrinfo", resolver(["127.0.0.1"]))
    assert send(f"https://hooks.test:{encrypted.port}/").error.startswith("the certificate is not trusted: ")


def test_a_handshake_that_hangs_ends_after_the_time_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
        assert send(url, timeout_s=0.3).error in ("no complete reply within 0.3 s", "timed out")
