"""Disk spool: segment files with requests that could not be sent, file locks, expiry, replay and management.

A segment `<time>-<pid>-<serial>.spool` consists of records. Each record has a header and the body of a request.

- A process that writes or sends a segment holds a file lock on it. The system releases the lock when the process ends,
  so that no lock can become stale. A forked child does not share the lock.
- A request that is sent and not answered yet has a segment of its own, which is locked until the response.
- A record that needs no further attempt is marked as settled in place. A segment that has only settled records is
  deleted.
- A torn record (its writer was killed) is counted by its header. Files that Spanwise has not written are left alone.
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
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from struct import Struct
from typing import Any
from urllib.parse import urlsplit

import orjson

from spanwise.tracer import internal_errors
from spanwise.tracer.configuration import MIB, Settings, resolve_settings, resolve_valid_settings
from spanwise.tracer.export.otlp_http_client import OtlpHttpClient
from spanwise.tracer.export.span_encoding import LOGS_PATH, TRACES_PATH, parse_rejections
from spanwise.tracer.otel.live_span import ExitLock

# Disk spool: segment files with requests that could not be sent, file locks, expiry and replay.

try:
    import fcntl
# Windows has no such locks: two processes may send the same body, and Spanwise's collector stores it once
except ImportError:
    fcntl = None  # type: ignore[assignment]

MAX_FOLDER_BYTES = 256 * MIB  # for each directory
MAX_AGE_S = 7 * 86_400
OWNER_FILE = "about.json"  # owner of a directory: {"url", "project"}
_MAX_SEGMENT_BYTES = 8 * MIB
_DISK_RETRY_S = 10.0  # seconds without further writes after a failed write, as long as the memory is sufficient
# seconds after which nothing is appended to a segment, because the age of a segment is that of its first record
_MAX_SEGMENT_AGE_S = 3_600.0
_HEADER = Struct("<4sBBxxIII")  # magic, state, signal, items, length of the body, CRC of the body
_MAGIC = b"spw1"
_FORMER_MAGIC = b"asy1"  # segments written under the product's former name
_STATE_OFFSET = 4
_SIGNALS = (TRACES_PATH, LOGS_PATH)
_SETTLED = b"\x01"
_segment_numbers = itertools.count()
_own_segments: dict[Path, int] = {}  # segments of this process → unsent items
_busy_descriptors: set[int] = set()  # descriptors of segments that are being read or sent


def get_spool_folder(settings: Settings) -> Path | None:
    """Return the directory for the settings' collector, project and key, or None if spooling is off."""
    if settings.spill_dir is None:
        return None
    headers = (f"{name}={value}" for name, value in sorted(settings.headers.items()))
    identity = "\n".join((settings.url, settings.project, settings.api_key or "", *headers))
    return Path(settings.spill_dir, sha256(identity.encode()).hexdigest()[:16])


def describe_owner(settings: Settings) -> dict[str, str]:
    """Return the description of a directory's owner, without the key and without credentials in the address."""
    return {"url": settings.shown_url, "project": settings.project}


def count_spooled(folder: Path | None) -> int:
    """Return the number of items that this process has written to a spool directory and that have not been sent yet."""
    segments = [path for path in tuple(_own_segments) if path.parent == folder]
    for path in [path for path in segments if not path.exists()]:
        _own_segments.pop(path, None)  # another process has sent it
    return sum(_own_segments.get(path, 0) for path in segments)


@dataclass(frozen=True, slots=True)
class SpoolRecord:
    """Request on disk: offset in the segment, URL path, body and number of items. `body` is None if the record is
    torn.
    """

    offset: int
    path: str
    body: bytes | None
    count: int


