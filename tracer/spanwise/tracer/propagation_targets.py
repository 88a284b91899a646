"""Propagation targets: the destination hosts that receive session, user and tags as baggage.

If a trace calls a target, the collector also waits for the spans of the target. `configure(propagate_to=[…])` names
targets. In addition, the collector names the hosts from which it has received spans that continue a call of the same
project.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import urlsplit

__all__ = ["MAX_DESTINATIONS", "get_destination"]

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
