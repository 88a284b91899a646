"""Checks of server addresses, shared by the tracer and the store's client."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_LOOPBACK = re.compile(r"127(\.\d{1,3}){3}")
_HOST = re.compile(r"[^\s/?#@\\]+")


def url_problem(url: str) -> str | None:
    """Return why an `http://` or `https://` address is malformed, or None if it is not."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:  # a port that is not a number, a bracket that is not closed
        return str(error)
    if parts.scheme not in ("http", "https"):
        return "it must begin with http:// or https://"
    if not parts.hostname or not _HOST.fullmatch(parts.hostname):
        return "it has no valid host name"
    return "its port must be at least 1" if port == 0 else None


def is_loopback(url: str) -> bool:
    """Return whether the host of an address is the loopback interface of this machine."""
    host = (urlsplit(url).hostname or "").lower()
    return host in ("localhost", "::1") or host.endswith(".localhost") or _LOOPBACK.fullmatch(host) is not None
