"""What an evaluator is handed is its own: one that changes it changes nothing for others, nor what is stored."""

import copy
import dataclasses
import pickle
import threading
from types import MappingProxyType

import msgspec
import orjson
import pytest

from spanwise.collector.records import Case, Document, Event, Example, Feedback, Run, Target, Trace, Usage
from spanwise.evaluators import as_evaluator, evaluate, evaluator, get_evaluator, score
from spanwise.evaluators.interface.case_views import RunView, copy_value, make_case_view
from spanwise.tracer import trace as traced

DATA = [
    Example(
        inputs={"messages": ["hi"]},
        reference_outputs={"answer": ["a"]},
        expected_documents=(Document("e", metadata={"n": [1]}),),
        metadata={"tags": ["t"]},
    )
]


@traced(kind="retriever")
def search():
    return [{"content": "d", "metadata": {"source": ["s"]}}]


def task(messages):
    search()
    return {"answer": ["a"]}


def spoils_values(inputs, outputs, reference_outputs, documents, expected_documents, metadata):
    inputs["messages"].append("x")
    outputs["answer"].append("x")
    reference_outputs["answer"].append("x")
    documents[0].metadata["source"].append("x")
    expected_documents[0].metadata.clear()
    metadata.clear()
    return True


def spoils_records(run, example, trace):
    run.inputs["messages"].append("x")
    run.outputs.clear()
    run.attributes.clear()
    trace.runs[1].documents[0].metadata["source"].append("x")
    example.inputs["messages"].append("x")
    example.outputs.clear()
    return True


def spoils_a_case(case):
    case.outputs["answer"].append("x")
    case.trace.root.outputs["answer"].append("x")
    case.example.reference_outputs["answer"].append("x")
    return True


@evaluator(map={"answer": "outputs.answer", "all": lambda case: case.outputs})
def spoils_by_map(answer, all):
    answer.append("x")
    all["answer"].append("x")
    return True


@evaluator(prepare_data=lambda outputs: outputs["answer"].append("x") or {"prepared": 1})
def spoils_while_preparing(prepared):
    return True


async def spoils_later(outputs, run):
    outputs.clear()
    run.outputs.clear()
    return True


class SpoilsInBatches:
    def __call__(self, outputs): ...

    def batch(self, cases):
        return [case.outputs.clear() or True for case in cases]


SPOILING = [
    spoils_values,
    spoils_records,
    spoils_a_case,
    spoils_by_map,
    spoils_while_preparing,
    spoils_later,
    evaluator(key="in_a_thread", timeout=60)(spoils_values),
    SpoilsInBatches(),
]


def sees_all(inputs, outputs, reference_outputs, documents, expected_documents, run, example):
    """Whether everything is as it was."""
    return [
        inputs["messages"] == example.inputs["messages"] == run.inputs["messages"] == ["hi"],
        outputs == reference_outputs == example.outputs == run.outputs == {"answer": ["a"]},
        documents[0].metadata == {"source": ["s"]},
        expected_documents[0].metadata == {"n": [1]},
    ] == [True] * 4


@pytest.mark.parametrize("spoils", SPOILING, ids=lambda judge: as_evaluator(judge).key)
def test_what_one_evaluator_changes_no_other_sees_and_nobody_stores(store, spoils):
    before = copy.deepcopy(DATA)
    experiment = evaluate(DATA, task, [spoils, sees_all], store=store, repetitions=3, progress=False)
    summary = experiment.summary()
    assert (summary[as_evaluator(spoils).key].mean, summary["sees_all"].mean) == (1.0, 1.0)
    assert before == DATA
    for row in experiment.rows():
        assert score(sees_all, row.trace, example=row.example)[0].score is True


def test_evaluators_in_threads_at_the_same_time_have_values_of_their_own(store):
    together = threading.Barrier(4, timeout=60)

    def meet(outputs):
        outputs["answer"].append(threading.get_ident())
        together.wait()
        return len(outputs["answer"]) == 2

    judges = [evaluator(key=f"judge {number}", timeout=60)(meet) for number in range(4)]
    summary = evaluate(DATA, task, judges, store=store, progress=False).summary()
    assert [summary[judge.key].mean for judge in judges] == [1.0] * 4


def test_set_level_evaluators_have_values_of_their_own(store):
    def spoils(outputs, examples):
        outputs[0].clear()
        examples[0].inputs.clear()
        return True

    whole = evaluator(summary=True)
    second = evaluator(summary=True, key="second")(
        lambda outputs, inputs: outputs == [{"answer": ["a"]}] and inputs != [{}]
    )
    evaluate(DATA, task, summary_evaluators=[whole(spoils), second], store=store, progress=False)
    cases = [Case(outputs={"answer": ["a"]}, inputs=1, example=DATA[0])]
    score(whole(spoils), cases)
    assert (score(second, cases)[0].score, DATA[0].inputs) == (True, {"messages": ["hi"]})


@pytest.mark.parametrize("judge", ["exact", "pii", "document_recall"])
def test_our_own_get_everything_as_it_is_unless_they_bring_somebodys_code(judge):
    assert get_evaluator(judge).binding.shares
    assert not get_evaluator(judge, prepare_data=lambda outputs: {}).binding.shares
    assert not get_evaluator(judge, map={"outputs": lambda case: case.outputs}).binding.shares


