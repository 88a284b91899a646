"""Versions of evaluators: other parameters or other code, another version; and what resume makes of them."""

import dataclasses
import json
import subprocess
import sys

import pytest

from evaluators.recorded import FILE, recorded_ids, results
from looped_cases import loop_over
from spanwise.collector.filters import Filter
from spanwise.collector.records import Feedback, Run, Target
from spanwise.evaluators import Judge, evaluate, evaluator, get_evaluator, score
from spanwise.evaluators.interface import PARAMETERS_KEY, as_evaluator, list_specs

RECORDED = json.loads(FILE.read_text())


@pytest.fixture
def live(store):
    """The id of a stored trace that answers "abc"."""
    run = Run(trace_id="1" * 32, span_id="2" * 16, name="answer", start_ns=1, end_ns=2, inputs="q", outputs="abc")
    store.append([run])
    return run.trace_id


def attach(store, judge):
    return evaluate(Filter(name="answer"), None, [judge], store=store, attach=True, resume=True, progress=False)


@loop_over(
    ("id", "one", "other"),
    [
        ("regex", {"pattern": "a"}, {"pattern": "z"}),
        ("document_recall", {"k": 1}, {"k": 5}),
        ("json_schema", {"json_schema": {"type": "object"}}, {}),
        ("contains", {"text": "a"}, {"text": "a", "ignore_case": True}),
        ("exact", {}, {"map": {"outputs": "outputs.answer"}}),
        ("exact", {}, {"prepare_data": lambda outputs: {"outputs": outputs}}),
        ("pipeline", {"function": lambda answer: 1}, {"function": lambda answer: 2}),
        ("byop", {"prompt": "{outputs}"}, {"prompt": "{outputs}", "evaluate_retrieved_context": True}),
    ],
)
def test_other_parameters_make_another_version(id, one, other):
    assert get_evaluator(id, **one).version == get_evaluator(id, **one).version != get_evaluator(id, **other).version


def test_a_parameter_that_is_the_default_changes_no_version():
    assert get_evaluator("contains", match="all").version == get_evaluator("contains").version


@pytest.mark.parametrize("options", [{"key": "k"}, {"timeout": 5.0}, {"threshold": 0.5}, {"max_dataset_rows": 2}])
def test_options_that_change_no_score_change_no_version(options):
    assert get_evaluator("exact", **options).version == get_evaluator("exact").version


def test_every_parameter_of_every_judge_is_part_of_its_version():
    other = {"evaluate_retrieved_context": True, "max_characters": 77, "questions": 5, "logprobs": True}
    other |= {"max_statements": 3, "assessment_type": "RETRIEVAL", "weights": (0.5, 0.5), "maximum": 9}
    needed = {"judge": {"key": "polite"}, "custom_judge": {"assessment_name": "polite"}}
    needed["global_guideline_adherence"] = {"global_guidelines": ["Be clear."]}
    prompts = {
        "judge": "{outputs}",
        "custom_judge": "{response} {retrieved_context}",
        "byop": "{outputs}",
        "pipeline_judge": "{answer}",
    }
    changed = 0
    for spec in (one for one in list_specs() if one.judge):
        given = {**needed.get(spec.id, {}), "judge": Judge(model="m", base_url="http://127.0.0.1:1/v1", api_key="x")}
        given |= {"prompt": prompts[spec.id]} if spec.id in prompts else {}
        made = get_evaluator(spec.id, **given)
        for field in dataclasses.fields(made.function):
            if field.init and field.name in other:
                changed += 1
                assert get_evaluator(spec.id, **given, **{field.name: other[field.name]}).version != made.version, (
                    spec.id
                )
    assert changed > 40


def test_the_version_of_a_function_is_that_of_its_source_text():
    def one(outputs):
        return 0.25

    before = as_evaluator(one).version

    def one(outputs):
        return 0.75

    assert before != as_evaluator(one).version == as_evaluator(one).version != "1"


def test_lambdas_on_one_line_have_versions_of_their_own():
    low, high = as_evaluator(lambda outputs: 0.25), as_evaluator(lambda outputs: 0.75)
    both = [as_evaluator(each).version for each in (lambda outputs: 1, lambda outputs: 2)]
    assert low.version != high.version
    assert both[0] != both[1]


def test_what_a_function_is_made_with_is_part_of_its_version():
    def longer(than):
        return lambda outputs: len(outputs) > than

    assert as_evaluator(longer(1)).version == as_evaluator(longer(1)).version != as_evaluator(longer(2)).version


def test_a_counter_of_a_closure_changes_no_version():
    calls = 0

    def count(outputs):
        nonlocal calls
        calls += 1
        return calls

    before = as_evaluator(count).version
    count("")
    assert as_evaluator(count).version == before


