"""What agents did and left behind."""

import json
import re
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped_cases import loop_over
from spanwise.collector.records import Run, Trace
from spanwise.evaluators import get_evaluator, score
from spanwise.evaluators.builtin.agents import _maximum_matching


def trace_of(*steps, kind="tool"):
    """A trace whose root has the steps (name, or name and inputs) below it."""
    make = {"trace_id": "1" * 32, "end_ns": 10**9}
    root = Run(span_id="a" * 16, name="agent", kind="agent", **make)
    pairs = [step if isinstance(step, tuple) else (step, None) for step in steps]
    runs = [
        Run(span_id=f"{i + 1:016x}", parent_id="a" * 16, name=name, kind=kind, inputs=inputs, start_ns=i, **make)
        for i, (name, inputs) in enumerate(pairs)
    ]
    return Trace(root, (root, *runs[::-1]))  # not in order: start times decide


def answered(*steps):
    """The same, with a model that has answered in the end."""
    done = trace_of(*steps)
    reply = Run(trace_id="1" * 32, span_id="f" * 16, parent_id="a" * 16, name="chat", kind="llm", outputs="done")
    return Trace(done.root, (*done.runs, reply))


@loop_over(
    ("match", "made", "passes"),
    [
        ("strict", "ab", True),
        ("strict", "ba", False),
        ("strict", "abc", False),
        ("ordered", "axb", True),
        ("ordered", "ba", False),
        ("ordered", "a", False),
        ("unordered", "ba", True),
        ("unordered", "bab", False),
        ("superset", "xbya", True),
        ("superset", "a", False),
        ("subset", "b", True),
        ("subset", "bx", False),
        ("subset", "", True),
    ],
)
def test_matches_of_tool_calls(match, made, passes):
    feedback = score(get_evaluator("tool_calls", expected=["a", "b"], match=match), answered(*made))
    assert feedback[0].score is passes


@pytest.mark.parametrize("name", ["gen_ai.tool.name", "tool.name", "ai.toolCall.name", "haystack.tool.name"])
def test_a_tool_has_the_name_that_its_span_says_it_has(name):
    make = {"trace_id": "1" * 32, "span_id": "2" * 16, "kind": "tool"}
    called = Run(name="ai.toolCall", attributes={name: "track"}, **make)
    assert score(get_evaluator("tool_calls", expected=["track"]), Trace(called, (called,)))[0].score is True
    unnamed = Run(name="track", attributes={name: ["other"]}, **make)
    assert score(get_evaluator("tool_calls", expected=["track"]), Trace(unnamed, (unnamed,)))[0].score is True


def test_arguments_of_tool_calls():
    done = trace_of(("search", {"query": "cats", "limit": 3}), ("send", {"arguments": {"to": "ann"}}))
    expected = {
        "tool_calls": [{"name": "search", "arguments": {"query": "cats"}}, {"name": "send", "arguments": {"to": "ann"}}]
    }
    assert score(get_evaluator("tool_calls"), done, reference_outputs=expected)[0].score is True
    assert score(get_evaluator("tool_calls", all_arguments=True), done, reference_outputs=expected)[0].score is False
    assert (
        score(get_evaluator("tool_calls", expected=[{"name": "search", "arguments": {"query": "dogs"}}]), done)[0].score
        is False
    )


def test_precision_and_recall_count_each_call_once():
    feedback = score(get_evaluator("tool_calls", expected=["a", "a", "b"]), trace_of("a", "c"))
    assert [(one.key, one.score) for one in feedback[1:]] == [
        ("tool_calls_precision", 0.5),
        ("tool_calls_recall", pytest.approx(1 / 3)),
    ]


def test_a_loose_expectation_does_not_take_the_call_that_a_strict_one_needs():
    expected = ["search", {"name": "search", "arguments": {"q": 1}}]
    feedback = score(
        get_evaluator("tool_calls", expected=expected, match="unordered"),
        trace_of(("search", {"q": 1}), ("search", {"q": 2})),
    )
    assert feedback[0].score is True


@pytest.mark.process
@given(st.lists(st.sampled_from("ab"), max_size=4), st.lists(st.sampled_from("ab"), max_size=4))
def test_unordered_is_a_permutation(made, wanted):
    passed = score(get_evaluator("tool_calls", expected=wanted, match="unordered"), answered(*made))[0].score
    assert passed == (tuple(wanted) in set(permutations(made)))


