"""The one maker of cases, documents in the forms that people have, families of booleans on their way to rates."""

import ast
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from collector.making import child, run
from lazy_modules import LazyModule
from looped_cases import loop_over
from spanwise.collector.records import Case, Document, Example, Run, Trace
from spanwise.collector.statistics import compute_boolean_rates
from spanwise.collector.stores.sqlite import SQLiteStore
from spanwise.evaluators import as_evaluator, ascore, evaluate, evaluator, get_evaluator, make_case, score
from spanwise.evaluators.builtin.boolean_families import family_metrics, family_rows, unparsed_rows
from spanwise.evaluators.experiments import Recorder
from spanwise.evaluators.interface import to_documents
from spanwise.tracer import trace as trace_calls

haystack = LazyModule("haystack")


@dataclass
class LangChainDocument:
    page_content: str
    metadata: dict = field(default_factory=dict)
    id: str | None = None


@loop_over(
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
        (lambda: haystack.Document(id="h", content="c", meta={"a": 1}, score=0.3), Document("c", "h", 0.3, {"a": 1})),
        (Document("c"), Document("c")),
        ({"content": ""}, Document("")),
        ({"page_content": None, "id": "d"}, Document("", "d")),
        (LangChainDocument(None), Document("")),
        (lambda: haystack.Document(id="h", content=None), Document("", "h")),
    ],
)
def test_documents_in_many_forms(given, expected):
    assert to_documents([given() if callable(given) else given]) == (expected,)


def test_an_empty_document_of_a_row_stops_no_run(store):
    rows = [{"inputs": "?", "outputs": "!", "documents": [{"content": ""}, "a"], "expected_documents": ["a"]}]
    (row,) = evaluate(rows, None, [get_evaluator("ir_mrr")], store=store).rows()
    assert row.scores == {"ir_mrr": 0.5}


@pytest.mark.parametrize(
    "empty", ["", {"content": None}, lambda: haystack.Document(content=None), LangChainDocument(None)]
)
def test_an_empty_document_that_a_task_retrieved_keeps_its_rank(store, empty):
    @trace_calls(kind="retriever")
    def search(question):
        return [empty() if callable(empty) else empty, haystack.Document(content="a")]

    rows = [{"inputs": {"question": "?"}, "expected_documents": ["a"]}]
    (row,) = evaluate(
        rows,
        lambda question: len(search(question)),
        ["ir_mrr", get_evaluator("DocumentMRR", key="theirs")],
        store=store,
    ).rows()
    assert row.scores == {"ir_mrr": 0.5, "theirs": 0.5}


@pytest.mark.parametrize("bad", ["a string", {"content": "one document"}, [3], [{"title": "no content"}], [None]])
def test_what_is_no_list_of_documents(bad):
    with pytest.raises((TypeError, ValueError)):
        to_documents(bad)


ROOT = Path(__file__).parents[2]
WHY = {"question": "Why?"}


