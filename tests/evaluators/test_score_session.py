"""A session scored by hand: all its turns, out of the store that is meant."""

from __future__ import annotations

import pytest

from spanwise.collector.errors import NotFound
from spanwise.collector.records import Run
from spanwise.evaluators import evaluator, get_evaluator, score
from spanwise.evaluators.interface import JudgementBuffer, use_judge_context
from spanwise.evaluators.judges import scripted
from spanwise.evaluators.scoring import MAX_TURNS, load_turns

YES = {"rationale": "Twice.", "rating": "yes"}


def turn(n, **fields):
    given = {"start_ns": n, "end_ns": n + 1, "session_id": "s", "inputs": f"Question {n}?", "outputs": f"Answer {n}."}
    return Run(trace_id=f"{n:032x}", span_id=f"{n:016x}", name="turn", **{**given, **fields})


@evaluator
def told(history, inputs, outputs, trace):
    return {"score": len(trace.runs), "comment": f"{[said['content'] for said in history]} {inputs} {outputs}"}


@pytest.mark.process
@pytest.mark.parametrize("place", ["store", "path", "environment"])
def test_it_is_read_from_the_store_that_is_meant(store, tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    store.append([turn(2), turn(1), Run(trace_id="f" * 32, span_id="1" * 16, parent_id=None, name="other")])
    where = {"store": store, "path": tmp_path / "spanwise.db", "environment": None}[place]
    if place != "store":
        store.close()
        monkeypatch.delenv("SPANWISE_URL", raising=False)
    [feedback] = score(told, session="s", store=where)
    assert feedback.target.session_id == "s"
    assert feedback.comment == "['Question 1?', 'Answer 1.', 'Question 2?', 'Answer 2.'] Question 2? Answer 2."


def test_only_the_last_turn_is_seen_with_its_runs(store):
    below = Run(trace_id=turn(2).trace_id, span_id="a" * 16, parent_id=turn(2).span_id, name="search", start_ns=2)
    store.append([turn(1), turn(2), below])
    assert score(told, session="s", store=store)[0].score == 2


def test_of_a_very_long_one_the_latest_turns_are_read(store):
    store.append([turn(n) for n in range(1, MAX_TURNS + 151)])
    starts = [trace.root.start_ns for trace in load_turns("s", store)]
    assert starts == list(range(151, MAX_TURNS + 151))


def test_a_session_that_there_is_not_is_told(store):
    with pytest.raises(NotFound, match=r"session 'none' has no traces in .*spanwise\.db"):
        score(told, session="none", store=store)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"on": [], "session": "s"}, "cannot be combined with a trace or a case"),
        ({"inputs": "q", "store": "x"}, "session=id"),
    ],
)
def test_what_makes_no_sense_is_refused(store, arguments, why):
    with pytest.raises(TypeError, match=why):
        score(told, **arguments)


def test_a_judge_reads_the_conversation_and_its_trace_says_which(store):
    store.append([turn(1), turn(2)])
    judgements, judge = JudgementBuffer(), scripted(YES)
    with use_judge_context(judgements=judgements):
        [feedback] = score(get_evaluator("user_frustrated", judge=judge), session="s", store=store)
    store.append(judgements.take(), [feedback])
    root = store.trace(feedback.judge_trace_id).root
    assert (feedback.score, feedback.target.session_id, root.metadata["judged_session"]) == (True, "s", "s")
    assert [link.trace_id for link in root.links] == [turn(2).trace_id]
    assert "Question 1?" in judge.backend.asked[0].messages[-1]["content"]
    assert [one.traces for one in store.sessions()] == [2]
