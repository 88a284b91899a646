"""Two experiments key by key: pairs by example, repetitions averaged first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.collector.statistics import by_example, compare, direction, paired


def contrast(before, after, rising=None):
    """The contrast of one key, from scores by example."""
    before, after = ({id: {"k": score} for id, score in side.items()} for side in (before, after))
    return compare(before, after, {} if rising is None else {"k": rising})["k"]


def test_repetitions_of_an_example_are_averaged_first():
    scores = by_example([("a", "k", 1.0), ("b", "k", 0.0), ("a", "k", 0.0), ("a", "other", 0.5)])
    assert scores == {"a": {"k": 0.5, "other": 0.5}, "b": {"k": 0.0}}


def test_what_moved_and_how_far():
    moved = contrast({"a": 0.0, "b": 1.0, "c": 0.5, "d": 0.0}, {"a": 1.0, "b": 0.75, "c": 0.5, "d": 0.5})
    assert (moved.pairs, moved.up, moved.down, moved.same) == (4, 2, 1, 1)
    assert moved.differences == {"a": 1.0, "b": -0.25, "c": 0.0, "d": 0.5}
    assert moved.test == paired([-0.25, 0.0, 0.5, 1.0])


def test_examples_that_one_side_alone_has_scored_are_counted_and_no_pairs():
    moved = contrast({"a": 1.0, "b": 1.0, "c": 0.0}, {"c": 1.0, "d": 0.0})
    assert (moved.pairs, moved.only_before, moved.only_after, moved.test.mean) == (1, 2, 1, 1.0)


def test_without_pairs_there_is_nothing_to_test():
    moved = contrast({"a": 1.0}, {"b": 1.0})
    assert (moved.test, moved.pairs, moved.only_before, moved.only_after) == (None, 0, 1, 1)


def test_a_key_of_one_side_only_is_there_too():
    contrasts = compare({"a": {"old": 1.0, "both": 1.0}}, {"a": {"new": 1.0, "both": 1.0}})
    assert list(contrasts) == ["both", "new", "old"]
    assert (contrasts["new"].only_after, contrasts["old"].only_before) == (1, 1)


@pytest.mark.parametrize(("rising", "better", "worse"), [(True, 2, 1), (False, 1, 2), (None, None, None)])
def test_the_good_side_decides_who_is_better(rising, better, worse):
    moved = contrast({"a": 0.0, "b": 0.0, "c": 1.0}, {"a": 1.0, "b": 1.0, "c": 0.0}, rising)
    assert (moved.better, moved.worse, moved.rising) == (better, worse, rising)


@pytest.mark.parametrize(("difference", "expected"), [(2e-9, 1), (5e-10, 0), (0.0, 0), (-5e-10, 0), (-2e-9, -1)])
def test_rounding_is_no_difference(difference, expected):
    assert direction(difference) == expected


SIDE = st.dictionaries(st.integers(0, 9).map(str), st.floats(-5, 5))


@given(SIDE, SIDE)
def test_every_example_is_counted_once_and_sides_mirror_each_other(before, after):
    if not before and not after:
        return
    there, back = contrast(before, after), contrast(after, before)
    assert there.up + there.down + there.same + there.only_before + there.only_after == len({**before, **after})
    assert (there.up, there.down, there.same) == (back.down, back.up, back.same)
    assert (there.only_before, there.only_after) == (back.only_after, back.only_before)
