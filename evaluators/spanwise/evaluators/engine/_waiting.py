"""What an experiment waits for when no run finishes any more.

Read off the stacks of threads and coroutines, and only then: runs that go well pay nothing for it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any

from spanwise.evaluators.engine._progress import Bar, Quiet, say
from spanwise.evaluators.engine._run import run_here, run_on_loop
from spanwise.evaluators.protocol import Evaluator

STALLED = 10.0  # seconds without a finished run after which a bar says what is waited for
TOLD = 60.0  # and where there is no bar, one line
EVERY = 1.0  # seconds between two looks
_NAMED = 2
_JUDGING = {Evaluator.evaluate.__code__, Evaluator.evaluate_here.__code__, Evaluator.evaluate_batch.__code__}
_RUNNING = {run_here.__code__, run_on_loop.__code__}


class Watch:
    """Looks, on a thread of its own, whether runs still finish; if not, the bar says what is waited for."""

    def __init__(self, shown: Bar, loop: asyncio.AbstractEventLoop, *, aloud: bool) -> None:
        self.text = ""
        self._shown = shown
        self._loop = loop
        self._aloud = aloud and isinstance(shown, Quiet)
        self._over = threading.Event()
        self._moved = time.monotonic()

    def __enter__(self) -> Watch:
        threading.Thread(target=self._look, name="spanwise-watch", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def moved(self) -> None:
        """A run is done."""
        self._moved = time.monotonic()
        if self.text:
            self.text = ""
            self._shown.waiting("")

    def _look(self) -> None:
        while not self._over.wait(EVERY):
            seconds = time.monotonic() - self._moved
            if seconds < STALLED:
                continue
            self.text = _in_words(under_way(self._loop), seconds)
            self._shown.waiting(self.text)
            if self._aloud and TOLD <= seconds < TOLD + EVERY:
                say(f"spanwise: {self.text}; a timeout, of evaluate() or of the evaluator, makes it an error")


def under_way(loop: asyncio.AbstractEventLoop) -> list[str]:
    """Tasks and evaluators that are at work, in words; evaluators first."""
    frames = [*_of_threads(), *_of_coroutines(loop)]
    judging = {id(frame): _judged(frame.f_locals) for frame in frames if frame.f_code in _JUDGING}
    running = {id(frame): _ran(frame.f_locals) for frame in frames if frame.f_code in _RUNNING}
    return list(dict.fromkeys([*judging.values(), *running.values()]))


def _in_words(names: list[str], seconds: float) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"waiting for {', '.join(names[:_NAMED]) or 'the store'}{more} ({seconds:.0f} s)"


def _of_threads() -> Iterator[FrameType]:
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            yield frame
            frame = frame.f_back


def _of_coroutines(loop: asyncio.AbstractEventLoop) -> Iterator[FrameType]:
    for task in asyncio.all_tasks(loop):
        coroutine: Any = task.get_coro()
        while (frame := getattr(coroutine, "cr_frame", None)) is not None:
            yield frame
            coroutine = getattr(coroutine, "cr_await", None)


def _judged(values: Mapping[str, Any]) -> str:
    case = values.get("case")
    where = f"{len(values['cases'])} runs" if case is None else f"example {case.example.id[:12]}"
    return f"evaluator {values['self'].key!r} on {where}"


def _ran(values: Mapping[str, Any]) -> str:
    return f"the task on example {values['item'].example.id[:12]}"
