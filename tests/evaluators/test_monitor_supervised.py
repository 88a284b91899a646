"""Workers of a monitor and who keeps them running: deaths, hangs, files that change. Real processes."""

import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import psutil
import pytest

from evaluators.watched import decisions, trace_id, whole
from integration.serving import environment
from spanwise.collector.diagnostics import rule_report
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators.monitors import Supervisor, WorkerPlan, load

RULES = """
import ctypes, os, re, signal, threading, time
from spanwise.evaluators import evaluator, monitor

@evaluator
def fine(outputs):
    return True

def when_asked():
    while not os.path.exists({flag!r}):
        time.sleep(0.01)
    os.unlink({flag!r})
    {end}

threading.Thread(target=when_asked, daemon=True).start()
monitor("one", evaluators=[fine], timeout=0.5)
"""
BEFORE = 120  # seconds for what should come at once


def until(what):
    deadline = time.monotonic() + BEFORE
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


class Supervised:
    def __init__(self, folder, url, **plan):
        self.file, self.flag = folder / "rules.py", folder / "flag"
        self.told, self.shown, self.stop = [], [], threading.Event()
        self._plan = WorkerPlan(file=self.file, url=url, **plan)
        self.thread = threading.Thread(target=self._run)
        self.done = None

    def _run(self):
        self.supervisor = Supervisor(self._plan, self.told.append, self.shown.append)
        self.done = self.supervisor.run(self.stop)

    def write(self, end="pass", more=""):
        self.file.write_text(RULES.format(flag=str(self.flag), end=end) + more)

    def workers(self):
        return [child for child in psutil.Process().children() if "monitors.worker" in " ".join(_command(child))]

    def running(self):
        """The workers, once there is one whose rules are known."""
        until(lambda: self.shown)
        return until(self.workers)

    def heard(self, text):
        return until(lambda: next((line for line in self.told if text in line), None))


def _command(child):
    with suppress(psutil.Error):
        return child.cmdline()
    return []


@pytest.fixture
def store(tmp_path):
    with SQLiteStore(tmp_path / "a.db") as store:
        yield store


@pytest.fixture
def url(store):
    with Server(store) as server:
        yield server.url


@contextmanager
def supervised(folder, url, end="pass", more="", **plan):
    made = Supervised(folder, url, **plan)
    made.write(end, more)
    made.thread.start()
    try:
        yield made
    finally:
        made.stop.set()
        made.thread.join(BEFORE)
        assert not made.workers()


