"""An alert fires and is resolved, over a real server, monitor and receivers, while workers of the monitor are killed."""

import email
import os
import random
import signal
import subprocess
import threading
import time
from contextlib import suppress

import psutil
import pytest

from collector.receivers import HTTPReceiver, SMTPReceiver
from collector.scoring import make_run
from integration.serving import COMMAND, environment
from spanwise.collector import connect
from spanwise.collector.alerts import AlertRunner
from spanwise.collector.notifications import Notifier, load_targets
from spanwise.collector.server import Server
from spanwise.collector.stores.sqlite import SQLiteStore

KILLS = 20
KILL_EVERY_S = 5.5  # each of two workers then runs longer than the 10 s after which earlier deaths are forgotten
SAMPLED = {"otel.trace_state": "ot=th:0"}  # the sender keeps every trace
SPEED = 90  # seconds of the alert's clock per second
BEHIND_NS = 12 * 3_600_000_000_000  # the alert's clock begins in the past: the store corrects starts in the future
DEADLINE_S = 400
# The clock of the alert's looks is faster than that of the machine, so that an hour's window takes 40 s
RULES = """
import time
from spanwise.collector.alerts import AlertRunner
from spanwise.evaluators import alert, evaluator, monitor

def fast_clock():
    return {start} - {behind} + (time.time_ns() - {start}) * {speed}

AlertRunner.__init__.__kwdefaults__["now"] = fast_clock

@evaluator
def good(outputs):
    return outputs == "good"

monitor("support", evaluators=[good], quiet=0)
alert("grounded", rule="support", key="good", below=0.8, window="1h", to=["web", "mail"])
"""


class Traffic(threading.Thread):
    """Traces that start at the alert's clock, several per second, with good or bad answers."""

    def __init__(self, url, start):
        super().__init__(daemon=True)
        self.url, self.start_ns, self.output, self.stopped = url, start, "good", threading.Event()

    def run(self):
        number = 0
        with connect(self.url) as store:
            while not self.stopped.wait(0.1):
                number += 1
                at = self.start_ns - BEHIND_NS + (time.time_ns() - self.start_ns) * SPEED
                store.append([make_run(number, at, inputs="q", outputs=self.output, attributes=SAMPLED)])


@pytest.mark.slow  # minutes: two windows of an alert pass
@pytest.mark.long
def test_each_change_of_status_is_delivered_at_least_once_under_one_id_while_workers_are_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(AlertRunner, "begin", lambda self: None)  # the monitors look, not the server
    start = time.time_ns()
    rules = tmp_path / "rules.py"
    rules.write_text(RULES.format(start=start, speed=SPEED, behind=BEHIND_NS))
    with HTTPReceiver() as web, SMTPReceiver() as mail, SQLiteStore(tmp_path / "a.db") as store:
        targets = tmp_path / "targets.toml"
        targets.write_text(
            f'[targets.web]\nkind = "webhook"\nurl = "http://127.0.0.1:{web.port}/hook"\nallow = ["127.0.0.1"]\n'
            f'[targets.mail]\nkind = "email"\nhost = "127.0.0.1"\nport = {mail.port}\nallow = ["127.0.0.1"]\n'
            'security = "none"\nfrom = "a@example.com"\nto = ["b@example.com"]\n'
        )
        with Server(store, notifier=Notifier(load_targets(str(targets), {}))) as server:
            traffic = Traffic(server.url, start)
            traffic.start()
            monitor = subprocess.Popen(
                [*COMMAND, "monitor", str(rules), "--store", server.url, "--workers", "2"],
                env=environment(),
                stderr=subprocess.DEVNULL,
            )
            try:
                statuses = follow(store, traffic, monitor)
            finally:
                traffic.stopped.set()
                traffic.join()
                monitor.send_signal(signal.SIGTERM)
                monitor.wait(30)
            until(lambda: not any(store.count_due_deliveries().values()))
        events = list(reversed(store.alert_events(alert="grounded").items))
        notified = {event.id: event.after for event in events if event.after in ("firing", "resolved")}
        assert [event.after for event in events][:3] == ["ok", "firing", "resolved"]
        assert statuses["kills"] >= KILLS
        delivered = set(web.ids)
        assert delivered == set(notified)
        mails = {email.message_from_bytes(message)["Message-ID"] for message in mail.messages}
        assert len(mails) == len(notified)


def follow(store, traffic, monitor):
    """Kill workers until the alert has fired and was resolved. Answers turn bad once it is ok, good once it fires."""
    kills, next_kill, place = 0, time.monotonic() + 10, random.Random(1)
    deadline = time.monotonic() + DEADLINE_S
    seen = []
    while kills < KILLS or "resolved" not in seen:
        assert time.monotonic() < deadline, (kills, seen, store.alert_groups())
        seen = [event.after for event in store.alert_events(alert="grounded").items]
        traffic.output = "bad" if "ok" in seen and "firing" not in seen else "good"
        if time.monotonic() > next_kill:
            next_kill = time.monotonic() + KILL_EVERY_S
            workers = [one for one in psutil.Process(monitor.pid).children() if one.is_running()]
            with suppress(IndexError, ProcessLookupError):
                os.kill(place.choice(workers).pid, signal.SIGKILL)
                kills += 1
        time.sleep(0.1)
    return {"kills": kills}


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
