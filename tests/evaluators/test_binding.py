"""Which fields of a case an argument gets, and what happens to those that are missing."""

import itertools
from types import SimpleNamespace

import pytest

from looped_cases import loop_over
from spanwise.collector.records import Case, Document, Example
from spanwise.evaluators import as_evaluator, evaluate, evaluator, score
from spanwise.evaluators.interface import FIELDS, MAX_CASE_SCORES, BindingError, bind, get_case_field, read_call_fields

EXAMPLE = Example(inputs="of the example", reference_outputs="expected", guidelines="short", metadata={"city": "Bonn"})


def judged(function, case, **options):
    (feedback,) = score(evaluator(**options)(function), case)
    return feedback


def skipped(function, case, **options):
    feedback = judged(function, case, **options)
    assert feedback.outcome == "skip"
    return feedback.comment


@pytest.mark.parametrize("prepared", [{}, {"other": 1}, {"pair": None}])
def test_what_prepare_data_fails_to_give_is_a_skip_that_names_it(prepared):
    why = skipped(lambda pair: pair, Case(outputs="b"), prepare_data=lambda outputs: prepared)
    assert why == "needs pair; the case has none"


def test_what_prepare_data_itself_lacks_is_a_skip():
    assert skipped(lambda pair: 1, Case(outputs="b"), prepare_data=lambda documents: {"pair": documents}) == (
        "needs pair; the case has none"
    )


def test_a_field_that_prepare_data_does_not_give_comes_from_the_case():
    prepare = {"prepare_data": lambda outputs: {"length": len(outputs)}}
    assert judged(lambda inputs, length: f"{inputs}{length}", Case(inputs="a", outputs="bcd"), **prepare).label == "a3"


def test_what_prepare_data_gives_goes_before_the_case():
    prepare = {"prepare_data": lambda outputs, /: {"outputs": outputs.strip(), "inputs": "theirs"}}
    assert judged(
        lambda outputs, inputs="": f"{outputs}/{inputs}", Case(outputs=" a ", inputs="b"), **prepare
    ).label == ("a/theirs")


def test_prepare_data_that_raises_is_an_error():
    feedback = judged(lambda pair: 1, Case(outputs="b"), prepare_data=lambda outputs: {"pair": outputs["x"]})
    assert (feedback.outcome, feedback.error) == ("error", "TypeError: string indices must be integers, not 'str'")


def test_prepare_data_that_asks_for_what_no_case_has_is_refused():
    with pytest.raises(BindingError, match="evaluator 'prepare_data' has the parameter 'output'"):
        evaluator(prepare_data=lambda output: {})(lambda pair: 1)


@loop_over(
    ("path", "value"),
    [
        ("outputs.turns.0", "first"),
        ("outputs.turns.-1", "last"),
        ("outputs.turns.-2", "first"),
        ("outputs.turns.1.0", None),  # a text is no list
        ("example.metadata.city", "Bonn"),
        ("outputs.person.name", "ann"),
        ("metadata.city", "Bonn"),
        ("inputs", "of the example"),
        (lambda case: case.outputs["turns"][1], "last"),
    ],
)
def test_a_path_leads_through_dicts_lists_and_attributes(path, value):
    outputs = {"turns": ["first", "last"], "person": SimpleNamespace(name="ann")}
    binding = bind(lambda there=None: there, where={"there": path})
    assert binding.arguments(Case(example=EXAMPLE, outputs=outputs)) == (({"there": value} if value else {}), [])


@pytest.mark.parametrize("path", ["outputs.turns.2", "outputs.turns.-3", "outputs.turns.x", "outputs.no.where"])
def test_a_path_that_leads_nowhere_makes_a_skip(path):
    case = Case(outputs={"turns": ["first", "last"]})
    assert skipped(lambda there: 1, case, map={"there": path}) == "needs there; the case has none"


def test_a_path_may_begin_below_the_field_that_it_is_for():
    assert (
        judged(lambda outputs: outputs, Case(outputs={"text": {"de": "ja"}}), map={"outputs": "text.de"}).label == "ja"
    )


def test_the_runs_metadata_go_before_the_examples():
    both = Case(example=EXAMPLE, metadata={"city": "Rome"})
    assert [get_case_field(case, "metadata") for case in (both, Case(example=EXAMPLE), Case())] == [
        {"city": "Rome"},
        {"city": "Bonn"},
        {},
    ]


@pytest.mark.parametrize("name", ["inputs", "reference_outputs", "guidelines"])
def test_the_case_goes_before_its_example(name):
    assert get_case_field(Case(example=EXAMPLE, **{name: "of the case"}), name) == "of the case"
    assert get_case_field(Case(example=EXAMPLE), name) == getattr(EXAMPLE, name)
    assert get_case_field(Case(), name) is None


def test_a_name_that_no_case_has_is_nothing():
    assert get_case_field(Case(outputs="a"), "output") is None


