"""Set-up and tear-down around each attempt of a task: sync and async, failures, timeouts, retries, interruption, resume."""

import asyncio
import contextlib
import time
from contextlib import asynccontextmanager, contextmanager

import pytest

from spanwise.collector.records import Example
from spanwise.evaluators import Experiment, aevaluate, evaluate, evaluator
from spanwise.evaluators.experiments import CannotResume, TaskError

ROWS = [{"id": f"e{n}", "inputs": {"q": f"q{n}"}} for n in range(4)]


@evaluator
def longer(outputs):
    return len(outputs) > 2


class Log:
    """Fixture that logs what happens, of every kind."""

    def __init__(self):
        self.events = []
        self.fails = None
        self.at = "exit"

    def note(self, what, q):
        self.events.append((what, q))
        if self.fails is not None and what == self.at:
            raise self.fails

    @contextmanager
    def plain(self, q):
        self.note("enter", q)
        try:
            yield f"<{q}>"
        finally:
            self.note("exit", q)

    @asynccontextmanager
    async def later(self, q):
        await asyncio.sleep(0)
        self.note("enter", q)
        try:
            yield f"<{q}>"
        finally:
            await asyncio.sleep(0)
            self.note("exit", q)

    def generator(self, q):
        self.note("enter", q)
        try:
            yield f"<{q}>"
        finally:
            self.note("exit", q)

    async def async_generator(self, q):
        self.note("enter", q)
        try:
            yield f"<{q}>"
        finally:
            self.note("exit", q)


KINDS = ["plain", "later", "generator", "async_generator"]


def answer(q, fixture):
    return q + fixture


async def answer_later(q, fixture):
    await asyncio.sleep(0)
    return q + fixture


TASKS = [answer, answer_later]


