"""Supervisor: starts, restarts and stops worker processes; quarantines rules that crash them.

The supervisor's process loads no user code, so rules and evaluators can crash only worker processes.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from spanwise.evaluators.monitors.rule_loading import FileWatch
from spanwise.evaluators.monitors.worker_process import ClaimedTarget, LoadedRules, WorkerPlan, WorkerProcess
from spanwise.tracer.http_connections import compute_backoff

MAX_DEATHS = 3  # deaths of workers with claims of only this rule after which the rule is quarantined
# seconds of the first quarantine and of the longest one; doubled each time
FIRST_QUARANTINE_S, MAX_QUARANTINE_S = 60.0, 3600.0
RESET_AFTER_S = 3600.0  # seconds without a death after which a rule's record is reset

LineLogger: TypeAlias = Callable[[str], Any]


@dataclass(slots=True)
class _CrashRecord:
    deaths: int = 0
    quarantines: int = 0
    left: float = 0.0  # seconds of quarantine that remain
    since: float = 0.0  # seconds since its last death


class RuleQuarantine:
    """Quarantine of rules that crash workers. It has no clock: the caller reports elapsed time through `advance`."""

    def __init__(self, log: LineLogger) -> None:
        self._log = log
        self._records: dict[tuple[str, str], _CrashRecord] = {}

    def names(self) -> list[Sequence[str]]:
        """Return project and name of the rules in quarantine."""
        return [rule for rule, record in self._records.items() if record.left > 0]

    def blame(self, claims: Iterable[ClaimedTarget]) -> None:
        """Record that a worker died while it held these claims.

        The death counts only if all claims are of one rule.
        """
        rules = {(claim.project, claim.rule) for claim in claims}
        if len(rules) != 1:
            return
        record = self._records.setdefault(rule := rules.pop(), _CrashRecord())
        record.deaths, record.since = record.deaths + 1, 0.0
        if record.deaths >= MAX_DEATHS:
            record.left = min(FIRST_QUARANTINE_S * 2.0**record.quarantines, MAX_QUARANTINE_S)
            record.deaths, record.quarantines = 0, record.quarantines + 1
            self._log(
                f"rule {rule[1]!r} ended {MAX_DEATHS} workers and is quarantined for {record.left:g} s; other rules "
                "continue"
            )

    def advance(self, seconds: float) -> bool:
        """Advance the time, and return whether a quarantine has ended."""
        before = len(self.names())
        for rule, record in list(self._records.items()):
            record.left, record.since = max(0.0, record.left - seconds), record.since + seconds
            if record.since > RESET_AFTER_S + MAX_QUARANTINE_S:
                del self._records[rule]
        return len(self.names()) < before


TICK_S = 0.2  # seconds between two checks of the workers
FILE_CHECK_INTERVAL_S = 1.0  # seconds between two polls of the files
MAX_RESTART_DELAY_S = 30.0  # maximum seconds between a death and the restart
STEADY_RUN_S = 600.0  # if a worker has run this many seconds before it was full, earlier full workers no longer count
MAX_DEAD_HOLDERS = 20  # maximum number of dead workers whose names are passed on to the other workers
HEALTHY_RUN_S = 10.0  # if a worker has run this many seconds before it died, earlier deaths no longer count
HANGING_S = 30.0  # seconds without a pass over the workers after which the supervisor counts as hanging
RELOAD_RETRY_S = 30.0  # if no worker runs, seconds until a file that could not be loaded is tried again


class Supervisor:
    """Supervisor of the workers of a plan. `tell` is called with each log line.

    The callback `shown` receives the loaded rules, at the start and after each change.
    """

    def __init__(
        self, plan: WorkerPlan, tell: LineLogger, shown: Callable[[LoadedRules], Any] = lambda loaded: None
    ) -> None:
        self._plan, self._log, self._show_rules = plan, tell, shown
        self._workers: list[WorkerProcess] = []
        self._started = 0  # number of workers started so far
        self._selector = selectors.DefaultSelector()
        self._watch = FileWatch(plan.file)
        self._quarantine = RuleQuarantine(tell)
        self._accepted: LoadedRules | None = None
        self._previous: LoadedRules | None = None  # the rules that ran before `_accepted`
        self._content_in_force: str | None = None  # digest of the files whose rules the store has accepted
        self._broken: str | None = None  # digest of the latest content that could not be loaded
        self._logged: set[str] = set()  # messages already logged for the present content
        self._deaths = 0  # number of consecutive deaths
        self._dead_holders: list[str] = []  # names of dead workers; the other workers release their leases
        self._full_workers = 0  # number of consecutive replacements of full workers
        self._advanced_at = 0.0  # time until which the workers' times are advanced
        self._start_at = 0.0  # earliest time to start the next worker
        self._check_files_at = 0.0

    def run(self, stop: threading.Event, *, patient: bool = False) -> bool:
        """Run until `stop` is set.

        If the file cannot be loaded initially, return False at once, unless `patient` is true. Call the method in the
        thread that ends last: on Linux, workers die with the thread that started them.
        """
        self._advanced_at = time.monotonic()
        try:
            while not stop.is_set():
                # start a missing worker; until it is known whether the file can be loaded, only one worker runs
                active = [worker for worker in self._workers if worker.phase != "ending"]
                wanted = self._plan.workers if self._is_known_good else 1
                if len(active) < wanted and time.monotonic() >= self._start_at:
                    self._start_worker()
                elapsed = self._wait_for_messages()
                for worker in self._workers:
                    if worker.is_full(min(self._plan.full * 2.0**self._full_workers, STEADY_RUN_S)):
                        self._replace_full(worker)
                if self._quarantine.advance(elapsed):
                    self._send_quarantine()
                if self._broken and self._content_in_force is None and not patient:
                    return False
                self._check_files()
            return True
        finally:
            # ask all workers to end; `WorkerProcess.advance` kills those that do not
            for worker in self._workers:
                worker.end(self._plan.ending)
            while self._workers:
                self._wait_for_messages()
            self._selector.close()

    @property
    def _is_known_good(self) -> bool:
        """Return whether the present content of the files has been loaded successfully before."""
        return self._accepted is not None and self._accepted.content == self._watch.known

    def trouble(self) -> str | None:
        """Return the reason why no worker evaluates traces now; None if one does. Any thread may call this."""
        if time.monotonic() - self._advanced_at > HANGING_S:
            return "the monitor does not respond"
        running = [worker for worker in list(self._workers) if worker.phase == "running"]
        if not running or self._content_in_force is None:
            return "the rules could not be loaded" if self._broken else "no worker runs the rules yet"
        troubles = [worker.trouble for worker in running]
        return None if None in troubles else troubles[0]

    def _start_worker(self) -> None:
        self._started += 1
        worker = WorkerProcess(self._plan, self._started)
        self._workers.append(worker)
        self._selector.register(worker.receiver.descriptor, selectors.EVENT_READ, worker)

    def _wait_for_messages(self) -> float:
        """Handle the messages and ends of workers, advance the workers' times, and return the elapsed seconds."""
        self._selector.select(TICK_S)
        for worker in list(self._workers):
            # check for the exit first: if the worker has exited, the pipe now holds all messages that it sent before
            ended = worker.process.poll() is not None
            for message in worker.receive():
                self._handle_message(worker, message)
            if ended:
                self._selector.unregister(worker.receiver.descriptor)
                self._workers.remove(worker)
                if worker.phase != "ending" or worker.kill_reason:
                    self._record_death(worker)
                worker.clean_up()
        time.sleep(0.005)  # a pipe whose other end is closed always counts as readable, so `select` returns at once
        now = time.monotonic()
        # count only a part of a longer gap: this process and its workers were suspended then
        elapsed, self._advanced_at = min(now - self._advanced_at, 5 * TICK_S), now
        for worker in self._workers:
            worker.advance(elapsed)
        return elapsed

    def _handle_message(self, worker: WorkerProcess, message: Mapping[str, Any]) -> None:
        match message["kind"]:
            case "loaded" if worker.phase == "loading":
                worker.loaded = LoadedRules(**{name: value for name, value in message.items() if name != "kind"})
                worker.enter("loaded")
                self._accept(worker, worker.loaded)
            case "broken":
                worker.end(0.0)
                self._refuse(message["error"], message["files"])
            case "refused":  # the store refused the rules
                worker.end(0.0)
                self._accepted = self._previous
                self._refuse(f"{str(self._plan.file)!r}: {message['error']}", [])
            case "saved" if worker.loaded is not None:
                # Show the rules once they are in force. Rules that another file owns never are.
                if worker.loaded.content != self._content_in_force:
                    self._content_in_force = worker.loaded.content
                    self._show_rules(worker.loaded)
                # End workers with earlier rules. They finish the jobs that they have started.
                for other in self._workers:
                    if other.loaded is not None and other.loaded.content != worker.loaded.content:
                        other.end(self._plan.draining)
            case "trouble":
                worker.trouble = message["text"]
            case "log":
                self._log_once(message["text"])

    def _accept(self, worker: WorkerProcess, loaded: LoadedRules) -> None:
        """Start the rules that a worker has loaded. New content replaces the rules that ran before."""
        before, self._broken = self._accepted, None
        new = before is None or before.content != loaded.content
        self._watch.follow(loaded.files, loaded.content)
        if new:
            self._logged.clear()
            self._previous, self._accepted = before, loaded
        elif sum(other.phase == "running" for other in self._workers) >= self._plan.workers:
            worker.end(0.0)  # the file has its previous content again, and enough workers run it
            return
        worker.enter("running")
        activate = self._plan.activate or (new and before is not None)
        worker.send(resting=self._quarantine.names(), activate=activate, dead=self._dead_holders)

    def _refuse(self, error: str, files: list[str]) -> None:
        """Report that the file cannot be loaded. The rules that ran before continue to run."""
        self._watch.follow(files, self._watch.known)
        self._watch.follow_folder()
        self._start_at = time.monotonic() + RELOAD_RETRY_S
        if self._broken != self._watch.known:
            continues = "no rules run" if self._content_in_force is None else "the previous rules continue to run"
            self._log(f"{error}; {continues}")
        self._broken = self._watch.known

    def _log_once(self, text: str) -> None:
        """Log a message once, even if several workers send it."""
        if text not in self._logged:
            self._logged.add(text)
            self._log(text)

    def _record_death(self, worker: WorkerProcess) -> None:
        loading = worker.phase in ("loading", "loaded")
        if loading and not self._is_known_good:
            self._refuse(f"{str(self._plan.file)!r} ended the process that loaded it: {worker.describe_death()}", [])
            return
        self._deaths = 0 if worker.phase_s > HEALTHY_RUN_S and not loading else self._deaths + 1
        self._start_at = time.monotonic() + compute_backoff(self._deaths, longest=MAX_RESTART_DELAY_S)
        claims = worker.read_claims()
        self._log(f"worker {worker.number} ended: {worker.describe_death(claims)}")
        self._quarantine.blame(claims)
        self._dead_holders = [*self._dead_holders, *worker.holders][-MAX_DEAD_HOLDERS:]
        self._send_quarantine()

    def _replace_full(self, worker: WorkerProcess) -> None:
        """Replace a worker whose memory has stayed full."""
        self._full_workers = 0 if worker.phase_s > STEADY_RUN_S else self._full_workers + 1
        if "full" not in self._logged:
            self._logged.add("full")
            used, limit = (f"{(size or 0) / 2**30:.2f}" for size in (worker.used, self._plan.memory))
            self._log(
                f"worker {worker.number} is replaced: it uses {used} of {limit} GiB; an evaluator keeps memory, or its "
                "rules need more (--memory). Later replacements are not logged"
            )
        worker.end(self._plan.draining)

    def _send_quarantine(self) -> None:
        for worker in self._workers:
            if worker.phase == "running":
                worker.send(resting=self._quarantine.names(), dead=self._dead_holders)

    def _check_files(self) -> None:
        """Poll the files. If their content has changed, start a worker with it, in parallel to the running workers."""
        if time.monotonic() < self._check_files_at:
            return
        self._check_files_at = time.monotonic() + FILE_CHECK_INTERVAL_S
        if self._watch.missing:
            self._log_once(f"{str(self._plan.file)!r} is missing; the loaded rules continue to run")
        if self._watch.changed():
            for worker in self._workers:
                if worker.phase == "loading":
                    worker.end(0.0)
                    worker.kill()
            self._start_at = 0.0
            self._start_worker()
