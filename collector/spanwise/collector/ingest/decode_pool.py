"""Pool of decode worker processes in the server: start, dispatch, timeouts, restart after a crash.

The module handles its sockets with callbacks of the event loop. asyncio's own socket calls wait for each part of a
message separately, and register with the loop each time. For a request of 20 spans and its reply they cost the loop
270 µs, and these callbacks 140 µs; for 100 spans, 440 µs and 300 µs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from spanwise.collector.dialects import export_prices
from spanwise.collector.ingest.decode_protocol import (
    CODECS,
    ENCODER_UPDATE,
    LENGTH_PREFIX,
    READY_BYTE,
    REQUEST_HEADER,
    EncodedRows,
    RowEncoder,
    WorkerReply,
    WorkerSettings,
)
from spanwise.collector.ingest.ingest_errors import PermanentError, RetryableError
from spanwise.collector.ingest.limits import LARGE_BODY_BYTES, MIB, Limits
from spanwise.collector.ingest.offload import Offloader
from spanwise.collector.ingest.otlp_signals import Request
from spanwise.collector.ingest.request_decoder import DecodedRequest
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.stores import RowStore, Store

T = TypeVar("T")
log = logging.getLogger("spanwise.collector")

# the server decodes smaller bodies itself: for bodies of 8 KB, a worker would take 1.4 times the CPU time
MIN_BODY_BYTES = 16 * 1024
MAX_REQUESTS_PER_WORKER = 4  # enough for a request in progress, and others in transit or waiting for the event loop
BUSY_SECONDS = 0.2  # if the server spends more than this decoding within one second, it starts a worker
IDLE_CHECK_SECONDS = 10.0  # interval of the check for idle workers
MIN_CPU_SHARE = 0.05  # share of that interval: a worker that uses less CPU time is stopped
LARGE_BODY_NICE = 5  # nice(2) value of the process for large bodies
LARGE_BODY_TIMEOUT_FACTOR = 8  # factor of the timeout for large bodies, because other work has priority over them
# seconds to wait before the next start after a worker has died; doubled with each death, up to the maximum
RESTART_PAUSE, MAX_RESTART_PAUSE = 1.0, 60.0
MAX_DECODERS = 16
MAX_DEATHS_PER_BODY = 3  # a body on which this many workers have died is refused for a while


def default_decoder_count() -> int:
    """Return the default number of workers on this machine: two on four cores or more, one on two, otherwise none.

    On fewer cores, a worker would take as much CPU time from the server as it saves.
    """
    cores: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        most, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, int(most) / int(period))
    return min(2, int(cores / 2))


class WorkerPool:
    """Pool of up to `most` worker processes with the same settings."""

    def __init__(self, most: int, start: WorkerSettings, metrics: Metrics, idle: float = IDLE_CHECK_SECONDS) -> None:
        """Create an empty pool. Each worker is checked every `idle` seconds, and stopped if it has been idle."""
        self._most, self._start, self._metrics, self._idle = most, start, metrics, idle
        self._processes: list[WorkerProcess] = []
        self._deaths, self._again = 0, 0.0  # number of consecutive deaths, and earliest time of the next start
        self.bodies = SuspectBodies()

    def __len__(self) -> int:
        return len(self._processes)

    def free(self) -> WorkerProcess | None:
        """Return the least busy worker that is ready for a request; None if there is none."""
        found = [one for one in self._processes if one.is_ready and one.waiting < MAX_REQUESTS_PER_WORKER]
        return min(found, key=lambda one: one.waiting, default=None)

    def any(self) -> WorkerProcess | None:
        """Return a worker, which may still be starting. Start one if the pool is empty. Return None if none can run
        now.
        """
        if not self._processes:
            self.grow()
        return self._processes[0] if self._processes else None

    def grow(self) -> None:
        """Start one more worker, unless one is starting, the pool is full, or the pause after a crash is not over."""
        starting = any(not one.is_ready for one in self._processes)
        if starting or len(self._processes) >= self._most or time.monotonic() < self._again:
            return
        try:
            process = WorkerProcess(self._start._replace(prices=export_prices()), self._handle_exit)
        except Exception as error:  # any failure: the server can decode without workers
            self._failed(f"no process for decoding can be started: {error}")
            return
        self._processes.append(process)
        asyncio.get_running_loop().call_later(self._idle, self._end_if_idle, process, 0.0)

    def close(self) -> None:
        """Stop all workers and wait for them."""
        processes, self._processes, self._most = self._processes, [], 0
        for process in processes:
            process.end()
        for process in processes:
            process.wait(RESTART_PAUSE)

    def _end_if_idle(self, process: WorkerProcess, before: float) -> None:
        """Stop a worker that has been nearly idle since the last check."""
        if process not in self._processes:
            return
        if (
            process.is_ready
            and not process.waiting
            and process.cpu - before <= (0.0 if self._start.nice else MIN_CPU_SHARE * self._idle)
        ):
            self._processes.remove(process)
            process.end()
            asyncio.get_running_loop().run_in_executor(None, process.wait, RESTART_PAUSE)
            return
        if process.cpu > before:
            self._deaths = 0
        asyncio.get_running_loop().call_later(self._idle, self._end_if_idle, process, process.cpu)

    def _handle_exit(self, process: WorkerProcess, how: str, job: DecodeJob | None) -> None:
        if process in self._processes:
            self._processes.remove(process)
        if job is not None:
            self.bodies.ended(job.mark)
        self._failed(f"a process that decoded requests has ended ({how}); senders are told to send them again", how)

    def _failed(self, told: str, how: str = "start") -> None:
        pause = min(MAX_RESTART_PAUSE, RESTART_PAUSE * 2**self._deaths)
        self._deaths += 1
        self._again = time.monotonic() + pause
        self._metrics.add("spanwise_decoder_deaths_total", 1, reason=how)
        log.warning("%s; for %.0f s this process decodes alone", told, pause)


class SuspectBodies:
    """Request bodies on which workers died. The server must not decode them itself, because they may be the cause."""

    def __init__(self) -> None:
        self._deaths: dict[int, tuple[int, float]] = {}  # fingerprint → number of deaths, time of the last one

    def ended(self, mark: int) -> None:
        """Record that a worker died on the body with this fingerprint."""
        self._deaths = {key: one for key, one in self._deaths.items() if time.monotonic() - one[1] < MAX_RESTART_PAUSE}
        self._deaths[mark] = self._deaths.get(mark, (0, 0.0))[0] + 1, time.monotonic()

    def check(self, body: bytes) -> bool:
        """Return whether a worker recently died on this body. Raises `RetryableError` if that happened often."""
        count, last = self._deaths.get(fingerprint_body(body), (0, 0.0)) if self._deaths else (0, 0.0)
        left = MAX_RESTART_PAUSE - (time.monotonic() - last)
        if count >= MAX_DEATHS_PER_BODY and left > 0:
            message = f"{count} processes have ended while they decoded this"
            raise RetryableError("decoder", f"{message}: is it what OTLP is?", retry_after=left)
        return count > 0


class DecodePool:
    """Workers of one server: up to `most` for normal requests, and one with low priority for large ones."""

    def __init__(self, most: int, store: Store, beside: Offloader, metrics: Metrics, limits: Limits) -> None:
        self._takes_rows = store if isinstance(store, RowStore) else None
        encode = None if self._takes_rows is None else self._takes_rows.encoder()
        self._beside, self._metrics = beside, metrics
        self._began, self._spent = 0.0, 0.0
        self._told: set[str] = set()
        seconds, memory = limits.decode_seconds, 256 * MIB + 8 * limits.request_bytes
        usual = WorkerSettings(limits, encode, 0, seconds, 2 * seconds, memory, {})
        polite = WorkerSettings(
            limits, encode, LARGE_BODY_NICE, seconds, LARGE_BODY_TIMEOUT_FACTOR * seconds, memory, {}
        )
        self._usual = WorkerPool(most if encode else 0, usual, metrics)
        # one worker is enough, because the lanes admit one large and one huge body at a time
        self._polite = WorkerPool(1 if most else 0, polite, metrics)
        self._pools = (self._usual, self._polite)
        metrics.gauge("spanwise_decoders", lambda: sum(map(len, self._pools)))

    async def __call__(self, request: Request[T], *, keep: bool = True) -> DecodedRequest[T] | None:
        """Decode a request in a worker; return None if the server is to decode it itself.

        Unless `keep` is set, the request loses its body once a worker has it, so that it is not in memory twice.
        Raises `PermanentError` or `RetryableError`.
        """
        size, rows = len(request.body), self._takes_rows is not None and request.project is None
        pool = self._usual if size < LARGE_BODY_BYTES else self._polite
        codec = next((place for place, one in enumerate(CODECS) if one is request.codec), None)
        if codec is None or (
            size < LARGE_BODY_BYTES and (size < MIN_BODY_BYTES or not rows or request.signal.name != "traces")
        ):
            return None
        suspect = pool.bodies.check(request.body)
        process = pool.any() if suspect or size >= LARGE_BODY_BYTES else pool.free()
        if process is None:
            if suspect:
                raise RetryableError("decoder", "the process that decoded this has ended: send it again")
            return None
        rows = rows and request.signal.name == "traces"
        if rows and self._takes_rows is not None:
            process.use(self._takes_rows.encoder())
        asked = process.ask(codec, request.body, rows)
        if not keep:
            request.body = b""
        answer, pieces = await asked
        return await self._decoded(answer, pieces, rows)

    def worked(self, seconds: float, size: int = MIN_BODY_BYTES) -> None:
        """Record how long this process took to decode a body of `size` bytes. If these times add up, start a worker."""
        now = time.monotonic()
        if now - self._began > 1.0:
            self._began, self._spent = now, 0.0
        self._spent += seconds
        if self._spent > BUSY_SECONDS and size >= MIN_BODY_BYTES:
            self._began, self._spent = now, 0.0
            self._usual.grow()

    def close(self) -> None:
        """Stop the workers."""
        for pool in self._pools:
            pool.close()

    async def _decoded(self, answer: WorkerReply, pieces: Sequence[bytearray], rows: bool) -> DecodedRequest[Any]:
        self._metrics.add("spanwise_decoder_requests_total", 1)
        self._metrics.add("spanwise_decoder_seconds_total", answer.seconds)
        # log each distinct line of the workers once per server process
        for line in answer.told:
            if line not in self._told and len(self._told) < 1000:
                self._told.add(line)
                log.error("%s", line)
        if answer.refused is not None:
            raise PermanentError(*answer.refused)
        decoded = answer.decoded
        assert decoded is not None
        if rows:
            decoded.items = [EncodedRows(piece) for piece in pieces]
        else:
            for piece in pieces:
                decoded.items += await self._beside(pickle.loads, piece)
        return decoded


WORKER_MODULE = "spanwise.collector.ingest.decode_worker"
EXIT_TIMEOUT = 5.0  # seconds for a process to exit after its socket was closed
# large enough for several normal requests, so that sending does not wait for the reader
SOCKET_BUFFER_BYTES = 1024 * 1024
FINGERPRINT_BYTES = 4 * 1024  # bytes at the start and at the end of a body that its fingerprint covers
START_TIMEOUT = 60.0  # seconds until a worker must be ready, even on a busy machine


class DecodeJob(NamedTuple):
    """Request in progress in a worker, and the future of its reply."""

    mark: int  # fingerprint of the body, which is freed after sending
    done: asyncio.Future[tuple[WorkerReply, list[bytearray]]]


def fingerprint_body(body: bytes) -> int:
    """Return a hash of a body's length, start and end. Hashing all of a large body would take long."""
    return hash((len(body), body[:FINGERPRINT_BYTES], body[-FINGERPRINT_BYTES:]))


