"""`evaluate()`: a dataset, a task and evaluators become an experiment in a store."""

import asyncio
import contextvars
import gc
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from contextlib import closing
from dataclasses import dataclass

import pytest

from spanwise.collector.errors import NotFound, StoreError
from spanwise.collector.records import Document, Example
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import Experiment, aevaluate, evaluate, evaluator, get_evaluator
from spanwise.evaluators.experiments import TaskError
from spanwise.tracer import current_run, span, trace

QUESTIONS = [{"inputs": {"q": f"Q{n}"}, "reference_outputs": f"a q{n}"} for n in range(5)]


def answer(q):
    return f"a {q.lower()}"


def outputs_of(experiment):
    return [row.outputs for row in experiment.rows()]


def test_every_run_is_scored_and_stored_in_the_order_of_the_dataset(store):
    experiment = evaluate(QUESTIONS, answer, [get_evaluator("exact")], store=store, progress=False)
    rows = list(experiment.rows())
    assert [row.inputs["q"] for row in rows] == ["Q0", "Q1", "Q2", "Q3", "Q4"]
    assert [row.scores for row in rows] == [{"exact": 1.0}] * 5
    assert rows[0].reference_outputs == "a q0"
    assert store.experiment(experiment.id).status == "finished"


def test_the_summary_says_n_mean_passed_failed_and_skipped(store):
    @evaluator(key="odd", threshold=0.5)
    def odd(inputs):
        number = int(inputs["q"][1:])
        return None if number == 0 else number % 2 if number < 4 else 1 / 0

    summary = evaluate(QUESTIONS, answer, [odd], store=store, progress=False).summary()
    row = summary["odd"]
    assert (row.n, row.mean, row.passed, row.failed, row.skipped) == (
        3,
        pytest.approx(2 / 3),
        pytest.approx(2 / 3),
        1,
        1,
    )
    assert "│ odd │ 3 │ 0.6667 │ [0.208, 0.939] │  66.7% │      1 │       1 │" in str(summary)


def test_an_async_task_runs_concurrently_on_one_loop(store):
    running, most = 0, 0

    async def slow(q):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return answer(q)

    experiment = evaluate(QUESTIONS, slow, [get_evaluator("exact")], store=store, concurrency=3, progress=False)
    assert (experiment.summary()["exact"].mean, most) == (1.0, 3)


def test_plain_tasks_run_in_as_many_threads_as_allowed(store):
    together = threading.Barrier(5, timeout=60)

    def task(q):
        together.wait()
        return threading.get_ident()

    experiment = evaluate(QUESTIONS, task, store=store, concurrency=5, progress=False)
    assert len(set(outputs_of(experiment))) == 5


def test_tasks_that_wait_a_little_are_run_together(store):
    running, most, lock = 0, 0, threading.Lock()

    def task(q):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.003)
        with lock:
            running -= 1

    evaluate(({"q": n} for n in range(200)), task, store=store, concurrency=6, progress=False)
    assert most == 6


def test_the_context_of_the_caller_is_kept(store):
    setting = contextvars.ContextVar("setting")
    setting.set("here")
    assert outputs_of(evaluate(QUESTIONS[:1], lambda q: setting.get(), store=store, progress=False)) == ["here"]


@pytest.mark.parametrize(
    ("inputs", "task"),
    [
        ({"q": "x"}, lambda q: q),
        ({"q": "x", "unused": 1}, lambda q: q),
        ({"q": "x"}, lambda inputs: inputs["q"]),
        ({"q": "x"}, lambda **kw: kw["q"]),
        ("x", lambda text: text),
        ({"input": "x"}, lambda prompt: prompt),
        ({"q": "x"}, lambda q, example: example.inputs["q"]),
    ],
)
def test_how_a_task_is_called(store, inputs, task):
    assert outputs_of(evaluate([{"inputs": inputs}], task, store=store, progress=False)) == ["x"]


def test_a_task_that_does_not_fit_is_told_before_anything_runs(store):
    with pytest.raises(TaskError, match=r"needs 'query', but the example's inputs are \['q'\]"):
        evaluate(QUESTIONS, lambda query: query, store=store, progress=False)
    assert store.experiments() == []


