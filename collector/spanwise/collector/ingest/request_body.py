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
# bytes decompressed per step, which takes a third of a millisecond; other tasks can run between steps
INFLATE_STEP_BYTES = 128 * 1024
# maximum for one body: an empty member has only twenty bytes, but takes as much time as a full one
MAX_GZIP_MEMBERS = 1000
WINDOW_BITS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}  # zlib's `wbits` for each format
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class BodyBuffer(Protocol):
    """Buffer that collects the chunks of a body."""

    @property
    def size(self) -> int:
        """Return the number of decompressed bytes so far."""

    def feed(self, piece: bytes, step: int = ...) -> bytes:
        """Add a chunk until the body has grown by `step` bytes. Return the rest of the chunk."""

    def finish(self) -> bytes:
        """Return the complete body."""


class PlainBuffer:
    """Buffer of an uncompressed body."""

    def __init__(self, limit: int) -> None:
        self.limit, self.first = limit, b""
        # used from the second chunk on; `getvalue` makes no copy, unlike joining chunks
        self.buffer: BytesIO | None = None
        self.size = 0  # bytes received so far

    def feed(self, piece: bytes, step: int = UNLIMITED) -> bytes:
        """Add a chunk. Raises `PermanentError` beyond the limit."""
        self.size += len(piece)
        if self.size > self.limit:
            raise PermanentError("too_large", f"the body is larger than {self.limit:,} bytes: send less at once")
        if self.size == len(piece):
            self.first = piece
        else:
            if self.buffer is None:
                self.buffer = BytesIO()
                self.buffer.write(self.first)
                self.first = b""
            self.buffer.write(piece)
        return b""

    def finish(self) -> bytes:
        """Return the complete body."""
        return self.first if self.buffer is None else self.buffer.getvalue()


class InflatingBuffer:
    """Buffer of a body in gzip (`wbits` 31) or zlib format (15), decompressed no further than the limit."""

    def __init__(self, limit: int, wbits: int) -> None:
        self.plain, self.wbits, self.inflater = PlainBuffer(limit), wbits, zlib.decompressobj(wbits)
        self.members = 1

    @property
    def size(self) -> int:
        """Return the number of decompressed bytes so far."""
        return self.plain.size

    def feed(self, piece: bytes, step: int = UNLIMITED) -> bytes:
        """Add a chunk. Raises `PermanentError` beyond the limit, or if the data is not in the declared format."""
        enough = self.size + step
        try:
            while piece and self.size < enough:
                if self.inflater.eof:  # a gzip file may have several members
                    self.members += 1
                    if self.members > MAX_GZIP_MEMBERS:
                        raise PermanentError(
                            "bad_compression",
                            f"the body has more than {MAX_GZIP_MEMBERS:,} compressed members: compress it as one",
                        )
                    self.inflater = zlib.decompressobj(self.wbits)
                self._inflate(piece, min(enough - self.size, self.plain.limit - self.size + 1))
                piece = self.inflater.unused_data if self.inflater.eof else self.inflater.unconsumed_tail
        except zlib.error as error:
            raise PermanentError("bad_compression", f"the body cannot be decompressed: {error}") from error
        return piece

    def _inflate(self, piece: bytes, most: int) -> None:
        """Decompress up to `most` bytes, then the output that zlib still holds although all input is consumed."""
        self.plain.feed(self.inflater.decompress(piece, most))
        while not (self.inflater.eof or self.inflater.unconsumed_tail):
            waiting = self.inflater.decompress(b"", self.plain.limit - self.size + 1)
            if not waiting:
                return
            self.plain.feed(waiting)

    def finish(self) -> bytes:
        """Return the complete body. Raises `PermanentError` if the compressed data is truncated."""
        if not self.inflater.eof:
            raise PermanentError("bad_compression", "the compressed body is truncated")
        return self.plain.finish()


def make_buffer(headers: Mapping[bytes, bytes], limit: int) -> BodyBuffer:
    """Return the buffer for a body with these headers.

    Raises `PermanentError` for an unsupported encoding, or a length beyond the limit.
    """
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
    """Internal signal: the client disconnected before its request was complete."""


class PendingBytes:
    """Memory of all bodies that are being read, decoded or written.

    The last sixth is reserved for small bodies, so that large bodies cannot block small ones.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.size = limit, 0

    def add(self, size: int, body: int) -> None:
        """Count `size` more bytes of a body of `body` bytes in total. Raises `RetryableError` beyond the limit."""
        self.size += size
        if self.size > (self.limit if body < LARGE_BODY_BYTES else self.limit * 5 // 6):
            raise RetryableError("overload", f"the server is overloaded: {self.size:,} bytes of requests are pending")


class RequestBody:
    """One body, counted in the pending memory until `release`."""

    def __init__(self, pending: PendingBytes, limits: Limits) -> None:
        self._pending, self._limits = pending, limits
        self.size = 0  # bytes counted so far: of the decompressed body, later also of the decoded items

    async def read(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        """Read the complete body from an ASGI channel.

        Raises `PermanentError` for an invalid body, `RetryableError` if the pending memory is full or the body
        stalls, and `ClientDisconnected`.
        """
        into = make_buffer(headers, self._limits.request_bytes)
        more = await self._piece(receive, into)
        try:
            while more:
                async with asyncio.timeout(self._limits.stall_seconds):
                    more = await self._piece(receive, into)
        except TimeoutError:
            raise RetryableError("stalled", "timed out while reading the body") from None
        return into.finish()

    def grow(self, size: int) -> None:
        """Count more bytes of the body. Raises `RetryableError` if the pending memory is full."""
        self.size += size
        self._pending.add(size, self.size)

    def release(self) -> None:
        """Remove the body from the pending memory."""
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
