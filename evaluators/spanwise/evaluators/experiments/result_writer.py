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
from spanwise.collector.former_names import FORMER, PRESENT, present_feedback, present_run
from spanwise.collector.records import Example, Feedback, Run, Trace
from spanwise.collector.stores import Store, TraceStore
from spanwise.evaluators.experiments.experiment_plan import FinishedRun
from spanwise.evaluators.interface import JudgementBuffer, print_message
from spanwise.tracer.backoff import compute_backoff
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

    def put(self, done: FinishedRun) -> None:
        """Queue a finished run; returns immediately."""
        self._queue.put(done)

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
            while batch := self._batch():
                self._keep(batch)
                self._on_stored(batch)
            self._keep_rest()
        except BaseException as error:
            self._error = error

    def _batch(self) -> list[FinishedRun]:
        """Return the next runs in the order in which they were queued; [] when the writer is closed."""
        first = self._queue.get()
        if first is None:
            return []
        batch = [first]
        self._linger()
        while len(batch) < BATCH_SIZE:
            try:
                done = self._queue.get_nowait()
            except queue.Empty:
                break
            if done is None:
                self._queue.put(None)
                break
            batch.append(done)
        return batch

    def _linger(self) -> None:
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

    def _keep(self, batch: Sequence[FinishedRun]) -> None:
        parcel = make_spool_batch(batch, self._judgements.take())
        if self._offer(parcel.deliver):
            return
        self._spool.add(parcel)
        self._spooled += len(batch)

    def _keep_rest(self) -> None:
        """Store the judgements that are left, which come from abandoned evaluators."""
        rest = self._judgements.take()
        if rest and not self._offer(lambda store: store.append(rest)):
            self._spool.add(SpoolBatch(rest, []))
            self._spooled += 1

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
    said = {outcome.id for done in batch if done.item.errors for outcome in done.feedback}
    return SpoolBatch(
        [*(run for done in batch for run in done.runs), *judgements],
        [outcome for done in batch for outcome in done.feedback],
        [trace_id for done in batch for trace_id in done.item.replaces],
        [id for done in batch for id in done.item.errors if id not in said],
    )


class ResultSpool:
    """Spool of one process: the results of an experiment that a store did not accept."""

    def __init__(self, experiment_id: str, folders: Iterable[Path]) -> None:
        self._name = f"spanwise-spool-{experiment_id[:12]}-{secrets.token_hex(4)}.jsonl"
        self._ahead = iter(folders)  # folders that have not been tried yet
        self._file: BinaryIO | None = None
        self.paths: list[Path] = []
        self.held: list[SpoolBatch] = []  # batches that could not be written to any file

    def add(self, parcel: SpoolBatch) -> None:
        """Append a batch to the file. If writing fails, use a new file in the next folder."""
        try:
            line = msgspec.json.encode(parcel, enc_hook=str) + b"\n"
        # the batch is not encodable as JSON, although stores accept it because they sanitize such values
        except (TypeError, ValueError, OverflowError, RecursionError):
            self.held.append(parcel)
            return
        while not self._written(line):
            folder = next(self._ahead, None)
            if folder is None:
                self.held.append(parcel)
                return
            self._begin(folder)

    def deliver(self, store: TraceStore) -> int:
        """Deliver all batches to a store, delete the files, and return the number of spans.

        Raises the errors of the store.
        """
        count = sum(_deliver_file(path, store) for path in self.paths)
        for parcel in self.held:
            parcel.deliver(store)
            count += len(parcel.runs)
        self.paths, self.held = [], []
        return count

    def parcels(self) -> Iterator[SpoolBatch]:
        """Yield the batches that are still spooled."""
        for path in self.paths:
            if path.exists():
                yield from _read_batches(path)
        yield from self.held

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

    def _written(self, line: bytes) -> bool:
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
            if _is_locked(path):
                print_message(f"spanwise: another process is still writing {path}: its runs are run again")
            else:
                print_message(f"spanwise: stored {deliver_spool(path, store)} spans from {path}")


def deliver_spool(path: Path, store: TraceStore) -> int:
    """Store the results in a spool file of `evaluate()`, delete the file, and return the number of spans."""
    return _deliver_file(path, store) if path.exists() else 0


