"""Experiments side by side in the terminal: the same contrasts as on the page, in words and as data."""

import io

import pytest
from rich.console import Console
from starlette.testclient import TestClient

from spanwise.collector.api import create_app
from spanwise.evaluators import compare, evaluate, evaluator

DATASET = [{"inputs": {"q": n}} for n in range(4)]


def scored(store, name, values, key="k", dataset=DATASET, **settings):
    """An experiment whose score per example (or label, or exception) is given."""

    def judge(outputs):
        value = values[outputs]
        if isinstance(value, Exception):
            raise value
        return value

    judge = evaluator(key=key, **settings)(judge)
    return evaluate(dataset, lambda q: q, [judge], store=store, name=name, progress=False)


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
    assert "1 unpaired" in text


def test_names_are_told_apart_only_where_they_are_the_same(store, both):
    assert both._cells()[0] == ["key", "first", "second", "change [95 %]", "verdict"]
    twins = compare(both.experiments[0], scored(store, "first", [1.0] * 4))
    assert twins._cells()[0][:3] == ["key", "first (1)", "first (2)"]


def test_what_failed_stands_beside_the_mean(both):
    [row] = both._cells()[1]
    assert row[1] == "0.3333  n=3, 1 failed"
    assert row[3].startswith("+0.5 over 3 pairs\n[")


def tasks(store, name, crashes):
    """An experiment of thirty whose task is right, but raises in the last so many; before them it is half right."""

    def task(q):
        if q >= 30 - crashes:
            raise ConnectionError("away")
        return q if crashes or q < 15 else "wrong"

    rows = [{"inputs": {"q": n}, "reference_outputs": n} for n in range(30)]
    return evaluate(rows, task, ["exact"], store=store, name=name, progress=False)


def test_a_task_that_fails_does_not_look_as_good_as_what_is_left_of_it(store):
    both = compare(tasks(store, "half", 0), tasks(store, "crashing", 15))
    ok, exact = both.contrasts()["task_ok"], both.contrasts()["exact"]
    assert (ok.test.mean, ok.pairs, ok.verdict) == (-0.5, 30, "worse")
    assert (exact.pairs, exact.only_before, exact.verdict) == (15, 15, "same")
    rows = {row[0]: row[1:] for row in both._cells()[1]}
    assert rows["exact"] == ["0.5  n=30", "1  n=15, 15 skipped", "+0 over 15 pairs", "same\np 1.000"]
    assert rows["task_ok"][:2] == ["1  n=30", "0.5  n=30"]
    assert rows["task_ok"][2].startswith("-0.5 over 30 pairs\n[-0.7")
    assert rows["task_ok"][3] == "worse\np <0.001"


def test_where_no_task_has_failed_the_key_of_tasks_is_not_there(both):
    assert both.keys == ["k"]


def test_nobody_elses_score_passes_for_the_key_of_tasks(store):
    rows = [{"inputs": {"q": n}} for n in range(4)]
    sides = [evaluate(rows, task, store=store, progress=False) for task in (lambda q: q, lambda q: 1 / q)]
    for row in sides[1].rows():
        store.feedback(row.trace.trace_id, "task_ok", True)
    assert compare(*sides).contrasts()["task_ok"].test.mean == -0.25


def test_a_word_stands_for_every_verdict_and_colour_only_with_one(store):
    rows = [{"inputs": {"q": n}} for n in range(12)]
    sides = [scored(store, name, values, dataset=rows) for name, values in (("low", [0.0] * 12), ("high", [1.0] * 12))]
    clear, small = compare(*sides), compare(scored(store, "a", [0.0] * 4), scored(store, "b", [1.0] * 4))
    assert [both.contrasts()["k"].verdict for both in (clear, small)] == ["better", "unclear"]
    assert ("\x1b[1;32mbetter" in coloured(clear), "\x1b[1;3" in coloured(small).split("verdict")[1]) == (True, False)


def coloured(renderable):
    """As a terminal gets it."""
    text = io.StringIO()
    Console(file=text, width=140, force_terminal=True, color_system="standard").print(renderable)
    return text.getvalue()


def test_intervals_hold_for_all_keys_together_and_it_is_said(store):
    def keyed(outputs):
        return [{"key": f"k{n}", "score": outputs / (n + 1)} for n in range(4)]

    sides = [evaluate(DATASET, lambda q, s=s: q * s, [keyed], store=store, progress=False) for s in (1, 2)]
    both = compare(*sides)
    assert both.contrasts()["k0"].interval == both.significance()["k0"].interval(1 - 0.05 / 4)
    assert "95 % interval for all 4 differences together (Bonferroni)" in " ".join(str(both).split())


def test_two_experiments_are_compared_without_reading_what_their_runs_hold(store):
    class Scores:
        def __getattr__(self, name):
            assert name not in ("many", "trace")
            return getattr(store, name)

    scored(store, "first", [0.0, 0.0, 1.0, 1.0]), scored(store, "second", [1.0, 1.0, 0.5, 1.0])
    assert compare("first", "second", store=Scores()).contrasts()["k"].pairs == 4


def test_scoring_further_does_not_make_an_experiment_last_longer(store):
    first = scored(store, "first", [1.0] * 4)
    again = first.evaluate(["not_empty"])
    assert again.record.ended_ns == first.record.ended_ns
    assert again.record.metadata["totals"]["seconds"] == first.record.metadata["totals"]["seconds"]
