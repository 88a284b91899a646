"""HTTP targets: signed JSON webhooks, and Slack-compatible webhooks."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from importlib import metadata
from typing import Any, Literal
from urllib.parse import urlsplit

from spanwise.collector.notifications.guarded_connection import (
    AllowedAddresses,
    GuardedConnection,
    describe_failure,
    open_limited_reader,
)
from spanwise.collector.notifications.message_rendering import render_json, render_slack
from spanwise.collector.records import Notification
from spanwise.collector.terminal_escaping import escape_line
from spanwise.tracer.http_connections import parse_retry_after

MAX_RETRY_AFTER = 3600.0  # upper limit in seconds of a target's Retry-After
MAX_QUOTED_CHARS = 200  # characters of a refusing reply that the error quotes
PORTS = {"http": 80, "https": 443}
ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER = "Idempotency-Key", "Spanwise-Timestamp", "Spanwise-Signature"


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """Result of an attempt to deliver. `retry_s` is the time after which the target asks for the next attempt."""

    is_delivered: bool
    error: str | None = None  # reason of the failure, or of a partial one
    retry_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HTTPTarget:
    """Webhook. `kind` is the form of its body; a body of the form "webhook" is signed if there is a `secret`.

    The address may be secret itself, as Slack's are.
    """

    name: str
    kind: Literal["webhook", "slack"]
    url: str = field(repr=False)
    secret: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    allowed: AllowedAddresses = field(default_factory=AllowedAddresses)
    timeout_s: float = 30.0

    def send(self, notification: Notification, base_url: str) -> AttemptResult:
        """Send the notification once, and read at most 64 KB of the reply."""
        body = (render_slack if self.kind == "slack" else render_json)(notification, base_url)
        parts = urlsplit(self.url)
        headers = {
            "User-Agent": f"spanwise/{metadata.version('spanwise')}",
            **self.headers,
            "Host": parts.netloc,
            "Content-Type": "application/json; charset=utf-8",
            "Connection": "close",
            ID_HEADER: notification.id,
        }
        if self.secret is not None:
            timestamp = str(int(time.time()))
            headers |= {TIMESTAMP_HEADER: timestamp, SIGNATURE_HEADER: sign_body(self.secret, timestamp, body)}
        port = parts.port or PORTS[parts.scheme]
        try:
            connection = GuardedConnection(parts.hostname or "", port, self.allowed, self.timeout_s)
        except (OSError, ValueError) as error:  # ValueError: a label of the host name is too long
            return AttemptResult(False, describe_failure(error))
        with connection:
            try:
                return self._exchange(connection, body, headers)
            except (OSError, HTTPException, ValueError) as error:
                return AttemptResult(False, connection.describe(error))

    def _exchange(self, connection: GuardedConnection, body: bytes, headers: Mapping[str, str]) -> AttemptResult:
        parts = urlsplit(self.url)
        if parts.scheme == "https":
            connection.start_tls()
        client = HTTPConnection(parts.hostname or "")
        client.sock = connection.socket  # connected already, so that the client resolves nothing
        client.request("POST", f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}", body, dict(headers))
        with HTTPResponse(_ReplySource(connection), method="POST") as response:  # type: ignore[arg-type]
            response.begin()
            return _interpret_response(response)


def _interpret_response(response: HTTPResponse) -> AttemptResult:
    status = response.status
    if 200 <= status < 300:  # the body is never read, so that its size does not matter
        return AttemptResult(True)
    if 300 <= status < 400:
        return AttemptResult(False, f"http {status}: redirects are not followed; configure the final URL")
    error, retry_s = f"http {status}", parse_retry_after(response.getheader("Retry-After")) or 0.0
    text = response.read(4 * MAX_QUOTED_CHARS).decode("utf-8", "replace").strip()
    if text:
        error += f": {escape_line(text, MAX_QUOTED_CHARS)}"
    return AttemptResult(False, error, min(MAX_RETRY_AFTER, retry_s))


class _ReplySource:
    """Stand-in for the socket from which `HTTPResponse` reads, with a limited size."""

    def __init__(self, connection: GuardedConnection) -> None:
        self._socket = connection.socket

    def makefile(self, *_: Any) -> Any:
        return open_limited_reader(self._socket)


def sign_body(secret: str, timestamp: str, body: bytes) -> str:
    """Return the header `Spanwise-Signature`: "v1=" and the HMAC-SHA256 of "<timestamp>.<body>" in hexadecimal.

    `timestamp` is the header `Spanwise-Timestamp`, in seconds since 1970. A receiver refuses old ones, so that a
    recorded request cannot be repeated.
    """
    return "v1=" + hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