def makers_of_cases():
    """Files of the house that call `Case`, by the name or as an attribute."""
    for folder in ("tracer", "collector", "evaluators", "cli"):
        for file in (ROOT / folder).rglob("*.py"):
            called = [node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
            if any(getattr(one, "id", getattr(one, "attr", "")) == "Case" for one in called):
                yield file.relative_to(ROOT / "evaluators/spanwise/evaluators").as_posix()


@pytest.mark.process
def test_one_place_makes_cases():
    assert list(makers_of_cases()) == ["scoring/case_scoring.py"]


def test_a_case_of_a_trace(trace):
    case = make_case(trace, Example(inputs=WHY, reference_outputs="So."), outputs="Instead.")
    assert (case.inputs, case.outputs, case.run.name) == (WHY, "Instead.", "answer")
    assert [document.id for document in case.documents] == ["d1", "d2"]
    assert (case.reference_outputs, case.example.reference_outputs) == ("So.", "So.")


def test_without_an_example_the_root_says_what_was_asked(trace):
    case = make_case(trace)
    assert (case.example, case.inputs, case.outputs, case.reference_outputs) == (None, WHY, "Because.", None)


def test_the_examples_inputs_stand_before_those_of_the_root(trace):
    assert make_case(trace, Example(inputs={"question": "Why not?"})).inputs == {"question": "Why not?"}


def test_all_that_an_example_says_is_in_the_case(trace):
    said = {"conditions": ["c"], "guidelines": "g", "history": [], "expected_documents": (Document("e"),)}
    case = make_case(trace, Example(inputs=1, **said))
    assert {name: getattr(case, name) for name in said} == said


def test_metadata_of_root_and_example_are_one(trace):
    tagged = replace(trace, root=replace(trace.root, metadata={"model": "m", "k": 1}))
    assert make_case(tagged, Example(inputs=1, metadata={"k": 3})).metadata == {"model": "m", "k": 3}
    assert make_case(tagged, Example(inputs=1)).metadata == {"model": "m", "k": 1}
    assert make_case(trace, Example(inputs=1, metadata={"k": 3})).metadata == {"k": 3}
    assert make_case(None, Example(inputs=1, metadata={"k": 3})).metadata == {"k": 3}


def ran(kind, documents=()):
    run = Run(trace_id="1" * 32, span_id="a" * 16, name="x", kind=kind, documents=documents)
    return Trace(run, (run,))


GIVEN = Example(inputs=1, documents=(Document("given"),))


@loop_over(
    ("target", "example", "documents"),
    [
        (ran("chain"), None, None),
        (ran("retriever"), None, ()),
        (ran("reranker"), GIVEN, ()),
        (ran("retriever", (Document("found"),)), GIVEN, (Document("found"),)),
        (ran("chain", (Document("noted"),)), GIVEN, (Document("noted"),)),
        (ran("chain"), GIVEN, (Document("given"),)),
        (None, GIVEN, (Document("given"),)),
        (None, Example(inputs=1), None),
    ],
)
def test_whose_documents_a_case_has(target, example, documents):
    assert make_case(target, example).documents == documents
    assert make_case(target, example, documents=["by hand"]).documents == (Document("by hand"),)


CHAT = {"input": [{"role": "user", "content": "Hi"}, {"role": "user", "content": "Why?"}]}


@loop_over(
    ("kind", "inputs", "outputs", "seen"),
    [
        ("kv", {"input": "Why?"}, {"output": "So."}, ({"input": "Why?"}, {"output": "So."}, None)),
        ("llm", {"input": "Why?"}, {"output": "So."}, ("Why?", "So.", None)),
        ("chat", CHAT, {"output": [{"role": "assistant", "content": "So."}]}, ("Why?", "So.", CHAT["input"][:1])),
    ],
)
@loop_over("with_example", [True, False])
def test_a_kind_of_dataset_shows_texts(kind, inputs, outputs, seen, with_example):
    run = Run(trace_id="1" * 32, span_id="a" * 16, name="x", inputs=inputs, outputs=outputs)
    case = make_case(Trace(run, (run,)), Example(inputs=inputs) if with_example else None, kind)
    assert (case.inputs, case.outputs, case.history) == seen


def turn(number, asked, answered, **fields):
    run = Run(trace_id=f"{number:032x}", span_id="a" * 16, name="x", start_ns=number, inputs=asked, outputs=answered)
    return Trace(replace(run, **fields), (replace(run, **fields),))


def test_a_session_is_its_turns_by_start():
    first, second = turn(1, {"q": "Hi"}, "Hello"), turn(2, {"q": "Why?"}, "So.", kind="retriever")
    for order in ([first, second], (second, first), iter([second, first])):
        case = make_case(order)
        assert (case.trace, case.inputs, case.outputs, case.documents) == (second, {"q": "Why?"}, "So.", ())
        assert [(one["role"], one["content"]) for one in case.history] == [
            ("user", "Hi"),
            ("assistant", "Hello"),
            ("user", "Why?"),
            ("assistant", "So."),
        ]


def test_a_turn_without_an_answer_is_a_question_alone():
    case = make_case([turn(1, CHAT, None, status="error"), turn(2, "Well?", "So.")])
    assert [one["content"] for one in case.history] == ["Why?", "Well?", "So."]


def test_an_example_of_a_session_brings_references_and_not_what_was_asked():
    case = make_case([turn(1, "Why?", "So.")], Example(inputs="another", reference_outputs="R", history=["old"]))
    assert (case.inputs, case.reference_outputs, len(case.history)) == ("Why?", "R", 2)


@pytest.mark.parametrize(
    ("target", "error", "said"),
    [([], ValueError, "at least one trace"), ([3], TypeError, "got 3"), (3, TypeError, "got 3")],
)
def test_what_no_case_can_be_made_of(target, error, said):
    with pytest.raises(error, match=said):
        make_case(target)


def test_a_field_that_there_is_not_is_named():
    with pytest.raises(TypeError, match="unknown case field 'output'; expected one of: conditions, documents"):
        make_case(None, output=1)


def test_fields_may_have_the_names_of_databricks_columns():
    case = make_case(None, request="Q", response="A", expected_response="E", retrieved_context=[{"doc_uri": "u"}])
    assert (case.inputs, case.outputs, case.reference_outputs, case.documents[0].id) == ("Q", "A", "E", "u")


@pytest.mark.parametrize("fields", [{"outputs": "a", "response": "b"}, {"response": "b", "outputs": "a"}])
def test_a_field_under_two_names_is_refused(fields):
    with pytest.raises(TypeError, match="'outputs' is given twice"):
        make_case(None, **fields)


@trace_calls(kind="retriever")
def search(q):
    return []


def answer(q):
    return str(search(q))


@evaluator(key="whole", summary=True)
def whole(documents):
    return len(documents)


def test_the_same_run_is_the_same_case_everywhere(store):
    recall = get_evaluator("document_recall")
    data = [Example(inputs={"q": "a"}, reference_outputs="x", expected_documents=(Document("t", "d1"),))]
    experiment = evaluate(data, answer, [recall], summary_evaluators=[whole], store=store, progress=False)
    (row,) = experiment.rows()
    by_hand = score(recall, row.trace, example=row.example)[0]
    recorder = Recorder(store, "recorded", "data", [recall])
    with recorder.run("test", data[0], after=[recall]) as opened:
        outputs = answer("a")
        inside = opened.score(recall, outputs)[0]
    [after] = [one for one in opened.feedback if one is not inside]
    said = [row.feedback["document_recall"], by_hand, inside, after]
    assert [(one.outcome, one.score) for one in said] == [("score", 0.0)] * 4
    assert experiment.summary().overall["whole"].score == 1.0


def test_a_run_that_failed_is_skipped_by_hand_as_in_an_experiment(store):
    judges = [
        get_evaluator("exact"),
        evaluator(key="asked")(lambda inputs: True),
        evaluator(key="ran")(lambda run: True),
    ]
    experiment = evaluate([{"inputs": 1}], lambda n: 1 / 0, judges, store=store, progress=False)
    (row,) = experiment.rows()
    by_hand = [score(judge, row.trace, example=row.example)[0] for judge in judges]
    stored = sorted(row.trace.feedback, key=lambda one: one.created_ns)
    assert [(one.outcome, one.comment) for one in by_hand] == [(one.outcome, one.comment) for one in stored]
    assert [one.outcome for one in by_hand] == ["skip", "skip", "score"]
    assert score(judges[1], row.trace, outputs="given")[0].score is True


def test_a_set_may_be_cases_or_traces(trace):
    judge = as_evaluator(lambda cases: len(cases))
    assert score(judge, [Case(outputs=1), trace])[0].score == 2.0
    assert score(judge, trace)[0].score == 1.0


def test_what_cannot_be_looked_at_is_refused(trace):
    with pytest.raises(TypeError, match="expected a trace, a case or field values"):
        score(lambda outputs: 1, [trace])


def test_scoring_from_async_code():
    import asyncio

    assert asyncio.run(ascore(lambda outputs: outputs, outputs="label"))[0].label == "label"


def test_families_make_one_on_the_whole_way():
    said = {
        "passes": family_rows("safe", True, True),
        "fails": family_rows("safe", False, True),
        "bad context": family_rows("safe", True, False),
        "unclear": unparsed_rows("safe", "no yes and no no"),
    }
    rows = [one for row in said.values() for one in score(lambda outputs, row=row: row, outputs="x")]
    rates = compute_boolean_rates(rows, "safe")
    assert (rates.passes, rates.failures, rates.parse_failures) == (0.25, 0.5, 0.25)
    assert (rates.retrieval_failures, rates.generation_failures) == (pytest.approx(1 / 3), 0.25)


def test_the_metrics_of_a_family():
    assert [
        (metric.key, metric.higher_is_better, metric.threshold, metric.primary) for metric in family_metrics("safe")
    ] == [
        ("safe", True, 0.5, True),
        ("safe_fail", False, 0.5, False),
        ("safe_retrieval_fail", False, 0.5, False),
        ("safe_generation_fail", False, 0.5, False),
        ("safe_parse_fail", False, 0.5, False),
    ]


def test_a_case_of_a_stored_trace_has_the_derived_values_of_its_root(tmp_path):
    root = run("workflow")
    with SQLiteStore(tmp_path / "a.db") as store:
        store.append([root, child(root, inputs="When?", outputs="Monday")])
        case = make_case(store.trace(root.trace_id))
    assert (case.inputs, case.outputs) == ("When?", "Monday")
