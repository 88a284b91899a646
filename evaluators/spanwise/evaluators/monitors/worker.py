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
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from spanwise.collector import connect
from spanwise.collector.errors import Refused, StoreError
from spanwise.collector.records import Rule, WorkerReport, canonical_json
from spanwise.collector.stores import Store
from spanwise.evaluators.monitors.job_executor import Stuck
from spanwise.evaluators.monitors.monitor_runtime import CLAIM_S, Monitor
from spanwise.evaluators.monitors.monitored_rule import API_OWNER, REASON_UNSAVED, MonitoredRule
from spanwise.evaluators.monitors.rule_loading import (
    BrokenRules,
    RulesFile,
    content_digest,
    describe_rules,
    load_file,
    rule_from_data,
    source_files,
)
from spanwise.evaluators.monitors.worker_process import (
    ExitCode,
    MessageSender,
    WorkerMemory,
    memory_in_use,
    protect_process,
)

API_POLL_INTERVAL_S = 2.0  # seconds between two queries for the API's rules
HEARTBEAT_INTERVAL_S = 1.0  # seconds between two heartbeats

Message: TypeAlias = Mapping[str, Any]
_END_MESSAGE: Message = {"end": None}  # None: the monitor's default grace period


def main() -> None:
    """Run until the supervisor or SIGTERM ends the worker. The process exits even if some threads still run."""
    arguments = _parse_arguments()
    sender = MessageSender(arguments.report)
    os.set_inheritable(arguments.report, False)
    os.set_inheritable(arguments.line, False)
    protect_process(arguments.report, arguments.memory)
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    memory = WorkerMemory(arguments.memory)
    _start_thread(_send_heartbeats, sender, memory)
    _start_thread(_receive_messages, arguments.line, inbox, arguments.ending)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: inbox.put(_END_MESSAGE))
    try:
        status = _run_rules(arguments, sender, inbox, memory)
    except BaseException:  # report every error before the process ends
        sender.send("log", text=f"a worker failed: {traceback.format_exc(limit=-3)}")
        status = ExitCode.FAILED
    from spanwise.tracer import flush

    flush(1.0)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)  # do not wait for threads: those of evaluators that hang would keep the process alive


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="spanwise.evaluators.monitors.worker")
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--report", type=int, required=True)
    parser.add_argument("--line", type=int, required=True)
    parser.add_argument("--ending", type=float, required=True)
    parser.add_argument("--memory", type=int)
    parser.add_argument("--claim", type=float, default=CLAIM_S)
    return parser.parse_args()


def _start_thread(function: Callable[..., None], *arguments: Any) -> None:
    name = f"spanwise-{function.__name__.strip('_')}"
    threading.Thread(target=function, args=arguments, name=name, daemon=True).start()


def _send_heartbeats(sender: MessageSender, memory: WorkerMemory) -> None:
    """Send heartbeats with the memory use to the supervisor.

    No heartbeat is sent while an extension blocks all threads of this process.
    """
    never = threading.Event()
    while not never.wait(HEARTBEAT_INTERVAL_S):
        with suppress(MemoryError):
            sender.send("beat", used=memory_in_use(), deferred=memory.deferred)


def _receive_messages(line: int, inbox: queue.SimpleQueue[Message], ending: float) -> None:
    """Queue the supervisor's messages. When the supervisor has ended, end this process."""
    with open(line, "rb", closefd=False) as lines:
        for each in lines:
            inbox.put(orjson.loads(each))
    inbox.put(_END_MESSAGE)
    threading.Event().wait(ending)
    os._exit(0)


def _run_rules(
    arguments: argparse.Namespace, sender: MessageSender, inbox: queue.SimpleQueue[Message], memory: WorkerMemory
) -> int:
    url = os.environ["SPANWISE_URL"]
    loaded = _load_rules(arguments.file, url, sender)
    if loaded is None:
        return ExitCode.BROKEN_RULES
    memory.rules_are_loaded()
    first = inbox.get()
    if "end" in first:
        return ExitCode.ENDED
    store = connect(url)
    return WorkerController(store, loaded, inbox, sender, claim_s=arguments.claim, memory=memory).run(first)


