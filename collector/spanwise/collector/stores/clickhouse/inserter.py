"""Inserter: a thread that collects the runs of many requests, and writes them together.

Each insert creates a part per table, so a few large inserts cost the engine much less than many small ones. A request of
a sender waits for others for up to `COLLECT_SECONDS`. A caller that waits for its result is served at once, as long as
there have not been too many small inserts lately.
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

    @property
    def rows(self) -> int:
        return len(self.batch.rows) + len(self.feedback)


class Inserter:
    """Queue of jobs, and the thread that writes them."""

    def __init__(self, write: Callable[[Sequence[Job]], object]) -> None:
        self._write = write
        self._jobs: deque[Job] = deque()
        self._rows = self._bytes = self._urgent = 0
        self._ready = threading.Condition()
        self._is_closing = False
        self._small_writes, self._refilled = float(MAX_SMALL_WRITES), time.monotonic()
        self.writes, self.last_write_seconds = 0, 0.0
        self.trouble: str | None = None  # why the last write failed
        self._thread = threading.Thread(target=self._run, name="spanwise-clickhouse", daemon=True)
        self._thread.start()

    @property
    def depth(self) -> int:
        """Return the number of queued rows."""
        return self._rows

    def put(self, batch: SpanBatch, feedback: Sequence[Feedback], *, is_urgent: bool) -> Future[None]:
        """Queue a job. Raise `Unavailable` if the queue is full. `is_urgent`: the caller waits for the result."""
        job = Job(batch, feedback, Future(), is_urgent)
        with self._ready:
            if self._is_closing or not self._thread.is_alive():
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
            self._ready.notify()
        self._thread.join()

    def _run(self) -> None:
        while jobs := self._take():
            began = time.monotonic()
            self._write_jobs(jobs)
            self.writes, self.last_write_seconds = self.writes + 1, time.monotonic() - began

    def _take(self) -> list[Job]:
        """Wait for jobs, and remove and return those of the next write. Return nothing if the store is closed."""
        with self._ready:
            while not self._jobs and not self._is_closing:
                self._ready.wait()
            deadline = time.monotonic() + COLLECT_SECONDS
            while (remaining := deadline - time.monotonic()) > 0 and not self._is_due():
                self._ready.wait(remaining)
            jobs, rows = list[Job](), 0
            while self._jobs and (not jobs or rows + self._jobs[0].rows <= MAX_WRITE_ROWS):
                job = self._jobs.popleft()
                jobs.append(job)
                rows += job.rows
                self._bytes -= job.batch.bytes
                self._urgent -= job.is_urgent
            self._rows -= rows
            if rows < COLLECT_ROWS:
                self._small_writes = max(0.0, self._small_writes - 1)
            return jobs

    def _is_due(self) -> bool:
        now = time.monotonic()
        refill = (now - self._refilled) * SMALL_WRITES_PER_SECOND
        self._small_writes, self._refilled = min(MAX_SMALL_WRITES, self._small_writes + refill), now
        is_served_at_once = self._urgent > 0 and self._small_writes >= 1
        return self._is_closing or self._rows >= COLLECT_ROWS or is_served_at_once

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
        if error is None:
            job.future.set_result(None)
        else:
            job.future.set_exception(error)
