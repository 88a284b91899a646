"""Worker process seen from the supervisor: start, pipe messages, deadlines, cause of death.

Whatever else comes on a worker's pipe is the traceback of a crash, as `faulthandler` writes it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import orjson

_CHUNK_BYTES = 1 << 16


class MessageSender:
    """The worker's end: whole lines, from any thread. A reader that is gone is no error; this process ends with it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._lock = descriptor, threading.Lock()

    def tell(self, kind: str, **what: Any) -> None:
        """One message."""
        line = orjson.dumps({"kind": kind, **what}, default=str) + b"\n"
        with self._lock, suppress(BrokenPipeError):
            while line:
                line = line[os.write(self._descriptor, line) :]


class MessageReceiver:
    """The supervisor's end: messages as they come, and the lines of a crash in `crash`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.crash: list[str] = []
        self._rest = b""
        os.set_blocking(descriptor, False)

    def messages(self) -> Iterator[Mapping[str, Any]]:
        """All that is there by now."""
        while chunk := self._read():
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            yield from filter(None, map(self._message, lines))

    def _read(self) -> bytes:
        try:
            return os.read(self.descriptor, _CHUNK_BYTES)
        except (BlockingIOError, OSError):
            return b""

    def _message(self, line: bytes) -> Mapping[str, Any] | None:
        with suppress(orjson.JSONDecodeError):
            message = orjson.loads(line)
            if isinstance(message, dict) and "kind" in message:
                return message
        if len(self.crash) < 1000:
            self.crash.append(line.decode(errors="replace"))
        return None

    def close(self) -> None:
        """Let go of the pipe."""
        os.close(self.descriptor)


_TRACEBACK_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)$')
_SIGNAL_HINTS = {
    signal.SIGSEGV: "it reached for memory that is not its own",
    signal.SIGKILL: "as the system does where memory runs out, or somebody by hand",
    signal.SIGABRT: "a library has given up, as many do where memory runs out",
}
_STDLIB_FOLDER, _PACKAGE_FOLDER = str(Path(threading.__file__).parent), str(Path(__file__).parents[1])
EXIT_CODES = {64: "it could not begin", 75: "all its slots were held by evaluators that do not come back"}


def describe_exit(code: int) -> str:
    """What an exit status says: `killed by SIGSEGV (…)`, `exit code 3`."""
    if code >= 0:
        return f"exit code {code}" + (f" ({EXIT_CODES[code]})" if code in EXIT_CODES else "")
    try:
        found = signal.Signals(-code)
    except ValueError:
        return f"killed by signal {-code}"
    return f"killed by {found.name}" + (f" ({_SIGNAL_HINTS[found]})" if found in _SIGNAL_HINTS else "")


def find_crash_location(crash: Iterable[str]) -> str | None:
    """Where a crash happened, as `faulthandler` tells it: the innermost line that is neither Python's own nor ours.

    Frames of the thread that crashed go before those of others.
    """
    lines = list(crash)
    current = next((place for place, line in enumerate(lines) if line.startswith("Current thread")), 0)
    frames = [found for line in lines[current:] + lines[:current] if (found := _TRACEBACK_FRAME.match(line))]
    frame = next((frame for frame in frames if not _is_internal_frame(frame["file"])), None)
    return f"{frame['name']}, {Path(frame['file']).name}:{frame['line']}" if frame else None


def _is_internal_frame(file: str) -> bool:
    return file.startswith((_PACKAGE_FOLDER, "<")) or (file.startswith(_STDLIB_FOLDER) and "site-packages" not in file)


def describe_claims(claims: Sequence[Sequence[str]], most: int = 3) -> str:
    """What it was running: rules and targets."""
    told = [f"rule {rule!r} on {target}" for _, rule, target in claims[:most]]
    more = [f"{len(claims) - most} more"] if len(claims) > most else []
    return " and ".join([*told, *more])


Phase: TypeAlias = Literal["loading", "loaded", "running", "ending"]
EXIT_GRACE_S = 4.0  # seconds for giving back and for what threads are left, when a worker ends
NEAR_MEMORY_LIMIT = 0.9  # of the memory limit
WORKER_MODULE = "spanwise.evaluators.monitors.worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
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
class LoadedRules:
    """What a worker has found in the file: its rules in words, the files they come from, and a digest of these."""

    rules: list[Mapping[str, Any]]
    files: list[str]
    content: str
    longest: float  # seconds: the longest timeout of a rule


class WorkerProcess:
    """One process. Time is counted by whoever watches it, in `silent` and `spent`: while he sleeps it stands still."""

    def __init__(self, plan: WorkerPlan, number: int) -> None:
        self.plan, self.number = plan, number
        self.phase: Phase = "loading"
        self.loaded: LoadedRules | None = None
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
            self.process = _start_process(plan, theirs, mine)
        finally:
            os.close(theirs)
            os.close(mine)
        self.listener = MessageReceiver(report)

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
        is_near = self.plan.memory is not None and (self.used or 0) > NEAR_MEMORY_LIMIT * self.plan.memory
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
        if self.phase == "ending" and self.spent > self._ending + EXIT_GRACE_S:
            return f"it did not end within {self._ending + EXIT_GRACE_S:g} s"
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
        how = self.overdue or describe_exit(self.process.returncode or 0)
        where = find_crash_location(self.listener.crash)
        held = describe_claims(list(self.claims))
        return f"{how}{f', in {where}' if where else ''}{f'; it held {held}' if held else ''}"

    def bury(self) -> None:
        """Let go of what is left of it, its children among that."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.listener.close()
        os.close(self._line)


def _start_process(plan: WorkerPlan, report: int, line: int) -> subprocess.Popen[bytes]:
    """A fresh interpreter, never a fork: in a session of its own, so that what is sent to its group stays there."""
    return subprocess.Popen(
        [sys.executable, "-P", "-B", "-m", WORKER_MODULE, *_command_arguments(plan, report, line)],
        stdin=subprocess.DEVNULL,
        pass_fds=(report, line),
        start_new_session=True,
        env={**os.environ, "SPANWISE_URL": plan.url, **({"SPANWISE_API_KEY": plan.key} if plan.key else {})},
    )


def _command_arguments(plan: WorkerPlan, report: int, line: int) -> Sequence[str]:
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
