"""Evaluators that raise, hang, end the process, fail for a while or all the time: each fails alone."""

from __future__ import annotations

import asyncio
import errno
import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from evaluators.watched import decisions, length, rule, scores, trace_id, until, verdicts, watching, whole
from spanwise.collector.records import Feedback
from spanwise.collector.stores import Store
from spanwise.evaluators import evaluator
from spanwise.evaluators.monitors import Monitor, Stuck, rule_jobs
from spanwise.evaluators.monitors.worker_process import WorkerMemory, is_memory_error, memory_in_use


class TooMany(Exception):
    status_code = 429
    retry_after = 0.02


@pytest.fixture
def let_go() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def run_until(monitor: Any, condition: Callable[[], Any]) -> Any:
    def step() -> Any:
        monitor.step()
        return condition()

    return until(step)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ZeroDivisionError("x"), GeneratorExit()])
def test_whatever_an_evaluator_raises_is_its_outcome(store: Store, error: BaseException) -> None:
    def bad(outputs: str) -> bool:
        raise error

    async def worse(outputs: str) -> bool:
        raise error

    with watching(store, rule(evaluators=[bad, worse, length])) as monitor:
        monitor.step()
        store.append([whole(1)])
        run_until(monitor, lambda: verdicts(store).get("1") == "failed")
    assert scores(store, 1) == {"bad": "error", "worse": "error", "length": 2.0}
    (kept,) = decisions(store)
    assert {key: state["state"] for key, state in kept.states.items()} == {
        "bad": "failed",
        "worse": "failed",
        "length": "scored",
    }


@pytest.mark.process
def test_what_may_pass_is_tried_again_and_only_what_has_no_outcome(store: Store) -> None:
    looked: list[str] = []

    def flaky(outputs: str) -> bool:
        looked.append("flaky")
        if looked.count("flaky") < 3:
            raise ConnectionError("away")
        return True

    def steady(outputs: str) -> bool:
        return not looked.append("steady")

    with watching(store, rule(evaluators=[flaky, steady])) as monitor:
        monitor.step()
        store.append([whole(1)])
        monitor.step()
        (kept,) = decisions(store)
        assert (kept.verdict, scores(store, 1)) == ("waiting", {"steady": True})
        assert "ConnectionError: away" in kept.states["flaky"]["error"]
        run_until(monitor, lambda: verdicts(store) == {"1": "scored"})
    assert sorted(looked) == ["flaky"] * 3 + ["steady"]
    assert [one.states["flaky"]["attempts"] for one in decisions(store)] == [3]


@pytest.mark.process
def test_error_feedback_is_written_when_attempts_are_spent(store: Store) -> None:
    def away(outputs: str) -> bool:
        raise ConnectionError("away")

    with watching(store, rule(evaluators=[away], retries=1)) as monitor:
        monitor.step()
        store.append([whole(1)])
        monitor.step()
        assert scores(store, 1) == {}
        run_until(monitor, lambda: verdicts(store) == {"1": "failed"})
    assert scores(store, 1) == {"away": "error"}


def test_a_refusal_for_too_many_calls_uses_no_attempt(store: Store) -> None:
    refusals = iter(range(6))

    def busy(outputs: str) -> bool:
        if next(refusals, None) is not None:
            raise TooMany("slow down")
        return True

    with watching(store, rule(evaluators=[busy], retries=0, concurrency=1)) as monitor:
        monitor.step()
        store.append([whole(1), whole(2)])
        monitor.step()
        assert "throttled" in verdicts(store).values()
        run_until(monitor, lambda: set(verdicts(store).values()) == {"scored"})
    assert [one.states["busy"]["attempts"] for one in decisions(store)] == [1, 1]


def test_an_evaluator_that_fails_all_the_time_is_paused_and_others_go_on(store: Store) -> None:
    def broken(outputs: str) -> bool:
        raise RuntimeError("no such model")

    with watching(store, rule(evaluators=[broken, length])) as monitor:
        monitor.step()
        store.append([whole(number) for number in range(1, 61)])
        run_until(monitor, lambda: len(store.feedbacks(key="length", limit=100).items) == 60)
        kept = verdicts(store)
        (paused,) = monitor.reports()[0].data["paused"]["r"].values()
    assert list(kept.values()).count("failed") < 20
    assert list(kept.values()).count("throttled") > 40
    assert "failed" in paused
    assert "in a row" in paused
    assert "RuntimeError: no such model" in paused
    assert next(one for one in decisions(store, verdict="throttled")).next_ns is not None


