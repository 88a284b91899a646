"""Background maintenance thread: full-text indexing, rollups and compression dictionaries."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial

import zstandard

from spanwise.collector.errors import Unavailable
from spanwise.collector.stores.sqlite.database.group_commit import WriteJob
from spanwise.collector.stores.sqlite.database.wal_checkpoint import Checkpointer
from spanwise.collector.stores.sqlite.database_file import DatabaseFile
from spanwise.collector.stores.sqlite.maintenance.rebuild_jobs import PeriodSealer, RollupRecounter, SummaryRebuilder
from spanwise.collector.stores.sqlite.maintenance.retention import RetentionThread
from spanwise.collector.stores.sqlite.score_sums.background_sums import ScoreSummer
from spanwise.collector.stores.sqlite.search import fulltext_index

log = logging.getLogger("spanwise.collector")

RETRY_SECONDS = 30  # seconds until a failed round is repeated
PAUSE_SECONDS = 0.25  # seconds between rounds
BUSY_RATE, BUSY_SHARE = 2_000, 0.4  # thresholds of high load: spans per second, and share of the writer's time
IDLE_SECONDS = 2.0  # seconds between rounds while nothing is written: some jobs become due by time
WRITE_INTERVAL_SECONDS = 1.0  # seconds between transactions of the full-text index
LOADED_LOOK_SECONDS = 5.0  # seconds between searches of `unindexed` under load
BURST_FACTOR = 3  # after a burst, batches may be this many times larger
LOOK_REST_FACTOR = 20  # pause after a search of `unindexed`, as a multiple of the time that the search took
# For each dictionary: number of stored spans at which it is trained, and its size in bytes. The database file stores
# the dictionary, too
DICTIONARIES = ((1_000, 65_536), (20_000, 262_144), (500_000, 262_144))
MAX_SAMPLES = 4_000
MAX_SAMPLE_BYTES = 4_096  # longer payloads are not used as samples, because dictionaries help short ones


class BackgroundWorker:
    """Background maintenance thread. It runs until `close`. After a restart, it finds and continues unfinished work."""

    def __init__(self, file: DatabaseFile, prune: Callable[[], None]) -> None:
        self._file = file
        self._appender, self._writer = file.appender, file.writer
        self._checkpointer = Checkpointer(file.path, file.writer, file.watch)
        self._looked, self._written, self._spent, self._under_load = time.monotonic(), 0, 0.0, False
        self._next_put = self._next_look = self._next_work = 0.0
        # `Writer.commits` when nothing was left to index, and when no other work was left
        self._all_indexed, self._all_done = -1, -1
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._dictionaries: int | None = None
        # characters per transaction of the full-text index at its current speed
        self._piece = fulltext_index.MIN_TRANSACTION_CHARACTERS
        self._summary_rebuilder = SummaryRebuilder(file.appender, file.read, self._do, self._stop)
        self._rollup_recounter = RollupRecounter(file, self._stop)
        self._period_sealer = PeriodSealer(file, self._stop)
        self._score_summer = ScoreSummer(file, self._stop)
        self._retention = RetentionThread(file, prune, self._stop)
        self._thread = threading.Thread(target=self._run, name="spanwise-behind", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the threads after their current round."""
        self._stop.set()
        self._thread.join()
        self._retention.close()
        self._checkpointer.close()

    def _run(self) -> None:
        with self._file.aside():
            while not self._stop.is_set():
                try:
                    busy = self._round()
                except Unavailable:
                    busy = False
                except Exception:
                    log.exception("background maintenance failed; retrying in %d s", RETRY_SECONDS)
                    self._stop.wait(RETRY_SECONDS)
                    busy = False
                if not busy:
                    self._stop.wait(PAUSE_SECONDS)

    def _round(self) -> bool:
        """Run one round of all jobs, and return whether there may be more to do."""
        self._file.announce_again()
        # Check if the disk has free space again. Clients send nothing to a server that reports not ready, so there
        # would be no write that detects it.
        if self._writer.reserve.keep() and not self._writer.writable:
            self._writer.call(_rewrite_version)
        busy = self.index_round()
        return self._work_round() or busy

    def _work_round(self) -> bool:
        """Run one round of all jobs except indexing, and return whether there may be more to do.

        Without new commits, the next round starts after `IDLE_SECONDS`.
        """
        commits = self._writer.commits
        if commits == self._all_done and time.monotonic() < self._next_work:
            return False
        busy = self._summary_rebuilder.round()
        busy = self._rollup_recounter.round() or busy
        busy = self._period_sealer.round() or busy
        busy = self._score_summer.round() or busy
        self.train_if_due()
        self._all_done, self._next_work = -1 if busy else commits, time.monotonic() + IDLE_SECONDS
        return busy

    def index_round(self) -> bool:
        """Index one round of due traces, and return whether there may be more."""
        with self._lock:
            later = self._is_busy()
            more = self._from_memory(later)
            return self._from_file(later) or more

    def _from_memory(self, later: bool) -> bool:
        """Index buffered text, about once a second, in one transaction.

        Under load, this runs only if the buffer fills up or text in it is overdue, because spans need the writer's
        time.
        """
        buffer, now = self._appender.text_buffer, time.monotonic()
        if not (len(buffer) and (buffer.is_filling or now >= self._next_put)):
            return False
        overdue = now - fulltext_index.OVERDUE_NS / 1e9
        settled = overdue if later else now - fulltext_index.SETTLE_NS / 1e9
        most = self._most
        write = partial(fulltext_index.write_buffered, self._appender.reader, buffer, most, settled, overdue)
        characters: int = self._writer.put(
            WriteJob(weight=64, action=partial(self._timed, write), patient=True)
        ).result()
        self._merge(characters)
        more = 2 * characters >= most
        if characters and not more:
            self._next_put = now + WRITE_INTERVAL_SECONDS
        return more

    def _from_file(self, later: bool) -> bool:
        """Index traces that are not buffered, if it is time to look for them."""
        commits, began = self._writer.commits, time.monotonic()
        if began < self._next_look or commits == self._all_indexed:
            return False
        # Let the writer clear the set between two commits. The snapshot read below lacks the changes of a commit that
        # is still running, so the traces of that commit must stay in the set
        disturbed, buffer = self._appender.disturbed, self._appender.text_buffer
        if disturbed:
            self._writer.call(lambda _: disturbed.clear())
        with self._file.read() as reader:
            due = fulltext_index.find_due_traces(
                reader, self._file.clock.now(), buffer, overdue_only=later and not buffer.is_filling
            )
            looked = time.monotonic()
            entries = list(fulltext_index.read_entries(reader, due))
            self._all_indexed = commits if fulltext_index.is_empty(reader) else -1
        self._put_in_pieces(entries)
        pause = max(LOADED_LOOK_SECONDS if later else 0.0, LOOK_REST_FACTOR * (looked - began))
        self._next_look = 0.0 if due else time.monotonic() + pause
        return bool(due)

    def _put_in_pieces(self, entries: Sequence[fulltext_index.IndexEntry]) -> None:
        """Queue all batches at once and wait for all of them, even after a failure. Otherwise a batch could be written
        in a later round.
        """
        queued: list[Future[int]] = []
        try:
            for batch in fulltext_index.split_by_size([(entry, entry.characters) for entry in entries], self._most):
                write = partial(fulltext_index.write_entries, self._appender.reader, batch, self._appender.disturbed)
                action = partial(self._timed, write)
                queued.append(self._writer.put(WriteJob(weight=1 + len(batch) // 2, action=action, patient=True)))
        finally:
            wait(queued)
        for future in queued:
            self._merge(future.result())

    def _merge(self, characters: int) -> None:
        """Merge segments of the full-text index in steps, so that other writes run in between.

        Usually nothing is pending, and an unnecessary step would cost a commit.
        """
        for _ in range(fulltext_index.count_pending_merges(characters)):
            if not self._do(fulltext_index.merge_segments):
                return

    @property
    def _most(self) -> int:
        """Return the maximum number of characters per transaction.

        The maximum is small if little text waits, because larger batches gain nothing then. It is large after a
        burst.
        """
        buffered, batch = self._appender.text_buffer.bytes, self._piece
        if self._under_load or batch < buffered <= BURST_FACTOR * batch:
            return batch
        return BURST_FACTOR * batch if buffered > batch else max(batch // 4, fulltext_index.MIN_TRANSACTION_CHARACTERS)

    def _timed(self, write: Callable[[], int], _: sqlite3.Connection) -> int:
        # CPU time of this thread, not wall time: on busy cores, wall time would shrink the batches, which costs even
        # more CPU
        began = time.thread_time()
        characters = write()
        self._fit(characters, max(time.thread_time() - began, 1e-6))
        return characters

    def _fit(self, characters: int, seconds: float) -> None:
        """Update the batch size so that a transaction takes about `TRANSACTION_SECONDS`.

        Batches far below the wanted size are ignored, because they say little about the speed.
        """
        if 2 * characters >= self._most:
            fitting = int(characters * fulltext_index.TRANSACTION_SECONDS / seconds)
            least, most = fulltext_index.MIN_TRANSACTION_CHARACTERS, fulltext_index.MAX_TRANSACTION_CHARACTERS
            self._piece = min(max((self._piece + fitting) // 2, least), most)

    def _do(self, action: Callable[[sqlite3.Connection], bool]) -> bool:
        return bool(self._writer.put(WriteJob(weight=64, action=action, patient=True)).result())

    def _is_busy(self) -> bool:
        """Return whether the load is so high that full-text indexing should wait. `fulltext_index.OVERDUE_NS` limits
        the delay.
        """
        now, written, spent = time.monotonic(), self._writer.written, self._writer.spent
        if (passed := now - self._looked) >= 1.0:
            rate, share = (written - self._written) / passed, (spent - self._spent) / passed
            self._under_load = rate > BUSY_RATE and share > BUSY_SHARE
            self._looked, self._written, self._spent = now, written, spent
        return self._under_load

    def train_if_due(self) -> None:
        """Train the next compression dictionary if enough spans are stored."""
        with self._file.read() as reader:
            if self._dictionaries is None:
                self._dictionaries = reader.db.execute("SELECT count(*) FROM dictionaries").fetchone()[0]
            stored = reader.db.execute("SELECT coalesce(max(id), 0) FROM spans").fetchone()[0]
        if self._dictionaries < len(DICTIONARIES) and stored >= DICTIONARIES[self._dictionaries][0]:
            self._dictionaries += 1
            self._train(DICTIONARIES[self._dictionaries - 1][1])

    def _train(self, size: int) -> None:
        with self._file.read() as reader:
            blobs = reader.db.execute(
                "SELECT payload FROM spans WHERE size <= ? ORDER BY id DESC LIMIT ?", (MAX_SAMPLE_BYTES, MAX_SAMPLES)
            ).fetchall()
            samples: list[bytes | bytearray | memoryview] = [reader.decoder(blob).raw(blob) for (blob,) in blobs]
            # Explicit number: zstd derives one from the content alone. Two dictionaries of repetitive payloads that
            # differ only in their entropy tables would share it, and each would corrupt the payloads that the other
            # compressed.
            number = reader.db.execute("SELECT coalesce(max(id), 0) + 1 FROM dictionaries").fetchone()[0]
        try:
            trained = zstandard.train_dictionary(size, samples, k=1024, d=8, dict_id=number)
        except zstandard.ZstdError as error:
            log.info("cannot train a compression dictionary from %d payloads: %s", len(samples), error)
            return
        data = trained.as_bytes()
        self._writer.call(
            lambda db: db.execute("INSERT INTO dictionaries VALUES (?, ?, ?)", (number, data, time.time_ns()))
        )
        self._appender.adopt(number, data)


def _rewrite_version(db: sqlite3.Connection) -> None:
    """Write a page unchanged, to test if writing works. An empty transaction would write nothing and prove nothing."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    db.execute(f"PRAGMA user_version = {version}")