class Spool:
    """Spool of one process in a directory."""

    def __init__(
        self, folder: Path | None, max_bytes: int = MAX_FOLDER_BYTES, owner: Mapping[str, str] | None = None
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._owner = owner or {}
        self._lock: Any = threading.RLock()  # application threads also write to the spool if the queue is high
        self._segment: tuple[Path, int] | None = None  # segment to which this process appends, and its descriptor
        self._segment_began = 0.0
        self._segment_size = 0
        self._broken_until = 0.0
        self.is_full = False  # True if the last write failed for lack of space
        self._unmeasured_bytes = max_bytes  # bytes written since the size of the directory was last measured

    def append(self, path: str, body: bytes, count: int) -> tuple[int, Mapping[str, int]]:
        """Write the body of a request to the spool. Return the number of items written, and the number of items lost by
        reason.
        """
        if self._folder is None:
            return 0, {"collector_away": count}
        with self._lock:
            try:
                self._append_locked(self._folder, path, body, count)
            except OSError as error:
                self._record_failure(error)
                return 0, {"disk": count}
            with suppress(OSError):  # the item is stored, even if making space for the next one fails
                return count, self._trim(self._folder)
            return count, {}

    def write_copy(self, path: str, body: bytes, count: int) -> RequestCopy | None:
        """Write the body of a request that is being sent, in case this process ends before the response.

        The copy has a segment of its own, which is locked until the response. Return None if it cannot be written.
        """
        if self._folder is None:
            return None
        try:
            copy = RequestCopy(*self._create_segment(self._folder), count)
            copy.write(_pack_record(path, body, count))
        except OSError as error:
            self._record_failure(error)
            return None
        self._unmeasured_bytes += len(body)
        return copy

    def _record_failure(self, error: OSError) -> None:
        self._broken_until = time.monotonic() + _DISK_RETRY_S
        self.is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        internal_errors.record_error("spill", error)

    @property
    def is_writable(self) -> bool:
        """Return whether writing is expected to succeed. A failed write disables the spool for a few seconds."""
        return self._folder is not None and time.monotonic() >= self._broken_until

    def replay(self, send: Callable[[str, bytes, int], str]) -> Mapping[str, int]:
        """Send the stored requests, oldest first, until a send returns `later`.

        The function `send(path, body, count)` returns the outcome. Return the number of items that were given up, by
        reason: too old, or torn.
        """
        lost: Counter[str] = Counter()
        if self._folder is None or not self._folder.is_dir():
            return lost
        self.close_segment()
        for path in list_segments(self._folder):
            if is_expired(path):
                lost["too_old"] += remove_segment(path)
            elif not self._replay_segment(path, send, lost):
                break
        return lost

    @property
    def folder(self) -> Path | None:
        """Return the directory, or None if spooling is off."""
        return self._folder

    def has_requests(self) -> bool:
        """Return whether the directory contains requests."""
        return self._folder is not None and self._folder.is_dir() and bool(list_segments(self._folder))

    def close_segment(self) -> None:
        """Close the segment to which this process appends, so that any process may send it."""
        with self._lock:
            self._close_own_segment()

    def bound_waits(self) -> None:
        """Limit the time that a thread waits for the lock; see `ExitLock`."""
        self._lock = ExitLock(self._lock)

    def reset_after_fork(self) -> None:
        """Reset the spool in a forked child, where no thread holds the lock. The segment belongs to the parent."""
        self._lock = threading.RLock()
        self._close_own_segment(forked=True)

    def _close_own_segment(self, forked: bool = False) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            _close_segment(segment[1], keep=forked)

    def _append_locked(self, folder: Path, path: str, body: bytes, count: int) -> None:
        if (
            self._segment is None
            or self._segment_size >= self._max_segment_bytes
            or time.monotonic() - self._segment_began > _MAX_SEGMENT_AGE_S
        ):
            self._close_own_segment()
            self._segment, self._segment_began, self._segment_size = self._create_segment(folder), time.monotonic(), 0
        assert self._segment is not None
        file, descriptor = self._segment
        record = _pack_record(path, body, count)
        before = os.fstat(descriptor).st_size
        try:
            _write_all(descriptor, record)
        except OSError:
            os.ftruncate(descriptor, before)
            raise
        self._segment_size = before + len(record)
        self._unmeasured_bytes += len(record)
        _own_segments[file] = _own_segments.get(file, 0) + count

    @property
    def _max_segment_bytes(self) -> int:
        return min(_MAX_SEGMENT_BYTES, self._max_bytes // 8)

    def _create_segment(self, folder: Path) -> tuple[Path, int]:
        """Create an empty segment and lock it."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._write_owner(folder)
        while True:
            file = folder / f"{time.time_ns():020d}-{os.getpid()}-{next(_segment_numbers)}.spool"
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | _NOFOLLOW, 0o600)
            if _try_lock(descriptor) and file.exists():
                return file, descriptor
            os.close(descriptor)  # another process opened the file before it was locked, found it empty, and removes it

    def _write_owner(self, folder: Path) -> None:
        if folder.stat().st_mode & 0o077:
            folder.chmod(0o700)
        try:
            with suppress(FileExistsError), os.fdopen(os.open(folder / OWNER_FILE, _CREATE_FLAGS, 0o600), "wb") as file:
                file.write(orjson.dumps(dict(self._owner)))
        except OSError:  # do not leave an empty file behind
            (folder / OWNER_FILE).unlink(missing_ok=True)
            raise

    def _trim(self, folder: Path) -> Mapping[str, int]:
        """Remove the oldest segments until the directory is within its limit. Return the items lost, by reason."""
        lost: Counter[str] = Counter()
        if self._unmeasured_bytes < self._max_segment_bytes // 2:
            return lost
        self._unmeasured_bytes = 0
        sizes = {path: _get_file_size(path) for path in list_segments(folder)}
        excess = sum(sizes.values()) - self._max_bytes
        for path, size in sizes.items():
            if excess <= 0:
                break
            if self._segment is not None and path == self._segment[0]:
                self._close_own_segment()
            lost["disk_full"] += remove_segment(path)
            excess -= 0 if path.exists() else size
        return +lost

    def _replay_segment(self, path: Path, send: Callable[[str, bytes, int], str], lost: Counter[str]) -> bool:
        """Send a segment. Return False if a send returned `later`. Segments that another process holds are skipped."""
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
    """Segment with one body that is being sent."""

    def __init__(self, file: Path, descriptor: int, count: int) -> None:
        self._file, self._descriptor, self._count = file, descriptor, count
        _busy_descriptors.add(descriptor)

    def write(self, record: bytes) -> None:
        """Write the record. If that raises `OSError`, the segment is removed."""
        try:
            _write_all(self._descriptor, record)
        except OSError:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove the segment after the final response."""
        self._file.unlink(missing_ok=True)
        self._close()

    def keep(self) -> None:
        """Keep the segment for a later attempt, because the body was not accepted."""
        _own_segments[self._file] = self._count
        self._close()

    def _close(self) -> None:
        _busy_descriptors.discard(self._descriptor)
        _close_segment(self._descriptor)


_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW


def list_segments(folder: Path) -> list[Path]:
    """Return the segments of a directory, oldest first."""
    return sorted(path for path in folder.glob("*.spool") if path.name[:20].isdigit())


def is_expired(path: Path) -> bool:
    """Return whether a segment is older than `MAX_AGE_S`.

    The age counts from the time in the file name or from the last change of the file, whichever is earlier. This also
    gives an age to a segment whose name has a time in the future.
    """
    began = int(path.name[:20]) / 1e9
    with suppress(OSError):
        began = min(began, path.stat().st_mtime)
    return time.time() - began > MAX_AGE_S


@contextmanager
def open_segment(path: Path) -> Iterator[int | None]:
    """Provide the locked descriptor of a segment inside the block, or None if it is gone or another process holds its
    lock.
    """
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
        ):  # if not, this is a child that was forked meanwhile, and the parent continues with the segment
            _busy_descriptors.discard(descriptor)
            _close_segment(descriptor, keep=not locked)


def read_records(descriptor: int) -> Iterator[SpoolRecord]:
    """Yield the unsettled records of an open segment, in order."""
    size = os.fstat(descriptor).st_size
    for offset, signal, count, length, crc in _read_headers(descriptor, size):
        # limited, because the length in the header may be torn as well
        body = os.pread(descriptor, min(length, size - offset), offset + _HEADER.size)
        is_complete = len(body) == length and zlib.crc32(body) == crc
        yield SpoolRecord(offset, _SIGNALS[signal], body if is_complete else None, count)


def count_items(descriptor: int) -> int:
    """Return the number of unsettled items in an open segment, according to the headers."""
    return sum(count for _, _, count, _, _ in _read_headers(descriptor, os.fstat(descriptor).st_size))


def _read_headers(descriptor: int, size: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the offset, signal, number of items, body length and CRC of each unsettled record."""
    offset = 0
    while offset + _HEADER.size <= size:
        magic, state, signal, count, length, crc = _HEADER.unpack(os.pread(descriptor, _HEADER.size, offset))
        if magic not in (_MAGIC, _FORMER_MAGIC) or signal >= len(_SIGNALS):
            return  # not written by Spanwise: the next record cannot be located
        if not state:
            yield offset, signal, count, length, crc
        offset += _HEADER.size + length


def mark_settled(descriptor: int, record: SpoolRecord) -> None:
    """Mark a record as settled, so that it is not sent again."""
    os.pwrite(descriptor, _SETTLED, record.offset + _STATE_OFFSET)


def remove_segment(path: Path) -> int:
    """Remove a segment, unless another process holds it. Return the number of unsettled items in it."""
    with open_segment(path) as descriptor:
        if descriptor is None:
            return 0
        waiting = sum(record.count for record in read_records(descriptor))
        path.unlink(missing_ok=True)
        _own_segments.pop(path, None)
        return waiting


def _try_lock(descriptor: int) -> bool:
    """Return whether this process may use a segment: it holds the lock now, or the file system has no locks."""
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def _close_segment(descriptor: int, keep: bool = False) -> None:
    """Close a segment and release its lock. With `keep`, another process holds the lock, which is not released.

    Closing alone is not enough: a forked child has a copy of the descriptor, which would keep the lock as long as the
    child runs.
    """
    if fcntl is not None and not keep:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _pack_record(path: str, body: bytes, count: int) -> bytes:
    return _HEADER.pack(_MAGIC, 0, _SIGNALS.index(path), count, len(body), zlib.crc32(body)) + body


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _get_file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def forget_after_fork() -> None:
    """Clear the state in a forked child, which has written nothing and must not send its parent's segments."""
    _own_segments.clear()
    while _busy_descriptors:
        os.close(_busy_descriptors.pop())


# Management of the spool directory: listing, sending and deleting unsent requests.
#
# Sending and deleting take the same locks as the tracers. Segments that a running tracer uses are left alone.

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::")  # host names of the local machine
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class SpoolFolder:
    """Spool directory with unsent requests.

    It has the collector's address and the project, the number and size of the items, and the time of the oldest one.
    """

    folder: Path
    url: str
    project: str
    items: int  # spans and feedback
    bytes: int
    oldest_ns: int


@dataclass(frozen=True, slots=True)
class SendResult:
    """Result of sending a spool directory: items `kept` by a collector, `lost` by reason, and `left` on disk."""

    kept: int
    lost: Mapping[str, int]
    left: int
    why: str = ""  # reason why items are left


def get_spool_directory() -> Path | None:
    """Return the directory that contains this user's spools, or None if spooling is off."""
    return _read_settings().spill_dir


def list_spool_folders(where: Path | None = None) -> list[SpoolFolder]:
    """Return the spool directories with unsent requests, oldest first. Unreadable directories are omitted."""
    where = where or get_spool_directory()
    found = [_inspect_folder(folder) for folder in sorted(where.iterdir())] if where and where.is_dir() else []
    return sorted((one for one in found if one is not None), key=lambda one: one.oldest_ns)


def read_spooled_spans(folder: Path) -> Iterator[bytes]:
    """Yield the span requests of a spool directory (`ExportTraceServiceRequest` as bytes) without removing them."""
    for segment in _open_for_reading(folder):
        for record in read_records(segment):
            if record.path == TRACES_PATH and record.body is not None:
                yield record.body


def is_same_address(one: str, other: str) -> bool:
    """Return whether two addresses reach the same server, by any name of the local machine."""
    return _normalize_address(one) == _normalize_address(other)


def send_spool_folder(waiting: SpoolFolder, to: str | None = None, *, with_key: bool = False) -> SendResult:
    """Send the requests of a spool directory to its own address or to `to`.

    The requests are sent as stored, that is, redacted. The API key of the environment is sent only to the address
    that the environment names, unless `with_key` is true. Requests that the collector refuses permanently are lost,
    as in the tracer.
    """
    url = to or waiting.url
    settings = _read_settings()
    if not is_same_address(settings.url, url):  # the key and headers of the environment are meant for another address
        settings = replace(settings, api_key=settings.api_key if with_key else None, traces_url=None, headers={})
    settings = replace(settings, url=url.rstrip("/"))
    post, kept, lost, why = OtlpHttpClient(settings), 0, Counter[str](), ""

    def send(path: str, body: bytes, count: int) -> str:
        nonlocal kept, why
        answer = post.send(path, body, settings.timeout)
        if answer.verdict == "later":
            why = answer.explanation or answer.reason
        elif answer.verdict == "ok":
            refused = min(count, parse_rejections(path, answer.body)[0])
            kept += count - refused
            lost.update({"rejected": refused} if refused else {})
        else:
            lost[answer.reason] += count
        return answer.verdict

    lost.update(Spool(waiting.folder).replay(send))
    left = _inspect_folder(waiting.folder)
    return SendResult(kept, +lost, left.items if left else 0, why)


def clear_spool_folder(waiting: SpoolFolder) -> int:
    """Remove the requests of a spool directory, except for segments that a process uses. Return the number of items."""
    return sum(map(remove_segment, list_segments(waiting.folder)))


def _read_settings() -> Settings:
    try:
        return resolve_settings()
    except ValueError:
        return resolve_valid_settings()


def _normalize_address(url: str) -> tuple[str, str, int | None, str]:
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    try:
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:  # invalid port
        port = None
    return parts.scheme, "localhost" if host in _LOCAL_HOSTS else host, port, parts.path.rstrip("/")


def _inspect_folder(folder: Path) -> SpoolFolder | None:
    try:
        found = list_segments(folder)
        items = sum(map(count_items, _open_for_reading(folder)))
        size = sum(path.stat().st_size for path in found)
    except OSError:
        return None
    if not items:
        return None
    try:
        owner = orjson.loads((folder / OWNER_FILE).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        owner = None
    if not isinstance(owner, dict):  # the owner is unknown
        owner = {}
    url, project = str(owner.get("url", "")), str(owner.get("project", ""))
    return SpoolFolder(folder, url, project, items, size, int(found[0].name[:20]))


def _open_for_reading(folder: Path) -> Iterator[int]:
    """Yield the segments, opened for reading without a lock. They may grow or disappear meanwhile."""
    for path in list_segments(folder):
        try:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        except OSError:
            continue
        try:
            yield descriptor
        finally:
            os.close(descriptor)