def _iterate_spool_folders(store: Store) -> Iterator[Path]:
    """Yield the folders for spool files, the preferred one first."""
    where = store.where
    if "://" not in where and Path(where).is_file():
        yield Path(where).resolve().parent
    waiting = tracing().settings.spill_dir
    if waiting is not None:
        yield waiting / "experiments"
    temporary = Path(tempfile.gettempdir(), f"spanwise-{os.getuid()}")
    if _is_private_folder(temporary):
        yield temporary


def _is_private_folder(folder: Path) -> bool:
    """Return whether only this user can write to a folder. The folder for temporary files is shared by all users."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _deliver_file(path: Path, store: TraceStore) -> int:
    count = 0
    for parcel in _read_batches(path):
        parcel.deliver(store)
        count += len(parcel.runs)
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
                parcel = decoder.decode(line)
            except msgspec.DecodeError as error:
                raise ValueError(f"{path}: line {number} is invalid ({error}): fix or remove it") from None
            yield msgspec.structs.replace(
                parcel,
                runs=[present_run(run) for run in parcel.runs],
                feedback=[present_feedback(one) for one in parcel.feedback],
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


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return not _try_lock(file)
    except OSError:
        return False


MAX_SPOOL_BYTES = 64 * 2**20  # maximum bytes of spool files that are read into memory


def make_spooled_store(store: Store, spool: ResultSpool, largest: int = MAX_SPOOL_BYTES) -> Store:
    """Return a store that also reads spooled results, until they are delivered.

    Raises an error on reading if the spool files are larger than `largest` bytes.
    """
    return cast(Store, _SpooledStore(store, spool, largest))


class _SpooledStore:
    """Store that adds spooled results when runs and examples are read. All other operations are passed to the store."""

    def __init__(self, store: Store, spool: ResultSpool, largest: int) -> None:
        self._store, self._spool, self._largest = store, spool, largest
        self._runs: dict[str, list[Run]] = {}
        self._feedback: dict[str, list[Feedback]] = {}
        self._read = -1  # size of the files when they were read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def many(self, trace_ids: Sequence[str]) -> list[Trace]:
        """Return several traces in the order of their ids.

        Raises `Unavailable` if the store is unavailable and some traces are not spooled.
        """
        self._look()
        elsewhere = [trace_id for trace_id in trace_ids if trace_id not in self._runs]
        stored = {trace.trace_id: trace for trace in self._stored(elsewhere)}
        found = (self._kept(id) if id in self._runs else stored.get(id) for id in trace_ids)
        return [trace for trace in found if trace is not None]

    def trace(self, trace_id: str) -> Trace:
        """Return one trace. Raises `NotFound`."""
        self._look()
        return self._kept(trace_id) if trace_id in self._runs else self._store.trace(trace_id)

    def examples(self, *args: Any, **given: Any) -> list[Example]:
        """Return examples of the store. Raises `Unavailable` with a short explanation."""
        try:
            return self._store.examples(*args, **given)
        except Unavailable as error:
            raise Unavailable(f"the runs are in a spool file, but their examples cannot be read: {error}") from None

    def _stored(self, trace_ids: Sequence[str]) -> Iterable[Trace]:
        try:
            traces = self._store.many(trace_ids) if trace_ids else []
        except Unavailable as error:
            raise Unavailable(
                f"{len(trace_ids)} of the runs are not in the spool file and cannot be read: {error}"
            ) from None
        for trace in traces:
            more = self._feedback.get(trace.trace_id, ())
            yield replace(trace, feedback=(*trace.feedback, *more)) if more else trace

    def _kept(self, trace_id: str) -> Trace:
        runs = tuple(self._runs[trace_id])
        root = next((run for run in runs if run.parent_id is None), runs[0])
        return Trace(root, runs, feedback=tuple(self._feedback.get(trace_id, ())))

    def _look(self) -> None:
        """Read the spool files if their size has changed, for example because another process has delivered them."""
        size = self._spool.size
        if size == self._read:
            return
        if size > self._largest:
            paths = " and ".join(map(str, self._spool.paths))
            raise Refused(
                f"{size / 2**20:.3g} MiB of runs in {paths} are too large to read: deliver them to a store first"
            )
        self._read, self._runs, self._feedback = size, {}, {}
        for parcel in self._spool.parcels():
            for run in parcel.runs:
                self._runs.setdefault(run.trace_id, []).append(run)
            for outcome in parcel.feedback:
                self._feedback.setdefault(outcome.target.trace_id or "", []).append(outcome)
