"""Management of the spool directory: listing, sending and deleting unsent requests.

Sending and deleting take the same locks as the tracers. Segments that a running tracer uses are left alone.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import orjson

from spanwise.tracer.configuration import Settings, resolve_settings, resolve_valid_settings
from spanwise.tracer.export import disk_spool
from spanwise.tracer.export.disk_spool import (
    Spool,
    SpoolRecord,
    is_expired,
    list_segments,
    mark_settled,
    open_segment,
    read_records,
    remove_segment,
)
from spanwise.tracer.export.otlp_encoding import TRACES_PATH, parse_rejections
from spanwise.tracer.export.otlp_http_client import OtlpHttpClient

__all__ = [  # noqa: RUF022 (the spool's primitives come first: the collector's forward queue uses them)
    "SpoolRecord",
    "Spool",
    "TRACES_PATH",
    "is_expired",
    "open_segment",
    "read_records",
    "remove_segment",
    "list_segments",
    "mark_settled",
    "SendResult",
    "SpoolFolder",
    "clear_spool_folder",
    "get_spool_directory",
    "is_same_address",
    "send_spool_folder",
    "read_spooled_spans",
    "list_spool_folders",
]

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
        items = sum(map(disk_spool.count_items, _open_for_reading(folder)))
        size = sum(path.stat().st_size for path in found)
    except OSError:
        return None
    if not items:
        return None
    try:
        owner = orjson.loads((folder / disk_spool.OWNER_FILE).read_bytes())
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
