"""Arguments by name, wrapping of what comes back, and outcomes that are never confused."""

import asyncio
import threading
import time
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.collector.records import Case, Document, Example, Feedback, Target
from spanwise.evaluators import Metric, Skip, as_evaluator, evaluator, score

FULL = Case(
    example=Example(inputs={"q": "?"}, reference_outputs="ref", metadata={"m": 1}),
    inputs={"q": "?"},
    outputs="out",
    reference_outputs="ref",
    documents=(Document("d"),),
    expected_documents=(Document("e"),),
    conditions="c",
    guidelines="g",
    history=[{"role": "user"}],
    metadata={"m": 1},
)


def test_arguments_come_by_name(run):
    seen = {}

    def judge(
        inputs,
        outputs,
        reference_outputs,
        documents,
        expected_documents,
        conditions,
        guidelines,
        history,
        example,
        metadata,
    ):
        seen.update(locals())
        return True

    assert run(as_evaluator(judge), FULL)[0].score is True
    assert seen["outputs"] == "out"
    assert seen["documents"][0].content == "d"
    assert seen["metadata"] == {"m": 1}
    assert seen["example"] == FULL.example


def test_run_and_trace_come_by_name(run, trace):
    judge = as_evaluator(lambda run, trace: run is trace.root and len(trace.runs) == 2)
    assert run(judge, Case(trace=trace))[0].score is True


def test_an_example_stands_in_for_what_the_case_does_not_hold(run):
    case = Case(example=Example(inputs=1, reference_outputs=2, conditions="c"), outputs=0)
    assert (
        run(
            as_evaluator(lambda inputs, reference_outputs, conditions: f"{inputs}{reference_outputs}{conditions}"), case
        )[0].label
        == "12c"
    )


def test_defaults_stand_in_for_what_is_missing(run):
    assert (
        run(as_evaluator(lambda outputs, reference_outputs="none": reference_outputs), Case(outputs="a"))[0].label
        == "none"
    )


def test_parameters_that_no_case_has_keep_their_default(run):
    assert run(as_evaluator(lambda outputs, factor=3: factor), Case(outputs="a"))[0].score == 3.0


def test_everything_that_is_there_goes_into_kwargs(run):
    names = run(as_evaluator(lambda outputs, **rest: ",".join(sorted(rest))), Case(outputs="a", inputs="b"))[0].label
    assert names == "inputs,metadata"


def test_positional_only_parameters_are_filled(run, trace):
    def langsmith(run, example, /):
        return {"key": "same", "score": run.outputs == example.reference_outputs}

    case = Case(example=Example(inputs=1, reference_outputs="Because."), trace=trace)
    assert run(as_evaluator(langsmith), case)[0].score is True


def test_langsmith_evaluators_find_the_reference_under_its_name_there(run, trace):
    def correct(run, example):
        return {"key": "correct", "score": run.outputs == example.outputs["answer"]}

    case = Case(example=Example(inputs=1, reference_outputs={"answer": "Because."}), trace=trace)
    assert run(as_evaluator(correct), case)[0].score is True


def test_a_parameter_that_is_nowhere_is_refused_when_the_evaluator_is_made():
    with pytest.raises(TypeError, match=r"has the parameter 'answer', which is not a field.*map="):
        as_evaluator(lambda answer: True)


def test_a_map_says_where_arguments_are(run):
    judge = evaluator(map={"answer": "outputs.text", "outputs": "tags.0", "all": lambda case: case.inputs})
    judged = judge(lambda answer, outputs, all: f"{answer}{outputs}{all}")
    assert run(judged, Case(outputs={"text": "t", "tags": ["x"]}, inputs="i"))[0].label == "txi"


def test_a_mapped_field_that_is_missing_is_a_skip_that_names_it(run):
    judged = evaluator(map={"answer": "outputs.text"})(lambda answer: 1)
    feedback = run(judged, Case(outputs={"other": 1}))[0]
    assert (feedback.outcome, feedback.comment) == ("skip", "needs answer; the case has none")


def test_a_map_into_nothing_is_refused():
    with pytest.raises(TypeError, match="must begin with one of"):
        evaluator(map={"answer": "output.text"})(lambda answer: 1)


