"""An experiment that was killed is not shown as one that runs."""

import threading
import time
from dataclasses import replace

import pytest

from assay.collector.format import SILENCE_NS, standing, to_the_second
from assay.collector.records import Experiment as Record
from assay.evaluators import Experiment, evaluate
from assay.evaluators.engine import Recorder
from assay.evaluators.engine._heartbeat import Heartbeat

NOW = time.time_ns()
HOUR = 3_600 * 10**9


def record(**fields):
    return Record(id="e" * 32, name="n", dataset="d", **{"started_ns": NOW - HOUR, **fields})


def eventually(look):
    deadline = time.monotonic() + 10
    while not look() and time.monotonic() < deadline:
        time.sleep(0.01)
    return look()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"seen_ns": NOW}, "running"),
        ({"seen_ns": NOW - SILENCE_NS // 2}, "running"),
        ({"seen_ns": NOW - 2 * SILENCE_NS}, f"no sign of life since {to_the_second(NOW - 2 * SILENCE_NS)}"),
        ({}, f"no sign of life since {to_the_second(NOW - HOUR)}"),  # of a version that gave none
        ({"seen_ns": 0, "started_ns": 0}, f"no sign of life since {to_the_second(0)}"),
        ({"seen_ns": NOW + SILENCE_NS // 2}, "running"),  # another machine's clock is a little ahead
        ({"seen_ns": NOW + HOUR}, "running or killed: its last sign of life is dated "),
        ({"seen_ns": NOW - HOUR, "status": "finished"}, "finished"),
        ({"seen_ns": NOW + HOUR, "status": "interrupted"}, "interrupted"),
    ],
)
def test_what_is_said_of_an_experiment_by_its_last_sign_of_life(fields, told):
    assert standing(record(**fields)).startswith(told)


def test_signs_of_life_come_while_a_task_takes_long(store):
    store.save_experiment(before := record(seen_ns=NOW - HOUR, metadata={"k": 1}))
    with Heartbeat(store, before.id, every=0.01):
        assert eventually(lambda: store.experiment(before.id).seen_ns >= NOW)
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
    seen = []
    evaluate([{"q": 1}], lambda q: seen.extend(threading.enumerate()), store=store, progress=False)
    assert any(thread.name == "assay-heartbeat" for thread in seen)
    assert eventually(lambda: not any(thread.name == "assay-heartbeat" for thread in threading.enumerate()))


def test_an_experiment_begins_and_ends_with_a_sign_of_life(store):
    during = []
    evaluate([{"q": 1}], lambda q: during.append(store.experiments()[0]), store=store, name="x", progress=False)
    ended = store.experiment("x")
    assert (during[0].status, standing(during[0]), ended.status) == ("running", "running", "finished")
    assert NOW <= during[0].seen_ns <= ended.seen_ns == ended.ended_ns


def test_recorded_experiments_give_signs_of_life_too(store):
    recorder = Recorder(store, "tests", "cases")
    assert standing(store.experiments()[0]) == "running"
    assert recorder.finish().record.seen_ns is not None


def test_the_summary_of_one_that_died_says_so(store):
    evaluate([{"q": 1}], lambda q: q, store=store, name="x", progress=False)
    store.save_experiment(replace(store.experiment("x"), status="running", seen_ns=NOW - HOUR))
    assert "no sign of life since" in Experiment.load(store, "x").summary().title
