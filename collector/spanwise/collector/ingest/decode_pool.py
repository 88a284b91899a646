"""Decoding of requests off the event loop: priority lanes, threads, worker processes and their restarts.

The module handles its sockets with callbacks of the event loop. asyncio's own socket calls wait for each part of a
message separately, and register with the loop each time. For a request of 20 spans and its reply they cost the loop
270 µs, and these callbacks 140 µs; for 100 spans, 440 µs and 300 µs.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from spanwise.collector.dialects import export_prices, log_once
from spanwise.collector.ingest.otlp_signals import (
    CODECS,
    ENCODER_UPDATE,
    LENGTH_PREFIX,
    READY_BYTE,
    REQUEST_HEADER,
    EncodedRows,
    Request,
    RowEncoder,
    WorkerReply,
    WorkerSettings,
)
from spanwise.collector.ingest.request_decoder import (
    HUGE_BODY_BYTES,
    LARGE_BODY_BYTES,
    MIB,
    DecodedRequest,
    Limits,
    PermanentError,
    RequestRefused,
    RetryableError,
    decode,
    release_free_memory,
)
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.stores import RowStore, Store

# Offloading of large requests from the event loop: priority lanes and a thread pool.

R = TypeVar("R")
# a body that is larger by this many bytes lets bodies go first that arrive up to a second later
FAIRNESS_BYTES_PER_SECOND = 1024 * 1024


class PriorityLane:
    """Lock for processing large bodies one at a time. Smaller bodies go first, but waiting raises the priority of a
    body.
    """

    def __init__(self) -> None:
        self._busy, self._order = False, itertools.count()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        """Wait until the lane is free, and occupy it within the `async with` block."""
        if self._busy:
            loop = asyncio.get_running_loop()
            granted = loop.create_future()
            heapq.heappush(self._waiting, (loop.time() + size / FAIRNESS_BYTES_PER_SECOND, next(self._order), granted))
            try:
                await granted
            except asyncio.CancelledError:
                if granted.done() and not granted.cancelled():  # the lane was granted in the same moment: pass it on
                    self._grant_next()
                raise
        self._busy = True
        try:
            yield
        finally:
            self._grant_next()

    def _grant_next(self) -> None:
        while self._waiting:
            granted = heapq.heappop(self._waiting)[2]
            if not granted.done():  # `_busy` stays set, so that no other body enters in between
                granted.set_result(None)
                return
        self._busy = False


class Offloader:
    """Thread pool and two lanes for large bodies.

    The lanes admit one body at a time, because decoding takes several times its size in memory. Large bodies do not
    wait for huge ones; small bodies wait for neither.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(2, "spanwise-large")  # the threads start on first use
        self._large, self._huge = PriorityLane(), PriorityLane()

    async def __call__(self, work: Callable[..., R], *args: Any) -> R:
        """Run `work` in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)

    @asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        """Wait for the lane of a body of this size; a small one enters at once."""
        if size < LARGE_BODY_BYTES:
            yield
            return
        try:
            async with (self._large if size < HUGE_BODY_BYTES else self._huge).turn(size):
                yield
        finally:
            if size >= HUGE_BODY_BYTES:
                self.trim()

    def trim(self) -> None:
        """Schedule the return of free memory to the operating system in one second."""

        def free_memory() -> None:
            with contextlib.suppress(RuntimeError):  # the server has stopped in the meantime
                self._threads.submit(release_free_memory)

        asyncio.get_running_loop().call_later(1.0, free_memory)

    def close(self) -> None:
        """Stop the threads after their current work."""
        self._threads.shutdown(cancel_futures=True)


# Decoding of requests in the server, in a thread or in a worker process; start, timeouts and restart of workers.

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
    """Pool of worker processes with the same settings."""

    def __init__(
        self, max_workers: int, settings: WorkerSettings, metrics: Metrics, idle: float = IDLE_CHECK_SECONDS
    ) -> None:
        """Create an empty pool. Each worker is checked every `idle` seconds, and stopped if it has been idle."""
        self._max_workers, self._settings, self._metrics, self._idle = max_workers, settings, metrics, idle
        self._workers: list[WorkerProcess] = []
        self._deaths, self._next_start = 0, 0.0  # number of consecutive deaths, and earliest time of the next start
        self.bodies = SuspectBodies()

    def __len__(self) -> int:
        return len(self._workers)

    def free(self) -> WorkerProcess | None:
        """Return the least busy worker that is ready for a request; None if there is none."""
        ready = [worker for worker in self._workers if worker.is_ready and worker.waiting < MAX_REQUESTS_PER_WORKER]
        return min(ready, key=lambda worker: worker.waiting, default=None)

    def any(self) -> WorkerProcess | None:
        """Return a worker, which may still be starting. Start one if the pool is empty. Return None if none can run
        now.
        """
        if not self._workers:
            self.grow()
        return self._workers[0] if self._workers else None

    def grow(self) -> None:
        """Start one more worker, unless one is starting, the pool is full, or the pause after a crash is not over."""
        starting = any(not worker.is_ready for worker in self._workers)
        if starting or len(self._workers) >= self._max_workers or time.monotonic() < self._next_start:
            return
        try:
            worker = WorkerProcess(self._settings._replace(prices=export_prices()), self._handle_exit)
        except Exception as error:  # any failure: the server can decode without workers
            self._pause_starts("start", f"cannot start a decode worker: {error}")
            return
        self._workers.append(worker)
        asyncio.get_running_loop().call_later(self._idle, self._stop_if_idle, worker, 0.0)

    def close(self) -> None:
        """Stop all workers and wait for them."""
        workers, self._workers, self._max_workers = self._workers, [], 0
        for worker in workers:
            worker.end()
        for worker in workers:
            worker.wait(RESTART_PAUSE)

    def _stop_if_idle(self, worker: WorkerProcess, cpu_before: float) -> None:
        """Stop a worker that has been nearly idle since the last check, when it had used `cpu_before` seconds."""
        if worker not in self._workers:
            return
        max_cpu = 0.0 if self._settings.nice else MIN_CPU_SHARE * self._idle
        if worker.is_ready and not worker.waiting and worker.cpu - cpu_before <= max_cpu:
            self._workers.remove(worker)
            worker.end()
            asyncio.get_running_loop().run_in_executor(None, worker.wait, RESTART_PAUSE)
            return
        if worker.cpu > cpu_before:
            self._deaths = 0
        asyncio.get_running_loop().call_later(self._idle, self._stop_if_idle, worker, worker.cpu)

    def _handle_exit(self, worker: WorkerProcess, cause: str, job: DecodeJob | None) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
        if job is not None:
            self.bodies.record_death(job.fingerprint)
        self._pause_starts(cause, f"a decode worker exited ({cause}); clients must send its requests again")

    def _pause_starts(self, cause: str, message: str) -> None:
        pause = min(MAX_RESTART_PAUSE, RESTART_PAUSE * 2**self._deaths)
        self._deaths += 1
        self._next_start = time.monotonic() + pause
        self._metrics.add("spanwise_decoder_deaths_total", 1, reason=cause)
        log.warning("%s; the next worker starts in %.0f s at the earliest", message, pause)


class SuspectBodies:
    """Request bodies on which workers died. The server must not decode them itself, because they may be the cause."""

    def __init__(self) -> None:
        self._deaths: dict[int, tuple[int, float]] = {}  # fingerprint → number of deaths, time of the last one

    def record_death(self, fingerprint: int) -> None:
        """Record that a worker died on the body with this fingerprint."""
        now = time.monotonic()
        self._deaths = {body: death for body, death in self._deaths.items() if now - death[1] < MAX_RESTART_PAUSE}
        self._deaths[fingerprint] = self._deaths.get(fingerprint, (0, 0.0))[0] + 1, now

    def check(self, body: bytes) -> bool:
        """Return whether a worker recently died on this body. Raises `RetryableError` if that happened often."""
        count, last = self._deaths.get(fingerprint_body(body), (0, 0.0)) if self._deaths else (0, 0.0)
        remaining = MAX_RESTART_PAUSE - (time.monotonic() - last)
        if count >= MAX_DEATHS_PER_BODY and remaining > 0:
            message = f"{count} decode workers have exited on this request: check that it is valid OTLP"
            raise RetryableError("decoder", message, retry_after=remaining)
        return count > 0


class DecodePool:
    """Decoder of one server, with up to `max_workers` workers for normal requests, and a low-priority one for large ones.

    Small requests are decoded in the event loop. So are normal ones while no worker is free.
    """

    def __init__(self, max_workers: int, store: Store, offloader: Offloader, metrics: Metrics, limits: Limits) -> None:
        self._row_store = store if isinstance(store, RowStore) else None
        encode = None if self._row_store is None else self._row_store.encoder()
        self._offloader, self._metrics, self._limits = offloader, metrics, limits
        self._busy_since, self._busy_seconds = 0.0, 0.0  # time that this process spent decoding, within one second
        self._logged: set[str] = set()
        seconds, memory = limits.decode_seconds, 256 * MIB + 8 * limits.request_bytes
        normal = WorkerSettings(limits, encode, 0, seconds, 2 * seconds, memory, {})
        large = WorkerSettings(
            limits, encode, LARGE_BODY_NICE, seconds, LARGE_BODY_TIMEOUT_FACTOR * seconds, memory, {}
        )
        self._normal = WorkerPool(max_workers if encode else 0, normal, metrics)
        # one worker is enough, because the lanes admit one large and one huge body at a time
        self._large = WorkerPool(1 if max_workers else 0, large, metrics)
        metrics.gauge("spanwise_decoders", lambda: len(self._normal) + len(self._large))

    async def decode(self, request: Request[T], *, keep_body: bool = True) -> DecodedRequest[T]:
        """Decode a request.

        Unless `keep_body` is set, the request loses its body once a worker has it, so that it is not in memory twice.
        Raises `PermanentError` or `RetryableError`.
        """
        size = len(request.body)
        try:
            decoded = await self._decode_in_worker(request, keep_body) if size >= MIN_BODY_BYTES else None
            if decoded is not None:
                return decoded
            if size >= LARGE_BODY_BYTES:
                return await self._offloader(decode, request.codec, request.body, self._limits)
            start = time.perf_counter()
            decoded = decode(request.codec, request.body, self._limits)
            self.record_busy_time(time.perf_counter() - start, size)
            return decoded
        except RequestRefused:
            raise
        except Exception as error:  # a retry would fail on the same bytes again
            log_once("the collector failed on a request; the request is refused", error)
            raise PermanentError("decoding", f"the collector failed on this request: {error!r:.200}") from error

    def record_busy_time(self, seconds: float, size: int = MIN_BODY_BYTES) -> None:
        """Record how long this process took to decode a body of `size` bytes. If these times add up, start a worker."""
        now = time.monotonic()
        if now - self._busy_since > 1.0:
            self._busy_since, self._busy_seconds = now, 0.0
        self._busy_seconds += seconds
        if self._busy_seconds > BUSY_SECONDS and size >= MIN_BODY_BYTES:
            self._busy_since, self._busy_seconds = now, 0.0
            self._normal.grow()

    def close(self) -> None:
        """Stop the workers."""
        self._normal.close()
        self._large.close()

    async def _decode_in_worker(self, request: Request[T], keep_body: bool) -> DecodedRequest[T] | None:
        """Decode a request in a worker; return None if the server is to decode it itself."""
        is_large = len(request.body) >= LARGE_BODY_BYTES
        rows = self._row_store is not None and request.project is None and request.signal.name == "traces"
        pool = self._large if is_large else self._normal
        codec = next((index for index, codec in enumerate(CODECS) if codec is request.codec), None)
        if codec is None or not (is_large or rows):
            return None
        suspect = pool.bodies.check(request.body)
        worker = pool.any() if suspect or is_large else pool.free()
        if worker is None:
            if suspect:
                raise RetryableError(
                    "decoder", "a decode worker exited on this request, and no other runs: retry later"
                )
            return None
        if rows and self._row_store is not None:
            worker.use(self._row_store.encoder())
        asked = worker.ask(codec, request.body, rows)
        if not keep_body:
            request.body = b""
        reply, chunks = await asked
        self._metrics.add("spanwise_decoder_requests_total", 1)
        self._metrics.add("spanwise_decoder_seconds_total", reply.seconds)
        # log each distinct line of the workers once per server process
        for line in reply.log_lines:
            if line not in self._logged and len(self._logged) < 1000:
                self._logged.add(line)
                log.error("%s", line)
        if reply.refused is not None:
            raise PermanentError(*reply.refused)
        decoded: DecodedRequest[Any] | None = reply.decoded
        assert decoded is not None
        if rows:
            decoded.items = [EncodedRows(chunk) for chunk in chunks]
        else:
            for chunk in chunks:
                decoded.items += await self._offloader(pickle.loads, chunk)
        return decoded


WORKER_MODULE = "spanwise.collector.ingest.decode_worker"
EXIT_TIMEOUT = 5.0  # seconds for a process to exit after its socket was closed
# large enough for several normal requests, so that sending does not wait for the reader
SOCKET_BUFFER_BYTES = 1024 * 1024
FINGERPRINT_BYTES = 4 * 1024  # bytes at the start and at the end of a body that its fingerprint covers
START_TIMEOUT = 60.0  # seconds until a worker must be ready, even on a busy machine


class DecodeJob(NamedTuple):
    """Request in progress in a worker, and the future of its reply."""

    fingerprint: int  # of the body, which is freed after sending
    done: asyncio.Future[tuple[WorkerReply, list[bytearray]]]


def fingerprint_body(body: bytes) -> int:
    """Return a hash of a body's length, start and end. Hashing all of a large body would take long."""
    return hash((len(body), body[:FINGERPRINT_BYTES], body[-FINGERPRINT_BYTES:]))


