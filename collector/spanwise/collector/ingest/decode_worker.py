"""Decode worker: main loop of a process that decodes requests for the server that started it.

Its standard input is a socket to the server. The process has no event loop: it handles one request at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import pickle
import resource
import signal
import socket
import time
from typing import Any

from spanwise.collector.dialects import import_prices, log_once
from spanwise.collector.ingest.otlp_signals import (
    CODECS,
    ENCODER_UPDATE,
    LENGTH_PREFIX,
    READY_BYTE,
    REQUEST_HEADER,
    WorkerReply,
    WorkerSettings,
)
from spanwise.collector.ingest.request_decoder import (
    BATCH_SIZE,
    HUGE_BODY_BYTES,
    LARGE_BODY_BYTES,
    DecodedRequest,
    PermanentError,
    decode,
    release_free_memory,
)

PDEATHSIG, M_MMAP_THRESHOLD = 1, -3  # constants of prctl(2) and mallopt(3)
GC_THRESHOLD = 10_000  # new objects between runs of the cycle collector, as in the server
NO_LIMIT = 0.0


def main() -> None:
    """Process requests until the server closes the socket."""
    # ignore the signals that the server handles; the process ends when the server does
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # on other systems than Linux, the process ends when the socket is closed
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).prctl(PDEATHSIG, int(signal.SIGKILL))
    connection = socket.socket(fileno=os.dup(0))
    [size] = LENGTH_PREFIX.unpack(_receive_exactly(connection, LENGTH_PREFIX.size))
    settings: WorkerSettings = pickle.loads(_receive_exactly(connection, size))
    log_collector = _LogCollector()
    import_prices(settings.prices)
    with contextlib.suppress(AttributeError, OSError, TypeError):  # glibc only
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, HUGE_BODY_BYTES)
    with contextlib.suppress(OSError, ValueError):  # the limit is lower already
        resource.setrlimit(resource.RLIMIT_DATA, (settings.memory, resource.RLIM_INFINITY))
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    connection.sendall(READY_BYTE)
    while True:
        size, codec, rows = REQUEST_HEADER.unpack(_receive_exactly(connection, REQUEST_HEADER.size))
        body = _receive_exactly(connection, size)
        if codec == ENCODER_UPDATE:
            settings = settings._replace(encode=pickle.loads(body))
            continue
        signal.setitimer(signal.ITIMER_PROF, settings.seconds)  # the timer ends the process even inside C code
        reply, chunks = _decode_body(settings, codec, body, rows, log_collector)
        signal.setitimer(signal.ITIMER_PROF, NO_LIMIT)
        message = pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)
        parts = [LENGTH_PREFIX.pack(len(message)) + message, *chunks]
        if len(chunks) == 1 and len(chunks[0]) < LARGE_BODY_BYTES:
            parts = [b"".join(parts)]  # a single send wakes the server once
        try:
            for part in parts:
                connection.sendall(part)
        except OSError:  # the server has exited
            os._exit(0)
        del body, reply, chunks, message, part, parts
        if size >= HUGE_BODY_BYTES:
            gc.collect()
            release_free_memory()


def _decode_body(
    settings: WorkerSettings, codec: int, body: bytes, rows: bool, log_collector: _LogCollector
) -> tuple[WorkerReply, list[bytes]]:
    """Decode a request. Return the reply, and the pickled items in chunks."""
    began = time.thread_time()  # CPU time of the thread, because that of the process lags while the timer runs
    chunks: list[bytes] = []
    decoded: DecodedRequest[Any] | None = None
    refused = None
    try:
        decoded = decode(CODECS[codec], body, settings.limits, pause=0)
        decoded.row_count = len(decoded.items) if rows else 0
        # move items into pickled chunks, batch by batch, so that all of them are never in memory twice
        encode = settings.encode if rows else None
        decoded.items.reverse()
        while decoded.items:
            batch = decoded.items[: -BATCH_SIZE - 1 : -1]
            del decoded.items[-BATCH_SIZE:]
            chunks.append(pickle.dumps(encode(batch) if encode else batch, pickle.HIGHEST_PROTOCOL))
    except PermanentError as error:
        refused = error.reason, str(error)
    except MemoryError:
        decoded = None  # free the decoded items before anything else is allocated
        refused = "too_large", f"decoding this request takes more than {settings.memory:,} bytes: send smaller requests"
    except Exception as error:  # a retry would fail on the same bytes again
        log_once("the collector failed on a request; the request is refused", error)
        refused = "decoding", f"the collector failed on this request: {error!r:.200}"
    if refused is not None:
        chunks.clear()
    seconds = time.thread_time() - began
    return WorkerReply(decoded, refused, [len(chunk) for chunk in chunks], seconds, log_collector.take()), chunks


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    """Read `size` bytes. If the server has closed the socket, end the process."""
    received = b""
    while len(received) < size:
        try:
            chunk = connection.recv(size - len(received), socket.MSG_WAITALL)
        except OSError:
            chunk = b""
        if not chunk:
            os._exit(0)
        received = received + chunk if received else chunk
    return received


class _LogCollector(logging.Handler):
    """Log handler that collects the lines of this process for the server's log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: list[str] = []
        logger = logging.getLogger("spanwise")
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))

    def take(self) -> list[str]:
        """Return the lines since the last call."""
        lines, self._lines = self._lines, []
        return lines


if __name__ == "__main__":
    main()
