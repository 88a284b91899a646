"""Conclusions about two experiments, key by key: words, intervals, reasons, families, margins and kinds of values."""

import random
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped_cases import loop_over
from spanwise.collector.records import RunScores
from spanwise.collector.statistics import (
    TASK_OK,
    KeyRule,
    KeyScores,
    collect_scores,
    compare_scores,
    get_direction,
    get_question,
)


def many(values):
    """Return the values as scores by example id."""
    return KeyScores({str(place): float(value) for place, value in enumerate(values)})


def contrast(before, after, rising=True, **rule):
    """Return the contrast of one key; the scores are lists or `KeyScores`."""
    sides = [{"k": side if isinstance(side, KeyScores) else many(side)} for side in (before, after)]
    return compare_scores(sides, [(0, 1)], {"k": KeyRule(rising=rising, **rule)})[0]["k"]


def noise(n, size=1.0, seed=0):
    """Return n scores that are no booleans, with the mean 0."""
    draws = random.Random(seed)
    values = [size * (draws.random() + draws.random() - 1) for _ in range(n)]
    return [value - sum(values) / n for value in values]


# --- collecting scores ------------------------------------------------------------------------------------------------


def run(example, scores, *, repetition=0, status="ok", **fields):
    """Return the scores of one run."""
    trace_id = f"{example}-{repetition}"
    named = {"trace_id": trace_id, "example_id": example, "repetition": repetition, "status": status}
    return RunScores(scores=scores, **named, **fields)


def test_repetitions_of_an_example_are_averaged():
    scores = collect_scores([run("a", {"k": 1.0}), run("b", {"k": 0.0}), run("a", {"k": 0.0}, repetition=1)])
    assert (scores["k"].values, scores["k"].averaged) == ({"a": 0.5, "b": 0.0}, True)


def test_booleans_that_were_averaged_are_scores():
    once = collect_scores([run("a", {"k": 1.0})])["k"]
    twice = collect_scores([run("a", {"k": 1.0}), run("a", {"k": 1.0}, repetition=1)])["k"]
    assert (once.is_boolean, twice.is_boolean) == (True, False)


def test_the_most_frequent_label_of_an_example_counts():
    runs = [run("a", {"k": label}, repetition=place) for place, label in enumerate(("good", "bad", "bad"))]
    assert collect_scores(runs)["k"].labels == {"a": "bad"}


def test_errors_skips_and_numbers_that_are_not_finite_are_left_out():
    runs = [run("a", {"k": None}), run("b", {"k": float("nan")}), run("c", {"k": float("inf")}), run("d", {"k": 2.0})]
    assert collect_scores(runs)["k"].values == {"d": 2.0}


def test_task_ok_is_computed_and_not_taken_from_feedback():
    runs = [run("a", {TASK_OK: 0.0}), run("b", {}, status="error")]
    assert collect_scores(runs, tasks=True)[TASK_OK].values == {"a": 1.0, "b": 0.0}


def test_measures_cover_runs_without_an_error_and_leave_out_unknown_costs():
    runs = [
        run("a", {}, duration_ns=2_000_000_000, cost=None, input_tokens=3, output_tokens=4),
        run("b", {}, duration_ns=1, cost=0.5, status="error"),
        run("c", {}, duration_ns=1_000_000_000, cost=0.25),
    ]
    scores = collect_scores(runs, measures=True)
    assert scores["latency"].values == {"a": 2.0, "c": 1.0}
    assert scores["cost"].values == {"c": 0.25}
    assert scores["tokens"].values == {"a": 7.0, "c": 0.0}


def test_an_evaluators_key_takes_precedence_over_a_measure():
    scores = collect_scores([run("a", {"latency": 0.75}, duration_ns=10**9)], measures=True)
    assert (scores["latency"].values, scores["latency"].is_measure) == ({"a": 0.75}, False)


def test_a_measure_is_not_paired_with_scores_of_the_same_name():
    sides = [
        collect_scores([run(str(n), own, duration_ns=10**9) for n in range(9)], measures=True)
        for own in ({}, {"latency": 3.0})
    ]
    contrast = compare_scores(sides, [(0, 1)], {})[0]["latency"]
    assert (contrast.pairs, contrast.only_after) == (0, 9)


# --- pairs ------------------------------------------------------------------------------------------------------------


