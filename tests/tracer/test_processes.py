"""What becomes of spans when processes fork, end, or do what nobody expects in the middle of delivery."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tracer.conftest import Sink, somewhere

from spanwise.tracer import configure


def run(script: str, sink: Sink, tmp_path: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """A program of its own; it has long to end."""
    env = {**os.environ, "SPANWISE_URL": sink.url, "SPANWISE_SPILL_DIR": str(tmp_path / "spool"), **more}
    return subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=240)


def traced(sink: Sink, tmp_path: Path) -> int:
    """How many spans the program has left: the end of a process waits 0.8 s for an answer, then they go to the disk."""
    return len(somewhere(sink, tmp_path / "spool"))


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What it said on stderr, but that an answer was late."""
    return [line for line in done.stderr.splitlines() if "spans wait on disk until one does" not in line]


FORK = """
import os, sys, time
from spanwise.tracer import flush, trace
@trace
def work(n): return n
work(0)
end = time.monotonic() + 60
while "{module}" not in sys.modules and time.monotonic() < end:
    time.sleep(0)
child = os.fork()
if child == 0:
    work(1)
    print(repr(flush(60)))
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.process
@pytest.mark.parametrize("module", ["requests", "urllib3.connection", "opentelemetry.proto"])
def test_a_child_forked_while_delivery_imports_delivers(module: str, sink: Sink, tmp_path: Path) -> None:
    done = run(FORK.format(module=module), sink, tmp_path)
    assert traced(sink, tmp_path) == 2, done


LEFT_OPEN = """
from spanwise.tracer import trace
@trace
def numbers():
    yield 1
    yield 2
opened = numbers()
next(opened)
"""


@pytest.mark.process
def test_a_generator_left_open_does_not_hold_up_the_end(sink: Sink, tmp_path: Path) -> None:
    done = run(LEFT_OPEN, sink, tmp_path)
    assert (done.returncode, complaints(done)) == (0, [])
    assert traced(sink, tmp_path) == 1


AFTER_MAIN = """
import threading, time
from spanwise.tracer import trace
@trace
def work(n): return n
def later():
    while threading.main_thread().is_alive(): time.sleep(0.01)
    for n in range(10): work(n)
threading.Thread(target=later).start()
"""


@pytest.mark.process
def test_what_is_traced_first_after_the_main_thread_has_ended_is_delivered(sink: Sink, tmp_path: Path) -> None:
    done = run(AFTER_MAIN, sink, tmp_path)
    assert (traced(sink, tmp_path), complaints(done)) == (10, [])


def test_a_key_that_no_header_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="api_key contains '“”'"):
        configure(api_key="“sk-abc”")


@pytest.mark.process
def test_such_a_key_in_the_environment_costs_no_span(sink: Sink, tmp_path: Path) -> None:
    done = run("from spanwise.tracer import trace\ntrace(print)(1)", sink, tmp_path, SPANWISE_API_KEY="“sk-abc”")
    assert traced(sink, tmp_path) == 1
    assert "api_key contains '“”'" in done.stderr


ENDING = """
from spanwise.tracer import configure, flush, stats, trace
def redactor(key, value):
    if value == "bad": raise SystemExit
    return value
configure(redact=[redactor])
echo = trace(lambda value: value)
for value in ("bad", "good"):
    echo(value)
    flush(60)
