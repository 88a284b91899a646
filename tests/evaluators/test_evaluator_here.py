"""Evaluators called on a thread without an event loop."""

from spanwise.collector.records import Case, Target
from spanwise.evaluators import as_evaluator, evaluator

TARGET = Target(trace_id="a" * 32)


def scored(function, **fields):
    (feedback,) = as_evaluator(function).evaluate_here(Case(**fields), TARGET)
    return feedback


def test_a_score_a_skip_and_an_error():
    assert scored(lambda outputs: len(outputs), outputs="abc").score == 3.0
    assert scored(lambda outputs: 1.0).outcome == "skip"
    assert scored(lambda outputs: 1 / 0, outputs="a").error == "ZeroDivisionError: division by zero"


def test_a_plain_function_may_return_an_awaitable():
    async def judge(outputs):
        return outputs == "a"

    assert scored(lambda outputs: judge(outputs), outputs="a").score is True


def test_what_is_plain():
    async def judge(outputs):
        return True

    assert as_evaluator(lambda outputs: True).plain
    assert not as_evaluator(judge).plain
    assert not evaluator(lambda outputs: True, timeout=1.0).plain
