"""Notifier: finds due deliveries, and distributes them to one worker per target, under a lease."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from spanwise.collector.dialects import log_once
from spanwise.collector.errors import StoreError
from spanwise.collector.notifications.email_target import EmailTarget
from spanwise.collector.notifications.http_target import AttemptResult, HTTPTarget
from spanwise.collector.notifications.target_config import LOG_TARGET, NotificationConfig
from spanwise.collector.notifications.target_worker import (
    BATCH_SIZE,
    DeliveryRecorder,
    LogTarget,
    RetrySettings,
    TargetWorker,
)
from spanwise.collector.prometheus_metrics import Metrics
from spanwise.collector.stores import ControlStore, LocalStore
from spanwise.collector.terminal_escaping import escape_line

LEASE = "notifications"  # name of the lease; only one of several servers on a store sends
LEASE_S, RENEW_S = 30.0, 5.0
SHUTDOWN_TIMEOUT_S = 5.0
_HOLDER_PREFIX = f"notifier-{socket.gethostname()}-{os.getpid()}-"


class Notifier:
    """Notifier of one server. Call `begin` once, and `close` before the store is closed.

    Delivery is at least once: a notification that was sent but not recorded, because the process was killed, is sent
    again under the same id. Each target has a thread of its own, so that a hanging one holds up no other. The store
    holds the states of all deliveries.
    """

    def __init__(
        self, config: NotificationConfig | None = None, *, retries: RetrySettings | None = None, poll_s: float = 1.0
    ) -> None:
        """Create the notifier. `poll_s` is the time between two polls of the store."""
        self._config, self._poll_s = config or NotificationConfig(), poll_s
        self._retries = retries or RetrySettings()
        self._stopping = threading.Event()
        self._holder = f"{_HOLDER_PREFIX}{secrets.token_hex(8)}"
        self._renew_at = self._leased_until = 0.0
        self._workers: dict[str, TargetWorker] = {}
        self._thread = threading.Thread(target=self._run, name="spanwise-notifier", daemon=True)

    def begin(self, store: ControlStore, metrics: Metrics, url: str) -> None:
        """Start to deliver. `url` is the address of the server, for links if no `public_url` is configured."""
        if isinstance(store, LocalStore) and store.is_exclusive:  # no other process can have this lease
            killed = [one for one in store.leases() if one.name == LEASE and not one.holder.startswith(_HOLDER_PREFIX)]
            with suppress(StoreError):  # a full store; the lease expires
                for lease in killed:
                    store.release(LEASE, lease.holder)
        targets: Mapping[str, HTTPTarget | EmailTarget | LogTarget] = {LOG_TARGET: LogTarget(), **self._config.targets}
        self._store, self._recorder = store, DeliveryRecorder(store, metrics, self._retries, targets.keys())
        base_url = self._config.public_url or url
        for name, target in targets.items():
            self._workers[name] = TargetWorker(
                name, target, self._recorder, base_url, lambda: time.monotonic() < self._leased_until
            )
        self._thread.start()

    def close(self) -> None:
        """Start no further delivery, wait a few seconds for those in progress, and release the lease."""
        self._stopping.set()
        for worker in self._workers.values():
            worker.stop()
        deadline = time.monotonic() + SHUTDOWN_TIMEOUT_S
        if self._thread.is_alive():
            self._thread.join(SHUTDOWN_TIMEOUT_S)
        for worker in self._workers.values():
            worker.join(max(0.0, deadline - time.monotonic()))
        if self._leased_until:
            with suppress(StoreError):
                self._store.release(LEASE, self._holder)

    def _run(self) -> None:
        """Poll the store until `close`. An idle poll reads one empty index."""
        while not self._stopping.wait(self._poll_s):
            try:
                due = self._store.count_due_deliveries()
                if due and self._renew_lease():
                    self._distribute(due)
            except Exception as error:  # the store may be full or busy; the thread goes on
                log_once("notifications could not be read; this is retried", error)

    def _renew_lease(self) -> bool:
        """Acquire or renew the lease every `RENEW_S` seconds. Return whether this notifier has it."""
        now = time.monotonic()
        if now < self._renew_at:
            return now < self._leased_until
        try:
            is_held = self._store.acquire(LEASE, self._holder, LEASE_S) is not None
        except StoreError:  # a full store must not hold up the notification that says so
            is_held = all(lease.name != LEASE or lease.holder == self._holder for lease in self._store.leases())
        self._renew_at, self._leased_until = now + RENEW_S, now + LEASE_S if is_held else 0.0
        return is_held

    def _distribute(self, due: Mapping[str, int]) -> None:
        """Start a pass of each target's worker, and record a failure for targets that are not configured."""
        for name in due:
            if name in self._workers:
                self._workers[name].start_pass()
                continue
            file = self._config.source
            remedy = f"add it to {file!r}" if file else "start the server with --targets FILE"
            error = f"target {escape_line(name)!r} is not configured on this server; {remedy}"
            for status in self._store.due_deliveries(name, limit=BATCH_SIZE):
                self._recorder.record(status, name, self._recorder.plan(status, AttemptResult(False, error)))
