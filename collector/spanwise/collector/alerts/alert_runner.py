"""Alert runner: a thread that looks at each alert when a look is due, under one lease for the whole store."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from spanwise.collector.alert_policy import CLOCK_TOLERANCE_NS, get_interval_ns, has_kept_sums, is_operational
from spanwise.collector.alerts.alert_look import MeasureCache, look
from spanwise.collector.alerts.moving_traces import MovingTraces
from spanwise.collector.alerts.status_changes import apply_look
from spanwise.collector.errors import Forbidden, StoreError
from spanwise.collector.records import Alert, AlertGroup, AlertResult
from spanwise.collector.stores import Store

ALERT_LEASE = "alerts"  # name of the lease
LEASE_S = 30.0
POLL_S = 2.0  # seconds between two searches for due looks
MAX_WAIT_S = 600.0  # seconds that a look waits until every trace of its window is decided
_SECOND = 1_000_000_000
_log = logging.getLogger("spanwise.alerts")


class AlertRunner:
    """Runner of the looks at the alerts of a store. Several runners may share a store: one of them has the lease.

    Each look reads the store again, so that a killed runner loses one look at most; the next one continues when its
    lease has expired.
    """

    def __init__(
        self,
        store: Store,
        *,
        holder: str | None = None,
        poll_s: float = POLL_S,
        lease_s: float = LEASE_S,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        self.holder = holder or f"{socket.gethostname()}/{os.getpid()}/alerts/{secrets.token_hex(4)}"
        self._store, self._poll_s, self._lease_s, self._now = store, poll_s, lease_s, now
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._cache = MeasureCache()
        # by alert: the time since when looks wait for decisions. After ten minutes, later looks do not wait again
        self._waiting: dict[tuple[str, str], int] = {}
        self._logged: dict[tuple[str, str], str] = {}  # the latest logged error of each alert

    def begin(self) -> None:
        """Start a thread that runs until `close`."""
        self._thread = threading.Thread(target=self.run, name="spanwise-alerts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, and wait for a look in progress."""
        self.stop()
        if self._thread is not None:
            self._thread.join(self._lease_s)

    def run(self) -> None:
        """Run until `stop`. While the store does not answer, retry."""
        while not self._stopped.is_set():
            try:
                self.step()
            except Forbidden:  # a key of one project may not look at all alerts; the server does
                break
            except Exception as error:  # an unexpected error must not end the looks at all alerts
                self._log_once(("", ""), f"the looks are postponed: {type(error).__name__}: {error}")
            self._stopped.wait(self._poll_s)
        with suppress(Exception):  # the store may be closed, or away; the lease expires
            self._store.release(ALERT_LEASE, self.holder)

    def stop(self) -> None:
        """End `run`, from any thread."""
        self._stopped.set()

    def step(self) -> int:
        """Perform all due looks, if this runner has the lease. Return their number."""
        # The system's clock: the store's clock does not follow when the system's is set back, traces do
        now_ns = self._now()
        due = []
        for alert in self._store.alerts():
            due_ns = now_ns - now_ns % get_interval_ns(alert)
            # a look far in the future is from before the clock was set back
            if alert.enabled and not due_ns <= alert.looked_ns <= now_ns + CLOCK_TOLERANCE_NS:
                due.append((alert, due_ns))
        # without a due look nothing is written, not even a lease
        lease = self._store.acquire(ALERT_LEASE, self.holder, self._lease_s) if due else None
        if lease is None:
            return 0
        done, moving = 0, MovingTraces(self._store)
        for alert, due_ns in due:
            try:
                done += self._look(alert, due_ns, now_ns, lease.token, moving)
            except Exception as error:  # one alert must not end the looks at the others
                text = error if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
                self._log_once((alert.project, alert.name), f"alert {alert.name!r} was not evaluated: {text}")
            # a look may take long: renew the lease, or stop if another runner has taken it over
            if self._stopped.is_set() or self._store.acquire(ALERT_LEASE, self.holder, self._lease_s) is None:
                break
        return done

    def _look(self, alert: Alert, due_ns: int, now_ns: int, token: int, moving: MovingTraces) -> bool:
        """Perform one look, unless it still waits for decisions. Return whether it was stored."""
        undecided = 0
        if alert.rule is not None and not is_operational(alert):
            undecided = self._store.undecided(alert.rule, project=alert.project, before_ns=due_ns)
            if not undecided:
                self._waiting.pop((alert.project, alert.name), None)
            elif now_ns - self._waiting.setdefault((alert.project, alert.name), due_ns) < MAX_WAIT_S * _SECOND:
                return False
        states: Mapping[str | None, AlertGroup] = {
            group.group: group for group in self._store.alert_groups(alert.name, project=alert.project)
        }
        cache = None if has_kept_sums(alert) else self._cache
        result = look(self._store, alert, due_ns, states, undecided=undecided, cache=cache)
        changes = apply_look(moving, alert, states, result, due_ns)
        is_stored = self._store.record_look(
            AlertResult(
                project=alert.project,
                alert=alert.name,
                version=alert.version,
                token=token,
                looked_ns=due_ns,
                now_ns=now_ns,
                groups=changes.groups,
                events=changes.events,
                notifications=changes.notifications,
                dropped=changes.dropped,
                left_out_groups=result.left_out_groups,
                left_out_names=result.left_out_names,
            )
        )
        for event in changes.events if is_stored else ():
            group = "" if event.group is None else f" [{event.group}]"
            _log.info("alert %s%s of project %s: %s → %s", alert.name, group, alert.project, event.before, event.after)
        self._logged.pop((alert.project, alert.name), None)
        return is_stored

    def _log_once(self, alert: tuple[str, str], message: str) -> None:
        if self._logged.get(alert) != message:
            self._logged[alert] = message
            _log.warning("spanwise alerts: %s", message)
