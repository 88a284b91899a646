"""Result writer: stores finished runs in batches, and spools to a file the runs that the store refuses.

Runs that the store refuses or cannot accept are written to a spool file and offered to the store again. Their tasks
are not run a second time.

The spool file is created in the folder of the store's file. If the store has no file, or the folder is not writable,
the tracer's spill folder is used, and finally the folder for temporary files. If no folder is writable, the runs stay
in memory.

Each process writes its own files and locks them. The lock keeps other processes from delivering and deleting a file
that is still being written.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import secrets
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from spanwise.collector.errors import Refused, Unavailable
from spanwise.collector.record_corrections import FORMER, PRESENT, present_feedback, present_run
from spanwise.collector.records import Example, Feedback, Run, Trace
from spanwise.collector.stores import Store, TraceStore
from spanwise.evaluators.experiments.experiment_plan import FinishedRun
from spanwise.evaluators.interface import JudgementBuffer, print_message
from spanwise.tracer.http_connections import compute_backoff
from spanwise.tracer.process_runtime import get_runtime as tracing

BATCH_SIZE = 500  # runs per batch
BATCH_DELAY = 0.06  # seconds that a batch waits for more runs
QUIET_PERIOD = 0.005  # seconds; the wait ends if no run finishes for this long
# maximum number of waits of `QUIET_PERIOD`; bounds the results that are lost if the process is killed
MAX_QUIET_PERIODS = 8
MAX_QUEUED = 5_000  # number of queued runs above which no new runs start
STORE_ATTEMPTS = 3
MAX_PAUSE = 2.0  # maximum seconds between two attempts to store a batch


@dataclass(frozen=True, slots=True)
class UnstoredRuns:
    """Runs that a store did not accept: their number, the spool files that hold them, and the reason.

    If there is no file, the runs are only in memory.
    """

    runs: int
    paths: tuple[Path, ...]
    why: str

    @property
    def path(self) -> Path | None:
        """Return the first spool file, or None."""
        return self.paths[0] if self.paths else None


class ResultWriter:
    """Writer thread that stores finished runs in batches, and calls `on_stored` for each batch in order.

    Each batch also stores the `judgements` that have ended by then. These include all judgements that its feedback
    refers to.
    """

    def __init__(
        self,
        store: TraceStore,
        spool: ResultSpool,
        on_stored: Callable[[Sequence[FinishedRun]], None],
        judgements: JudgementBuffer | None = None,
    ) -> None:
        self._store = store
        self._judgements = JudgementBuffer() if judgements is None else judgements
        self._spool = spool
        self._on_stored = on_stored
        self._queue: queue.SimpleQueue[FinishedRun | None] = queue.SimpleQueue()
        self._spooled = 0
        self._reason = ""
        self._error: BaseException | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="spanwise-write", daemon=True)
        self._thread.start()

    def put(self, finished: FinishedRun) -> None:
        """Queue a finished run; returns immediately."""
        self._queue.put(finished)

    @property
    def is_full(self) -> bool:
        """Return whether no new runs should be started for now, because too many wait in the queue."""
        return self._queue.qsize() > MAX_QUEUED and self._error is None

    def close(self) -> UnstoredRuns | None:
        """Store the queued runs, offer the spooled ones to the store once more, and return those that it did not
        accept.
        """
        self._closing.set()
        self._queue.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error
        if self._spooled and self._offer(self._spool.deliver):
            self._spooled = 0
        self._spool.close()
        return UnstoredRuns(self._spooled, tuple(self._spool.paths), self._reason) if self._spooled else None

    def _work(self) -> None:
        try:
            while batch := self._take_batch():
                self._store_batch(make_spool_batch(batch, self._judgements.take()), len(batch))
                self._on_stored(batch)
            # judgements that are left come from abandoned evaluators
            if judgements := self._judgements.take():
                self._store_batch(SpoolBatch(judgements, []), 1)
        except BaseException as error:
            self._error = error

    def _take_batch(self) -> list[FinishedRun]:
        """Return the next runs in the order in which they were queued; [] when the writer is closed."""
        first = self._queue.get()
        if first is None:
            return []
        batch = [first]
        self._wait_for_more()
        while len(batch) < BATCH_SIZE:
            try:
                finished = self._queue.get_nowait()
            except queue.Empty:
                break
            if finished is None:
                self._queue.put(None)
                break
            batch.append(finished)
        return batch

    def _wait_for_more(self) -> None:
        """Wait until more runs have been queued and then no further ones arrive for a moment.

        Tasks that wait for a model at the same time end at the same time, so their runs fit into one batch. The
        thread sleeps instead of being notified of each run, because a notification costs the task threads more than
        the run.
        """
        self._closing.wait(BATCH_DELAY)
        for _ in range(MAX_QUIET_PERIODS):
            before = self._queue.qsize()
            if self._closing.wait(QUIET_PERIOD) or self._queue.qsize() == before:
                return

    def _store_batch(self, batch: SpoolBatch, runs: int) -> None:
        """Store a batch of a number of runs, or add it to the spool."""
        if not self._offer(batch.deliver):
            self._spool.add(batch)
            self._spooled += runs

    def _offer(self, give: Callable[[TraceStore], Any]) -> bool:
        """Offer data to the store by calling `give`, and return whether the store accepted it.

        Several attempts are made, unless the queue is full or the store has failed before.
        """
        for attempt in range(1 if self._spooled else STORE_ATTEMPTS):
            try:
                give(self._store)
                return True
            except Exception as error:  # spool the runs, whatever the store raises
                self._reason = f"{type(error).__name__}: {error}"
                if not isinstance(error, Unavailable) or self.is_full:
                    return False
                time.sleep(compute_backoff(attempt, error.retry_after, MAX_PAUSE))
        return False


DELETE_BATCH_SIZE = 100  # traces per deletion, because their ids must fit into a URL


class SpoolBatch(msgspec.Struct):
    """Batch that is stored together or written as one line of a spool file.

    It contains new runs and feedback, and the ids of the stored runs and feedback that they replace.
    """

    runs: list[Run]
    feedback: list[Feedback]
    replaced: list[str] = []  # ids of traces to delete
    outdated: list[str] = []  # ids of feedback to delete

    def deliver(self, store: TraceStore) -> None:
        """Store the batch. Old data is deleted only after the new data is stored, so that nothing is missing at any
        moment.

        A batch may be delivered repeatedly.
        """
        if self.runs or self.feedback:
            store.append(self.runs, self.feedback)
        for start in range(0, len(self.replaced), DELETE_BATCH_SIZE):
            store.delete(trace_ids=tuple(self.replaced[start : start + DELETE_BATCH_SIZE]))
        if self.outdated:
            store.delete_feedback(self.outdated)


def make_spool_batch(batch: Sequence[FinishedRun], judgements: Sequence[Run] = ()) -> SpoolBatch:
    """Return the batch of finished runs and of judgements."""
    new_ids = {outcome.id for finished in batch if finished.item.errors for outcome in finished.feedback}
    return SpoolBatch(
        [*(run for finished in batch for run in finished.runs), *judgements],
        [outcome for finished in batch for outcome in finished.feedback],
        [trace_id for finished in batch for trace_id in finished.item.replaces],
        [id for finished in batch for id in finished.item.errors if id not in new_ids],
    )


class ResultSpool:
    """Spool of one process: the results of an experiment that a store did not accept."""

    def __init__(self, experiment_id: str, folders: Iterable[Path]) -> None:
        self._name = f"spanwise-spool-{experiment_id[:12]}-{secrets.token_hex(4)}.jsonl"
        self._folders = iter(folders)  # folders that have not been tried yet
        self._file: BinaryIO | None = None
        self.paths: list[Path] = []
        self.in_memory: list[SpoolBatch] = []  # batches that could not be written to any file

    def add(self, batch: SpoolBatch) -> None:
        """Append a batch to the file. If writing fails, use a new file in the next folder."""
        try:
            line = msgspec.json.encode(batch, enc_hook=str) + b"\n"
        # the batch is not encodable as JSON, although stores accept it because they sanitize such values
        except (TypeError, ValueError, OverflowError, RecursionError):
            self.in_memory.append(batch)
            return
        while not self._write(line):
            folder = next(self._folders, None)
            if folder is None:
                self.in_memory.append(batch)
                return
            self._begin(folder)

    def deliver(self, store: TraceStore) -> int:
        """Deliver all batches to a store, delete the files, and return the number of spans.

        Raises the errors of the store.
        """
        count = sum(_deliver_file(path, store) for path in self.paths)
        for batch in self.in_memory:
            batch.deliver(store)
            count += len(batch.runs)
        self.paths, self.in_memory = [], []
        return count

    def batches(self) -> Iterator[SpoolBatch]:
        """Yield the batches that are still spooled."""
        for path in self.paths:
            if path.exists():
                yield from _read_batches(path)
        yield from self.in_memory

    @property
    def size(self) -> int:
        """Return the size of the existing files in bytes."""
        return sum(path.stat().st_size for path in self.paths if path.exists())

    def close(self) -> None:
        """Close the file, and release its lock so that other processes can deliver it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self, folder: Path) -> None:
        self.close()
        path = folder / self._name
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            self._file = os.fdopen(descriptor, "ab", buffering=0)
            _try_lock(self._file)
            self.paths.append(path)

    def _write(self, line: bytes) -> bool:
        """Write a line to the file, and return whether that succeeded. A line that was written in part is removed."""
        if self._file is None:
            return False
        before = os.fstat(self._file.fileno()).st_size
        with contextlib.suppress(OSError):
            if self._file.write(line) == len(line):
                return True
        with contextlib.suppress(OSError):
            self._file.truncate(before)
        return False