def run(task, store, fixture, rows=ROWS, **options):
    options = {"concurrency": 1, "name": "x", **options}
    return evaluate(rows, task, [longer], store=store, fixture=fixture, progress=False, **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("task", TASKS)
def test_the_task_gets_the_value_of_the_context(store, kind, task):
    log = Log()
    experiment = run(task, store, getattr(log, kind))
    assert [row.outputs for row in experiment.rows()] == [f"q{n}<q{n}>" for n in range(4)]
    assert log.events == [(what, f"q{n}") for n in range(4) for what in ("enter", "exit")]
    assert experiment.summary()["longer"].n == 4
    assert list(experiment.errors()) == []


def test_aevaluate_takes_a_fixture(store):
    log = Log()
    experiment = asyncio.run(
        aevaluate(ROWS, answer_later, [longer], store=store, fixture=log.later, progress=False, name="x")
    )
    assert experiment.summary()["longer"].n == 4
    assert len(log.events) == 8


@pytest.mark.parametrize(
    ("inputs", "take", "expected"),
    [
        ({"q": 1, "r": 2}, lambda example: contextlib.nullcontext(example.id), "id"),
        ({"q": 1, "r": 2}, lambda q, r: contextlib.nullcontext(q + r), 3),
        ({"q": 1, "r": 2}, lambda inputs: contextlib.nullcontext(inputs), {"q": 1, "r": 2}),
        ({"q": 1, "r": 2}, lambda r, example: contextlib.nullcontext((r, example.id)), [2, "id"]),
        ({"q": 1, "r": 2}, lambda: contextlib.nullcontext(7), 7),
        ("text", lambda example: contextlib.nullcontext(example.inputs), "text"),
        ("text", lambda text: contextlib.nullcontext(text), "text"),
        ("text", lambda: contextlib.nullcontext(7), 7),
        ({"input": "prompt"}, lambda example: contextlib.nullcontext(example.id), "id"),
        ({"input": "prompt"}, lambda: contextlib.nullcontext(7), 7),
    ],
)
def test_the_function_gets_the_example_or_its_inputs_by_name(store, inputs, take, expected):
    row = Example(id="id", inputs=inputs)

    def task(inputs, fixture):
        return fixture

    experiment = evaluate([row], task, store=store, fixture=take, progress=False)
    (only,) = experiment.rows()
    assert (only.error, only.outputs) == (None, expected)


def test_a_task_need_not_take_the_value_and_an_input_of_this_name_wins(store):
    log = Log()
    assert run(lambda q: "abc", store, log.plain).summary()["longer"].passed == 1.0
    rows = [{"inputs": {"q": "q0", "fixture": "mine"}}]
    assert [row.outputs for row in run(answer, store, log.plain, rows).rows()] == ["q0mine"]


def test_without_a_fixture_the_parameter_is_an_input(store):
    with pytest.raises(TaskError, match="'fixture'"):
        evaluate(ROWS, answer, store=store, progress=False)


@pytest.mark.parametrize("value", [7, "text"])
def test_an_invalid_fixture_is_refused(store, value):
    with pytest.raises(ValueError, match="fixture must be a function that returns a context manager"):
        run(answer, store, value)


def test_a_fixture_needs_a_task_and_fitting_inputs(store):
    with pytest.raises(ValueError, match="fixture="):
        evaluate(ROWS, None, [longer], store=store, fixture=Log().plain, progress=False)
    with pytest.raises(TaskError, match=r"fixture .* needs 'other'"):
        run(lambda q: q, store, lambda other: contextlib.nullcontext())
    with pytest.raises(TypeError, match="fixture="):
        evaluate(ROWS, answer, store=store, setup=Log().plain)


@pytest.mark.parametrize("task", TASKS)
def test_what_is_no_context_manager_fails_the_run(store, task):
    experiment = run(task, store, lambda q: q)
    assert "fixture" in next(experiment.rows()).error
    assert "context manager" in next(experiment.rows()).error


@pytest.mark.parametrize(
    "error", [RuntimeError("no database"), SystemExit(3), GeneratorExit(), asyncio.CancelledError()]
)
@pytest.mark.parametrize("kind", ["plain", "later"])
@pytest.mark.parametrize("task", TASKS)
def test_a_failed_set_up_is_a_failed_run(store, kind, task, error):
    log = Log()
    log.fails, log.at = error, "enter"
    experiment = run(task, store, getattr(log, kind))
    assert experiment.summary().failed == 4
    assert experiment.record.status == "finished"
    assert type(error).__name__ in next(experiment.rows()).error
    assert not any(what == "exit" for what, _ in log.events)
    assert all(not failure.teardown for failure in experiment.errors())


@pytest.mark.parametrize("error", [RuntimeError("disk full"), SystemExit(3), GeneratorExit(), asyncio.CancelledError()])
@pytest.mark.parametrize("kind", ["plain", "later"])
@pytest.mark.parametrize("task", TASKS)
def test_a_failed_tear_down_is_reported_and_costs_no_score(store, kind, task, error):
    log = Log()
    log.fails = error
    experiment = run(task, store, getattr(log, kind))
    summary = experiment.summary()
    assert (summary.failed, summary["longer"].n, summary["longer"].mean) == (0, 4, 1.0)
    (remark,) = [remark for remark in summary.remarks if "tear-down" in remark]
    assert "4" in remark
    assert type(error).__name__ in remark
    failures = list(experiment.errors())
    assert [failure.example_id for failure in failures] == [f"e{n}" for n in range(4)]
    assert all(failure.teardown and type(error).__name__ in failure.error for failure in failures)
    assert str(failures[0]).startswith("the tear-down failed on example e0: ")
    assert "note" in failures[0].traceback
    assert [str(failure) for failure in Experiment.load(store, experiment.id).errors()] == list(map(str, failures))


@pytest.mark.parametrize("task", TASKS)
def test_a_failing_task_is_torn_down_and_both_errors_are_reported(store, task):
    log = Log()
    log.fails = RuntimeError("disk full")

    def broken(q):
        raise KeyError(q)

    async def broken_later(q):
        raise KeyError(q)

    experiment = run(broken if task is answer else broken_later, store, log.plain)
    assert [row.error for row in experiment.rows()] == [f"KeyError: 'q{n}'" for n in range(4)]
    assert [failure.teardown for failure in experiment.errors()] == [False, True] * 4


@pytest.mark.parametrize("kind", ["plain", "later"])
@pytest.mark.parametrize("task", TASKS)
def test_a_context_that_suppresses_the_error_does_not_hide_it(store, kind, task):
    @contextmanager
    def suppressing(q):
        with contextlib.suppress(ZeroDivisionError):
            yield

    @asynccontextmanager
    async def suppressing_later(q):
        with contextlib.suppress(ZeroDivisionError):
            yield

    def broken(q):
        return 1 / 0

    async def broken_later(q):
        return 1 / 0

    fixture = suppressing if kind == "plain" else suppressing_later
    experiment = run(broken if task is answer else broken_later, store, fixture)
    assert experiment.summary().failed == 4
    assert not any(failure.teardown for failure in experiment.errors())


@pytest.mark.parametrize("kind", ["plain", "later"])
@pytest.mark.parametrize("task", TASKS)
def test_the_tear_down_runs_after_a_timeout(store, kind, task):
    log = Log()

    def slow(q, fixture):
        time.sleep(1)

    async def slow_later(q, fixture):
        await asyncio.sleep(1)

    experiment = run(slow if task is answer else slow_later, store, getattr(log, kind), ROWS[:2], timeout=0.05)
    assert experiment.summary().failed == 2
    assert [what for what, _ in log.events] == ["enter", "exit"] * 2


@pytest.mark.parametrize("kind", ["plain", "later"])
def test_each_attempt_and_repetition_has_its_own_context(store, kind):
    log, calls = Log(), []
    log.fails = RuntimeError("disk full")

    def flaky(q, fixture):
        calls.append(q)
        if len(calls) % 2:
            raise ConnectionError
        return "abc"

    experiment = run(flaky, store, getattr(log, kind), ROWS[:2], repetitions=2, retries=1, retry_on=ConnectionError)
    assert len(calls) == 8
    assert [what for what, _ in log.events] == ["enter", "exit"] * 8
    assert sum(failure.teardown for failure in experiment.errors()) == 8
    assert experiment.summary()["longer"].n == 4


def test_set_up_is_not_part_of_the_run(store):
    @contextmanager
    def slow(q):
        time.sleep(0.05)
        yield
        time.sleep(0.05)

    assert run(lambda q: "abc", store, slow, ROWS[:1]).summary().p50_ms < 40


def test_evaluators_run_after_the_tear_down(store, tmp_path):
    @contextmanager
    def folder(example):
        path = tmp_path / example.id
        path.mkdir()
        yield path
        path.rmdir()

    @evaluator
    def gone(outputs):
        return not (tmp_path / outputs).exists()

    experiment = evaluate(ROWS, lambda q, fixture: fixture.name, [gone], store=store, fixture=folder, progress=False)
    assert experiment.summary()["gone"].mean == 1.0


def test_resume_runs_only_what_is_missing_and_notices_a_changed_fixture(store):
    log = Log()
    assert run(answer, store, log.plain, limit=2).summary().runs == 2
    assert run(answer, store, log.plain, resume=True).summary().runs == 4
    assert len(log.events) == 8

    @contextmanager
    def other(q):
        yield q

    with pytest.raises(CannotResume, match="fixture was 'plain' and is 'other'"):
        run(answer, store, other, resume=True)


def test_an_interrupted_async_task_is_torn_down(store):
    log = Log()

    async def main():
        began = asyncio.Event()

        async def slow(q, fixture):
            began.set()
            await asyncio.sleep(10)

        task = asyncio.create_task(
            aevaluate(ROWS, slow, store=store, fixture=log.later, concurrency=1, name="x", progress=False)
        )
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert log.events == [("enter", "q0"), ("exit", "q0")]
    assert store.experiment("x").status == "interrupted"


def test_an_async_context_is_entered_and_left_in_one_task(store):
    tasks = []

    @asynccontextmanager
    async def same(q):
        tasks.append(asyncio.current_task())
        async with asyncio.timeout(5):
            yield
        tasks.append(asyncio.current_task())

    experiment = run(lambda q: "abc", store, same, ROWS[:1])
    assert experiment.summary().failed == 0
    assert list(experiment.errors()) == []
    assert tasks[0] is tasks[1]


@pytest.mark.parametrize("task", TASKS)
def test_many_runs_at_a_time(store, task):
    log = Log()
    rows = [{"inputs": {"q": f"q{n}"}} for n in range(200)]
    experiment = run(task, store, log.later, rows, concurrency=8)
    assert experiment.summary()["longer"].n == 200
    assert len(log.events) == 400


def test_a_gate_counts_only_failed_runs(store):
    from spanwise.cli.quality_gate import collect_failures

    log = Log()
    log.fails = RuntimeError("disk full")

    def task(q):
        return {"q0": None}.get(q, "abc").upper()

    failures = collect_failures(run(task, store, log.plain))
    assert failures.times == {None: 1}
    assert [example for example, _ in failures.runs.values()] == ["e0"]
