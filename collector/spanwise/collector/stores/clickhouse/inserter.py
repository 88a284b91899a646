"""Inserter: two threads that collect the runs of many requests, and write them together.

Each insert creates a part per table, so a few large inserts cost the engine much less than many small ones. A request of
a sender waits for others for up to `COLLECT_SECONDS`. A caller that waits for its result is served at once, as long as
there have not been too many small inserts lately. While one thread waits for the engine, the other prepares and sends
the next write, if it is large. A trace is in one write at a time, so that no summary has to be written twice. So is
feedback with the same id, of which the later version must be stored last.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from spanwise.collector.errors import Closed, StoreError, Unavailable
from spanwise.collector.records import Feedback
from spanwise.collector.stores.clickhouse.span_rows import SpanBatch

log = logging.getLogger("spanwise.collector")

COLLECT_ROWS, COLLECT_SECONDS = 1_000, 0.2  # a write begins with this many rows, or after this time
WRITERS, BUSY_COLLECT_ROWS = 2, 4_000  # threads; rows that wait before a write begins beside another
MAX_WRITE_ROWS = 10_000  # rows of one write
MAX_QUEUED_ROWS, MAX_QUEUED_BYTES = 50_000, 256 * 1024 * 1024
# Limits of small writes without waiting: at once, and per second on average
MAX_SMALL_WRITES, SMALL_WRITES_PER_SECOND = 50, 5.0


class Job(NamedTuple):
    """Runs and feedback of one request. The future resolves when they are durable."""

    batch: SpanBatch
    feedback: Sequence[Feedback]
    future: Future[None]
    is_urgent: bool
    queued: float  # monotonic time
    ids: frozenset[str]  # of traces and feedback

    @property
    def rows(self) -> int:
        return len(self.batch.rows) + len(self.feedback)


class Inserter:
    """Queue of jobs, and the threads that write them."""

    def __init__(self, write: Callable[[Sequence[Job]], object]) -> None:
        self._write = write
        self._jobs: deque[Job] = deque()
        self._in_progress = set[str]()  # traces and feedback of the running writes
        self._rows = self._bytes = self._urgent = self._running = 0
        self._ready = threading.Condition()
        self._is_closing = False
        self._small_writes, self._refilled = float(MAX_SMALL_WRITES), time.monotonic()
        self.writes, self.last_write_seconds = 0, 0.0
        self.trouble: str | None = None  # why the last write failed
        self._threads = [
            threading.Thread(target=self._run, name=f"spanwise-clickhouse-{number}", daemon=True)
            for number in range(WRITERS)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def depth(self) -> int:
        """Return the number of queued rows."""
        return self._rows

    def put(self, batch: SpanBatch, feedback: Sequence[Feedback], *, is_urgent: bool) -> Future[None]:
        """Queue a job. Raise `Unavailable` if the queue is full. `is_urgent`: the caller waits for the result."""
        ids = frozenset((*batch.trace_ids, *(one.id for one in feedback)))
        job = Job(batch, feedback, Future(), is_urgent, time.monotonic(), ids)
        with self._ready:
            if self._is_closing or not any(thread.is_alive() for thread in self._threads):
                raise Closed("the store is closed")
            if self._jobs and (self._rows + job.rows > MAX_QUEUED_ROWS or self._bytes + batch.bytes > MAX_QUEUED_BYTES):
                raise Unavailable(f"{self._rows:,} rows wait to be written to ClickHouse; send again later", 2.0)
            self._jobs.append(job)
            self._rows += job.rows
            self._bytes += batch.bytes
            self._urgent += is_urgent
            self._ready.notify()
        return job.future

    def close(self) -> None:
        """Write the queued jobs, then stop."""
        with self._ready:
            self._is_closing = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while jobs := self._take():
            began = time.monotonic()
            self._write_jobs(jobs)
            with self._ready:
                self._running -= 1
                self._in_progress.difference_update(*(job.ids for job in jobs))
                self.writes, self.last_write_seconds = self.writes + 1, time.monotonic() - began
                self._ready.notify()

    def _take(self) -> list[Job]:
        """Wait for jobs, and remove and return those of the next write. Return nothing if the store is closed."""
        with self._ready:
            while True:
                seconds = self._get_wait()
                if seconds is None or seconds > 0:
                    self._ready.wait(seconds)
                elif (jobs := self._select()) or not self._jobs:
                    return jobs
                else:  # all queued jobs share traces or feedback with the running write
                    self._ready.wait()

    def _select(self) -> list[Job]:
        """Remove and return the first queued jobs that share nothing with a running write or an earlier job that stays."""
        jobs, rows, staying, unavailable = list[Job](), 0, list[Job](), set(self._in_progress)
        while self._jobs and (not rows or rows + self._jobs[0].rows <= MAX_WRITE_ROWS):
            job = self._jobs.popleft()
            if unavailable.isdisjoint(job.ids):
                jobs.append(job)
                rows += job.rows
                self._bytes -= job.batch.bytes
                self._urgent -= job.is_urgent
            else:
                staying.append(job)
                unavailable.update(job.ids)
        self._jobs.extendleft(reversed(staying))
        if jobs:
            self._in_progress.update(*(job.ids for job in jobs))
            self._rows -= rows
            self._running += 1
            if rows < COLLECT_ROWS:
                self._small_writes = max(0.0, self._small_writes - 1)
        return jobs

    def _get_wait(self) -> float | None:
        """Return the seconds until the next write is due; None if nothing is queued."""
        if self._is_closing:
            return 0.0
        if not self._jobs:
            return None
        now = time.monotonic()
        refill = (now - self._refilled) * SMALL_WRITES_PER_SECOND
        self._small_writes, self._refilled = min(MAX_SMALL_WRITES, self._small_writes + refill), now
        is_served_at_once = self._urgent > 0 and self._small_writes >= 1
        if is_served_at_once or self._rows >= (BUSY_COLLECT_ROWS if self._running else COLLECT_ROWS):
            return 0.0
        return self._jobs[0].queued + COLLECT_SECONDS - now

    def _write_jobs(self, jobs: Sequence[Job]) -> None:
        """Write jobs together. If the database refuses them, write each alone, so that only the bad one fails."""
        try:
            self._write(jobs)
        except Unavailable as error:
            self.trouble = str(error)
            _resolve(jobs, error)
        except Exception as error:
            if len(jobs) > 1:
                for job in jobs:
                    self._write_jobs([job])
                return
            log.exception("a request could not be stored")
            _resolve(
                jobs, error if isinstance(error, StoreError) else StoreError(f"could not store a request: {error}")
            )
        else:
            self.trouble = None
            _resolve(jobs, None)


def _resolve(jobs: Sequence[Job], error: Exception | None) -> None:
    for job in jobs:
        if not job.future.set_running_or_notify_cancel():
            continue  # the sender has gone
        if error is None:
            job.future.set_result(None)
        else:
            job.future.set_exception(error)