def test_prepare_data_makes_arguments(run):
    judged = evaluator(prepare_data=lambda inputs, outputs: {"pair": (inputs, outputs)})(lambda pair: "".join(pair))
    assert run(judged, Case(inputs="a", outputs="b"))[0].label == "ab"


def test_partials_and_callable_objects_are_evaluators(run):
    class Judge:
        async def __call__(self, outputs):
            return len(outputs)

    from functools import partial

    assert run(as_evaluator(Judge()), Case(outputs="abc"))[0].score == 3.0
    assert run(as_evaluator(partial(lambda outputs, n: n, n=2)), Case(outputs="abc"))[0].score == 2.0


@pytest.mark.parametrize(
    ("returned", "score_", "label"),
    [
        (True, True, None),
        (0.5, 0.5, None),
        (3, 3.0, None),
        ("good", None, "good"),
        (np.float32(0.25), 0.25, None),
        (np.bool_(False), False, None),
        (np.array(2), 2.0, None),
    ],
)
def test_plain_values_become_scores_or_labels(run, returned, score_, label):
    feedback = run(as_evaluator(lambda outputs: returned), FULL)[0]
    assert (feedback.score, feedback.label, feedback.outcome) == (score_, label, "score")
    assert type(feedback.score) is type(score_)


def test_dicts_and_lists_become_feedback(run):
    returned = [{"key": "a", "score": 1, "comment": "why"}, {"key": "b", "value": "label"}, {"key": "c", "score": None}]
    a, b, c = run(as_evaluator(lambda outputs: {"results": returned}), FULL)
    assert (a.score, a.comment) == (1.0, "why")
    assert b.label == "label"
    assert c.outcome == "skip"


def test_feedback_passes_through_and_learns_who_made_it(run, target):
    made = Feedback(target=Target(trace_id="2" * 32), key="k", score=1.0)
    feedback = run(evaluator(key="judge")(lambda outputs: made), FULL)[0]
    assert (feedback.target.trace_id, feedback.key, feedback.evaluator) == ("2" * 32, "k", "judge")
    assert feedback.id != made.id


def test_none_is_a_skip(run):
    assert run(as_evaluator(lambda outputs: None), FULL)[0].outcome == "skip"


def test_a_skip_may_say_why(run):
    def judge(outputs):
        raise Skip("not a question")

    assert (run(as_evaluator(judge), FULL)[0].outcome, run(as_evaluator(judge), FULL)[0].comment) == (
        "skip",
        "not a question",
    )


def test_nan_is_a_skip_and_infinity_an_error(run):
    nan = run(as_evaluator(lambda outputs: float("nan")), FULL)[0]
    infinite = run(as_evaluator(lambda outputs: {"score": float("inf"), "comment": "c"}), FULL)[0]
    assert (nan.outcome, nan.score) == ("skip", None)
    assert (infinite.outcome, infinite.score) == ("error", None)


@pytest.mark.parametrize("nonsense", [object(), {"socre": 1}, [[1]], b"bytes", {"key": "a", "score": object()}, [1, 2]])
def test_nonsense_is_an_error(run, nonsense):
    feedback = run(as_evaluator(lambda outputs: nonsense), FULL)
    assert [one.outcome for one in feedback] == ["error"]
    assert "InvalidResult" in feedback[0].error


def test_an_exception_is_an_error_with_the_traceback_of_the_evaluator(run):
    def judge(outputs):
        return 1 / 0

    feedback = run(as_evaluator(judge), FULL)[0]
    assert feedback.error == "ZeroDivisionError: division by zero"
    assert "in judge" in feedback.metadata["traceback"]
    assert "evaluator_execution.py" not in feedback.metadata["traceback"]


def test_a_missing_need_is_a_skip_that_names_it(run):
    feedback = run(as_evaluator(lambda outputs, reference_outputs: 1), Case(outputs="a"))[0]
    assert feedback.outcome == "skip"
    assert feedback.comment == "needs reference_outputs; the case belongs to no example"


def test_outputs_of_a_failed_run_are_missing_and_the_skip_says_so(run, failed):
    feedback = run(as_evaluator(lambda outputs: 1), failed)[0]
    assert (feedback.outcome, feedback.comment) == ("skip", "needs outputs; the run failed: ValueError: boom")
    assert run(as_evaluator(lambda outputs="nothing": outputs), failed)[0].label == "nothing"