def _load_rules(file: Path, url: str, sender: MessageSender) -> RulesFile | None:
    """Load the rules and report them to the supervisor. Return None if the file is broken."""
    try:
        loaded = load_file(file)
    except BrokenRules as error:
        message = _describe_error(error, file)
        _report_file(url, file, message)
        sender.send("broken", error=message, files=source_files(file))
        return None
    _report_file(url, file, None)
    files = source_files(file)
    longest = max((rule.record.settings.timeout_s for rule in loaded.rules), default=0.0)
    sender.send(
        "loaded", rules=describe_rules(loaded.rules), files=files, content=content_digest(files), longest=longest
    )
    return loaded


def _report_file(url: str, file: Path, broken: str | None) -> None:
    """Report to the store whether the file could be loaded. If no worker runs a rule, users then see the reason."""
    data = {"file": file.as_posix(), "broken": broken}
    with suppress(StoreError), closing(connect(url)) as store:
        store.report(WorkerReport(holder=f"{socket.gethostname()} {file}", project="default", rules={}, data=data))


def _describe_error(error: BrokenRules, file: Path) -> str:
    """Return the error as one line of text, with the line number in the user's file that raised it."""
    cause, message = error.__cause__, str(error).splitlines()[0]
    if cause is None or isinstance(cause, SyntaxError):  # the message of a SyntaxError already contains the line
        return message
    folder = file.parent.resolve()
    stack = traceback.extract_tb(cause.__traceback__)
    frames = [frame for frame in stack if Path(frame.filename).resolve().is_relative_to(folder)]
    return f"{message} ({Path(frames[-1].filename).name}:{frames[-1].lineno or 0})" if frames else message


class WorkerController:
    """Controller of a worker's monitor. It replaces the monitor when the rules of the API change.

    The queue `inbox` delivers the supervisor's messages: `{"resting": [[project, rule]], …}` or `{"end": seconds}`.
    """

    def __init__(
        self,
        store: Store,
        file: RulesFile,
        inbox: queue.SimpleQueue[Message],
        sender: MessageSender,
        *,
        claim_s: float,
        memory: WorkerMemory,
    ) -> None:
        self._store, self._file, self._inbox, self._sender = store, file, inbox, sender
        self._claim_s, self._memory = claim_s, memory
        self._logged: Mapping[str, str] = {}  # idle rules and their reasons, as they were last logged
        self._quarantined: set[tuple[str, str]] = set()
        self._dead: list[str] = []  # names of the workers that died last, for monitors that start later
        # rules built from the API's data, by project, name and content; instead of an invalid rule, the reason
        self._api_rules: dict[tuple[str, str, bytes], MonitoredRule | str] = {}

    def run(self, message: Message) -> int:
        """Run until the supervisor sends an end message, and return the exit status of the process.

        The argument is the supervisor's start message.
        """
        self._query_api_rules()
        monitor = self._start_monitor(message, bool(message.get("activate")))
        while True:
            try:
                message = self._inbox.get(timeout=API_POLL_INTERVAL_S)
            except queue.Empty:
                message = {}
            if "end" in message or not monitor.thread.is_alive():
                break
            self._apply_message(message, monitor)
            rules_changed = self._query_api_rules()
            monitor.invalid = self._invalid_rules
            self._log_idle({**monitor.idle, **monitor.invalid})
            if rules_changed:
                monitor.end()
                monitor = self._start_monitor({}, False)
        monitor.end(message.get("end"))
        return monitor.status

    def _start_monitor(self, message: Message, activate: bool) -> _ReportingMonitor:
        monitor = _ReportingMonitor(
            self._store,
            [*self._file.rules, *self._valid_rules],
            self._sender,
            activate=activate,
            claim_s=self._claim_s,
            memory=self._memory,
            alerts=self._file.alerts,
        )
        monitor.invalid = self._invalid_rules
        self._apply_message({"dead": self._dead, **message}, monitor)
        monitor.thread.start()
        return monitor

    def _apply_message(self, message: Message, monitor: Monitor) -> None:
        """Pass the rules in quarantine and the names of dead workers to the monitor."""
        if "resting" in message:
            self._quarantined = {(project, name) for project, name in message["resting"]}
        monitor.suspend(self._quarantined)
        if "dead" in message:
            self._dead = message["dead"]
            monitor.take_over(self._dead)

    def _log_idle(self, idle: Mapping[str, str]) -> None:
        """Log each idle rule and its reason once. The supervisor logs the rules in quarantine."""
        quarantined = {name for _, name in self._quarantined}
        idle = {name: why for name, why in idle.items() if why != REASON_UNSAVED and name not in quarantined}
        for name in sorted(idle):
            if self._logged.get(name) != idle[name]:
                self._sender.send("log", text=f"rule {name!r} idles: {idle[name]}")
        self._logged = idle

    @property
    def _valid_rules(self) -> list[MonitoredRule]:
        return [rule for rule in self._api_rules.values() if isinstance(rule, MonitoredRule)]

    @property
    def _invalid_rules(self) -> Mapping[str, str]:
        return {name: reason for (_, name, _), reason in self._api_rules.items() if isinstance(reason, str)}

    def _query_api_rules(self) -> bool:
        """Update the rules of the API, and return whether the valid ones have changed.

        While the store is unavailable, the rules stay as they are.
        """
        try:
            current = {_rule_key(rule): rule for rule in self._store.rules() if rule.owner == API_OWNER}
        except StoreError:
            return False
        before = self._valid_rules
        self._api_rules = {key: self._api_rules.get(key) or self._build_rule(rule) for key, rule in current.items()}
        return self._valid_rules != before

    def _build_rule(self, rule: Rule) -> MonitoredRule | str:
        try:
            built = rule_from_data(rule)
        except ValueError as error:
            return str(error)
        where = " and ".join(describe_rules([built])[0]["where"])
        self._sender.send(
            "log", text=f"rule {rule.name!r} was added through the API{where and f'; text goes to {where}'}"
        )
        return built


