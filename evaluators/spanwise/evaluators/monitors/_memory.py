"""Memory of a worker's process against its limit.

Known on Linux only. Elsewhere, and without a limit, no worker counts as full.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

OWN = 0.25  # of the memory that was free after loading: with less growth than this, an error is the evaluator's own
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SIGNS = ("can't start new thread", "can't allocate memory", "cannot allocate memory", "out of memory")


class Memory:
    """Use of the process's data limit (`RLIMIT_DATA`), in bytes.

    `deferred` counts evaluator failures that were put down to the full process.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit, self._loaded = limit, used() or 0
        self.deferred = 0

    def rules_are_loaded(self) -> None:
        """Take the present use as that of a process in which no evaluator has run yet."""
        self._loaded = used() or 0

    @property
    def has_grown(self) -> bool:
        """Whether evaluators have filled so much of this process that one of them may fail because of the others."""
        now = used()
        return self._limit is not None and now is not None and now - self._loaded > OWN * (self._limit - self._loaded)

    def is_to_blame(self, error: BaseException | None) -> bool:
        """Whether an evaluator failed because the process was full, and not by what it needs itself."""
        if error is None or not is_lack_of_memory(error) or not self.has_grown:
            return False
        self.deferred += 1
        return True

    @property
    def is_short(self) -> bool:
        """Whether evaluators have failed because the process was full, and it still is."""
        return self.deferred > 0 and self.has_grown

    def __str__(self) -> str:
        return f"{(used() or 0) / 2**30:.2f} of {(self._limit or 0) / 2**30:.2f} GiB"


def used() -> int | None:
    """Return the bytes that count against `RLIMIT_DATA`; None where the system does not say."""
    with suppress(OSError, ValueError, IndexError), open("/proc/self/statm", "rb", buffering=0) as file:
        return int(file.read(200).split()[5]) * _PAGE
    return None


def is_lack_of_memory(error: BaseException) -> bool:
    """Return whether an exception, or one that led to it, says that memory ran out."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, MemoryError) or (isinstance(current, OSError) and current.errno == errno.ENOMEM):
            return True
        if isinstance(current, RuntimeError) and any(sign in str(current).lower() for sign in _SIGNS):
            return True
        current = current.__cause__ or current.__context__
    return False