@pytest.mark.slow
def test_a_version_is_the_same_in_another_process_and_as_main(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from spanwise.evaluators import as_evaluator, get_evaluator\nLIMIT = {'b', 'a'}\n"
        "def mine(outputs): return outputs in LIMIT\n"
        "print(as_evaluator(mine).version, get_evaluator('regex', pattern='a').version)\n"
    )
    run = [[sys.executable, "mine.py"], [sys.executable, "-c", "import mine"]]
    said = [subprocess.run(each, cwd=tmp_path, capture_output=True, text=True, check=True).stdout for each in run]
    assert said[0] == said[1]
    assert said[0].split()[1] == get_evaluator("regex", pattern="a").version


def test_a_function_without_source_text_has_a_version_of_its_code():
    names_ = [{}, {}]
    exec("def typed(outputs): return 1", names_[0])
    exec("def typed(outputs): return 2", names_[1])
    one, other = (as_evaluator(each["typed"]).version for each in names_)
    assert one != other


def test_a_version_that_is_given_is_kept():
    assert evaluator(version="7")(lambda outputs: 1).version == "7"


def test_scores_of_other_parameters_are_replaced_on_live_traces(store, live):
    for pattern, expected in (("a", 1.0), ("z", 0.0)):
        attach(store, get_evaluator("regex", pattern=pattern))
        newest = max(store.trace(live).feedback, key=lambda one: one.created_ns)
        assert (newest.score, newest.metadata[PARAMETERS_KEY]) == (expected, {"pattern": pattern})


def test_scores_of_other_code_are_replaced_on_live_traces(store, live):
    for judge in (lambda outputs: 0.25, lambda outputs: 0.75):
        summary = attach(store, evaluator(key="mine")(judge)).summary()
        assert summary["mine"].mean == judge("")


def test_a_resumed_experiment_scores_again_with_other_parameters_and_not_with_the_same(store):
    rows, calls = [{"inputs": {"q": "abc"}}], []

    def scored(pattern):
        judge = get_evaluator("regex", pattern=pattern, prepare_data=lambda outputs: calls.append(pattern) or {})
        return evaluate(rows, lambda q: q, [judge], name="e", resume=True, store=store, progress=False).summary()

    assert [scored(pattern)["regex"].mean for pattern in ("a", "z", "z")] == [1.0, 0.0, 0.0]
    assert calls == ["a", "z"]


def test_a_stored_version_1_is_unknown(store, live):
    old = Feedback(target=Target(trace_id=live), key="exact", score=0.0, evaluator="exact", version="1", created_ns=1)
    store.add_feedback([old])
    judge = get_evaluator("exact", prepare_data=lambda outputs: {"reference_outputs": "abc"})
    assert attach(store, judge).summary()["exact"].mean == 1.0


def test_feedback_carries_the_parameters_of_its_evaluator():
    judge = get_evaluator("length", max=4, unit="words", threshold=0.5, timeout=9.0, save_llm_result=False)
    (scored,) = score(judge, outputs="one two")
    (failed,) = score(get_evaluator("regex", pattern="a"), outputs={"a": 1, "b": 2})
    (skipped,) = score(get_evaluator("regex", pattern="a"), inputs="q")
    assert scored.metadata[PARAMETERS_KEY] == {"max": 4, "unit": "words", "threshold": 0.5}
    assert [one.metadata[PARAMETERS_KEY] for one in (failed, skipped)] == [{"pattern": "a"}] * 2
    assert PARAMETERS_KEY not in score(get_evaluator("not_empty"), outputs="one")[0].metadata


def test_parameters_on_feedback_hold_no_key_and_are_short():
    long = get_evaluator("json_schema", json_schema={"description": "x" * 5_000})
    (text,) = score(long, outputs="{}")[0].metadata[PARAMETERS_KEY].values()
    assert len(text) < 600
    secret = get_evaluator("has_span", name="x", attributes={"api_key": "sk-secret", "n": 1})
    assert secret.make.parameters == {PARAMETERS_KEY: {"name": "x", "attributes": {"n": 1}}}


def test_exports_show_the_parameters(store):
    experiment = evaluate(
        [{"inputs": "abc"}], lambda inputs: inputs, [get_evaluator("regex", pattern="b+")], store=store
    )
    (row,) = experiment.rows()
    assert row.to_dict()[PARAMETERS_KEY] == {"regex": {"pattern": "b+"}}
    assert "pattern = b+" in experiment.to_html()


@pytest.mark.process
@loop_over("id", recorded_ids())
def test_results_of_a_built_in_evaluator_change_only_with_its_version_number(id):
    known = RECORDED[id]
    number = next(spec.version for spec in list_specs() if spec.id == id)
    assert known["version"] == number, "record the results: python tests/evaluators/recorded.py"
    assert results(id) == known["results"], f"{id!r} gives other results under the same version number {number!r}"