class WorkerProcess:
    """Worker process that answers requests in order. It is bound to the event loop in which it was created."""

    def __init__(
        self, settings: WorkerSettings, handle_exit: Callable[[WorkerProcess, str, DecodeJob | None], object]
    ) -> None:
        """Start the process. If it exits on its own, call `handle_exit` with the cause and the request it worked on.

        Raises `OSError` if no process can be started.
        """
        self._loop, self._handle_exit, self._timeout = asyncio.get_running_loop(), handle_exit, settings.patience
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.cpu = 0.0  # CPU seconds of all requests
        self._jobs: deque[DecodeJob] = deque()
        self._encode = settings.encode
        ours, theirs = socket.socketpair()
        try:
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
            self._popen = _start_process(theirs)
            if settings.nice:  # set by the server, so that the worker's imports have low priority too
                os.setpriority(os.PRIO_PROCESS, self._popen.pid, settings.nice)
            self._link = SocketLink(ours, self._reader(), self._handle_link_error)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._timed_out = self._sent_garbage = False
        self._exit_task: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(START_TIMEOUT, self._kill)
        message = pickle.dumps(settings, pickle.HIGHEST_PROTOCOL)
        self._link.send(LENGTH_PREFIX.pack(len(message)), message)

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
            self._timer = self._loop.call_later(self._timeout, self._kill)
        self._jobs.append(job)
        self._link.send(REQUEST_HEADER.pack(len(body), codec, rows), body)
        del body
        return await job.done

    def use(self, encode: RowEncoder | None) -> None:
        """Set the row encoder for later requests."""
        if encode is not self._encode:
            self._encode, message = encode, pickle.dumps(encode, pickle.HIGHEST_PROTOCOL)
            self._link.send(REQUEST_HEADER.pack(len(message), ENCODER_UPDATE, False), message)

    def end(self) -> None:
        """Stop the process without counting it as a failure. Once the event loop has ended, any thread may call this."""
        self._timer.cancel()
        self._link.close()

    def wait(self, seconds: float) -> int:
        """Wait until the process exits, and return its exit status. Kill it after `seconds`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._popen.wait(seconds)
        self._popen.kill()
        return self._popen.wait()

    def _reader(self) -> MessageReader:
        yield len(READY_BYTE)
        self._timer.cancel()
        self.ready.set_result(None)
        if self._jobs:
            self._timer = self._loop.call_later(self._timeout, self._kill)
        while True:
            # use no local variable, which would keep the reply in memory until the next one
            self._complete_job((yield from self._read_reply()))

    def _read_reply(self) -> Generator[int, bytearray, tuple[WorkerReply, list[bytearray]]]:
        [size] = LENGTH_PREFIX.unpack((yield LENGTH_PREFIX.size))
        reply: WorkerReply = pickle.loads((yield size))
        chunks = list[bytearray]()
        for size in reply.sizes:
            chunks += [(yield size)]
        return reply, chunks

    def _complete_job(self, result: tuple[WorkerReply, list[bytearray]]) -> None:
        self._timer.cancel()
        self.cpu += result[0].seconds
        job = self._jobs.popleft()
        if not job.done.done():  # the caller may have been cancelled
            job.done.set_result(result)
        if self._jobs:
            self._timer = self._loop.call_later(self._timeout, self._kill)

    def _kill(self) -> None:
        """Kill a process that hangs or is stopped; the reader then detects its end."""
        self._timed_out = True
        self._popen.kill()

    def _handle_link_error(self, error: Exception) -> None:
        """Handle the end of the process, or a message that this process cannot decode.

        Such a message arrives if the installed package was replaced while the server was running.
        """
        self._sent_garbage = not isinstance(error, (OSError, EOFError))
        self._exit_task = self._loop.create_task(self._fail_jobs())

    async def _fail_jobs(self) -> None:
        """Wait for the exit of the process, and fail all requests without a reply."""
        self._timer.cancel()
        status = await asyncio.to_thread(self.wait, EXIT_TIMEOUT)
        if self._sent_garbage:
            cause = "not understood"
        elif self._timed_out or status == -signal.SIGPROF:
            cause = "too slow"
        elif status >= 0:
            cause = f"exit status {status}"
        else:
            try:
                cause = signal.Signals(-status).name
            except ValueError:
                cause = f"signal {-status}"
        jobs = list(self._jobs)
        self._jobs.clear()
        self._handle_exit(self, cause, jobs[0] if jobs and not self._sent_garbage else None)
        error = RetryableError("decoder", f"the decode worker exited ({cause}): send the request again")
        waiting: list[asyncio.Future[Any]] = [job.done for job in jobs]
        for future in [self.ready, *waiting]:
            if not future.done():
                future.set_exception(error)
                # mark the error as retrieved, because asyncio would log it if no caller awaits the future
                future.exception()


def _start_process(theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Start the worker module with the same interpreter and the same import path.

    The worker does not import or run the server's main program.
    """
    if not sys.executable:
        raise FileNotFoundError("Python does not know its own executable")
    command = [sys.executable, "-P", "-m", WORKER_MODULE]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=environment)


