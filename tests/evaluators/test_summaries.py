"""SummaC and completeness, held to their definitions by numpy, and to transformers on a tiny model."""

from __future__ import annotations

import numpy
import pytest

from spanwise.evaluators import get_evaluator, score
from spanwise.evaluators.models import NoModel, PairScorer
from spanwise.evaluators.models.factual_consistency import ConvWeights, zero_shot_score

TEXT = "Mont Blanc is a high mountain. It is in the Alps of France. Nobody lives there at all."
SUMMARY = "Mont Blanc is high up. It is in Paris, I think."
BINS = [0.0, 0.01, 0.02, 0.03, 0.04, 0.07, 0.13, 0.37, 0.90, 0.91, 0.92, 0.93]
BINS += [0.94, 0.95, 0.955, 0.96, 0.965, 0.97, 0.975, 0.98, 0.985, 0.99, 0.995, 1.0]
ONES = lambda texts: [[1.0, 0.0]] * len(texts)  # noqa: E731


def sentences(text):
    return [one + "." for one in text.rstrip(".").split(". ")]


def table(rows):
    """A model that knows each pair's three probabilities; `rows` by sentence of the text, then of the summary."""
    known = {
        (first, second): rows[i][j]
        for i, first in enumerate(sentences(TEXT))
        for j, second in enumerate(sentences(SUMMARY))
    }
    return lambda pairs: [known[pair] for pair in pairs]


PROBABILITIES = [
    [(0.90, 0.05, 0.05), (0.10, 0.20, 0.70)],
    [(0.20, 0.70, 0.10), (0.36, 0.04, 0.60)],
    [(0.97, 0.03, 0.00), (0.00, 0.10, 0.90)],
]


def by_key(found):
    return {one.key: one for one in found}


def weights(bins=23):
    made = numpy.random.default_rng(0)
    return {
        "mlp.weight": made.normal(size=(1, bins)).astype("float32"),
        "mlp.bias": made.normal(size=1).astype("float32"),
        "layer_final.weight": made.normal(size=(2, 3)).astype("float32"),
        "layer_final.bias": made.normal(size=2).astype("float32"),
    }


def saved(folder, held):
    pytest.importorskip("safetensors.numpy").save_file(held, folder / "conv.safetensors")
    return folder / "conv.safetensors"


def by_hand(entailment, held, edges):
    """Histograms of the first ten columns, their weights, the mean three times, a softmax."""
    learned = []
    for column in list(entailment.T)[:10]:
        counts = [0] * (len(edges) - 1)
        for value in column:
            counts[max(place for place in range(len(edges) - 1) if value >= edges[place])] += 1
        learned.append(sum(c * w for c, w in zip(counts, held["mlp.weight"][0], strict=True)) + held["mlp.bias"][0])
    features = [sum(learned) / len(learned)] * 3
    ends = numpy.exp(held["layer_final.weight"] @ features + held["layer_final.bias"])
    return ends[1] / ends.sum()


def test_zero_shot_is_the_mean_of_the_greatest_entailment_less_the_greatest_contradiction():
    found = by_key(
        score(
            get_evaluator("summarization_cf", model=table(PROBABILITIES), embedding=ONES), inputs=TEXT, outputs=SUMMARY
        )
    )
    assert found["summarization_cf_faithfulness_zs"].score == pytest.approx(((0.97 - 0.10) + (0.36 - 0.90)) / 2)
    assert found["summarization_cf_completeness"].comment == "1 of 2 sentences are faithful"


def test_without_its_weights_conv_is_a_skip_with_its_reason():
    found = by_key(
        score(
            get_evaluator("summarization_cf", model=table(PROBABILITIES), embedding=ONES), inputs=TEXT, outputs=SUMMARY
        )
    )
    assert found["summarization_cf_faithfulness_conv"].outcome == "skip"
    assert found["summarization_cf_faithfulness_conv"].comment.startswith(
        "needs SummaC-Conv: its weights are in a file"
    )


