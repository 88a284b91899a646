"""An experiment that stops before its end: what ran is stored, it says why, and it can be gone on with."""

import asyncio
import threading
import time

import pytest

from spanwise.collector.errors import NotFound
from spanwise.evaluators import Experiment, datasets, evaluate, evaluator, get_evaluator
from spanwise.evaluators.experiments import resume_command
from spanwise.tracer import current_run, trace

DATA = [{"inputs": {"q": n}, "reference_outputs": n} for n in range(200)]


def fails(q):
    if q % 2:
        raise LookupError(f"no {q}")
    return q


async def fails_later(q):
    await asyncio.sleep(0)
    return fails(q)


def costs(q, usd=0.25):
    with_model(usd)
    return q


@trace(kind="llm")
def with_model(usd):
    current_run().set_model("our-own")
    current_run().set_usage(input_tokens=1, output_tokens=1, cost=usd)


def ran(store, task, **settings):
    return evaluate(
        DATA, task, ["exact"], **{"name": "x", "concurrency": 4, "store": store, "progress": False, **settings}
    )


@pytest.mark.parametrize("task", [fails, fails_later])
@pytest.mark.parametrize(
    ("settings", "failures"),
    [({"fail_fast": True}, 1), ({"max_failures": 3}, 3), ({"max_failures": 0.05}, 10), ({"max_failures": 1.0}, 101)],
)
def test_too_many_failures_end_it(store, task, settings, failures):
    summary = ran(store, task, **settings).summary()
    if failures > 100:
        assert (summary.runs, summary.failed, summary.remarks) == (200, 100, ())
    else:
        assert failures <= summary.failed <= failures + 4
        assert summary.runs <= 2 * failures + 8
        ((name, value),) = settings.items()
        told = "fail_fast" if value is True else f"{name}={value!r}"
        assert any(line.startswith("stopped: ") and line.endswith(f"({told})") for line in summary.remarks)


def test_what_ran_is_stored_and_it_goes_on_where_it_stopped(store, capfd):
    resume_command.set(None)  # as if no command had run in this process
    stopped = ran(store, fails, max_failures=2)
    assert (stopped.record.status, store.experiment("x").status) == ("interrupted", "interrupted")
    assert f"continue with evaluate(…, resume='{stopped.id[:8]}')" in capfd.readouterr().err
    loaded = Experiment.load(store, stopped.id)
    assert "x on " in str(loaded)
    assert ", interrupted" in str(loaded)
    assert "stopped: " in str(loaded)
    assert len(list(loaded.rows())) == stopped.summary().runs
    resumed = ran(store, fails, resume=True)
    assert (resumed.id, resumed.summary().runs, resumed.record.status) == (stopped.id, 200, "finished")
    assert "stopped" not in str(resumed)
    assert "stopped" not in str(Experiment.load(store, stopped.id))


def test_tasks_that_run_are_let_finish(store):
    failed = threading.Event()

    def task(q):
        if q == 0:
            failed.set()
            raise LookupError
        failed.wait(60)
        time.sleep(0.01)
        return q

    summary = ran(store, task, fail_fast=True).summary()
    assert (summary.failed, summary["exact"].n) == (1, summary.runs - 1)
    assert summary.runs <= 5


def test_a_set_of_which_a_part_ran_is_not_judged(store):
    whole = evaluator(key="whole", summary=True)(lambda outputs: len(outputs))
    assert ran(store, fails, fail_fast=True, summary_evaluators=[whole]).summary().overall == {}


def test_a_budget_is_kept_to_the_runs_that_had_begun(store):
    summary = ran(store, costs, max_usd=2.0).summary()
    assert 2.0 <= summary.cost <= 2.0 + 4 * 0.25
    (said,) = summary.remarks
    assert said.startswith("stopped: ")
    assert said.endswith("(max_usd=2.0)")
    assert "runs have cost $2." in said


def test_failed_attempts_count_against_the_budget(store):
    class Busy(Exception):
        retry_after = 0

    def task(q):
        with_model(1.0)
        raise Busy

    summary = evaluate(DATA, task, retries=1, max_usd=4, concurrency=1, store=store, progress=False).summary()
    assert (summary.runs, summary.cost) == (2, 4.0)


