"""A task may do what it likes to its inputs: the example, its other repetitions and attempts never see it."""

import asyncio
import threading
from dataclasses import dataclass, field

import pytest

from spanwise.collector.records import Example
from spanwise.evaluators import evaluate
from spanwise.evaluators.experiments.task_call import ValueCopier
from spanwise.tracer import trace

DATA = [{"inputs": {"messages": [{"role": "user", "content": "hi"}]}, "reference_outputs": 1}]


def chat(messages):
    messages.append({"role": "assistant", "content": "hello"})
    return len(messages)


async def chat_later(messages):
    await asyncio.sleep(0)
    return chat(messages)


def of_example(example):
    example.metadata["seen"] = True
    return chat(example.inputs["messages"]) + len(example.metadata)


def of_history(history, **inputs):
    history.append("more")
    return len(history)


@pytest.mark.parametrize("task", [chat, chat_later, trace(chat), lambda inputs: chat(inputs["messages"])])
def test_every_repetition_starts_from_the_example(store, task):
    experiment = evaluate(DATA, task, [seen], repetitions=3, store=store, progress=False)
    assert [(row.outputs, row.scores) for row in experiment.rows()] == [(2, {"seen": 1.0})] * 3
    assert [row.trace.root.inputs for row in experiment.rows()] == [DATA[0]["inputs"]] * 3


def seen(inputs):
    return float(len(inputs["messages"]))


@pytest.mark.process
def test_every_attempt_starts_from_the_example(store):
    lengths = []

    def flaky(messages):
        lengths.append(chat(messages))
        if len(lengths) < 3:
            raise ConnectionError
        return messages

    experiment = evaluate(DATA, flaky, [seen], retries=3, store=store, progress=False)
    assert (lengths, experiment.summary()["seen"].mean) == ([2, 2, 2], 1.0)


@pytest.mark.parametrize("task", [of_example, of_history])
def test_an_example_that_a_task_asks_for_is_its_own(store, task):
    data = [Example(inputs={"messages": []}, history=[], metadata={})]
    experiment = evaluate(data, task, repetitions=3, store=store, progress=False)
    assert len({row.outputs for row in experiment.rows()}) == 1
    assert data[0] == Example(inputs={"messages": []}, history=[], metadata={})


def test_outputs_that_are_the_inputs_are_not_changed_by_evaluators_of_the_inputs(store):
    def empties(outputs):
        outputs["messages"].clear()
        return True

    experiment = evaluate(DATA, lambda inputs: inputs, [empties], store=store, progress=False)
    (row,) = experiment.rows()
    assert (row.inputs, row.outputs) == (DATA[0]["inputs"], DATA[0]["inputs"])


@dataclass
class Basket:
    things: list = field(default_factory=list)


def test_objects_are_copied_too(store):
    basket = Basket()
    experiment = evaluate([{"inputs": {"basket": basket}}], _fill, repetitions=3, store=store, progress=False)
    assert [row.outputs for row in experiment.rows()] == [1, 1, 1]
    assert basket.things == []


def _fill(basket):
    basket.things.append(1)
    return len(basket.things)


def test_what_cannot_be_copied_is_shared_and_said(store):
    data = iter([{"inputs": {"numbers": (n for n in range(3))}}])
    experiment = evaluate(data, lambda numbers: list(numbers), repetitions=2, store=store, progress=False)
    assert sorted(map(len, (row.outputs for row in experiment.rows()))) == [0, 3]
    said = "inputs with a generator are shared by all attempts and repetitions (cannot pickle 'generator' object)"
    assert said in str(experiment)
    assert said in str(type(experiment).load(store, experiment.id))


class Hostile:
    def __deepcopy__(self, memo):
        raise KeyError("never")


@pytest.mark.parametrize("value", [threading.Lock(), Hostile(), (Hostile(), [])])
def test_whatever_copying_raises_costs_no_run(value):
    said = []
    copied = ValueCopier(said.append).of({"a": value, "b": [1]})
    assert (copied["a"] is value, copied["b"], len(said)) == (True, [1], 1)


def test_values_that_refer_to_themselves():
    value = {"list": []}
    value["list"] += [value, value["list"]]
    copied = ValueCopier(pytest.fail).of(value)
    assert copied is not value
    assert copied["list"][0] is copied
    assert copied["list"][1] is copied["list"]


@pytest.mark.process
def test_nesting_that_is_too_deep_is_shared():
    value, said = [], []
    for _ in range(100_000):
        value = [value]
    assert ValueCopier(said.append).of(value) is value
    assert "nested too deeply" in said[0]
    while value:
        value = value[0]


def test_texts_are_not_copied():
    text = "x" * 1000
    value = {"text": text, "parts": [text]}
    copied = ValueCopier(pytest.fail).of(value)
    assert copied == value
    assert copied["parts"] is not value["parts"]
    assert copied["parts"][0] is text
