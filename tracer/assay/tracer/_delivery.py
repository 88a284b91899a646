"""From ended spans to the collector: a bounded queue, one thread, one batch every half second.

Nothing is lost silently: what cannot be sent now waits on disk, and what is dropped is counted with its reason.
"""

from __future__ import annotations

import atexit
import os
import queue
import random
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry.sdk.trace import ReadableSpan

from assay.tracer import _account, _errors, _spool
from assay.tracer._account import account_of
from assay.tracer._encode import LOGS, TRACES, FeedbackEvent, feedback_body, rejected
from assay.tracer._finish import Finisher
from assay.tracer._hanging import LONG, Flight, Watch
from assay.tracer._post import Answer, Post, load
from assay.tracer._presence import Presence
from assay.tracer._queue import Item, Queue
from assay.tracer._settings import Settings
from assay.tracer._tally import FlushResult, Tally
from assay.tracer._wire import encode
from assay.tracer.backoff import pause
from assay.tracer.connection_errors import one_line

_random = random.Random()  # our own: the application's sequence must not depend on our retries
EXIT_TIMEOUT = 0.8  # seconds that the end of the process waits for a sign of the collector
_SIGN = 0.2  # seconds of that after which what a request holds up goes to the disk
_PATIENCE = 5.0  # seconds, for a delivery thread that is busy with a batch
_LONGEST_EXIT = 5.0  # seconds, if it goes on giving such signs
_INTERVAL = 0.5  # between two rounds
_HURRIED, _HURRIED_FOR = 0.02, 30.0  # the same once the process was told to end, and how long it may take to
_BATCH_SPANS = 512
_BATCH_BYTES = 4 << 20  # of values
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 60.0
before_exit: list[Callable[[], None]] = []  # to be called before a process delivers for the last time
_live: weakref.WeakSet[Delivery] = weakref.WeakSet()


class _TakenOver(BaseException):
    """The process ends, and the thread that ends it has taken over what this one was at."""


