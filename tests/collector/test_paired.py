"""Tests and intervals of paired data, checked against scipy, enumeration or a second implementation."""

from itertools import product
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazy_modules import lazy_importorskip
from looped_cases import loop_over
from spanwise.collector.statistics import (
    Moments,
    bhapkar_test,
    binomial_test,
    chi_square_tail,
    examples_for_mean,
    examples_for_proportions,
    hall_interval,
    limit_spread,
    mcnemar_test,
    mean_interval,
    paired_proportions_interval,
    sign_flip_test,
    t_quantile,
    tango_statistic,
    wilson_interval,
)

numpy = pytest.importorskip("numpy")
stats = lazy_importorskip("scipy.stats")


# --- McNemar and sign flips -------------------------------------------------------------------------------------------


@loop_over(("losses", "wins"), [(0, 0), (0, 1), (0, 6), (6, 0), (3, 9), (40, 60), (10, 10), (499, 612)])
def test_mcnemar_is_the_exact_binomial_test_of_scipy(losses, wins):
    expected = stats.binomtest(wins, losses + wins).pvalue if losses + wins else 1.0
    assert mcnemar_test(losses, wins) == pytest.approx(expected, rel=1e-9)


def test_mcnemar_of_ten_thousand_pairs_is_a_number():
    assert mcnemar_test(0, 10_000) == 0.0
    assert mcnemar_test(5_000, 5_000) == 1.0


@loop_over(("losses", "wins"), [(losses, wins) for losses in range(7) for wins in range(6)])
def test_up_to_twelve_discordant_pairs_sign_flips_and_mcnemar_agree(losses, wins):
    differences = [-1.0] * losses + [1.0] * wins
    assert sign_flip_test(differences) == pytest.approx(mcnemar_test(losses, wins), rel=1e-12)


def steps(n):
    """Return differences in tenths that tend a little to one side."""
    return [((i * 7919) % 13) * 10 - 56 for i in range(n)]


def exact_p(tenths):
    """Return the share of all 2^n sign patterns whose sum is at least as far from 0, adding one sign at a time."""
    reach = sum(map(abs, tenths))
    ways = numpy.zeros(2 * reach + 1)
    ways[reach] = 1.0
    for step in tenths:
        ways = (numpy.roll(ways, step) + numpy.roll(ways, -step)) / 2
    sums = numpy.abs(numpy.arange(-reach, reach + 1))
    return float(ways[sums >= abs(sum(tenths))].sum())


@loop_over(("n", "tolerance"), [(2, 1e-12), (11, 1e-12), (12, 1e-12), (13, 0.01), (60, 0.01), (400, 0.01)])
def test_p_of_sign_flips_is_the_share_of_patterns_at_least_as_extreme(n, tolerance):
    tenths = steps(n)
    assert sign_flip_test([step / 100 for step in tenths]) == pytest.approx(exact_p(tenths), abs=tolerance)


@pytest.mark.process
@loop_over(("n", "tolerance"), [(1000, 0.012), (1001, 0.002)])
def test_beyond_a_thousand_differences_the_normal_distribution_is_as_good(n, tolerance):
    tenths = [(i * 37) % 41 - 20 + (i < 400) or 1 for i in range(n)]
    assert sign_flip_test([step / 10 for step in tenths]) == pytest.approx(exact_p(tenths), abs=tolerance)


def test_p_is_the_same_every_time_and_in_either_direction():
    differences = [step / 100 for step in steps(60)]
    p = sign_flip_test(differences)
    assert p == sign_flip_test(differences) == sign_flip_test([-step for step in differences])


def test_p_below_the_resolution_of_the_sample_comes_from_the_normal_distribution():
    assert sign_flip_test([1.0] * 40) == pytest.approx(2 * stats.norm.sf(sqrt(40)), rel=1e-6)


def test_differences_of_zero_do_not_change_p():
    some = [0.1, 0.2, 0.4, -0.1]
    assert sign_flip_test(some) == sign_flip_test([*some, 0.0, 0.0])
    assert sign_flip_test([0.0, 0.0]) == sign_flip_test([]) == 1.0


# --- Tango ------------------------------------------------------------------------------------------------------------


def tango_by_search(losses, wins, n, difference):
    """Return the score statistic with the restricted maximum likelihood found on a fine grid."""
    low, high = max(0.0, -difference), (1 - difference) / 2
    best, likeliest = -numpy.inf, 0.0
    for p_losses in numpy.linspace(low, high, 200_001):
        p_wins = p_losses + difference
        cells = ((losses, p_losses), (wins, p_wins), (n - losses - wins, 1 - p_losses - p_wins))
        if any(share < -1e-12 or (count and share <= 0) for count, share in cells):
            continue
        likelihood = sum(count * numpy.log(share) for count, share in cells if count)
        if likelihood > best:
            best, likeliest = likelihood, p_losses
    variance = n * (2 * likeliest + difference - difference**2)
    return (wins - losses - n * difference) / sqrt(variance)