ROOT = Run(
    trace_id="1" * 32,
    span_id="a" * 16,
    name="answer",
    kind="agent",
    start_ns=10**18,
    end_ns=10**18 + 5 * 10**8,
    inputs={"q": "?"},
    outputs={"answer": "!"},
    metadata={"model": "m"},
    example_id="e",
)
TOOL = Run(
    trace_id="1" * 32, span_id="b" * 16, parent_id="a" * 16, name="search", kind="tool", error="no", status="error"
)
MODEL = Run(trace_id="1" * 32, span_id="c" * 16, parent_id="b" * 16, name="gpt", kind="llm", usage=Usage(3, 4))
TRACE = Trace(ROOT, (ROOT, TOOL, MODEL))


def viewed(trace=TRACE):
    return make_case_view(Case(trace=trace)).run


def test_a_run_answers_to_langsmiths_names():
    run = viewed()
    assert (run.name, run.run_type, run.error, run.inputs["q"]) == ("answer", "chain", None, "?")
    assert (run.start_time.isoformat(), run.latency) == ("2001-09-09T01:46:40+00:00", 0.5)
    assert (run.end_time - run.start_time).total_seconds() == 0.5
    assert (run.extra["metadata"], run.reference_example_id) == ({"model": "m"}, "e")
    assert (run.id, run.trace_id, run.parent_run_id) == ("1" * 32, "1" * 32, None)


def test_child_runs_are_nested():
    (tool,) = viewed().child_runs
    (model,) = tool.child_runs
    assert (tool.name, tool.run_type, tool.error, tool.parent_run_id, tool.id) == (
        "search",
        "tool",
        "no",
        "1" * 32,
        "b" * 16,
    )
    assert (model.name, model.child_runs, model.total_tokens, model.prompt_tokens) == ("gpt", [], 7, 3)
    assert (tool.child_run_ids, tool.end_time, tool.total_tokens) == (["c" * 16], None, None)


def test_a_run_that_is_its_own_parent_has_no_end_but_costs_nothing_to_look_at():
    odd = dataclasses.replace(TOOL, parent_id="b" * 16)
    (again,) = viewed(Trace(odd, (odd,))).child_runs
    assert again.name == "search"


def test_langsmiths_example_walks_a_tree(store):
    def used_the_tool(root_run, example):
        def names(run):
            return [run.name, *(name for child in run.child_runs for name in names(child))]

        return {"key": "used", "score": "search" in names(root_run), "comment": example.outputs["answer"]}

    (said,) = score(used_the_tool, TRACE, example=Example(inputs=1, reference_outputs={"answer": "!"}))
    assert (said.key, said.score, said.comment) == ("used", True, "!")


def test_a_view_is_equal_to_what_it_shows_and_can_be_kept_like_it():
    case = Case(trace=TRACE, outputs={"a": [1]}, example=DATA[0], documents=(Document("d"),))
    view = make_case_view(case)
    assert (view == case, case == view, view != case, view == 3) == (True, True, False, False)
    assert (pickle.loads(pickle.dumps(view)), copy.deepcopy(view)) == (case, case)
    assert dataclasses.replace(view.run, name="other").name == "other"
    assert orjson.loads(orjson.dumps(view.example)) == orjson.loads(orjson.dumps(DATA[0]))
    assert msgspec.json.encode(viewed()) == msgspec.json.encode(ROOT)


def test_a_view_is_of_its_records_class_and_cannot_be_set():
    run = viewed()
    assert isinstance(run, Run)
    assert run is not ROOT
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.name = "other"
    with pytest.raises(AttributeError, match="a run has no 'nonsense'"):
        _ = run.nonsense


def test_one_run_is_the_same_in_run_and_trace():
    assert score(lambda run, trace: run is trace.root and run is trace.runs[0], TRACE)[0].score is True
    assert RunView in {type(run) for run in make_case_view(Case(trace=TRACE)).trace.children("a" * 16)}


def test_what_others_said_of_a_trace_can_be_looked_at_and_changed_by_nobody_else():
    said = Feedback(target=Target(trace_id="1" * 32), key="k", score=1.0, metadata={"a": [1]})
    event = Event("exception", 3, {"a": [1]})
    given = Trace(dataclasses.replace(ROOT, events=(event,)), (ROOT,), (said,))
    seen = make_case_view(Case(trace=given)).trace
    seen.feedback[0].metadata["a"].append(2)
    seen.root.events[0].attributes["a"].append(2)
    assert (said.metadata, event.attributes, seen.feedback[0].id) == ({"a": [1]}, {"a": [1]}, said.id)


def test_a_copy_is_as_deep_as_the_value_and_no_deeper_than_it_can():
    lock, circle, deep = threading.Lock(), [], []
    circle.append(circle)
    for _ in range(3000):
        deep = [deep]
    frozen = MappingProxyType({"a": 1})
    assert copy_value({"a": (1, [2]), "b": lock, "c": frozen, "d": {3}}) == {
        "a": (1, [2]),
        "b": lock,
        "c": frozen,
        "d": {3},
    }
    assert copy_value(circle) is circle
    assert copy_value(deep) is deep
