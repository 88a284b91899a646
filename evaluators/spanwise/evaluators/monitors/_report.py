"""What workers and their supervisor tell each other: a line of JSON a message, over two pipes.

Whatever else comes on a worker's pipe is the traceback of a crash, as `faulthandler` writes it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import orjson

_CHUNK = 1 << 16


class Teller:
    """The worker's end: whole lines, from any thread. A reader that is gone is no error; this process ends with it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._lock = descriptor, threading.Lock()

    def tell(self, kind: str, **what: Any) -> None:
        """One message."""
        line = orjson.dumps({"kind": kind, **what}, default=str) + b"\n"
        with self._lock, suppress(BrokenPipeError):
            while line:
                line = line[os.write(self._descriptor, line) :]


class Listener:
    """The supervisor's end: messages as they come, and the lines of a crash in `crash`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.crash: list[str] = []
        self._rest = b""
        os.set_blocking(descriptor, False)

    def messages(self) -> Iterator[Mapping[str, Any]]:
        """All that is there by now."""
        while chunk := self._read():
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            yield from filter(None, map(self._message, lines))

    def _read(self) -> bytes:
        try:
            return os.read(self.descriptor, _CHUNK)
        except (BlockingIOError, OSError):
            return b""

    def _message(self, line: bytes) -> Mapping[str, Any] | None:
        with suppress(orjson.JSONDecodeError):
            message = orjson.loads(line)
            if isinstance(message, dict) and "kind" in message:
                return message
        if len(self.crash) < 1000:
            self.crash.append(line.decode(errors="replace"))
        return None

    def close(self) -> None:
        """Let go of the pipe."""
        os.close(self.descriptor)