@pytest.mark.parametrize("usd", [None, float("nan")])
def test_a_price_that_nobody_knows_is_said(store, usd):
    summary = ran(store, lambda q: costs(q, usd), max_usd=0.01).summary()
    assert summary.runs == 200
    assert [line.split(",")[0] for line in summary.remarks] == ["max_usd does not count calls of our-own"]


def test_a_share_needs_a_count(store):
    with pytest.raises(ValueError, match=r"max_failures=0\.2 is a share of the runs"):
        evaluate(({"q": n} for n in range(3)), fails, max_failures=0.2, store=store, progress=False)
    assert (
        evaluate(({"q": n} for n in range(9)), fails, max_failures=2, store=store, progress=False).summary().failed >= 2
    )


NONSENSE = [float("nan"), float("inf"), -1, 0, True, "3", 1.5]


@pytest.mark.parametrize("name", ["max_failures", "max_usd", "timeout"])
@pytest.mark.parametrize("value", NONSENSE, ids=str)
def test_nonsense_is_refused_with_words(store, name, value):
    if value == 1.5 and name != "max_failures":
        return
    with pytest.raises(
        ValueError, match=rf"^{name} must be a number of|^{name} must be an integer >= 1, a share"
    ) as told:
        ran(store, fails, **{name: value})
    assert repr(value) in str(told.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"fail_fast": 1},
        {"attach": "yes"},
        {"raise_errors": None},
        {"retries": True},
        {"retries": 1.5},
        {"span_wait": "1"},
        {"concurrency": None},
        {"repetitions": True},
        {"split": 3},
        {"split": []},
        {"only": [1]},
    ],
    ids=str,
)
def test_other_nonsense_too(store, settings):
    ((name, value),) = settings.items()
    with pytest.raises(ValueError, match=f"^{name} must be ") as told:
        ran(store, fails, **settings)
    assert repr(value) in str(told.value)


@pytest.mark.parametrize("task", [fails, fails_later])
def test_what_a_task_raises_passes_if_it_is_asked_for(store, task):
    with pytest.raises(LookupError, match="no 1") as told:
        evaluate(DATA[:2], task, name="x", raise_errors=True, store=store, progress=False)
    assert told.traceback[-1].name == "fails"
    assert (store.experiment("x").status, len(store.traces(experiment=store.experiment("x").id))) == ("interrupted", 2)


@pytest.mark.process
def test_one_example_is_run_alone_by_its_id_or_how_it_begins(store):
    failed = ran(store, fails)
    bad = next(row for row in failed.rows() if row.error)
    for id in (bad.example_id, bad.example_id[:8], [bad.example_id]):
        alone = evaluate(DATA, fails, only=id, repetitions=2, store=store, progress=False)
        assert [row.example_id for row in alone.rows()] == [bad.example_id] * 2
    rows = evaluate((row for row in DATA), fails, only=bad.example_id, store=store, progress=False).rows()
    assert [row.error for row in rows] == [bad.error]


def test_an_id_that_is_not_there_is_named(store):
    for data in (DATA, iter(DATA)):
        with pytest.raises(NotFound, match=r"no example has the id 'abc', or an id that begins with it \(only=…\)"):
            evaluate(data, fails, only="abc", store=store, progress=False)


def test_a_run_of_one_example_does_not_take_the_name_of_the_whole(store):
    whole = ran(store, lambda q: q)
    alone = ran(store, lambda q: q, only=next(whole.rows()).example_id)
    assert (store.experiment("x").id, alone.name) == (whole.id, "x-only")


def test_several_splits_are_taken_together(store):
    data = [{"inputs": {"q": n}, "split": split} for n, split in enumerate(["a", "b", "c", "a"])]
    for dataset in (data, iter(data), "kept"):
        if dataset == "kept":
            datasets.save(store, "kept", data)
        experiment = evaluate(dataset, lambda q: q, split=("a", "c"), store=store, progress=False)
        assert [row.outputs for row in experiment.rows()] == [0, 2, 3]
        assert experiment.record.metadata["setup"]["split"] == ["a", "c"]
    with pytest.raises(NotFound, match="split 'x' or 'y' of dataset 'kept'"):
        evaluate("kept", lambda q: q, split=["x", "y"], store=store, progress=False)


