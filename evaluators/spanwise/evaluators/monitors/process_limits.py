"""Limits of a worker process: memory limit and use, parent-death signal, crash reports.

Memory use is known on Linux only. On other systems, and without a limit, no worker counts as full.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import os
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG = 1  # from linux/prctl.h


def protect_process(report: int, memory: int | None) -> None:
    """Configure this process: it ends with its parent, is the first victim of the OOM killer, and writes no core file.

    The file descriptor `report` receives the traceback of a crash. `memory` limits the process's memory in bytes, so
    that allocations beyond the limit fail in this process only.
    """
    import resource  # imported here, because Python has it on Unix only

    faulthandler.enable(file=report, all_threads=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        # The kernel sends the signal even while an extension blocks Python's threads
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
    if memory is not None:
        # RLIMIT_DATA counts the heap and private writable pages. RLIMIT_AS also counts mapped pages that are never
        # used; models and threads have tens of gigabytes of these.
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(
            resource.RLIMIT_DATA, (memory if hard == resource.RLIM_INFINITY else min(memory, hard), hard)
        )


def default_memory_limit(workers: int) -> int:
    """Return the memory limit of each worker in bytes.

    Together the workers get half of the machine's memory, and each one at least 2 GiB.
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(total // 2 // workers, 2 << 30)


OWN_GROWTH_SHARE = (
    # share of the memory that was free after loading; if use has grown by less, the evaluator itself caused the
    # memory error
    0.25
)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MEMORY_ERRORS = ("can't start new thread", "can't allocate memory", "cannot allocate memory", "out of memory")


class WorkerMemory:
    """Memory use of the process, in bytes, measured against its data limit (`RLIMIT_DATA`).

    The counter `deferred` counts evaluator failures that were blamed on the full process.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit, self._loaded = limit, memory_in_use() or 0
        self.deferred = 0

    def rules_are_loaded(self) -> None:
        """Record the present memory use as the baseline, after the rules are loaded and before any evaluator has
        run.
        """
        self._loaded = memory_in_use() or 0

    @property
    def has_grown(self) -> bool:
        """Return whether memory use has grown so much that an evaluator may fail because of what other evaluators
        keep.
        """
        now = memory_in_use()
        return (
            self._limit is not None
            and now is not None
            and now - self._loaded > OWN_GROWTH_SHARE * (self._limit - self._loaded)
        )

    def is_to_blame(self, error: BaseException | None) -> bool:
        """Return whether an evaluator failed because the process was full, and not because it needed too much memory
        itself.
        """
        if error is None or not is_memory_error(error) or not self.has_grown:
            return False
        self.deferred += 1
        return True

    @property
    def is_short(self) -> bool:
        """Return whether evaluators have failed because the process was full, and it is still full."""
        return self.deferred > 0 and self.has_grown

    def __str__(self) -> str:
        return f"{(memory_in_use() or 0) / 2**30:.2f} of {(self._limit or 0) / 2**30:.2f} GiB"


def memory_in_use() -> int | None:
    """Return the bytes that count against `RLIMIT_DATA`; None if the system does not report them."""
    with suppress(OSError, ValueError, IndexError), open("/proc/self/statm", "rb", buffering=0) as file:
        return int(file.read(200).split()[5]) * _PAGE_BYTES
    return None


def is_memory_error(error: BaseException) -> bool:
    """Return whether an exception, or one of its causes, reports that memory ran out."""
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
