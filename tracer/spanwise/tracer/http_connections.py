"""Outgoing HTTP connections: URL checks, certificate authorities, suppressed instrumentation."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from opentelemetry import context

_LOOPBACK = re.compile(r"127(\.\d{1,3}){3}")
_HOST = re.compile(r"[^\s/?#@\\]+")


def find_url_problem(url: str) -> str | None:
    """Return the reason that an `http://` or `https://` address is malformed, or None if it is valid."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:  # an invalid port, or a bracket that is not closed
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


# Variables of OpenTelemetry, of Python and OpenSSL, of requests and of curl. The first one that is set applies.
CERTIFICATE_VARIABLES = (
    "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
)


def find_trusted_authorities() -> str | None:
    """Return the path of the file or directory with the trusted authorities. None means certifi's list.

    Sources: OpenTelemetry specification, "OpenTelemetry Protocol Exporter"; Python's `ssl.get_default_verify_paths`;
    the documentation of requests, "SSL Cert Verification".
    """
    return next((path for variable in CERTIFICATE_VARIABLES if (path := os.environ.get(variable, "").strip())), None)


__all__ = ["suppress_instrumentation"]

# Keys of `opentelemetry.instrumentation.utils`, which the core installation does not include. Older instrumentations
# read the last key.
_SUPPRESSION_KEYS = (
    context._SUPPRESS_INSTRUMENTATION_KEY,
    context._SUPPRESS_HTTP_INSTRUMENTATION_KEY,
    "suppress_instrumentation",
)


@contextmanager
def suppress_instrumentation() -> Iterator[None]:
    """Ask instrumentations of HTTP and model clients to create no spans, and send no context, inside the block."""
    marked = context.get_current()
    for key in _SUPPRESSION_KEYS:
        marked = context.set_value(key, True, marked)
    token = context.attach(marked)
    try:
        yield
    finally:
        context.detach(token)
