"""What a worker does once it may go: runs the rules of its file and those that came through the API."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from spanwise.collector.errors import Refused, StoreError
from spanwise.collector.records import Rule, canonical
from spanwise.collector.stores import Store
from spanwise.evaluators.monitors._data import of_data
from spanwise.evaluators.monitors._held import API, UNSAVED
from spanwise.evaluators.monitors._memory import Memory
from spanwise.evaluators.monitors._report import Teller
from spanwise.evaluators.monitors._rule import Monitored
from spanwise.evaluators.monitors._run import Stuck
from spanwise.evaluators.monitors._telling import telling
from spanwise.evaluators.monitors._words import told_of
from spanwise.evaluators.monitors._worker import CLAIM, Monitor

POLL = 2.0  # seconds between two looks at the rules of the API
STUCK, REFUSED, FAILED = 75, 65, 70  # exit statuses

Said: TypeAlias = "queue.SimpleQueue[Mapping[str, Any]]"


class Conduct:
    """Runs a monitor of the rules that there are; when the API's become others, a new one takes its place.

    `said` is what the supervisor says: `{"resting": [[project, rule]], …}` or `{"end": seconds}`.
    """

    def __init__(
        self, store: Store, own: Sequence[Monitored], *, said: Said, teller: Teller, memory: Memory | None = None
    ) -> None:
        self._own, self._said, self._teller, self._memory = own, said, teller, memory
        self._logged: dict[str, str] = {}  # rules for which this worker does nothing, and why, as it was logged
        self._idle: dict[str, str] = {}  # rules of the API that cannot be, and why
        self._store = telling(store, teller, self._idle)
        self._dead: list[str] = []  # workers that have died, by the names of their leases
        self._resting: set[tuple[str, str]] = set()
        self._known: dict[
            tuple[str, str, bytes], Monitored | None
        ] = {}  # of the API, by project, name and what it says

    def run(self, first: Mapping[str, Any]) -> int:
        """Until told to end; the exit status of this process."""
        self._hear(first)
        activate, claim_s = bool(first.get("activate")), first.get("claim_s")
        of_api: list[Monitored] = self._of_api([])
        running = self._begin(of_api, claim_s, activate)
        while "end" not in (message := self._next()) and running.alive:
            if self._hear(message):
                running.monitor.take_over(self._dead)
            running.monitor.rest(self._resting)
            self._log_idle(running.monitor.idle)
            if (now := self._of_api(of_api)) != of_api:
                of_api = now
                running.end()
                running = self._begin(of_api, claim_s)
        running.end(message.get("end"))
        return running.status

    def _log_idle(self, idle: Mapping[str, str]) -> None:
        """Log once for which rules this worker does nothing, and why; the supervisor logs each rest itself."""
        resting = {name for _, name in self._resting}
        now = {name: why for name, why in idle.items() if why != UNSAVED and name not in resting}
        for name in sorted(name for name, why in now.items() if self._logged.get(name) != why):
            self._teller.tell("say", text=f"rule {name!r} idles: {now[name]}")
        self._logged = now

    def _next(self) -> Mapping[str, Any]:
        try:
            return self._said.get(timeout=POLL)
        except queue.Empty:
            return {}

    def _hear(self, message: Mapping[str, Any]) -> bool:
        """Note what the supervisor says; whether workers have died since."""
        if "resting" in message:
            self._resting = {(project, name) for project, name in message["resting"]}
        before, self._dead = self._dead, message.get("dead", self._dead)
        return self._dead != before

    def _begin(self, of_api: Sequence[Monitored], claim_s: float | None, activate: bool = False) -> _Running:
        rules = [*self._own, *of_api]
        monitor = Monitor(self._store, rules, activate=activate, claim_s=claim_s or CLAIM, memory=self._memory)
        monitor.rest(self._resting)
        monitor.take_over(self._dead)
        self._teller.tell("holder", name=monitor.holder)
        return _Running(monitor, self._teller)

    def _of_api(self, before: list[Monitored]) -> list[Monitored]:
        """Rules that came through the API, as they are now; while the store is away, as they were."""
        try:
            rules = [rule for rule in self._store.rules() if rule.owner == API]
        except StoreError:
            return before
        known = {(rule.project, rule.name, _said_by(rule)): rule for rule in rules}
        self._known = {key: self._known[key] if key in self._known else self._made(rule) for key, rule in known.items()}
        for name in self._idle.keys() - {rule.name for rule in rules}:
            del self._idle[name]
        return [made for made in self._known.values() if made is not None]

    def _made(self, rule: Rule) -> Monitored | None:
        try:
            made = of_data(rule)
        except ValueError as error:
            self._idle[rule.name] = str(error)
            self._teller.tell("say", text=f"rule {rule.name!r} idles: {error}")
            return None
        self._idle.pop(rule.name, None)
        where = " and ".join(told_of([made])[0]["where"])
        self._teller.tell("say", text=f"rule {rule.name!r} came through the API{where and f'; text goes to {where}'}")
        return made


def _said_by(rule: Rule) -> bytes:
    """What makes it another one for this process; the rest the monitor asks the store for."""
    return canonical([rule.version, rule.target, rule.kind, rule.scope, dict(rule.filter), list(rule.evaluators)])


class _Running:
    """A monitor in a thread of its own, so that signals and the supervisor are heard meanwhile."""

    def __init__(self, monitor: Monitor, teller: Teller) -> None:
        self.monitor, self._teller = monitor, teller
        self.status = 0
        self._thread = threading.Thread(target=self._run, name="spanwise-monitor", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it goes on."""
        return self._thread.is_alive()

    def end(self, seconds: float | None = None) -> None:
        """Let it give back what it holds, after it had so many seconds to finish it."""
        self.monitor.stop(seconds)
        self._thread.join()

    def _run(self) -> None:
        try:
            self.monitor.run()
        except Stuck as error:
            self.status = STUCK
            self._teller.tell("say", text=str(error))
        except Refused as error:
            self.status = REFUSED
            self._teller.tell("refused", error=str(error))
        except BaseException as error:
            self.status = FAILED
            self._teller.tell("say", text=f"a worker failed: {''.join(traceback.format_exception(error, limit=-3))}")
