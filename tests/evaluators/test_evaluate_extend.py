"""Resume may ask for more of the same; what would be something else is refused, with words."""

import pytest

from spanwise.evaluators import Experiment, datasets, evaluate
from spanwise.evaluators.experiments import CannotResume


def rows(count, start=0):
    return [{"inputs": {"q": f"Q{n}"}, "reference_outputs": f"Q{n}"} for n in range(start, count)]


class Asker:
    """Runs an experiment over examples, and knows what its task was asked."""

    def __init__(self, store):
        self.store, self.asked = store, []

    def answer(self, q):
        self.asked.append(q)
        return q

    def __call__(self, dataset, evaluators=("exact",), **options):
        self.asked.clear()
        options = {"name": "x", "resume": True, "concurrency": 1, "progress": False, **options}
        return evaluate(dataset, self.answer, evaluators, store=self.store, **options)


@pytest.fixture
def run(store):
    return Asker(store)


def test_more_repetitions(run, store):
    run(rows(3), repetitions=2)
    more = run(rows(3), repetitions=4)
    assert run.asked == [f"Q{n}" for n in (0, 0, 1, 1, 2, 2)]
    assert (more.summary().runs, more.summary()["exact"].n) == (12, 12)
    loaded = Experiment.load(store, "x")
    assert [row.repetition for row in loaded.rows()] == [0, 1, 2, 3] * 3
    assert loaded.summary()["exact"].variance == 0
    with pytest.raises(CannotResume, match="repetitions was 4 and is 2"):
        run(rows(3), repetitions=2)


def test_a_larger_limit_and_then_none(run):
    run(rows(5), limit=2)
    run(rows(5), limit=4)
    assert run.asked == ["Q2", "Q3"]
    assert run(rows(5)).summary().runs == 5
    assert run.asked == ["Q4"]
    with pytest.raises(CannotResume, match="limit was None and is 4"):
        run(rows(5), limit=4)


@pytest.mark.parametrize("seed", range(5))
def test_a_larger_random_sample_holds_the_smaller_one(run, seed):
    run(rows(40), limit=10, seed=seed)
    first = set(run.asked)
    more = run(rows(40), limit=25, seed=seed)
    assert (len(first), len(run.asked), more.summary().runs) == (10, 15, 25)
    assert first.isdisjoint(run.asked)


def test_examples_added_to_a_list(run, store):
    first = run(rows(3))
    more = run(rows(5))
    assert run.asked == ["Q3", "Q4"]
    assert (more.id, more.record.example_count, more.summary().runs) == (first.id, 5, 5)
    assert [row.reference_outputs for row in Experiment.load(store, "x").rows()] == [f"Q{n}" for n in range(5)]


def test_examples_added_to_a_dataset_of_the_store(run, store):
    datasets.save(store, "d", rows(3))
    run("d")
    datasets.save(store, "d", rows(5, start=3))
    assert run("d").record.dataset_version == 2
    assert run.asked == ["Q3", "Q4"]


def test_examples_added_in_front_come_in_the_datasets_order(run):
    run(rows(4, start=2))
    assert [row.outputs for row in run(rows(4)).rows()] == [f"Q{n}" for n in range(4)]
    assert run.asked == ["Q0", "Q1"]
    with pytest.raises(CannotResume, match="limit was None"):
        run(rows(4), limit=2)


def test_a_changed_example_is_named_with_its_fields(run, store):
    datasets.save(store, "d", [{"id": "one", **rows(1)[0]}])
    run("d")
    datasets.save(store, "d", [{"id": "one", "inputs": {"q": "Q0"}, "reference_outputs": "other"}])
    with pytest.raises(CannotResume, match=r"example one changed \(reference_outputs\)"):
        run("d")
    assert run.asked == []


def test_examples_that_are_gone_are_named(run, store):
    datasets.save(store, "d", [{"id": f"id{n}", **row} for n, row in enumerate(rows(9))])
    run("d")
    datasets.save(store, "d", [{"id": "id0", **rows(1)[0]}], replace=True)
    with pytest.raises(CannotResume, match=r"example id1 was removed; .*; 5 more were removed"):
        run("d")


def test_another_dataset_is_refused(run, store):
    datasets.save(store, "d", rows(3))
    datasets.save(store, "e", rows(5))
    run("d")
    with pytest.raises(CannotResume, match="dataset was 'd@1' and is 'e@1'"):
        run("e")
    with pytest.raises(CannotResume, match="dataset was 'd@1' and is 'x'"):
        run(iter(rows(3)))


def test_a_sample_of_a_dataset_that_has_grown_is_refused(run):
    run(rows(9), limit=3, seed=1)
    with pytest.raises(CannotResume, match="the random sample"):
        run(rows(12), limit=5, seed=1)
    assert run(rows(12), seed=1).summary().runs == 12


def test_a_limit_over_examples_added_in_front_is_refused(run):
    run(rows(5, start=2), limit=2)
    with pytest.raises(CannotResume, match="inserted before existing ones"):
        run(rows(5), limit=3)


def test_a_dataset_that_was_deleted_since_cannot_be_compared(run, store):
    datasets.save(store, "d", rows(1))
    datasets.save(store, "d", rows(3))
    run("d")
    store.delete_dataset("d")
    datasets.save(store, "d", rows(4))
    with pytest.raises(CannotResume, match=r"its examples cannot be compared: .*version 2"):
        run("d")


def test_another_set_of_evaluators_and_more_examples_at_once(run):
    run(rows(2))
    more = run(rows(3), evaluators=["exact", "not_empty"], repetitions=2)
    assert run.asked == ["Q0", "Q1", "Q2", "Q2"]
    assert [more.summary()[key].n for key in ("exact", "not_empty")] == [6, 6]


def test_a_stream_may_go_on(run):
    run(iter(rows(2)))
    run(iter(rows(4)))
    assert run.asked == ["Q2", "Q3"]


def test_a_few_examples_are_no_resuming_of_them_all(run):
    few = [example.id for example in datasets.read(rows(2))]
    run(rows(5))
    with pytest.raises(CannotResume, match=r"only was None and is \["):  # else the others' failures would be no more
        run(rows(5), only=few[:1])
    run(rows(5), name="y", only=few[:1])
    run(rows(5), name="y-only", only=few)
    assert run.asked == ["Q1"]
