"""Delivery lifecycle: background thread, export interval, flush, shutdown at exit and SIGTERM, and fork.

A delivery is `running`, then `draining`, then `closed`, and never goes back:

- running: `put` queues, and the delivery thread exports every half second. It starts when it is first needed.
- draining: `put` only queues, and starts no thread. The delivery thread exports what is queued and ends.
- closed: what is put is dropped and counted, or handed to the delivery that has replaced this one.

`shutdown()`, the end of the process, SIGTERM and a second `configure()` all call `close`. Each wait in it has a
deadline. A forked child begins anew, in the state `running`.
"""

from __future__ import annotations

import _thread
import atexit
import functools
import os
import queue
import signal
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple, replace
from functools import partial
from types import FrameType
from typing import Any, TypeAlias

from opentelemetry import context as otel_context

from spanwise.tracer import internal_errors
from spanwise.tracer.configuration import Settings
from spanwise.tracer.export import delivery_stats, disk_spool, tail_sampling
from spanwise.tracer.export.batch_exporter import Exporter
from spanwise.tracer.export.delivery_stats import FlushResult
from spanwise.tracer.export.otlp_encoding import FeedbackEvent
from spanwise.tracer.export.otlp_http_client import preload_modules
from spanwise.tracer.export.span_queue import ExportItem, SpanQueue
from spanwise.tracer.export.span_sanitizer import SpanSanitizer
from spanwise.tracer.internal_errors import error_boundary
from spanwise.tracer.otel import live_span, thread_context

EXIT_TIMEOUT = 0.8  # seconds that the end of the process waits for a sign of the collector
_MAX_STALL = 5.0  # seconds without progress after which the delivery thread is given up
_MAX_CLOSE_TIME = 15.0  # seconds that closing takes, even if the delivery thread makes progress
_POLL_INTERVAL = 0.1  # seconds between two looks whether the delivery thread is still there
_INTERVAL = 0.5  # between two rounds
_HURRIED_INTERVAL, _HURRIED_DURATION = (
    0.02,
    30.0,
)  # the same once the process was told to end, and how long it may take to
_Waiter: TypeAlias = "queue.SimpleQueue[None]"
exit_callbacks: list[Callable[[], None]] = []  # to be called before a process delivers for the last time
_live: dict[int, weakref.ref[Delivery]] = {}  # by id


