"""Workers that go on by themselves: side by side, over HTTP, superseded, stalled, killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluators.watched import decisions, rule, scores, until, verdicts, watching, whole
from spanwise.collector import connect
from spanwise.collector.diagnostics import rule_report as verdicts_in_words
from spanwise.collector.errors import Refused
from spanwise.collector.records import ClaimResult
from spanwise.collector.server import Server
from spanwise.collector.stores import Store
from spanwise.evaluators.monitors import Monitor
from spanwise.evaluators.monitors.rule_jobs import row_claim
from spanwise.tracer import attribute_names as names
from spanwise.tracer import inject, session
from spanwise.tracer import span as traced_span
from spanwise.tracer.propagation import make_detached_context, mark_monitor_spans
from spanwise.tracer.testing import capture_spans


@contextmanager
def running(store: Store, *rules: Any, workers: int = 1, **options: Any) -> Iterator[list[Monitor]]:
    made = [Monitor(store, rules, **options) for _ in range(workers)]
    threads = [threading.Thread(target=one.run) for one in made]
    for thread in threads:
        thread.start()
    try:
        until(lambda: store.rules() and all(not one.idle for one in made))
        yield made
    finally:
        for one in made:
            one.stop()
        for thread in threads:
            thread.join()


def test_over_http_it_is_the_same(store: Store) -> None:
    with Server(store) as server, connect(server.url) as client, running(client, rule()):
        client.append([whole(number) for number in range(1, 21)])
        until(lambda: list(verdicts(store).values()) == ["scored"] * 20)
    assert scores(store, 7) == {"length": 2.0}


@pytest.mark.process
def test_workers_share_what_is_due_and_double_nothing(store: Store) -> None:
    looked: list[str] = []

    def seeing(outputs: str) -> bool:
        return not looked.append(outputs)

    with running(store, rule(evaluators=[seeing], concurrency=2), workers=3):
        for number in range(1, 101):
            store.append([whole(number)])
        until(lambda: list(verdicts(store).values()).count("scored") == 100)
    assert sorted(looked) == sorted(f"a{number}" for number in range(1, 101))


def test_what_it_says_of_itself_stands_in_the_status(store: Store) -> None:
    with running(store, rule()) as (monitor,):
        store.append([whole(1)])
        until(lambda: verdicts(store) == {"1": "scored"})
        store.report(*monitor.reports())
        (status,) = store.status()
        (worker,) = [one for one in status.workers if one.holder == monitor.holder]
    assert worker.rules == {"r": status.rule.version}
    assert worker.data["evaluators"]["r"]["length"]["looked"] == 1
    assert worker.data["deciding"] == ["r"]


def test_a_workers_report_counts_for_every_project_that_it_serves(store: Store) -> None:
    with running(store, rule(project="shop"), rule(project="help")) as (monitor,):
        until(lambda: len(store.status()) == 2 and all(status.workers for status in store.status()))
        for status in store.status():
            (worker,) = status.workers
            assert (worker.holder, worker.project) == (monitor.holder, status.rule.project)


@pytest.mark.process
def test_after_a_resume_an_old_report_does_not_call_the_rule_paused(store: Store) -> None:
    with watching(store, rule()) as monitor:
        monitor.step()
        store.change_rule("r", enabled=False)
        until(lambda: (monitor.step(), monitor.idle)[1])
        for report in monitor.reports():
            store.report(report)
        store.change_rule("r", enabled=True)
        assert verdicts_in_words.standing(store.status()[0], time.time_ns()) == ("1 worker", True)


@pytest.mark.process
def test_a_changed_evaluator_scores_what_comes_from_then_on(store: Store) -> None:
    def shout(outputs: str) -> bool:
        return outputs.isupper()

    with watching(store, rule()) as old, watching(store, rule(evaluators=[shout])) as new:
        old.step()
        store.append([whole(1)])
        old.step()
        new.step()
        store.append([whole(2)])
        old.step()
        until(lambda: (new.step(), verdicts(store, version=store.rules()[0].version))[1] == {"2": "scored"})
        assert old.idle == {"r": f"version {rule().record.version} was superseded by {store.rules()[0].version}"}
        with watching(store, rule()) as again:
            again.step()
            assert "superseded" in again.idle["r"]
    assert (scores(store, 1), scores(store, 2)) == ({"length": 2.0}, {"shout": False})


def test_a_superseded_version_can_be_put_in_force_again(store: Store) -> None:
    def shout(outputs: str) -> bool:
        return outputs.isupper()

    for made in (rule(), rule(evaluators=[shout])):
        with watching(store, made) as monitor:
            monitor.step()
    with watching(store, rule(), activate=True) as monitor:
        monitor.step()
        store.append([whole(1)])
        monitor.step()
    assert scores(store, 1) == {"length": 2.0}


def test_claims_of_an_old_version_are_refused(store: Store) -> None:
    def shout(outputs: str) -> bool:
        with watching(store, rule("r")) as newer:
            newer.step()
        return outputs.isupper()

    with watching(store, rule(evaluators=[shout])) as monitor:
        monitor.step()
        store.append([whole(1)])
        monitor.step()
        assert monitor.reports()[0].data["refused"] == 1
    assert scores(store, 1) == {}


def test_a_stalled_workers_late_finish_is_refused(store: Store) -> None:
    with watching(store, rule()) as monitor:
        monitor.step()
        store.append([whole(1)])
        monitor._follower.step()
        (stalled,) = store.claim("r", rule().record.version, "stalled", 0.0)
        assert stalled.verdict == "running"
        until(lambda: (monitor.step(), verdicts(store))[1] == {"1": "scored"})
        (answer,) = store.finish(ClaimResult(claim=row_claim(stalled), verdict="failed", reason="late"))
    assert answer.startswith("refused")
    assert verdicts(store) == {"1": "scored"}


def test_a_worker_that_lost_its_lease_decides_nothing(store: Store) -> None:
    with watching(store, rule()) as stalled, watching(store, rule()) as other:
        stalled.step()
        store.append([whole(1)])
        store.delete_lease("monitor/default/r")
        other.step()
        stalled.step()
        stalled.step()
        assert stalled._follower.deciding == []
        assert other._follower.deciding == [("default", "r")]
    assert verdicts(store) == {"1": "scored"}


def test_a_rule_of_another_owner_ends_it_with_the_reason(store: Store) -> None:
    made = rule()
    store.save_rule(replace(made.record, owner="theirs.py"))
    with pytest.raises(Refused, match=r"theirs\.py"):
        Monitor(store, [made]).run()


def test_a_rate_that_is_changed_holds_from_then_on(store: Store) -> None:
    with watching(store, rule(sample_rate=1.0)) as monitor:
        monitor.step()
        store.append([whole(1)])
        monitor.step()
        store.change_rule("r", settings={"sample_rate": 0.0})
        store.append([whole(2)])
        monitor.step()
        store.change_rule("r", settings={"sample_rate": 1.0})
        store.append([whole(3)])
        while monitor.step():
            pass
    assert verdicts(store) == {"1": "scored", "3": "scored"}


def test_settings_hold_for_the_changes_that_came_under_them(store: Store) -> None:
    with watching(store, rule(sample_rate=0.0)) as monitor:
        monitor.step()
        store.append([whole(1)])
        store.change_rule("r", settings={"sample_rate": 1.0})
        store.append([whole(2)])
        while monitor.step():
            pass
    assert verdicts(store) == {"2": "scored"}


def test_what_evaluators_trace_and_call_bears_the_mark() -> None:
    with capture_spans() as spans, mark_monitor_spans(), traced_span("call"):
        headers = inject()
        with traced_span("below"):
            pass
    assert [one.attributes[names.MONITOR] for one in spans.ended] == [True, True]
    assert headers["tracestate"].partition("spanwise=")[2].split(",")[0].split("-")[2] == "03"
    assert names.MONITOR in headers["baggage"]


KILLED = """
    import sys, time
    from spanwise.collector import connect
    from spanwise.evaluators import monitor
    from spanwise.evaluators.monitors import Monitor

    def slow(outputs):
        time.sleep(0.002)
        return 1.0

    with connect(sys.argv[1]) as store:
        Monitor(store, [monitor("r", evaluators=[slow])], claim_s=1.0).run()
"""


@pytest.mark.slow
def test_workers_that_are_killed_lose_and_double_nothing(store: Store, tmp_path: Path) -> None:
    program = tmp_path / "worker.py"
    program.write_text(textwrap.dedent(KILLED))
    with Server(store) as server:
        worker = None
        for number in range(1, 161):
            store.append([whole(number)])
            if number % 60 == 1:
                if worker is not None:
                    worker.send_signal(signal.SIGKILL)
                    worker.wait()
                worker = subprocess.Popen([sys.executable, str(program), server.url], env={**os.environ})
                until(lambda: any(one.verdict != "waiting" for one in decisions(store)) or store.rules())
        until(lambda: list(verdicts(store).values()).count("scored") >= len(verdicts(store)) > 100)
        assert worker is not None
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    given = list(store.feedbacks(key="slow", limit=1000))
    assert len(given) == len({one.target.trace_id for one in given}) == len(verdicts(store))


def test_a_judgements_trace_keeps_the_mark_and_nothing_else() -> None:
    with session("s"), mark_monitor_spans():
        inside = make_detached_context()
    with session("s"):
        outside = make_detached_context()
    assert dict(outside) == {}
    assert [value for value in inside.values() if value == {names.MONITOR: True}]
