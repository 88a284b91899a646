"""One declaration of what `evaluate()` takes by name: for checkers, for people who look it up, and for the engine."""

import asyncio
import inspect
from dataclasses import fields
from typing import get_type_hints

import pytest

from spanwise.evaluators import Experiment, aevaluate, evaluate
from spanwise.evaluators.experiments import EvaluateOptions
from spanwise.evaluators.experiments.experiment_plan import _FOREIGN_NAMES, ExperimentSettings

DATA = [{"inputs": "a"}]


def test_checkers_and_the_engine_know_the_same_options():
    types = get_type_hints(EvaluateOptions)
    assert types == get_type_hints(ExperimentSettings)
    assert list(types) == [field.name for field in fields(ExperimentSettings)]


@pytest.mark.parametrize("function", [evaluate, aevaluate])
def test_help_shows_every_option_with_its_default(function):
    parameters = inspect.signature(function).parameters
    assert list(parameters)[:3] == ["dataset", "task", "evaluators"]
    defaults = {field.name: field.default for field in fields(ExperimentSettings)}
    assert {name: one.default for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY} == defaults
    assert (parameters["concurrency"].default, parameters["retries"].annotation) == (8, "int")


def test_an_option_that_there_is_not_is_named_with_the_nearest(store):
    said = r"evaluate\(\) has no option 'concurency' \(did you mean 'concurrency'\?\); it takes name, concurrency"
    with pytest.raises(TypeError, match=said):
        evaluate(DATA, str, store=store, concurency=3)
    with pytest.raises(TypeError, match=r"aevaluate\(\) has no option 'x'; it takes name"):
        asyncio.run(aevaluate(DATA, str, store=store, x=3))


def test_an_experiment_is_scored_further_with_the_same_options(store):
    experiment = evaluate(DATA, lambda text: text, store=store, progress=False)
    further = experiment.evaluate(["not_empty"], concurrency=2, metadata={"k": 1}, progress=False)
    assert isinstance(further, Experiment)
    assert (further.id, further.summary()["not_empty"].n, further.record.metadata["k"]) == (experiment.id, 1, 1)
    with pytest.raises(TypeError, match=r"has no option 'retrys' \(did you mean 'retries'\?\)"):
        experiment.evaluate(["not_empty"], retrys=1)


def test_options_reach_the_runs(store):
    seeds = []
    settings = {"repetitions": 3, "seed": 7, "limit": 1, "split": "hard", "name": "named", "concurrency": 1}
    data = [{"inputs": {"q": n}, "split": "hard" if n else "easy"} for n in range(3)]
    experiment = evaluate(data, lambda q, seed: seeds.append((q, seed)), store=store, progress=False, **settings)
    assert (len({seed for _, seed in seeds}), len({q for q, _ in seeds}), experiment.name) == (3, 1, "named")
    assert seeds[0][0] in (1, 2)
    recorded = experiment.record.metadata["setup"]
    assert {name: recorded[name] for name in settings if name != "name"} == {
        name: value for name, value in settings.items() if name != "name"
    }


def test_what_was_not_asked_for_is_not_recorded_and_zero_is_asked_for(store):
    recorded = evaluate(DATA, lambda text: text, seed=0, store=store, progress=False).record.metadata["setup"]
    assert (recorded["seed"], recorded["retries"]) == (0, 0)
    assert not {"only", "fail_fast", "max_usd", "timeout"} & recorded.keys()


def test_the_number_of_examples_is_known_in_the_end_though_nobody_knew_it_before(store):
    experiment = evaluate(({"q": n} for n in range(3)), lambda q: q, repetitions=2, store=store, progress=False)
    assert (store.experiment(experiment.id).example_count, experiment.summary().runs) == (3, 6)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("data", "dataset"),
        ("predict_fn", "task"),
        ("target", "task"),
        ("scorers", "evaluators"),
        ("scores", "evaluators"),
        ("experiment_prefix", "name"),
        ("num_repetitions", "repetitions"),
        ("trial_count", "repetitions"),
        ("max_concurrency", "concurrency"),
    ],
)
def test_an_argument_in_the_words_of_another_product_is_answered_in_ours(name, ours):
    said = rf"^evaluate\(\) has no option '{name}' \(here it is {ours}=…\); it takes dataset, task, evaluators, name"
    with pytest.raises(TypeError, match=said) as raised:
        evaluate(**{name: []})  # nothing else given: Python alone would only miss `dataset`
    assert "\n" not in str(raised.value)
    with pytest.raises(TypeError, match=rf"aevaluate\(\) has no option '{name}'"):
        asyncio.run(aevaluate(**{name: []}))


def test_no_option_of_ours_is_taken_for_another_product_s():
    names = {*inspect.signature(evaluate).parameters}
    assert not names & set(_FOREIGN_NAMES)
    assert {said.partition("=")[0] for said in _FOREIGN_NAMES.values()} <= names


def test_what_takes_options_stays_what_it_was():
    assert inspect.iscoroutinefunction(aevaluate)
    assert not inspect.iscoroutinefunction(evaluate)
    assert (evaluate.__name__, evaluate.__module__) == ("evaluate", "spanwise.evaluators.experiments.experiment_runner")


def test_all_differences_to_langsmiths_evaluate_are_named_at_once():
    with pytest.raises(TypeError) as raised:
        evaluate(lambda inputs: inputs, data="d", experiment_prefix="e", max_concurrency=2)
    told = str(raised.value)
    for part in (
        "'data' (here it is dataset=…)",
        "'experiment_prefix' (here it is name=…)",
        "'max_concurrency' (here it is",
    ):
        assert part in told
    assert "the dataset is the first argument, and the task the second" in told
    with pytest.raises(TypeError, match=r"'data' \(here it is dataset=…\), 'scorers' \(here it is evaluators=…\)"):
        asyncio.run(aevaluate(data=[], scorers=[]))
