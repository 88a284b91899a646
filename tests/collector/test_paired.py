"""Paired differences between experiments: interval and p-value."""

import pytest

from lazy_modules import lazy_importorskip
from looped_cases import loop_over
from spanwise.collector.statistics import paired_test
from spanwise.collector.statistics.quantiles import t_quantile

numpy = pytest.importorskip("numpy")
stats = lazy_importorskip("scipy.stats")


def test_few_differences_are_tested_exactly():
    result = paired_test([1.0] * 5 + [0.0] * 3)
    assert (result.n, result.mean, result.p) == (8, 0.625, 2 / 2**5)


@loop_over("n", [2, 3, 5, 6, 7, 10, 40, 2000])
def test_the_interval_is_that_of_the_t_distribution(n):
    differences = [((i * 7919) % 13 - 4) / 10 for i in range(n)]
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    result = paired_test(differences)
    assert (result.low, result.high) == (
        pytest.approx(low, rel=2e-3, abs=2e-4),
        pytest.approx(high, rel=2e-3, abs=2e-4),
    )


def steps(n):
    """Differences in tenths that lean a little to one side."""
    return [((i * 7919) % 13) * 10 - 56 for i in range(n)]


def exact_p(tenths):
    """The share of all 2^n sign patterns whose sum is at least as far from 0: the distribution, one sign at a time."""
    reach = sum(map(abs, tenths))
    ways = numpy.zeros(2 * reach + 1)
    ways[reach] = 1.0
    for step in tenths:
        ways = (numpy.roll(ways, step) + numpy.roll(ways, -step)) / 2
    sums = numpy.abs(numpy.arange(-reach, reach + 1))
    return float(ways[sums >= abs(sum(tenths))].sum())


@loop_over(("n", "tolerance"), [(2, 1e-12), (11, 1e-12), (12, 1e-12), (13, 0.01), (60, 0.01), (400, 0.01)])
def test_the_p_is_the_share_of_sign_patterns_that_go_as_far(n, tolerance):
    tenths = steps(n)
    assert paired_test([step / 100 for step in tenths]).p == pytest.approx(exact_p(tenths), abs=tolerance)


@pytest.mark.process
@pytest.mark.parametrize(("n", "tolerance"), [(1000, 0.012), (1001, 0.002)])
def test_beyond_a_thousand_differences_the_normal_distribution_is_as_good(n, tolerance):
    tenths = [(i * 37) % 41 - 20 + (i < 400) or 1 for i in range(n)]
    assert paired_test([step / 10 for step in tenths]).p == pytest.approx(exact_p(tenths), abs=tolerance)


@pytest.mark.parametrize("n", [13, 60])
def test_many_differences_are_as_significant_as_scipy_finds(n):
    differences = [step / 100 for step in steps(n)]
    expected = stats.permutation_test(
        (differences,),
        lambda d, axis: d.mean(axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=20_000,
        rng=1,
    ).pvalue
    assert paired_test(differences).p == pytest.approx(expected, abs=0.015)


def test_the_p_is_the_same_every_time_and_in_either_direction():
    differences = [step / 100 for step in steps(60)]
    assert paired_test(differences).p == paired_test(differences).p == paired_test([-step for step in differences]).p


def test_what_sampling_never_sees_is_rare_and_not_impossible():
    assert 0 < paired_test([1.0] * 40).p < 0.001


def test_pairs_without_a_difference_change_the_interval_and_not_the_p():
    some, more = paired_test([0.1, 0.2, 0.4, -0.1]), paired_test([0.1, 0.2, 0.4, -0.1, 0.0, 0.0])
    assert (some.p, more.n) == (more.p, 6)
    assert (some.low, some.high) != (more.low, more.high)


def test_no_difference_is_no_significance():
    assert paired_test([0.0, 0.0]).p == 1.0
    assert (paired_test([0.5]).low, paired_test([0.5]).p) == (None, 1.0)
    with pytest.raises(ValueError, match="no pairs"):
        paired_test([])


@loop_over("freedom", [1, 2, 3, 4, 9, 30, 199, 200, 201, 10_000])
@loop_over("probability", [0.5, 0.9, 0.975, 0.995, 0.99975])
def test_quantiles_of_t_are_those_of_scipy(freedom, probability):
    assert t_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("probability", "freedom"), [(0.4, 5), (1.0, 5), (0.975, 0)])
def test_a_quantile_that_there_is_not_is_refused(probability, freedom):
    with pytest.raises(ValueError, match="t_quantile needs"):
        t_quantile(probability, freedom)


@pytest.mark.parametrize("level", [0.9, 0.95, 0.995])
def test_the_interval_at_another_level_is_wider_or_narrower(level):
    differences = [step / 100 for step in steps(12)]
    expected = stats.ttest_1samp(differences, 0).confidence_interval(level)
    assert paired_test(differences).interval(level) == pytest.approx(tuple(expected))


@pytest.mark.parametrize("differences", [[0.0] * 30, [1.0] * 2, [0.1 + 0.2, 0.3], [0.5]])
def test_differences_that_are_all_alike_have_no_interval_of_width_zero(differences):
    test = paired_test(differences)
    assert (test.low, test.high, test.error, test.interval()) == (None, None, None, None)


@loop_over(
    ("differences", "level", "beyond"),
    [
        ([1.0] * 2, 0.95, False),
        ([1.0] * 5, 0.95, False),
        ([1.0] * 6, 0.95, True),
        ([1.0] * 6, 0.99, False),
        ([1.0] * 8, 0.99, True),
        ([0.0] * 100, 0.95, False),
        ([0.9, 1.0, 1.1], 0.95, False),  # its interval is far from 0; three signs may be alike by chance
        ([0.1] * 9 + [-30.0], 0.95, False),  # mean and signs disagree
        ([0.01] * 40 + [0.02] * 40, 0.9999, True),
    ],
)
def test_chance_is_ruled_out_by_interval_and_permutations_together(differences, level, beyond):
    assert paired_test(differences).beyond_chance(level) is beyond
    assert paired_test([-difference for difference in differences]).beyond_chance(level) is beyond
