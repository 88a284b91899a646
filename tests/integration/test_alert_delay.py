"""Looks at alerts run soon after they are due, with a real server, monitor and traffic."""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from collector.scoring import make_run
from integration.serving import ROOT, environment
from spanwise.collector import connect
from spanwise.collector.alerts import AlertRunner, get_interval_ns
from spanwise.collector.records import Alert
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

SPEED = 20  # seconds of the alerts' clock per second, so that a look of an hour's window is due every 7.5 s
BEHIND_NS = 12 * 3_600_000_000_000  # the alerts' clock begins in the past: the store corrects starts in the future
SECONDS = 24
MAX_DELAY_S = 60
SAMPLED = {"otel.trace_state": "ot=th:0"}  # the sender keeps every trace
RULES = """
from spanwise.evaluators import evaluator, monitor

@evaluator
def good(outputs):
    return outputs == "good"

monitor("support", evaluators=[good], quiet=0)
"""
HOURLY = {"window_s": 3600.0, "below": 0.99, "fire_after": 1}
KINDS = (
    {"rule": "support", "key": "good", **HOURLY},
    {"rule": "support", "key": "good", "by": "model", **HOURLY},
    {"rule": "support", "key": "good", "drop": 0.1, "window_s": 3600.0},
    {"measure": "latency_ms > 8000", "above": 0.5, "window_s": 3600.0},
    {"rule": "support", "measure": "lag_s", "above": 60.0},
)


MONITOR = """
import sys

from integration.test_alert_delay import Clock
from spanwise.cli import main
from spanwise.collector.alerts import AlertRunner

AlertRunner.__init__.__kwdefaults__["now"] = Clock(int(sys.argv.pop(1))).now_ns
main()
"""


class Clock:
    """The alerts' clock, which server and monitor share: either of them looks."""

    def __init__(self, start_ns):
        self.start_ns = start_ns

    def now_ns(self):
        return self.start_ns - BEHIND_NS + (time.time_ns() - self.start_ns) * SPEED

    def seconds_since(self, at_ns):
        return (self.now_ns() - at_ns) / SPEED / 1e9


class Traffic(threading.Thread):
    """Ten traces per second, of which some are bad."""

    def __init__(self, url, clock):
        super().__init__(daemon=True)
        self.url, self.clock, self.stopped = url, clock, threading.Event()

    def run(self):
        number, choose = 0, random.Random(1)
        with connect(self.url) as store:
            while not self.stopped.wait(0.1):
                number += 1
                output, model = choose.choice(("good", "good", "bad")), choose.choice(("small", "large"))
                at = self.clock.now_ns()
                store.append([make_run(number, at, inputs="q", outputs=output, model=model, attributes=SAMPLED)])


@pytest.mark.process
def test_no_look_at_a_hundred_alerts_is_late_while_all_traces_are_decided(tmp_path, monkeypatch):
    clock = Clock(time.time_ns())
    monkeypatch.setitem(AlertRunner.__init__.__kwdefaults__, "now", clock.now_ns)
    rules = tmp_path / "rules.py"
    rules.write_text(RULES)
    with SQLiteStore(tmp_path / "a.db") as store, Server(store) as server:
        traffic = Traffic(server.url, clock)
        command = [sys.executable, "-c", MONITOR, str(clock.start_ns), "monitor", str(rules), "--store", server.url]
        paths = {"PYTHONPATH": os.pathsep.join((str(ROOT / "tests"), environment()["PYTHONPATH"]))}
        monitor = subprocess.Popen(command, env=environment() | paths, stderr=subprocess.DEVNULL)
        try:
            traffic.start()
            for number in range(100):
                store.save_alert(Alert(name=f"a{number}", **KINDS[number % len(KINDS)]))
            delays = follow(store, clock)
        finally:
            traffic.stopped.set()
            monitor.send_signal(signal.SIGTERM)
            monitor.wait(30)
            traffic.join()
        assert store.status()[0].counts.get("scored", 0) > 50
    assert min(delays) >= 0
    assert len(delays) >= 100 * 2
    assert max(delays) <= MAX_DELAY_S


def follow(store, clock):
    """Return the delay of each look in seconds. That of a look which was passed over lasts until the next one."""
    begun, until = clock.now_ns(), time.monotonic() + SECONDS
    looked, delays = {}, []
    while time.monotonic() < until:
        for alert in store.alerts():
            before, interval_ns = looked.get(alert.name), get_interval_ns(alert)
            if alert.looked_ns > (before or begun):
                first_due = alert.looked_ns if before is None else before + interval_ns
                delays.append(clock.seconds_since(first_due))
                looked[alert.name] = alert.looked_ns
        time.sleep(0.05)
    return delays
