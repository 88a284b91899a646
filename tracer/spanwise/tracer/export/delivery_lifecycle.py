"""Delivery lifecycle: background thread, export interval, flush, shutdown at exit and SIGTERM, and fork.

The state of a delivery is `running`, then `draining`, then `closed`. It never returns to an earlier state.

- running: `put` queues items, and the delivery thread exports every `export_interval` seconds. The thread starts when it
  is first needed.
- draining: `put` queues items but starts no thread. The delivery thread exports the queued items and ends.
- closed: new items are dropped and counted, or passed to the delivery that has replaced this one.

`shutdown()`, the end of the process, SIGTERM and a second `configure()` all call `close`. Every wait in it has a
deadline. A forked child starts again in the state `running`.
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from functools import partial
from types import FrameType
from typing import Any, TypeAlias

from opentelemetry import context as otel_context

from spanwise.tracer import internal_errors
from spanwise.tracer.configuration import Settings
from spanwise.tracer.export import disk_spool, external_exporters, otlp_http_client, span_queue
from spanwise.tracer.export.batch_exporter import Exporter
from spanwise.tracer.export.span_encoding import FeedbackEvent
from spanwise.tracer.export.span_queue import ExportItem, FlushResult, SpanQueue
from spanwise.tracer.export.span_sanitizer import SpanSanitizer
from spanwise.tracer.internal_errors import error_boundary
from spanwise.tracer.otel import live_span, trace_context

EXIT_TIMEOUT = 0.8  # seconds that the process waits for a response of the collector before it ends
_MAX_STALL = 5.0  # seconds without progress after which the delivery thread is abandoned
_MAX_CLOSE_TIME = 15.0  # maximum seconds that closing takes, even if the delivery thread makes progress
_POLL_INTERVAL = 0.1  # seconds between two checks that the delivery thread still exists
# seconds between two exports after SIGTERM, and the most seconds for which this interval applies
_HURRIED_INTERVAL, _HURRIED_DURATION = 0.02, 30.0
_Waiter: TypeAlias = "queue.SimpleQueue[None]"
exit_callbacks: list[Callable[[], None]] = []  # called at the end of the process, before the last delivery
_live: dict[int, weakref.ref[Delivery]] = {}  # deliveries by `id()`


class Delivery:
    """Delivery that accepts ended spans and feedback from any thread and exports them from its own thread.

    A signal handler or a finalizer may interrupt any method and call any other method in the same thread. Therefore
    the state consists of flags that are set and never cleared, and every wait for the only lock, `_slot`, has a
    deadline. The delivery thread holds the lock from its start to its end, so that there is only one such thread.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.finisher = SpanSanitizer(settings)
        self._reset()
        _live[id(self)] = weakref.ref(self, partial(_live.pop, id(self)))

    def _reset(self) -> None:
        """Enter the state `running`: in a new delivery, and after a fork."""
        self.queue = SpanQueue()
        self.exporter = Exporter(self.settings, self.finisher, self.queue)
        self.account = self.exporter.account
        self.successor: Delivery | None = None  # receives items that arrive after this delivery is closed
        self._is_draining = self._is_closed = False
        self._slot = threading.Lock()
        self._thread: threading.Thread | None = None
        # Not an `Event`: a signal handler would wait for the lock of the event, which the interrupted code may hold.
        self._wake: queue.SimpleQueue[_Waiter | None] = queue.SimpleQueue()
        self._hurried_until = 0.0

    # -- called from any thread --

    def put(self, item: ExportItem) -> None:
        """Queue an ended span or a feedback event. Never raises, and never blocks on the network."""
        try:  # runs for every span, and `error_boundary` would take more time
            if self.queue.put(item):
                self._wake_thread()  # another batch is full
                if self.queue.is_high and not self._is_closed:
                    self.exporter.spool_some()
            if self._thread is None:
                self._start()
        except Exception as error:
            internal_errors.record_error("queue", error)

    def begin(self) -> None:
        """Start the delivery thread when a trace begins, because the trace may stay open for a long time."""
        if self._thread is None and not self._is_closed:
            with internal_errors.error_boundary("queue"):
                self._start()

    def lose(self, reason: str, count: int) -> None:
        """Count spans that were dropped before they reached the delivery."""
        self.exporter.drop(reason, count)

    def dropped(self) -> Counter[str]:
        """Return the counts of dropped items by reason, including those that the queue dropped."""
        return self.exporter.tally.dropped + self.queue.dropped

    def pending(self) -> int:
        """Return the number of items that are queued or being exported; for the slowest of several destinations."""
        return max([self.queue.pending, *(external.pending for external in self.exporter.external)])

    def idle(self) -> bool:
        """Return whether no items are pending."""
        return not self.pending()

    def hurry(self) -> None:
        """Export more often: the process is about to end, possibly without calling `close`. Takes no lock."""
        self._hurried_until = time.monotonic() + _HURRIED_DURATION
        self._wake_thread()

    def pick_up(self) -> None:
        """Start the delivery thread if items are pending in the queue, or in the spool from an earlier process."""
        if self._thread is None and (len(self.queue) or self.exporter.spool.has_requests()):
            self._start()

    def flush(self, timeout: float) -> FlushResult:
        """Deliver the items that are queued now. Waits at most `timeout` seconds."""
        tally = self.exporter.tally
        before = tally.delivered, self.dropped().total()
        end = time.monotonic() + timeout
        self.pick_up()
        self._wait_for_round(end)
        for external in self.exporter.external:
            external.flush(end)
        return FlushResult(
            tally.delivered - before[0],
            disk_spool.count_spooled(self.exporter.spool.folder),
            self.dropped().total() - before[1],
            self.pending(),
        )

    def close(self, timeout: float = EXIT_TIMEOUT) -> None:
        """Deliver the queued items, then end the delivery thread. Items that cannot be sent are spooled.

        Sending continues while the collector has acknowledged something within the last `timeout` seconds, and for at
        most 5 s. May be called repeatedly, and by several threads at once: all of them wait for the end of the
        delivery thread.
        """
        self.drain(timeout)
        self._wait_for_end()
        close_external([self])

    def drain(self, timeout: float = EXIT_TIMEOUT) -> None:
        """Make the delivery thread deliver the queued items and end, without waiting for it."""
        if not self._is_draining:
            if len(self.queue):
                with internal_errors.error_boundary("queue"):
                    self._start()
            self.exporter.limit(timeout)
            self._is_draining = True
        self._wake_thread()

    # -- the delivery thread --

    def _start(self) -> None:
        """Start the delivery thread, unless it exists or the state forbids it."""
        if self._is_closed:
            return self._settle_late_items()
        if sys.is_finalizing():
            self.exporter.limit(0.0)
            self._is_draining = True
            return self._wait_for_end()
        if self._is_draining or not self._slot.acquire(blocking=False):
            # if the slot is taken, another thread or the code that a signal has interrupted is starting the thread
            return None
        thread = threading.Thread(target=self._run, name="spanwise-delivery", daemon=True)
        try:
            thread.start()
        except BaseException as error:
            if thread.ident is None:
                self._slot.release()
            if not isinstance(error, RuntimeError) or threading.main_thread().is_alive():
                raise  # the system has no more threads: the next span tries again
            # Python 3.12 starts no threads after the main thread has ended. Spool the queued items and stay `running`:
            # application threads may trace until the exit handler runs.
            if self._slot.acquire(blocking=False):
                try:
                    self.exporter.limit(0.0)
                    self.exporter.export_last()
                finally:
                    self._slot.release()
            return None
        _close_at_end_of_child()
        if self.settings.by_otel:
            where = self.settings.shown_url
            internal_errors.warn_once(
                "otlp", f"spans are sent to {where}, as set by OTEL_EXPORTER_OTLP_*; SPANWISE_URL overrides it"
            )
        return None

    def _run(self) -> None:
        slot, self._thread = self._slot, threading.current_thread()
        waiting: list[_Waiter] = []
        try:
            otel_context.attach(otel_context.Context({otel_context._SUPPRESS_INSTRUMENTATION_KEY: True}))
            with internal_errors.error_boundary("delivery"):
                otlp_http_client.preload_modules()
            # if the process is already ending, allow time for a request, because none has been sent before
            self.exporter.extend(0.5)
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
        """Wait until the next export is due. Return the waiters to notify when this export has ended."""
        waiting = []
        interval = self.settings.export_interval
        if time.monotonic() < self._hurried_until:
            interval = min(interval, _HURRIED_INTERVAL)
        with suppress(queue.Empty):
            waiting.append(self._wake.get(timeout=interval))
            while True:
                waiting.append(self._wake.get_nowait())
        return [waiter for waiter in waiting if waiter is not None]

    def _wake_thread(self) -> None:
        if self._wake.empty():
            self._wake.put(None)

    # -- closing --

    def _wait_for_round(self, end: float) -> None:
        """Wait until the items that are queued now have been exported. Return earlier at `end`, or if no thread
        exists.
        """
        done: _Waiter = queue.SimpleQueue()
        self._wake.put(done)
        while self._slot.locked() and self._thread is not threading.current_thread():
            with suppress(queue.Empty):
                return done.get(timeout=max(0.0, min(_POLL_INTERVAL, end - time.monotonic())))
            if time.monotonic() >= end:
                return None
        return None

    def _wait_for_end(self) -> None:
        """Wait for the delivery thread to end, and settle the remaining items.

        If the thread makes no progress for a few seconds after the deadline for sending, it is abandoned. It then
        hangs in a redactor or in the file system, and so would any thread that took over its work.
        """
        longest = time.monotonic() + _MAX_CLOSE_TIME
        progress = self._progress()
        while self._thread is not threading.current_thread():
            until = min(max(self.exporter.deadline, time.monotonic()) + _MAX_STALL, longest)
            if self._slot.acquire(timeout=max(0.0, until - time.monotonic())):
                return self._settle_remaining()
            before, progress = progress, self._progress()
            if progress == before or time.monotonic() >= longest:
                self._is_closed, self._thread = True, None
                return self.exporter.abandon()
        return None  # a redactor or a finalizer has called this on the delivery thread, which ends afterwards

    def _progress(self) -> tuple[int, float]:
        return self.exporter.tally.settled, self.exporter.deadline

    def _settle_remaining(self) -> None:
        """Export, pass on or drop the items that are still queued when the delivery thread has ended. Release the slot.

        The caller holds the slot.
        """
        try:
            if not self._is_closed:  # there was no delivery thread
                self._is_closed = True
                self.exporter.limit(0.0)
                self.exporter.export_last()
        finally:
            self._slot.release()
        self._settle_late_items()
        end = time.monotonic() + _MAX_STALL
        while self.queue.in_flight > 0:  # threads of the application are still writing items to the spool
            if time.monotonic() >= end:
                return self.exporter.abandon()
            time.sleep(0.001)
        return None

    def _settle_late_items(self) -> None:
        """Pass items that arrived after the close to the delivery that has replaced this one. If there is none, drop
        them.
        """
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


