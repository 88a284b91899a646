"""Liveness of an experiment: heartbeat in its record, and a watchdog that reports a stall and its cause.

The watchdog inspects the stacks of threads and coroutines only after a stall, so normal runs do not become slower.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any

from spanwise.collector.stores import Store
from spanwise.evaluators.experiments.experiment_progress import HiddenBar, ProgressBar, print_message
from spanwise.evaluators.experiments.task_run import run_task_on_loop, run_task_on_thread
from spanwise.evaluators.interface import Evaluator

HEARTBEAT_INTERVAL = 5.0  # seconds between two heartbeats


class Heartbeat:
    """Heartbeat thread that updates `seen_ns` in an experiment's record every few seconds.

    It continues while tasks, the store or set-level evaluators take long. Errors of the store are ignored.
    """

    def __init__(self, store: Store, experiment_id: str, every: float = HEARTBEAT_INTERVAL) -> None:
        self._store, self._id, self._every = store, experiment_id, every
        self._over = threading.Event()

    def __enter__(self) -> Heartbeat:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the heartbeat thread."""
        threading.Thread(target=self._beat, name="spanwise-heartbeat", daemon=True).start()

    def stop(self) -> None:
        """Stop the heartbeat, without waiting for an update in progress."""
        self._over.set()

    def _beat(self) -> None:
        while not self._over.wait(self._every):
            with contextlib.suppress(Exception):
                self._store.change_experiment(self._id, seen_ns=time.time_ns())


STALLED_AFTER = 10.0  # seconds without a finished run before the progress bar shows the reason
REPORT_AFTER = 60.0  # seconds without a finished run before a message is printed, if there is no progress bar
CHECK_INTERVAL = 1.0  # seconds between two checks
_MAX_NAMED = 2
_EVALUATOR_CODES = {Evaluator.evaluate.__code__, Evaluator.evaluate_here.__code__, Evaluator.evaluate_batch.__code__}
_TASK_CODES = {run_task_on_thread.__code__, run_task_on_loop.__code__}


class StallWatchdog:
    """Watchdog thread that checks whether runs still finish.

    After a stall the progress bar shows what the experiment waits for.
    """

    def __init__(self, shown: ProgressBar, loop: asyncio.AbstractEventLoop, *, aloud: bool) -> None:
        self.text = ""
        self._shown = shown
        self._loop = loop
        self._aloud = aloud and isinstance(shown, HiddenBar)
        self._over = threading.Event()
        self._moved = time.monotonic()

    def __enter__(self) -> StallWatchdog:
        threading.Thread(target=self._look, name="spanwise-watch", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def moved(self) -> None:
        """Record that a run has finished."""
        self._moved = time.monotonic()
        if self.text:
            self.text = ""
            self._shown.waiting("")

    def _look(self) -> None:
        while not self._over.wait(CHECK_INTERVAL):
            seconds = time.monotonic() - self._moved
            if seconds < STALLED_AFTER:
                continue
            self.text = _format_stall(describe_pending_work(self._loop), seconds)
            self._shown.waiting(self.text)
            if self._aloud and REPORT_AFTER <= seconds < REPORT_AFTER + CHECK_INTERVAL:
                print_message(
                    f"spanwise: {self.text}; a timeout of evaluate() or of the evaluator turns this into an error"
                )


def describe_pending_work(loop: asyncio.AbstractEventLoop) -> list[str]:
    """Return descriptions of the running evaluators, then of the running tasks."""
    frames = [*_iterate_thread_frames(), *_iterate_coroutine_frames(loop)]
    judging = {id(frame): _describe_evaluation(frame.f_locals) for frame in frames if frame.f_code in _EVALUATOR_CODES}
    running = {id(frame): _describe_task(frame.f_locals) for frame in frames if frame.f_code in _TASK_CODES}
    return list(dict.fromkeys([*judging.values(), *running.values()]))


def _format_stall(names: list[str], seconds: float) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"waiting for {', '.join(names[:_MAX_NAMED]) or 'the store'}{more} ({seconds:.0f} s)"


def _iterate_thread_frames() -> Iterator[FrameType]:
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            yield frame
            frame = frame.f_back


def _iterate_coroutine_frames(loop: asyncio.AbstractEventLoop) -> Iterator[FrameType]:
    for task in asyncio.all_tasks(loop):
        coroutine: Any = task.get_coro()
        while (frame := getattr(coroutine, "cr_frame", None)) is not None:
            yield frame
            coroutine = getattr(coroutine, "cr_await", None)


def _describe_evaluation(values: Mapping[str, Any]) -> str:
    case = values.get("case")
    where = f"{len(values['cases'])} runs" if case is None else f"example {case.example.id[:12]}"
    return f"evaluator {values['self'].key!r} on {where}"


def _describe_task(values: Mapping[str, Any]) -> str:
    return f"the task on example {values['item'].example.id[:12]}"
