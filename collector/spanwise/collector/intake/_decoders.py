"""Decoding in processes of their own: started under load, ended when there is little to do, replaced when they die."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from spanwise.collector._metrics import Metrics
from spanwise.collector.dialects import known_prices
from spanwise.collector.intake._apart import CODECS, Answer, Rows, Start
from spanwise.collector.intake._beside import Beside
from spanwise.collector.intake._decoded import Decoded
from spanwise.collector.intake._errors import Permanent, Retryable
from spanwise.collector.intake._large import LARGE
from spanwise.collector.intake._limits import MIB, Limits
from spanwise.collector.intake._process import Job, Process, mark_of
from spanwise.collector.intake._signal import Request
from spanwise.collector.stores import Store, TakesRows

T = TypeVar("T")
log = logging.getLogger("spanwise.collector")

LITTLE = 16 * 1024  # bytes of a body, below which it is not handed over: with 8 KB each that costs 1.4 times the CPU
DEPTH = 4  # requests under way in one process: as many as are on their way while it is at one, or it waits for the loop
BUSY = 0.2  # seconds of decoding within one, from which on the server's own process is helped
IDLE = 10.0  # seconds, after which it is asked again whether a process has enough to do
HARDLY = 0.05  # of that time: less is done without it
POLITE = 5  # of nice(2), for large bodies
PATIENT = 8  # times as long as others a large body may take, as much else goes first
PAUSE, LONGEST = 1.0, 60.0  # seconds without a process after one has died, doubled each time
MOST_DECODERS = 16
OFTEN = 3  # deaths over the same body, after which it is not tried again for a while


def automatic_decoders() -> int:
    """How many processes help on this machine: two on four cores or more, one on two, none on fewer, where it would
    take from the server what it gives.
    """
    return min(2, int(_cores() / 2))


def _cores() -> float:
    """Cores that this process may use, by affinity and by its control group."""
    cores: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        most, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, int(most) / int(period))
    return cores


class Pool:
    """Processes of one kind, `most` of them."""

    def __init__(self, most: int, start: Start, metrics: Metrics, idle: float = IDLE) -> None:
        """`idle` seconds are between looks whether there is enough to do."""
        self._most, self._start, self._metrics, self._idle = most, start, metrics, idle
        self._processes: list[Process] = []
        self._deaths, self._again = 0, 0.0  # in a row; when the next may start
        self.bodies = Bodies()

    def __len__(self) -> int:
        return len(self._processes)

    def free(self) -> Process | None:
        """The least busy that is ready for a request; None if none is."""
        found = [one for one in self._processes if one.is_ready and one.waiting < DEPTH]
        return min(found, key=lambda one: one.waiting, default=None)

    def any(self) -> Process | None:
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
            process = Process(self._start._replace(prices=known_prices()), self._died)
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
            process.wait(PAUSE)

    def _look(self, process: Process, before: float) -> None:
        """End a process that hardly had to do of late."""
        if process not in self._processes:
            return
        if process.is_ready and not process.waiting and process.cpu - before <= self._enough():
            self._processes.remove(process)
            process.end()
            asyncio.get_running_loop().run_in_executor(None, process.wait, PAUSE)
            return
        if process.cpu > before:
            self._deaths = 0
        asyncio.get_running_loop().call_later(self._idle, self._look, process, process.cpu)

    def _enough(self) -> float:
        return 0.0 if self._start.nice else HARDLY * self._idle

    def _died(self, process: Process, how: str, job: Job | None) -> None:
        if process in self._processes:
            self._processes.remove(process)
        if job is not None:
            self.bodies.ended(job.mark)
        self._failed(f"a process that decoded requests has ended ({how}); senders are told to send them again", how)

    def _failed(self, told: str, how: str = "start") -> None:
        pause = min(LONGEST, PAUSE * 2**self._deaths)
        self._deaths += 1
        self._again = time.monotonic() + pause
        self._metrics.add("spanwise_decoder_deaths_total", 1, reason=how)
        log.warning("%s; for %.0f s this process decodes alone", told, pause)


class Bodies:
    """Bodies over which processes have died: they may be why, and this process is not to die over them, too."""

    def __init__(self) -> None:
        self._deaths: dict[int, tuple[int, float]] = {}  # by their marks: how many, the last when

    def ended(self, mark: int) -> None:
        """Note that a process died over the body of this mark."""
        self._deaths = {key: one for key, one in self._deaths.items() if time.monotonic() - one[1] < LONGEST}
        self._deaths[mark] = self._deaths.get(mark, (0, 0.0))[0] + 1, time.monotonic()

    def check(self, body: bytes) -> bool:
        """Whether a process died over it lately. Raises `Retryable` if that happened often."""
        count, last = self._deaths.get(mark_of(body), (0, 0.0)) if self._deaths else (0, 0.0)
        left = LONGEST - (time.monotonic() - last)
        if count >= OFTEN and left > 0:
            told = f"{count} processes have ended while they decoded this"
            raise Retryable("decoder", f"{told}: is it what OTLP is?", retry_after=left)
        return count > 0


class Decoders:
    """The processes of one server: `most` for usual requests, and one of low priority for large ones."""

    def __init__(self, most: int, store: Store, beside: Beside, metrics: Metrics, limits: Limits) -> None:
        self._takes_rows = store if isinstance(store, TakesRows) else None
        encode = None if self._takes_rows is None else self._takes_rows.encoder()
        self._beside, self._metrics = beside, metrics
        self._began, self._spent = 0.0, 0.0
        self._told: set[str] = set()
        seconds, memory = limits.decode_seconds, 256 * MIB + 8 * limits.request_bytes
        usual = Start(limits, encode, 0, seconds, 2 * seconds, memory, {})
        polite = Start(limits, encode, POLITE, seconds, PATIENT * seconds, memory, {})
        self._usual = Pool(most if encode else 0, usual, metrics)
        self._polite = Pool(1 if most else 0, polite, metrics)  # the lanes let one large and one huge body in
        self._pools = (self._usual, self._polite)
        metrics.gauge("spanwise_decoders", lambda: sum(map(len, self._pools)))

    async def __call__(self, request: Request[T], *, keep: bool = True) -> Decoded[T] | None:
        """What came of a request; None if it is to be decoded here. Raises `Permanent` or `Retryable`. Unless its bytes
        are to be kept it has none from when a process has them: they are not in memory twice.
        """
        size, rows = len(request.body), self._takes_rows is not None and request.project is None
        pool = self._usual if size < LARGE else self._polite
        codec = _place(request)
        if codec is None or (size < LARGE and (size < LITTLE or not rows or request.signal.name != "traces")):
            return None
        suspect = pool.bodies.check(request.body)
        process = pool.any() if suspect or size >= LARGE else pool.free()
        if process is None:
            if suspect:
                raise Retryable("decoder", "the process that decoded this has ended: send it again")
            return None
        rows = rows and request.signal.name == "traces"
        if rows and self._takes_rows is not None:
            process.use(self._takes_rows.encoder())
        asked = process.ask(codec, request.body, rows)
        if not keep:
            request.body = b""
        answer, pieces = await asked
        return await self._decoded(answer, pieces, rows)

    def worked(self, seconds: float, size: int = LITTLE) -> None:
        """Told of decoding a body of so many bytes in this process: when it is much, help is called, if that helps."""
        now = time.monotonic()
        if now - self._began > 1.0:
            self._began, self._spent = now, 0.0
        self._spent += seconds
        if self._spent > BUSY and size >= LITTLE:
            self._began, self._spent = now, 0.0
            self._usual.grow()

    def close(self) -> None:
        """End the processes."""
        for pool in self._pools:
            pool.close()

    async def _decoded(self, answer: Answer, pieces: Sequence[bytearray], rows: bool) -> Decoded[Any]:
        self._metrics.add("spanwise_decoder_requests_total", 1)
        self._metrics.add("spanwise_decoder_seconds_total", answer.seconds)
        self._tell(answer.told)
        if answer.refused is not None:
            raise Permanent(*answer.refused)
        decoded = answer.decoded
        assert decoded is not None
        if rows:
            decoded.items = [Rows(piece) for piece in pieces]
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


def _place(request: Request[Any]) -> int | None:
    """Which codec is asked for; None for one that no other process knows."""
    return next((place for place, one in enumerate(CODECS) if one is request.codec), None)
