"""Pool of decode worker processes, as the server sees it: start, dispatch, timeouts, restart after a crash.

asyncio's own calls on sockets wait for each part of a message by itself, and register with the loop each time: a
request of 20 spans and its answer cost the loop 270 us with them and 140 with this, one of 100 spans 440 and 300.
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

MIN_BODY_BYTES = (
    16 * 1024
)  # bytes of a body, below which it is not handed over: with 8 KB each that costs 1.4 times the CPU
MAX_REQUESTS_PER_WORKER = (
    4  # requests under way in one process: as many as are on their way while it is at one, or it waits for the loop
)
BUSY_SECONDS = 0.2  # seconds of decoding within one, from which on the server's own process is helped
IDLE_CHECK_SECONDS = 10.0  # seconds, after which it is asked again whether a process has enough to do
MIN_CPU_SHARE = 0.05  # of that time: less is done without it
LARGE_BODY_NICE = 5  # of nice(2), for large bodies
LARGE_BODY_TIMEOUT_FACTOR = 8  # times as long as others a large body may take, as much else goes first
RESTART_PAUSE, MAX_RESTART_PAUSE = 1.0, 60.0  # seconds without a process after one has died, doubled each time
MAX_DECODERS = 16
MAX_DEATHS_PER_BODY = 3  # deaths over the same body, after which it is not tried again for a while


def default_decoder_count() -> int:
    """How many processes help on this machine: two on four cores or more, one on two, none on fewer, where it would
    take from the server what it gives.
    """
    return min(2, int(_count_cores() / 2))


def _count_cores() -> float:
    """Cores that this process may use, by affinity and by its control group."""
    cores: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        most, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, int(most) / int(period))
    return cores


class WorkerPool:
    """Processes of one kind, `most` of them."""

    def __init__(self, most: int, start: WorkerSettings, metrics: Metrics, idle: float = IDLE_CHECK_SECONDS) -> None:
        """`idle` seconds are between looks whether there is enough to do."""
        self._most, self._start, self._metrics, self._idle = most, start, metrics, idle
        self._processes: list[WorkerProcess] = []
        self._deaths, self._again = 0, 0.0  # in a row; when the next may start
        self.bodies = SuspectBodies()

    def __len__(self) -> int:
        return len(self._processes)

    def free(self) -> WorkerProcess | None:
        """The least busy that is ready for a request; None if none is."""
        found = [one for one in self._processes if one.is_ready and one.waiting < MAX_REQUESTS_PER_WORKER]
        return min(found, key=lambda one: one.waiting, default=None)

    def any(self) -> WorkerProcess | None:
        """One, which perhaps is yet to start; None if there can be none now."""
        if not self._processes:
            self.grow()
        return self._processes[0] if self._processes else None

    def grow(self) -> None:
        """Start one more, if there may be one."""
        starting = any(not one.is_ready for one in self._processes)
        if starting or len(self._processes) >= self._most or time.monotonic() < self._again:
            return
        try:
            process = WorkerProcess(self._start._replace(prices=export_prices()), self._died)
        except Exception as error:  # whatever it is: this process can do without
            self._failed(f"no process for decoding can be started: {error}")
            return
        self._processes.append(process)
        asyncio.get_running_loop().call_later(self._idle, self._look, process, 0.0)

    def close(self) -> None:
        """End all, and wait for them."""
        processes, self._processes, self._most = self._processes, [], 0
        for process in processes:
            process.end()
        for process in processes:
            process.wait(RESTART_PAUSE)

    def _look(self, process: WorkerProcess, before: float) -> None:
        """End a process that hardly had to do of late."""
        if process not in self._processes:
            return
        if process.is_ready and not process.waiting and process.cpu - before <= self._enough():
            self._processes.remove(process)
            process.end()
            asyncio.get_running_loop().run_in_executor(None, process.wait, RESTART_PAUSE)
            return
        if process.cpu > before:
            self._deaths = 0
        asyncio.get_running_loop().call_later(self._idle, self._look, process, process.cpu)

    def _enough(self) -> float:
        return 0.0 if self._start.nice else MIN_CPU_SHARE * self._idle

    def _died(self, process: WorkerProcess, how: str, job: DecodeJob | None) -> None:
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
    """Bodies over which processes have died: they may be why, and this process is not to die over them, too."""

    def __init__(self) -> None:
        self._deaths: dict[int, tuple[int, float]] = {}  # by their marks: how many, the last when

    def ended(self, mark: int) -> None:
        """Note that a process died over the body of this mark."""
        self._deaths = {key: one for key, one in self._deaths.items() if time.monotonic() - one[1] < MAX_RESTART_PAUSE}
        self._deaths[mark] = self._deaths.get(mark, (0, 0.0))[0] + 1, time.monotonic()

    def check(self, body: bytes) -> bool:
        """Whether a process died over it lately. Raises `Retryable` if that happened often."""
        count, last = self._deaths.get(fingerprint_body(body), (0, 0.0)) if self._deaths else (0, 0.0)
        left = MAX_RESTART_PAUSE - (time.monotonic() - last)
        if count >= MAX_DEATHS_PER_BODY and left > 0:
            told = f"{count} processes have ended while they decoded this"
            raise RetryableError("decoder", f"{told}: is it what OTLP is?", retry_after=left)
        return count > 0


class DecodePool:
    """The processes of one server: `most` for usual requests, and one of low priority for large ones."""

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
        self._polite = WorkerPool(1 if most else 0, polite, metrics)  # the lanes let one large and one huge body in
        self._pools = (self._usual, self._polite)
        metrics.gauge("spanwise_decoders", lambda: sum(map(len, self._pools)))

    async def __call__(self, request: Request[T], *, keep: bool = True) -> DecodedRequest[T] | None:
        """What came of a request; None if it is to be decoded here. Raises `Permanent` or `Retryable`. Unless its bytes
        are to be kept it has none from when a process has them: they are not in memory twice.
        """
        size, rows = len(request.body), self._takes_rows is not None and request.project is None
        pool = self._usual if size < LARGE_BODY_BYTES else self._polite
        codec = _find_codec_index(request)
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
        """Told of decoding a body of so many bytes in this process: when it is much, help is called, if that helps."""
        now = time.monotonic()
        if now - self._began > 1.0:
            self._began, self._spent = now, 0.0
        self._spent += seconds
        if self._spent > BUSY_SECONDS and size >= MIN_BODY_BYTES:
            self._began, self._spent = now, 0.0
            self._usual.grow()

    def close(self) -> None:
        """End the processes."""
        for pool in self._pools:
            pool.close()

    async def _decoded(self, answer: WorkerReply, pieces: Sequence[bytearray], rows: bool) -> DecodedRequest[Any]:
        self._metrics.add("spanwise_decoder_requests_total", 1)
        self._metrics.add("spanwise_decoder_seconds_total", answer.seconds)
        self._tell(answer.told)
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

    def _tell(self, lines: Sequence[str]) -> None:
        """Once in this process, as what it logs itself."""
        for line in lines:
            if line not in self._told and len(self._told) < 1000:
                self._told.add(line)
                log.error("%s", line)


def _find_codec_index(request: Request[Any]) -> int | None:
    """Which codec is asked for; None for one that no other process knows."""
    return next((place for place, one in enumerate(CODECS) if one is request.codec), None)


WORKER_MODULE = "spanwise.collector.ingest.decode_worker"
EXIT_TIMEOUT = 5.0  # seconds until a process that has closed its socket must be gone
SOCKET_BUFFER_BYTES = (
    1024 * 1024
)  # bytes in the socket: several usual requests, so that nobody waits until one has been read
FINGERPRINT_BYTES = 4 * 1024  # bytes of a body at either end by which it is known again
START_TIMEOUT = 60.0  # seconds until it must be ready, on a machine that has much else to do


class DecodeJob(NamedTuple):
    """A request under way in a process, and whoever waits for what comes of it."""

    mark: int  # of its body, which is let go of once it is sent
    done: asyncio.Future[tuple[WorkerReply, list[bytearray]]]


def fingerprint_body(body: bytes) -> int:
    """By which a body is known again: of a large one its ends tell, as all of it takes a while to go through."""
    return hash((len(body), body[:FINGERPRINT_BYTES], body[-FINGERPRINT_BYTES:]))


class WorkerProcess:
    """Answers requests in the order in which they are asked. Belongs to the loop in which it was made."""

    def __init__(self, start: WorkerSettings, died: Callable[[WorkerProcess, str, DecodeJob | None], object]) -> None:
        """`died` is told how it ended on its own, and what it was at. Raises `OSError`: there can be no process."""
        self._loop, self._died, self._seconds = asyncio.get_running_loop(), died, start.patience
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.cpu = 0.0  # seconds, of all requests
        self._jobs: deque[DecodeJob] = deque()
        self._encode = start.encode
        ours, theirs = socket.socketpair()
        try:
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
            self._popen = _start_process(theirs)
            if start.nice:  # from here, as importing is work, too
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

    async def ask(self, codec: int, body: bytes, rows: bool) -> tuple[WorkerReply, list[bytearray]]:
        """What came of a request, and its items in pieces. Raises `Retryable` if the process ends before."""
        job = DecodeJob(fingerprint_body(body), self._loop.create_future())
        if not self._jobs and self.is_ready:
            self._watch = self._loop.call_later(self._seconds, self._too_slow)
        self._jobs.append(job)
        self._link.send(REQUEST_HEADER.pack(len(body), codec, rows), body)
        del body
        return await job.done

    def use(self, encode: RowEncoder | None) -> None:
        """Have the requests that are asked from now on encoded so."""
        if encode is not self._encode:
            self._encode, told = encode, pickle.dumps(encode, pickle.HIGHEST_PROTOCOL)
            self._link.send(REQUEST_HEADER.pack(len(told), ENCODER_UPDATE, False), told)

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

    def _reader(self) -> MessageReader:
        yield len(READY_BYTE)
        self._watch.cancel()
        self.ready.set_result(None)
        if self._jobs:
            self._watch = self._loop.call_later(self._seconds, self._too_slow)
        while True:
            self._answered((yield from self._answer()))  # of which nothing stays here: the next may be far off

    def _answer(self) -> Generator[int, bytearray, tuple[WorkerReply, list[bytearray]]]:
        [size] = LENGTH_PREFIX.unpack((yield LENGTH_PREFIX.size))
        answer: WorkerReply = pickle.loads((yield size))
        pieces = list[bytearray]()
        for size in answer.sizes:
            pieces += [(yield size)]
        return answer, pieces

    def _answered(self, found: tuple[WorkerReply, list[bytearray]]) -> None:
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
        status = await asyncio.to_thread(self.wait, EXIT_TIMEOUT)
        how = "too slow" if self._slow or status == -signal.SIGPROF else _describe_exit(status)
        how = "not understood" if self._is_strange else how
        jobs = list(self._jobs)
        self._jobs.clear()
        error = RetryableError("decoder", f"the process that decoded this has ended ({how}): send it again")
        self._died(self, how, jobs[0] if jobs and not self._is_strange else None)
        waiting: list[asyncio.Future[Any]] = [job.done for job in jobs]
        for future in [self.ready, *waiting]:
            if not future.done():
                future.set_exception(error)
                future.exception()  # that nobody waits for it is no mistake


def _describe_exit(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"


def _start_process(theirs: socket.socket) -> subprocess.Popen[bytes]:
    """The same interpreter on the module alone: nothing of the program that serves is imported, or run again. What can
    be imported here can be imported there.
    """
    if not sys.executable:
        raise FileNotFoundError("Python does not know its own executable")
    command = [sys.executable, "-P", "-m", WORKER_MODULE]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=environment)


READ_AHEAD_BYTES = (
    256 * 1024
)  # bytes that are read at once, for whatever they turn out to be; what is larger goes to its place
MAX_SEND_PARTS = 16  # that are sent at once

# Yields how many bytes it wants next, which it is sent
MessageReader: TypeAlias = Generator[int, bytearray, None]


class SocketLink:
    """Sends bytes, and feeds those that come to a reader. Belongs to the loop in which it was made."""

    def __init__(self, end: socket.socket, reader: MessageReader, failed: Callable[[Exception], object]) -> None:
        """`failed` is told, once, why nothing is read any more: `EOFError`, or what the socket or the reader raised."""
        self._loop, self._socket, self._reader, self._failed = asyncio.get_running_loop(), end, reader, failed
        self._unsent: deque[memoryview] = deque()
        self._ahead = memoryview(bytearray(READ_AHEAD_BYTES))
        self._whole = bytearray(next(reader))
        self._place = memoryview(self._whole)  # what is missing of it
        end.setblocking(False)
        self._loop.add_reader(end, self._readable)

    def send(self, *parts: bytes) -> None:
        """Send these after all else. What cannot be sent any more is dropped, as the reading side finds why."""
        idle = not self._unsent
        self._unsent += map(memoryview, parts)
        if idle:
            self._send()
            if self._unsent:
                self._loop.add_writer(self._socket, self._writable)

    def close(self) -> None:
        """Neither send nor read any more; from any thread once the loop has ended."""
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
        """As much as there is room for."""
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
        """All that there is, or of something large what there is of it. Raises `EOFError`, and what the reader does."""
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
        while not self._place:  # nothing may be wanted, too
            self._whole = bytearray(self._reader.send(self._whole))
            self._place = memoryview(self._whole)
