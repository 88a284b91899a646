"""Disk spool: segment files with requests that could not be sent, file locks, expiry and replay.

A segment `<time>-<pid>-<serial>.spool` grows, record by record: a head, and the body of a request. Who writes or sends
a segment holds a lock on it, which the system takes back when the process ends, so that there is no claim that could
grow old; a child that was forked has no part in it. What is being sent and not answered yet is a segment of its own,
locked as long. A record that is settled is marked as such where it stands, and a
segment without others goes. What is torn (its writer was killed) is counted by what its head says; files that are none
of ours are left alone.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from struct import Struct
from typing import Any

import orjson

from spanwise.tracer import internal_errors
from spanwise.tracer.configuration import MIB, Settings
from spanwise.tracer.export.otlp_encoding import LOGS_PATH, TRACES_PATH
from spanwise.tracer.otel.exit_lock import ExitLock

try:
    import fcntl
except ImportError:  # Windows: a body may be sent by two processes there, and a collector of ours keeps it once
    fcntl = None  # type: ignore[assignment]

MAX_FOLDER_BYTES = 256 * MIB  # per folder
MAX_AGE_S = 7 * 86_400
OWNER_FILE = "about.json"  # whose it is: {"url", "project"}
_MAX_SEGMENT_BYTES = 8 * MIB
_DISK_RETRY_S = 10.0  # that a disk is left alone which could not be written, where memory will do
_MAX_SEGMENT_AGE_S = 3_600.0  # after which a segment is not added to: it goes by the age of its beginning
_HEAD = Struct("<4sBBxxIII")  # mark, state, signal, items, length of the body, its CRC
_MARK = b"spw1"
_FORMER_MARK = b"asy1"  # of segments from before the product was renamed
_STATE_AT = 4
_SIGNALS = (TRACES_PATH, LOGS_PATH)
_SETTLED = b"\x01"
_segment_numbers = itertools.count()
_own_segments: dict[Path, int] = {}  # segments that this process has written → items in them that wait
_busy_descriptors: set[int] = set()  # descriptors of segments that are being read and sent


def get_spool_folder(settings: Settings) -> Path | None:
    """The folder of the settings' collector, project and key; None where nothing is to be kept on disk."""
    if settings.spill_dir is None:
        return None
    headers = (f"{name}={value}" for name, value in sorted(settings.headers.items()))
    whose = "\n".join((settings.url, settings.project, settings.api_key or "", *headers))
    return Path(settings.spill_dir, sha256(whose.encode()).hexdigest()[:16])


def describe_owner(settings: Settings) -> dict[str, str]:
    """What a folder says of itself: neither a key nor what stands before an @."""
    return {"url": settings.shown_url, "project": settings.project}


def count_spooled(folder: Path | None) -> int:
    """How many items this process has in a folder that nobody has sent yet."""
    mine = [path for path in tuple(_own_segments) if path.parent == folder]
    for path in [path for path in mine if not path.exists()]:
        _own_segments.pop(path, None)  # another process has sent it
    return sum(_own_segments.get(path, 0) for path in mine)


@dataclass(frozen=True, slots=True)
class SpoolRecord:
    """A request on disk: its place in the segment, its path, body and number of items. `body` None: it is torn."""

    offset: int
    path: str
    body: bytes | None
    count: int


