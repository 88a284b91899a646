"""Monitor: threads that follow the feed, execute jobs, renew claims and send reports.

Evaluators run on other threads. Several workers, in several processes, may share a store. For each rule, one of them
makes the decisions, and all execute jobs.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from spanwise.collector.alerts import AlertRunner
from spanwise.collector.errors import StoreError, Unavailable
from spanwise.collector.records import JSON, Alert, WorkerReport
from spanwise.collector.stores import Store
from spanwise.evaluators.monitors.feed_follower import FeedFollower
from spanwise.evaluators.monitors.job_executor import TIMEOUT_CHECK_S, JobExecutor, Stuck
from spanwise.evaluators.monitors.monitored_rule import API_OWNER, ActiveRule, MonitoredRule, RuleKey, save_rules
from spanwise.evaluators.monitors.rule_jobs import RuleExecution
from spanwise.evaluators.monitors.rule_spending import StoreLedger, find_unpriced_judge
from spanwise.evaluators.monitors.worker_process import WorkerMemory

MIN_FEED_POLL_S, MAX_FEED_POLL_S = 0.02, 2.0  # seconds between two polls of the feed, at least and at most
CLAIM_S = 30.0  # seconds after which a claim expires unless it is renewed
REPORT_INTERVAL_S = 5.0  # seconds between two reports
STORE_RETRY_S = 1.0  # seconds until a retry if the store did not answer
SHUTDOWN_GRACE_S = 10.0  # seconds that running evaluators have to finish when the monitor stops
_log = logging.getLogger("spanwise.monitor")


class Monitor:
    """Monitor that executes rules on the traces of a store until it is stopped.

    The name `holder` identifies the process for people; a random part distinguishes restarts. The rules of a file
    replace all rules that the file owned before; the same holds for its `alerts`. With `activate`, superseded versions are put in force again; without
    it, the worker does not execute such rules. Nothing is saved or read before the first step.
    """

    def __init__(
        self,
        store: Store,
        rules: Sequence[MonitoredRule],
        *,
        holder: str | None = None,
        activate: bool = False,
        claim_s: float = CLAIM_S,
        now: Callable[[], float] = time.monotonic,
        memory: WorkerMemory | None = None,
        alerts: Sequence[Alert] = (),
    ) -> None:
        self.holder = f"{holder or f'{socket.gethostname()}/{os.getpid()}'}/{secrets.token_hex(4)}"
        owners = {*(rule.record.owner for rule in rules), *(alert.owner for alert in alerts)} - {API_OWNER}
        self._owner = owners.pop() if len(owners) == 1 else None
        self._store, self._activate, self._claim_s, self._now = store, activate, claim_s, now
        self._alerts, self._alert_runner = alerts, AlertRunner(store, holder=self.holder)
        self._rules = [ActiveRule(rule) for rule in rules]
        for rule in self._rules:
            rule.barred = find_unpriced_judge(rule.record.settings.budget, rule.evaluators)
        ledgers = {rule.name: StoreLedger(store, rule) for rule in self._rules}
        self._wake_executor, self._wake_feed, self._stopped = threading.Event(), threading.Event(), threading.Event()
        self._follower = FeedFollower(store, self._rules, self.holder, now)
        self._executor = JobExecutor(
            store, self._rules, self.holder, ledgers, self._follower.sizes, claim_s, self._wake_executor, now, memory
        )
        self._dead: list[str] = []  # holder names of dead workers whose leases are not released yet
        self._saved = False
        self._shutdown_s = SHUTDOWN_GRACE_S
        self._logged = ""  # the latest logged error
        self.trouble: str | None = None  # the latest error, until a call succeeds
        self._reported = (now(), 0, 0)  # time of the latest report, and the numbers of finished and decided items in it

    @property
    def idle(self) -> Mapping[str, str]:
        """Return the rules that are not executed, with the reasons."""
        return {rule.record.name: rule.idle for rule in self._rules if rule.idle is not None}

    def suspend(self, rules: Collection[RuleKey]) -> None:
        """Suspend rules that have crashed workers. It is thread-safe."""
        for rule in self._rules:
            rule.suspended = "the rule is quarantined because it ended several workers" if rule.name in rules else None
            if rule.suspended:
                rule.idle = rule.suspended

    def take_over(self, dead: Sequence[str]) -> None:
        """Release the leases of dead workers, so that this one need not wait for them. It is thread-safe."""
        self._dead = list(dead)
        self._wake_feed.set()

    def step(self) -> int:
        """Process all due changes and targets, and wait until they are finished.

        Returns the number of processed items; 0 if nothing was due. Raises the store's errors, and `Stuck`.
        """
        self._start()
        done, self._follower.behind = 0, True
        while self._follower.behind:
            done += self._read_feed()
            self._claim_soon()
            while (finished := self._executor.step()) or self._executor.busy:
                done += finished
                if not finished:
                    time.sleep(0.001)
        return done

    def run(self) -> None:
        """Run until `stop()` is called. While the store is unavailable, retry. Raises `Stuck` if a new process must
        continue.
        """
        threads = [
            threading.Thread(target=self._follow_feed, name="spanwise-monitor-feed", daemon=True),
            threading.Thread(target=self._keep_alive, name="spanwise-monitor-keep", daemon=True),
            threading.Thread(target=self._alert_runner.run, name="spanwise-monitor-alerts", daemon=True),
        ]
        try:
            # save the rules as soon as the store answers
            while not self._saved and not self._stopped.is_set():
                try:
                    self._start()
                except Unavailable as error:
                    _log.warning("spanwise monitor: %s", error)
                    self._stopped.wait(error.retry_after)
            for thread in threads:
                thread.start()
            while not self._stopped.is_set():
                self._wake_executor.clear()
                if not self._retry_later(self._executor.step):
                    # pause until rows may be due (`next`); the pause is short while evaluators run, because their
                    # timeouts must be checked
                    longest = TIMEOUT_CHECK_S if self._executor.in_flight else MAX_FEED_POLL_S
                    self._wake_executor.wait(min(longest, max(0.001, self._executor.next - self._now())))
        finally:
            self._stopped.set()
            self._alert_runner.stop()
            for thread in threads:
                if thread.ident is not None:
                    thread.join(SHUTDOWN_GRACE_S)
            self.close()

    def stop(self, seconds: float | None = None) -> None:
        """End `run`, from any thread or signal handler.

        Running jobs have `seconds` to finish (None: `SHUTDOWN_GRACE_S`). Unfinished ones are released.
        """
        self._shutdown_s = self._shutdown_s if seconds is None else seconds
        for event in (self._stopped, self._wake_executor, self._wake_feed):
            event.set()

    def close(self) -> None:
        """Release claims and leases. Callers that use `step` instead of `run` call it at the end."""
        ends: tuple[Callable[[], None], ...] = (lambda: self._executor.stop(self._shutdown_s), self._follower.stop)
        for end in ends:
            try:
                end()
            except StoreError as error:
                _log.warning("spanwise monitor: claims or leases were not released: %s", error)

    def reports(self) -> list[WorkerReport]:
        """Return the worker's reports, one for each project."""
        then, finished, decided = self._reported
        now = self._now()
        self._reported = (now, self._executor.finished, self._follower.decided)
        seconds = max(now - then, 1e-9)
        data: dict[str, JSON] = {
            "finished_per_s": (self._executor.finished - finished) / seconds,
            "decided_per_s": (self._follower.decided - decided) / seconds,
            "finished": self._executor.finished,
            "refused": self._executor.refused,
            "in_flight": self._executor.in_flight,
            "waiting_in_memory": self._follower.waiting,
            "pid": os.getpid(),
        }
        projects: dict[str, list[RuleExecution]] = {}
        for execution in self._executor.executions:
            projects.setdefault(execution.active_rule.record.project, []).append(execution)
        return [
            WorkerReport(
                holder=self.holder,
                project=project,
                rules={one.active_rule.record.name: one.active_rule.record.version for one in executions},
                data={**data, **self._describe_rules(project, executions, now)},
            )
            for project, executions in projects.items()
        ]

    def _describe_rules(self, project: str, executions: Sequence[RuleExecution], now: float) -> dict[str, JSON]:
        """Return those entries of a project's report that list values by rule name."""
        by_name = {one.active_rule.record.name: one for one in executions if one.backfill is None}
        paused = {name: execution.breaker.list_paused(now) for name, execution in by_name.items()}
        idle = {name: execution.active_rule.reported_idle for name, execution in by_name.items()}
        return {
            "deciding": sorted(name for owner, name in self._follower.deciding if owner == project),
            "evaluators": {name: execution.statistics() for name, execution in by_name.items()},
            "paused": {name: reasons for name, reasons in paused.items() if reasons},
            "idle": {name: reason for name, reason in idle.items() if reason is not None},
            "barred_backfills": {
                id: reason for one in by_name.values() for id, reason in one.active_rule.barred_backfills.items()
            },
        }

    def _start(self) -> None:
        if not self._saved:
            self._save_rules()
            self._saved = True

    def _save_rules(self) -> None:
        save_rules(self._store, self._rules, self._owner, activate=self._activate)
        if self._owner is not None:
            self._store.save_alert(*self._alerts, owner=self._owner)

    def _read_feed(self) -> int:
        done = self._follower.step()
        self._executor.record_time(self._follower.now_ns)
        return done

    def _claim_soon(self) -> None:
        """Have the executor claim rows now, because decisions were stored."""
        for execution in self._executor.executions:
            execution.poll_by(self._now())
        self._wake_executor.set()

    def _follow_feed(self) -> None:
        pause = MIN_FEED_POLL_S
        while not self._stopped.is_set():
            done = self._retry_later(self._read_feed)
            if done:
                self._claim_soon()
            pause = MIN_FEED_POLL_S if done else min(2 * pause, MAX_FEED_POLL_S)
            if not self._follower.behind:
                due = self._follower.next
                self._wake_feed.wait(pause if due is None else min(pause, max(0.001, due - self._now())))
                self._wake_feed.clear()
                if self._dead:
                    self._retry_later(self._release_dead)

    def _release_dead(self) -> None:
        dead = self._dead
        self._follower.take_over(dead)
        if self._dead is dead:  # no further worker has died meanwhile
            self._dead = []

    def _keep_alive(self) -> None:
        """Renew claims and send reports. A separate thread does this, so that slow work on other threads does not delay
        it.
        """
        report_at = self._now()  # report at once, so that a new worker is visible
        while True:
            if self._now() >= report_at:
                self._retry_later(self._send_reports)
                report_at = self._now() + REPORT_INTERVAL_S
            if self._stopped.wait(min(REPORT_INTERVAL_S, self._claim_s / 4)):
                return
            self._retry_later(self._renew_claims)

    def _send_reports(self) -> None:
        for report in self.reports():
            self._store.report(report)

    def _renew_claims(self) -> None:
        if claims := self._executor.claims:
            self._store.renew(claims, self.holder, self._claim_s)

    def _retry_later(self, call: Callable[[], Any]) -> Any:
        """Call a function that uses the store. If it raises, log the error, wait, and return None."""
        try:
            result = call()
            self.trouble = None
            return result
        except Stuck:
            raise
        # continue after an unexpected error: a worker that has ended would evaluate nothing more
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            self.trouble = message
            # log a message once, not again at each retry
            if message != self._logged:
                self._logged = message
                _log.warning("spanwise monitor: %s", message)
            self._stopped.wait(getattr(error, "retry_after", STORE_RETRY_S))
            return None
