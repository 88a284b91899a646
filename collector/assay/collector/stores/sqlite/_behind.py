"""What happens behind the writer, in a thread of its own: text index, sums, dictionaries, retention."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial

import zstandard

from assay.collector.errors import Unavailable
from assay.collector.stores.sqlite import _responses, _words
from assay.collector.stores.sqlite._checkpoint import Checkpointer
from assay.collector.stores.sqlite._file import File
from assay.collector.stores.sqlite._recount import Recount
from assay.collector.stores.sqlite._resum import Resummer
from assay.collector.stores.sqlite._writer import Job

log = logging.getLogger("assay.collector")

AFTER_FAILURE = 30  # seconds
PAUSE = 0.25  # seconds between looks at what there is to do
BUSY_RATE = 2_000  # spans a second
PRUNE_AFTER, PRUNE_EVERY = 60.0, 3600.0  # seconds after the start, then between
# Spans stored when the first, second, third dictionary is made, and its bytes: the file holds it, too
DICTIONARIES = ((1_000, 65_536), (20_000, 262_144), (500_000, 262_144))
SAMPLES = 4_000
SAMPLE_BYTES = 4_096  # a longer payload is no sample: dictionaries help short ones


class Behind:
    """Runs until `close`. What it does not finish is found again by the next start. `prune` is called about hourly."""

    def __init__(self, file: File, prune: Callable[[], None]) -> None:
        self._file, self._prune = file, prune
        self._appender, self._writer = file.appender, file.writer
        self._checkpointer = Checkpointer(file.path, file.writer, file.watch)
        self._looked, self._written, self._under_load = time.monotonic(), 0, False
        self._next_prune = time.monotonic() + PRUNE_AFTER
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._dictionaries: int | None = None
        self._piece = _words.PIECE  # characters that the text index takes at once, as fast as it is now
        self._resummer = Resummer(file.appender, file.read, self._do, self._stop)
        self._recount = Recount(file, self._stop)
        self._thread = threading.Thread(target=self._run, name="assay-behind", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End after the round that runs."""
        self._stop.set()
        self._thread.join()
        self._checkpointer.close()

    def _run(self) -> None:
        with self._file.aside():
            self._until_stopped()

    def _until_stopped(self) -> None:
        while not self._stop.is_set():
            try:
                self._file.announce_again()
                self._try_to_write_again()
                busy = self.index_round()
                busy = self._resummer.round() or busy
                busy = self._recount.round() or busy
                self.train_if_due()
                self._prune_if_due()
            except Unavailable:
                busy = False
            except Exception:
                log.exception("work behind the writer failed; it is tried again in %d s", AFTER_FAILURE)
                self._stop.wait(AFTER_FAILURE)
                busy = False
            if not busy:
                self._stop.wait(PAUSE)

    def _try_to_write_again(self) -> None:
        """Find out whether there is room again: to a server that says it is not ready nobody may send anything."""
        if self._writer.reserve.keep() and not self._writer.writable:
            self._writer.call(_touch)

    def index_round(self) -> bool:
        """Index the traces whose time it is, `_words.ROUND` of them at most; whether there were any."""
        with self._lock:
            # Between two commits: a trace that the one under way disturbs is not yet so in what is read below
            disturbed = self._appender.disturbed
            if disturbed:
                self._writer.call(lambda _: disturbed.clear())
            held = self._appender.held
            with self._file.read() as reader:
                later = self._busy() and not held.is_filling
                due = _words.waiting(reader, self._file.clock.now(), overdue_only=later)
                here = [one.trace for one in due if one.trace in held]
                entries = list(_words.entries(reader, [one for one in due if one.trace not in held]))
            self._put_in_pieces(here, entries)
            return bool(due)

    def _put_in_pieces(self, here: Sequence[int], entries: Sequence[_words.Entry]) -> None:
        """Queue all pieces at once, and wait for them all, whatever fails: none may be written in a later round."""
        queued: list[Future[None]] = []
        try:
            for weight, put in self._puts(here, entries):
                action = partial(self._timed, put)
                queued.append(self._writer.put(Job(weight=1 + weight // 2, action=action, patient=True)))
        finally:
            wait(queued)
        for future in queued:
            future.result()

    def _puts(self, here: Sequence[int], entries: Sequence[_words.Entry]) -> Iterator[tuple[int, Callable[[], int]]]:
        """Each piece: how many traces, and what writes them and says how many characters it wrote."""
        held = self._appender.held
        for keys in _words.pieces([(key, held.characters(key)) for key in here], self._piece):
            yield len(keys), partial(_words.put_held, self._appender.reader, keys, held)
        for some in _words.pieces([(entry, entry.characters) for entry in entries], self._piece):
            yield len(some), partial(_words.put, self._appender.reader, some, self._appender.disturbed)

    def _timed(self, put: Callable[[], int], _: sqlite3.Connection) -> None:
        began = time.perf_counter()
        characters = put()
        self._fit(characters, max(time.perf_counter() - began, 1e-6))

    def _fit(self, characters: int, took: float) -> None:
        """Have the next pieces take about a moment; what is far smaller than one says little of how long that is."""
        if 2 * characters >= self._piece:
            fitting = int(characters * _words.MOMENT / took)
            self._piece = min(max((self._piece + fitting) // 2, _words.PIECE), _words.MOST)

    def _do(self, action: Callable[[sqlite3.Connection], bool]) -> bool:
        return bool(self._writer.put(Job(weight=64, action=action, patient=True)).result())

    def _busy(self) -> bool:
        """Whether so much arrives that the text index had better wait (as long as `_words` allows)."""
        now, written = time.monotonic(), self._writer.written
        if now - self._looked >= 1.0:
            rate = (written - self._written) / (now - self._looked)
            self._looked, self._written, self._under_load = now, written, rate > BUSY_RATE
        return self._under_load

    def train_if_due(self) -> None:
        """Make the next dictionary if enough spans are stored."""
        with self._file.read() as reader:
            if self._dictionaries is None:
                self._dictionaries = reader.db.execute("SELECT count(*) FROM dictionaries").fetchone()[0]
            stored = reader.db.execute("SELECT coalesce(max(id), 0) FROM spans").fetchone()[0]
        if self._dictionaries < len(DICTIONARIES) and stored >= DICTIONARIES[self._dictionaries][0]:
            self._dictionaries += 1
            self._train(DICTIONARIES[self._dictionaries - 1][1])

    def _prune_if_due(self) -> None:
        if time.monotonic() >= self._next_prune:
            self._next_prune = time.monotonic() + PRUNE_EVERY
            self._prune()
            while self._writer.call(lambda _: self._appender.tombstones.prune()):
                pass
            self._writer.call(lambda _: self._appender.waiting.trim())
            self._writer.call(_responses.prune)

    def _train(self, size: int) -> None:
        with self._file.read() as reader:
            blobs = reader.db.execute(
                "SELECT payload FROM spans WHERE size <= ? ORDER BY id DESC LIMIT ?", (SAMPLE_BYTES, SAMPLES)
            ).fetchall()
            samples: list[bytes | bytearray | memoryview] = [reader.decoder(blob).raw(blob) for (blob,) in blobs]
            # Numbered by us: zstd derives a number from the content alone, so that two dictionaries of much repeated
            # payloads, which differ in their entropy tables, would share it and each spoil what the other compressed.
            number = reader.db.execute("SELECT coalesce(max(id), 0) + 1 FROM dictionaries").fetchone()[0]
        try:
            trained = zstandard.train_dictionary(size, samples, k=1024, d=8, dict_id=number)
        except zstandard.ZstdError as error:
            log.info("no dictionary from %d payloads: %s", len(samples), error)
            return
        data = trained.as_bytes()
        self._writer.call(lambda db: _keep(db, number, data))
        self._appender.adopt(number, data)


def _touch(db: sqlite3.Connection) -> None:
    """Write a page as it is; an empty transaction would write nothing and tell nothing."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    db.execute(f"PRAGMA user_version = {version}")


def _keep(db: sqlite3.Connection, number: int, data: bytes) -> None:
    db.execute("INSERT INTO dictionaries VALUES (?, ?, ?)", (number, data, time.time_ns()))