class Spool:
    """One process's hand on a folder."""

    def __init__(
        self, folder: Path | None, max_bytes: int = MAX_FOLDER_BYTES, about: Mapping[str, str] | None = None
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._about = about or {}
        self._adding: Any = threading.RLock()  # the application's threads write, too, where the queue is high
        self._own: tuple[Path, int] | None = None  # the segment that grows, and its descriptor
        self._began = 0.0
        self._size = 0
        self._broken_until = 0.0
        self.is_full = False  # whether there was no room for what was to be written last
        self._unchecked = max_bytes  # bytes written since the folder was measured

    def keep(self, path: str, body: bytes, count: int) -> tuple[int, Mapping[str, int]]:
        """Write a body; returns how many items were kept, and how many were lost, by reason."""
        if self._folder is None:
            return 0, {"collector_away": count}
        with self._adding:
            try:
                self._add(self._folder, path, body, count)
            except OSError as error:
                self._fails(error)
                return 0, {"disk": count}
            with suppress(OSError):  # it is kept, whether or not room can be made for the next one
                return count, self._trim(self._folder)
            return count, {}

    def copy(self, path: str, body: bytes, count: int) -> RequestCopy | None:
        """Write a body that is being sent, for the case that this process does not live to see the answer.

        Until it does, the segment is locked. None where it cannot be written.
        """
        if self._folder is None:
            return None
        try:
            made = RequestCopy(*self._new(self._folder), count)
            made.write(_pack_record(path, body, count))
        except OSError as error:
            self._fails(error)
            return None
        self._unchecked += len(body)
        return made

    def _fails(self, error: OSError) -> None:
        self._broken_until = time.monotonic() + _DISK_RETRY_S
        self.is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        internal_errors.record_error("spill", error)

    @property
    def works(self) -> bool:
        """Whether something can be kept, as far as is known: a disk that was full may be so for a while."""
        return self._folder is not None and time.monotonic() >= self._broken_until

    def replay(self, send: Callable[[str, bytes, int], str]) -> Mapping[str, int]:
        """Send what waits, oldest first, until a send says `later`: `send(path, body, count)` returns a verdict.

        Returns the items that were given up, by reason: too old, or torn.
        """
        lost: Counter[str] = Counter()
        if self._folder is None or not self._folder.is_dir():
            return lost
        self.rest()
        for path in list_segments(self._folder):
            if is_expired(path):
                lost["too_old"] += remove_segment(path)
            elif not self._send(path, send, lost):
                break
        return lost

    @property
    def folder(self) -> Path | None:
        """Where it keeps; None for nowhere."""
        return self._folder

    def waits(self) -> bool:
        """Whether something lies in the folder."""
        return self._folder is not None and self._folder.is_dir() and bool(list_segments(self._folder))

    def rest(self) -> None:
        """Add nothing more to the segment that grew: whoever comes first may send it."""
        with self._adding:
            self._rest()

    def bound_waits(self) -> None:
        """Wait for no lock for long from now on; see `ExitLock`."""
        self._adding = ExitLock(self._adding)

    def abandon(self) -> None:
        """In a forked child, where nobody holds the lock any more: the segment is the parent's."""
        self._adding = threading.RLock()
        self._rest(forked=True)

    def _rest(self, forked: bool = False) -> None:
        own, self._own = self._own, None
        if own is not None:
            _close_segment(own[1], keep=forked)

    def _add(self, folder: Path, path: str, body: bytes, count: int) -> None:
        if self._own is None or self._size >= self._largest or time.monotonic() - self._began > _MAX_SEGMENT_AGE_S:
            self._rest()
            self._begin(folder)
        assert self._own is not None
        file, descriptor = self._own
        record = _pack_record(path, body, count)
        before = os.fstat(descriptor).st_size
        try:
            _write_all(descriptor, record)
        except OSError:
            os.ftruncate(descriptor, before)
            raise
        self._size = before + len(record)
        self._unchecked += len(record)
        _own_segments[file] = _own_segments.get(file, 0) + count

    @property
    def _largest(self) -> int:
        return min(_MAX_SEGMENT_BYTES, self._max_bytes // 8)

    def _begin(self, folder: Path) -> None:
        self._own, self._began, self._size = self._new(folder), time.monotonic(), 0

    def _new(self, folder: Path) -> tuple[Path, int]:
        """An empty segment, locked for us."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._describe(folder)
        while True:
            file = folder / f"{time.time_ns():020d}-{os.getpid()}-{next(_segment_numbers)}.spool"
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | _NOFOLLOW, 0o600)
            if _try_lock(descriptor) and file.exists():
                return file, descriptor
            os.close(descriptor)  # who looked at it before it was locked has found it empty, and removes it

    def _describe(self, folder: Path) -> None:
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
        try:
            with suppress(FileExistsError), os.fdopen(os.open(folder / OWNER_FILE, _CREATE_FLAGS, 0o600), "wb") as file:
                file.write(orjson.dumps(dict(self._about)))
        except OSError:  # an empty file would stay for ever
            (folder / OWNER_FILE).unlink(missing_ok=True)
            raise

    def _trim(self, folder: Path) -> Mapping[str, int]:
        """Remove the oldest segments until the folder is within its bound; returns the items lost, by reason."""
        lost: Counter[str] = Counter()
        if self._unchecked < self._largest // 2:
            return lost
        self._unchecked = 0
        sizes = {path: _get_file_size(path) for path in list_segments(folder)}
        excess = sum(sizes.values()) - self._max_bytes
        for path, size in sizes.items():
            if excess <= 0:
                break
            if self._own is not None and path == self._own[0]:
                self._rest()
            lost["disk_full"] += remove_segment(path)
            excess -= 0 if path.exists() else size
        return +lost

    def _send(self, path: Path, send: Callable[[str, bytes, int], str], lost: Counter[str]) -> bool:
        """Send a segment; False when a send said `later`. One that another process holds is left to that."""
        with open_segment(path) as descriptor:
            if descriptor is None:
                return True
            for record in read_records(descriptor):
                if record.body is None:
                    lost["torn"] += record.count
                elif send(record.path, record.body, record.count) == "later":
                    return False
                mark_settled(descriptor, record)
                _own_segments[path] = max(0, _own_segments.get(path, 0) - record.count)
            path.unlink(missing_ok=True)
            _own_segments.pop(path, None)
        return True


class RequestCopy:
    """A segment with one body that is being sent."""

    def __init__(self, file: Path, descriptor: int, count: int) -> None:
        self._file, self._descriptor, self._count = file, descriptor, count
        _busy_descriptors.add(descriptor)

    def write(self, record: bytes) -> None:
        """Raises OSError, and leaves nothing then."""
        try:
            _write_all(self._descriptor, record)
        except OSError:
            self.remove()
            raise

    def remove(self) -> None:
        """The body was answered, for good."""
        self._file.unlink(missing_ok=True)
        self._close()

    def leave(self) -> None:
        """It was not: the copy waits like anything else on disk."""
        _own_segments[self._file] = self._count
        self._close()

    def _close(self) -> None:
        _busy_descriptors.discard(self._descriptor)
        _close_segment(self._descriptor)


_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW


def list_segments(folder: Path) -> list[Path]:
    """The segments of a folder, oldest first."""
    return sorted(path for path in folder.glob("*.spool") if path.name[:20].isdigit())


def is_expired(path: Path) -> bool:
    """Whether a segment began longer ago than anything is kept. One of the future is as old as its last change."""
    began = min(int(path.name[:20]) / 1e9, _get_modified_time(path))
    return time.time() - began > MAX_AGE_S


@contextmanager
def open_segment(path: Path) -> Iterator[int | None]:
    """The descriptor of a segment that is locked for us meanwhile; None where it is gone, or another process has it."""
    try:
        descriptor = os.open(path, os.O_RDWR | _NOFOLLOW)
    except OSError:
        yield None
        return
    _busy_descriptors.add(descriptor)
    locked = _try_lock(descriptor)
    try:
        yield descriptor if locked and path.exists() else None
    finally:
        if (
            descriptor in _busy_descriptors
        ):  # else we are a child that was forked meanwhile, and the parent goes on with it
            _busy_descriptors.discard(descriptor)
            _close_segment(descriptor, keep=not locked)


def read_records(descriptor: int) -> Iterator[SpoolRecord]:
    """What waits in an open segment, in order."""
    size = os.fstat(descriptor).st_size
    for place, signal, count, length, crc in _read_heads(descriptor, size):
        body = os.pread(descriptor, min(length, size - place), place + _HEAD.size)  # the length may be torn, too
        whole = len(body) == length and zlib.crc32(body) == crc
        yield SpoolRecord(place, _SIGNALS[signal], body if whole else None, count)


def count_items(descriptor: int) -> int:
    """How many items wait in an open segment, by what its heads say."""
    return sum(count for _, _, count, _, _ in _read_heads(descriptor, os.fstat(descriptor).st_size))


def _read_heads(descriptor: int, size: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Of each record that waits its place, signal, items, length and CRC."""
    place = 0
    while place + _HEAD.size <= size:
        mark, state, signal, count, length, crc = _HEAD.unpack(os.pread(descriptor, _HEAD.size, place))
        if mark not in (_MARK, _FORMER_MARK) or signal >= len(_SIGNALS):
            return  # not written by us: where the next one begins cannot be told
        if not state:
            yield place, signal, count, length, crc
        place += _HEAD.size + length


def mark_settled(descriptor: int, record: SpoolRecord) -> None:
    """Mark a record: nobody is to send it any more."""
    os.pwrite(descriptor, _SETTLED, record.offset + _STATE_AT)


def remove_segment(path: Path) -> int:
    """Remove a segment, unless another process holds it; returns how many items waited in it."""
    with open_segment(path) as descriptor:
        if descriptor is None:
            return 0
        waiting = sum(record.count for record in read_records(descriptor))
        path.unlink(missing_ok=True)
        _own_segments.pop(path, None)
        return waiting


def _try_lock(descriptor: int) -> bool:
    """Whether it is ours now; so it is where files cannot be locked at all."""
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def _close_segment(descriptor: int, keep: bool = False) -> None:
    """Close a segment. A child that was forked has a copy of the descriptor, which would hold the lock as long as it
    lives: the lock is given up as well, but where it is somebody else's to `keep`.
    """
    if fcntl is not None and not keep:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _pack_record(path: str, body: bytes, count: int) -> bytes:
    return _HEAD.pack(_MARK, 0, _SIGNALS.index(path), count, len(body), zlib.crc32(body)) + body


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _get_file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _get_modified_time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()


def forget_after_fork() -> None:
    """A forked child has written nothing itself, and sends nothing that its parent was about to."""
    _own_segments.clear()
    while _busy_descriptors:
        os.close(_busy_descriptors.pop())
