"""One key's outcomes: labels, errors and skips are no zeros, and no number depends on the order, or on who counted what."""

from fractions import Fraction
from math import inf, isinf, isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spanwise.collector.records import Feedback, FeedbackStats, Target
from spanwise.collector.statistics import Tally, exact_expansion, get_feedback_slot, percentile, select_latest
from spanwise.collector.statistics.feedback_tally import MAX_PENDING_PARTS, ExactSum

TARGET = Target(trace_id="1" * 32)
SCORES = st.floats(-1e12, 1e12) | st.booleans()
VALUES = SCORES | st.sampled_from(["good", "bad"]) | st.none() | st.just(ValueError("x"))
WEIGHTS = st.just(1.0) | st.none() | st.floats(0, 1e6)


def said(value, target=TARGET, **more):
    """A score, a label, an error (an exception), a skip (None), or a score and a label (a pair)."""
    if value is None:
        return Feedback(target=target, key="k", outcome="skip", comment="nothing", **more)
    if isinstance(value, Exception):
        return Feedback(target=target, key="k", outcome="error", error=str(value), **more)
    score, label = value if isinstance(value, tuple) else (None, value) if isinstance(value, str) else (value, None)
    return Feedback(target=target, key="k", score=score, label=label, **more)


def tallied(values, weights=None, **settings):
    tally = Tally(**settings)
    for value, weight in zip(values, weights or [1.0] * len(values), strict=True):
        tally.add(said(value), weight)
    return tally


def test_labels_are_no_scores():
    stats = tallied([1.0, "cannot tell", "cannot tell"]).stats("k")
    assert (stats.n, stats.mean, stats.labelled, stats.labels) == (1, 1.0, 2, {"cannot tell": 2})
    assert (stats.minimum, stats.maximum) == (1.0, 1.0)


def test_a_label_beside_a_score_is_one_outcome():
    stats = tallied([(0.5, "so so"), (1.0, "good"), "good"]).stats("k")
    assert (stats.n, stats.mean, stats.labelled, stats.labels) == (2, 0.75, 1, {"so so": 1, "good": 2})


def test_nothing_said_is_nothing_known():
    assert Tally().stats("k") == FeedbackStats(key="k")


def test_who_passes():
    tally = tallied([0.2, 0.5, 0.9], passes=lambda score: score >= 0.5)
    assert (tally.judged, tally.passed, tally.share) == (3, 2, pytest.approx(2 / 3))
    assert tallied([True, False, 0.7]).share == 0.5
    assert tallied([0.7, "good"]).share is None


def test_adding_says_whether_it_passes():
    tally = Tally()
    assert [tally.add(said(value)) for value in (True, False, 1.0, "good", None)] == [True, False, None, None, None]


@given(st.lists(VALUES, max_size=40))
def test_every_outcome_is_counted_once(values):
    tally = tallied(values)
    assert tally.n + tally.labelled + tally.failed + tally.skipped == len(values)
    assert tally.failed == sum(isinstance(value, Exception) for value in values)
    assert tally.skipped == values.count(None)


@pytest.mark.process
@given(st.lists(SCORES, min_size=1, max_size=40))
def test_the_mean_is_the_exact_sum_over_n(scores):
    tally = tallied(scores)
    assert tally.mean == float(sum(map(Fraction, scores))) / len(scores)
    assert (tally.minimum, tally.maximum) == (min(scores), max(scores))


# weights


@given(st.lists(st.tuples(SCORES, WEIGHTS), max_size=30))
def test_weighted_means_and_shares_are_those_of_the_definition(pairs):
    tally = tallied(*zip(*pairs, strict=True)) if pairs else Tally()
    known = [(Fraction(float(score)), Fraction(weight)) for score, weight in pairs if weight is not None]
    weight = sum(w for _, w in known)
    assert tally.n == len(pairs)
    assert tally.stats("k").unweighted == len(pairs) - len(known)
    if not weight:
        assert tally.mean is None
    else:
        assert tally.mean == pytest.approx(float(sum(w * y for y, w in known) / weight), rel=1e-9, abs=1e-3)


@given(st.lists(st.tuples(st.booleans(), WEIGHTS), max_size=30))
def test_the_weighted_share_that_passes(pairs):
    tally = tallied(*zip(*pairs, strict=True)) if pairs else Tally()
    weight = sum(weight for _, weight in pairs if weight is not None)
    passing = sum(weight for score, weight in pairs if weight is not None and score)
    assert tally.share == (pytest.approx(passing / weight) if weight else None)


def test_weighted_scores_that_cannot_pass_are_in_no_share():
    tally = tallied([True, False, 0.3, True], [3.0, 1.0, 6.0, 1.0])
    assert (tally.share, tally.judged, tally.passed) == (0.8, 3, 2)
    assert tallied([0.3, 0.4], [2.0, 1.0]).share is None


def test_the_effective_number_is_kishs():
    assert tallied([1.0, 0.0, 0.5], [2.0, 1.0, 1.0]).effective == pytest.approx(16 / 6)
    assert tallied([1.0, 0.0], [5.0, 5.0]).effective == pytest.approx(2)
    assert tallied([1.0, 0.0]).effective is None
    assert tallied([1.0], [0.0]).effective == 0.0


def test_a_score_of_unknown_weight_is_counted_and_left_out():
    stats = tallied([1.0, 0.0], [1.0, None]).stats("k")
    assert (stats.n, stats.mean, stats.unweighted, stats.minimum, stats.effective) == (2, 1.0, 1, 0.0, 1.0)
    assert tallied([0.5], [None]).mean is None
    assert tallied([True], [None]).share is None


