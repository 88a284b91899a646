"""Repeated runs: pass@k and pass^k without bias, variance components, flaky examples."""

from itertools import combinations

import numpy
import pytest
from scipy import stats

from spanwise.collector.statistics import collect_repeated_runs


def repeats(*examples, failed=(), **options):
    """Repeated runs of examples, each given by the scores of its runs; None is a run without a score.

    `failed` are pairs of an example and a run whose task failed.
    """
    runs, scores = {}, []
    for example, of_example in enumerate(examples):
        for run, score in enumerate(of_example):
            runs[f"{example}.{run}"] = str(example), (example, run) not in failed
            if score is not None:
                scores.append((f"{example}.{run}", score))
    return collect_repeated_runs("k", max(map(len, examples), default=2), runs, scores, **options)


EXAMPLES = ((1, 1, 0, 1, 0), (0, 0, 0, 0, 0), (1, 1, 1, 1, 1), (0, 0, 1, 0, 0))


@pytest.mark.parametrize("k", range(1, 6))
@pytest.mark.parametrize(("method", "rule"), [("pass_at", any), ("pass_hat", all)])
def test_estimates_equal_the_share_of_all_draws_of_k_runs(k, method, rule):
    shares = [numpy.mean([rule(drawn) for drawn in combinations(runs, k)]) for runs in EXAMPLES]
    assert getattr(repeats(*EXAMPLES), method)(k).value == pytest.approx(numpy.mean(shares))


def test_estimates_of_pass_at_k_are_unbiased():
    generator, probability, k = numpy.random.default_rng(1), 0.3, 3
    found = repeats(*(generator.random((20_000, 5)) < probability).tolist()).pass_at(k)
    assert found.value == pytest.approx(1 - (1 - probability) ** k, abs=0.01)


def test_with_one_draw_both_are_the_mean():
    found = repeats(*EXAMPLES)
    assert found.pass_at(1).value == pytest.approx(found.pass_hat(1).value) == pytest.approx(9 / 20)


def test_the_interval_takes_the_examples_as_the_sample():
    found = repeats(*EXAMPLES).pass_hat(5)  # 0 or 1 per example
    expected = stats.binomtest(1, 4).proportion_ci(method="wilson")
    assert found.interval == pytest.approx(tuple(expected), abs=1e-9)
    assert (found.examples, found.left_out) == (4, 0)


def test_the_interval_stays_between_0_and_1():
    examples = [[n < passed for n in range(5)] for passed in (5, 5, 5, 5, 4, 4, 4, 1, 0)]
    low, high = repeats(*examples).pass_at(1).interval
    assert 0 < low < high == 1


def test_more_draws_than_repetitions_are_refused():
    with pytest.raises(ValueError, match="k must be at most the number of repetitions, 5, got 6"):
        repeats(*EXAMPLES).pass_at(6)


@pytest.mark.parametrize("k", [0, -1, True, 1.0, "2", None])
def test_k_is_a_positive_integer(k):
    with pytest.raises(ValueError, match="k must be an integer >= 1"):
        repeats(*EXAMPLES).pass_at(k)


def test_examples_with_fewer_finished_runs_are_left_out_and_counted():
    found = repeats((1, 1, 1), (1, None, 1), (0, 0)).pass_hat(3)
    assert (found.value, found.examples, found.left_out) == (1, 1, 2)


def test_without_enough_runs_there_is_no_value():
    found = repeats((1, None), (None, None)).pass_at(2)
    assert (found.value, found.interval, found.examples, found.left_out) == (None, None, 0, 2)


@pytest.mark.parametrize("score", [None, 1])
def test_a_failed_task_has_not_passed(score):
    found = repeats((1, score), failed={(0, 1)})
    assert (found.examples["0"].runs, found.examples["0"].passed) == (2, 1)
    assert (found.pass_at(2).value, found.pass_hat(2).value) == (1, 0)


def test_a_threshold_decides_what_passes():
    assert repeats((0.6, 0.9), threshold=0.8).pass_hat(1).value == 0.5
    assert repeats((0.6, 0.9), threshold=0.8, higher_is_better=False).examples["0"].passed == 1


def test_where_lower_is_better_0_passes():
    assert repeats((0, 0, 1), higher_is_better=False).examples["0"].passed == 2


def test_graded_scores_without_a_threshold_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"'k' neither pass nor fail; declare a threshold.*threshold=0\.5"):
        repeats((0.5, 1)).pass_at(1)


@pytest.mark.parametrize("examples", [(), ((None, None),)], ids=["no runs", "no scores"])
def test_nothing_scored_has_no_statistics(examples):
    found = repeats(*examples)
    assert (found.within, found.between, found.flaky, found.can_pass) == (None, None, {}, False)


def test_a_run_passes_if_all_its_scores_do():
    runs = {"r": ("e", True), "s": ("e", True)}
    found = collect_repeated_runs("k", 2, runs, [("r", 1), ("r", 0), ("s", 1), ("unknown", 1)])
    assert (found.examples["e"].passed, found.examples["e"].runs) == (1, 2)


def test_variance_components_of_equal_groups_equal_those_of_analysis_of_variance():
    groups = numpy.random.default_rng(3).normal(size=(12, 4)) + numpy.arange(12)[:, None] / 4
    found = repeats(*groups.tolist())
    between_square = 4 * groups.mean(axis=1).var(ddof=1)
    within_square = groups.var(axis=1, ddof=1).mean()
    assert stats.f_oneway(*groups).statistic == pytest.approx(between_square / within_square)
    assert found.within == pytest.approx(within_square)
    assert found.between == pytest.approx((between_square - within_square) / 4)


def test_variance_components_of_unequal_groups_use_the_mean_size_of_groups():
    groups = [[1.0, 2.0, 4.0], [5.0, 7.0], [3.0]]
    values = numpy.concatenate(groups)
    within = sum(((numpy.array(group) - numpy.mean(group)) ** 2).sum() for group in groups) / 3
    between = sum(len(group) * (numpy.mean(group) - values.mean()) ** 2 for group in groups) / 2
    size = (6 - (9 + 4 + 1) / 6) / 2
    found = repeats(*groups)
    assert (found.within, found.between) == pytest.approx((within, (between - within) / size))


def test_equal_examples_have_no_variance_between():
    assert repeats((0.0, 1.0), (0.0, 1.0), (1.0, 0.0)).between == 0


def test_one_example_has_no_variance_between():
    found = repeats((0.0, 1.0))
    assert (found.within, found.between) == (0.5, None)


def test_variances_of_very_large_scores_do_not_overflow_on_the_way():
    assert repeats((1e150, 3e150), (2e150, 2e150)).within == pytest.approx(1e300)


def test_flaky_examples_are_listed_with_their_passes_fewest_first():
    found = repeats((1, 1, 0), (1, 1, 1), (0, 1, 0), (0, 0, 0)).flaky
    assert [(id, example.passed, example.runs) for id, example in found.items()] == [("2", 1, 3), ("0", 2, 3)]


def test_graded_scores_without_a_threshold_are_flaky_if_they_differ():
    found = repeats((0.5, 0.5 + 1e-12), (0.5, 0.7))
    assert list(found.flaky) == ["1"]
    assert found.examples["1"].mean == pytest.approx(0.6)
