"""Worker process as the supervisor handles it: limits, start, pipe messages, deadlines, cause of death.

Each line on a worker's pipe is either a message or a line of a crash traceback of `faulthandler`.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import orjson

from spanwise.collector import connect
from spanwise.collector.errors import StoreError
from spanwise.collector.records import Decision, iterate_pages
from spanwise.collector.stores import Store

# Limits of a worker process: memory limit and use, parent-death signal, crash reports.
#
# Memory use is known on Linux only. On other systems, and without a limit, no worker counts as full.

_PR_SET_PDEATHSIG = 1  # from linux/prctl.h


def protect_process(report: int, memory: int | None) -> None:
    """Configure this process: it ends with its parent, is the first victim of the OOM killer, and writes no core file.

    The file descriptor `report` receives the traceback of a crash. `memory` limits the process's memory in bytes, so
    that allocations beyond the limit fail in this process only.
    """
    import resource  # imported here, because Python has it on Unix only

    faulthandler.enable(file=report, all_threads=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        # The kernel sends the signal even while an extension blocks Python's threads
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
    if memory is not None:
        # RLIMIT_DATA counts the heap and private writable pages. RLIMIT_AS also counts mapped pages that are never
        # used; models and threads have tens of gigabytes of these.
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(
            resource.RLIMIT_DATA, (memory if hard == resource.RLIM_INFINITY else min(memory, hard), hard)
        )


def default_memory_limit(workers: int) -> int:
    """Return the memory limit of each worker in bytes.

    Together the workers get half of the machine's memory, and each one at least 2 GiB.
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(total // 2 // workers, 2 << 30)


OWN_GROWTH_SHARE = (
    # share of the memory that was free after loading; if use has grown by less, the evaluator itself caused the
    # memory error
    0.25
)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MEMORY_ERRORS = ("can't start new thread", "can't allocate memory", "cannot allocate memory", "out of memory")


class WorkerMemory:
    """Memory use of the process, in bytes, measured against its data limit (`RLIMIT_DATA`).

    The counter `deferred` counts evaluator failures that were blamed on the full process.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit, self._loaded = limit, memory_in_use() or 0
        self.deferred = 0

    def rules_are_loaded(self) -> None:
        """Record the present memory use as the baseline, after the rules are loaded and before any evaluator has
        run.
        """
        self._loaded = memory_in_use() or 0

    @property
    def has_grown(self) -> bool:
        """Return whether memory use has grown so much that an evaluator may fail because of what other evaluators
        keep.
        """
        now = memory_in_use()
        return (
            self._limit is not None
            and now is not None
            and now - self._loaded > OWN_GROWTH_SHARE * (self._limit - self._loaded)
        )

    def is_to_blame(self, error: BaseException | None) -> bool:
        """Return whether an evaluator failed because the process was full, and not because it needed too much memory
        itself.
        """
        if error is None or not is_memory_error(error) or not self.has_grown:
            return False
        self.deferred += 1
        return True

    @property
    def is_short(self) -> bool:
        """Return whether evaluators have failed because the process was full, and it is still full."""
        return self.deferred > 0 and self.has_grown

    def __str__(self) -> str:
        return f"{(memory_in_use() or 0) / 2**30:.2f} of {(self._limit or 0) / 2**30:.2f} GiB"


def memory_in_use() -> int | None:
    """Return the bytes that count against `RLIMIT_DATA`; None if the system does not report them."""
    with suppress(OSError, ValueError, IndexError), open("/proc/self/statm", "rb", buffering=0) as file:
        return int(file.read(200).split()[5]) * _PAGE_BYTES
    return None


def is_memory_error(error: BaseException) -> bool:
    """Return whether an exception, or one of its causes, reports that memory ran out."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, MemoryError) or (isinstance(current, OSError) and current.errno == errno.ENOMEM):
            return True
        if isinstance(current, RuntimeError) and any(sign in str(current).lower() for sign in _MEMORY_ERRORS):
            return True
        current = current.__cause__ or current.__context__
    return False


# Worker process as the supervisor handles it: start, pipe messages, deadlines, cause of death.

MAX_CRASH_LINES = 1_000
_CHUNK_BYTES = 1 << 16


class MessageSender:
    """Worker's end of the pipe to the supervisor. It writes whole lines and is thread-safe.

    A closed pipe is not an error: the supervisor has ended, and so does the worker.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._lock = descriptor, threading.Lock()

    def send(self, kind: str, **message: Any) -> None:
        """Send one message."""
        line = orjson.dumps({"kind": kind, **message}, default=str) + b"\n"
        with self._lock, suppress(BrokenPipeError):
            while line:
                line = line[os.write(self._descriptor, line) :]


class MessageReceiver:
    """Supervisor's end of the pipe. It parses messages, and collects the lines of a crash traceback in `crash`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.crash: list[str] = []
        self._partial_line = b""
        os.set_blocking(descriptor, False)

    def messages(self) -> Iterator[Mapping[str, Any]]:
        """Yield all messages that have arrived."""
        while True:
            try:
                chunk = os.read(self.descriptor, _CHUNK_BYTES)
            except OSError:  # an `OSError` may be BlockingIOError: the pipe is empty
                return
            if not chunk:
                return
            *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
            for line in lines:
                with suppress(orjson.JSONDecodeError):
                    message = orjson.loads(line)
                    if isinstance(message, dict) and "kind" in message:
                        yield message
                        continue
                if len(self.crash) < MAX_CRASH_LINES:
                    self.crash.append(line.decode(errors="replace"))

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.descriptor)


