"""Worker process entry point: loads rules, sends heartbeats, restarts the monitor when API rules change.

The process loads the rule file, reports its rules, and waits for the supervisor's start message. It then runs until
the supervisor sends an end message or exits.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, cast

import orjson

from spanwise.collector import connect
from spanwise.collector.errors import Refused, StoreError
from spanwise.collector.records import Claim, ClaimResult, Decision, Rule, WorkerReport, canonical_json
from spanwise.collector.stores import Store
from spanwise.evaluators.monitors.job_executor import Stuck
from spanwise.evaluators.monitors.monitor_runtime import CLAIM_S, Monitor
from spanwise.evaluators.monitors.monitored_rule import API_OWNER, REASON_UNSAVED, MonitoredRule
from spanwise.evaluators.monitors.process_limits import WorkerMemory, memory_in_use, protect_process
from spanwise.evaluators.monitors.rule_loading import (
    BrokenRules,
    content_digest,
    describe_rules,
    load,
    rule_from_data,
    source_files,
)
from spanwise.evaluators.monitors.worker_process import ExitCode, MessageSender


def make_reporting_store(store: Store, sender: MessageSender, idle: Mapping[str, str]) -> Store:
    """Return a store that tells the supervisor about each claim.

    The mapping `idle` holds rules that this worker does not execute, with the reasons. The store adds them to the
    worker's reports.
    """
    return cast(Store, _ReportingStore(store, sender, idle))


class _ReportingStore:
    def __init__(self, store: Store, sender: MessageSender, idle: Mapping[str, str]) -> None:
        self._store, self._sender, self._idle = store, sender, idle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def save_rule(self, *rules: Any, **options: Any) -> None:
        self._store.save_rule(*rules, **options)
        self._sender.tell("saved")

    def claim(self, rule: str, *arguments: Any, **options: Any) -> list[Decision]:
        rows = self._store.claim(rule, *arguments, **options)
        if rows:
            self._sender.tell("claimed", claims=[_claim_key(row) for row in rows])
        return rows

    def finish(self, *finishes: ClaimResult) -> list[str]:
        answers = self._store.finish(*finishes)
        self._sender.tell("finished", claims=[_claim_key(finish.claim) for finish in finishes])
        return answers

    def report(self, worker: WorkerReport) -> None:
        idle = worker.data.get("idle")
        merged = {**(idle if isinstance(idle, Mapping) else {}), **self._idle}
        self._store.report(replace(worker, data={**worker.data, "idle": merged}))


def _claim_key(of: Decision | Claim) -> tuple[str, str, str]:
    target = of.target
    if target.session_id is not None:
        described = f"session {target.session_id}"
    else:
        described = f"trace {target.trace_id}" + (f", span {target.span_id}" if target.span_id else "")
    return of.project, of.rule, described


API_POLL_INTERVAL_S = 2.0  # seconds between two queries for the API's rules

MessageQueue: TypeAlias = "queue.SimpleQueue[Mapping[str, Any]]"


class WorkerController:
    """Controller of a worker's monitor. It replaces the monitor when the rules of the API change.

    The queue `inbox` delivers the supervisor's messages: `{"resting": [[project, rule]], …}` or `{"end": seconds}`.
    """

    def __init__(
        self,
        store: Store,
        file_rules: Sequence[MonitoredRule],
        *,
        inbox: MessageQueue,
        sender: MessageSender,
        memory: WorkerMemory | None = None,
    ) -> None:
        self._file_rules, self._inbox, self._sender, self._memory = file_rules, inbox, sender, memory
        self._logged: dict[str, str] = {}  # idle rules and their reasons, as they were last logged
        self._idle: dict[str, str] = {}  # invalid rules of the API, with the reasons
        self._store = make_reporting_store(store, sender, self._idle)
        self._dead: list[str] = []  # holder names of dead workers
        self._resting: set[tuple[str, str]] = set()
        self._known: dict[
            tuple[str, str, bytes], MonitoredRule | None
        ] = {}  # rules built from the API's data, by project, name and content; None for an invalid rule

    def run(self, first: Mapping[str, Any]) -> int:
        """Run until the supervisor sends an end message, and return the exit status of the process."""
        self._apply_message(first)
        activate, claim_s = bool(first.get("activate")), first.get("claim_s")
        api_rules: list[MonitoredRule] = self._load_api_rules([])
        running = self._start_monitor(api_rules, claim_s, activate)
        while "end" not in (message := self._next_message()) and running.alive:
            if self._apply_message(message):
                running.monitor.take_over(self._dead)
            running.monitor.suspend(self._resting)
            self._log_idle(running.monitor.idle)
            if (now := self._load_api_rules(api_rules)) != api_rules:
                api_rules = now
                running.end()
                running = self._start_monitor(api_rules, claim_s)
        running.end(message.get("end"))
        return running.status

    def _log_idle(self, idle: Mapping[str, str]) -> None:
        """Log each idle rule and its reason once. Rules in quarantine are left out, because the supervisor logs
        them.
        """
        resting = {name for _, name in self._resting}
        now = {name: why for name, why in idle.items() if why != REASON_UNSAVED and name not in resting}
        for name in sorted(name for name, why in now.items() if self._logged.get(name) != why):
            self._sender.tell("say", text=f"rule {name!r} idles: {now[name]}")
        self._logged = now

    def _next_message(self) -> Mapping[str, Any]:
        try:
            return self._inbox.get(timeout=API_POLL_INTERVAL_S)
        except queue.Empty:
            return {}

    def _apply_message(self, message: Mapping[str, Any]) -> bool:
        """Apply a message of the supervisor, and return whether it reports further dead workers."""
        if "resting" in message:
            self._resting = {(project, name) for project, name in message["resting"]}
        before, self._dead = self._dead, message.get("dead", self._dead)
        return self._dead != before

    def _start_monitor(
        self, api_rules: Sequence[MonitoredRule], claim_s: float | None, activate: bool = False
    ) -> _MonitorThread:
        rules = [*self._file_rules, *api_rules]
        monitor = Monitor(self._store, rules, activate=activate, claim_s=claim_s or CLAIM_S, memory=self._memory)
        monitor.suspend(self._resting)
        monitor.take_over(self._dead)
        self._sender.tell("holder", name=monitor.holder)
        return _MonitorThread(monitor, self._sender)

    def _load_api_rules(self, before: list[MonitoredRule]) -> list[MonitoredRule]:
        """Return the current rules of the API. While the store is unavailable, return the previous ones."""
        try:
            rules = [rule for rule in self._store.rules() if rule.owner == API_OWNER]
        except StoreError:
            return before
        known = {(rule.project, rule.name, _rule_identity(rule)): rule for rule in rules}
        self._known = {
            key: self._known[key] if key in self._known else self._build_rule(rule) for key, rule in known.items()
        }
        for name in self._idle.keys() - {rule.name for rule in rules}:
            del self._idle[name]
        return [made for made in self._known.values() if made is not None]

    def _build_rule(self, rule: Rule) -> MonitoredRule | None:
        try:
            made = rule_from_data(rule)
        except ValueError as error:
            self._idle[rule.name] = str(error)
            self._sender.tell("say", text=f"rule {rule.name!r} idles: {error}")
            return None
        self._idle.pop(rule.name, None)
        where = " and ".join(describe_rules([made])[0]["where"])
        self._sender.tell("say", text=f"rule {rule.name!r} came through the API{where and f'; text goes to {where}'}")
        return made


def _rule_identity(rule: Rule) -> bytes:
    """Return those properties of a rule whose change requires a new monitor. The monitor reads all others from the
    store.
    """
    return canonical_json([rule.version, rule.target, rule.kind, rule.scope, dict(rule.filter), list(rule.evaluators)])


class _MonitorThread:
    """Thread that runs a monitor. The main thread stays free for signals and the supervisor's messages."""

    def __init__(self, monitor: Monitor, sender: MessageSender) -> None:
        self.monitor, self._sender = monitor, sender
        self.status = ExitCode.ENDED
        self._thread = threading.Thread(target=self._run, name="spanwise-monitor", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Return whether the monitor still runs."""
        return self._thread.is_alive()

    def end(self, seconds: float | None = None) -> None:
        """Stop the monitor and wait for its thread. Running jobs have `seconds` to finish; unfinished ones are
        released.
        """
        self.monitor.stop(seconds)
        self._thread.join()

    def _run(self) -> None:
        try:
            self.monitor.run()
        except Stuck as error:
            self.status = ExitCode.STUCK
            self._sender.tell("say", text=str(error))
        except Refused as error:
            self.status = ExitCode.REFUSED
            self._sender.tell("refused", error=str(error))
        except BaseException as error:
            self.status = ExitCode.FAILED
            self._sender.tell("say", text=f"a worker failed: {''.join(traceback.format_exception(error, limit=-3))}")


HEARTBEAT_INTERVAL_S = 1.0  # seconds between two heartbeats

_END_MESSAGE: Mapping[str, Any] = {"end": None}  # None: the monitor's default grace period


def main() -> None:
    """Run until the supervisor or SIGTERM ends the worker. The process exits even if some threads still run."""
    given = _parse_arguments()
    sender = MessageSender(given.report)
    os.set_inheritable(given.report, False)
    os.set_inheritable(given.line, False)
    protect_process(given.report, given.memory)
    inbox: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
    memory = WorkerMemory(given.memory)
    _start_thread(_send_heartbeats, sender, memory)
    _start_thread(_receive_messages, given.line, inbox, given.ending)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: inbox.put(_END_MESSAGE))
    try:
        status = _run_rules(given, sender, inbox, memory)
    except BaseException:  # report every error before the process ends
        sender.tell("say", text=f"a worker failed: {traceback.format_exc(limit=-3)}")
        status = ExitCode.FAILED
    from spanwise.tracer import flush

    flush(1.0)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)  # do not wait for threads: those of evaluators that hang would keep the process alive


def _run_rules(
    given: argparse.Namespace, sender: MessageSender, inbox: queue.SimpleQueue[Mapping[str, Any]], memory: WorkerMemory
) -> int:
    rules = _load_rules(given.file, given.url, sender)
    if rules is None:
        return ExitCode.BROKEN_RULES
    memory.rules_are_loaded()
    first = inbox.get()
    if "end" in first:
        return ExitCode.ENDED
    controller = WorkerController(connect(given.url), rules, inbox=inbox, sender=sender, memory=memory)
    return controller.run({**first, "claim_s": given.claim})


def _load_rules(file: Path, url: str, sender: MessageSender) -> list[MonitoredRule] | None:
    """Load the rules and report them to the supervisor. Return None if the file is broken."""
    try:
        rules = load(file)
    except BrokenRules as error:
        message = _error_line(error, file)
        _report_file(url, file, message)
        sender.tell("broken", error=message, files=source_files(file))
        return None
    _report_file(url, file, None)
    files = source_files(file)
    longest = max(rule.record.settings.timeout_s for rule in rules)
    sender.tell("loaded", rules=describe_rules(rules), files=files, content=content_digest(files), longest=longest)
    return rules


def _report_file(url: str, file: Path, broken: str | None) -> None:
    """Report to the store whether the file could be loaded. If no worker runs a rule, users then see the reason."""
    data = {"file": file.as_posix(), "broken": broken}
    with suppress(StoreError), closing(connect(url)) as store:
        store.report(WorkerReport(holder=f"{socket.gethostname()} {file}", project="default", rules={}, data=data))


def _error_line(error: BrokenRules, file: Path) -> str:
    """Return the error as one line of text, with the line number in the user's file that raised it."""
    cause = error.__cause__
    message = str(error).splitlines()[0]
    if cause is None:
        return message
    if isinstance(cause, SyntaxError):  # the message of a SyntaxError already contains the line
        return message
    folder = file.parent.resolve()
    stack = traceback.extract_tb(cause.__traceback__)
    frames = [frame for frame in stack if Path(frame.filename).resolve().is_relative_to(folder)]
    return f"{message} ({Path(frames[-1].filename).name}:{frames[-1].lineno or 0})" if frames else message


def _send_heartbeats(sender: MessageSender, memory: WorkerMemory) -> None:
    """Send heartbeats with the memory use to the supervisor.

    No heartbeat is sent while an extension blocks all threads of this process.
    """
    never = threading.Event()
    while not never.wait(HEARTBEAT_INTERVAL_S):
        with suppress(MemoryError):
            sender.tell("beat", used=memory_in_use(), deferred=memory.deferred)


def _receive_messages(line: int, inbox: queue.SimpleQueue[Mapping[str, Any]], ending: float) -> None:
    """Queue the supervisor's messages. When the supervisor has ended, end this process."""
    with open(line, "rb", closefd=False) as lines:
        for each in lines:
            inbox.put(orjson.loads(each))
    inbox.put(_END_MESSAGE)
    threading.Event().wait(ending)
    os._exit(0)


def _start_thread(what: Any, *arguments: Any) -> None:
    threading.Thread(target=what, args=arguments, name=f"spanwise-{what.__name__.strip('_')}", daemon=True).start()


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="spanwise.evaluators.monitors.worker")
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--report", type=int, required=True)
    parser.add_argument("--line", type=int, required=True)
    parser.add_argument("--ending", type=float, required=True)
    parser.add_argument("--memory", type=int)
    parser.add_argument("--claim", type=float)
    return parser.parse_args()


if __name__ == "__main__":
    main()