@pytest.mark.process
def test_runs_that_failed_before_do_not_stop_who_scores_them_further(store):
    failed = ran(store, fails)
    further = failed.evaluate([get_evaluator("latency", key="slow")], fail_fast=True, max_failures=1, progress=False)
    assert (further.record.status, further.summary()["slow"].n) == ("finished", 200)


def test_what_is_remarked_is_bounded(store):
    class Busy(Exception):
        pass

    def odd(error):
        raise ValueError(str(error) + "x" * 1000)

    def task(q):
        raise Busy(q)

    remarks = ran(store, task, retries=1, retry_on=odd, max_failures=100).summary().remarks
    assert (len(remarks), max(map(len, remarks)) < 300, remarks[-1].startswith("stopped: ")) == (21, True, True)


def test_why_it_stopped_is_still_said_when_it_was_scored_further(store):
    stopped = ran(store, fails, fail_fast=True)
    stopped.evaluate([get_evaluator("not_empty")], progress=False)
    assert Experiment.load(store, "x").summary().remarks == stopped.summary().remarks != ()


def test_a_share_of_runs_that_nobody_has_counted_begins_nothing(store):
    with pytest.raises(ValueError, match="a share of the runs, but their number is not known in advance"):
        evaluate(iter(DATA), fails, max_failures=0.5, store=store, progress=False)
    assert store.experiments() == []


def test_a_resumed_experiment_counts_what_earlier_parts_have_spent(store):
    first = ran(store, costs, max_usd=2.0, concurrency=1)
    assert first.summary().cost == 2.0
    second = ran(store, costs, max_usd=3.0, concurrency=1, resume=True)
    assert (second.id, second.summary().cost, second.record.status) == (first.id, 3.0, "interrupted")
    assert second.summary().remarks == (
        "stopped: 4 runs and earlier parts of the experiment have cost $3.0000 (max_usd=3.0)",
    )


def test_a_resume_whose_budget_is_spent_starts_no_run_and_says_so(store, capfd):
    first = ran(store, costs, max_usd=2.0, concurrency=1)
    capfd.readouterr()
    second = ran(store, costs, max_usd=2.0, resume=True)
    assert (second.summary().runs, second.record.status) == (first.summary().runs, "interrupted")
    assert (
        "earlier parts of the experiment have cost $2.0000, so none of the 192 missing runs was started "
        "(max_usd=2.0; raise it to continue)" in capfd.readouterr().err
    )


def test_a_spent_budget_does_not_interrupt_an_experiment_that_has_all_its_runs(store):
    first = ran(store, costs, limit=8, max_usd=2.0, concurrency=1)
    assert (first.summary().runs, first.record.status) == (8, "interrupted")
    not_empty = get_evaluator("not_empty")
    second = evaluate(
        DATA, costs, ["exact", not_empty], limit=8, max_usd=2.0, name="x", resume=True, store=store, progress=False
    )
    assert (second.record.status, second.summary()["not_empty"].n, second.summary().cost) == ("finished", 8, 2.0)


def test_failed_runs_that_were_replaced_stay_in_the_budget(store):
    called = []

    def task(q):
        called.append(q)
        with_model(1.0)
        if len(called) <= 2:
            raise LookupError
        return q

    settings = {"limit": 6, "concurrency": 1, "name": "x", "store": store, "progress": False}
    evaluate(DATA, task, max_failures=2, **settings)
    second = evaluate(DATA, task, max_usd=4.0, resume=True, **settings)
    assert (second.summary().runs, second.summary().cost) == (2, 2.0)  # two more were paid for, and replaced
    third = evaluate(DATA, task, max_usd=5.0, resume=True, **settings)
    assert (third.summary().runs, third.record.metadata["totals"]["spent_usd"]) == (3, 5.0)
    scored = third.evaluate([get_evaluator("not_empty")], progress=False)
    assert scored.record.metadata["totals"]["spent_usd"] == 5.0