def test_pairs_are_the_examples_that_both_have_scored():
    moved = contrast(KeyScores({"a": 1.0, "b": 1.0, "c": 0.0}), KeyScores({"c": 1.0, "d": 0.0}))
    assert (moved.pairs, moved.only_before, moved.only_after, moved.change) == (1, 2, 1, 1.0)


def test_without_pairs_the_sentence_says_so():
    moved = contrast(KeyScores({"a": 1.0}), KeyScores({"b": 1.0}))
    assert (moved.word, moved.interval, moved.change) == ("inconclusive", None, None)
    assert moved.sentence == "No example has a score in both experiments (1 and 1 in one)."


def test_a_key_of_one_side_only_is_there_too():
    sides = [{"old": many([1]), "both": many([1])}, {"new": many([1]), "both": many([1])}]
    contrasts = compare_scores(sides, [(0, 1)], {})[0]
    assert {key: each.pairs for key, each in contrasts.items()} == {"old": 0, "both": 1, "new": 0}


@pytest.mark.parametrize(("rising", "wins", "losses"), [(True, 2, 1), (False, 1, 2), (None, None, None)])
def test_wins_and_losses_follow_the_better_direction(rising, wins, losses):
    moved = contrast([0, 0, 1], [1, 1, 0], rising)
    assert (moved.wins, moved.losses, moved.ties) == (wins, losses, 0)


@pytest.mark.parametrize(("difference", "expected"), [(2e-9, 1), (5e-10, 0), (0.0, 0), (-5e-10, 0), (-2e-9, -1)])
def test_rounding_is_no_difference(difference, expected):
    assert get_direction(difference) == expected


SIDE = st.dictionaries(st.integers(0, 9).map(str), st.floats(-5, 5))


@given(SIDE, SIDE)
def test_exchanged_experiments_give_mirrored_contrasts(before, after):
    if not before and not after:
        return
    there, back = (
        contrast(KeyScores(first), KeyScores(second)) for first, second in ((before, after), (after, before))
    )
    assert there.up + there.down + there.ties + there.only_before + there.only_after == len({**before, **after})
    assert (there.up, there.down, there.ties) == (back.down, back.up, back.ties)
    assert there.word == {"better": "worse", "worse": "better"}.get(back.word, back.word)


# --- words ------------------------------------------------------------------------------------------------------------


@loop_over(("rising", "up", "down"), [(True, "better", "worse"), (False, "worse", "better"), (None, "higher", "lower")])
def test_the_word_follows_the_direction_of_the_key(rising, up, down):
    low, high = [0] * 10, [1] * 9 + [0]
    assert (contrast(low, high, rising).word, contrast(high, low, rising).word) == (up, down)


@loop_over("values", [[1] * 20, [0] * 20, [0.5] * 20, [1, 0] * 10, [3.5, 2.25] * 10, [7]])
def test_identical_experiments_are_never_better_or_worse(values):
    assert contrast(values, values).word == "inconclusive"


def test_identical_booleans_have_an_interval_and_identical_scores_have_none():
    booleans, scores = contrast([1] * 20, [1] * 20), contrast([0.5] * 20, [0.5] * 20)
    assert booleans.interval == pytest.approx((-0.126, 0.126), abs=1e-3)
    assert scores.interval is None
    assert "none of them differs, and an interval of scores needs 5 that do" in scores.sentence


def test_too_few_differences_have_no_interval_and_the_sentence_says_so():
    moved = contrast([0.0] * 20, [0.3, 0.5, 0.2, 0.1] + [0.0] * 16)
    assert (moved.interval, moved.word) == (None, "inconclusive")
    assert "only 4 of them differ, which is too few for an interval (5 are needed)" in moved.sentence


@given(
    st.lists(st.tuples(st.sampled_from([0, 0.25, 1]), st.sampled_from([0, 0.5, 1])), min_size=1, max_size=40),
    st.sampled_from([None, 0.05, 0.3]),
    st.sampled_from([True, False, None]),
)
def test_no_word_contradicts_the_interval(pairs, margin, rising):
    moved = contrast([pair[0] for pair in pairs], [pair[1] for pair in pairs], rising, margin=margin)
    low, high = moved.interval or (0.0, 0.0)
    if moved.word in ("better", "worse", "higher", "lower"):
        assert low > 0 or high < 0
        assert moved.p <= 0.05
        assert (low > 0) == (moved.word in ("higher", "better" if rising else "worse"))
    if moved.word in ("equivalent", "non-inferior"):
        low, high = moved.equivalence_interval
        assert high < margin or low > -margin
        assert moved.word == "non-inferior" or -margin < low <= high < margin
    assert moved.sentence.endswith(".")


