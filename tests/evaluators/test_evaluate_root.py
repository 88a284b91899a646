"""A traced task's own span is the root of its run, so that evaluators of agents say the same here and in production."""

import asyncio
import functools
import inspect
import threading
import time

import pytest

from spanwise.collector.dialects import read_sdk_span
from spanwise.collector.records import Trace
from spanwise.evaluators import Experiment, compare, evaluate, get_evaluator, score
from spanwise.tracer import configuration, current_run, process_runtime, span, trace
from spanwise.tracer.testing import capture_spans
from spanwise.tracer.trace_capture import is_traced

DATA = [{"inputs": {"q": "Why?"}}]
JUDGES = [
    get_evaluator("trajectory_match", expected=["search", "send"]),
    get_evaluator("trajectory_match", expected=["agent", "search", "send"], key="with_root"),
    get_evaluator("step_limit", limit=2, kinds=None),
    get_evaluator("step_limit", limit=1, kinds=None, key="one_step"),
    get_evaluator("tool_calls", expected=[{"name": "send", "arguments": {"to": "ann"}}], match="strict"),
    get_evaluator("has_span", kind="agent", at_most=1),
    get_evaluator("has_span", name="agent", inputs={"q": "Why?"}, at_most=1, key="asked"),
    get_evaluator("agent_sanity"),
]


@trace(kind="retriever")
def search(q):
    return ["Because."]


@trace(kind="tool")
def send(to):
    return {"artifacts": [{"path": "a.json", "content": "[1]"}]}


@trace(kind="agent", name="agent")
def plain(q):
    search(q)
    return send("ann")


@trace(kind="agent", name="agent")
async def later(q):
    search(q)
    await asyncio.sleep(0)
    return send("ann")


@trace(kind="agent", name="agent")
def streaming(q):
    search(q)
    yield {"path": "b.txt", "content": "not empty"}
    yield from send("ann")["artifacts"]


@trace(kind="agent", name="agent")
async def streaming_later(q):
    search(q)
    yield send("ann")["artifacts"][0]


@trace(kind="agent", name="agent")
def in_threads(q):
    for call in (lambda: search(q), lambda: send("ann")):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()


@trace(kind="agent", name="agent")
def failing(q):
    search(q)
    raise LookupError("nothing there")


@trace(kind="agent", name="agent")
def failing_stream(q):
    yield "one"
    raise LookupError("nothing there")


class Agent:
    @trace(kind="agent", name="agent")
    def method(self, q):
        search(q)
        return send("ann")

    @staticmethod
    @trace(kind="agent", name="agent")
    def static(q):
        return send("ann")

    @trace(kind="agent", name="agent")
    def __call__(self, q):
        return send("ann")


async def drained(stream):
    return [piece async for piece in stream]


def live(task):
    """The trace of one call, as it would leave for the collector."""
    with capture_spans() as spans:
        try:
            called = task(q="Why?")
            if inspect.iscoroutine(called):
                asyncio.run(called)
            elif inspect.isasyncgen(called):
                asyncio.run(drained(called))
            elif inspect.isgenerator(called):
                list(called)
        except LookupError:
            pass
        runs = tuple(map(read_sdk_span, spans.spans))
    return Trace(next(run for run in runs if run.parent_id is None), runs, complete=True)


def verdicts(feedback):
    return {one.key: (one.outcome, one.score, one.comment) for one in feedback}


TASKS = [plain, later, streaming, streaming_later, in_threads, failing, failing_stream]
TASKS += [Agent().method, Agent.static, Agent(), functools.partial(plain)]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: getattr(task, "__name__", type(task).__name__))
def test_evaluators_of_agents_say_the_same_offline_and_online(store, task):
    (row,) = evaluate(DATA, task, JUDGES, store=store, progress=False).rows()
    trace = live(task)
    assert verdicts(row.trace.feedback) == verdicts(one for judge in JUDGES for one in score(judge, trace))
    shape = [(run.name, run.kind, run.status, run.parent_id is None) for run in trace.runs]
    assert [(run.name, run.kind, run.status, run.parent_id is None) for run in row.trace.runs] == shape


def test_the_stored_trace_is_complete_and_knows_its_example(store):
    experiment = evaluate(DATA, plain, JUDGES[:1], store=store, progress=False)
    (summary,) = store.traces(experiment=experiment.id)
    stored = store.trace(summary.trace_id)
    assert (stored.complete, summary.name, summary.span_count, summary.status) == (True, "agent", 3, "ok")
    assert (stored.root.experiment_id, stored.root.example_id) == (experiment.id, next(experiment.rows()).example.id)
    assert [run.parent_id for run in stored.runs] == [None, stored.root.span_id, stored.root.span_id]


