"""Explanations of failed requests, for log lines: the cause at the bottom of a chain of wrapped exceptions."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from http.client import RemoteDisconnected

_MAX_LENGTH = 200  # characters of a message that comes from a library or a server


def explain(error: BaseException, timeout: float | None = None) -> str:
    """Return why a request failed, in a few words and on one line; `timeout` is the request's limit in seconds."""
    causes = list(_causes(error))
    for cause in causes:
        if text := _known(cause):
            return text
    if any(isinstance(cause, TimeoutError) or "Timeout" in type(cause).__name__ for cause in causes):
        return "no answer in time" if timeout is None else f"no answer within {timeout:.3g} s"
    return one_line(f"{type(causes[-1]).__name__}: {causes[-1]}")


def one_line(text: str) -> str:
    """Return a foreign message as one printable line of at most 200 characters."""
    printable = "".join(c if c.isprintable() else " " for c in text[: 2 * _MAX_LENGTH])
    text = " ".join(printable.split())
    return text if len(text) <= _MAX_LENGTH else text[: _MAX_LENGTH - 1] + "…"


def _known(cause: BaseException) -> str | None:
    if isinstance(cause, socket.gaierror):
        return "the host name cannot be resolved"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {one_line(cause.verify_message)}"
    if isinstance(cause, ssl.SSLError):
        return f"TLS failed: {one_line(cause.reason or str(cause))}"
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused"
    if isinstance(cause, (RemoteDisconnected, ConnectionResetError, BrokenPipeError)):
        return "it closed the connection without an answer"
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and all that it wraps, also as urllib3's `reason` or among its arguments."""
    pending, seen = [error], set[int]()
    while pending and len(seen) < 32:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        wrapped = (current.__context__, current.__cause__, getattr(current, "reason", None), *current.args)
        pending += [item for item in wrapped if isinstance(item, BaseException)]