def test_the_interval_alone_is_not_enough():
    moved = contrast([0.0] * 5, [0.9, 1.0, 1.1, 0.95, 1.05])  # five equal signs are likely by chance: p 1/16
    assert (moved.word, moved.interval[0] > 0, moved.p) == ("inconclusive", True, 0.0625)
    assert "the interval excludes 0, but the sign-flip test of symmetry does not exclude chance" in moved.sentence


def test_the_test_alone_is_not_enough():
    moved = contrast([0.0] * 30, [0.01 * n for n in range(1, 30)] + [-1.9])
    assert (moved.interval[0] < 0, moved.word) == (True, "inconclusive")


def test_differences_of_one_size_are_counted_like_booleans():
    moved = contrast([0.5] * 30, [0.75] * 25 + [0.5] * 5)
    halves = contrast([0] * 30, [1] * 25 + [0] * 5)
    assert moved.interval == pytest.approx(tuple(end / 4 for end in halves.interval))
    assert (moved.p, moved.word) == (halves.p, "better")


def test_skewed_differences_of_a_small_sample_are_named():
    values = [0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.4, 0.5, 0.6, 6.0]
    assert "skewed and fewer than 30" in contrast([0.0] * 10, values).sentence
    assert "skewed" not in contrast([0.0] * 10, noise(10)).sentence


# --- several keys -----------------------------------------------------------------------------------------------------


def fall(keys):
    """Return two experiments of 20 examples: key "a" falls from 20 right to 14, the others do not change."""
    after = {key: many([1] * 20) for key in keys} | {"a": many([0] * 6 + [1] * 14)}
    return [{key: many([1] * 20) for key in keys}, after]


RISING = {key: KeyRule(rising=True) for key in "abcd"}


def test_a_fall_from_20_to_14_is_worse_alone_and_inconclusive_among_four_keys():
    alone = compare_scores(fall("a"), [(0, 1)], RISING)[0]["a"]
    among = compare_scores(fall("abcd"), [(0, 1)], RISING)[0]["a"]
    assert (alone.word, among.word, among.family) == ("worse", "inconclusive", 4)
    assert "as the only primary key it would be worse" in among.sentence
    assert "only primary key" not in alone.sentence


def test_only_primary_keys_count_and_the_others_are_exploratory():
    contrasts = compare_scores(fall("abcd"), [(0, 1)], RISING, primary=["a"])[0]
    assert (contrasts["a"].word, contrasts["a"].family, contrasts["a"].is_primary) == ("worse", 1, True)
    assert (contrasts["b"].family, contrasts["b"].is_primary) == (1, False)
    assert "exploratory" in contrasts["b"].sentence


def test_the_family_counts_keys_times_comparisons():
    sides = [*fall("abcd"), fall("abcd")[0], fall("abcd")[0]]
    to_baseline = compare_scores(sides, [(0, 1), (0, 2), (0, 3)], RISING)
    all_pairs = compare_scores(sides, [(i, j) for i, j in product(range(4), range(4)) if i < j], RISING)
    assert ({each.family for one in to_baseline for each in one.values()}) == {12}
    assert ({each.family for one in all_pairs for each in one.values()}) == {24}


def test_keys_without_pairs_are_not_in_the_family():
    sides = [{"both": many([1]), "old": many([1])}, {"both": many([1])}]
    assert compare_scores(sides, [(0, 1)], {})[0]["both"].family == 1


def test_the_rates_of_a_boolean_evaluator_are_one_question():
    keys = ["pii", "pii_fail", "pii_retrieval_fail", "pii_generation_fail", "pii_parse_fail"]
    sides = [{key: many([1] * 9) for key in [*keys, "other", "lonely_fail"]} for _ in range(2)]
    assert compare_scores(sides, [(0, 1)], {})[0]["pii_fail"].family == 3
    assert get_question("lonely_fail", ["lonely_fail"]) == "lonely_fail"


