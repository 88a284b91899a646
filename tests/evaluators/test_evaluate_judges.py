"""Judges in `evaluate()`: kept with the runs, counted apart from the tasks, refused when there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluators.judge_server import serving
from spanwise.collector.errors import NotFound, Unavailable
from spanwise.collector.filters import Filter
from spanwise.collector.records import Example, Feedback, Run, Usage
from spanwise.evaluators import Experiment, evaluate, evaluator, get_evaluator, score
from spanwise.evaluators.experiments import Recorder, finish_stored_experiment
from spanwise.evaluators.interface import as_evaluator
from spanwise.evaluators.judges import Completion, Judge, scripted
from spanwise.tracer import current_run

ID = "relevance_to_query"
YES = Completion(text='{"rationale": "It is.", "rating": "yes"}', model="scripted", usage=Usage(100, 10))
ROWS = [{"inputs": {"question": f"Why {n}?"}} for n in range(4)]


def relevance(*replies, **options):
    return get_evaluator(ID, judge=scripted(*(replies or [lambda ask: YES])), **options)


def answer(question):
    current_run().set_usage(1, 2)
    return f"Because of {question}"


def run(store, evaluators, rows=ROWS, **options):
    return evaluate(rows, answer, evaluators, store=store, progress=False, **options)


def judged_by(store):
    return store.traces(kind="evaluator", limit=1000).items


def test_what_judges_cost_stands_beside_what_the_tasks_cost(store):
    summary = run(store, [relevance()]).summary()
    assert (summary.tokens, summary.cost, summary.models) == (12, None, ())
    assert (summary.judge_calls, summary.judge_cached, summary.judge_tokens) == (4, 0, 440)
    assert "4 judge calls · 440 tokens" in str(summary)


def priced(server, path, price=None):
    model = Judge(model="m", base_url=server.url, api_key="k", cache=path, price=price)
    return get_evaluator(ID, judge=model)


def test_an_unknown_cost_is_not_zero_when_an_answer_comes_from_the_cache(store, tmp_path):
    with serving(lambda request: YES.text) as server:
        made = priced(server, tmp_path / "judges.db")
        first = run(store, [made], ROWS[:2], name="first").summary()
        second = run(store, [made], [ROWS[0], ROWS[2]], name="second").summary()
    assert (first.judge_calls, first.judge_cached, first.judge_cost, first.judge_unpriced) == (2, 0, None, 2)
    assert (second.judge_calls, second.judge_cached, second.judge_cost, second.judge_unpriced) == (1, 1, None, 1)
    for said in (first, second):
        assert "tokens · cost unknown\n" in str(said)
        assert "$" not in str(said)


def test_a_sum_of_costs_says_how_many_calls_it_lacks(store, tmp_path):
    with serving(lambda request: YES.text) as server:
        known, unknown = (priced(server, tmp_path / name, price) for name, price in (("a", (1.0, 1.0)), ("b", None)))
        both = [known, get_evaluator("safety", judge=unknown.function.judges[0])]
        experiment = run(store, both, ROWS[:2])
    summary = experiment.summary()
    assert summary.judge_cost == pytest.approx(2 * 15e-6)
    assert "4 judge calls · 60 tokens · $0.0000 · cost of 2 calls unknown" in str(summary)
    assert store.experiment(experiment.id).metadata["totals"]["judge_unpriced"] == 2


def test_answers_from_the_cache_alone_cost_nothing(store, tmp_path):
    with serving(lambda request: YES.text) as server:
        made = priced(server, tmp_path / "judges.db", (1.0, 1.0))
        run(store, [made], ROWS[:1], name="first")
        again = run(store, [made], ROWS[:1], name="again").summary()
    assert (again.judge_calls, again.judge_cached, again.judge_cost) == (0, 1, 0.0)


def test_a_judgement_with_a_call_of_unknown_cost_has_no_cost(store):
    parts = scripted(Completion(text=YES.text, usage=Usage(1, 1)), Completion(text=YES.text))
    made = get_evaluator("chunk_relevance", judge=replace(parts, price=(1.0, 1.0)))
    (said,) = score(made, inputs="q", documents=["a", "b"])
    assert said.metadata["judge"]["calls"] == 2
    assert "cost" not in said.metadata["judge"]


def test_it_is_recorded_read_back_and_shown(store):
    experiment = run(store, [relevance()])
    totals = store.experiment(experiment.id).metadata["totals"]
    assert (totals["input_tokens"], totals["judge_input_tokens"], totals["judge_calls"]) == (4, 400, 4)
    assert Experiment.load(store, experiment.id).summary().judge_tokens == 440
    assert "4 judge calls" in experiment.to_html()


def test_without_judges_nothing_is_said_of_them(store):
    experiment = run(store, ["exact"], [{"inputs": {"question": "?"}, "reference_outputs": "Because of ?"}])
    assert not [name for name in store.experiment(experiment.id).metadata["totals"] if name.startswith("judge")]
    assert "judge" not in str(experiment)


def test_a_judgement_that_gives_several_keys_is_counted_once(store):
    judge = scripted(lambda ask: YES)

    @evaluator(key="both")
    async def both(case):
        from spanwise.evaluators.judges import Judgement, prompt

        async with Judgement("both", judge, case) as judgement:
            await judgement.ask(prompt(ID), {"inputs": "q", "outputs": "a"})
            return [judgement.row(1.0, key="one"), judgement.row(0.0, key="two")]

    as_model = [as_evaluator(both)]
    object.__setattr__(as_model[0].make, "source", "model")
    assert run(store, as_model).summary().judge_calls == 4


def test_an_evaluator_without_a_judge_is_refused_before_any_task_runs(store, monkeypatch):
    monkeypatch.delenv("SPANWISE_JUDGE", raising=False)
    with pytest.raises(ValueError, match="no judge is configured"):
        run(store, [get_evaluator(ID)])
    assert store.count()["traces"] == 0
    assert store.experiments() == []


def test_scored_again_counts_what_counts(store):
    experiment = run(store, [relevance()])
    again = experiment.evaluate([relevance(key="again")], progress=False)
    assert again.summary().judge_calls == 8
    assert again.summary().tokens == 12


def test_a_resumed_experiment_asks_only_what_is_missing(store):
    first = run(store, [relevance(*[YES] * 2, "no JSON", "no JSON", "no JSON", "no JSON")], name="e")
    assert first.summary()[ID].failed == 2
    whole = run(store, [relevance()], name="e", resume=True)
    assert (whole.summary()[ID].n, whole.summary()[ID].failed, whole.summary().judge_calls) == (4, 0, 4)
    links = {row.feedback[ID].judge_trace_id for row in whole.rows()}
    assert links <= {trace.trace_id for trace in judged_by(store)}


def test_repetitions_are_judged_each_for_itself(store):
    evaluator = relevance()
    run(store, [evaluator], ROWS[:1], repetitions=3)
    assert sorted(ask.sample for ask in evaluator.function.judge.backend.asked) == [0, 1000, 2000]


class Away:
    """A store that takes what it is asked to, but for the first so many times."""

    def __init__(self, store, times, error=None):
        self._store, self._times = store, times
        self._error = error or Unavailable("away")

    def __getattr__(self, name):
        return getattr(self._store, name)

    def append(self, runs, feedback=()):
        if self._times > 0 and any(run.kind == "evaluator" for run in runs):
            self._times -= 1
            raise self._error
        self._store.append(runs, feedback)


def test_a_store_that_refuses_judgements_gets_them_later_with_their_feedback(store):
    experiment = run(Away(store, 1, OSError("full")), [relevance()])
    assert experiment.unstored is None
    assert len(judged_by(store)) == 4
    assert len(list(store.feedbacks())) == 4


def test_what_a_store_never_takes_waits_with_its_feedback(store, tmp_path):
    from spanwise.evaluators.experiments import deliver_spool

    experiment = run(Away(store, 10**9, OSError("full")), [relevance()])
    assert store.count()["traces"] == 0
    assert experiment.unstored.runs == 4
    assert [row.feedback[ID].score for row in experiment.rows()] == [True] * 4
    deliver_spool(experiment.unstored.path, store)
    assert {feedback.judge_trace_id for feedback in store.feedbacks()} == {t.trace_id for t in judged_by(store)}


def test_deleting_the_experiment_takes_its_judgements(store):
    experiment = run(store, [relevance()])
    store.delete_experiment(experiment.id)
    assert store.count() == {"spans": 0, "traces": 0, "feedbacks": 0}


def test_stored_traces_are_evaluated_and_judgements_are_not(store):
    store.append([Run(trace_id="1" * 32, span_id="2" * 16, name="live", inputs="q", outputs="a", start_ns=1, end_ns=2)])
    attached = evaluate(Filter(), None, [relevance()], store=store, attach=True, progress=False)
    assert attached.summary().judge_calls == 1
    for given in (Filter(), Filter(any_kind="evaluator"), [*store.traces(), *judged_by(store)]):
        again = evaluate(given, None, [relevance(key="again")], store=store, attach=True, progress=False)
        assert again.summary().runs == (0 if given == Filter(any_kind="evaluator") else 1)


def test_an_experiment_over_judgements_alone_has_no_examples(store):
    run(store, [relevance()])
    with pytest.raises(NotFound, match="no examples"):
        evaluate(Filter(kind="evaluator"), None, [relevance()], store=store, progress=False)


def test_attach_again_counts_only_what_was_asked_now(store):
    store.append([Run(trace_id="1" * 32, span_id="2" * 16, name="live", inputs="q", outputs="a", start_ns=1, end_ns=2)])
    judge = relevance()
    evaluate(Filter(), None, [judge], store=store, attach=True, progress=False)
    again = evaluate(Filter(), None, [judge], store=store, attach=True, resume=True, progress=False)
    assert (again.summary()[ID].n, again.summary().judge_calls) == (1, 0)


def test_the_recorder_keeps_judgements_with_its_runs(store):
    recorder = Recorder(store, "tests", "d", [relevance()])
    evaluator = relevance()
    with recorder.run("test", Example(inputs={"question": "Why?"}), repetition=2) as opened:
        [feedback] = opened.score(evaluator, outputs="Because.")
    experiment = recorder.finish()
    [own] = judged_by(store)
    assert feedback.judge_trace_id == own.trace_id
    assert store.trace(own.trace_id).root.metadata["judged_trace"] == feedback.target.trace_id
    assert evaluator.function.judge.backend.asked[0].sample == 2000
    assert finish_stored_experiment(store, experiment.id, [], "finished").summary().judge_calls == 1


def test_a_judge_of_the_whole_set_is_kept_with_what_it_said(store):
    judge = scripted(lambda ask: YES)

    @evaluator(summary=True)
    async def overall(outputs):
        from spanwise.collector.records import Case
        from spanwise.evaluators.judges import Judgement, prompt

        async with Judgement("overall", judge, Case()) as judgement:
            await judgement.ask(prompt(ID), {"inputs": "q", "outputs": "a"})
            return judgement.row(1.0)

    experiment = run(store, [], summary_evaluators=[overall])
    said = experiment.summary().overall["overall"]
    assert said.judge_trace_id == judged_by(store)[0].trace_id
    store.delete_experiment(experiment.id)
    assert store.count()["traces"] == 0


def test_metadata_that_only_look_like_a_judges_harm_nobody(store):
    experiment = run(store, [relevance()], ROWS[:1])
    [row] = experiment.rows()
    nonsense = {
        "judge": {"calls": "x", "cost": float("inf"), "input_tokens": -5, "cached": None, "output_tokens": True}
    }
    said = {"key": "odd", "score": 1.0, "source": "model", "evaluator": "odd", "metadata": nonsense}
    store.add_feedback([Feedback(target=row.feedback[ID].target, **said)])
    assert Experiment.load(store, experiment.id).summary().judge_calls == 1


def test_a_judge_without_a_model_is_not_ready():
    with pytest.raises(ValueError, match="SPANWISE_JUDGE"):
        Judge(model="").check()