def test_a_failing_task_is_an_error_and_its_evaluators_skip(store):
    def task(q):
        if q == "Q1":
            raise ValueError("no idea")
        return answer(q)

    experiment = evaluate(QUESTIONS, task, [get_evaluator("exact")], store=store, progress=False)
    row = experiment.summary()["exact"]
    assert (row.n, row.failed, row.skipped, experiment.summary().failed) == (4, 0, 1, 1)
    (failure,) = experiment.errors()
    assert failure.error == "ValueError: no idea"
    assert 'raise ValueError("no idea")' in failure.traceback


def test_the_traceback_of_an_evaluator_is_one_call_away(store):
    def bad(outputs):
        raise KeyError("missing")

    (failure,) = evaluate(QUESTIONS[:1], answer, [bad], store=store, progress=False).errors()
    assert (failure.key, failure.error) == ("bad", "KeyError: 'missing'")
    assert "raise KeyError" in str(failure)


def test_async_and_plain_evaluators_see_the_same_case(store):
    seen = []

    async def later(inputs, outputs, reference_outputs):
        seen.append((inputs, outputs, reference_outputs))
        return True

    def here(inputs, outputs, reference_outputs):
        seen.append((inputs, outputs, reference_outputs))
        return True

    evaluate(QUESTIONS[:1], answer, [later, here], store=store, progress=False)
    assert seen == [({"q": "Q0"}, "a q0", "a q0")] * 2


def test_retrieved_documents_reach_the_evaluators(store):
    @trace(kind="retriever")
    def search(q):
        return [{"content": "one", "id": "1"}]

    def task(q):
        search(q)
        return "x"

    data = [Example(inputs={"q": "Q"}, expected_documents=(Document("one", "1"),))]
    experiment = evaluate(data, task, [get_evaluator("document_recall")], store=store, progress=False)
    assert experiment.summary()["document_recall"].mean == 1.0


def test_spans_of_threads_belong_to_their_run(store):
    def task(q):
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(inner,))
        thread.start()
        return "x"

    def inner():
        with span("inner"):
            time.sleep(0.05)

    (row,) = evaluate(QUESTIONS[:1], task, store=store, progress=False).rows()
    assert {run.name for run in row.trace.runs} == {"task", "inner"}


def test_spans_of_background_tasks_belong_to_their_run(store):
    async def task(q):
        asyncio.get_running_loop().create_task(inner())
        return "x"

    async def inner():
        with span("inner"):
            await asyncio.sleep(0.05)

    rows = evaluate(QUESTIONS[:2], task, store=store, progress=False, span_wait=60).rows()
    assert [sorted(run.name for run in row.trace.runs) for row in rows] == [["inner", "task"]] * 2


def test_spans_that_stay_open_are_said(store):
    begun, release = threading.Event(), threading.Event()

    def task(q):
        threading.Thread(target=contextvars.copy_context().run, args=(inner,)).start()
        begun.wait(60)
        return "x"

    def inner():
        with span("inner"):
            begun.set()
            release.wait(60)

    summary = evaluate(QUESTIONS[:1], task, store=store, span_wait=0.01, progress=False).summary()
    release.set()
    assert summary.open_spans == 1
    assert "still open" in str(summary)


def test_evaluators_see_large_outputs_whole_and_objects_as_plain_values(store):
    @dataclass
    class Found:
        texts: list[str]

    seen = []

    def look(outputs):
        seen.append(outputs)
        return True

    evaluate(QUESTIONS[:1], lambda q: Found(["x" * 1000] * 3000), [look], store=store, progress=False)
    assert seen == [{"texts": ["x" * 1000] * 3000}]


def test_feedback_that_a_task_gives_its_own_run_is_stored(store):
    def task(q):
        current_run().feedback("length", len(q))
        return "x"

    experiment = evaluate(QUESTIONS, task, store=store, progress=False)
    assert experiment.summary()["length"].mean == 2.0
    assert next(experiment.rows()).scores == {"length": 2.0}


def test_what_a_span_says_beside_its_run_is_kept_with_it(store):
    def task(q):
        current_run().set_attribute("annotations.0.annotation.name", "polite")
        current_run().set_attribute("annotations.0.annotation.score", 0.0)
        return q

    evaluate(QUESTIONS, task, store=store, progress=False)
    said = list(store.feedbacks(key="polite"))
    assert [one.score for one in said] == [0.0] * len(QUESTIONS)
    assert {one.target.span_id for one in said} == {store.trace(one.target.trace_id or "").root.span_id for one in said}


