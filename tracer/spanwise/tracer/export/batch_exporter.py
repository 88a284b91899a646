"""Batch exporter: splits queued spans into batches, sends and retries them, spools them when offline.

Items that cannot be spooled return to the queue. Each item is counted once, as delivered, spilled (written to the
spool) or dropped.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from spanwise.tracer import internal_errors
from spanwise.tracer.configuration import Settings
from spanwise.tracer.export import disk_spool
from spanwise.tracer.export.disk_spool import RequestCopy, Spool
from spanwise.tracer.export.external_exporters import ExternalExporter
from spanwise.tracer.export.otlp_http_client import (
    OtlpHttpClient,
    RequestOutcome,
    RequestThread,
    to_one_line,
)
from spanwise.tracer.export.span_encoding import (
    LOGS_PATH,
    TRACES_PATH,
    Conventions,
    FeedbackEvent,
    encode_events,
    encode_spans,
    parse_rejections,
)
from spanwise.tracer.export.span_queue import (
    BATCH_ITEMS,
    DeliveryCounts,
    ExportItem,
    ProcessReporter,
    SpanQueue,
    get_account,
)
from spanwise.tracer.export.span_sanitizer import SpanSanitizer
from spanwise.tracer.http_connections import compute_backoff

BATCH_BYTES = 4 << 20  # bytes of values in a batch
MAX_FINAL_SEND = 5.0  # maximum seconds for sending at the end of the process, as long as the collector responds
SLOW_ANSWER = 1.0  # seconds without a response after which waiting items are spooled
_SLOW_ANSWER_AT_END = 0.2  # `SLOW_ANSWER` at the end of the process; also the minimum time left for another request
_ANSWER_POLL_INTERVAL = 0.1  # seconds between two checks of the time while a request waits for its response
# seconds beyond a request's timeout, because the timeout does not limit how long a response takes to arrive
# completely
_TIMEOUT_GRACE = 1.0
_FIRST_BACKOFF, _MAX_BACKOFF = 0.5, 60.0
_random = random.Random()  # separate generator: retries must not change the application's random sequence


@dataclass(slots=True, eq=False)
class Batch:
    """Items of one signal that are sent together."""

    path: str
    items: list[Any]
    # the batch that this batch is a part of, and whose `unsettled` counts the items of all parts
    parent: Batch | None = None
    unsettled: int = 0

    def split(self, size: int) -> Iterator[Batch]:
        """Yield parts of at most `size` items each."""
        for start in range(0, len(self.items), size):
            yield Batch(self.path, self.items[start : start + size], self.parent or self)


def split_into_batches(items: Sequence[ExportItem]) -> list[Batch]:
    """Split items by signal, number and bytes of values. Batches of spans come first."""
    made: list[Batch] = []
    for path in (TRACES_PATH, LOGS_PATH):
        size = BATCH_BYTES + 1
        for item in items:
            if isinstance(item, FeedbackEvent) is (path == TRACES_PATH):
                continue
            weight = getattr(item, "weight", 1000)
            if size + weight > BATCH_BYTES or len(made[-1].items) >= BATCH_ITEMS:
                made.append(Batch(path, []))
                size = 0
            made[-1].items.append(item)
            made[-1].unsettled += 1
            size += weight
    return made


class Exporter:
    """Exporter of queued items, used by the delivery thread.

    Other threads may also call `spool_some`, `discard` and `abandon`.
    """

    def __init__(self, settings: Settings, sanitizer: SpanSanitizer, queue: SpanQueue) -> None:
        self.settings, self.queue = settings, queue
        self.tally = DeliveryCounts()
        self.spool = Spool(disk_spool.get_spool_folder(settings), owner=disk_spool.describe_owner(settings))
        self.account = get_account(settings.url)
        self.account.folders.add(self.spool.folder)
        self.deadline = float("inf")  # time at which sending ends, on the monotonic clock
        self._sanitizer = sanitizer
        self._form = Conventions(settings.wire_conventions, sanitizer.redactor)
        post = OtlpHttpClient(settings)
        self._requests = RequestThread(post)
        self._reporter = ProcessReporter(self.account, queue, sanitizer, post)
        self.external = [ExternalExporter(each, self.tally.add) for each in settings.exporters]
        self._external_form = Conventions(settings.exporter_conventions, sanitizer.redactor)
        self._batches: deque[Batch] = deque()  # batches of items that were taken from the queue
        self._grace_period, self._latest_deadline = 0.0, float("inf")
        self._failures, self._not_before = 0, 0.0  # consecutive failures, and the time of the next attempt
        self._failure = RequestOutcome("later")  # outcome of the last failed request
        self._is_last = self._is_abandoned = False

    def export(self, urgent: bool = False) -> None:
        """Export the queued items, send the requests of the spool, and report.

        With `urgent`, do not wait for the end of a backoff.
        """
        if self._is_abandoned:
            return
        if urgent:
            self._not_before = 0.0
        if self.external or self._may_send() or self._may_spool() or self._is_last:
            self._batches.extend(split_into_batches(self._pass_on(self.queue.take())))
        if not self.settings.delivers:
            return
        while self._batches:
            self._settle(self._send, self._batches.popleft())
        if self._may_send():
            self._run_guarded(self._replay_all)
        if self._may_send():
            # Only Spanwise's collectors get reports. Reports that cannot be sent are not stored
            self._run_guarded(self._reporter.send_reports, lambda path, body: self._answer(path, body)[0], urgent)

    def _pass_on(self, items: list[ExportItem]) -> list[ExportItem]:
        """Pass spans to the exporters of the application. Return the items that are still to be delivered."""
        if not self.external:
            return items
        passed = []
        for item in items:
            # an item that could not be delivered returns to the queue, and is not passed on again
            if not isinstance(item, FeedbackEvent) and not getattr(item, "passed_on", False):
                item.passed_on = True  # type: ignore[attr-defined]
                with internal_errors.error_boundary("exporters"):
                    span = self._sanitizer.span(item)
                    if span is not None:
                        passed.append(self._external_form.readable(span))
        for exporter in self.external if passed else ():
            exporter.put(passed)
        if self.settings.delivers:
            return items
        self.queue.settle(len(items))
        if lost := sum(isinstance(item, FeedbackEvent) for item in items):
            detail = "span exporters cannot send feedback, and no url is configured"
            self.drop("feedback_without_url", lost, LOGS_PATH, detail)
        return []

    def export_last(self) -> None:
        """Export the remaining items. Those that can be neither sent nor spooled are dropped."""
        self._is_last = True
        self.export()
        for exporter in self.external:
            exporter.begin_close()
        self.spool.close_segment()
        self._requests.end()

    def limit(self, timeout: float) -> None:
        """Set a deadline: send for `timeout` more seconds after the last acknowledgement, and for `MAX_FINAL_SEND` at
        most.
        """
        now = time.monotonic()
        self._grace_period, self._latest_deadline = timeout, now + max(timeout, MAX_FINAL_SEND)
        self.deadline = now + timeout
        self.queue.use_reduced_limit(True)

    def extend(self, share: float = 1.0) -> None:
        """Extend the deadline, so that at least the given share of the `timeout` of `limit` remains from now on."""
        if self.deadline != float("inf"):
            self.deadline = max(
                self.deadline, min(time.monotonic() + share * self._grace_period, self._latest_deadline)
            )

    def spool_some(self) -> None:
        """Write a part of the queue to the spool, because the queue grows faster than it can be sent."""
        if self.spool.is_writable:  # without a working spool, the queue grows to its limit
            for batch in split_into_batches(self._pass_on(self.queue.take_some(BATCH_ITEMS))):
                self._settle(self._spool_batch, batch)

    def discard(self, reason: str) -> None:
        """Drop the queued items."""
        for batch in split_into_batches(self.queue.take()):
            self._drop_items(batch, len(batch.items), reason)

    def abandon(self) -> None:
        """Drop the queued items and those that were taken from the queue.

        This is called if the delivery thread hangs in a redactor or in the file system.
        """
        self.discard("delivery_stuck")
        self._is_abandoned = True
        self._batches.clear()
        taken = self.queue.in_flight
        if taken > 0:
            self.queue.settle(taken)
            self.drop("delivery_stuck", taken)

    def drop(self, reason: str, count: int, path: str = TRACES_PATH, detail: str = "") -> None:
        """Count items as dropped, and log the first drop of each reason with its cause."""
        self.tally.add(dropped=count, reason=reason)
        if path == TRACES_PATH:
            self.account.dropped[reason] += count
        if reason == "collector_away":
            detail = detail or self._failure.explanation
        cause = f"{reason}: {to_one_line(detail)}" if detail else reason
        internal_errors.warn_once(
            f"dropped:{reason}", f"spans or feedback are dropped: {cause} ({self.settings.shown_url})"
        )

    def _settle(self, step: Callable[[Batch], object], batch: Batch) -> None:
        """Send or spool a batch with `step`. Items that `step` leaves uncounted, for example after an error, are
        dropped.
        """
        try:
            self._run_guarded(step, batch)
        finally:
            self._drop_items(batch, batch.unsettled, "delivery_failed")

    def _run_guarded(self, step: Callable[..., object], *arguments: Any) -> None:
        """Run code that may call foreign code (redactors, instrumented clients). Errors are recorded and do not end the
        thread.
        """
        try:
            step(*arguments)
        except BaseException as error:
            if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
                raise  # Ctrl-C while the process ends
            internal_errors.record_error("delivery", error)

    def _send(self, batch: Batch) -> None:
        """Send a batch. Spool it if no request may be sent now, or if the request fails and can be retried."""
        if not self._may_send():
            self._spool_batch(batch)
            return
        body = self._encode(batch, self._send)
        if body is None:
            return
        answer, copy = self._answer(batch.path, body, len(batch.items))
        if answer.verdict == "later":
            if copy is None:
                self._spool_batch(batch, body)
            else:
                copy.keep()
                self._count(batch, len(batch.items), spilled=len(batch.items))
            self._log_failure()
            return
        if copy is not None:
            copy.remove()
        if answer.verdict == "ok":
            self._count_acknowledged(batch, answer)
        elif answer.verdict == "too_large" and batch.path == TRACES_PATH:
            if len(batch.items) == 1:
                self._drop_items(batch, 1, "too_large")
            else:
                for half in batch.split((len(batch.items) + 1) // 2):
                    self._send(half)
        else:
            self._drop_items(batch, len(batch.items), answer.reason)

    def _encode(self, batch: Batch, otherwise: Callable[[Batch], object]) -> bytes | None:
        """Return the body of a request, or None if there is nothing to send.

        Items that cannot be encoded are dropped. If the items cannot be encoded together, `otherwise` is called with
        a batch for each item, and the result is None.
        """
        if batch.path == LOGS_PATH:
            return encode_events([self._form.feedback(self._sanitizer.feedback(event)) for event in batch.items])
        finished = [(item, span) for item in batch.items if (span := self._sanitizer.span(item)) is not None]
        self._drop_items(batch, len(batch.items) - len(finished), "not_finished")
        batch.items = [item for item, _ in finished]
        try:
            return encode_spans([span for _, span in finished], self._form) if finished else None
        except Exception as error:
            if len(finished) == 1:
                self._drop_items(batch, 1, "not_encodable")
                internal_errors.record_error("encode", error)
                return None
        for single in batch.split(1):
            otherwise(single)
        return None

    def _answer(self, path: str, body: bytes, count: int = 0) -> tuple[RequestOutcome, RequestCopy | None]:
        """Send a request and wait for its response. If it can be retried, start a backoff.

        If the response is slow, write a copy of the request to the spool, and also return the copy. Items that wait
        for this request to end are then spooled, too, so that little is lost if the process is killed.
        """
        timeout = min(self.settings.timeout, self.deadline - time.monotonic())
        request, copy = self._requests.send(path, body, timeout), None
        outcome = RequestOutcome("later", "no_answer", explanation="no answer in time")
        longest = self.settings.timeout + _TIMEOUT_GRACE
        while request is not None and time.monotonic() < self.deadline and request.age < longest:
            answer = request.wait(max(0.0, min(_ANSWER_POLL_INTERVAL, self.deadline - time.monotonic())))
            if answer is not None:
                outcome = answer
                break
            if (
                request.age >= (SLOW_ANSWER if self.deadline == float("inf") else _SLOW_ANSWER_AT_END)
                and self.spool.is_writable
            ):
                if copy is None and count:
                    copy = self.spool.write_copy(path, body, count)
                self.queue.use_reduced_limit(True)
                self._batches.extend(split_into_batches(self._pass_on(self.queue.take())))
                while self._batches and not request.is_done:
                    self._settle(self._spool_batch, self._batches.popleft())
        if outcome.verdict == "later":
            self._back_off(outcome)
        return outcome, copy

    def _spool_batch(self, batch: Batch, body: bytes | None = None) -> None:
        """Write a batch to the spool, or return it to the queue. `body` is the encoded batch, if it is known."""
        if self._may_spool():
            self._write(batch, body)
        else:
            self._requeue(batch)

    def _write(self, batch: Batch, body: bytes | None = None) -> bool:
        """Write a batch to the spool, or as many of its items as fit on the disk. The remaining items return to the
        queue.

        Return whether the whole batch was written.
        """
        body = self._encode(batch, self._write) if body is None else body
        if body is None:
            return True
        kept, lost = self.spool.append(batch.path, body, len(batch.items))
        if kept:
            self._count(batch, kept, spilled=kept)
            for reason, count in lost.items():
                self.drop(reason, count, batch.path)  # older items were removed to make space
            return True
        if not self.spool.is_full or len(batch.items) == 1:
            self._requeue(batch)
            return False
        first, second = batch.split((len(batch.items) + 1) // 2)
        if self._write(first):
            return self._write(second)
        self._requeue(second)
        return False

    def _requeue(self, batch: Batch) -> None:
        """Return a batch that cannot be spooled to the queue. If the process is ending, drop the batch instead."""
        if self._is_last:
            away = self._failure.reason if self._failure.reason.startswith("http_") else "collector_away"
            self._drop_items(batch, len(batch.items), away if self.spool.folder is None else "disk")
        elif not self._is_abandoned:
            (batch.parent or batch).unsettled -= len(batch.items)
            self.queue.put_back(batch.items)

    def _may_send(self) -> bool:
        """Return whether a request may be sent now.

        No request is sent during a backoff, or if the process ends before a response can arrive.
        """
        now = time.monotonic()
        return now >= self._not_before and self.deadline - now >= _SLOW_ANSWER_AT_END

    def _may_spool(self) -> bool:
        return self.spool.is_writable or (self._is_last and self.spool.folder is not None)

    def _back_off(self, answer: RequestOutcome) -> None:
        longest = compute_backoff(self._failures, _FIRST_BACKOFF, _MAX_BACKOFF)
        self._failures += 1
        self.queue.use_reduced_limit(True)
        self._failure = answer
        self._not_before = time.monotonic() + max(answer.after, longest * _random.uniform(0.7, 1.0))

    def _log_failure(self) -> None:
        url, reason = self.settings.shown_url, self._failure.reason
        where = "on disk" if self.spool.is_writable else "in memory"
        if reason in ("http_401", "http_403"):
            refused = f"the collector at {url} refuses the API key ({reason})"
            internal_errors.warn_once(reason, f"{refused}: spans wait {where} until SPANWISE_API_KEY is corrected")
        else:
            failure = self._failure.explanation or "no connection"
            text = f"no collector answers at {url} ({failure}): spans wait {where} until one does"
            internal_errors.warn_once(f"spilled:{failure}", text)

    def _count_acknowledged(self, batch: Batch, answer: RequestOutcome) -> None:
        refused, why = parse_rejections(batch.path, answer.body)
        refused = min(refused, len(batch.items))
        taken = len(batch.items) - refused
        self._drop_items(batch, refused, "rejected", why)
        self._count(batch, taken, delivered=taken)
        if batch.path == TRACES_PATH:
            self.account.delivered += taken
        self._reset_backoff()

    def _reset_backoff(self) -> None:
        self._failures = 0
        self.queue.use_reduced_limit(self.deadline != float("inf"))
        self.extend()

    def _replay_all(self) -> None:
        """Send the requests of the spool."""
        spooled, dropped = disk_spool.count_spooled(self.spool.folder), self.account.dropped.total()
        for reason, count in self.spool.replay(self._replay).items():
            self.drop(reason, count)
        sent = spooled - disk_spool.count_spooled(self.spool.folder) - (self.account.dropped.total() - dropped)
        # the spool may also contain items of other processes, which are not in the account
        self.account.delivered += max(0, sent)

    def _replay(self, path: str, body: bytes, count: int) -> str:
        """Send a request of the spool. Return the verdict."""
        if not self._may_send():
            return "later"
        answer, _ = self._answer(path, body)
        if answer.verdict == "ok":
            refused, why = parse_rejections(path, answer.body)
            refused = min(refused, count)
            self.tally.add(delivered=count - refused)
            if refused:
                self.drop("rejected", refused, path, why)
            self._reset_backoff()
        elif answer.verdict != "later":
            self.drop(answer.reason, count, path)
        return answer.verdict

    def _drop_items(self, batch: Batch, count: int, reason: str, detail: str = "") -> None:
        if count and not self._is_abandoned:
            self._count(batch, count)
            self.drop(reason, count, batch.path, detail)

    def _count(self, batch: Batch, count: int, *, delivered: int = 0, spilled: int = 0) -> None:
        """Count items of a batch as settled, unless `abandon` has counted them."""
        if self._is_abandoned:
            return
        (batch.parent or batch).unsettled -= count
        self.queue.settle(count)
        self.tally.add(delivered=delivered, spilled=spilled)
