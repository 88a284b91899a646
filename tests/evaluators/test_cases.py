"""Cases from traces and by hand, documents in the forms that people have, families of booleans on their way to rates."""

from dataclasses import dataclass, field

import pytest
from haystack import Document as HaystackDocument

from assay.collector.records import Case, Document, Example, Run, Trace
from assay.collector.statistics import boolean_family
from assay.evaluators import as_evaluator, ascore, case_of, score
from assay.evaluators.builtin._verdicts import family, unparsed, verdict
from assay.evaluators.scoring._cases import documents_of


@dataclass
class LangChainDocument:
    page_content: str
    metadata: dict = field(default_factory=dict)
    id: str | None = None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("text", Document("text")),
        ({"content": "c", "id": 7, "score": 0.5}, Document("c", "7", 0.5)),
        (
            {"page_content": "c", "metadata": {"source": "s"}, "rank": 1},
            Document("c", None, None, {"rank": 1, "source": "s"}),
        ),
        ({"text": "c", "doc_uri": "u"}, Document("c", "u", None, {"doc_uri": "u"})),
        (LangChainDocument("c", {"source": "s"}, "9"), Document("c", "9", None, {"source": "s"})),
        (HaystackDocument(id="h", content="c", meta={"a": 1}, score=0.3), Document("c", "h", 0.3, {"a": 1})),
        (Document("c"), Document("c")),
    ],
)
def test_documents_in_many_forms(given, expected):
    assert documents_of([given]) == (expected,)


@pytest.mark.parametrize("bad", ["a string", {"content": "one document"}, [3], [{"title": "no content"}], [None]])
def test_what_is_no_list_of_documents(bad):
    with pytest.raises((TypeError, ValueError)):
        documents_of(bad)


def test_a_case_of_a_trace(trace):
    case = case_of(trace, Example(inputs={"question": "Why?"}, reference_outputs="So."), outputs="Instead.")
    assert (case.inputs, case.outputs, case.run.name) == ({"question": "Why?"}, "Instead.", "answer")
    assert [document.id for document in case.documents] == ["d1", "d2"]
    assert case.example.reference_outputs == "So."


def test_a_trace_without_retrieval_has_no_documents():
    run = Run(trace_id="1" * 32, span_id="a" * 16, name="x")
    assert case_of(Trace(run, (run,))).documents is None


def test_a_set_may_be_cases_or_traces(trace):
    judge = as_evaluator(lambda cases: len(cases))
    assert score(judge, [Case(outputs=1), trace])[0].score == 2.0
    assert score(judge, trace)[0].score == 1.0


def test_what_cannot_be_looked_at_is_refused(trace):
    with pytest.raises(TypeError, match="looks at a trace, a case or values"):
        score(lambda outputs: 1, [trace])


def test_scoring_from_async_code():
    import asyncio

    assert asyncio.run(ascore(lambda outputs: outputs, outputs="label"))[0].label == "label"


def test_families_make_one_on_the_whole_way():
    said = {
        "passes": verdict("safe", True, True),
        "fails": verdict("safe", False, True),
        "bad context": verdict("safe", True, False),
        "unclear": unparsed("safe", "no yes and no no"),
    }
    rows = [one for row in said.values() for one in score(lambda outputs, row=row: row, outputs="x")]
    rates = boolean_family(rows, "safe")
    assert (rates.passes, rates.failures, rates.parse_failures) == (0.25, 0.5, 0.25)
    assert (rates.retrieval_failures, rates.generation_failures) == (pytest.approx(1 / 3), 0.25)


def test_the_metrics_of_a_family():
    assert [(metric.key, metric.higher_is_better, metric.threshold, metric.primary) for metric in family("safe")] == [
        ("safe", True, 0.5, True),
        ("safe_fail", False, 0.5, False),
        ("safe_retrieval_fail", False, 0.5, False),
        ("safe_generation_fail", False, 0.5, False),
        ("safe_parse_fail", False, 0.5, False),
    ]