class WorkerProcess:
    """Worker process that answers requests in order. It is bound to the event loop in which it was created."""

    def __init__(self, start: WorkerSettings, died: Callable[[WorkerProcess, str, DecodeJob | None], object]) -> None:
        """Start the process. If it dies on its own, `died` is called with the cause and the request it worked on.

        Raises `OSError` if no process can be started.
        """
        self._loop, self._handle_exit, self._seconds = asyncio.get_running_loop(), died, start.patience
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.cpu = 0.0  # CPU seconds of all requests
        self._jobs: deque[DecodeJob] = deque()
        self._encode = start.encode
        ours, theirs = socket.socketpair()
        try:
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
            self._popen = _start_process(theirs)
            if start.nice:  # set by the server, so that the worker's imports have low priority too
                os.setpriority(os.PRIO_PROCESS, self._popen.pid, start.nice)
            self._link = SocketLink(ours, self._reader(), self._failed)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._slow = self._is_strange = False
        self._ending: asyncio.Task[None] | None = None
        self._watch = self._loop.call_later(START_TIMEOUT, self._too_slow)
        told = pickle.dumps(start, pickle.HIGHEST_PROTOCOL)
        self._link.send(LENGTH_PREFIX.pack(len(told)), told)

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._popen.pid

    @property
    def waiting(self) -> int:
        """Return the number of requests without a reply."""
        return len(self._jobs)

    @property
    def is_ready(self) -> bool:
        """Return whether the process has started."""
        return self.ready.done() and not self.ready.cancelled() and self.ready.exception() is None

    async def ask(self, codec: int, body: bytes, rows: bool) -> tuple[WorkerReply, list[bytearray]]:
        """Send a request; return the reply and its items in chunks.

        Raises `RetryableError` if the process ends before it replies.
        """
        job = DecodeJob(fingerprint_body(body), self._loop.create_future())
        if not self._jobs and self.is_ready:
            self._watch = self._loop.call_later(self._seconds, self._too_slow)
        self._jobs.append(job)
        self._link.send(REQUEST_HEADER.pack(len(body), codec, rows), body)
        del body
        return await job.done

    def use(self, encode: RowEncoder | None) -> None:
        """Set the row encoder for later requests."""
        if encode is not self._encode:
            self._encode, told = encode, pickle.dumps(encode, pickle.HIGHEST_PROTOCOL)
            self._link.send(REQUEST_HEADER.pack(len(told), ENCODER_UPDATE, False), told)

    def end(self) -> None:
        """Stop the process without counting it as a failure. Once the event loop has ended, any thread may call this."""
        self._watch.cancel()
        self._link.close()

    def wait(self, seconds: float) -> int:
        """Wait until the process exits, and return its exit status. Kill it after `seconds`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._popen.wait(seconds)
        self._popen.kill()
        return self._popen.wait()

    def _reader(self) -> MessageReader:
        yield len(READY_BYTE)
        self._watch.cancel()
        self.ready.set_result(None)
        if self._jobs:
            self._watch = self._loop.call_later(self._seconds, self._too_slow)
        while True:
            # use no local variable, which would keep the reply in memory until the next one
            self._complete_job((yield from self._read_reply()))

    def _read_reply(self) -> Generator[int, bytearray, tuple[WorkerReply, list[bytearray]]]:
        [size] = LENGTH_PREFIX.unpack((yield LENGTH_PREFIX.size))
        answer: WorkerReply = pickle.loads((yield size))
        pieces = list[bytearray]()
        for size in answer.sizes:
            pieces += [(yield size)]
        return answer, pieces

    def _complete_job(self, found: tuple[WorkerReply, list[bytearray]]) -> None:
        self._watch.cancel()
        self.cpu += found[0].seconds
        job = self._jobs.popleft()
        if not job.done.done():  # the caller may have been cancelled
            job.done.set_result(found)
        if self._jobs:
            self._watch = self._loop.call_later(self._seconds, self._too_slow)

    def _too_slow(self) -> None:
        """Kill a process that hangs or is stopped; the reader then detects its end."""
        self._slow = True
        self._popen.kill()

    def _failed(self, error: Exception) -> None:
        """Handle the end of the process, or a message that this process cannot decode.

        Such a message arrives if the installed package was replaced while the server was running.
        """
        self._is_strange = not isinstance(error, (OSError, EOFError))
        self._ending = self._loop.create_task(self._ended())

    async def _ended(self) -> None:
        self._watch.cancel()
        status = await asyncio.to_thread(self.wait, EXIT_TIMEOUT)
        how = "too slow" if self._slow or status == -signal.SIGPROF else _describe_exit(status)
        how = "not understood" if self._is_strange else how
        jobs = list(self._jobs)
        self._jobs.clear()
        error = RetryableError("decoder", f"the process that decoded this has ended ({how}): send it again")
        self._handle_exit(self, how, jobs[0] if jobs and not self._is_strange else None)
        waiting: list[asyncio.Future[Any]] = [job.done for job in jobs]
        for future in [self.ready, *waiting]:
            if not future.done():
                future.set_exception(error)
                # mark the error as retrieved, because asyncio would log it if no caller awaits the future
                future.exception()


def _describe_exit(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"


def _start_process(theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Start the worker module with the same interpreter and the same import path.

    The worker does not import or run the server's main program.
    """
    if not sys.executable:
        raise FileNotFoundError("Python does not know its own executable")
    command = [sys.executable, "-P", "-m", WORKER_MODULE]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=environment)


