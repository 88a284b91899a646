"""Large work beside the event loop, so that others are answered meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

R = TypeVar("R")


class Beside:
    """One thread for large work: one piece at a time, as each takes several times its size in memory."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "assay-large")  # which starts with its first work

    async def __call__(self, work: Callable[..., R], *args: Any) -> R:
        """Do something large."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    def trim(self) -> None:
        """Give freed memory back to the system, a second from now."""
        asyncio.get_running_loop().call_later(1.0, self._thread.submit, _trim)

    def close(self) -> None:
        """End the thread, after the work that it is at."""
        self._thread.shutdown(cancel_futures=True)


def _trim() -> None:
    """The C library keeps what was freed for the next such request, which may never come."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # elsewhere than with glibc
        ctypes.CDLL(None).malloc_trim(0)