@pytest.mark.process
@pytest.mark.parametrize(
    ("end", "told"),
    [
        (
            "ctypes.string_at(0)",
            "killed by SIGSEGV (invalid memory access), in when_asked, rules.py:13",
        ),
        pytest.param("os.killpg(0, signal.SIGKILL)", "killed by SIGKILL", marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_ends_is_replaced_and_its_end_is_told(end, told, url, tmp_path):
    with supervised(tmp_path, url, end) as monitor:
        (first,) = monitor.running()
        monitor.flag.touch()
        assert monitor.heard(told).startswith("worker 1 ended: ")
        until(lambda: [worker.pid for worker in monitor.workers()] not in ([], [first.pid]))


@pytest.mark.slow  # a worker that cannot release anything ends after its grace period
def test_a_death_is_logged_without_targets_while_the_store_does_not_answer(store, tmp_path):
    with ExitStack() as serving:
        server = serving.enter_context(Server(store))
        with supervised(tmp_path, server.url, "ctypes.string_at(0)") as monitor:
            monitor.running()
            serving.close()
            monitor.flag.touch()
            assert monitor.heard("worker 1 ended: killed by SIGSEGV").endswith("in when_asked, rules.py:13")


@pytest.mark.process
def test_a_monitor_is_in_trouble_until_its_rules_run_and_while_the_store_is_away(store, tmp_path):
    with ExitStack() as serving:
        server = serving.enter_context(Server(store))
        with supervised(tmp_path, server.url) as monitor:
            until(lambda: monitor.workers())
            until(lambda: monitor.supervisor.trouble() is None)
            assert monitor.shown
            serving.close()
            assert "Unavailable" in until(monitor.supervisor.trouble)
            with Server(store, port=server.port):
                until(lambda: monitor.supervisor.trouble() is None)


@pytest.mark.process
def test_the_command_line_of_a_worker_has_no_address(url, tmp_path):
    with supervised(tmp_path, url) as monitor:
        (worker,) = monitor.running()
        assert url not in " ".join(worker.cmdline())
        assert worker.environ()["SPANWISE_URL"] == url


@pytest.mark.process
def test_memory_is_bounded(url, tmp_path):
    end = f"open({str(tmp_path / 'full')!r}, 'w').write(full())"
    more = "\ndef full():\n    try:\n        return str(len(bytearray(2 << 30)))\n    except MemoryError:\n        return 'full'\n"
    with supervised(tmp_path, url, end, more, memory=1 << 30) as monitor:
        monitor.running()
        monitor.flag.touch()
        assert until(lambda: (tmp_path / "full").exists() and (tmp_path / "full").read_text()) == "full"


@pytest.mark.process
@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("x = (", "'{file}' does not run: SyntaxError: '(' was never closed (rules.py, line 17)"),
        ("raise ValueError('no')", "'{file}' does not run: ValueError: no (rules.py:17)"),
        ("raise SystemExit(3)", "'{file}' does not run: SystemExit: 3 (rules.py:17)"),
        ("ctypes.string_at(0)", "'{file}' ended the process that loaded it: killed by SIGSEGV (invalid memory"),
        ("os._exit(0)", "'{file}' ended the process that loaded it: exit code 0"),
    ],
)
def test_a_file_that_cannot_be_loaded_at_first_is_told_and_nothing_runs(broken, told, url, tmp_path):
    with supervised(tmp_path, url, more=broken) as monitor:
        until(lambda: monitor.done is False)
    assert monitor.told[0].startswith(told.format(file=monitor.file))
    assert len(monitor.told) == 1


@pytest.mark.process
def test_a_file_whose_rules_belong_to_another_file_says_that_nothing_runs_and_ends(store, url, tmp_path):
    (tmp_path / "other.py").write_text(RULES.format(flag="flag", end="pass"))
    store.save_rule(*(rule.record for rule in load(tmp_path / "other.py")), owner="other.py")
    with supervised(tmp_path, url) as monitor:
        until(lambda: monitor.done is False)
    (line,) = monitor.told
    assert "rule 'one' of project 'default' belongs to 'other.py'" in line
    assert line.endswith("; no rules run")
    assert monitor.shown == []


@pytest.mark.process
def test_a_budget_in_dollars_needs_the_price_of_every_judge(url, tmp_path):
    more = (
        "from spanwise.evaluators import Judge, judge\n"
        "j = judge('polite', 'Polite?\\n{outputs}', judge=Judge(model='own', base_url='http://127.0.0.1:9/v1'))\n"
        "monitor('paid', evaluators=[j], budget={'usd_per_day': 1})\n"
    )
    with supervised(tmp_path, url, more=more) as monitor:
        until(lambda: monitor.done is False)
    (line,) = monitor.told
    assert "rule 'paid': its budget in US dollars cannot be enforced: the price of 'own' is unknown" in line


@pytest.mark.process
def test_a_file_that_hangs_is_given_up(url, tmp_path):
    with supervised(tmp_path, url, more="time.sleep(1000)", loading=0.5) as monitor:
        until(lambda: monitor.done is False)
    assert "the file was not loaded after 0.5 s" in monitor.told[0]


@pytest.mark.slow  # two looks, a second apart, and two processes
def test_a_changed_file_is_loaded_beside_what_runs_which_then_ends(url, tmp_path):
    with supervised(tmp_path, url) as monitor:
        (first,) = monitor.running()
        monitor.write(more='monitor("two", evaluators=[fine])')
        assert [rule["name"] for rule in until(lambda: monitor.shown[1:])[0].rules] == ["one", "two"]
        until(lambda: len(monitor.workers()) == 1 and monitor.workers()[0].pid != first.pid)
    assert monitor.told == []


@pytest.mark.slow  # several looks, seconds apart
def test_a_broken_file_keeps_the_rules_from_before_and_is_told_once(url, tmp_path):
    with supervised(tmp_path, url) as monitor:
        (first,) = monitor.running()
        monitor.write(more="import helpers")
        assert monitor.heard("No module named 'helpers'").endswith("(rules.py:17); the previous rules continue to run")
        monitor.file.touch()
        (tmp_path / "helpers.py").write_text("x = 1")
        until(lambda: len(monitor.shown) == 2)
        until(lambda: [worker.pid for worker in monitor.workers()] not in ([], [first.pid]))
        (tmp_path / "helpers.py").write_text("x = 2")
        until(lambda: len(monitor.shown) == 3)
    assert len(monitor.told) == 1


PROGRAM = """
import sys, threading
from pathlib import Path
from spanwise.evaluators.monitors import WorkerPlan, Supervisor, load
plan = WorkerPlan(file=Path(sys.argv[1]), url=sys.argv[2], grace=3.5)
Supervisor(plan, lambda line: print(line, flush=True), lambda loaded: print("shown", flush=True)).run(threading.Event())
"""


@contextmanager
def program(folder, url):
    """A supervisor in a process of its own, with its worker."""
    file = folder / "rules.py"
    file.write_text(RULES.format(flag=str(folder / "flag"), end="pass"))
    command = [sys.executable, "-c", PROGRAM, str(file), url]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "shown\n"
            (worker,) = psutil.Process(process.pid).children()
            yield process, worker
        finally:
            process.kill()


@pytest.mark.process
def test_workers_end_with_their_supervisor_however_it_ends(url, tmp_path):
    with program(tmp_path, url) as (process, worker):
        process.send_signal(signal.SIGKILL)
        until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.slow  # longer than a worker may send no heartbeat
def test_a_worker_that_slept_together_with_its_supervisor_is_left_alone(url, tmp_path):
    with program(tmp_path, url) as (process, worker):
        for number in (signal.SIGSTOP, signal.SIGCONT):
            process.send_signal(number)
            worker.send_signal(number)
            time.sleep(5)
        assert [child.pid for child in psutil.Process(process.pid).children()] == [worker.pid]
        worker.send_signal(signal.SIGSTOP)
        assert "sent no heartbeat for 4 s" in process.stdout.readline()


LEAKING = """
KEPT = []

@evaluator
def leak(outputs):
    KEPT.append(bytearray(550 << 20))
    return True

@evaluator
def big(outputs):
    return len(bytearray(400 << 20)) > 0

@evaluator
def greedy(outputs):
    return len(bytearray(4 << 30)) > 0

monitor("leaking", evaluators=[leak], filter={"name": "leaks"})
monitor("large", evaluators=[big, greedy], filter={"name": "answer"}, retries=0)
"""


@pytest.mark.slow  # several processes that fill their memory
def test_a_leaking_evaluator_does_not_make_those_of_other_rules_fail(store, url, tmp_path):
    with supervised(tmp_path, url, more=LEAKING, memory=1 << 30, full=0.5) as monitor:
        (first,) = monitor.running()
        until(lambda: len(store.rules()) == 3)
        store.append([whole(1, name="leaks")])
        until(lambda: [row.verdict for row in decisions(store, rule="leaking")] == ["scored"])
        store.append([whole(2)])
        (done,) = until(lambda: [row for row in decisions(store, rule="large") if row.verdict == "failed"])
        assert {key: state["state"] for key, state in done.states.items()} == {"big": "scored", "greedy": "failed"}
        assert first.pid not in [worker.pid for worker in monitor.workers()]
    (line,) = [line for line in monitor.told if "is replaced" in line]
    assert "of 1.00 GiB; an evaluator keeps memory" in line


FILLING = """
KEPT = []

@evaluator
def fills(outputs):
    try:
        while True:
            KEPT.append(bytearray(20 << 20))
    except MemoryError:
        KEPT.pop()
        return True

monitor("filling", evaluators=[fills])
"""


@pytest.mark.slow  # several processes that fill their memory
def test_a_worker_that_stays_near_its_memory_limit_is_replaced(store, url, tmp_path):
    with supervised(tmp_path, url, more=FILLING, memory=800 << 20, full=0.5) as monitor:
        (first,) = monitor.running()
        until(lambda: len(store.rules()) == 2)
        store.append([whole(1)])
        assert "worker 1 is replaced: it uses" in monitor.heard("is replaced")
        until(lambda: [worker.pid for worker in monitor.workers()] not in ([], [first.pid]))


def deciding(store, rule):
    return next((lease.holder for lease in store.leases() if lease.name == f"monitor/default/{rule}"), None)


@pytest.mark.slow  # three processes
def test_after_the_deciding_worker_is_killed_another_takes_over_within_two_seconds(store, url, tmp_path):
    with supervised(tmp_path, url, workers=2):
        until(lambda: len({report.holder for report in store.workers() if report.rules}) == 2)
        first = until(lambda: deciding(store, "one"))
        (pid,) = {report.data["pid"] for report in store.workers() if report.holder == first}
        killed = time.monotonic()
        psutil.Process(pid).kill()
        until(lambda: deciding(store, "one") not in (None, first))
        assert time.monotonic() - killed < 2.0


@pytest.mark.process
def test_a_rule_whose_file_does_not_load_says_so_until_it_does(store, url, tmp_path):
    file = tmp_path / "rules.py"
    file.write_text(RULES.format(flag="flag", end="pass"))
    store.save_rule(*(rule.record for rule in load(file)), owner=file.as_posix())
    store.append([whole(1)])
    with supervised(tmp_path, url, more="x = (") as monitor:
        until(lambda: monitor.done is False)
    (why,) = store.why(trace_id(1))
    (status,) = store.status()
    assert "does not run: SyntaxError: '(' was never closed" in why.reason
    assert "its file does not load" in rule_report.standing(status, time.time_ns())[0]
    with supervised(tmp_path, url) as monitor:
        monitor.running()
        until(lambda: rule_report.standing(store.status()[0], time.time_ns()) == ("1 worker", True))


@pytest.mark.process
def test_a_running_worker_logs_once_why_it_idles_for_a_rule(store, url, tmp_path):
    with supervised(tmp_path, url) as monitor:
        monitor.running()
        store.change_rule("one", enabled=False)
        assert monitor.heard("idles").startswith("rule 'one' idles: the rule is paused by ")
        assert sum("idles" in line for line in monitor.told) == 1
