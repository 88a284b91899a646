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

from spanwise.collector.errors import StoreError, Unavailable
from spanwise.collector.records import JSON, WorkerReport
from spanwise.collector.stores import Store
from spanwise.evaluators.monitors.feed_follower import FeedFollower
from spanwise.evaluators.monitors.job_executor import TIMEOUT_CHECK_S, JobExecutor, Stuck
from spanwise.evaluators.monitors.monitored_rule import API_OWNER, ActiveRule, MonitoredRule, RuleKey, save_rules
from spanwise.evaluators.monitors.process_limits import WorkerMemory
from spanwise.evaluators.monitors.rule_spending import StoreLedger, find_unpriced_judge

MIN_FEED_POLL_S, MAX_FEED_POLL_S = 0.02, 2.0  # seconds between two polls of the feed, at least and at most
CLAIM_S = 30.0  # seconds after which a claim expires unless it is renewed
REPORT_INTERVAL_S = 5.0  # seconds between two reports
STORE_RETRY_S = 1.0  # seconds until a retry if the store did not answer
SHUTDOWN_GRACE_S = 10.0  # seconds that running evaluators have to finish when the monitor stops
_log = logging.getLogger("spanwise.monitor")


class Monitor:
    """Monitor that executes rules on the traces of a store until it is stopped.

    The name `holder` identifies the process for people; a random part distinguishes restarts. The rules of a file
    replace all rules that the file owned before. With `activate`, superseded versions are put in force again; without
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
    ) -> None:
        self.holder = f"{holder or f'{socket.gethostname()}/{os.getpid()}'}/{secrets.token_hex(4)}"
        owners = {rule.record.owner for rule in rules} - {API_OWNER}
        self._owner = owners.pop() if len(owners) == 1 else None
        self._store, self._activate, self._claim_s, self._now = store, activate, claim_s, now
        self._rules = [ActiveRule(rule) for rule in rules]
        for active_rule in self._rules:
            active_rule.barred = find_unpriced_judge(active_rule.record.settings.budget, active_rule.evaluators)
        ledgers = {one.name: StoreLedger(store, one) for one in self._rules}
        self._follower = FeedFollower(store, self._rules, self.holder, now)
        self._wake, self._look_at_feed = threading.Event(), threading.Event()
        self._dead: list[str] = []
        self._runner = JobExecutor(
            store, self._rules, self.holder, ledgers, self._follower.sizes, claim_s, self._wake, now, memory
        )
        self._saved = False
        self._last = SHUTDOWN_GRACE_S
        self._over = threading.Event()
        self._logged = ""
        self._began = now()
        self._reported = (now(), 0, 0)

    @property
    def idle(self) -> Mapping[str, str]:
        """Return the rules that are not executed, with the reasons."""
        return {one.record.name: one.idle for one in self._rules if one.idle is not None}

    def suspend(self, rules: Collection[RuleKey]) -> None:
        """Suspend rules that have crashed workers. It is thread-safe."""
        for one in self._rules:
            one.suspended = "the rule is quarantined because it ended several workers" if one.name in rules else None
            if one.suspended:
                one.idle = one.suspended

    def take_over(self, dead: Sequence[str]) -> None:
        """Release the leases of dead workers, so that this one need not wait for them. It is thread-safe."""
        self._dead = list(dead)
        self._look_at_feed.set()

    def step(self) -> int:
        """Process all due changes and targets, and wait until they are finished.

        Returns the number of processed items; 0 if nothing was due. Raises the store's errors, and `Stuck`.
        """
        self._start()
        done, self._follower.behind = 0, True
        while self._follower.behind:
            done += self._follower.step()
            self._runner.see_time(self._follower.now_ns)
            self._look()
            while (did := self._runner.step()) or self._runner.busy:
                done += did
                if not did:
                    time.sleep(0.001)
        return done

    def run(self) -> None:
        """Run until `stop()` is called. While the store is unavailable, retry. Raises `Stuck` if a new process must
        continue.
        """
        threads = [
            threading.Thread(target=self._follow_feed, name="spanwise-monitor-feed", daemon=True),
            threading.Thread(target=self._keep_alive, name="spanwise-monitor-keep", daemon=True),
        ]
        try:
            # save the rules as soon as the store answers
            while not self._saved and not self._over.is_set():
                try:
                    self._start()
                except Unavailable as error:
                    _log.warning("spanwise monitor: %s", error)
                    self._over.wait(error.retry_after)
            for thread in threads:
                thread.start()
            while not self._over.is_set():
                self._wake.clear()
                if not self._persist(self._runner.step):
                    # pause until rows may be due (`next`); the pause is short while evaluators run, because their
                    # timeouts must be checked
                    longest = TIMEOUT_CHECK_S if self._runner.in_flight else MAX_FEED_POLL_S
                    self._wake.wait(min(longest, max(0.001, self._runner.next - self._now())))
        finally:
            self._over.set()
            for thread in threads:
                if thread.ident is not None:
                    thread.join(SHUTDOWN_GRACE_S)
            self.close()

    def stop(self, seconds: float | None = None) -> None:
        """End `run`, from any thread or signal handler.

        Running jobs have `seconds` to finish (None: `SHUTDOWN_GRACE_S`). Unfinished ones are released.
        """
        self._last = self._last if seconds is None else seconds
        self._over.set()
        self._wake.set()
        self._look_at_feed.set()

    def close(self) -> None:
        """Release claims and leases. Callers that use `step` instead of `run` call it at the end."""
        ends: tuple[Callable[[], None], ...] = (lambda: self._runner.stop(self._last), self._follower.stop)
        for end in ends:
            try:
                end()
            except StoreError as error:
                _log.warning("spanwise monitor: at its end: %s", error)

    def reports(self) -> list[WorkerReport]:
        """Return the worker's reports, one for each project."""
        then, finished, decided = self._reported
        now = self._now()
        self._reported = (now, self._runner.finished, self._follower.decided)
        seconds = max(now - then, 1e-9)
        data: dict[str, JSON] = {
            "finished_per_s": (self._runner.finished - finished) / seconds,
            "decided_per_s": (self._follower.decided - decided) / seconds,
            "finished": self._runner.finished,
            "refused": self._runner.refused,
            "in_flight": self._runner.in_flight,
            "waiting_in_memory": self._follower.waiting,
            "pid": os.getpid(),
        }
        projects: dict[str, list[ActiveRule]] = {}
        for one in self._rules:
            projects.setdefault(one.record.project, []).append(one)
        return [
            WorkerReport(
                holder=self.holder,
                project=project,
                rules={one.record.name: one.record.version for one in active_rules},
                data={**data, **self._by_rule({one.name for one in active_rules}, now)},
            )
            for project, active_rules in projects.items()
        ]

    def _by_rule(self, names: Collection[RuleKey], now: float) -> dict[str, JSON]:
        """Return those entries of a project's report that list values by rule name."""
        working = [one for one in self._runner.executions if one.active_rule.name in names]
        return {
            "deciding": sorted(rule for project, rule in self._follower.deciding if (project, rule) in names),
            "evaluators": {one.active_rule.record.name: one.statistics() for one in working},
            "paused": {one.active_rule.record.name: paused for one in working if (paused := one.pauses.all(now))},
            "idle": {
                one.active_rule.record.name: why
                for one in working
                if (why := one.active_rule.reported_idle) is not None
            },
        }

    def _start(self) -> None:
        if not self._saved:
            self._save_rules()
            self._saved = True

    def _save_rules(self) -> None:
        save_rules(self._store, self._rules, self._owner, activate=self._activate)

    def _look(self) -> None:
        for one in self._runner.executions:
            one.poll_by(self._now())
        self._wake.set()

    def _follow_feed(self) -> None:
        pause = MIN_FEED_POLL_S
        while not self._over.is_set():
            done = self._persist(self._follower.step)
            self._runner.see_time(self._follower.now_ns)
            if done:
                self._look()
            pause = MIN_FEED_POLL_S if done else min(2 * pause, MAX_FEED_POLL_S)
            if not self._follower.behind:
                due = self._follower.next
                self._look_at_feed.wait(pause if due is None else min(pause, max(0.001, due - self._now())))
                self._look_at_feed.clear()
                self._persist(self._release_dead)

    def _release_dead(self) -> None:
        if self._dead and self._saved:
            self._follower.take_over(self._dead)
            self._dead = []

    def _keep_alive(self) -> None:
        """Renew claims and send reports. A separate thread does this, so that slow work on other threads does not delay
        it.
        """
        self._persist(self._report)  # report at once, so that a new worker is visible
        report_at = self._now() + REPORT_INTERVAL_S
        while not self._over.wait(min(REPORT_INTERVAL_S, self._claim_s / 4)):
            self._persist(self._renew)
            if self._now() >= report_at:
                self._persist(self._report)
                report_at = self._now() + REPORT_INTERVAL_S

    def _report(self) -> None:
        for report in self.reports():
            self._store.report(report)

    def _renew(self) -> None:
        if claims := self._runner.claims:
            self._store.renew(claims, self.holder, self._claim_s)

    def _persist(self, do: Callable[[], Any]) -> Any:
        """Call a function that uses the store. If it raises, log the error, wait, and return None."""
        try:
            return do()
        except Stuck:
            raise
        # continue after an unexpected error: a worker that has ended would evaluate nothing more
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            # log a message once, not again at each retry
            if message != self._logged:
                self._logged = message
                _log.warning("spanwise monitor: %s", message)
            self._over.wait(getattr(error, "retry_after", STORE_RETRY_S))
            return None
