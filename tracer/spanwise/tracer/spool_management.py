"""Management of the spool directory: listing, sending and deleting unsent requests.

Sending and removing take the same locks as the tracers do whose it is: what one of them is at is left to it.
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

__all__ = [  # noqa: RUF022 (the folder's own hands first: who keeps requests of another kind in one uses these)
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

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::")  # names of this machine to itself
_DEFAULT_PORTS = {"http": 80, "https": 443}
_UNKNOWN_OWNER = {"url": "", "project": ""}  # a folder that does not say whose it is


@dataclass(frozen=True, slots=True)
class SpoolFolder:
    """A folder in which something waits: for which address and project, how much, since when."""

    folder: Path
    url: str
    project: str
    items: int  # spans and feedback
    bytes: int
    oldest_ns: int


@dataclass(frozen=True, slots=True)
class SendResult:
    """What became of the items of a folder: `kept` by a collector, `lost` by reason, `left` where they are."""

    kept: int
    lost: Mapping[str, int]
    left: int
    why: str = ""  # they were left


def get_spool_directory() -> Path | None:
    """Where this user's folders are; None where nothing is kept on disk."""
    return _read_settings().spill_dir


def list_spool_folders(where: Path | None = None) -> list[SpoolFolder]:
    """The folders in which something waits, by age; those that cannot be read are left out."""
    where = where or get_spool_directory()
    found = [_inspect_folder(folder) for folder in sorted(where.iterdir())] if where and where.is_dir() else []
    return sorted((one for one in found if one is not None), key=lambda one: one.oldest_ns)


def read_spooled_spans(folder: Path) -> Iterator[bytes]:
    """The requests of spans (`ExportTraceServiceRequest` as bytes) that wait in a folder, left where they are."""
    for segment in _open_for_reading(folder):
        for record in read_records(segment):
            if record.path == TRACES_PATH and record.body is not None:
                yield record.body


def is_same_address(one: str, other: str) -> bool:
    """Whether two addresses lead to one place, whatever this machine is called in them."""
    return _normalize_address(one) == _normalize_address(other)


def send_spool_folder(waiting: SpoolFolder, to: str | None = None, *, with_key: bool = False) -> SendResult:
    """Send what waits in a folder to its own address or another one, as it was written: redacted then.

    The environment's key goes to the address that the environment names, and to any `with_key`. What the collector
    refuses for good is lost, as it is for the tracer.
    """
    settings = _settings_for_address(to or waiting.url, with_key)
    post, kept, lost, why = OtlpHttpClient(settings), 0, Counter[str](), ""

    def one(path: str, body: bytes, count: int) -> str:
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

    lost.update(Spool(waiting.folder).replay(one))
    left = _inspect_folder(waiting.folder)
    return SendResult(kept, +lost, left.items if left else 0, why)


def clear_spool_folder(waiting: SpoolFolder) -> int:
    """Remove what waits in a folder, but for what a process is at; returns how many items."""
    return sum(map(remove_segment, list_segments(waiting.folder)))


def _read_settings() -> Settings:
    try:
        return resolve_settings()
    except ValueError:
        return resolve_valid_settings()


def _settings_for_address(url: str, with_key: bool) -> Settings:
    """The environment's settings, with key and headers only where they are for that address."""
    settings = _read_settings()
    if is_same_address(settings.url, url):
        return replace(settings, url=url.rstrip("/"))
    key = settings.api_key if with_key else None
    return replace(settings, url=url.rstrip("/"), api_key=key, traces_url=None, headers={})


def _normalize_address(url: str) -> tuple[str, str, int | None, str]:
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    try:
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:  # no number
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
    whose = _read_owner(folder)
    return SpoolFolder(folder, whose["url"], whose["project"], items, size, int(found[0].name[:20]))


def _read_owner(folder: Path) -> Mapping[str, str]:
    try:
        said = orjson.loads((folder / disk_spool.OWNER_FILE).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return _UNKNOWN_OWNER
    return {name: str(said.get(name, "")) for name in _UNKNOWN_OWNER} if isinstance(said, dict) else _UNKNOWN_OWNER


def _open_for_reading(folder: Path) -> Iterator[int]:
    """The segments for reading, without a lock: they may grow or go meanwhile."""
    for path in list_segments(folder):
        try:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        except OSError:
            continue
        try:
            yield descriptor
        finally:
            os.close(descriptor)
