"""A worker: the process in which rules and evaluators run. Its supervisor begins it, with `python -m`.

It loads the file, says what is in it, waits to be told to go, and runs until it is told to end or the supervisor is
gone.
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
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from spanwise.collector import connect
from spanwise.collector.errors import StoreError
from spanwise.collector.records import WorkerReport
from spanwise.evaluators.monitors._conduct import Conduct
from spanwise.evaluators.monitors._file import BrokenRules, load
from spanwise.evaluators.monitors._guard import guard
from spanwise.evaluators.monitors._memory import Memory, used
from spanwise.evaluators.monitors._reload import content, sources
from spanwise.evaluators.monitors._report import Teller
from spanwise.evaluators.monitors._rule import Monitored
from spanwise.evaluators.monitors._words import told_of

BEAT = 1.0  # seconds
BROKEN, FAILED = 64, 70  # exit statuses

_END: Mapping[str, Any] = {"end": None}  # as long as the monitor likes


def main() -> None:
    """Run until told to end. The process ends here whatever threads are left."""
    given = _arguments()
    teller = Teller(given.report)
    os.set_inheritable(given.report, False)
    os.set_inheritable(given.line, False)
    guard(given.report, given.memory)
    said: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
    memory = Memory(given.memory)
    _begin(_beat, teller, memory)
    _begin(_hear, given.line, said, given.ending)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: said.put(_END))
    try:
        status = _run(given, teller, said, memory)
    except BaseException:  # nothing of this process's may end it without a word
        teller.tell("say", text=f"a worker failed: {traceback.format_exc(limit=-3)}")
        status = FAILED
    _leave(status)


def _run(given: argparse.Namespace, teller: Teller, said: queue.SimpleQueue[Mapping[str, Any]], memory: Memory) -> int:
    rules = _loaded(given.file, given.url, teller)
    if rules is None:
        return BROKEN
    memory.rules_are_loaded()
    first = said.get()
    if "end" in first:
        return 0
    conduct = Conduct(connect(given.url), rules, said=said, teller=teller, memory=memory)
    return conduct.run({**first, "claim_s": given.claim})


def _loaded(file: Path, url: str, teller: Teller) -> list[Monitored] | None:
    """The rules, of which the supervisor is told; None where there are none."""
    try:
        rules = load(file)
    except BrokenRules as error:
        told = _first_line(error, file)
        _report_file(url, file, told)
        teller.tell("broken", error=told, files=sources(file))
        return None
    _report_file(url, file, None)
    files = sources(file)
    longest = max(rule.record.settings.timeout_s for rule in rules)
    teller.tell("loaded", rules=told_of(rules), files=files, content=content(files), longest=longest)
    return rules


def _report_file(url: str, file: Path, broken: str | None) -> None:
    """Tell the store whether the file loads: a rule that no worker runs says so."""
    data = {"file": file.as_posix(), "broken": broken}
    with suppress(StoreError), closing(connect(url)) as store:
        store.report(WorkerReport(holder=f"{socket.gethostname()} {file}", project="default", rules={}, data=data))


def _first_line(error: BrokenRules, file: Path) -> str:
    """What is wrong, in one line, and in which line of the user's files."""
    cause = error.__cause__
    told = str(error).splitlines()[0]
    if cause is None:
        return told
    if isinstance(cause, SyntaxError):  # which says where
        return told
    folder = file.parent.resolve()
    frames = [frame for frame in _frames(cause.__traceback__) if Path(frame[0]).resolve().is_relative_to(folder)]
    return f"{told} ({Path(frames[-1][0]).name}:{frames[-1][1]})" if frames else told


def _frames(trace: TracebackType | None) -> list[tuple[str, int]]:
    return [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(trace)]


def _beat(teller: Teller, memory: Memory) -> None:
    """Tell the supervisor that this process lives, and how full it is.

    No message comes while something keeps all threads of this process from running.
    """
    never = threading.Event()
    while not never.wait(BEAT):
        with suppress(MemoryError):
            teller.tell("beat", used=used(), deferred=memory.deferred)


def _hear(line: int, said: queue.SimpleQueue[Mapping[str, Any]], ending: float) -> None:
    """What the supervisor says; once he is gone, this process ends."""
    with open(line, "rb", closefd=False) as lines:
        for each in lines:
            said.put(orjson.loads(each))
    said.put(_END)
    threading.Event().wait(ending)
    os._exit(0)


def _begin(what: Any, *arguments: Any) -> None:
    threading.Thread(target=what, args=arguments, name=f"spanwise-{what.__name__.strip('_')}", daemon=True).start()


def _leave(status: int) -> None:
    """End at once: threads of evaluators that hang would keep the process for ever."""
    from spanwise.tracer import flush

    flush(1.0)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="spanwise.evaluators.monitors._child")
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
