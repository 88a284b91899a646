"""Retries: what was tried before is kept with what it cost, seen by nobody who judges, and not tried in vain."""

import asyncio
import time

import pytest

from spanwise.collector.records import Example
from spanwise.evaluators import Experiment, evaluate, get_evaluator
from spanwise.evaluators.scoring import make_case
from spanwise.tracer import attribute_names, current_run, trace


class Busy(Exception):
    """A server's word: come again, and at once."""

    retry_after = 0


@trace(kind="tool")
def search(q):
    current_run().set_model("m")
    current_run().set_usage(input_tokens=10, output_tokens=1, cost=0.25)
    return [q]


def agent(calls):
    def attempt(q):
        calls.append(q)
        search(q)
        if len(calls) < 3:
            raise Busy("not yet")
        return "x"

    return attempt


def agent_later(calls):
    async def attempt(q):
        await asyncio.sleep(0)
        return agent(calls)(q)

    return attempt


def traced(calls):
    return trace(kind="agent", name="traced")(agent(calls))


DATA = [{"inputs": {"q": "?"}, "reference_outputs": "x"}]
AGENTS = [agent, agent_later, traced]


@pytest.mark.parametrize("kind", AGENTS)
def test_what_failed_attempts_cost_is_counted(store, kind):
    experiment = evaluate(DATA, kind([]), ["exact"], retries=2, store=store, progress=False)
    for summary in (experiment.summary(), Experiment.load(store, experiment.id).summary()):
        assert (summary.runs, summary.failed, summary.cost, summary.tokens) == (1, 0, 0.75, 33)
    assert experiment.summary()["exact"].mean == 1.0


def test_failed_attempts_take_their_time_now_and_when_it_is_loaded(store):
    experiment = evaluate(DATA, agent([]), retries=2, store=store, progress=False)
    now, later = experiment.summary(), Experiment.load(store, experiment.id).summary()
    (stored,) = store.traces(experiment=experiment.id)
    assert now.p50_ms == later.p50_ms == stored.duration_ns / 1e6


@pytest.mark.parametrize("kind", AGENTS)
def test_who_judges_sees_the_attempt_that_counts(store, kind):
    judges = [
        get_evaluator("trajectory_match", expected=["search"]),
        get_evaluator("cost"),
        get_evaluator("step_limit", limit=1),
    ]
    experiment = evaluate(DATA, kind([]), judges, retries=2, store=store, progress=False)
    further = experiment.evaluate([get_evaluator("trajectory_match", key="again", expected=["search"])], progress=False)
    means = {key: row.mean for key, row in further.summary().items()}
    assert means == {"trajectory_match": 1.0, "cost": 0.25, "step_limit": 1.0, "again": 1.0}


@pytest.mark.parametrize("kind", AGENTS)
def test_every_attempt_is_in_the_trace_with_its_number(store, kind):
    (row,) = evaluate(DATA, kind([]), retries=2, store=store, progress=False).rows()
    root = row.trace.root
    assert (root.status, root.attributes[attribute_names.ATTEMPT], row.trace.complete) == ("ok", 3, True)
    below = [
        run for run in row.trace.runs if run.parent_id == root.span_id and attribute_names.ATTEMPT in run.attributes
    ]
    assert [(run.attributes[attribute_names.ATTEMPT], run.status) for run in below] == [(1, "error"), (2, "error")]
    assert len(row.trace.runs) == 6
    assert len(make_case(row.trace, Example(inputs=1)).trace.runs) == 2


def test_a_run_that_needed_one_attempt_says_nothing_of_it(store):
    (row,) = evaluate(DATA, search, retries=2, store=store, progress=False).rows()
    assert attribute_names.ATTEMPT not in row.trace.root.attributes


def tried(store, error, **settings):
    calls = []

    def task(q):
        calls.append(q)
        raise error

    summary = evaluate(DATA, task, retries=2, store=store, progress=False, **settings).summary()
    assert summary.failed == 1
    return len(calls), summary


@pytest.mark.parametrize("error", [TypeError("no"), KeyError("no"), SystemExit(1), asyncio.CancelledError()])
def test_what_does_not_pass_is_not_tried_again(store, error):
    assert tried(store, error)[0] == 1


@pytest.mark.parametrize(
    ("retry_on", "count"), [(KeyError, 3), ((Busy, KeyError), 3), (Busy, 1), (lambda error: True, 3)]
)
def test_one_may_say_what_is_tried_again(store, retry_on, count):
    error = KeyError("k")
    error.retry_after = 0
    assert tried(store, error, retry_on=retry_on)[0] == count


def test_a_retry_on_that_fails_is_told_and_costs_no_run(store):
    count, summary = tried(store, Busy(), retry_on=lambda error: error.status)
    assert count == 1
    assert "retry_on raised AttributeError: 'Busy' object has no attribute 'status'" in " ".join(str(summary).split())


def test_nonsense_is_refused_before_anything_runs(store):
    with pytest.raises(ValueError, match="retry_on must be an exception type, a tuple of these, or a function"):
        evaluate(DATA, search, retry_on="KeyError", store=store)


@pytest.mark.process
def test_an_attempt_that_took_too_long_is_tried_again(store):
    calls = []

    async def task(q):
        calls.append(q)
        await asyncio.sleep(60 if len(calls) == 1 else 0)
        return "x"

    (row,) = evaluate(DATA, task, retries=1, timeout=1.0, store=store, progress=False).rows()
    assert (row.outputs, row.trace.root.attributes[attribute_names.ATTEMPT]) == ("x", 2)


@pytest.mark.process
@pytest.mark.parametrize("kind", [agent, agent_later])
def test_when_all_stops_nobody_waits_for_another_attempt(store, kind):
    def waits(q):
        if q == 0:
            time.sleep(0.2)
            raise TypeError
        error = Busy()
        error.retry_after = 30
        raise error

    async def waits_later(q):
        return await asyncio.to_thread(waits, q)

    began = time.monotonic()
    task = waits if kind is agent else waits_later
    data = [{"q": n} for n in range(4)]
    evaluate(data, task, retries=1, fail_fast=True, concurrency=4, store=store, progress=False)
    assert time.monotonic() - began < 20
