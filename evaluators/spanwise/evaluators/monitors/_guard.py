"""What a worker's process does about its own end before it runs anybody's code."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from contextlib import suppress

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def guard(report: int, memory: int | None) -> None:
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
        _bound(memory)


def usual_memory(workers: int) -> int:
    """Bytes that each of some workers may fill: together half of what the machine has, but never less than 2 GiB."""
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(has // 2 // workers, 2 << 30)


def _bound(memory: int) -> None:
    import resource

    # RLIMIT_DATA counts the heap and private writable pages; RLIMIT_AS also what is mapped and never filled, of which
    # models and threads have tens of gigabytes
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (memory if hard == resource.RLIM_INFINITY else min(memory, hard), hard))
