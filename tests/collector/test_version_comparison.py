"""Two versions in production: weighted difference, confidence sequence, conclusion."""

import importlib
import random
from math import log, sqrt
from pathlib import Path

import pytest

from spanwise.collector.statistics import VersionScore, compare_versions


def scores(n, share, *, seed=1, weight=1.0, turns=1):
    """Return n scores of 0 and 1; `turns` in a row are equal and belong to one cluster."""
    draws = random.Random(seed)
    values = [float(draws.random() < share) for _ in range(n // turns)]
    return [
        VersionScore(score=values[place // turns], weight=weight, cluster=str(place // turns), start_ns=0)
        for place in range(n)
    ]


def test_a_large_difference_is_better_or_worse():
    a, b = scores(4000, 0.7), scores(4000, 0.9, seed=2)
    assert compare_versions(a, b, rising=True).conclusion == "better"
    assert compare_versions(b, a, rising=True).conclusion == "worse"
    assert compare_versions(a, b, rising=False).conclusion == "worse"
    assert compare_versions(a, b, rising=None).conclusion == "higher"


def test_few_scores_have_no_interval():
    found = compare_versions(scores(199, 0.1), scores(5000, 0.9), rising=True)
    assert (found.low, found.conclusion, found.a.n) == (None, "inconclusive", 199)


def test_a_version_without_scores_has_no_mean():
    found = compare_versions([], scores(500, 0.9), rising=True)
    assert (found.a, found.difference, found.conclusion) == (None, None, "inconclusive")


def test_a_small_interval_is_equivalent_within_the_margin():
    a, b = scores(60_000, 0.9), scores(60_000, 0.9, seed=2)
    assert compare_versions(a, b, rising=True, margin=0.02).conclusion == "equivalent"
    assert compare_versions(a, b, rising=True).conclusion == "inconclusive"


def test_the_half_width_is_that_of_the_normal_mixture():
    found = compare_versions(scores(1000, 0.8), scores(1000, 0.8, seed=2), rising=True)
    variance, tau = found.a.variance + found.b.variance, 0.05
    half = sqrt(variance * (variance + tau**2) / tau**2 * log((variance + tau**2) / (variance * 0.05**2)))
    assert found.high - found.difference == pytest.approx(half)


def test_equal_scores_still_have_a_width():
    found = compare_versions(scores(300, 1.0), scores(300, 1.0), rising=True)
    assert found.low < 0 < found.high


def test_turns_of_a_user_count_as_one_cluster():
    alone = compare_versions(scores(1000, 0.8), scores(1000, 0.8, seed=2), rising=True)
    turns = compare_versions(scores(5000, 0.8, turns=5), scores(5000, 0.8, seed=2, turns=5), rising=True)
    assert turns.high - turns.low == pytest.approx(alone.high - alone.low, rel=0.02)


def test_weights_recover_the_mean_of_all_traffic():
    bad = scores(500, 0.0)
    good = scores(250, 1.0, weight=10.0)
    found = compare_versions([*bad, *good], scores(1000, 0.5), rising=True)
    assert found.a.mean == pytest.approx(2500 / 3000)


def test_further_scores_would_decide():
    a, b = scores(400, 0.80), scores(400, 0.86, seed=3)
    found = compare_versions(a, b, rising=True)
    assert found.conclusion == "inconclusive"
    copies = 1 + -(-found.further // 400)
    larger = compare_versions(a * copies, b * copies, rising=True)
    assert larger.a.n == 400 * copies
    assert found.further > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": (1.0, 0.0)}, "scale must be a lower and a higher score"),
        ({"margin": -1.0}, "margin must be a number >= 0, got -1.0"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        compare_versions([], [], rising=True, **options)


@pytest.fixture
def sequences(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("version_sequences")


@pytest.mark.slow
@pytest.mark.parametrize("means", [(0.9, 0.9), (0.85, 0.9)])
@pytest.mark.parametrize("number", range(3))
def test_the_interval_holds_at_all_looks_together(sequences, number, means):
    """A short form of benchmarks/version_sequences.py, which runs 1,000 simulations of each kind."""
    results = [sequences.simulate(sequences.KINDS[number], seed, means) for seed in range(100)]
    held, plain = (sum(each) for each in zip(*results, strict=True))
    assert held >= 95
    assert plain < 90  # a plain interval is for one look
