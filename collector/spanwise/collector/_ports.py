"""Who holds a port, and who answers at an address."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

from spanwise.collector.hosts import url_of
from spanwise.tracer.suppression import suppress_instrumentation

PROBE = 0.5  # seconds
LISTENING = "0A"


def spanwise_at(url: str, timeout: float = PROBE) -> dict[str, Any] | None:
    """What a Spanwise server at `url` says of itself ({"pid", "store", …}, less without a key); None if none
    answers."""
    # Neither httpx nor a proxy: this runs at the start of programs that may not speak to a server at all
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    failures = OSError, ValueError, urllib.error.URLError, HTTPException  # the last where another protocol is spoken
    with suppress(*failures), suppress_instrumentation(), opener.open(f"{url}/healthz", timeout=timeout) as answer:
        answered = json.load(answer)
        return answered if isinstance(answered, dict) and answered.get("service") == "spanwise" else None
    return None


def holder(host: str, port: int) -> str:
    """Words for who holds a port: a Spanwise server and its store, a process by its name and id, or another program."""
    server = spanwise_at(url_of(host, port))
    if server and "store" in server:
        return f"a Spanwise server (process {server.get('pid')}, store {server['store']!r})"
    pid = next(_listeners(port), None)
    who = f"process {pid} ({_name(pid)})" if pid else "another program"
    return f"a Spanwise server, {who}" if server else who


def _listeners(port: int) -> Iterator[int]:
    """Processes that listen on a port, as far as Linux lets this user see."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    for link in Path("/proc").glob("[0-9]*/fd/*") if sockets else ():
        with suppress(OSError):
            if os.readlink(link) in sockets:
                yield int(link.parts[2])


def _inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return "of another user"