def test_what_goes_wrong_is_told_under_every_declared_key(run):
    def judge(outputs):
        raise ValueError("no")

    several = evaluator(metrics=[Metric("a", primary=True), Metric("b")])(judge)
    assert [(one.key, one.outcome) for one in run(several, FULL)] == [("a", "error"), ("b", "error")]
    assert [(one.key, one.outcome) for one in run(several, Case())] == [("a", "skip"), ("b", "skip")]


def test_async_evaluators_are_awaited(run):
    async def judge(outputs):
        await asyncio.sleep(0)
        return 0.5

    assert run(as_evaluator(judge), FULL)[0].score == 0.5


@pytest.mark.parametrize("asynchronous", [True, False])
def test_an_evaluator_that_hangs_is_an_error_of_that_case(run, asynchronous):
    async def hang(outputs):
        await asyncio.sleep(60)

    judge = evaluator(timeout=0.05)(hang if asynchronous else lambda outputs: time.sleep(30))
    feedback = run(judge, FULL)[0]
    assert (feedback.outcome, feedback.error) == ("error", "TimeoutError: the evaluator took more than 0.05 s")


class Busy(Exception):
    """A server that asks to come again at once."""

    retry_after = 0


class Flaky:
    """Raises once, and then gives a score."""

    def __init__(self, error):
        self.error, self.calls = error, 0

    def __call__(self, outputs):
        self.calls += 1
        if self.calls == 1:
            raise self.error
        return True


def test_what_may_pass_is_tried_again(run):
    judge = Flaky(Busy())
    assert (run(evaluator(retries=2)(judge), FULL)[0].score, judge.calls) == (True, 2)


@pytest.mark.parametrize("error", [TypeError("no"), ValueError("no"), KeyError("no")])
def test_what_would_fail_again_is_not_tried_again(run, error):
    judge = Flaky(error)
    assert (run(evaluator(retries=3)(judge), FULL)[0].outcome, judge.calls) == ("error", 1)


@pytest.mark.parametrize("again", [Busy, (KeyError, Busy), lambda error: error.retry_after == 0])
def test_an_option_says_what_is_tried_again(run, again):
    judge, other = Flaky(Busy()), Flaky(ConnectionError("no"))
    other.error.retry_after = 3
    assert (run(evaluator(retries=1, retry_on=again)(judge), FULL)[0].score, judge.calls) == (True, 2)
    assert (run(evaluator(retries=1, retry_on=again)(other), FULL)[0].outcome, other.calls) == ("error", 1)


def test_a_skip_is_not_tried_again(run):
    calls = []

    def judge(outputs):
        calls.append(outputs)
        raise Skip("nothing to say")

    assert run(evaluator(retries=3)(judge), FULL)[0].outcome == "skip"
    assert len(calls) == 1


def test_a_time_limit_of_the_evaluators_own_keeps_its_message(run):
    def judge(outputs):
        raise TimeoutError("the judge did not answer")

    assert run(evaluator(timeout=30)(judge), FULL)[0].error == "TimeoutError: the judge did not answer"


def test_a_slow_plain_function_moves_to_a_thread(target):
    def judge(outputs):
        time.sleep(0.02)
        return threading.current_thread().name

    wrapped = as_evaluator(judge)

    async def twice():
        return [await wrapped.evaluate(FULL, target) for _ in range(2)]

    (first,), (second,) = asyncio.run(twice())
    assert (first.label, second.label) == ("MainThread", "spanwise-evaluator")


def test_batch_is_used_where_it_is_offered(target):
    class Judge:
        def __call__(self, outputs):
            raise AssertionError("one by one")

        def batch(self, cases):
            return [ValueError("bad") if case.outputs == "x" else len(case.outputs) for case in cases]

    cases = [Case(outputs="ab"), Case(), Case(outputs="x")]
    results = asyncio.run(as_evaluator(Judge()).evaluate_batch(cases, [target] * 3))
    assert [one.outcome for [one] in results] == ["score", "skip", "error"]
    assert results[0][0].score == 2.0


