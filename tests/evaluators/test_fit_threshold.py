"""Thresholds fitted to what people say: the number, its interval, and where there is none."""

from __future__ import annotations

import json
from random import Random

import pytest

from collector.making import run
from looped_cases import loop_over
from spanwise.collector.records import Case, Feedback, Target
from spanwise.collector.statistics import choose_threshold
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import evaluator, fit_threshold, get_evaluator

APART = [(score / 10, score > 5) for score in range(11)] * 2  # bad up to 0.5, good from 0.6 on


def target(n):
    return Target(trace_id=f"{n + 1:032x}")


def said(n, score, **fields):
    given = {"key": "groundedness", "source": "model", "evaluator": "groundedness", "version": "1", **fields}
    return Feedback(target=target(n), score=score, **given)


def vote(n, score=None, **fields):
    return Feedback(target=target(n), **{"key": "groundedness", "score": score, "source": "human", **fields})


def drawn(n, seed, apart=2.0):
    random = Random(seed)
    votes = [random.random() < 0.5 for _ in range(n)]
    return [(random.gauss(apart * good, 1.0), good) for good in votes]


def test_the_threshold_is_between_the_bad_and_the_good():
    fitted = fit_threshold("groundedness", APART)
    assert (fitted.threshold, fitted.n, fitted.good, fitted.apart) == (pytest.approx(0.55), 22, 10, 1.0)
    assert fitted.low <= 0.5 < 0.6 <= fitted.high
    assert "good from 0.55 (95 %: " in str(fitted)
    assert "agrees with people" in str(fitted)


def test_lower_scores_are_better_where_that_is_said():
    fitted = fit_threshold("loss", [(-score, good) for score, good in APART], higher_is_better=False)
    assert fitted.threshold == pytest.approx(-0.55)
    assert fitted.low <= -0.6 < -0.5 <= fitted.high
    assert "good up to -0.55" in str(fitted)


@pytest.mark.process
@pytest.mark.parametrize("seed", range(4))
def test_no_other_threshold_has_a_greater_kappa(seed):
    pairs = drawn(60, seed)
    people = [good for _, good in pairs]

    from sklearn.metrics import cohen_kappa_score, roc_auc_score

    def kappa(threshold):
        return cohen_kappa_score([score >= threshold for score, _ in pairs], people)

    found = choose_threshold(pairs)
    assert kappa(found.threshold) == pytest.approx(max(kappa(score) for score, _ in pairs))
    assert found.apart == pytest.approx(roc_auc_score(people, [score for score, _ in pairs]))


@pytest.mark.process
def test_the_interval_holds_the_true_threshold_as_often_as_it_says():
    found = [choose_threshold(drawn(40, seed)) for seed in range(20)]
    assert sum(one.low <= 1.0 <= one.high for one in found) >= 18


def test_the_same_votes_give_the_same_interval():
    assert choose_threshold(drawn(40, 1)) == choose_threshold(drawn(40, 1))


def test_agreement_is_of_votes_that_were_left_out():
    pairs = drawn(40, 3)
    found = choose_threshold(pairs)
    fitted_to = sum((score >= found.threshold) == good for score, good in pairs) / len(pairs)
    assert found.agreement.n == 40
    assert found.agreement.agreed < fitted_to
    assert choose_threshold(APART).agreement.agreed == 1.0


@loop_over(
    ("pairs", "why"),
    [
        (APART[:5], "all 5 labels are bad"),
        ([(0.3, True)] * 30, "all 30 labels are good"),
        ([(0.2, False), (0.9, True)] * 2, "too few labels: 2 good and 2 bad; at least 10 are needed, and 3 of each"),
        ([(0.2, False)] * 2 + [(0.9, True)] * 20, "too few labels: 20 good and 2 bad"),
        ([(0.7, True), (0.7, False)] * 10, "all scores are 0.7, so no threshold separates them"),
        (
            [(1 - score, good) for score, good in APART],
            "the scores are inverted: a good case scores better than a bad one in",
        ),
        (
            [(score, good) for score in (0.1, 0.5, 0.9) for good in (True, False)] * 4,
            "the scores do not separate good from bad better than chance",
        ),
    ],
)
def test_where_votes_give_none_it_says_why(pairs, why):
    fitted = fit_threshold("groundedness", pairs)
    assert (fitted.threshold, fitted.low, fitted.high) == (None, None, None)
    assert why in fitted.why
    assert f"no threshold: {fitted.why}" in str(fitted)


