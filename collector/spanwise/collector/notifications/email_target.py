"""E-mail targets: SMTP with TLS, plain text and HTML."""

from __future__ import annotations

import hashlib
import smtplib
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from email.utils import formatdate
from typing import Any, Literal

from spanwise.collector.notifications.guarded_connection import (
    AllowedAddresses,
    GuardedConnection,
    describe_failure,
    make_tls_context,
    open_limited_reader,
)
from spanwise.collector.notifications.http_target import ID_HEADER, AttemptResult
from spanwise.collector.notifications.message_rendering import render_html, render_text, render_title
from spanwise.collector.records import Notification
from spanwise.collector.terminal_escaping import escape_line

MAX_ERROR_CHARS = 300
SECURITY_MODES = ("starttls", "tls", "none")
PORTS = {"starttls": 587, "tls": 465, "none": 25}


@dataclass(frozen=True, slots=True)
class EmailTarget:
    """Recipients of an SMTP server. `security` is "starttls", "tls" (from the first byte) or "none"."""

    name: str
    host: str
    sender: str
    recipients: tuple[str, ...]
    port: int = PORTS["starttls"]
    security: Literal["starttls", "tls", "none"] = "starttls"
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    allowed: AllowedAddresses = field(default_factory=AllowedAddresses)
    timeout_s: float = 30.0

    def send(self, notification: Notification, base_url: str) -> AttemptResult:
        """Send the notification once. It counts as delivered if the server accepts one of the recipients."""
        message = make_email(notification, base_url, self.sender, self.recipients)
        try:
            connection = GuardedConnection(self.host, self.port, self.allowed, self.timeout_s)
        except (OSError, ValueError) as error:
            return AttemptResult(False, describe_failure(error))
        with connection:
            try:
                return self._exchange(connection, message)
            except (OSError, smtplib.SMTPException, ValueError) as error:
                return AttemptResult(False, _describe_smtp_error(connection, error))

    def _exchange(self, connection: GuardedConnection, message: EmailMessage) -> AttemptResult:
        if self.security == "tls":
            connection.start_tls()
        client = _GuardedSMTP(connection, self.host, self.port)
        try:
            if self.security == "starttls":  # a server without STARTTLS is an error: nothing is sent unencrypted
                client.starttls(context=make_tls_context())
            if self.username is not None and self.password is not None:
                client.login(self.username, self.password)
            refused = client.send_message(message, self.sender, self.recipients)
            with suppress(OSError, smtplib.SMTPException):  # the message is accepted already
                client.quit()
        finally:
            client.close()
        if not refused:
            return AttemptResult(True)
        reasons = "; ".join(f"{address}: {code} {text!r}" for address, (code, text) in refused.items())
        count = f"{len(refused)} of {len(self.recipients)} recipients were refused"
        return AttemptResult(True, escape_line(f"{count}: {reasons}", MAX_ERROR_CHARS))


class _GuardedSMTP(smtplib.SMTP):
    """SMTP client on a guarded connection. It resolves nothing, and reads at most 64 KB of replies."""

    def __init__(self, connection: GuardedConnection, host: str, port: int) -> None:
        self._connection = connection
        address = connection.socket.getsockname()[0]
        # Without a name of its own, the client would ask the resolver for one
        name = f"[IPv6:{address}]" if ":" in address else f"[{address}]"
        super().__init__(host, port, local_hostname=name)

    def _get_socket(self, host: str, port: int, timeout: Any) -> socket.socket:
        return self._connection.socket

    def getreply(self) -> tuple[int, bytes]:
        if self.file is None:
            self.file: Any = open_limited_reader(self.sock)  # type: ignore[arg-type]
        return super().getreply()


def make_email(notification: Notification, base_url: str, sender: str, recipients: tuple[str, ...]) -> EmailMessage:
    """Return the e-mail of a notification. Its Message-ID depends on the notification's id only.

    `render_title` returns a single line, so that a name cannot add headers. A name that looks like an encoded word
    (RFC 2047) must not be decoded, because the result may contain line breaks.
    """
    message = EmailMessage(SMTP_POLICY)
    message["Subject"] = render_title(notification).replace("=?", "=\u200b?")
    message["From"], message["To"] = sender, ", ".join(recipients)
    message["Date"] = formatdate(notification.created_ns / 1e9)
    message["Message-ID"] = f"<{hashlib.sha256(notification.id.encode()).hexdigest()[:32]}@spanwise.invalid>"
    message["Auto-Submitted"] = "auto-generated"
    message[ID_HEADER] = notification.id
    message.set_content(render_text(notification, base_url), cte="quoted-printable")
    message.add_alternative(render_html(notification, base_url), subtype="html", cte="quoted-printable")
    return message


def _describe_smtp_error(connection: GuardedConnection, error: Exception) -> str:
    text: bytes | str
    who = ""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        address, (code, text) = next(iter(error.recipients.items()))
        who = f"{address}: "
    elif isinstance(error, smtplib.SMTPResponseException):
        code, text = error.smtp_code, error.smtp_error
    else:
        return connection.describe(error)
    reason = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
    return escape_line(f"smtp {code}: {who}{reason}", MAX_ERROR_CHARS)
