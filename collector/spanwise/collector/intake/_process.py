"""One process that decodes, as the server sees it: started, asked, and ended when it is of no use any more."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from spanwise.collector.intake._apart import ENCODER, READY, REQUEST, SIZE, Answer, Encode, Start
from spanwise.collector.intake._errors import Retryable
from spanwise.collector.intake._link import Link, Reader

MODULE = "spanwise.collector.intake._decoder"
ENDING = 5.0  # seconds until a process that has closed its socket must be gone
BUFFER = 1024 * 1024  # bytes in the socket: several usual requests, so that nobody waits until one has been read
END = 4 * 1024  # bytes of a body at either end by which it is known again
STARTING = 60.0  # seconds until it must be ready, on a machine that has much else to do


class Job(NamedTuple):
    """A request under way in a process, and whoever waits for what comes of it."""

    mark: int  # of its body, which is let go of once it is sent
    done: asyncio.Future[tuple[Answer, list[bytearray]]]


def mark_of(body: bytes) -> int:
    """By which a body is known again: of a large one its ends tell, as all of it takes a while to go through."""
    return hash((len(body), body[:END], body[-END:]))


class Process:
    """Answers requests in the order in which they are asked. Belongs to the loop in which it was made."""

    def __init__(self, start: Start, died: Callable[[Process, str, Job | None], object]) -> None:
        """`died` is told how it ended on its own, and what it was at. Raises `OSError`: there can be no process."""
        self._loop, self._died, self._seconds = asyncio.get_running_loop(), died, start.patience
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.cpu = 0.0  # seconds, of all requests
        self._jobs: deque[Job] = deque()
        self._encode = start.encode
        ours, theirs = socket.socketpair()
        try:
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
            self._popen = _started(theirs)
            if start.nice:  # from here, as importing is work, too
                os.setpriority(os.PRIO_PROCESS, self._popen.pid, start.nice)
            self._link = Link(ours, self._reader(), self._failed)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._slow = self._is_strange = False
        self._ending: asyncio.Task[None] | None = None
        self._watch = self._loop.call_later(STARTING, self._too_slow)
        told = pickle.dumps(start, pickle.HIGHEST_PROTOCOL)
        self._link.send(SIZE.pack(len(told)), told)

    @property
    def pid(self) -> int:
        """Its id."""
        return self._popen.pid

    @property
    def waiting(self) -> int:
        """Requests that it has not answered yet."""
        return len(self._jobs)

    @property
    def is_ready(self) -> bool:
        """Whether it answers by now."""
        return self.ready.done() and not self.ready.cancelled() and self.ready.exception() is None

    async def ask(self, codec: int, body: bytes, rows: bool) -> tuple[Answer, list[bytearray]]:
        """What came of a request, and its items in pieces. Raises `Retryable` if the process ends before."""
        job = Job(mark_of(body), self._loop.create_future())
        if not self._jobs and self.is_ready:
            self._watch = self._loop.call_later(self._seconds, self._too_slow)
        self._jobs.append(job)
        self._link.send(REQUEST.pack(len(body), codec, rows), body)
        del body
        return await job.done

    def use(self, encode: Encode | None) -> None:
        """Have the requests that are asked from now on encoded so."""
        if encode is not self._encode:
            self._encode, told = encode, pickle.dumps(encode, pickle.HIGHEST_PROTOCOL)
            self._link.send(REQUEST.pack(len(told), ENCODER, False), told)

    def end(self) -> None:
        """Let it end, which is no fault of its own; from any thread once the loop has ended."""
        self._watch.cancel()
        self._link.close()

    def wait(self, seconds: float) -> int:
        """Its exit status; killed if it takes longer."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._popen.wait(seconds)
        self._popen.kill()
        return self._popen.wait()

    def _reader(self) -> Reader:
        yield len(READY)
        self._watch.cancel()
        self.ready.set_result(None)
        if self._jobs:
            self._watch = self._loop.call_later(self._seconds, self._too_slow)
        while True:
            self._answered((yield from self._answer()))  # of which nothing stays here: the next may be far off

    def _answer(self) -> Generator[int, bytearray, tuple[Answer, list[bytearray]]]:
        [size] = SIZE.unpack((yield SIZE.size))
        answer: Answer = pickle.loads((yield size))
        pieces = list[bytearray]()
        for size in answer.sizes:
            pieces += [(yield size)]
        return answer, pieces

    def _answered(self, found: tuple[Answer, list[bytearray]]) -> None:
        self._watch.cancel()
        self.cpu += found[0].seconds
        job = self._jobs.popleft()
        if not job.done.done():  # whoever asked may be gone
            job.done.set_result(found)
        if self._jobs:
            self._watch = self._loop.call_later(self._seconds, self._too_slow)

    def _too_slow(self) -> None:
        """End one that hangs, or is stopped; the reading side finds that it has ended."""
        self._slow = True
        self._popen.kill()

    def _failed(self, error: Exception) -> None:
        """It has ended, or says what nobody here knows: perhaps the package was replaced under the server."""
        self._is_strange = not isinstance(error, (OSError, EOFError))
        self._ending = self._loop.create_task(self._ended())

    async def _ended(self) -> None:
        self._watch.cancel()
        status = await asyncio.to_thread(self.wait, ENDING)
        how = "too slow" if self._slow or status == -signal.SIGPROF else _named(status)
        how = "not understood" if self._is_strange else how
        jobs = list(self._jobs)
        self._jobs.clear()
        error = Retryable("decoder", f"the process that decoded this has ended ({how}): send it again")
        self._died(self, how, jobs[0] if jobs and not self._is_strange else None)
        waiting: list[asyncio.Future[Any]] = [job.done for job in jobs]
        for future in [self.ready, *waiting]:
            if not future.done():
                future.set_exception(error)
                future.exception()  # that nobody waits for it is no mistake


def _named(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"


def _started(theirs: socket.socket) -> subprocess.Popen[bytes]:
    """The same interpreter on the module alone: nothing of the program that serves is imported, or run again. What can
    be imported here can be imported there.
    """
    if not sys.executable:
        raise FileNotFoundError("Python does not know its own executable")
    command = [sys.executable, "-P", "-m", MODULE]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=environment)