def test_a_case_without_expected_calls_is_skipped():
    assert {one.outcome for one in score(get_evaluator("tool_calls"), trace_of("a"))} == {"skip"}
    assert score(get_evaluator("tool_calls"), trace_of("a"), reference_outputs=[{"tool": "a"}])[0].outcome == "error"


def test_trajectories():
    done = trace_of("retrieve", "rerank", "read", kind="chain")
    assert (
        score(get_evaluator("trajectory_match"), done, reference_outputs=["retrieve", "rerank", "read"])[0].score
        is True
    )
    assert (
        score(get_evaluator("trajectory_match", match="ordered", expected=["retrieve", "read"]), done)[0].score is True
    )
    missed = score(get_evaluator("trajectory_match", expected=["read"]), done)[0]
    assert (missed.score, missed.comment) == (False, "retrieve → rerank → read")


def test_trajectories_of_some_kinds():
    assert score(get_evaluator("trajectory_match", expected=[], kinds=["tool"]), answered())[0].score is True


@loop_over(
    ("parameters", "passes"),
    [
        ({"name": "a"}, True),
        ({"kind": "llm"}, False),
        ({"kind": "tool", "at_least": 3}, False),
        ({"kind": "tool", "at_most": 1}, False),
        ({"name": "a", "inputs": {"q": 1}}, True),
        ({"inputs": {"q": 2}}, False),
        ({"name": "a", "max_seconds": 0.5}, False),
        ({"name": "a", "min_seconds": 0.5}, True),
        ({"attributes": {"x": 1}}, False),
    ],
)
def test_spans_that_match(parameters, passes):
    assert score(get_evaluator("has_span", **parameters), trace_of(("a", {"q": 1}), "b"))[0].score is passes


def test_step_limits():
    assert score(get_evaluator("step_limit", limit=2), trace_of("a", "b"))[0].score is True
    assert score(get_evaluator("step_limit", limit=1), trace_of("a", "b"))[0].comment == "2 steps"
    assert score(get_evaluator("step_limit", limit=0), trace_of("a", kind="chain"))[0].score is True
    with pytest.raises(ValueError, match="-1"):
        get_evaluator("step_limit", limit=-1)


@pytest.fixture
def left_behind(tmp_path):
    (tmp_path / "report.json").write_text(json.dumps({"status": "ok", "meta": {"rows": 3}}))
    (tmp_path / "broken.json").write_text("{,}")
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "one.txt").write_text("a plot")
    (tmp_path / "paper.pdf").write_bytes(b"%PDF-1.4\n<< /Type /Pages >>\n<< /Type /Page >>\n")
    return tmp_path


def test_sanity_of_a_directory(left_behind):
    feedback = score(get_evaluator("agent_sanity", directory=str(left_behind)), outputs="done")[0]
    assert feedback.score == pytest.approx(4 / 6)
    assert set(feedback.metadata["problems"]) == {"broken.json", "empty.txt"}


@pytest.mark.parametrize(
    ("path", "expected", "problem"),
    [
        ("report.json", {"fields": {"status": "ok", "meta.rows": 3}}, None),
        ("report.json", {"fields": {"status": "bad"}}, "has 'status' 'ok'"),
        ("report.json", {"fields": {"x.y": 1}}, "has no field 'x.y'"),
        ("missing.txt", {}, "is missing"),
        ("plots", {"kind": "dir", "entries": ["one.txt"]}, None),
        ("plots", {"entries": ["two.txt"]}, "has no two.txt"),
        ("plots", {"kind": "file"}, "is no file"),
        ("report.json", {"min_bytes": 1000}, "fewer than 1000"),
        ("rows.jsonl", {"fields": {"a": 1}}, "has 'a' 2"),
        ("report.json", {"contains": ["nothing"]}, "does not contain"),
        ("paper.pdf", {"pages": 1}, None),
        ("paper.pdf", {"pages": 2}, "has 1 pages"),
        ("report.json", {"pages": 1}, "is no PDF"),
    ],
)
def test_expectations_of_an_artifact(left_behind, path, expected, problem):
    judge = get_evaluator("agent_sanity", expectations={path: expected}, directory=str(left_behind))
    problems = score(judge, outputs="done")[0].metadata["problems"].get(path, [])
    assert (problems == []) if problem is None else any(problem in one for one in problems)


def test_artifacts_may_be_handed_over():
    outputs = {"artifacts": [{"path": "a.json", "content": "[1]"}, {"path": "b.json", "content": "[1"}]}
    assert score(get_evaluator("agent_sanity"), outputs=outputs)[0].score == 0.5