def make_spool(experiment_id: str, store: Store) -> ResultSpool:
    """Return a new spool for an experiment."""
    return ResultSpool(experiment_id, _iterate_spool_folders(store))


def deliver_pending_spools(experiment_id: str, store: Store) -> None:
    """Store the results of an experiment that other processes have spooled, from all spool folders.

    Raises the errors of the store.
    """
    folders = [*_iterate_spool_folders(store), Path.cwd()]
    former = Path(tempfile.gettempdir(), f"{FORMER}-{os.getuid()}")
    if former.is_dir() and _is_private_folder(former):
        folders.append(former)
    for folder in dict.fromkeys(folders):
        names = (f"{product}-spool-{experiment_id[:12]}*.jsonl" for product in (PRESENT, FORMER))
        for path in sorted(path for name in names for path in folder.glob(name)):
            is_locked = False
            with contextlib.suppress(OSError), path.open("rb") as file:
                is_locked = not _try_lock(file)
            if is_locked:
                print_message(f"spanwise: another process is still writing {path}: its runs are run again")
            else:
                print_message(f"spanwise: stored {deliver_spool(path, store)} spans from {path}")


def deliver_spool(path: Path, store: TraceStore) -> int:
    """Store the results in a spool file of `evaluate()`, delete the file, and return the number of spans."""
    return _deliver_file(path, store) if path.exists() else 0