@pytest.mark.process
def test_one_that_hangs_is_an_error_and_keeps_its_slot_while_others_go_on(
    store: Store, let_go: threading.Event
) -> None:
    def hanging(outputs: str) -> bool:
        return outputs != "a1" or let_go.wait(60)

    with watching(store, rule(evaluators=[hanging], timeout=1, retries=0, concurrency=2)) as monitor:
        monitor.step()
        store.append([whole(number) for number in range(1, 10)])
        run_until(monitor, lambda: len(verdicts(store)) == 9 and "waiting" not in verdicts(store).values())
        assert verdicts(store)["1"] == "failed"
        assert scores(store, 2) == {"hanging": True}
        (kept,) = store.trace(trace_id(1)).feedback
        assert kept.error == "TimeoutError: the evaluator took more than 1 s"
        let_go.set()


@pytest.mark.process
def test_when_all_slots_are_held_the_worker_says_so_and_other_rules_are_done_first(
    store: Store, let_go: threading.Event
) -> None:
    def hanging(outputs: str) -> bool:
        return let_go.wait(60)

    def slow(outputs: str) -> bool:
        return not time.sleep(0.5)

    rules = [rule("stuck", [hanging], timeout=0.1, retries=0, concurrency=1), rule("slow", [slow])]
    with watching(store, *rules) as monitor:
        monitor.step()
        store.append([whole(1)])
        with pytest.raises(Stuck, match="all 1 slots of rule 'stuck'"):
            run_until(monitor, lambda: False)
        assert verdicts(store, rule="slow") == {"1": "scored"}
        assert verdicts(store, rule="stuck") == {"1": "failed"}
        let_go.set()


@pytest.mark.process
def test_one_that_waits_for_ever_holds_up_nobody_else(store: Store) -> None:
    async def waiting(outputs: str) -> bool:
        import asyncio

        await asyncio.sleep(60)
        return True

    rules = [rule("waits", [waiting], timeout=0.1, retries=0, concurrency=1), rule("fine")]
    with watching(store, *rules) as monitor:
        monitor.step()
        store.append([whole(1), whole(2)])
        run_until(monitor, lambda: set(verdicts(store, rule="waits").values()) == {"failed"})
    assert verdicts(store, rule="fine") == {"1": "scored", "2": "scored"}


def test_a_loop_that_is_held_up_is_one_rules_alone(store: Store, let_go: threading.Event) -> None:
    held = threading.Event()

    async def holding(outputs: str) -> bool:
        held.set()
        return let_go.wait(120)

    async def fine(outputs: str) -> bool:
        assert held.wait(60)
        return True

    with watching(store, rule("holds", [holding]), rule("fine", [fine])) as monitor:
        monitor._start()
        store.append([whole(1), whole(2)])
        monitor._follower.step()
        monitor._claim_soon()
        until(lambda: (monitor._executor.step(), verdicts(store, rule="fine"))[1] == {"1": "scored", "2": "scored"})
        assert set(verdicts(store, rule="holds").values()) == {"running"}
        let_go.set()


def test_targets_above_the_bound_are_skipped_with_their_size(store: Store) -> None:
    with watching(store, rule(max_bytes=2_000)) as monitor:
        monitor.step()
        store.append([whole(1, outputs=[f"{place}" * 40 for place in range(400)]), whole(2)])
        monitor.step()
    assert verdicts(store) == {"1": "skipped", "2": "scored"}
    assert "above max_bytes=2,000" in decisions(store, verdict="skipped")[0].reason


def test_one_key_of_two_evaluators_is_an_error_of_the_second(store: Store) -> None:
    def first(outputs: str) -> Any:
        return {"key": "shared", "score": 1.0}

    def second(outputs: str) -> Any:
        return {"key": "shared", "score": 0.0}

    async def third(outputs: str) -> Any:
        return {"key": "first", "score": 0.0}

    with watching(store, rule(evaluators=[first, second, third], retries=0)) as monitor:
        monitor.step()
        store.append([whole(1), whole(2)])
        monitor.step()
    for number in (1, 2):
        assert scores(store, number) == {"shared": 1.0, "second": "error", "third": "error"}


def test_many_are_scored_together_where_an_evaluator_can(store: Store) -> None:
    batches: list[int] = []

    class Model:
        def __call__(self, outputs: str) -> bool:
            return True

        def batch(self, cases: Any) -> list[bool]:
            batches.append(len(cases))
            return [case.outputs != "a3" for case in cases]

    with watching(store, rule(evaluators=[evaluator(Model(), key="model")], version="1")) as monitor:
        monitor.step()
        store.append([whole(number) for number in range(1, 65)])
        monitor.step()
    assert set(verdicts(store).values()) == {"scored"}
    assert scores(store, 3) == {"model": False}
    assert sum(batches) == 64
    assert len(batches) < 20