class ExitCode(IntEnum):
    """Exit codes of a worker, with the meanings of sysexits.h."""

    ENDED = 0
    BROKEN_RULES = 64
    REFUSED = 65
    FAILED = 70
    STUCK = 75


_EXIT_HINTS: Mapping[int, str] = {
    ExitCode.BROKEN_RULES: "the rules file could not be loaded",
    ExitCode.STUCK: "hanging evaluators occupied all slots of a rule",
    -signal.SIGSEGV: "invalid memory access",
    -signal.SIGKILL: "by a user, or by the system because memory ran out",
    -signal.SIGABRT: "a library aborted the process, possibly because memory ran out",
}


def describe_exit(code: int) -> str:
    """Return a text for an exit status: `killed by SIGSEGV (…)`, `exit code 3`."""
    if code >= 0:
        how = f"exit code {code}"
    else:
        try:
            how = f"killed by {signal.Signals(-code).name}"
        except ValueError:
            how = f"killed by signal {-code}"
    return how + (f" ({_EXIT_HINTS[code]})" if code in _EXIT_HINTS else "")


_TRACEBACK_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)$')
_STDLIB_FOLDER, _PACKAGE_FOLDER = str(Path(threading.__file__).parent), str(Path(__file__).parents[1])


def find_crash_location(crash: Sequence[str]) -> str | None:
    """Return where a process crashed, from the traceback of `faulthandler`: the innermost frame of user or third-party
    code.

    Frames of the crashed thread are searched before those of other threads.
    """
    start = next((number for number, line in enumerate(crash) if line.startswith("Current thread")), 0)
    for frame in filter(None, map(_TRACEBACK_FRAME.match, [*crash[start:], *crash[:start]])):
        file = frame["file"]
        is_stdlib = file.startswith(_STDLIB_FOLDER) and "site-packages" not in file
        if not is_stdlib and not file.startswith((_PACKAGE_FOLDER, "<")):
            return f"{frame['name']}, {Path(file).name}:{frame['line']}"
    return None


class ClaimedTarget(NamedTuple):
    """Target that a worker evaluates for a rule. `target` is a text such as "trace 4bf9…"."""

    project: str
    rule: str
    target: str


def describe_claims(claims: Sequence[ClaimedTarget], most: int = 3) -> str:
    """Return a text that lists claims by rule and target, at most `most` of them."""
    described = [f"rule {claim.rule!r} on {claim.target}" for claim in claims[:most]]
    more = [f"{len(claims) - most} more"] if len(claims) > most else []
    return " and ".join([*described, *more])


