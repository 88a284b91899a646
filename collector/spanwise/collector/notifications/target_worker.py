"""Worker thread of one target: attempts due deliveries, and records each attempt with the time of the next one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

from spanwise.collector.dialects import log_once
from spanwise.collector.errors import NotFound, StoreError
from spanwise.collector.notifications.email_target import EmailTarget
from spanwise.collector.notifications.http_target import AttemptResult, HTTPTarget
from spanwise.collector.notifications.message_rendering import get_headline, render_title
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.records import DeliveryOutcome, Notification, NotificationStatus
from spanwise.collector.stores import ControlStore
from spanwise.collector.terminal_escaping import escape_line
from spanwise.tracer.http_connections import compute_backoff

BATCH_SIZE = 100  # deliveries that one query of the store returns
UNKNOWN_TARGET = "(not configured)"  # label of metrics: the names of unknown targets are unbounded
METRIC_NAMES: Mapping[DeliveryOutcome, str] = {
    "delivered": "spanwise_notifications_delivered_total",
    "retry": "spanwise_notification_failures_total",
    "gave up": "spanwise_notifications_given_up_total",
}
logger = logging.getLogger("spanwise.notifications")


class LogTarget:
    """Built-in target: one line in the log of the server."""

    def send(self, notification: Notification, base_url: str) -> AttemptResult:
        """Log the notification."""
        title, headline = render_title(notification), get_headline(notification)
        logger.warning("%s: %s (notification %s)", title, headline, notification.id)
        return AttemptResult(True)


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """Retries of a failed delivery: the pause doubles from `first_s` to `longest_s` seconds, for `give_up_s` seconds.

    A delivery is given up only after `min_attempts`, too, so that a jump of the clock does not end the retries.
    """

    first_s: float = 5.0
    longest_s: float = 600.0
    give_up_s: float = 86_400.0
    min_attempts: int = 20


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """Outcome of an attempt, the pause before the next one, and the number of attempts so far."""

    outcome: DeliveryOutcome
    error: str | None
    retry_s: float
    attempts: int


class DeliveryRecorder:
    """Recorder of attempts in the store, the metrics and the log. `targets` are the names of the configured ones."""

    def __init__(self, store: ControlStore, metrics: Metrics, retries: RetrySettings, targets: Collection[str]) -> None:
        self.store, self._metrics, self._retries, self._targets = store, metrics, retries, targets

    def plan(self, status: NotificationStatus, result: AttemptResult, attempts: int | None = None) -> AttemptRecord:
        """Return the record of an attempt. `attempts` is the number of earlier ones, if the store does not know all."""
        [delivery] = status.deliveries
        attempts = (delivery.attempts if attempts is None else attempts) + 1
        if result.is_delivered:
            return AttemptRecord("delivered", result.error, 0.0, attempts)
        first_ns, retries = delivery.first_attempt_ns, self._retries
        age_s = 0.0 if first_ns is None else (time.time_ns() - first_ns) / 1e9
        if age_s >= retries.give_up_s and attempts >= retries.min_attempts:
            return AttemptRecord("gave up", result.error, 0.0, attempts)
        pause = compute_backoff(attempts - 1, retries.first_s, retries.longest_s)
        return AttemptRecord("retry", result.error, max(pause, result.retry_s), attempts)

    def record(self, status: NotificationStatus, target: str, record: AttemptRecord) -> None:
        """Store the record of an attempt, and count it. Raises `StoreError` if the store cannot take it."""
        id = status.notification.id
        with suppress(NotFound):  # deleted meanwhile
            self.store.record_delivery(id, target, record.outcome, error=record.error, retry_s=record.retry_s)
        label = target if target in self._targets else UNKNOWN_TARGET
        self._metrics.add(METRIC_NAMES[record.outcome], 1, target=label)
        if record.outcome == "gave up":
            message = "%s could not be delivered to %r and is given up: %s"
            logger.error(message, render_title(status.notification), escape_line(target), record.error)


@dataclass(frozen=True, slots=True)
class _UnrecordedAttempt:
    """Attempt that the store could not record. It may be repeated from `retry_at` on, in monotonic seconds."""

    status: NotificationStatus
    record: AttemptRecord
    retry_at: float


class TargetWorker:
    """Worker thread of one target. The notifier starts a pass while deliveries are due.

    Between two deliveries the worker asks `may_send` whether it may go on.
    """

    def __init__(
        self,
        name: str,
        target: HTTPTarget | EmailTarget | LogTarget,
        recorder: DeliveryRecorder,
        base_url: str,
        may_send: Callable[[], bool],
    ) -> None:
        self._name, self._target, self._recorder = name, target, recorder
        self._base_url, self._may_send = base_url, may_send
        self._wake, self._stopping = threading.Event(), False
        self._unrecorded: dict[str, _UnrecordedAttempt] = {}
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._run, name=f"spanwise-notify-{name}", daemon=True)

    def start_pass(self) -> None:
        """Deliver due notifications. Does nothing while the thread is delivering."""
        if self._thread.ident is None:
            self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        """Start no further delivery."""
        self._stopping = True
        self._wake.set()

    def join(self, seconds: float) -> None:
        """Wait for the delivery in progress."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait()
            self._wake.clear()
            try:
                while self._deliver_due():
                    pass
            except Exception as error:  # an error of the store, or a bug, must not end the thread
                log_once(f"notifications to {self._name!r} could not be delivered; this is retried", error)

    def _deliver_due(self) -> bool:
        """Attempt the due deliveries once. Return whether there may be more."""
        self._record_again()
        has_sent = False
        for status in self._recorder.store.due_deliveries(self._name, limit=BATCH_SIZE):
            earlier = self._unrecorded.get(status.notification.id)
            if earlier is not None and time.monotonic() < earlier.retry_at:
                continue
            if self._stopping or not self._may_send():
                return False
            result = self._attempt(status.notification)
            record = self._recorder.plan(status, result, None if earlier is None else earlier.record.attempts)
            self._record(status, record)
            has_sent = True
        return has_sent

    def _attempt(self, notification: Notification) -> AttemptResult:
        try:
            result = self._target.send(notification, self._base_url)
        except Exception as error:  # a bug must not stop the other notifications
            log_once(f"a notification to {self._name!r} could not be sent", error)
            result = AttemptResult(False, f"internal error: {type(error).__name__}")
        failure = None if result.is_delivered else result.error
        if failure is not None and failure != self._failure:
            logger.warning("notifications to %r fail and are retried: %s", self._name, failure)
        elif failure is None and self._failure is not None:
            logger.warning("notifications to %r work again", self._name)
        self._failure = failure
        return result

    def _record(self, status: NotificationStatus, record: AttemptRecord) -> None:
        """Record an attempt. If the store cannot take it, keep it, so that a full store causes no constant sending."""
        try:
            self._recorder.record(status, self._name, record)
        except StoreError as error:
            if not self._stopping:  # otherwise the store may be closed by now
                log_once(f"a delivery to {self._name!r} could not be recorded; this is retried", error)
            retry_at = time.monotonic() + record.retry_s if record.outcome == "retry" else inf
            self._unrecorded[status.notification.id] = _UnrecordedAttempt(status, record, retry_at)
        else:
            self._unrecorded.pop(status.notification.id, None)

    def _record_again(self) -> None:
        """Try to record the attempts that the store could not take."""
        for id, earlier in list(self._unrecorded.items()):
            record, now = earlier.record, time.monotonic()
            if record.outcome == "retry":
                record = replace(record, retry_s=max(0.0, earlier.retry_at - now))
            try:
                self._recorder.record(earlier.status, self._name, record)
            except StoreError:
                return
            del self._unrecorded[id]