@pytest.mark.parametrize("weight", [-0.5, inf, float("nan")])
def test_a_weight_that_is_none_is_refused_and_nothing_is_counted(weight):
    tally = Tally()
    with pytest.raises(ValueError, match=f"got {weight!r}"):
        tally.add(said(1.0), weight)
    assert tally.stats("k").n == tally.judged == 0


# merging


@given(st.lists(st.tuples(VALUES, WEIGHTS), max_size=40), st.integers(0, 40), st.integers(0, 40), st.randoms())
def test_merging_is_associative_and_the_same_as_counting_all(pairs, one, other, random):
    cuts = sorted((one, other))
    parts = [pairs[: cuts[0]], pairs[cuts[0] : cuts[1]], pairs[cuts[1] :]]
    a, b, c = (tallied(*zip(*part, strict=True)) if part else Tally() for part in parts)
    left, right = Tally(), Tally()
    for tally in (a, b):
        left.merge(tally)
    left.merge(c)
    b.merge(c)
    right.merge(a)
    right.merge(b)
    shuffled = random.sample(pairs, len(pairs))
    whole = tallied(*zip(*shuffled, strict=True)) if shuffled else Tally()
    assert left.stats("k") == right.stats("k") == whole.stats("k")
    assert (left.judged, left.passed) == (whole.judged, whole.passed)


def test_counts_of_elsewhere_are_added():
    tally = tallied([0.0, "a"])
    tally.add_counts(n=3, total=3.0, minimum=0.5, maximum=1.5, labelled=2, labels={"a": 1, "b": 1}, failed=4, skipped=5)
    stats = tally.stats("k")
    assert (stats.n, stats.mean, stats.minimum, stats.maximum) == (4, 0.75, 0.0, 1.5)
    assert (stats.labelled, stats.labels, stats.failed, stats.skipped) == (3, {"a": 2, "b": 1}, 4, 5)


# sums


@given(st.lists(st.floats(-1e300, 1e300), max_size=30))
def test_an_expansion_has_the_same_exact_sum_and_begins_with_it(values):
    parts = exact_expansion(values)
    assert sum(map(Fraction, parts)) == sum(map(Fraction, values))
    assert not parts or parts[0] == float(sum(map(Fraction, values)))


def test_many_numbers_take_little_memory_and_lose_nothing():
    total, numbers = (
        ExactSum(),
        [0.1 * place * (-1) ** (place % 3) for place in range(5 * MAX_PENDING_PARTS)] + [1e16, 1.0, -1e16],
    )
    for number in numbers:
        total.add(number)
        assert len(total.parts) <= MAX_PENDING_PARTS
    assert float(total) == float(sum(map(Fraction, numbers)))


def test_many_scores_take_little_memory_too():
    scores = [1e16, *[0.1] * (3 * MAX_PENDING_PARTS), -1e16]
    tally = tallied(scores)
    assert len(tally.plain.parts) < MAX_PENDING_PARTS
    assert tally.mean == float(sum(map(Fraction, scores))) / len(scores)


def test_what_is_too_large_for_a_float_is_infinite_and_no_error():
    tally = tallied([1.7e308] * (MAX_PENDING_PARTS + 5))
    assert isinf(tally.mean)
    assert isnan(float(ExactSum([inf, -inf])))
    assert exact_expansion([inf, 1.0]) == [inf]


# percentiles


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=60), st.integers(1, 100))
def test_a_percentile_is_the_smallest_value_that_enough_do_not_exceed(values, percent):
    enough = [value for value in values if 100 * sum(other <= value for other in values) >= percent * len(values)]
    assert percentile(sorted(values), percent) == min(enough)


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1], 0), ([1], 101)])
def test_there_is_no_percentile_of_nothing_nor_beyond_all(values, percent):
    with pytest.raises(ValueError, match="percentile needs at least one value"):
        percentile(values, percent)


# what replaces what


def spoken(score, at, **more):
    return said(score, created_ns=at, **more)


def test_a_later_version_replaces_an_earlier_one_in_either_order():
    rows = [spoken(1.0, 2, version="2"), spoken(0.0, 1, version="1")]
    assert [row.score for row in select_latest(rows)] == [row.score for row in select_latest(rows[::-1])] == [1.0]


def test_of_equally_old_ones_the_last_counts():
    assert [row.score for row in select_latest([spoken(0.0, 1), spoken(1.0, 1, version="2")])] == [1.0]


@pytest.mark.parametrize(
    "other",
    [
        {"rule": "b"},
        {"author": "bob"},
        {"source": "model"},
        {"target": Target(trace_id="1" * 32, span_id="2" * 16)},
        {"target": Target(trace_id="3" * 32)},
    ],
)
def test_what_stands_elsewhere_does_not_hide(other):
    rows = [spoken(0.0, 1, rule="a", author="ann"), spoken(1.0, 2, **{"rule": "a", "author": "ann", **other})]
    assert select_latest(rows) == rows
    assert get_feedback_slot(rows[0]) != get_feedback_slot(rows[1])


@pytest.mark.parametrize("author", [None, ""])
def test_people_without_a_name_are_not_the_same_person(author):
    votes = [spoken(score, 1, source="human", author=author, id=str(score)) for score in (0.0, 1.0)]
    assert select_latest(votes) == votes
    assert len(select_latest([spoken(score, 1, author=author, id=str(score)) for score in (0.0, 1.0)])) == 1


def test_the_order_is_that_of_the_first_of_each():
    rows = [spoken(0.0, 1), spoken(0.5, 1, rule="b"), spoken(1.0, 2)]
    assert [row.score for row in select_latest(rows)] == [1.0, 0.5]
