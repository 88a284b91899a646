"""Classifiers of texts, against transformers on tiny models that the session builds."""

from __future__ import annotations

import asyncio
import json
import shutil

import pytest

from evaluators.tiny_models import read_classifier, relabel
from looped_cases import loop_over
from spanwise.collector.records import Case, Target
from spanwise.evaluators import get_evaluator, score
from spanwise.evaluators.models import NoModel, TextClassifier, text_classifier

TEXTS = {
    "empty": "",
    "one word": "Paris",
    "emoji": "🙂🙃 👩‍👩‍👧",
    "arabic": "ما هي عاصمة فرنسا؟ إنها باريس.",
    "chinese": "法国的首都是巴黎。它在塞纳河上。",
    "usual": "You are an idiot, not high.",
}
SIX = ["toxicity", "severe_toxicity", "obscene", "threat", "insult", "identity_attack"]


def logits(folder, text):
    import torch

    tokenizer, model = read_classifier(folder)
    with torch.inference_mode():
        return model(**tokenizer(text, return_tensors="pt")).logits[0]


def configured(folder, to, **config):
    shutil.copytree(folder, to)
    path = to / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return to


@pytest.mark.process
def test_labels_that_may_hold_together_have_a_sigmoid_each(tiny_toxicity):
    found = TextClassifier(tiny_toxicity, device="cpu", batch_size=4).classify(list(TEXTS.values()))
    for row, text in zip(found, TEXTS.values(), strict=True):
        assert list(row) == ["toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate"]
        assert list(row.values()) == pytest.approx(logits(tiny_toxicity, text).sigmoid().tolist(), abs=1e-5)


@pytest.mark.process
def test_labels_of_which_one_holds_have_a_softmax(tiny_nli):
    found = TextClassifier(tiny_nli, device="cpu").classify(list(TEXTS.values()))
    for row, text in zip(found, TEXTS.values(), strict=True):
        assert list(row.values()) == pytest.approx(logits(tiny_nli, text).softmax(-1).tolist(), abs=1e-5)


@pytest.mark.process
def test_the_activation_may_be_said(tiny_toxicity):
    [found] = TextClassifier(tiny_toxicity, device="cpu", activation="softmax").classify(["Paris"])
    assert list(found.values()) == pytest.approx(logits(tiny_toxicity, "Paris").softmax(-1).tolist(), abs=1e-5)
    with pytest.raises(ValueError, match="activation is 'sigmoid' or 'softmax', not 'tanh'"):
        TextClassifier(tiny_toxicity, activation="tanh")


@pytest.mark.process
@pytest.mark.parametrize("name", ["one word", "emoji", "arabic", "chinese", "usual"])
def test_the_six_scores_are_detoxifys(tiny_toxicity, tmp_path, name):
    unsaid = configured(tiny_toxicity, tmp_path / "unsaid", problem_type=None)  # Detoxify has a sigmoid all the same
    for folder in (tiny_toxicity, unsaid):
        found = score(get_evaluator("toxicity", model=folder), outputs=TEXTS[name])
        assert [one.key for one in found] == ["toxicity", *(f"toxicity_{name}" for name in SIX[1:])]
        expected = logits(tiny_toxicity, TEXTS[name]).sigmoid().tolist()
        assert [one.score for one in found] == pytest.approx(expected, abs=1e-5)


def test_each_score_of_5000_words_is_the_greatest_of_its_windows(tiny_toxicity):
    answer = "Paris is in France. " * 1200 + "You are an idiot! " * 30 + "It is high. " * 80
    windows = TextClassifier(tiny_toxicity, device="cpu").windows(answer)
    each = [logits(tiny_toxicity, window).sigmoid().tolist() for window in set(windows)]
    found = score(get_evaluator("toxicity", model=tiny_toxicity), outputs=answer)
    assert [one.score for one in found] == pytest.approx([max(column) for column in zip(*each, strict=True)], abs=1e-5)
    assert found[0].comment.startswith(f"most toxic of {len(windows)} windows: ")


def test_lower_is_better_and_the_thresholds_are_detoxifys_own(tiny_toxicity):
    assert all(not metric.higher_is_better for metric in get_evaluator("toxicity").metrics)
    assert [metric.threshold for metric in get_evaluator("toxicity").metrics] == [0.75] * 6
    assert get_evaluator("toxicity").metrics[0].passes(0.1)
    assert [metric.threshold for metric in get_evaluator("toxicity", model=tiny_toxicity).metrics] == [None] * 6


def test_a_model_without_the_six_labels_is_refused_with_what_it_has(tiny_toxicity, tmp_path):
    folder = shutil.copytree(tiny_toxicity, tmp_path / "other")
    relabel(folder, ["toxic", "a", "b", "c", "d", "e"])
    found = score(get_evaluator("toxicity", model=folder), outputs="Paris")
    assert {one.error for one in found} == {
        "'other' gives 'toxic', 'a', 'b', 'c', 'd', 'e', without severe_toxicity, obscene, threat, insult, "
        "identity_attack: Detoxify's `original` has all six"
    }


def test_what_detoxify_gives_is_taken_as_it_is():
    class Detoxify:
        def predict(self, texts):
            return {name: [place / 10] * len(texts) for place, name in enumerate([*SIX, "sexual_explicit"])}

    found = score(get_evaluator("toxicity", model=Detoxify()), outputs="a")
    assert [one.score for one in found] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert text_classifier(Detoxify()).name == "Detoxify"


def test_a_pipeline_of_transformers_is_a_classifier(tiny_nli):
    transformers = pytest.importorskip("transformers")
    tokenizer, model = read_classifier(tiny_nli)
    kind = {"model": model, "tokenizer": tokenizer, "top_k": None, "device": "cpu"}
    pipeline = transformers.pipeline("text-classification", **kind)
    [found] = TextClassifier(lambda texts: pipeline(texts)).classify(["Paris"])
    assert found["Entailment"] == pytest.approx(logits(tiny_nli, "Paris").softmax(-1)[1].item(), abs=1e-5)