class Delivery:
    """Takes ended spans and feedback from any thread and brings them to the collector from one thread of its own."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.finisher = Finisher(settings)
        self._fresh()
        _live.add(self)

    def _fresh(self) -> None:
        """The state of a new process."""
        self.tally = Tally()
        self.queue = Queue()
        self.spool = _spool.Spool(_spool.folder_of(self.settings), about=_spool.about(self.settings))
        self._post = Post(self.settings)
        self.account = account_of(self.settings.url)
        self.account.folders.add(self.spool.folder)
        self._presence = Presence(self.account, self.finisher, self._post)
        # No `Event`: its lock is one that a signal handler would wait for in the very thread that holds it.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._settled = threading.Condition()
        self._asked = self._done = 0  # flushes
        self._thread: threading.Thread | None = None
        self._starting = threading.RLock()
        self._closed = self._exiting = self._loaded = False
        self._deadline, self._hurried_until = float("inf"), 0.0
        self._failures, self._not_before = 0, 0.0  # in a row
        self._failure = ""  # why the latest request failed, in words
        # What was taken from the queue and is not settled is in these three. Who works on them holds the lock, but for
        # the time of a request; who takes over says so.
        self._flight: Flight | None = None
        self._batches: deque[Sequence[ReadableSpan]] = deque()
        self._events: list[FeedbackEvent] = []
        self._at_work: dict[int, int] = {}  # by thread: items in its hands
        self._patience = _PATIENCE
        self._work = threading.RLock()
        self._taken_over = False
        self._watch = self._watched()

    def _watched(self) -> Watch:
        work = self._work
        return Watch(lambda: self._flight is not None, lambda: self._survive(self._secure, work))

    def put(self, item: Item) -> None:
        """Hand over an ended span or a feedback. Never raises, never blocks on the network."""
        try:  # every span passes here: not `ours`, which costs something
            if self.queue.put(item) >= _BATCH_SPANS:
                self._awake()
            if self._exiting:
                self._rescue()
            elif self._thread is None:
                self._start()
            if self.queue.is_high:
                self._relieve()
        except Exception as error:
            _errors.note("queue", error)

    def begin(self) -> None:
        """Be ready: a trace has begun, and may go on for long."""
        if self._thread is None and not self._exiting:
            with _errors.ours("queue"):
                self._start()

    def _start(self) -> None:
        with self._starting:
            if sys.is_finalizing():  # a generator that is collected last: no thread would run any more
                return self._leave()
            thread = threading.Thread(target=self._run, name="assay-delivery", daemon=True)
            if self._thread is not None:  # another thread was first, or a signal handler in this one
                return None
            self._thread = thread
            self._closed, self._deadline, self._not_before = False, float("inf"), 0.0
            self._work, self._taken_over = threading.RLock(), False
            self._watch = self._watched()
            try:
                thread.start()
            except RuntimeError:
                self._thread = None
                if not threading.main_thread().is_alive():  # after that Python 3.12 starts none any more
                    return self._leave()
                raise  # the system has no more threads: the next span tries again
            _at_exit(self._exit)
        if self.settings.by_otel:
            where = self.settings.shown_url
            _errors.say_once("otlp", f"spans go to {where}, as OTEL_EXPORTER_OTLP_* say; ASSAY_URL says otherwise")
        return None

    def _run(self) -> None:
        otel_context.attach(otel_context.Context({otel_context._SUPPRESS_INSTRUMENTATION_KEY: True}))
        self._survive(lambda _: load(), None)
        self._loaded = True
        work, watch = self._work, self._watch
        try:
            self._rounds(work)
        except _TakenOver:
            pass
        finally:
            watch.end()

    def _rounds(self, work: threading.RLock) -> None:
        while True:
            with suppress(queue.Empty):
                self._wake.get(timeout=_HURRIED if time.monotonic() < self._hurried_until else _INTERVAL)
            asked, closed = self._asked, self._closed
            with work:
                self._survive(self._round, asked > self._done)
            with self._settled:
                self._done = asked
                self._settled.notify_all()
            if closed:
                return

    def _awake(self) -> None:
        if self._wake.empty():
            self._wake.put(None)

    def _round(self, urgent: bool) -> None:
        """Deliver everything queued now. An urgent round does not wait for the back-off."""
        if urgent:
            self._not_before = 0.0
        spans, given = _apart(self.queue.take())
        self._batches.extend(_batches(spans))
        self._events += given
        while self._batches:
            self._settle(self._spans, self._batches.popleft())
        events, self._events = self._events, []
        if events:
            self._settle(self._feedback, events)
        if self._reachable():
            self._survive(self._replay_all, self._replay)
        if self._reachable():
            self._survive(self._tell, urgent)

    def _tell(self, urgent: bool) -> None:
        pending = self._pending() - len(self._events)
        self._presence.tell(self._send_aside, pending, self.queue.dropped, urgent)

    def _send_aside(self, path: str, body: bytes) -> Answer:
        """Send what is not worth keeping."""
        answer = self._answer(Flight(path, None, 0), body)
        if answer.verdict == "later":
            self._back_off(answer)
        return answer

    def _settle(self, deliver: Callable[[Any], object], items: Sequence[Item]) -> None:
        """Deliver items; whatever happens on the way, each of them is counted in the end."""
        before = self.tally.settled_here
        taken_over = False
        self._at_work[threading.get_ident()] = len(items)
        try:
            self._survive(deliver, items)
        except _TakenOver:
            taken_over = True
            raise
        finally:
            self._at_work.pop(threading.get_ident(), None)
            missing = len(items) - (self.tally.settled_here - before)
            if missing > 0 and not taken_over:
                self._drop("delivery_failed", missing, path=LOGS if isinstance(items[0], FeedbackEvent) else TRACES)

    def _survive(self, step: Callable[[Any], object], argument: Any) -> None:
        """Do something that may run what is not ours (redactors, instrumented clients): no error ends the thread."""
        try:
            step(argument)
        except _TakenOver:
            raise
        except BaseException as error:
            if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
                raise  # Ctrl-C while the process ends
            _errors.note("delivery", error)

    def _relieve(self) -> None:
        """The queue grows faster than it can be delivered: who makes it grow takes some of it to the disk."""
        if not self.spool.works:
            return  # it grows up to its second bound
        spans, events = _apart(self.queue.take_some(_BATCH_SPANS))
        for batch in _batches(spans):
            self._settle(self._shelve, batch)
        if events:
            self._settle(self._shelve_feedback, events)

    def _secure(self, work: threading.RLock, after: float = LONG) -> None:
        """A request waits for its answer: what it sends, and what waits behind it, goes to the disk.

        Batch by batch, so that nobody waits long for the lock: neither its answer, nor the end of the process.
        """
        flight = self._flight
        while flight is not None and flight.is_late(after) and self.spool.works:
            with work:
                if self._flight is not flight or work is not self._work or not self._secure_some(flight):
                    return

    def _secure_some(self, flight: Flight) -> bool:
        """Whether there was anything."""
        self.queue.is_held_up = True
        if flight.copy is None and flight.body is not None:
            flight.copy = self.spool.copy(flight.path, flight.body, flight.count)
            return flight.copy is not None
        if self._batches:
            self._settle(self._shelve, self._batches.popleft())
        elif self._events:
            events, self._events = self._events, []
            self._settle(self._shelve_feedback, events)
        elif len(self.queue):
            self._relieve()
        else:
            return False
        return True

    def _shelve(self, spans: Sequence[ReadableSpan]) -> None:
        finished = self._finished(spans)
        try:
            body = encode(finished)
        except Exception as error:
            if len(finished) == 1:
                return self._not_encodable(error)
            for span in finished:
                self._shelve([span])
            return None
        return self._keep(TRACES, body, len(finished), "queue") if finished else None

    def _shelve_feedback(self, events: Sequence[FeedbackEvent]) -> None:
        self._keep(LOGS, self._feedback_body(events), len(events), "queue")

    def _feedback(self, events: Sequence[FeedbackEvent]) -> None:
        self._send(LOGS, self._feedback_body(events), len(events))

    def _feedback_body(self, events: Sequence[FeedbackEvent]) -> bytes:
        return feedback_body(map(self.finisher.feedback, events))

    def _spans(self, spans: Sequence[ReadableSpan]) -> None:
        spans = self._finished(spans)
        try:
            body = encode(spans)
        except Exception as error:
            return self._one_by_one(spans, error)
        if self._send(TRACES, body, len(spans)) == "too_large":
            if len(spans) == 1:
                return self._drop("too_large", 1)
            half = len(spans) // 2
            self._again(spans[:half], spans[half:])
        return None

    def _again(self, *parts: Sequence[ReadableSpan]) -> None:
        """Put parts of a batch before what waits; each is settled for itself."""
        self._batches.extendleft(reversed(parts))
        self.tally.set_aside(sum(map(len, parts)))

    def _finished(self, spans: Sequence[ReadableSpan]) -> list[ReadableSpan]:
        finished = [span for span in map(self.finisher.span, spans) if span is not None]
        if len(finished) < len(spans):
            self._drop("not_finished", len(spans) - len(finished))
        return finished

    def _one_by_one(self, spans: Sequence[ReadableSpan], error: Exception) -> None:
        """A span that cannot be encoded must not take its batch along."""
        if len(spans) > 1:
            return self._again(*([span] for span in spans))
        return self._not_encodable(error)

    def _not_encodable(self, error: Exception) -> None:
        _errors.note("encode", error)
        self._drop("not_encodable", 1)

    def _send(self, path: str, body: bytes, count: int) -> str:
        """Send or spool a body. `too_large` is left to the caller, everything else is settled here."""
        if not self._reachable():
            self._keep(path, body, count, "end" if self._taken_over else "")
            return "later"
        flight = Flight(path, body, count)
        answer = self._answer(flight, body)
        if answer.verdict == "later":
            self._back_off(answer)
            self._ground(flight, answer.reason)
            return "later"
        flight.landed()
        if answer.verdict == "ok":
            self._acknowledged(path, answer, count)
        elif answer.verdict == "refused" or path == LOGS:
            self._drop(answer.reason, count, path=path)
        return answer.verdict

    def _ground(self, flight: Flight, reason: str) -> None:
        """A body that was sent without an answer, or with none that counts, waits on the disk."""
        copy, flight.copy = flight.copy, None
        if copy is not None:
            copy.leave()
            self._kept(flight.count, reason)
        elif flight.body is not None:
            self._keep(flight.path, flight.body, flight.count, reason)

    def _replay_all(self, send: Callable[[str, bytes, int], str]) -> None:
        held, dropped = _spool.held(self.spool.folder), self.account.dropped.total()
        for reason, count in self.spool.replay(send).items():
            self._drop(reason, count, earlier=True)
        sent = held - _spool.held(self.spool.folder) - (self.account.dropped.total() - dropped)
        self.account.delivered += max(0, sent)  # what other processes had left there is no business of this account

    def _replay(self, path: str, body: bytes, count: int) -> str:
        """Send a body from the disk."""
        answer = self._answer(Flight(path, None, count), body)
        if answer.verdict == "ok":
            self._acknowledged(path, answer, count, earlier=True)
        elif answer.verdict == "later":
            self._back_off(answer)
        else:
            self._drop(answer.reason, count, path=path)
        return answer.verdict

    def _answer(self, flight: Flight, body: bytes) -> Answer:
        """What comes of a request; what nobody expected leaves it to be sent later, from the disk."""
        work, self._flight = self._work, flight
        self._watch.begin()
        work.release()
        try:
            return self._post.send(flight.path, body, self._timeout())
        except Exception as error:
            _errors.note("delivery", error)
            return Answer("later", type(error).__name__)
        finally:
            flight.answered = True
            self.queue.is_held_up = False
            work.acquire()
            if self._taken_over or work is not self._work:
                raise _TakenOver
            self._flight = None

    def _acknowledged(self, path: str, answer: Answer, count: int, earlier: bool = False) -> None:
        self._failures = 0
        items, why = rejected(path, answer.body)
        refused = min(items, count)
        self.tally.add(delivered=count - refused)
        if refused:
            self._drop("rejected", refused, path=path, detail=why)
        if path == TRACES and not earlier:
            self.account.delivered += count - refused

    def _keep(self, path: str, body: bytes, count: int, reason: str = "") -> None:
        kept, lost = self.spool.keep(path, body, count)
        self._kept(kept, reason)
        for why, items in lost.items():
            self._drop(
                reason if why == "collector_away" and reason.startswith("http_") else why,
                items,
                earlier=why not in ("collector_away", "disk"),
                path=path,
            )

    def _kept(self, count: int, reason: str) -> None:
        self.tally.add(spilled=count)
        if count and reason not in ("queue", "end"):  # no fault of the collector's
            self._say(reason)

    def _say(self, reason: str) -> None:
        url = self.settings.shown_url
        if reason in ("http_401", "http_403"):
            refused = f"the collector at {url} refuses our key ({reason})"
            _errors.say_once(reason, f"{refused}: spans wait on disk until ASSAY_API_KEY is right")
        else:
            failure = self._failure or "no connection"
            text = f"no collector answers at {url} ({failure}): spans wait on disk until one does"
            _errors.say_once(f"spilled:{failure}", text)

    def _drop(self, reason: str, count: int, earlier: bool = False, path: str = TRACES, detail: str = "") -> None:
        self.tally.add(dropped=count, reason=reason, earlier=earlier)
        if path == TRACES:
            self.account.dropped[reason] += count
        if reason == "collector_away":
            detail = detail or self._failure
        said = f"{reason}: {one_line(detail)}" if detail else reason
        _errors.say_once(f"dropped:{reason}", f"spans or feedback are dropped: {said} ({self.settings.shown_url})")

    def _reachable(self) -> bool:
        """Whether to send now; not when the process ends before there could be an answer: it would be sent again."""
        now = time.monotonic()
        return now >= self._not_before and self._deadline - now >= _SIGN

    def _back_off(self, answer: Answer) -> None:
        self._failure = answer.explanation
        longest = pause(self._failures, _FIRST_PAUSE, _LONGEST_PAUSE)
        self._failures += 1
        self._not_before = time.monotonic() + max(answer.after, longest * _random.uniform(0.7, 1.0))

    def _timeout(self) -> float:
        return min(self.settings.timeout, self._deadline - time.monotonic())

    def hurry(self) -> None:
        """The process is about to end, perhaps without another word to us. Takes no lock."""
        self._hurried_until = time.monotonic() + _HURRIED_FOR
        self._awake()

    def idle(self) -> bool:
        """Whether nothing waits."""
        return not self._pending()

    def lose(self, reason: str, count: int) -> None:
        """Count spans that were dropped before they came here."""
        self._drop(reason, count, earlier=True)

    def dropped(self) -> Counter[str]:
        """Drops by reason, those at the queue included."""
        return self.tally.dropped + self.queue.dropped

    def pick_up(self) -> None:
        """Begin to deliver where something waits: in the queue, or on the disk since an earlier process."""
        if self._thread is None and (len(self.queue) or self.spool.waits()):
            self._start()

    def flush(self, timeout: float) -> FlushResult:
        """Deliver what is queued now, waiting at most `timeout` seconds."""
        before = self.tally.delivered, self.dropped().total()
        self.pick_up()
        self._is_done(self._ask(), timeout)
        return FlushResult(
            self.tally.delivered - before[0],
            _spool.held(self.spool.folder),
            self.dropped().total() - before[1],
            self._pending(),
        )

    def _ask(self) -> int:
        """Ask for a round now; returns its number."""
        with self._settled:
            self._asked += 1
            self._awake()
            return self._asked

    def _is_done(self, asked: int, timeout: float) -> bool:
        """Whether a round that was asked for has ended, waiting for that at most `timeout` seconds."""
        if self._thread is None or not self._thread.is_alive():
            return True  # nobody to wait for
        with self._settled:
            return self._settled.wait_for(lambda: self._done >= asked, timeout)

    def _pending(self) -> int:
        waiting = len(self.queue) + sum(map(len, tuple(self._batches))) + len(self._events)
        return waiting + sum(tuple(self._at_work.values()))

    def close(self, timeout: float = EXIT_TIMEOUT) -> None:
        """Deliver what there is, as long as something was acknowledged within the last `timeout` seconds, and no
        longer than `_LONGEST_EXIT`; what remains goes to the disk.
        """
        atexit.unregister(self._exit)
        if self._closed or (self._thread is None and not len(self.queue)):
            return
        end = self._last_rounds(timeout)
        thread, self._thread, self._closed = self._thread, None, True
        self._awake()
        if thread is not None:
            thread.join(max(0.0, end - time.monotonic()))
        self._rescue()

    def _last_rounds(self, timeout: float) -> float:
        """Wait for the delivery thread as long as there are signs of the collector; returns when that ends.

        Meanwhile what a request holds up is written to the disk: most of it is there when the time is up.
        """
        longest = time.monotonic() + max(timeout, _LONGEST_EXIT)
        delivered = -1
        self.pick_up()
        wanted = self._ask()
        while True:
            if self.tally.delivered > delivered or not self._loaded:  # nobody has been asked yet
                delivered = self.tally.delivered
                self._deadline = end = min(time.monotonic() + timeout, longest)
            self._secure(self._work, _SIGN)
            left = end - time.monotonic()
            if self._is_done(wanted, min(left, _SIGN)) or left <= _SIGN:
                return end

    def _exit(self) -> None:
        """The process ends. What other exit handlers still trace goes to the disk: no thread would come to send it."""
        for end in before_exit:
            self._survive(lambda step: step(), end)
        self.close()
        self._exiting = True

    def _leave(self) -> None:
        self._exiting = True
        self._rescue()

    def _rescue(self) -> None:
        """The time is up: write what is left to the disk, also what the delivery thread was at."""
        self._not_before = float("inf")
        if not self._has_work():
            return self._give_up()
        try:
            self._taken_over, self._not_before = True, float("inf")
            self._at_work.clear()
            flight, self._flight = self._flight, None
            if flight:
                self._ground(flight, "")
            if len(self.queue) or self._batches or self._events:
                self._round(False)
            self.spool.rest()
        finally:
            self._work.release()

    def _has_work(self) -> bool:
        """Take the lock of the delivery thread, which has it but for the time of a request, or while it gets on."""
        settled = self.tally.settled
        while True:
            if not self._work.acquire(timeout=self._patience):
                before, settled = settled, self.tally.settled
                if settled == before:
                    return False
            elif self._flight is not None and self._flight.answered:  # it is about to note what the answer was
                self._work.release()
                time.sleep(0.001)
            else:
                return True

    def _give_up(self) -> None:
        """The delivery thread is stuck in what is not ours, a redactor: whoever did its work would be stuck as well."""
        self._patience = 0.0
        left = self._pending()
        self.queue.take()
        self._batches.clear()
        self._events.clear()
        if left:
            self._drop("delivery_stuck", left)


def flush_all(first: Delivery, timeout: float) -> FlushResult:
    """Flush a delivery, and every other one of this process that a `configure` has replaced."""
    end = time.monotonic() + timeout
    others = [d for d in tuple(_live) if d is not first and not d.idle()]
    flushed = [d.flush(max(0.0, end - time.monotonic())) for d in (first, *others)]
    total = FlushResult(*(sum(counts) for counts in zip(*map(astuple, flushed), strict=True)))
    return replace(total, spilled=sum(_spool.held(folder) for folder in {d.spool.folder for d in (first, *others)}))


def _apart(items: Sequence[Item]) -> tuple[list[ReadableSpan], list[FeedbackEvent]]:
    spans = [item for item in items if not isinstance(item, FeedbackEvent)]
    return spans, [item for item in items if isinstance(item, FeedbackEvent)]


def _batches(spans: list[ReadableSpan]) -> list[list[ReadableSpan]]:
    """Split by number of spans and by bytes of values."""
    batches: list[list[ReadableSpan]] = []
    size = _BATCH_BYTES + 1
    for span in spans:
        weight = getattr(span, "weight", 1000)
        if size + weight > _BATCH_BYTES or len(batches[-1]) >= _BATCH_SPANS:
            batches.append([])
            size = 0
        batches[-1].append(span)
        size += weight
    return batches


def _at_exit(close: Callable[[], None]) -> None:
    """At the end of the process; children of `multiprocessing` do not run `atexit`, but finalizers of their own."""
    atexit.register(close)
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, close, exitpriority=0)


def _after_fork() -> None:
    _spool.forget()
    _account.forget()
    for delivery in _live:
        delivery.spool.abandon()
        delivery._fresh()


os.register_at_fork(after_in_child=_after_fork)
