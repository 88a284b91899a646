"""Retrieval against Haystack's own evaluators and against trec_eval (ir-measures)."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.collector.records import Document
from assay.evaluators import Skip, get, score
from assay.evaluators.builtin import retrieval

IDS = st.lists(st.sampled_from("abcdefgh"), max_size=8)
SOME = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6)
GRADED = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 3), min_size=1, max_size=6)


def trec(measure, retrieved, grades):
    import ir_measures

    name, _, cut = measure.partition("@")
    asked = getattr(ir_measures, name) @ int(cut) if cut else getattr(ir_measures, name)
    qrels = [ir_measures.Qrel("q", id, grade) for id, grade in grades.items()]
    run = [ir_measures.ScoredDoc("q", id, float(-rank)) for rank, id in enumerate(retrieved)]
    return ir_measures.calc_aggregate([asked], qrels, run or [ir_measures.ScoredDoc("q", "-", 0.0)])[asked]


@pytest.mark.parametrize(
    ("measure", "function"),
    [
        ("AP", retrieval.average_precision),
        ("RR", retrieval.reciprocal_rank),
        ("nDCG", retrieval.ndcg),
        ("R@3", lambda found, expected: retrieval.recall(found, expected, k=3)),
        ("P@3", lambda found, expected: retrieval.precision(found, expected, k=3)),
        ("P@10", lambda found, expected: retrieval.precision(found, expected, k=10)),
        ("Success@2", lambda found, expected: retrieval.hit(found, expected, k=2)),
        ("nDCG@3", lambda found, expected: retrieval.ndcg(found, expected, k=3)),
    ],
)
@given(retrieved=st.lists(st.sampled_from("abcdefgh"), unique=True), grades=GRADED)
def test_numbers_are_those_of_trec_eval(measure, function, retrieved, grades):
    expected = [Document("", id, grade) for id, grade in grades.items()]
    found = [Document("", id) for id in retrieved]
    assert function(found, expected) == pytest.approx(trec(measure, retrieved, grades), abs=1e-4)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("DocumentMAPEvaluator", retrieval.average_precision),
        ("DocumentMRREvaluator", retrieval.reciprocal_rank),
        ("DocumentNDCGEvaluator", retrieval.ndcg),
        ("DocumentRecallEvaluator", lambda a, b: retrieval.recall(a, b, mode="single_hit")),
    ],
)
@given(retrieved=IDS, expected=SOME)
def test_numbers_are_those_of_haystack_also_with_duplicates(name, function, retrieved, expected):
    import haystack.components.evaluators as oracle
    from haystack import Document as HaystackDocument

    wanted = [[HaystackDocument(content=text) for text in expected]]
    found = [[HaystackDocument(content=text) for text in retrieved]]
    theirs = getattr(oracle, name)().run(ground_truth_documents=wanted, retrieved_documents=found)["score"]
    assert function(retrieved, expected) == pytest.approx(theirs)


@given(retrieved=IDS, expected=SOME, data=st.data())
def test_scores_lie_between_0_and_1_and_ignore_the_order_of_what_is_expected(retrieved, expected, data):
    shuffled = data.draw(st.permutations(expected))
    for function in (retrieval.recall, retrieval.average_precision, retrieval.reciprocal_rank, retrieval.ndcg):
        value = function(retrieved, expected)
        assert 0 <= value <= 1 + 1e-12
        assert value == pytest.approx(function(retrieved, shuffled))


@given(retrieved=IDS, expected=SOME)
def test_more_retrieved_never_lowers_recall(retrieved, expected):
    assert retrieval.recall([*retrieved, "a"], expected) >= retrieval.recall(retrieved, expected)


def test_a_document_retrieved_twice_counts_once():
    assert retrieval.recall(["a", "a"], ["a", "b"]) == 0.5
    assert retrieval.average_precision(["a", "a"], ["a", "b"]) == 0.5
    assert retrieval.ndcg(["a", "a", "b"], ["a", "b"]) < 1
    assert retrieval.precision(["a", "a"], ["a"], k=2) == 0.5


def test_the_example_of_the_ndcg_documentation_by_hand():
    expected = [Document("France", score=1.0), Document("Paris", score=0.5)]
    by_hand = (1 + 0.5 / math.log2(4)) / (1 + 0.5 / math.log2(3))
    assert (
        retrieval.ndcg(["France", "Germany", "Paris"], expected)
        == pytest.approx(by_hand)
        == pytest.approx(0.9502, abs=1e-4)
    )


def test_ndcg_refuses_a_mix_of_documents_with_and_without_scores():
    with pytest.raises(ValueError, match="some have none"):
        retrieval.ndcg(["a"], [Document("a", score=1.0), Document("b")])


def test_ids_decide_where_both_have_one():
    assert retrieval.recall([Document("same text", "x")], [Document("same text", "y")]) == 0
    assert retrieval.recall([Document("other text", "x")], [Document("same text", "x")]) == 1
    assert retrieval.recall([Document("text")], [Document("text", "y")]) == 1


def test_expected_documents_may_be_plain_ids_or_plain_texts():
    found = [Document("other", "lambda"), Document("the text", "with")]
    assert retrieval.recall(found, ["lambda", "the text", "missing"]) == pytest.approx(2 / 3)


def test_databricks_documents_are_the_same_by_doc_uri():
    found = [{"content": "a", "doc_uri": "u1"}, {"content": "b", "doc_uri": "u1"}]
    assert retrieval.recall(found, [{"doc_uri": "u1"}, {"doc_uri": "u2"}]) == 0.5
    assert retrieval.recall([Document("a", "0", metadata={"doc_uri": "u2"})], [{"doc_uri": "u2"}], by="doc_uri") == 1


def test_documents_are_the_same_by_a_field_of_their_metadata():
    found = [{"content": "chunk", "metadata": {"source": {"url": "u"}}}]
    assert (
        retrieval.recall(
            found, [{"content": "", "id": "x", "metadata": {"source": {"url": "u"}}}], by="metadata.source.url"
        )
        == 1
    )


def test_empty_texts_match_nothing():
    assert retrieval.recall([Document("")], [Document("a")]) == 0
    with pytest.raises(Skip, match="names no document"):
        retrieval.recall([Document("")], [Document("")])


def test_unicode_documents_are_compared_as_they_are():
    assert retrieval.recall(["naïve", "北京"], ["naïve", "北京"]) == 1
    assert retrieval.recall(["nai\u0308ve"], ["naïve"]) == 0


def test_nothing_expected_is_a_skip_and_nothing_retrieved_a_zero():
    assert score(get("ir_map"), documents=["a"], expected_documents=[])[0].outcome == "skip"
    assert [
        score(get(id), documents=[], expected_documents=["a"])[0].score
        for id in ("ir_map", "ir_mrr", "ir_ndcg", "document_recall", "precision_at_k")
    ] == [0.0] * 5


def test_missing_documents_are_a_skip_that_names_them():
    assert score(get("ir_mrr"), expected_documents=["a"])[0].comment == "needs documents; the case has none"


@pytest.mark.parametrize("bad", [{"k": 0}, {"by": "title"}, {"mode": "some"}])
def test_bad_parameters_are_refused_when_the_evaluator_is_made(bad):
    with pytest.raises(ValueError, match=repr(next(iter(bad.values())))):
        get("document_recall", **bad)


def test_hit_and_precision_without_k():
    assert score(get("hit_at_k", k=1), documents=["b", "a"], expected_documents=["a"])[0].score is False
    assert score(get("precision_at_k", k=None), documents=["b", "a"], expected_documents=["a"])[0].score == 0.5


def test_documents_with_ids_of_their_own_are_found_by_doc_uri():
    retrieved = [{"id": "1", "content": "t", "doc_uri": "u1"}, {"id": "2", "content": "s", "doc_uri": "u9"}]
    assert retrieval.recall(retrieved, [{"doc_uri": "u1"}, {"doc_uri": "u2"}]) == 0.5


def test_gains_below_zero_are_none_and_nan_is_refused():
    grades = [{"id": "a", "score": -1.0}, {"id": "b", "score": 1.0}]
    assert retrieval.ndcg(["a", "b"], grades) == pytest.approx(trec("nDCG", ["a", "b"], {"a": -1, "b": 1}))
    with pytest.raises(ValueError, match="neither NaN"):
        retrieval.ndcg(["a"], [{"id": "a", "score": math.nan}])
