"""Request bodies: bounded reading, gzip and deflate decompression, and the memory of pending bodies."""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from io import BytesIO
from typing import Any

from spanwise.collector.ingest.ingest_errors import PermanentError, RetryableError
from spanwise.collector.ingest.limits import LARGE_BODY_BYTES, Limits

UNLIMITED = sys.maxsize
# bytes decompressed per step, which takes a third of a millisecond; other tasks can run between steps
INFLATE_STEP_BYTES = 128 * 1024
# maximum for one body: an empty member has only twenty bytes, but takes as much time as a full one
MAX_GZIP_MEMBERS = 1000
# content encoding → zlib's `wbits`
WINDOW_BITS = {b"": None, b"identity": None, b"gzip": 31, b"x-gzip": 31, b"deflate": 15}
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class BodyBuffer:
    """Buffer that collects the chunks of a body, decompressed no further than the limit.

    `wbits` is zlib's number for the format of the body; None for an uncompressed body.
    """

    def __init__(self, limit: int, wbits: int | None = None) -> None:
        self.limit, self.wbits = limit, wbits
        self.size = 0  # decompressed bytes so far
        self._inflater: Any = None if wbits is None else zlib.decompressobj(wbits)
        self._members = 1
        self._first = b""
        # used from the second chunk on; `getvalue` makes no copy, unlike joining chunks
        self._buffer: BytesIO | None = None

    def feed(self, chunk: bytes, step: int = UNLIMITED) -> bytes:
        """Add a chunk until the body has grown by `step` bytes. Return the rest of the chunk.

        Raises `PermanentError` beyond the limit, or if the data is not in the declared format.
        """
        if self.wbits is None:
            self._append(chunk)
            return b""
        enough = self.size + step
        try:
            while chunk and self.size < enough:
                if self._inflater.eof:  # a gzip file may have several members
                    self._members += 1
                    if self._members > MAX_GZIP_MEMBERS:
                        message = f"the body has more than {MAX_GZIP_MEMBERS:,} compressed members: compress it as one"
                        raise PermanentError("bad_compression", message)
                    self._inflater = zlib.decompressobj(self.wbits)
                self._append(self._inflater.decompress(chunk, min(enough - self.size, self.limit - self.size + 1)))
                # zlib may still hold output although all input is consumed
                while not (self._inflater.eof or self._inflater.unconsumed_tail):
                    output = self._inflater.decompress(b"", self.limit - self.size + 1)
                    if not output:
                        break
                    self._append(output)
                chunk = self._inflater.unused_data if self._inflater.eof else self._inflater.unconsumed_tail
        except zlib.error as error:
            raise PermanentError("bad_compression", f"the body cannot be decompressed: {error}") from error
        return chunk

    def _append(self, content: bytes) -> None:
        self.size += len(content)
        if self.size > self.limit:
            raise PermanentError("too_large", f"the body is larger than {self.limit:,} bytes: send less at once")
        if self.size == len(content):
            self._first = content
            return
        if self._buffer is None:
            self._buffer = BytesIO()
            self._buffer.write(self._first)
            self._first = b""
        self._buffer.write(content)

    def finish(self) -> bytes:
        """Return the complete body. Raises `PermanentError` if the compressed data is truncated."""
        if self._inflater is not None and not self._inflater.eof:
            raise PermanentError("bad_compression", "the compressed body is truncated")
        return self._first if self._buffer is None else self._buffer.getvalue()


def make_buffer(headers: Mapping[bytes, bytes], limit: int) -> BodyBuffer:
    """Return the buffer for a body with these headers.

    Raises `PermanentError` for an unsupported encoding, or a length beyond the limit.
    """
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > limit:
        raise PermanentError("too_large", f"{int(length):,} bytes in one request, at most {limit:,}: send less")
    encoding = headers.get(b"content-encoding", b"").strip().lower()
    if encoding not in WINDOW_BITS:
        given = encoding.decode("latin-1")
        raise PermanentError("encoding", f"content-encoding {given!r} is not one of gzip, deflate, identity")
    return BodyBuffer(limit, WINDOW_BITS[encoding])


class ClientDisconnected(Exception):
    """Internal signal: the client disconnected before its request was complete."""


class PendingBytes:
    """Memory of all bodies that are being read, decoded or written.

    The last sixth is reserved for small bodies, so that large bodies cannot block small ones.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.size = limit, 0

    def add(self, size: int, body: int) -> None:
        """Add `size` bytes to the count. `body` is the total size of the body that they belong to.

        Raises `RetryableError` beyond the limit.
        """
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
        buffer = make_buffer(headers, self._limits.request_bytes)
        more = await self._read_chunk(receive, buffer)
        try:
            while more:
                async with asyncio.timeout(self._limits.stall_seconds):
                    more = await self._read_chunk(receive, buffer)
        except TimeoutError:
            raise RetryableError("stalled", "timed out while reading the body") from None
        return buffer.finish()

    async def _read_chunk(self, receive: Receive, buffer: BodyBuffer) -> bool:
        """Read one chunk. Return whether there are more."""
        message = await receive()
        if message["type"] != "http.request":
            raise ClientDisconnected
        unread = buffer.feed(message.get("body", b""), INFLATE_STEP_BYTES)
        self.grow(buffer.size - self.size)
        while unread:
            await asyncio.sleep(0)
            unread = buffer.feed(unread, INFLATE_STEP_BYTES)
            self.grow(buffer.size - self.size)
        return bool(message.get("more_body", False))

    def grow(self, size: int) -> None:
        """Count more bytes of the body. Raises `RetryableError` if the pending memory is full."""
        self.size += size
        self._pending.add(size, self.size)

    def release(self) -> None:
        """Remove the body from the pending memory."""
        self._pending.size -= self.size
