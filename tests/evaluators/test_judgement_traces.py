"""The traces of judgements: what they hold, where they go, and that they are nobody's child."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from spanwise.collector.records import Case, Run, Trace, Usage
from spanwise.evaluators import aevaluate, ascore, evaluate, get_evaluator, score
from spanwise.evaluators.interface import DiscardedJudgements, JudgementBuffer, Skip, use_judge_context
from spanwise.evaluators.judges import Completion, Judge, Judgement, ParseFailure, prompt, scripted
from spanwise.tracer import session, span, tags, trace, user
from spanwise.tracer.testing import capture_spans

YES = {"rationale": "It is.", "rating": "yes"}
ID = "relevance_to_query"
CASE = {"inputs": {"question": "Why?"}, "outputs": "Because."}
ROWS = [{"inputs": {"question": f"Why {n}?"}} for n in range(4)]


def relevance(*replies, **options):
    return get_evaluator(ID, judge=scripted(*(replies or [lambda ask: YES])), **options)


def answer(question):
    return f"Because of {question}"


def root_of(runs):
    return next(run for run in runs if run.parent_id is None)


def judged(evaluator, on=None, **fields):
    """The feedback of one judgement, and its runs."""
    judgements = JudgementBuffer()
    with use_judge_context(judgements=judgements):
        feedback = score(evaluator, on, **fields)
    return feedback, judgements.take()


def test_a_judgement_is_a_root_with_a_run_per_question():
    [feedback], runs = judged(relevance(), **CASE)
    root = root_of(runs)
    [call] = [run for run in runs if run is not root]
    assert (root.kind, root.name, root.trace_id) == ("evaluator", ID, feedback.judge_trace_id)
    assert root.inputs == {"inputs": {"question": "Why?"}, "outputs": "Because."}
    assert root.outputs == {"score": True, "label": "yes", "comment": "It is."}
    assert (call.kind, call.parent_id, call.model) == ("llm", root.span_id, "scripted")
    assert "Because." in call.inputs["messages"][-1]["content"]
    assert call.usage.input_tokens
    assert call.outputs == '{"rationale":"It is.","rating":"yes"}'


def test_it_says_who_judged_what(trace):
    [feedback], [*runs] = judged(evaluator := relevance(), trace)
    root = root_of(runs)
    assert root.metadata == {"evaluator": ID, "version": evaluator.version, "judged_trace": trace.trace_id}
    assert [(link.trace_id, link.span_id) for link in root.links] == [(trace.trace_id, trace.root.span_id)]
    assert feedback.version == evaluator.version


def test_it_is_in_no_trace_session_or_tag_of_the_application():
    @trace
    def app():
        return judged(relevance(), **CASE)

    with capture_spans() as spans, session("s"), user("u"), tags("t"):
        _, runs = app()
    assert spans.names() == ["app"]
    assert all((run.session_id, run.user_id, run.tags) == (None, None, ()) for run in runs)
    assert len({run.trace_id for run in runs}) == 1
    assert root_of(runs).kind == "evaluator"


def test_after_it_the_applications_span_is_current_again():
    with capture_spans() as spans, span("app"):
        score(relevance(), **CASE)
        with span("after"):
            pass
    assert spans.parent("after") == "app"


def test_by_hand_it_is_delivered_like_any_span_and_the_link_is_true():
    with capture_spans() as spans:
        [feedback] = score(relevance(), **CASE)
    assert spans.names() == [ID, ID]
    assert f"{spans.spans[0].context.trace_id:032x}" == feedback.judge_trace_id
    assert spans.spans[0].parent is None


@pytest.mark.process
def test_by_hand_without_a_collector_judged_texts_stay_in_the_process(tmp_path):
    code = """
