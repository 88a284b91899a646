"""Retrieval against Haystack's own evaluators and against trec_eval (ir-measures)."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped_cases import loop_over
from spanwise.collector.records import Document
from spanwise.evaluators import Skip, get_evaluator, score
from spanwise.evaluators.builtin import retrieval

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


@pytest.mark.process
@pytest.mark.parametrize(
    ("measure", "function"),
    [
        ("AP", retrieval.average_precision),
        ("RR", retrieval.reciprocal_rank),
        ("nDCG", retrieval.ndcg),
        ("R@3", lambda found, expected: retrieval.recall(found, expected, k=3)),
        ("P@3", lambda found, expected: retrieval.precision(found, expected, k=3)),
        ("P@10", lambda found, expected: retrieval.precision(found, expected, k=10)),
        ("Success@2", lambda found, expected: retrieval.has_hit(found, expected, k=2)),
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


@pytest.mark.process
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
    with pytest.raises(ValueError, match="only some expected documents have a score"):
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
    with pytest.raises(Skip, match="contains no document"):
        retrieval.recall([Document("")], [Document("")])


def test_unicode_documents_are_compared_as_they_are():
    assert retrieval.recall(["naïve", "北京"], ["naïve", "北京"]) == 1
    assert retrieval.recall(["nai\u0308ve"], ["naïve"]) == 0


def test_nothing_expected_is_a_skip_and_nothing_retrieved_a_zero():
    assert score(get_evaluator("ir_map"), documents=["a"], expected_documents=[])[0].outcome == "skip"
    assert [
        score(get_evaluator(id), documents=[], expected_documents=["a"])[0].score
        for id in ("ir_map", "ir_mrr", "ir_ndcg", "document_recall", "precision_at_k")
    ] == [0.0] * 5


def test_missing_documents_are_a_skip_that_names_them():
    assert score(get_evaluator("ir_mrr"), expected_documents=["a"])[0].comment == "needs documents; the case has none"


@pytest.mark.parametrize("bad", [{"k": 0}, {"by": "title"}, {"by": "metadata."}, {"mode": "some"}])
def test_bad_parameters_are_refused_when_the_evaluator_is_made(bad):
    with pytest.raises(ValueError, match=repr(next(iter(bad.values())))):
        get_evaluator("document_recall", **bad)


def test_hit_and_precision_without_k():
    assert score(get_evaluator("hit_at_k", k=1), documents=["b", "a"], expected_documents=["a"])[0].score is False
    assert (
        score(get_evaluator("precision_at_k", k=None), documents=["b", "a"], expected_documents=["a"])[0].score == 0.5
    )


def test_documents_with_ids_of_their_own_are_found_by_doc_uri():
    retrieved = [{"id": "1", "content": "t", "doc_uri": "u1"}, {"id": "2", "content": "s", "doc_uri": "u9"}]
    assert retrieval.recall(retrieved, [{"doc_uri": "u1"}, {"doc_uri": "u2"}]) == 0.5


def test_gains_below_zero_are_none_and_nan_is_refused():
    grades = [{"id": "a", "score": -1.0}, {"id": "b", "score": 1.0}]
    assert retrieval.ndcg(["a", "b"], grades) == pytest.approx(trec("nDCG", ["a", "b"], {"a": -1, "b": 1}))
    with pytest.raises(ValueError, match="neither NaN"):
        retrieval.ndcg(["a"], [{"id": "a", "score": math.nan}])


ALL = ("document_recall", "ir_map", "ir_mrr", "ir_ndcg", "precision_at_k", "hit_at_k")
HAYSTACK = ("DocumentRecall", "DocumentMAP", "DocumentMRR", "DocumentNDCG")
PROSE = ({"content": "Paris is the capital of France."}, {"content": "Lyon lies at the Rhône."})
SHA = "a" * 64


def said(documents, expected, id="document_recall", **parameters):
    (feedback,) = score(get_evaluator(id, **parameters), documents=documents, expected_documents=expected)
    return feedback.score if feedback.outcome == "score" else feedback.comment


@loop_over("id", ALL)
def test_ids_that_nobody_sent_are_a_skip_and_no_zero(id):
    assert said(PROSE, [{"id": "d1"}, {"id": "d2"}], id) == (
        "2 of 2 expected documents cannot be compared with what was retrieved: expected ids, retrieved contents; "
        "record the same fields for both, or name the field to compare with by="
    )


@pytest.mark.parametrize("id", HAYSTACK)
def test_contents_that_nobody_sent_are_a_skip_under_haystacks_names(id):
    assert "compared by 'content', and none of the 1 retrieved ones has it" in said([{"id": "d1"}], ["a text"], id)


@loop_over(
    ("documents", "expected", "score_or_why"),
    [
        (["d3"], [{"id": "d1"}], 0.0),  # a plain list of ids
        (["doc three"], [{"id": "doc one"}], 0.0),  # ids with spaces
        (
            PROSE,
            ["d1", "d2"],
            "expected texts that look like ids, retrieved contents",
        ),  # a plain list of ids, and texts
        (["北京是中国的首都。"], ["d1"], "expected texts that look like ids, retrieved contents"),
        ([{"id": "d3"}], ["d1"], 0.0),
        ([{"id": "d3"}], ["A text of a document."], "expected contents, retrieved ids"),
        ([{"id": "d3", "content": "A text."}], ["Another text."], 0.0),
        ([{"id": "d3"}], [{"id": "d1", "content": "A text."}], 0.0),
        ([{"content": "Another text."}], [{"id": "d1", "content": "A text."}], 0.0),
        ([{"content": ""}], [{"id": "d1"}], "expected ids, retrieved neither ids nor contents"),
        ([{"content": ""}], ["A text."], 0.0),
        ([], [{"id": "d1"}], 0.0),
        ([{"id": "", "content": "A text."}], [{"id": "", "content": "A text."}], 1.0),
    ],
)
def test_what_can_be_compared(documents, expected, score_or_why):
    given = said(documents, expected)
    assert given == score_or_why if isinstance(score_or_why, float) else score_or_why in given


@pytest.mark.parametrize(
    ("documents", "expected", "score_or_why"),
    [
        # each expected document must have something to be found by
        (PROSE, [{"id": "d1"}, PROSE[0]], "1 of 2 expected documents cannot be compared"),
        # a retrieved document that cannot be compared is one that is not expected
        ([*PROSE, {"id": "d1"}], [{"id": "d1"}, {"id": "d2"}], 0.5),
        ([{"id": "d1"}, *PROSE], [{"id": "d1"}, PROSE[1]], 1.0),
        # what was found needs nothing else
        (["d1", "a text of its own"], [{"id": "d1"}], 1.0),
        (["d1", "a text of its own"], [{"id": "d1"}, {"id": "d2"}], 0.5),
    ],
)
def test_documents_of_several_kinds(documents, expected, score_or_why):
    given = said(documents, expected)
    assert given == score_or_why if isinstance(score_or_why, float) else score_or_why in given


def test_ids_made_from_contents_are_not_compared_where_contents_are():
    from haystack import Document as HaystackDocument

    found = [HaystackDocument(content="A text.", meta={"rank": 1})]
    assert said(found, [HaystackDocument(content="A text.")]) == 1.0
    assert said(found, [{"id": "d1", "content": "A text."}]) == 1.0
    assert said(found, [HaystackDocument(content="Another.")]) == 0.0
    assert said(found, [HaystackDocument(content="A text."), HaystackDocument(content="A text.", meta={"k": 1})]) == 1.0
    assert "expected ids, retrieved ids made from contents and contents" in said(found, [{"id": "d1"}])


def test_ids_of_64_hex_digits_without_contents_are_ids():
    assert said([{"id": SHA}], [{"id": SHA, "content": "The text."}]) == 1.0
    assert said([{"id": SHA}], [{"id": "b" * 64}]) == 0.0


@pytest.mark.parametrize("by", ["id", "doc_uri", "metadata.source"])
def test_a_field_that_nothing_retrieved_has_is_a_skip(by):
    expected = {"id": "d1", "metadata": {"source": "s"}}
    assert f"compared by {by!r}, and none of the 2" in said(PROSE, [expected], "ir_map", by=by)
    assert said([], [expected], "ir_map", by=by) == 0.0
    assert f"contains no document by {by!r}" in said([expected], PROSE, "ir_map", by=by)


def test_a_case_with_documents_that_only_come_after_k_is_compared():
    assert said([*PROSE, {"id": "d1"}], [{"id": "d1"}], "hit_at_k", k=1) is False


@pytest.mark.parametrize("empty", [{"content": ""}, {"content": None}, Document("")])
def test_an_empty_chunk_keeps_its_rank(empty):
    assert said([empty, "a"], ["a"], "ir_mrr") == 0.5


@pytest.mark.process
def test_many_documents_are_matched_in_time():
    found, expected = [Document(f"text {i}") for i in range(20_000)], [{"id": f"d {i}"} for i in range(20_000)]
    assert said(found, expected) == 0.0  # quadratic would be minutes


def test_addresses_that_are_no_texts_are_compared_all_the_same():
    odd = {"content": "c", "metadata": {"doc_uri": ["u"]}}
    assert said([odd], [odd], by="doc_uri") == 1.0
