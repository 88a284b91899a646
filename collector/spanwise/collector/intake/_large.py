"""Which bodies are large, and what memory is given back after them."""

from __future__ import annotations

import contextlib
import ctypes

LARGE = 512 * 1024  # bytes, from which on a body is decoded beside the event loop, and waits for its turn
HUGE = 4 * 1024 * 1024  # bytes, from which on it waits in the other lane; and memory is given back after it
# Runs, from which on they are encoded beside the event loop, handed over and written in pieces; amendments, or feedback
# with runs, in one commit
MANY = 250


def give_back() -> None:
    """Give freed memory back: the C library keeps it for the next such request, which may never come."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # elsewhere than with glibc
        ctypes.CDLL(None).malloc_trim(0)