print(stats().dropped)
"""


@pytest.mark.process
def test_a_redactor_that_ends_threads_does_not_end_delivery(sink: Sink, tmp_path: Path) -> None:
    done = run(ENDING, sink, tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "{}"), done.stderr
    outputs = [a.value.string_value for s in sink.spans() for a in s.attributes if a.key == "output.value"]
    assert outputs == ["[redacted: the redactor failed]", "good"]


HANDLER = """
import faulthandler, signal, threading, time
from spanwise.tracer import configure, trace
faulthandler.dump_traceback_later(200, exit=True)
work = trace(lambda n: n)
configure()
signal.signal(signal.SIGALRM, lambda *_: work(1))
signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
end = time.monotonic() + 1.5
while time.monotonic() < end: work(0)
signal.setitimer(signal.ITIMER_REAL, 0)
print([thread.name for thread in threading.enumerate()].count("spanwise-delivery"))
"""


@pytest.mark.process
def test_a_signal_handler_may_trace_whatever_it_interrupts(sink: Sink, tmp_path: Path) -> None:
    done = run(HANDLER, sink, tmp_path)
    assert (done.returncode, done.stdout.strip(), complaints(done)) == (0, "1", [])


STUCK = """
import time
from spanwise.tracer.export import delivery_lifecycle
from spanwise.tracer import configure, flush, trace
delivery_lifecycle._PATIENCE = delivery_lifecycle._LONGEST_EXIT = 0.5
configure(redact=[lambda key, value: time.sleep(1000) if value == "bad" else value])
echo = trace(lambda value: value)
echo("bad")
print(flush(1.0))
echo("bad")
"""


@pytest.mark.process
def test_a_redactor_that_hangs_is_told_of_and_holds_up_no_end(sink: Sink, tmp_path: Path) -> None:
    done = run(STUCK, sink, tmp_path)
    assert done.stdout.strip() == "FlushResult(delivered=0, spilled=0, dropped=0, pending=1)"
    assert "delivery_stuck" in done.stderr


OWN_HANDLER = """
import os, signal, time
from spanwise.tracer.export import delivery_lifecycle
from spanwise.tracer import stats, trace
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
work = trace(lambda n: n)
work(0)
end = time.monotonic() + 60
while stats().delivered < 1 and time.monotonic() < end: time.sleep(0.01)
delivery_lifecycle._INTERVAL = 1000  # no round comes by itself
time.sleep(0.6)  # nor is one waited for that was to come after the old interval
os.kill(os.getpid(), signal.SIGTERM)
work(1)
assert told == [1]
while stats().delivered < 2 and time.monotonic() < end: time.sleep(0.01)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.process
def test_after_an_applications_own_handler_of_sigterm_delivery_hurries(sink: Sink, tmp_path: Path) -> None:
    done = run(OWN_HANDLER, sink, tmp_path)
    assert (done.returncode, len(sink.spans())) == (-signal.SIGTERM, 2), done.stderr


IMPORTED = """
import sys
from spanwise.tracer.export import otlp_http_client
from spanwise.tracer import configure, flush, span, trace
configure(redact=["x"])
otlp_http_client.preload_modules()
loaded = set(sys.modules)
for _ in range(3):
    with span("s", inputs={"x": 1}) as run: run.feedback("a", 1)
    flush(60)
print(*sorted(set(sys.modules) - loaded))
"""


@pytest.mark.process
def test_delivery_imports_nothing_while_a_fork_may_come_in_between(sink: Sink, tmp_path: Path) -> None:
    statuses = [200, 200, 503]
    sink.answer = lambda path, body: (statuses.pop() if statuses else 200, {}, b"\x0a\x00")
    done = run(IMPORTED, sink, tmp_path)
    assert (done.stdout.strip(), len(sink.spans()), len(sink.logs())) == ("", 3, 3)


FILTER_LOST = """
import warnings
from spanwise.tracer.export import otlp_http_client

warnings.simplefilter("error")
set_filter, lost = warnings.simplefilter, []

def lose_first(action, category=Warning, **rest):  # as if another thread had reset the filters at once
    if category.__name__ == "DependencyWarning" and not lost:
        lost.append(category)
    else:
        set_filter(action, category, **rest)

warnings.simplefilter = lose_first
otlp_http_client.preload_modules()
import requests
print(len(lost), requests.exceptions.Timeout.__name__)
"""


@pytest.mark.process
def test_requests_stays_usable_if_a_filter_of_warnings_is_lost_during_its_import() -> None:
    done = subprocess.run([sys.executable, "-c", FILTER_LOST], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1 Timeout\n", "")


INTERRUPTED = """
import signal
from spanwise.tracer.export import delivery_lifecycle
from spanwise.tracer import flush, stats, trace
@trace
def work(n): return n
calls = []
def interrupt(*_):
    if len(calls) < 10:
        calls.append(1)
        work(len(calls))
signal.signal(signal.SIGPROF, interrupt)
signal.setitimer(signal.ITIMER_PROF, 0.002, 0.002)  # seconds of CPU
work(0)
while len(calls) < 10: pass
signal.setitimer(signal.ITIMER_PROF, 0)
print(len(delivery_lifecycle._live), bool(flush(60)), stats().delivered)
"""


@pytest.mark.process
def test_signals_amid_the_first_call_make_no_second_set_up(sink: Sink, tmp_path: Path) -> None:
    done = run(INTERRUPTED, sink, tmp_path)
    assert done.stdout.split() == ["1", "True", "11"], done


TERMINATED = """
import os, signal, threading, time
from spanwise.tracer import trace
@trace
def work(n): return n
thread = threading.Thread(target=work, args=(0,))
thread.start()
thread.join()
for n in range(1, 100): work(n)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(100)
"""


@pytest.mark.process
def test_sigterm_loses_nothing_where_another_thread_was_the_first_to_trace(sink: Sink, tmp_path: Path) -> None:
    assert run(TERMINATED, sink, tmp_path).returncode == -signal.SIGTERM
    assert traced(sink, tmp_path) == 100