@pytest.mark.process
@loop_over(
    ("losses", "wins", "n", "difference"),
    [(6, 2, 44, -0.1), (0, 0, 20, 0.05), (3, 9, 40, 0.2), (0, 5, 30, -0.02), (5, 0, 30, 0.1)],
)
def test_tango_is_the_score_statistic_at_the_restricted_maximum_likelihood(losses, wins, n, difference):
    expected = tango_by_search(losses, wins, n, difference)
    assert tango_statistic(losses, wins, n, difference) == pytest.approx(expected, abs=2e-3)


def test_tango_of_the_observed_difference_is_zero():
    assert tango_statistic(2, 6, 40, 0.1) == pytest.approx(0.0, abs=1e-12)


def test_tango_is_mcnemars_statistic_for_no_difference():
    assert tango_statistic(3, 9, 40, 0.0) == pytest.approx(6 / sqrt(12))


@pytest.mark.parametrize(("difference", "expected"), [(1.0, -numpy.inf), (2.5, -numpy.inf), (-1.0, numpy.inf)])
def test_no_difference_is_beyond_one(difference, expected):
    assert tango_statistic(1, 2, 10, difference) == expected


@loop_over(("successes", "n", "share"), [(0, 20, 0.2), (1, 20, 0.2), (5, 100, 0.1), (400, 10_000, 0.05), (10, 10, 0.5)])
def test_the_binomial_probability_is_that_of_scipy(successes, n, share):
    assert binomial_test(successes, n, share) == pytest.approx(stats.binom.cdf(successes, n, share), rel=1e-9)


# --- Bhapkar and chi-square -------------------------------------------------------------------------------------------


def test_bhapkar_of_two_labels_agrees_with_its_closed_form():
    gains, discordant, n = 15 - 5, 15 + 5, 50
    expected = gains**2 / (discordant - gains**2 / n)
    table = {("a", "b"): 5, ("b", "a"): 15, ("a", "a"): 20, ("b", "b"): 10}
    assert bhapkar_test(table) == pytest.approx(stats.chi2.sf(expected, 1), abs=1e-12)


def test_bhapkar_agrees_with_the_covariance_of_all_but_one_label():
    # Bhapkar (1966): d' S⁻¹ d over k − 1 labels, with the covariance of the differences of the marginal frequencies
    counts = numpy.array([[31, 7, 2, 4], [3, 42, 5, 9], [6, 1, 28, 3], [2, 8, 4, 55]], dtype=float)
    n, gains = counts.sum(), (counts.sum(axis=1) - counts.sum(axis=0))[:-1]
    covariance = -(counts + counts.T)[:-1, :-1] - numpy.outer(gains, gains) / n
    for i in range(3):
        covariance[i, i] = counts[i].sum() + counts[:, i].sum() - 2 * counts[i, i] - gains[i] ** 2 / n
    statistic = gains @ numpy.linalg.solve(covariance, gains)
    table = {(str(i), str(j)): int(counts[i][j]) for i, j in product(range(4), range(4))}
    assert bhapkar_test(table) == pytest.approx(stats.chi2.sf(statistic, 3), abs=1e-12)


def test_bhapkar_agrees_with_the_published_example_of_agreement_on_vision():
    # Stuart (1955): unaided distance vision of 7,477 women; Bhapkar's statistic is 11.9757 with 3 degrees of freedom
    counts = [[1520, 266, 124, 66], [234, 1512, 432, 78], [117, 362, 1772, 205], [36, 82, 179, 492]]
    table = {(str(i), str(j)): counts[i][j] for i, j in product(range(4), range(4))}
    assert bhapkar_test(table) == pytest.approx(stats.chi2.sf(11.9757, 3), abs=1e-6)


def test_labels_that_do_not_change_or_only_swap_are_no_evidence():
    assert bhapkar_test({}) == bhapkar_test({("a", "a"): 9}) == 1.0
    assert bhapkar_test({("a", "b"): 4, ("b", "a"): 4}) == pytest.approx(1.0)


def test_all_labels_that_change_alike_are_certain():
    assert bhapkar_test({("good", "bad"): 20}) == 0.0


