"""Hallucination, faithfulness and SummaC, against transformers and numpy on tiny models that the session builds."""

from __future__ import annotations

import asyncio
import json
import shutil
from functools import cache

import numpy
import pytest

from evaluators.tiny_models import read_classifier
from lazy_modules import lazy_importorskip
from spanwise.collector.records import Case, Document, Target
from spanwise.evaluators import get_evaluator, score
from spanwise.evaluators.models import Embedder, NoModel, PairScorer

lazy_importorskip("sentence_transformers")
TEXTS = {
    "one word": "Paris",
    "emoji": "🙂🙃 👩‍👩‍👧",
    "arabic": "ما هي عاصمة فرنسا؟ إنها باريس.",
    "chinese": "法国的首都是巴黎。它在塞纳河上。",
    "usual": "Mont Blanc is 4,806 m high.",
}
CONTEXT = ["Mont Blanc is in the Alps.", "It is 4,806 m high, in France."]


def entailment(folder, one, other):
    import torch

    tokenizer, model = read_classifier(folder)
    with torch.inference_mode():
        logits = model(**tokenizer([(one, other)], truncation=True, return_tensors="pt")).logits[0]
    return logits.softmax(-1)[1].item()  # its place among the labels of `tiny_nli`


@cache
def vectaras(folder):
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoTokenizer, T5ForTokenClassification

    network = T5ForTokenClassification(AutoConfig.from_pretrained(folder.parent / "foundation")).eval()
    network.load_state_dict({name[3:]: value for name, value in load_file(folder / "model.safetensors").items()})
    return AutoTokenizer.from_pretrained(folder.parent / "foundation"), network


def consistency(folder, one, other):
    """As the documentation of Vectara's model has it: its prompt, the first token, the second of two classes."""
    import torch

    tokenizer, network = vectaras(folder)
    asked = f"<pad> Determine if the hypothesis is true given the premise?\n\nPremise: {one}\n\nHypothesis: {other}"
    given = tokenizer([asked], return_tensors="pt")
    with torch.inference_mode():
        return network(**given).logits[0, 0].softmax(-1)[1].item()


@pytest.mark.parametrize("name", TEXTS)
def test_hallucination_is_the_probability_that_the_context_entails_the_answer(tiny_nli, name):
    [found] = score(get_evaluator("hallucination", model=tiny_nli), outputs=TEXTS[name], documents=CONTEXT)
    assert found.score == pytest.approx(entailment(tiny_nli, "\n\n".join(CONTEXT), TEXTS[name]), abs=1e-5)


def test_vectaras_model_is_read_without_running_its_code(tiny_hhem):
    pairs = [("\n\n".join(CONTEXT), text) for text in (*TEXTS.values(), "", "It is in {the} Alps. " * 40)]
    found = PairScorer(tiny_hhem, device="cpu", batch_size=3).score(pairs)
    assert found == pytest.approx([consistency(tiny_hhem, *pair) for pair in pairs], abs=1e-5)
    assert max(found) - min(found) > 1e-3


def test_the_threshold_of_hallucination_is_that_of_vectaras_model(tiny_nli):
    models = (None, PairScorer(tiny_nli, name="hhem"), tiny_nli, contains)
    thresholds = [get_evaluator("hallucination", model=model).metrics[0].threshold for model in models]
    assert thresholds == [0.75, 0.75, None, None]
    assert get_evaluator("hallucination", model=contains, threshold=0.5).metrics[0].threshold == 0.5


@pytest.mark.process
def test_a_long_context_supports_what_its_best_window_does(tiny_nli):
    context = " ".join(f"word{number} is in the alps ." for number in range(30)) + " Paris is high."
    scorer = PairScorer(tiny_nli, device="cpu")
    windows, [[answer]] = scorer.parts([context], [TEXTS["usual"]])
    assert len(windows) > 5
    [found] = score(get_evaluator("hallucination", model=scorer), outputs=TEXTS["usual"], documents=[context])
    assert found.score == pytest.approx(max(entailment(tiny_nli, one, answer) for one in windows), abs=1e-5)