def test_measures_are_exploratory_unless_they_are_named():
    runs = [[run(str(n), {"k": 1.0}, duration_ns=10**9 + n * scale) for n in range(9)] for scale in (1, 10**8)]
    sides = [collect_scores(each, measures=True) for each in runs]
    plain = compare_scores(sides, [(0, 1)], {})[0]
    named = compare_scores(sides, [(0, 1)], {}, primary=["latency"])[0]
    assert (plain["latency"].is_primary, plain["k"].family) == (False, 1)
    assert (named["latency"].is_primary, named["k"].is_primary) == (True, False)


def test_two_hundred_keys_can_still_decide():
    keys = [f"k{n}" for n in range(200)]
    after = {key: many([1] * 60) for key in keys} | {"k7": many([0] * 40 + [1] * 20)}
    contrasts = compare_scores([{key: many([1] * 60) for key in keys}, after], [(0, 1)], {"k7": KeyRule(rising=True)})[
        0
    ]
    assert (contrasts["k7"].word, contrasts["k7"].family) == ("worse", 200)


# --- margins ----------------------------------------------------------------------------------------------------------


def test_equivalent_needs_the_interval_within_the_margin():
    before = noise(60, 0.2)
    after = [value + small for value, small in zip(before, noise(60, 0.02, seed=1), strict=True)]
    moved = contrast(before, after, margin=0.02)
    assert moved.word == "equivalent"
    assert "its 90 % interval" in moved.sentence
    assert contrast(before, after, margin=0.001).word == "inconclusive"


def test_a_real_difference_within_the_margin_is_equivalent_and_said_to_be_real():
    moved = contrast(
        noise(60),
        [value + 0.05 + small for value, small in zip(noise(60), noise(60, 0.02, 2), strict=True)],
        margin=0.1,
    )
    assert moved.word == "equivalent"
    assert "the difference is real (better) but smaller than the margin" in moved.sentence


@pytest.mark.parametrize(("rising", "shift"), [(True, 0.04), (False, -0.04)])
def test_non_inferior_needs_only_the_bad_end_within_the_margin(rising, shift):
    after = [value + shift for value in noise(40, 0.8, 3)]
    moved = contrast([0.0] * 40, after, rising, margin=0.1)
    assert moved.word == "non-inferior"
    assert ("above −0.1" if rising else "below +0.1") in moved.sentence


def test_a_key_without_direction_is_never_non_inferior():
    assert contrast([0.0] * 40, [value + 0.04 for value in noise(40, 0.8, 3)], None, margin=0.1).word == "inconclusive"


def test_tango_must_agree_about_booleans():
    moved = contrast([1] * 20, [0] * 2 + [1] * 18, None, margin=0.25)
    low, high = moved.equivalence_interval
    assert (low > -0.25, high < 0.25, moved.word) == (True, True, "inconclusive")
    assert contrast([1] * 20, [0] * 2 + [1] * 18, None, margin=0.3).word == "equivalent"


def test_inconclusive_with_a_margin_says_how_many_further_examples_would_help():
    moved = contrast([0.0] * 40, noise(40), margin=0.05)
    assert moved.word == "inconclusive"
    assert moved.further_examples > 100
    assert f"about {moved.further_examples:,} further examples would give a 90 % interval of ±0.05" in moved.sentence


def test_without_a_margin_the_width_is_stated_and_nothing_is_promised():
    moved = contrast([0.0] * 40, noise(40))
    low, high = moved.interval
    assert moved.further_examples is None
    assert f"half the interval's width is {(high - low) / 2:.3g}" in moved.sentence


# --- other kinds of values --------------------------------------------------------------------------------------------


def labels(values):
    """Return the values as labels by example id."""
    return KeyScores({}, {str(place): value for place, value in enumerate(values)})


def test_twenty_labels_that_all_change_from_good_to_bad_are_twenty_changes():
    moved = contrast(labels(["good"] * 20), labels(["bad"] * 20), good_labels=frozenset({"good"}))
    assert (moved.kind, moved.losses, moved.word, moved.table) == ("labels", 20, "worse", {("good", "bad"): 20})
    assert "0 of 20 pairs changed from bad to good and 20 from good to bad" in moved.sentence
    assert "labels: 'good' → 'bad' 20 (Bhapkar p <0.001)" in moved.sentence


def test_labels_of_which_none_is_declared_good_are_counted_and_not_judged():
    moved = contrast(labels(["red"] * 20), labels(["blue"] * 20), None)
    assert (moved.word, moved.p_labels) == ("inconclusive", 0.0)
    assert "20 of 20 examples changed their label" in moved.sentence
    assert "no label is declared good" in moved.sentence


