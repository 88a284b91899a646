"""Outgoing HTTP connections: URL checks, certificate authorities, backoff, and the hosts that receive baggage."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from functools import lru_cache
from urllib.parse import urlsplit

from opentelemetry import context

__all__ = [
    "MAX_DESTINATIONS",
    "compute_backoff",
    "get_destination",
    "parse_retry_after",
    "suppress_instrumentation",
]


# Propagation targets: the destination hosts that receive session, user and tags as baggage.
#
# If a trace calls a target, the collector also waits for the spans of the target. `configure(propagate_to=[…])` names
# targets. In addition, the collector names the hosts from which it has received spans that continue a call of the
# same project.

MAX_DESTINATIONS = 200  # destinations per project that a collector may name
_NAME = re.compile(r"[a-z0-9_.:/\[\]-]{1,255}")
_PORTS = {"http": 80, "https": 443}

# destinations that collectors have named, by collector address and project
_collector_targets: dict[tuple[str, str], frozenset[str]] = {}
# collector address and project; patterns of `propagate_to`
_active_settings: tuple[tuple[str, str], tuple[str, ...]] = ("", ""), ()


def get_destination(attributes: Mapping[str, object]) -> str | None:
    """Return the destination of a client or producer span, or None if its attributes do not name one.

    The format is `host:port`, `host` or `messaging/name`. Current and former attribute names of OpenTelemetry are
    read.
    """
    get = attributes.get
    url = get("url.full") or get("http.url")
    host, port = get("server.address") or get("net.peer.name"), get("server.port") or get("net.peer.port")
    if isinstance(url, str):
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
        except ValueError:
            host = None
    if not isinstance(host, str) or not host:
        queue = get("messaging.destination.name") or get("messaging.destination")
        name = f"messaging/{queue}" if isinstance(queue, str) else ""
    else:
        shown = f"[{host}]" if ":" in host else host
        name = f"{shown}:{port}" if isinstance(port, int) else shown
    name = name.lower()
    return name if _NAME.fullmatch(name) else None


def use_settings(url: str, project: str, patterns: tuple[str, ...]) -> None:
    """Set the collector address, the project and the patterns of `propagate_to` that apply from now on."""
    global _active_settings
    _active_settings = (url, project), patterns


def update_from_header(url: str, project: str, header: str) -> None:
    """Replace the destinations that a collector has named for a project."""
    names = [name.strip() for name in header.split(",")[:MAX_DESTINATIONS]]
    _collector_targets[url, project] = frozenset(name for name in names if _NAME.fullmatch(name))


def is_propagation_target(attributes: Mapping[str, object]) -> bool:
    """Return whether the destination of a client or producer span takes part in tracing."""
    collector, configured = _active_settings
    named = _collector_targets.get(collector)
    if not named and not configured:
        return False
    name = get_destination(attributes)
    return name is not None and (name in (named or ()) or _matches_any(name, configured))


@lru_cache(1024)
def _matches_any(name: str, configured: tuple[str, ...]) -> bool:
    host = re.sub(r":\d+$", "", name)
    return any(_compile_pattern(pattern).fullmatch(candidate) for pattern in configured for candidate in (name, host))


@lru_cache(1024)
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, re.split(r"\*+", pattern))))


# Exponential backoff and the `Retry-After` header.

FIRST_BACKOFF = 0.25  # seconds
_DOUBLINGS = 64  # limit of the exponent, so that no float overflows after days of failures


def compute_backoff(attempt: int, first: float = FIRST_BACKOFF, longest: float = float("inf")) -> float:
    """Return the seconds to wait after a failed attempt. Attempts are counted from 0.

    The time doubles with each attempt, up to `longest`.
    """
    return min(first * 2.0 ** min(attempt, _DOUBLINGS), longest)


def parse_retry_after(retry_after: str | None) -> float | None:
    """Parse a `Retry-After` header: a number of seconds or an HTTP date.

    Return the seconds to wait, or None for an invalid value.
    """
    try:
        seconds = float(retry_after or "")
    except ValueError:
        try:
            return max(0.0, parsedate_to_datetime(str(retry_after)).timestamp() - time.time())
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) if seconds == seconds else None


# Outgoing HTTP connections: URL checks, certificate authorities, suppressed instrumentation.

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