def _iterate_spool_folders(store: Store) -> Iterator[Path]:
    """Yield the folders for spool files, the preferred one first."""
    address = store.where
    if "://" not in address and Path(address).is_file():
        yield Path(address).resolve().parent
    spill_folder = tracing().settings.spill_dir
    if spill_folder is not None:
        yield spill_folder / "experiments"
    temporary = Path(tempfile.gettempdir(), f"spanwise-{os.getuid()}")
    if _is_private_folder(temporary):
        yield temporary


def _is_private_folder(folder: Path) -> bool:
    """Return whether only this user can write to a folder. The folder for temporary files is shared by all users."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def _deliver_file(path: Path, store: TraceStore) -> int:
    count = 0
    for batch in _read_batches(path):
        batch.deliver(store)
        count += len(batch.runs)
    # the results are stored; if the file remains, delivering it again changes nothing
    with contextlib.suppress(OSError):
        path.unlink()
    return count


def _read_batches(path: Path) -> Iterator[SpoolBatch]:
    """Yield the batches of a spool file.

    Raises `ValueError` for an invalid line. An incomplete last line is ignored: a process was killed while it wrote
    it.
    """
    decoder = msgspec.json.Decoder(SpoolBatch)
    try:
        lines = path.open("rb")
    except FileNotFoundError:  # another process has delivered it
        return
    with lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                batch = decoder.decode(line)
            except msgspec.DecodeError as error:
                raise ValueError(f"{path}: line {number} is invalid ({error}): fix or remove it") from None
            yield msgspec.structs.replace(
                batch,
                runs=list(map(present_run, batch.runs)),
                feedback=list(map(present_feedback, batch.feedback)),
            )


def _try_lock(file: BinaryIO) -> bool:
    """Return whether this process holds the file's lock; True on file systems without locks."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


