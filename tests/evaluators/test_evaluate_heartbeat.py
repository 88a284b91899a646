"""An experiment that was killed is not shown as one that runs."""

import threading
import time
from dataclasses import replace

from looped_cases import loop_over
from spanwise.collector.formatting import HEARTBEAT_TIMEOUT_NS, date_and_time, standing
from spanwise.collector.records import Experiment as Record
from spanwise.evaluators import Experiment, evaluate
from spanwise.evaluators.experiments import Heartbeat, Recorder

HOUR = 3_600 * 10**9


def record(**fields):
    return Record(id="e" * 32, name="n", dataset="d", **fields)


def eventually(look):
    deadline = time.monotonic() + 60
    while not look() and time.monotonic() < deadline:
        time.sleep(0.01)
    return look()


@loop_over(
    ("seen", "status", "told"),
    [
        (0, "running", "running"),
        (-HEARTBEAT_TIMEOUT_NS // 2, "running", "running"),
        (-2 * HEARTBEAT_TIMEOUT_NS, "running", "no heartbeat since "),
        (None, "running", "no heartbeat since "),  # of a version that gave none, begun an hour ago
        (HEARTBEAT_TIMEOUT_NS // 2, "running", "running"),  # another machine's clock is a little ahead
        (HOUR, "running", "running or killed: its last heartbeat is dated "),
        (-HOUR, "finished", "finished"),
        (HOUR, "interrupted", "interrupted"),
    ],
)
def test_what_is_said_of_an_experiment_by_its_last_sign_of_life(seen, status, told):
    now = time.time_ns()
    one = record(started_ns=now - HOUR, seen_ns=None if seen is None else now + seen, status=status)
    said = standing(one)
    assert said.startswith(told)
    if told.endswith(" "):
        assert date_and_time(one.seen_ns or one.started_ns) in said
    else:
        assert said == told


def test_a_sign_at_the_beginning_of_time_is_an_old_one():
    assert standing(record(seen_ns=0, started_ns=0)) == f"no heartbeat since {date_and_time(0)}"


def test_signs_of_life_come_while_a_task_takes_long(store):
    now = time.time_ns()
    store.save_experiment(before := record(seen_ns=now - HOUR, metadata={"k": 1}))
    with Heartbeat(store, before.id, every=0.01):
        assert eventually(lambda: store.experiment(before.id).seen_ns >= now)
    assert replace(store.experiment(before.id), seen_ns=before.seen_ns) == before


def test_a_store_that_fails_ends_no_heartbeat(store):
    calls = []

    class Failing:
        def change_experiment(self, id, **fields):
            calls.append(id)
            raise OSError("disk")

    with Heartbeat(Failing(), "e", every=0.001):
        assert eventually(lambda: len(calls) > 2)


def test_no_thread_is_left(store):
    before, seen = set(threading.enumerate()), set()
    evaluate([{"q": 1}], lambda q: seen.update(threading.enumerate()), store=store, progress=False)
    (ours,) = (thread for thread in seen - before if thread.name == "spanwise-heartbeat")
    ours.join(60)
    assert not ours.is_alive()


def test_an_experiment_begins_and_ends_with_a_sign_of_life(store):
    now, during = time.time_ns(), []
    evaluate([{"q": 1}], lambda q: during.append(store.experiments()[0]), store=store, name="x", progress=False)
    ended = store.experiment("x")
    assert (during[0].status, standing(during[0]), ended.status) == ("running", "running", "finished")
    assert now <= during[0].seen_ns <= ended.seen_ns == ended.ended_ns


def test_recorded_experiments_give_signs_of_life_too(store):
    recorder = Recorder(store, "tests", "cases")
    assert standing(store.experiments()[0]) == "running"
    assert recorder.finish().record.seen_ns is not None


def test_the_summary_of_one_that_died_says_so(store):
    evaluate([{"q": 1}], lambda q: q, store=store, name="x", progress=False)
    store.save_experiment(replace(store.experiment("x"), status="running", seen_ns=1))
    assert "no heartbeat since" in Experiment.load(store, "x").summary().title
