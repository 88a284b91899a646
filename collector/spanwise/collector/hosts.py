"""Names of machines: which of them is this one, and how an address stands in a URL."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

EVERYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # what a server binds to, and where it answers


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own whatever resolvers say; `127.evil.test` is somebody else's."""
    if host.lower() == "localhost":
        return True
    address = _address(host)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address is not None and (mapped or address).is_loopback


def network(host: str) -> str:
    """Whose address it is, for counting: itself, or of IPv6 the /64 that one machine has to itself."""
    address = _address(host)
    if isinstance(address, IPv6Address) and not address.ipv4_mapped:
        return str(IPv6Address(int(address) >> 64 << 64))
    return host


def named(netloc: str) -> str:
    """The name in a `Host` header or an authority, without its port; "" if there is none to be read."""
    try:
        return urlsplit(f"//{netloc}").hostname or ""
    except ValueError:  # half a pair of brackets
        return ""


def port_of(netloc: str) -> int | None:
    """The port in a `Host` header; None if there is none to be read."""
    try:
        return urlsplit(f"//{netloc}").port
    except ValueError:  # no number, or out of range
        return None


def authority(origin: str) -> str | None:
    """The name, with its port, in an `Origin` header, as a `Host` header has it; None if there is none to be read."""
    try:
        return urlsplit(origin).netloc
    except ValueError:  # half a pair of brackets
        return None


def bare(host: str) -> str:
    """An address without the brackets that it has in URLs."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def url_of(host: str, port: int) -> str:
    """Where a server answers that binds there."""
    name = EVERYWHERE.get(host, host)
    return f"http://[{name.replace('%', '%25')}]:{port}" if ":" in name else f"http://{name}:{port}"


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(bare(host))
    except ValueError:
        return None
