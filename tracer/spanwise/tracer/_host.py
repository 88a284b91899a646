"""What is done once to the process that we live in: context for its threads, and a last delivery on SIGTERM."""

from __future__ import annotations

import _thread
import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from spanwise.tracer import _threads
from spanwise.tracer._errors import ours

_LONGEST_CLOSE = 20.0  # seconds after which SIGTERM ends the process even if delivery has not ended
_sigterm_done = False


def carry_context_into_threads(carried: bool = True) -> None:
    """Let threads and pools of threads hand the current context on, or no longer."""
    with ours("threads"):
        if not carried:
            _threads.restore()
        elif threading.main_thread().is_alive():  # after that, nothing prepares for threads any more
            _threads.carry()


def close_on_sigterm(close: Callable[[], object], hurry: Callable[[], object]) -> None:
    """Deliver before SIGTERM ends the process. An application's own handler stays in charge and has us hurry: uvicorn's
    ends the process by the same signal a tenth of a second later, with no handler of ours in place.
    """
    global _sigterm_done
    if _sigterm_done or threading.current_thread() is not threading.main_thread():
        return
    with ours("sigterm"):  # an interpreter may be without signals
        own = signal.getsignal(signal.SIGTERM)
        if own is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _closing(close))
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


def _closing(close: Callable[[], object]) -> Callable[[int, FrameType | None], None]:
    def handle(signum: int, frame: FrameType | None) -> None:
        signal.signal(signum, signal.SIG_DFL)
        # Not here: the interrupted code may hold a lock of ours. In bare threads, for `threading` has locks as well.
        try:
            _thread.start_new_thread(_end, (lambda: time.sleep(_LONGEST_CLOSE),))
            _thread.start_new_thread(_end, (close,))
        except RuntimeError:  # the system has no more threads, or the interpreter is finalizing
            os.kill(os.getpid(), signal.SIGTERM)

    return handle


def _end(wait: Callable[[], object]) -> None:
    """End the process after a wait, as the default action of SIGTERM does."""
    try:
        wait()
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