def test_no_artifacts_are_a_problem_and_nonsense_an_error():
    assert score(get_evaluator("agent_sanity"), outputs="done")[0].score == 0.0
    assert score(get_evaluator("agent_sanity"), outputs={"artifacts": [3]})[0].outcome == "error"
    with pytest.raises(ValueError, match="'colour'"):
        get_evaluator("agent_sanity", expectations={"a": {"colour": "red"}})


@loop_over(
    "wanted",
    [
        {"name": "find", "arguments": {"filter": {"a": 1}}},
        {"name": "find", "arguments": {"a": 1}},
        {"name": "find", "arguments": '{"filter": {"a": 1}}'},
        {"type": "function", "function": {"name": "find", "arguments": '{"filter": {"a": 1}}'}},
    ],
)
@loop_over("made", [{"filter": {"a": 1}}, '{"filter": {"a": 1}}'])
def test_arguments_are_the_same_in_each_form_in_which_models_give_them(made, wanted):
    judge = get_evaluator("tool_calls", expected=[wanted], all_arguments=True)
    assert score(judge, trace_of(("find", made)))[0].score is True
    assert score(judge, trace_of(("find", {"filter": {"a": 2}})))[0].score is False


def test_expected_steps_are_a_list():
    with pytest.raises(ValueError, match="expected must be a list"):
        get_evaluator("trajectory_match", expected="search")


def test_an_artifact_named_twice_fails_if_either_is_bad():
    good, bad = {"path": "a.json", "content": "[1]"}, {"path": "a.json", "content": "[1"}
    for artifacts in ([good, bad], [bad, good]):
        assert score(get_evaluator("agent_sanity"), outputs={"artifacts": artifacts})[0].score == 0.5


@pytest.mark.parametrize("content", [{"x": 1}, [1], b"[1]", '["\\ud800"]'])
def test_content_of_artifacts_may_be_values_or_bytes(content):
    outputs = {"artifacts": [{"path": "a.json", "content": content}]}
    assert score(get_evaluator("agent_sanity"), outputs=outputs)[0].score == 1.0


@loop_over(
    ("id", "parameters", "told"),
    [
        ("tool_calls", {"expected": [{"tool": "a"}]}, "an expected tool call is a name or"),
        ("step_limit", {"limit": 3, "kinds": ["tools"]}, "unknown kind of spans 'tools'; did you mean 'tool'"),
        ("step_limit", {"limit": 3, "kinds": []}, "kinds must be None"),
        ("trajectory_match", {"kinds": ["Tool"]}, "unknown kind of spans 'Tool'; did you mean 'tool'"),
        ("has_span", {"kind": "retrievr"}, "did you mean 'retriever'"),
        ("has_span", {"status": "failed"}, "status must be 'unset' or 'ok' or 'error'"),
        ("has_span", {"at_least": -1}, "at_least is 0 or more"),
        ("has_span", {"min_seconds": 2.0, "max_seconds": 1.0}, "min_seconds 2.0 is from 0 to max_seconds 1.0"),
        ("human_feedback", {"of": " "}, "of must be the key of human feedback"),
    ],
)
def test_parameters_that_nothing_could_meet_are_refused(id, parameters, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        get_evaluator(id, **parameters)


def test_a_kind_of_ones_own_is_a_kind():
    assert (
        score(get_evaluator("step_limit", limit=0, kinds=["my_step"]), trace_of("a", kind="my_step"))[0].score is False
    )


def most(made, wanted):
    """By trying all."""
    if not wanted:
        return 0
    first, *others = wanted
    took = [1 + most(made[:i] + made[i + 1 :], others) for i, call in enumerate(made) if call in first]
    return max([most(made, others), *took])


@given(st.lists(st.integers(0, 3), max_size=4), st.lists(st.sets(st.integers(0, 3)), max_size=4))
def test_as_many_as_can_be_are_assigned(made, wanted):
    assert _maximum_matching(made, wanted, lambda call, each: call in each) == most(made, wanted)


@pytest.mark.process
@pytest.mark.parametrize("id", ["tool_calls", "trajectory_match"])
def test_an_agent_that_calls_thousands_of_times_is_judged(id):
    done = trace_of(*["search"] * 3000)
    assert score(get_evaluator(id, expected=["search"] * 3000, match="unordered"), done)[0].score is True
    assert len(score(get_evaluator(id, expected=["search"]), done)[0].comment) < 1100