def test_spans_that_end_after_the_task_are_waited_for_and_counted(store):
    begun = threading.Event()

    @trace(name="agent")
    def task(q):
        threading.Thread(target=slow).start()
        begun.wait(60)
        return "x"

    def slow():
        with span("slow"):
            begun.set()
            time.sleep(0.05)

    (row,) = evaluate(DATA, task, store=store, progress=False, span_wait=60).rows()
    assert ([run.name for run in row.trace.runs], row.trace.complete) == (["agent", "slow"], True)


def test_a_span_that_stays_open_leaves_the_trace_incomplete(store):
    begun, release = threading.Event(), threading.Event()

    @trace(name="agent")
    def task(q):
        threading.Thread(target=waiting).start()
        begun.wait(60)
        return "x"

    def waiting():
        with span("waiting"):
            begun.set()
            release.wait(60)

    (row,) = evaluate(DATA, task, store=store, progress=False, span_wait=0.01).rows()
    release.set()
    assert ([run.name for run in row.trace.runs], row.trace.complete) == (["agent"], False)


def test_further_evaluators_resume_and_compare_see_the_same_root(store):
    first = evaluate(DATA, plain, JUDGES[:1], name="a", store=store, progress=False)
    before = [row.trace.trace_id for row in first.rows()]
    further = first.evaluate(JUDGES[2:3])
    resumed = evaluate(DATA, plain, JUDGES[:4], name="a", resume=True, store=store, progress=False)
    assert [row.trace.trace_id for row in resumed.rows()] == before
    assert [row.trace.root.kind for row in further.rows()] == ["agent"]
    assert further.summary()["step_limit"].mean == resumed.summary()["step_limit"].mean == 1.0


def test_experiments_over_traced_tasks_compare(store):
    first = evaluate(DATA, plain, JUDGES[:1], store=store, progress=False)
    second = evaluate(DATA, failing, JUDGES[:1], store=store, progress=False)
    changes = {change.key: (change.before, change.after) for change in compare(first, second).changes()}
    assert changes == {"task_ok": (1.0, 0.0), "trajectory_match": (1.0, 0.0)}


def test_feedback_that_the_task_gives_hangs_on_its_span(store):
    @trace
    def task(q):
        current_run().feedback("length", 3)
        return "x"

    (row,) = evaluate(DATA, task, store=store, progress=False).rows()
    (feedback,) = row.trace.feedback
    assert (feedback.target.span_id, row.scores) == (row.trace.root.span_id, {"length": 3.0})


def test_feedback_of_a_wrapper_that_keeps_the_mark_is_not_lost(store):
    @functools.wraps(plain)
    def task(q):
        current_run().feedback("wrapped", True)
        return plain(q)

    (row,) = evaluate(DATA, task, store=store, progress=False).rows()
    assert (row.trace.root.name, row.scores) == ("agent", {"wrapped": True})
    assert row.trace.feedback[0].target.span_id == row.trace.root.span_id


@pytest.mark.parametrize("times", [0, 2])
def test_a_wrapper_that_calls_the_task_another_number_of_times_keeps_the_root_around_it(store, times):
    @functools.wraps(plain)
    def task(q):
        for _ in range(times):
            plain(q)
        return "x"

    (row,) = evaluate(DATA, task, store=store, progress=False).rows()
    steps = [run.name for run in row.trace.runs if run.parent_id == row.trace.root.span_id]
    assert (row.trace.root.kind, steps, row.trace.complete) == ("chain", ["agent"] * times, True)


def test_a_wrapper_that_answers_for_a_task_that_failed_has_not_failed(store):
    @functools.wraps(failing)
    def task(q):
        try:
            return failing(q)
        except LookupError:
            return "sorry"

    (row,) = evaluate(DATA, task, [lambda outputs: outputs == "sorry"], store=store, progress=False).rows()
    assert (row.error, row.outputs, [one.score for one in row.trace.feedback]) == (None, "sorry", [True])


def test_what_a_wrapper_makes_of_the_answer_is_the_answer(store):
    @trace
    def whole(q):
        return {"answer": "A", "tokens": 3}

    @functools.wraps(whole)
    def task(q):
        return whole(q)["answer"]

    [row] = evaluate(DATA, task, store=store, progress=False).rows()
    assert (row.outputs, [run.name for run in row.trace.runs]) == ("A", ["whole", "whole"])


