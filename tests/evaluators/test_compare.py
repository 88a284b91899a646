"""Experiments side by side in the terminal: the same contrasts as on the page, in words and as data."""

import pytest
from starlette.testclient import TestClient

from assay.collector.api import create_app
from assay.evaluators import compare, evaluate, evaluator

DATASET = [{"inputs": {"q": n}} for n in range(4)]


def scored(store, name, values, key="k", **settings):
    """An experiment whose score per example (or label, or exception) is given."""

    def judge(outputs):
        value = values[outputs]
        if isinstance(value, Exception):
            raise value
        return value

    judge = evaluator(key=key, **settings)(judge)
    return evaluate(DATASET, lambda q: q, [judge], store=store, name=name, progress=False)


@pytest.fixture
def both(store):
    first = scored(store, "first", [0.0, 0.0, 1.0, ValueError("x")])
    return compare(first, scored(store, "second", [1.0, 1.0, 0.5, 1.0]))


def test_pairs_are_examples_that_both_have_scored(both):
    moved = both.contrasts()["k"]
    assert (moved.pairs, moved.up, moved.down, moved.same) == (3, 2, 1, 0)
    assert (moved.only_before, moved.only_after) == (0, 1)
    assert both.significance() == {"k": moved.test}


def test_changes_are_the_examples_that_moved_in_the_order_of_the_rows(both):
    assert [(change.before, change.after, change.better) for change in both.changes()] == [
        (0.0, 1.0, True),
        (0.0, 1.0, True),
        (1.0, 0.5, False),
    ]
    assert "second: 2 scores better, 1 worse than in first" in str(both)


def test_lower_may_be_better(store):
    first = scored(store, "first", [0.0, 0.0, 1.0, 1.0], higher_is_better=False)
    both = compare(first, scored(store, "second", [1.0, 1.0, 0.5, 1.0], higher_is_better=False))
    assert "second: 1 scores better, 2 worse than in first" in str(both)
    assert [change.better for change in both.changes()] == [False, False, True]


def test_rounding_is_no_change(store):
    both = compare(scored(store, "first", [0.3] * 4), scored(store, "second", [0.1 + 0.2] * 4))
    assert list(both.changes()) == []
    assert both.contrasts()["k"].same == 4


def test_a_key_without_pairs_is_tested_nowhere_and_shown_all_the_same(store):
    both = compare(scored(store, "first", [1.0] * 4, "old"), scored(store, "second", ["good"] * 4, "new"))
    assert both.significance() == {}
    assert list(both.contrasts()) == ["old"]
    assert "good 4  n=4 labels" in str(both)


def test_a_third_is_compared_with_the_first(store, both):
    third = scored(store, "third", [0.0, 0.0, 0.0, 0.0])
    three = compare(*both.experiments, third)
    assert (three.contrasts(2)["k"].down, three.contrasts(2)["k"].same) == (1, 2)
    assert "third: 0 scores better, 1 worse than in first" in str(three)


def test_numbers_stand_in_a_frame(both):
    frame = both.to_pandas()
    first, second = frame.to_dict("records")
    assert (first["experiment"], first["n"], first["mean"], first["failed"]) == ("first", 3, pytest.approx(1 / 3), 1)
    assert (second["change"], second["pairs"], second["better"], second["worse"], second["same"]) == (0.5, 3, 2, 1, 0)


def test_the_page_says_the_same(store, both):
    ids = ",".join(experiment.id for experiment in both.experiments)
    with TestClient(create_app(store)) as client:
        text = client.get(f"/compare?ids={ids}").text
    test = both.significance()["k"]
    assert "<span>2 better</span><span>1 worse</span><span>0 same</span>" in text
    assert f"+{test.mean:.3g}<" in text
    assert f"<span>p {test.p:.3f}</span>" in text
    assert "1 without a pair" in text


def test_names_are_told_apart_only_where_they_are_the_same(store, both):
    assert both._cells()[0] == ["key", "first", "second", "change [95 %]", "p"]
    twins = compare(both.experiments[0], scored(store, "first", [1.0] * 4))
    assert twins._cells()[0] == ["key", "first (1)", "first (2)", "change [95 %]", "p"]


def test_what_failed_stands_beside_the_mean(both):
    [row] = both._cells()[1]
    assert row[1] == "0.3333  n=3, 1 failed"
    assert row[3].startswith("+0.5 [")
