"""Metric keys: no two evaluators of one experiment or rule share one, declared or returned."""

import pytest

from spanwise.evaluators import Experiment, evaluate, evaluator, get_evaluator, judge
from spanwise.evaluators.interface import list_specs
from spanwise.evaluators.monitors import monitor
from spanwise.evaluators.testing import scripted

SIX = dict.fromkeys(("toxicity", "severe_toxicity", "obscene", "threat", "insult", "identity_attack"), 0.1)
ROWS = [{"inputs": {"q": str(n)}} for n in range(4)]


def toxicity():
    return get_evaluator("toxicity", model=lambda texts: [SIX] * len(texts))


def byop():
    return get_evaluator("byop", prompt="{outputs}", judge=scripted("true"))


def run(store, evaluators, rows=ROWS, **options):
    return evaluate(rows, lambda q: q, evaluators, store=store, progress=False, **options)


@evaluator(key="byop_fail")
def byop_fail(outputs):
    return 1.0


def test_declared_keys_are_compared_before_the_first_call(store):
    called = []

    @evaluator(key="first")
    def first(outputs):
        called.append(outputs)

    with pytest.raises(ValueError, match="'byop' and 'byop_fail', give the key 'byop_fail'"):
        run(store, [first, byop(), byop_fail])
    assert called == []


def test_keys_of_set_level_evaluators_are_compared(store):
    with pytest.raises(ValueError, match="'classification_accuracy'"):
        run(store, ["classification"], summary_evaluators=[evaluator(key="classification_accuracy")(lambda cases: 1)])


def test_a_rule_refuses_evaluators_with_a_key_in_common():
    with pytest.raises(ValueError, match="rule 'r': two evaluators, 'byop' and 'byop_fail', give the key 'byop_fail'"):
        monitor("r", evaluators=[byop(), byop_fail])


def test_evaluators_that_are_added_are_compared_with_those_that_are_there(store):
    experiment = run(store, [byop()], name="e")
    with pytest.raises(ValueError, match="give the key 'byop_fail'"):
        experiment.evaluate([byop_fail])
    with pytest.raises(ValueError, match="give the key 'byop_fail'"):
        run(store, [byop_fail], name="e", resume=True)
    assert isinstance(experiment.evaluate([byop()]), Experiment)


def test_built_in_evaluators_prefix_their_keys():
    own = {"custom_judge", "judge"}
    assert [metric.key for spec in list_specs() for metric in spec.metrics if not metric.key.startswith(spec.id)] == []
    assert own <= {spec.id for spec in list_specs()}


def test_toxicity_and_a_judge_of_threats_have_a_row_each(store):
    threat = judge("threat", "Free of threats? {outputs}", judge=scripted({"rationale": "r", "rating": "yes"}))
    summary = run(store, [toxicity(), threat]).summary()
    assert (summary["threat"].mean, summary["toxicity_threat"].mean) == (1.0, 0.1)


def strict(outputs):
    return {"key": "correct", "score": 0}


def lenient(outputs):
    return {"key": "correct", "score": 1}


async def patient(outputs):
    return {"key": "correct", "score": 1}


@pytest.mark.parametrize("second", [lenient, patient])
def test_a_key_that_two_evaluators_return_is_an_error_of_the_second(store, second):
    experiment = run(store, [strict, second])
    summary = experiment.summary()
    assert (summary["correct"].n, summary["correct"].mean) == (4, 0.0)
    assert summary[second.__name__].failed == 4
    assert "'correct', which is a key of 'strict', too" in summary.why[second.__name__]


def test_a_returned_key_that_another_evaluator_declares_is_an_error(store):
    summary = run(store, [strict, evaluator(key="correct")(lambda outputs: 1.0)]).summary()
    assert (summary["correct"].mean, summary["strict"].failed) == (1.0, 4)
