"""Evaluators' own traces: kept like all others, and in no list or sum unless something asks for them."""

from __future__ import annotations

from typing import Any

import pytest

from collector.making import SECOND, START, child, run
from looped_cases import loop_over
from spanwise.collector.filters import Filter
from spanwise.collector.records import Experiment, Feedback, Retention, Run, Target, Usage
from spanwise.collector.stores import Store

IN = {"project": "p", "session_id": "s", "user_id": "u"}


def judgement(name: str = "polite", **fields: Any) -> list[Run]:
    """The trace of an evaluator, with the call of a model that costs something."""
    root = run(name, kind="evaluator", **{**IN, **fields})
    return [root, child(root, "polite", kind="llm", model="judge", usage=Usage(100, 10), cost=5.0)]


def names(traces: Any) -> list[str]:
    return [trace.name for trace in traces]


@loop_over(
    "conditions",
    [
        {},
        {"project": "p"},
        {"session": "s"},
        {"user": "u"},
        {"model": "judge"},
        {"any_kind": "llm"},
        {"name": "polite"},
        {"cost": (">", 1.0)},
        {"since_ns": START},
        {"experiment": ""},
    ],
    ids=str,
)
def test_no_list_has_them_unless_it_is_asked(store: Store, conditions: dict[str, Any]) -> None:
    store.append([*judgement(), answer := run(**IN), child(answer, "polite", kind="evaluator")])
    assert "polite" not in names(store.traces(**conditions))
    assert "polite" not in names(store.traces(Filter(**conditions)))


@pytest.mark.parametrize("conditions", [{"kind": "evaluator"}, {"any_kind": "evaluator"}], ids=str)
def test_who_asks_for_the_kind_gets_them(store: Store, conditions: dict[str, Any]) -> None:
    store.append([*judgement(), run(**IN)])
    assert names(store.traces(**conditions)) == ["polite"]


def test_who_names_one_gets_it(store: Store) -> None:
    store.append(made := judgement())
    assert names(store.traces(trace_ids=(made[0].trace_id,))) == ["polite"]
    assert store.trace(made[0].trace_id).runs == tuple(made)
    assert [trace.root.name for trace in store.many([made[0].trace_id])] == ["polite"]


def test_an_evaluator_inside_an_application_stays_where_it_is(store: Store) -> None:
    store.append([root := run(), child(root, "check", kind="evaluator", usage=Usage(7, 0))])
    assert [(one.name, one.span_count, one.input_tokens) for one in store.traces()] == [("answer", 2, 7)]


def test_a_judge_that_is_itself_the_task_of_an_experiment_is_seen(store: Store) -> None:
    store.save_experiment(Experiment(id="e", name="n", dataset="d"))
    store.append(judgement(experiment_id="e"))
    assert (
        names(store.traces(experiment="e")) == names(store.traces(dataset="d")) == names(store.traces()) == ["polite"]
    )
    assert store.aggregate()[0].traces == 1


def test_they_are_in_no_sum(store: Store) -> None:
    store.append([*judgement(), run(usage=Usage(1, 2), cost=0.5, model="m", **IN)])
    [whole] = store.aggregate()
    assert (whole.traces, whole.input_tokens, whole.output_tokens, whole.cost) == (1, 1, 2, 0.5)
    assert [one.group for one in store.aggregate(group_by="model")] == ["m"]
    assert store.aggregate(bucket_ns=60 * SECOND, kind="evaluator")[0].cost == 5.0


def test_a_session_neither_counts_nor_ends_with_them(store: Store) -> None:
    store.append([run(session_id="a", cost=1.0), *judgement(session_id="a"), run(session_id="b")])
    store.append(judgement(session_id="a"))
    assert [(one.session_id, one.traces, one.cost) for one in store.sessions()] == [("b", 1, None), ("a", 1, 1.0)]
    page = store.sessions(limit=1)
    assert [one.session_id for one in store.sessions(limit=1, cursor=page.next)] == ["a"]


def test_pages_pass_over_them(store: Store) -> None:
    for n in range(20):
        store.append([run(str(n)), *judgement(), *judgement()])
    first = store.traces(limit=12)
    second = store.traces(limit=12, cursor=first.next)
    assert names([*first, *second]) == [str(n) for n in reversed(range(20))]
    assert second.next is None


def test_what_is_deleted_takes_its_judgements_along(store: Store) -> None:
    store.append([answer := run(), *(made := judgement()), *judgement("other")])
    on = Target(trace_id=answer.trace_id)
    store.add_feedback([Feedback(target=on, key="polite", score=True, judge_trace_id=made[0].trace_id)])
    assert store.delete(trace_ids=(answer.trace_id,)) == 1
    assert names(store.traces(kind="evaluator")) == ["other"]


def test_what_is_said_anew_takes_the_place_of_the_judgement_before(store: Store) -> None:
    store.append([answer := run(), *(first := judgement("first")), *(second := judgement("second"))])
    said = {"target": Target(trace_id=answer.trace_id), "key": "polite", "source": "model", "id": "said"}
    for made in (first, second):
        store.add_feedback([Feedback(score=True, judge_trace_id=made[0].trace_id, **said)])
    assert names(store.traces(kind="evaluator")) == ["second"]