def test_a_batch_sees_cases_as_the_map_says(target):
    class Judge:
        def __call__(self, outputs): ...

        def batch(self, cases):
            return [case.outputs for case in cases]

    wrapped = evaluator(map={"outputs": "outputs.text"})(Judge())
    [[said], [lacking]] = asyncio.run(
        wrapped.evaluate_batch([Case(outputs={"text": "t"}), Case(outputs={"other": 1})], [target] * 2)
    )
    assert (said.label, lacking.outcome) == ("t", "skip")


def test_a_batch_of_another_length_is_an_error_of_each_case(target):
    class Judge:
        def __call__(self, outputs): ...

        def batch(self, cases):
            return [1]

    results = asyncio.run(as_evaluator(Judge()).evaluate_batch([FULL, FULL], [target] * 2))
    assert ["1 results for 2 cases" in one.error for [one] in results] == [True, True]


class Choosy:
    """Scores in batches, and raises for the batch in which one of `bad` is; notes what it was asked."""

    def __init__(self, bad, error):
        self.bad, self.error, self.asked = bad, error, []

    def __call__(self, outputs): ...

    def batch(self, cases):
        self.asked.append(len(cases))
        if any(case.outputs in self.bad for case in cases):
            raise self.error
        return [case.outputs for case in cases]


def in_a_batch(target, judge, count=8, **options):
    """Scores of the cases 0, 1, … in one batch, or the errors."""
    cases = [Case(outputs=number) for number in range(count)]
    wrapped = evaluator(**options)(judge)
    results = asyncio.run(wrapped.evaluate_batch(cases, [target] * count))
    return [one.error or one.score for [one] in results]


@pytest.mark.parametrize("bad", [{5}, {0}, {7}, {1, 6}, {2, 3, 4}])
def test_a_batch_that_fails_is_halved_until_only_the_guilty_cases_fail(target, bad):
    judge = Choosy(bad, KeyError("answer"))
    expected = ["KeyError: 'answer'" if number in bad else float(number) for number in range(8)]
    assert in_a_batch(target, judge) == expected
    assert len(judge.asked) < 16


def test_a_batch_that_fails_for_every_case_costs_less_than_twice_the_cases(target):
    judge = Choosy(set(range(7)), ValueError("no"))
    assert in_a_batch(target, judge, 7) == ["ValueError: no"] * 7
    assert len(judge.asked) == 13


class Forbidden(Exception):
    status_code = 401


@pytest.mark.parametrize("error", [ConnectionError("away"), TimeoutError("slow"), Forbidden("key")])
def test_a_server_that_is_away_or_refuses_the_key_is_asked_three_times_and_no_more(target, error):
    judge = Choosy(set(range(8)), error)
    assert in_a_batch(target, judge) == [f"{type(error).__name__}: {error}"] * 8
    assert judge.asked == [8, 4, 4]


def test_a_time_out_of_one_case_is_found_as_well(target):
    assert [type(one) for one in in_a_batch(target, Choosy({3}, TimeoutError("slow")))].count(str) == 1


def test_a_batch_is_tried_again_before_it_is_halved(target):
    class Once(Choosy):
        def batch(self, cases):
            try:
                return super().batch(cases)
            finally:
                self.bad = set()

    judge = Once({3}, Busy("busy"))
    assert in_a_batch(target, judge, retries=1) == [float(number) for number in range(8)]
    assert judge.asked == [8, 8]


@pytest.mark.parametrize("returned", [None, "12345678", {"results": []}, set(range(8)), [1], range(9), count()])
def test_a_batch_that_returns_no_list_of_that_length_is_called_once(target, returned):
    asked = []

    class Judge:
        def __call__(self, outputs): ...

        def batch(self, cases):
            asked.append(len(cases))
            return returned

    assert all(str(error).startswith("InvalidResult: batch() ") for error in in_a_batch(target, Judge()))
    assert asked == [8]


def test_a_summary_sees_all_complete_cases_and_counts_the_others(target):
    judge = evaluator(summary=True)(lambda outputs, reference_outputs: sum(map(int.__eq__, outputs, reference_outputs)))
    cases = [Case(outputs=1, reference_outputs=1), Case(outputs=2, reference_outputs=1), Case(reference_outputs=1)]
    feedback = asyncio.run(judge.evaluate_set(cases, target))[0]
    assert (feedback.score, feedback.metadata) == (1.0, {"cases": 2, "left_out": 1})


