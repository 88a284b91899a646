"""Robustness of experiments: stable base cases, flips in both directions, and what is left out."""

import pytest

from spanwise.collector.records import Example
from spanwise.evaluators import compare, datasets, evaluate, evaluator


def case(id, answer, base=None, *kinds):
    """Return an example on which the task answers `answer`, or fails if that is None."""
    return Example(id=id, inputs={"q": id, "answer": answer}, reference_outputs="yes", base_id=base, categories=kinds)


def run(store, examples, evaluators=("exact",), **options):
    def task(answer):
        if answer is None:
            raise ValueError("no answer")
        return answer

    return evaluate(examples, task, list(evaluators), store=store, progress=False, name="run", **options)


CASES = [
    case("stable", "yes"),
    case("stable-1", "yes", "stable", "typos"),
    case("stable-2", "yes", "stable", "typos"),
    case("worse", "yes"),
    case("worse-1", "yes", "worse", "typos"),
    case("worse-2", "no", "worse", "typos"),
    case("better", "no"),
    case("better-1", "yes", "better", "typos"),
    case("wrong", "no"),
    case("wrong-1", "no", "wrong", "typos"),
    case("wrong-2", "no", "wrong", "casing"),
]


@pytest.fixture
def robustness(store):
    return run(store, CASES).robustness()


def test_the_share_of_base_cases_is_that_by_hand(robustness):
    typos = robustness["typos", "exact"]
    assert (typos.stable, typos.cases, typos.perturbations, typos.share) == (2, 4, 6, 0.5)
    assert robustness["casing", "exact"].share == 1.0


def test_each_base_case_is_one_observation_of_the_interval(robustness):
    assert robustness["typos", "exact"].interval == pytest.approx((0.1500, 0.8500), abs=1e-4)  # Wilson, 2 of 4


def test_flips_are_listed_in_both_directions(robustness):
    flips = robustness.flips("typos")
    assert [(flip.direction, flip.base_id, flip.example_id) for flip in flips] == [
        ("pass→fail", "worse", "worse-2"),
        ("fail→pass", "better", "better-1"),
    ]
    assert robustness.flips("casing") == []


def test_a_flip_shows_texts_and_traces_side_by_side(store):
    experiment = run(store, CASES)
    flip = experiment.robustness().flips()[0]
    assert (flip.base_inputs["q"], flip.inputs["q"], flip.base_score, flip.score) == ("worse", "worse-2", 1.0, 0.0)
    assert store.trace(flip.base_trace_id).root.example_id == "worse"
    assert store.trace(flip.trace_id).root.example_id == "worse-2"


def test_a_deleted_base_case_is_left_out_and_counted(store):
    typos = run(store, [*CASES[:2], case("orphan", "no", "gone", "typos")]).robustness()["typos", "exact"]
    assert (typos.cases, typos.missing) == (1, 1)


def test_a_failed_base_case_is_left_out_and_counted(store):
    failed = [case("failed", None), case("failed-1", "yes", "failed", "typos")]
    robustness = run(store, [*CASES[:2], *failed]).robustness()
    assert (robustness["typos", "exact"].cases, robustness["typos", "exact"].unscored) == (1, 1)


def test_a_failed_perturbation_is_counted_and_a_flip_of_the_task(store):
    robustness = run(store, [case("a", "yes"), case("a-1", None, "a", "typos")]).robustness()
    assert (robustness["typos", "exact"].cases, robustness["typos", "exact"].perturbations_unscored) == (0, 1)
    assert robustness["typos", "exact"].share is None
    assert [flip.direction for flip in robustness.flips(key="task_ok")] == ["pass→fail"]


def test_thresholds_decide_and_scores_without_one_are_left_out(store):
    def length(outputs):
        return float(len(outputs))

    short = evaluator(key="short", higher_is_better=False, threshold=3, range=None)(length)
    robustness = run(store, CASES, [short, evaluator(key="length")(length)]).robustness()
    assert {key for _, key in robustness} == {"short"}
    assert robustness["typos", "short"].share == 1.0


def test_repetitions_are_averaged(store):
    answers = iter(["yes", "yes", "no", "no", "no", "yes"])
    examples = [case("a", "x"), case("a-1", "x", "a", "typos")]
    experiment = evaluate(
        examples, lambda answer: next(answers), ["exact"], store=store, repetitions=3, concurrency=1, progress=False
    )
    (flip,) = experiment.robustness().flips()
    assert (flip.base_score, flip.score) == pytest.approx((2 / 3, 1 / 3))


def test_a_perturbation_of_a_perturbation_belongs_to_the_original_base_case(store):
    chain = [case("a", "yes"), case("b", "no", "a", "typos"), case("c", "no", "b", "typos", "casing")]
    robustness = run(store, chain).robustness()
    assert robustness.kinds == ["typos", "typos+casing"]
    (flip,) = robustness.flips("typos+casing")
    assert (flip.base_id, flip.example_id) == ("a", "c")


def test_a_comparison_counts_base_and_chain_as_one_pair(store):
    chain = [case("a", "yes"), case("b", "no", "a", "typos"), case("c", "no", "b", "typos", "casing")]
    assert compare(run(store, chain), run(store, chain))["exact"].pairs == 1


def test_examples_that_are_not_stored_are_read_from_their_traces(store):
    robustness = run(store, iter(CASES)).robustness()
    assert robustness["typos", "exact"].share == 0.5


def test_no_perturbations(store):
    robustness = run(store, CASES[:1]).robustness()
    assert dict(robustness) == {}
    assert "no perturbed examples" in str(robustness)


def test_it_is_shown_as_table_and_html(robustness):
    shown, html = str(robustness), robustness._repr_html_()
    assert "exact, typos: pass→fail" in shown
    assert "50.0%" in shown
    assert "<td>worse-2 (trace " in html


def test_rows_have_counts_of_both_directions(robustness):
    row = robustness.to_rows()[0]
    assert (row["kind"], row["pass_to_fail"], row["fail_to_pass"], row["share"]) == ("typos", 1, 1, 0.5)
    assert list(robustness.to_pandas()["kind"]) == ["typos", "casing"]


def test_a_perturbed_dataset_is_evaluated(store):
    perturbed = datasets.perturb([{"inputs": {"q": "Is it in Paris?"}, "reference_outputs": True}], "casing")
    experiment = evaluate(perturbed, lambda q: "Paris" in q, ["exact"], store=store, progress=False)
    assert [flip.direction for flip in experiment.robustness().flips()] == ["pass→fail"]