def test_a_judgement_stays_as_long_as_feedback_leads_to_it(store: Store) -> None:
    store.append([answer := run(), *(made := judgement())])
    said = {"target": Target(trace_id=answer.trace_id), "source": "model", "judge_trace_id": made[0].trace_id}
    store.add_feedback([Feedback(id=key, key=key, score=True, **said) for key in ("polite", "kind")])
    store.delete_feedback(["polite"])
    assert names(store.traces(kind="evaluator")) == ["polite"]
    store.delete_feedback(["kind"])
    assert names(store.traces(kind="evaluator")) == []
    assert names(store.traces()) == [answer.name]


def test_what_feedback_calls_a_judgement_and_is_none_stays(store: Store) -> None:
    store.append([answer := run(), innocent := run("innocent")])
    on = Target(trace_id=answer.trace_id)
    store.add_feedback([Feedback(target=on, key="k", score=1.0, judge_trace_id=innocent.trace_id)])
    store.delete(trace_ids=(answer.trace_id,))
    assert names(store.traces()) == ["innocent"]


def test_the_last_of_a_session_takes_the_judgements_of_the_session_along(store: Store) -> None:
    store.append([turn := run(session_id="s"), *(made := judgement(session_id=None))])
    on = Target(session_id="s")
    store.add_feedback([Feedback(target=on, key="k", score=1.0, judge_trace_id=made[0].trace_id)])
    store.delete(trace_ids=(turn.trace_id,))
    assert store.count() == {"spans": 0, "traces": 0, "feedbacks": 0}


def test_an_experiment_takes_all_judgements_along(store: Store) -> None:
    store.save_experiment(Experiment(id="e", name="n", dataset="d"))
    store.append([root := run(experiment_id="e"), *(one := judgement()), *(whole := judgement())])
    judged = [(Target(trace_id=root.trace_id), one), (Target(experiment_id="e"), whole)]
    store.add_feedback(
        [Feedback(target=target, key="k", score=1.0, judge_trace_id=made[0].trace_id) for target, made in judged]
    )
    assert store.delete_experiment("e")
    assert store.count() == {"spans": 0, "traces": 0, "feedbacks": 0}


def test_who_deletes_by_project_or_by_age_leaves_none_behind(store: Store) -> None:
    store.append([*judgement(), run(**IN), *judgement(project="other", start_ns=START)])
    assert store.delete(project="p") == 2
    store.prune(Retention(max_age_ns=1))
    assert store.count()["traces"] == 0


SAID: dict[str, Any] = {"source": "model", "evaluator": "polite", "score": True}
VOTE: dict[str, Any] = {"source": "human", "author": "ann", "score": False}


@pytest.mark.parametrize("voted", [1, 3], ids=["voted first", "voted last"])
@pytest.mark.parametrize("stored", [1, -1], ids=["stored in turn", "stored backwards"])
class TestVotesOnWhatAJudgeHasSaid:
    """They check the judge: the judge's scores alone count, and filters see both."""

    @pytest.fixture
    def on(self, store: Store, voted: int, stored: int) -> Target:
        store.append([run("answer", trace_id="a" * 32, experiment_id="e", example_id="x")])
        on = Target(trace_id="a" * 32)
        of_both = {"judge": {**SAID, "created_ns": 2}, "vote": {**VOTE, "created_ns": voted}}
        for id, one in list(of_both.items())[::stored]:
            store.add_feedback([Feedback(id=id, target=on, key="polite", **one)])
        return on

    def test_the_mean_is_the_judges(self, store: Store, on: Target) -> None:
        (stats,) = store.aggregate(experiment="e")[0].feedback
        assert (stats.n, stats.mean) == (1, 1.0)

    def test_comparisons_have_the_judges_score(self, store: Store, on: Target) -> None:
        assert [row.scores for row in store.scores("e")] == [{"polite": 1.0}]

    def test_filters_and_lists_have_what_was_said_last(self, store: Store, on: Target, voted: int) -> None:
        (trace,) = store.traces(experiment="e", feedback=("polite", "=", voted < 2))
        assert trace.feedback == {"polite": float(voted < 2)}
        assert not store.traces(experiment="e", feedback=("polite", "=", voted > 2)).items

    def test_without_the_judgement_the_vote_counts(self, store: Store, on: Target) -> None:
        store.delete_feedback(["judge"])
        assert store.aggregate(experiment="e")[0].feedback[0].mean == 0.0
        assert [row.scores for row in store.scores("e")] == [{"polite": 0.0}]

    def test_without_the_vote_nothing_changes(self, store: Store, on: Target) -> None:
        store.delete_feedback(["vote"])
        assert [row.scores for row in store.scores("e")] == [{"polite": 1.0}]
        assert store.traces(experiment="e", feedback=("polite", "=", 1)).items

    def test_the_judges_next_version_counts(self, store: Store, on: Target) -> None:
        again = {**SAID, "version": "2", "score": 0.5, "created_ns": 4}
        store.add_feedback([Feedback(target=on, key="polite", **again)])
        assert [row.scores for row in store.scores("e")] == [{"polite": 0.5}]
        assert store.aggregate(experiment="e")[0].feedback[0].mean == 0.5
