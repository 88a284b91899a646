"""What every ControlStore does. Each test takes `store`, which conftest.py gives in every implementation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from looped_cases import loop_over
from spanwise.collector.errors import NotFound, Refused
from spanwise.collector.records import Document, Example, Experiment, Key, QueueItem, Rule, Target
from spanwise.collector.stores import Store


def test_examples_come_back_in_order(store: Store) -> None:
    given = [Example(inputs={"n": n}, reference_outputs=n) for n in range(5)]
    made = store.save_examples("numbers", given)
    assert (made.version, made.example_count) == (1, 5)
    assert store.examples("numbers") == given


def test_a_change_makes_a_version_and_no_change_makes_none(store: Store) -> None:
    first = [Example(inputs=1), Example(inputs=2)]
    store.save_examples("d", first)
    assert store.save_examples("d", first).version == 1
    assert store.save_examples("d", [Example(inputs=3)], remove=[first[0].id]).version == 2
    assert [one.inputs for one in store.examples("d")] == [2, 3]
    assert [one.inputs for one in store.examples("d", 1)] == [1, 2]


def test_an_unknown_dataset_names_the_closest(store: Store) -> None:
    store.save_examples("parcels", [Example(inputs=1)])
    with pytest.raises(NotFound, match="did you mean 'parcels'"):
        store.examples("parcel")


def test_experiments_are_listed_newest_first(store: Store) -> None:
    made = [Experiment(id=f"id{n}", name="same", dataset="d", started_ns=n) for n in range(3)]
    for one in made:
        store.save_experiment(one)
    assert store.experiments(dataset="d") == made[::-1]
    assert store.experiment("same") == made[2]
    assert store.experiment("id1") == made[1]


def test_replacing_all_examples_keeps_old_versions(store: Store) -> None:
    store.save_examples("d", [Example(inputs=n) for n in range(3)], description="numbers", kind="llm")
    made = store.save_examples("d", [Example(inputs=9)], replace=True)
    assert (made.version, made.example_count, made.description, made.kind) == (2, 1, "numbers", "llm")
    assert [one.version for one in store.versions("d")] == [2, 1]
    assert len(store.examples("d", 1)) == 3


def test_describing_anew_makes_a_version(store: Store) -> None:
    store.save_examples("d", [Example(inputs=1)])
    assert store.save_examples("d", [], schema={"inputs": {"type": "integer"}}).version == 2
    assert store.dataset("d").schema == {"inputs": {"type": "integer"}}
    assert store.dataset("d", 1).schema is None
    assert [one.name for one in store.datasets()] == ["d"]


def test_examples_by_split_and_in_slices(store: Store) -> None:
    store.save_examples("d", [Example(inputs=n, split="test" if n % 2 else "train") for n in range(6)])
    assert [one.inputs for one in store.examples("d", split="test")] == [1, 3, 5]
    assert [one.inputs for one in store.examples("d", limit=2, offset=3)] == [3, 4]


def test_a_changed_example_keeps_its_place(store: Store) -> None:
    store.save_examples("d", [Example(inputs=n, id=str(n)) for n in range(3)])
    store.save_examples("d", [Example(inputs="new", id="1")])
    assert [one.inputs for one in store.examples("d")] == [0, "new", 2]


def test_a_dataset_can_be_deleted(store: Store) -> None:
    store.save_examples("d", [Example(inputs=1)])
    assert store.delete_dataset("d")
    assert not store.delete_dataset("d")
    with pytest.raises(NotFound):
        store.examples("d")


def test_a_whole_example_comes_back_as_it_was(store: Store) -> None:
    document = Document("text", "id", 0.5, {"page": 1})
    given = Example(
        inputs={"q": "x"},
        reference_outputs=["a"],
        expected_documents=(document,),
        conditions=["c"],
        guidelines="g",
        categories=("a", "b"),
        history=[{"role": "user"}],
        base_id="b",
        metadata={"m": 1},
        split="s",
        id="mine",
        outputs="given",
        documents=(),
    )
    store.save_examples("d", [given])
    assert store.examples("d") == [given]


def test_an_experiment_can_be_updated_and_found_by_the_beginning_of_its_id(store: Store) -> None:
    one = Experiment(id="abcdef", name="n", dataset="d", evaluators=({"key": "exact"},))
    store.save_experiment(one)
    store.save_experiment(done := replace(one, status="finished", ended_ns=5))
    assert store.experiment("abc") == store.experiment("abcdef") == done
    with pytest.raises(NotFound, match="'zzz'"):
        store.experiment("zzz")


def test_an_experiment_changes_in_part(store: Store) -> None:
    store.save_experiment(one := Experiment(id="e1", name="n", dataset="d", metadata={"k": 1}))
    made = store.change_experiment("e1", status="finished", ended_ns=5)
    assert made == store.experiment("e1") == replace(one, status="finished", ended_ns=5)
    with pytest.raises(Refused, match="dataset"):
        store.change_experiment("e1", dataset="other")
    with pytest.raises(NotFound, match="'zzz'"):
        store.change_experiment("zzz", status="finished")


def test_rules_and_experiments_are_saved_in_batches(store: Store) -> None:
    store.save_rule(*(Rule(name=name, version="1", evaluators=()) for name in "ab"))
    assert [rule.name for rule in store.rules()] == ["a", "b"]
    store.save_experiment(*(Experiment(id=id, name="n", dataset="d") for id in "xy"))
    assert {one.id for one in store.experiments()} == {"x", "y"}


def test_keys(store: Store) -> None:
    made = [Key(id=f"k{n}", name="ci", sha256="0" * 64, project="p", scopes=("write",), created_ns=n) for n in (1, 2)]
    for key in made:
        store.save_key(key)
    assert store.keys() == made[::-1]
    assert store.delete_key("k1")
    assert store.keys() == [made[1]]


def test_what_waits_in_a_queue_is_not_put_in_twice(store: Store) -> None:
    item = QueueItem(queue="review", target=Target(trace_id="1" * 32), note="look")
    store.enqueue([item, item])
    store.enqueue([item])
    [waiting] = store.queue("review")
    assert replace(waiting, id="") == item
    assert store.queues() == {"review": 1}
    assert store.resolve(waiting.id, "done", "ann")
    assert (store.queue("review"), store.queues()) == ([], {"review": 0})
    assert store.queue("review", status=None)[0].assignee == "ann"
    assert not store.resolve("unknown", "done")


@loop_over("verb", ["queue", "decisions"])
def test_a_word_that_cannot_be_is_refused_not_found_nowhere(store: Store, verb: str) -> None:
    with pytest.raises(Refused, match="'wating'"):
        store.queue("review", status="wating") if verb == "queue" else store.decisions(verdict="wating")