READ_AHEAD_BYTES = 256 * 1024  # size of one read; the parts of a larger message are read directly into its buffer
MAX_SEND_PARTS = 16  # buffers per sendmsg call

# Generator that yields the number of bytes that it needs next, and is then sent these bytes
MessageReader: TypeAlias = Generator[int, bytearray, None]


class SocketLink:
    """Non-blocking socket that sends bytes and feeds received bytes to a reader, on the loop that created it."""

    def __init__(self, end: socket.socket, reader: MessageReader, failed: Callable[[Exception], object]) -> None:
        """Start to read. When reading ends, `failed` is called once with `EOFError` or the error that ended it."""
        self._loop, self._socket, self._reader, self._failed = asyncio.get_running_loop(), end, reader, failed
        self._unsent: deque[memoryview] = deque()
        self._ahead = memoryview(bytearray(READ_AHEAD_BYTES))
        self._whole = bytearray(next(reader))
        self._place = memoryview(self._whole)  # unfilled part of `_whole`
        end.setblocking(False)
        self._loop.add_reader(end, self._readable)

    def send(self, *parts: bytes) -> None:
        """Queue bytes for sending. Once sending fails they are dropped, because the reader detects the cause."""
        idle = not self._unsent
        self._unsent += map(memoryview, parts)
        if idle:
            self._send()
            if self._unsent:
                self._loop.add_writer(self._socket, self._writable)

    def close(self) -> None:
        """Stop sending and reading. Once the event loop has ended, any thread may call this."""
        if self._socket.fileno() >= 0 and not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        self._socket.close()
        self._unsent.clear()

    def _writable(self) -> None:
        self._send()
        if not self._unsent:
            self._loop.remove_writer(self._socket)

    def _send(self) -> None:
        """Send as much as the socket accepts."""
        try:
            sent = self._socket.sendmsg([*islice(self._unsent, MAX_SEND_PARTS)])
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()
            return
        while self._unsent and sent >= len(self._unsent[0]):
            sent -= len(self._unsent.popleft())
        if sent:
            self._unsent[0] = self._unsent[0][sent:]

    def _readable(self) -> None:
        try:
            self._receive()
        except BlockingIOError:
            return
        except Exception as error:
            self.close()
            self._failed(error)

    def _receive(self) -> None:
        """Read the available bytes, and pass complete parts to the reader. Parts of a large message are read into their
        buffer.

        Raises `EOFError`, and the reader's errors.
        """
        large = len(self._place) > READ_AHEAD_BYTES
        into = self._place if large else self._ahead
        got = self._socket.recv_into(into)
        if not got:
            raise EOFError
        if large:
            self._took(got)
            return
        data = into[:got]
        while data:
            count = min(len(data), len(self._place))
            self._place[:count], data = data[:count], data[count:]
            self._took(count)

    def _took(self, count: int) -> None:
        self._place = self._place[count:]
        while not self._place:  # the reader may also want zero bytes
            self._whole = bytearray(self._reader.send(self._whole))
            self._place = memoryview(self._whole)
