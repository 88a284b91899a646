"""Two experiments key by key: pairs by example, repetitions averaged first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.collector.statistics import TASK_OK, compare_scores, get_direction, mean_by_example, paired_test


def contrast(before, after, rising=None):
    """The contrast of one key, from scores by example."""
    before, after = ({id: {"k": score} for id, score in side.items()} for side in (before, after))
    return compare_scores(before, after, {} if rising is None else {"k": rising})["k"]


def test_repetitions_of_an_example_are_averaged_first():
    scores = mean_by_example([("a", "k", 1.0), ("b", "k", 0.0), ("a", "k", 0.0), ("a", "other", 0.5)])
    assert scores == {"a": {"k": 0.5, "other": 0.5}, "b": {"k": 0.0}}


def test_what_moved_and_how_far():
    moved = contrast({"a": 0.0, "b": 1.0, "c": 0.5, "d": 0.0}, {"a": 1.0, "b": 0.75, "c": 0.5, "d": 0.5})
    assert (moved.pairs, moved.up, moved.down, moved.same) == (4, 2, 1, 1)
    assert moved.differences == {"a": 1.0, "b": -0.25, "c": 0.0, "d": 0.5}
    assert moved.test == paired_test([-0.25, 0.0, 0.5, 1.0])


def test_examples_that_one_side_alone_has_scored_are_counted_and_no_pairs():
    moved = contrast({"a": 1.0, "b": 1.0, "c": 0.0}, {"c": 1.0, "d": 0.0})
    assert (moved.pairs, moved.only_before, moved.only_after, moved.test.mean) == (1, 2, 1, 1.0)


def test_without_pairs_there_is_nothing_to_test():
    moved = contrast({"a": 1.0}, {"b": 1.0})
    assert (moved.test, moved.pairs, moved.only_before, moved.only_after) == (None, 0, 1, 1)


def test_a_key_of_one_side_only_is_there_too():
    contrasts = compare_scores({"a": {"old": 1.0, "both": 1.0}}, {"a": {"new": 1.0, "both": 1.0}})
    assert list(contrasts) == ["both", "new", "old"]
    assert (contrasts["new"].only_after, contrasts["old"].only_before) == (1, 1)


@pytest.mark.parametrize(("rising", "better", "worse"), [(True, 2, 1), (False, 1, 2), (None, None, None)])
def test_the_good_side_decides_who_is_better(rising, better, worse):
    moved = contrast({"a": 0.0, "b": 0.0, "c": 1.0}, {"a": 1.0, "b": 1.0, "c": 0.0}, rising)
    assert (moved.better, moved.worse, moved.rising) == (better, worse, rising)


@pytest.mark.parametrize(("difference", "expected"), [(2e-9, 1), (5e-10, 0), (0.0, 0), (-5e-10, 0), (-2e-9, -1)])
def test_rounding_is_no_difference(difference, expected):
    assert get_direction(difference) == expected


SIDE = st.dictionaries(st.integers(0, 9).map(str), st.floats(-5, 5))


@given(SIDE, SIDE)
def test_every_example_is_counted_once_and_sides_mirror_each_other(before, after):
    if not before and not after:
        return
    there, back = contrast(before, after), contrast(after, before)
    assert there.up + there.down + there.same + there.only_before + there.only_after == len({**before, **after})
    assert (there.up, there.down, there.same) == (back.down, back.up, back.same)
    assert (there.only_before, there.only_after) == (back.only_after, back.only_before)


def many(scores):
    """Scores by example id."""
    return {str(place): score for place, score in enumerate(scores)}


@pytest.mark.parametrize(
    ("rising", "up", "down"), [(True, "better", "worse"), (False, "worse", "better"), (None, "higher", "lower")]
)
def test_a_verdict_is_a_word_of_the_keys_own_direction(rising, up, down):
    low, high = many([0.0] * 10), many([1.0] * 9 + [0.5])
    assert (contrast(low, high, rising).verdict, contrast(high, low, rising).verdict) == (up, down)


@pytest.mark.parametrize(
    ("after", "verdict"),
    [([0.0] * 30, "same"), ([1.0] * 2, "unclear"), ([1.0, 0.0, 0.0], "unclear"), ([5e-10] * 30, "same"), ([], None)],
)
def test_without_evidence_there_is_no_verdict(after, verdict):
    assert contrast(many([0.0] * 30), many(after), True).verdict == verdict


def test_the_more_keys_are_compared_the_more_it_takes():
    noise = [((i * 7919) % 13 - 6) / 10 for i in range(20)]
    before, after = ({str(i): {} for i in range(20)} for _ in range(2))
    for key in range(20):
        for i in range(20):
            before[str(i)][f"k{key}"], after[str(i)][f"k{key}"] = 0.0, noise[i] + 0.22
    alone = contrast(many([0.0] * 20), many([value + 0.22 for value in noise]), True)
    among = compare_scores(before, after, {"k3": True})["k3"]
    assert (alone.verdict, among.verdict, among.family) == ("better", "unclear", 20)
    assert among.interval[0] < 0 < alone.interval[0]
    assert among.test == alone.test


def test_keys_without_pairs_are_not_compared_and_several_others_are():
    before, after = {"a": {"both": 1.0, "old": 1.0}}, {"a": {"both": 1.0, "new": 1.0}}
    assert compare_scores(before, after)["both"].family == 1
    assert compare_scores(before, after, others=3)["both"].family == 3


def test_tasks_that_end_well_are_better():
    sides = ({str(i): {TASK_OK: ok} for i in range(20)} for ok in (1.0, 0.0))
    assert compare_scores(*sides)[TASK_OK].verdict == "worse"
