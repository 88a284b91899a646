"""Finished runs that a store has not taken yet, in files that the next process finds from any folder.

A file lies beside the store's own; where there is none or that cannot be written, in the user's folder for what waits
(the tracer's), and last in the one for temporary files. Each process writes files of its own and locks them while it
does, so that nobody delivers and removes what is still being written. Where nothing can be written, memory is the rest.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from spanwise.collector.former_names import FORMER, PRESENT, present_feedback, present_run
from spanwise.collector.records import Feedback, Run
from spanwise.collector.stores import Store, TraceStore
from spanwise.evaluators.engine._plan import Done
from spanwise.evaluators.engine._progress import say
from spanwise.tracer.spans import current as tracing

IDS = 100  # traces of one deletion: an address holds no more


class Parcel(msgspec.Struct):
    """What goes into the store together, or into a line of a spool file: runs, feedback, and what they take away."""

    runs: list[Run]
    feedback: list[Feedback]
    replaced: list[str] = []  # ids of traces
    outdated: list[str] = []  # ids of feedback

    def deliver(self, store: TraceStore) -> None:
        """Store it all: what is new first, so that nothing is missing at any moment. Doing it again is harmless."""
        if self.runs or self.feedback:
            store.append(self.runs, self.feedback)
        for start in range(0, len(self.replaced), IDS):
            store.delete(trace_ids=tuple(self.replaced[start : start + IDS]))
        if self.outdated:
            store.delete_feedback(self.outdated)


def parcel_of(batch: Sequence[Done], judgements: Sequence[Run] = ()) -> Parcel:
    """Finished runs as what is to be stored of them, and of judgements."""
    said = {outcome.id for done in batch if done.item.errors for outcome in done.feedback}
    return Parcel(
        [*(run for done in batch for run in done.runs), *judgements],
        [outcome for done in batch for outcome in done.feedback],
        [trace_id for done in batch for trace_id in done.item.replaces],
        [id for done in batch for id in done.item.errors if id not in said],
    )


class Spool:
    """Where one process keeps what a store does not take of an experiment."""

    def __init__(self, experiment_id: str, folders: Iterable[Path]) -> None:
        self._name = f"spanwise-spool-{experiment_id[:12]}-{secrets.token_hex(4)}.jsonl"
        self._ahead = iter(folders)  # where a file has not been tried yet
        self._file: BinaryIO | None = None
        self.paths: list[Path] = []
        self.held: list[Parcel] = []  # for which there was no room anywhere

    def add(self, parcel: Parcel) -> None:
        """Keep a parcel at the end of a file; the next folder's if it cannot be written any more."""
        try:
            line = msgspec.json.encode(parcel, enc_hook=str) + b"\n"
        except (TypeError, ValueError, OverflowError, RecursionError):  # no JSON, but stores mend what they are given
            self.held.append(parcel)
            return
        while not self._written(line):
            folder = next(self._ahead, None)
            if folder is None:
                self.held.append(parcel)
                return
            self._begin(folder)

    def deliver(self, store: TraceStore) -> int:
        """Hand everything to a store, then remove the files; returns how many spans. The store's errors pass."""
        count = sum(_delivered(path, store) for path in self.paths)
        for parcel in self.held:
            parcel.deliver(store)
            count += len(parcel.runs)
        self.paths, self.held = [], []
        return count

    def parcels(self) -> Iterator[Parcel]:
        """What is still kept."""
        for path in self.paths:
            if path.exists():
                yield from _parcels(path)
        yield from self.held

    @property
    def size(self) -> int:
        """Bytes of the files that are still there."""
        return sum(path.stat().st_size for path in self.paths if path.exists())

    def close(self) -> None:
        """Write no more, and let others deliver it."""
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
            _lock(self._file)
            self.paths.append(path)

    def _written(self, line: bytes) -> bool:
        """Whether a whole line is at the end of the file; half of one is taken back."""
        if self._file is None:
            return False
        before = os.fstat(self._file.fileno()).st_size
        with contextlib.suppress(OSError):
            if self._file.write(line) == len(line):
                return True
        with contextlib.suppress(OSError):
            self._file.truncate(before)
        return False


def spool_of(experiment_id: str, store: Store) -> Spool:
    """A new spool for an experiment."""
    return Spool(experiment_id, _folders(store))


def deliver_waiting(experiment_id: str, store: Store) -> None:
    """Store what other processes have kept of an experiment, in whatever folder. The store's errors pass."""
    folders = [*_folders(store), Path.cwd()]
    former = Path(tempfile.gettempdir(), f"{FORMER}-{os.getuid()}")
    if former.is_dir() and _is_ours(former):
        folders.append(former)
    for folder in dict.fromkeys(folders):
        names = (f"{product}-spool-{experiment_id[:12]}*.jsonl" for product in (PRESENT, FORMER))
        for path in sorted(path for name in names for path in folder.glob(name)):
            if _is_being_written(path):
                say(f"spanwise: another process still writes {path}: what is in it is done again")
            else:
                say(f"spanwise: stored {deliver_spool(path, store)} spans that were kept in {path}")


def deliver_spool(path: Path, store: TraceStore) -> int:
    """Store what `evaluate()` kept in a file because the store failed, and remove the file; returns how many spans."""
    return _delivered(path, store) if path.exists() else 0


def _folders(store: Store) -> Iterator[Path]:
    """Where spools lie, the best place first."""
    where = store.where
    if "://" not in where and Path(where).is_file():
        yield Path(where).resolve().parent
    waiting = tracing().settings.spill_dir
    if waiting is not None:
        yield waiting / "experiments"
    temporary = Path(tempfile.gettempdir(), f"spanwise-{os.getuid()}")
    if _is_ours(temporary):
        yield temporary


def _is_ours(folder: Path) -> bool:
    """Whether nobody else can have put something there: what is temporary lies beside that of other people."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _delivered(path: Path, store: TraceStore) -> int:
    count = 0
    for parcel in _parcels(path):
        parcel.deliver(store)
        count += len(parcel.runs)
    with contextlib.suppress(OSError):  # stored it is; once more would do no harm
        path.unlink()
    return count


def _parcels(path: Path) -> Iterator[Parcel]:
    """The parcels of a file. Raises `ValueError` for a line that is none, but for the last, cut off by a kill."""
    decoder = msgspec.json.Decoder(Parcel)
    try:
        lines = path.open("rb")
    except FileNotFoundError:  # another process was faster
        return
    with lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                parcel = decoder.decode(line)
            except msgspec.DecodeError as error:
                raise ValueError(f"{path}: line {number} holds no runs ({error}): mend it, or take it out") from None
            yield msgspec.structs.replace(
                parcel,
                runs=[present_run(run) for run in parcel.runs],
                feedback=[present_feedback(one) for one in parcel.feedback],
            )


def _lock(file: BinaryIO) -> bool:
    """Whether this process has the file for itself; where locks are not known, it is taken to."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_being_written(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return not _lock(file)
    except OSError:
        return False