def test_a_timeout_fails_the_run_of_a_thread(store):
    release = threading.Event()
    experiment = evaluate(QUESTIONS[:1], lambda q: release.wait(60), store=store, timeout=0.02, progress=False)
    release.set()
    assert next(experiment.rows()).error == "TimeoutError: the task took more than 0.02 s"


def test_a_timeout_fails_the_run_of_an_async_task(store):
    async def task(q):
        await asyncio.sleep(60)

    experiment = evaluate(QUESTIONS[:1], task, store=store, timeout=0.02, progress=False)
    assert next(experiment.rows()).error == "TimeoutError: the task took more than 0.02 s"


def test_a_timeout_holds_for_what_a_plain_task_returns_to_be_awaited(store):
    experiment = evaluate(QUESTIONS[:1], lambda q: asyncio.sleep(60), store=store, timeout=0.02, progress=False)
    assert next(experiment.rows()).error == "TimeoutError: the task took more than 0.02 s"


def test_a_task_that_cancels_itself_costs_no_other_run(store):
    async def task(q):
        if q == "Q1":
            raise asyncio.CancelledError
        return answer(q)

    async def judge(outputs):
        if outputs == "a q2":
            raise asyncio.CancelledError
        return True

    summary = evaluate(QUESTIONS, task, [judge], store=store, concurrency=1, progress=False).summary()
    row = summary["judge"]
    assert (summary.runs, summary.failed, row.n, row.failed, row.skipped) == (5, 1, 3, 1, 1)


def test_a_task_that_exits_is_a_failed_run(store):
    experiment = evaluate(QUESTIONS[:1], lambda q: exit(3), store=store, progress=False)
    assert next(experiment.rows()).error == "SystemExit: 3"


@pytest.mark.process
def test_async_tasks_over_more_examples_than_are_read_ahead(store):
    async def task(q):
        return q

    data = ({"q": f"Q{n}"} for n in range(2500))
    experiment = evaluate(data, task, store=store, concurrency=30, progress=False)
    assert [row.outputs for row in experiment.rows()] == [f"Q{n}" for n in range(2500)]


@pytest.mark.process
def test_retries_keep_the_attempt_that_worked(store):
    attempts = []

    def task(q):
        attempts.append(q)
        if len(attempts) < 2:
            raise ConnectionError
        return "x"

    experiment = evaluate(QUESTIONS[:1], task, store=store, retries=1, progress=False)
    assert (len(attempts), experiment.summary().failed, outputs_of(experiment)) == (2, 0, ["x"])


def test_a_generator_of_texts_is_one_text(store):
    def task(q):
        yield "a "
        yield q.lower()

    assert (
        evaluate(QUESTIONS, task, [get_evaluator("exact")], store=store, progress=False).summary()["exact"].mean == 1.0
    )


def test_batch_evaluators_get_many_cases_at_once(store):
    sizes = []

    class Model:
        def __call__(self, outputs):
            raise AssertionError("batch is there")

        def batch(self, cases):
            sizes.append(len(cases))
            return [ValueError("bad one") if case.inputs["q"] == "Q3" else len(case.outputs) for case in cases]

    data = [{"inputs": {"q": f"Q{n}"}} for n in range(100)]
    summary = evaluate(data, answer, [Model()], store=store, batch_size=10, progress=False).summary()
    assert (summary["Model"].n, summary["Model"].failed) == (99, 1)
    assert max(sizes) == 10
    assert len(sizes) < 30


def test_summary_evaluators_judge_all_runs_at_once(store):
    def accuracy(outputs, reference_outputs):
        return sum(a == b for a, b in zip(outputs, reference_outputs, strict=True)) / len(outputs)

    whole = evaluator(key="accuracy", summary=True)(accuracy)
    experiment = evaluate(QUESTIONS, answer, summary_evaluators=[whole], store=store, progress=False)
    assert experiment.summary().overall["accuracy"].score == 1.0
    assert "accuracy (all)" in str(experiment)
    assert Experiment.load(store, experiment.id).summary().overall == experiment.summary().overall


def test_from_async_code_and_within_a_running_loop(store):
    async def main():
        inside = await aevaluate(QUESTIONS, answer, [get_evaluator("exact")], store=store, progress=False)
        nested = evaluate(QUESTIONS, answer, [get_evaluator("exact")], store=store, progress=False)
        return inside.summary()["exact"].mean, nested.summary()["exact"].mean

    assert asyncio.run(main()) == (1.0, 1.0)


