"""One connection, bounded in what it may send before it is heard and in how long it may take; and which one goes first.

uvicorn waits for headers for ever, and takes them at any size. Here whoever keeps the server waiting is cut off, and
when there are as many connections as there may be, a new one takes the place of the one that was waited for longest.
"""

from __future__ import annotations

import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 64 * 1024  # of a request before its body; a list of 1,500 ids in the address is within it
HEAD_SECONDS = 15.0  # for all of them
BODY_SECONDS, BODY_RATE = 60.0, 16 * 1024  # for a body, and a second more for each so many bytes
UNREAD_SECONDS = 60.0  # for an answer of which nothing more is read
PIPELINED = 16  # requests that may wait behind one on the same connection
SPARE = 4  # of so many descriptors one is kept free for the store, and for files
MOST = 1000  # connections
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def _connections() -> int:
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(8, min(MOST, descriptors - descriptors // SPARE)) if descriptors > 0 else MOST


CONNECTIONS = _connections()  # fewer than there are descriptors


class _TooLarge(Exception):
    """More headers, or more requests in a row, than one connection may send."""


class Connection(HttpToolsProtocol):
    """uvicorn's, with bounds. What it waits for: a request's head, its body, or nothing (it answers, or is idle)."""

    waits: str | None = "head"
    since = 0.0  # by the loop's clock, when it began to wait
    taken = 0  # bytes since then
    excessive = False
    unread, unread_since = 0, 0.0  # bytes of an answer that wait to be read

    def connection_made(self, transport: Any) -> None:
        """Take the place of another one if there are too many."""
        super().connection_made(transport)
        self.since = self.loop.time()
        if len(self.connections) > CONNECTIONS:
            self._oldest().abort()

    def _oldest(self) -> Connection:
        """The one that is waited for longest; of those that answer none, unless all do."""
        others: list[Any] = [one for one in self.connections if one is not self]
        oldest: Connection = min([one for one in others if one.waits] or [self], key=lambda one: one.since)
        return oldest

    def abort(self) -> None:
        """Cut it off."""
        self.connections.discard(self)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take the next piece."""
        if not self.taken:
            self.since = self.loop.time()
        self.taken += len(data)
        super().data_received(data)
        if self.waits == "head" and self.taken > HEAD_BYTES:
            self._refuse()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self.waits = "head"

    def on_headers_complete(self) -> None:
        """Its head is there. Raises `_TooLarge`, which ends the connection."""
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > HEAD_BYTES or len(self.pipeline) >= PIPELINED:
            self.excessive = True
            raise _TooLarge
        super().on_headers_complete()
        self.waits = "body"

    def on_message_complete(self) -> None:
        """All of it is there."""
        super().on_message_complete()
        self.waits, self.taken = None, 0

    def on_response_complete(self) -> None:
        """It has been answered; the next one may come."""
        super().on_response_complete()
        if self.waits is None:
            self.waits, self.since = "head", self.loop.time()

    def send_400_response(self, msg: str) -> None:
        """Say what is wrong with what came."""
        if self.excessive:
            self._refuse()
        else:
            super().send_400_response(msg)

    def _refuse(self) -> None:
        if not self.transport.is_closing():
            self.transport.write(TOO_LARGE)
            self.transport.close()

    def is_overdue(self, now: float) -> bool:
        """Whether it has kept the server waiting too long. An idle one is uvicorn's to close."""
        if self.waits == "body":
            return now - self.since > BODY_SECONDS + self.taken / BODY_RATE
        if self.waits == "head" and (self.taken or self.cycle is None):
            return now - self.since > HEAD_SECONDS
        unread = self.transport.get_write_buffer_size()
        if unread == 0 or unread != self.unread:
            self.unread, self.unread_since = unread, now
            return False
        return now - self.unread_since > UNREAD_SECONDS


def sweep(connections: Any, now: float) -> None:
    """Cut off whoever has kept the server waiting too long."""
    for connection in [one for one in connections if one.is_overdue(now)]:
        connection.abort()