@pytest.mark.process
def test_every_window_and_text_goes_through_the_model_whole(tiny_nli):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_nli)
    long = "".join(f"{number}法国的首都是巴黎。" for number in range(80))
    for texts in ([TEXTS["usual"]], [long], [TEXTS["one word"], TEXTS["arabic"] * 40, "idiotic" * 900]):
        firsts, seconds = PairScorer(tiny_nli, device="cpu").parts([long, TEXTS["usual"]], texts)
        for pair in [(first, second) for parts in seconds for second in parts for first in firsts]:
            assert len(tokenizer([pair], verbose=False)["input_ids"][0]) <= 64


def test_an_answer_of_5000_words_is_as_well_supported_as_its_least_window(tiny_nli):
    answer = "Paris is in France. " * 1250
    scorer = PairScorer(tiny_nli, device="cpu")
    [first], [parts] = scorer.parts(["It is high."], [answer])
    [found] = score(get_evaluator("hallucination", model=scorer), outputs=answer, documents=["It is high."])
    assert found.score == pytest.approx(min(entailment(tiny_nli, first, one) for one in set(parts)), abs=1e-5)


def contains(pairs):
    return [float(text in context) for context, text in pairs]


def test_by_sentence_the_least_supported_one_decides_and_is_named():
    judged = get_evaluator("hallucination", model=contains, by="sentence")
    [found] = score(judged, outputs="It is high. It is in Spain.", documents=["It is high.", "It is in France."])
    assert (found.score, found.comment) == (0.0, "least supported: 'It is in Spain.'")


@pytest.mark.parametrize("id", ["hallucination", "faithfulness_nli"])
def test_nothing_to_support_is_a_skip_and_nothing_retrieved_supports_nothing(id):
    assert score(get_evaluator(id, model=contains), outputs=" ", documents=["a"])[0].outcome == "skip"
    for documents in ([], [""], [" \n"]):
        [found] = score(get_evaluator(id, model=contains), outputs="It is.", documents=documents)
        assert (found.score, found.comment) == (0.0, "nothing was retrieved")


@pytest.mark.process
def test_faithfulness_is_the_share_of_sentences_that_some_chunk_entails(tiny_nli):
    answer = "Mont Blanc is high. It is in Paris. Hope this helps!"
    told = [max(entailment(tiny_nli, chunk, one + mark) for chunk in CONTEXT) for one, mark in said(answer)]
    cut = (max(told) + min(told)) / 2
    [found] = score(
        get_evaluator("faithfulness_nli", model=tiny_nli, supported_from=cut), outputs=answer, documents=CONTEXT
    )
    assert found.score == pytest.approx(numpy.mean([one >= cut for one in told]))
    assert f"least: {min(told):.3f}" in found.comment


def said(answer):
    return [
        (one, mark)
        for one, mark in zip(("Mont Blanc is high", "It is in Paris", "Hope this helps"), "..!", strict=True)
    ]


@pytest.mark.process
def test_many_pairs_go_through_the_model_in_parts_and_too_many_are_an_error():
    asked = []
    judged = get_evaluator("faithfulness_nli", model=lambda pairs: asked.append(len(pairs)) or contains(pairs))
    chunks, answer = [f"It is {number}." for number in range(200)], " ".join(f"It is {n}." for n in range(100, 600))
    [too_many] = score(judged, outputs=answer, documents=[*chunks, "It is."])
    assert too_many.error.startswith("ValueError: context and answer make 100,500 pairs")
    [found] = score(judged, outputs=answer, documents=chunks)
    assert (found.score, sum(asked), max(asked) < 5000) == (0.2, 100_000, True)


def test_a_relevance_score_is_no_probability():
    [found] = score(
        get_evaluator("hallucination", model=lambda pairs: [7.5] * len(pairs)), outputs="a", documents=["b"]
    )
    assert "returned 7.5 for a pair; expected a probability" in found.error


def rows(evaluator, cases):
    targets = [Target(trace_id=f"{number:032x}") for number in range(len(cases))]
    return asyncio.run(evaluator.evaluate_batch(cases, targets))


def case(answer, *chunks):
    return Case(inputs="q", outputs=answer, documents=tuple(map(Document, chunks)))


