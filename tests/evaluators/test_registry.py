"""The registry: what is known of each evaluator, parameters, dicts, other packages."""

import inspect
import json

import pytest

from looped_cases import loop_over
from spanwise.collector.records import Case, Document
from spanwise.evaluators import (
    Metric,
    as_evaluator,
    evaluator,
    from_dict,
    get_evaluator,
    interface,
    list_evaluators,
    score,
)
from spanwise.evaluators.builtin.text import Exact, Regex
from spanwise.evaluators.interface.evaluator_spec import OUTCOMES

PARAMETERS = {
    "regex": {"pattern": "a"},
    "pipeline": {"function": len},
    "human_feedback": {"of": "good"},
    "step_limit": {"limit": 3},
}
CODE = [spec.id for spec in interface.list_specs() if not spec.judge and not spec.model]


def made(id):
    return get_evaluator(id, **PARAMETERS.get(id, {}))


@evaluator(key="tiny", version="7")
def tiny(outputs):
    return len(outputs) < 3


def plain(outputs):
    return True


@loop_over("id", CODE)
def test_every_evaluator_says_what_it_is(id):
    said = interface.get_spec(id)
    assert said.version
    assert said.standards
    assert said.source
    assert said.canonical
    assert said.llm or said.rag
    assert sum(metric.primary for metric in said.metrics) == 1
    assert len(inspect.getdoc(interface.get_factory(id))) > 40


@loop_over("id", [id for id in CODE if id != "pipeline"])  # which is made of a function
def test_every_evaluator_survives_the_way_through_json(id):
    one = made(id)
    again = from_dict(json.loads(json.dumps(one.to_dict())))
    assert (again.key, again.version, again.metrics, again.needs) == (one.key, one.version, one.metrics, one.needs)
    assert again.function == one.function


@loop_over("id", CODE)
def test_every_evaluator_takes_any_case_without_raising(id):
    hostile = [
        Case(),
        Case(outputs={}),
        Case(outputs=[]),
        Case(outputs=float("nan"), reference_outputs=object()),
        Case(
            outputs={"a": 1, "b": 2}, inputs=[None], reference_outputs={"x": [1]}, documents=(), expected_documents=()
        ),
        Case(
            outputs="\ud800\x00" * 50,
            inputs="\ud800",
            reference_outputs="\x00",
            documents=(Document(""),),
            expected_documents=(Document("\ud800"),),
            conditions="(",
        ),
    ]
    for case in hostile:
        for feedback in score(made(id), case):
            assert feedback.outcome in ("score", "skip", "error")
            assert feedback.score is None or feedback.score == feedback.score


@loop_over("id", CODE)
def test_keys_are_those_of_the_metrics(id):
    one = made(id)
    assert {feedback.key for feedback in score(one, Case())} == {metric.key for metric in one.metrics}


def test_names_are_sorted_and_the_documented_ids_are_there():
    assert list_evaluators() == sorted(list_evaluators())
    assert {
        "document_recall",
        "ir_map",
        "ir_mrr",
        "ir_ndcg",
        "precision_at_k",
        "hit_at_k",
        "exact",
        "regex",
        "pii",
    } <= set(list_evaluators())


def test_haystacks_names_have_its_defaults():
    found, expected = [Document("other", "1"), Document("a", "2")], [Document("a", "9"), Document("b", "8")]
    assert score(get_evaluator("DocumentRecall"), documents=found, expected_documents=expected)[0].score == 1.0
    assert (
        score(get_evaluator("DocumentRecall", mode="multi_hit"), documents=found, expected_documents=expected)[0].score
        == 0.5
    )
    assert get_evaluator("AnswerExactMatch").key == "exact"


@loop_over("said", [said for said in interface.list_specs() if said.id != "human_feedback"], ids=lambda s: s.id)
def test_outcomes_analysis_is_of_those_that_compare_with_what_was_expected(said):
    expected = {"reference_outputs", "expected_documents"} & {*said.needs, *said.uses}
    assert (OUTCOMES in said.standards) == bool(expected)


def test_standards_are_carried_as_tags():
    assert "Privacy Enhanced (NIST AI RMF)" in get_evaluator("pii").standards
    assert get_evaluator("pii").spec is interface.get_spec("pii")
    assert tiny.standards == ()


