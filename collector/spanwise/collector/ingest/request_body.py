"""Request bodies: bounded reading, gzip and deflate decompression, and the memory of pending bodies."""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from io import BytesIO
from typing import Any, Protocol

from spanwise.collector.ingest.ingest_errors import PermanentError, RetryableError
from spanwise.collector.ingest.limits import LARGE_BODY_BYTES, Limits

UNLIMITED = sys.maxsize
INFLATE_STEP_BYTES = 128 * 1024  # bytes that are inflated before others have their turn: a third of a millisecond
MAX_GZIP_MEMBERS = 1000  # of one gzip body; an empty one is twenty bytes, and as much work as a full one
WINDOW_BITS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}  # zlib's word for each format
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class BodyBuffer(Protocol):
    """Takes the pieces of a body as they arrive."""

    @property
    def size(self) -> int:
        """Bytes taken so far, as inflated."""

    def feed(self, piece: bytes, step: int = ...) -> bytes:
        """Take the next piece, as far as it inflates to so many bytes; what is left of it."""

    def finish(self) -> bytes:
        """The whole body."""


class PlainBuffer:
    """A body that was not compressed."""

    def __init__(self, limit: int) -> None:
        self.limit, self.first = limit, b""
        self.buffer: BytesIO | None = None  # of more pieces than one; its value is no copy, as joined pieces are
        self.size = 0  # bytes taken so far

    def feed(self, piece: bytes, step: int = UNLIMITED) -> bytes:
        """Take the next piece. Raises `Permanent` beyond the limit."""
        self.size += len(piece)
        if self.size > self.limit:
            raise PermanentError("too_large", f"the body is larger than {self.limit:,} bytes: send less at once")
        if self.size == len(piece):
            self.first = piece
        else:
            self._buffered().write(piece)
        return b""

    def _buffered(self) -> BytesIO:
        if self.buffer is None:
            self.buffer = BytesIO()
            self.buffer.write(self.first)
            self.first = b""
        return self.buffer

    def finish(self) -> bytes:
        """The whole body."""
        return self.first if self.buffer is None else self.buffer.getvalue()


class InflatingBuffer:
    """A body in gzip (`wbits` 31) or zlib format (15), inflated no further than the limit."""

    def __init__(self, limit: int, wbits: int) -> None:
        self.plain, self.wbits, self.inflater = PlainBuffer(limit), wbits, zlib.decompressobj(wbits)
        self.members = 1

    @property
    def size(self) -> int:
        """Bytes inflated so far."""
        return self.plain.size

    def feed(self, piece: bytes, step: int = UNLIMITED) -> bytes:
        """Take the next piece. Raises `Permanent` beyond the limit, or if it is not what it claims to be."""
        enough = self.size + step
        try:
            while piece and self.size < enough:
                if self.inflater.eof:  # gzip allows several members one after the other
                    self._next()
                self._inflate(piece, min(enough - self.size, self.plain.limit - self.size + 1))
                piece = self.inflater.unused_data if self.inflater.eof else self.inflater.unconsumed_tail
        except zlib.error as error:
            raise PermanentError("bad_compression", f"the body cannot be inflated: {error}") from error
        return piece

    def _next(self) -> None:
        self.members += 1
        if self.members > MAX_GZIP_MEMBERS:
            raise PermanentError(
                "bad_compression", f"the body has more than {MAX_GZIP_MEMBERS:,} compressed members: send one"
            )
        self.inflater = zlib.decompressobj(self.wbits)

    def _inflate(self, piece: bytes, most: int) -> None:
        """Inflate to so many bytes, and to those that wait in the inflater while there is nothing more to read."""
        self.plain.feed(self.inflater.decompress(piece, most))
        while not (self.inflater.eof or self.inflater.unconsumed_tail):
            waiting = self.inflater.decompress(b"", self.plain.limit - self.size + 1)
            if not waiting:
                return
            self.plain.feed(waiting)

    def finish(self) -> bytes:
        """The whole body. Raises `Permanent` if it ends before its end."""
        if not self.inflater.eof:
            raise PermanentError("bad_compression", "the compressed body is cut short")
        return self.plain.finish()


def make_buffer(headers: Mapping[bytes, bytes], limit: int) -> BodyBuffer:
    """What takes a body of these headers. Raises `Permanent` for an encoding or a length out of bounds."""
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > limit:
        raise PermanentError("too_large", f"{int(length):,} bytes in one request, at most {limit:,}: send less")
    encoding = headers.get(b"content-encoding", b"").strip().lower()
    if encoding in (b"", b"identity"):
        return PlainBuffer(limit)
    if encoding in WINDOW_BITS:
        return InflatingBuffer(limit, WINDOW_BITS[encoding])
    given = encoding.decode("latin-1")
    raise PermanentError("encoding", f"content-encoding {given!r} is not one of gzip, deflate, identity")


class ClientDisconnected(Exception):
    """The client went away before its request was whole: there is nobody to answer."""


class PendingBytes:
    """The bytes of all bodies together that are being read, decoded or written.

    The last sixth is for small bodies: large ones that fill the rest turn no small one away.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.size = limit, 0

    def add(self, size: int, body: int) -> None:
        """Count bytes of a body that has `body` by now. Raises `Retryable` if that is more than there may be."""
        self.size += size
        if self.size > (self.limit if body < LARGE_BODY_BYTES else self.limit * 5 // 6):
            raise RetryableError("overload", f"{self.size:,} bytes of requests are waiting")


class RequestBody:
    """One body, counted among the pending ones until it is released."""

    def __init__(self, pending: PendingBytes, limits: Limits) -> None:
        self._pending, self._limits = pending, limits
        self.size = 0  # bytes, as inflated, and later as decoded

    async def read(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        """The whole body, from an ASGI channel.

        Raises `Permanent` for what it is, `Retryable` if all bodies together are too many or if this one stalls, and
        `Disconnected`.
        """
        into = make_buffer(headers, self._limits.request_bytes)
        more = await self._piece(receive, into)
        try:
            while more:
                async with asyncio.timeout(self._limits.stall_seconds):
                    more = await self._piece(receive, into)
        except TimeoutError:
            raise RetryableError("stalled", "the rest of the body did not come") from None
        return into.finish()

    def grow(self, size: int) -> None:
        """Count more bytes of it. Raises `Retryable` if all bodies together are too many."""
        self.size += size
        self._pending.add(size, self.size)

    def release(self) -> None:
        """Count it as answered."""
        self._pending.size -= self.size

    async def _piece(self, receive: Receive, into: BodyBuffer) -> bool:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnected
        rest = into.feed(message.get("body", b""), INFLATE_STEP_BYTES)
        self.grow(into.size - self.size)
        while rest:
            await asyncio.sleep(0)
            rest = into.feed(rest, INFLATE_STEP_BYTES)
            self.grow(into.size - self.size)
        return bool(message.get("more_body", False))