Phase: TypeAlias = Literal["loading", "loaded", "running", "ending"]
EXIT_GRACE_S = 4.0  # seconds that an ending worker has to release claims and end its threads
KILL_GRACE_S = 2.0  # seconds that a worker has to write the tracebacks of its threads before it is killed
STORE_TIMEOUT_S = 2.0  # maximum seconds to wait for the store's answer about a dead worker
NEAR_MEMORY_LIMIT = 0.9  # share of the memory limit from which on a worker counts as near the limit
WORKER_MODULE = "spanwise.evaluators.monitors.worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """Configuration of the worker processes: the rule file, the URL of the store, the number of processes and the memory
    limit in bytes.

    Workers receive the collector's `key` in the environment variable SPANWISE_API_KEY. The times are in seconds:

    - `loading`: maximum time to execute the file.
    - `grace`: a worker without heartbeat is replaced after the longest timeout of the rules plus this time.
    - `ending`: time for running jobs at shutdown.
    - `draining`: time for running jobs when rules have changed or a worker is full.
    - `full`: time near the memory limit after which a worker is replaced.
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
    claim: float | None = None  # seconds after which a claim expires unless renewed; None: the monitor's default


@dataclass(slots=True)
class LoadedRules:
    """Rules that a worker has loaded from the file: their descriptions, the source files, and a digest of these
    files.
    """

    rules: list[Mapping[str, Any]]
    files: list[str]
    content: str
    longest: float  # longest timeout of a rule, in seconds


