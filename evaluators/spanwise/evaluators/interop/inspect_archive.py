"""Reader of Inspect's log files, in the formats `.eval` (a ZIP archive) and JSON.

Nothing is extracted to disk, so names of members cannot leave a folder. Members are decompressed in chunks up to
`MAX_MEMBER_BYTES`, so that a ZIP bomb is refused before it fills the memory. Inspect compresses members with Zstandard,
which Python's `zipfile` reads only from version 3.14 on.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import zstandard

from spanwise.evaluators.interop.experiment_import import ImportReport
from spanwise.evaluators.interop.json_stream import decode_json, iterate_members

MAX_MEMBER_BYTES = 64 << 20
MAX_MEMBERS = 1_000_000
CHUNK_BYTES = 1 << 18
ZSTANDARD = 93  # compression method of ZIP
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, lengths of name and extra field
HEADER, START = "header.json", "_journal/start.json"
SAMPLES = "samples/"


@dataclass(frozen=True)
class InspectLog:
    """Log file of Inspect. `header` has everything except the samples."""

    path: Path
    header: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> InspectLog:
        """Read the header of a log. Raises `ValueError` in one line for a file that is no log, and `OSError`."""
        with path.open("rb") as file:
            is_archive = file.read(2) == b"PK"
        if not is_archive and path.suffix.lower() == ".eval":
            raise ValueError(f"{path.name} is truncated or no ZIP archive, as Inspect's .eval files are")
        if is_archive:
            header = _read_archive_header(path)
        else:
            with path.open("rb") as file:
                header = {key: value for key, value, is_element in iterate_members(file, path.name) if not is_element}
        if not isinstance(header.get("eval"), Mapping) or not isinstance(
            header["eval"].get("eval_id") or header["eval"].get("run_id"), str
        ):
            raise ValueError(f"{path.name} is no log of Inspect: it has no eval with an eval_id")
        return cls(path, header)

    def samples(self, report: ImportReport) -> Iterator[Mapping[str, Any]]:
        """Yield the samples, one in memory at a time. Those that cannot be read are counted in the report."""
        with self.path.open("rb") as file:
            if file.read(2) == b"PK":
                yield from self._iterate_archive(report)
                return
            file.seek(0)
            for key, value, is_element in iterate_members(file, self.path.name):
                if key == "samples" and is_element:
                    if isinstance(value, Mapping):
                        yield value
                    else:
                        report.leave_out("samples", f"a sample must be an object, got {value!r:.100}")

    def _iterate_archive(self, report: ImportReport) -> Iterator[Mapping[str, Any]]:
        with _open_archive(self.path) as archive:
            for member in archive.infolist():
                if not member.filename.startswith(SAMPLES) or not member.filename.endswith(".json"):
                    continue
                try:
                    sample = _read_member(archive, member, self.path.name)
                    if not isinstance(sample, Mapping):
                        raise ValueError(f"{member.filename!r:.200} must be an object, got {sample!r:.100}")
                except ValueError as error:
                    report.leave_out("samples", str(error))
                    continue
                yield sample


def _open_archive(path: Path) -> zipfile.ZipFile:
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise ValueError(f"{path.name} is truncated or no ZIP archive: {error}") from None
    if len(archive.infolist()) > MAX_MEMBERS:
        archive.close()
        raise ValueError(f"{path.name} has more than {MAX_MEMBERS:,} members")
    return archive


def _read_archive_header(path: Path) -> Mapping[str, Any]:
    """Return the header. A log whose evaluation was killed has only the one written at its start."""
    with _open_archive(path) as archive:
        for name in (HEADER, START):
            if name in archive.NameToInfo:
                header = _read_member(archive, archive.getinfo(name), path.name)
                if isinstance(header, Mapping):
                    return header
    raise ValueError(f"{path.name} is no log of Inspect: it has no {HEADER}")


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: str) -> Any:
    """Return the JSON value of a member. Raises `ValueError` in one line for damaged, encrypted and too large members."""
    name = f"{member.filename!r:.200} in {where}"
    data = bytearray()
    try:
        with _open_member(archive, member) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                data += chunk
                if len(data) > MAX_MEMBER_BYTES:
                    raise ValueError(f"{name} is larger than {MAX_MEMBER_BYTES:,} bytes")
    except (zipfile.BadZipFile, zstandard.ZstdError, NotImplementedError, RuntimeError, OSError, EOFError) as error:
        raise ValueError(f"{name} is damaged: {' '.join(str(error).split())}") from None
    except Exception as error:
        if isinstance(error, ValueError):
            raise
        raise ValueError(f"{name} is damaged: {error}") from None  # errors of zlib and lzma have no common base
    if len(data) != member.file_size:
        raise ValueError(f"{name} is damaged: it has {len(data)} bytes instead of {member.file_size}")
    return decode_json(bytes(data), name)


def _open_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> IO[bytes]:
    if member.compress_type != ZSTANDARD:
        return archive.open(member)
    file = cast(BinaryIO, archive.fp)
    file.seek(member.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size or not header.startswith(b"PK\x03\x04"):
        raise zipfile.BadZipFile("its local header is missing")
    _, name_length, extra_length = _LOCAL_HEADER.unpack(header)
    file.seek(name_length + extra_length, 1)
    limited = _Limited(file, member.compress_size)
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    return cast(IO[bytes], decompressor.stream_reader(cast(Any, limited), read_size=CHUNK_BYTES, closefd=False))


class _Limited:
    """Reader of the next bytes of a file, up to a number of bytes."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, or all that are left."""
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data