def test_an_unknown_id_is_answered_with_the_closest():
    with pytest.raises(ValueError, match="did you mean 'ir_ndcg'"):
        get_evaluator("ndcg")


def test_an_unknown_parameter_is_answered_with_those_that_exist():
    with pytest.raises(ValueError, match=r"no parameter 'patern'; it has pattern, flags"):
        get_evaluator("regex", patern="a")
    with pytest.raises(ValueError, match="pattern"):
        get_evaluator("regex")


def test_parameters_of_h2o_are_accepted():
    one = get_evaluator(
        "pii",
        metric_threshold=0.9,
        save_llm_result=False,
        max_dataset_rows=10,
        min_test_cases=2,
        evaluate_retrieved_context=False,
    )
    assert (one.metrics[0].threshold, one.metrics[1].threshold) == (0.9, 0.5)
    assert (one.max_cases, one.min_cases) == (10, 2)


def test_details_can_be_left_out():
    found = score(get_evaluator("looping", save_llm_result=False), outputs="The same words. The same words.")
    assert [feedback.metadata for feedback in found] == [{}, {}, {}]


def test_instances_dicts_and_ids_are_evaluators():
    assert as_evaluator(Exact()).key == "exact"
    assert as_evaluator("exact").key == "exact"
    assert as_evaluator({"type": "regex", "init_parameters": {"pattern": "a", "key": "has_a"}}).key == "has_a"
    assert as_evaluator(Regex("a")).to_dict() == {"type": "regex", "init_parameters": {"pattern": "a"}}


def test_a_decorated_function_is_found_by_its_dotted_name():
    assert from_dict(tiny.to_dict()) is tiny
    assert tiny.version == "7"


@pytest.mark.parametrize("name", ["os.system", "spanwise.nowhere.x", f"{__name__}.plain"])
def test_data_cannot_name_any_callable_it_likes(name):
    with pytest.raises(ValueError, match=r"(no|not an) evaluator"):
        from_dict({"type": name})


@pytest.mark.parametrize("parameters", [{"function": len}, {"function": len, "map": {"outputs": len}}])
def test_parameters_that_are_functions_are_no_plain_values(parameters):
    with pytest.raises(
        ValueError, match="'pipeline' cannot be serialized: the parameter function=<built-in function len> is not"
    ):
        get_evaluator("pipeline", **parameters).to_dict()


def test_a_function_without_a_name_has_no_dict():
    with pytest.raises(ValueError, match="cannot be imported by name"):
        as_evaluator(lambda outputs: 1).to_dict()


THEIRS = """
from spanwise.evaluators import evaluator

NOTHING = 5

def shouting(outputs):
    return outputs.isupper()

class Longer:
    def __init__(self, than=3):
        self.than = than

    def __call__(self, outputs):
        return len(outputs) > self.than

@evaluator(key="done")
def finished(outputs):
    return True
"""