class Delivery:
    """Takes ended spans and feedback from any thread and exports them from a thread of its own.

    A signal handler or a finalizer may interrupt any method and call any other in the same thread. So the state is kept
    in flags that are only ever set, and the one lock, `_slot`, is never waited for without a deadline. The delivery
    thread holds it from its start to its end: there can be only one.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.finisher = SpanSanitizer(settings)
        self._begin()
        _live[id(self)] = weakref.ref(self, partial(_live.pop, id(self)))

    def _begin(self) -> None:
        """Begin in the state `running`: for a new delivery, and in a new process."""
        self.queue = SpanQueue()
        self.exporter = Exporter(self.settings, self.finisher, self.queue)
        self.account = self.exporter.account
        self.successor: Delivery | None = None  # takes what comes after this one is closed
        self._is_draining = self._is_closed = False
        self._slot = threading.Lock()
        self._thread: threading.Thread | None = None
        # No `Event`: a signal handler would wait for its lock in the very thread that holds it.
        self._wake: queue.SimpleQueue[_Waiter | None] = queue.SimpleQueue()
        self._hurried_until = 0.0

    # -- from any thread --

    def put(self, item: ExportItem) -> None:
        """Hand over an ended span or a feedback. Never raises, never blocks on the network."""
        try:  # every span passes here: not `ours`, which costs something
            if self.queue.put(item):
                self._attend()
            if self._thread is None:
                self._start()
        except Exception as error:
            internal_errors.record_error("queue", error)

    def begin(self) -> None:
        """Be ready: a trace has begun, and may go on for long."""
        if self._thread is None and not self._is_closed:
            with internal_errors.error_boundary("queue"):
                self._start()

    def lose(self, reason: str, count: int) -> None:
        """Count spans that were dropped before they came here."""
        self.exporter.drop(reason, count)

    def dropped(self) -> Counter[str]:
        """Return the drops by reason, those at the queue included."""
        return self.exporter.tally.dropped + self.queue.dropped

    def idle(self) -> bool:
        """Return whether nothing waits."""
        return not self.exporter.pending

    def hurry(self) -> None:
        """Export more often: the process is about to end, perhaps without another word to us. Takes no lock."""
        self._hurried_until = time.monotonic() + _HURRIED_DURATION
        self._awake()

    def pick_up(self) -> None:
        """Start to deliver where something waits: in the queue, or in the spool since an earlier process."""
        if self._thread is None and (len(self.queue) or self.exporter.spool.waits()):
            self._start()

    def flush(self, timeout: float) -> FlushResult:
        """Deliver what is queued now, waiting at most `timeout` seconds."""
        tally = self.exporter.tally
        before = tally.delivered, self.dropped().total()
        self.pick_up()
        self._wait_for_round(time.monotonic() + timeout)
        return FlushResult(
            tally.delivered - before[0],
            disk_spool.count_spooled(self.exporter.spool.folder),
            self.dropped().total() - before[1],
            self.exporter.pending,
        )

    def close(self, timeout: float = EXIT_TIMEOUT) -> None:
        """Deliver what is queued, then end the delivery thread; what cannot be sent is spooled.

        Sends as long as something was acknowledged within the last `timeout` seconds, for 5 s at most. May be called
        again, and by several threads at once: all of them wait for the same end.
        """
        self.drain(timeout)
        self._wait_for_end()

    def drain(self, timeout: float = EXIT_TIMEOUT) -> None:
        """Have the delivery thread deliver what is queued and end, without waiting for that."""
        if not self._is_draining:
            if len(self.queue):
                with internal_errors.error_boundary("queue"):
                    self._start()
            self.exporter.limit(timeout)
            self._is_draining = True
        self._awake()

    # -- the delivery thread --

    def _start(self) -> None:
        """Start the delivery thread, unless there is one or the state forbids it."""
        if self._is_closed:
            return self._settle_late()
        if sys.is_finalizing():
            return self._end_without_thread()
        if self._is_draining or not self._slot.acquire(blocking=False):
            return None  # else another thread is starting it, or the code that this signal handler has interrupted
        thread = threading.Thread(target=self._run, name="spanwise-delivery", daemon=True)
        try:
            thread.start()
        except BaseException as error:
            if thread.ident is None:
                self._slot.release()
            if not isinstance(error, RuntimeError) or threading.main_thread().is_alive():
                raise  # the system has no more threads: the next span tries again
            return self._spool_without_thread()  # after the main thread has ended, Python 3.12 starts none any more
        _close_at_end_of_child()
        if self.settings.by_otel:
            where = self.settings.shown_url
            internal_errors.warn_once(
                "otlp", f"spans go to {where}, as OTEL_EXPORTER_OTLP_* say; SPANWISE_URL says otherwise"
            )
        return None

    def _run(self) -> None:
        slot, self._thread = self._slot, threading.current_thread()
        waiting: list[_Waiter] = []
        try:
            otel_context.attach(otel_context.Context({otel_context._SUPPRESS_INSTRUMENTATION_KEY: True}))
            with internal_errors.error_boundary("delivery"):
                preload_modules()
            self.exporter.extend(0.5)  # where the process ends already: nobody was asked before
            while not self._is_draining:
                waiting = self._next_round()
                self.exporter.export(urgent=bool(waiting))
                _notify(waiting)
            self.exporter.export(urgent=True)
            self._is_closed = True
            self.exporter.export_last()
        finally:
            self._thread = None
            slot.release()
            _notify(waiting)

    def _next_round(self) -> list[_Waiter]:
        """Wait for the next round to be due; returns those who wait for its end."""
        waiting = []
        with suppress(queue.Empty):
            waiting.append(
                self._wake.get(timeout=_HURRIED_INTERVAL if time.monotonic() < self._hurried_until else _INTERVAL)
            )
            while True:
                waiting.append(self._wake.get_nowait())
        return [waiter for waiter in waiting if waiter is not None]

    def _awake(self) -> None:
        if self._wake.empty():
            self._wake.put(None)

    def _attend(self) -> None:
        """A batch is full, or the queue is high: then who fills it writes some of it to the spool."""
        self._awake()
        if self.queue.is_high and not self._is_closed:
            self.exporter.spool_some()

    # -- the end --

    def _wait_for_round(self, end: float) -> None:
        """Wait until what was queued before was exported, or there is no thread to wait for."""
        done: _Waiter = queue.SimpleQueue()
        self._wake.put(done)
        while self._slot.locked() and self._thread is not threading.current_thread():
            with suppress(queue.Empty):
                return done.get(timeout=max(0.0, min(_POLL_INTERVAL, end - time.monotonic())))
            if time.monotonic() >= end:
                return None
        return None

    def _wait_for_end(self) -> None:
        """Wait for the delivery thread to end, and settle what it has left.

        It is given up if it makes no progress for some seconds after the time for sending: it is stuck in a redactor,
        or in the file system, and so would be whoever did its work.
        """
        longest = time.monotonic() + _MAX_CLOSE_TIME
        progress = self._progress()
        while self._thread is not threading.current_thread():
            until = min(max(self.exporter.deadline, time.monotonic()) + _MAX_STALL, longest)
            if self._slot.acquire(timeout=max(0.0, until - time.monotonic())):
                return self._settle_rest()
            before, progress = progress, self._progress()
            if progress == before or time.monotonic() >= longest:
                self._is_closed, self._thread = True, None
                return self.exporter.abandon()
        return None  # called by a redactor, or by a finalizer on the delivery thread, which ends afterwards

    def _progress(self) -> tuple[int, float]:
        return self.exporter.tally.settled, self.exporter.deadline

    def _settle_rest(self) -> None:
        """Settle what is queued after the delivery thread has ended. Called with the slot held."""
        try:
            if not self._is_closed:  # there was no thread
                self._is_closed = True
                self.exporter.limit(0.0)
                self.exporter.export_last()
        finally:
            self._slot.release()
        self._settle_late()
        end = time.monotonic() + _MAX_STALL
        while self.queue.in_hand > 0:  # threads of the application still write some of the queue to the spool
            if time.monotonic() >= end:
                return self.exporter.abandon()
            time.sleep(0.001)
        return None

    def _settle_late(self) -> None:
        """Hand what came after the end to the delivery that has replaced this one, or drop it."""
        last = self
        while last.successor is not None:
            last = last.successor
        if last is self:
            return self.exporter.discard("closed")
        items = self.queue.take()
        self.queue.settle(len(items))
        for item in items:
            if not isinstance(item, FeedbackEvent):
                live_span.move_to_account(self.account, last.account)
            last.put(item)
        return None

    def _spool_without_thread(self) -> None:
        """Spool what is queued and stay `running`: threads of the application may trace until the exit handler runs."""
        if self._slot.acquire(blocking=False):
            try:
                self.exporter.limit(0.0)
                self.exporter.export_last()
            finally:
                self._slot.release()

    def _end_without_thread(self) -> None:
        """Spool what is queued, and end: the interpreter is finalizing."""
        self.exporter.limit(0.0)
        self._is_draining = True
        self._wait_for_end()


def _notify(waiting: list[_Waiter]) -> None:
    while waiting:
        waiting.pop().put(None)


def list_deliveries() -> list[Delivery]:
    """Return the deliveries of this process, those that a `configure` has replaced included."""
    return [delivery for reference in tuple(_live.values()) if (delivery := reference()) is not None]


def flush_all(first: Delivery, timeout: float) -> FlushResult:
    """Flush a delivery, and every other one of this process that has something left."""
    end = time.monotonic() + timeout
    all_ = [first, *(delivery for delivery in list_deliveries() if delivery is not first and not delivery.idle())]
    flushed = [delivery.flush(max(0.0, end - time.monotonic())) for delivery in all_]
    total = FlushResult(*(sum(counts) for counts in zip(*map(astuple, flushed), strict=True)))
    return replace(
        total, spilled=sum(map(disk_spool.count_spooled, {delivery.exporter.spool.folder for delivery in all_}))
    )


def close_all() -> None:
    """Close every delivery of this process, at the same time."""
    for delivery in list_deliveries():
        delivery.drain()
    for delivery in list_deliveries():
        delivery._wait_for_end()


def _close_at_exit() -> None:
    """Close at the end of the process. What its daemon threads and finalizers still trace is dropped and counted."""
    for step in exit_callbacks:
        with internal_errors.error_boundary("exit"):
            step()
    with internal_errors.error_boundary("exit"):
        close_all()
    for delivery in list_deliveries():
        delivery.queue.bound_waits()
        delivery.exporter.tally.bound_waits()
        delivery.exporter.spool.bound_waits()
    live_span.bound_lock_waits()
    tail_sampling.bound_lock_waits()


# When the module is imported, so that exit handlers which the application registers later run before, and may trace.
atexit.register(_close_at_exit)


def _close_at_end_of_child() -> None:
    """Close at the end of a child of `multiprocessing`, which runs no exit handlers but has finalizers of its own."""
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _close_at_exit, exitpriority=0)


def _after_fork() -> None:
    disk_spool.forget_after_fork()
    delivery_stats.forget_accounts()
    for delivery in list_deliveries():
        delivery.exporter.spool.abandon()
        delivery._begin()


os.register_at_fork(after_in_child=_after_fork)


_SIGTERM_TIMEOUT = 20.0  # seconds after which SIGTERM ends the process even if delivery has not ended
_sigterm_done = False


def set_thread_context_inheritance(carried: bool = True) -> None:
    """Let threads and pools of threads hand the current context on, or no longer."""
    with error_boundary("threads"):
        if not carried:
            thread_context.restore_thread_methods()
        elif threading.main_thread().is_alive():  # after that, nothing prepares for threads any more
            thread_context.patch_thread_methods()


def close_on_sigterm(close: Callable[[], object], hurry: Callable[[], object]) -> None:
    """Deliver before SIGTERM ends the process. An application's own handler stays in charge and has us hurry: uvicorn's
    ends the process by the same signal a tenth of a second later, with no handler of ours in place.
    """
    global _sigterm_done
    if _sigterm_done or threading.current_thread() is not threading.main_thread():
        return
    with error_boundary("sigterm"):  # an interpreter may be without signals
        own = signal.getsignal(signal.SIGTERM)
        if own is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _make_closing_handler(close))
            _sigterm_done = True
        elif callable(own):
            signal.signal(signal.SIGTERM, _make_chained_handler(own, hurry))
            _sigterm_done = True


def _make_chained_handler(
    own: Callable[[int, FrameType | None], Any], hurry: Callable[[], object]
) -> Callable[[int, FrameType | None], None]:
    @functools.wraps(own)
    def handle(signum: int, frame: FrameType | None) -> None:
        with error_boundary("sigterm"):
            hurry()
        own(signum, frame)

    return handle


def _make_closing_handler(close: Callable[[], object]) -> Callable[[int, FrameType | None], None]:
    def handle(signum: int, frame: FrameType | None) -> None:
        signal.signal(signum, signal.SIG_DFL)
        # Not here: the interrupted code may hold a lock of ours. In bare threads, for `threading` has locks as well.
        try:
            _thread.start_new_thread(_end_process, (lambda: time.sleep(_SIGTERM_TIMEOUT),))
            _thread.start_new_thread(_end_process, (close,))
        except RuntimeError:  # the system has no more threads, or the interpreter is finalizing
            os.kill(os.getpid(), signal.SIGTERM)

    return handle


def _end_process(wait: Callable[[], object]) -> None:
    """End the process after a wait, as the default action of SIGTERM does."""
    try:
        wait()
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