def _notify(waiting: list[_Waiter]) -> None:
    while waiting:
        waiting.pop().put(None)


def list_deliveries() -> list[Delivery]:
    """Return the deliveries of this process, including those that `configure` has replaced."""
    return [delivery for reference in tuple(_live.values()) if (delivery := reference()) is not None]


def flush_all(first: Delivery, timeout: float) -> FlushResult:
    """Flush a delivery, and every other delivery of this process that has pending items."""
    end = time.monotonic() + timeout
    deliveries = [first, *(delivery for delivery in list_deliveries() if delivery is not first and not delivery.idle())]
    flushed = [delivery.flush(max(0.0, end - time.monotonic())) for delivery in deliveries]
    total = FlushResult(*(sum(counts) for counts in zip(*map(astuple, flushed), strict=True)))
    return replace(
        total, spilled=sum(map(disk_spool.count_spooled, {delivery.exporter.spool.folder for delivery in deliveries}))
    )


def close_all() -> None:
    """Close all deliveries of this process at the same time."""
    for delivery in list_deliveries():
        delivery.drain()
    for delivery in list_deliveries():
        delivery._wait_for_end()
    close_external(list_deliveries())


def close_external(deliveries: Sequence[Delivery]) -> None:
    """Wait until the exporters of the application have ended, within a limit for all of them together.

    An exporter that a later configuration uses, too, is not shut down.
    """
    longest = time.monotonic() + external_exporters.MAX_EXIT_TIME
    workers = [worker for delivery in deliveries for worker in delivery.exporter.external]
    for worker in workers:
        worker.begin_close()
    for worker in workers:
        worker.wait_closed(longest)