def test_feedback_that_the_store_refuses_fails_alone(store: Store) -> None:
    def elsewhere(outputs: str) -> Any:
        return {"key": "k", "score": 1.0, "metadata": {"x": object()}} if outputs == "a1" else 1.0

    with watching(store, rule(evaluators=[elsewhere])) as monitor:
        monitor.step()
        store.append([whole(1), whole(2)])
        monitor.step()
    assert verdicts(store)["2"] == "scored"
    assert verdicts(store)["1"] in ("scored", "failed")


def test_a_trace_that_is_deleted_while_it_is_looked_at_stays_deleted(store: Store) -> None:
    def deleting(outputs: str) -> bool:
        store.delete(trace_ids=[trace_id(1)])
        return True

    with watching(store, rule(evaluators=[deleting])) as monitor:
        monitor.step()
        store.append([whole(1)])
        monitor.step()
        assert monitor.reports()[0].data["refused"] == 1
    assert decisions(store) == []
    assert store.feedbacks(key="deleting").items == ()


def test_a_rules_own_feedback_starts_no_loop(store: Store) -> None:
    with watching(store, rule(strata=[({"feedback": ("length", ">", 0)}, 1.0)])) as monitor:
        monitor.step()
        store.append([whole(1)])
        monitor.step()
        assert monitor.step() == 0
        store.add_feedback([Feedback(target=decisions(store)[0].target, key="x", score=1.0)])
        assert monitor.step() > 0
    assert [one.reopened for one in decisions(store)] == [0]


@pytest.mark.filterwarnings("always")
def test_a_monitor_that_ends_with_work_under_way_leaves_no_coroutine_behind(
    store: Store, recwarn: pytest.WarningsRecorder
) -> None:
    begun = threading.Event()

    async def slow(outputs: str) -> bool:
        begun.set()
        await asyncio.sleep(60)
        return True

    monitor = Monitor(store, [rule(evaluators=[slow], concurrency=2)])
    thread = threading.Thread(target=monitor.run)
    thread.start()
    until(lambda: store.rules())
    store.append([whole(number) for number in range(1, 41)])
    assert begun.wait(60)
    monitor.stop(0.0)
    thread.join()
    until(lambda: not any(one.name == "spanwise-monitor-slot" for one in threading.enumerate()))
    gc.collect()
    assert [str(one.message) for one in recwarn if issubclass(one.category, RuntimeWarning)] == []
    assert "running" not in verdicts(store).values()


@pytest.mark.process
def test_what_was_leased_before_a_pause_is_given_back_without_a_call_and_one_target_probes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule_jobs, "MIN_PAUSE_S", 1.0)
    calls: list[str] = []

    def broken(outputs: str) -> bool:
        calls.append(outputs)
        time.sleep(0.005)
        raise ValueError("no such column")

    with watching(store, rule(evaluators=[broken], retries=0, concurrency=4)) as monitor:
        monitor.step()
        store.append([whole(number) for number in range(1, 101)])
        monitor.step()
        first = len(calls)
        assert 20 <= first < 60
        assert "paused" in decisions(store, verdict="throttled")[0].reason
        run_until(monitor, lambda: len(calls) > first)
        assert len(calls) == first + 1


@pytest.mark.parametrize(
    ("error", "is_lack"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (RuntimeError("can't start new thread"), True),
        (OSError(errno.ENOENT, "No such file"), False),
        (RuntimeError("no"), False),
    ],
)
def test_a_lack_of_memory_is_recognised_in_what_led_to_an_error(error: Exception, is_lack: bool) -> None:
    wrapped = ValueError("wrapped by a library")
    wrapped.__cause__ = error
    assert (is_memory_error(error), is_memory_error(wrapped)) == (is_lack, is_lack)


@pytest.mark.process
def test_a_lack_of_memory_in_a_full_worker_is_not_the_evaluators_outcome(store: Store) -> None:
    def large(outputs: str) -> bool:
        raise MemoryError

    memory = WorkerMemory(limit=(memory_in_use() or 0) + (1 << 30))
    filled = [bytearray(400 << 20)]
    with watching(store, rule(evaluators=[large], retries=0), memory=memory) as monitor:
        monitor.step()
        store.append([whole(1)])
        monitor.step()
        (row,) = decisions(store)
        assert (row.verdict, row.attempts) == ("waiting", 0)
        assert row.reason.startswith(
            "'large' is retried in another worker, because this one reached its memory limit ("
        )
        filled.clear()
        run_until(monitor, lambda: verdicts(store) == {"1": "failed"})
