"""What waits on this machine's disk for a collector, for whoever looks after it: to list, send and remove it.

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

from spanwise.tracer import _spool
from spanwise.tracer._encode import TRACES, rejected
from spanwise.tracer._post import Post
from spanwise.tracer._settings import Settings, resolve, salvaged
from spanwise.tracer._spool import Record, Spool, is_old, opened, records, remove, segments, settle

__all__ = [  # noqa: RUF022 (the folder's own hands first: who keeps requests of another kind in one uses these)
    "Record",
    "Spool",
    "TRACES",
    "is_old",
    "opened",
    "records",
    "remove",
    "segments",
    "settle",
    "Sent",
    "Waiting",
    "clear",
    "place",
    "same_address",
    "send",
    "spans",
    "waiting",
]

_NEAR = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::")  # names of this machine to itself
_PORTS = {"http": 80, "https": 443}
_UNNAMED = {"url": "", "project": ""}  # a folder that does not say whose it is


@dataclass(frozen=True, slots=True)
class Waiting:
    """A folder in which something waits: for which address and project, how much, since when."""

    folder: Path
    url: str
    project: str
    items: int  # spans and feedback
    bytes: int
    oldest_ns: int


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of the items of a folder: `kept` by a collector, `lost` by reason, `left` where they are."""

    kept: int
    lost: Mapping[str, int]
    left: int
    why: str = ""  # they were left


def place() -> Path | None:
    """Where this user's folders are; None where nothing is kept on disk."""
    return _settings().spill_dir


def waiting(where: Path | None = None) -> list[Waiting]:
    """The folders in which something waits, by age; those that cannot be read are left out."""
    where = where or place()
    found = [_looked_at(folder) for folder in sorted(where.iterdir())] if where and where.is_dir() else []
    return sorted((one for one in found if one is not None), key=lambda one: one.oldest_ns)


def spans(folder: Path) -> Iterator[bytes]:
    """The requests of spans (`ExportTraceServiceRequest` as bytes) that wait in a folder, left where they are."""
    for segment in _opened(folder):
        for record in records(segment):
            if record.path == TRACES and record.body is not None:
                yield record.body


def same_address(one: str, other: str) -> bool:
    """Whether two addresses lead to one place, whatever this machine is called in them."""
    return _address(one) == _address(other)


def send(waiting: Waiting, to: str | None = None, *, with_key: bool = False) -> Sent:
    """Send what waits in a folder to its own address or another one, as it was written: redacted then.

    The environment's key goes to the address that the environment names, and to any `with_key`. What the collector
    refuses for good is lost, as it is for the tracer.
    """
    settings = _for(to or waiting.url, with_key)
    post, kept, lost, why = Post(settings), 0, Counter[str](), ""

    def one(path: str, body: bytes, count: int) -> str:
        nonlocal kept, why
        answer = post.send(path, body, settings.timeout)
        if answer.verdict == "later":
            why = answer.explanation or answer.reason
        elif answer.verdict == "ok":
            refused = min(count, rejected(path, answer.body)[0])
            kept += count - refused
            lost.update({"rejected": refused} if refused else {})
        else:
            lost[answer.reason] += count
        return answer.verdict

    lost.update(Spool(waiting.folder).replay(one))
    left = _looked_at(waiting.folder)
    return Sent(kept, +lost, left.items if left else 0, why)


def clear(waiting: Waiting) -> int:
    """Remove what waits in a folder, but for what a process is at; returns how many items."""
    return sum(map(remove, segments(waiting.folder)))


def _settings() -> Settings:
    try:
        return resolve()
    except ValueError:
        return salvaged()


def _for(url: str, with_key: bool) -> Settings:
    """The environment's settings, with key and headers only where they are for that address."""
    settings = _settings()
    if same_address(settings.url, url):
        return replace(settings, url=url.rstrip("/"))
    key = settings.api_key if with_key else None
    return replace(settings, url=url.rstrip("/"), api_key=key, traces_url=None, headers={})


def _address(url: str) -> tuple[str, str, int | None, str]:
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    try:
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:  # no number
        port = None
    return parts.scheme, "localhost" if host in _NEAR else host, port, parts.path.rstrip("/")


def _looked_at(folder: Path) -> Waiting | None:
    try:
        found = segments(folder)
        items = sum(map(_spool.items, _opened(folder)))
        size = sum(path.stat().st_size for path in found)
    except OSError:
        return None
    if not items:
        return None
    whose = _whose(folder)
    return Waiting(folder, whose["url"], whose["project"], items, size, int(found[0].name[:20]))


def _whose(folder: Path) -> Mapping[str, str]:
    try:
        said = orjson.loads((folder / _spool.ABOUT).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return _UNNAMED
    return {name: str(said.get(name, "")) for name in _UNNAMED} if isinstance(said, dict) else _UNNAMED


def _opened(folder: Path) -> Iterator[int]:
    """The segments for reading, without a lock: they may grow or go meanwhile."""
    for path in segments(folder):
        try:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        except OSError:
            continue
        try:
            yield descriptor
        finally:
            os.close(descriptor)