def test_a_thousand_labels_are_tested():
    table = {(str(i), str((i + 1) % 1_000)): 2 for i in range(1_000)}
    assert bhapkar_test(table) == pytest.approx(1.0)
    assert 0.0 <= bhapkar_test({(str(i), str(i // 2)): 2 for i in range(1_000)}) <= 1.0


@loop_over("freedom", [1, 2, 3, 8, 33, 200])
@loop_over("value", [0.0, 0.3, 4.0, 30.0, 250.0])
def test_chi_square_is_that_of_scipy(value, freedom):
    assert chi_square_tail(value, freedom) == pytest.approx(stats.chi2.sf(value, freedom), abs=1e-9)


def test_chi_square_of_many_degrees_of_freedom_is_approximated():
    assert chi_square_tail(1_050.0, 1_000) == pytest.approx(stats.chi2.sf(1_050.0, 1_000), abs=1e-4)


# --- intervals --------------------------------------------------------------------------------------------------------


@loop_over("freedom", [1, 2, 3, 4, 9, 30, 199, 300, 301, 10_000])
@loop_over("probability", [0.5, 0.9, 0.975, 0.995, 0.99975])
def test_quantiles_of_t_are_those_of_scipy(freedom, probability):
    assert t_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("probability", "freedom"), [(0.4, 5), (1.0, 5), (0.975, 0)])
def test_a_quantile_that_does_not_exist_is_refused(probability, freedom):
    with pytest.raises(ValueError, match="t_quantile needs"):
        t_quantile(probability, freedom)


@loop_over(("successes", "n"), [(0, 1), (1, 1), (8, 10), (0, 40), (40, 40), (333, 1000)])
@loop_over("level", [0.9, 0.95, 0.999])
def test_wilson_is_that_of_scipy(successes, n, level):
    expected = stats.binomtest(successes, n).proportion_ci(level, method="wilson")
    assert wilson_interval(successes, n, level) == pytest.approx(tuple(expected), abs=1e-9)


def test_paired_proportions_agree_with_a_second_computation():
    # p12 and p21 with 1 added to each discordant count and 2 to n (Bonett and Price 2012, equation 3)
    for losses, wins, n in ((6, 0, 20), (3, 9, 40), (0, 0, 100)):
        p12, p21 = (wins + 1) / (n + 2), (losses + 1) / (n + 2)
        half = stats.norm.ppf(0.975) * sqrt((p12 + p21 - (p12 - p21) ** 2) / (n + 2))
        expected = (p12 - p21 - half, p12 - p21 + half)
        assert paired_proportions_interval(losses, wins, n) == pytest.approx(expected, abs=1e-12)


def test_without_a_change_the_true_change_may_be_up_to_about_three_over_n():
    for n in (20, 100, 1000):
        low, high = paired_proportions_interval(0, 0, n)
        assert low == -high
        assert 2.5 / n < high < 3 / n


def hall_in_numpy(values, level):
    """Return Hall's interval from his formulas: the inverse of T + γ/√n (T²/3 + 1/6) + γ²/n T³/27."""
    values = numpy.asarray(values)
    n, error = len(values), values.std(ddof=1) / sqrt(len(values))
    skew = ((values - values.mean()) ** 3).mean() / values.std(ddof=1) ** 3 / sqrt(n)
    t = numpy.array([1, -1]) * stats.t.ppf((1 + level) / 2, n - 1)
    inverse = 3 / skew * (numpy.cbrt(1 + skew * (t - skew / 6)) - 1)
    return tuple(values.mean() - inverse * error)


@loop_over("level", [0.9, 0.95, 0.995])
@loop_over("n", [10, 30, 200])
def test_the_skewed_interval_is_halls(level, n):
    values = [((i * 7919) % 97) ** 2 / 100 for i in range(n)]
    assert hall_interval(Moments.of(values), level) == pytest.approx(hall_in_numpy(values, level), rel=1e-6)


@loop_over("n", [10, 30])
def test_each_end_of_a_mean_is_the_wider_of_t_and_hall(n):
    values = [((i * 7919) % 97) ** 2 / 100 for i in range(n)]
    moments = Moments.of(values)
    t = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    hall = hall_interval(moments)
    assert mean_interval(moments) == pytest.approx((min(t.low, hall[0]), max(t.high, hall[1])), rel=1e-6)


def test_one_value_has_no_interval():
    assert mean_interval(Moments.of([3.0])) == (-numpy.inf, numpy.inf)
    with pytest.raises(ValueError, match="no values"):
        Moments.of([])


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60))
def test_the_mean_is_within_its_interval(values):
    moments = Moments.of(values)
    low, high = mean_interval(moments)
    assert low <= moments.mean + 1e-6 <= high + 2e-6


def test_the_number_of_examples_for_a_mean_is_the_smallest_that_is_enough():
    values = [((i * 7919) % 13 - 6) / 10 for i in range(40)]
    n, spread = examples_for_mean(values, 0.05, 0.9), limit_spread(values)
    for number, is_enough in ((n, True), (n - 1, False)):
        half = stats.t.ppf(0.95, number - 1) * spread / sqrt(number)
        assert (half <= 0.05 * 1.01) if is_enough else (half > 0.05 * 0.98)


def test_the_limit_of_the_spread_is_at_least_that_of_normal_data():
    values = [((i * 7919) % 13 - 6) / 10 for i in range(40)]
    chi_square = numpy.std(values, ddof=1) * sqrt(39 / stats.chi2.ppf(0.2, 39))
    assert limit_spread(values) == pytest.approx(chi_square, rel=1e-3)
    assert limit_spread([*values, 30.0]) > 1.3 * numpy.std([*values, 30.0], ddof=1)


def test_without_discordant_pairs_further_examples_are_still_finite():
    assert 1 < examples_for_proportions(0, 0, 20, 0.01, 0.9) < 10_000
    assert examples_for_proportions(0, 0, 20, 0.5, 0.9) <= 20
