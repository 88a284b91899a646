"""Haystack's evaluators under their own names: its examples run as they stand, its numbers come out."""

import inspect
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazy_modules import LazyModule
from looped_cases import loop_over
from spanwise.collector.records import Document

components = LazyModule("evaluators.haystack_components")
haystack = LazyModule("haystack")
ours = LazyModule("spanwise.evaluators.haystack")
theirs = LazyModule("haystack.components.evaluators")
NAMES = ["DocumentMAPEvaluator", "DocumentMRREvaluator", "DocumentNDCGEvaluator", "DocumentRecallEvaluator"]
LISTS = st.lists(st.sampled_from("abcd"), max_size=5)
CASES = st.lists(st.tuples(LISTS, LISTS), min_size=1, max_size=4)


def documents(lists):
    return [[haystack.Document(content=text) for text in one] for one in lists]


@pytest.mark.process
@pytest.mark.parametrize("name", NAMES)
@given(cases=CASES)
def test_results_are_theirs(name, cases):
    truths, found = documents([a for a, _ in cases]), documents([b for _, b in cases])
    expected = getattr(theirs, name)().run(ground_truth_documents=truths, retrieved_documents=found)
    given = getattr(ours, name)().run(ground_truth_documents=truths, retrieved_documents=found)
    assert given["individual_scores"] == pytest.approx(expected["individual_scores"])
    assert given["score"] == pytest.approx(expected["score"])


@pytest.mark.parametrize("field", ["id", "meta.file.name"])
def test_documents_are_compared_by_a_field(field):
    truths = [[haystack.Document(id="1", content="x", meta={"file": {"name": "a"}})]]
    found = [[haystack.Document(id="1", content="y", meta={"file": {"name": "a"}})]]
    for name in NAMES:
        assert getattr(ours, name)(document_comparison_field=field).run(truths, found) == getattr(theirs, name)(
            document_comparison_field=field
        ).run(truths, found)


@pytest.mark.process
@given(cases=CASES)
def test_multi_hit_is_theirs(cases):
    truths, found = documents([a for a, _ in cases]), documents([b for _, b in cases])
    expected = theirs.DocumentRecallEvaluator(mode="multi_hit").run(truths, found)
    assert ours.DocumentRecallEvaluator(mode=ours.RecallMode.MULTI_HIT).run(truths, found) == expected


def test_the_examples_of_the_documentation():
    result = ours.DocumentMAPEvaluator().run(
        ground_truth_documents=[
            [Document(content="France")],
            [Document(content="9th century"), Document(content="9th")],
        ],
        retrieved_documents=[
            [Document(content="France")],
            [Document(content="9th century"), Document(content="10th century"), Document(content="9th")],
        ],
    )
    assert result == {
        "score": pytest.approx(0.9166666666666666),
        "individual_scores": [1.0, pytest.approx(0.8333333333333333)],
    }


def test_exact_match_goes_position_by_position():
    arguments = {"ground_truth_answers": ["Berlin", "Paris"], "predicted_answers": ["Berlin", "Lyon"]}
    assert (
        ours.AnswerExactMatchEvaluator().run(**arguments)
        == theirs.AnswerExactMatchEvaluator().run(**arguments)
        == {"individual_scores": [1, 0], "score": 0.5}
    )


@loop_over("name", NAMES)
@loop_over(
    "lists, problem",
    [
        (([], []), "lists of expected"),
        (([[]], []), "lists of expected|must have the same length"),
        (([["a"]], [["a"], ["b"]]), "must have the same length"),
    ],
)
def test_empty_and_unequal_lists_are_refused(name, lists, problem):
    with pytest.raises(ValueError, match=problem):
        getattr(ours, name)().run(*lists)


def test_gains_by_themselves():
    truths, found = [Document("a", score=1.0), Document("b", score=0.5)], [Document("b"), Document("a")]
    evaluator = ours.DocumentNDCGEvaluator()
    assert evaluator.calculate_dcg(truths, found) == pytest.approx(0.5 + 1 / 1.584962500721156)
    assert evaluator.calculate_idcg(truths) == pytest.approx(1 + 0.5 / 1.584962500721156)
    with pytest.raises(ValueError, match="either all or none"):
        evaluator.validate_inputs([[Document("a", score=1.0), Document("b")]], [[]])


