"""The arithmetic of `corrected_mean`: by hand, against ppi-python, at its edges, and how often its interval holds."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from spanwise.collector.statistics import CorrectedMean, estimate_ppi_mean

FIXTURE = json.loads((Path(__file__).parents[1] / "fixtures" / "ppi" / "ppi.json").read_text())
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "corrected.py"
Z = NormalDist().inv_cdf(0.975)


def width(found: CorrectedMean) -> float:
    assert found.low is not None
    assert found.high is not None
    return found.high - found.low


def votes(*counts: tuple[float, float, int], probability: float = 0.1) -> list[tuple[float, float, float]]:
    """(judge, people, how many)."""
    return [(judge, people, probability) for judge, people, count in counts for _ in range(count)]


def test_the_mean_is_post_stratified_by_hand() -> None:
    # yes 800 of 1000; people agree with 27 of 30 yes and say yes to 2 of 10 no: 0.8 · 27.5/31 + 0.2 · 2.5/11
    found = estimate_ppi_mean([1.0] * 800 + [0.0] * 200, votes((1, 1, 27), (1, 0, 3), (0, 1, 2), (0, 0, 8)))
    share = 800.5 / 1001
    assert found.mean == pytest.approx(share * 27.5 / 31 + (1 - share) * 2.5 / 11)
    assert found.alone is not None
    assert found.alone[0] == pytest.approx(29.5 / 41)


def test_it_is_the_same_each_time() -> None:
    given = [1.0] * 80 + [0.0] * 20, votes((1, 1, 27), (1, 0, 3), (0, 0, 10))
    assert estimate_ppi_mean(*given) == estimate_ppi_mean(*given)


def test_a_judge_that_always_says_yes_leaves_the_votes_alone() -> None:
    found = estimate_ppi_mean([1.0] * 500, votes((1, 1, 30), (1, 0, 10)))
    assert found.mean == pytest.approx(30.5 / 41)
    assert found.alone is not None
    assert (found.low, found.high) == pytest.approx(found.alone[1:], abs=0.01)


def test_votes_that_all_agree_are_no_certainty() -> None:
    found = estimate_ppi_mean([1.0] * 900 + [0.0] * 100, votes((1, 1, 36), (0, 0, 4)))
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.87 < 0.9 < found.high


def test_a_verdict_without_votes_makes_the_interval_wide_by_its_share() -> None:
    found = estimate_ppi_mean([1.0] * 900 + [0.0] * 100, votes((1, 1, 40)))
    assert 0.09 < width(found) < 0.16


def test_a_better_judge_makes_it_narrower_down_to_the_scatter_of_the_cases() -> None:
    scores = [1.0] * 700 + [0.0] * 300
    good = estimate_ppi_mean(scores, votes((1, 1, 68), (1, 0, 2), (0, 1, 2), (0, 0, 28)))
    poor = estimate_ppi_mean(scores, votes((1, 1, 50), (1, 0, 20), (0, 1, 20), (0, 0, 10)))
    assert good.alone is not None
    assert width(good) < 0.6 * (good.alone[2] - good.alone[1]) < width(poor)


def test_only_ratios_of_probabilities_count() -> None:
    scores = [1.0] * 700 + [0.0] * 300
    given = ((1.0, 1.0, 60), (1.0, 0.0, 10), (0.0, 0.0, 30))
    assert estimate_ppi_mean(scores, votes(*given, probability=1.0)) == estimate_ppi_mean(
        scores, votes(*given, probability=0.01)
    )


@pytest.mark.parametrize("case", FIXTURE["cases"], ids=lambda case: f"{case['n']} of {len(case['scores'])}")
def test_ppi_equals_ppi_python(case: dict[str, Any]) -> None:
    scores = [float(score) for score in case["scores"]]
    pairs = zip(scores, case["votes"], strict=False)
    found = estimate_ppi_mean(scores, [(judge, float(people), 0.1) for judge, people in pairs])
    assert found.mean == pytest.approx(case["mean"], abs=1e-9)
    assert found.error == pytest.approx((case["high"] - case["low"]) / 2 / Z, abs=1e-9)
    assert (found.low, found.high) == pytest.approx((case["low"], case["high"]), abs=0.01)  # skewness, and t for z


def test_grades_of_unequal_weight_count_as_equal_ones_that_are_as_sure() -> None:
    scores = [float(n % 5 + 1) for n in range(1000)]
    skewed = [(scores[n], scores[n], 1.0 if n % 10 else 0.01) for n in range(150)]
    assert "equivalent to" in str(estimate_ppi_mean(scores, skewed).why)


def test_grades_with_the_judges_help_and_without_rest() -> None:
    scores = [float(n % 5 + 1) for n in range(120)]
    found = estimate_ppi_mean(scores, [(score, min(5.0, score + n % 2), 1.0) for n, score in enumerate(scores)])
    assert found.mean == pytest.approx(sum(min(5.0, s + n % 2) for n, s in enumerate(scores)) / 120)


@pytest.mark.parametrize("probability", [0.0, -0.1, 1.5, float("nan")])
def test_a_probability_that_is_none_is_refused(probability: float) -> None:
    with pytest.raises(ValueError, match="sampling probability must be"):
        estimate_ppi_mean([1.0] * 3, [(1.0, 1.0, probability)])


def test_more_votes_than_cases_are_refused() -> None:
    with pytest.raises(ValueError, match="every labelled case must be scored"):
        estimate_ppi_mean([1.0], votes((1, 1, 2)))


def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("benchmark_corrected", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


TWO_VALUED = [(0.5, "good", 40), (0.95, "fair", 40), (0.8, "poor", 400)]


@pytest.mark.slow
@pytest.mark.parametrize(("mean", "judge", "count"), TWO_VALUED)
def test_two_valued_intervals_hold_92_to_98_percent(mean: float, judge: str, count: int) -> None:
    made = benchmark()
    found = made.cell(2_000, count, mean, made.two_valued(mean, judge, count))
    assert 0.92 <= found.held <= 0.98
    assert judge == "poor" or found.width < found.alone


@pytest.mark.slow
@pytest.mark.parametrize(("grades", "judge"), [("high", "fair"), ("very high", "good")])
def test_intervals_of_grades_hold_93_to_97_percent(grades: str, judge: str) -> None:
    made = benchmark()
    truth = sum(share * grade for grade, share in enumerate(made.GRADES[grades], 1))
    found = made.cell(2_000, 100, truth, made.graded(grades, judge, 100))
    assert 0.93 <= found.held <= 0.97
    assert found.width < found.alone