def _close_at_exit() -> None:
    """Close all deliveries at the end of the process.

    Items that daemon threads and finalizers queue afterwards are dropped and counted.
    """
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
    span_queue.bound_lock_waits()


# Registered at import, so that exit handlers that the application registers later run earlier and may trace.
atexit.register(_close_at_exit)


def _close_at_end_of_child() -> None:
    """Register `_close_at_exit` in a child process of `multiprocessing`, which runs its own finalizers instead of exit
    handlers.
    """
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _close_at_exit, exitpriority=0)


def _after_fork_in_child() -> None:
    disk_spool.forget_after_fork()
    span_queue.forget_accounts()
    for delivery in list_deliveries():
        delivery.exporter.spool.reset_after_fork()
        delivery._reset()


# The fork handlers of all modules of the package. `process_runtime` registers its own handlers later and `live_span`
# earlier, so that a fork takes the locks in this order: runtime, tail sampling, preload, span counts. They are
# registered separately: an error in one handler, such as Ctrl-C while it waits for a lock, does not skip the others.
os.register_at_fork(
    before=otlp_http_client.wait_before_fork,
    after_in_parent=otlp_http_client.release_after_fork,
    after_in_child=otlp_http_client.release_after_fork,
)
os.register_at_fork(
    before=span_queue.acquire_before_fork,
    after_in_parent=span_queue.release_in_parent,
    after_in_child=span_queue.reset_in_child,
)
os.register_at_fork(after_in_child=_after_fork_in_child)


