"""Evaluators from callables: their names, keys, metrics and options."""

from functools import partial

import pytest

from looped_cases import loop_over
from spanwise.evaluators import Metric, as_evaluator, evaluator, get_evaluator, interface
from spanwise.evaluators.interface import EvaluatorOptions


def of_this_module(outputs, documents=None, case=None):
    return True


class Judge:
    """A callable object that says its own key."""

    key = "own"

    def __call__(self, outputs):
        return True


class Nameless:
    def __call__(self, outputs):
        return True


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (of_this_module, "of_this_module"),
        (partial(of_this_module, documents=()), "of_this_module"),
        (Judge(), "own"),
        (Nameless(), "Nameless"),
        (partial(Nameless()), "Nameless"),
    ],
)
def test_the_key_is_the_name_of_what_is_called(function, name):
    made = as_evaluator(function)
    assert (made.key, made.__name__, made.make.name, [metric.key for metric in made.metrics]) == (
        name,
        name,
        name,
        [name],
    )


def test_what_it_asks_for():
    made = as_evaluator(of_this_module)
    assert (made.needs, made.uses) == (("outputs",), ("documents", "case"))


@pytest.mark.parametrize("option", ["name", "origin", "spec"])
def test_what_is_the_registrys_to_say_is_refused(option):
    with pytest.raises(TypeError, match=rf"@evaluator has no option '{option}'.*; it takes key, threshold, .*version"):
        evaluator(**{option: None})


def test_every_option_that_is_declared_is_taken():
    values = {"key": "k", "version": "2", "higher_is_better": False, "range": (0, 5), "metrics": (), "retries": 2}
    values |= {"source": "llm", "details": False, "min_cases": 3, "max_cases": 4, "summary": True, "timeout": 1}
    values |= {"threshold": 0.5, "map": None, "prepare_data": None, "retry_on": OSError}
    values |= {"primary": True, "good_labels": {"b", "a"}}
    made = evaluator(**values)(of_this_module)
    assert set(values) == set(EvaluatorOptions.__annotations__)
    metric = Metric("k", (0, 5), higher_is_better=False, threshold=0.5, primary=True, good_labels=("a", "b"))
    assert (made.metrics, made.primary) == ((metric,), True)
    assert (made.version, made.retries, made.min_cases, made.max_cases, made.summary) == ("2", 2, 3, 4, True)
    assert (made.make.source, made.make.details, made.make.version, made.timeout) == ("llm", False, "2", 1)


def test_what_is_not_said_has_a_default():
    made = as_evaluator(of_this_module)
    assert made.metrics == (Metric("of_this_module", None, primary=True),)
    assert (made.revision, made.retries, made.min_cases, made.max_cases, made.summary) == ("1", 0, 0, None, False)
    assert (made.make.source, made.make.details, made.timeout, made.spec) == ("code", True, None, None)


@pytest.mark.parametrize("options", [{"retries": 0}, {"max_cases": 1}, {"timeout": 0.001}, {"threshold": 0}])
def test_the_least_that_can_be_meant_is_taken(options):
    assert evaluator(of_this_module, **options).key == "of_this_module"


@loop_over(
    ("options", "words"),
    [
        ({"retries": 1.0}, "retries must be an integer >= 0, got 1.0"),
        ({"retries": True}, "retries must be an integer >= 0, got True"),
        ({"retries": 1, "retry_on": "no"}, "retry_on must be an exception type, a tuple of these, or a function"),
        ({"retry_on": OSError}, "retry_on has no effect because retries is 0"),
        ({"max_cases": 0}, "max_cases must be an integer >= 1, got 0"),
        ({"timeout": 0}, "timeout must be a number of seconds > 0, got 0"),
        ({"timeout": "1"}, "timeout must be a number of seconds > 0, got '1'"),
        ({"threshold": float("nan")}, "threshold must be a number, got nan"),
        ({"key": 5}, "key must be a non-empty string, got 5"),
    ],
)
def test_what_cannot_be_meant_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        evaluator(of_this_module, **options)


def test_a_threshold_is_the_primary_metrics():
    made = evaluator(threshold=0.9, metrics=[Metric("a"), Metric("b", primary=True)])(of_this_module)
    assert [metric.threshold for metric in made.metrics] == [None, 0.9]


def test_a_threshold_is_every_metrics_where_none_is_primary():
    made = evaluator(threshold=0.9, metrics=[Metric("a"), Metric("b", threshold=0.1)])(of_this_module)
    assert [metric.threshold for metric in made.metrics] == [0.9, 0.9]


def test_metrics_keep_their_thresholds_where_none_is_given():
    assert [metric.threshold for metric in get_evaluator("pii").metrics] == [0.5] * 4


def test_whether_it_is_of_a_set_is_read_off_or_said():
    assert as_evaluator(lambda cases: 1).summary
    assert not evaluator(lambda cases: 1, summary=False).summary
    assert evaluator(of_this_module, summary=True).summary


def test_only_what_can_be_imported_again_has_a_dict():
    def inner(outputs): ...

    assert as_evaluator(of_this_module).to_dict() == {"type": f"{__name__}.of_this_module", "init_parameters": {}}
    for function in (inner, lambda outputs: 1, Nameless()):
        assert as_evaluator(function).origin == {}


def test_a_dict_is_not_the_evaluators_own():
    made = get_evaluator("regex", pattern="a", key="mine")
    made.to_dict()["type"] = "other"
    assert made.to_dict()["type"] == "regex"


@pytest.mark.parametrize("value", [{"a": [1, None, "x", {"b": 0.5}]}, ("a", "b"), True])
def test_plain_values_within_values_can_be_written(value):
    judge = interface.make_evaluator(of_this_module, origin={"type": "x", "init_parameters": {"value": value}})
    assert judge.to_dict()["init_parameters"] == {"value": value}


@pytest.mark.parametrize("value", [{1: "a"}, [len], {"a": {"b": object()}}, b"bytes"])
def test_a_value_that_no_json_holds_cannot(value):
    judge = interface.make_evaluator(of_this_module, origin={"type": "x", "init_parameters": {"value": value}})
    with pytest.raises(ValueError, match=r"cannot be serialized: the parameter value=.* is not a JSON value"):
        judge.to_dict()


def test_standards_and_facts_are_those_of_the_registry():
    assert get_evaluator("exact").standards == interface.get_spec("exact").standards
    assert as_evaluator(of_this_module).standards == ()