@pytest.fixture
def their_package(monkeypatch, tmp_path):
    package = tmp_path / "their_evaluators-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: their-evaluators\nVersion: 1\n")
    points = "shouting = their_module:shouting\nlonger = their_module:Longer\nfinished = their_module:finished\n"
    points += "broken = no_module_of_theirs:thing\nnothing = their_module:NOTHING\n"
    (package / "entry_points.txt").write_text(f"[spanwise.evaluators]\n{points}")
    (tmp_path / "their_module.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_other_packages_offer_evaluators_by_entry_points(their_package):
    assert {"shouting", "longer", "finished"} <= set(list_evaluators())
    assert score(get_evaluator("shouting", key="loud"), outputs="HEY")[0].key == "loud"
    assert score(get_evaluator("longer", than=1), outputs="ab")[0].score is True
    assert get_evaluator("finished").key == "done"
    assert from_dict(get_evaluator("longer", than=1).to_dict()).function.than == 1


def test_parameters_that_their_evaluators_do_not_take_are_refused(their_package):
    with pytest.raises(ValueError, match="takes no parameters, got than"):
        get_evaluator("shouting", than=1)
    with pytest.raises(ValueError, match="takes no parameters, got key"):
        get_evaluator("finished", key="mine")


def test_what_their_evaluators_need_and_give_is_read_off_them(their_package):
    shouting, longer, finished = map(interface.get_spec, ("shouting", "longer", "finished"))
    assert (shouting.needs, longer.needs, finished.needs) == (("outputs",),) * 3
    assert {one.group for one in (shouting, longer, finished)} == {"their-evaluators"}
    assert [one.metrics[0].key for one in (shouting, longer, finished)] == ["shouting", "longer", "done"]


@loop_over(
    ("id", "parameters", "said"),
    [
        ("contains", {"match": "some"}, "match must be 'all' or 'any', got 'some'"),
        ("contains", {"text": ""}, "which is in every answer"),
        ("contains", {"text": ["a", ""]}, "which is in every answer"),
        ("length", {"max": "5"}, "max must be an integer or None, got '5'"),
        ("hit_at_k", {"k": 2.5}, "k must be an integer or None, got 2.5"),
        ("looping", {"shortest": True}, "shortest must be an integer, got True"),
        ("step_limit", {"limit": 3, "kinds": "tool"}, "kinds must be a list of strings or None, got 'tool'"),
        ("pipeline", {"function": len, "minimum": 3, "maximum": 1}, "minimum 3 is above maximum 1"),
        ("pipeline", {"function": 5}, "function must be a function, got 5"),
        ("encoding_guardrail", {"condition": "a b"}, "column 1"),
        ("agent_sanity", {"expectations": ["a"]}, "expectations must be a dict"),
        ("has_span", {"at_least": 3, "at_most": 1}, "at_least 3 is above at_most 1"),
        ("language_mismatch", {"detect": 5}, "detect must be a function or None"),
        ("exact", {"timeout": -1}, "timeout must be a number of seconds > 0, got -1"),
        ("exact", {"retries": -1}, "retries must be an integer"),
        ("exact", {"key": ""}, "key must be a non-empty string"),
        ("exact", {"threshold": "x"}, "threshold must be a number, got 'x'"),
        ("exact", {"max_dataset_rows": 0}, "max_cases must be an integer >= 1"),
    ],
)
def test_a_parameter_of_the_wrong_kind_is_refused_before_any_case(id, parameters, said):
    with pytest.raises(ValueError, match=said):
        get_evaluator(id, **parameters)


def test_a_map_to_an_argument_that_there_is_not_is_refused():
    with pytest.raises(TypeError, match="map: the evaluator has no argument 'outputz'; it has outputs"):
        get_evaluator("regex", pattern="a", map={"outputz": "outputs.text"})
    assert get_evaluator("regex", pattern="a", map={"documents": "outputs.documents"}).key == "regex"


@pytest.mark.parametrize(
    ("id", "parameters", "said"),
    [
        ("broken", {}, "no_module_of_theirs:thing of their-evaluators.* cannot be loaded: ModuleNotFoundError"),
        ("nothing", {}, "is not callable: 5"),
        ("longer", {"thna": 1}, "'longer' of 'their_module:Longer': .*'thna'"),
    ],
)
def test_what_is_wrong_with_their_evaluators_names_them(their_package, id, parameters, said):
    with pytest.raises(ValueError, match=said):
        get_evaluator(id, **parameters)


def test_a_table_of_needs_is_derived():
    def table(id):
        return {name: need for name, need in interface.get_spec(id).needed.items() if need != "no"}

    assert table("ir_map") == {"expected": "yes", "context": "yes"}
    assert table("language_mismatch") == {"question": "yes", "context": "optional", "actual": "yes"}
    assert table("text_matching") == {"context": "optional", "actual": "yes", "conditions": "optional"}
    assert table("agent_sanity") == {"actual": "optional", "trace": "optional"}
    assert table("tool_calls") == {"expected": "optional", "trace": "yes"}


def test_metrics_as_plain_values():
    assert Metric("a", (0, float("inf")), threshold=float("inf")).to_dict() == {
        "key": "a",
        "range": [0, None],
        "higher_is_better": True,
        "threshold": "Infinity",
        "primary": False,
    }


def test_a_parameter_that_must_be_given_is_named():
    with pytest.raises(ValueError, match=r"evaluator 'regex' needs pattern: get_evaluator\('regex', pattern=…\)"):
        get_evaluator("regex")


def test_a_field_that_cases_do_not_have_is_named():
    with pytest.raises(TypeError, match=r"unknown case field 'output'; expected one of: .*outputs"):
        score(get_evaluator("exact"), output="x")
