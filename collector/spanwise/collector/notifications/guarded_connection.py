"""Guarded connections to targets: refused private addresses, one resolution of the name, limits of time and size."""

from __future__ import annotations

import io
import socket
import ssl
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from types import TracebackType
from typing import Any

import certifi

from spanwise.collector.terminal_escaping import escape_line
from spanwise.tracer.http_connections import find_trusted_authorities

MAX_REASON_CHARS = 300
MAX_REPLY_BYTES = 64 * 1024  # bytes that are read of a reply, headers included


@dataclass(frozen=True, slots=True)
class AllowedAddresses:
    """Private addresses to which a target may connect, because its configuration names them.

    A host name in `hosts` may resolve to private and loopback addresses. Other special addresses, such as link-local
    ones, are allowed only by a network in `networks`: 169.254.169.254 gives away the credentials of cloud machines.
    """

    hosts: frozenset[str] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    def includes(self, host: str) -> bool:
        """Return whether the configuration names this host, or a network with this address."""
        try:
            ip = ip_address(host)
        except ValueError:
            return host.lower() in self.hosts
        return any(ip.version == network.version and ip in network for network in self.networks)


def parse_allowed(entries: Iterable[str]) -> AllowedAddresses:
    """Parse host names, addresses and networks, such as `hooks.internal`, `127.0.0.1` and `10.0.0.0/8`.

    Raises `ValueError` for a malformed network.
    """
    hosts, networks = set(), list[IPv4Network | IPv6Network]()
    for entry in entries:
        if any(letter.isalpha() for letter in entry) and ":" not in entry:
            hosts.add(entry.lower())
        else:
            networks.append(ip_network(entry))
    return AllowedAddresses(frozenset(hosts), tuple(networks))


def find_address_problem(address: str, host: str, allowed: AllowedAddresses) -> str | None:
    """Return the reason why a target on `host` may not connect to an IP address; None if it may."""
    ip = ip_address(address)
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped:  # such an address reaches the IPv4 address
        ip = ip.ipv4_mapped
    if allowed.includes(str(ip)):
        return None
    is_local = ip.is_loopback or (ip.is_private and not _is_special(ip))
    if is_local and host.lower() in allowed.hosts:
        return None
    if ip.is_global and not _is_special(ip):
        return None
    kind = next(
        (name for name in ("loopback", "link_local", "multicast", "unspecified") if getattr(ip, f"is_{name}")),
        "private or reserved",
    ).replace("_", "-")
    entry = host if is_local else str(ip)
    return f"host {host!r} has the {kind} address {ip}; to allow it, add {entry!r} to `allow` of this target"


def _is_special(ip: IPv4Address | IPv6Address) -> bool:
    """Return whether an address is link-local, multicast, unspecified, reserved, or a tunnel to an IPv4 address."""
    if isinstance(ip, IPv6Address) and (ip.sixtofour or ip.teredo or ip.is_site_local):
        return True
    return ip.is_link_local or ip.is_multicast or ip.is_unspecified or ip.is_reserved


class GuardedConnection:
    """TCP connection to a target, as a context manager: `with GuardedConnection(…) as connection: connection.socket`.

    The name is resolved once. If one of its addresses is not allowed, nothing is connected; otherwise the connection
    goes to the very address that was checked. After `seconds` in total the connection is shut down, however slowly or
    quickly the other side answers. Raises `OSError` with the reason.
    """

    def __init__(self, host: str, port: int, allowed: AllowedAddresses, seconds: float) -> None:
        self._host, self._seconds = host, seconds
        deadline = time.monotonic() + seconds
        self.socket = _connect(host, _resolve(host, port, allowed), deadline)
        self.is_expired = False
        # A duplicate ends the connection also after TLS has taken over the socket
        self._duplicate = self.socket.dup()
        self._timer = threading.Timer(max(0.0, deadline - time.monotonic()), self.expire)
        self._timer.daemon = True
        self._timer.start()

    def start_tls(self) -> ssl.SSLSocket:
        """Encrypt the connection, and check that the certificate belongs to the host. Raises `OSError`."""
        self.socket = encrypted = make_tls_context().wrap_socket(self.socket, server_hostname=self._host)
        return encrypted

    def describe(self, error: Exception) -> str:
        """Return the reason of a failure on this connection, in one line."""
        if self.is_expired:
            return f"no complete reply within {self._seconds:g} s"
        return describe_failure(error)

    def expire(self) -> None:
        """Shut the connection down, so that reads and writes in progress fail."""
        self.is_expired = True
        with suppress(OSError):  # the other side has closed it
            self._duplicate.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> GuardedConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._timer.join()  # it must not use a descriptor that another connection has by then
        for one in (self.socket, self._duplicate):
            one.close()


def _resolve(host: str, port: int, allowed: AllowedAddresses) -> list[tuple[Any, ...]]:
    """Return the results of `getaddrinfo`. Raises `OSError` if one of the addresses is not allowed."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OSError(f"cannot resolve host {host!r}: {error.strerror or error}") from error
    for *_, address in found:
        if problem := find_address_problem(str(address[0]), host, allowed):
            raise OSError(problem)
    return list(found)


def _connect(host: str, found: list[tuple[Any, ...]], deadline: float) -> socket.socket:
    """Connect to the first address that answers."""
    last: OSError | None = None
    for index, (family, kind, protocol, _, address) in enumerate(found):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        candidate = socket.socket(family, kind, protocol)
        # An unreachable IPv6 address must leave time for the IPv4 address
        candidate.settimeout(left / (len(found) - index))
        try:
            candidate.connect(address)
        except OSError as error:
            candidate.close()
            last = error
        else:
            candidate.settimeout(max(0.001, deadline - time.monotonic()))
            return candidate
    reason = "timed out" if last is None or isinstance(last, TimeoutError) else last.strerror or last
    raise OSError(f"cannot connect to {host!r}: {reason}") from last


def make_tls_context() -> ssl.SSLContext:
    """Return a TLS context that checks certificates, by the same authorities as all other connections."""
    authorities = find_trusted_authorities() or certifi.where()
    if Path(authorities).is_dir():
        return ssl.create_default_context(capath=authorities)
    return ssl.create_default_context(cafile=authorities)


def describe_failure(error: Exception) -> str:
    """Return an error of a connection as one short line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return escape_line(str(error), MAX_REASON_CHARS) or type(error).__name__


class _LimitedReader(io.RawIOBase):
    """Raw stream of a socket that fails after `MAX_REPLY_BYTES`."""

    def __init__(self, source: Any) -> None:
        self._source, self._left = source, MAX_REPLY_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left <= 0:
            raise OSError(f"the reply is longer than {MAX_REPLY_BYTES // 1024} KB")
        count = int(self._source.readinto(memoryview(buffer)[: self._left]))
        self._left -= count
        return count

    def close(self) -> None:
        self._source.close()
        super().close()


def open_limited_reader(source: socket.socket) -> io.BufferedReader:
    """Return a stream of what the socket receives. Reading more than `MAX_REPLY_BYTES` raises `OSError`."""
    return io.BufferedReader(_LimitedReader(source.makefile("rb", buffering=0)))