def test_everything_means_the_fields_that_are_not_named_and_what_a_map_adds():
    binding = bind(lambda outputs, inputs=None, **rest: None, where={"city": "example.metadata.city"})
    names = [name for name, _ in binding.optional]
    assert sorted(names) == sorted({*FIELDS, "city"} - {"outputs", "case"})


def test_further_positional_arguments_get_nothing():
    assert judged(lambda outputs, *more: len(more), Case(outputs="a")).score == 0.0


def test_who_asks_for_the_example_alone_gets_it_with_its_own_outputs():
    case = Case(example=EXAMPLE)
    assert judged(lambda example: example == EXAMPLE, case).score is True
    assert judged(lambda run=None, *, example: example.outputs is None, case).score is True


def test_a_callable_whose_parameters_cannot_be_read_is_refused():
    with pytest.raises(BindingError, match=r"cannot read the parameters of <built-in function max>: wrap it"):
        as_evaluator(max)


def test_who_takes_everything_may_have_any_map():
    assert judged(lambda **rest: rest["answer"], Case(outputs={"a": "b"}), map={"answer": "outputs.a"}).label == "b"


def test_a_set_sees_columns_of_equal_length_over_the_complete_cases():
    cases = [Case(outputs=1, inputs="a"), Case(inputs="b"), Case(outputs=3)]
    columns = bind(lambda outputs, inputs=None, documents=None: 0).columns(iter(cases))
    # no case has documents: their default counts
    assert columns.arguments == {"outputs": [1, 3], "inputs": ["a", None]}
    assert (columns.complete, columns.incomplete, columns.missing) == (2, 1, ["outputs"])


def test_the_traces_of_the_first_cases_are_kept_up_to_a_limit():
    case = Case(outputs=1, trace=SimpleNamespace(trace_id="a"))
    columns = bind(lambda outputs: 0).columns(itertools.repeat(case, MAX_CASE_SCORES + 1))
    assert (columns.complete, len(columns.trace_ids)) == (MAX_CASE_SCORES + 1, MAX_CASE_SCORES)


def test_what_the_cases_of_a_set_lack_is_sorted_and_told_once():
    columns = bind(lambda outputs, inputs, documents: 0).columns([Case(inputs="a"), Case(outputs="b")])
    assert (columns.complete, columns.incomplete) == (0, 2)
    assert columns.missing == ["documents", "inputs", "outputs"]


def test_a_map_changes_the_fields_of_a_whole_case_and_no_others():
    binding = bind(lambda outputs, city: 0, where={"outputs": "outputs.text", "city": "outputs.city"})
    case = Case(inputs="i", outputs={"text": "t", "city": "c"})
    assert binding.mapped(case) == Case(inputs="i", outputs="t")
    assert bind(lambda outputs: 0).mapped(case) == case


def test_an_unknown_field_names_those_that_there_are_and_the_way_out():
    with pytest.raises(BindingError) as caught:
        as_evaluator(lambda answer: 1)
    assert "not a field of a case (inputs, outputs, reference_outputs, documents" in str(caught.value)
    assert ", case" not in str(caught.value)
    assert str(caught.value).endswith("map={'answer': 'outputs.answer'}")


def test_what_a_class_asks_for_is_read_off_its_call():
    class Judge:
        def __call__(self, outputs, case, documents=None, strict=False): ...

    assert read_call_fields(Judge) == (("outputs",), ("documents",))


def test_documents_that_were_looked_for_and_not_found_are_there():
    assert judged(lambda documents: len(documents), Case(documents=())).score == 0.0
    assert judged(lambda documents: documents[0].content, Case(documents=(Document("d"),))).label == "d"


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("reference_output", "reference_outputs"),
        ("expected", "reference_outputs"),
        ("ground_truth", "reference_outputs"),
        ("output", "outputs"),
        ("input", "inputs"),
        ("context", "documents"),
        ("metdata", "metadata"),
    ],
)
def test_an_argument_that_looks_misspelt_is_named_in_the_table(store, name, field):
    function = eval(f"lambda outputs, {name}=None: outputs == {name}")
    made = evaluator(key="same")(function)
    rows = [{"inputs": {"q": "1"}, "reference_outputs": "1"}]
    remarks = evaluate(rows, lambda q: q, [made], store=store, progress=False).summary().remarks
    assert remarks == (f"'same' never got the argument {name!r}, which has a default; did you mean {field!r}?",)


@pytest.mark.parametrize(
    "options", [{}, {"map": {"expected": "reference_outputs"}}, {"prepare_data": lambda outputs: {}}]
)
def test_other_arguments_with_defaults_are_not_suspicious(options):
    own = (lambda outputs, expected=None: 1) if options else (lambda outputs, k=3, documents=None, model="m": 1)
    assert evaluator(**options)(own).remarks == ()


@pytest.mark.parametrize(("name", "field"), [("answer", "outputs"), ("reference", "reference_outputs")])
def test_an_unknown_field_proposes_the_closest_one(name, field):
    with pytest.raises(BindingError, match=f"did you mean '{field}'"):
        as_evaluator(eval(f"lambda {name}: 1"))