import os
from spanwise.evaluators import get_evaluator, score
from spanwise.evaluators.testing import scripted
from spanwise.tracer import trace_capture, configure, flush
trace_capture.DEFAULT_URL = "http://127.0.0.1:9"
configure(url=os.environ["COLLECTOR"], spill_dir=os.environ["SPOOL"])
judge = scripted({"rationale": "r", "rating": "yes"})
print(score(get_evaluator("safety", judge=judge), outputs="SECRET")[0].judge_trace_id is not None)
flush(timeout=1)
"""

    def run(url):
        spool = tmp_path / url.rpartition(":")[2]
        spool.mkdir()
        environment = {**os.environ, "COLLECTOR": url, "SPOOL": str(spool)}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        return done.stdout.strip(), done.stderr, any(b"SECRET" in file.read_bytes() for file in spool.rglob("*.spool"))

    assert run("http://127.0.0.1:9") == ("False", "", False)  # the default address, where nothing listens
    told, warned, spooled = run("http://127.0.0.1:1")  # a collector that was configured, and is away
    assert (told, "no collector answers" in warned, spooled) == ("True", True, True)


def test_a_traced_function_as_a_judge_is_part_of_its_judgement():
    @trace
    def model(prompt: str) -> str:
        return '{"rationale": "It is.", "rating": "yes"}'

    class Asking:
        model, where = "mine", "a function"

        async def complete(self, ask):
            return Completion(text=model("x"))

    with capture_spans() as spans:
        _, runs = judged(get_evaluator(ID, judge=Judge(model="mine", backend=Asking())), **CASE)
    assert spans.names() == []
    assert [run.name for run in runs if run.kind == "chain"] == ["model"]


@pytest.mark.parametrize("settings", [{"capture": "none"}])
def test_who_records_nothing_gets_no_trace_and_no_link(settings):
    with capture_spans(**settings) as spans:
        [feedback], runs = judged(relevance(), **CASE)
        [by_hand] = score(relevance(), **CASE)
    assert (runs, spans.spans, feedback.judge_trace_id, by_hand.judge_trace_id) == ([], [], None, None)
    assert feedback.score is True
    assert feedback.metadata["judge"]["calls"] == 1


def test_what_is_not_to_be_recorded_of_an_application_is_not_recorded_of_its_judge():
    with capture_spans(capture="metadata"):
        _, only_metadata = judged(relevance(), **CASE)
    with capture_spans(redact=["question", "outputs"]):
        _, redacted = judged(relevance(), **CASE)
    assert all((run.inputs, run.outputs) == (None, None) for run in only_metadata)
    assert only_metadata[0].usage or only_metadata[1].usage
    assert "Because." not in str(root_of(redacted).inputs)


def test_where_nothing_is_kept_no_feedback_claims_a_trace():
    with capture_spans() as spans, use_judge_context(judgements=DiscardedJudgements()):
        [feedback] = score(relevance(), **CASE)
    assert (spans.spans, feedback.judge_trace_id) == ([], None)


def test_a_judgement_that_failed_leads_to_its_trace_with_the_reply():
    [feedback], runs = judged(relevance("no JSON"), **CASE)
    root = root_of(runs)
    [call] = [run for run in runs if run is not root]
    assert (feedback.outcome, feedback.judge_trace_id) == ("error", root.trace_id)
    assert feedback.error.startswith("parse failure")
    assert (root.status, call.status, call.outputs) == ("error", "error", "no JSON")


def test_a_question_that_a_budget_forbids_leaves_no_trace():
    [feedback], runs = judged(relevance(Skip("over budget: 1 call")), **CASE)
    assert (feedback.outcome, feedback.judge_trace_id, runs) == ("skip", None, [])


def test_tokens_and_cost_are_of_calls_and_not_of_what_was_known():
    [feedback], _ = judged(relevance(), **CASE)
    told = feedback.metadata["judge"]
    assert told["calls"] == 1
    assert told["cached"] == 0
    assert told["input_tokens"] > 0
    assert told["prompts"][0].startswith(f"{ID} ")
    assert told["model"] == "scripted"


def test_in_a_pool_of_threads_each_judgement_is_its_own():
    judgements = JudgementBuffer()
    evaluator = relevance()

    def judge(n):
        with use_judge_context(judgements=judgements):
            return score(evaluator, inputs="q", outputs=str(n))[0].judge_trace_id

    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(judge, range(20)))
    runs = judgements.take()
    assert {run.trace_id for run in runs} == set(ids)
    assert len(ids) == len(set(ids)) == len(runs) / 2


def test_questions_at_the_same_time_are_runs_of_one_judgement():
    async def ask_twice():
        judge = scripted(lambda ask: YES)
        async with Judgement("mine", judge, Case(inputs="q", outputs="a")) as judgement:
            asked = prompt(ID)
            values = {"inputs": "q", "outputs": "a"}
            await asyncio.gather(*(judgement.ask(asked, values, sample=n) for n in range(3)))
            return judgement.row(1.0), [ask.sample for ask in judge.backend.asked]

    judgements = JudgementBuffer()
    with use_judge_context(judgements=judgements):
        row, samples = asyncio.run(ask_twice())
    runs = judgements.take()
    assert (len(runs), samples, row["metadata"]["judge"]["calls"]) == (4, [0, 1, 2], 3)
    assert {run.parent_id for run in runs if run.kind == "llm"} == {root_of(runs).span_id}


def test_a_question_before_the_judgement_began_is_refused():
    with pytest.raises(RuntimeError, match="async with"):
        asyncio.run(Judgement("mine", scripted("x"), Case()).ask(prompt(ID), {"inputs": "q", "outputs": "a"}))


def test_repetitions_are_questions_of_their_own():
    root = Run(trace_id="1" * 32, span_id="2" * 16, name="a", inputs="q", outputs="a", repetition=2)
    evaluator = relevance()
    score(evaluator, Trace(root, (root,)))
    with use_judge_context(repetition=3):
        score(evaluator, inputs="q", outputs="a")
    assert [ask.sample for ask in evaluator.function.judge.backend.asked] == [2000, 3000]


def test_long_values_are_cut_on_the_root_and_whole_in_the_question():
    text = "word " * 20_000
    _, runs = judged(relevance(), inputs="q", outputs=text)
    root = root_of(runs)
    assert len(str(root.inputs["outputs"])) < 5_000
    assert any(len(str(run.inputs)) > 15_000 for run in runs)


def test_a_failure_is_the_judgements_own_and_ends_it():
    async def fail():
        async with Judgement("mine", scripted("x"), Case(inputs="q")) as judgement:
            raise ParseFailure("no object", "x")
        return judgement

    judgements = JudgementBuffer()
    with use_judge_context(judgements=judgements), pytest.raises(ParseFailure) as caught:
        asyncio.run(fail())
    assert caught.value.judge_trace_id == root_of(judgements.take()).trace_id


def test_an_evaluator_may_run_on_a_loop_that_others_use(store):
    async def both():
        return await ascore(relevance(), **CASE), await aevaluate(ROWS, answer, [relevance()], store=store)

    with capture_spans() as spans:
        [feedback], experiment = asyncio.run(both())
    assert len(spans.names()) == 2
    assert feedback.judge_trace_id
    assert all(row.feedback[ID].judge_trace_id for row in experiment.rows())


def test_experiments_keep_judgements_with_their_feedback(store):
    with capture_spans() as spans:
        experiment = evaluate(ROWS, answer, [relevance()], store=store, progress=False)
    links = {row.feedback[ID].judge_trace_id for row in experiment.rows()}
    own = store.traces(kind="evaluator")
    assert {trace.trace_id for trace in own} == links
    assert len(links) == 4
    assert (len(store.traces()), spans.spans) == (4, [])
    root = store.trace(own.items[0].trace_id).root
    assert root.metadata["judged_trace"] in {row.trace.trace_id for row in experiment.rows()}


def test_what_a_failed_question_took_is_counted_with_the_judgement():
    unread = Completion(text="no JSON", model="m", usage=Usage(100, 10))
    [feedback], runs = judged(relevance(lambda ask: unread), **CASE)
    told = feedback.metadata["judge"]
    assert (told["calls"], told["input_tokens"], told["output_tokens"]) == (2, 200, 20)
    assert told["prompts"][0].startswith(ID)
    assert feedback.metadata["reply"] == "no JSON"
    assert "calls" not in feedback.metadata
    assert [run.usage.input_tokens for run in runs if run.kind == "llm"] == [200]


def test_an_answer_that_was_known_is_marked_and_costs_nothing(tmp_path):
    class Backend:
        model, where = "m", "a backend"

        async def complete(self, ask):
            return Completion(text='{"rationale": "It is.", "rating": "yes"}', model="m", usage=Usage(100, 10))

    evaluator = get_evaluator(ID, judge=Judge(model="m", backend=Backend(), cache=tmp_path / "cache.db", price=(1, 1)))
    judged(evaluator, **CASE)
    [feedback], runs = judged(evaluator, **CASE)
    told = feedback.metadata["judge"]
    assert (told["calls"], told["cached"], told["input_tokens"], told["cost"]) == (0, 1, 0, 0.0)
    [call] = [run for run in runs if run.kind == "llm"]
    assert call.metadata["cached"] is True
    assert call.usage is None
    assert call.cost is None


def test_a_panels_votes_are_parts_of_one_trace():
    from spanwise.evaluators.judges import panel

    members = panel(relevance(key="a"), relevance({"rationale": "No.", "rating": "no"}), relevance(), key="several")
    [feedback], runs = judged(members, **CASE)
    root = root_of(runs)
    assert {run.trace_id for run in runs} == {feedback.judge_trace_id}
    assert (root.name, root.metadata["evaluator"], root.kind) == ("several", "several", "evaluator")
    assert sorted(run.kind for run in runs if run.parent_id == root.span_id) == ["evaluator"] * 3
    assert [run.kind for run in runs].count("llm") == 3
    assert feedback.metadata["judge"]["calls"] == 3


def test_a_panel_is_counted_once_and_goes_with_what_it_judged(store):
    from spanwise.evaluators.judges import panel

    members = panel(relevance(key="a"), relevance(), key="several")
    experiment = evaluate(ROWS, answer, [members], store=store, progress=False)
    assert experiment.summary().judge_calls == 8
    assert len(store.traces(kind="evaluator")) == 4
    store.delete_experiment(experiment.id)
    assert store.count()["traces"] == 0


def test_a_panel_with_a_member_that_nobody_named_is_refused(store, monkeypatch):
    from spanwise.evaluators.judges import panel

    monkeypatch.delenv("SPANWISE_JUDGE", raising=False)
    with pytest.raises(ValueError, match="no judge is configured"):
        evaluate(ROWS, answer, [panel(relevance(), get_evaluator(ID), key="several")], store=store, progress=False)


def test_all_votes_that_fail_lead_to_the_trace_of_the_panel():
    from spanwise.evaluators.judges import panel

    [feedback], runs = judged(panel(relevance("no"), relevance("none"), key="several"), **CASE)
    assert (feedback.outcome, feedback.judge_trace_id) == ("error", root_of(runs).trace_id)


def test_an_experiment_inside_a_judgement_has_judgements_of_its_own(store):
    from spanwise.evaluators.judges.judge_evaluator import group_judgements

    judgements = JudgementBuffer()
    with use_judge_context(judgements=judgements), group_judgements("outer", Case(inputs="q")):
        evaluate(ROWS[:1], answer, [relevance()], store=store, progress=False)
    [own] = store.traces(kind="evaluator")
    assert own.name == ID
    assert [run.name for run in judgements.take()] == ["outer"]


def test_a_call_to_an_endpoint_of_ones_own_has_no_price_anywhere():
    def reply(ask):
        return Completion(text='{"rationale": "It is.", "rating": "yes"}', model="gpt-4o", usage=Usage(1000, 100))

    [feedback], runs = judged(relevance(reply), **CASE)
    [call] = [run for run in runs if run.kind == "llm"]
    assert (call.model, call.usage.input_tokens) == ("gpt-4o", 1000)
    assert (call.cost, feedback.metadata["judge"].get("cost")) == (None, None)