def test_conv_weighs_the_histograms_of_entailment(tmp_path):
    held = weights()
    judged = get_evaluator("summarization_cf", model=table(PROBABILITIES), embedding=ONES, conv=saved(tmp_path, held))
    found = by_key(score(judged, inputs=TEXT, outputs=SUMMARY))
    entailment = numpy.asarray(PROBABILITIES, "float32").astype(float)[:, :, 0]  # as models give them
    assert found["summarization_cf_faithfulness_conv"].score == pytest.approx(by_hand(entailment, held, BINS), abs=1e-5)


@pytest.mark.parametrize(("bins", "edges"), [(23, BINS), (50, [place / 50 for place in range(51)])])
@pytest.mark.parametrize("columns", [1, 9, 10, 25])
def test_conv_by_hand(tmp_path, bins, edges, columns):
    held = weights(bins)
    entailment = numpy.random.default_rng(columns).beta(0.3, 0.3, size=(17, columns))
    entailment[0, 0], entailment[1, 0] = 0.0, 1.0
    assert ConvWeights(str(saved(tmp_path, held))).score(entailment) == pytest.approx(
        by_hand(entailment, held, edges), abs=1e-5
    )


def test_the_authors_file_is_a_pickle_and_read_as_one_only_where_that_is_said(tmp_path):
    torch = pytest.importorskip("torch")
    held = weights()
    torch.save({name: torch.from_numpy(value) for name, value in held.items()}, tmp_path / "conv.bin")
    with pytest.raises(NoModel, match=r"conv\.bin' is not a \.safetensors file.* set pickle=True"):
        get_evaluator("summarization_cf", conv=str(tmp_path / "conv.bin"))
    entailment = numpy.full((3, 2), 0.5)
    found = ConvWeights(str(tmp_path / "conv.bin"), pickle=True).score(entailment)
    assert found == pytest.approx(by_hand(entailment, held, BINS), abs=1e-5)


def test_a_pickle_that_would_run_something_is_refused(tmp_path):
    import pickle

    pytest.importorskip("torch")

    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "went off"), "w"))

    (tmp_path / "bomb.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(NoModel, match="has no weights of SummaC-Conv"):
        ConvWeights(str(tmp_path / "bomb.bin"), pickle=True).score(numpy.zeros((1, 1)))
    assert not (tmp_path / "went off").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"mlp.weight": numpy.zeros((1, 24), "float32")},
            r"has mlp.weight of shape \(1, 24\); expected \(1, 23 or 50\)",
        ),
        ({"layer_final.bias": numpy.zeros((3,), "float32")}, r"has layer_final.bias of shape \(3,\)"),
    ],
)
def test_other_weights_are_refused(tmp_path, change, said):
    with pytest.raises(NoModel, match=said):
        ConvWeights(str(saved(tmp_path, weights() | change))).score(numpy.zeros((1, 1)))


def test_a_file_that_is_not_there_or_far_too_large_is_said_at_once(tmp_path):
    with pytest.raises(NoModel, match="there is no file 'nix'"):
        get_evaluator("summarization_cf", conv="nix")
    with pytest.raises(NoModel, match="there is no file ''"):
        get_evaluator("summarization_cf", conv="")
    (tmp_path / "large.safetensors").write_bytes(bytes(2 << 20))
    with pytest.raises(NoModel, match="has 2,097,152 bytes: the weights of SummaC-Conv are 2 kB"):
        get_evaluator("summarization_cf", conv=tmp_path / "large.safetensors")


def test_completeness_is_the_cosine_of_the_mean_directions_of_text_and_faithful_part():
    vectors = dict(
        zip([*sentences(TEXT), *sentences(SUMMARY)], numpy.random.default_rng(1).normal(size=(5, 4)), strict=True)
    )
    judged = get_evaluator(
        "summarization_cf", model=table(PROBABILITIES), embedding=lambda texts: [vectors[text] for text in texts]
    )
    units = {text: value / numpy.linalg.norm(value) for text, value in vectors.items()}
    one, other = sum(units[text] for text in sentences(TEXT)), units[sentences(SUMMARY)[0]]
    expected = max(0.0, one @ other / numpy.linalg.norm(one))
    assert score(judged, inputs=TEXT, outputs=SUMMARY)[0].score == pytest.approx(expected, abs=1e-5)


