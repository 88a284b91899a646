"""What is done once to the process that we live in: context for its threads, and a last delivery on SIGTERM."""

from __future__ import annotations

import _thread
import functools
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from assay.tracer import _threads
from assay.tracer._errors import ours

_sigterm_done = False


def carry_context_into_threads(carried: bool = True) -> None:
    """Let threads and pools of threads hand the current context on, or no longer."""
    with ours("threads"):
        if not carried:
            _threads.restore()
        elif threading.main_thread().is_alive():  # after that, nothing prepares for threads any more
            _threads.carry()


def flush_on_sigterm(flush: Callable[[], object], hurry: Callable[[], object]) -> None:
    """Deliver before SIGTERM ends the process. An application's own handler stays in charge and has us hurry: uvicorn's
    ends the process by the same signal a tenth of a second later, with no handler of ours in place.
    """
    global _sigterm_done
    if _sigterm_done or threading.current_thread() is not threading.main_thread():
        return
    with ours("sigterm"):  # an interpreter may be without signals
        own = signal.getsignal(signal.SIGTERM)
        if own is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _handler(flush))
            _sigterm_done = True
        elif callable(own):
            signal.signal(signal.SIGTERM, _hurrying(own, hurry))
            _sigterm_done = True


def _hurrying(
    own: Callable[[int, FrameType | None], Any], hurry: Callable[[], object]
) -> Callable[[int, FrameType | None], None]:
    @functools.wraps(own)
    def handle(signum: int, frame: FrameType | None) -> None:
        with ours("sigterm"):
            hurry()
        own(signum, frame)

    return handle


def _handler(flush: Callable[[], object]) -> Callable[[int, FrameType | None], None]:
    def last() -> None:
        try:
            flush()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def handle(signum: int, frame: FrameType | None) -> None:
        # Not here: the interrupted code may hold one of our locks. A bare thread, for `threading` has locks as well.
        signal.signal(signum, signal.SIG_DFL)
        _thread.start_new_thread(last, ())

    return handle