def _rule_key(rule: Rule) -> tuple[str, str, bytes]:
    """Return project, name, and those properties of a rule whose change requires a new monitor.

    The monitor reads all others from the store.
    """
    content = [rule.version, rule.target, rule.kind, rule.scope, dict(rule.filter), list(rule.evaluators)]
    return rule.project, rule.name, canonical_json(content)


class _ReportingMonitor(Monitor):
    """Monitor on its own thread, which reports to the supervisor. The main thread stays free for signals and messages.

    Its reports to the store also list `invalid`, the rules of the API that could not be built, with the reasons.
    """

    def __init__(self, store: Store, rules: Sequence[MonitoredRule], sender: MessageSender, **options: Any) -> None:
        super().__init__(store, rules, **options)
        self._sender = sender
        self._reported_trouble: str | None = None
        self.invalid: Mapping[str, str] = {}
        self.status = ExitCode.ENDED
        self.thread = threading.Thread(target=self._run_reporting, name="spanwise-monitor", daemon=True)
        sender.send("holder", name=self.holder)

    def reports(self) -> list[WorkerReport]:
        """Return the worker's reports, one for each project."""
        reports = super().reports()
        return [replace(one, data={**one.data, "idle": {**one.data["idle"], **self.invalid}}) for one in reports]

    def end(self, seconds: float | None = None) -> None:
        """Stop the monitor and wait for its thread. Running jobs have `seconds` to finish; unfinished ones are
        released.
        """
        self.stop(seconds)
        self.thread.join()

    def _save_rules(self) -> None:
        super()._save_rules()
        self._sender.send("saved")

    def _retry_later(self, call: Callable[[], Any]) -> Any:
        result = super()._retry_later(call)
        if (trouble := self.trouble) != self._reported_trouble:
            self._reported_trouble = trouble
            self._sender.send("trouble", text=trouble)
        return result

    def _run_reporting(self) -> None:
        try:
            self.run()
        except Stuck as error:
            self.status = ExitCode.STUCK
            self._sender.send("log", text=str(error))
        except Refused as error:
            self.status = ExitCode.REFUSED
            self._sender.send("refused", error=str(error))
        except BaseException as error:
            self.status = ExitCode.FAILED
            self._sender.send("log", text=f"a worker failed: {''.join(traceback.format_exception(error, limit=-3))}")


if __name__ == "__main__":
    main()
