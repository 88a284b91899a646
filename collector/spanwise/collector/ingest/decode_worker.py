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
from spanwise.collector.ingest.decode_protocol import (
    CODECS,
    ENCODER_UPDATE,
    LENGTH_PREFIX,
    READY_BYTE,
    REQUEST_HEADER,
    WorkerReply,
    WorkerSettings,
)
from spanwise.collector.ingest.ingest_errors import PermanentError
from spanwise.collector.ingest.limits import BATCH_SIZE, HUGE_BODY_BYTES, LARGE_BODY_BYTES, release_free_memory
from spanwise.collector.ingest.request_decoder import DecodedRequest, decode

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
    start: WorkerSettings = pickle.loads(
        _receive_exactly(connection, LENGTH_PREFIX.unpack(_receive_exactly(connection, LENGTH_PREFIX.size))[0])
    )
    told = _LogCollector()
    import_prices(start.prices)
    with contextlib.suppress(AttributeError, OSError, TypeError):  # glibc only
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, HUGE_BODY_BYTES)
    with contextlib.suppress(OSError, ValueError):  # the limit is lower already
        resource.setrlimit(resource.RLIMIT_DATA, (start.memory, resource.RLIM_INFINITY))
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    connection.sendall(READY_BYTE)
    while True:
        size, codec, rows = REQUEST_HEADER.unpack(_receive_exactly(connection, REQUEST_HEADER.size))
        body = _receive_exactly(connection, size)
        if codec == ENCODER_UPDATE:
            start = start._replace(encode=pickle.loads(body))
            continue
        signal.setitimer(signal.ITIMER_PROF, start.seconds)  # the timer ends the process even inside C code
        answer, pieces = _decode_body(start, codec, body, rows, told)
        signal.setitimer(signal.ITIMER_PROF, NO_LIMIT)
        _send_reply(connection, answer, pieces)
        del body, answer, pieces
        if size >= HUGE_BODY_BYTES:
            gc.collect()
            release_free_memory()


def _decode_body(
    start: WorkerSettings, codec: int, body: bytes, rows: bool, told: _LogCollector
) -> tuple[WorkerReply, list[bytes]]:
    began = time.thread_time()  # CPU time of the thread, because that of the process lags while the timer runs
    pieces: list[bytes] = []
    decoded: DecodedRequest[Any] | None = None
    refused = None
    try:
        decoded = decode(CODECS[codec], body, start.limits, rest=0)
        decoded.made = len(decoded.items) if rows else 0
        # move items into pickled chunks, batch by batch, so that all of them are never in memory twice
        encode = start.encode if rows else None
        decoded.items.reverse()
        while decoded.items:
            some = decoded.items[: -BATCH_SIZE - 1 : -1]
            del decoded.items[-BATCH_SIZE:]
            pieces.append(pickle.dumps(encode(some) if encode else some, pickle.HIGHEST_PROTOCOL))
    except PermanentError as error:
        refused = error.reason, str(error)
    except MemoryError:
        decoded = None  # free the decoded items before anything else is allocated
        refused = "too_large", f"decoding this takes more than {start.memory:,} bytes: send less at once"
    except Exception as error:  # a retry would fail on the same bytes again
        log_once("the collector failed on a request, which is refused", error)
        refused = "decoding", f"the collector failed on this request: {error!r:.200}"
    if refused is not None:
        pieces.clear()
    seconds = time.thread_time() - began
    return WorkerReply(decoded, refused, [len(piece) for piece in pieces], seconds, told.taken()), pieces


def _send_reply(connection: socket.socket, answer: WorkerReply, pieces: list[bytes]) -> None:
    told = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
    parts = [LENGTH_PREFIX.pack(len(told)) + told, *pieces]
    if len(pieces) == 1 and len(pieces[0]) < LARGE_BODY_BYTES:
        parts = [b"".join(parts)]  # a single send wakes the server once
    try:
        for part in parts:
            connection.sendall(part)
    except OSError:  # the server has exited
        os._exit(0)


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    """Read `size` bytes. If the server has closed the socket, end the process."""
    received = b""
    while len(received) < size:
        try:
            piece = connection.recv(size - len(received), socket.MSG_WAITALL)
        except OSError:
            piece = b""
        if not piece:
            os._exit(0)
        received = received + piece if received else piece
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

    def taken(self) -> list[str]:
        """Return the lines since the last call."""
        lines, self._lines = self._lines, []
        return lines


if __name__ == "__main__":
    main()