READ_BUFFER_BYTES = 256 * 1024  # size of one read; the parts of a larger message are read directly into its buffer
MAX_SEND_PARTS = 16  # buffers per sendmsg call

# Generator that yields the number of bytes that it needs next, and is then sent these bytes
MessageReader: TypeAlias = Generator[int, bytearray, None]


class SocketLink:
    """Non-blocking socket that sends bytes and feeds received bytes to a reader, on the loop that created it."""

    def __init__(self, end: socket.socket, reader: MessageReader, handle_error: Callable[[Exception], object]) -> None:
        """Start to read. When reading ends, `handle_error` is called once with `EOFError` or the error that ended it."""
        self._loop, self._socket, self._reader, self._handle_error = (
            asyncio.get_running_loop(),
            end,
            reader,
            handle_error,
        )
        self._unsent: deque[memoryview] = deque()
        self._read_buffer = memoryview(bytearray(READ_BUFFER_BYTES))
        self._part = bytearray(next(reader))
        self._unfilled = memoryview(self._part)  # unfilled part of `_part`
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
        """Read the available bytes, and pass complete parts to the reader. Parts of a large message are read directly
        into their buffer.
        """
        try:
            large = len(self._unfilled) > READ_BUFFER_BYTES
            buffer = self._unfilled if large else self._read_buffer
            received = self._socket.recv_into(buffer)
            if not received:
                raise EOFError
            if large:
                self._advance(received)
                return
            data = buffer[:received]
            while data:
                count = min(len(data), len(self._unfilled))
                self._unfilled[:count], data = data[:count], data[count:]
                self._advance(count)
        except BlockingIOError:
            return
        except Exception as error:
            self.close()
            self._handle_error(error)

    def _advance(self, count: int) -> None:
        self._unfilled = self._unfilled[count:]
        while not self._unfilled:  # the reader may also want zero bytes
            self._part = bytearray(self._reader.send(self._part))
            self._unfilled = memoryview(self._part)
