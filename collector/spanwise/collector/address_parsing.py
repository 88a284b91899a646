"""Parsing of addresses: database file names, host names, ports, origins and URLs."""

from __future__ import annotations

import os
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from spanwise.collector.errors import Refused


def check_database_path(path: str | os.PathLike[str]) -> str:
    """The path of a database file as text. Raises `Refused` for an empty name, memory, and SQLite's addresses."""
    name = os.fspath(path)
    if not name:
        raise Refused("the store's name is empty, as if a variable were not set; name a file, such as spanwise.db")
    if name.startswith(":memory:"):
        raise Refused(f"{name!r} would be kept in memory alone and be gone with this process; name a file")
    if name.startswith("file:"):
        raise Refused(f"{name!r} is an address of SQLite's, not a file; name its path (./{name} if it is called so)")
    return name


WILDCARD_HOSTS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # what a server binds to, and where it answers


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own whatever resolvers say; `127.evil.test` is somebody else's."""
    if host.lower() == "localhost":
        return True
    address = _parse_ip(host)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address is not None and (mapped or address).is_loopback


def get_client_network(host: str) -> str:
    """Whose address it is, for counting: itself, or of IPv6 the /64 that one machine has to itself."""
    address = _parse_ip(host)
    if isinstance(address, IPv6Address) and not address.ipv4_mapped:
        return str(IPv6Address(int(address) >> 64 << 64))
    return host


def parse_host(netloc: str) -> str:
    """The name in a `Host` header or an authority, without its port; "" if there is none to be read."""
    try:
        return urlsplit(f"//{netloc}").hostname or ""
    except ValueError:  # half a pair of brackets
        return ""


def parse_port(netloc: str) -> int | None:
    """The port in a `Host` header; None if there is none to be read."""
    try:
        return urlsplit(f"//{netloc}").port
    except ValueError:  # no number, or out of range
        return None


def parse_origin(origin: str) -> str | None:
    """The name, with its port, in an `Origin` header, as a `Host` header has it; None if there is none to be read."""
    try:
        return urlsplit(origin).netloc
    except ValueError:  # half a pair of brackets
        return None


def strip_brackets(host: str) -> str:
    """An address without the brackets that it has in URLs."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def build_server_url(host: str, port: int) -> str:
    """Where a server answers that binds there."""
    name = WILDCARD_HOSTS.get(host, host)
    return f"http://[{name.replace('%', '%25')}]:{port}" if ":" in name else f"http://{name}:{port}"


def _parse_ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(strip_brackets(host))
    except ValueError:
        return None