def test_a_pair_that_a_model_refuses_is_the_error_of_its_case_alone(tiny_nli):
    cases = [case("Paris", "a"), case("\ud800", "a"), case("It is.", "b"), case("Paris", "c"), case(object(), "c")]
    found = [row[0] for row in rows(get_evaluator("hallucination", model=tiny_nli), cases)]
    assert [one.outcome for one in found] == ["score", "error", "score", "score", "error"]
    expected = [
        entailment(tiny_nli, chunk, answer) for answer, chunk in (("Paris", "a"), ("It is.", "b"), ("Paris", "c"))
    ]
    assert [one.score for one in found if one.outcome == "score"] == pytest.approx(expected, abs=1e-5)


def test_logits_that_are_no_numbers_are_an_error(tiny_nli, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(tiny_nli, tmp_path / "broken")
    weights = load_file(folder / "model.safetensors")
    weights["classifier.bias"] = weights["classifier.bias"] * float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    [found] = score(get_evaluator("hallucination", model=folder), outputs="a", documents=["b"])
    assert found.error == "ValueError: 'broken' returned a non-finite number for a pair"


def test_weights_that_run_code_are_loaded_only_where_that_is_said(tiny_nli, tmp_path):
    folder = tmp_path / "strange"
    folder.mkdir()
    code = '{"model_type": "strange", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"}}'
    (folder / "config.json").write_text(code)
    (folder / "code.py").write_text("raise SystemExit('this code must not run')")
    with pytest.raises(NoModel, match=r"'strange' runs its own code .* PairScorer\(.*, remote_code=True\)"):
        PairScorer(folder, device="cpu").score([("a", "b")])


def test_an_embedding_model_scores_no_pairs(tiny_nli, tmp_path):
    from transformers import AutoModel

    folder = shutil.copytree(tiny_nli, tmp_path / "embedding")
    AutoModel.from_pretrained(tiny_nli).save_pretrained(folder)
    [found] = score(get_evaluator("hallucination", model=folder), outputs="a", documents=["b"])
    assert found.error == "'embedding' does not score pairs: it was saved as BertModel, without a classification layer"


def test_a_model_of_vectaras_without_all_of_its_weights_scores_nothing(tiny_hhem, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(tiny_hhem, tmp_path / "part")
    weights = {
        key: value for key, value in load_file(tiny_hhem / "model.safetensors").items() if "classifier" not in key
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(NoModel, match=r"is not a Vectara model: the weights 'classifier\.bias' are missing"):
        PairScorer(folder, device="cpu").score([("a", "b")])


def test_pickles_are_loaded_only_where_that_is_said(tiny_nli, tmp_path):
    import torch
    from safetensors.torch import load_file

    folder = shutil.copytree(tiny_nli, tmp_path / "pickled")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(NoModel, match="no model can be loaded from the folder"):
        PairScorer(folder, device="cpu").score([("a", "b")])
    allowed = PairScorer(folder, device="cpu", pickle=True)
    assert allowed.infer([("a", "b")])[0].entailment == pytest.approx(entailment(tiny_nli, "a", "b"), abs=1e-5)


def test_what_vectaras_model_is_built_on_is_named_where_it_is_not_here(tiny_hhem, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = shutil.copytree(tiny_hhem, tmp_path / "alone")
    (folder / "config.json").write_text(json.dumps({"model_type": "HHEMv2"}))
    with pytest.raises(
        NoModel,
        match=r"configuration and tokenizer of 'google/flan-t5-base', .* `hf download google/flan-t5-base --include",
    ):
        PairScorer(folder, device="cpu").score([("a", "b")])


@pytest.mark.parametrize("id", ["hallucination", "faithfulness_nli", "summarization_cf"])
def test_without_the_extra_it_says_what_to_install(id, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    found = score(get_evaluator(id, model=PairScorer("no/such-model")), inputs="a b", outputs="a", documents=["b"])
    assert {one.error for one in found} == {
        "scoring pairs with no/such-model needs 'sentence_transformers', which is not installed: "
        "pip install '.[models]' in a checkout of Spanwise"
    }


def test_an_embedder_runs_no_code_of_a_folder_unless_that_is_said(tiny_nli, tmp_path):
    folder = shutil.copytree(tiny_nli, tmp_path / "strange")
    (folder / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": "code.Model"}]))
    (folder / "code.py").write_text("raise SystemExit('this code must not run')")
    with pytest.raises(NoModel, match=r"'strange' runs its own code .* Embedder\(.*, remote_code=True\)"):
        Embedder(folder, device="cpu").embed(["a"])