class WorkerProcess:
    """Worker process of a supervisor.

    The supervisor advances the worker's times through `advance`, so they do not advance while the supervisor itself is
    suspended.
    """

    def __init__(self, plan: WorkerPlan, number: int) -> None:
        self.plan, self.number = plan, number
        self.phase: Phase = "loading"
        self.loaded: LoadedRules | None = None
        self.phase_s = 0.0  # seconds since the phase began
        self.kill_reason: str | None = None  # reason for killing the worker, once it was killed
        self.holders: list[str] = []  # names under which the worker holds leases
        self.trouble: str | None = None  # latest error of the worker's store, until an operation succeeds
        self.used: int | None = None  # memory use in bytes, as last reported
        self._silent_s = 0.0  # seconds since the last message
        self._near_limit_s = 0.0  # seconds for which the worker has been near its memory limit
        self._end_s = 0.0  # seconds that running jobs have to finish once the worker is ending
        self._deferred = 0  # evaluator failures blamed on the worker's full memory
        report, worker_report = os.pipe()
        worker_line, self._line = os.pipe()
        try:
            self.process = _start_process(plan, worker_report, worker_line)
        finally:
            os.close(worker_report)
            os.close(worker_line)
        self.receiver = MessageReceiver(report)

    def send(self, **message: Any) -> None:
        """Send a message to the worker. It is dropped if the worker has ended."""
        with suppress(OSError):
            os.write(self._line, orjson.dumps(message) + b"\n")

    def receive(self) -> list[Mapping[str, Any]]:
        """Return the worker's messages. Heartbeats and holder names are recorded in this object and not returned."""
        messages = list(self.receiver.messages())
        if messages:
            self._silent_s = 0.0
        for message in messages:
            if message["kind"] == "beat":
                self.used, self._deferred = message.get("used"), message.get("deferred", 0)
            elif message["kind"] == "holder":
                self.holders.append(message["name"])
        return [message for message in messages if message["kind"] not in ("beat", "holder")]

    def enter(self, phase: Phase) -> None:
        """Enter a phase and reset its times."""
        self.phase, self.phase_s, self._silent_s, self._near_limit_s = phase, 0.0, 0.0, 0.0

    def end(self, seconds: float) -> None:
        """Ask the worker to end. Running jobs have `seconds` to finish; unfinished ones are released."""
        if self.phase != "ending":
            self.enter("ending")
            self._end_s = seconds
            self.send(end=seconds)

    def kill(self, reason: str | None = None) -> None:
        """Kill the worker and its child processes now. If a reason is given, the worker first writes the tracebacks of
        its threads.
        """
        self.kill_reason = self.kill_reason or reason
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGCONT)
            os.killpg(self.process.pid, signal.SIGABRT if reason else signal.SIGKILL)

    def advance(self, seconds: float) -> None:
        """Advance the worker's times by `seconds`, and kill the worker if it exceeds a deadline."""
        self._silent_s += seconds
        self.phase_s += seconds
        is_near = self.plan.memory is not None and (self.used or 0) > NEAR_MEMORY_LIMIT * self.plan.memory
        self._near_limit_s = self._near_limit_s + seconds if is_near else 0.0
        if self.kill_reason is not None:
            if self.phase_s > KILL_GRACE_S:
                self.kill()
        elif (reason := self._exceeded_deadline()) is not None:
            self.enter(self.phase)
            self.kill(reason)

    def _exceeded_deadline(self) -> str | None:
        if self.phase == "loading" and self.phase_s > self.plan.loading:
            return f"the file was not loaded after {self.plan.loading:g} s"
        if self.phase == "ending" and self.phase_s > self._end_s + EXIT_GRACE_S:
            return f"it did not end within {self._end_s + EXIT_GRACE_S:g} s"
        longest = (self.loaded.longest if self.loaded else self.plan.loading) + self.plan.grace
        return f"it sent no heartbeat for {longest:g} s" if self._silent_s > longest else None

    def is_full(self, patience: float) -> bool:
        """Return whether the worker must be replaced because of its memory use.

        That is the case if evaluators fail because its memory is full, or if it stays near the limit for `patience`
        seconds.
        """
        return self.phase == "running" and (
            self._near_limit_s > patience or (self._deferred > 0 and self.phase_s > self.plan.full)
        )

    def read_claims(self) -> list[ClaimedTarget]:
        """Return the claims of the dead worker from the store. The list is empty if the store does not answer soon."""
        claims: list[ClaimedTarget] = []

        def read() -> None:
            with suppress(StoreError), closing(self._connect()) as store:
                running = iterate_pages(lambda cursor: store.decisions(verdict="running", cursor=cursor))
                rows = [row for row in running if row.holder in self.holders]
                claims.extend(map(_make_claimed_target, sorted(rows, key=lambda row: row.claim)))

        if self.holders:
            reader = threading.Thread(target=read, name="spanwise-monitor-claims", daemon=True)
            reader.start()
            reader.join(STORE_TIMEOUT_S)
        return list(claims)

    def _connect(self) -> Store:
        """Open the store of the workers, with their key."""
        if self.plan.url.startswith(("http://", "https://")):
            from spanwise.collector.client import HTTPStore

            return HTTPStore(self.plan.url, self.plan.key or os.environ.get("SPANWISE_API_KEY"))
        return connect(self.plan.url)

    def describe_death(self, claims: Sequence[ClaimedTarget] = ()) -> str:
        """Return a text with the cause of the worker's end, the location, and the claims that it held."""
        how = self.kill_reason or describe_exit(self.process.returncode or 0)
        where = find_crash_location(self.receiver.crash)
        return f"{how}{f', in {where}' if where else ''}{f'; it held {describe_claims(claims)}' if claims else ''}"

    def clean_up(self) -> None:
        """Kill the remaining child processes, and close the pipes."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.receiver.close()
        os.close(self._line)


def _make_claimed_target(row: Decision) -> ClaimedTarget:
    target = row.target
    if target.session_id is not None:
        described = f"session {target.session_id}"
    else:
        described = f"trace {target.trace_id}" + (f", span {target.span_id}" if target.span_id else "")
    return ClaimedTarget(row.project, row.rule, described)


def _start_process(plan: WorkerPlan, report: int, line: int) -> subprocess.Popen[bytes]:
    """Start a new interpreter in its own session, so that signals to its process group do not reach this process.

    It is not a fork of this process. The environment passes the URL, which may contain a password, and the key.
    """
    arguments = {
        "file": plan.file,
        "report": report,
        "line": line,
        "memory": plan.memory,
        "ending": plan.ending,
        "claim": plan.claim,
    }
    options = [f"--{name}={value}" for name, value in arguments.items() if value is not None]
    return subprocess.Popen(
        [sys.executable, "-P", "-B", "-m", WORKER_MODULE, *options],
        stdin=subprocess.DEVNULL,
        pass_fds=(report, line),
        start_new_session=True,
        env={**os.environ, "SPANWISE_URL": plan.url, **({"SPANWISE_API_KEY": plan.key} if plan.key else {})},
    )
