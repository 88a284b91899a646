"""A worker's process as its supervisor sees it: begun, listened to, told what to do, ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import orjson

from spanwise.evaluators.monitors import _deaths
from spanwise.evaluators.monitors._report import Listener

Phase: TypeAlias = Literal["loading", "loaded", "running", "ending"]
LEAVING = 4.0  # seconds for giving back and for what threads are left, when a worker ends
NEAR = 0.9  # of the memory limit
CHILD = "spanwise.evaluators.monitors._child"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to run: a file of rules, against a collector, in some processes, each with so many bytes at most.

    `key` is the collector's, handed over in the environment. The times are in seconds: `loading` for the file to run,
    `grace` beyond the longest timeout of its rules until a worker that gives no sign is replaced, `ending` for what
    runs when all is told to end, `draining` when rules have changed or a worker is full, `full` for which a worker may
    be near its memory limit.
    """

    file: Path
    url: str
    key: str | None = None
    workers: int = 1
    memory: int | None = None
    activate: bool = False
    loading: float = 120.0
    grace: float = 15.0
    ending: float = 2.0
    draining: float = 20.0
    full: float = 10.0
    claim: float | None = None  # seconds for which a target is taken; None: as the monitor does


@dataclass(slots=True)
class Loaded:
    """What a worker has found in the file: its rules in words, the files they come from, and a digest of these."""

    rules: list[Mapping[str, Any]]
    files: list[str]
    content: str
    longest: float  # seconds: the longest timeout of a rule


class Worker:
    """One process. Time is counted by whoever watches it, in `silent` and `spent`: while he sleeps it stands still."""

    def __init__(self, plan: Plan, number: int) -> None:
        self.plan, self.number = plan, number
        self.phase: Phase = "loading"
        self.loaded: Loaded | None = None
        self._ending = 0.0
        self.silent = self.spent = 0.0  # seconds since the last sign of life, and in this phase
        self.overdue: str | None = None  # why it was killed
        self.holders: list[str] = []  # the names under which it holds leases
        self.claims: dict[tuple[str, ...], None] = {}
        self.used: int | None = None  # bytes, as it was last told
        self.near = 0.0  # seconds for which it has been near its memory limit
        self._deferred = 0  # failures of evaluators because it was full
        report, theirs = os.pipe()
        mine, self._line = os.pipe()
        try:
            self.process = _begun(plan, theirs, mine)
        finally:
            os.close(theirs)
            os.close(mine)
        self.listener = Listener(report)

    def tell(self, **what: Any) -> None:
        """Say something to the worker; one that has ended hears nothing."""
        with suppress(OSError):
            os.write(self._line, orjson.dumps(what) + b"\n")

    def enter(self, phase: Phase) -> None:
        """A new phase, whose time begins."""
        self.phase, self.spent, self.silent, self.near = phase, 0.0, 0.0, 0.0

    def end(self, seconds: float) -> None:
        """Ask it to end: what runs has so many seconds to finish, the rest is given back."""
        if self.phase != "ending":
            self.enter("ending")
            self._ending = seconds
            self.tell(end=seconds)

    def kill(self, why: str | None = None) -> None:
        """End it and what it has begun, now. With `why` it says first where each of its threads is."""
        self.overdue = self.overdue or why
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGCONT)
            os.killpg(self.process.pid, signal.SIGABRT if why else signal.SIGKILL)

    def passed(self, seconds: float) -> None:
        """Time has passed; one that has no more of it is killed."""
        self.silent, self.spent = self.silent + seconds, self.spent + seconds
        is_near = self.plan.memory is not None and (self.used or 0) > NEAR * self.plan.memory
        self.near = self.near + seconds if is_near else 0.0
        if self.overdue and self.spent > 2.0:
            self.kill()
        elif not self.overdue and (why := self._too_long()):
            self.enter(self.phase)
            self.kill(why)

    def _too_long(self) -> str | None:
        plan = self.plan
        if self.phase == "loading" and self.spent > plan.loading:
            return f"the file was not loaded after {plan.loading:g} s"
        if self.phase == "ending" and self.spent > self._ending + LEAVING:
            return f"it did not end within {self._ending + LEAVING:g} s"
        longest = self.loaded.longest if self.loaded else plan.loading
        if self.silent > longest + plan.grace:
            return f"it gave no sign of life for {longest + plan.grace:g} s"
        return None

    def is_full(self, patience: float) -> bool:
        """Whether another worker shall take its place: evaluators fail because of its memory, or it stays near the
        limit for so many seconds.
        """
        return self.phase == "running" and (
            self.near > patience or (self._deferred > 0 and self.spent > self.plan.full)
        )

    def told(self) -> list[Mapping[str, Any]]:
        """What it says; signs of life and claims are noted here."""
        messages = list(self.listener.messages())
        if messages:
            self.silent = 0.0
        for message in messages:
            if message["kind"] == "beat":
                self.used, self._deferred = message.get("used"), message.get("deferred", 0)
            elif message["kind"] == "holder":
                self.holders.append(message["name"])
            elif message["kind"] == "claimed":
                self.claims.update(dict.fromkeys(map(tuple, message["claims"])))
            elif message["kind"] == "finished":
                for claim in message["claims"]:
                    self.claims.pop(tuple(claim), None)
        return [message for message in messages if message["kind"] not in ("beat", "holder", "claimed", "finished")]

    def obituary(self) -> str:
        """How it ended, where, and what it was running."""
        how = self.overdue or _deaths.cause(self.process.returncode or 0)
        where = _deaths.place(self.listener.crash)
        held = _deaths.held(list(self.claims))
        return f"{how}{f', in {where}' if where else ''}{f'; it held {held}' if held else ''}"

    def bury(self) -> None:
        """Let go of what is left of it, its children among that."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.listener.close()
        os.close(self._line)


def _begun(plan: Plan, report: int, line: int) -> subprocess.Popen[bytes]:
    """A fresh interpreter, never a fork: in a session of its own, so that what is sent to its group stays there."""
    return subprocess.Popen(
        [sys.executable, "-P", "-B", "-m", CHILD, *_arguments(plan, report, line)],
        stdin=subprocess.DEVNULL,
        pass_fds=(report, line),
        start_new_session=True,
        env={**os.environ, "SPANWISE_URL": plan.url, **({"SPANWISE_API_KEY": plan.key} if plan.key else {})},
    )


def _arguments(plan: Plan, report: int, line: int) -> Sequence[str]:
    given = {
        "file": plan.file,
        "url": plan.url,
        "report": report,
        "line": line,
        "memory": plan.memory,
        "ending": plan.ending,
        "claim": plan.claim,
    }
    return [f"--{name}={value}" for name, value in given.items() if value is not None]