def test_a_few_labels_among_scores_are_unpaired_examples():
    mixed = KeyScores({str(n): 1.0 for n in range(8)}, {"8": "unparsed"})
    moved = contrast(many([1] * 9), mixed)
    assert (moved.kind, moved.pairs, moved.only_before) == ("boolean", 8, 1)


def measures(values):
    """Return the values in seconds as the measured latency of an experiment."""
    return collect_scores(
        [run(str(n), {}, duration_ns=int(value * 1e9)) for n, value in enumerate(values)], measures=True
    )


def test_latencies_are_compared_as_a_ratio():
    before = [1 + value / 10 for value in noise(30)]
    sides = [
        measures(before),
        measures([value * (2 + small) for value, small in zip(before, noise(30, 0.1, 4), strict=True)]),
    ]
    moved = compare_scores(sides, [(0, 1)], {}, primary=["latency"])[0]["latency"]
    assert (moved.kind, moved.word) == ("ratio", "worse")
    assert moved.change == pytest.approx(2, rel=0.05)
    assert moved.interval[0] > 1.9
    assert "times over 30 pairs" in moved.sentence


def test_a_measure_with_a_value_of_zero_is_compared_as_a_difference():
    sides = [measures([0.0, *range(1, 9)]), measures([0.0, *range(1, 9)])]
    moved = compare_scores(sides, [(0, 1)], {})[0]["latency"]
    assert (moved.kind, moved.change) == ("score", 0.0)


def test_clusters_count_once():
    before, after = many([0] * 20), many([1] * 5 + [0] * 15)
    clusters = {str(n): f"group {n // 5}" for n in range(20)}
    grouped = compare_scores([{"k": before}, {"k": after}], [(0, 1)], {}, clusters=clusters)[0]["k"]
    assert (grouped.pairs, grouped.kind, grouped.differences["group 0"], grouped.change) == (4, "score", 1.0, 0.25)


def test_a_note_of_the_rule_is_part_of_the_sentence():
    assert contrast([1] * 9, [1] * 9, notes=("the evaluators have different versions",)).sentence.endswith(
        "; the evaluators have different versions."
    )


def test_a_narrow_interval_within_the_margin_names_the_tests_that_disagree():
    sentence = contrast([1] * 55, [1] * 55, margin=0.05).sentence
    assert "is within ±0.05, but the exact tests do not exclude a difference of that size" in sentence


def test_several_comparisons_of_one_key_are_no_other_primary_keys():
    sides = [fall("a")[0], fall("a")[1], fall("a")[1]]
    contrasts = compare_scores(sides, [(0, 1), (0, 2)], RISING, primary=["a"])[0]
    assert (contrasts["a"].word, "only primary key" in contrasts["a"].sentence) == ("inconclusive", False)


def test_a_few_changed_labels_are_not_tested():
    moved = contrast(labels(["red"]), labels(["blue"]), None)
    assert (moved.p_labels, moved.p, "not tested" in moved.sentence) == (None, 1.0, True)


def test_labels_in_clusters_are_counted_as_examples_and_not_tested():
    sides = [{"k": labels(["red"] * 40)}, {"k": labels(["blue"] * 40)}]
    clusters = {str(n): f"c{n // 2}" for n in range(40)}
    moved = compare_scores(sides, [(0, 1)], {}, clusters=clusters)[0]["k"]
    assert (moved.p_labels, moved.changed_labels) == (None, 40)
    assert "40 of 40 examples changed their label" in moved.sentence


def test_a_free_version_costs_less_and_unknown_costs_are_counted():
    def costs(cost):
        return collect_scores([run(str(n), {}, cost=cost) for n in range(20)], measures=True)

    paid, free, unknown = costs(0.01), costs(0.0), costs(None)
    assert compare_scores([paid, free], [(0, 1)], {})[0]["cost"].word == "better"
    assert "20 runs of unknown cost left out" in compare_scores([paid, unknown], [(0, 1)], {})[0]["cost"].sentence
    assert "cost" not in compare_scores([free, free], [(0, 1)], {})[0]


def test_scores_too_large_to_add_are_left_out():
    assert collect_scores([run("a", {"k": 1e308}), run("b", {"k": 1.0})])["k"].values == {"b": 1.0}