def test_a_bad_row_stops_everything_but_keeps_what_is_done(store):
    def rows():
        yield from QUESTIONS
        yield 5

    with pytest.raises(ValueError, match="example 6 is 5"):
        evaluate(rows(), answer, store=store, progress=False)
    (record,) = store.experiments()
    assert (record.status, record.metadata["totals"]["runs"]) == ("interrupted", 5)


def test_two_evaluators_with_one_key_are_refused(store):
    with pytest.raises(ValueError, match="two evaluators have the key 'exact'"):
        evaluate(QUESTIONS, answer, [get_evaluator("exact"), get_evaluator("exact")], store=store, progress=False)


def test_what_an_experiment_was_made_with_is_recorded(store):
    experiment = evaluate(
        QUESTIONS, answer, [get_evaluator("exact")], store=store, metadata={"k": 3}, seed=1, progress=False
    )
    record = store.experiment(experiment.id)
    assert record.metadata["k"] == 3
    assert {"task", "task_code", "seed", "python", "spanwise", "dataset", "dataset_version"} <= record.metadata[
        "setup"
    ].keys()
    assert record.metadata["totals"]["runs"] == 5
    assert record.example_count == 5
    assert [one["key"] for one in record.evaluators] == ["exact"]


def test_models_tokens_and_cost_are_summed(store):
    @trace(kind="llm")
    def ask(q):
        current_run().set_model("tiny")
        current_run().set_usage(input_tokens=10, output_tokens=2, cost=0.5)
        return "x"

    experiment = evaluate(QUESTIONS, lambda q: ask(q), store=store, progress=False)
    totals = store.experiment(experiment.id).metadata["totals"]
    assert (totals["models"], totals["input_tokens"], totals["output_tokens"], totals["cost"]) == (
        ["tiny"],
        50,
        10,
        2.5,
    )
    assert "60 tokens · $2.5000 · tiny" in str(experiment)


def test_an_experiment_prints_in_terminals_and_notebooks(store):
    experiment = evaluate(QUESTIONS, answer, [get_evaluator("exact")], store=store, name="<b>", progress=False)
    assert "│ exact ↑ │ 5 │    1 │" in str(experiment)
    assert "<td>exact ↑</td>" in experiment.to_html()
    assert "&lt;b&gt;" in experiment._repr_html_()
    assert list(experiment.to_pandas()["exact"]) == [1.0] * 5


def test_the_table_says_why_something_failed(store):
    def task(q):
        return 1 / 0 if q == "Q1" else q

    experiment = evaluate(QUESTIONS, task, [evaluator(key="e")(lambda outputs: outputs[9])], store=store)
    lines = str(experiment).splitlines()
    assert "the task failed, for example: ZeroDivisionError: division by zero" in lines
    assert "e failed, for example: IndexError: string index out of range" in lines
    assert str(type(experiment).load(store, experiment.id)).splitlines()[-3:] == lines[-3:]


def test_the_table_says_what_an_evaluator_lacked_that_scored_nothing(store):
    given = [Example(inputs={"q": f"Q{n}"}, outputs={"a": "A"}) for n in range(2)]
    experiment = evaluate(given, lambda q: q, ["exact", "not_empty"], store=store, progress=False)
    assert " ".join(str(experiment).split()).endswith(
        "exact skipped every run: needs reference_outputs; the example has outputs but no reference: if its outputs are the "
        "reference, read them with columns={'outputs': 'reference_outputs'}"
    )


def test_votes_of_several_people_all_count(store):
    experiment = evaluate(QUESTIONS[:2], answer, ["exact"], store=store, progress=False)
    first, second = (row.trace.trace_id for row in experiment.rows())
    for trace_id, author, vote in [(first, "ann", 0), (first, "bob", 0), (first, "ann", 1), (second, "ann", 1)]:
        store.feedback(trace_id, "good", vote, author=author)
    good = Experiment.load(store, experiment.id).summary()["good"]
    assert (good.n, good.mean) == (3, pytest.approx(2 / 3))


def frames_of(error):
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize("arguments", [(QUESTIONS, answer, ["exactt"]), ("parcls.jsonl", answer), ([], answer)])
def test_a_mistake_is_not_told_through_our_insides(store, arguments):
    with pytest.raises((ValueError, OSError, StoreError)) as told:
        evaluate(*arguments, store=store)
    ours = [name for name in frames_of(told.value) if name != __file__]
    assert [name.rpartition("/")[2] for name in ours] == [
        "experiment_plan.py",
        "experiment_runner.py",
        "sync_bridge.py",
    ]
    assert told.value.__suppress_context__