MAX_SPOOL_BYTES = 64 * 2**20  # maximum bytes of spool files that are read into memory


def make_spooled_store(store: Store, spool: ResultSpool, max_bytes: int = MAX_SPOOL_BYTES) -> Store:
    """Return a store that also reads spooled results, until they are delivered.

    Raises an error on reading if the spool files are larger than `max_bytes`.
    """
    return cast(Store, _SpooledStore(store, spool, max_bytes))


class _SpooledStore:
    """Store that adds spooled results when runs and examples are read. All other operations are passed to the store."""

    def __init__(self, store: Store, spool: ResultSpool, max_bytes: int) -> None:
        self._store, self._spool, self._max_bytes = store, spool, max_bytes
        self._runs: dict[str, list[Run]] = {}
        self._feedback: dict[str, list[Feedback]] = {}
        self._read_size = -1  # size of the files when they were read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def many(self, trace_ids: Sequence[str]) -> list[Trace]:
        """Return several traces in the order of their ids.

        Raises `Unavailable` if the store is unavailable and some traces are not spooled.
        """
        self._read_spool()
        others = [trace_id for trace_id in trace_ids if trace_id not in self._runs]
        try:
            stored = {trace.trace_id: trace for trace in (self._store.many(others) if others else ())}
        except Unavailable as error:
            raise Unavailable(
                f"{len(others)} of the runs are not in the spool file and cannot be read: {error}"
            ) from None
        traces = []
        for trace_id in trace_ids:
            if trace_id in self._runs:
                traces.append(self._make_trace(trace_id))
            elif trace := stored.get(trace_id):
                spooled = self._feedback.get(trace_id, ())
                traces.append(replace(trace, feedback=(*trace.feedback, *spooled)) if spooled else trace)
        return traces

    def trace(self, trace_id: str) -> Trace:
        """Return one trace. Raises `NotFound`."""
        self._read_spool()
        return self._make_trace(trace_id) if trace_id in self._runs else self._store.trace(trace_id)

    def examples(self, *args: Any, **given: Any) -> list[Example]:
        """Return examples of the store. Raises `Unavailable` with a short explanation."""
        try:
            return self._store.examples(*args, **given)
        except Unavailable as error:
            raise Unavailable(f"the runs are in a spool file, but their examples cannot be read: {error}") from None

    def _make_trace(self, trace_id: str) -> Trace:
        runs = tuple(self._runs[trace_id])
        root = next((run for run in runs if run.parent_id is None), runs[0])
        return Trace(root, runs, feedback=tuple(self._feedback.get(trace_id, ())))

    def _read_spool(self) -> None:
        """Read the spool files if their size has changed, for example because another process has delivered them."""
        size = self._spool.size
        if size == self._read_size:
            return
        if size > self._max_bytes:
            paths = " and ".join(map(str, self._spool.paths))
            raise Refused(
                f"{size / 2**20:.3g} MiB of runs in {paths} are too large to read: deliver them to a store first"
            )
        self._read_size, self._runs, self._feedback = size, {}, {}
        for batch in self._spool.batches():
            for run in batch.runs:
                self._runs.setdefault(run.trace_id, []).append(run)
            for outcome in batch.feedback:
                self._feedback.setdefault(outcome.target.trace_id or "", []).append(outcome)