_SIGTERM_TIMEOUT = 20.0  # seconds after which SIGTERM ends the process even if delivery has not ended
_sigterm_done = False


def set_thread_context_inheritance(enabled: bool = True) -> None:
    """Enable or disable the inheritance of the current context by threads and thread pools."""
    with error_boundary("threads"):
        if not enabled:
            trace_context.restore_thread_methods()
        elif threading.main_thread().is_alive():  # after the end of the main thread, threads are not prepared
            trace_context.patch_thread_methods()


def close_on_sigterm(close: Callable[[], object], hurry: Callable[[], object]) -> None:
    """Install a handler that delivers the queued items before SIGTERM ends the process.

    If the application has its own handler, `hurry` is called first, and the application's handler then decides what
    happens. For example, uvicorn's handler ends the process with the same signal a tenth of a second later, when no
    handler of Spanwise is installed.
    """
    global _sigterm_done
    if _sigterm_done or threading.current_thread() is not threading.main_thread():
        return
    with error_boundary("sigterm"):  # some interpreters have no signals
        handler = signal.getsignal(signal.SIGTERM)
        if handler is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _make_closing_handler(close))
            _sigterm_done = True
        elif callable(handler):
            signal.signal(signal.SIGTERM, _make_chained_handler(handler, hurry))
            _sigterm_done = True


def _make_chained_handler(
    handler: Callable[[int, FrameType | None], Any], hurry: Callable[[], object]
) -> Callable[[int, FrameType | None], None]:
    @functools.wraps(handler)
    def handle(signum: int, frame: FrameType | None) -> None:
        with error_boundary("sigterm"):
            hurry()
        handler(signum, frame)

    return handle


def _make_closing_handler(close: Callable[[], object]) -> Callable[[int, FrameType | None], None]:
    def handle(signum: int, frame: FrameType | None) -> None:
        signal.signal(signum, signal.SIG_DFL)
        # Do not close in the handler: the interrupted code may hold a lock of Spanwise. Start threads through
        # `_thread`, because `threading` takes locks, too.
        try:
            _thread.start_new_thread(_end_process, (lambda: time.sleep(_SIGTERM_TIMEOUT),))
            _thread.start_new_thread(_end_process, (close,))
        except RuntimeError:  # the system has no more threads, or the interpreter is finalizing
            os.kill(os.getpid(), signal.SIGTERM)

    return handle


def _end_process(wait: Callable[[], object]) -> None:
    """Call `wait`, then end the process as the default action of SIGTERM does."""
    try:
        wait()
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
