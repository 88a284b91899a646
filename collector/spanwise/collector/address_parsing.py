"""Parsing of addresses: database file names, host names, ports, origins, URLs and redirects."""

from __future__ import annotations

import os
import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import quote, unquote, urlsplit

from spanwise.collector.errors import Refused


def check_database_path(path: str | os.PathLike[str]) -> str:
    """Return the path of a database file as text.

    Raises `Refused` for an empty name, an in-memory database (`:memory:`), and a SQLite URI (`file:…`).
    """
    name = os.fspath(path)
    if not name:
        raise Refused(
            "the path of the store is empty, perhaps because a variable is not set; pass a path such as spanwise.db"
        )
    if name.startswith(":memory:"):
        raise Refused(
            f"{name!r} is an in-memory database, which is lost when the process ends; pass the path of a file"
        )
    if name.startswith("file:"):
        raise Refused(f"{name!r} is a SQLite URI; pass the path of a file (./{name} if the file has this name)")
    return name


ENVIRONMENT_REFERENCE = re.compile(r"\$\{(\w+)\}")  # `${NAME}` in the URL of a database


def expand_environment(url: str) -> str:
    """Return a URL of a database with each `${NAME}` replaced by the environment variable, percent-encoded.

    A password then appears neither in a command line nor in a file. Raises `Refused` for a variable that is not set.
    """

    def look_up(reference: re.Match[str]) -> str:
        name = reference[1]
        if name not in os.environ:
            raise Refused(f"{hide_password(url)!r} refers to the environment variable {name}, which is not set")
        return quote(os.environ[name], safe="")

    return ENVIRONMENT_REFERENCE.sub(look_up, url)


def hide_password(url: str) -> str:
    """Return the URL of a database without its password and its options, for display. Paths are returned unchanged."""
    scheme, divided, rest = url.partition("://")
    if not divided:
        return url
    # a password may contain any character, also "/" and "?", so everything up to the last "@" counts as credentials
    credentials, at, place = rest.rpartition("@")
    return f"{scheme}://{credentials.partition(':')[0]}{at}{place.partition('?')[0]}"


def remove_secrets(text: str, url: str) -> str:
    """Return a text, such as a driver's error, without the URL of a database and its password."""
    credentials = url.partition("://")[2].rpartition("@")[0]
    password = credentials.partition(":")[2]
    for secret in sorted({url, password, unquote(password)} - {""}, key=len, reverse=True):
        text = text.replace(secret, hide_password(url) if secret == url else "***")
    return text


# wildcard bind address → loopback address that reaches it
WILDCARD_HOSTS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def is_loopback(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback IP address.

    The function resolves no names: `127.evil.test` counts as remote.
    """
    if host.lower() == "localhost":
        return True
    address = _parse_ip(host)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address is not None and (mapped or address).is_loopback


def get_client_network(host: str) -> str:
    """Return the network that is treated as one client: for IPv4 the address itself, for IPv6 its /64 prefix.

    One IPv6 host usually controls a whole /64 network.
    """
    address = _parse_ip(host)
    if isinstance(address, IPv6Address) and not address.ipv4_mapped:
        return str(IPv6Address(int(address) >> 64 << 64))
    return host


def parse_host(netloc: str) -> str:
    """Return the host name of a `Host` header or URL authority, without the port; "" if it cannot be parsed."""
    try:
        return urlsplit(f"//{netloc}").hostname or ""
    except ValueError:  # the text has unbalanced brackets
        return ""


def parse_port(netloc: str) -> int | None:
    """Return the port of a `Host` header; None if it has none or an invalid one."""
    try:
        return urlsplit(f"//{netloc}").port
    except ValueError:  # the port is not a number, or out of range
        return None


def parse_origin(origin: str) -> str | None:
    """Return host and port of an `Origin` header, in the form of a `Host` header; None if it cannot be parsed."""
    try:
        return urlsplit(origin).netloc
    except ValueError:  # the text has unbalanced brackets
        return None


MAX_REDIRECT_LENGTH = 2048  # maximum length of a redirect URL in characters


def safe_redirect_path(address: str) -> str:
    """Return the path if it belongs to this server, else "/", to prevent redirects to other sites."""
    ours = address.startswith("/") and not address.startswith(("//", "/sign-")) and len(address) <= MAX_REDIRECT_LENGTH
    # browsers treat a backslash as a slash, and drop tabs and line breaks
    return address if ours and "\\" not in address and address.isprintable() else "/"


def strip_brackets(host: str) -> str:
    """Return an address without the square brackets that enclose IPv6 addresses in URLs."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def build_server_url(host: str, port: int) -> str:
    """Return the URL under which a server that binds to `host` and `port` can be reached from this machine."""
    name = WILDCARD_HOSTS.get(host, host)
    return f"http://[{name.replace('%', '%25')}]:{port}" if ":" in name else f"http://{name}:{port}"


def _parse_ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(strip_brackets(host))
    except ValueError:
        return None
