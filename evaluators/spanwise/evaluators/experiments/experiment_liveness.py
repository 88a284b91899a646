"""Liveness of an experiment: heartbeat in its record, and a watchdog that reports a stall and its cause.

The watchdog inspects the stacks of threads and coroutines only after a stall, so normal runs do not become slower.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from types import FrameType
from typing import Any

from spanwise.collector.stores import Store
from spanwise.evaluators.experiments.task_run import run_task_on_loop, run_task_on_thread
from spanwise.evaluators.interface import Evaluator, ProgressBar, print_message

HEARTBEAT_INTERVAL = 5.0  # seconds between two heartbeats


class Heartbeat:
    """Heartbeat thread that updates `seen_ns` in an experiment's record every few seconds.

    It continues while tasks, the store or set-level evaluators take long. Errors of the store are ignored.
    """

    def __init__(self, store: Store, experiment_id: str, every: float = HEARTBEAT_INTERVAL) -> None:
        self._store, self._id, self._every = store, experiment_id, every
        self._stopped = threading.Event()

    def __enter__(self) -> Heartbeat:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the heartbeat thread."""

        def beat() -> None:
            while not self._stopped.wait(self._every):
                with contextlib.suppress(Exception):
                    self._store.change_experiment(self._id, seen_ns=time.time_ns())

        threading.Thread(target=beat, name="spanwise-heartbeat", daemon=True).start()

    def stop(self) -> None:
        """Stop the heartbeat, without waiting for an update in progress."""
        self._stopped.set()


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

    def __init__(self, bar: ProgressBar, loop: asyncio.AbstractEventLoop, *, prints: bool) -> None:
        """Create the watchdog. With `prints`, it also prints the reason of a long stall if the bar is not visible."""
        self.status = ""  # the reason of the present stall
        self._bar = bar
        self._loop = loop
        self._prints = prints and not bar.is_visible
        self._stopped = threading.Event()
        self._last_progress = time.monotonic()

    def __enter__(self) -> StallWatchdog:
        threading.Thread(target=self._watch, name="spanwise-watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()

    def note_progress(self) -> None:
        """Record that a run has finished."""
        self._last_progress = time.monotonic()
        if self.status:
            self.status = ""
            self._bar.show_status("")

    def _watch(self) -> None:
        while not self._stopped.wait(CHECK_INTERVAL):
            seconds = time.monotonic() - self._last_progress
            if seconds < STALLED_AFTER:
                continue
            names = describe_pending_work(self._loop)
            more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
            self.status = f"waiting for {', '.join(names[:_MAX_NAMED]) or 'the store'}{more} ({seconds:.0f} s)"
            self._bar.show_status(self.status)
            if self._prints and REPORT_AFTER <= seconds < REPORT_AFTER + CHECK_INTERVAL:
                remedy = "a timeout of evaluate() or of the evaluator turns this into an error"
                print_message(f"spanwise: {self.status}; {remedy}")


def describe_pending_work(loop: asyncio.AbstractEventLoop) -> list[str]:
    """Return descriptions of the running evaluators, then of the running tasks.

    They are read from the local variables of the functions on the stacks of all threads and of the loop's tasks.
    """
    frames: list[FrameType] = []
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
    for task in asyncio.all_tasks(loop):
        coroutine: Any = task.get_coro()
        while (frame := getattr(coroutine, "cr_frame", None)) is not None:
            frames.append(frame)
            coroutine = getattr(coroutine, "cr_await", None)
    evaluators, tasks = [], []
    for frame in frames:
        if frame.f_code in _EVALUATOR_CODES:
            values = frame.f_locals
            case = values.get("case")
            subject = f"{len(values['cases'])} runs" if case is None else f"example {case.example.id[:12]}"
            evaluators.append(f"evaluator {values['self'].key!r} on {subject}")
        elif frame.f_code in _TASK_CODES:
            tasks.append(f"the task on example {frame.f_locals['item'].example.id[:12]}")
    return list(dict.fromkeys([*evaluators, *tasks]))
