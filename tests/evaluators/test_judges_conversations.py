"""The judges that read run trees and sessions."""

import pytest

from looped_cases import loop_over
from spanwise.collector.records import Run, Trace
from spanwise.evaluators import get_evaluator, interface, make_case, score
from spanwise.evaluators.judges import scripted

YES = {"rationale": "Because.", "rating": "yes"}
ROOT = Run(trace_id="1" * 32, span_id="a" * 16, name="agent", inputs={"q": "cats"}, outputs="None found.", end_ns=9)
SEARCH = Run(trace_id="1" * 32, span_id="b" * 16, parent_id="a" * 16, name="search", kind="tool", inputs="cats")
TRACE = Trace(ROOT, (ROOT, SEARCH))


def turn(number, asked, answered):
    ids = {"trace_id": f"{number:032x}", "span_id": f"{number:016x}"}
    root = Run(**ids, name="chat", inputs={"q": asked}, outputs=answered, start_ns=number)
    return Trace(root, (root,))


SESSION = make_case([turn(1, "Where is it?", "Which parcel?"), turn(2, "Number 7, again!", "Let me see.")])
SAID = "user: Where is it?\nassistant: Which parcel?\nuser: Number 7, again!\nassistant: Let me see."


def seen(asked):
    return asked.backend.asked[0].messages[1]["content"]


@pytest.mark.parametrize("id", ["goal_reached", "tool_choice"])
def test_runs_are_read(id):
    asked = scripted(YES)
    [said] = score(get_evaluator(id, judge=asked), TRACE)
    assert (said.key, said.score, said.label, said.source) == (id, True, "yes", "model")
    assert "  2. tool 'search'\n     inputs: cats" in seen(asked)


@pytest.mark.parametrize("id", ["conversation_complete", "user_frustrated"])
def test_all_turns_of_a_session_are_read_each_once(id):
    asked = scripted(YES)
    [said] = score(get_evaluator(id, judge=asked), SESSION)
    assert (said.key, said.score) == (id, True)
    assert f">\n{SAID}\n<" in seen(asked)


@loop_over("id", ["conversation_complete", "user_frustrated"])
@loop_over(
    "fields",
    [
        {"inputs": "b", "outputs": "c", "history": [{"role": "user", "content": "a"}]},
        {"inputs": {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}, "outputs": "c"},
        {
            "history": [
                {"role": "user", "content": "a"},
                {"role": "user", "content": "b"},
                {"role": "assistant", "content": "c"},
            ]
        },
    ],
)
def test_conversations_come_in_several_forms(id, fields):
    asked = scripted(YES)
    score(get_evaluator(id, judge=asked), **fields)
    assert ">\nuser: a\nuser: b\nassistant: c\n<" in seen(asked)


def test_where_nothing_was_said_nobody_is_asked():
    [said] = score(get_evaluator("user_frustrated", judge=scripted()), expected_documents=["x"])
    assert (said.outcome, said.comment) == ("skip", "needs history; the case has none, nor has it inputs")


def test_frustration_is_bad():
    [metric] = get_evaluator("user_frustrated").metrics
    assert [metric.passes(score) for score in (True, False)] == [False, True]
    assert all(
        get_evaluator(id).metrics[0].passes(True) for id in ("goal_reached", "tool_choice", "conversation_complete")
    )


def test_an_agent_that_gave_no_answer_is_judged_by_what_it_did():
    failed = Run(
        trace_id="1" * 32, span_id="a" * 16, name="agent", inputs={"q": "x"}, status="error", error="Stuck: no"
    )
    asked = scripted({"rationale": "It failed.", "rating": "no"})
    [said] = score(get_evaluator("goal_reached", judge=asked), Trace(failed, (failed, SEARCH)))
    assert said.score is False
    assert ["(it gave no answer)" in seen(asked), "error: Stuck: no" in seen(asked)] == [True, True]


def test_a_case_without_a_trace_is_skipped():
    [said] = score(get_evaluator("tool_choice", judge=scripted()), inputs="x", outputs="y")
    assert (said.outcome, said.comment) == ("skip", "needs trace; the case has none")


def test_which_tools_there_were_is_said_and_changes_the_version():
    asked = scripted(YES)
    told = get_evaluator("tool_choice", judge=asked, tools=["search(query)", {"name": "send"}])
    score(told, TRACE)
    assert ["search(query)" in seen(asked), '"name": "send"' in seen(asked)] == [True, True]
    assert told.version != get_evaluator("tool_choice", judge=scripted(YES)).version


@pytest.mark.parametrize("id", ["goal_reached", "tool_choice", "conversation_complete", "user_frustrated"])
def test_they_can_be_made_and_shown_without_a_judge(id, monkeypatch):
    monkeypatch.delenv("SPANWISE_JUDGE", raising=False)
    assert get_evaluator(id).function.prompts[0].id == id
    assert interface.get_spec(id).judge