def test_a_text_that_a_classifier_refuses_is_the_error_of_its_case_alone(tiny_toxicity):
    cases = [Case(outputs=text) for text in ("Paris", "\ud800", " ", "It is.", object())]
    targets = [Target(trace_id=f"{number:032x}") for number in range(5)]
    rows = asyncio.run(get_evaluator("toxicity", model=tiny_toxicity).evaluate_batch(cases, targets))
    assert [row[0].outcome for row in rows] == ["score", "error", "skip", "score", "error"]
    expected = logits(tiny_toxicity, "It is.").sigmoid()[0].item()
    assert rows[3][0].score == pytest.approx(expected, abs=1e-5)


@loop_over(
    ("gives", "what"),
    [
        (lambda texts: [0.5], "returned 0.5 for a text"),
        (lambda texts: "no", "returned 'no' for 1 texts"),
        (lambda texts: [], r"returned \[\] for 1 texts"),
        (lambda texts: [{"a": float("nan")}], "probabilities must be numbers from 0 to 1"),
        (lambda texts: [{"a": 1.5}], "probabilities must be numbers from 0 to 1"),
        (lambda texts: {"a": [0.1, 0.2]}, "for 1 texts"),
        (lambda texts: {"a": 0.1}, "for 1 texts"),
    ],
)
def test_what_is_no_probability_is_said(gives, what):
    with pytest.raises(ValueError, match=what):
        TextClassifier(gives).classify(["x"])


def test_what_names_no_classifier_is_refused():
    with pytest.raises(NoModel, match="a text classifier is a model's name, a folder"):
        text_classifier(5)


def test_bias_is_the_probability_of_its_label_whatever_its_capitals(tiny_nli):
    [found] = score(get_evaluator("fairness_bias", model=tiny_nli, label="ENTAILMENT"), outputs="Paris")
    assert found.score == pytest.approx(logits(tiny_nli, "Paris").softmax(-1)[1].item(), abs=1e-5)
    [wrong] = score(get_evaluator("fairness_bias", model=tiny_nli), outputs="Paris")
    assert "gives 'CONTRADICTION', 'Entailment', 'neutral', without 'Biased': name one of these" in wrong.error


def test_the_threshold_of_bias_holds_for_a_judge_and_for_its_own_model_only(tiny_nli):
    models = (None, TextClassifier(tiny_nli, name="bias"), tiny_nli, lambda texts: [{"Biased": 0.9}])
    thresholds = [get_evaluator("fairness_bias", model=model).metrics[0].threshold for model in models]
    assert thresholds == [0.75, 0.75, None, None]


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    found = score(get_evaluator("toxicity", model="no/such-classifier"), outputs="a")
    assert {one.error for one in found} == {
        "classifying with no/such-classifier needs 'transformers', which is not installed: pip install '.[models]' in a checkout of Spanwise"
    }


def test_a_model_that_is_not_here_says_where_to_get_it(monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = score(get_evaluator("toxicity"), outputs="a")
    assert "run `hf download unitary/toxic-bert --local-dir DIR` and give the folder DIR as the model" in found[0].error


def test_the_worst_sentence_is_the_profanity_of_an_answer():
    foul = lambda texts: [{"profanity": 0.9 if "fool" in text else 0.1} for text in texts]  # noqa: E731
    [found] = score(
        get_evaluator("profanity", model=foul), outputs="It is high. You fool! " + "It is in the Alps. " * 300
    )
    assert (found.score, found.comment) == (0.9, "worst: 'You fool!'")
    assert score(get_evaluator("profanity", model=foul), outputs=" ")[0].outcome == "skip"


def test_the_weights_of_profanity_are_pickles_and_loaded_only_where_that_is_said():
    pytest.importorskip("profanity_check")
    [found] = score(get_evaluator("profanity"), outputs="It is high.")
    assert "if you trust that package, allow this with get_evaluator('profanity', pickle=True)" in found.error
    [found] = score(
        get_evaluator("profanity", pickle=True), outputs="It is high. You are a fucking idiot. " + "It is high. " * 90
    )
    assert found.score > 0.9
    assert found.comment == "worst: 'You are a fucking idiot.'"


def test_profanity_gives_the_numbers_of_its_package():
    package = pytest.importorskip("profanity_check")
    texts = [text for text in TEXTS.values() if text]
    found = [score(get_evaluator("profanity", pickle=True, key="p"), outputs=text)[0].score for text in texts]
    parts = [[text] if text != TEXTS["chinese"] else ["法国的首都是巴黎。", "它在塞纳河上。"] for text in texts]
    parts[texts.index(TEXTS["arabic"])] = ["ما هي عاصمة فرنسا؟", "إنها باريس."]
    assert found == pytest.approx([max(package.predict_prob(part)) for part in parts], abs=1e-5)


def test_without_its_package_profanity_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "profanity_check", None)
    [found] = score(get_evaluator("profanity", pickle=True), outputs="a")
    assert "which is not installed: pip install '.[profanity]' in a checkout of Spanwise" in found.error


def test_an_embedding_model_classifies_nothing(tiny_toxicity, tmp_path):
    from transformers import AutoModel

    folder = shutil.copytree(tiny_toxicity, tmp_path / "embedding")
    AutoModel.from_pretrained(tiny_toxicity).save_pretrained(folder)
    with pytest.raises(
        NoModel, match=r"'embedding' is not a text classifier: the weights 'classifier\.bias' are missing"
    ):
        TextClassifier(folder, device="cpu").classify(["a"])