def test_equal_scores_stay_on_one_side():
    fitted = fit_threshold("x", [(0.5, True)] * 6 + [(0.5, False)] + [(0.1, False)] * 6 + [(0.1, True)])
    assert fitted.threshold == pytest.approx(0.3)


def test_neighbours_without_a_number_between_them_are_told_apart():
    low, high = 1.0, 1.0000000000000002
    fitted = fit_threshold("x", [(low, False)] * 8 + [(high, True)] * 8)
    assert fitted.threshold == high


def test_people_are_paired_with_scores_by_target():
    scores = [said(n, score) for n, (score, _) in enumerate(APART)]
    votes = [vote(n, good) for n, (_, good) in enumerate(APART)]
    failed = said(30, None, outcome="error", error="boom")
    torn = [vote(40, True, author="ann"), vote(40, False, author="bob")]
    fitted = fit_threshold([*scores, failed, said(40, 0.3)], [*votes, vote(30, True), vote(31, True), *torn])
    assert fitted.threshold == pytest.approx(0.55)
    assert (fitted.n, fitted.failed, fitted.unjudged, fitted.undecided, fitted.version) == (22, 1, 1, 1, "1")


def test_grades_and_labels_need_to_be_told_which_are_good():
    grades = [(score, 5 if good else 2) for score, good in APART]
    assert fit_threshold("x", grades, good=4).threshold == pytest.approx(0.55)
    with pytest.raises(ValueError, match="pass the lowest good grade, such as good=2"):
        fit_threshold("x", grades)
    words = [(score, "fine" if good else "poor") for score, good in APART]
    assert fit_threshold("x", words, good="fine").threshold == pytest.approx(0.55)
    with pytest.raises(ValueError, match="pass the good label"):
        fit_threshold("x", words)
    yes = [(score, "yes" if good else "no") for score, good in APART]
    assert fit_threshold("x", yes).threshold == pytest.approx(0.55)


@evaluator(key="length", range=None)
def length(outputs):
    if outputs == "broken":
        raise RuntimeError("no length")
    return float(len(outputs))


def test_cases_are_scored_by_the_evaluator():
    pairs = [({"outputs": "a" * count}, count > 8) for count in range(1, 17)]
    pairs[0] = (Case(outputs="a"), False)
    fitted = fit_threshold(length, [*pairs, ({"outputs": "broken"}, True)])
    assert (fitted.threshold, fitted.failed, fitted.n) == (8.5, 1, 16)


def test_what_is_neither_votes_nor_pairs_is_refused():
    with pytest.raises(ValueError, match="votes must be the key of human feedback"):
        fit_threshold("x", [(0.1, True, 3)])
    with pytest.raises(ValueError, match="pass the evaluator"):
        fit_threshold("x", [({"outputs": "a"}, True)])
    with pytest.raises(ValueError, match="there are no human labels"):
        fit_threshold("x", [])
    with pytest.raises(ValueError, match="the evaluator gave the label 'good'"):
        fit_threshold([said(0, None, label="good")], [vote(0, True)])


def test_an_evaluator_of_several_metrics_is_fitted_by_its_primary_one():
    similarity = get_evaluator("answer_sem_sent_similarity", model=lambda texts: [[1.0, 0.0]] * len(texts))
    assert fit_threshold(similarity, APART).key == "answer_sem_sent_similarity_mean"


def test_the_threshold_is_the_evaluators_from_then_on():
    model = lambda texts: [[len(text), 1.0] for text in texts]  # noqa: E731
    fitted = fit_threshold(get_evaluator("groundedness", model=model), APART)
    fitting = get_evaluator("groundedness", model=model, threshold=fitted.threshold)
    assert [fitting.metrics[0].passes(score) for score in (0.5, 0.6)] == [False, True]
    assert fitting.version == fitted.version


def test_what_a_store_holds_is_read_and_what_is_missing_is_scored(tmp_path):
    with SQLiteStore(tmp_path / "spanwise.db") as store:
        store.append([run(trace_id=f"{n + 1:032x}", outputs="a" * (n + 1)) for n in range(16)])
        store.add_feedback([vote(n, n >= 8, key="fine") for n in range(16)])
        assert fit_threshold(length, "fine", store=store).unjudged == 16
        fitted = fit_threshold(length, "fine", store=store, missing=True)
        again = fit_threshold(length, "fine", store=store)
    assert (fitted.threshold, fitted.unjudged, again.threshold) == (8.5, 0, 8.5)
    assert json.loads(json.dumps(fitted.to_dict()))["agreement"]["n"] == 16
