"""What every ControlStore does. Each test takes `store`, which conftest.py gives in every implementation."""

from __future__ import annotations

import pytest

from assay.collector.protocols import NotFound, Store
from assay.collector.records import Example, Experiment


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