def test_a_task_that_is_not_traced_is_the_root_of_what_it_calls(store):
    (row,) = evaluate(DATA, lambda q: plain(q), store=store, progress=False).rows()
    assert [run.kind for run in row.trace.runs] == ["chain", "agent", "retriever", "tool"]


def test_a_task_that_takes_too_long_keeps_the_root_around_it(store):
    release = threading.Event()

    @trace(name="agent")
    def task(q):
        with span("inside"):
            release.wait(60)

    (row,) = evaluate(DATA, task, store=store, timeout=0.02, progress=False).rows()
    release.set()
    assert (row.trace.root.status, row.error) == ("error", "TimeoutError: the task took more than 0.02 s")


def test_a_run_that_failed_after_its_span_ended_well_is_a_failure(store):
    class Refuses:
        def __await__(self):
            raise OSError("gone")
            yield

    (row,) = evaluate(DATA, trace(lambda q: Refuses()), store=store, progress=False).rows()
    assert (row.error, row.trace.root.status, len(row.trace.runs)) == ("OSError: gone", "error", 2)


def test_the_failure_of_a_traced_task_shows_where_it_was_raised(store):
    (failure,) = evaluate(DATA, failing, store=store, progress=False).errors()
    assert 'raise LookupError("nothing there")' in failure.traceback


@pytest.mark.process
def test_retries_keep_the_root_of_the_attempt_that_worked(store):
    calls = []

    @trace(kind="agent", name="agent")
    def task(q):
        calls.append(q)
        if len(calls) < 2:
            raise ConnectionError
        return "x"

    (row,) = evaluate(DATA, task, JUDGES[2:3], store=store, retries=1, progress=False).rows()
    assert [(run.kind, run.status) for run in row.trace.runs] == [("agent", "error"), ("agent", "ok")]
    assert (row.trace.root.status, row.trace.root.outputs) == ("ok", "x")
    assert (len(calls), row.scores) == (2, {"step_limit": True})


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (trace(lambda q: current_run().set_outputs("said") or "returned"), "said"),
        (trace(capture_outputs=False)(lambda q: "returned"), "returned"),
        (trace(lambda q: (piece for piece in ("a ", "b"))), "a b"),
        (streaming_later, [{"path": "a.json", "content": "[1]"}]),
    ],
)
def test_outputs_are_those_of_the_tasks_span_or_what_came_of_it(store, task, expected):
    seen = []
    experiment = evaluate(DATA, task, [lambda outputs: not seen.append(outputs)], store=store, progress=False)
    again = experiment.evaluate([get_evaluator("exact", key="again")])
    assert (seen, [row.outputs for row in again.rows()]) == ([expected], [expected])


def test_large_outputs_of_a_traced_task_are_seen_whole(store):
    seen = []
    task = trace(lambda q: ["x" * 1000] * 3000)
    evaluate(DATA, task, [lambda outputs: not seen.append(len(outputs))], store=store, progress=False)
    assert seen == [3000]


def test_rows_show_the_examples_inputs_whatever_the_task_calls_them(store):
    @trace
    def task(inputs):
        return inputs["q"]

    stored = evaluate(DATA, task, store=store, progress=False)
    streamed = evaluate((row for row in DATA), task, store=store, progress=False)
    for experiment in (stored, Experiment.load(store, streamed.id)):
        (row,) = experiment.rows()
        assert (row.inputs, row.example.inputs) == ({"q": "Why?"}, {"q": "Why?"})
        assert row.trace.root.inputs == {"inputs": {"q": "Why?"}}


def test_examples_that_runs_carry_are_redacted_as_their_inputs(store):
    previous = process_runtime.replace_runtime(
        process_runtime.Runtime(configuration.resolve_settings(redact=["ssn"], spill_dir="off"))
    )
    try:
        data = ({"inputs": {"q": q, "ssn": "123"}} for q in "a")
        (row,) = evaluate(data, trace(lambda inputs: "x"), store=store, progress=False).rows()
    finally:
        process_runtime.replace_runtime(previous)
    assert row.inputs == {"q": "a", "ssn": "[redacted]"}
    assert "123" not in repr(row)


def test_traced_callables_are_known_and_others_are_not():
    assert all(map(is_traced, [*TASKS, trace(Agent.static), functools.partial(functools.partial(plain), q=1)]))
    cached = functools.cache(plain)
    assert is_traced(cached)
    assert not any(map(is_traced, [len, print, Agent, Agent.drained if hasattr(Agent, "drained") else drained, time]))
