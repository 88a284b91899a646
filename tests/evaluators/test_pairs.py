"""Pairs of texts to scores, against transformers on tiny models that the session builds."""

from __future__ import annotations

import shutil

import pytest

from evaluators.tiny_models import read_classifier, relabel
from lazy_modules import lazy_importorskip
from looped_cases import loop_over
from spanwise.evaluators.models import Inference, NoModel, PairScorer, pair_scorer
from spanwise.evaluators.models.inference_batching import loaded_models

lazy_importorskip("sentence_transformers")
TEXTS = {
    "empty": "",
    "one word": "Paris",
    "emoji": "🙂🙃 👩‍👩‍👧",
    "arabic": "ما هي عاصمة فرنسا؟ إنها باريس.",
    "chinese": "法国的首都是巴黎。它在塞纳河上。",
    "long": "Mont Blanc is in the Alps. " * 1000,
    "usual": "Mont Blanc is 4,806 m high.",
}


def direct(folder, pairs):
    """The logits of each pair by itself."""
    import torch

    tokenizer, model = read_classifier(folder)
    with torch.inference_mode():
        return [model(**tokenizer([pair], truncation=True, return_tensors="pt")).logits[0] for pair in pairs]


@pytest.mark.process
def test_one_score_is_that_of_the_model_after_its_sigmoid(tiny_relevance):
    pairs = [(one, TEXTS["usual"]) for one in TEXTS.values()]
    expected = [logits.sigmoid().item() for logits in direct(tiny_relevance, pairs)]
    assert PairScorer(tiny_relevance, device="cpu").score(pairs) == pytest.approx(expected, abs=1e-5)


def test_inference_goes_by_the_names_of_the_labels(tiny_nli):
    pairs = [(TEXTS["usual"], one) for one in TEXTS.values()]
    found = PairScorer(tiny_nli, device="cpu").infer(pairs)
    for one, logits in zip(found, direct(tiny_nli, pairs), strict=True):
        against, follows, neither = logits.softmax(-1).tolist()
        assert (one.entailment, one.neutral, one.contradiction) == pytest.approx((follows, neither, against), abs=1e-5)


def test_a_model_without_the_three_labels_is_refused_with_what_it_has(tiny_nli, tmp_path):
    folder = shutil.copytree(tiny_nli, tmp_path / "unnamed")
    relabel(folder, ["LABEL_0", "LABEL_1", "LABEL_2"])
    with pytest.raises(
        NoModel, match=r"'unnamed' has the outputs 'LABEL_0', 'LABEL_1', 'LABEL_2', but an NLI model has"
    ):
        PairScorer(folder, device="cpu").infer([("a", "b")])
    said = PairScorer(folder, device="cpu", labels=("contradiction", "entailment", "neutral"))
    assert said.infer([("a", "b")]) == PairScorer(tiny_nli, device="cpu").infer([("a", "b")])


def test_a_folder_is_read_once_and_each_of_its_pairs_too(tiny_relevance, tmp_path):
    folder = shutil.copytree(tiny_relevance, tmp_path / "counted")
    pairs = [("1 2", "3"), ("1", " 23"), ("", "1 23"), ("1 23", "")]
    scores = [PairScorer(folder, device="cpu").score(pairs) for _ in range(2)]
    assert scores[0] == scores[1]
    [held] = [one for one in loaded_models() if one.name == "counted"]
    assert held.texts == 4


def test_a_folder_is_loaded_once_whatever_its_labels_are_called_and_from_wherever(tiny_nli, tmp_path, monkeypatch):
    folder = shutil.copytree(tiny_nli, tmp_path / "shared")
    monkeypatch.chdir(tmp_path)
    named = ("neutral", "contradiction", "entailment")
    for scorer in (PairScorer(folder), PairScorer("./shared"), PairScorer("shared", labels=named)):
        first, _ = scorer.infer([("a", "b"), ("a", "c")])
    assert first != PairScorer(folder).infer([("a", "b")])[0]
    assert len([one for one in loaded_models() if one.where == str(folder)]) == 1


