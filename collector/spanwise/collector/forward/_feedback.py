"""Feedback out: what the store has been told, as log records `gen_ai.evaluation.result`, to every target.

The store is the queue: feedback lies there durably before anybody is told of it, and where each target stands is kept
beside it. A spool would be a second copy of the same, which could lose what the store still has. Sent is at least once:
what is acknowledged, and not yet noted, goes out again after a crash, under the same id.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import partial

from spanwise.collector._metrics import Metrics
from spanwise.collector.dialects import log_once, via_of
from spanwise.collector.forward._letter import Letter
from spanwise.collector.forward._post import Answer, Post
from spanwise.collector.forward._records import logs_request
from spanwise.collector.forward._target import Target
from spanwise.collector.stores import Said, SendsOn
from spanwise.tracer.backoff import pause

MANY = 200  # feedbacks of one request
MOST_BYTES = 1024 * 1024  # of one request; a larger one is one feedback
MOST_VIA = 8  # collectors in a row, each before the other
EVERY = 0.5  # seconds between two looks at the store
LONGEST_PAUSE = 30.0  # seconds between two tries
LAST = 5.0  # seconds that the end waits for requests under way
MOST_500 = 10  # tries of one feedback to which a target answers 500, which may be its fault
logger = logging.getLogger("spanwise.collector")


class FeedbackOut:
    """Sends a store's feedback to targets, each at its own pace. `begin` once, `close` before the store is."""

    def __init__(self, targets: Sequence[Target], longest_pause: float = LONGEST_PAUSE) -> None:
        """`longest_pause`: seconds between two tries of one target."""
        self.targets, self._longest = tuple(targets), longest_pause
        self._outlets: list[Outlet] = []

    def begin(self, store: SendsOn, metrics: Metrics) -> None:
        """Go on where each target stands."""
        self._outlets = [Outlet(store, target, metrics, self._longest) for target in self.targets]
        for outlet in self._outlets:
            outlet.start()

    def close(self) -> None:
        """Send no more; what waits is sent by the next server on this store."""
        for outlet in self._outlets:
            outlet.end()
        end = time.monotonic() + LAST
        for outlet in self._outlets:
            outlet.join(max(0.0, end - time.monotonic()))


class Outlet:
    """One target's way out: a thread that reads on from the cursor, sends, and notes how far it is."""

    def __init__(self, store: SendsOn, target: Target, metrics: Metrics, longest_pause: float) -> None:
        self._store, self._target, self._metrics, self._longest = store, target, metrics, longest_pause
        self._post = Post(target)
        self._end = threading.Event()
        self._failed = self._faults = 0
        self._error: str | None = None
        self._identity = store.identity()
        self._cursor = store.open_outlet(target.name, target.url).cursor
        self._thread = threading.Thread(target=self._run, name=f"spanwise-feedback-{target.name}", daemon=True)
        metrics.gauge("spanwise_feedback_out_waiting", self._waiting, target=target.name)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def end(self) -> None:
        """Begin no further request."""
        self._end.set()

    def join(self, seconds: float) -> None:
        """Wait for the one under way."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _waiting(self) -> float:
        try:
            return float(self._store.waiting_after(self._cursor))
        except Exception:  # of a store that does not answer now; numbers are asked for all the same
            return float("nan")

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                later = self._send_all()
            except Exception as error:  # of the store, or a fault of ours: neither ends the thread
                log_once(f"sending feedback on to {self._target.name!r} failed, and is tried again", error)
                later = Answer("later", type(error).__name__)
            if later is None:
                self._end.wait(EVERY)
            else:
                self._end.wait(max(later.after, pause(self._failed, longest=self._longest)))
                self._failed += 1
        self._post.close()

    def _send_all(self) -> Answer | None:
        """Send what waits, until there is nothing, the target says later (that answer), or this ends."""
        while not self._end.is_set() and (rows := self._store.said_after(self._cursor, MANY)):
            if later := self._send(rows):
                self._tell_away(later)
                return later
        return None

    def _send(self, rows: Sequence[Said]) -> Answer | None:
        """Send these, in two parts where together they are too large, or one of them is refused."""
        good = [row for row in rows if len(via_of(row.feedback)) < MOST_VIA]
        far = {"hops": len(rows) - len(good)}
        body = logs_request(good, self._identity)
        if len(body) > MOST_BYTES and len(rows) > 1:
            return self._in_two(rows)
        answer = self._posted(body) if good else Answer("taken")
        if answer.verdict == "later":
            self._faults = self._faults + 1 if answer.reason == "http_500" else 0
            return self._one_by_one(rows, answer) if self._faults >= MOST_500 else answer
        self._failed = self._faults = 0
        if answer.verdict == "taken":
            rejected = min(answer.rejected, len(good))
            self._note(rows, len(good) - rejected, {**far, "rejected": rejected})
            return None
        if len(rows) > 1:
            return self._in_two(rows)
        self._note(rows, 0, {answer.reason: 1})
        return None

    def _posted(self, body: bytes) -> Answer:
        return self._post.send(Letter("logs", False, (), body))

    def _in_two(self, rows: Sequence[Said]) -> Answer | None:
        half = len(rows) // 2
        for part in (rows[:half], rows[half:]):
            if self._end.is_set():
                return None
            if later := self._send(part):
                return later
        return None

    def _one_by_one(self, rows: Sequence[Said], answer: Answer) -> Answer | None:
        """Find what a target fails on. It is given up only where others are taken: else the target itself is broken."""
        self._faults = 0
        answers = []
        for row in rows:
            answers.append(self._posted(logs_request([row], self._identity)))
            if self._end.is_set() or answers[-1].reason not in ("", "http_500"):
                return answer
        taken = sum(one.verdict == "taken" for one in answers)
        if not taken:
            return answer
        self._failed = 0
        self._note(rows, taken, {"http_500": len(rows) - taken})
        return None

    def _note(self, rows: Sequence[Said], sent: int, lost: dict[str, int]) -> None:
        """These are done with: durably first, then for this process."""
        self._store.move_outlet(self._target.name, rows[-1].number, sent, sum(lost.values()))
        self._cursor = rows[-1].number
        count = partial(self._metrics.add, target=self._target.name)
        count("spanwise_feedback_out_total", sent)
        for reason, number in lost.items():
            if number:
                count("spanwise_feedback_out_dropped_total", number, reason=reason)
        if self._error is not None:
            self._error = None
            logger.warning("feedback goes out to %r again", self._target.name)

    def _tell_away(self, answer: Answer) -> None:
        self._metrics.add("spanwise_feedback_out_failures_total", 1, target=self._target.name, reason=answer.reason)
        if answer.reason != self._error:
            self._error = answer.reason
            told = "sending feedback on to %r (%s) fails: %s; it waits in the store"
            logger.warning(told, self._target.name, self._target.url, answer.reason)
            self._store.move_outlet(self._target.name, self._cursor, 0, 0, answer.reason)
