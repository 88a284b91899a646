"""Connections to the collector: why one fails, whom TLS trusts, proxies, malformed addresses."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from spanwise.tracer import configure, flush, internal_errors, stats, trace
from spanwise.tracer.configuration import resolve_settings
from spanwise.tracer.http_connections import CERTIFICATE_VARIABLES, find_url_problem, is_loopback

from .conftest import Sink

pytestmark = pytest.mark.usefixtures("only_when_asked")


@trace
def work() -> int:
    return 1


def delivered(url: str | None = None) -> int:
    configure(url=url) if url else configure()
    work()
    return flush(10).delivered


@pytest.fixture
def authority(monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    for variable in CERTIFICATE_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    return trustme.CA()


@pytest.fixture
def https(authority: trustme.CA) -> Iterator[str]:
    """The address of an OTLP collector with a certificate of the private authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with ThreadingHTTPServer(("127.0.0.1", 0), Accepting) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"https://localhost:{server.server_address[1]}"
        server.shutdown()


class Accepting(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_a_refused_connection_is_named(unused_port: int, caplog: pytest.LogCaptureFixture) -> None:
    delivered(f"http://127.0.0.1:{unused_port}")
    assert f"no collector answers at http://127.0.0.1:{unused_port} (connection refused)" in caplog.text


def test_a_host_name_without_an_address_is_named(caplog: pytest.LogCaptureFixture) -> None:
    delivered("http://collector.invalid:4318")
    assert "(the host name cannot be resolved)" in caplog.text


def test_an_untrusted_certificate_is_named(https: str, caplog: pytest.LogCaptureFixture) -> None:
    delivered(https)
    assert "(its certificate is not trusted: " in caplog.text


def test_tls_at_a_port_without_tls_is_named(sink: Sink, caplog: pytest.LogCaptureFixture) -> None:
    delivered(sink.url.replace("http://", "https://"))
    assert "(TLS failed: " in caplog.text


@pytest.mark.process
def test_a_timeout_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        delivered(f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert "(no answer within 0.2 s)" in caplog.text


def test_a_connection_closed_without_an_answer_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as rude:
        threading.Thread(target=lambda: rude.accept()[0].close(), daemon=True).start()
        delivered(f"http://127.0.0.1:{rude.getsockname()[1]}")
    assert "(it closed the connection without an answer)" in caplog.text


def test_an_http_status_is_named(sink: Sink, caplog: pytest.LogCaptureFixture) -> None:
    sink.answer = lambda path, body: (503, {}, b"")
    delivered(sink.url)
    assert "(HTTP 503 Service Unavailable)" in caplog.text


def test_another_reason_is_logged_once_more(sink: Sink, unused_port: int, caplog: pytest.LogCaptureFixture) -> None:
    sink.answer = lambda path, body: (503, {}, b"")
    delivered(sink.url)
    delivered(sink.url)
    delivered(f"http://127.0.0.1:{unused_port}")
    assert [record.message.count("no collector answers") for record in caplog.records].count(1) == 2


def test_without_a_spool_the_reason_is_in_the_line_about_drops(
    unused_port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SPANWISE_SPILL_DIR", "off")
    configure(url=f"http://127.0.0.1:{unused_port}")
    work()
    from spanwise.tracer import shutdown

    shutdown()
    assert "connection refused" in caplog.text


def test_the_reason_for_rejected_spans_is_logged_on_one_line(sink: Sink, caplog: pytest.LogCaptureFixture) -> None:
    partial = ExportTracePartialSuccess(rejected_spans=1, error_message="trace_id is empty\nand\x1b[31m more")
    answer = ExportTraceServiceResponse(partial_success=partial).SerializeToString()
    sink.answer = lambda path, body: (200, {}, answer)
    assert delivered(sink.url) == 0
    assert f"dropped: rejected: trace_id is empty and [31m more ({sink.url})" in caplog.text


@pytest.mark.parametrize("variable", CERTIFICATE_VARIABLES)
def test_a_private_authority_is_trusted(
    https: str, authority: trustme.CA, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv(variable, str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SPANWISE_URL", https)
    assert delivered() == 1


def test_a_missing_file_of_authorities_is_named(
    https: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such/ca.pem")
    delivered(https)
    assert "/no/such/ca.pem" in caplog.text
    assert stats().errors == {}


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_a_proxy_does_not_apply_to_loopback(
    sink: Sink, unused_port: int, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, f"http://127.0.0.1:{unused_port}")
    assert delivered(sink.url) == 1


def test_a_proxy_applies_to_other_hosts(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", sink.url)
    assert delivered("http://collector.invalid") == 1


@pytest.mark.parametrize(
    "url",
    ["localhost:4318", "http://localhost:abc", "http://[::1", "http://", "http://a b", "http://h:99999", "http://h:0"],
)
def test_a_malformed_address_is_reported_and_flush_does_not_raise(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    internal_errors.strict = False
    monkeypatch.setenv("SPANWISE_URL", url)
    work()
    assert flush(0.1).delivered == 0
    assert (
        f"settings failed: ValueError: url must be a collector's address such as 'http://127.0.0.1:4318', got {url!r}"
        in (caplog.text)
    )


def test_a_malformed_address_of_opentelemetry_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    internal_errors.strict = False
    monkeypatch.delenv("SPANWISE_URL", raising=False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:port")
    assert resolve_settings().url == "http://127.0.0.1:4318"
    assert "OTEL_EXPORTER_OTLP_ENDPOINT='http://collector:port' is ignored" in caplog.text


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost:4318", True),
        ("http://app.localhost", True),
        ("http://127.8.0.1:1", True),
        ("https://[::1]:4318/x", True),
        ("http://127.0.0.1.example.com", False),
        ("http://collector:4318", False),
    ],
)
def test_loopback_addresses_are_recognised(url: str, expected: bool) -> None:
    assert (is_loopback(url), find_url_problem(url)) == (expected, None)