def test_a_summary_of_which_nothing_is_faithful_completes_nothing():
    judged = get_evaluator("summarization_cf", model=lambda pairs: [(0.1, 0.1, 0.8)] * len(pairs), embedding=ONES)
    found = by_key(score(judged, inputs=TEXT, outputs=SUMMARY))
    assert (found["summarization_cf_completeness"].score, found["summarization_cf_faithfulness_zs"].score) == (
        0.0,
        pytest.approx(-0.7),
    )


def test_the_text_is_what_was_retrieved_and_else_the_question():
    asked = []
    model = lambda pairs: asked.extend(pairs) or [(1.0, 0.0, 0.0)] * len(pairs)  # noqa: E731
    score(
        get_evaluator("summarization_cf", model=model, embedding=ONES),
        inputs="Sum it up.",
        outputs=SUMMARY,
        documents=[TEXT],
    )
    assert {first for first, _ in asked} == set(sentences(TEXT))


def test_short_sentences_are_left_out_unless_there_are_no_others():
    asked = []
    model = lambda pairs: asked.extend(pairs) or [(1.0, 0.0, 0.0)] * len(pairs)  # noqa: E731
    judged = get_evaluator("summarization_cf", model=model, embedding=ONES, max_sentences=1)
    score(judged, inputs="It is. " + TEXT, outputs="It rains.")
    assert asked == [(sentences(TEXT)[0], "It rains.")]


@pytest.mark.parametrize(("inputs", "outputs", "said"), [("", "It is.", "text"), ("It is.", " ", "summary")])
def test_an_empty_text_or_summary_is_a_skip(inputs, outputs, said):
    found = score(
        get_evaluator("summarization_cf", model=table(PROBABILITIES), embedding=ONES), inputs=inputs, outputs=outputs
    )
    assert {one.comment for one in found} == {f"the {said} has no sentence"}


def test_a_model_of_one_score_is_refused():
    judged = get_evaluator(
        "summarization_cf", model=PairScorer(lambda pairs: [0.5] * len(pairs), name="mine"), embedding=ONES
    )
    assert {one.error for one in score(judged, inputs=TEXT, outputs=SUMMARY)} == {
        "'mine' returns one score per pair; an NLI model with the labels entailment, neutral, contradiction is needed"
    }


def test_the_thresholds_are_those_of_summacs_own_model():
    thresholds = [metric.threshold for metric in get_evaluator("summarization_cf").metrics]
    assert thresholds == [None, 0.75, 0.75]
    assert [metric.threshold for metric in get_evaluator("summarization_cf", model=table(PROBABILITIES)).metrics] == [
        None
    ] * 3


def test_the_version_changes_with_the_weights(tmp_path):
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
    one = saved(tmp_path / "one", weights())
    other = saved(tmp_path / "other", weights() | {"mlp.bias": numpy.zeros(1, "float32")})
    versions = {get_evaluator("summarization_cf", model="no/such", conv=file).version for file in (None, one, other)}
    assert len(versions) == 3


def test_on_a_real_model_it_is_what_its_probabilities_make(tiny_nli):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    summary = "法国的首都是巴黎，不是里昂。🙂 Paris is in France."
    parts = ["法国的首都是巴黎，不是里昂。", "🙂 Paris is in France."]
    tokenizer = AutoTokenizer.from_pretrained(tiny_nli)
    model = AutoModelForSequenceClassification.from_pretrained(tiny_nli).eval()
    pairs = [(first, second) for first in sentences(TEXT) for second in parts]
    with torch.inference_mode():
        rows = [model(**tokenizer([pair], return_tensors="pt")).logits[0].softmax(-1).tolist() for pair in pairs]
    image = numpy.asarray(rows).reshape(3, 2, 3)
    found = by_key(
        score(get_evaluator("summarization_cf", model=tiny_nli, embedding=ONES), inputs=TEXT, outputs=summary)
    )
    assert found["summarization_cf_faithfulness_zs"].score == pytest.approx(
        zero_shot_score(image[:, :, 1], image[:, :, 0]), abs=1e-5
    )
