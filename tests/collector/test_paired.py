"""Paired differences between experiments: interval and p-value."""

import pytest

from assay.collector.statistics import paired

stats = pytest.importorskip("scipy.stats")


def test_few_differences_are_tested_exactly():
    result = paired([1.0] * 5 + [0.0] * 3)
    assert (result.n, result.mean, result.p) == (8, 0.625, 2 / 2**5)


@pytest.mark.parametrize("n", [2, 3, 5, 6, 7, 10, 40, 2000])
def test_the_interval_is_that_of_the_t_distribution(n):
    differences = [((i * 7919) % 13 - 4) / 10 for i in range(n)]
    low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    result = paired(differences)
    assert (result.low, result.high) == (
        pytest.approx(low, rel=2e-3, abs=2e-4),
        pytest.approx(high, rel=2e-3, abs=2e-4),
    )


@pytest.mark.parametrize("n", [13, 60, 3000])
def test_many_differences_are_as_significant_as_scipy_finds(n):
    differences = [((i * 7919) % 13 - 5.6) / 10 for i in range(n)]
    expected = stats.permutation_test(
        (differences,),
        lambda d, axis: d.mean(axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=20_000,
        rng=1,
    ).pvalue
    assert paired(differences).p == pytest.approx(expected, abs=0.015)


def test_no_difference_is_no_significance():
    assert paired([0.0, 0.0]).p == 1.0
    assert (paired([0.5]).low, paired([0.5]).p) == (None, 1.0)
    with pytest.raises(ValueError, match="no pairs"):
        paired([])
