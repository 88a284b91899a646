"""A task that returns None has answered: a value to evaluators, not something that is missing."""

import pytest

from spanwise.collector.records import Run, Trace
from spanwise.evaluators import Experiment, evaluate, evaluator, get_evaluator, score
from spanwise.evaluators.scoring import make_case
from spanwise.tracer import configure, trace

DATA = [{"inputs": {"q": n}, "reference_outputs": "y"} for n in range(10)]


def mostly_nothing(q):
    return "y" if q < 2 else None


@trace
def traced(q):
    return mostly_nothing(q)


async def later(q):
    return mostly_nothing(q)


TASKS = [mostly_nothing, traced, later]


@pytest.mark.parametrize("task", TASKS, ids=["plain", "traced", "async"])
def test_none_is_scored_and_not_skipped(store, task):
    summary = evaluate(DATA, task, ["exact", "not_empty", "length"], store=store, progress=False).summary()
    assert [(summary[key].n, summary[key].skipped) for key in ("exact", "not_empty", "length")] == [(10, 0)] * 3
    assert (summary["exact"].mean, summary["not_empty"].mean) == (0.2, 0.2)


@pytest.mark.parametrize("task", TASKS, ids=["plain", "traced", "async"])
def test_none_is_a_value_when_it_is_read_back(store, task):
    experiment = evaluate(DATA, task, store=store, progress=False).evaluate(["exact"], progress=False)
    assert (experiment.summary()["exact"].n, experiment.summary()["exact"].mean) == (10, 0.2)
    assert Experiment.load(store, experiment.id).summary()["exact"].mean == 0.2


def test_none_is_a_value_when_a_set_is_judged(store):
    accuracy = evaluator(key="accuracy", summary=True)(
        lambda outputs: sum(one == "y" for one in outputs) / len(outputs)
    )
    whole = evaluate(DATA, mostly_nothing, summary_evaluators=[accuracy], store=store, progress=False)
    assert whole.summary().overall["accuracy"].score == 0.2


def test_a_trace_that_says_null_has_answered_and_one_that_says_nothing_has_not(store):
    def live(**attributes):
        root = Run(trace_id="1" * 32, span_id="2" * 16, name="f", attributes=attributes)
        return [one.outcome for one in score(get_evaluator("length"), Trace(root, (root,)))]

    assert (live(**{"output.value": "null"}), live()) == (["score"], ["skip"])


def test_given_answers_that_are_not_there_are_missing(store):
    summary = evaluate(DATA, None, ["exact"], store=store, progress=False).summary()
    assert (summary["exact"].n, summary["exact"].skipped) == (0, 10)
    failed = evaluate(DATA, lambda q: 1 / 0, ["exact"], store=store, progress=False).summary()
    assert (failed["exact"].n, failed["exact"].skipped) == (0, 10)


def test_none_where_a_map_points_in_outputs_is_a_value(store):
    exact = get_evaluator("exact", map={"outputs": "outputs.answer"})
    data = [{"inputs": {"q": n}, "reference_outputs": "y"} for n in range(4)]
    answers = [{"answer": "y"}, {"answer": None}, None, {"other": 1}]
    summary = evaluate(data, lambda q: answers[q], [exact], store=store, progress=False).summary()
    assert (summary["exact"].n, summary["exact"].mean, summary["exact"].skipped) == (3, pytest.approx(1 / 3), 1)


@pytest.mark.parametrize(("reference", "same"), [("", 0.0), ("None", 0.0), (0, 0.0), ({}, 0.0)])
def test_none_is_exactly_nothing_else(store, reference, same):
    data = [{"inputs": {"q": 1}, "reference_outputs": reference}]
    assert evaluate(data, lambda q: None, ["exact"], store=store, progress=False).summary()["exact"].mean == same


def test_none_is_a_value_where_no_contents_are_recorded(store):
    configure(capture="none")
    try:
        assert evaluate(DATA, mostly_nothing, ["exact"], store=store, progress=False).summary()["exact"].mean == 0.2
    finally:
        configure(capture="full")


def test_an_answer_that_was_not_recorded_is_missing_when_it_is_read_back(store):
    configure(capture="none")
    try:
        live = evaluate(DATA, lambda q: "y", ["exact"], store=store, progress=False)
    finally:
        configure(capture="full")
    again = live.evaluate([get_evaluator("exact", key="again")], progress=False).summary()
    assert (again["exact"].mean, again["again"].n, again["again"].skipped) == (1.0, 0, 10)


def test_an_optional_argument_gets_none_that_was_returned():
    root = Run(trace_id="1" * 32, span_id="2" * 16, name="f", attributes={"output.value": "null"})
    optional = evaluator(key="k")(lambda outputs="not given": outputs is None)
    assert score(optional, make_case(Trace(root, (root,))))[0].score is True


def test_a_call_that_returned_none_says_so_in_its_span(store):
    (row,) = evaluate(DATA[:1], lambda q: nothing() or "x", store=store, progress=False).rows()
    spans = {run.name: run.attributes.get("output.value") for run in row.trace.runs}
    assert spans == {"nothing": "null", "<lambda>": None}


@trace
def nothing():
    return None
