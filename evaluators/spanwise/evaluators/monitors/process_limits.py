"""Limits of a worker process: memory limit and use, parent-death signal, crash reports.

Known on Linux only. Elsewhere, and without a limit, no worker counts as full.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import os
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def protect_process(report: int, memory: int | None) -> None:
    """End with the parent, go first when memory runs out, say on `report` where a crash happened, leave no core file.

    `memory` bounds what this process may fill, in bytes: beyond it allocations fail here, and nowhere else.
    """
    import resource  # which there is on Unix alone, as much of this

    faulthandler.enable(file=report, all_threads=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        # The kernel does it, also while an extension keeps Python's threads from running
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
    if memory is not None:
        _limit_memory(memory)


def default_memory_limit(workers: int) -> int:
    """Bytes that each of some workers may fill: together half of what the machine has, but never less than 2 GiB."""
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(has // 2 // workers, 2 << 30)


def _limit_memory(memory: int) -> None:
    import resource

    # RLIMIT_DATA counts the heap and private writable pages; RLIMIT_AS also what is mapped and never filled, of which
    # models and threads have tens of gigabytes
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (memory if hard == resource.RLIM_INFINITY else min(memory, hard), hard))


OWN_GROWTH_SHARE = (
    0.25  # of the memory that was free after loading: with less growth than this, an error is the evaluator's own
)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MEMORY_ERRORS = ("can't start new thread", "can't allocate memory", "cannot allocate memory", "out of memory")


class WorkerMemory:
    """Use of the process's data limit (`RLIMIT_DATA`), in bytes.

    `deferred` counts evaluator failures that were put down to the full process.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit, self._loaded = limit, memory_in_use() or 0
        self.deferred = 0

    def rules_are_loaded(self) -> None:
        """Take the present use as that of a process in which no evaluator has run yet."""
        self._loaded = memory_in_use() or 0

    @property
    def has_grown(self) -> bool:
        """Whether evaluators have filled so much of this process that one of them may fail because of the others."""
        now = memory_in_use()
        return (
            self._limit is not None
            and now is not None
            and now - self._loaded > OWN_GROWTH_SHARE * (self._limit - self._loaded)
        )

    def is_to_blame(self, error: BaseException | None) -> bool:
        """Whether an evaluator failed because the process was full, and not by what it needs itself."""
        if error is None or not is_memory_error(error) or not self.has_grown:
            return False
        self.deferred += 1
        return True

    @property
    def is_short(self) -> bool:
        """Whether evaluators have failed because the process was full, and it still is."""
        return self.deferred > 0 and self.has_grown

    def __str__(self) -> str:
        return f"{(memory_in_use() or 0) / 2**30:.2f} of {(self._limit or 0) / 2**30:.2f} GiB"


def memory_in_use() -> int | None:
    """Return the bytes that count against `RLIMIT_DATA`; None where the system does not say."""
    with suppress(OSError, ValueError, IndexError), open("/proc/self/statm", "rb", buffering=0) as file:
        return int(file.read(200).split()[5]) * _PAGE_BYTES
    return None


def is_memory_error(error: BaseException) -> bool:
    """Return whether an exception, or one that led to it, says that memory ran out."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, MemoryError) or (isinstance(current, OSError) and current.errno == errno.ENOMEM):
            return True
        if isinstance(current, RuntimeError) and any(sign in str(current).lower() for sign in _MEMORY_ERRORS):
            return True
        current = current.__cause__ or current.__context__
    return False