def test_gains_are_methods_of_the_class_too():
    truths, found = [Document("a", score=1.0), Document("b", score=0.5)], [Document("b"), Document("a")]
    kind, evaluator = ours.DocumentNDCGEvaluator, ours.DocumentNDCGEvaluator()
    assert kind.calculate_dcg(truths, found) == kind.calculate_dcg(gt_docs=truths, ret_docs=found)
    assert kind.calculate_dcg(truths, found) == evaluator.calculate_dcg(truths, found)
    assert kind.calculate_idcg(truths) == evaluator.calculate_idcg(gt_docs=truths)
    by_id = ours.DocumentNDCGEvaluator("id")
    given = [{"id": "1", "content": "a"}], [{"id": "1", "content": "other"}]
    assert (by_id.calculate_dcg(*given), kind.calculate_dcg(*given)) == (1.0, 0.0)
    assert list(inspect.signature(kind.calculate_dcg).parameters) == ["gt_docs", "ret_docs"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("AnswerExactMatchEvaluator", []), ("DocumentMRREvaluator", ["id"]), ("DocumentRecallEvaluator", ["multi_hit"])],
)
def test_evaluators_survive_the_way_through_a_dict(name, arguments):
    evaluator = getattr(ours, name)(*arguments)
    data = evaluator.to_dict()
    assert data["type"].endswith(type(evaluator).__name__)
    assert type(evaluator).from_dict(data) == evaluator


def test_bad_modes_and_fields_are_refused():
    with pytest.raises(ValueError, match="'any'"):
        ours.DocumentRecallEvaluator(mode="any")
    with pytest.raises(ValueError, match="'title'"):
        ours.DocumentMAPEvaluator(document_comparison_field="title").run([["a"]], [["a"]])


TEXTS = st.lists(st.sampled_from(["a", "b", "", None]), max_size=4)


@pytest.mark.process
@pytest.mark.parametrize("name", NAMES)
@given(found=TEXTS, expected=st.lists(st.sampled_from(["a", "b", None]), max_size=3))
def test_empty_documents_score_on_as_theirs_do(name, found, expected):
    lists = documents([expected]), documents([found])
    theirs_say = getattr(theirs, name)().run(*lists)["score"]
    assert getattr(ours, name)().run(*lists)["score"] == pytest.approx(theirs_say)


@pytest.mark.parametrize("name", NAMES)
def test_evaluators_work_in_a_pipeline_also_after_its_way_through_yaml(name):
    pipeline = haystack.Pipeline()
    pipeline.add_component("search", components.Search())
    pipeline.add_component("judge", getattr(ours, name)())
    pipeline.connect("search.documents", "judge.retrieved_documents")
    data = {"search": {"questions": ["?"]}, "judge": {"ground_truth_documents": documents([["a"]])}}
    theirs_say = getattr(theirs, name)().run(documents([["a"]]), documents([["b", "a"]]))
    assert pipeline.run(data)["judge"] == theirs_say
    again = haystack.Pipeline.loads(
        pipeline.dumps(), allowed_modules=["spanwise.evaluators.haystack", components.__name__]
    )
    assert again.run(data)["judge"] == theirs_say


def test_exact_match_works_in_a_pipeline():
    pipeline = haystack.Pipeline().add_component("exact", ours.AnswerExactMatchEvaluator())
    said = pipeline.run({"exact": {"ground_truth_answers": ["a", "b"], "predicted_answers": ["a", "c"]}})
    assert said == {"exact": {"individual_scores": [1, 0], "score": 0.5}}


WITHOUT = """
import sys
sys.modules["haystack"] = None  # as where it is not installed
from spanwise.evaluators.haystack import DocumentRecallEvaluator
print(DocumentRecallEvaluator("multi_hit").run([["a", "b"]], [["b"]]))
"""


@pytest.mark.process
def test_the_classes_work_where_haystack_is_not_installed():
    said = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert said.stdout == "{'score': 0.5, 'individual_scores': [0.5]}\n"
