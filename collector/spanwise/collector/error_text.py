"""Grouping of error messages: the same fault has one text, whatever object or task it came from."""

from __future__ import annotations

import re

_MAX_LENGTH = 300  # characters
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{4,}")
_NUMBERED = re.compile(
    r"\b(Task|Thread|ThreadPoolExecutor|ForkProcess|SpawnProcess|Process|Dummy|worker)-\d+(?:[-_]\d+)*"
)
_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)


def error_group(error: str | None) -> str | None:
    """Return an error's first line (300 characters at most) without addresses, task and thread numbers, and UUIDs."""
    if not error:
        return None
    line = error.lstrip().partition("\n")[0][: 4 * _MAX_LENGTH]
    line = _ADDRESS.sub("0x…", _UUID.sub("…", _NUMBERED.sub(r"\1-…", line)))
    return line[:_MAX_LENGTH].rstrip()