def test_langsmith_summaries_ask_for_runs_and_examples(target, trace):
    judge = as_evaluator(lambda runs, examples: len(runs) + len(examples))
    assert judge.summary
    assert asyncio.run(judge.evaluate_set([Case(trace=trace, example=Example(inputs=1))], target))[0].score == 2.0


def test_a_summary_of_nothing_is_a_skip(target):
    judge = evaluator(summary=True)(lambda outputs: 1)
    assert asyncio.run(judge.evaluate_set([], target))[0].comment == "there are no cases"
    assert asyncio.run(judge.evaluate_set([Case()], target))[0].comment == "needs outputs; no case has them"


def test_a_decorated_function_can_still_be_called():
    @evaluator(key="concise", threshold=0.5)
    def short(outputs):
        return len(outputs) < 3

    assert short("ab") is True
    assert (short.key, short.needs, short.metrics[0].threshold) == ("concise", ("outputs",), 0.5)


def test_a_mistyped_option_is_named_with_the_nearest_one():
    with pytest.raises(
        TypeError, match=r"@evaluator has no option 'thershold' \(did you mean 'threshold'\?\); it takes"
    ):
        evaluator(thershold=0.5)


def test_what_is_no_evaluator_is_refused():
    with pytest.raises(TypeError, match="an evaluator must be a callable"):
        as_evaluator(3)


def test_a_metric_passes_on_the_good_side_and_when_equal():
    assert Metric("a", threshold=0.5).passes(0.5) is True
    assert Metric("a", threshold=0.5, higher_is_better=False).passes(0.6) is False
    assert Metric("a").passes(0.4) is None
    assert Metric("a").passes(True) is True


def test_score_works_inside_a_running_loop():
    async def inside():
        return score(lambda outputs: len(outputs), outputs="abc")

    assert asyncio.run(inside())[0].score == 3.0


def test_score_takes_a_stored_trace(trace):
    feedback = score(lambda inputs, documents: inputs["question"] + documents[0].id, trace)[0]
    assert (feedback.label, feedback.target.trace_id) == ("Why?d1", trace.trace_id)


@pytest.mark.process
@given(
    st.one_of(
        st.none(),
        st.booleans(),
        st.floats(),
        st.integers(),
        st.text(),
        st.binary(),
        st.dictionaries(st.text(), st.floats()),
        st.lists(st.floats(), max_size=2),
    )
)
def test_evaluating_never_raises_and_never_scores_nan(returned):
    for feedback in score(lambda outputs: returned, outputs="a"):
        assert feedback.score is None or feedback.score == feedback.score


class Speechless(Exception):
    def __str__(self):
        raise RuntimeError("cannot say")


def test_an_exception_that_cannot_say_what_it_is_is_an_error():
    def judge(outputs):
        raise Speechless

    assert score(judge, outputs="x")[0].error == "Speechless"


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_an_evaluator_that_exits_is_an_error(timeout):
    @evaluator(timeout=timeout)
    def judge(outputs):
        raise SystemExit(3)

    assert score(judge, outputs="x")[0].error == "SystemExit: 3"


@pytest.mark.parametrize("wrong", [{"key": 5}, {"metadata": "no"}, {"target": "trace"}])
def test_a_dict_whose_fields_are_of_the_wrong_kind_is_nonsense(wrong):
    feedback = score(lambda outputs: {"score": 1, **wrong}, outputs="x")[0]
    assert feedback.error is not None
    assert feedback.error.startswith(f"InvalidResult: the evaluator returned the {next(iter(wrong))}")


def test_comments_and_labels_become_plain_texts():
    feedback = score(lambda outputs: {"label": np.str_("good"), "comment": 5}, outputs="x")[0]
    assert (type(feedback.label), feedback.label, feedback.comment) == (str, "good", "5")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_feedback_that_has_no_mean_cannot_be_made(value):
    with pytest.raises(ValueError, match="the score must be finite"):
        Feedback(target=Target(trace_id="1" * 32), key="k", score=value)