def test_each_pair_is_asked_for_once():
    asked = []
    scorer = PairScorer(lambda pairs: asked.append(pairs) or [float(len(one + other)) for one, other in pairs])
    assert scorer.score([("a", "bc"), ("ab", "c"), ("a", "bc"), ("", "")]) == [3.0, 3.0, 3.0, 0.0]
    assert asked == [[("a", "bc"), ("ab", "c"), ("", "")]]


def test_a_pair_that_the_model_cannot_take_fails_alone():
    def refuses(pairs):
        if ("bad", "x") in pairs:
            raise RuntimeError("no score for bad")
        return [0.5] * len(pairs)

    found = PairScorer(refuses).each([(one, "x") for one in ("a", "bad", "b", "c")])
    assert str(found.pop(("bad", "x"))) == "no score for bad"
    assert found == {("a", "x"): (0.5,), ("b", "x"): (0.5,), ("c", "x"): (0.5,)}


def test_a_number_that_is_not_finite_fails_alone():
    found = PairScorer(lambda pairs: [float("nan") if one == "bad" else 1.0 for one, _ in pairs]).each(
        [("bad", ""), ("good", "")]
    )
    assert found["good", ""] == (1.0,)
    assert "non-finite" in str(found["bad", ""])


@pytest.mark.parametrize(
    "gives",
    [
        lambda pairs: [{"Neutral": 0.2, "CONTRADICTION": 0.1, "entailment": 0.7}] * len(pairs),
        lambda pairs: [[0.7, 0.2, 0.1]] * len(pairs),
    ],
)
def test_a_function_may_tell_the_three_apart(gives):
    [found] = PairScorer(gives).infer([("a", "b")])
    assert (found.entailment, found.neutral, found.contradiction) == pytest.approx((0.7, 0.2, 0.1))
    assert isinstance(found, Inference)


@loop_over(
    ("gives", "what"),
    [
        (lambda pairs: [1.0], "returned an array of shape"),
        (lambda pairs: [[1.0, 2.0]] * 2, "returned an array of shape"),
        (lambda pairs: "no", "returned 'no'"),
        (lambda pairs: [{"entailment": 1.0}] * 2, "without neutral, contradiction"),
        (lambda pairs: [float("inf")] * 2, "non-finite"),
        (lambda pairs: [[3.5, -1.0, 0.2]] * 2, "probabilities must be numbers from 0 to 1"),
    ],
)
def test_what_is_no_score_is_said(gives, what):
    with pytest.raises(ValueError, match=what):
        PairScorer(gives).score([("a", "b"), ("b", "a")])


def test_one_score_is_no_inference():
    with pytest.raises(NoModel, match="returns one score per pair; an NLI model with the labels entailment"):
        PairScorer(lambda pairs: [1.0], name="mine").infer([("a", "b")])


def test_what_names_no_pair_scorer_is_refused():
    with pytest.raises(NoModel, match="a pair scorer is a model's name, a folder"):
        pair_scorer(5)


def test_no_pairs_need_no_model():
    assert PairScorer("no/such-model").score([]) == []


def test_a_cross_encoder_that_is_there_is_a_scorer(tiny_relevance):
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(tiny_relevance), device="cpu")
    assert pair_scorer(model).score([("a", "b")]) == PairScorer(tiny_relevance, device="cpu").score([("a", "b")])
    assert pair_scorer(model).name == "CrossEncoder"


def test_a_cross_encoder_of_inference_that_is_there_gives_its_labels_in_their_places(tiny_nli):
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(tiny_nli), device="cpu")
    [found], [expected] = (one.infer([("a", "b")]) for one in (pair_scorer(model), PairScorer(tiny_nli, device="cpu")))
    assert found == expected
