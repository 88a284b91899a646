"""A process that decodes requests for the server which started it, and ends with it: `python -m` this module.

Its standard input is a socket to the server. It knows no loop: it reads a request, answers, reads the next.
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

from spanwise.collector.dialects import learn_prices, log_once
from spanwise.collector.intake._apart import CODECS, ENCODER, READY, REQUEST, SIZE, Answer, Start
from spanwise.collector.intake._decode import decode
from spanwise.collector.intake._decoded import Decoded
from spanwise.collector.intake._errors import Permanent
from spanwise.collector.intake._large import HUGE, LARGE, MANY, give_back

PDEATHSIG, M_MMAP_THRESHOLD = 1, -3  # of prctl(2) and mallopt(3)
YOUNG = 10_000  # objects made since, before Python looks for cycles, as in the server
NO_LIMIT = 0.0


def main() -> None:
    """Answer requests until the server closes the socket."""
    _survive_signals()
    connection = socket.socket(fileno=os.dup(0))
    start: Start = pickle.loads(_message(connection))
    told = _Told()
    _settle(start)
    connection.sendall(READY)
    while True:
        size, codec, rows = REQUEST.unpack(_exactly(connection, REQUEST.size))
        body = _exactly(connection, size)
        if codec == ENCODER:
            start = start._replace(encode=pickle.loads(body))
            continue
        signal.setitimer(signal.ITIMER_PROF, start.seconds)  # whatever it is at then, even in C, the process ends
        answer, pieces = _answered(start, codec, body, rows, told)
        signal.setitimer(signal.ITIMER_PROF, NO_LIMIT)
        _send(connection, answer, pieces)
        del body, answer, pieces
        if size >= HUGE:
            gc.collect()
            give_back()


def _answered(start: Start, codec: int, body: bytes, rows: bool, told: _Told) -> tuple[Answer, list[bytes]]:
    began = time.thread_time()  # that of the process lags while the timer runs
    pieces: list[bytes] = []
    decoded: Decoded[Any] | None = None
    refused = None
    try:
        decoded = decode(CODECS[codec], body, start.limits, rest=0)
        decoded.made = len(decoded.items) if rows else 0
        _take_items(decoded.items, start.encode if rows else None, pieces)
    except Permanent as error:
        refused = error.reason, str(error)
    except MemoryError:
        decoded = None  # what it holds goes first
        refused = "too_large", f"decoding this takes more than {start.memory:,} bytes: send less at once"
    except Exception as error:  # the same bytes would meet it again
        log_once("the collector failed on a request, which is refused", error)
        refused = "decoding", f"the collector failed on this request: {error!r:.200}"
    if refused is not None:
        pieces.clear()
    seconds = time.thread_time() - began
    return Answer(decoded, refused, [len(piece) for piece in pieces], seconds, told.taken()), pieces


def _take_items(items: list[Any], encode: Any, pieces: list[bytes]) -> None:
    """Move items into pieces, some at a time, so that the whole is not here twice."""
    items.reverse()
    while items:
        some = items[: -MANY - 1 : -1]
        del items[-MANY:]
        pieces.append(pickle.dumps(encode(some) if encode else some, pickle.HIGHEST_PROTOCOL))


def _send(connection: socket.socket, answer: Answer, pieces: list[bytes]) -> None:
    told = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
    parts = [SIZE.pack(len(told)) + told, *pieces]
    if len(pieces) == 1 and len(pieces[0]) < LARGE:
        parts = [b"".join(parts)]  # the server wakes once
    try:
        for part in parts:
            connection.sendall(part)
    except OSError:  # the server is gone
        os._exit(0)


def _message(connection: socket.socket) -> bytes:
    return _exactly(connection, SIZE.unpack(_exactly(connection, SIZE.size))[0])


def _exactly(connection: socket.socket, size: int) -> bytes:
    """So many bytes; the process ends if they do not come, as then nobody waits for an answer."""
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


def _survive_signals() -> None:
    """Signals for all processes of a terminal or a service are the server's to act on; its end is this one's."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(AttributeError, OSError, TypeError):  # elsewhere the closed socket must do
        ctypes.CDLL(None).prctl(PDEATHSIG, int(signal.SIGKILL))


def _settle(start: Start) -> None:
    learn_prices(start.prices)
    with contextlib.suppress(AttributeError, OSError, TypeError):  # elsewhere than with glibc
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, HUGE)
    with contextlib.suppress(OSError, ValueError):  # it has less already
        resource.setrlimit(resource.RLIMIT_DATA, (start.memory, resource.RLIM_INFINITY))
    gc.freeze()
    gc.set_threshold(YOUNG)


class _Told(logging.Handler):
    """Keeps what is logged here, for the server's log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: list[str] = []
        logger = logging.getLogger("spanwise")
        logger.addHandler(self)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it, with its traceback."""
        self._lines.append(self.format(record))

    def taken(self) -> list[str]:
        """What came since the last time."""
        lines, self._lines = self._lines, []
        return lines


if __name__ == "__main__":
    main()