def test_what_a_users_own_generator_raises_shows_where(store):
    def rows():
        yield QUESTIONS[0]
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more") as told:
        evaluate(rows(), answer, store=store)
    assert frames_of(told.value)[-1] == __file__


def test_one_evaluator_by_its_id_needs_no_list(store):
    assert list(evaluate(QUESTIONS, answer, "exact", store=store).summary()) == ["exact"]


def test_a_split_without_examples_is_named(store):
    with pytest.raises(NotFound, match="no examples in split 'hard'"):
        evaluate(QUESTIONS, answer, split="hard", store=store)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"limit": 0}, "limit must be an integer >= 1, got 0"),
        ({"repetitions": 1.5}, "repetitions must be an integer >= 1, got 1.5"),
        ({"retries": -1}, r"retries must be an integer >= 0, got -1"),
        ({"timeout": 0}, "timeout must be a number of seconds > 0, or None for no limit, got 0"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(store, setting, said):
    with pytest.raises(ValueError, match=said):
        evaluate(QUESTIONS, answer, store=store, progress=False, **setting)


def test_a_set_level_evaluator_that_fails_is_among_the_errors(store):
    @evaluator(key="whole", summary=True)
    def whole(outputs):
        raise LookupError("nothing there")

    experiment = evaluate(QUESTIONS, answer, summary_evaluators=[whole], store=store, progress=False)
    (failure,) = experiment.errors()
    assert str(failure).startswith("evaluator 'whole' failed on the whole set: LookupError: nothing there\nTraceback")
    assert "whole failed, for example: LookupError: nothing there" in str(experiment)


def test_metadata_that_json_does_not_have_are_kept_as_texts(store):
    experiment = evaluate(QUESTIONS, answer, metadata={"module": time, "k": 3}, store=store, progress=False)
    assert store.experiment(experiment.id).metadata["k"] == 3
    assert store.experiment(experiment.id).metadata["module"].startswith("<module 'time'")


@pytest.mark.process
def test_no_object_of_the_caller_is_hidden_from_garbage_collection(store):
    before, seen = gc.get_freeze_count(), []
    watching = evaluator(key="seen")(lambda outputs: not seen.append(gc.get_freeze_count()))
    evaluate(QUESTIONS, answer, [watching], store=store, progress=False)
    assert {*seen, gc.get_freeze_count()} == {before}


def free(path):
    """Whether another process may write the file, and what is in it without its write-ahead log."""
    with SQLiteStore(path) as held:
        count = held.count()["traces"]
    log = path.with_name(path.name + "-wal")
    return count, log.exists() and log.stat().st_size > 0


def test_a_file_that_evaluate_opened_is_free_when_the_experiment_is_done(tmp_path):
    path = tmp_path / "x.db"
    experiment = evaluate(QUESTIONS, answer, ["exact"], store=path, progress=False)
    assert free(path) == (5, False)
    assert outputs_of(experiment) == [f"a q{n}" for n in range(5)]  # opened again for this
    assert experiment.summary()["exact"].mean == 1.0
    assert free(path) == (5, False)
    more = experiment.evaluate(["exact"], progress=False)
    assert more.id == experiment.id
    assert free(path) == (5, False)


def test_a_file_that_evaluate_opened_is_free_when_it_raises(tmp_path):
    path = tmp_path / "x.db"
    with pytest.raises(ValueError, match="reference"):
        evaluate([{"reference_outputs": 1}, 5], answer, ["exact"], store=path, progress=False)
    with pytest.raises(ZeroDivisionError):
        evaluate(QUESTIONS, lambda q: 1 / 0, [], store=path, progress=False, raise_errors=True)
    with SQLiteStore(path):
        pass


@pytest.mark.process
def test_a_file_that_a_script_left_open_is_whole_when_the_script_has_ended(tmp_path):
    script = "from spanwise.collector import connect\nfrom collector.making import run\nconnect('x.db').append([run()])"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, check=True)
    shutil.copy(tmp_path / "x.db", tmp_path / "copy.db")
    with closing(sqlite3.connect(tmp_path / "copy.db")) as db:
        assert db.execute("SELECT count(*) FROM traces").fetchone() == (1,)
