"""Notifier: delivers due notifications to their targets, with retries, under a lease."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from spanwise.collector.dialects import log_once
from spanwise.collector.errors import NotFound, StoreError
from spanwise.collector.notifications.email_target import EmailTarget
from spanwise.collector.notifications.http_target import AttemptResult, HTTPTarget
from spanwise.collector.notifications.message_rendering import get_headline, render_title
from spanwise.collector.notifications.target_config import LOG_TARGET, NotificationConfig
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.records import DeliveryOutcome, Notification, NotificationStatus
from spanwise.collector.stores import ControlStore, LocalStore
from spanwise.collector.terminal_escaping import escape_line
from spanwise.tracer.backoff import compute_backoff

LEASE = "notifications"  # name of the lease; two servers on one store do not both send constantly
LEASE_S, RENEW_S = 30.0, 5.0
_HOLDER_PREFIX = f"notifier-{os.getpid()}-"
SHUTDOWN_TIMEOUT_S = 5.0
BATCH_SIZE = 100
UNKNOWN_TARGET = "(not configured)"  # label of metrics: the names of unknown targets are unbounded
# A delivery is given up only after this many attempts, too, so that a jump of the clock does not end the retries
MIN_ATTEMPTS = 20
logger = logging.getLogger("spanwise.notifications")


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """Retries of a failed delivery: the pause doubles from `first_s` to `longest_s` seconds, for `give_up_s` seconds."""

    first_s: float = 5.0
    longest_s: float = 600.0
    give_up_s: float = 86_400.0
    min_attempts: int = MIN_ATTEMPTS


class LogTarget:
    """Built-in target: one line in the log of the server."""

    def send(self, notification: Notification, base_url: str) -> AttemptResult:
        """Log the notification."""
        title, headline = render_title(notification), get_headline(notification)
        logger.warning("%s: %s (notification %s)", title, headline, notification.id)
        return AttemptResult(True)


class Notifier:
    """Notifier of one server. Call `begin` once, and `close` before the store is closed.

    Delivery is at least once: a notification that was sent but not recorded, because the process was killed, is sent
    again under the same id. Each target has a thread of its own, so that a hanging one holds up no other. The store
    holds all states; nothing is queued in memory.
    """

    def __init__(
        self,
        config: NotificationConfig | None = None,
        *,
        retries: RetrySettings | None = None,
        poll_s: float = 1.0,
    ) -> None:
        """Create the notifier. `poll_s` is the time between two polls of the store."""
        self.config = config or NotificationConfig()
        self.retries, self.poll_s = retries or RetrySettings(), poll_s
        self.stopping = threading.Event()
        self._holder = f"{_HOLDER_PREFIX}{secrets.token_hex(8)}"
        self._renew_at = self._leased_until = 0.0
        self._workers: dict[str, TargetWorker] = {}
        self._thread = threading.Thread(target=self._run, name="spanwise-notifier", daemon=True)

    def begin(self, store: ControlStore, metrics: Metrics, url: str) -> None:
        """Start to deliver. `url` is the address of the server, for links if no `public_url` is configured."""
        self.store, self.metrics = store, metrics
        self.base_url = self.config.public_url or url
        targets: Mapping[str, HTTPTarget | EmailTarget | LogTarget] = {LOG_TARGET: LogTarget(), **self.config.targets}
        with suppress(StoreError):  # a full store; the lease expires
            self._end_former_lease()
        self._workers = {name: TargetWorker(self, name, target) for name, target in targets.items()}
        self._thread.start()

    def close(self) -> None:
        """Start no further delivery, wait a few seconds for those in progress, and release the lease."""
        self.stopping.set()
        deadline = time.monotonic() + SHUTDOWN_TIMEOUT_S
        for worker in self._workers.values():
            worker.wake.set()
        for thread in (self._thread, *(worker.thread for worker in self._workers.values())):
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))
        if self._leased_until:
            with suppress(StoreError):
                self.store.release(LEASE, self._holder)

    @property
    def is_leased(self) -> bool:
        """Return whether this notifier may send."""
        return time.monotonic() < self._leased_until

    def _end_former_lease(self) -> None:
        """Release the lease of a process that was killed. Only one process at a time writes a local file."""
        if isinstance(self.store, LocalStore):
            for lease in self.store.leases():
                if lease.name == LEASE and not lease.holder.startswith(_HOLDER_PREFIX):
                    self.store.release(LEASE, lease.holder)

    def _run(self) -> None:
        while not self.stopping.wait(self.poll_s):
            try:
                due = self.store.count_due_deliveries()
                if due and self._renew_lease():
                    self._distribute(due)
            except Exception as error:  # the store may be full or busy; the thread goes on
                log_once("notifications could not be read; this is retried", error)

    def _renew_lease(self) -> bool:
        now = time.monotonic()
        if now < self._renew_at:
            return self.is_leased
        try:
            is_held = self.store.acquire(LEASE, self._holder, LEASE_S) is not None
        except StoreError:  # a full store must not hold up the notification that says so
            is_held = all(lease.name != LEASE or lease.holder == self._holder for lease in self.store.leases())
        self._renew_at, self._leased_until = now + RENEW_S, now + LEASE_S if is_held else 0.0
        return is_held

    def _distribute(self, due: Mapping[str, int]) -> None:
        for name in due:
            if name in self._workers:
                self._workers[name].start_pass()
                continue
            file = (
                f"to {self.config.source}" if self.config.source else "to a file, and start the server with --targets"
            )
            error = f"target {escape_line(name)!r} is not configured on this server; add [targets.NAME] {file}"
            for status in self.store.due_deliveries(name, limit=BATCH_SIZE):
                self.record(status, name, self.plan(status, AttemptResult(False, error)))

    def plan(self, status: NotificationStatus, result: AttemptResult, attempts: int | None = None) -> AttemptRecord:
        """Return the record of an attempt. `attempts` is the number of earlier ones, if the store does not know all."""
        [delivery] = status.deliveries
        earlier = delivery.attempts if attempts is None else attempts
        if result.is_delivered:
            return AttemptRecord("delivered", result.error, 0.0, earlier + 1)
        first_ns = delivery.first_attempt_ns
        age_s = 0.0 if first_ns is None else (time.time_ns() - first_ns) / 1e9
        if age_s >= self.retries.give_up_s and earlier + 1 >= self.retries.min_attempts:
            return AttemptRecord("gave up", result.error, 0.0, earlier + 1)
        pause = compute_backoff(earlier, self.retries.first_s, self.retries.longest_s)
        return AttemptRecord("retry", result.error, max(pause, result.retry_s), earlier + 1)

    def record(self, status: NotificationStatus, target: str, record: AttemptRecord) -> None:
        """Store the record of an attempt, and count it. Raises `StoreError` if the store cannot take it."""
        with suppress(NotFound):  # deleted meanwhile
            self.store.record_delivery(
                status.notification.id, target, record.outcome, error=record.error, retry_s=record.retry_s
            )
        label = target if target in self._workers else UNKNOWN_TARGET
        self.metrics.add(_METRICS[record.outcome], 1, target=label)
        if record.outcome == "gave up":
            message = "%s could not be delivered to %r and is given up: %s"
            logger.error(message, render_title(status.notification), escape_line(target), record.error)


_METRICS: Mapping[DeliveryOutcome, str] = {
    "delivered": "spanwise_notifications_delivered_total",
    "retry": "spanwise_notification_failures_total",
    "gave up": "spanwise_notifications_given_up_total",
}


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """Outcome of an attempt, and the number of attempts so far."""

    outcome: DeliveryOutcome
    error: str | None
    retry_s: float
    attempts: int


@dataclass(frozen=True, slots=True)
class _Unrecorded:
    """Attempt that the store could not record. It may be repeated from `retry_at` on, in monotonic seconds."""

    status: NotificationStatus
    record: AttemptRecord
    retry_at: float


class TargetWorker:
    """Thread that delivers to one target. The notifier wakes it while deliveries are due."""

    def __init__(self, notifier: Notifier, name: str, target: HTTPTarget | EmailTarget | LogTarget) -> None:
        self._notifier, self._name, self._target = notifier, name, target
        self.wake = threading.Event()
        self._unrecorded: dict[str, _Unrecorded] = {}
        self._failure: str | None = None
        self.thread = threading.Thread(target=self._run, name=f"spanwise-notify-{name}", daemon=True)

    def start_pass(self) -> None:
        """Deliver what is due. Does nothing while the thread is delivering."""
        if self.thread.ident is None:
            self.thread.start()
        self.wake.set()

    def _run(self) -> None:
        while not self._notifier.stopping.is_set():
            self.wake.wait()
            self.wake.clear()
            try:
                while self._deliver_due():
                    pass
            except Exception as error:  # an error of the store, or a bug, must not end the thread
                log_once(f"notifications to {self._name!r} could not be delivered; this is retried", error)

    def _deliver_due(self) -> bool:
        """Attempt the due deliveries once. Return whether there may be more."""
        self._record_again()
        has_sent = False
        for status in self._notifier.store.due_deliveries(self._name, limit=BATCH_SIZE):
            id, attempts = status.notification.id, None
            if (unrecorded := self._unrecorded.get(id)) is not None:
                if time.monotonic() < unrecorded.retry_at:
                    continue
                attempts = unrecorded.record.attempts
            if self._notifier.stopping.is_set() or not self._notifier.is_leased:
                return False
            result = self._attempt(status.notification)
            record = self._notifier.plan(status, result, attempts)
            try:
                self._notifier.record(status, self._name, record)
                self._unrecorded.pop(id, None)
            except StoreError as error:
                log_once(f"a delivery to {self._name!r} could not be recorded; this is retried", error)
                is_closed = record.outcome != "retry"  # never sent again by this process
                retry_at = float("inf") if is_closed else time.monotonic() + record.retry_s
                self._unrecorded[id] = _Unrecorded(status, record, retry_at)
            has_sent = True
        return has_sent

    def _attempt(self, notification: Notification) -> AttemptResult:
        try:
            result = self._target.send(notification, self._notifier.base_url)
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

    def _record_again(self) -> None:
        """Try to record earlier attempts that the store could not take."""
        for id, unrecorded in list(self._unrecorded.items()):
            record = unrecorded.record
            left_s = max(0.0, unrecorded.retry_at - time.monotonic()) if record.outcome == "retry" else 0.0
            try:
                self._notifier.record(
                    unrecorded.status, self._name, AttemptRecord(record.outcome, record.error, left_s, record.attempts)
                )
            except StoreError:
                return
            del self._unrecorded[id]
