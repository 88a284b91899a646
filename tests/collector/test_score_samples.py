"""The interval of a mean: Wilson for rates, clustered by example, and None for too few scores."""

import math
import random

import numpy
import pytest
from scipy import stats

from spanwise.collector.statistics import Moments, ScoreSample, mean_interval


def sample(scores, examples=None):
    return ScoreSample(scores, [str(n) for n in range(len(scores))] if examples is None else examples)


def hall(values, mean, level=0.95):
    """Second implementation of the interval of a mean of independent values, around `mean`."""
    n = len(values)
    values = numpy.asarray(values, float)
    error = values.std(ddof=1) / math.sqrt(n)
    gamma = ((values - values.mean()) ** 3).mean() / n**2 / error**3
    t = stats.t.ppf((1 + level) / 2, n - 1)
    ends = [3 / gamma * (numpy.cbrt(1 + gamma * (sign * t - gamma / 6)) - 1) for sign in (1, -1)]
    return min(mean - t * error, mean - ends[0] * error), max(mean + t * error, mean - ends[1] * error)


@pytest.mark.parametrize(("passed", "n"), [(0, 1), (1, 1), (0, 20), (20, 20), (7, 10), (950, 1000)])
def test_a_rate_has_wilsons_interval(passed, n):
    expected = stats.binomtest(passed, n).proportion_ci(method="wilson")
    assert sample([True] * passed + [False] * (n - passed)).interval() == pytest.approx(tuple(expected), abs=1e-9)


def test_scores_have_the_interval_of_independent_values():
    scores = list(numpy.random.default_rng(1).exponential(size=30))
    assert sample(scores).interval() == pytest.approx(hall(scores, numpy.mean(scores)), rel=1e-6)


def test_scores_of_an_example_are_one_cluster():
    generator = numpy.random.default_rng(2)
    groups = [generator.normal(generator.normal(), 0.3, size=generator.integers(1, 5)) for _ in range(25)]
    scores = [float(score) for group in groups for score in group]
    examples = [str(index) for index, group in enumerate(groups) for _ in group]
    mean, size = numpy.mean(scores), len(scores) / len(groups)
    residuals = [(group.sum() - mean * len(group)) / size for group in groups]
    assert sample(scores, examples).interval() == pytest.approx(hall(residuals, mean), rel=1e-6)


def test_equal_repetitions_do_not_narrow_the_interval():
    scores = [0.1, 0.4, 0.4, 0.6, 0.7, 0.9, 0.2, 0.35]
    once = sample(scores).interval()
    often = sample(scores * 10, [str(n) for n in range(len(scores))] * 10).interval()
    assert often == pytest.approx(once, rel=1e-9)


def test_repeated_booleans_are_scores_between_0_and_1():
    examples = [str(n // 4) for n in range(80)]
    low, high = sample([n % 11 != 0 for n in range(80)], examples).interval()
    assert 0 < low < 73 / 80 < high <= 1


def test_repeated_booleans_that_hardly_differ_have_wilsons_interval_for_the_examples():
    expected = stats.binomtest(20, 20).proportion_ci(method="wilson")
    assert sample([1] * 80, [str(n // 4) for n in range(80)]).interval() == pytest.approx(tuple(expected), abs=1e-9)


def test_unequal_numbers_of_repetitions_count_as_fewer_examples():
    once = sample([1] * 11, [str(n) for n in range(11)]).interval()
    uneven = sample([1] * 20, [str(n) for n in range(10)] + ["10"] * 10).interval()  # 20² / (10 + 10²) = 3.6
    assert uneven[0] < sample([1] * 4).interval()[0] < once[0]


def test_the_order_of_scores_does_not_matter():
    generator = random.Random(3)
    pairs = [(generator.random(), str(generator.randrange(30))) for _ in range(100)]
    shuffled = generator.sample(pairs, len(pairs))
    assert sample(*zip(*pairs, strict=True)).interval() == sample(*zip(*shuffled, strict=True)).interval()


@pytest.mark.parametrize(
    "scores",
    [[], [0.5], [0.5] * 100, [0.5] * 100 + [0.6] * 4, [math.nan, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [math.inf] * 9],
    ids=["none", "one", "equal", "four others", "nan", "infinite"],
)
def test_too_few_scores_have_no_interval(scores):
    assert sample(scores).interval() is None


def test_rounding_errors_are_no_distinct_scores():
    assert sample([0.3] * 20 + [0.1 + 0.2] * 20).interval() is None


def test_one_example_has_no_interval_however_often_it_was_repeated():
    assert sample([float(n) for n in range(50)], ["e"] * 50).interval() is None


@pytest.mark.parametrize("scale", [1e-300, 1e200, 1.5e307])
def test_very_large_and_very_small_scores_have_an_interval(scale):
    low, high = sample([n * scale for n in range(1, 11)]).interval()
    expected = sample([float(n) for n in range(1, 11)]).interval()
    assert (low / scale, high / scale) == pytest.approx(expected, rel=1e-9)


def test_an_interval_that_leaves_the_range_of_floats_is_none():
    assert sample([0.2e308, 1.6e308, 1.7e308, 1.75e308, 1.78e308, 1.79e308]).interval() is None


def test_moments_of_very_large_values_do_not_overflow():
    low, high = mean_interval(Moments.of([n * 1e300 for n in range(1, 11)]))
    assert low < 5.5e300 < high
